"""Kernels. Tensors sliced, repeated, reversed and rolled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.kernels.numeric import first
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.shapes import Dims
from pstranspile.ops.tensors.slicing import BOUNDS, span
from pstranspile.values import Array


def _parts(op: Op) -> Run:
    """A function from the dims of a tensor, and optional tensors with starts and ends, to an index."""
    axes, starts, ends = ints_attr(op, "axes"), ints_attr(op, "starts"), ints_attr(op, "ends")

    fixed: dict[int, tuple[slice, ...]] = {}
    """The index by rank, if no tensor gives starts or ends."""

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
        result = [slice(None)] * len(dims)
        bounds = zip(axes, given(start, start_parts, starts), given(end, end_parts, ends), strict=True)
        for axis, low, high in bounds:
            # Python's slices count from the end and clamp like Fluid's
            result[axis] = slice(low, high)
        if start is None and end is None and not start_parts and not end_parts:
            fixed[len(dims)] = tuple(result)
        return tuple(result)

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
        result = Input[index(Input.shape, StartsTensor, EndsTensor, StartsTensorList, EndsTensorList)].copy()
        if not gone:
            return result
        left = tuple(dim for at, dim in enumerate(result.shape) if at not in gone)
        return result.reshape(left or (1,))

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
        result = np.zeros(Input.shape, Out_GRAD.dtype)
        part = result[index(Input.shape, StartsTensor, EndsTensor, StartsTensorList, EndsTensorList)]
        part[...] = Out_GRAD.reshape(part.shape)
        return result

    return run


def _times(op: Op, tensor: Array | None, parts: Sequence[Array]) -> tuple[int, ...]:
    if tensor is not None:
        return tuple(tensor.reshape(-1).tolist())
    return tuple(first(part) for part in parts) or ints_attr(op, "expand_times")


@plain_kernel("expand")
def _expand_values(X: Array, ExpandTimes: Array | None, expand_times_tensor: list[Array], *, op: Op) -> Array:
    return np.tile(X, _times(op, ExpandTimes, expand_times_tensor))


@kernel("expand_grad", "X@GRAD", lod="none")
def _expand_grad(op: Op) -> Run:
    def run(X: Array, ExpandTimes: Array | None, expand_times_tensor: list[Array], Out_GRAD: Array) -> Array:
        times = _times(op, ExpandTimes, expand_times_tensor)
        pairs = [dim for pair in zip(times, X.shape, strict=True) for dim in pair]
        return np.add.reduce(Out_GRAD.reshape(pairs), axis=tuple(range(0, len(pairs), 2)))

    return run


def _numbers(name: str, tensor: Array | None, parts: Sequence[Array], attribute: tuple[int, ...]) -> tuple[int, ...]:
    if tensor is not None:
        return tuple(tensor.reshape(-1).tolist())
    return tuple(first(part) for part in parts) or attribute


def _steps(
    op: Op, dims: tuple[int, ...], tensors: Sequence[Array | None], lists: Sequence[Sequence[Array]]
) -> tuple[slice, ...]:
    """The index of a strided_slice of a tensor of these dims. Raises ValueError if the result is empty."""
    axes = ints_attr(op, "axes")
    bounds: list[tuple[int, ...]] = []
    for (name, _), tensor, parts in zip(BOUNDS, tensors, lists, strict=True):
        bounds.append(_numbers(name, tensor, parts, ints_attr(op, name)))
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
    pairs = [dim for pair in zip(_repeats(X, target_tensor), X.shape, strict=True) for dim in pair]
    return np.add.reduce(Out_GRAD.reshape(pairs), axis=tuple(range(0, len(pairs), 2)))
