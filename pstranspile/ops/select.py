"""Parts of tensors, and tensors put together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from pstranspile.ir.model import Op, TensorType, Var
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Surroundings
from pstranspile.ops.gradient import Wanted, gradient, like_forward, output_gradients
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import first
from pstranspile.ops.schema import INTS, declare, declare_gradient, ints, optional
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    int_attr,
    ints_attr,
    one,
    several,
    shape_rule,
)
from pstranspile.ops.values import Array, LoDTensor

np = lazy_import("numpy")

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


def axis_of(op: Op, tensor: TensorType, rank: int = 0) -> int:
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


@gradient("split")
def _split_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "AxisTensor": op.inputs.get("AxisTensor", ())}
    return (like_forward(op, "concat", inputs, {"Out": wanted.kept(op, "X")}),)


# Kernels


def _axis_given(op: Op, tensor: Array | None) -> int:
    return int_attr(op, "axis") if tensor is None else first(tensor)


@kernel("concat", lod="own")
def _concat_values(op: Op) -> Run:
    def run(X: list[Array | LoDTensor], AxisTensor: Array | LoDTensor | None) -> Array | LoDTensor:
        axis = _axis_given(op, _data(AxisTensor))
        parts = [part for part in X if part is not None]
        whole = np.concatenate([_data(part) for part in parts], axis=axis)
        lods = [part.lod for part in parts if isinstance(part, LoDTensor)]
        if not lods:
            return whole
        if axis % whole.ndim:
            return LoDTensor(whole, lods[0])
        return LoDTensor(whole, _appended(lods)) if len(lods) == len(parts) else whole

    return run


def _data(value: Array | LoDTensor | None) -> Array:
    return value.data if isinstance(value, LoDTensor) else value


def _appended(lods: Sequence[list[list[int]]]) -> list[list[int]]:
    """The LoD of sequences one after another: the offsets of each part go on where those before end."""
    if any(len(lod) != len(lods[0]) for lod in lods):
        raise ValueError("the parts of X have LoDs of different numbers of levels")
    whole = [list(level) for level in lods[0]]
    for lod in lods[1:]:
        for level, more in zip(whole, lod, strict=True):
            level += [level[-1] + offset for offset in more[1:]]
    return whole


def _cut_up(x: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    """Parts of these sizes along an axis, one after another; views of x."""
    before = (slice(None),) * (axis % x.ndim)
    return [x[(*before, slice(end - size, end))] for size, end in zip(sizes, accumulate(sizes), strict=True)]


@kernel("concat_grad", "X@GRAD", lod="own")
def _concat_grad(op: Op) -> Run:
    def run(
        X: list[Array | LoDTensor], AxisTensor: Array | LoDTensor | None, Out_GRAD: Array | LoDTensor
    ) -> list[Array | LoDTensor]:
        axis = _axis_given(op, _data(AxisTensor))
        gradients = _cut_up(_data(Out_GRAD), axis, [_data(part).shape[axis] for part in X])
        return [
            LoDTensor(gradient, part.lod) if isinstance(part, LoDTensor) else gradient
            for part, gradient in zip(X, gradients, strict=True)
        ]

    return run


@kernel("split")
def _split_values(op: Op) -> Run:
    number, sections = int_attr(op, "num"), ints_attr(op, "sections")

    def run(X: Array, AxisTensor: Array | None, SectionsTensorList: list[Array]) -> list[Array]:
        axis = _axis_given(op, AxisTensor)
        asked = tuple(first(part) for part in SectionsTensorList) or sections
        if number > 0:
            size, left = divmod(X.shape[axis], number)
            if left:
                raise ValueError(f"dim {axis} of X has {X.shape[axis]} elements, not cut into {number} equal parts")
            sizes = [size] * number
        else:
            rest = X.shape[axis] - sum(size for size in asked if size >= 0)
            sizes = [rest if size < 0 else size for size in asked]
            if sum(sizes) != X.shape[axis] or min(sizes) < 0:
                raise ValueError(f"dim {axis} of X has {X.shape[axis]} elements, not cut into {list(asked)}")
        return [
            part.copy() for part in _cut_up(X, axis, sizes)
        ]  # X may be a parameter, which is updated in place later

    return run


@kernel("stack", "Y")
def _stack_values(op: Op) -> Run:
    axis = int_attr(op, "axis")

    def run(X: list[Array], surroundings: Surroundings) -> Array:
        return stacked(X, axis, surroundings.declared(op.outputs["Y"][0]))

    return run


def stacked(parts: Sequence[Array], axis: int, var: Var | None) -> Array:
    """The parts along a new dim; single elements that Fluid has as tensors without dims make one dim, as declared."""
    dims = parts[0].shape
    if all(part.shape == dims for part in parts):
        at = axis % (len(dims) + 1)
        wide = (*dims[:at], 1, *dims[at:])
        whole = np.concatenate([part.reshape(wide) for part in parts], axis=at)
    else:
        whole = np.stack(parts, axis=axis)  # which says what is wrong
    if parts[0].shape == (1,) and var is not None and var.tensor is not None and len(var.tensor.shape) == 1:
        return whole.reshape(-1)
    return whole


@kernel("stack_grad", "X@GRAD")
def _stack_grad_values(op: Op) -> Run:
    axis = int_attr(op, "axis")

    def run(Y_GRAD: Array) -> list[Array]:
        return list(np.moveaxis(Y_GRAD, axis, 0))

    return run


def _parts(op: Op) -> Run:
    """From the dims of a tensor, and the tensors that may say where to start and end, to an index."""
    axes, starts, ends = ints_attr(op, "axes"), ints_attr(op, "starts"), ints_attr(op, "ends")

    fixed: dict[int, tuple[slice, ...]] = {}
    """The index by the number of dims, where no tensor says where to start and end."""

    def given(tensor: Array | None, parts: Sequence[Array], attribute: tuple[int, ...]) -> tuple[int, ...]:
        if tensor is not None:
            return tuple(tensor.reshape(-1).tolist())
        return tuple(first(part) for part in parts) or attribute

    def index(
        dims: tuple[int, ...], start: Array | None, end: Array | None, start_parts: list[Array], end_parts: list[Array]
    ) -> tuple[slice, ...]:
        known = fixed.get(len(dims))
        if known is not None and start is None and end is None and not start_parts and not end_parts:
            return known
        found = [slice(None)] * len(dims)
        bounds = zip(axes, given(start, start_parts, starts), given(end, end_parts, ends), strict=True)
        for axis, low, high in bounds:
            # Python's slices count from the end and clamp as Fluid's
            found[axis] = slice(low, high)
        if start is None and end is None and not start_parts and not end_parts:
            fixed[len(dims)] = tuple(found)
        return tuple(found)

    return index


@kernel("slice")
def _slice_values(op: Op) -> Run:
    index, gone = _parts(op), ints_attr(op, "decrease_axis")

    def run(
        Input: Array,
        StartsTensor: Array | None,
        EndsTensor: Array | None,
        StartsTensorList: list[Array],
        EndsTensorList: list[Array],
    ) -> Array:
        found = Input[index(Input.shape, StartsTensor, EndsTensor, StartsTensorList, EndsTensorList)].copy()
        if not gone:
            return found
        left = tuple(dim for at, dim in enumerate(found.shape) if at not in gone)
        return found.reshape(left or (1,))

    return run


@kernel("slice_grad", "Input@GRAD", lod="none")
def _slice_grad(op: Op) -> Run:
    index = _parts(op)

    def run(
        Input: Array,
        StartsTensor: Array | None,
        EndsTensor: Array | None,
        StartsTensorList: list[Array],
        EndsTensorList: list[Array],
        Out_GRAD: Array,
    ) -> Array:
        found = np.zeros(Input.shape, Out_GRAD.dtype)
        part = found[index(Input.shape, StartsTensor, EndsTensor, StartsTensorList, EndsTensorList)]
        part[...] = Out_GRAD.reshape(part.shape)
        return found

    return run


def _times(op: Op, tensor: Array | None, parts: Sequence[Array]) -> tuple[int, ...]:
    if tensor is not None:
        return tuple(tensor.reshape(-1).tolist())
    return tuple(first(part) for part in parts) or ints_attr(op, "expand_times")


@kernel("expand")
def _expand_values(op: Op) -> Run:
    def run(X: Array, ExpandTimes: Array | None, expand_times_tensor: list[Array]) -> Array:
        return np.tile(X, _times(op, ExpandTimes, expand_times_tensor))

    return run


@kernel("expand_grad", "X@GRAD", lod="none")
def _expand_grad(op: Op) -> Run:
    def run(X: Array, ExpandTimes: Array | None, expand_times_tensor: list[Array], Out_GRAD: Array) -> Array:
        times = _times(op, ExpandTimes, expand_times_tensor)
        pairs = [dim for pair in zip(times, X.shape, strict=True) for dim in pair]
        return np.add.reduce(Out_GRAD.reshape(pairs), axis=tuple(range(0, len(pairs), 2)))

    return run
