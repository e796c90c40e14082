"""The layers of `paddle.nn` with filters, or with weights for channels."""

from __future__ import annotations

import math
from typing import Any

from pstranspile.fluid.initializer import Constant, Normal, Uniform
from pstranspile.fluid.missing import refused
from pstranspile.fluid.paddle.nn import functional
from pstranspile.fluid.paddle.nn.layer import Layer


class _Filters(Layer):
    """The base class of convolutions: filters, a bias and the settings."""

    rank = 2
    transposed = False

    def _make(
        self,
        channels: tuple[int, int],
        kernel_size: Any,
        settings: dict[str, Any],
        attrs: tuple[Any, Any],
        data_format: str | None,
    ) -> None:
        sizes = [kernel_size] * self.rank if isinstance(kernel_size, int) else list(kernel_size)
        read, made = channels
        if read % settings["groups"]:
            raise ValueError(f"{type(self).__name__}: {settings['groups']} groups can't share {read} channels")
        first, second = (read, made) if self.transposed else (made, read)
        spread = None if self.transposed else Normal(0.0, math.sqrt(2.0 / (math.prod(sizes) * read)))
        dims = [first, second // settings["groups"], *sizes]
        self.weight = self.create_parameter(dims, attrs[0], default_initializer=spread)
        self.bias = self.create_parameter([made], attrs[1], is_bias=True)
        if data_format is not None:
            settings["data_format"] = data_format
        self._settings = settings

    def forward(self, x: Any, output_size: Any = None) -> Any:
        """The input, convolved."""
        name = f"conv{self.rank}d" + ("_transpose" if self.transposed else "")
        more = {} if output_size is None else {"output_size": output_size}
        return getattr(functional, name)(x, self.weight, self.bias, **self._settings, **more)


class Conv2D(_Filters):
    """A layer that convolves images with filters."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ):
        super().__init__()
        if padding_mode != "zeros":
            raise refused(f"{type(self).__name__}(padding_mode={padding_mode!r})", "it pads with zeros; use Pad2D")
        settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        self._make((in_channels, out_channels), kernel_size, settings, (weight_attr, bias_attr), data_format)


class Conv1D(Conv2D):
    """A layer that convolves sequences with filters."""

    rank = 1


class Conv3D(Conv2D):
    """A layer that convolves volumes with filters."""

    rank = 3


class Conv2DTranspose(_Filters):
    """A layer with the transposed convolution of images."""

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ):
        super().__init__()
        settings = {"stride": stride, "padding": padding, "output_padding": output_padding}
        settings |= {"dilation": dilation, "groups": groups}
        self._make((in_channels, out_channels), kernel_size, settings, (weight_attr, bias_attr), data_format)


class Conv3DTranspose(Conv2DTranspose):
    """A layer with the transposed convolution of volumes."""

    rank = 3


class Conv1DTranspose(Conv2DTranspose):
    """A layer with the transposed convolution of sequences."""

    rank = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ):
        settings = stride, padding, output_padding, dilation, groups
        super().__init__(in_channels, out_channels, kernel_size, *settings, weight_attr, bias_attr, data_format)


class GroupNorm(Layer):
    """Normalises each group of channels of a sample to mean 0 and variance 1, then scales and shifts channels."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        epsilon: float = 1e-05,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCHW",
        name: Any = None,
    ):
        super().__init__()
        self._settings = num_groups, epsilon
        self._format = data_format
        self.weight = self.create_parameter([num_channels], weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([num_channels], bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        """The input with its groups normalised."""
        held = self.weight, self.bias
        return functional.group_norm(input, *self._settings, *held, self._format, self.full_name())


class InstanceNorm2D(Layer):
    """Normalises each channel of a sample to mean 0 and variance 1, then scales and shifts it."""

    def __init__(
        self,
        num_features: int,
        epsilon: float = 1e-05,
        momentum: float = 0.9,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCHW",
        name: Any = None,
    ):
        super().__init__()
        self._epsilon = epsilon
        self.scale = self.create_parameter([num_features], weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([num_features], bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        """The input with its channels normalised."""
        return functional.instance_norm(input, weight=self.scale, bias=self.bias, eps=self._epsilon)


class InstanceNorm1D(InstanceNorm2D):
    """`InstanceNorm2D` for sequences."""


class InstanceNorm3D(InstanceNorm2D):
    """`InstanceNorm2D` for volumes."""


class PReLU(Layer):
    """x where it is positive, otherwise x times a weight; one weight for all channels, or one for each."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, weight_attr: Any = None, name: Any = None):
        super().__init__()
        start = Constant(init)
        self._weight = self.create_parameter([num_parameters], weight_attr, default_initializer=start)

    def forward(self, x: Any) -> Any:
        """The activation of x."""
        return functional.prelu(x, self._weight)


class Bilinear(Layer):
    """Bilinear forms of pairs of vectors: one number for each matrix of the weight."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: Any = None,
    ):
        super().__init__()
        self.weight = self.create_parameter([out_features, in1_features, in2_features], weight_attr)
        self.bias = self.create_parameter([1, out_features], bias_attr, is_bias=True)

    def forward(self, x1: Any, x2: Any) -> Any:
        """The numbers for pairs of vectors, a column for each matrix."""
        return functional.bilinear(x1, x2, self.weight, self.bias)


def uniform_start(hidden_size: int) -> Any:
    """The initialiser of weights in recurrent layers."""
    bound = 1.0 / math.sqrt(hidden_size)
    return Uniform(-bound, bound)
