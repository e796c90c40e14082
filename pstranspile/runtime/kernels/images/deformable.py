"""Kernels. Deformable convolution: every sample has an offset of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.images.deformable import moved_dims
from pstranspile.runtime.kernels.kernel import Run, kernel
from pstranspile.runtime.kernels.regions import Samples, samples, scattered
from pstranspile.runtime.values import Array


class _Moved(NamedTuple):
    """The samples of one image.

    `at` is one entry for each part of the channels, each [window, places]. `mask` is [parts, window, places]. `dims`
    are height and width of the result.
    """

    at: list[Samples]
    mask: Array
    dims: tuple[int, ...]


def _moved(op: Op, x: Array, offset: Array, mask: Array | None, window: tuple[int, ...]) -> _Moved:
    """The samples of an image [channels, height, width]. There are two offsets, a row and a column, for each element of
    the window.
    """
    parts = int_attr(op, "deformable_groups")
    dims = moved_dims(op, x.shape[1:], window)
    size, places = window[0] * window[1], dims[0] * dims[1]
    if offset.size != 2 * parts * size * places or (mask is not None and mask.size != parts * size * places):
        raise ValueError(f"offsets and mask are not for {parts} parts of windows {list(window)} at {list(dims)} places")
    first = [
        ((np.arange(count) * stride - padding)[None, :] + (np.arange(side) * dilation)[:, None]).astype(offset.dtype)
        for count, side, stride, padding, dilation in zip(
            dims, window, *(ints_attr(op, name) for name in ("strides", "paddings", "dilations")), strict=True
        )
    ]
    down = np.broadcast_to(first[0][:, None, :, None], (*window, *dims)).reshape(size, places)
    along = np.broadcast_to(first[1][None, :, None, :], (*window, *dims)).reshape(size, places)
    by = offset.reshape(parts, size, 2, places)
    at = [_within(down + part[:, 0], along + part[:, 1], x.shape[1], x.shape[2]) for part in by]
    return _Moved(
        at, np.ones((parts, size, places), x.dtype) if mask is None else mask.reshape(parts, size, places), dims
    )


def _within(down: Array, along: Array, height: int, width: int) -> Samples:
    """Samples at points. Points a pixel or more beyond the edges give 0, and their slopes are 0."""
    made = samples(down, along, height, width)
    there = (down > -1) & (along > -1) & (down < height) & (along < width)
    return made._replace(weights=made.weights * there, slopes=(made.slopes[0] * there, made.slopes[1] * there))


def _columns(moved: _Moved, x: Array) -> Array:
    """The samples without the mask: [parts, channels of a part, window, places]."""
    flat = x.reshape(len(moved.at), -1, x.shape[1] * x.shape[2])
    return np.stack([at.of(part) for at, part in zip(moved.at, flat, strict=True)])


def _grouped(op: Op, columns: Array) -> Array:
    """Columns as [groups, channels of a group and window, places]."""
    return columns.reshape(int_attr(op, "groups"), -1, columns.shape[-1])


@kernel("deformable_conv deformable_conv_v1", "Output", lod="none")
def _deformable_conv_values(op: Op) -> Run:
    groups = int_attr(op, "groups")

    def image(x: Array, offset: Array, mask: Array | None, filters: Array) -> Array:
        moved = _moved(op, x, offset, mask, filters.shape[2:])
        columns = _grouped(op, _columns(moved, x) * moved.mask[:, None])
        made = filters.reshape(groups, len(filters) // groups, -1) @ columns
        return made.reshape(len(filters), *moved.dims)

    def convolved(Input: Array, Offset: Array, Mask: Array | None, Filter: Array) -> Array:
        masks = [None] * len(Input) if Mask is None else Mask
        return np.stack([image(x, offset, mask, Filter) for x, offset, mask in zip(Input, Offset, masks, strict=True)])

    def unmasked(Input: Array, Offset: Array, Filter: Array) -> Array:
        return convolved(Input, Offset, None, Filter)

    return convolved if op.type == "deformable_conv" else unmasked


class _Slopes(NamedTuple):
    """The gradients of an image, its offsets and mask, and the filters."""

    x: Array
    offset: Array
    mask: Array
    filters: Array


def _slopes(op: Op, x: Array, offset: Array, mask: Array | None, filters: Array, slope: Array) -> _Slopes:
    groups, pixels = int_attr(op, "groups"), x.shape[1] * x.shape[2]
    moved = _moved(op, x, offset, mask, filters.shape[2:])
    values = _columns(moved, x)
    by_group = slope.reshape(groups, len(filters) // groups, -1)
    of_filters = by_group @ _grouped(op, values * moved.mask[:, None]).transpose(0, 2, 1)
    rows = filters.reshape(groups, len(filters) // groups, -1).transpose(0, 2, 1) @ by_group
    back = rows.reshape(values.shape)
    masked = back * moved.mask[:, None]
    flat = x.reshape(len(moved.at), -1, pixels)
    of_x = np.stack([scattered(at, part, pixels) for at, part in zip(moved.at, masked, strict=True)])
    of_offset = np.stack(
        [
            np.stack(
                [((part[:, at.places] * slopes).sum(axis=1) * weights).sum(axis=0) for slopes in at.slopes],
                axis=1,
            )
            for at, part, weights in zip(moved.at, flat, masked, strict=True)
        ]
    )
    return _Slopes(
        of_x.reshape(x.shape),
        of_offset.reshape(offset.shape),
        (back * values).sum(axis=1),
        of_filters.reshape(filters.shape),
    )


@kernel("deformable_conv_grad", "Input@GRAD Offset@GRAD Mask@GRAD Filter@GRAD", lod="none")
def _deformable_conv_grad(op: Op) -> Run:
    def run(Input: Array, Offset: Array, Mask: Array, Filter: Array, Output_GRAD: Array) -> tuple[Array, ...]:
        images = zip(Input, Offset, Mask, Output_GRAD, strict=True)
        results = [_slopes(op, x, offset, mask, Filter, slope) for x, offset, mask, slope in images]
        masks = np.stack([item.mask for item in results]).reshape(Mask.shape)
        filters = np.sum([item.filters for item in results], axis=0, dtype=Filter.dtype)
        return (
            np.stack([item.x for item in results]),
            np.stack([item.offset for item in results]),
            masks,
            filters,
        )

    return run


@kernel("deformable_conv_v1_grad", "Input@GRAD Offset@GRAD Filter@GRAD", lod="none")
def _deformable_conv_v1_grad(op: Op) -> Run:
    def run(Input: Array, Offset: Array, Filter: Array, Output_GRAD: Array) -> tuple[Array, ...]:
        images = zip(Input, Offset, Output_GRAD, strict=True)
        results = [_slopes(op, x, offset, None, Filter, slope) for x, offset, slope in images]
        filters = np.sum([item.filters for item in results], axis=0, dtype=Filter.dtype)
        return (
            np.stack([item.x for item in results]),
            np.stack([item.offset for item in results]),
            filters,
        )

    return run
