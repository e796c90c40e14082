"""Kernels of the gated recurrent unit, over sequences and of a single step.

A row of the input holds, one after the other, what goes to the update gate, the reset gate and the candidate (u, r,
c), each as wide as the hidden state h. Weight holds one after the other a matrix W for both gates and a matrix C for
the candidate, whatever its dims say:

    u, r = gate(x + bias + h W)    c = act(x + bias + (r h) C)    h' = h + u (c - h), in origin mode c + u (h - c)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pstranspile.arithmetic import product
from pstranspile.ir.model import Op
from pstranspile.kernels.kernel import Run, kernel
from pstranspile.kernels.ragged import plain
from pstranspile.kernels.recurrent_steps import Activation, activation, require_rows, steps_noted, steps_of
from pstranspile.ops.attributes import flag
from pstranspile.values import Array, LoDTensor

_NUMBERED = ("identity", "sigmoid", "tanh", "relu")
"""The activations that `gru_unit` asks for by number."""


class _Unit(NamedTuple):
    """What the attributes of the op say."""

    gate: Activation
    candidate: Activation
    origin: bool


class _Weights(NamedTuple):
    """The matrix of both gates and that of the candidate, as views of one tensor."""

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
    return _Weights(
        flat[: 2 * width * width].reshape(width, 2 * width), flat[2 * width * width :].reshape(width, width)
    )


def _biased(x: Array, bias: Any, weight: Array) -> Array:
    if x.shape[1:] != weight.shape[1:]:
        raise ValueError(f"Input has the dims {list(x.shape)}, the last must be {weight.shape[1]}, that of Weight")
    return x.copy() if bias is None else x + plain(bias).reshape(1, -1)


def _step(unit: _Unit, held: _Weights, gates: Array, before: Array, reset: Array, hidden: Array) -> None:
    """Puts the reset and the new hidden state into `reset` and `hidden`, and the gates' values into `gates`."""
    width = len(held.candidate)
    both, u, r, c = gates[:, : 2 * width], gates[:, :width], gates[:, width : 2 * width], gates[:, 2 * width :]
    both += product(before, held.gates)
    unit.gate.apply(both, both)
    np.multiply(r, before, out=reset)
    c += product(reset, held.candidate)
    unit.candidate.apply(c, c)
    start, end = (c, before) if unit.origin else (before, c)
    np.subtract(end, start, out=hidden)
    hidden *= u
    hidden += start


class _Slopes(NamedTuple):
    """What gradients are multiplied by on their way back through a step, for any number of rows.

    `hidden` [rows, 3, h] are those of the hidden state: to what goes to the update gate, to the hidden state before,
    and to what goes to the candidate. `reset` are those from the reset hidden state to what goes to the reset gate,
    `reset_gate` to the hidden state before.
    """

    hidden: Array
    reset: Array
    reset_gate: Array


def _slopes(unit: _Unit, gates: Array, before: Array) -> _Slopes:
    rows, width = before.shape
    u, r, c = gates.reshape(rows, 3, width).swapaxes(0, 1).copy()  # each in one piece, as numpy goes through it fastest
    hidden = np.empty((3, rows, width), gates.dtype)
    update, candidate = np.subtract(before, c) if unit.origin else np.subtract(c, before), unit.candidate.slope(c)
    rest = np.subtract(1, u)
    np.multiply(update, unit.gate.slope(u), out=hidden[0])
    hidden[1] = u if unit.origin else rest
    np.multiply(candidate, rest if unit.origin else u, out=hidden[2])
    reset = unit.gate.slope(r)
    reset *= before
    return _Slopes(hidden.swapaxes(0, 1), reset, r)


def _step_back(
    held: _Weights, slopes: _Slopes, rows: slice, grad: Array, result: Array, out: Array | None = None
) -> Array:
    """Puts the gradients of what goes to the gates in a step, some rows, into `found`.

    Gives that of the hidden state before, in `out` if there is one (which may be `grad`).
    """
    count, width = grad.shape
    now = result[rows]
    both, middle = now[:, : 2 * width], now[:, width : 2 * width]
    np.multiply(grad[:, None], slopes.hidden[rows], out=now.reshape(count, 3, width))
    reset_grad = product(now[:, 2 * width :], held.candidate.T)
    through = np.multiply(reset_grad, slopes.reset_gate[rows], out=out)
    through += middle  # what goes to the hidden state before by itself, which makes room for the reset gate
    np.multiply(reset_grad, slopes.reset[rows], out=middle)
    through += product(both, held.gates.T)
    return through


def _weight_gradient(weight: Array, result: Array, before: Array, reset: Array) -> Array:
    """The gradient of the weights: one product each, over the rows of all steps."""
    width = len(weight)
    total = np.empty_like(weight)
    parts = _weights(total)
    np.matmul(before.T, result[:, : 2 * width], out=parts.gates)
    np.matmul(reset.T, result[:, 2 * width :], out=parts.candidate)
    return total


@kernel("gru", "Hidden BatchGate BatchResetHiddenPrev BatchHidden", lod="own")
def _gru(op: Op) -> Run:
    unit, reverse = _unit(op), flag(op, "is_reverse")

    def run(Input: Any, Weight: Any, H0: Any = None, Bias: Any = None) -> tuple[Any, ...]:
        x, lod, steps = steps_of(Input, "Input", reverse)
        weight = plain(Weight)
        held = _weights(weight)
        gates = steps.batch(_biased(x, Bias, weight))
        reset = np.empty((len(gates), len(weight)), gates.dtype)
        hidden = np.empty_like(reset)
        state = None if H0 is None else plain(H0)
        require_rows(state, len(steps.order), len(weight), "H0")
        state = steps.initial(state, len(weight), gates.dtype)
        for start, stop in steps.spans():
            rows = slice(start, stop)
            _step(unit, held, gates[rows], state[: stop - start], reset[rows], hidden[rows])
            state = hidden[rows]
        return LoDTensor(steps.back(hidden), lod), steps.noted(gates), reset, steps.noted(hidden)

    return run


@kernel("gru_grad", "Input@GRAD Weight@GRAD H0@GRAD Bias@GRAD", lod="own")
def _gru_grad(op: Op) -> Run:
    unit = _unit(op)

    def run(
        Weight: Any,
        BatchGate: Any,
        BatchResetHiddenPrev: Any,
        BatchHidden: Any,
        Hidden_GRAD: Any,
        H0: Any = None,
    ) -> tuple[Any, ...]:
        steps = steps_noted(BatchGate, "BatchGate")
        weight, gates = plain(Weight), plain(BatchGate)
        held, grad = _weights(weight), steps.batch(plain(Hidden_GRAD))
        first = steps.initial(None if H0 is None else plain(H0), len(weight), gates.dtype)
        before = steps.before(plain(BatchHidden), first)
        slopes = _slopes(unit, gates, before)
        result = np.empty_like(gates)
        carried = np.zeros((len(steps.order), len(weight)), grad.dtype)
        for start, stop in reversed(list(steps.spans())):
            now = carried[: stop - start]
            now += grad[start:stop]
            _step_back(held, slopes, slice(start, stop), now, result, out=now)
        weight_grad = _weight_gradient(weight, result, before, plain(BatchResetHiddenPrev))
        bias = result.sum(axis=0)[None]
        return steps.back(result), weight_grad, steps.initial_back(carried), bias

    return run


@kernel("gru_unit", "Gate ResetHiddenPrev Hidden", lod="none")
def _gru_unit(op: Op) -> Run:
    unit = _unit(op)

    def run(Input: Array, HiddenPrev: Array, Weight: Array, Bias: Array | None = None) -> tuple[Array, ...]:
        require_rows(HiddenPrev, len(Input), len(Weight), "HiddenPrev")
        gates = _biased(Input, Bias, Weight)
        reset, hidden = np.empty(HiddenPrev.shape, gates.dtype), np.empty(HiddenPrev.shape, gates.dtype)
        _step(unit, _weights(Weight), gates, HiddenPrev, reset, hidden)
        return gates, reset, hidden

    return run


@kernel("gru_unit_grad", "Input@GRAD HiddenPrev@GRAD Weight@GRAD Bias@GRAD", lod="none")
def _gru_unit_grad(op: Op) -> Run:
    unit = _unit(op)

    def run(
        HiddenPrev: Array, Weight: Array, Gate: Array, ResetHiddenPrev: Array, Hidden_GRAD: Array
    ) -> tuple[Array, ...]:
        result = np.empty_like(Gate)
        before_grad = _step_back(_weights(Weight), _slopes(unit, Gate, HiddenPrev), slice(None), Hidden_GRAD, result)
        weight_grad = _weight_gradient(Weight, result, HiddenPrev, ResetHiddenPrev)
        return result, before_grad, weight_grad, result.sum(axis=0)[None]

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
