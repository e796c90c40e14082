"""Kernels. Functions of one tensor, element by element, and clipping."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import real
from pstranspile.runtime.arithmetic import norm, number_of, power
from pstranspile.runtime.kernels.kernel import Run, in_place, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import first, formula
from pstranspile.runtime.kernels.rows import merge_rows
from pstranspile.runtime.values import Array, SelectedRows

formula("abs", "np.abs({X})")
formula("abs_grad", "{Out_GRAD} * np.sign({X})", "X@GRAD")
formula("ceil", "np.ceil({X})")
formula("floor", "np.floor({X})")
for _flat in ("ceil", "floor", "round"):
    formula(f"{_flat}_grad", "np.zeros_like({Out_GRAD})", "X@GRAD")
formula("cos", "cos({X})")
formula("cos_grad", "-{Out_GRAD} * sin({X})", "X@GRAD")
formula("sin", "sin({X})")
formula("sin_grad", "{Out_GRAD} * cos({X})", "X@GRAD")
formula("exp", "exp({X})")
formula("exp_grad", "{Out_GRAD} * {Out}", "X@GRAD")
formula("log", "log({X})")
formula("log_grad", "{Out_GRAD} * (1 / {X})", "X@GRAD")
formula("sqrt", "root({X})")
formula("sqrt_grad", "0.5 * {Out_GRAD} / {Out}", "X@GRAD")
formula("rsqrt", "1 / np.sqrt({X})")
formula("rsqrt_grad", "-0.5 * {Out_GRAD} * {Out} * {Out} * {Out}", "X@GRAD")
formula("square", "np.square({X})")
formula("square_grad", "2 * {Out_GRAD} * {X}", "X@GRAD")
formula("reciprocal", "1 / {X}")
formula("reciprocal_grad", "-{Out_GRAD} * {Out} * {Out}", "X@GRAD")
formula(
    "sign", "np.subtract(np.greater({X}, 0).view('int8'), np.less({X}, 0).view('int8')).astype({X}.dtype)", new=True
)


@plain_kernel("round")
def _round(X: Array) -> Array:
    whole = np.trunc(X)
    return np.where(np.abs(X - whole) == 0.5, whole + np.sign(X), np.rint(X))


@plain_kernel("pow")
def _pow(X: Array, FactorTensor: Array | None, *, factor: float) -> Array:
    return power(X, X.dtype.type(factor if FactorTensor is None else first(FactorTensor)))


@plain_kernel("pow_grad", "X@GRAD")
def _pow_grad(X: Array, FactorTensor: Array | None, Out_GRAD: Array, *, factor: float) -> Array:
    exponent = factor if FactorTensor is None else first(FactorTensor)
    return Out_GRAD * X.dtype.type(exponent) * power(X, X.dtype.type(exponent - 1))


def _bounds(op: Op, low: Array | None, high: Array | None) -> tuple[float, float]:
    # As in Fluid, bounds from tensors are rounded to float32 like the attributes, for every element type
    bounds = tuple(
        real(op, name) if given is None else float(np.float32(first(given)))
        for name, given in (("min", low), ("max", high))
    )
    if bounds[0] > bounds[1]:
        raise ValueError(f"the lower bound {bounds[0]!r} is above the upper bound {bounds[1]!r}")
    return bounds[0], bounds[1]


@plain_kernel("clip")
def _clip(X: Array | SelectedRows, Min: Array | None, Max: Array | None, *, op: Op) -> Array | SelectedRows:
    low, high = _bounds(op, Min, Max)
    if isinstance(X, SelectedRows):
        merged = merge_rows([X])
        return merged._replace(value=np.minimum(np.maximum(merged.value, low), high))
    return np.minimum(np.maximum(X, low), high)


@plain_kernel("clip_grad", "X@GRAD", lod="none")
def _clip_grad(X: Array, Min: Array | None, Max: Array | None, Out_GRAD: Array, *, op: Op) -> Array:
    low, high = _bounds(op, Min, Max)
    return Out_GRAD * ((low < X) & (high > X))


def _limited(x: Array, max_norm: float) -> Array:
    """A copy of x, scaled down to the norm max_norm if its norm is larger."""
    number = number_of(x)
    own = number(norm(x))
    return x * x.dtype.type(number(max_norm) / own) if own > max_norm else x.copy()


@plain_kernel("clip_by_norm")
def _clip_by_norm(X: Array | SelectedRows, *, max_norm: float) -> Array | SelectedRows:
    if isinstance(X, SelectedRows):
        merged = merge_rows([X])
        return merged._replace(value=_limited(merged.value, max_norm))
    return _limited(X, max_norm)


@kernel("dgc_clip_by_norm")
def _dgc_clip_by_norm(op: Op) -> Run:
    max_norm, begin = real(op, "max_norm"), real(op, "rampup_begin_step")
    same = in_place(op, "X", "Out")

    def run(current_step: Array, X: Array) -> Array | None:
        if begin < 0 or first(current_step) < begin:
            return None if same else X.copy()
        return _limited(X, max_norm)

    return run
