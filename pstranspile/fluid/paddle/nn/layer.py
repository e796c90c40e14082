"""The layers of `paddle.nn`: objects with parameters, which add their ops to the program in use when called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.initializer import Constant
from pstranspile.fluid.layers import objects
from pstranspile.fluid.paddle.nn import functional
from pstranspile.fluid.param_attr import attr_of

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


def _held(parameter: Any, given: Any) -> Any:
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
        self._held = ((self.weight, weight_attr), (self.bias, bias_attr))
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
            *(_held(*held) for held in self._held),
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
        self._held = ((self.weight, weight_attr), (self.bias, bias_attr))

    def forward(self, input: Any) -> Any:
        """The input with its last dims normalised."""
        scaled, shifted = self.weight is not None, self.bias is not None
        first = len(input.shape) - self._dims
        attrs = [_held(*held) or None for held in self._held]
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
