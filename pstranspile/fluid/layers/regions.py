"""Layers of `layers.nn` that bring regions of feature maps to one size."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.layers.accepted import checked_all
from pstranspile.fluid.layers.adapt import one_op, renamed_all, to_core
from pstranspile.fluid.layers.detection_ops import made_by

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


checked_all(globals())
