"""Tensors laid out by position: diagonals, triangles, grids, evenly spaced numbers; and what a tensor's dims say."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import first, flag, formula, numpy_dtype
from pstranspile.ops.schema import BOOL, LONG, UNSCOPED, declare, declare_gradient, long
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    dtype_attr,
    int_attr,
    one,
    outputs_like,
    several,
    shape_rule,
)
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare("meshgrid", "X* -> Out*", doc="Out = the coordinates X, spread over the grid of all")
declare_gradient("meshgrid", "X* Out@GRAD* -> X@GRAD*", UNSCOPED)
declare("tril_triu", "X -> Out", {"diagonal": 0, "lower": BOOL}, doc="Out = the lower or the upper triangle of X")
declare_gradient("tril_triu", "Out@GRAD -> X@GRAD")
declare("diag", "Diagonal -> Out", doc="Out = a matrix with Diagonal on its diagonal")
declare(
    "diag_embed",
    "Input -> Out",
    {"offset": 0, "dim1": -2, "dim2": -1},
    doc="Out = matrices with the rows of Input on their diagonals",
)
declare(
    "eye",
    "-> Out",
    {"dtype": 5, "num_rows": LONG, "num_columns": long(-1)},
    doc="Out = a matrix with ones on its diagonal",
)
declare("fill_zeros_like2", "X -> Out", {"dtype": 5}, doc="as fill_zeros_like, of any element type")
declare("linspace", "Start Stop Num -> Out", doc="Out = Num numbers from Start to Stop, evenly spaced")
declare("size", "Input -> Out", doc="Out = the number of elements of Input")
declare("is_empty", "X -> Out", doc="Out = whether X has no elements")


@shape_rule("meshgrid")
def _meshgrid(_op: Op, types: Types) -> Types:
    parts = several(types, "X")
    for part in parts:
        if len(part.shape) != 1:
            raise ShapeError(f"X has {describe(part)}, coordinates have one dim", "X")
    dims = tuple(part.shape[0] for part in parts)
    return {"Out": tuple(TensorType(part.dtype, dims) for part in parts)}


@shape_rule("tril_triu")
def _tril_triu(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) < 2:
        raise ShapeError(f"X is {describe(x)}, it must have at least two dims", "X")
    return {"Out": (x,)}


shape_rule("tril_triu_grad")(outputs_like(**{"X@GRAD": "Out@GRAD"}))


@shape_rule("diag")
def _diag(_op: Op, types: Types) -> Types:
    x = one(types, "Diagonal")
    if len(x.shape) != 1:
        raise ShapeError(f"Diagonal is {describe(x)}, it must have one dim", "Diagonal")
    return {"Out": (TensorType(x.dtype, x.shape * 2),)}


def _diagonal_dims(op: Op, rank: int) -> tuple[int, int] | None:
    """The dims of the matrices that diag_embed makes, counted from 0; None where there are no such two."""
    dims = int_attr(op, "dim1", -2), int_attr(op, "dim2", -1)
    if not all(-rank <= dim < rank for dim in dims) or dims[0] % rank == dims[1] % rank:
        return None
    return dims[0] % rank, dims[1] % rank


def _no_dims(op: Op, rank: int) -> str:
    return f"dim1 {int_attr(op, 'dim1', -2)} and dim2 {int_attr(op, 'dim2', -1)} are not two of {rank} dims"


@shape_rule("diag_embed")
def _diag_embed(op: Op, types: Types) -> Types:
    x = one(types, "Input")
    at = _diagonal_dims(op, len(x.shape) + 1)
    if at is None:
        raise ShapeError(f"Input is {describe(x)}: {_no_dims(op, len(x.shape) + 1)}", "Input")
    size = x.shape[-1] + abs(int_attr(op, "offset")) if x.shape[-1] >= 0 else -1
    dims = list(x.shape[:-1])
    for dim in sorted(at):
        dims.insert(dim, size)
    return {"Out": (TensorType(x.dtype, tuple(dims)),)}


@shape_rule("eye")
def _eye(op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(dtype_attr(op), _eye_dims(op)),)}


@shape_rule("fill_zeros_like2")
def _fill_zeros_like2(op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X")._replace(dtype=dtype_attr(op)),)}


@shape_rule("linspace")
def _linspace(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(one(types, "Start").dtype, (-1,)),)}


@shape_rule("size")
def _size(_op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(DType.INT64, (1,)),)}


@shape_rule("is_empty")
def _is_empty(_op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(DType.BOOL, (1,)),)}


# Kernels


@kernel("meshgrid", lod="none")
def _meshgrid_values(_op: Op) -> Run:
    def run(X: list[Array]) -> list[Array]:
        if any(part.ndim != 1 for part in X):
            raise ValueError("coordinates have one dim")
        return list(np.meshgrid(*X, indexing="ij"))

    return run


@kernel("meshgrid_grad", "X@GRAD", lod="none")
def _meshgrid_grad(_op: Op) -> Run:
    def run(Out_GRAD: list[Array]) -> list[Array]:
        axes = range(len(Out_GRAD))
        return [
            np.add.reduce(gradient, axis=tuple(axis for axis in axes if axis != number))
            for number, gradient in enumerate(Out_GRAD)
        ]

    return run


@kernel("tril_triu")
def _tril_triu_values(op: Op) -> Run:
    return _triangle(op)


@kernel("tril_triu_grad", "X@GRAD", lod="none")
def _tril_triu_grad(op: Op) -> Run:
    triangle = _triangle(op)

    def run(Out_GRAD: Array) -> Array:
        return triangle(Out_GRAD)

    return run


def _triangle(op: Op) -> Run:
    diagonal, lower = int_attr(op, "diagonal"), flag(op, "lower")

    def run(X: Array) -> Array:
        return np.tril(X, diagonal) if lower else np.triu(X, diagonal)

    return run


@kernel("diag", lod="none")
def _diag_values(_op: Op) -> Run:
    def run(Diagonal: Array) -> Array:
        if Diagonal.ndim != 1:
            raise ValueError(f"Diagonal has dims {list(Diagonal.shape)}, it must have one")
        return np.diag(Diagonal)

    return run


@kernel("diag_embed", lod="none")
def _diag_embed_values(op: Op) -> Run:
    offset = int_attr(op, "offset")

    def run(Input: Array) -> Array:
        at = _diagonal_dims(op, Input.ndim + 1)
        if at is None:
            raise ValueError(_no_dims(op, Input.ndim + 1))
        count = Input.shape[-1]
        size = count + abs(offset)
        found = np.zeros((*Input.shape[:-1], size, size), Input.dtype)
        places = np.arange(count)
        found[..., places + max(-offset, 0), places + max(offset, 0)] = Input
        return np.ascontiguousarray(np.moveaxis(found, (-2, -1), at))

    return run


def _eye_dims(op: Op) -> tuple[int, int]:
    rows, columns = int_attr(op, "num_rows"), int_attr(op, "num_columns", -1)
    return rows, rows if columns == -1 else columns


@kernel("eye")
def _eye_values(op: Op) -> Run:
    dims, made = _eye_dims(op), numpy_dtype(int_attr(op, "dtype", 5))
    if min(dims) < 0:
        raise ValueError(f"a matrix can't have the dims {list(dims)}")

    def run() -> Array:
        return np.eye(*dims, dtype=made)

    return run


formula("fill_zeros_like2", lambda op: f"np.zeros({{X}}.shape, {numpy_dtype(int_attr(op, 'dtype', 5))!r})")


@kernel("linspace", lod="none")
def _linspace_values(_op: Op) -> Run:
    def run(Start: Array, Stop: Array, Num: Array) -> Array:
        count = first(Num)
        if count < 1:
            raise ValueError(f"Num is {count}, it must be positive")
        start, stop = Start.reshape(-1)[0], Stop.reshape(-1)[0]
        found = np.full(count, (stop - start) / Start.dtype.type(max(count - 1, 1)))
        found[0] = start
        return np.add.accumulate(found)  # as Fluid adds them up, also in f32

    return run


@kernel("size", lod="none")
def _size_values(_op: Op) -> Run:
    def run(Input: Array) -> Array:
        return np.array([Input.size], "int64")

    return run


@kernel("is_empty", lod="none")
def _is_empty_values(_op: Op) -> Run:
    def run(X: Array) -> Array:
        return np.array([X.size == 0])

    return run
