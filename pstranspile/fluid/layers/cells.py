"""Cells of recurrent networks, and networks of them over padded sequences (`layers.rnn`)."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import dtype_of
from pstranspile.fluid.layers import nn, sequence_lod, tensor
from pstranspile.fluid.layers.adapt import check_kind, check_variable
from pstranspile.fluid.layers.control_flow import StaticRNN
from pstranspile.fluid.layers.units import BasicGRUUnit, BasicLSTMUnit, kept_where
from pstranspile.fluid.layers.utils import assert_same_structure, copied, each, flatten, pack_sequence_as, pairwise
from pstranspile.ir.types import DType

FLOATS = ("float32", "float64")


def steps_first(x: Any) -> Any:
    """x with its first two dims exchanged: [batch, steps, ...] to [steps, batch, ...] and back."""
    return nn.transpose(x, [1, 0, *range(2, len(x.shape))])


class RNNCell:
    """One step of a recurrent network; cells of a script's own define `call`, and `state_shape` for states of zeros."""

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The outputs and the new states, nested as `states` are. Raises NotImplementedError where not defined."""
        raise NotImplementedError(f"{type(self).__name__} must define call(inputs, states)")

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """Computes one step; the same as `call`."""
        return self.call(inputs, states, **kwargs)

    @property
    def state_shape(self) -> Any:
        """The dims of the states without the batch, nested as they are."""
        raise NotImplementedError(f"{type(self).__name__} must define state_shape, or its states must be given")

    @property
    def state_dtype(self) -> Any:
        """The element types of the states."""
        raise NotImplementedError(f"{type(self).__name__} must define state_dtype, or dtype must be given")

    def get_initial_states(
        self, batch_ref: Any, shape: Any = None, dtype: Any = "float32", init_value: float = 0, batch_dim_idx: int = 0
    ) -> Any:
        """States of `shape` (by default the cell's) filled with a value, a row for each of `batch_ref`."""
        like = flatten(batch_ref)[0]
        check_variable("RNNCell", "batch_ref", like, (*FLOATS, "int32", "int64"))
        shapes = self.state_shape if shape is None else shape
        kinds = self._state_dtypes() if dtype is None else dtype
        if _is_dims(shapes):
            return self._filled(like, shapes, flatten(kinds)[0], init_value, batch_dim_idx)
        parts: dict[Any, Any] | list[Any] = shapes
        each = kinds if several(kinds) and len(kinds) == len(parts) else [kinds] * len(parts)

        def part(dims: Any, kind: Any) -> Any:
            return self.get_initial_states(like, dims, kind, init_value, batch_dim_idx)

        if isinstance(parts, dict):
            return {key: part(parts[key], kind) for key, kind in zip(sorted(parts), each, strict=True)}
        return type(parts)(part(dims, kind) for dims, kind in zip(parts, each, strict=True))

    def _state_dtypes(self) -> Any:
        try:
            return self.state_dtype
        except NotImplementedError:
            return "float32"

    @staticmethod
    def _filled(like: Any, dims: Any, dtype: Any, value: float, batch_dim: int) -> Any:
        if dtype_of(dtype) not in (DType.FP32, DType.FP64):
            raise TypeError(f"RNNCell: dtype must be float32 or float64, not {dtype}")
        shape = [dims] if isinstance(dims, int) else list(dims)
        shape = shape if shape[0] == -1 else [-1, *shape]
        return tensor.fill_constant_batch_size_like(
            input=like, shape=shape, dtype=dtype, value=value, input_dim_idx=batch_dim
        )


def _is_dims(shape: Any) -> bool:
    return isinstance(shape, int) or (several(shape) and all(isinstance(dim, int) for dim in shape))


def _check_cell(name: str, hidden_size: Any, dtype: Any) -> None:
    check_kind(name, "hidden_size", hidden_size, ("int",))
    if dtype_of(dtype) not in (DType.FP32, DType.FP64):
        raise TypeError(f"{name}: dtype must be float32 or float64, not {dtype}")


class GRUCell(RNNCell):
    """A gated recurrent unit; its state and its output are the hidden state [batch, hidden_size]."""

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        dtype: Any = "float32",
        name: str = "GRUCell",
    ):
        _check_cell("GRUCell", hidden_size, dtype)
        self.hidden_size = hidden_size
        self.gru_unit = BasicGRUUnit(name, hidden_size, param_attr, bias_attr, gate_activation, activation, dtype)

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The new hidden state, as output and as state."""
        check_variable("GRUCell", "inputs", inputs, FLOATS)
        check_variable("GRUCell", "states", states, FLOATS)
        hidden = self.gru_unit(inputs, states)
        return hidden, hidden

    @property
    def state_shape(self) -> Any:
        """The dims of the hidden state."""
        return [self.hidden_size]


class LSTMCell(RNNCell):
    """An LSTM; its state is a list of the hidden state and the cell, each [batch, hidden_size]."""

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
        name: str = "LSTMCell",
    ):
        _check_cell("LSTMCell", hidden_size, dtype)
        self.hidden_size = hidden_size
        functions = gate_activation, activation
        self.lstm_unit = BasicLSTMUnit(name, hidden_size, param_attr, bias_attr, *functions, forget_bias, dtype)

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The new hidden state, and the list of it and the new cell."""
        check_variable("LSTMCell", "inputs", inputs, FLOATS)
        check_kind("LSTMCell", "states", states, ("list",))
        for state in states:
            check_variable("LSTMCell", "each of states", state, FLOATS)
        hidden, cell = self.lstm_unit(inputs, *states)
        return hidden, [hidden, cell]

    @property
    def state_shape(self) -> Any:
        """The dims of the hidden state and of the cell."""
        return [[self.hidden_size], [self.hidden_size]]


def _check_inputs(inputs: Any, initial_states: Any, sequence_length: Any) -> None:
    for input in inputs if several(inputs) else [inputs]:
        check_variable("rnn", "inputs", input, FLOATS)
    for state in flatten(initial_states):
        check_kind("rnn", "initial_states", state, ("Variable", "NoneType"))
    check_kind("rnn", "sequence_length", sequence_length, ("Variable", "NoneType"))


def _with_gradient(x: Variable) -> Variable:
    x.stop_gradient = False
    return x


def _turned(x: Any) -> Any:
    return tensor.reverse(x, axis=[0])


def rnn(
    cell: Any,
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Any = None,
    time_major: bool = False,
    is_reverse: bool = False,
    **kwargs: Any,
) -> Any:
    """A network of one cell over padded sequences [batch, steps, ...]: its outputs, and the states it ends with.

    Steps past a row's `sequence_length` leave its states as they are. `kwargs` are handed to the cell.
    """
    _check_inputs(inputs, initial_states, sequence_length)
    if initial_states is None:
        initial_states = cell.get_initial_states(batch_ref=inputs, batch_dim_idx=1 if time_major else 0)
    initial_states = each(_with_gradient, initial_states)
    steps = inputs if time_major else each(steps_first, inputs)
    mask = None
    if sequence_length is not None:
        longest = nn.shape(flatten(steps)[0])[0]
        kind = flatten(initial_states)[0].dtype
        mask = nn.transpose(sequence_lod.sequence_mask(sequence_length, maxlen=longest, dtype=kind), [1, 0])
    if is_reverse:
        steps, mask = each(_turned, steps), None if mask is None else _turned(mask)
    outputs, states = _over_steps(cell, steps, initial_states, mask, kwargs)
    if is_reverse:
        outputs = each(_turned, outputs)
    return outputs if time_major else each(steps_first, outputs), states


def _over_steps(cell: Any, steps: Any, initial_states: Any, mask: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """What the cell gives in every step, and its last states."""
    network = StaticRNN()
    with network.step():
        step = each(network.step_input, steps)
        before = each(network.memory, initial_states)
        outputs, after = cell.call(step, copied(before), **options)  # a cell may change lists and dicts
        assert_same_structure(before, after)
        if mask is not None:
            row_mask = network.step_input(mask)
            after = pairwise(lambda old, new: kept_where(new, old, row_mask), before, after)
        pairwise(network.update_memory, before, after)
        each(network.step_output, outputs)
        each(network.step_output, after)
    made = network()
    given: list[Any] = [*made] if several(made) else [made]
    count = len(flatten(outputs))
    last = [state[-1] for state in given[count:]]
    return pack_sequence_as(outputs, given[:count]), pack_sequence_as(after, last)
