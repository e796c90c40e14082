"""Layers of `layers.nn` that bring regions of feature maps to one size."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.layers.adapt import checked_all, one_op, renamed_all, to_core
from pstranspile.fluid.layers.detection_ops import listed, made_by

roi_align = one_op(
    "roi_align",
    "input, rois, pooled_height=1, pooled_width=1, spatial_scale=1.0, sampling_ratio=-1, name=None, rois_lod=None",
    "X=input ROIs=rois RoisLod=rois_lod",
    attrs="pooled_height pooled_width spatial_scale sampling_ratio",
)
psroi_pool = one_op(
    "psroi_pool",
    "input, rois, output_channels, spatial_scale, pooled_height, pooled_width, name=None",
    "X=input ROIs=rois",
    attrs="output_channels spatial_scale pooled_height pooled_width",
)
prroi_pool = one_op(
    "prroi_pool",
    "input, rois, spatial_scale=1.0, pooled_height=1, pooled_width=1, batch_roi_nums=None, name=None",
    "X=input ROIs=rois BatchRoINums=batch_roi_nums",
    attrs="spatial_scale pooled_height pooled_width",
)
renamed_all({name: value for name, value in globals().items() if getattr(value, "__signature__", None) is not None})


def roi_pool(
    input: Any,
    rois: Any,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    rois_lod: Any = None,
) -> Any:
    """The largest element of each part of a region: [regions, channels, height, width]."""
    attrs = {"pooled_height": pooled_height, "pooled_width": pooled_width, "spatial_scale": spatial_scale}
    inputs = {"X": input, "ROIs": rois, "RoisLod": rois_lod}
    out, places = made_by("roi_pool", inputs, "Out Argmax:int32", attrs)
    to_core(places).declared(out.shape)
    return out


def deformable_roi_pooling(
    input: Any,
    rois: Any,
    trans: Any,
    no_trans: bool = False,
    spatial_scale: float = 1.0,
    group_size: Any = (1, 1),
    pooled_height: int = 1,
    pooled_width: int = 1,
    part_size: Any = None,
    sample_per_part: int = 1,
    trans_std: float = 0.1,
    position_sensitive: bool = False,
    name: str | None = None,
) -> Any:
    """The mean of samples in each part of a region, moved by `trans`.

    With `position_sensitive` each part has channels of its own. Raises ValueError for channels that are not so many.
    """
    channels = input.shape[1]
    if position_sensitive:
        if channels % (pooled_height * pooled_width):
            raise ValueError(
                f"deformable_roi_pooling: {channels} channels are not as many for each of "
                f"{pooled_height} * {pooled_width} parts"
            )
        channels //= pooled_height * pooled_width
    attrs = {
        "no_trans": no_trans,
        "spatial_scale": spatial_scale,
        "output_dim": channels,
        "group_size": listed(group_size),
        "pooled_height": pooled_height,
        "pooled_width": pooled_width,
        "part_size": [pooled_height, pooled_width] if part_size is None else listed(part_size),
        "sample_per_part": sample_per_part,
        "trans_std": trans_std,
    }
    inputs = {"Input": input, "ROIs": rois, "Trans": trans}
    return made_by("deformable_psroi_pooling", inputs, "Output TopCount:int32", attrs, name=name)[0]


def roi_perspective_transform(
    input: Any,
    rois: Any,
    transformed_height: int,
    transformed_width: int,
    spatial_scale: float = 1.0,
    name: str | None = None,
) -> Any:
    """Quadrilaterals seen as rectangles [regions, channels, height, width], which places lie inside, and the matrices
    that take places of results to places of `input`: [regions, 9].
    """
    attrs = {
        "transformed_height": transformed_height,
        "transformed_width": transformed_width,
        "spatial_scale": spatial_scale,
    }
    slots = "Out Mask:int32 TransformMatrix Out2InIdx:int32 Out2InWeights"
    made = made_by("roi_perspective_transform", {"X": input, "ROIs": rois}, slots, attrs, name=name)
    return tuple(made[:3])


checked_all(globals())
