"""Kernels. Tensors sliced, repeated, reversed and rolled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.shapes import Dims
from pstranspile.ops.tensors.slicing import BOUNDS, span
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import listed
from pstranspile.runtime.values import Array


def _parts(op: Op) -> Run:
    """A function from the dims of a tensor, and optional tensors with starts and ends, to an index."""
    axes, starts, ends = ints_attr(op, "axes"), ints_attr(op, "starts"), ints_attr(op, "ends")

    fixed: dict[int, tuple[slice, ...]] = {}
    """The index by rank, if no tensor gives starts or ends."""

    def index(
        dims: tuple[int, ...], start: Array | None, end: Array | None, start_parts: list[Array], end_parts: list[Array]
    ) -> tuple[slice, ...]:
        known = fixed.get(len(dims))
        if known is not None and start is None and end is None and not start_parts and not end_parts:
            return known
        result = [slice(None)] * len(dims)
        bounds = zip(axes, listed(start, start_parts, starts), listed(end, end_parts, ends), strict=True)
        for axis, low, high in bounds:
            # Python's slices count from the end and clamp like Fluid's
            result[axis] = slice(low, high)
        if start is None and end is None and not start_parts and not end_parts:
            fixed[len(dims)] = tuple(result)
        return tuple(result)

    return index


@plain_kernel("slice")
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
    """The sum of a gradient over the repeats of a tensor of these dims."""
    pairs = [dim for pair in zip(times, dims, strict=True) for dim in pair]
    return np.add.reduce(gradient.reshape(pairs), axis=tuple(range(0, len(pairs), 2)))


@plain_kernel("expand")
def _expand_values(
    X: Array, ExpandTimes: Array | None, expand_times_tensor: list[Array], *, expand_times: Dims
) -> Array:
    return np.tile(X, listed(ExpandTimes, expand_times_tensor, expand_times))


@plain_kernel("expand_grad", "X@GRAD", lod="none")
def _expand_grad(
    X: Array, ExpandTimes: Array | None, expand_times_tensor: list[Array], Out_GRAD: Array, *, expand_times: Dims
) -> Array:
    return _sum_of_repeats(Out_GRAD, listed(ExpandTimes, expand_times_tensor, expand_times), X.shape)


def _steps(
    op: Op, dims: tuple[int, ...], tensors: Sequence[Array | None], lists: Sequence[Sequence[Array]]
) -> tuple[slice, ...]:
    """The index of a strided_slice of a tensor of these dims. Raises ValueError if the result is empty."""
    axes = ints_attr(op, "axes")
    bounds: list[tuple[int, ...]] = []
    for (name, _), tensor, parts in zip(BOUNDS, tensors, lists, strict=True):
        bounds.append(listed(tensor, parts, ints_attr(op, name)))
        if len(bounds[-1]) != len(axes):
            raise ValueError(f"{name} has {len(bounds[-1])} numbers, axes has {len(axes)}")
    index = [slice(None)] * len(dims)
    for axis, start, end, step in zip(axes, bounds[0], bounds[1], bounds[2], strict=True):
        if not 0 <= axis < len(dims):
            raise ValueError(f"axes has {axis}, but Input has {len(dims)} dims")
        low, high = span(axis, dims[axis], start, end, step)
        index[axis] = slice(low, high, step)
        if step < 0:  # as in Fluid counted from the far end: that element is there, last
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
