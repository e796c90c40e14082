"""Kernels. Tensors concatenated, stacked and split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from pstranspile.ir.model import Op, Var
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.shapes import Dims
from pstranspile.runtime.kernels.context import Surroundings
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import first
from pstranspile.runtime.values import Array, LoDTensor


def _axis_given(op: Op, tensor: Array | None) -> int:
    return int_attr(op, "axis") if tensor is None else first(tensor)


@plain_kernel("concat", lod="own")
def _concat_values(X: list[Array | LoDTensor], AxisTensor: Array | LoDTensor | None, *, op: Op) -> Array | LoDTensor:
    axis = _axis_given(op, _data(AxisTensor))
    if {part.__class__ for part in X} == {np.ndarray}:  # the usual case
        return np.concatenate(X, axis=axis)
    parts = [part for part in X if part is not None]
    whole = np.concatenate([_data(part) for part in parts], axis=axis)
    lods = [part.lod for part in parts if isinstance(part, LoDTensor)]
    if not lods:
        return whole
    if axis % whole.ndim:
        return LoDTensor(whole, lods[0])
    return LoDTensor(whole, _appended(lods)) if len(lods) == len(parts) else whole


def _data(value: Array | LoDTensor | None) -> Array:
    return value.data if isinstance(value, LoDTensor) else value


def _appended(lods: Sequence[list[list[int]]]) -> list[list[int]]:
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
    before = (slice(None),) * (axis % x.ndim)
    return [x[(*before, slice(end - size, end))] for size, end in zip(sizes, accumulate(sizes), strict=True)]


@plain_kernel("concat_grad", "X@GRAD", lod="own")
def _concat_grad(
    X: list[Array | LoDTensor], AxisTensor: Array | LoDTensor | None, Out_GRAD: Array | LoDTensor, *, op: Op
) -> list[Array | LoDTensor]:
    axis = _axis_given(op, _data(AxisTensor))
    gradients = _cut_up(_data(Out_GRAD), axis, [_data(part).shape[axis] for part in X])
    return [
        LoDTensor(gradient, part.lod) if isinstance(part, LoDTensor) else gradient
        for part, gradient in zip(X, gradients, strict=True)
    ]


@plain_kernel("split")
def _split_values(
    X: Array, AxisTensor: Array | None, SectionsTensorList: list[Array], *, op: Op, num: int, sections: Dims
) -> list[Array]:
    axis = _axis_given(op, AxisTensor)
    asked = tuple(first(part) for part in SectionsTensorList) or sections
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
    return stacked(X, axis, surroundings.declared(op.outputs["Y"][0]))


def stacked(parts: Sequence[Array], axis: int, var: Var | None) -> Array:
    """The parts along a new dim. Single elements, which Fluid has as 0-d tensors, make one dim as declared."""
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
    return stacked(Y_GRAD, axis, surroundings.declared(op.outputs["X@GRAD"][0]))


def _columns(op: Op, width: int) -> slice:
    """The columns that a partial op takes of parts of this width. Raises ValueError if they don't exist."""
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


@kernel("partial_concat_grad partial_sum_grad", "X@GRAD", lod="none")
def _partial_grad(op: Op) -> Run:
    side_by_side = op.type == "partial_concat_grad"

    def run(X: list[Array], Out_GRAD: Array) -> list[Array]:
        result: list[Array] = []
        for number, part in enumerate(X):
            columns = _columns(op, part.shape[1])
            width = columns.stop - columns.start
            begin = number * width if side_by_side else 0
            result.append(np.zeros(part.shape, Out_GRAD.dtype))
            result[-1][:, columns] = Out_GRAD[:, begin : begin + width]
        return result

    return run
