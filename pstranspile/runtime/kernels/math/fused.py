"""Kernels. An elementwise sum or product and an activation in one op."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, real
from pstranspile.ops.math.fused import functors
from pstranspile.runtime.arithmetic import sigmoid
from pstranspile.runtime.kernels.broadcasting import align, sum_to
from pstranspile.runtime.kernels.kernel import per_op, plain_kernel
from pstranspile.runtime.values import Array


class _Fused(NamedTuple):
    """The settings of an op: sum or product, activation and its slope from its result, and which comes last."""

    product: bool
    activate: Callable[[Array], Array]
    slope: Callable[[Array], Array | float]
    last: bool
    axis: int


def _fused(op: Op) -> _Fused:
    combined, name, last = functors(op)
    factor = np.float32(real(op, "scale"))
    activate: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array | float]]] = {
        "scale": (lambda x: x * factor, lambda _: factor),
        "relu": (lambda x: np.maximum(x, 0), lambda out: out > 0),
        "tanh": (np.tanh, lambda out: 1 - out * out),
        "sigmoid": (sigmoid, lambda out: out * (1 - out)),
    }
    return _Fused(combined == "elementwise_mul", *activate[name], last, int_attr(op, "axis", -1))


def _combined(x: Array, y: Array, of: _Fused) -> Array:
    return np.multiply(*align(x, y, of.axis)) if of.product else np.add(*align(x, y, of.axis))


@plain_kernel("fused_elemwise_activation", "Out IntermediateOut")
def _fused_elemwise_activation(X: Array, Y: Array, *, of: _Fused = per_op(_fused)) -> tuple[Array, Array]:
    if of.last:
        inner = _combined(X, Y, of)
        return of.activate(inner), inner
    inner = of.activate(Y)
    return _combined(X, inner, of), inner


@plain_kernel("fused_elemwise_activation_grad", "X@GRAD Y@GRAD IntermediateOut@GRAD", lod="each")
def _fused_elemwise_activation_grad(
    X: Array, Y: Array, Out: Array, Out_GRAD: Array, *, of: _Fused = per_op(_fused)
) -> tuple[Array, Array, Array]:
    """The slopes follow from results, so what the op kept is not read."""
    grad, other = (Out_GRAD * of.slope(Out), Y) if of.last else (Out_GRAD, of.activate(Y))
    x_grad, y_grad = grad, grad
    if of.product:
        wide_x, wide_y = align(X, other, of.axis)
        x_grad, y_grad = grad * wide_y, grad * wide_x
    x_grad, inner = sum_to(x_grad, X.shape, of.axis), sum_to(y_grad, Y.shape, of.axis)
    if of.last:
        return x_grad, inner, grad
    return x_grad, inner * of.slope(other), inner
