"""Changes of shape. XShape holds the shape of X after a leading 0, and no data."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import flag, int_attr, ints_attr, text
from pstranspile.ops.gradient import WantedGradients, bare_op, gradient, like_forward, output_gradients
from pstranspile.ops.schema import (
    INT,
    INTS,
    UNSCOPED,
    bounded,
    declare,
    declare_gradient,
    dim_of,
    ints,
    later,
    longs,
    optional,
    words,
)
from pstranspile.ops.shapes import (
    Dims,
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    one,
    one_or_none,
    outputs_like,
    several,
    shape_rule,
    size,
)

if TYPE_CHECKING:
    from pstranspile.ops.facts import Numbers

MOST_DIMS = 9
"""The largest rank of a tensor in Fluid."""

declare(
    "reshape",
    "X Shape? ShapeTensor*? -> Out",
    {"shape": ints()},
    numbers="in_order",
    doc="Out = X with dims `shape` (0: as in X, -1: the rest)",
)
declare_gradient("reshape", "X Out Out@GRAD -> X@GRAD")
declare(
    "reshape2",
    "X Shape? ShapeTensor*? -> Out XShape~",
    {"shape": ints(), "use_quantizer": False},
    numbers="in_order",
    doc="as reshape, with the old shape in XShape",
)
declare_gradient("reshape2", "XShape Out@GRAD -> X@GRAD")


def _declare_two(
    op_type: str,
    inputs: str,
    attrs: Mapping[str, object],
    doc: str,
    reads: str = "X",
    *,
    numbers: Numbers = "in_order",
) -> None:
    """Declares an op and its second version, each with its gradient; the gradient of the first reads `reads`."""
    declare(op_type, f"{inputs} -> Out", attrs, numbers=numbers, doc=doc)
    declare_gradient(op_type, f"{reads} Out@GRAD -> X@GRAD", linear=True)
    again = f"as {op_type}, with the old shape in XShape"
    declare(f"{op_type}2", f"{inputs} -> Out XShape~", attrs, numbers=numbers, doc=again)
    declare_gradient(f"{op_type}2", "XShape Out@GRAD -> X@GRAD", linear=True)


_declare_two(
    "transpose",
    "X",
    {"axis": INTS, "use_mkldnn": False, "data_format": words("AnyLayout", "NCHW", "NHWC"), "use_quantizer": False},
    "Out = X with its dims in the order `axis`",
    reads="X Out",
    numbers="moved",
)
_declare_two(
    "squeeze",
    "X",
    {"axes": ints(), "ones_only": later("bool")},
    "Out = X without the dims `axes` of size 1; with `ones_only`, dims of other sizes may be named and stay",
)
_declare_two(
    "unsqueeze", "X AxesTensor? AxesTensorList*?", {"axes": ints()}, "Out = X with dims of size 1 put in at `axes`"
)
_declare_two(
    "flatten",
    "X",
    {"axis": dim_of(1, "X", 0, extra_dims=1)},
    "Out = X as a matrix, its dims before `axis` made one and those from `axis` on",
)
declare("shape", "Input -> Out", doc="Out = the dims of Input, i32")


def _without_data(x: TensorType) -> tuple[TensorType]:
    """The type of XShape: the dims of X after a leading 0."""
    return (TensorType(x.dtype, (0, *x.shape), x.lod_level),)


def _reshaped_outputs(x: TensorType, dims: tuple[int, ...]) -> Types:
    lod = x.lod_level if dims[:1] == x.shape[:1] else 0
    return {"Out": (TensorType(x.dtype, dims, lod),), "XShape": _without_data(x)}


def _rank_from_shape(types: Types) -> int:
    """The number of dims in the variable of the slot Shape; 0 if it is not known."""
    shape = next((type_.shape for type_ in types.get("Shape", ()) if type_ is not None), ())
    return max(shape[0], 0) if len(shape) == 1 and shape[0] <= MOST_DIMS else 0


@shape_rule("reshape", "reshape2")
def _reshape(op: Op, types: Types) -> Types:
    x = one(types, "X")
    asked = ints_attr(op, "shape")
    if not asked and "Shape" not in types and "ShapeTensor" not in types:
        raise ShapeError("shape is empty, and no variable gives the dims", "X")
    if not asked or "Shape" in types:
        count = _rank_from_shape(types)
        return _reshaped_outputs(x, (-1,) * count) if count else {"XShape": _without_data(x)}
    if any(dim == 0 and at >= len(x.shape) for at, dim in enumerate(asked)):
        raise ShapeError(f"shape is {list(asked)}, but X is {describe(x)}", "X")
    if "ShapeTensor" not in types and min(asked) < -1:
        raise ShapeError(f"shape is {list(asked)}, no dim is below -1", "X")
    if "ShapeTensor" not in types and asked.count(-1) > 1:
        raise ShapeError(f"shape is {list(asked)}: one dim at most is -1, which stands for the rest", "X")
    dims = tuple(x.shape[at] if dim == 0 else dim for at, dim in enumerate(asked))
    whole = size(x.shape)
    if whole <= 0:  # as in Fluid, dims of 0 count as unknown
        return _reshaped_outputs(x, dims)
    if asked.count(-1) == 1 and "ShapeTensor" not in types:
        rest = size(tuple(dim for dim in dims if dim != -1))
        if rest <= 0 or whole % rest:
            raise ShapeError(f"X is {describe(x)}, which cannot have the dims {list(asked)}", "X")
        dims = tuple(whole // rest if dim == -1 else dim for dim in dims)
    elif size(dims) >= 0 and size(dims) != whole:
        raise ShapeError(f"X is {describe(x)}, which cannot have the dims {list(asked)}", "X")
    return _reshaped_outputs(x, dims)


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
        return {"XShape": _without_data(x)}  # an unknown dim may turn out to be of size 1
    if flag(op, "ones_only") and axes and all(-rank <= axis < rank for axis in axes):
        gone = {axis % rank for axis in axes if x.shape[axis] == 1 or x.shape[axis] < 0}
        return _reshaped_outputs(x, tuple(dim for at, dim in enumerate(x.shape) if at not in gone))
    gone = {axis % rank for axis in axes} or {at for at, dim in enumerate(x.shape) if dim == 1}
    made = _reshaped_outputs(x, tuple(dim for at, dim in enumerate(x.shape) if at not in gone))
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
    return _reshaped_outputs(x, tuple(dims))


@shape_rule("flatten", "flatten2")
def _flatten(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis = int_attr(op, "axis")
    return _reshaped_outputs(
        x, (prod(x.shape[:axis]), prod(x.shape[axis:]))
    )  # below 0 if a dim is unknown, as in Fluid


@shape_rule("reshape2_grad", "transpose2_grad", "squeeze2_grad", "unsqueeze2_grad", "flatten2_grad")
def _from_x_shape(_op: Op, types: Types) -> Types:
    shape, gradient = one(types, "XShape"), one_or_none(types, "Out@GRAD")
    dtype = shape.dtype if gradient is None else gradient.dtype
    return {"X@GRAD": (TensorType(dtype, shape.shape[1:], shape.lod_level),)}


@shape_rule("shape")
def _shape(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(DType.INT32, (len(one(types, "Input").shape),)),)}


declare("size", "Input -> Out", doc="Out = the number of elements of Input")
declare("is_empty", "X -> Out", constant=True, doc="Out = whether X has no elements")


@shape_rule("size")
def _size(_op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(DType.INT64, (1,)),)}


@shape_rule("is_empty")
def _is_empty(_op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(DType.BOOL, (1,)),)}


# Tensors concatenated, stacked and split.

declare(
    "concat",
    "X* AxisTensor? -> Out",
    {"use_mkldnn": False, "axis": 0, "use_quantizer": False, "num": optional("int"), "sections": optional("ints")},
    numbers="moved",
    doc="Out = all X one after another along `axis`",
)
declare_gradient(
    "concat",
    "X* AxisTensor? Out@GRAD -> X@GRAD*",
    {"axis": 0, "use_mkldnn": False, "use_quantizer": False},
    linear=True,
)
declare(
    "split",
    "X AxisTensor? SectionsTensorList*? -> Out*",
    {"sections": ints(), "num": 0, "axis": 0},
    numbers="moved",
    doc="Out = X cut along `axis` into `num` equal parts or into `sections`",
)
declare("stack", "X* -> Y", {"axis": 0}, numbers="moved", doc="Y = all X along a new dim `axis`")
declare_gradient("stack", "Y@GRAD -> X@GRAD*", linear=True, result_lod="none")


def axis_of(op: Op, tensor: TensorType, rank: int = 0) -> int:
    """The attribute `axis` as an index from 0 on. Raises ShapeError if X has no such dim."""
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
    axis = axis_of(op, first)
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
    axis = axis_of(op, x)
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
    axis = axis_of(op, first, len(first.shape) + 1)
    return {"Y": (first._replace(shape=(*first.shape[:axis], len(parts), *first.shape[axis:])),)}


@shape_rule("stack_grad")
def _stack_grad(op: Op, types: Types) -> Types:
    stacked = one(types, "Y@GRAD")
    axis = axis_of(op, stacked)
    part = TensorType(stacked.dtype, (*stacked.shape[:axis], *stacked.shape[axis + 1 :]))
    return {"X@GRAD": (part,) * len(op.outputs["X@GRAD"])}


@gradient("split")
def _split_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "AxisTensor": op.inputs.get("AxisTensor", ())}
    return (like_forward(op, "concat", inputs, {"Out": wanted.gradient_names(op, "X")}),)


declare("unbind", "X -> Out*", {"axis": 0}, doc="Out = the slices of X along `axis`, without that dim")
declare(
    "unstack",
    "X -> Y*",
    {"axis": 0, "num": INT},
    numbers="moved",
    doc="Y = the slices of X along `axis`, without that dim",
)
declare_gradient("unstack", "Y@GRAD* -> X@GRAD", result_lod="none")

declare("partial_concat", "X* -> Out", {"start_index": 0, "length": -1}, doc="Out = columns of all X, side by side")
declare_gradient("partial_concat", "X* Out@GRAD -> X@GRAD*", {"start_index": 0, "length": -1, **UNSCOPED})
declare(
    "partial_sum",
    "X* -> Out",
    {"use_mkldnn": False, "start_index": 0, "length": bounded(-1, -1)},
    doc="Out = the sum of columns of all X",
)
declare_gradient("partial_sum", "X* Out@GRAD -> X@GRAD*", {"length": -1, "start_index": 0, **UNSCOPED})


@gradient("unbind")
def _unbind_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    return (like_forward(op, "stack", {"X": output_gradients(op, "Out")}, {"Y": wanted.gradient_names(op, "X")}),)


def _partial_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    """The gradient op of a partial op. Of the attributes it carries only the choice of columns."""
    inputs = {"X": op.inputs["X"], "Out@GRAD": output_gradients(op, "Out")}
    attrs = {name: op.attrs[name] for name in ("start_index", "length")}
    return (bare_op(f"{op.type}_grad", inputs, {"X@GRAD": wanted.gradients_or_empty(op, "X")}, attrs),)


gradient("partial_concat", "partial_sum")(_partial_gradient)


@shape_rule("unbind", "unstack")
def _unbind(op: Op, types: Types) -> Types:
    x, slot = one(types, "X"), "Out" if op.type == "unbind" else "Y"
    axis = axis_of(op, x)
    parts = len(op.outputs[slot])
    if not fits(x.shape[axis : axis + 1], (parts,)):
        raise ShapeError(f"X is {describe(x)}, dim {axis} can't be cut into {parts} slices", "X")
    lod = x.lod_level if op.type == "unbind" and axis else 0
    # for one dim, Fluid makes parts without dims, which are unknown here
    part = TensorType(x.dtype, (*x.shape[:axis], *x.shape[axis + 1 :]), lod)
    return {slot: (part,) * parts}


@shape_rule("unstack_grad")
def _unstack_grad(op: Op, types: Types) -> Types:
    parts = several(types, "Y@GRAD")
    axis = axis_of(op, parts[0], len(parts[0].shape) + 1)
    dims = parts[0].shape
    return {"X@GRAD": (TensorType(parts[0].dtype, (*dims[:axis], len(parts), *dims[axis:])),)}


@shape_rule("partial_concat", "partial_sum")
def _partial(op: Op, types: Types) -> Types:
    parts = several(types, "X")
    for part in parts:
        if len(part.shape) != 2 or part.dtype is not parts[0].dtype or not fits(part.shape, parts[0].shape):
            disagree("X", part, "the first part", parts[0])
    width, start, length = parts[0].shape[1], int_attr(op, "start_index"), int_attr(op, "length", -1)
    if length < 0:
        length = width - start if width >= 0 and start >= 0 else -1
        if start < 0 and op.type == "partial_concat":  # for partial_sum Fluid declares more columns than there are
            length = -start
    columns = length * len(parts) if op.type == "partial_concat" and length >= 0 else length
    return {"Out": (TensorType(parts[0].dtype, (parts[0].shape[0], columns)),)}


# Tensors with their edges padded or cropped.

Padding: TypeAlias = "list[tuple[int, int]]"
"""The number of elements before and after each dim."""


# Shape rules


def pairs(paddings: Dims) -> Padding:
    """A flat list of numbers as pairs, before and after each dim."""
    return list(zip(paddings[::2], paddings[1::2], strict=True))


def _padded_dims(dims: Dims, padding: Padding) -> Dims:
    return tuple(-1 if dim < 0 else before + dim + after for dim, (before, after) in zip(dims, padding, strict=True))


@shape_rule("pad")
def _pad(op: Op, types: Types) -> Types:
    x, paddings = one(types, "X"), ints_attr(op, "paddings")
    if len(paddings) != 2 * len(x.shape):
        raise ShapeError(f"paddings is {list(paddings)}, it needs two numbers for each dim of X, {describe(x)}", "X")
    return {"Out": (x._replace(shape=_padded_dims(x.shape, pairs(paddings))),)}


@shape_rule("pad_grad")
def _pad_grad_types(op: Op, types: Types) -> Types:
    out, paddings = one(types, "Out@GRAD"), ints_attr(op, "paddings")
    less = [(-before, -after) for before, after in pairs(paddings)]
    return {"X@GRAD": (out._replace(shape=_padded_dims(out.shape, less)),)}


@shape_rule("pad2d")
def _pad2d(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) != 4:
        raise ShapeError(f"X is {describe(x)}, images have four dims", "X")
    if "Paddings" in types:
        return {
            "Out": (
                x._replace(
                    shape=(*x.shape[:2], -1, -1) if not _is_channels_last(op) else (x.shape[0], -1, -1, x.shape[3])
                ),
            )
        }
    return {"Out": (x._replace(shape=_padded_dims(x.shape, image_padding(op, ints_attr(op, "paddings")))),)}


@shape_rule("pad_constant_like")
def _pad_constant_like(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    if len(x.shape) != len(y.shape) or any(0 <= big < small for big, small in zip(x.shape, y.shape, strict=True)):
        disagree("Y", y, "X", x)
    return {"Out": (x,)}


@shape_rule("crop", "crop_tensor")
def _crop(op: Op, types: Types) -> Types:
    x, shape = one(types, "X"), ints_attr(op, "shape")
    like = one_or_none(types, "Y")
    if like is not None:
        shape = like.shape
    if ("Shape" in types and "ShapeTensor" not in types) or not shape:
        shape = (-1,) * len(x.shape)
    elif op.type == "crop_tensor":  # 0 stands for a variable, -1 for the rest of the dim, if that is known
        first = ints_attr(op, "offsets") or (-1,) * len(x.shape)
        left = [dim - at if at >= 0 and dim >= 0 else -1 for dim, at in zip(x.shape, first, strict=False)]
        shape = tuple(rest if size == -1 else size or -1 for size, rest in zip(shape, left, strict=False))
    if len(shape) != len(x.shape):
        raise ShapeError(f"shape is {list(shape)}, but X is {describe(x)}", "X")
    for dim, wanted in zip(x.shape, shape, strict=True):
        if 0 <= dim < wanted:
            raise ShapeError(f"shape is {list(shape)}, which is more than X has, {describe(x)}", "X")
    return {"Out": (x._replace(shape=shape),)}


def _is_channels_last(op: Op) -> bool:
    return text(op, "data_format") == "NHWC"


def image_padding(op: Op, paddings: Dims) -> Padding:
    """The padding of every dim of images; `paddings` are top, bottom, left, right."""
    if len(paddings) != 4:
        raise ShapeError(f"paddings is {list(paddings)}, not top, bottom, left and right", "X")
    spatial = pairs(paddings)
    return [(0, 0), *spatial, (0, 0)] if _is_channels_last(op) else [(0, 0), (0, 0), *spatial]


declare("pad", "X -> Out", {"paddings": bounded(INTS, 0), "pad_value": 0.0}, doc="Out = X with paddings of pad_value")
declare_gradient("pad", "Out@GRAD -> X@GRAD", linear=True, result_lod="none")
declare(
    "pad2d",
    "X Paddings? -> Out",
    {
        "paddings": INTS,
        "pad_value": 0.0,
        "mode": words("constant", "reflect", "edge"),
        "data_format": words("NCHW", "NHWC"),
    },
    doc="Out = images X with their edges padded",
)
declare_gradient("pad2d", "X Paddings? Out@GRAD -> X@GRAD", result_lod="none")
declare("pad_constant_like", "X Y -> Out", {"pad_value": 0.0}, rows="own", doc="Out = Y padded to the dims of X")
declare_gradient("pad_constant_like", "Y Out@GRAD -> Y@GRAD")
declare(
    "crop",
    "X Y? Offsets? -> Out",
    {"offsets": ints(), "shape": ints()},
    domains={"Offsets": "zero"},
    doc="Out = X from `offsets` on, of the dims `shape` or those of Y",
)
declare_gradient("crop", "X Offsets? Out@GRAD -> X@GRAD")
declare(
    "crop_tensor",
    "X Shape? Offsets? ShapeTensor*? OffsetsTensor*? -> Out",
    {"offsets": ints(), "shape": ints()},
    domains={"Offsets": "zero", "OffsetsTensor": "zero"},
    doc="as crop, dims and offsets may come as tensors",
)
declare_gradient("crop_tensor", "X Offsets? OffsetsTensor*? Out@GRAD -> X@GRAD")


# Tensors sliced, repeated, reversed and rolled.

declare(
    "slice",
    "Input StartsTensor? EndsTensor? StartsTensorList*? EndsTensorList*? -> Out",
    {"axes": INTS, "starts": ints(), "ends": ints(), "infer_flags": ints(), "decrease_axis": ints()},
    numbers="moved",
    doc="Out = Input from `starts` to `ends` along `axes`, without the dims decrease_axis",
)
declare_gradient(
    "slice",
    "Input StartsTensor? EndsTensor? StartsTensorList*? EndsTensorList*? Out@GRAD -> Input@GRAD",
    result_lod="none",
)
declare(
    "expand",
    "X ExpandTimes? expand_times_tensor*? -> Out",
    {"expand_times": ints()},
    numbers="moved",
    doc="Out = X repeated expand_times along each dim",
)
declare_gradient("expand", "X ExpandTimes? expand_times_tensor*? Out@GRAD -> X@GRAD", result_lod="none")


def _sliced_length(dim: int, start: int, end: int) -> int:
    """The number of elements of a dim from `start` to `end`; negative positions count from the end."""
    if dim < 0:
        return -1
    first = max(start + dim, 0) if start < 0 else min(start, dim)
    return max((max(end + dim, 0) if end < 0 else min(end, dim)) - first, 0)


@shape_rule("slice")
def _slice(op: Op, types: Types) -> Types:
    x = one(types, "Input")
    dims = list(x.shape)
    axes = ints_attr(op, "axes")
    starts, ends = (ints_attr(op, name) or [-1] * len(axes) for name in ("starts", "ends"))
    at_run_time = any(slot in types for slot in ("StartsTensor", "EndsTensor", "StartsTensorList", "EndsTensorList"))
    flags = ints_attr(op, "infer_flags") or [-1 if at_run_time else 1] * len(axes)
    for name, bound in (("starts", starts), ("ends", ends)):
        if len(bound) != len(axes) and not at_run_time:
            told = f"{name} is {list(bound)}, axes is {list(axes)}"
            raise ShapeError(f"{told}: there is one number for each axis", "Input")
    for axis, start, end, checked in zip(axes, starts, ends, flags, strict=False):
        if not 0 <= axis < len(dims):
            raise ShapeError(f"axes has {axis}, but Input is {describe(x)}", "Input")
        dims[axis] = -1 if checked == -1 else _sliced_length(dims[axis], start, end)
    gone = ints_attr(op, "decrease_axis")
    left = tuple(dim for at, dim in enumerate(dims) if at not in gone) or (1,)
    return {"Out": (TensorType(x.dtype, left, 0 if 0 in axes else x.lod_level),)}


@shape_rule("expand")
def _expand(op: Op, types: Types) -> Types:
    x, times = one(types, "X"), ints_attr(op, "expand_times")
    if "ExpandTimes" in types:
        times = (-1,) * len(x.shape)
    if len(times) != len(x.shape):
        raise ShapeError(f"expand_times is {list(times)}, but X is {describe(x)}", "X")
    dims = tuple(-1 if dim < 0 or n < 0 else dim * n for dim, n in zip(x.shape, times, strict=True))
    return {"Out": (TensorType(x.dtype, dims, x.lod_level if dims[0] == x.shape[0] else 0),)}


declare(
    "strided_slice",
    "Input StartsTensor? EndsTensor? StridesTensor? StartsTensorList*? EndsTensorList*? StridesTensorList*? -> Out",
    {"axes": INTS, "starts": ints(), "ends": ints(), "strides": ints(), "infer_flags": ints(), "decrease_axis": ints()},
    doc="as slice, with a step",
)
declare_gradient(
    "strided_slice",
    "Input StartsTensor? EndsTensor? StridesTensor? "
    "StartsTensorList*? EndsTensorList*? StridesTensorList*? Out@GRAD -> "
    "Input@GRAD",
)
declare(
    "reverse", "X -> Out", {"axis": dim_of(INTS, "X")}, doc="Out = X with its elements in reverse order along `axis`"
)
declare(
    "flip",
    "X -> Out",
    {"dims": dim_of(INTS, "X")},
    typed_by="X",
    doc="Out = X with its elements in reverse order along `dims`",
)
declare(
    "roll",
    "X -> Out",
    {"shifts": longs(), "dims": dim_of(longs(), "X")},
    doc="Out = X shifted along `dims`, around the ends",
)
declare_gradient("roll", "X Out@GRAD -> X@GRAD")

declare("expand_as", "X target_tensor -> Out", doc="Out = X repeated up to the dims of target_tensor")
declare_gradient("expand_as", "X target_tensor Out@GRAD -> X@GRAD", result_lod="none")


@gradient("flip")
def _flip_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    return (like_forward(op, "flip", {"X": output_gradients(op, "Out")}, {"Out": wanted.gradient_names(op, "X")}),)


@gradient("reverse")
def _reverse_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    gradients = {"Out": wanted.gradient_names(op, "X")}
    return (bare_op("reverse", {"X": output_gradients(op, "Out")}, gradients, {"axis": op.attrs["axis"]}),)


# Shapes

BOUNDS = (("starts", "StartsTensor"), ("ends", "EndsTensor"), ("strides", "StridesTensor"))
"""The bounds of a strided_slice: the attribute, and the slot whose tensor may give the bounds instead."""


def span(axis: int, dim: int, start: int, end: int, step: int) -> tuple[int, int]:
    """(index of the first element, index after the last element) of the range that a strided_slice passes through; the
    range may be empty.

    Negative bounds count from the end, but an `end` of -1 with a negative step means the beginning. Raises ValueError
    if the bounds are in the wrong order, as Fluid does before it clips them to the dim.
    """
    first = start + dim if start < 0 else start
    stop = end + dim if end < 0 and not (end == -1 and step < 0) else end
    if step == 0 or (first >= stop if step > 0 else first <= stop):
        raise ValueError(f"dim {axis} of Input has {dim} elements, none from {start} to {end} by {step}")
    low, high = (first, stop) if step > 0 else (stop + 1, first + 1)
    high = max(min(high, dim), 0)
    return min(max(low, 0), high), high


@shape_rule("strided_slice")
def _strided_slice(op: Op, types: Types) -> Types:
    x, dims = one(types, "Input"), list(one(types, "Input").shape)
    axes, flags = ints_attr(op, "axes"), ints_attr(op, "infer_flags")
    listed = any(f"{slot}List" in types for _, slot in BOUNDS)
    computed = any(slot in types for _, slot in BOUNDS) or (listed and not flags)
    bounds = [ints_attr(op, name) for name, _ in BOUNDS]
    for (name, _), bound in zip(BOUNDS, bounds, strict=True):
        if len(bound) != len(axes) and not computed and not listed:
            told = f"{name} is {list(bound)}, axes is {list(axes)}"
            raise ShapeError(f"{told}: there is one number for each axis", "Input")
    for at, axis in enumerate(axes):
        if not 0 <= axis < len(dims):
            raise ShapeError(f"axes has {axis}, but Input is {describe(x)}", "Input")
        if computed or dims[axis] < 0 or flags[at : at + 1] == (-1,) or any(len(bound) <= at for bound in bounds):
            dims[axis] = -1
        else:
            start, end, step = (bound[at] for bound in bounds)
            try:
                dims[axis] = len(range(*span(axis, dims[axis], start, end, step), abs(step)))
            except ValueError as reason:
                raise ShapeError(str(reason), "Input") from None
    gone = ints_attr(op, "decrease_axis")
    left = tuple(dim for at, dim in enumerate(dims) if at not in gone) or (1,)
    return {"Out": (TensorType(x.dtype, left, 0 if 0 in axes else x.lod_level),)}


shape_rule("flip")(outputs_like(Out="X"))


@shape_rule("roll")
def _roll(op: Op, types: Types) -> Types:
    shifts, dims = ints_attr(op, "shifts"), ints_attr(op, "dims")
    if len(shifts) != (len(dims) or 1):
        told = f"shifts is {list(shifts)}, dims is {list(dims)}"
        raise ShapeError(f"{told}: there is one shift for each dim, or one for all without dims", "X")
    return {"Out": types.get("X", ())}


@shape_rule("reverse")
def _reverse(_op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X")._replace(lod_level=0),)}


@shape_rule("expand_as")
def _expand_as(_op: Op, types: Types) -> Types:
    x, target = one(types, "X"), one(types, "target_tensor")
    if len(x.shape) != len(target.shape):
        disagree("X", x, "target_tensor", target)
    return {"Out": (TensorType(x.dtype, (-1,) * len(x.shape)),)}  # Fluid declares dims of 0


@shape_rule("expand_as_grad")
def _expand_as_grad(_op: Op, types: Types) -> Types:
    return {"X@GRAD": types.get("X", ())}  # Out@GRAD is declared like Out
