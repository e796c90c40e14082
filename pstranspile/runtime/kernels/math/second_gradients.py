"""Kernels. Gradients of gradient ops. A missing gradient DDX or DDY counts as zeros."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr
from pstranspile.runtime.arithmetic import dot
from pstranspile.runtime.kernels.images.conv import conv_gradients, conv_values
from pstranspile.runtime.kernels.kernel import Run, has_output, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import align, sum_to
from pstranspile.runtime.values import Array

Pair: TypeAlias = "tuple[Array | None, Array | None]"
Triple: TypeAlias = "tuple[Array | None, Array | None, Array | None]"


@plain_kernel("relu_grad_grad", "DDOut")
def _relu(Out: Array, DDX: Array) -> Array:
    return DDX * (Out > 0)


@plain_kernel("leaky_relu_grad_grad", "DDOut")
def _leaky_relu(Out: Array, DDX: Array, *, alpha: float) -> Array:
    return DDX * np.where(Out > 0, Out.dtype.type(1), Out.dtype.type(alpha))


@plain_kernel("elu_grad_grad", "DX DDOut")
def _elu(X: Array, DOut: Array, DDX: Array, *, alpha: float) -> Pair:
    slope = X.dtype.type(alpha) * np.exp(X)
    return DDX * DOut * slope * (X < 0), DDX * np.where(X > 0, X.dtype.type(1), slope)


@plain_kernel("square_grad_grad", "DX DDOut")
def _square(X: Array, DOut: Array, DDX: Array) -> Pair:
    two = X.dtype.type(2)
    return DDX * two * DOut, DDX * two * X


@plain_kernel("sqrt_grad_grad", "DOut DDOut")
def _sqrt(Out: Array, DX: Array, DDX: Array) -> Pair:
    return -DX * DDX / Out, DDX * Out.dtype.type(0.5) / Out


@kernel("elementwise_add_grad_grad elementwise_sub_grad_grad", "DDOut")
def _add(op: Op) -> Run:
    axis, subtracts = int_attr(op, "axis", -1), op.type == "elementwise_sub_grad_grad"

    def run(Y: Array, DOut: Array, DDX: Array | None, DDY: Array | None) -> Array:
        x = np.zeros_like(DOut) if DDX is None else DDX
        y = np.zeros_like(Y) if DDY is None else DDY
        made = (np.subtract if subtracts else np.add)(*align(x, y, axis))
        return np.ascontiguousarray(np.broadcast_to(made, DOut.shape))

    return run


@plain_kernel("elementwise_mul_grad_grad", "DDOut X@GRAD Y@GRAD")
def _mul(X: Array, Y: Array, DOut: Array, DDX: Array | None, DDY: Array | None, *, axis: int = -1) -> Triple:
    given_x, given_y = np.zeros_like(X) if DDX is None else DDX, np.zeros_like(Y) if DDY is None else DDY
    (x, y), (ddx, ddy) = align(X, Y, axis), align(given_x, given_y, axis)
    return ddx * y + x * ddy, sum_to(DOut * ddy, X.shape, axis), sum_to(DOut * ddx, Y.shape, axis)


@plain_kernel("elementwise_div_grad_grad", "Y@GRAD DOut DDOut")
def _div(Y: Array, Out: Array, DX: Array, DDX: Array | None, DDY: Array | None, *, axis: int = -1) -> Triple:
    given_x, given_y = np.zeros_like(DX) if DDX is None else DDX, np.zeros_like(Y) if DDY is None else DDY
    (dx, y), (ddx, ddy) = align(DX, Y, axis), align(given_x, given_y, axis)
    of_y = dx * (Out * ddy - ddx) / y
    return sum_to(of_y, Y.shape, axis), -dx * ddy, (ddx - Out * ddy) / y


@plain_kernel("reshape2_grad_grad", "DDOut")
def _reshape(DOut: Array, DDX: Array) -> Array:
    return DDX.reshape(DOut.shape)


@kernel("mul_grad_grad", "DX DY DDOut")
def _product(op: Op) -> Run:
    x_split, y_split = int_attr(op, "x_num_col_dims", 1), int_attr(op, "y_num_col_dims", 1)
    wants_x, wants_y = has_output(op, "DX"), has_output(op, "DY")

    def matrix(value: Array, split: int) -> Array:
        return value.reshape(int(np.prod(value.shape[:split])), -1)

    def run(X: Array, Y: Array, DOut: Array, DDX: Array | None, DDY: Array | None) -> Triple:
        x, y = matrix(X, x_split), matrix(Y, y_split)
        gradient = DOut.reshape(x.shape[0], y.shape[1])
        given_x = np.zeros_like(x) if DDX is None else matrix(DDX, x_split)
        given_y = np.zeros_like(y) if DDY is None else matrix(DDY, y_split)
        of_x = dot(gradient, given_y, transpose_b=True).reshape(X.shape) if wants_x else None
        of_y = dot(given_x, gradient, transpose_a=True).reshape(Y.shape) if wants_y else None
        return of_x, of_y, (dot(given_x, y) + dot(x, given_y)).reshape(DOut.shape)

    return run


@kernel("conv2d_grad_grad conv3d_grad_grad", "DInput DFilter DDOutput", lod="none")
def _conv(op: Op) -> Run:
    output, of_input, of_filter = conv_values(op), conv_gradients(op, True, False), conv_gradients(op, False, True)
    wants_input, wants_filter = has_output(op, "DInput"), has_output(op, "DFilter")

    def run(Input: Array, Filter: Array, DOutput: Array, DDInput: Array | None, DDFilter: Array | None) -> Triple:
        x = np.zeros_like(Input) if DDInput is None else DDInput
        filters = np.zeros_like(Filter) if DDFilter is None else DDFilter
        return (
            of_input(Input, filters, DOutput)[0] if wants_input else None,
            of_filter(x, Filter, DOutput)[1] if wants_filter else None,
            output(x, Filter) + output(Input, filters),
        )

    return run


@plain_kernel("instance_norm_grad_grad", "DX DScale DDY", lod="none")
def _instance_norm_grad_grad(
    X: Array,
    Scale: Array,
    SavedMean: Array,
    SavedVariance: Array,
    DY: Array,
    DDX: Array | None,
    DDScale: Array | None,
    DDBias: Array | None,
) -> Triple:
    """Kernel of instance_norm_grad_grad. With n = (X - mean) * inverse, the gradient op computes DX = Scale * inverse *
    (DY - mean DY - n * mean(DY * n)), and the sums of DY * n and of DY. DX is linear in DY and symmetric, so the
    gradient of DY for DDX is the same formula with DDX in place of DY.
    """
    inverse = SavedVariance.reshape(*X.shape[:2], 1)
    x, dy = (value.reshape(*X.shape[:2], -1) for value in (X, DY))
    normal = (x - SavedMean.reshape(inverse.shape)) * inverse
    scale = Scale.reshape(-1, 1)

    def mean(value: Array) -> Array:
        return np.mean(value, axis=2, keepdims=True)

    def normalised_gradient(value: Array) -> Array:
        return inverse * (value - mean(value) - normal * mean(value * normal))

    dx, ddy, dscale = np.zeros_like(x), np.zeros_like(x), np.zeros_like(Scale)
    if DDX is not None:
        ddx = DDX.reshape(x.shape)
        by_dy, by_ddx = mean(dy * normal), mean(ddx * normal)
        dx += normal * (mean(ddx) * mean(dy) - mean(dy * ddx) + 3 * by_dy * by_ddx)
        dx += by_ddx * (mean(dy) - dy) + by_dy * (mean(ddx) - ddx)
        dx *= np.square(inverse) * scale
        ddy += scale * normalised_gradient(ddx)
        dscale = np.add.reduce(normalised_gradient(dy) * ddx, axis=(0, 2))
    if DDScale is not None:
        dx += normalised_gradient(dy) * DDScale.reshape(-1, 1)
        ddy += normal * DDScale.reshape(-1, 1)
    if DDBias is not None:
        ddy += DDBias.reshape(-1, 1)
    return dx.reshape(X.shape), dscale, ddy.reshape(X.shape)
