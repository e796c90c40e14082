"""Kernels. Channels of images rearranged, and activations with parameters for each channel."""

from __future__ import annotations

import math

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr, real, text
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.values import Array


def _require_multiple(dim: int, of: int, what: str) -> None:
    if of < 1 or dim % of:
        raise ValueError(f"{dim} {what} can't be cut into {of} equal parts")


@plain_kernel("pixel_shuffle")
def _pixel_shuffle_values(X: Array, *, upscale_factor: int = 1) -> Array:
    batch, channels, height, width = X.shape
    _require_multiple(channels, upscale_factor * upscale_factor, "channels")
    parts = X.reshape(batch, -1, upscale_factor, upscale_factor, height, width).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(batch, -1, height * upscale_factor, width * upscale_factor)


@plain_kernel("pixel_shuffle_grad", "X@GRAD")
def _pixel_shuffle_grad(Out_GRAD: Array, *, upscale_factor: int = 1) -> Array:
    batch, channels, height, width = Out_GRAD.shape
    parts = Out_GRAD.reshape(
        batch, channels, height // upscale_factor, upscale_factor, width // upscale_factor, upscale_factor
    )
    return parts.transpose(0, 1, 3, 5, 2, 4).reshape(batch, -1, height // upscale_factor, width // upscale_factor)


def _interleaved(x: Array, groups: int) -> Array:
    _require_multiple(x.shape[1], groups, "channels")
    return x.reshape(len(x), groups, x.shape[1] // groups, -1).swapaxes(1, 2).reshape(x.shape)


@plain_kernel("shuffle_channel")
def _shuffle_channel_values(X: Array, *, group: int = 1) -> Array:
    return _interleaved(X, group)


@plain_kernel("shuffle_channel_grad", "X@GRAD")
def _shuffle_channel_grad(Out_GRAD: Array, *, group: int = 1) -> Array:
    _require_multiple(Out_GRAD.shape[1], group, "channels")
    return _interleaved(Out_GRAD, Out_GRAD.shape[1] // group)


def _squares(op: Op, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The dims of X with its channels split. As in Fluid, the blocks are laid out as larger images, reinterpreted as
    the result.
    """
    size = int_attr(op, "blocksize", 2)
    batch, channels, height, width = shape
    _require_multiple(channels, size * size, "channels")
    _require_multiple(height, size, "rows")
    _require_multiple(width, size, "columns")
    return batch, size, size, channels // (size * size), height, width


@plain_kernel("space_to_depth")
def _space_to_depth_values(X: Array, *, op: Op, blocksize: int = 2) -> Array:
    batch, channels, height, width = X.shape
    parts = X.reshape(_squares(op, X.shape)).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(batch, channels * blocksize * blocksize, height // blocksize, width // blocksize)


@plain_kernel("space_to_depth_grad", "X@GRAD")
def _space_to_depth_grad(X: Array, Out_GRAD: Array, *, op: Op) -> Array:
    batch, rows, columns, channels, height, width = _squares(op, X.shape)
    parts = Out_GRAD.reshape(batch, channels, height, rows, width, columns)
    return parts.transpose(0, 3, 5, 1, 2, 4).reshape(X.shape)


def _shifted(op: Op, x: Array, *, back: bool) -> Array:
    """Some channels one step later and as many one step earlier within each sequence of images; `back`: the inverse."""
    steps, ratio = int_attr(op, "seg_num"), real(op, "shift_ratio")
    _require_multiple(len(x), steps, "images")
    channels = x.shape[1]
    later, earlier = (int(np.float32(channels * times) * np.float32(ratio)) for times in (1, 2))
    parts = x.reshape(-1, steps, *x.shape[1:])
    result = parts.copy()
    moved = ((slice(0, later), not back), (slice(later, earlier), back))
    for which, forward in moved:
        to, come, gap = (slice(1, None), slice(0, -1), 0) if forward else (slice(0, -1), slice(1, None), -1)
        result[:, to, which] = parts[:, come, which]
        result[:, gap, which] = 0
    return result.reshape(x.shape)


@plain_kernel("temporal_shift")
def _temporal_shift_values(X: Array, *, op: Op) -> Array:
    return _shifted(op, X, back=False)


@plain_kernel("temporal_shift_grad", "X@GRAD")
def _temporal_shift_grad(Out_GRAD: Array, *, op: Op) -> Array:
    return _shifted(op, Out_GRAD, back=True)


def _candidates(op: Op, x: Array) -> tuple[Array, int]:
    """X with the members of each group of channels along a dim of their own, and the index of this dim."""
    groups, axis = int_attr(op, "groups"), int_attr(op, "axis", 1) % x.ndim
    _require_multiple(x.shape[axis], groups, "channels")
    dims = (*x.shape[:axis], x.shape[axis] // groups, groups, *x.shape[axis + 1 :])
    return x.reshape(dims), axis + 1


@plain_kernel("maxout")
def _maxout_values(X: Array, *, op: Op) -> Array:
    parts, axis = _candidates(op, X)
    return np.maximum.reduce(parts, axis=axis)


@plain_kernel("maxout_grad", "X@GRAD", lod="none")
def _maxout_grad(X: Array, Out_GRAD: Array, *, op: Op) -> Array:
    """The first of equal elements gets the whole gradient."""
    parts, axis = _candidates(op, X)
    result = np.zeros(parts.shape, Out_GRAD.dtype)
    first = np.expand_dims(np.argmax(parts, axis=axis), axis)
    np.put_along_axis(result, first, np.expand_dims(Out_GRAD, axis), axis=axis)
    return result.reshape(X.shape)


def _slopes(op: Op, alpha: Array, x: Array) -> Array:
    """Alpha with dims that broadcast to X. Raises ValueError if its number of elements does not fit."""
    mode = text(op, "mode")
    dims = {"all": (), "channel": x.shape[1:2], "element": x.shape[1:]}.get(mode)
    if dims is None:
        raise ValueError(f"mode is {mode!r}, not all, channel or element")
    if alpha.size != math.prod(dims):
        raise ValueError(f"Alpha has {alpha.size} elements, X needs {math.prod(dims)} (mode {mode})")
    return alpha.reshape((1, *dims, *(1 for _ in x.shape[1 + len(dims) :])))


@plain_kernel("prelu")
def _prelu_values(X: Array, Alpha: Array, *, op: Op) -> Array:
    return np.where(X > 0, X, X * _slopes(op, Alpha, X))


@plain_kernel("prelu_grad", "X@GRAD Alpha@GRAD", lod="none")
def _prelu_grad(
    X: Array, Alpha: Array, Out_GRAD: Array, *, op: Op, wants_Alpha_GRAD: bool
) -> tuple[Array, Array | None]:
    slopes, positive = _slopes(op, Alpha, X), X > 0
    x_grad = Out_GRAD * np.where(positive, 1, slopes).astype(X.dtype, copy=False)
    if not wants_Alpha_GRAD:
        return x_grad, None
    parts = Out_GRAD * np.where(positive, 0, X).astype(X.dtype, copy=False)
    over = tuple(dim for dim in range(X.ndim) if slopes.shape[dim] == 1)
    return x_grad, np.add.reduce(parts, axis=over).reshape(Alpha.shape)


def _largest(slices: Array) -> Array:
    """The largest elements of each [n, rows, columns], chosen greedily with one for each row and column."""
    count, rows, columns = slices.shape
    chosen, left = np.zeros(slices.shape, bool), np.ones(slices.shape, bool)
    images = np.arange(count)
    for _ in range(min(rows, columns)):
        at = np.argmax(np.where(left, slices, -np.inf).reshape(count, rows * columns), axis=1)
        row, column = at // columns, at % columns
        chosen[images, row, column] = True
        left[images, row, :] = False
        left[images, :, column] = False
    return chosen


@kernel("similarity_focus")
def _similarity_focus_values(op: Op) -> Run:
    axis, indexes = int_attr(op, "axis"), ints_attr(op, "indexes")
    if axis not in (1, 2, 3):
        raise ValueError(f"axis is {axis}, not 1, 2 or 3")

    def run(X: Array) -> Array:
        wrong = [index for index in indexes if not 0 <= index < X.shape[axis]]
        if wrong:
            raise ValueError(f"index {wrong[0]} is not in 0 to {X.shape[axis] - 1}")
        marks = np.zeros(X.shape[:axis] + X.shape[axis + 1 :], bool)
        for index in indexes:
            marks |= _largest(np.take(X, index, axis=axis))
        return np.broadcast_to(np.expand_dims(marks, axis), X.shape).astype(X.dtype)

    return run
