"""Parts of tensors, tensors put together, and indices."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.gradient import Wanted, gradient, like_forward, output_gradients
from pstranspile.ops.schema import INTS, LONG, UNSCOPED, declare, declare_gradient, ints, optional
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    dtype_attr,
    fits,
    int_attr,
    ints_attr,
    one,
    outputs_like,
    several,
    shape_rule,
)

declare(
    "concat",
    "X* AxisTensor? -> Out",
    {"use_mkldnn": False, "axis": 0, "use_quantizer": False, "num": optional("int"), "sections": optional("ints")},
    doc="Out = all X one after another along `axis`",
)
declare_gradient(
    "concat",
    "X* AxisTensor? Out@GRAD -> X@GRAD*",
    {"axis": 0, "use_mkldnn": False, "use_quantizer": False},
)
declare(
    "split",
    "X AxisTensor? SectionsTensorList*? -> Out*",
    {"sections": ints(), "num": 0, "axis": 0},
    doc="Out = X cut along `axis` into `num` equal parts or into `sections`",
)
declare("stack", "X* -> Y", {"axis": 0}, doc="Y = all X along a new dim `axis`")
declare_gradient("stack", "Y@GRAD -> X@GRAD*")
declare(
    "slice",
    "Input StartsTensor? EndsTensor? StartsTensorList*? EndsTensorList*? -> Out",
    {"axes": INTS, "starts": ints(), "ends": ints(), "infer_flags": ints(), "decrease_axis": ints()},
    doc="Out = Input from `starts` to `ends` along `axes`, without the dims decrease_axis",
)
declare_gradient("slice", "Input StartsTensor? EndsTensor? StartsTensorList*? EndsTensorList*? Out@GRAD -> Input@GRAD")
declare(
    "expand",
    "X ExpandTimes? expand_times_tensor*? -> Out",
    {"expand_times": ints()},
    doc="Out = X repeated expand_times along each dim",
)
declare_gradient("expand", "X ExpandTimes? expand_times_tensor*? Out@GRAD -> X@GRAD")
declare("gather", "X Index -> Out", {"overwrite": True}, doc="Out = the rows of X at Index")
declare_gradient("gather", "X Index Out@GRAD -> X@GRAD")
declare(
    "scatter",
    "X Ids Updates -> Out",
    {"overwrite": True},
    doc="Out = X with the rows at Ids replaced by Updates, or Updates added to them",
)
declare_gradient("scatter", "Ids Updates Out@GRAD -> X@GRAD Updates@GRAD")
declare(
    "top_k", "X K? -> Out Indices", {"k": 1}, doc="Out = the k largest elements of each row, Indices = where they were"
)
declare_gradient("top_k", "X Indices Out@GRAD -> X@GRAD", UNSCOPED)
declare(
    "arg_max",
    "X -> Out",
    {"axis": LONG, "keepdims": False, "dtype": -1},
    doc="Out = the index of the largest element along `axis`",
)
declare(
    "one_hot",
    "X depth_tensor? -> Out",
    {"depth": -1, "dtype": 5, "allow_out_of_range": False},
    doc="Out = a row of `depth` elements for each id of X (whose last dim is 1), 1 at the id and 0 elsewhere",
)
declare(
    "one_hot_v2",
    "X depth_tensor? -> Out",
    {"depth": -1, "dtype": 5, "allow_out_of_range": False},
    doc="as one_hot, for X of any shape",
)
declare("range", "Start End Step -> Out", doc="Out = Start, Start + Step, ... up to and without End")


def _axis(op: Op, tensor: TensorType, rank: int = 0) -> int:
    """The attribute `axis` as a count from 0. Raises ShapeError when there is no such dim."""
    axis, rank = int_attr(op, "axis"), rank or len(tensor.shape)
    if not -rank <= axis < rank:
        raise ShapeError(f"axis is {axis}, but X is {describe(tensor)}", "X")
    return axis % rank


def _with_dim(tensor: TensorType, axis: int, dim: int) -> TensorType:
    return tensor._replace(shape=(*tensor.shape[:axis], dim, *tensor.shape[axis + 1 :]))


@shape_rule("concat")
def _concat(op: Op, types: Types) -> Types:
    parts = several(types, "X")
    first = parts[0]
    if "AxisTensor" in types:
        return {}
    axis = _axis(op, first)
    for part in parts[1:]:
        if len(part.shape) != len(first.shape) or part.dtype is not first.dtype:
            disagree("X", part, "the first part", first)
        if not fits(_with_dim(part, axis, -1).shape, _with_dim(first, axis, -1).shape):
            disagree("X", part, "the first part", first)
    dims = [part.shape[axis] for part in parts]
    return {"Out": (_with_dim(first, axis, -1 if min(dims) < 0 else sum(dims)),)}


@shape_rule("split")
def _split(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if "AxisTensor" in types or "SectionsTensorList" in types:
        return {}
    axis = _axis(op, x)
    whole, number, sections = x.shape[axis], int_attr(op, "num"), ints_attr(op, "sections")
    if number > 0:
        if whole >= 0 and whole % number:
            raise ShapeError(f"X is {describe(x)}, dim {axis} cannot be cut into {number} equal parts", "X")
        sections = (whole // number if whole >= 0 else -1,) * number
    elif whole >= 0:
        known = sum(section for section in sections if section >= 0)
        if known > whole or (known != whole and -1 not in sections):
            raise ShapeError(f"X is {describe(x)}, dim {axis} cannot be cut into {list(sections)}", "X")
        sections = tuple(section if section >= 0 else whole - known for section in sections)
    lod = x.lod_level if axis else 0
    return {"Out": tuple(_with_dim(x, axis, section)._replace(lod_level=lod) for section in sections)}


@shape_rule("stack")
def _stack(op: Op, types: Types) -> Types:
    parts = several(types, "X")
    for part in parts[1:]:
        if not fits(part.shape, parts[0].shape):
            disagree("X", part, "the first part", parts[0])
    first = parts[0]
    axis = _axis(op, first, len(first.shape) + 1)
    return {"Y": (TensorType(first.dtype, (*first.shape[:axis], len(parts), *first.shape[axis:])),)}


@shape_rule("stack_grad")
def _stack_grad(op: Op, types: Types) -> Types:
    stacked = one(types, "Y@GRAD")
    axis = _axis(op, stacked)
    part = TensorType(stacked.dtype, (*stacked.shape[:axis], *stacked.shape[axis + 1 :]))
    return {"X@GRAD": (part,) * len(op.outputs["X@GRAD"])}


def _cut(dim: int, start: int, end: int) -> int:
    """The number of elements from start to end of a dim; negative positions count from the end."""
    if dim < 0:
        return -1
    first = max(start + dim, 0) if start < 0 else min(start, dim)
    return max((max(end + dim, 0) if end < 0 else min(end, dim)) - first, 0)


@shape_rule("slice")
def _slice(op: Op, types: Types) -> Types:
    x = one(types, "Input")
    if any(slot in types for slot in ("StartsTensor", "EndsTensor", "StartsTensorList", "EndsTensorList")):
        return {}
    dims = list(x.shape)
    axes, starts, ends = ints_attr(op, "axes"), ints_attr(op, "starts"), ints_attr(op, "ends")
    for axis, start, end in zip(axes, starts, ends, strict=False):
        if not 0 <= axis < len(dims):
            raise ShapeError(f"axes has {axis}, but Input is {describe(x)}", "Input")
        dims[axis] = _cut(dims[axis], start, end)
    gone = ints_attr(op, "decrease_axis")
    left = tuple(dim for at, dim in enumerate(dims) if at not in gone) or (1,)
    return {"Out": (TensorType(x.dtype, left, 0 if 0 in axes else x.lod_level),)}


@shape_rule("expand")
def _expand(op: Op, types: Types) -> Types:
    x, times = one(types, "X"), ints_attr(op, "expand_times")
    if "ExpandTimes" in types or "expand_times_tensor" in types:
        return {}
    if len(times) != len(x.shape):
        raise ShapeError(f"expand_times is {list(times)}, but X is {describe(x)}", "X")
    dims = tuple(-1 if dim < 0 or n < 0 else dim * n for dim, n in zip(x.shape, times, strict=True))
    return {"Out": (TensorType(x.dtype, dims, x.lod_level if dims[0] == x.shape[0] else 0),)}


@shape_rule("gather")
def _gather(_op: Op, types: Types) -> Types:
    x, index = one(types, "X"), one(types, "Index")
    return {"Out": (TensorType(x.dtype, (index.shape[0], *x.shape[1:])),)}


shape_rule("scatter")(outputs_like(Out="X"))


@shape_rule("scatter_grad")
def _scatter_grad(_op: Op, types: Types) -> Types:
    return {"X@GRAD": types.get("Out@GRAD", ()), "Updates@GRAD": types.get("Updates", ())}


@shape_rule("top_k")
def _top_k(op: Op, types: Types) -> Types:
    x = one(types, "X")
    dims = (*x.shape[:-1], -1 if "K" in types else int_attr(op, "k"))
    if 0 <= x.shape[-1] < dims[-1]:
        raise ShapeError(f"k is {dims[-1]}, but X is {describe(x)}", "X")
    return {
        "Out": (TensorType(x.dtype, dims, x.lod_level),),
        "Indices": (TensorType(DType.INT64, dims, x.lod_level),),
    }


@shape_rule("arg_max")
def _arg_max(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis = _axis(op, x)
    number = int_attr(op, "dtype", -1)
    kept = (1,) if op.attrs.get("keepdims") else ()
    dims = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
    return {"Out": (TensorType(DType.INT64 if number < 0 else DType(number), dims or (1,)),)}


@shape_rule("one_hot", "one_hot_v2")
def _one_hot(op: Op, types: Types) -> Types:
    x = one(types, "X")
    leading = x.shape[:-1] if op.type == "one_hot" else x.shape
    depth = -1 if "depth_tensor" in types else int_attr(op, "depth")
    return {"Out": (TensorType(dtype_attr(op), (*leading, depth), x.lod_level),)}


@shape_rule("range")
def _range(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(one(types, "Start").dtype, (-1,)),)}


@gradient("split")
def _split_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "AxisTensor": op.inputs.get("AxisTensor", ())}
    return (like_forward(op, "concat", inputs, {"Out": wanted.kept(op, "X")}),)
