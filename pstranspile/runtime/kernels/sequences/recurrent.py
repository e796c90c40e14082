"""Kernels of recurrent cells over sequences: GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, real
from pstranspile.runtime.arithmetic import is_small, loops, product_of, sum_of_rows
from pstranspile.runtime.arithmetic.loops import GruGradients, LstmGradients, LstmResults
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import plain, row_counts, sequences
from pstranspile.runtime.values import Array, LoDTensor

# Types and functions that the recurrent units share: batches of sequences as time steps, and activations by name.
#
# All sequences advance together. A step holds one row of every sequence that is long enough. Sequences are sorted by
# length, longest first, so the rows of the next step continue the first rows of this one.


class Activation(NamedTuple):
    """A function that writes into a given array, and its derivative in terms of the function's value."""

    apply: Callable[[Array, Array], Array]
    slope: Callable[[Array], Array]


@cache
def _numbers(kind: Any) -> tuple[Array, Array, Array]:
    """(Fluid's lower bound for -x in a sigmoid, 1, -1) as 0-d arrays of an element type, which numpy handles faster
    than Python numbers.
    """
    return np.array(-13, kind), np.array(1, kind), np.array(-1, kind)


def _sigmoid(x: Array, out: Array) -> Array:
    least, one, minus = _numbers(x.dtype)
    np.multiply(x, minus, out)  # np.negative of some releases of numpy fails in place where elements lie apart
    np.maximum(out, least, out=out)
    np.exp(out, out)
    np.add(out, one, out)
    return np.divide(one, out, out)


def _identity(x: Array, out: Array) -> Array:
    out[...] = x
    return out


def _sigmoid_slope(y: Array) -> Array:
    result = _numbers(y.dtype)[1] - y
    result *= y
    return result


def _tanh_slope(y: Array) -> Array:
    result = y * y
    return np.subtract(_numbers(y.dtype)[1], result, result)


def _relu(x: Array, out: Array) -> Array:
    return np.maximum(x, 0, out=out)


def _relu_slope(y: Array) -> Array:
    return (y > 0).astype(y.dtype)


ACTIVATIONS = {
    "identity": Activation(_identity, np.ones_like),
    "sigmoid": Activation(_sigmoid, _sigmoid_slope),
    "tanh": Activation(np.tanh, _tanh_slope),
    "relu": Activation(_relu, _relu_slope),
}
"""The activations of recurrent units by name."""


def activation(name: object) -> Activation:
    """The activation of this name ("" is the identity). Raises ValueError for others."""
    result = ACTIVATIONS.get(str(name) or "identity")
    if result is None:
        raise ValueError(f"the activation is {name!r}, it must be one of {', '.join(ACTIVATIONS)}")
    return result


@dataclass(frozen=True, eq=False)
class Steps:
    """Sequences cut into time steps.

    "Batch order" is step by step, longest sequence first. `rows[i]` is the row at position i of the batch order.
    `starts` are the offsets of the steps. `order` are the numbers of the sequences, longest first, ties in order.
    `notes` are the starts, the rows and the order as lists. `phases` are the starts as ranges: one range for each run
    of steps with equally many rows, whose step is that number of rows. `earlier` gives, for every row after the first
    step, the position of the same sequence's row one step earlier. `places` are the starts as an array, and the rows.
    `last` masks the last rows of sequences in batch order.
    Values with the same LoD share their steps, so they must not be changed.
    """

    rows: Array
    starts: list[int]
    phases: tuple[range, ...]
    order: Array
    earlier: Array
    places: tuple[Array, Array]
    last: Array
    notes: list[list[int]]

    def batch(self, rows: Array) -> Array:
        """The rows in batch order."""
        return rows.take(self.rows, axis=0)

    def back(self, batch: Array) -> Array:
        """The rows in the order of the sequences, from rows in batch order."""
        result = np.empty_like(batch)
        result[self.rows] = batch
        return result

    def initial(self, state: Array | None, width: int, dtype: Any) -> Array:
        """The initial state of each sequence in the order of the batch; zeros [sequences, width] without an initial
        state.
        """
        return np.zeros((len(self.order), width), dtype) if state is None else state[self.order]

    def previous_rows(self, batch: Array, first: Array) -> Array:
        """For every row in batch order the row one step earlier; `first` holds those before the first step."""
        after_first = len(batch) - len(self.earlier)
        result = np.empty_like(batch)
        result[:after_first] = first[:after_first]
        np.take(batch, self.earlier, axis=0, out=result[after_first:], mode="clip")
        return result

    def initial_back(self, grad: Array) -> Array:
        """The gradient of the initial states in the order of the sequences, from the order of the batch."""
        result = np.empty_like(grad)
        result[self.order] = grad
        return result

    def with_batch_lod(self, batch: Array) -> LoDTensor:
        """Values in batch order with the notes that Fluid stores in place of their LoD: steps, rows and order."""
        return LoDTensor(batch, _Notes(self))


class _Notes(list[list[int]]):
    """The lists that Fluid keeps in place of the offsets, with the `Steps` that they were made from."""

    def __init__(self, steps: Steps):
        super().__init__(steps.notes)
        self.steps = steps


def steps_of(x: Any, slot: str, reverse: bool) -> tuple[Array, list[list[int]], Steps]:
    """The rows of a ragged value, its LoD, and its steps; with `reverse` the last row of a sequence comes first.

    Raises ValueError if it has no LoD, or more than one level.
    """
    data, lod = sequences(x, slot)
    if len(lod) != 1:
        raise ValueError(f"{slot} has {len(lod)} levels of LoD, a recurrent unit takes one")
    return data, lod, steps_between(tuple(lod[0]), reverse)


@lru_cache(32)
def steps_between(offsets: tuple[int, ...], reverse: bool = False) -> Steps:
    """The steps of the sequences between offsets; with `reverse` the last row of a sequence comes first."""
    lengths = row_counts(offsets)
    order = np.argsort(-lengths, kind="stable")
    counts = len(lengths) - np.cumsum(np.bincount(lengths))[:-1] if len(lengths) else lengths
    starts = [0, *np.cumsum(counts).tolist()]
    step = np.arange(len(counts)).repeat(counts)
    place = np.arange(len(step)) - np.repeat(np.asarray(starts[:-1], np.int64), counts)
    first = (np.asarray(offsets[1:], np.int64) - 1 if reverse else np.asarray(offsets[:-1], np.int64))[order]
    return _steps(first[place] - step if reverse else first[place] + step, starts, order)


def _steps(rows: Array, starts: list[int], order: Array) -> Steps:
    counts = np.diff(starts)
    first = int(counts[0]) if len(counts) else 0  # empty sequences are in no step
    before = np.arange(first, len(rows)) - np.repeat(counts[:-1], counts[1:])
    changes = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(counts)] if len(counts) else []
    phases = tuple(range(starts[a], starts[b], starts[a + 1] - starts[a]) for a, b in pairwise(changes))
    places = np.asarray(starts, np.int64), np.ascontiguousarray(rows, np.int64)
    last = np.ones(len(rows), bool)
    last[before] = False
    return Steps(rows, starts, phases, order, before, places, last, [starts, rows.tolist(), order.tolist()])


_STEPS = 20_000
"""The number of copied elements that cost as much time as products with the copy save in one step."""


def transpose_matrix(matrix: Array, phases: Sequence[range]) -> Array:
    """The transposed matrix, in memory of its own if this makes the products with the rows of steps faster."""
    transposed = matrix.T
    if not phases or is_small(phases[0].step, transposed):  # the usual case: later steps have no more rows
        return transposed
    steps = sum(len(phase) for phase in phases if phase.step > 1 and not is_small(phase.step, transposed))
    return transposed.copy() if steps * _STEPS >= matrix.size else transposed


@lru_cache(32)
def one_step(count: int) -> Steps:
    """The steps of sequences with one row each."""
    return steps_between(tuple(range(count + 1)))


def steps_noted(batch: Any, slot: str) -> Steps:
    """The steps that `Steps.with_batch_lod` stored with values in batch order, for a gradient op.

    Raises ValueError if there are none.
    """
    data, lod = sequences(batch, slot)
    if isinstance(lod, _Notes) and len(lod[1]) == len(data):
        return lod.steps
    if len(lod) != 3 or len(lod[1]) != len(data):
        raise ValueError(f"{slot} does not say which rows come when: it is no result of a recurrent unit")
    return _steps_from_lod(*map(tuple, lod))


@lru_cache(32)
def _steps_from_lod(starts: tuple[int, ...], rows: tuple[int, ...], order: tuple[int, ...]) -> Steps:
    return _steps(np.asarray(rows, np.int64), list(starts), np.asarray(order, np.int64))


def require_rows(state: Array | None, count: int, width: int, slot: str) -> None:
    """Raises ValueError unless an initial state, if given, has one row of this width for every sequence."""
    if state is not None and state.shape != (count, width):
        raise ValueError(f"{slot} has the dims {list(state.shape)}, it must have {[count, width]}: a row per sequence")


# The time steps of a long short-term memory, forwards and backwards.
#
# A row of the input holds the inputs of the candidate and of the input, forget and output gates (c, i, f, o), in this
# order, each as wide as the cell. The columns of the weights and the bias are laid out alike. In a step, with the
# previous hidden state h and cell s, and peepholes wi, wf, wo:
#
#     c, i, f, o  =  x + bias + h W
#     c = candidate(c)    i = gate(i + wi s)    f = gate(f + wf s)
#     s = c i + s f       o = gate(o + wo s)    h = o cell(s)
#
# With a projection P the next step gets projection(h P) in place of h.


class Unit(NamedTuple):
    """The attributes of the op; a clip of 0 means no clipping."""

    gate: Activation
    cell: Activation
    candidate: Activation
    projection: Activation
    cell_clip: float
    projection_clip: float
    peepholes: bool
    reverse: bool


class Parameters(NamedTuple):
    """The parameters: weights of the hidden state [state, 4 h], bias of the gates [4 h], peepholes [3, h] or None, and
    the projection or None.
    """

    weight: Array
    bias: Array
    peepholes: Array | None
    projection: Array | None

    @property
    def width(self) -> int:
        """The width of the cell."""
        return self.weight.shape[1] // 4


def _tanh_of_projection(unit: Unit) -> bool | None:
    """Whether the projection's activation is tanh, for the compiled loops; None if they don't have the unit."""
    usual = unit.gate is ACTIVATIONS["sigmoid"] and unit.cell is unit.candidate is ACTIVATIONS["tanh"]
    if not usual or unit.cell_clip > 0 or unit.projection_clip > 0:
        return None
    if unit.projection is ACTIVATIONS["identity"]:
        return False
    return True if unit.projection is ACTIVATIONS["tanh"] else None


def forward(unit: Unit, params: Parameters, steps: Steps, x: Array, state: Array, cell: Array) -> LstmResults:
    """Runs all steps from initial states in batch order.

    Raises ValueError for rows whose width does not fit the weights.
    """
    width = params.width
    if x.shape[1:] != (4 * width,):
        raise ValueError(f"Input has the dims {list(x.shape)}, the last must be {4 * width}, that of Weight")
    weights, usual = (params.bias, params.peepholes, params.weight, params.projection), _tanh_of_projection(unit)
    if usual is not None and (made := loops.lstm(x, weights, (state, cell), steps.places, usual)) is not None:
        return made
    gates = steps.batch(x + params.bias)
    cells, active, hidden = np.empty((3, len(x), width), gates.dtype)
    outputs = hidden if params.projection is None else np.empty((len(x), params.projection.shape[1]), gates.dtype)
    for phase in steps.phases:
        into = gates, cells, active, hidden, outputs
        state, cell = _phase(unit, params, phase, into, state[: phase.step], cell[: phase.step])
    return LstmResults(gates, active, hidden, outputs, steps.back(outputs), steps.back(cells))


def _phase(
    unit: Unit, params: Parameters, phase: range, values: tuple[Array, ...], state: Array, cell: Array
) -> tuple[Array, Array]:
    """Runs the steps of one phase forwards from a state and a cell [rows, ...]; gives the last state and cell.

    Fills in the values of the steps: the gates, which hold their inputs at first, the cells, their activations, the
    hidden states and the outputs.
    """
    count, width, (gates, cells, active, hidden, outputs) = phase.step, params.width, values
    product, into = product_of(count, params.weight), np.empty((count, 4 * width), gates.dtype)
    project = None if params.projection is None else product_of(count, params.projection)
    for start in phase:
        rows = slice(start, start + count)
        product(state, params.weight, into)
        gates[rows] += into
        c, i, f, o = gates[rows].reshape(count, 4, width).swapaxes(0, 1)
        unit.candidate.apply(c, c)
        if params.peepholes is not None:
            i += cell * params.peepholes[0]
            f += cell * params.peepholes[1]
        unit.gate.apply(i, i)
        unit.gate.apply(f, f)
        cell = np.add(c * i, cell * f, cells[rows])
        if unit.cell_clip > 0:
            np.clip(cell, -unit.cell_clip, unit.cell_clip, out=cell)
        if params.peepholes is not None:
            o += cell * params.peepholes[2]
        unit.gate.apply(o, o)
        state = np.multiply(o, unit.cell.apply(cell, active[rows]), hidden[rows])
        if project is not None:
            project(state, params.projection, outputs[rows])
            state = unit.projection.apply(outputs[rows], outputs[rows])
            if unit.projection_clip > 0:
                np.clip(state, -unit.projection_clip, unit.projection_clip, out=state)
    return state, cell


class _Slopes(NamedTuple):
    """The local derivatives of all steps of a long short-term memory, each [rows, h] or [3, rows, h]: of the hidden
    state by the input of the output gate and by the cell; of the cell by the inputs of the candidate and of the other
    two gates [3, rows, h], and by the previous cell. `clip_mask` masks the cells that are not clipped; None if no cells
    are clipped.
    """

    output: Array
    cell: Array
    inner: Array
    previous_cell: Array
    clip_mask: Array | None


def _lstm_slopes(
    unit: Unit, peepholes: Array | None, gates: Array, active: Array, cells: Array, before: Array
) -> _Slopes:
    """The local derivatives of all steps in batch order. Those by cells include the paths through peepholes."""
    count, width = before.shape
    parts = gates.reshape(count, 4, width).swapaxes(0, 1).copy()  # numpy is fastest on contiguous arrays
    (c, i, f, o), slopes, inner = parts, unit.gate.slope(parts[1:]), np.empty((3, count, width), parts.dtype)
    np.multiply(unit.candidate.slope(c), i, inner[0])
    np.multiply(slopes[0], c, inner[1])
    np.multiply(slopes[1], before, inner[2])
    output, cell, kept = slopes[2], unit.cell.slope(active), f
    output *= active
    cell *= o
    if peepholes is not None:
        cell += output * peepholes[2]
        kept += inner[1] * peepholes[0]
        kept += inner[2] * peepholes[1]
    return _Slopes(output, cell, inner, kept, np.abs(cells) < unit.cell_clip if unit.cell_clip > 0 else None)


def backward(
    unit: Unit, params: Parameters, steps: Steps, values: tuple[Array, Array, Array, Array], grad: Array, first: Any
) -> LstmGradients:
    """The gradients of the steps, from the gradient of the outputs and the initial states of the forward pass.

    `values` are the gates, cells, activations of cells, and outputs; cells, outputs and their gradient are in the order
    of the sequences.
    """
    weight = transpose_matrix(params.weight, steps.phases)
    projection, usual = None if params.projection is None else params.projection.T, _tanh_of_projection(unit)
    if usual is not None:
        weights, places = (weight, projection), steps.places
        made = loops.lstm_back(values, grad, weights, params.peepholes, first, places, usual)
        if made is not None:
            return made
    (gates, cells, active, outputs), (state, cell) = values, first
    cells, outputs, projected = (steps.batch(value) for value in (cells, outputs, grad))
    before = steps.previous_rows(cells, cell)
    slopes, result = _lstm_slopes(unit, params.peepholes, gates, active, cells, before), np.empty_like(gates)
    of_state, of_cell = np.zeros_like(state), np.zeros_like(cell)
    for phase in reversed(steps.phases):
        states = of_state[: phase.step], of_cell[: phase.step]
        _phase_back(unit, (weight, projection), phase, slopes, outputs, projected, result, *states)
    return LstmGradients(
        of_state, of_cell, steps.previous_rows(outputs, state), before, projected, result, steps.back(result)
    )


def _phase_back(
    unit: Unit,
    weights: tuple[Array, Array | None],
    phase: range,
    slopes: _Slopes,
    outputs: Array,
    grad: Array,
    result: Array,
    state: Array,
    cell: Array,
) -> None:
    """Runs the steps of one phase backwards and fills in the gradients of the gates' inputs, `result` [rows, 4 h].

    `grad` are the gradients of the outputs, which become those before the projection's activation. `state` and `cell`
    [rows, ...] hold the gradients that come from later steps, and are overwritten with those for earlier steps.
    """
    count, (weight, projection) = phase.step, weights
    product = product_of(count, weight)
    gates = result.reshape(len(result), 4, -1).swapaxes(0, 1)
    for start in reversed(phase):
        rows = slice(start, start + count)
        now = grad[rows]
        now += state
        if projection is not None:
            now *= unit.projection.slope(outputs[rows])
            if unit.projection_clip > 0:
                now *= np.abs(outputs[rows]) < unit.projection_clip
            hidden = np.empty_like(cell)
            product_of(count, projection)(now, projection, hidden)
            now = hidden
        np.multiply(now, slopes.output[rows], gates[3, rows])
        cell += now * slopes.cell[rows]
        if slopes.clip_mask is not None:
            cell *= slopes.clip_mask[rows]
        np.multiply(cell, slopes.inner[:, rows], gates[:3, rows])
        cell *= slopes.previous_cell[rows]
        product(result[rows], weight, state)


# Kernels of the gated recurrent unit, over sequences and of a single step.
#
# A row of the input holds, one after the other, what goes to the update gate, the reset gate and the candidate (u, r,
# c), each as wide as the hidden state h. Weight holds one after the other a matrix W for both gates and a matrix C for
# the candidate, whatever its dims say:
#
#     u, r = gate(x + bias + h W)    c = act(x + bias + (r h) C)    h' = h + u (c - h), in origin mode c + u (h - c)

_NUMBERED = ("identity", "sigmoid", "tanh", "relu")
"""The activations of `gru_unit` by number."""


class _Unit(NamedTuple):
    """The attributes of the op."""

    gate: Activation
    candidate: Activation
    origin: bool


class _Weights(NamedTuple):
    """The matrix of both gates [h, 2 h] and that of the candidate [h, h], as views of one tensor."""

    gates: Array
    candidate: Array


def _unit(op: Op) -> _Unit:
    names = [op.attrs["gate_activation"], op.attrs["activation"]]
    if op.type.startswith("gru_unit"):
        if any(number not in range(len(_NUMBERED)) for number in names):
            raise ValueError(f"gate_activation and activation are {names}, they must be 0 to {len(_NUMBERED) - 1}")
        names = [_NUMBERED[number] for number in names if isinstance(number, int)]
    return _Unit(activation(names[0]), activation(names[1]), flag(op, "origin_mode"))


def _weights(weight: Array) -> _Weights:
    width = weight.shape[0]
    if weight.shape != (width, 3 * width):
        raise ValueError(f"Weight has the dims {list(weight.shape)}, it must be 3 times as wide as high")
    flat = weight.reshape(-1)
    gates, candidate = flat[: 2 * width * width], flat[2 * width * width :]
    return _Weights(gates.reshape(width, 2 * width), candidate.reshape(width, width))


def _is_usual(unit: _Unit) -> bool:
    """Whether the compiled loops have the activations of the unit."""
    return unit.gate is ACTIVATIONS["sigmoid"] and unit.candidate is ACTIVATIONS["tanh"]


def _forward(
    unit: _Unit, weight: Array, bias: Any, steps: Steps, x: Array, first: Array
) -> tuple[Array, Array, Array, Array]:
    """Runs all steps from initial states in batch order: gives the gates and candidates, the reset states and the
    hidden states in batch order, and the hidden states in the order of the sequences.
    """
    weights, width = _weights(weight), len(weight)
    if x.shape[1:] != weight.shape[1:]:
        raise ValueError(f"Input has the dims {list(x.shape)}, the last must be {weight.shape[1]}, that of Weight")
    bias = None if bias is None else plain(bias).reshape(-1)
    if _is_usual(unit):
        made = loops.gru(x, bias, weights.gates, weights.candidate, first, steps.places, unit.origin)
        if made is not None:
            return made
    gates = steps.batch(x if bias is None else x + bias)
    reset, hidden = np.empty((2, len(x), width), gates.dtype)
    for phase in steps.phases:
        first = _steps_of_phase(unit, weights, phase, gates, reset, hidden, first[: phase.step])
    return gates, reset, hidden, steps.back(hidden)


def _steps_of_phase(
    unit: _Unit, weights: _Weights, phase: range, gates: Array, reset: Array, hidden: Array, before: Array
) -> Array:
    """Runs the steps of a phase from a state, in batch order; gives the last state."""
    count, width = phase.step, reset.shape[1]
    product, into = product_of(count, weights.gates), np.empty((count, 2 * width), gates.dtype)
    for_candidate, through = product_of(count, weights.candidate), np.empty((count, width), gates.dtype)
    for start in phase:
        rows = slice(start, start + count)
        product(before, weights.gates, into)
        both, c = gates[rows, : 2 * width], gates[rows, 2 * width :]
        both += into
        unit.gate.apply(both, both)
        u, r = both[:, :width], both[:, width:]
        for_candidate(np.multiply(r, before, reset[rows]), weights.candidate, through)
        c += through
        unit.candidate.apply(c, c)
        first, last = (c, before) if unit.origin else (before, c)
        before = np.subtract(last, first, hidden[rows])
        before *= u
        before += first
    return before


def _backward(
    unit: _Unit, weight: Array, steps: Steps, values: tuple[Array, Array, Array], grad: Array, first: Array
) -> GruGradients:
    """Runs all steps backwards. `values` are the gates, the reset states and the hidden states; `grad` are the
    gradients of the hidden states in the order of the sequences. The gradient of the initial states is in batch order.
    """
    (gates, reset, hidden), weights, width = values, _weights(weight), len(weight)
    from_gates, from_candidate = (transpose_matrix(matrix, steps.phases) for matrix in weights)
    if _is_usual(unit):
        matrices = from_gates, from_candidate
        made = loops.gru_back(values, grad, first, weight, matrices, steps.places, unit.origin)
        if made is not None:
            return made
    before, grad, result = steps.previous_rows(hidden, first), steps.batch(grad), np.empty_like(gates)
    u, r, c = gates.reshape(len(gates), 3, width).swapaxes(0, 1).copy()  # contiguous, which is fastest in numpy
    rest, to_candidate, to_reset = np.subtract(1, u), unit.candidate.slope(c), unit.gate.slope(r)
    to_update = (before - c if unit.origin else c - before) * unit.gate.slope(u)
    to_candidate *= rest if unit.origin else u
    to_reset *= before
    kept, carried = u if unit.origin else rest, np.zeros_like(first)
    for phase in reversed(steps.phases):
        count = phase.step
        now, through = carried[:count], np.empty_like(carried[:count])
        candidate_back, gates_back = product_of(count, from_candidate), product_of(count, from_gates)
        for start in reversed(phase):
            rows = slice(start, start + count)
            now += grad[rows]
            np.multiply(now, to_update[rows], result[rows, :width])
            np.multiply(now, to_candidate[rows], result[rows, 2 * width :])
            now *= kept[rows]
            candidate_back(result[rows, 2 * width :], from_candidate, through)
            np.multiply(through, to_reset[rows], result[rows, width : 2 * width])
            through *= r[rows]
            now += through
            gates_back(result[rows, : 2 * width], from_gates, through)
            now += through
    weight_grad = _weight_gradient(weight, result, before, reset)
    return GruGradients(carried, steps.back(result), weight_grad, sum_of_rows(result))


def _weight_gradient(weight: Array, gates: Array, before: Array, reset: Array) -> Array:
    """The gradient of the weights, as products over the rows of all steps."""
    width, total = len(weight), np.empty_like(weight)
    of_gates, of_candidate = _weights(total)
    np.matmul(before.T, gates[:, : 2 * width], out=of_gates)
    np.matmul(reset.T, gates[:, 2 * width :], out=of_candidate)
    return total


@plain_kernel("gru", "Hidden BatchGate BatchResetHiddenPrev BatchHidden", lod="own")
def _gru(
    Input: Any, Weight: Any, H0: Any = None, Bias: Any = None, *, unit: _Unit = per_op(_unit), is_reverse: bool
) -> tuple[Any, ...]:
    x, lod, steps = steps_of(Input, "Input", is_reverse)
    weight, state = plain(Weight), None if H0 is None else plain(H0)
    require_rows(state, len(steps.order), len(weight), "H0")
    first = steps.initial(state, len(weight), x.dtype)
    gates, reset, hidden, states = _forward(unit, weight, Bias, steps, x, first)
    return LoDTensor(states, lod), steps.with_batch_lod(gates), reset, steps.with_batch_lod(hidden)


@plain_kernel("gru_grad", "Input@GRAD Weight@GRAD H0@GRAD Bias@GRAD", lod="own")
def _gru_grad(
    Weight: Any,
    BatchGate: Any,
    BatchResetHiddenPrev: Any,
    BatchHidden: Any,
    Hidden_GRAD: Any,
    H0: Any = None,
    *,
    unit: _Unit = per_op(_unit),
    wants_H0_GRAD: bool,
) -> tuple[Any, ...]:
    steps = steps_noted(BatchGate, "BatchGate")
    weight, gates = plain(Weight), plain(BatchGate)
    first = steps.initial(None if H0 is None else plain(H0), len(weight), gates.dtype)
    values = gates, plain(BatchResetHiddenPrev), plain(BatchHidden)
    result = _backward(unit, weight, steps, values, plain(Hidden_GRAD), first)
    state = steps.initial_back(result.state) if wants_H0_GRAD else None
    return result.x, result.weight, state, result.bias[None]


@plain_kernel("gru_unit", "Gate ResetHiddenPrev Hidden", lod="none")
def _gru_unit(
    Input: Array, HiddenPrev: Array, Weight: Array, Bias: Array | None = None, *, unit: _Unit = per_op(_unit)
) -> tuple[Array, ...]:
    require_rows(HiddenPrev, len(Input), len(Weight), "HiddenPrev")
    gates, reset, hidden, _ = _forward(unit, Weight, Bias, one_step(len(Input)), Input, HiddenPrev)
    return gates, reset, hidden


@kernel("gru_unit_grad", "Input@GRAD HiddenPrev@GRAD Weight@GRAD Bias@GRAD", lod="none")
def _gru_unit_grad(op: Op) -> Run:
    unit = _unit(op)

    def run(
        HiddenPrev: Array, Weight: Array, Gate: Array, ResetHiddenPrev: Array, Hidden_GRAD: Array
    ) -> tuple[Array, ...]:
        hidden = Hidden_GRAD  # read for its dims alone: no step follows, before which these states would come
        values = Gate, ResetHiddenPrev, hidden
        result = _backward(unit, Weight, one_step(len(Gate)), values, Hidden_GRAD, HiddenPrev)
        return result.x, result.state, result.weight, result.bias[None]

    return run


def _gate(x: Array) -> Array:
    return activation("sigmoid").apply(x, np.empty_like(x))


@kernel("lstm_unit", "C H", lod="none")
def _lstm_unit(op: Op) -> Run:
    forget_bias = real(op, "forget_bias")

    def run(X: Array, C_prev: Array) -> tuple[Array, Array]:
        i, f, o, g = _quarters(X, C_prev)
        cell, hidden = np.empty_like(C_prev), np.empty_like(C_prev)
        if loops.lstm_unit(X, C_prev, forget_bias, cell, hidden):
            return cell, hidden
        cell = C_prev * _gate(f + forget_bias) + _gate(i) * np.tanh(g)
        return cell, _gate(o) * np.tanh(cell)

    return run


@kernel("lstm_unit_grad", "X@GRAD C_prev@GRAD", lod="none")
def _lstm_unit_grad(op: Op) -> Run:
    forget_bias, gate = real(op, "forget_bias"), activation("sigmoid")

    def run(X: Array, C_prev: Array, C: Array, C_GRAD: Array, H_GRAD: Array) -> tuple[Array, Array]:
        i, f, o, g = _quarters(X, C_prev)
        x_grad, before_grad = np.empty_like(X), np.empty_like(C_prev)
        if loops.lstm_unit_back(X, C_prev, C, (C_GRAD, H_GRAD), forget_bias, x_grad, before_grad):
            return x_grad, before_grad
        i, f, o, g = _gate(i), _gate(f + forget_bias), _gate(o), np.tanh(g)
        active = np.tanh(C)
        grad = C_GRAD + H_GRAD * o * (1 - active * active)
        parts = [
            grad * g * gate.slope(i),
            grad * C_prev * gate.slope(f),
            H_GRAD * active * gate.slope(o),
            grad * i * (1 - g * g),
        ]
        return np.concatenate(parts, axis=1), grad * f

    return run


def _quarters(x: Array, cell: Array) -> list[Array]:
    if x.shape != (len(cell), 4 * cell.shape[1]):
        raise ValueError(f"X has the dims {list(x.shape)}, C_prev {list(cell.shape)}: X must be 4 times as wide")
    h = cell.shape[1]
    return [x[:, :h], x[:, h : 2 * h], x[:, 2 * h : 3 * h], x[:, 3 * h :]]


# Kernels of the long short-term memory over sequences, with and without a projection of the hidden state.
#
# The bias holds the bias of the gates and then the peepholes of the input, forget and output gates, each as wide as the
# cell. `lstmp` clips the projections. As in Fluid, any `proj_activation` but "identity" selects the activation of the
# cell.


def _lstm_settings(op: Op) -> Unit:
    projected = op.type.startswith("lstmp")
    outputs = activation(op.attrs["proj_activation"] if projected else "identity")
    if projected and outputs is not activation("identity"):
        outputs = activation(op.attrs["cell_activation"])  # as in Fluid, forwards and backwards
    return Unit(
        activation(op.attrs["gate_activation"]),
        activation(op.attrs["cell_activation"]),
        activation(op.attrs["candidate_activation"]),
        outputs,
        real(op, "cell_clip") if projected else 0.0,
        real(op, "proj_clip") if projected else 0.0,
        flag(op, "use_peepholes"),
        flag(op, "is_reverse"),
    )


def _parameters(unit: Unit, weight: Array, bias: Array, projection: Array | None) -> Parameters:
    width = weight.shape[1] // 4
    flat = bias.reshape(-1)
    if flat.size != (7 if unit.peepholes else 4) * width:
        raise ValueError(f"Bias has {flat.size} numbers, it must have {(7 if unit.peepholes else 4) * width}")
    peepholes = flat[4 * width :].reshape(3, width) if unit.peepholes else None
    return Parameters(weight, flat[: 4 * width], peepholes, projection)


def _weight_gradients(params: Parameters, result: LstmGradients, steps: Steps, cells: Array) -> tuple[Array, Array]:
    """The gradients of the weights and of the bias with its peepholes, from the cells in the order of the sequences."""
    weight, width = np.matmul(result.before.T, result.gates), params.width
    if params.peepholes is None:
        return weight, sum_of_rows(result.gates)[None]
    together = np.empty((1, 7 * width), weight.dtype)
    if loops.lstm_bias_grad(result, cells, steps.places[1], together):
        return weight, together
    cells, inner = steps.batch(cells), result.gates[:, width : 3 * width].reshape(len(cells), 2, width)
    inner = inner * result.cells_before[:, None]
    output = sum_of_rows(result.gates[:, 3 * width :] * cells)
    return weight, np.concatenate([sum_of_rows(result.gates), sum_of_rows(inner).reshape(-1), output])[None]


def _initial(steps: Steps, h0: Any, c0: Any, params: Parameters) -> tuple[Array, Array]:
    state, cell = (None if value is None else plain(value) for value in (h0, c0))
    if state is not None or cell is not None:
        require_rows(state, len(steps.order), len(params.weight), "H0")
        require_rows(cell, len(steps.order), params.width, "C0")
    width, dtype = params.width, params.weight.dtype
    return steps.initial(state, len(params.weight), dtype), steps.initial(cell, width, dtype)


@plain_kernel("lstm", "Hidden Cell BatchGate BatchCellPreAct", lod="own")
def _lstm(
    Input: Any, Weight: Any, Bias: Any, H0: Any = None, C0: Any = None, *, unit: Unit = per_op(_lstm_settings)
) -> tuple[Any, ...]:
    x, lod, steps = steps_of(Input, "Input", unit.reverse)
    params = _parameters(unit, plain(Weight), plain(Bias), None)
    made = forward(unit, params, steps, x, *_initial(steps, H0, C0, params))
    return LoDTensor(made.states, lod), LoDTensor(made.cells, lod), steps.with_batch_lod(made.gates), made.active


@plain_kernel("lstm_grad", "Input@GRAD Weight@GRAD Bias@GRAD H0@GRAD C0@GRAD", lod="own")
def _lstm_grad(
    Weight: Any,
    Bias: Any,
    Hidden: Any,
    Cell: Any,
    BatchGate: Any,
    BatchCellPreAct: Any,
    Hidden_GRAD: Any,
    H0: Any = None,
    C0: Any = None,
    *,
    unit: Unit = per_op(_lstm_settings),
    wants_H0_GRAD: bool,
    wants_C0_GRAD: bool,
) -> tuple[Any, ...]:
    steps = steps_noted(BatchGate, "BatchGate")
    params = _parameters(unit, plain(Weight), plain(Bias), None)
    cells, values = plain(Cell), (plain(BatchGate), plain(Cell), plain(BatchCellPreAct), plain(Hidden))
    result = backward(unit, params, steps, values, plain(Hidden_GRAD), _initial(steps, H0, C0, params))
    state = steps.initial_back(result.state) if wants_H0_GRAD else None
    cell = steps.initial_back(result.cell) if wants_C0_GRAD else None
    return result.x, *_weight_gradients(params, result, steps, cells), state, cell


@plain_kernel("lstmp", "Projection Cell BatchGate BatchCellPreAct BatchHidden", lod="own")
def _lstmp(
    Input: Any,
    Weight: Any,
    ProjWeight: Any,
    Bias: Any,
    H0: Any = None,
    C0: Any = None,
    *,
    unit: Unit = per_op(_lstm_settings),
) -> tuple[Any, ...]:
    x, lod, steps = steps_of(Input, "Input", unit.reverse)
    params = _parameters(unit, plain(Weight), plain(Bias), plain(ProjWeight))
    made = forward(unit, params, steps, x, *_initial(steps, H0, C0, params))
    cells = LoDTensor(made.cells, lod)
    return LoDTensor(made.states, lod), cells, steps.with_batch_lod(made.gates), made.active, made.hidden


@plain_kernel("lstmp_grad", "Input@GRAD Weight@GRAD ProjWeight@GRAD Bias@GRAD H0@GRAD C0@GRAD", lod="own")
def _lstmp_grad(
    Weight: Any,
    ProjWeight: Any,
    Bias: Any,
    Projection: Any,
    Cell: Any,
    BatchGate: Any,
    BatchCellPreAct: Any,
    BatchHidden: Any,
    Projection_GRAD: Any,
    H0: Any = None,
    C0: Any = None,
    *,
    unit: Unit = per_op(_lstm_settings),
    wants_H0_GRAD: bool,
    wants_C0_GRAD: bool,
) -> tuple[Any, ...]:
    steps = steps_noted(BatchGate, "BatchGate")
    params = _parameters(unit, plain(Weight), plain(Bias), plain(ProjWeight))
    cells, values = plain(Cell), (plain(BatchGate), plain(Cell), plain(BatchCellPreAct), plain(Projection))
    result = backward(unit, params, steps, values, plain(Projection_GRAD), _initial(steps, H0, C0, params))
    projection = np.matmul(plain(BatchHidden).T, result.projected)
    weight, bias = _weight_gradients(params, result, steps, cells)
    state = steps.initial_back(result.state) if wants_H0_GRAD else None
    cell = steps.initial_back(result.cell) if wants_C0_GRAD else None
    return result.x, weight, projection, bias, state, cell
