"""Kernels of recurrent cells over sequences: GRU and LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, real
from pstranspile.runtime.arithmetic import product_of
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.kernels.recurrent_steps import (
    Activation,
    Gradients,
    Parameters,
    Steps,
    Unit,
    Values,
    activation,
    apart,
    backward,
    by_part,
    forward,
    one_step,
    require_rows,
    steps_noted,
    steps_of,
    turned,
)
from pstranspile.runtime.values import Array, LoDTensor

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


def _biased(x: Array, bias: Any, weight: Array) -> Array:
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
    matrices, width = apart(weights.gates, 2, phases), before.shape[1]
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

    `gates` are those of both gates, [rows, 2 h], if they are stored side by side.
    """

    parts: Array
    gates: Array | None


def _backward(weights: _Weights, slopes: _Slopes, phases: Sequence[range], grad: Array, carried: Array) -> _Gradients:
    """Runs all steps backwards. `grad` are the gradients of the hidden states in batch order. `carried` [sequences, h],
    zeros at first, becomes the gradient of the initial states.
    """
    rows_in_all, width = grad.shape
    matrices, whole = apart(weights.gates, 2, phases), None
    result = np.empty((3, rows_in_all, width), grad.dtype)
    if len(matrices) == 1:
        side_by_side = np.empty((rows_in_all, 3 * width), grad.dtype)
        result = side_by_side.reshape(rows_in_all, 3, width).swapaxes(0, 1)
        whole = side_by_side[:, : 2 * width]
    update, reset, candidate = result
    to_update, kept, to_candidate, to_reset, reset_gate = slopes
    turns = [turned(matrix, phases) for matrix in (*matrices, weights.candidate)]
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
    parted = steps.parted(_biased(x, Bias, weight), 3)
    hidden, reset = np.empty((2, len(x), width), parted.dtype)
    first = steps.initial(state, width, parted.dtype)
    _forward(unit, weights, steps.phases, parted, first, reset, hidden)
    return LoDTensor(steps.back(hidden), lod), steps.noted(steps.joined(parted, 3)), reset, steps.noted(hidden)


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
    before = steps.before(plain(BatchHidden), first)
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
    parts = _biased(Input, Bias, Weight).reshape(rows, 3, width).swapaxes(0, 1).copy()
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
    return hidden, cell, steps.noted(values.gates), values.active


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
    return projection, cell, steps.noted(values.gates), values.active, values.hidden


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
