"""The layers of `paddle.nn`: objects with parameters, which add their ops to the program in use when called.

After containers and plain layers stand those with filters, or with weights for channels, and then those without
parameters: activations, pools, losses and dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.initializer import Constant, Normal, Uniform
from pstranspile.fluid.layers import objects
from pstranspile.fluid.layers.adapt import bound, signature_of
from pstranspile.fluid.missing import unsupported_error
from pstranspile.fluid.paddle import figures
from pstranspile.fluid.paddle.nn import functional
from pstranspile.fluid.paddle.tensor import flatten
from pstranspile.fluid.param_attr import attr_of

# Layers without parameters: activations, pools, losses and dropout.


L: Any = layers


class Layer(objects.Layer):
    """A layer with its parameters and sublayers."""

    def create_parameter(
        self,
        shape: Any,
        attr: Any = None,
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Any:
        """Makes a parameter of the layer, by default with the layer's element type; returns None where
        `attr` is False.
        """
        return super().create_parameter(shape, attr, dtype or self._dtype, is_bias, default_initializer)

    def __init__(self, name_scope: str | None = None, dtype: Any = "float32"):
        super().__init__(name_scope, dtype)
        self._buffers: dict[str, Any] = {}

    def children(self) -> Iterator[Any]:
        """The direct sublayers."""
        return iter(self._sub_layers.values())

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """The direct sublayers, with their names."""
        return iter(self._sub_layers.items())

    def apply(self, fn: Callable[[Any], Any]) -> Layer:
        """Calls a function with each sublayer, and then with the layer itself; returns the layer."""
        for layer in self.children():
            layer.apply(fn)
        fn(self)
        return self

    def register_buffer(self, name: str, tensor: Any, persistable: bool = True) -> None:
        """Registers a variable that is not trained with the layer."""
        self._buffers[name] = tensor
        object.__setattr__(self, name, tensor)

    def buffers(self, include_sublayers: bool = True) -> list[Any]:
        """The registered variables that are not trained."""
        layers_ = [self, *(self.sublayers() if include_sublayers else [])]
        return [held for layer in layers_ for held in getattr(layer, "_buffers", {}).values()]

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """The parameters by name, including those of the sublayers."""
        return dict(self.named_parameters())


class Linear(Layer):
    """A layer x * weight + bias, for the last dim of x."""

    def __init__(
        self, in_features: int, out_features: int, weight_attr: Any = None, bias_attr: Any = None, name: Any = None
    ):
        super().__init__()
        self.weight = self.create_parameter([in_features, out_features], weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        """The input with its last dim mapped to `out_features`."""
        return functional.linear(input, self.weight, self.bias)


class Embedding(Layer):
    """A lookup of ids in a table."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        weight_attr: Any = None,
        name: Any = None,
    ):
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx {padding_idx} is none of {num_embeddings} rows")
        self._num_embeddings, self._embedding_dim = num_embeddings, embedding_dim  # as scripts read them
        self._padding, self._sparse = padding_idx, sparse
        self.weight = self.create_parameter([num_embeddings, embedding_dim], weight_attr)

    def forward(self, x: Any) -> Any:
        """The rows of the ids, with the dims of the ids followed by `embedding_dim`."""
        return functional.embedding(x, self.weight, self._padding, self._sparse)


def _parameter_attr(parameter: Any, given: Any) -> Any:
    """The attributes with which Fluid's layers use an existing parameter; False for none."""
    if parameter is None:
        return False
    attr = copy(attr_of(given))
    attr.name = parameter.name
    return attr


class BatchNorm1D(Layer):
    """Normalises each channel to mean 0 and variance 1 over the batch, then scales and shifts it."""

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCHW",
        use_global_stats: bool | None = None,
        name: Any = None,
    ):
        super().__init__()
        self.weight = self.create_parameter([num_features], weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([num_features], bias_attr, is_bias=True)
        self._parameters_and_attrs = ((self.weight, weight_attr), (self.bias, bias_attr))
        named = (f"{name}_mean", f"{name}_variance")
        self._means = [*named] if name else [f"{self.full_name()}.w_{number}" for number in (1, 2)]
        self._settings = (momentum, epsilon)
        self._format = "NHWC" if data_format in ("NHWC", "NLC") else "NCHW"
        self._global = bool(use_global_stats)
        self._named: dict[str, str] = {}

    def forward(self, input: Any) -> Any:
        """The input with its channels normalised; outside of training, by the running mean and variance."""
        return L.batch_norm(
            input,
            None,
            not self.training,
            *self._settings,
            *(_parameter_attr(*held) for held in self._parameters_and_attrs),
            self._format,
            moving_mean_name=self._means[0],
            moving_variance_name=self._means[1],
            use_global_stats=self._global,
            **self._named,
        )


class BatchNorm(BatchNorm1D):
    """`BatchNorm1D` with the arguments of Fluid, followed by an activation."""

    def __init__(
        self,
        num_channels: int,
        act: str | None = None,
        is_test: bool = False,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: str = "float32",
        data_layout: str = "NCHW",
        in_place: bool = False,
        moving_mean_name: str | None = None,
        moving_variance_name: str | None = None,
        do_model_average_for_mean_and_var: bool = True,
        use_global_stats: bool = False,
    ):
        settings = momentum, epsilon, param_attr, bias_attr, data_layout, use_global_stats
        super().__init__(num_channels, *settings)
        self._act, self.training = act, not is_test
        self._named = {"name": self.full_name()}
        given = zip((moving_mean_name, moving_variance_name), self._means, strict=True)
        self._means = [name or own for name, own in given]

    def forward(self, input: Any) -> Any:
        """The input with its channels normalised, then activated."""
        made = super().forward(input)
        return made if self._act is None else getattr(L, self._act)(made)


class LayerNorm(Layer):
    """Normalises each sample to mean 0 and variance 1 over its last dims, then scales and shifts it."""

    def __init__(
        self,
        normalized_shape: Any,
        epsilon: float = 1e-05,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: Any = None,
    ):
        super().__init__()
        dims = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
        self._dims, self._epsilon = len(dims), epsilon
        size = [math.prod(dims)]
        self.weight = self.create_parameter(size, weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter(size, bias_attr, is_bias=True)
        self._parameters_and_attrs = ((self.weight, weight_attr), (self.bias, bias_attr))

    def forward(self, input: Any) -> Any:
        """The input with its last dims normalised."""
        scaled, shifted = self.weight is not None, self.bias is not None
        first = len(input.shape) - self._dims
        attrs = [_parameter_attr(*held) or None for held in self._parameters_and_attrs]
        return L.layer_norm(input, scaled, shifted, first, self._epsilon, *attrs)


class Sequential(Layer):
    """Layers in a row, each of which gets the results of the previous one."""

    def __init__(self, *given: Any):
        super().__init__()
        for number, item in enumerate(given):
            name, layer = (number, item) if isinstance(item, objects.Layer) else item
            self.add_sublayer(str(name), layer)

    def __getitem__(self, index: Any) -> Any:
        return list(self.children())[index]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def forward(self, *inputs: Any) -> Any:
        """The results of the last layer."""
        for layer in self.children():
            inputs = (layer(*inputs),)
        return inputs[0]


class LayerList(Layer):
    """A list of layers."""

    def __init__(self, sublayers: Sequence[Any] = ()):
        super().__init__()
        for layer in sublayers:
            self.append(layer)

    def extend(self, sublayers: Iterable[Any]) -> LayerList:
        """Appends several layers, and returns the list."""
        for layer in sublayers:
            self.append(layer)
        return self

    def insert(self, index: int, sublayer: Any) -> None:
        """Inserts a layer before an index."""
        held = [*self.children()]
        held.insert(index, sublayer)
        self._sub_layers.clear()
        self.extend(held)

    def __setitem__(self, index: int, sublayer: Any) -> None:
        self.add_sublayer(str(range(len(self))[index]), sublayer)

    def append(self, sublayer: Any) -> LayerList:
        """Appends a layer, and returns the list."""
        self.add_sublayer(str(len(self)), sublayer)
        return self

    def __getitem__(self, index: Any) -> Any:
        return list(self.children())[index]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Any]:
        return self.children()


class ParameterList(Layer):
    """A list of parameters."""

    def __init__(self, parameters: Sequence[Any] = ()):
        super().__init__()
        for parameter in parameters:
            self.append(parameter)

    def append(self, parameter: Any) -> ParameterList:
        """Appends a parameter, and returns the list."""
        self.add_parameter(str(len(self)), parameter)
        return self

    def __getitem__(self, index: int) -> Any:
        return list(self._parameters.values())[index]

    def __setitem__(self, index: int, parameter: Any) -> None:
        self.add_parameter(str(index), parameter)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())


class BatchNorm2D(BatchNorm1D):
    """`BatchNorm1D` for images."""


class BatchNorm3D(BatchNorm1D):
    """`BatchNorm1D` for volumes."""


class SyncBatchNorm(BatchNorm1D):
    """`BatchNorm1D`; batches are not joined over trainers, so each trainer normalises its own."""


# Layers with filters, or with weights for channels.


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
            raise unsupported_error(
                f"{type(self).__name__}(padding_mode={padding_mode!r})", "it pads with zeros; use Pad2D"
            )
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


def _calls(name: str, function: Callable[..., Any], arguments: str, inputs: str = "x") -> Any:
    """A class of layers without parameters: `arguments` are the parameters of its constructor; a call of the layer
    passes its `inputs`, followed by these, to `function`.
    """
    signature, read = signature_of(f"{arguments}{', ' if arguments else ''}name=None"), signature_of(inputs)

    def start(self: Any, *args: Any, **options: Any) -> None:
        Layer.__init__(self)
        self._settings = bound(name, signature, args, options)
        del self._settings["name"]

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        given = bound(name, read, args, options)
        return function(*given.values(), **self._settings)

    return type(name, (Layer,), {"__init__": start, "forward": forward, "__doc__": function.__doc__})


_TWO = "input, label"
ReLU = _calls("ReLU", L.relu, "")
Sigmoid, Tanh = _calls("Sigmoid", L.sigmoid, ""), _calls("Tanh", L.tanh, "")
Softmax, LogSoftmax = (
    _calls("Softmax", functional.softmax, "axis=-1"),
    _calls("LogSoftmax", functional.log_softmax, "axis=-1"),
)
LeakyReLU = _calls("LeakyReLU", functional.leaky_relu, "negative_slope=0.01")
ReLU6, ELU = _calls("ReLU6", functional.relu6, ""), _calls("ELU", functional.elu, "alpha=1.0")
GELU, Swish = _calls("GELU", functional.gelu, "approximate=False"), _calls("Swish", functional.swish, "")
Hardswish, Hardsigmoid = (
    _calls("Hardswish", functional.hardswish, ""),
    _calls("Hardsigmoid", functional.hardsigmoid, ""),
)
Flatten = _calls("Flatten", flatten, "start_axis=1, stop_axis=-1")
AdaptiveAvgPool2D = _calls("AdaptiveAvgPool2D", functional.adaptive_avg_pool2d, "output_size")
AdaptiveMaxPool2D = _calls("AdaptiveMaxPool2D", functional.adaptive_max_pool2d, "output_size")
CrossEntropyLoss = _calls(
    "CrossEntropyLoss",
    functional.cross_entropy,
    "weight=None, ignore_index=-100, reduction='mean', soft_label=False, axis=-1",
    _TWO,
)
MSELoss = _calls("MSELoss", functional.mse_loss, "reduction='mean'", _TWO)
L1Loss = _calls("L1Loss", functional.l1_loss, "reduction='mean'", _TWO)
SmoothL1Loss = _calls("SmoothL1Loss", functional.smooth_l1_loss, "reduction='mean', delta=1.0", _TWO)
BCELoss = _calls("BCELoss", functional.binary_cross_entropy, "weight=None, reduction='mean'", _TWO)
BCEWithLogitsLoss = _calls(
    "BCEWithLogitsLoss",
    functional.binary_cross_entropy_with_logits,
    "weight=None, reduction='mean', pos_weight=None",
    "logit, label",
)
KLDivLoss = _calls("KLDivLoss", functional.kl_div, "reduction='mean'", _TWO)
CosineSimilarity = _calls("CosineSimilarity", functional.cosine_similarity, "axis=1, eps=1e-08", "x1, x2")


def _pair_distance(x: Any, y: Any, p: float = 2.0, epsilon: float = 1e-6, keepdim: bool = False) -> Any:
    """The p-norms of the differences of corresponding rows."""
    return figures.norm(L.scale(L.elementwise_sub(x, y), 1.0, epsilon), p, 1, keepdim)


def _dropout_class(function: Callable[..., Any], name: str, arguments: str) -> Any:
    """A class of layers that call a dropout function, to which they pass whether they train."""
    made = _calls(name, function, arguments)
    own = made.forward

    def forward(self: Any, x: Any) -> Any:
        self._settings["training"] = self.training
        return own(self, x)

    made.forward = forward
    return made


_RESIZED = "size=None, scale_factor=None, {}data_format='NCHW'"
_WINDOWS = "kernel_size, stride=None, padding=0, "
Hardshrink, Softshrink = (
    _calls("Hardshrink", functional.hardshrink, "threshold=0.5"),
    _calls("Softshrink", functional.softshrink, "threshold=0.5"),
)
Tanhshrink, Softsign = _calls("Tanhshrink", functional.tanhshrink, ""), _calls("Softsign", functional.softsign, "")
ThresholdedReLU = _calls("ThresholdedReLU", functional.thresholded_relu, "threshold=1.0")
Hardtanh, LogSigmoid = (
    _calls("Hardtanh", functional.hardtanh, "min=-1.0, max=1.0"),
    _calls("LogSigmoid", functional.log_sigmoid, ""),
)
SELU = _calls("SELU", functional.selu, "scale=1.0507009873554805, alpha=1.6732632423543772")
Softplus, Silu, Mish = (
    _calls("Softplus", functional.softplus, "beta=1, threshold=20"),
    _calls("Silu", functional.silu, ""),
    _calls("Mish", functional.mish, ""),
)
Maxout = _calls("Maxout", functional.maxout, "groups, axis=1")
PixelShuffle = _calls("PixelShuffle", functional.pixel_shuffle, "upscale_factor")
MaxPool1D = _calls("MaxPool1D", functional.max_pool1d, _WINDOWS + "return_mask=False, ceil_mode=False")
MaxPool2D = _calls(
    "MaxPool2D", functional.max_pool2d, _WINDOWS + "return_mask=False, ceil_mode=False, data_format='NCHW'"
)
AvgPool2D = _calls(
    "AvgPool2D",
    functional.avg_pool2d,
    _WINDOWS + "ceil_mode=False, exclusive=True, divisor_override=None, data_format='NCHW'",
)
MaxPool3D = _calls(
    "MaxPool3D", functional.max_pool3d, _WINDOWS + "return_mask=False, ceil_mode=False, data_format='NCDHW'"
)
AvgPool1D = _calls("AvgPool1D", functional.avg_pool1d, _WINDOWS + "exclusive=True, ceil_mode=False")
AvgPool3D = _calls(
    "AvgPool3D",
    functional.avg_pool3d,
    _WINDOWS + "ceil_mode=False, exclusive=True, divisor_override=None, data_format='NCDHW'",
)
AdaptiveAvgPool1D = _calls("AdaptiveAvgPool1D", functional.adaptive_avg_pool1d, "output_size")
AdaptiveAvgPool3D = _calls("AdaptiveAvgPool3D", functional.adaptive_avg_pool3d, "output_size")
AdaptiveMaxPool1D = _calls("AdaptiveMaxPool1D", functional.adaptive_max_pool1d, "output_size, return_mask=False")
AdaptiveMaxPool3D = _calls("AdaptiveMaxPool3D", functional.adaptive_max_pool3d, "output_size, return_mask=False")
LocalResponseNorm = _calls(
    "LocalResponseNorm", functional.local_response_norm, "size, alpha=0.0001, beta=0.75, k=1.0, data_format='NCHW'"
)
Pad1D = _calls("Pad1D", functional.pad, "pad, mode='constant', value=0.0, data_format='NCL'")
Pad2D = _calls("Pad2D", functional.pad, "pad, mode='constant', value=0.0, data_format='NCHW'")
Pad3D = _calls("Pad3D", functional.pad, "pad, mode='constant', value=0.0, data_format='NCDHW'")
Upsample = _calls(
    "Upsample", functional.interpolate, _RESIZED.format("mode='nearest', align_corners=False, align_mode=0, ")
)
UpsamplingNearest2D = _calls("UpsamplingNearest2D", functional.interpolate, _RESIZED.format(""))


def _bilinear(x: Any, **settings: Any) -> Any:
    """Images resized by bilinear interpolation."""
    return functional.interpolate(x, mode="bilinear", align_corners=True, **settings)


UpsamplingBilinear2D = _calls("UpsamplingBilinear2D", _bilinear, _RESIZED.format(""))
NLLLoss = _calls("NLLLoss", functional.nll_loss, "weight=None, ignore_index=-100, reduction='mean'", _TWO)
MarginRankingLoss = _calls(
    "MarginRankingLoss", functional.margin_ranking_loss, "margin=0.0, reduction='mean'", "input, other, label"
)
CTCLoss = _calls(
    "CTCLoss", functional.ctc_loss, "blank=0, reduction='mean'", "log_probs, labels, input_lengths, label_lengths"
)
PairwiseDistance = _calls("PairwiseDistance", _pair_distance, "p=2.0, epsilon=1e-06, keepdim=False", "x, y")
Dropout = _dropout_class(functional.dropout, "Dropout", "p=0.5, axis=None, mode='upscale_in_train'")
Dropout2D = _dropout_class(functional.dropout2d, "Dropout2D", "p=0.5, data_format='NCHW'")
Dropout3D = _dropout_class(functional.dropout3d, "Dropout3D", "p=0.5, data_format='NCDHW'")
AlphaDropout = _dropout_class(functional.alpha_dropout, "AlphaDropout", "p=0.5")
