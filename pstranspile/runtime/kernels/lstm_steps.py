"""The time steps of a long short-term memory, forwards and backwards.

A row of the input holds the inputs of the candidate and of the input, forget and output gates (c, i, f, o), in this
order, each as wide as the cell. The columns of the weights and the bias are laid out alike. In a step, with the
previous hidden state h and cell s, and peepholes wi, wf, wo:

    c, i, f, o  =  x + bias + h W
    c = candidate(c)    i = gate(i + wi s)    f = gate(f + wf s)
    s = c i + s f       o = gate(o + wo s)    h = o cell(s)

With a projection P the next step gets projection(h P) in place of h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pstranspile.runtime.arithmetic import loops, product_of
from pstranspile.runtime.arithmetic.loops import LstmSlopes
from pstranspile.runtime.kernels.recurrent_steps import Activation, Steps, apart, by_part, turned
from pstranspile.runtime.values import Array


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
