"""Layers as objects: their base class, and single steps of gated networks, with parameters that all steps share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from pstranspile.fluid import unique_name
from pstranspile.fluid.graph.variable import Parameter, Variable
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers import nn, ops, tensor
from pstranspile.fluid.param_attr import attr_of
from pstranspile.ir.patterns import Pattern

_WORDS = Pattern(r"(?<=.)(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])")
"""Matches the beginning of a word in a class's name, by Fluid's rule."""


class Layer:
    """A layer with its parameters and sublayers; a call adds its ops to the program in use."""

    def __init__(self, name_scope: str | None = None, dtype: Any = "float32"):
        scope = name_scope or _WORDS.sub("_", type(self).__name__).lower()
        self._full_name = unique_name.generate(scope)
        self._helper = LayerHelper(scope, name=self._full_name)
        self._dtype = dtype
        self.training = True
        self._built = False
        self._parameters: dict[str, Parameter] = {}
        self._sub_layers: dict[str, Layer] = {}

    def full_name(self) -> str:
        """The layer's name, including its number."""
        return self._full_name

    def create_parameter(
        self,
        shape: Any,
        attr: Any = None,
        dtype: Any = "float32",
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Any:
        """Makes a parameter whose name begins with the layer's; returns None if `attr` is False."""
        return self._helper.create_parameter(attr, shape, dtype, is_bias, default_initializer)

    def add_parameter(self, name: str, parameter: Any) -> Any:
        """Registers a parameter with the layer, and returns it. Raises TypeError for anything else."""
        if not isinstance(parameter, Parameter):
            raise TypeError(f"add_parameter takes a Parameter, not {type(parameter).__name__}")
        self._parameters[name] = parameter
        return parameter

    def add_sublayer(self, name: str, sublayer: Layer) -> Layer:
        """Registers a sublayer of the layer, and returns it. Raises TypeError for anything else."""
        if not isinstance(sublayer, Layer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"add_sublayer takes a Layer, not {type(sublayer).__name__}")
        self._sub_layers[name] = sublayer
        return sublayer

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self.add_parameter(name, value)
        elif isinstance(value, Layer):
            self.add_sublayer(name, value)
        object.__setattr__(self, name, value)

    def named_sublayers(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Layer]]:
        """The sublayers with their names; a sublayer of a sublayer is called `outer.inner`."""
        for name, layer in self._sub_layers.items():
            yield prefix + name, layer
            if include_sublayers:
                yield from layer.named_sublayers(f"{prefix}{name}.")

    def sublayers(self, include_sublayers: bool = True) -> list[Layer]:
        """The sublayers, by default with their own sublayers."""
        return [layer for _, layer in self.named_sublayers(include_sublayers=include_sublayers)]

    def named_parameters(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Any]]:
        """The parameters with their names; a sublayer's parameter is called `layer.name`."""
        for name, parameter in self._parameters.items():
            yield prefix + name, parameter
        if include_sublayers:
            for name, layer in self._sub_layers.items():
                yield from layer.named_parameters(f"{prefix}{name}.")

    def parameters(self, include_sublayers: bool = True) -> list[Any]:
        """The parameters, by default with those of the sublayers."""
        return [parameter for _, parameter in self.named_parameters(include_sublayers=include_sublayers)]

    def train(self) -> None:
        """Sets `training` to True in the layer and its sublayers."""
        for layer in (self, *self.sublayers()):
            layer.training = True

    def eval(self) -> None:
        """Sets `training` to False in the layer and its sublayers."""
        for layer in (self, *self.sublayers()):
            layer.training = False

    def _build_once(self, *inputs: Any, **kwargs: Any) -> None:
        """Makes the parameters whose dims depend on the inputs; called before the first `forward`."""

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """The result of `forward`; the first call makes the parameters that depend on the inputs."""
        if not self._built:
            self._build_once(*inputs, **kwargs)
            self._built = True
        return self.forward(*inputs, **kwargs)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The results of the layer for its inputs. Raises NotImplementedError here, because each layer
        defines its own.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(inputs)")


Activation = Callable[[Any], Any]


def with_name_suffix(attr: Any, suffix: str) -> Any:
    """The attributes with a suffix added to their name, so that parameters made from them have different names."""
    if attr is None or attr is False or attr_of(attr).name is None:
        return attr
    result = copy.copy(attr_of(attr))
    result.name += suffix
    return result


def kept_where(new: Any, old: Any, mask: Any) -> Any:
    """The rows of `new` where the mask is 1, and those of `old` where it is 0."""
    return nn.elementwise_mul(new, mask, axis=0) - nn.elementwise_mul(old, mask - 1, axis=0)


class _Unit(Layer):
    """A layer that makes its parameters in the first call, when the width of its input is known. Its attributes have
    Fluid's names.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any,
        bias_attr: Any,
        activations: tuple[Activation | None, Activation | None],
        dtype: Any,
    ):
        super().__init__(name_scope, dtype)
        self._full_name = unique_name.generate(f"{name_scope}/{type(self).__name__}")
        self._helper = LayerHelper("unit", name=self._full_name)
        self._name, self._hiden_size = name_scope, hidden_size
        self._param_attr, self._bias_attr = param_attr, bias_attr
        self._gate_activation: Activation = activations[0] or ops.sigmoid
        self._activation: Activation = activations[1] or ops.tanh

    def _build_once(self, input: Variable, *states: Any) -> None:
        """Stores the width of the input. Raises ValueError where it is unknown."""
        self._input_size = int(input.shape[-1])
        if self._input_size <= 0:
            raise ValueError(f"{self._full_name}: the last dim of {input.name} must be known")

    def _parameter(self, attr: Any, suffix: str, shape: list[int], is_bias: bool = False) -> Any:
        return self.create_parameter(shape, with_name_suffix(attr, suffix), self._dtype, is_bias)


class BasicGRUUnit(_Unit):
    """A step of a gated recurrent unit: `unit(input, pre_hidden)` returns the new hidden state."""

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: Any = "float32",
    ):
        super().__init__(name_scope, hidden_size, param_attr, bias_attr, (gate_activation, activation), dtype)

    def _build_once(self, input: Variable, *states: Any) -> None:
        super()._build_once(input)
        size, weight, bias = self._hiden_size, self._param_attr, self._bias_attr
        both = self._input_size + size
        self._gate_weight = self._parameter(weight, "_gate", [both, 2 * size])
        self._candidate_weight = self._parameter(weight, "_candidate", [both, size])
        self._gate_bias = self._parameter(bias, "_gate", [2 * size], True)
        self._candidate_bias = self._parameter(bias, "_candidate", [size], True)

    def forward(self, input: Any, pre_hidden: Any) -> Any:
        """The hidden state [batch, hidden] after an input [batch, width]."""
        both = nn.matmul(tensor.concat([input, pre_hidden], 1), self._gate_weight)
        gates = self._gate_activation(nn.elementwise_add(both, self._gate_bias))
        reset, update = nn.split(gates, num_or_sections=2, dim=1)
        kept = reset * pre_hidden
        proposed = nn.matmul(tensor.concat([input, kept], 1), self._candidate_weight)
        new = self._activation(nn.elementwise_add(proposed, self._candidate_bias))
        return update * pre_hidden + (1 - update) * new


class BasicLSTMUnit(_Unit):
    """A step of an LSTM: `unit(input, pre_hidden, pre_cell)` returns the new hidden state and the new cell.

    As in Fluid the gates are sigmoids and the other activations tanh, whatever activations are given.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
    ):
        super().__init__(name_scope, hidden_size, param_attr, bias_attr, (gate_activation, activation), dtype)
        self._forget_bias = tensor.fill_constant([1], dtype, forget_bias)
        self._forget_bias.stop_gradient = False

    def _build_once(self, input: Variable, *states: Any) -> None:
        super()._build_once(input)
        size = self._hiden_size
        self._weight = self._parameter(self._param_attr, "", [self._input_size + size, 4 * size])
        self._bias = self._parameter(self._bias_attr, "", [4 * size], True)

    def forward(self, input: Any, pre_hidden: Any, pre_cell: Any) -> Any:
        """The hidden state and the cell [batch, hidden] after an input [batch, width]."""
        both = nn.matmul(tensor.concat([input, pre_hidden], 1), self._weight)
        gates = nn.elementwise_add(both, self._bias)
        enter, new, forget, leave = nn.split(gates, num_or_sections=4, dim=-1)
        kept = nn.elementwise_mul(pre_cell, ops.sigmoid(nn.elementwise_add(forget, self._forget_bias)))
        cell = nn.elementwise_add(kept, nn.elementwise_mul(ops.sigmoid(enter), ops.tanh(new)))
        return ops.tanh(cell) * ops.sigmoid(leave), cell
