"""Kernels. Regions of feature maps pooled to one size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr
from pstranspile.runtime.kernels.boxes import rounded
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.kernels.regions import PooledSize, Samples, edge_samples, images_of, pooled_size, scattered
from pstranspile.runtime.values import Array

Part = tuple[int, int, int, slice, slice]
"""A region, a row and a column of its result, and the rows and columns of the feature map that it covers."""


def _edges(start: Array, side: Array, count: int, limit: int) -> tuple[Array, Array]:
    """Where each of `count` parts of a side begins and ends, in whole pixels within the limit."""
    at = np.arange(count, dtype=start.dtype) * side
    low = np.floor(at + start).clip(0, limit)
    high = np.ceil((np.arange(1, count + 1, dtype=start.dtype)) * side + start).clip(0, limit)
    return low.astype("int64"), high.astype("int64")


def _whole_parts(rois: Array, size: PooledSize, dims: tuple[int, int]) -> Iterator[Part]:
    """The parts of regions whose edges are rounded to pixels, without empty parts."""
    for number, roi in enumerate(rounded(rois * rois.dtype.type(size.scale))):
        sides = np.maximum(roi[2:] - roi[:2] + 1, 1)
        top, bottom = _whole_edges(roi[1], sides[1] / size.height, size.height, dims[0])
        left, right = _whole_edges(roi[0], sides[0] / size.width, size.width, dims[1])
        yield from _filled(number, top, bottom, left, right)


def _whole_edges(start: Array, side: Array, count: int, limit: int) -> tuple[Array, Array]:
    at = np.arange(count + 1, dtype=start.dtype) * side
    low, high = np.floor(at[:-1]) + start, np.ceil(at[1:]) + start
    return low.clip(0, limit).astype("int64"), high.clip(0, limit).astype("int64")


def _filled(number: int, top: Array, bottom: Array, left: Array, right: Array) -> Iterator[Part]:
    for row in range(len(top)):
        for column in range(len(left)):
            if bottom[row] > top[row] and right[column] > left[column]:
                rows, columns = slice(top[row], bottom[row]), slice(left[column], right[column])
                yield number, row, column, rows, columns


@plain_kernel("roi_pool", "Out Argmax", lod="new")
def _roi_pool_values(
    X: object, ROIs: object, RoisLod: Array | None, *, size: PooledSize = per_op(pooled_size)
) -> tuple[Array, Array]:
    """Empty parts are 0 and have the index -1."""
    x, rois = plain(X), plain(ROIs)
    images = images_of(ROIs, RoisLod, len(x))
    out = np.zeros((len(rois), x.shape[1], size.height, size.width), x.dtype)
    places = np.full(out.shape, -1, "int64")
    for number, row, column, rows, columns in _whole_parts(rois, size, x.shape[2:]):
        part = x[images[number], :, rows, columns]
        best = part.reshape(len(part), -1).argmax(axis=1)
        down, along = np.divmod(best, part.shape[2])
        places[number, :, row, column] = (down + rows.start) * x.shape[3] + along + columns.start
        out[number, :, row, column] = part.reshape(len(part), -1)[np.arange(len(part)), best]
    return out, places


@plain_kernel("roi_pool_grad", "X@GRAD", lod="new")
def _roi_pool_grad(X: object, ROIs: object, RoisLod: Array | None, Argmax: object, Out_GRAD: object) -> Array:
    x, places, slope = plain(X), plain(Argmax), plain(Out_GRAD)
    images = images_of(ROIs, RoisLod, len(x))
    result = np.zeros((*x.shape[:2], x.shape[2] * x.shape[3]), slope.dtype)
    region, channel, row, column = np.nonzero(places >= 0)
    at = (images[region], channel, places[region, channel, row, column])
    np.add.at(result, at, slope[region, channel, row, column])
    return result.reshape(x.shape)


def _sampled_parts(op: Op) -> Callable[[Array, tuple[int, int]], Iterator[tuple[Samples, int]]]:
    """For each region its samples [4, rows * columns, samples of a part], and the number of samples of a part."""
    size, ratio = pooled_size(op), int_attr(op, "sampling_ratio")

    def of(rois: Array, dims: tuple[int, int]) -> Iterator[tuple[Samples, int]]:
        kind = rois.dtype
        for roi in rois * kind.type(size.scale):
            sides = np.maximum(roi[2:] - roi[:2], 1) / np.array([size.width, size.height], kind)
            counts = [ratio if ratio > 0 else max(ceil(side), 1) for side in sides]
            along, down = (
                start
                + np.arange(parts, dtype=kind)[:, None] * side
                + (np.arange(count, dtype=kind) + 0.5) * side / count
                for start, side, parts, count in zip(roi[:2], sides, (size.width, size.height), counts, strict=True)
            )
            grid = np.broadcast_arrays(down[:, None, :, None], along[None, :, None, :])
            points = [part.reshape(size.height * size.width, -1) for part in grid]
            yield edge_samples(points[0], points[1], *dims), counts[0] * counts[1]

    return of


@kernel("roi_align", lod="new")
def _roi_align_values(op: Op) -> Run:
    """Without a `sampling_ratio`, parts have one sample for each pixel along each dim, rounded up."""
    size, parts = pooled_size(op), _sampled_parts(op)

    def run(X: object, ROIs: object, RoisLod: Array | None) -> Array:
        x, rois = plain(X), plain(ROIs)
        images = images_of(ROIs, RoisLod, len(x))
        out = np.empty((len(rois), x.shape[1], size.height * size.width), x.dtype)
        flat = x.reshape(*x.shape[:2], -1)
        for number, (at, count) in enumerate(parts(rois, x.shape[2:])):
            out[number] = at.of(flat[images[number]]).sum(axis=2) / count
        return out.reshape(*out.shape[:2], size.height, size.width)

    return run


@kernel("roi_align_grad", "X@GRAD", lod="new")
def _roi_align_grad(op: Op) -> Run:
    parts = _sampled_parts(op)

    def run(X: object, ROIs: object, RoisLod: Array | None, Out_GRAD: object) -> Array:
        x, rois, slope = plain(X), plain(ROIs), plain(Out_GRAD)
        images = images_of(ROIs, RoisLod, len(x))
        result = np.zeros((*x.shape[:2], x.shape[2] * x.shape[3]), slope.dtype)
        for number, (at, count) in enumerate(parts(rois, x.shape[2:])):
            share = slope[number].reshape(x.shape[1], -1, 1) / count
            spread = np.broadcast_to(share, (*share.shape[:2], at.weights.shape[2]))
            result[images[number]] += scattered(at, spread, result.shape[2])
        return result.reshape(x.shape)

    return run


def _channel_parts(rois: Array, size: PooledSize, dims: tuple[int, int]) -> Iterator[Part]:
    """The parts of regions whose edges are rounded before they are scaled, without empty parts."""
    scale = rois.dtype.type(size.scale)
    for number, roi in enumerate(rounded(rois)):
        start, stop = roi[:2] * scale, (roi[2:] + 1) * scale
        sides = np.maximum(stop - start, rois.dtype.type(0.1))
        top, bottom = _edges(start[1], sides[1] / size.height, size.height, dims[0])
        left, right = _edges(start[0], sides[0] / size.width, size.width, dims[1])
        yield from _filled(number, top, bottom, left, right)


@plain_kernel("psroi_pool", lod="new")
def _psroi_pool_values(
    X: object, ROIs: object, *, size: PooledSize = per_op(pooled_size), output_channels: int
) -> Array:
    x, rois = plain(X), plain(ROIs)
    images = images_of(ROIs, None, len(x))
    own = x.reshape(len(x), output_channels, size.height, size.width, *x.shape[2:])
    out = np.zeros((len(rois), output_channels, size.height, size.width), x.dtype)
    for number, row, column, rows, columns in _channel_parts(rois, size, x.shape[2:]):
        out[number, :, row, column] = own[images[number], :, row, column, rows, columns].mean(axis=(1, 2))
    return out


@plain_kernel("psroi_pool_grad", "X@GRAD", lod="new")
def _psroi_pool_grad(
    X: object, ROIs: object, Out_GRAD: object, *, size: PooledSize = per_op(pooled_size), output_channels: int
) -> Array:
    x, rois, slope = plain(X), plain(ROIs), plain(Out_GRAD)
    images = images_of(ROIs, None, len(x))
    result = np.zeros((len(x), output_channels, size.height, size.width, *x.shape[2:]), slope.dtype)
    for number, row, column, rows, columns in _channel_parts(rois, size, x.shape[2:]):
        part = result[images[number], :, row, column, rows, columns]
        part += slope[number, :, row, column, None, None] / (part.shape[1] * part.shape[2])
    return result.reshape(x.shape)
