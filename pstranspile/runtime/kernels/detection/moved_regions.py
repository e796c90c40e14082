"""Kernels. Position-sensitive pooling of regions with learned offsets of the samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real
from pstranspile.runtime.kernels.boxes import rounded
from pstranspile.runtime.kernels.kernel import per_op, plain_kernel
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.kernels.regions import PooledSize, Samples, images_of, pooled_size, samples
from pstranspile.runtime.values import Array


class _Part(NamedTuple):
    """What a region gives to the channels of one class.

    `made` are these channels of the result. `read` are the channels of the feature map that they come from [channels,
    rows, columns]. `at` are the samples [4, rows, columns, samples, samples], with weights divided by their number
    `count`. `moves` are the offsets of the samples along a row and down a column for one unit of Trans.
    """

    region: int
    label: int
    made: slice
    read: Array
    at: Samples
    count: Array
    moves: tuple[float, float]


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
        """For each row and column of a result the part it lies in: [rows, 1] and [columns]."""
        down = np.arange(self.size.height) * parts[0] // self.size.height
        return down[:, None], np.arange(self.size.width) * parts[1] // self.size.width

    def read(self, made: slice) -> Array:
        """The channels of the feature map that channels of the result come from."""
        down, along = self.places(self.groups)
        first = np.arange(made.start, made.stop)[:, None, None] * self.groups[0] + down
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
    """Samples at points on pixels, and their number. At the edges of pixels the slopes are 0."""
    height, width = dims
    there = (along >= -0.5) & (along <= width - 0.5) & (down >= -0.5) & (down <= height - 0.5)
    down, along = down.clip(0, height - 1), along.clip(0, width - 1)
    made = samples(down, along, height, width)
    slopes = made.slopes[0] * (down != np.floor(down)), made.slopes[1] * (along != np.floor(along))
    return made._replace(weights=made.weights * there, slopes=(slopes[0] * there, slopes[1] * there)), there


def _parts_of(of: _Layout, rois: Array, trans: Array, dims: tuple[int, int]) -> Iterator[_Part]:
    """What each region gives to the channels of each class."""
    kind = rois.dtype
    classes = 1 if of.fixed else trans.shape[1] // 2
    if not classes or of.channels % classes:
        raise ValueError(f"{of.channels} channels can't be shared by the moves of {classes} classes")
    if not of.fixed and (trans.shape[2:] != tuple(of.parts) or len(trans) != len(rois)):
        raise ValueError(
            f"Trans has the dims {list(trans.shape)}, not those of {len(rois)} regions of {list(of.parts)}"
        )
    width, (down, along) = of.channels // classes, of.places(of.parts)
    for region, roi in enumerate(rounded(rois)):
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
            yield _Part(region, label, made, of.read(made), at, there.sum(axis=(2, 3)), moves)


def _taken(flat: Array, part: _Part) -> Array:
    """The four pixels around the samples of one image: [4, channels, rows, columns, samples, samples]."""
    return flat[part.read[None, :, :, :, None, None], part.at.places[:, None]]


@plain_kernel("deformable_psroi_pooling", "TopCount Output", lod="new")
def _deformable_psroi_pooling_values(
    Input: object, ROIs: object, Trans: object, *, of: _Layout = per_op(_layout)
) -> tuple[Array, Array]:
    """Parts without a sample are 0."""
    x, rois = plain(Input), plain(ROIs)
    images = images_of(ROIs, None, len(x))
    flat = x.reshape(*x.shape[:2], -1)
    out = np.zeros((len(rois), of.channels, of.size.height, of.size.width), x.dtype)
    counts = np.zeros_like(out)
    for part in _parts_of(of, rois, plain(Trans), x.shape[2:]):
        total = (_taken(flat[images[part.region]], part) * part.at.weights[:, None]).sum(axis=(0, 4, 5))
        out[part.region, part.made] = total / np.maximum(part.count, 1)
        counts[part.region, part.made] = part.count
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
        slopes = slope[part.region, part.made][..., None, None]
        spread = part.at.weights[:, None] * slopes
        places = (part.read[None, :, :, :, None, None], part.at.places[:, None])
        np.add.at(result[image], places, spread)
        if of.fixed:
            continue
        weighted = _taken(flat[image], part) * slopes
        for axis, by in ((0, part.at.slopes[1]), (1, part.at.slopes[0])):
            total = (weighted * by[:, None]).sum(axis=(0, 1, 4, 5)) * part.moves[axis]
            np.add.at(moved[part.region, 2 * part.label + axis], (down, along), total)
    return result.reshape(x.shape), moved
