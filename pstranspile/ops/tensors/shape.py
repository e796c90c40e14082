"""Changes of shape. XShape holds the shape of X after a leading 0, and no data."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.schema import INTS, declare, declare_gradient, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, given, one, shape_rule, size

MOST_DIMS = 9
"""The largest rank of a tensor in Fluid."""

declare(
    "reshape",
    "X Shape? ShapeTensor*? -> Out",
    {"shape": ints()},
    doc="Out = X with dims `shape` (0: as in X, -1: the rest)",
)
declare_gradient("reshape", "X Out Out@GRAD -> X@GRAD")
declare(
    "reshape2",
    "X Shape? ShapeTensor*? -> Out XShape~",
    {"shape": ints(), "use_quantizer": False},
    doc="as reshape, with the old shape in XShape",
)
declare_gradient("reshape2", "XShape Out@GRAD -> X@GRAD")


def _declare_two(op_type: str, inputs: str, attrs: Mapping[str, object], doc: str, reads: str = "X") -> None:
    """Declares an op and its second version, each with its gradient; the gradient of the first reads `reads`."""
    declare(op_type, f"{inputs} -> Out", attrs, doc=doc)
    declare_gradient(op_type, f"{reads} Out@GRAD -> X@GRAD")
    declare(f"{op_type}2", f"{inputs} -> Out XShape~", attrs, doc=f"as {op_type}, with the old shape in XShape")
    declare_gradient(f"{op_type}2", "XShape Out@GRAD -> X@GRAD")


_declare_two(
    "transpose",
    "X",
    {"axis": INTS, "use_mkldnn": False, "data_format": "AnyLayout", "use_quantizer": False},
    "Out = X with its dims in the order `axis`",
    reads="X Out",
)
_declare_two("squeeze", "X", {"axes": ints()}, "Out = X without the dims `axes` of size 1")
_declare_two(
    "unsqueeze", "X AxesTensor? AxesTensorList*?", {"axes": ints()}, "Out = X with dims of size 1 put in at `axes`"
)
_declare_two(
    "flatten", "X", {"axis": 1}, "Out = X as a matrix, its dims before `axis` made one and those from `axis` on"
)
declare("shape", "Input -> Out", doc="Out = the dims of Input, i32")


def _without_data(x: TensorType) -> tuple[TensorType]:
    """The type of XShape: the dims of X after a leading 0."""
    return (TensorType(x.dtype, (0, *x.shape), x.lod_level),)


def _reshaped(x: TensorType, dims: tuple[int, ...]) -> Types:
    lod = x.lod_level if dims[:1] == x.shape[:1] else 0
    return {"Out": (TensorType(x.dtype, dims, lod),), "XShape": _without_data(x)}


def _listed(types: Types) -> int:
    """The number of dims in the variable of the slot Shape; 0 if it is not known."""
    shape = next((type_.shape for type_ in types.get("Shape", ()) if type_ is not None), ())
    return max(shape[0], 0) if len(shape) == 1 and shape[0] <= MOST_DIMS else 0


@shape_rule("reshape", "reshape2")
def _reshape(op: Op, types: Types) -> Types:
    x = one(types, "X")
    asked = ints_attr(op, "shape")
    if not asked or "Shape" in types:
        count = _listed(types)
        return _reshaped(x, (-1,) * count) if count else {"XShape": _without_data(x)}
    if any(dim == 0 and at >= len(x.shape) for at, dim in enumerate(asked)):
        raise ShapeError(f"shape is {list(asked)}, but X is {describe(x)}", "X")
    dims = tuple(x.shape[at] if dim == 0 else dim for at, dim in enumerate(asked))
    whole = size(x.shape)
    if whole <= 0:  # dims of 0 count as unknown, as in Fluid
        return _reshaped(x, dims)
    if asked.count(-1) == 1 and "ShapeTensor" not in types:
        rest = size(tuple(dim for dim in dims if dim != -1))
        if rest <= 0 or whole % rest:
            raise ShapeError(f"X is {describe(x)}, which cannot have the dims {list(asked)}", "X")
        dims = tuple(whole // rest if dim == -1 else dim for dim in dims)
    elif size(dims) >= 0 and size(dims) != whole:
        raise ShapeError(f"X is {describe(x)}, which cannot have the dims {list(asked)}", "X")
    return _reshaped(x, dims)


@shape_rule("transpose", "transpose2")
def _transpose(op: Op, types: Types) -> Types:
    x = one(types, "X")
    order = ints_attr(op, "axis")
    if sorted(order) != list(range(len(x.shape))):
        raise ShapeError(f"axis {list(order)} is not an order of the dims of X, which is {describe(x)}", "X")
    return {"Out": (TensorType(x.dtype, tuple(x.shape[at] for at in order)),), "XShape": _without_data(x)}


@shape_rule("squeeze", "squeeze2")
def _squeeze(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axes = ints_attr(op, "axes")
    rank = len(x.shape)
    if not axes and min(x.shape) < 0:
        return {"XShape": _without_data(x)}  # an unknown dim may be of size 1
    gone = {axis % rank for axis in axes} or {at for at, dim in enumerate(x.shape) if dim == 1}
    made = _reshaped(x, tuple(dim for at, dim in enumerate(x.shape) if at not in gone))
    for axis in axes:
        inside = -rank <= axis < rank
        if not inside or (x.shape[axis] != 1 and x.shape[axis] >= 0):
            message = f"axes has {axis}, which is not a dim of size 1 of X, {describe(x)}"
            raise ShapeError(message, "X", declares=made if inside else None)
    return made


@shape_rule("unsqueeze", "unsqueeze2")
def _unsqueeze(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if "AxesTensor" in types or "AxesTensorList" in types:
        return {"XShape": _without_data(x)}
    dims = list(x.shape)
    for axis in ints_attr(op, "axes"):
        at = axis if axis >= 0 else axis + len(dims) + 1
        if not 0 <= at <= len(dims):
            raise ShapeError(f"axes has {axis}, but X is {describe(x)}", "X")
        dims.insert(at, 1)
    return _reshaped(x, tuple(dims))


@shape_rule("flatten", "flatten2")
def _flatten(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis = int_attr(op, "axis")
    return _reshaped(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))  # below 0 for unknown ones, as in Fluid


@shape_rule("reshape2_grad", "transpose2_grad", "squeeze2_grad", "unsqueeze2_grad", "flatten2_grad")
def _from_x_shape(_op: Op, types: Types) -> Types:
    shape, gradient = one(types, "XShape"), given(types, "Out@GRAD")
    dtype = shape.dtype if gradient is None else gradient.dtype
    return {"X@GRAD": (TensorType(dtype, shape.shape[1:], shape.lod_level),)}


@shape_rule("shape")
def _shape(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(DType.INT32, (len(one(types, "Input").shape),)),)}


declare("size", "Input -> Out", doc="Out = the number of elements of Input")
declare("is_empty", "X -> Out", doc="Out = whether X has no elements")


@shape_rule("size")
def _size(_op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(DType.INT64, (1,)),)}


@shape_rule("is_empty")
def _is_empty(_op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(DType.BOOL, (1,)),)}
