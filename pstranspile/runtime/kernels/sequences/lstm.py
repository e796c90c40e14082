"""Kernels of the long short-term memory over sequences, with and without a projection of the hidden state.

The bias holds the bias of the gates and then the peepholes of the input, forget and output gates, each as wide as the
cell. `lstmp` clips the projections. As in Fluid, any `proj_activation` but "identity" selects the activation of the
cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, real
from pstranspile.runtime.kernels.kernel import per_op, plain_kernel
from pstranspile.runtime.kernels.lstm_steps import Gradients, Parameters, Unit, Values, backward, forward
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.kernels.recurrent_steps import Steps, activation, require_rows, steps_noted, steps_of
from pstranspile.runtime.values import Array, LoDTensor


def _unit(op: Op) -> Unit:
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
    Input: Any, Weight: Any, Bias: Any, H0: Any = None, C0: Any = None, *, unit: Unit = per_op(_unit)
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
    unit: Unit = per_op(_unit),
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
    Input: Any, Weight: Any, ProjWeight: Any, Bias: Any, H0: Any = None, C0: Any = None, *, unit: Unit = per_op(_unit)
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
    unit: Unit = per_op(_unit),
) -> tuple[Any, ...]:
    steps = steps_noted(BatchGate, "BatchGate")
    params = _parameters(unit, plain(Weight), plain(Bias), plain(ProjWeight))
    projected, cells, grad = (steps.batch(plain(value)) for value in (Projection, Cell, Projection_GRAD))
    values = Values(plain(BatchGate), cells, plain(BatchCellPreAct), plain(BatchHidden), projected)
    result = backward(unit, params, steps, values, grad, *_initial(steps, H0, C0, params))
    states = steps.initial_back(result.state), steps.initial_back(result.cell)
    return steps.joined_back(result.gates), result.weight, result.projection, _bias_gradient(result), *states
