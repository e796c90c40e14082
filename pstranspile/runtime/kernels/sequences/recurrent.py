"""Kernels of recurrent cells over sequences: GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, real
from pstranspile.runtime.arithmetic import is_small, loops, product_of
from pstranspile.runtime.arithmetic.loops import LstmSlopes
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
def _numbers(kind: Any) -> tuple[Array, Array]:
    """(Fluid's lower bound for -x in a sigmoid, 1) as 0-d arrays of an element type, which numpy handles faster than
    Python numbers.
    """
    return np.array(-13, kind), np.array(1, kind)


def _sigmoid(x: Array, out: Array) -> Array:
    least, one = _numbers(x.dtype)
    np.negative(x, out)
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
    step, the position of the same sequence's row one step earlier. Values with the same LoD share their steps, so they
    must not be changed.
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

    def split_parts(self, x: Array, parts: int) -> Array:
        """Rows [rows, parts * width] rearranged step by step, and within a step part by part: [parts * rows, width].

        So each part of a step is contiguous in memory, and so are consecutive parts.
        """
        return x.reshape(len(x) * parts, x.shape[1] // parts).take(_part_sources(self, parts), axis=0)

    def merge_parts(self, parted: Array, parts: int) -> Array:
        """The inverse of `split_parts`, in batch order: [rows, parts * width]."""
        return parted.take(_part_positions(self, parts), axis=0).reshape(len(self.rows), parts * parted.shape[1])

    def joined_back(self, parts: Array) -> Array:
        """Parts in batch order [parts, rows, width], rearranged to rows in the order of the sequences, [rows, parts *
        width].
        """
        count, rows, width = parts.shape
        result = np.empty((rows, count, width), parts.dtype)
        result[self.rows] = parts.swapaxes(0, 1)
        return result.reshape(rows, count * width)

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
def _part_positions(steps: Steps, parts: int) -> Array:
    """The positions of each row's parts, in batch order, within the result of `Steps.split_parts`."""
    counts = np.diff(steps.starts)
    begins = np.repeat(np.asarray(steps.starts[:-1], np.int64), counts)
    first = np.arange(len(steps.rows)) + (parts - 1) * begins
    return (first[:, None] + np.arange(parts) * np.repeat(counts, counts)[:, None]).reshape(-1)


@lru_cache(32)
def _part_sources(steps: Steps, parts: int) -> Array:
    """For every row of the result of `Steps.split_parts` its row and part in the input."""
    result = np.empty(parts * len(steps.rows), np.int64)
    result[_part_positions(steps, parts)] = (steps.rows[:, None] * parts + np.arange(parts)).reshape(-1)
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
"""The number of copied elements that cost as much time as separate matrices save in one step, if products with the
whole matrix are large and those with its parts are not (see `is_small`).
"""


def split_weight(weight: Array, parts: int, phases: Sequence[range]) -> list[Array]:
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


def transpose_matrix(matrix: Array, phases: Sequence[range]) -> Array:
    """The transposed matrix, in memory of its own if this makes the products with the rows of steps faster."""
    steps = sum(len(phase) for phase in phases if phase.step > 1 and not is_small(phase.step, matrix.T))
    return matrix.T.copy() if steps * _STEPS_OF_LARGE >= matrix.size else matrix.T


def by_part(parted: Array, phase: range, parts: int) -> Array:
    """A view of what `Steps.split_parts` gives for the steps of a phase: [steps, parts, rows of a step, width]."""
    rows = parted[parts * phase.start : parts * phase.stop]
    return rows.reshape(len(phase), parts, phase.step, parted.shape[1])


def one_step(count: int) -> tuple[range, ...]:
    """The phases of sequences with one row each."""
    return (range(0, count, count),) if count else ()


def steps_noted(batch: Any, slot: str) -> Steps:
    """The steps that `Steps.with_batch_lod` stored with values in batch order, for a gradient op.

    Raises ValueError if there are none.
    """
    data, lod = sequences(batch, slot)
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


class Values(NamedTuple):
    """The values that the forward pass keeps, each [rows, ...] in batch order: gates, cells, their activations, hidden
    states, and outputs, which are projections if there is one.
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
    """The peepholes repeated for each of several rows, [3, count, h]; None without peepholes."""
    return None if peepholes is None else peepholes[:, None].repeat(count, axis=1)


def forward(unit: Unit, params: Parameters, steps: Steps, x: Array, state: Array, cell: Array) -> Values:
    """Runs all steps from initial states in batch order.

    Raises ValueError for rows whose width does not fit the weights.
    """
    width = params.width
    if x.shape[1:] != (4 * width,):
        raise ValueError(f"Input has the dims {list(x.shape)}, the last must be {4 * width}, that of Weight")
    parted = steps.split_parts(x + params.bias, 4)
    cells, active, hidden = np.empty((3, len(x), width), parted.dtype)
    outputs = hidden if params.projection is None else np.empty((len(x), params.projection.shape[1]), parted.dtype)
    result, matrices = Values(parted, cells, active, hidden, outputs), split_weight(params.weight, 4, steps.phases)
    for phase in steps.phases:
        state, cell = _phase(unit, params, matrices, phase, result, state[: phase.step], cell[: phase.step])
    return result._replace(gates=steps.merge_parts(parted, 4))


def _phase(
    unit: Unit, params: Parameters, matrices: list[Array], phase: range, values: Values, state: Array, cell: Array
) -> tuple[Array, Array]:
    """Runs the steps of one phase forwards from a state and a cell [rows, ...]; gives the last state and cell.

    Fills in the values of the steps. Gates are laid out as `Steps.split_parts` does.
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


def _lstm_slopes(unit: Unit, peepholes: Array | None, values: Values, before: Array) -> tuple[LstmSlopes, Array | None]:
    """(local derivatives of all steps in batch order, mask of the cells that are not clipped; None if no cells are
    clipped).

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
    matrices = [transpose_matrix(matrix, phases) for matrix in split_weight(params.weight, 4, phases)]
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
    before = steps.previous_rows(values.cells, cell)
    slopes, within = _lstm_slopes(unit, params.peepholes, values, before)
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
    states_before = steps.previous_rows(values.outputs, state).T
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


def _add_bias(x: Array, bias: Any, weight: Array) -> Array:
    if x.shape[1:] != weight.shape[1:]:
        raise ValueError(f"Input has the dims {list(x.shape)}, the last must be {weight.shape[1]}, that of Weight")
    return x if bias is None else x + plain(bias).reshape(1, -1)


def _forward(
    unit: _Unit, weights: _Weights, phases: Sequence[range], parted: Array, before: Array, reset: Array, hidden: Array
) -> None:
    """Computes the reset and the new hidden states of all steps into `reset` and `hidden`, [rows, h] in batch order.

    `parted` [3 rows, h] holds the inputs of the gates and the candidate of each step, part by part, and is overwritten
    with their values. `before` is the initial state.
    """
    gate, candidate, origin = unit
    matrices, width = split_weight(weights.gates, 2, phases), before.shape[1]
    scratch, through = np.empty((2 * len(before), width), parted.dtype), np.empty_like(before)
    for phase in phases:
        count = phase.step
        product, before, through = product_of(count, weights.candidate), before[:count], through[:count]
        values, into = by_part(parted, phase, 3), scratch[: 2 * count].reshape(2, count, width)
        whole, to_update, to_reset = None, into[0], into[1]
        if len(matrices) == 1:
            whole = into.reshape(count, 2 * width)
            into = whole.reshape(count, 2, width).swapaxes(0, 1)
        for step, start in enumerate(phase):
            rows, now = slice(start, start + count), values[step]
            both, c = now[:2], now[2]
            if whole is None:
                product(before, matrices[0], to_update)
                product(before, matrices[1], to_reset)
            else:
                product(before, matrices[0], whole)
            both += into
            gate.apply(both, both)
            r_before = np.multiply(both[1], before, reset[rows])
            product(r_before, weights.candidate, through)
            c += through
            candidate.apply(c, c)
            first, last = (c, before) if origin else (before, c)
            before = np.subtract(last, first, hidden[rows])
            before *= both[0]
            before += first


class _Slopes(NamedTuple):
    """The local derivatives of a step, each [rows, h] in batch order.

    `update`, `kept`, `candidate`: of the hidden state by the input of the update gate, the previous hidden state, and
    the input of the candidate. `reset`, `reset_gate`: of the reset hidden state by the input of the reset gate and by
    the previous hidden state.
    """

    update: Array
    kept: Array
    candidate: Array
    reset: Array
    reset_gate: Array


def _slopes(unit: _Unit, gates: Array, before: Array) -> _Slopes:
    rows, width = before.shape
    u, r, c = gates.reshape(rows, 3, width).swapaxes(0, 1).copy()  # contiguous, which is fastest in numpy
    update = np.subtract(before, c) if unit.origin else np.subtract(c, before)
    update *= unit.gate.slope(u)
    rest, candidate, reset = np.subtract(1, u), unit.candidate.slope(c), unit.gate.slope(r)
    candidate *= rest if unit.origin else u
    reset *= before
    return _Slopes(update, u if unit.origin else rest, candidate, reset, r)


class _Gradients(NamedTuple):
    """The gradients of the inputs of the gates and the candidate, `parts` [3, rows, h] in batch order.

    `gates` are the gradients of both gates, [rows, 2 h], if they are stored side by side.
    """

    parts: Array
    gates: Array | None


def _backward(weights: _Weights, slopes: _Slopes, phases: Sequence[range], grad: Array, carried: Array) -> _Gradients:
    """Runs all steps backwards. `grad` are the gradients of the hidden states in batch order. `carried` [sequences, h],
    zeros at first, becomes the gradient of the initial states.
    """
    rows_in_all, width = grad.shape
    matrices, whole = split_weight(weights.gates, 2, phases), None
    result = np.empty((3, rows_in_all, width), grad.dtype)
    if len(matrices) == 1:
        side_by_side = np.empty((rows_in_all, 3 * width), grad.dtype)
        result = side_by_side.reshape(rows_in_all, 3, width).swapaxes(0, 1)
        whole = side_by_side[:, : 2 * width]
    update, reset, candidate = result
    to_update, kept, to_candidate, to_reset, reset_gate = slopes
    turns = [transpose_matrix(matrix, phases) for matrix in (*matrices, weights.candidate)]
    from_update, from_reset, from_candidate = turns[0], turns[-2], turns[-1]
    scratch = np.empty_like(carried)
    for phase in reversed(phases):
        count = phase.step
        product, now, through = product_of(count, from_candidate), carried[:count], scratch[:count]
        for start in reversed(phase):
            rows = slice(start, start + count)
            now += grad[rows]
            u = np.multiply(now, to_update[rows], update[rows])
            c = np.multiply(now, to_candidate[rows], candidate[rows])
            now *= kept[rows]
            product(c, from_candidate, through)
            r = np.multiply(through, to_reset[rows], reset[rows])
            through *= reset_gate[rows]
            now += through
            if whole is None:
                product(u, from_update, through)
                now += through
                product(r, from_reset, through)
            else:
                product(whole[rows], from_update, through)
            now += through
    return _Gradients(result, whole)


def _weight_gradient(weight: Array, result: _Gradients, before: Array, reset: Array) -> Array:
    """The gradient of the weights, as products over the rows of all steps."""
    width, total = len(weight), np.empty_like(weight)
    gates, candidate = _weights(total)
    if result.gates is None:
        np.matmul(before.T, result.parts[0], out=gates[:, :width])
        np.matmul(before.T, result.parts[1], out=gates[:, width:])
    else:
        np.matmul(before.T, result.gates, out=gates)
    np.matmul(reset.T, result.parts[2], out=candidate)
    return total


@plain_kernel("gru", "Hidden BatchGate BatchResetHiddenPrev BatchHidden", lod="own")
def _gru(
    Input: Any, Weight: Any, H0: Any = None, Bias: Any = None, *, unit: _Unit = per_op(_unit), is_reverse: bool
) -> tuple[Any, ...]:
    x, lod, steps = steps_of(Input, "Input", is_reverse)
    weight, state = plain(Weight), None if H0 is None else plain(H0)
    weights, width = _weights(weight), len(weight)
    require_rows(state, len(steps.order), width, "H0")
    parted = steps.split_parts(_add_bias(x, Bias, weight), 3)
    hidden, reset = np.empty((2, len(x), width), parted.dtype)
    first = steps.initial(state, width, parted.dtype)
    _forward(unit, weights, steps.phases, parted, first, reset, hidden)
    return (
        LoDTensor(steps.back(hidden), lod),
        steps.with_batch_lod(steps.merge_parts(parted, 3)),
        reset,
        steps.with_batch_lod(hidden),
    )


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
) -> tuple[Any, ...]:
    steps = steps_noted(BatchGate, "BatchGate")
    weight, gates = plain(Weight), plain(BatchGate)
    first = steps.initial(None if H0 is None else plain(H0), len(weight), gates.dtype)
    before = steps.previous_rows(plain(BatchHidden), first)
    slopes, grad = _slopes(unit, gates, before), steps.batch(plain(Hidden_GRAD))
    carried = np.zeros((len(steps.order), len(weight)), grad.dtype)
    result = _backward(_weights(weight), slopes, steps.phases, grad, carried)
    weight_grad = _weight_gradient(weight, result, before, plain(BatchResetHiddenPrev))
    bias = np.add.reduce(result.parts, axis=1).reshape(1, -1)
    return steps.joined_back(result.parts), weight_grad, steps.initial_back(carried), bias


@plain_kernel("gru_unit", "Gate ResetHiddenPrev Hidden", lod="none")
def _gru_unit(
    Input: Array, HiddenPrev: Array, Weight: Array, Bias: Array | None = None, *, unit: _Unit = per_op(_unit)
) -> tuple[Array, ...]:
    (rows, width), weights = HiddenPrev.shape, _weights(Weight)
    require_rows(HiddenPrev, len(Input), len(Weight), "HiddenPrev")
    parts = _add_bias(Input, Bias, Weight).reshape(rows, 3, width).swapaxes(0, 1).copy()
    reset, hidden = np.empty((2, rows, width), parts.dtype)
    _forward(unit, weights, one_step(rows), parts.reshape(3 * rows, width), HiddenPrev, reset, hidden)
    return parts.swapaxes(0, 1).reshape(rows, 3 * width), reset, hidden


@kernel("gru_unit_grad", "Input@GRAD HiddenPrev@GRAD Weight@GRAD Bias@GRAD", lod="none")
def _gru_unit_grad(op: Op) -> Run:
    unit = _unit(op)

    def run(
        HiddenPrev: Array, Weight: Array, Gate: Array, ResetHiddenPrev: Array, Hidden_GRAD: Array
    ) -> tuple[Array, ...]:
        rows, width = HiddenPrev.shape
        slopes, before_grad = _slopes(unit, Gate, HiddenPrev), np.zeros_like(HiddenPrev)
        result = _backward(_weights(Weight), slopes, one_step(rows), Hidden_GRAD, before_grad)
        weight_grad = _weight_gradient(Weight, result, HiddenPrev, ResetHiddenPrev)
        bias = np.add.reduce(result.parts, axis=1).reshape(1, -1)
        return result.parts.swapaxes(0, 1).reshape(rows, 3 * width), before_grad, weight_grad, bias

    return run


def _gate(x: Array) -> Array:
    return activation("sigmoid").apply(x, np.empty_like(x))


@kernel("lstm_unit", "C H", lod="none")
def _lstm_unit(op: Op) -> Run:
    forget_bias = op.attrs["forget_bias"]

    def run(X: Array, C_prev: Array) -> tuple[Array, Array]:
        i, f, o, g = _quarters(X, C_prev)
        cell = C_prev * _gate(f + forget_bias) + _gate(i) * np.tanh(g)
        return cell, _gate(o) * np.tanh(cell)

    return run


@kernel("lstm_unit_grad", "X@GRAD C_prev@GRAD", lod="none")
def _lstm_unit_grad(op: Op) -> Run:
    forget_bias, gate = op.attrs["forget_bias"], activation("sigmoid")

    def run(X: Array, C_prev: Array, C: Array, C_GRAD: Array, H_GRAD: Array) -> tuple[Array, Array]:
        i, f, o, g = _quarters(X, C_prev)
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
    return np.split(x, 4, axis=1)


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


def _bias_gradient(result: Gradients) -> Array:
    parts = [np.add.reduce(result.gates, axis=1).reshape(-1)]
    if result.peepholes is not None:
        parts.append(result.peepholes.reshape(-1))
    return np.concatenate(parts)[None]


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
    values = forward(unit, params, steps, x, *_initial(steps, H0, C0, params))
    hidden, cell = (LoDTensor(steps.back(value), lod) for value in (values.hidden, values.cells))
    return hidden, cell, steps.with_batch_lod(values.gates), values.active


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
) -> tuple[Any, ...]:
    steps = steps_noted(BatchGate, "BatchGate")
    params = _parameters(unit, plain(Weight), plain(Bias), None)
    hidden, cells, grad = (steps.batch(plain(value)) for value in (Hidden, Cell, Hidden_GRAD))
    values = Values(plain(BatchGate), cells, plain(BatchCellPreAct), hidden, hidden)
    result = backward(unit, params, steps, values, grad, *_initial(steps, H0, C0, params))
    states = steps.initial_back(result.state), steps.initial_back(result.cell)
    return steps.joined_back(result.gates), result.weight, _bias_gradient(result), *states


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
    values = forward(unit, params, steps, x, *_initial(steps, H0, C0, params))
    projection, cell = (LoDTensor(steps.back(value), lod) for value in (values.outputs, values.cells))
    return projection, cell, steps.with_batch_lod(values.gates), values.active, values.hidden


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
) -> tuple[Any, ...]:
    steps = steps_noted(BatchGate, "BatchGate")
    params = _parameters(unit, plain(Weight), plain(Bias), plain(ProjWeight))
    projected, cells, grad = (steps.batch(plain(value)) for value in (Projection, Cell, Projection_GRAD))
    values = Values(plain(BatchGate), cells, plain(BatchCellPreAct), plain(BatchHidden), projected)
    result = backward(unit, params, steps, values, grad, *_initial(steps, H0, C0, params))
    states = steps.initial_back(result.state), steps.initial_back(result.cell)
    return steps.joined_back(result.gates), result.weight, result.projection, _bias_gradient(result), *states
