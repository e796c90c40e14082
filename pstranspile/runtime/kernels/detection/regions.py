"""Kernels. Regions of feature maps pooled to one size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import ceil
from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real
from pstranspile.runtime.kernels.detection.boxes import (
    PooledSize,
    Samples,
    edge_samples,
    images_of,
    parts_of,
    pixel_overlaps,
    pooled_size,
    ragged_from_parts,
    require_count,
    round_half_away,
    samples,
    scatter_samples,
)
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids, plain
from pstranspile.runtime.values import Array, LoDTensor

Part = tuple[int, int, int, slice, slice]
"""A region, a row and a column of its result, and the rows and columns of the feature map that it covers."""


def _edges(start: Array, side: Array, count: int, limit: int) -> tuple[Array, Array]:
    """The beginning and the end of each of `count` parts of a side, in whole pixels within the limit."""
    at = np.arange(count, dtype=start.dtype) * side
    low = np.floor(at + start).clip(0, limit)
    high = np.ceil((np.arange(1, count + 1, dtype=start.dtype)) * side + start).clip(0, limit)
    return low.astype("int64"), high.astype("int64")


def _whole_parts(rois: Array, size: PooledSize, dims: tuple[int, int]) -> Iterator[Part]:
    """The parts of regions whose edges are rounded to pixels, without empty parts."""
    for number, roi in enumerate(round_half_away(rois * rois.dtype.type(size.scale))):
        sides = np.maximum(roi[2:] - roi[:2] + 1, 1)
        top, bottom = _whole_edges(roi[1], sides[1] / size.height, size.height, dims[0])
        left, right = _whole_edges(roi[0], sides[0] / size.width, size.width, dims[1])
        yield from _nonempty_parts(number, top, bottom, left, right)


def _whole_edges(start: Array, side: Array, count: int, limit: int) -> tuple[Array, Array]:
    at = np.arange(count + 1, dtype=start.dtype) * side
    low, high = np.floor(at[:-1]) + start, np.ceil(at[1:]) + start
    return low.clip(0, limit).astype("int64"), high.clip(0, limit).astype("int64")


def _nonempty_parts(number: int, top: Array, bottom: Array, left: Array, right: Array) -> Iterator[Part]:
    for row in range(len(top)):
        for column in range(len(left)):
            if bottom[row] > top[row] and right[column] > left[column]:
                rows, columns = slice(top[row], bottom[row]), slice(left[column], right[column])
                yield number, row, column, rows, columns


@plain_kernel("roi_pool", "Out Argmax", lod="new")
def _roi_pool_values(
    X: object, ROIs: object, RoisLod: Array | None, *, size: PooledSize = per_op(pooled_size)
) -> tuple[Array, Array]:
    """Kernel of roi_pool. Empty parts are 0 and have the index -1."""
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
    if places.ndim != 4:
        raise ValueError(f"Argmax has dims {list(places.shape)}, and not [regions, channels, rows, columns]")
    images = images_of(ROIs, RoisLod, len(x))
    result = np.zeros((*x.shape[:2], x.shape[2] * x.shape[3]), slope.dtype)
    region, channel, row, column = np.nonzero(places >= 0)
    at = (images[region], channel, places[region, channel, row, column])
    np.add.at(result, at, slope[region, channel, row, column])
    return result.reshape(x.shape)


_POINTS = 1 << 20
"""About as many points as are sampled at a time."""

_MOST_POINTS = 1 << 26
"""As many points as a row of parts of one region may have at most."""


class _SampledParts(NamedTuple):
    """Some parts of the result of a region: the region, their places among its rows * columns parts, their samples
    [4, parts, samples of a part], and the number of samples of a part.
    """

    region: int
    parts: slice
    samples: Samples
    samples_per_part: int


def _sampled_parts(op: Op) -> Callable[[Array, tuple[int, int]], Iterator[_SampledParts]]:
    """A function that yields the samples of all parts of each region, a number of rows of parts at a time."""
    size, ratio = pooled_size(op), int_attr(op, "sampling_ratio")

    def of(rois: Array, dims: tuple[int, int]) -> Iterator[_SampledParts]:
        kind = rois.dtype
        for number, roi in enumerate(rois * kind.type(size.scale)):
            whole = np.maximum(roi[2:] - roi[:2], 1)
            sides = whole / np.array([size.width, size.height], kind)
            if not np.isfinite(sides).all():
                raise ValueError(f"region {number} of ROIs has no finite corners: {roi.tolist()}")
            counts = [ratio if ratio > 0 else max(ceil(side), 1) for side in sides]
            count = counts[0] * counts[1]
            if count * size.width > _MOST_POINTS:
                wide, high = (f"{ceil(side):,}" for side in whole)
                told = f"region {number} of ROIs has {wide} x {high} pixels, {count:,} samples in a part of the result"
                raise ValueError(
                    f"region {number} of ROIs {told}; the feature map has {dims[1]:,} x {dims[0]:,} pixels"
                )
            along, down = (
                start + np.arange(parts, dtype=kind)[:, None] * side + (np.arange(each, dtype=kind) + 0.5) * side / each
                for start, side, parts, each in zip(roi[:2], sides, (size.width, size.height), counts, strict=True)
            )
            step = max(_POINTS // (count * size.width), 1)
            for row in range(0, size.height, step):
                rows = down[row : row + step]
                grid = np.broadcast_arrays(rows[:, None, :, None], along[None, :, None, :])
                points = [part.reshape(len(rows) * size.width, count) for part in grid]
                some = slice(row * size.width, (row + len(rows)) * size.width)
                yield _SampledParts(number, some, edge_samples(points[0], points[1], *dims), count)

    return of


@kernel("roi_align", lod="new")
def _roi_align_values(op: Op) -> Run:
    """Kernel of roi_align. Without a `sampling_ratio`, parts have one sample for each pixel along each
    dim, rounded up.
    """
    size, parts = pooled_size(op), _sampled_parts(op)

    def run(X: object, ROIs: object, RoisLod: Array | None) -> Array:
        x, rois = plain(X), plain(ROIs)
        images = images_of(ROIs, RoisLod, len(x))
        out = np.empty((len(rois), x.shape[1], size.height * size.width), x.dtype)
        flat = x.reshape(*x.shape[:2], -1)
        for sampled in parts(rois, x.shape[2:]):
            image, samples = flat[images[sampled.region]], sampled.samples
            for group in samples.groups(len(image)):
                sums = samples.of(image[group]).sum(axis=2)
                out[sampled.region, group, sampled.parts] = sums / sampled.samples_per_part
        return out.reshape(*out.shape[:2], size.height, size.width)

    return run


@kernel("roi_align_grad", "X@GRAD", lod="new")
def _roi_align_grad(op: Op) -> Run:
    parts = _sampled_parts(op)

    def run(X: object, ROIs: object, RoisLod: Array | None, Out_GRAD: object) -> Array:
        x, rois, slope = plain(X), plain(ROIs), plain(Out_GRAD)
        images = images_of(ROIs, RoisLod, len(x))
        result = np.zeros((*x.shape[:2], x.shape[2] * x.shape[3]), slope.dtype)
        for sampled in parts(rois, x.shape[2:]):
            share = slope[sampled.region].reshape(x.shape[1], -1, 1)[:, sampled.parts] / sampled.samples_per_part
            spread = np.broadcast_to(share, (*share.shape[:2], sampled.samples.weights.shape[2]))
            result[images[sampled.region]] += scatter_samples(sampled.samples, spread, result.shape[2])
        return result.reshape(x.shape)

    return run


def _channel_parts(rois: Array, size: PooledSize, dims: tuple[int, int]) -> Iterator[Part]:
    """The parts of regions whose edges are rounded before they are scaled, without empty parts."""
    scale = rois.dtype.type(size.scale)
    for number, roi in enumerate(round_half_away(rois)):
        start, stop = roi[:2] * scale, (roi[2:] + 1) * scale
        sides = np.maximum(stop - start, rois.dtype.type(0.1))
        top, bottom = _edges(start[1], sides[1] / size.height, size.height, dims[0])
        left, right = _edges(start[0], sides[0] / size.width, size.width, dims[1])
        yield from _nonempty_parts(number, top, bottom, left, right)


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


# Kernels. Position-sensitive pooling of regions with learned offsets of the samples.


class _RegionContribution(NamedTuple):
    """The contribution of a region to the channels of one class.

    `result_channels` are these channels of the result. `feature_channels` are the channels of the feature map that they
    come from [channels, rows, columns]. `samples` are the samples [4, rows, columns, samples, samples], with weights
    divided by their number `count`. `offsets` are the offsets of the samples along a row and down a column for one unit
    of Trans.
    """

    region: int
    label: int
    result_channels: slice
    feature_channels: Array
    samples: Samples
    count: Array
    offsets: tuple[float, float]


class _Layout(NamedTuple):
    """The settings of an op: the dims of its results, its groups of channels, and the parts with an offset each."""

    size: PooledSize
    channels: int
    groups: tuple[int, ...]
    parts: tuple[int, ...]
    samples: int
    spread: float
    fixed: bool

    def places(self, parts: tuple[int, ...]) -> tuple[Array, Array]:
        """The part in which each row and column of a result lies: [rows, 1] and [columns]."""
        down = np.arange(self.size.height) * parts[0] // self.size.height
        return down[:, None], np.arange(self.size.width) * parts[1] // self.size.width

    def read(self, result_channels: slice) -> Array:
        """The channels of the feature map that channels of the result come from."""
        down, along = self.places(self.groups)
        first = np.arange(result_channels.start, result_channels.stop)[:, None, None] * self.groups[0] + down
        return first * self.groups[1] + along


def _layout(op: Op) -> _Layout:
    return _Layout(
        pooled_size(op),
        int_attr(op, "output_dim"),
        ints_attr(op, "group_size"),
        ints_attr(op, "part_size"),
        int_attr(op, "sample_per_part"),
        real(op, "trans_std"),
        flag(op, "no_trans"),
    )


def _near(down: Array, along: Array, dims: tuple[int, int]) -> tuple[Samples, Array]:
    """(samples at the points; a mask of the points that lie on the feature map, outside of which weights are 0). At
    whole-numbered positions the slopes are 0.
    """
    height, width = dims
    there = (along >= -0.5) & (along <= width - 0.5) & (down >= -0.5) & (down <= height - 0.5)
    down, along = down.clip(0, height - 1), along.clip(0, width - 1)
    made = samples(down, along, height, width)
    slopes = made.slopes[0] * (down != np.floor(down)), made.slopes[1] * (along != np.floor(along))
    return made._replace(weights=made.weights * there, slopes=(slopes[0] * there, slopes[1] * there)), there


def _parts_of(of: _Layout, rois: Array, trans: Array, dims: tuple[int, int]) -> Iterator[_RegionContribution]:
    """Yields the contribution of each region to the channels of each class."""
    kind = rois.dtype
    classes = 1 if of.fixed else trans.shape[1] // 2
    if not classes or of.channels % classes:
        raise ValueError(f"{of.channels} channels can't be shared by the moves of {classes} classes")
    if not of.fixed and (trans.shape[2:] != tuple(of.parts) or len(trans) != len(rois)):
        raise ValueError(
            f"Trans has the dims {list(trans.shape)}, not those of {len(rois)} regions of {list(of.parts)}"
        )
    width, (down, along) = of.channels // classes, of.places(of.parts)
    for region, roi in enumerate(round_half_away(rois)):
        start, stop = roi[:2] * kind.type(of.size.scale) - 0.5, (roi[2:] + 1) * kind.type(of.size.scale) - 0.5
        side = np.maximum(stop - start, kind.type(0.1))
        for label in range(classes):
            by = (
                [0.0, 0.0]
                if of.fixed
                else [trans[region, 2 * label + axis][down, along] * of.spread for axis in (0, 1)]
            )
            grid = np.zeros((of.size.height, of.size.width, of.samples, of.samples), kind)
            part = side / np.array([of.size.width, of.size.height], kind)
            steps = np.arange(of.samples, dtype=kind)
            left = np.arange(of.size.width, dtype=kind) * part[0] + start[0] + by[0] * side[0]
            top = np.arange(of.size.height, dtype=kind)[:, None] * part[1] + start[1] + by[1] * side[1]
            x = grid + (left + np.zeros(grid.shape[:2], kind))[..., None, None] + steps * (part[0] / of.samples)
            y = (
                grid
                + (top + np.zeros(grid.shape[:2], kind))[..., None, None]
                + (steps * (part[1] / of.samples))[:, None]
            )
            at, there = _near(y, x, dims)
            made = slice(label * width, (label + 1) * width)
            moves = (float(side[0]) * of.spread, float(side[1]) * of.spread)
            yield _RegionContribution(region, label, made, of.read(made), at, there.sum(axis=(2, 3)), moves)


def _neighbour_pixels(flat: Array, part: _RegionContribution) -> Array:
    """The four pixels around the samples of one image: [4, channels, rows, columns, samples, samples]."""
    return flat[part.feature_channels[None, :, :, :, None, None], part.samples.places[:, None]]


@plain_kernel("deformable_psroi_pooling", "TopCount Output", lod="new")
def _deformable_psroi_pooling_values(
    Input: object, ROIs: object, Trans: object, *, of: _Layout = per_op(_layout)
) -> tuple[Array, Array]:
    """Kernel of deformable_psroi_pooling. Parts without a sample are 0."""
    x, rois = plain(Input), plain(ROIs)
    images = images_of(ROIs, None, len(x))
    flat = x.reshape(*x.shape[:2], -1)
    out = np.zeros((len(rois), of.channels, of.size.height, of.size.width), x.dtype)
    counts = np.zeros_like(out)
    for part in _parts_of(of, rois, plain(Trans), x.shape[2:]):
        total = (_neighbour_pixels(flat[images[part.region]], part) * part.samples.weights[:, None]).sum(axis=(0, 4, 5))
        out[part.region, part.result_channels] = total / np.maximum(part.count, 1)
        counts[part.region, part.result_channels] = part.count
    return counts, out


@plain_kernel("deformable_psroi_pooling_grad", "Input@GRAD Trans@GRAD", lod="new")
def _deformable_psroi_pooling_grad(
    Input: object, ROIs: object, Trans: object, TopCount: object, Output_GRAD: object, *, of: _Layout = per_op(_layout)
) -> tuple[Array, Array]:
    x, rois, trans = plain(Input), plain(ROIs), plain(Trans)
    slope = plain(Output_GRAD) / np.maximum(plain(TopCount), 1)
    images = images_of(ROIs, None, len(x))
    flat = x.reshape(*x.shape[:2], -1)
    result, moved = np.zeros_like(flat), np.zeros_like(trans)
    down, along = of.places(of.parts)
    for part in _parts_of(of, rois, trans, x.shape[2:]):
        image = images[part.region]
        slopes = slope[part.region, part.result_channels][..., None, None]
        spread = part.samples.weights[:, None] * slopes
        places = (part.feature_channels[None, :, :, :, None, None], part.samples.places[:, None])
        np.add.at(result[image], places, spread)
        if of.fixed:
            continue
        weighted = _neighbour_pixels(flat[image], part) * slopes
        for axis, by in ((0, part.samples.slopes[1]), (1, part.samples.slopes[0])):
            total = (weighted * by[:, None]).sum(axis=(0, 1, 4, 5)) * part.offsets[axis]
            np.add.at(moved[part.region, 2 * part.label + axis], (down, along), total)
    return result.reshape(x.shape), moved


# Kernels. Regions of feature maps pooled by exact integration.


class _Integrals(NamedTuple):
    """The integrals of a feature map over the parts of a region, which are products of integrals along each dim.

    `down` [rows of the result, height] and `along` [columns, width] are the integrals of each pixel's weight over
    parts. `area` is the area of a part (0 for an empty one).
    """

    down: Array
    along: Array
    area: Array


def _ramp(x: Array) -> Array:
    """The integral up to x of the weight of a pixel at 0, which falls linearly to 0 at its neighbours."""
    x = x.clip(-1, 1)
    return np.where(x < 0, (1 + x) ** 2 / 2, 0.5 + x - x**2 / 2)


def _weight(x: Array) -> Array:
    return np.maximum(1 - np.abs(x), 0)


def _bounds(start: Array, stop: Array, count: int) -> tuple[Array, Array]:
    """The beginnings and the ends of the parts of a side."""
    step = max(stop - start, start.dtype.type(0)) / count
    low = start + np.arange(count, dtype=start.dtype) * step
    return low, low + step


class _Region(NamedTuple):
    """The beginnings and the ends of the parts of a region, down a column and along a row."""

    top: Array
    bottom: Array
    left: Array
    right: Array

    def integrals(self, dims: tuple[int, int]) -> _Integrals:
        """The integrals over the parts of a feature map of these dims."""
        rows, columns = (np.arange(dim, dtype=self.top.dtype) for dim in dims)
        down = _ramp(self.bottom[:, None] - rows) - _ramp(self.top[:, None] - rows)
        along = _ramp(self.right[:, None] - columns) - _ramp(self.left[:, None] - columns)
        return _Integrals(down, along, (self.bottom - self.top)[:, None] * (self.right - self.left))


def _precise_regions(rois: Array, size: PooledSize) -> list[_Region]:
    scaled = rois * rois.dtype.type(size.scale)
    return [_Region(*_bounds(roi[1], roi[3], size.height), *_bounds(roi[0], roi[2], size.width)) for roi in scaled]


def _ends_of(counts: Array | None) -> Array | None:
    """The offsets of each image's regions, from the number of regions in each image."""
    return None if counts is None else np.concatenate([[0], np.cumsum(plain(counts).reshape(-1))])


@plain_kernel("prroi_pool", lod="new")
def _prroi_pool_values(
    X: object, ROIs: object, BatchRoINums: Array | None, *, size: PooledSize = per_op(pooled_size)
) -> Array:
    """Kernel of prroi_pool. X is interpolated bilinearly between pixels, and is 0 outside. Empty parts are 0."""
    x, rois = plain(X), plain(ROIs)
    images = images_of(ROIs, _ends_of(BatchRoINums), len(x))
    out = np.zeros((len(rois), x.shape[1], size.height, size.width), x.dtype)
    for number, region in enumerate(_precise_regions(rois, size)):
        of = region.integrals(x.shape[2:])
        there = of.area > 0
        total = of.down @ x[images[number]] @ of.along.T
        out[number] = np.where(there, total / np.where(there, of.area, 1), 0)
    return out


@kernel("prroi_pool_grad", "X@GRAD ROIs@GRAD", lod="new")
def _prroi_pool_grad(op: Op) -> Run:
    """Kernel of prroi_pool_grad. If an edge of a region moves, the edges of all its parts move, the
    nearer ones more.
    """
    size = pooled_size(op)

    def of_edges(region: _Region, x: Array, of: _Integrals, slope: Array, out: Array) -> Array:
        """The gradient of the four edges of a region."""
        rows, columns = (np.arange(dim, dtype=x.dtype) for dim in x.shape[1:])
        scaled = np.where(of.area > 0, slope / np.where(of.area > 0, of.area, 1), 0)
        tall, wide = (region.bottom - region.top)[:, None], (region.right - region.left)[None]
        sums: list[Array] = []
        for edge, sign in ((region.top, -1), (region.bottom, 1)):
            line = _weight(edge[:, None] - rows) @ x @ of.along.T
            sums.append((scaled * sign * (line - out * wide)).sum(axis=(0, 2)))
        for edge, sign in ((region.left, -1), (region.right, 1)):
            line = of.down @ x @ _weight(edge[:, None] - columns).T
            sums.append((scaled * sign * (line - out * tall)).sum(axis=(0, 1)))
        near = [np.arange(count, dtype=x.dtype) / count for count in (size.height, size.width)]
        after = [part + 1 / count for part, count in zip(near, (size.height, size.width), strict=True)]
        top, bottom, left, right = sums
        return size.scale * np.array(
            [
                (left * (1 - near[1]) + right * (1 - after[1])).sum(),
                (top * (1 - near[0]) + bottom * (1 - after[0])).sum(),
                (left * near[1] + right * after[1]).sum(),
                (top * near[0] + bottom * after[0]).sum(),
            ]
        )

    def run(X: object, ROIs: object, BatchRoINums: Array | None, Out: object, Out_GRAD: object) -> tuple[Array, Array]:
        x, rois, out, slope = plain(X), plain(ROIs), plain(Out), plain(Out_GRAD)
        images = images_of(ROIs, _ends_of(BatchRoINums), len(x))
        result, moved = np.zeros_like(x), np.zeros_like(rois)
        for number, region in enumerate(_precise_regions(rois, size)):
            of = region.integrals(x.shape[2:])
            scaled = np.where(of.area > 0, slope[number] / np.where(of.area > 0, of.area, 1), 0)
            result[images[number]] += of.down.T @ scaled @ of.along
            moved[number] = of_edges(region, x[images[number]], of, slope[number], out[number])
        return result, moved

    return run


# Kernels. Quadrilaterals of feature maps brought to one size.
#
# The corners of a region are x and y, from the top left one clockwise. Numbers that differ by less than `_NEAR` are the
# same, as in Fluid.

_NEAR = 1e-4


def _size(op: Op) -> PooledSize:
    return PooledSize(int_attr(op, "transformed_height"), int_attr(op, "transformed_width"), real(op, "spatial_scale"))


def _matrices(x: Array, y: Array, size: PooledSize) -> Array:
    """The projective transformation from places of a result to places of the feature map, for regions with corners x
    and y [4, regions]: [9, regions].
    """
    sides = np.sqrt((x - np.roll(x, -1, 0)) ** 2 + (y - np.roll(y, -1, 0)) ** 2)
    high, wide = (sides[1] + sides[3]) / 2, (sides[0] + sides[2]) / 2
    rows = max(2, size.height)
    with np.errstate(all="ignore"):
        columns = np.floor(wide * (rows - 1) / high + 0.5) + 1
    down, along = rows - 1, np.clip(np.nan_to_num(columns), 2, max(2, size.width)).astype(x.dtype) - 1
    (dx1, dx2), (dy1, dy2) = ((of[1] - of[2], of[3] - of[2]) for of in (x, y))
    dx3, dy3 = (of[0] - of[1] + of[2] - of[3] for of in (x, y))
    area = (dx1 * dy2 - dx2 * dy1).astype(np.float64) + 1e-5
    bent = (
        ((dx3 * dy2 - dx2 * dy3) / area / along).astype(x.dtype),
        ((dx1 * dy3 - dx3 * dy1) / area / down).astype(x.dtype),
    )
    made: list[Array] = []
    for of in (x, y):
        made.append((of[1] - of[0] + bent[0] * along * of[1]) / along)
        made.append((of[3] - of[0] + bent[1] * down * of[3]) / down)
        made.append(of[0])
    return np.stack([*made, *bent, np.ones_like(area)]).astype(x.dtype)


def _quadrilateral_mask(along: Array, down: Array, x: Array, y: Array) -> Array:
    """A mask of the places [regions, height, width] that lie inside or on the edge of their quadrilateral with corners
    x and y [4, regions].
    """
    on, crossed = np.zeros(along.shape, bool), np.zeros(along.shape, np.int64)
    for start in range(4):
        xs, ys, xe, ye = (of[at % 4][:, None, None] for at in (start, start + 1) for of in (x, y))
        flat = np.abs(ys - ye) < _NEAR
        low, high = np.minimum(ys, ye), np.maximum(ys, ye)
        left, right = np.minimum(xs, xe), np.maximum(xs, xe)
        with np.errstate(all="ignore"):
            cut = (down - ys) * (xe - xs) / (ye - ys) + xs
        beside = np.abs(cut - along) < _NEAR
        on |= flat & (np.abs(down - ys) < _NEAR) & (np.abs(down - ye) < _NEAR) & _is_between(along, left, right)
        on |= ~flat & beside & _is_between(down, low, high)
        spans = ~flat & ~((down < low) | (np.abs(down - low) < _NEAR)) & (down - high <= _NEAR)
        on |= spans & beside
        crossed += spans & (cut - along > _NEAR)
    return on | (crossed % 2 == 1)


def _is_between(value: Array, low: Array, high: Array) -> Array:
    return ((value > low) | (np.abs(value - low) < _NEAR)) & ((value < high) | (np.abs(value - high) < _NEAR))


class _VisibleSamples(NamedTuple):
    """The transformation matrices [9, regions], a mask of the visible places [regions, height, width], and the samples
    there.
    """

    matrices: Array
    visible_places: Array
    samples: Samples


def _perspective_samples(rois: Array, size: PooledSize, dims: tuple[int, int]) -> _VisibleSamples:
    corners = (rois.reshape(-1, 4, 2) * rois.dtype.type(size.scale)).transpose(2, 1, 0)
    matrices = _matrices(corners[0], corners[1], size)
    down, along = np.arange(size.height, dtype=rois.dtype)[:, None], np.arange(size.width, dtype=rois.dtype)
    terms = [row[:, None, None] for row in matrices]
    u, v, w = (terms[at] * along + terms[at + 1] * down + terms[at + 2] for at in (0, 3, 6))
    with np.errstate(all="ignore"):
        x, y = u / w, v / w
    seen = _quadrilateral_mask(x, y, corners[0], corners[1])
    for place, length in ((x, dims[1]), (y, dims[0])):
        seen &= (place > -0.5 + _NEAR) & (place < length - 0.5 - _NEAR)
    x, y = (np.where(seen, place, 0).clip(0, length - 1) for place, length in ((x, dims[1]), (y, dims[0])))
    at = samples(np.where(y < _NEAR, 0, y), np.where(x < _NEAR, 0, x), *dims)
    return _VisibleSamples(matrices, seen, at._replace(weights=(at.weights * seen).astype(rois.dtype)))


@plain_kernel("roi_perspective_transform", "Out Mask TransformMatrix", lod="new")
def _roi_perspective_transform(
    X: object, ROIs: object, *, size: PooledSize = per_op(_size)
) -> tuple[object, Array, Array]:
    x, rois = plain(X), plain(ROIs)
    found, flat = _perspective_samples(rois, size, x.shape[2:]), x.reshape(*x.shape[:2], -1)
    out = np.zeros((len(rois), x.shape[1], size.height, size.width), x.dtype)
    for region, image in enumerate(images_of(ROIs, None, len(x))):
        part = Samples(found.samples.places[:, region], found.samples.weights[:, region], found.samples.slopes)
        out[region] = part.of(flat[image])
    made = LoDTensor(out, ROIs.lod) if isinstance(ROIs, LoDTensor) else out
    return made, found.visible_places[:, None].astype(np.int32), found.matrices.T.copy()


@plain_kernel("roi_perspective_transform_grad", "X@GRAD", lod="new")
def _roi_perspective_transform_grad(
    X: object, ROIs: object, Out_GRAD: object, *, size: PooledSize = per_op(_size)
) -> Array:
    x, rois, slopes = plain(X), plain(ROIs), plain(Out_GRAD)
    found = _perspective_samples(rois, size, x.shape[2:])
    result = np.zeros_like(x).reshape(*x.shape[:2], -1)
    for region, image in enumerate(images_of(ROIs, None, len(x))):
        for places, weights in zip(found.samples.places[:, region], found.samples.weights[:, region], strict=True):
            np.add.at(result[image], (slice(None), places), slopes[region] * weights)
    return result.reshape(x.shape)


# Kernels. Mask targets of regions.

_FINER = 5
"""Edges of polygons are drawn on a grid this many times finer than that of the mask."""


def _edge(start: Array, stop: Array) -> Array:
    """The points [points, 2] of the fine grid along an edge, both ends included, in its direction."""
    across, down = (int(step) for step in np.abs(stop - start))
    length, axis = max(across, down), 0 if across >= down else 1
    flipped = start[axis] > stop[axis]
    first, last = (stop, start) if flipped else (start, stop)
    steps = np.arange(length + 1)
    points = np.empty((length + 1, 2), "int64")
    slope = (last[1 - axis] - first[1 - axis]) / length if length else 0.0
    points[:, axis] = steps + first[axis]
    points[:, 1 - axis] = (first[1 - axis] + slope * steps + 0.5).astype("int64")
    return points[::-1] if flipped else points


def _polygon_mask(polygon: Array, side: int) -> Array:
    """The pixels [side, side] inside of a polygon [corners, 2].

    Masks are rasterised like those of COCO: each crossing of the outline with the middle of a column of pixels toggles
    the pixels below it.
    """
    corners = (_FINER * polygon.astype("float64") + 0.5).astype("int64")
    ends = np.roll(corners, -1, axis=0)
    points = np.concatenate([_edge(start, stop) for start, stop in zip(corners, ends, strict=True)])
    before, after = points[:-1], points[1:]
    steps = before[:, 0] != after[:, 0]
    before, after = before[steps], after[steps]
    columns = (np.where(after[:, 0] < before[:, 0], after[:, 0], after[:, 0] - 1) + 0.5) / _FINER - 0.5
    there = (columns == np.floor(columns)) & (columns >= 0) & (columns <= side - 1)
    rows = (np.minimum(after[:, 1], before[:, 1]) + 0.5) / _FINER - 0.5
    switches = columns[there].astype("int64") * side + np.ceil(rows[there].clip(0, side)).astype("int64")
    counts = np.bincount(switches, minlength=side * side)[: side * side]
    return (np.cumsum(counts) % 2).reshape(side, side).T


def _mask(polygons: list[Array], box: Array, side: int) -> Array:
    """The pixels of an object in a box that is scaled to `side` by `side` pixels."""
    sides = np.maximum(box[2:] - box[:2], 1)
    drawn = [_polygon_mask((polygon - box[:2]) * polygon.dtype.type(side) / sides, side) for polygon in polygons]
    return np.any(drawn, axis=0)


def _polygons(segments: object, images: int) -> list[list[list[Array]]]:
    """The polygons of each object of each image. Raises ValueError unless GtSegms has three levels of sequences."""
    if not isinstance(segments, LoDTensor) or len(segments.lod) != 3:
        raise ValueError("GtSegms must have three levels of sequences: objects, polygons and corners")
    objects, polygons, corners = segments.lod
    if len(objects) != images + 1:
        raise ValueError(f"GtSegms has {len(objects) - 1} images, not {images}")
    made = [segments.data[start:stop] for start, stop in pairwise(corners)]
    of = [made[start:stop] for start, stop in pairwise(polygons)]
    return [of[start:stop] for start, stop in pairwise(objects)]


def _around(polygons: list[Array]) -> Array:
    """The bounding box of polygons."""
    if not polygons or not min(map(len, polygons)):
        raise ValueError("an object of GtSegms has no corner")
    points = np.concatenate(polygons)
    return np.concatenate([points.min(axis=0), points.max(axis=0)])


@kernel("generate_mask_labels", "MaskRois RoiHasMaskInt32 MaskInt32", lod="new")
def _generate_mask_labels_values(op: Op) -> Run:
    """Kernel of generate_mask_labels. A region gets the mask of the object whose polygons it overlaps most. An image
    without such a region gets its first region, with the label -1.
    """
    classes, side = int_attr(op, "num_classes"), int_attr(op, "resolution")

    def of(
        rois: Array, labels: Array, scale: float, kinds: Array, crowd: Array, objects: list[list[Array]]
    ) -> tuple[Array, Array, Array]:
        if not len(kinds) == len(crowd) == len(objects) or len(rois) != len(labels):
            raise ValueError("an image has other numbers of classes, crowds and objects, or of regions and labels")
        whole = [objects[number] for number in np.nonzero((kinds > 0) & (crowd == 0))[0]]
        places = np.nonzero(labels > 0)[0]
        masks = np.full((max(len(places), 1), classes, side * side), -1, "int32")
        if not len(places) or not whole:
            places = np.nonzero(labels == 0)[0][:1]
            if not len(places):
                raise ValueError("an image has no region without object, and none with one that has polygons")
            return rois[places], places.astype("int32")[:, None], masks[:1].reshape(1, -1)
        check_ids(labels[places], classes, "the label")
        boxes = rois[places] / scale
        best = pixel_overlaps(boxes, np.stack([_around(item) for item in whole])).argmax(axis=1)
        for row, (box, number) in enumerate(zip(boxes, best, strict=True)):
            masks[row, labels[places[row]]] = _mask(whole[number], box, side).reshape(-1)
        return rois[places], places.astype("int32")[:, None], masks.reshape(len(places), -1)

    def run(
        ImInfo: object, GtClasses: object, IsCrowd: object, GtSegms: object, Rois: object, LabelsInt32: object
    ) -> tuple[LoDTensor, ...]:
        info = plain(ImInfo)
        inputs = {"Rois": Rois, "LabelsInt32": LabelsInt32, "GtClasses": GtClasses, "IsCrowd": IsCrowd}
        given = {slot: parts_of(value, slot) for slot, value in inputs.items()}
        for slot, sequences in given.items():
            require_count(sequences, len(info), slot)
        rois, labels, kinds, crowd = given.values()
        results = [
            of(rois[at], labels[at].reshape(-1), info[at, 2], kinds[at].reshape(-1), crowd[at].reshape(-1), objects)
            for at, objects in enumerate(_polygons(GtSegms, len(info)))
        ]
        return tuple(ragged_from_parts([item[slot] for item in results]) for slot in range(3))

    return run
