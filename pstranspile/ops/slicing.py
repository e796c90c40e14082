"""Tensors cut along dims with steps, turned around, shifted, repeated, and columns of several put together."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Surroundings
from pstranspile.ops.gradient import Wanted, bare_op, gradient, like_forward, output_gradients
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import first
from pstranspile.ops.schema import INT, INTS, UNSCOPED, declare, declare_gradient, ints, longs
from pstranspile.ops.select import axis_of, stacked
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    int_attr,
    ints_attr,
    one,
    outputs_like,
    several,
    shape_rule,
)
from pstranspile.ops.values import Array

np = lazy_import("numpy")

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
declare("unbind", "X -> Out*", {"axis": 0}, doc="Out = the slices of X along `axis`, without that dim")
declare("unstack", "X -> Y*", {"axis": 0, "num": INT}, doc="Y = the slices of X along `axis`, without that dim")
declare_gradient("unstack", "Y@GRAD* -> X@GRAD")
declare("expand_as", "X target_tensor -> Out", doc="Out = X repeated up to the dims of target_tensor")
declare_gradient("expand_as", "X target_tensor Out@GRAD -> X@GRAD")
declare("partial_concat", "X* -> Out", {"start_index": 0, "length": -1}, doc="Out = columns of all X, side by side")
declare_gradient("partial_concat", "X* Out@GRAD -> X@GRAD*", {"start_index": 0, "length": -1, **UNSCOPED})
declare(
    "partial_sum",
    "X* -> Out",
    {"use_mkldnn": False, "start_index": 0, "length": -1},
    doc="Out = the sum of columns of all X",
)
declare_gradient("partial_sum", "X* Out@GRAD -> X@GRAD*", {"length": -1, "start_index": 0, **UNSCOPED})


@gradient("flip")
def _flip_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (like_forward(op, "flip", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}),)


@gradient("reverse")
def _reverse_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    gradients = {"Out": wanted.kept(op, "X")}
    return (bare_op("reverse", {"X": output_gradients(op, "Out")}, gradients, {"axis": op.attrs["axis"]}),)


@gradient("unbind")
def _unbind_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (like_forward(op, "stack", {"X": output_gradients(op, "Out")}, {"Y": wanted.kept(op, "X")}),)


def _partial_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    """The gradient of a partial op, which carries the choice of columns and no other attribute."""
    inputs = {"X": op.inputs["X"], "Out@GRAD": output_gradients(op, "Out")}
    attrs = {name: op.attrs[name] for name in ("start_index", "length")}
    return (bare_op(f"{op.type}_grad", inputs, {"X@GRAD": wanted.placed(op, "X")}, attrs),)


gradient("partial_concat", "partial_sum")(_partial_gradient)


# Shapes

_BOUNDS = (("starts", "StartsTensor"), ("ends", "EndsTensor"), ("strides", "StridesTensor"))


def _span(axis: int, dim: int, start: int, end: int, step: int) -> tuple[int, int]:
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
    computed = any(slot in types or f"{slot}List" in types for _, slot in _BOUNDS)
    bounds = [ints_attr(op, name) for name, _ in _BOUNDS]
    for at, axis in enumerate(axes):
        if not 0 <= axis < len(dims):
            raise ShapeError(f"axes has {axis}, but Input is {describe(x)}", "Input")
        if computed or dims[axis] < 0 or flags[at : at + 1] == (-1,) or any(len(each) <= at for each in bounds):
            dims[axis] = -1
        else:
            start, end, step = (each[at] for each in bounds)
            try:
                dims[axis] = len(range(*_span(axis, dims[axis], start, end, step), abs(step)))
            except ValueError as reason:
                raise ShapeError(str(reason), "Input") from None
    gone = ints_attr(op, "decrease_axis")
    left = tuple(dim for at, dim in enumerate(dims) if at not in gone) or (1,)
    return {"Out": (TensorType(x.dtype, left, 0 if 0 in axes else x.lod_level),)}


shape_rule("flip", "roll")(outputs_like(Out="X"))


@shape_rule("reverse")
def _reverse(_op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X")._replace(lod_level=0),)}


@shape_rule("unbind", "unstack")
def _unbind(op: Op, types: Types) -> Types:
    x, slot = one(types, "X"), "Out" if op.type == "unbind" else "Y"
    axis = axis_of(op, x)
    parts = len(op.outputs[slot])
    if not fits(x.shape[axis : axis + 1], (parts,)):
        raise ShapeError(f"X is {describe(x)}, dim {axis} can't be cut into {parts} slices", "X")
    lod = x.lod_level if op.type == "unbind" and axis else 0
    # of one dim Fluid makes parts without dims, which are not known here
    part = TensorType(x.dtype, (*x.shape[:axis], *x.shape[axis + 1 :]), lod)
    return {slot: (part,) * parts}


@shape_rule("unstack_grad")
def _unstack_grad(op: Op, types: Types) -> Types:
    parts = several(types, "Y@GRAD")
    axis = axis_of(op, parts[0], len(parts[0].shape) + 1)
    dims = parts[0].shape
    return {"X@GRAD": (TensorType(parts[0].dtype, (*dims[:axis], len(parts), *dims[axis:])),)}


@shape_rule("expand_as")
def _expand_as(_op: Op, types: Types) -> Types:
    x, target = one(types, "X"), one(types, "target_tensor")
    if len(x.shape) != len(target.shape):
        disagree("X", x, "target_tensor", target)
    return {"Out": (TensorType(x.dtype, (-1,) * len(x.shape)),)}  # Fluid declares dims of 0


@shape_rule("expand_as_grad")
def _expand_as_grad(_op: Op, types: Types) -> Types:
    return {"X@GRAD": types.get("X", ())}  # Out@GRAD is declared like Out


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


# Kernels


def _numbers(name: str, tensor: Array | None, parts: Sequence[Array], attribute: tuple[int, ...]) -> tuple[int, ...]:
    if tensor is not None:
        return tuple(tensor.reshape(-1).tolist())
    return tuple(first(part) for part in parts) or attribute


def _steps(
    op: Op, dims: tuple[int, ...], tensors: Sequence[Array | None], lists: Sequence[Sequence[Array]]
) -> tuple[slice, ...]:
    """The index of what a strided_slice takes of a tensor of these dims. Raises ValueError where that is nothing."""
    axes = ints_attr(op, "axes")
    bounds: list[tuple[int, ...]] = []
    for (name, _), tensor, parts in zip(_BOUNDS, tensors, lists, strict=True):
        bounds.append(_numbers(name, tensor, parts, ints_attr(op, name)))
        if len(bounds[-1]) != len(axes):
            raise ValueError(f"{name} has {len(bounds[-1])} numbers, axes has {len(axes)}")
    index = [slice(None)] * len(dims)
    for axis, start, end, step in zip(axes, bounds[0], bounds[1], bounds[2], strict=True):
        if not 0 <= axis < len(dims):
            raise ValueError(f"axes has {axis}, but Input has {len(dims)} dims")
        low, high = _span(axis, dims[axis], start, end, step)
        index[axis] = slice(low, high, step)
        if step < 0:  # as in Fluid counted from the far end: that element is there, last
            count = len(range(low, high, -step))
            index[axis] = slice(low + (1 - count) * step, low - 1 if low else None, step) if count else slice(0)
    return tuple(index)


@kernel("strided_slice")
def _strided_slice_values(op: Op) -> Run:
    gone = ints_attr(op, "decrease_axis")

    def run(
        Input: Array,
        StartsTensor: Array | None,
        EndsTensor: Array | None,
        StridesTensor: Array | None,
        StartsTensorList: list[Array],
        EndsTensorList: list[Array],
        StridesTensorList: list[Array],
    ) -> Array:
        tensors = (StartsTensor, EndsTensor, StridesTensor)
        lists = (StartsTensorList, EndsTensorList, StridesTensorList)
        found = Input[_steps(op, Input.shape, tensors, lists)].copy()
        if not gone:
            return found
        return found.reshape(tuple(dim for at, dim in enumerate(found.shape) if at not in gone) or (1,))

    return run


@kernel("strided_slice_grad", "Input@GRAD", lod="none")
def _strided_slice_grad(op: Op) -> Run:
    def run(
        Input: Array,
        StartsTensor: Array | None,
        EndsTensor: Array | None,
        StridesTensor: Array | None,
        StartsTensorList: list[Array],
        EndsTensorList: list[Array],
        StridesTensorList: list[Array],
        Out_GRAD: Array,
    ) -> Array:
        tensors = (StartsTensor, EndsTensor, StridesTensor)
        lists = (StartsTensorList, EndsTensorList, StridesTensorList)
        found = np.zeros(Input.shape, Out_GRAD.dtype)
        part = found[_steps(op, Input.shape, tensors, lists)]
        part[...] = Out_GRAD.reshape(part.shape)
        return found

    return run


@kernel("flip")
@kernel("reverse", lod="none")
def _reversed(op: Op) -> Run:
    axes = ints_attr(op, "axis" if op.type == "reverse" else "dims")

    def run(X: Array) -> Array:
        return np.flip(X, axes).copy()

    return run


def _shifts(op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shifts, dims = ints_attr(op, "shifts"), ints_attr(op, "dims")
    if len(shifts) != len(dims):
        raise ValueError(f"shifts has {len(shifts)} numbers, dims has {len(dims)}")
    return shifts, dims


@kernel("roll")
def _roll_values(op: Op) -> Run:
    shifts, dims = _shifts(op)

    def run(X: Array) -> Array:
        return np.roll(X, shifts, dims)

    return run


@kernel("roll_grad", "X@GRAD", lod="none")
def _roll_grad(op: Op) -> Run:
    shifts, dims = _shifts(op)

    def run(Out_GRAD: Array) -> Array:
        return np.roll(Out_GRAD, tuple(-shift for shift in shifts), dims)

    return run


@kernel("unbind")
@kernel("unstack", "Y", lod="none")
def _unbind_values(op: Op) -> Run:
    axis, count = int_attr(op, "axis"), len(op.outputs["Out" if op.type == "unbind" else "Y"])

    def run(X: Array) -> list[Array]:
        if X.shape[axis] != count:
            raise ValueError(f"dim {axis} of X has {X.shape[axis]} elements, there are {count} variables for them")
        parts = np.moveaxis(X, axis, 0)
        return [part.copy() if X.ndim > 1 else part.reshape(1).copy() for part in parts]

    return run


@kernel("unstack_grad", "X@GRAD", lod="none")
def _unstack_grad_values(op: Op) -> Run:
    axis = int_attr(op, "axis")

    def run(Y_GRAD: list[Array], surroundings: Surroundings) -> Array:
        return stacked(Y_GRAD, axis, surroundings.declared(op.outputs["X@GRAD"][0]))

    return run


def _repeats(x: Array, target: Array) -> tuple[int, ...]:
    """How often x fits along each dim of the target. Raises ValueError where it does not."""
    if x.ndim != target.ndim or any(whole % part for part, whole in zip(x.shape, target.shape, strict=True)):
        raise ValueError(f"X has dims {list(x.shape)}, they can't be repeated up to {list(target.shape)}")
    return tuple(whole // part for part, whole in zip(x.shape, target.shape, strict=True))


@kernel("expand_as", lod="none")
def _expand_as_values(_op: Op) -> Run:
    def run(X: Array, target_tensor: Array) -> Array:
        return np.tile(X, _repeats(X, target_tensor))

    return run


@kernel("expand_as_grad", "X@GRAD", lod="none")
def _expand_as_grad_values(_op: Op) -> Run:
    def run(X: Array, target_tensor: Array, Out_GRAD: Array) -> Array:
        pairs = [dim for pair in zip(_repeats(X, target_tensor), X.shape, strict=True) for dim in pair]
        return np.add.reduce(Out_GRAD.reshape(pairs), axis=tuple(range(0, len(pairs), 2)))

    return run


def _columns(op: Op, width: int) -> slice:
    """The columns that a partial op takes of parts of this width. Raises ValueError if there are no such ones."""
    start, length = int_attr(op, "start_index"), int_attr(op, "length", -1)
    begin = start + width if start < 0 else start
    end = width if length < 0 else begin + length
    if not 0 <= begin < end <= width:
        raise ValueError(f"X has {width} columns, none from start_index {start} on for length {length}")
    return slice(begin, end)


@kernel("partial_concat", lod="none")
def _partial_concat_values(op: Op) -> Run:
    def run(X: list[Array]) -> Array:
        return np.concatenate([part[:, _columns(op, part.shape[1])] for part in X], axis=1)

    return run


@kernel("partial_sum", lod="none")
def _partial_sum_values(op: Op) -> Run:
    def run(X: list[Array]) -> Array:
        total = X[0][:, _columns(op, X[0].shape[1])].copy()
        for part in X[1:]:
            total += part[:, _columns(op, part.shape[1])]
        return total

    return run


@kernel("partial_concat_grad partial_sum_grad", "X@GRAD", lod="none")
def _partial_grad(op: Op) -> Run:
    side_by_side = op.type == "partial_concat_grad"

    def run(X: list[Array], Out_GRAD: Array) -> list[Array]:
        found: list[Array] = []
        for number, part in enumerate(X):
            columns = _columns(op, part.shape[1])
            width = columns.stop - columns.start
            begin = number * width if side_by_side else 0
            found.append(np.zeros(part.shape, Out_GRAD.dtype))
            found[-1][:, columns] = Out_GRAD[:, begin : begin + width]
        return found

    return run
