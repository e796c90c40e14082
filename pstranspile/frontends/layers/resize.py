"""Layers that pad, resize and rearrange images."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.frontends.layers.basic import layer, unary
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.ir.types import DType


def pad2d(
    x: Value,
    paddings: Sequence[int] | Value = (0, 0, 0, 0),
    *,
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
) -> Value:
    """Images with a margin (above, below, left, right): `constant`, or filled from the image by `reflect` or `edge`."""
    if mode not in ("constant", "reflect", "edge"):
        raise ValueError(f"the mode of pad2d is {mode!r}, it must be 'constant', 'reflect' or 'edge'")
    attrs: dict[str, object] = {"mode": mode, "pad_value": pad_value, "data_format": data_format}
    inputs = {"X": x}
    if isinstance(paddings, Value):
        inputs["Paddings"] = paddings
    attrs["paddings"] = () if isinstance(paddings, Value) else paddings
    out = layer("pad2d", inputs, x.dtype, attrs)
    return (
        out.declared(x.shape) if isinstance(paddings, Value) else out
    )  # as in Fluid, where the dims are known at run time only


_FORMATS = {
    **dict.fromkeys(("bilinear", "nearest", "bicubic"), ("NCHW", "NHWC")),
    "trilinear": ("NCDHW", "NDHWC"),
}
_METHODS = "BILINEAR, NEAREST or BICUBIC for four dims, TRILINEAR for five"


def _as_variable(draft: Draft, layer_name: str, dim: int | Value) -> Value:
    """A dim as a variable: a number in one of the layer's own."""
    if isinstance(dim, Value):
        return dim.stopped()
    made = draft.temporary(layer_name, DType.INT32)
    attrs = {"shape": [1], "dtype": DType.INT32, "value": float(dim), "str_value": str(dim), "force_cpu": True}
    draft.op("fill_constant", {}, {"Out": made}, attrs)
    return made.stopped()


def image_resize(
    x: Value,
    out_shape: Sequence[int | Value] | Value | None = None,
    *,
    scale: float | Value | None = None,
    resample: str = "BILINEAR",
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
    actual_shape: Value | None = None,
    name: str | None = None,
) -> Value:
    """Images resized by `BILINEAR`, `NEAREST` or `BICUBIC` interpolation; volumes by `TRILINEAR`.

    The size is given, or a multiple of the old one. A dim of `out_shape` may be a variable. `actual_shape` replaces it
    at run time. Raises ValueError for settings that don't fit, TypeError for a scale that is no number.
    """
    method = resample.lower()
    formats = _FORMATS.get(method, ())
    if not formats or len(x.shape) != len(formats[0]):
        raise ValueError(f"resample is {resample!r}, it must be {_METHODS}")
    if data_format not in formats:
        raise ValueError(f"data_format is {data_format!r}, it must be one of {', '.join(formats)}")
    if out_shape is None and scale is None:
        raise ValueError("image_resize takes out_shape or scale")
    if align_mode not in (0, 1):
        raise ValueError(f"align_mode is 0 or 1, not {align_mode!r}")
    draft = x.draft
    name = name or draft.names.mint(f"{method}_interp")
    inputs: dict[str, Value | list[Value]] = {"X": x}
    attrs: dict[str, object] = {
        "out_d": -1,
        "out_h": -1,
        "out_w": -1,
        "interp_method": method,
        "align_corners": align_corners,
        "align_mode": align_mode,
        "data_layout": data_format,
    }
    if isinstance(out_shape, Value):
        inputs["OutSize"] = out_shape.stopped()
    elif out_shape is not None:
        names = ("out_d", "out_h", "out_w")[-len(formats[0]) + 2 :]
        if len(out_shape) != len(names):
            raise ValueError(f"out_shape has {len(out_shape)} dims, not {len(names)}")
        attrs.update((key, -1 if isinstance(dim, Value) else dim) for key, dim in zip(names, out_shape, strict=True))
        if any(isinstance(dim, Value) for dim in out_shape):
            inputs["SizeTensor"] = [_as_variable(draft, name, dim) for dim in out_shape]
    elif isinstance(scale, Value):
        inputs["Scale"] = scale.stopped()
    elif not isinstance(scale, int | float):
        raise TypeError(f"scale is a number or a variable, not {scale!r}")
    elif scale <= 0:
        raise ValueError(f"scale is {scale}, it must be above 0")
    else:
        attrs["scale"] = scale
    if actual_shape is not None:
        inputs["OutSize"] = actual_shape.stopped()
    return layer(f"{method}_interp", inputs, x.dtype, attrs, name=name)


def resize_bilinear(
    x: Value,
    out_shape: Sequence[int | Value] | Value | None = None,
    *,
    scale: float | Value | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
    actual_shape: Value | None = None,
    name: str | None = None,
) -> Value:
    """Images resized with bilinear interpolation."""
    return image_resize(
        x,
        out_shape,
        scale=scale,
        align_corners=align_corners,
        align_mode=align_mode,
        data_format=data_format,
        actual_shape=actual_shape,
        name=name,
    )


def resize_nearest(
    x: Value,
    out_shape: Sequence[int | Value] | Value | None = None,
    *,
    scale: float | Value | None = None,
    align_corners: bool = True,
    data_format: str = "NCHW",
    actual_shape: Value | None = None,
    name: str | None = None,
) -> Value:
    """Images resized to the nearest pixel."""
    return image_resize(
        x,
        out_shape,
        scale=scale,
        resample="NEAREST",
        align_corners=align_corners,
        data_format=data_format,
        actual_shape=actual_shape,
        name=name,
    )


def pixel_shuffle(x: Value, upscale_factor: int) -> Value:
    """Channels laid out as pixels: height and width times the factor."""
    return unary("pixel_shuffle", x, upscale_factor=upscale_factor)


def shuffle_channel(x: Value, group: int) -> Value:
    """Channels taken from each group in turn."""
    return unary("shuffle_channel", x, group=group)


def space_to_depth(x: Value, blocksize: int) -> Value:
    """Pixels of blocks laid out as channels."""
    return unary("space_to_depth", x, blocksize=blocksize)


def maxout(x: Value, groups: int, *, axis: int = 1) -> Value:
    """The maximum over each group of `groups` channels; `axis` is the dim of the channels (1, or 3 or -1)."""
    if axis not in (1, 3, -1):
        raise ValueError(f"maxout: the axis is {axis}, it must be 1, 3 or -1")
    return unary("maxout", x, groups=groups, axis=3 if axis == -1 else axis)
