"""What the recurrent units share: batches of sequences as time steps, and activations by name.

All sequences advance together. A step holds one row of every sequence that is long enough. Sequences are sorted by
length, longest first, so the rows of the next step continue the first rows of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.runtime.arithmetic import is_small, loops, product_of
from pstranspile.runtime.arithmetic.loops import LstmSlopes
from pstranspile.runtime.kernels.ragged import row_counts, sequences
from pstranspile.runtime.values import Array, LoDTensor


class Activation(NamedTuple):
    """A function that writes into a given array, and its derivative in terms of the function's value."""

    apply: Callable[[Array, Array], Array]
    slope: Callable[[Array], Array]


@cache
def _numbers(kind: Any) -> tuple[Array, Array]:
    """Fluid's bound and 1 as 0-d arrays of an element type, which numpy handles faster than Python numbers."""
    return np.array(-13, kind), np.array(1, kind)


def _sigmoid(x: Array, out: Array) -> Array:
    least, one = _numbers(x.dtype)
    np.negative(x, out)
    np.maximum(out, least, out=out)
    np.exp(out, out)
    np.add(out, one, out)
    return np.divide(one, out, out)


def _same(x: Array, out: Array) -> Array:
    out[...] = x
    return out


def _tanh(x: Array, out: Array) -> Array:
    return np.tanh(x, out)


def _relu(x: Array, out: Array) -> Array:
    return np.maximum(x, 0, out=out)


def _flat_slope(y: Array) -> Array:
    return np.ones_like(y)


def _sigmoid_slope(y: Array) -> Array:
    result = _numbers(y.dtype)[1] - y
    result *= y
    return result


def _tanh_slope(y: Array) -> Array:
    result = y * y
    return np.subtract(_numbers(y.dtype)[1], result, result)


def _relu_slope(y: Array) -> Array:
    return (y > 0).astype(y.dtype)


ACTIVATIONS = {
    "identity": Activation(_same, _flat_slope),
    "sigmoid": Activation(_sigmoid, _sigmoid_slope),
    "tanh": Activation(_tanh, _tanh_slope),
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
    `notes` are all three as lists. `phases` are the starts as ranges: one range for each run of steps with equally many
    rows, whose step is that number of rows. `earlier` gives, for every row after the first step, the position of the
    same sequence's row one step earlier. Values with the same LoD share their steps, so they must not be changed.
    """

    rows: Array
    starts: list[int]
    phases: tuple[range, ...]
    order: Array
    earlier: Array
    notes: list[list[int]]

    def spans(self) -> Iterator[tuple[int, int]]:
        """Start and stop of each step in batch order, first to last."""
        return pairwise(self.starts)

    def parted(self, x: Array, parts: int) -> Array:
        """Rows [rows, parts * width] rearranged step by step, and within a step part by part: [parts * rows, width].

        So each part of a step is contiguous in memory, and so are consecutive parts.
        """
        return x.reshape(len(x) * parts, x.shape[1] // parts).take(_parted(self, parts), axis=0)

    def joined(self, parted: Array, parts: int) -> Array:
        """The inverse of `parted`, in batch order: [rows, parts * width]."""
        return parted.take(_joined(self, parts), axis=0).reshape(len(self.rows), parts * parted.shape[1])

    def joined_back(self, parts: Array) -> Array:
        """Parts in batch order [parts, rows, width] as rows of the sequences, [rows, parts * width]."""
        count, rows, width = parts.shape
        result = np.empty((rows, count, width), parts.dtype)
        result[self.rows] = parts.swapaxes(0, 1)
        return result.reshape(rows, count * width)

    def batch(self, rows: Array) -> Array:
        """The rows in batch order."""
        return rows.take(self.rows, axis=0)

    def back(self, batch: Array) -> Array:
        """The rows in the order of the sequences again."""
        result = np.empty_like(batch)
        result[self.rows] = batch
        return result

    def initial(self, state: Array | None, width: int, dtype: Any) -> Array:
        """The initial state of each sequence in the order of the batch; zeros [sequences, width] without an initial
        state.
        """
        return np.zeros((len(self.order), width), dtype) if state is None else state[self.order]

    def before(self, batch: Array, first: Array) -> Array:
        """For every row in batch order the row one step earlier; `first` holds those before the first step."""
        after_first = len(batch) - len(self.earlier)
        result = np.empty_like(batch)
        result[:after_first] = first[:after_first]
        np.take(batch, self.earlier, axis=0, out=result[after_first:], mode="clip")
        return result

    def initial_back(self, grad: Array) -> Array:
        """The gradient of the initial states, in the order of the sequences again."""
        result = np.empty_like(grad)
        result[self.order] = grad
        return result

    def noted(self, batch: Array) -> LoDTensor:
        """Values in batch order with the notes that Fluid stores in place of their LoD: steps, rows and order."""
        return LoDTensor(batch, self.notes)


def steps_of(x: Any, slot: str, reverse: bool) -> tuple[Array, list[list[int]], Steps]:
    """The rows of a ragged value, its LoD, and its steps; with `reverse` the last row of a sequence comes first.

    Raises ValueError if it has no LoD, or more than one level.
    """
    data, lod = sequences(x, slot)
    if len(lod) != 1:
        raise ValueError(f"{slot} has {len(lod)} levels of LoD, a recurrent unit takes one")
    return data, lod, steps_between(tuple(lod[0]), reverse)


@lru_cache(32)
def _joined(steps: Steps, parts: int) -> Array:
    """The positions of each row's parts, in batch order, within the result of `Steps.parted`."""
    counts = np.diff(steps.starts)
    begins = np.repeat(np.asarray(steps.starts[:-1], np.int64), counts)
    first = np.arange(len(steps.rows)) + (parts - 1) * begins
    return (first[:, None] + np.arange(parts) * np.repeat(counts, counts)[:, None]).reshape(-1)


@lru_cache(32)
def _parted(steps: Steps, parts: int) -> Array:
    """For every row of the result of `Steps.parted` its row and part in the input."""
    result = np.empty(parts * len(steps.rows), np.int64)
    result[_joined(steps, parts)] = (steps.rows[:, None] * parts + np.arange(parts)).reshape(-1)
    return result


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
    return Steps(rows, starts, phases, order, before, [starts, rows.tolist(), order.tolist()])


_STEPS = 400
_STEPS_OF_LARGE = 20_000
"""One step saves as much time with separate matrices as it takes to copy this many elements: more where products with
the whole are large, and those with the parts are not (see `is_small`).
"""


def apart(weight: Array, parts: int, phases: Sequence[range]) -> list[Array]:
    """The matrices [state, width] of a matrix [state, parts * width], each in memory of its own.

    For a single sequence or few steps it is only the matrix itself, because one product with the whole is faster.
    """
    width = weight.shape[1] // parts
    if not phases or phases[0].step == 1:
        return [weight]
    rows = phases[0].step
    saves_more = is_small(rows, weight[:, :width]) and not is_small(rows, weight)
    if sum(map(len, phases)) * (_STEPS_OF_LARGE if saves_more else _STEPS) < width * width:
        return [weight]
    return list(weight.reshape(len(weight), parts, width).swapaxes(0, 1).copy())


def turned(matrix: Array, phases: Sequence[range]) -> Array:
    """The transposed matrix, in memory of its own where products of the steps' rows with it gain by that."""
    steps = sum(len(phase) for phase in phases if phase.step > 1 and not is_small(phase.step, matrix.T))
    return matrix.T.copy() if steps * _STEPS_OF_LARGE >= matrix.size else matrix.T


def by_part(parted: Array, phase: range, parts: int) -> Array:
    """A view of what `Steps.parted` gives for the steps of a phase: [steps, parts, rows of a step, width]."""
    rows = parted[parts * phase.start : parts * phase.stop]
    return rows.reshape(len(phase), parts, phase.step, parted.shape[1])


def one_step(count: int) -> tuple[range, ...]:
    """The phases of sequences with one row each."""
    return (range(0, count, count),) if count else ()


def steps_noted(batch: Any, slot: str) -> Steps:
    """The steps that `Steps.noted` stored with values in batch order, for a gradient op.

    Raises ValueError if there are none.
    """
    data, lod = sequences(batch, slot)
    if len(lod) != 3 or len(lod[1]) != len(data):
        raise ValueError(f"{slot} does not say which rows come when: it is no result of a recurrent unit")
    return _noted(*map(tuple, lod))


@lru_cache(32)
def _noted(starts: tuple[int, ...], rows: tuple[int, ...], order: tuple[int, ...]) -> Steps:
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
    """The weights of the hidden state [state, 4 h], the bias of the gates [4 h], and, or None, the peepholes [3, h] and
    the projection.
    """

    weight: Array
    bias: Array
    peepholes: Array | None
    projection: Array | None

    @property
    def width(self) -> int:
        """The width of the cell."""
        return self.weight.shape[1] // 4


class Values(NamedTuple):
    """What the forward pass keeps, each [rows, ...] in batch order: gates, cells, their activations, hidden states, and
    outputs, which are projections if there is one.
    """

    gates: Array
    cells: Array
    active: Array
    hidden: Array
    outputs: Array


class Gradients(NamedTuple):
    """Gradients of the gates [4, rows, h] in batch order, of the parameters, and of the initial states in the order of
    the batch.
    """

    gates: Array
    weight: Array
    peepholes: Array | None
    projection: Array | None
    state: Array
    cell: Array


def _for_rows(peepholes: Array | None, count: int) -> Array | None:
    """A row of peepholes for each of several rows, [3, count, h]."""
    return None if peepholes is None else peepholes[:, None].repeat(count, axis=1)


def forward(unit: Unit, params: Parameters, steps: Steps, x: Array, state: Array, cell: Array) -> Values:
    """Runs all steps from initial states in batch order.

    Raises ValueError for rows whose width does not fit the weights.
    """
    width = params.width
    if x.shape[1:] != (4 * width,):
        raise ValueError(f"Input has the dims {list(x.shape)}, the last must be {4 * width}, that of Weight")
    parted = steps.parted(x + params.bias, 4)
    cells, active, hidden = np.empty((3, len(x), width), parted.dtype)
    outputs = hidden if params.projection is None else np.empty((len(x), params.projection.shape[1]), parted.dtype)
    result, matrices = Values(parted, cells, active, hidden, outputs), apart(params.weight, 4, steps.phases)
    for phase in steps.phases:
        state, cell = _phase(unit, params, matrices, phase, result, state[: phase.step], cell[: phase.step])
    return result._replace(gates=steps.joined(parted, 4))


def _phase(
    unit: Unit, params: Parameters, matrices: list[Array], phase: range, values: Values, state: Array, cell: Array
) -> tuple[Array, Array]:
    """Runs the steps of one phase forwards from a state and a cell [rows, ...]; gives the last state and cell.

    Fills in the values of the steps. Gates are laid out as `Steps.parted` does.
    """
    count, (parted, cells, active, hidden, outputs) = phase.step, values
    product, peepholes = product_of(count, matrices[0]), _for_rows(params.peepholes, count)
    parts, into, spare = by_part(parted, phase, 4), np.empty((4, *cell.shape), parted.dtype), np.empty_like(cell)
    products = list(zip(matrices, into, strict=False))
    if len(matrices) == 1:
        whole = into.reshape(count, 4 * params.width)
        products, into = [(matrices[0], whole)], whole.reshape(count, 4, params.width).swapaxes(0, 1)
    for step, start in enumerate(phase):
        rows, now = slice(start, start + count), parts[step]
        for matrix, target in products:
            product(state, matrix, target)
        now += into
        c, i, f, o = now[0], now[1], now[2], now[3]
        unit.candidate.apply(c, c)
        if peepholes is None:
            unit.gate.apply(now[1:], now[1:])
        else:
            i += np.multiply(cell, peepholes[0], spare)
            f += np.multiply(cell, peepholes[1], spare)
            unit.gate.apply(now[1:3], now[1:3])
        if loops.lstm_cell(c, i, f, cell, cells[rows]):
            cell = cells[rows]
        else:
            np.multiply(cell, f, spare)
            cell = np.multiply(c, i, cells[rows])
            cell += spare
        if unit.cell_clip > 0:
            np.clip(cell, -unit.cell_clip, unit.cell_clip, out=cell)
        if peepholes is not None:
            o += np.multiply(cell, peepholes[2], spare)
            unit.gate.apply(o, o)
        state = np.multiply(o, unit.cell.apply(cell, active[rows]), hidden[rows])
        if params.projection is not None:
            state = np.dot(state, params.projection, outputs[rows])
            unit.projection.apply(state, state)
            if unit.projection_clip > 0:
                np.clip(state, -unit.projection_clip, unit.projection_clip, out=state)
    return state, cell


def _slopes(unit: Unit, peepholes: Array | None, values: Values, before: Array) -> tuple[LstmSlopes, Array | None]:
    """The local derivatives of all steps, in batch order, and where cells are not clipped (None: nowhere clipped).

    Derivatives by cells include the paths through peepholes.
    """
    count, width = before.shape
    parts = values.gates.reshape(count, 4, width).swapaxes(0, 1).copy()  # numpy is fastest on contiguous arrays
    (c, i, f, o), gates, inner = parts, unit.gate.slope(parts[1:]), np.empty((3, count, width), parts.dtype)
    np.multiply(unit.candidate.slope(c), i, inner[0])
    np.multiply(gates[0], c, inner[1])
    np.multiply(gates[1], before, inner[2])
    output, cell, kept = gates[2], unit.cell.slope(values.active), f
    output *= values.active
    cell *= o
    if peepholes is not None:
        cell += output * peepholes[2]
        kept += inner[1] * peepholes[0]
        kept += inner[2] * peepholes[1]
    within = np.abs(values.cells) < unit.cell_clip if unit.cell_clip > 0 else None
    return LstmSlopes(output, cell, inner, kept), within


def _before_projection(unit: Unit, projection: Array, outputs: Array, grad: Array) -> Array:
    """The gradient of the hidden state from that of the output. `grad` becomes the gradient before the activation."""
    grad *= unit.projection.slope(outputs)
    if unit.projection_clip > 0:
        grad *= np.abs(outputs) < unit.projection_clip
    return np.dot(grad, projection.T)


class _Way(NamedTuple):
    """Buffers of the backward pass: `gates` [4, rows, h] for the gradients of the gates' inputs, the transposed
    weights, and `whole` [rows, 4 h], the same gradients as `gates` if these are stored side by side.
    """

    matrices: list[Array]
    gates: Array
    whole: Array | None


def _way(params: Parameters, phases: Sequence[range], rows: int) -> _Way:
    matrices = [turned(matrix, phases) for matrix in apart(params.weight, 4, phases)]
    if len(matrices) > 1:
        return _Way(matrices, np.empty((4, rows, params.width), params.weight.dtype), None)
    whole = np.empty((rows, 4 * params.width), params.weight.dtype)
    return _Way(matrices, whole.reshape(rows, 4, params.width).swapaxes(0, 1), whole)


def _phase_back(
    unit: Unit,
    params: Parameters,
    phase: range,
    slopes: LstmSlopes,
    within: Array | None,
    outputs: Array,
    grad: Array,
    way: _Way,
    state: Array,
    cell: Array,
) -> None:
    """Runs the steps of one phase backwards and fills in the gradients of the gates' inputs.

    `grad` are the gradients of the outputs. `state` and `cell` [rows, ...] hold the gradients that come from later
    steps, and are overwritten with those for earlier steps.
    """
    count, (matrices, gates, whole) = phase.step, way
    product, through, spare = product_of(count, matrices[0]), np.empty_like(state), np.empty_like(cell)
    to_inner, to_output = gates[:3], gates[3]
    of_output, of_cell, of_inner, kept = slopes
    plain = params.projection is None and within is None
    for start in reversed(phase):
        rows = slice(start, start + count)
        if not (plain and loops.lstm_back(grad, state, cell, slopes, gates, start, count)):
            now = grad[rows]
            now += state
            if params.projection is not None:
                now = _before_projection(unit, params.projection, outputs[rows], now)
            np.multiply(now, of_output[rows], to_output[rows])
            cell += np.multiply(now, of_cell[rows], spare)
            if within is not None:
                cell *= within[rows]
            np.multiply(cell, of_inner[:, rows], to_inner[:, rows])
            cell *= kept[rows]
        if whole is not None:
            product(whole[rows], matrices[0], state)
            continue
        product(gates[0, rows], matrices[0], state)
        for matrix, of in zip(matrices[1:], gates[1:, rows], strict=True):
            product(of, matrix, through)
            state += through


def backward(
    unit: Unit, params: Parameters, steps: Steps, values: Values, grad: Array, state: Array, cell: Array
) -> Gradients:
    """The gradients, from the gradient of the outputs in batch order and the initial states of the forward pass."""
    before = steps.before(values.cells, cell)
    slopes, within = _slopes(unit, params.peepholes, values, before)
    way = _way(params, steps.phases, len(before))
    projected = grad.copy()  # becomes the gradient of the projection before its activation
    of_state, of_cell = np.zeros_like(state), np.zeros_like(cell)
    for phase in reversed(steps.phases):
        states = of_state[: phase.step], of_cell[: phase.step]
        _phase_back(unit, params, phase, slopes, within, values.outputs, projected, way, *states)
    peepholes = None
    if params.peepholes is not None:
        products = [way.gates[1] * before, way.gates[2] * before, way.gates[3] * values.cells]
        peepholes = np.stack([product.sum(axis=0) for product in products])
    states_before = steps.before(values.outputs, state).T
    return Gradients(
        way.gates,
        np.dot(states_before, way.whole)
        if way.whole is not None
        else np.concatenate([np.dot(states_before, gradient) for gradient in way.gates], axis=1),
        peepholes,
        None if params.projection is None else np.dot(values.hidden.T, projected),
        of_state,
        of_cell,
    )
