"""Tensors laid out by position: diagonals, triangles, grids, evenly spaced numbers."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.schema import BOOL, LONG, UNSCOPED, declare, declare_gradient, long
from pstranspile.ops.shapes import ShapeError, Types, describe, dtype_attr, one, outputs_like, several, shape_rule

declare("range", "Start End Step -> Out", doc="Out = Start, Start + Step, ... up to and without End")


@shape_rule("range")
def _range(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(one(types, "Start").dtype, (-1,)),)}


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

declare("linspace", "Start Stop Num -> Out", doc="Out = Num numbers from Start to Stop, evenly spaced")


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


def diagonal_dims(op: Op, rank: int) -> tuple[int, int] | None:
    """The dims of the matrices of diag_embed, as non-negative numbers; None if they are not two dims."""
    dims = int_attr(op, "dim1", -2), int_attr(op, "dim2", -1)
    if not all(-rank <= dim < rank for dim in dims) or dims[0] % rank == dims[1] % rank:
        return None
    return dims[0] % rank, dims[1] % rank


def no_diagonal_dims(op: Op, rank: int) -> str:
    """The error message for an op for which `diagonal_dims` gives None."""
    return f"dim1 {int_attr(op, 'dim1', -2)} and dim2 {int_attr(op, 'dim2', -1)} are not two of {rank} dims"


@shape_rule("diag_embed")
def _diag_embed(op: Op, types: Types) -> Types:
    x = one(types, "Input")
    at = diagonal_dims(op, len(x.shape) + 1)
    if at is None:
        raise ShapeError(f"Input is {describe(x)}: {no_diagonal_dims(op, len(x.shape) + 1)}", "Input")
    size = x.shape[-1] + abs(int_attr(op, "offset")) if x.shape[-1] >= 0 else -1
    dims = list(x.shape[:-1])
    for dim in sorted(at):
        dims.insert(dim, size)
    return {"Out": (TensorType(x.dtype, tuple(dims)),)}


@shape_rule("eye")
def _eye(op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(dtype_attr(op), eye_dims(op)),)}


@shape_rule("linspace")
def _linspace(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(one(types, "Start").dtype, (-1,)),)}


def eye_dims(op: Op) -> tuple[int, int]:
    """The rows and columns of an identity matrix."""
    rows, columns = int_attr(op, "num_rows"), int_attr(op, "num_columns", -1)
    return rows, rows if columns == -1 else columns
