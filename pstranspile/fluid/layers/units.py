"""One step of a gated network, with the parameters that all its steps share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from pstranspile.fluid import unique_name
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers import nn, ops, tensor
from pstranspile.fluid.param_attr import attr_of

Activation = Callable[[Any], Any]


def renamed(attr: Any, suffix: str) -> Any:
    """The attributes with a suffix to their name, so that parameters made of them have names of their own."""
    if attr is None or attr is False or attr_of(attr).name is None:
        return attr
    result = copy.copy(attr_of(attr))
    result.name += suffix
    return result


def kept_where(new: Any, old: Any, mask: Any) -> Any:
    """`new` in the rows where the mask is 1, `old` where it is 0."""
    return nn.elementwise_mul(new, mask, axis=0) - nn.elementwise_mul(old, mask - 1, axis=0)


class _Unit:
    """What makes its parameters when the width of its input is first known."""

    def __init__(self, name_scope: str, hidden_size: int, param_attr: Any, bias_attr: Any, dtype: Any):
        unique_name.generate(name_scope)  # as in Fluid, where the class below takes a name too
        self._helper = LayerHelper("unit", name=unique_name.generate(f"{name_scope}/{type(self).__name__}"))
        self._size, self._dtype = hidden_size, dtype
        self._param_attr, self._bias_attr = param_attr, bias_attr
        self._made: list[Any] = []

    def _shapes(self, width: int) -> list[tuple[Any, list[int], bool]]:
        """The attributes, the dims, and whether it is a bias, of each parameter."""
        raise NotImplementedError

    def _parameters(self, input: Variable) -> list[Any]:
        if not self._made:
            width = int(input.shape[-1])
            if width <= 0:
                raise ValueError(f"{self._helper.name}: the last dim of {input.name} must be known")
            self._made = [
                self._helper.create_parameter(attr, shape, self._dtype, is_bias=is_bias)
                for attr, shape, is_bias in self._shapes(width)
            ]
        return self._made


class BasicGRUUnit(_Unit):
    """A step of a gated recurrent unit: `unit(input, pre_hidden)` gives the new hidden state."""

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
        super().__init__(name_scope, hidden_size, param_attr, bias_attr, dtype)
        self._gate: Activation = gate_activation or ops.sigmoid
        self._activation: Activation = activation or ops.tanh

    def _shapes(self, width: int) -> list[tuple[Any, list[int], bool]]:
        size, weight, bias = self._size, self._param_attr, self._bias_attr
        return [
            (renamed(weight, "_gate"), [width + size, 2 * size], False),
            (renamed(weight, "_candidate"), [width + size, size], False),
            (renamed(bias, "_gate"), [2 * size], True),
            (renamed(bias, "_candidate"), [size], True),
        ]

    def __call__(self, input: Any, pre_hidden: Any) -> Any:
        """The hidden state [batch, hidden] after an input [batch, width]."""
        gates, candidate, gate_bias, candidate_bias = self._parameters(input)
        both = nn.matmul(tensor.concat([input, pre_hidden], 1), gates)
        reset, update = nn.split(self._gate(nn.elementwise_add(both, gate_bias)), num_or_sections=2, dim=1)
        kept = reset * pre_hidden
        proposed = nn.matmul(tensor.concat([input, kept], 1), candidate)
        new = self._activation(nn.elementwise_add(proposed, candidate_bias))
        return update * pre_hidden + (1 - update) * new


class BasicLSTMUnit(_Unit):
    """A step of an LSTM: `unit(input, pre_hidden, pre_cell)` gives the new hidden state and the new cell.

    As in Fluid the gates are sigmoids and the rest tangents, whatever activations are given.
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
        super().__init__(name_scope, hidden_size, param_attr, bias_attr, dtype)
        self._forget_bias = tensor.fill_constant([1], dtype, forget_bias)
        self._forget_bias.stop_gradient = False

    def _shapes(self, width: int) -> list[tuple[Any, list[int], bool]]:
        size = self._size
        return [
            (self._param_attr, [width + size, 4 * size], False),
            (self._bias_attr, [4 * size], True),
        ]

    def __call__(self, input: Any, pre_hidden: Any, pre_cell: Any) -> Any:
        """The hidden state and the cell [batch, hidden] after an input [batch, width]."""
        weight, bias = self._parameters(input)
        gates = nn.elementwise_add(nn.matmul(tensor.concat([input, pre_hidden], 1), weight), bias)
        enter, new, forget, leave = nn.split(gates, num_or_sections=4, dim=-1)
        kept = nn.elementwise_mul(pre_cell, ops.sigmoid(nn.elementwise_add(forget, self._forget_bias)))
        cell = nn.elementwise_add(kept, nn.elementwise_mul(ops.sigmoid(enter), ops.tanh(new)))
        return ops.tanh(cell) * ops.sigmoid(leave), cell
