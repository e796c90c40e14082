"""Kernels of the long short-term memory over sequences, with and without a projection of the hidden state.

A row of the input holds, one after the other, what goes to the candidate and to the input, forget and output gates
(c, i, f, o), each as wide as the cell; so do the columns of the weights and the bias, after which the peepholes of
i, f and o stand in the bias. In a step, with h and s the hidden state and the cell of the step before:

    c, i, f, o  =  x + bias + h W
    c = candidate(c)    i = gate(i + wi s)    f = gate(f + wf s)
    s = c i + s f       o = gate(o + wo s)    h = o cell(s)

`lstmp` hands on, in place of h, its projection p = cell(h P), clipped. (Any `proj_activation` but "identity" asks for
the activation of the cell; so it is in Fluid.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pstranspile.arithmetic import product
from pstranspile.ir.model import Op
from pstranspile.kernels.kernel import Run, kernel
from pstranspile.kernels.ragged import plain
from pstranspile.kernels.recurrent_steps import Activation, Steps, activation, require_rows, steps_noted, steps_of
from pstranspile.ops.attributes import flag, real
from pstranspile.values import Array, LoDTensor


class _Unit(NamedTuple):
    """What the attributes of the op say; a clip of 0 is none."""

    gate: Activation
    cell: Activation
    candidate: Activation
    projection: Activation
    cell_clip: float
    projection_clip: float
    peepholes: bool
    reverse: bool


class _Parameters(NamedTuple):
    """Weights of the hidden state, the bias of the gates, peepholes (3 rows, or None) and the projection (or None)."""

    weight: Array
    bias: Array
    peepholes: Array | None
    projection: Array | None


class _Values(NamedTuple):
    """What the forward pass keeps, in batch order: gates, cells, their activations, hidden states, projections."""

    gates: Array
    cells: Array
    active: Array
    hidden: Array
    given_on: Array


class _Gradients(NamedTuple):
    """Gradients of the gates in batch order, of the parameters, and of the initial states in the batch's order."""

    gates: Array
    weight: Array
    peepholes: Array | None
    projection: Array | None
    state: Array
    cell: Array


def _unit(op: Op) -> _Unit:
    projected = op.type.startswith("lstmp")
    given_on = activation(op.attrs["proj_activation"] if projected else "identity")
    if projected and given_on is not activation("identity"):
        given_on = activation(op.attrs["cell_activation"])  # as Fluid has it, forwards and backwards
    return _Unit(
        activation(op.attrs["gate_activation"]),
        activation(op.attrs["cell_activation"]),
        activation(op.attrs["candidate_activation"]),
        given_on,
        real(op, "cell_clip") if projected else 0.0,
        real(op, "proj_clip") if projected else 0.0,
        flag(op, "use_peepholes"),
        flag(op, "is_reverse"),
    )


def _parameters(unit: _Unit, weight: Array, bias: Array, projection: Array | None) -> _Parameters:
    width = weight.shape[1] // 4
    flat = bias.reshape(-1)
    if flat.size != (7 if unit.peepholes else 4) * width:
        raise ValueError(f"Bias has {flat.size} numbers, it must have {(7 if unit.peepholes else 4) * width}")
    peepholes = flat[4 * width :].reshape(3, width) if unit.peepholes else None
    return _Parameters(weight, flat[: 4 * width], peepholes, projection)


def _clipped(x: Array, bound: float) -> Array:
    return np.clip(x, -bound, bound) if bound > 0 else x


def _forward(unit: _Unit, held: _Parameters, steps: Steps, x: Array, state: Array, cell: Array) -> _Values:
    width = held.weight.shape[1] // 4
    if x.shape[1:] != (4 * width,):
        raise ValueError(f"Input has the dims {list(x.shape)}, the last must be {4 * width}, that of Weight")
    gates = steps.batch(x) + held.bias
    cells = np.empty((len(gates), width), gates.dtype)
    active, hidden = np.empty_like(cells), np.empty_like(cells)
    given_on = hidden if held.projection is None else np.empty((len(gates), held.projection.shape[1]), gates.dtype)
    for start, stop in steps.spans():
        rows = slice(start, stop)
        now, before = gates[rows], cell[: stop - start]
        now += product(state[: stop - start], held.weight)
        c, rest, o = now[:, :width], now[:, width:], now[:, 3 * width :]
        i, f = rest[:, :width], rest[:, width : 2 * width]
        unit.candidate.apply(c, c)
        if held.peepholes is None:
            unit.gate.apply(rest, rest)
        else:
            i += before * held.peepholes[0]
            f += before * held.peepholes[1]
            unit.gate.apply(rest[:, : 2 * width], rest[:, : 2 * width])
        cell = np.multiply(c, i, out=cells[rows])
        cell += before * f
        if unit.cell_clip > 0:
            cell[...] = _clipped(cell, unit.cell_clip)
        if held.peepholes is not None:
            o += cell * held.peepholes[2]
            unit.gate.apply(o, o)
        np.multiply(o, unit.cell.apply(cell, active[rows]), out=hidden[rows])
        if held.projection is not None:
            projected = product(hidden[rows], held.projection)
            given_on[rows] = _clipped(unit.projection.apply(projected, projected), unit.projection_clip)
        state = given_on[rows]
    return _Values(gates, cells, active, hidden, given_on)


class _Slopes(NamedTuple):
    """What gradients are multiplied by on their way back through a step, for any number of rows.

    `output`, `cell`: from the hidden state to what goes to the output gate and to the cell; `gates` [rows, 3, h]: from
    the cell to what goes to the candidate, the input gate and the forget gate; `kept`: to the cell before. `within`
    says where the cell is not clipped.
    """

    output: Array
    cell: Array
    gates: Array
    kept: Array
    within: Array | None


def _slopes(unit: _Unit, values: _Values, before: Array) -> _Slopes:
    count, width = before.shape
    c, i, f, o = values.gates.reshape(count, 4, width).swapaxes(0, 1).copy()  # numpy goes fastest through whole pieces
    gates = np.empty((3, count, width), before.dtype)
    np.multiply(i, unit.candidate.slope(c), out=gates[0])
    np.multiply(c, unit.gate.slope(i), out=gates[1])
    np.multiply(before, unit.gate.slope(f), out=gates[2])
    return _Slopes(
        values.active * unit.gate.slope(o),
        o * unit.cell.slope(values.active),
        gates.swapaxes(0, 1),
        f,
        np.abs(values.cells) < unit.cell_clip if unit.cell_clip > 0 else None,
    )


def _step_back(held: _Parameters, slopes: _Slopes, rows: slice, grad: Array, carried: Array, result: Array) -> Array:
    """Puts the gradients of one step's gates (before their activations) into `found`; gives that of the cell before.

    `grad` is that of the hidden state, `carried` what the step after it gives to the cell.
    """
    count, width = grad.shape
    output = result[:, 3 * width :]
    np.multiply(grad, slopes.output[rows], out=output)
    cell_grad = grad * slopes.cell[rows]
    cell_grad += carried
    if held.peepholes is not None:
        cell_grad += output * held.peepholes[2]
    if slopes.within is not None:
        cell_grad *= slopes.within[rows]
    np.multiply(cell_grad[:, None], slopes.gates[rows], out=result[:, : 3 * width].reshape(count, 3, width))
    cell_grad *= slopes.kept[rows]
    if held.peepholes is not None:
        cell_grad += (
            result[:, width : 2 * width] * held.peepholes[0] + result[:, 2 * width : -width] * held.peepholes[1]
        )
    return cell_grad


def _backward(
    unit: _Unit, held: _Parameters, steps: Steps, values: _Values, grad: Array, state: Array, cell: Array
) -> _Gradients:
    count, width = len(steps.order), values.cells.shape[1]
    before = steps.before(values.cells, cell)
    slopes = _slopes(unit, values, before)
    result = np.empty_like(values.gates)
    projected = grad.copy()  # becomes the gradient of what the projection gives, before its activation
    state_grad, carried = np.zeros((count, grad.shape[1]), grad.dtype), np.zeros((count, width), grad.dtype)
    for start, stop in reversed(list(steps.spans())):
        now = projected[start:stop]
        now += state_grad[: stop - start]
        if held.projection is not None:
            now *= unit.projection.slope(values.given_on[start:stop])
            if unit.projection_clip > 0:
                now *= np.abs(values.given_on[start:stop]) < unit.projection_clip
            now = product(now, held.projection.T)
        carried[: stop - start] = _step_back(
            held, slopes, slice(start, stop), now, carried[: stop - start], result[start:stop]
        )
        product(result[start:stop], held.weight.T, state_grad[: stop - start])
    peepholes = None
    if held.peepholes is not None:
        products = [result[:, width : 2 * width] * before, result[:, 2 * width : -width] * before]
        products.append(result[:, 3 * width :] * values.cells)
        peepholes = np.stack([product.sum(axis=0) for product in products])
    return _Gradients(
        result,
        steps.before(values.given_on, state).T @ result,
        peepholes,
        None if held.projection is None else values.hidden.T @ projected,
        state_grad,
        carried,
    )


def _bias_gradient(result: _Gradients) -> Array:
    parts = [result.gates.sum(axis=0)]
    if result.peepholes is not None:
        parts.append(result.peepholes.reshape(-1))
    return np.concatenate(parts)[None]


def _initial(steps: Steps, h0: Any, c0: Any, held: _Parameters) -> tuple[Array, Array]:
    state, cell = (None if value is None else plain(value) for value in (h0, c0))
    if state is not None or cell is not None:
        require_rows(state, len(steps.order), held.weight.shape[0], "H0")
        require_rows(cell, len(steps.order), held.weight.shape[1] // 4, "C0")
    width, dtype = held.weight.shape[1] // 4, held.weight.dtype
    return steps.initial(state, held.weight.shape[0], dtype), steps.initial(cell, width, dtype)


@kernel("lstm", "Hidden Cell BatchGate BatchCellPreAct", lod="own")
def _lstm(op: Op) -> Run:
    unit = _unit(op)

    def run(Input: Any, Weight: Any, Bias: Any, H0: Any = None, C0: Any = None) -> tuple[Any, ...]:
        x, lod, steps = steps_of(Input, "Input", unit.reverse)
        held = _parameters(unit, plain(Weight), plain(Bias), None)
        values = _forward(unit, held, steps, x, *_initial(steps, H0, C0, held))
        hidden, cell = (LoDTensor(steps.back(value), lod) for value in (values.hidden, values.cells))
        return hidden, cell, steps.noted(values.gates), values.active

    return run


@kernel("lstm_grad", "Input@GRAD Weight@GRAD Bias@GRAD H0@GRAD C0@GRAD", lod="own")
def _lstm_grad(op: Op) -> Run:
    unit = _unit(op)

    def run(
        Weight: Any,
        Bias: Any,
        Hidden: Any,
        Cell: Any,
        BatchGate: Any,
        BatchCellPreAct: Any,
        Hidden_GRAD: Any,
        H0: Any = None,
        C0: Any = None,
    ) -> tuple[Any, ...]:
        steps = steps_noted(BatchGate, "BatchGate")
        held = _parameters(unit, plain(Weight), plain(Bias), None)
        hidden, cells, grad = (steps.batch(plain(value)) for value in (Hidden, Cell, Hidden_GRAD))
        values = _Values(plain(BatchGate), cells, plain(BatchCellPreAct), hidden, hidden)
        result = _backward(unit, held, steps, values, grad, *_initial(steps, H0, C0, held))
        states = steps.initial_back(result.state), steps.initial_back(result.cell)
        return steps.back(result.gates), result.weight, _bias_gradient(result), *states

    return run


@kernel("lstmp", "Projection Cell BatchGate BatchCellPreAct BatchHidden", lod="own")
def _lstmp(op: Op) -> Run:
    unit = _unit(op)

    def run(Input: Any, Weight: Any, ProjWeight: Any, Bias: Any, H0: Any = None, C0: Any = None) -> tuple[Any, ...]:
        x, lod, steps = steps_of(Input, "Input", unit.reverse)
        held = _parameters(unit, plain(Weight), plain(Bias), plain(ProjWeight))
        values = _forward(unit, held, steps, x, *_initial(steps, H0, C0, held))
        projection, cell = (LoDTensor(steps.back(value), lod) for value in (values.given_on, values.cells))
        return projection, cell, steps.noted(values.gates), values.active, values.hidden

    return run


@kernel("lstmp_grad", "Input@GRAD Weight@GRAD ProjWeight@GRAD Bias@GRAD H0@GRAD C0@GRAD", lod="own")
def _lstmp_grad(op: Op) -> Run:
    unit = _unit(op)

    def run(
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
    ) -> tuple[Any, ...]:
        steps = steps_noted(BatchGate, "BatchGate")
        held = _parameters(unit, plain(Weight), plain(Bias), plain(ProjWeight))
        projected, cells, grad = (steps.batch(plain(value)) for value in (Projection, Cell, Projection_GRAD))
        values = _Values(plain(BatchGate), cells, plain(BatchCellPreAct), plain(BatchHidden), projected)
        result = _backward(unit, held, steps, values, grad, *_initial(steps, H0, C0, held))
        states = steps.initial_back(result.state), steps.initial_back(result.cell)
        return steps.back(result.gates), result.weight, result.projection, _bias_gradient(result), *states

    return run
