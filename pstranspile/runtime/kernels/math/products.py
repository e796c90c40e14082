"""Kernels. Products of matrices and vectors, and of stacks of them."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.ops.math.products import cross_dim, with_leading_ones
from pstranspile.ops.shapes import ShapeError
from pstranspile.runtime.arithmetic import dot, matmul
from pstranspile.runtime.kernels.kernel import Run, has_output, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import as_matrix, formula, sum_to
from pstranspile.runtime.values import Array


def _as_matrix(x: Array, split: int) -> Array:
    return x if x.ndim == 2 and split == 1 else as_matrix(x, split)


@plain_kernel("mul", new=True)
def _mul_values(X: Array, Y: Array, *, x_num_col_dims: int = 1, y_num_col_dims: int = 1) -> Array:
    if X.ndim == 2 == Y.ndim and x_num_col_dims == 1 == y_num_col_dims:  # the usual case
        return dot(X, Y)
    product = dot(_as_matrix(X, x_num_col_dims), _as_matrix(Y, y_num_col_dims))
    return product.reshape(X.shape[:x_num_col_dims] + Y.shape[y_num_col_dims:])


@kernel("mul_grad", "X@GRAD Y@GRAD", lod="each")
def _mul_grad(op: Op) -> Run:
    x_split, y_split = int_attr(op, "x_num_col_dims", 1), int_attr(op, "y_num_col_dims", 1)
    wants_x, wants_y = has_output(op, "X@GRAD"), has_output(op, "Y@GRAD")

    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        if X.ndim == 2 == Y.ndim == Out_GRAD.ndim and x_split == 1 == y_split:
            x_grad = dot(Out_GRAD, Y, False, True) if wants_x else None
            return x_grad, dot(X, Out_GRAD, True) if wants_y else None
        x, y = _as_matrix(X, x_split), _as_matrix(Y, y_split)
        gradient = Out_GRAD.reshape(x.shape[0], y.shape[1])
        x_grad = dot(gradient, y, transpose_b=True).reshape(X.shape) if wants_x else None
        return x_grad, dot(x, gradient, transpose_a=True).reshape(Y.shape) if wants_y else None

    return run


def _as_matrices(x: Array, y: Array) -> tuple[Array, Array]:
    """The operands of matmul as matrices, before transposition: a vector is a row on the left and a column on the
    right.
    """
    return x if x.ndim > 1 else x.reshape(1, -1), y if y.ndim > 1 else y.reshape(-1, 1)


def _can_flatten_stack(a: Array, b: Array, transpose_a: bool) -> bool:
    """Whether a stack of matrices times one matrix can be computed as one product of all rows."""
    return a.ndim > 2 and b.ndim == 2 and not transpose_a


def _refuse_fused(op: Op) -> None:
    if int_attr(op, "head_number", 1) != 1 or op.attrs.get("fused_reshape_Out") or op.attrs.get("fused_transpose_Out"):
        raise ValueError("head_number and fused_... are for MKL kernels, which are not supported")


@kernel("matmul", new=True)
def _matmul_values(op: Op) -> Run:
    _refuse_fused(op)
    alpha, transpose_x, transpose_y = real(op, "alpha"), flag(op, "transpose_X"), flag(op, "transpose_Y")

    def run(X: Array, Y: Array) -> Array:
        a, b = _as_matrices(X, Y)
        if _can_flatten_stack(a, b, transpose_x):
            product = dot(a.reshape(-1, a.shape[-1]), b, False, transpose_y, alpha)
            product = product.reshape(*a.shape[:-1], product.shape[-1])
        else:
            product = matmul(a, b, transpose_x, transpose_y, alpha)
        if X.ndim > 1 and Y.ndim > 1:
            return product
        dims = product.shape[:-2]
        if X.ndim > 1 or product.shape[-2] > 1:
            dims = (*dims, product.shape[-2])
        if Y.ndim > 1 or product.shape[-1] > 1:
            dims = (*dims, product.shape[-1])
        return product.reshape(dims or (1,))

    return run


@kernel("matmul_grad", "X@GRAD Y@GRAD", lod="none")
def _matmul_grad(op: Op) -> Run:
    _refuse_fused(op)
    alpha, wants_x, wants_y = real(op, "alpha"), has_output(op, "X@GRAD"), has_output(op, "Y@GRAD")
    transpose_x, transpose_y = flag(op, "transpose_X"), flag(op, "transpose_Y")

    def of_x(y: Array, gradient: Array) -> Array:
        if transpose_x:
            return matmul(y, gradient, transpose_y, True, alpha)
        return matmul(gradient, y, False, not transpose_y, alpha)

    def of_y(x: Array, gradient: Array) -> Array:
        if transpose_y:
            return matmul(gradient, x, True, transpose_x, alpha)
        return matmul(x, gradient, not transpose_x, False, alpha)

    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        a, b = _as_matrices(X, Y)
        rows, columns = a.shape[-1 if transpose_x else -2], b.shape[-2 if transpose_y else -1]
        if _can_flatten_stack(a, b, transpose_x):
            a = a.reshape(-1, a.shape[-1])
            rows = len(a)
        batch = a.shape[:-2]
        if batch != b.shape[:-2]:
            batch = np.broadcast_shapes(batch, b.shape[:-2])
        gradient = Out_GRAD.reshape((*batch, rows, columns))
        x_grad = sum_to(of_x(b, gradient), a.shape, -1).reshape(X.shape) if wants_x else None
        y_grad = sum_to(of_y(a, gradient), b.shape, -1).reshape(Y.shape) if wants_y else None
        return x_grad, y_grad

    return run


@plain_kernel("addmm")
def _addmm_values(Input: Array, X: Array, Y: Array, *, Alpha: float, Beta: float) -> Array:
    return Beta * Input + Alpha * dot(X, Y)


@kernel("addmm_grad", "Input@GRAD X@GRAD Y@GRAD", lod="each")
def _addmm_grad(op: Op) -> Run:
    alpha, beta = real(op, "Alpha"), real(op, "Beta")
    wants_x, wants_y = has_output(op, "X@GRAD"), has_output(op, "Y@GRAD")

    def run(Input: Array, X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array, Array | None, Array | None]:
        x_grad = alpha * dot(Out_GRAD, Y, transpose_b=True) if wants_x else None
        y_grad = alpha * dot(X, Out_GRAD, transpose_a=True) if wants_y else None
        return beta * sum_to(Out_GRAD, Input.shape, -1), x_grad, y_grad

    return run


@plain_kernel("bmm")
def _bmm_values(X: Array, Y: Array) -> Array:
    return matmul(X, Y)


@plain_kernel("bmm_grad", "X@GRAD Y@GRAD", lod="none")
def _bmm_grad(
    X: Array, Y: Array, Out_GRAD: Array, *, wants_X_GRAD: bool, wants_Y_GRAD: bool
) -> tuple[Array | None, Array | None]:
    x_grad = matmul(Out_GRAD, Y, transpose_b=True) if wants_X_GRAD else None
    return x_grad, matmul(X, Out_GRAD, transpose_a=True) if wants_Y_GRAD else None


formula("dot", "np.add.reduce({X} * {Y}, axis=-1, keepdims=True, dtype={X}.dtype)", lod="none")


@plain_kernel("dot_grad", "X@GRAD Y@GRAD", lod="each")
def _dot_grad(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array, Array]:
    gradient = Out_GRAD.reshape(*X.shape[:-1], 1)
    return gradient * Y, gradient * X


def _insert_unit_dims(x: Array, rank: int, at: int) -> Array:
    """x with a dim of size 1 inserted after (`at` 0) or before (`at` 1) every dim."""
    dims = [1] * (2 * rank)
    dims[at::2] = with_leading_ones(x.shape, rank)
    return x.reshape(dims)


@plain_kernel("kron", lod="none")
def _kron_values(X: Array, Y: Array) -> Array:
    rank = max(X.ndim, Y.ndim)
    dims = np.multiply(with_leading_ones(X.shape, rank), with_leading_ones(Y.shape, rank))
    return (_insert_unit_dims(X, rank, 0) * _insert_unit_dims(Y, rank, 1)).reshape(dims)


@plain_kernel("kron_grad", "X@GRAD Y@GRAD", lod="none")
def _kron_grad(
    X: Array, Y: Array, Out_GRAD: Array, *, wants_X_GRAD: bool, wants_Y_GRAD: bool
) -> tuple[Array | None, Array | None]:
    rank = max(X.ndim, Y.ndim)
    x, y = _insert_unit_dims(X, rank, 0), _insert_unit_dims(Y, rank, 1)
    gradient = Out_GRAD.reshape(np.multiply(x.shape, y.shape))
    x_grad = sum_to(gradient * y, x.shape, -1).reshape(X.shape) if wants_X_GRAD else None
    return x_grad, sum_to(gradient * x, y.shape, -1).reshape(Y.shape) if wants_Y_GRAD else None


def _cross_product(x: Array, y: Array, dim: int) -> Array:
    def rotate(value: Array, by: int) -> Array:
        return np.roll(value, -by, axis=dim)

    return rotate(x, 1) * rotate(y, 2) - rotate(x, 2) * rotate(y, 1)


def _dim_of_vectors(op: Op, x: Array) -> int:
    try:
        return cross_dim(op, x.shape)
    except ShapeError as error:
        raise ValueError(error.message) from None


@plain_kernel("cross")
def _cross_values(X: Array, Y: Array, *, op: Op) -> Array:
    return _cross_product(X, Y, _dim_of_vectors(op, X))


@plain_kernel("cross_grad", "X@GRAD Y@GRAD", lod="none")
def _cross_grad(X: Array, Y: Array, Out_GRAD: Array, *, op: Op) -> tuple[Array, Array]:
    dim = _dim_of_vectors(op, X)
    return _cross_product(Y, Out_GRAD, dim), _cross_product(Out_GRAD, X, dim)


@plain_kernel("bilinear_tensor_product")
def _bilinear_values(X: Array, Y: Array, Weight: Array, Bias: Array | None) -> Array:
    turned = np.tensordot(X, Weight, axes=(1, 1))  # [rows, slices, columns of Y]
    product = np.matmul(turned, Y[:, :, None])[:, :, 0]
    return product if Bias is None else product + Bias.reshape(-1)


@kernel("bilinear_tensor_product_grad", "X@GRAD Y@GRAD Weight@GRAD Bias@GRAD", lod="none")
def _bilinear_grad(op: Op) -> Run:
    wants_x, wants_y, wants_weight = (has_output(op, f"{slot}@GRAD") for slot in ("X", "Y", "Weight"))

    def run(
        X: Array, Y: Array, Weight: Array, Out_GRAD: Array
    ) -> tuple[Array | None, Array | None, Array | None, Array]:
        x_grad = y_grad = weight_grad = None
        if wants_x or wants_y:
            slopes = np.tensordot(Out_GRAD, Weight, axes=(1, 0))  # [rows, columns of X, columns of Y]
            x_grad = np.matmul(slopes, Y[:, :, None])[:, :, 0] if wants_x else None
            y_grad = np.matmul(X[:, None, :], slopes)[:, 0, :] if wants_y else None
        if wants_weight:
            weight_grad = np.tensordot(Out_GRAD, X[:, :, None] * Y[:, None, :], axes=(0, 0))
        return x_grad, y_grad, weight_grad, np.add.reduce(Out_GRAD, axis=0, keepdims=True)

    return run


def _plane(op: Op, rank: int) -> list[int]:
    """The dims of the diagonal in ascending order. As in Fluid, the order of `dim1` and `dim2` does not matter."""
    return sorted(int_attr(op, name) % rank for name in ("dim1", "dim2"))


@plain_kernel("trace", lod="none")
def _trace_values(Input: Array, *, op: Op, offset: int) -> Array:
    first, second = _plane(op, Input.ndim)
    # Numpy reads outside of the array where the offset is the smallest number of 32 bits, whose negative there is none.
    offset = max(-Input.shape[first], min(offset, Input.shape[second]))
    total = np.trace(Input, offset, first, second, dtype=Input.dtype)
    return np.asarray(total).reshape(-1) if np.ndim(total) == 0 else total


@plain_kernel("trace_grad", "Input@GRAD", lod="none")
def _trace_grad(Input: Array, Out_GRAD: Array, *, op: Op, offset: int) -> Array:
    first, second = _plane(op, Input.ndim)
    diagonal = np.eye(Input.shape[first], Input.shape[second], offset, dtype=Input.dtype)
    others = Out_GRAD.reshape(-1)[0] if Input.ndim == 2 else Out_GRAD[..., None, None]
    return np.ascontiguousarray(np.moveaxis(others * diagonal, (-2, -1), (first, second)))


def _maps(x: Array) -> Array:
    return x.reshape(*x.shape[:2], -1)


@plain_kernel("fsp")
def _fsp_values(X: Array, Y: Array) -> Array:
    return np.matmul(_maps(X), _maps(Y).swapaxes(1, 2)) / (X.shape[2] * X.shape[3])


@plain_kernel("fsp_grad", "X@GRAD Y@GRAD", lod="none")
def _fsp_grad(
    X: Array, Y: Array, Out_GRAD: Array, *, wants_X_GRAD: bool, wants_Y_GRAD: bool
) -> tuple[Array | None, Array | None]:
    gradient = Out_GRAD / (X.shape[2] * X.shape[3])
    x_grad = np.matmul(gradient, _maps(Y)).reshape(X.shape) if wants_X_GRAD else None
    return x_grad, np.matmul(gradient.swapaxes(1, 2), _maps(X)).reshape(Y.shape) if wants_Y_GRAD else None
