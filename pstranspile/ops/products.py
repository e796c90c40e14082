"""Products of matrices, and of stacks of them."""

from __future__ import annotations

from pstranspile.arithmetic import dot, matmul
from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.broadcasting import sum_to
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import as_matrix, flag, real
from pstranspile.ops.schema import declare, declare_gradient, floats, ints
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    Unknown,
    describe,
    disagree,
    fits,
    int_attr,
    one,
    shape_rule,
    size,
)
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare(
    "mul",
    "X Y -> Out",
    {
        "use_mkldnn": False,
        "x_num_col_dims": 1,
        "y_num_col_dims": 1,
        "scale_x": 1.0,
        "scale_y": floats(1.0),
        "scale_out": 1.0,
        "force_fp32_output": False,
    },
    doc="Out = X @ Y, X made a matrix at x_num_col_dims and Y at y_num_col_dims",
)
declare_gradient("mul", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "matmul",
    "X Y -> Out",
    {
        "transpose_X": False,
        "transpose_Y": False,
        "alpha": 1.0,
        "use_mkldnn": False,
        "fused_reshape_Out": ints(),
        "fused_transpose_Out": ints(),
        "use_quantizer": False,
        "Scale_x": 1.0,
        "Scale_y": 1.0,
        "Scale_out": 1.0,
        "force_fp32_output": False,
        "head_number": 1,
    },
    doc="Out = alpha * X @ Y over the last two dims, each transposed first if asked, leading dims broadcast",
)
declare_gradient("matmul", "X Y Out@GRAD -> X@GRAD Y@GRAD")


@shape_rule("mul")
def _mul(op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    x_split, y_split = int_attr(op, "x_num_col_dims"), int_attr(op, "y_num_col_dims")
    columns, rows = size(x.shape[x_split:]), size(y.shape[:y_split])
    if columns != rows and columns >= 0 and rows >= 0:
        raise ShapeError(f"X is {describe(x)} with {columns} columns, Y is {describe(y)} with {rows} rows", "Y")
    return {"Out": (TensorType(x.dtype, x.shape[:x_split] + y.shape[y_split:], x.lod_level),)}


def _matrix(dims: tuple[int, ...], of_vector: tuple[int, ...], transposed: bool) -> tuple[int, ...]:
    """The dims of an operand of matmul: a vector is a row on the left and a column on the right, until turned."""
    matrix = dims if len(dims) > 1 else of_vector
    return (*matrix[:-2], matrix[-1], matrix[-2]) if transposed else matrix


@shape_rule("matmul")
def _matmul(op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    a = _matrix(x.shape, (1, *x.shape), bool(op.attrs.get("transpose_X")))
    b = _matrix(y.shape, (*y.shape, 1), bool(op.attrs.get("transpose_Y")))
    height, width = a[-2], b[-1]
    if a[-1] != b[-2] and a[-1] >= 0 and b[-2] >= 0:
        raise ShapeError(f"X is {describe(x)} with {a[-1]} columns, Y is {describe(y)} with {b[-2]} rows", "Y")
    if a[:-2] and b[:-2] and not fits(a[:-2], b[:-2]):
        disagree("Y", y, "X", x)
    if (len(x.shape) == 1 and height < 0) or (len(y.shape) == 1 and width < 0):
        raise Unknown  # a vector turned into one row or column loses that dim, into several not
    dims = max(a[:-2], b[:-2], key=len)
    if len(x.shape) > 1 or height > 1:
        dims = (*dims, height)
    if len(y.shape) > 1 or width > 1:
        dims = (*dims, width)
    return {"Out": (TensorType(x.dtype, dims or (1,), x.lod_level),)}


# Kernels


def _as_matrix(x: Array, split: int) -> Array:
    return x if x.ndim == 2 and split == 1 else as_matrix(x, split)


@kernel("mul")
def _mul_values(op: Op) -> Run:
    x_split, y_split = int_attr(op, "x_num_col_dims", 1), int_attr(op, "y_num_col_dims", 1)

    def run(X: Array, Y: Array) -> Array:
        if X.ndim == 2 == Y.ndim and x_split == 1 == y_split:  # as it mostly is
            return dot(X, Y)
        product = dot(_as_matrix(X, x_split), _as_matrix(Y, y_split))
        return product.reshape(X.shape[:x_split] + Y.shape[y_split:])

    return run


@kernel("mul_grad", "X@GRAD Y@GRAD", lod="each")
def _mul_grad(op: Op) -> Run:
    x_split, y_split = int_attr(op, "x_num_col_dims", 1), int_attr(op, "y_num_col_dims", 1)
    wants_x, wants_y = wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")

    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        if X.ndim == 2 == Y.ndim == Out_GRAD.ndim and x_split == 1 == y_split:
            x_grad = dot(Out_GRAD, Y, False, True) if wants_x else None
            return x_grad, dot(X, Out_GRAD, True) if wants_y else None
        x, y = _as_matrix(X, x_split), _as_matrix(Y, y_split)
        gradient = Out_GRAD.reshape(x.shape[0], y.shape[1])
        x_grad = dot(gradient, y, transpose_b=True).reshape(X.shape) if wants_x else None
        return x_grad, dot(x, gradient, transpose_a=True).reshape(Y.shape) if wants_y else None

    return run


def _stored(x: Array, y: Array) -> tuple[Array, Array]:
    """The matrices that matmul multiplies, before it transposes them: a vector is a row on the left, else a column."""
    return x if x.ndim > 1 else x.reshape(1, -1), y if y.ndim > 1 else y.reshape(-1, 1)


def _stacked(a: Array, b: Array, transpose_a: bool) -> bool:
    """Whether a stack of matrices times one matrix is a single product, of all their rows."""
    return a.ndim > 2 and b.ndim == 2 and not transpose_a


def _refuse_fused(op: Op) -> None:
    if int_attr(op, "head_number", 1) != 1 or op.attrs.get("fused_reshape_Out") or op.attrs.get("fused_transpose_Out"):
        raise ValueError("head_number and fused_... are for MKL kernels, which are not supported")


@kernel("matmul")
def _matmul_values(op: Op) -> Run:
    _refuse_fused(op)
    alpha, transpose_x, transpose_y = real(op, "alpha"), flag(op, "transpose_X"), flag(op, "transpose_Y")

    def run(X: Array, Y: Array) -> Array:
        a, b = _stored(X, Y)
        if _stacked(a, b, transpose_x):
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
    alpha, wants_x, wants_y = real(op, "alpha"), wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")
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
        a, b = _stored(X, Y)
        rows, columns = a.shape[-1 if transpose_x else -2], b.shape[-2 if transpose_y else -1]
        if _stacked(a, b, transpose_x):
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
