"""Constants, copies and conversions."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients
from pstranspile.ops.schema import FLOATS, INT, INTS, declare, floats, ints, longs
from pstranspile.ops.shapes import ShapeError, Types, describe, dtype_attr, one, outputs_like, shape_rule, size

declare(
    "fill_constant",
    "ValueTensor? ShapeTensor? ShapeTensorList*? -> Out",
    {"shape": longs(), "value": 0.0, "str_value": "", "force_cpu": False, "dtype": 5},
    doc="Out = a tensor of dims `shape`, all elements `value`",
)
declare(
    "fill_constant_batch_size_like",
    "Input -> Out",
    {
        "shape": INTS,
        "input_dim_idx": 0,
        "output_dim_idx": 0,
        "value": 0.0,
        "str_value": "",
        "force_cpu": False,
        "dtype": 5,
    },
    doc="as fill_constant, one dim taken from Input",
)
declare(
    "fill_any_like",
    "X -> Out",
    {"value": 0.0, "dtype": -1},
    row_wise=True,
    doc="Out = a tensor as X, all elements `value`",
)
declare("fill_zeros_like", "X -> Out", row_wise=True, doc="Out = zeros, as X")
declare("assign", "X? -> Out", row_wise=True, doc="Out = X")
declare(
    "assign_value",
    "-> Out",
    {
        "shape": INTS,
        "bool_values": ints(),
        "fp32_values": floats(),
        "int32_values": ints(),
        "int64_values": longs(),
        "dtype": INT,
    },
    doc="Out = the listed values",
)
declare(
    "fill",
    "-> Out",
    {"value": FLOATS, "shape": INTS, "dtype": 5, "force_cpu": False},
    doc="Out = a tensor of dims `shape` with the listed values",
)
declare("cast", "X -> Out", {"out_dtype": INT, "in_dtype": INT}, row_wise=True, doc="Out = X converted to out_dtype")
declare(
    "coalesce_tensor",
    "Input* -> Output* FusedOutput",
    {"copy_data": False, "set_constant": False, "constant": 0.0, "check_name": False, "dtype": INT},
    doc="Output = Input, laid one after another in the memory of FusedOutput",
)


shape_rule("fill_zeros_like", "assign")(outputs_like(Out="X"))


@shape_rule("fill_constant", "assign_value")
def made(op: Op, types: Types) -> Types:
    """Tensors of dims `shape`, with -1 for dims given as tensors. Without `shape` one tensor holds all dims."""
    dims = ints_attr(op, "shape")
    if not dims and "ShapeTensor" in types:
        dims = (-1,) * max(size(one(types, "ShapeTensor").shape), 0)
    return {"Out": (TensorType(dtype_attr(op), dims),)}


@shape_rule("fill_constant_batch_size_like")
def made_like(op: Op, types: Types) -> Types:
    """Tensors of dims `shape`, with one dim taken from Input (with LoD: the number of sequences)."""
    like = one(types, "Input")
    dims = list(ints_attr(op, "shape"))
    source, target = int_attr(op, "input_dim_idx"), int_attr(op, "output_dim_idx")
    if not 0 <= source < len(like.shape) or not 0 <= target < len(dims):
        raise ShapeError(f"dim {source} of Input, {describe(like)}, cannot be dim {target} of {dims}", "Input")
    dims[target] = -1 if like.lod_level and source == 0 else like.shape[source]
    return {"Out": (TensorType(dtype_attr(op), tuple(dims)),)}


@shape_rule("fill_any_like")
def _fill_any_like(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (x._replace(dtype=dtype_attr(op, "dtype", x.dtype)),)}


@shape_rule("cast")
def _cast(op: Op, types: Types) -> Types:
    x = one(types, "X")
    gives: Types = {"Out": (x._replace(dtype=dtype_attr(op, "out_dtype")),)}
    if x.dtype is not dtype_attr(op, "in_dtype"):
        raise ShapeError(f"X is {describe(x)}, but in_dtype says {dtype_attr(op, 'in_dtype').text}", "X", gives)
    return gives


@shape_rule("coalesce_tensor")
def _coalesce_tensor(_op: Op, types: Types) -> Types:
    return {"Output": types.get("Input", ())}


@gradient("assign")
def _assign_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (bare_op("assign", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}),)


@gradient("cast")
def _cast_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    attrs = {"in_dtype": op.attrs["out_dtype"], "out_dtype": op.attrs["in_dtype"]}
    return (bare_op("cast", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}, attrs),)


declare("fill_zeros_like2", "X -> Out", {"dtype": 5}, doc="as fill_zeros_like, of any element type")


@shape_rule("fill_zeros_like2")
def _fill_zeros_like2(op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X")._replace(dtype=dtype_attr(op)),)}
