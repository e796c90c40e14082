"""The layers of `paddle.nn`: objects with parameters, which make their ops in the program in use when called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.dygraph import layers as objects
from pstranspile.fluid.initializer import Constant, Normal
from pstranspile.fluid.layers.adapt import bound, signature_of
from pstranspile.fluid.paddle.nn import functional as F
from pstranspile.fluid.paddle.tensor import flatten
from pstranspile.fluid.param_attr import attr_of

L: Any = layers


class Layer(objects.Layer):
    """A layer with its parameters and the layers within it."""

    def create_parameter(
        self,
        shape: Any,
        attr: Any = None,
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Any:
        """A parameter of the layer, of its element type if no other is given; None where `attr` is False."""
        return super().create_parameter(shape, attr, dtype or self._dtype, is_bias, default_initializer)

    @property
    def children(self) -> list[Any]:
        """The layers right within this one."""
        return list(self._sub_layers.values())


class Linear(Layer):
    """x * weight + bias, for the last dim of x."""

    def __init__(
        self, in_features: int, out_features: int, weight_attr: Any = None, bias_attr: Any = None, name: Any = None
    ):
        super().__init__(name)
        self.weight = self.create_parameter([in_features, out_features], weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        """The last dim of the input turned into `out_features`."""
        return F.linear(input, self.weight, self.bias)


class Embedding(Layer):
    """The rows of a table that ids choose."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        weight_attr: Any = None,
        name: Any = None,
    ):
        super().__init__(name)
        self._padding, self._sparse = padding_idx, sparse
        self.weight = self.create_parameter([num_embeddings, embedding_dim], weight_attr)

    def forward(self, x: Any) -> Any:
        """The rows of the ids, of the ids' dims and `embedding_dim`."""
        return F.embedding(x, self.weight, self._padding, self._sparse)


def _held(parameter: Any, given: Any) -> Any:
    """The attributes with which Fluid's layers take a parameter that there is; False for none."""
    if parameter is None:
        return False
    attr = copy(attr_of(given))
    attr.name = parameter.name
    return attr


class Conv2D(Layer):
    """Images convolved with filters."""

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
        data_format: str = "NCHW",
    ):
        super().__init__()
        if padding_mode != "zeros":
            raise ValueError(f"Conv2D pads with zeros, not with {padding_mode}")
        sizes = [kernel_size] * 2 if isinstance(kernel_size, int) else list(kernel_size)
        spread = Normal(0.0, math.sqrt(2.0 / (sizes[0] * sizes[1] * in_channels)))
        dims = [out_channels, in_channels // groups, *sizes]
        self.weight = self.create_parameter(dims, weight_attr, default_initializer=spread)
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)
        self._held = {"param_attr": (self.weight, weight_attr), "bias_attr": (self.bias, bias_attr)}
        self._settings = (out_channels, sizes, stride, padding, dilation, groups)
        self._format = data_format

    def forward(self, x: Any) -> Any:
        """The images of `out_channels`."""
        attrs = {name: _held(*held) for name, held in self._held.items()}
        return L.conv2d(x, *self._settings, **attrs, data_format=self._format)


class BatchNorm(Layer):
    """Each channel with mean 0 and variance 1 over the batch, then scaled and shifted."""

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
        super().__init__(name)
        self.weight = self.create_parameter([num_features], weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([num_features], bias_attr, is_bias=True)
        self._held = ((self.weight, weight_attr), (self.bias, bias_attr))
        self._means = [f"{self.full_name()}.w_{number}" for number in (1, 2)]
        self._settings = (momentum, epsilon)
        self._format = "NHWC" if data_format in ("NHWC", "NLC") else "NCHW"
        self._global = bool(use_global_stats)

    def forward(self, input: Any) -> Any:
        """The input with its channels normalised; those of all batches count where it does not train."""
        return L.batch_norm(
            input,
            None,
            not self.training,
            *self._settings,
            *(_held(*held) for held in self._held),
            self._format,
            moving_mean_name=self._means[0],
            moving_variance_name=self._means[1],
            use_global_stats=self._global,
        )


class LayerNorm(Layer):
    """Each sample with mean 0 and variance 1 over its last dims, then scaled and shifted."""

    def __init__(
        self,
        normalized_shape: Any,
        epsilon: float = 1e-05,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: Any = None,
    ):
        super().__init__(name)
        dims = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
        self._dims, self._epsilon = len(dims), epsilon
        size = [math.prod(dims)]
        self.weight = self.create_parameter(size, weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter(size, bias_attr, is_bias=True)
        self._held = ((self.weight, weight_attr), (self.bias, bias_attr))

    def forward(self, input: Any) -> Any:
        """The input with its last dims normalised."""
        scaled, shifted = self.weight is not None, self.bias is not None
        first = len(input.shape) - self._dims
        attrs = [_held(*held) or None for held in self._held]
        return L.layer_norm(input, scaled, shifted, first, self._epsilon, *attrs)


class Sequential(Layer):
    """Layers of which each takes what the one before it gives."""

    def __init__(self, *given: Any):
        super().__init__()
        for number, item in enumerate(given):
            name, layer = (number, item) if isinstance(item, objects.Layer) else item
            self.add_sublayer(str(name), layer)

    def __getitem__(self, index: Any) -> Any:
        return self.children[index]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def forward(self, *inputs: Any) -> Any:
        """What the last layer gives."""
        for layer in self.children:
            inputs = (layer(*inputs),)
        return inputs[0]


class LayerList(Layer):
    """Layers by number."""

    def __init__(self, sublayers: Sequence[Any] = ()):
        super().__init__()
        for layer in sublayers:
            self.append(layer)

    def append(self, sublayer: Any) -> LayerList:
        """Puts a layer behind the others."""
        self.add_sublayer(str(len(self)), sublayer)
        return self

    def __getitem__(self, index: Any) -> Any:
        return self.children[index]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.children)


def _calls(name: str, function: Callable[..., Any], arguments: str, inputs: str = "x") -> Any:
    """A layer without parameters: what is made with `arguments` calls `function`, with `inputs` before them."""
    signature, read = signature_of(f"{arguments}{', ' if arguments else ''}name=None"), signature_of(inputs)

    def start(self: Any, *args: Any, **options: Any) -> None:
        Layer.__init__(self)
        self._settings = bound(name, signature, args, options)
        del self._settings["name"]

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        return function(*bound(name, read, args, options).values(), **self._settings)

    return type(name, (Layer,), {"__init__": start, "forward": forward, "__doc__": function.__doc__})


_TWO = "input, label"
_POOL = "kernel_size, stride=None, padding=0, ceil_mode=False"
ReLU = _calls("ReLU", L.relu, "")
Sigmoid, Tanh = _calls("Sigmoid", L.sigmoid, ""), _calls("Tanh", L.tanh, "")
Softmax, LogSoftmax = _calls("Softmax", F.softmax, "axis=-1"), _calls("LogSoftmax", F.log_softmax, "axis=-1")
LeakyReLU = _calls("LeakyReLU", F.leaky_relu, "negative_slope=0.01")
ReLU6, ELU = _calls("ReLU6", F.relu6, ""), _calls("ELU", F.elu, "alpha=1.0")
GELU, Swish = _calls("GELU", F.gelu, "approximate=False"), _calls("Swish", F.swish, "")
Hardswish, Hardsigmoid = _calls("Hardswish", F.hardswish, ""), _calls("Hardsigmoid", F.hardsigmoid, "")
Flatten = _calls("Flatten", flatten, "start_axis=1, stop_axis=-1")
MaxPool2D = _calls("MaxPool2D", F.max_pool2d, _POOL)
AvgPool2D = _calls("AvgPool2D", F.avg_pool2d, f"{_POOL}, exclusive=True")
AdaptiveAvgPool2D = _calls("AdaptiveAvgPool2D", F.adaptive_avg_pool2d, "output_size")
AdaptiveMaxPool2D = _calls("AdaptiveMaxPool2D", F.adaptive_max_pool2d, "output_size")
CrossEntropyLoss = _calls(
    "CrossEntropyLoss",
    F.cross_entropy,
    "weight=None, ignore_index=-100, reduction='mean', soft_label=False, axis=-1",
    _TWO,
)
MSELoss = _calls("MSELoss", F.mse_loss, "reduction='mean'", _TWO)
L1Loss = _calls("L1Loss", F.l1_loss, "reduction='mean'", _TWO)
SmoothL1Loss = _calls("SmoothL1Loss", F.smooth_l1_loss, "reduction='mean', delta=1.0", _TWO)
BCELoss = _calls("BCELoss", F.binary_cross_entropy, "weight=None, reduction='mean'", _TWO)
BCEWithLogitsLoss = _calls(
    "BCEWithLogitsLoss",
    F.binary_cross_entropy_with_logits,
    "weight=None, reduction='mean', pos_weight=None",
    "logit, label",
)
KLDivLoss = _calls("KLDivLoss", F.kl_div, "reduction='mean'", _TWO)
CosineSimilarity = _calls("CosineSimilarity", F.cosine_similarity, "axis=1, eps=1e-08", "x1, x2")
BatchNorm1D = BatchNorm2D = BatchNorm3D = SyncBatchNorm = BatchNorm


class Dropout(Layer):
    """Some elements zero in training."""

    def __init__(self, p: float = 0.5, axis: Any = None, mode: str = "upscale_in_train", name: Any = None):
        super().__init__(name)
        self._settings = (p, axis)
        self._mode = mode

    def forward(self, input: Any) -> Any:
        """The input, some of it zero while `training` is set."""
        return F.dropout(input, *self._settings, training=self.training, mode=self._mode)
