"""Kernels. Changes of shape. XShape holds the shape of X after a leading 0, and no data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from pstranspile.ir.model import Op, Var
from pstranspile.ops.attributes import flag, int_attr, ints_attr, text
from pstranspile.ops.shapes import Dims, size
from pstranspile.ops.tensors.shape import BOUNDS, Padding, image_padding, pairs, span
from pstranspile.runtime.kernels.kernel import Run, Surroundings, has_output, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import first_number, integers_from, plain
from pstranspile.runtime.kernels.rows import add_rows
from pstranspile.runtime.kernels.tensors.fill import asked_dims
from pstranspile.runtime.values import Array, LoDTensor


def _with_x_shape(op: Op, change: Callable[[Array], Array]) -> Callable[[Array], tuple[Array, Array | None]]:
    """The kernel of an op with XShape: it returns a copy of `change(X)`, as X may be updated in place later, and
    XShape.
    """
    named = has_output(op, "XShape")

    def run(x: Array) -> tuple[Array, Array | None]:
        return change(x).copy(), np.empty((0, *x.shape), x.dtype) if named else None

    return run


def _reshaped_inline(op: Op) -> str | None:
    """The expression of a reshape to dims that stand in the op, of which none is that of X."""
    dims = ints_attr(op, "shape")
    computed = op.inputs.get("Shape") or op.inputs.get("ShapeTensor")
    return None if computed or 0 in dims or has_output(op, "XShape") else f"{{X}}.reshape({dims!r}).copy()"


@plain_kernel("reshape reshape2", "Out XShape", spares="XShape", inline=_reshaped_inline, new=True)
def _reshape_values(
    X: Array, Shape: Array | None, ShapeTensor: list[Array], *, op: Op, shape: Dims, wants_XShape: bool
) -> tuple[Array, Array | None]:
    dims = shape if Shape is None and not ShapeTensor else asked_dims(op, None if ShapeTensor else Shape, ShapeTensor)
    if 0 in dims:
        dims = [X.shape[at] if dim == 0 and at < X.ndim else dim for at, dim in enumerate(dims)]
    return X.reshape(dims).copy(), np.empty((0, *X.shape), X.dtype) if wants_XShape else None


def _transposed_inline(op: Op) -> str | None:
    """The expression of a transpose whose XShape nothing reads."""
    return None if has_output(op, "XShape") else f"{{X}}.transpose({ints_attr(op, 'axis')!r}).copy()"


@kernel("transpose transpose2", "Out XShape", lod="none", spares="XShape", inline=_transposed_inline, new=True)
def _transpose_values(op: Op) -> Run:
    order = ints_attr(op, "axis")
    make = _with_x_shape(op, lambda x: x.transpose(order))

    def run(X: Array) -> tuple[Array, Array | None]:
        return make(X)

    return run


@kernel("squeeze squeeze2", "Out XShape", spares="XShape", new=True)
def _squeeze_values(op: Op) -> Run:
    axes = ints_attr(op, "axes")
    ones_only = bool(axes) and flag(op, "ones_only")

    def remove_axes(x: Array) -> Array:
        result = x.squeeze(tuple(axis for axis in axes if x.shape[axis] == 1) if ones_only else axes or None)
        return result if result.ndim else result.reshape(1)

    make = _with_x_shape(op, remove_axes)

    def run(X: Array) -> tuple[Array, Array | None]:
        return make(X)

    return run


@kernel("unsqueeze unsqueeze2", "Out XShape", spares="XShape", new=True)
def _unsqueeze_values(op: Op) -> Run:
    given_axes = ints_attr(op, "axes")

    def run(X: Array, AxesTensor: Array | None, AxesTensorList: list[Array]) -> tuple[Array, Array | None]:
        axes = given_axes
        if AxesTensor is not None:
            axes = tuple(AxesTensor.reshape(-1).tolist())
        elif AxesTensorList:
            axes = tuple(first_number(part) for part in AxesTensorList)
        dims = list(X.shape)
        for axis in axes:
            at = axis if axis >= 0 else axis + len(dims) + 1
            if not 0 <= at <= len(dims):
                raise ValueError(f"axes has {axis}, but X has {len(dims)} dims")
            dims.insert(at, 1)
        return _with_x_shape(op, lambda x: x.reshape(dims))(X)

    return run


@kernel("flatten flatten2", "Out XShape", spares="XShape", new=True)
def _flatten_values(op: Op) -> Run:
    axis = int_attr(op, "axis", 1)
    make = _with_x_shape(op, lambda x: x.reshape(size(x.shape[:axis]), size(x.shape[axis:])))

    def run(X: Array) -> tuple[Array, Array | None]:
        return make(X)

    return run


@plain_kernel("reshape2_grad squeeze2_grad unsqueeze2_grad flatten2_grad", "X@GRAD")
def _from_x_shape_values(XShape: Array, Out_GRAD: Array) -> Array:
    return Out_GRAD.reshape(XShape.shape[1:])


@plain_kernel("reshape_grad squeeze_grad unsqueeze_grad flatten_grad", "X@GRAD")
def _like_x(X: Array, Out_GRAD: Array) -> Array:
    return Out_GRAD.reshape(X.shape)


@kernel("transpose_grad transpose2_grad", "X@GRAD", lod="none")
def _transpose_grad(op: Op) -> Run:
    order = ints_attr(op, "axis")
    inverse = tuple(order.index(at) for at in range(len(order)))

    def run(Out_GRAD: Array) -> Array:
        return np.ascontiguousarray(Out_GRAD.transpose(inverse))

    return run


@plain_kernel("shape", lod="none")
def _shape_values(Input: Array) -> Array:
    return np.array(Input.shape, "int32")


@plain_kernel("size", lod="none")
def _size_values(Input: Array) -> Array:
    return np.array([Input.size], "int64")


@plain_kernel("is_empty", lod="none")
def _is_empty_values(X: Array) -> Array:
    return np.array([X.size == 0])


# Kernels. Tensors concatenated, stacked and split.


def _axis_given(op: Op, tensor: Array | None) -> int:
    return int_attr(op, "axis") if tensor is None else first_number(tensor)


@plain_kernel("concat", lod="own")
def _concat_values(
    X: list[Array | LoDTensor],
    AxisTensor: Array | LoDTensor | None,
    *,
    given: int = per_op(lambda op: int_attr(op, "axis")),
) -> Array | LoDTensor:
    axis = given if AxisTensor is None else first_number(plain(AxisTensor))
    if {part.__class__ for part in X} == {np.ndarray}:  # the usual case
        return np.concatenate(X, axis=axis)
    parts = [part for part in X if part is not None]
    whole = np.concatenate([plain(part) for part in parts], axis=axis)
    lods = [part.lod for part in parts if isinstance(part, LoDTensor)]
    if not lods:
        return whole
    if axis % whole.ndim:
        return LoDTensor(whole, lods[0])
    return LoDTensor(whole, _concat_lods(lods)) if len(lods) == len(parts) else whole


def _concat_lods(lods: Sequence[list[list[int]]]) -> list[list[int]]:
    """The LoD of concatenated sequences: the offsets of each part continue those of the part before."""
    if any(len(lod) != len(lods[0]) for lod in lods):
        raise ValueError("the parts of X have LoDs of different numbers of levels")
    whole = [list(level) for level in lods[0]]
    for lod in lods[1:]:
        for level, more in zip(whole, lod, strict=True):
            level += [level[-1] + offset for offset in more[1:]]
    return whole


def _cut_up(x: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    """Consecutive parts of these sizes along an axis, as views of x."""
    ends = zip(sizes, accumulate(sizes), strict=True)
    if axis % x.ndim == 1:  # the usual case
        return [x[:, end - size : end] for size, end in ends]
    before = (slice(None),) * (axis % x.ndim)
    return [x[(*before, slice(end - size, end))] for size, end in ends]


@plain_kernel("concat_grad", "X@GRAD", lod="own")
def _concat_grad(
    X: list[Array | LoDTensor],
    AxisTensor: Array | LoDTensor | None,
    Out_GRAD: Array | LoDTensor,
    *,
    given: int = per_op(lambda op: int_attr(op, "axis")),
) -> list[Array | LoDTensor]:
    axis = given if AxisTensor is None else first_number(plain(AxisTensor))
    gradients = _cut_up(plain(Out_GRAD), axis, [plain(part).shape[axis] for part in X])
    return [
        LoDTensor(gradient, part.lod) if isinstance(part, LoDTensor) else gradient
        for part, gradient in zip(X, gradients, strict=True)
    ]


@plain_kernel("split")
def _split_values(
    X: Array, AxisTensor: Array | None, SectionsTensorList: list[Array], *, op: Op, num: int, sections: Dims
) -> list[Array]:
    axis = _axis_given(op, AxisTensor)
    asked = tuple(first_number(part) for part in SectionsTensorList) or sections
    if num > 0:
        size, left = divmod(X.shape[axis], num)
        if left:
            raise ValueError(f"dim {axis} of X has {X.shape[axis]} elements, not cut into {num} equal parts")
        sizes = [size] * num
    else:
        rest = X.shape[axis] - sum(size for size in asked if size >= 0)
        sizes = [rest if size < 0 else size for size in asked]
        if sum(sizes) != X.shape[axis] or min(sizes) < 0:
            raise ValueError(f"dim {axis} of X has {X.shape[axis]} elements, not cut into {list(asked)}")
    return [part.copy() for part in _cut_up(X, axis, sizes)]  # X may be a parameter, which is updated in place later


@plain_kernel("stack", "Y")
def _stack_values(X: list[Array], surroundings: Surroundings, *, op: Op, axis: int) -> Array:
    return stack_parts(X, axis, surroundings.declaration(op.outputs["Y"][0]))


def stack_parts(parts: Sequence[Array], axis: int, var: Var | None) -> Array:
    """The parts along a new dim. Single elements, which are 0-d tensors in Fluid, form one dim as declared."""
    dims = parts[0].shape
    if all(part.shape == dims for part in parts):
        at = axis % (len(dims) + 1)
        wide = (*dims[:at], 1, *dims[at:])
        whole = np.concatenate([part.reshape(wide) for part in parts], axis=at)
    else:
        whole = np.stack(parts, axis=axis)  # raises the error that describes what is wrong
    if parts[0].shape == (1,) and var is not None and var.tensor is not None and len(var.tensor.shape) == 1:
        return whole.reshape(-1)
    return whole


@plain_kernel("stack_grad", "X@GRAD")
def _stack_grad_values(Y_GRAD: Array, *, axis: int) -> list[Array]:
    return list(np.moveaxis(Y_GRAD, axis, 0))


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


@plain_kernel("unstack_grad", "X@GRAD", lod="none")
def _unstack_grad_values(Y_GRAD: list[Array], surroundings: Surroundings, *, op: Op, axis: int) -> Array:
    return stack_parts(Y_GRAD, axis, surroundings.declaration(op.outputs["X@GRAD"][0]))


def _columns(op: Op, width: int) -> slice:
    """The columns that a partial op selects from parts of this width. Raises ValueError if they don't exist."""
    start, length = int_attr(op, "start_index"), int_attr(op, "length", -1)
    begin = start + width if start < 0 else start
    end = width if length < 0 else begin + length
    if not 0 <= begin < end <= width:
        raise ValueError(f"X has {width} columns, none from start_index {start} on for length {length}")
    return slice(begin, end)


@plain_kernel("partial_concat", lod="none")
def _partial_concat_values(X: list[Array], *, op: Op) -> Array:
    return np.concatenate([part[:, _columns(op, part.shape[1])] for part in X], axis=1)


@plain_kernel("partial_sum", lod="none")
def _partial_sum_values(X: list[Array], *, op: Op) -> Array:
    total = X[0][:, _columns(op, X[0].shape[1])].copy()
    for part in X[1:]:
        total += part[:, _columns(op, part.shape[1])]
    return total


@plain_kernel("partial_concat_grad partial_sum_grad", "X@GRAD", lod="none")
def _partial_grad(
    X: list[Array], Out_GRAD: Array, *, side_by_side: bool = per_op(lambda op: op.type == "partial_concat_grad"), op: Op
) -> list[Array]:
    result: list[Array] = []
    for number, part in enumerate(X):
        columns = _columns(op, part.shape[1])
        width = columns.stop - columns.start
        begin = number * width if side_by_side else 0
        result.append(np.zeros(part.shape, Out_GRAD.dtype))
        result[-1][:, columns] = Out_GRAD[:, begin : begin + width]
    return result


# Kernels. Tensors with their edges padded or cropped.


def _inner(dims: Dims, padding: Padding) -> tuple[slice, ...]:
    """The slice of the elements inside their padding."""
    return tuple(slice(before, before + dim) for dim, (before, _) in zip(dims, padding, strict=True))


@plain_kernel("pad")
def _pad_values(
    X: Array, *, padding: Padding = per_op(lambda op: pairs(ints_attr(op, "paddings"))), pad_value: float
) -> Array:
    return np.pad(X, padding, constant_values=pad_value)


@plain_kernel("pad_grad", "X@GRAD", lod="none")
def _pad_grad(Out_GRAD: Array, *, padding: Padding = per_op(lambda op: pairs(ints_attr(op, "paddings")))) -> Array:
    dims = tuple(dim - sum(around) for dim, around in zip(Out_GRAD.shape, padding, strict=True))
    return np.ascontiguousarray(Out_GRAD[_inner(dims, padding)])


def _given_padding(op: Op, paddings: Array | None) -> Padding:
    return image_padding(op, integers_from(paddings, None, ints_attr(op, "paddings")))


def _mode(op: Op, dims: Dims, padding: Padding) -> str:
    """How to fill the padding. Raises ValueError for other modes, and for reflections of more than there is."""
    mode = text(op, "mode")
    if mode not in ("constant", "reflect", "edge"):
        raise ValueError(f"mode is {mode!r}, not constant, reflect or edge")
    if mode == "reflect" and any(max(around) >= dim for dim, around in zip(dims, padding, strict=True) if any(around)):
        raise ValueError(f"the padding {padding} reflects more elements than X has, whose dims are {list(dims)}")
    return mode


@plain_kernel("pad2d")
def _pad2d_values(X: Array, Paddings: Array | None, *, op: Op, pad_value: float) -> Array:
    padding = _given_padding(op, Paddings)
    mode = _mode(op, X.shape, padding)
    return np.pad(X, padding, constant_values=pad_value) if mode == "constant" else np.pad(X, padding, mode=mode)


@plain_kernel("pad2d_grad", "X@GRAD", lod="none")
def _pad2d_grad(X: Array, Paddings: Array | None, Out_GRAD: Array, *, op: Op) -> Array:
    padding = _given_padding(op, Paddings)
    mode = _mode(op, X.shape, padding)
    if mode == "constant":
        return np.ascontiguousarray(Out_GRAD[_inner(X.shape, padding)])
    result = Out_GRAD
    for axis, around in enumerate(padding):
        if any(around):
            source = np.pad(np.arange(X.shape[axis]), around, mode=mode)
            result = gradient_of_take(result, axis, source, X.shape[axis])
    return result


def gradient_of_take(gradient: Array, axis: int, source: Array, dim: int) -> Array:
    """The adjoint of `np.take(x, source, axis)`, where x has `dim` elements along the axis."""
    moved = np.moveaxis(gradient, axis, 0)
    result = np.zeros((dim, *moved.shape[1:]), gradient.dtype)
    add_rows(result, source, moved)
    return np.ascontiguousarray(np.moveaxis(result, 0, axis))


@plain_kernel("pad_constant_like", lod="none")
def _pad_constant_like_values(X: Array, Y: Array, *, pad_value: float) -> Array:
    if X.ndim != Y.ndim or any(small > big for small, big in zip(Y.shape, X.shape, strict=True)):
        raise ValueError(f"Y has the dims {list(Y.shape)}, which don't fit into those of X, {list(X.shape)}")
    result = np.full(X.shape, pad_value, Y.dtype)
    result[tuple(map(slice, Y.shape))] = Y
    return result


@plain_kernel("pad_constant_like_grad", "Y@GRAD", lod="none")
def _pad_constant_like_grad(Y: Array, Out_GRAD: Array) -> Array:
    return np.ascontiguousarray(Out_GRAD[tuple(map(slice, Y.shape))])


def _window(x: Array, offsets: Dims, shape: Dims) -> tuple[slice, ...]:
    """The slice of x from `offsets` on with the dims `shape`; -1 means up to the end. Raises ValueError if x is
    smaller.
    """
    offsets = offsets or (0,) * x.ndim
    if len(offsets) != x.ndim or len(shape) != x.ndim:
        raise ValueError(f"X has {x.ndim} dims, offsets is {list(offsets)}, shape is {list(shape)}")
    result: list[slice] = []
    for dim, start, length in zip(x.shape, offsets, shape, strict=True):
        end = dim if length < 0 else start + length
        if not 0 <= start <= end <= dim:
            raise ValueError(f"X has the dims {list(x.shape)}, not {list(shape)} from {list(offsets)} on")
        result.append(slice(start, end))
    return tuple(result)


def _offsets(op: Op, tensor: Array | None, parts: list[Array] | None) -> Dims:
    return integers_from(None if parts else tensor, parts, ints_attr(op, "offsets"))


@plain_kernel("crop", lod="none")
def _crop_values(X: Array, Y: Array | None, Offsets: Array | None, *, op: Op) -> Array:
    shape = ints_attr(op, "shape") if Y is None else Y.shape
    return X[_window(X, integers_from(Offsets, None, ints_attr(op, "offsets")), shape)].copy()


@kernel("crop_tensor", lod="none")
def _crop_tensor_values(op: Op) -> Run:
    def run(
        X: Array,
        Shape: Array | None,
        Offsets: Array | None,
        ShapeTensor: list[Array] | None,
        OffsetsTensor: list[Array] | None,
    ) -> Array:
        dims = integers_from(None if ShapeTensor else Shape, ShapeTensor, ints_attr(op, "shape"))
        return X[_window(X, _offsets(op, Offsets, OffsetsTensor), dims)].copy()

    return run


@plain_kernel("crop_grad crop_tensor_grad", "X@GRAD", lod="none")
def _crop_grad(X: Array, Offsets: Array | None, OffsetsTensor: list[Array] | None, Out_GRAD: Array, *, op: Op) -> Array:
    result = np.zeros(X.shape, Out_GRAD.dtype)
    result[_window(X, _offsets(op, Offsets, OffsetsTensor), Out_GRAD.shape)] = Out_GRAD
    return result


# Kernels. Tensors sliced, repeated, reversed and rolled.


def _parts(op: Op) -> Run:
    """A function from the dims of a tensor, and optional tensors with starts and ends, to the index of the slice."""
    axes, starts, ends = ints_attr(op, "axes"), ints_attr(op, "starts"), ints_attr(op, "ends")

    fixed: dict[int, tuple[slice, ...]] = {}
    """The index by rank, if neither starts nor ends come as tensors."""

    def index(
        dims: tuple[int, ...], start: Array | None, end: Array | None, start_parts: list[Array], end_parts: list[Array]
    ) -> tuple[slice, ...]:
        known = fixed.get(len(dims))
        if known is not None and start is None and end is None and not start_parts and not end_parts:
            return known
        result = [slice(None)] * len(dims)
        bounds = zip(axes, integers_from(start, start_parts, starts), integers_from(end, end_parts, ends), strict=True)
        for axis, low, high in bounds:
            # Python's slices count from the end and clamp like Fluid's
            result[axis] = slice(low, high)
        if start is None and end is None and not start_parts and not end_parts:
            fixed[len(dims)] = tuple(result)
        return tuple(result)

    return index


@plain_kernel("slice", lod=lambda op: "none" if ints_attr(op, "axes")[:1] == (0,) else "share")
def _slice_values(
    Input: Array,
    StartsTensor: Array | None,
    EndsTensor: Array | None,
    StartsTensorList: list[Array],
    EndsTensorList: list[Array],
    *,
    index: Run = per_op(_parts),
    decrease_axis: Dims,
) -> Array:
    result = Input[index(Input.shape, StartsTensor, EndsTensor, StartsTensorList, EndsTensorList)].copy()
    if not decrease_axis:
        return result
    left = tuple(dim for at, dim in enumerate(result.shape) if at not in decrease_axis)
    return result.reshape(left or (1,))


@plain_kernel("slice_grad", "Input@GRAD", lod="none")
def _slice_grad(
    Input: Array,
    StartsTensor: Array | None,
    EndsTensor: Array | None,
    StartsTensorList: list[Array],
    EndsTensorList: list[Array],
    Out_GRAD: Array,
    *,
    index: Run = per_op(_parts),
) -> Array:
    result = np.zeros(Input.shape, Out_GRAD.dtype)
    part = result[index(Input.shape, StartsTensor, EndsTensor, StartsTensorList, EndsTensorList)]
    part[...] = Out_GRAD.reshape(part.shape)
    return result


def _sum_of_repeats(gradient: Array, times: Dims, dims: Dims) -> Array:
    """The gradient of a tensor of dims `dims` that was repeated: the sum over the repeats."""
    pairs = [dim for pair in zip(times, dims, strict=True) for dim in pair]
    return np.add.reduce(gradient.reshape(pairs), axis=tuple(range(0, len(pairs), 2)))


@plain_kernel("expand")
def _expand_values(
    X: Array, ExpandTimes: Array | None, expand_times_tensor: list[Array], *, expand_times: Dims
) -> Array:
    return np.tile(X, integers_from(ExpandTimes, expand_times_tensor, expand_times))


@plain_kernel("expand_grad", "X@GRAD", lod="none")
def _expand_grad(
    X: Array, ExpandTimes: Array | None, expand_times_tensor: list[Array], Out_GRAD: Array, *, expand_times: Dims
) -> Array:
    return _sum_of_repeats(Out_GRAD, integers_from(ExpandTimes, expand_times_tensor, expand_times), X.shape)


def _steps(
    op: Op, dims: tuple[int, ...], tensors: Sequence[Array | None], lists: Sequence[Sequence[Array]]
) -> tuple[slice, ...]:
    """The index of a strided_slice of a tensor of these dims. Raises ValueError if the result is empty."""
    axes = ints_attr(op, "axes")
    bounds: list[tuple[int, ...]] = []
    for (name, _), tensor, parts in zip(BOUNDS, tensors, lists, strict=True):
        bounds.append(integers_from(tensor, parts, ints_attr(op, name)))
        if len(bounds[-1]) != len(axes):
            raise ValueError(f"{name} has {len(bounds[-1])} numbers, axes has {len(axes)}")
    index = [slice(None)] * len(dims)
    for axis, start, end, step in zip(axes, bounds[0], bounds[1], bounds[2], strict=True):
        if not 0 <= axis < len(dims):
            raise ValueError(f"axes has {axis}, but Input has {len(dims)} dims")
        low, high = span(axis, dims[axis], start, end, step)
        index[axis] = slice(low, high, step)
        if step < 0:  # as in Fluid, counted from the other end: the element is included, as the last one
            count = len(range(low, high, -step))
            index[axis] = slice(low + (1 - count) * step, low - 1 if low else None, step) if count else slice(0)
    return tuple(index)


@plain_kernel("strided_slice")
def _strided_slice_values(
    Input: Array,
    StartsTensor: Array | None,
    EndsTensor: Array | None,
    StridesTensor: Array | None,
    StartsTensorList: list[Array],
    EndsTensorList: list[Array],
    StridesTensorList: list[Array],
    *,
    op: Op,
    decrease_axis: Dims,
) -> Array:
    tensors = (StartsTensor, EndsTensor, StridesTensor)
    lists = (StartsTensorList, EndsTensorList, StridesTensorList)
    result = Input[_steps(op, Input.shape, tensors, lists)].copy()
    if not decrease_axis:
        return result
    return result.reshape(tuple(dim for at, dim in enumerate(result.shape) if at not in decrease_axis) or (1,))


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
        result = np.zeros(Input.shape, Out_GRAD.dtype)
        part = result[_steps(op, Input.shape, tensors, lists)]
        part[...] = Out_GRAD.reshape(part.shape)
        return result

    return run


@kernel("flip")
@kernel("reverse", lod="none")
def _flip(op: Op) -> Run:
    axes = ints_attr(op, "axis" if op.type == "reverse" else "dims")

    def run(X: Array) -> Array:
        return np.flip(X, axes).copy()

    return run


def _shifts(op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shifts, dims = ints_attr(op, "shifts"), ints_attr(op, "dims")
    if len(shifts) != len(dims):
        raise ValueError(f"shifts has {len(shifts)} numbers, dims has {len(dims)}")
    return shifts, dims


@plain_kernel("roll")
def _roll_values(X: Array, *, shifts: tuple[Dims, Dims] = per_op(_shifts)) -> Array:
    return np.roll(X, *shifts)


@plain_kernel("roll_grad", "X@GRAD", lod="none")
def _roll_grad(Out_GRAD: Array, *, shifts: tuple[Dims, Dims] = per_op(_shifts)) -> Array:
    return np.roll(Out_GRAD, tuple(-shift for shift in shifts[0]), shifts[1])


def _repeats(x: Array, target: Array) -> tuple[int, ...]:
    """The number of repeats of x along each dim of the target. Raises ValueError if x does not fit."""
    if x.ndim != target.ndim or any(whole % part for part, whole in zip(x.shape, target.shape, strict=True)):
        raise ValueError(f"X has dims {list(x.shape)}, they can't be repeated up to {list(target.shape)}")
    return tuple(whole // part for part, whole in zip(x.shape, target.shape, strict=True))


@plain_kernel("expand_as", lod="none")
def _expand_as_values(X: Array, target_tensor: Array) -> Array:
    return np.tile(X, _repeats(X, target_tensor))


@plain_kernel("expand_as_grad", "X@GRAD", lod="none")
def _expand_as_grad_values(X: Array, target_tensor: Array, Out_GRAD: Array) -> Array:
    return _sum_of_repeats(Out_GRAD, _repeats(X, target_tensor), X.shape)
