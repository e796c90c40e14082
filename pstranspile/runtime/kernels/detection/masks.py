"""Kernels. Mask targets of regions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr
from pstranspile.runtime.kernels.boxes import joined, parts_of, pixel_overlaps, require_count
from pstranspile.runtime.kernels.kernel import Run, kernel
from pstranspile.runtime.kernels.numeric import check_ids
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.values import Array, LoDTensor

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


def _drawn(polygon: Array, side: int) -> Array:
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
    drawn = [_drawn((polygon - box[:2]) * polygon.dtype.type(side) / sides, side) for polygon in polygons]
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
    """A region gets the mask of the object whose polygons it overlaps most. An image without such a region gives its
    first region, with the label -1.
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
        return tuple(joined([item[slot] for item in results]) for slot in range(3))

    return run
