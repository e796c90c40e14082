"""Tensors sliced, repeated, reversed and rolled."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.gradient import Wanted, bare_op, gradient, like_forward, output_gradients
from pstranspile.ops.schema import INTS, declare, declare_gradient, ints, longs
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, one, outputs_like, shape_rule

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


def _cut(dim: int, start: int, end: int) -> int:
    """The number of elements from start to end of a dim; negative positions count from the end."""
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
    for axis, start, end, flag in zip(axes, starts, ends, flags, strict=False):
        if not 0 <= axis < len(dims):
            raise ShapeError(f"axes has {axis}, but Input is {describe(x)}", "Input")
        dims[axis] = -1 if flag == -1 else _cut(dims[axis], start, end)
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
declare("reverse", "X -> Out", {"axis": INTS}, doc="Out = X with its elements in reverse order along `axis`")
declare("flip", "X -> Out", {"dims": INTS}, doc="Out = X with its elements in reverse order along `dims`")
declare("roll", "X -> Out", {"shifts": longs(), "dims": longs()}, doc="Out = X shifted along `dims`, around the ends")
declare_gradient("roll", "X Out@GRAD -> X@GRAD")

declare("expand_as", "X target_tensor -> Out", doc="Out = X repeated up to the dims of target_tensor")
declare_gradient("expand_as", "X target_tensor Out@GRAD -> X@GRAD")


@gradient("flip")
def _flip_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (like_forward(op, "flip", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}),)


@gradient("reverse")
def _reverse_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    gradients = {"Out": wanted.kept(op, "X")}
    return (bare_op("reverse", {"X": output_gradients(op, "Out")}, gradients, {"axis": op.attrs["axis"]}),)


# Shapes

BOUNDS = (("starts", "StartsTensor"), ("ends", "EndsTensor"), ("strides", "StridesTensor"))
"""The bounds of a strided_slice: attributes, and the slots that may give them as tensors."""


def span(axis: int, dim: int, start: int, end: int, step: int) -> tuple[int, int]:
    """The elements of a dim that a strided_slice goes through, from the first to behind the last; maybe none.

    Bounds count from the end where they are negative, but an `end` of -1 of a step backwards means the beginning.
    Raises ValueError where they are the wrong way around, as Fluid does before it cuts them off at the ends of the dim.
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


shape_rule("flip", "roll")(outputs_like(Out="X"))


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
