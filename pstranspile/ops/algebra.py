"""Products, sums, scalings and norms of whole tensors."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients, scaled
from pstranspile.ops.schema import UNSCOPED, declare, declare_gradient, floats, ints
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    Unknown,
    describe,
    disagree,
    fits,
    int_attr,
    one,
    outputs_like,
    several,
    shape_rule,
    size,
)

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
declare(
    "sum",
    "X* -> Out",
    {"use_mkldnn": False},
    row_wise=True,
    doc="Out = the sum of all X; dense, SelectedRows, or mixed",
)
declare(
    "scale",
    "X ScaleTensor? -> Out",
    {"scale": 1.0, "bias": 0.0, "bias_after_scale": True},
    row_wise=True,
    doc="Out = scale * X + bias, or scale * (X + bias)",
)
declare("mean", "X -> Out", doc="Out = the mean of all elements of X")
declare_gradient("mean", "X Out@GRAD -> X@GRAD", UNSCOPED)
declare("increment", "X -> Out", {"step": 1.0}, doc="Out = X + step; X has one element")
declare("squared_l2_norm", "X -> Out", doc="Out = the sum of the squares of X")
declare_gradient("squared_l2_norm", "X Out@GRAD -> X@GRAD")
declare(
    "squared_l2_distance",
    "X Y -> sub_result Out",
    doc="Out = the sum of (X - Y) squared of each row; sub_result = X - Y",
)
declare_gradient("squared_l2_distance", "X Y sub_result Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "cos_sim",
    "X Y -> Out XNorm YNorm",
    {"@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": True},
    doc="Out = the cosine of each row of X with that row of Y (or the only row of Y)",
)
declare_gradient("cos_sim", "X Y Out XNorm YNorm Out@GRAD -> X@GRAD Y@GRAD")


shape_rule("scale", "increment")(outputs_like(Out="X"))


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


@shape_rule("sum")
def _sum(_op: Op, types: Types) -> Types:
    terms = several(types, "X")
    first = terms[0]
    for term in terms:
        if term.dtype is not first.dtype or not fits(term.shape, first.shape):
            disagree("X", term, "the first term", first)
    return {"Out": (first,)}


@shape_rule("mean", "squared_l2_norm")
def _one_number(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(one(types, "X").dtype, (1,)),)}


@shape_rule("squared_l2_distance")
def _squared_l2_distance(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    columns = size(x.shape[1:])
    return {
        "sub_result": (TensorType(x.dtype, (x.shape[0], columns)),),
        "Out": (TensorType(x.dtype, (x.shape[0], 1), x.lod_level),),
    }


@shape_rule("cos_sim")
def _cos_sim(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    if not fits(x.shape[1:], y.shape[1:]) or not (y.shape[0] in (1, -1) or fits(x.shape[:1], y.shape[:1])):
        disagree("Y", y, "X", x)
    column = TensorType(x.dtype, (x.shape[0], 1), x.lod_level)
    return {"Out": (column,), "XNorm": (column,), "YNorm": (TensorType(x.dtype, (y.shape[0], 1)),)}


@gradient("sum")
def _sum_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    (out,) = output_gradients(op, "Out")
    return tuple(scaled(out, name, 1.0) for name in wanted.placed(op, "X"))


@gradient("scale")
def _scale_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "ScaleTensor": op.inputs.get("ScaleTensor", ())}
    attrs = {"scale": op.attrs["scale"], "bias": 0.0, "bias_after_scale": True}
    return (bare_op("scale", inputs, {"Out": wanted.kept(op, "X")}, attrs),)


@gradient("increment")
def _increment_gradient(op: Op, _wanted: Wanted) -> tuple[Op, ...]:
    """Counts back, so that a loop's counter has its old value while its steps run backward (as Fluid does)."""
    step = op.attrs["step"]
    assert isinstance(step, float)
    return (bare_op("increment", {"X": op.outputs["Out"]}, {"Out": op.inputs["X"]}, {"step": -step}),)
