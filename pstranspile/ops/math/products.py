"""Products of matrices and vectors, and of stacks of them."""

from __future__ import annotations

from math import prod

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.ops.schema import UNSCOPED, bounded, declare, declare_gradient, floats, ints
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    one,
    one_or_none,
    require_alike,
    require_one_dtype,
    shape_rule,
    size,
)
from pstranspile.ops.work import elements, work_rule

declare(
    "mul",
    "X Y -> Out",
    {
        "use_mkldnn": False,
        "x_num_col_dims": bounded(1, 1),
        "y_num_col_dims": bounded(1, 1),
        "scale_x": 1.0,
        "scale_y": floats(1.0),
        "scale_out": 1.0,
        "force_fp32_output": False,
    },
    typed_by="X",
    doc="Out = X @ Y, X made a matrix at x_num_col_dims and Y at y_num_col_dims",
    memory="new",
)
declare_gradient("mul", "X Y Out@GRAD -> X@GRAD Y@GRAD", result_lod="none")
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
    numbers="combined",
    doc="Out = alpha * X @ Y over the last two dims, each transposed first if asked, leading dims broadcast",
    memory="new",
)
declare_gradient("matmul", "X Y Out@GRAD -> X@GRAD Y@GRAD", result_lod="none")


@shape_rule("mul")
def _mul(op: Op, types: Types) -> Types:
    require_one_dtype(types, "X", "Y")
    x, y = one(types, "X"), one(types, "Y")
    x_split, y_split = int_attr(op, "x_num_col_dims"), int_attr(op, "y_num_col_dims")
    columns, rows = size(x.shape[x_split:]), size(y.shape[:y_split])
    if columns != rows and columns >= 0 and rows >= 0:
        raise ShapeError(f"X is {describe(x)} with {columns} columns, Y is {describe(y)} with {rows} rows", "Y")
    return {"Out": (TensorType(x.dtype, x.shape[:x_split] + y.shape[y_split:], x.lod_level),)}


def _matrix(dims: tuple[int, ...], of_vector: tuple[int, ...], transposed: bool) -> tuple[int, ...]:
    """The dims of an operand of matmul before transposition: a vector is a row on the left, a column on the right."""
    matrix = dims if len(dims) > 1 else of_vector
    return (*matrix[:-2], matrix[-1], matrix[-2]) if transposed else matrix


@shape_rule("matmul")
def _matmul(op: Op, types: Types) -> Types:
    require_one_dtype(types, "X", "Y")
    x, y = one(types, "X"), one(types, "Y")
    a = _matrix(x.shape, (1, *x.shape), bool(op.attrs.get("transpose_X")))
    b = _matrix(y.shape, (*y.shape, 1), bool(op.attrs.get("transpose_Y")))
    height, width = a[-2], b[-1]
    if a[-1] != b[-2] and a[-1] >= 0 and b[-2] >= 0:
        raise ShapeError(f"X is {describe(x)} with {a[-1]} columns, Y is {describe(y)} with {b[-2]} rows", "Y")
    if a[:-2] and b[:-2] and not fits(a[:-2], b[:-2]):
        disagree("Y", y, "X", x)
    dims = max(a[:-2], b[:-2], key=len)
    # the dim added to a vector is removed again if its size is 1
    if len(x.shape) > 1 or height != 1:
        dims = (*dims, height)
    if len(y.shape) > 1 or width != 1:
        dims = (*dims, width)
    return {"Out": (TensorType(x.dtype, dims or (1,), x.lod_level),)}


declare(
    "addmm",
    "Input X Y -> Out",
    {"use_mkldnn": False, "Alpha": 1.0, "Beta": 1.0},
    doc="Out = Beta * Input + Alpha * X @ Y",
)
declare_gradient("addmm", "Input X Y Out@GRAD -> Input@GRAD X@GRAD Y@GRAD")
declare("bmm", "X Y -> Out", doc="Out = X @ Y for each of a batch")
declare_gradient("bmm", "X Y Out@GRAD -> X@GRAD Y@GRAD", UNSCOPED)
declare("dot", "X Y -> Out", doc="Out = the inner product of each row of X with that row of Y")
declare_gradient("dot", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("kron", "X Y -> Out", doc="Out = the Kronecker product of X and Y")
declare_gradient("kron", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("cross", "X Y -> Out", {"dim": 9}, doc="Out = the cross product of X and Y along `dim`")
declare_gradient("cross", "X Y Out@GRAD -> X@GRAD Y@GRAD")

declare(
    "bilinear_tensor_product",
    "X Y Weight Bias? -> Out",
    doc="Out = X * Weight * Y for each of Weight's slices, plus Bias",
)
declare_gradient(
    "bilinear_tensor_product", "X Y Weight Out@GRAD -> X@GRAD Y@GRAD Weight@GRAD Bias@GRAD?", result_lod="none"
)
declare("trace", "Input -> Out", {"offset": 0, "dim1": -2, "dim2": -1}, doc="Out = the sum along the diagonal of X")
declare_gradient("trace", "Input Out@GRAD -> Input@GRAD")


@shape_rule("addmm")
def _addmm(_op: Op, types: Types) -> Types:
    require_one_dtype(types, "X", "Y", "Input")
    x, y, added = one(types, "X"), one(types, "Y"), one_or_none(types, "Input")
    if len(x.shape) != 2 or len(y.shape) != 2 or not fits(x.shape[1:], y.shape[:1]):
        disagree("Y", y, "X", x)
    dims = (x.shape[0], y.shape[1])
    if added is not None and not _spreads(added.shape, dims):
        raise ShapeError(f"Input is {describe(added)}, X @ Y has the dims {list(dims)}", "Input")
    return {"Out": (TensorType(x.dtype, dims, added.lod_level if added is not None else 0),)}


def _spreads(dims: tuple[int, ...], over: tuple[int, ...]) -> bool:
    """Whether a tensor of dims `dims` broadcasts to dims `over`."""
    return len(dims) == len(over) and all(a in (1, -1, b) or b == -1 for a, b in zip(dims, over, strict=True))


@shape_rule("bmm")
def _bmm(_op: Op, types: Types) -> Types:
    require_one_dtype(types, "X", "Y")
    x, y = one(types, "X"), one(types, "Y")
    if len(x.shape) != 3 or len(y.shape) != 3 or not fits((x.shape[0], x.shape[2]), y.shape[:2]):
        disagree("Y", y, "X", x)
    return {"Out": (TensorType(x.dtype, (*x.shape[:2], y.shape[2]), x.lod_level),)}


@shape_rule("dot")
def _dot(_op: Op, types: Types) -> Types:
    require_alike(types, "Y", "X")
    x = one(types, "X")
    if len(x.shape) > 2:
        raise ShapeError(f"X is {describe(x)}, it must have 1 or 2 dims", "X")
    return {"Out": (TensorType(x.dtype, (*x.shape[:-1], 1)),)}


@shape_rule("kron")
def _kron(_op: Op, types: Types) -> Types:
    require_one_dtype(types, "X", "Y")
    x, y = one(types, "X"), one(types, "Y")
    rank = max(len(x.shape), len(y.shape))
    pairs = zip(with_leading_ones(x.shape, rank), with_leading_ones(y.shape, rank), strict=True)
    return {"Out": (TensorType(x.dtype, tuple(-1 if a < 0 or b < 0 else a * b for a, b in pairs)),)}


@shape_rule("cross")
def _cross(op: Op, types: Types) -> Types:
    require_alike(types, "Y", "X")
    x = one(types, "X")
    if -1 not in x.shape:
        cross_dim(op, x.shape)
    return {"Out": (x,)}


@shape_rule("bilinear_tensor_product")
def _bilinear(_op: Op, types: Types) -> Types:
    require_one_dtype(types, "X", "Y", "Weight")
    x, y, weight = one(types, "X"), one(types, "Y"), one(types, "Weight")
    if not fits(weight.shape[1:], (x.shape[1], y.shape[1])):
        disagree("Weight", weight, "X", x)
    if not fits(x.shape[:1], y.shape[:1]):
        disagree("Y", y, "X", x)
    return {"Out": (TensorType(x.dtype, (x.shape[0], weight.shape[0]), x.lod_level),)}


@shape_rule("trace")
def _trace(op: Op, types: Types) -> Types:
    x = one(types, "Input")
    rank = len(x.shape)
    pair = [int_attr(op, "dim1", -2), int_attr(op, "dim2", -1)]
    if any(not -rank <= dim < rank for dim in pair) or pair[0] % rank == pair[1] % rank:
        raise ShapeError(f"dims {pair[0]} and {pair[1]} are not two dims of Input, which is {describe(x)}", "Input")
    gone = {dim % rank for dim in pair}
    return {"Out": (TensorType(x.dtype, tuple(dim for at, dim in enumerate(x.shape) if at not in gone) or (1,)),)}


@shape_rule("fsp")
def _fsp(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    if len(x.shape) != 4 or not fits((x.shape[0], *x.shape[2:]), (y.shape[0], *y.shape[2:])):
        disagree("Y", y, "X", x)
    return {"Out": (TensorType(x.dtype, (x.shape[0], x.shape[1], y.shape[1]), x.lod_level),)}


def with_leading_ones(dims: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The dims with dims of size 1 before them, `rank` in all."""
    return (1,) * (rank - len(dims)) + dims


_ANY_DIM = 9
"""The value of `dim` for the first dim of size 3."""


def cross_dim(op: Op, dims: tuple[int, ...]) -> int:
    """The dim of size 3 that holds the vectors. Raises ShapeError if there is none."""
    dim = int_attr(op, "dim", _ANY_DIM)
    if dim == _ANY_DIM and 3 in dims:
        return dims.index(3)
    if not -len(dims) <= dim < len(dims) or dims[dim] != 3:
        raise ShapeError(f"X has the dims {list(dims)}, of which {dim} is not one of size 3", "X")
    return dim


declare("fsp", "X Y -> Out", doc="Out = the products of all channels of X with all of Y")
declare_gradient("fsp", "X Y Out@GRAD -> X@GRAD Y@GRAD")


# The work of products: an addition and a multiplication for each pair of factors.


@work_rule("mul", family="products")
def _mul_work(op: Op, types: Types) -> float:
    columns = int_attr(op, "y_num_col_dims", 1)
    return 2.0 * elements(types, "X") * prod(one(types, "Y").shape[columns:])


@work_rule("matmul", family="products")
def _matmul_work(op: Op, types: Types) -> float:
    *rest, inner = one(types, "X").shape
    inner = rest[-1] if flag(op, "transpose_X") and rest else inner
    return 2.0 * elements(types, "Out") * inner


@work_rule("bmm", "addmm", family="products")
def _batched_work(_op: Op, types: Types) -> float:
    return 2.0 * elements(types, "X") * one(types, "Y").shape[-1]


@work_rule("bilinear_tensor_product", factors="X Y Weight", family="products")
def _bilinear_work(_op: Op, types: Types) -> float:
    slices, _, columns = one(types, "Weight").shape
    return 2.0 * slices * elements(types, "X") * columns + 2.0 * slices * one(types, "X").shape[0] * columns


@work_rule("fsp", family="products")
def _fsp_work(_op: Op, types: Types) -> float:
    return 2.0 * elements(types, "X") * one(types, "Y").shape[1]


@work_rule("dot")
def _dot_work(_op: Op, types: Types) -> float:
    return 2.0 * elements(types, "X")
