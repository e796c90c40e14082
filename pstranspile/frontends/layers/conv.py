"""Layers over images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Signature, signature
from math import prod
from typing import Concatenate, ParamSpec

from pstranspile.frontends.layers.basic import activation, layer, unary
from pstranspile.frontends.layers.draft import Draft, Value, whole_dim
from pstranspile.frontends.layers.nn import bias, name_layer
from pstranspile.frontends.layers.parameters import Attr, Normal, create_parameter
from pstranspile.ir.types import DType

# Layers that pad, resize and rearrange images.


def pad2d(
    x: Value,
    paddings: Sequence[int] | Value = (0, 0, 0, 0),
    *,
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
) -> Value:
    """Images with a margin (above, below, left, right), which is constant, or filled from the image by `reflect` or
    `edge`.
    """
    if mode not in ("constant", "reflect", "edge"):
        raise ValueError(f"the mode of pad2d is {mode!r}, it must be 'constant', 'reflect' or 'edge'")
    attrs: dict[str, object] = {"mode": mode, "pad_value": pad_value, "data_format": data_format}
    inputs = {"X": x}
    if isinstance(paddings, Value):
        inputs["Paddings"] = paddings
    attrs["paddings"] = () if isinstance(paddings, Value) else paddings
    out = layer("pad2d", inputs, x.dtype, attrs)
    return (
        out.redeclare_dims(x.shape) if isinstance(paddings, Value) else out
    )  # as in Fluid, if the dims are known only at run time


_IMAGE_FORMATS = {
    **dict.fromkeys(("bilinear", "nearest", "bicubic"), ("NCHW", "NHWC")),
    "trilinear": ("NCDHW", "NDHWC"),
}
_METHODS = "BILINEAR, NEAREST or BICUBIC for four dims, TRILINEAR for five"


def _as_variable(draft: Draft, layer_name: str, dim: int | Value) -> Value:
    """A dim as a variable; a number becomes a new constant of the layer."""
    if isinstance(dim, Value):
        return dim.stopped()
    made, number = draft.temporary(layer_name, DType.INT32), whole_dim(dim, truncated=True)
    attrs = {"shape": [1], "dtype": DType.INT32, "value": float(number), "str_value": str(number), "force_cpu": True}
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
    formats = _IMAGE_FORMATS.get(method, ())
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
        attrs.update(
            (key, -1 if isinstance(dim, Value) else whole_dim(dim, truncated=True))
            for key, dim in zip(names, out_shape, strict=True)
        )
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
    """Channels rearranged to pixels: height and width are multiplied by the factor."""
    return unary("pixel_shuffle", x, upscale_factor=upscale_factor)


def shuffle_channel(x: Value, group: int) -> Value:
    """Channels reordered so that they come from each of the groups in turn."""
    return unary("shuffle_channel", x, group=group)


def space_to_depth(x: Value, blocksize: int) -> Value:
    """The pixels of each block rearranged to channels."""
    return unary("space_to_depth", x, blocksize=whole_dim(blocksize))


def maxout(x: Value, groups: int, *, axis: int = 1) -> Value:
    """The maximum over each group of `groups` channels; `axis` is the dim of the channels (1, or 3 or -1)."""
    if axis not in (1, 3, -1):
        raise ValueError(f"maxout: the axis is {axis}, it must be 1, 3 or -1")
    return unary("maxout", x, groups=groups, axis=3 if axis == -1 else axis)


Size = int | Sequence[int]
"""One number for all spatial dims, or one for each of them."""

Padding = Size | Sequence[Sequence[int]] | str
"""A Size, one number for each side of each spatial dim, a pair for each dim including batch and channels, or an
algorithm (`SAME`, `VALID`).
"""


_FORMATS = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}

_P = ParamSpec("_P")


def each_dim(size: Size, count: int) -> list[int]:
    """A number for each of `count` dims. Raises ValueError for another count."""
    if isinstance(size, int):
        return [size] * count
    sizes = list(size) if isinstance(size, Iterable) else []  # pyright: ignore[reportUnnecessaryIsInstance]
    if len(sizes) != count or isinstance(size, str):
        raise ValueError(f"{size!r} is no whole number, and not {count} of them")
    return sizes


def paddings_of(padding: Padding, data_format: str) -> tuple[list[int], str]:
    """The paddings and the padding algorithm. Raises ValueError for others."""
    count = len(data_format) - 2
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise ValueError(f"padding is {padding!r}, it must be numbers, 'SAME' or 'VALID'")
        return [0] * count, padding.upper()
    if isinstance(padding, int) or not any(isinstance(side, Sequence) for side in padding):
        number = 2 * count if not isinstance(padding, int) and len(padding) == 2 * count else count
        sides = each_dim(padding, number)  # pyright: ignore[reportArgumentType]
    else:
        pairs = [each_dim(pair, 2) for pair in padding]
        inner = pairs[2:] if data_format[1] == "C" else pairs[1:-1]
        if len(pairs) != count + 2 or sum(map(sum, pairs)) != sum(map(sum, inner)):
            raise ValueError(f"padding is {padding!r}: batch and channels can't be padded")
        sides = [side for pair in inner for side in pair]
    if len(sides) == 2 * count and sides[::2] == sides[1::2]:
        sides = sides[::2]
    return sides, "EXPLICIT"


def _check(layer: str, data_format: str, use_cudnn: object, count: int) -> bool:
    """Whether channels come last. Raises ValueError for other formats, and for a `use_cudnn` that is no bool."""
    formats = _FORMATS[count]
    if data_format not in formats:
        raise ValueError(f"{layer}: data_format is {data_format!r}, it must be one of {', '.join(formats)}")
    if not isinstance(use_cudnn, bool):
        raise ValueError(f"{layer}: use_cudnn is True or False, not {use_cudnn!r}")
    return data_format == formats[1]


def _for_rank(layer: Callable[Concatenate[int, _P], Value], spatial: int, name: str, doc: str) -> Callable[_P, Value]:
    """The layer for images (`spatial` 2) or volumes (3), under a name of its own."""

    def layer_for_rank(*args: _P.args, **options: _P.kwargs) -> Value:
        options.setdefault("data_format", _FORMATS[spatial][0])
        return layer(spatial, *args, **options)

    layer_for_rank.__name__, layer_for_rank.__doc__ = name, doc
    _, *parameters = signature(layer).parameters.values()
    formats = {"data_format": _FORMATS[spatial][0]}
    own = [part.replace(default=formats.get(part.name, part.default)) for part in parameters]
    layer_for_rank.__signature__ = Signature(own)  # type: ignore[attr-defined]
    return layer_for_rank


def _convolution(
    spatial: int,
    x: Value,
    num_filters: int,
    filter_size: Size,
    *,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_cudnn: bool = True,
    act: str | None = None,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Value:
    last = _check(f"conv{spatial}d", data_format, use_cudnn, spatial)
    draft, channels = x.draft, x.shape[-1 if last else 1]
    depthwise = spatial == 2 and channels == groups and num_filters % channels == 0 and not use_cudnn
    op_type = "depthwise_conv2d" if depthwise else f"conv{spatial}d"
    if channels < 0 or (groups and channels % groups):
        raise ValueError(f"{op_type}: %{x.name} has {channels} channels, which {groups or 1} groups can't share")
    minted = name_layer(draft, op_type, name)
    size = each_dim(filter_size, spatial)
    paddings, algorithm = paddings_of(padding, data_format)
    attrs = {
        "strides": each_dim(stride, spatial),
        "paddings": paddings,
        "dilations": each_dim(dilation, spatial),
        "groups": groups or 1,
        "use_cudnn": use_cudnn,
        "padding_algorithm": algorithm,
        "data_format": data_format,
    }
    start = Normal(0.0, (2.0 / (prod(size) * channels)) ** 0.5)
    shape = (num_filters, channels // (groups or 1), *size)
    kernel = create_parameter(draft, minted, param_attr, shape, x.dtype, default=start)
    out = layer(op_type, {"Input": x, "Filter": kernel}, x.dtype, attrs, out="Output", name=minted)
    biased = bias(minted, out, bias_attr, *((spatial + 1, spatial + 2) if last else (1, 2)))
    return activation(minted, biased, act, use_cudnn=use_cudnn)


conv2d = _for_rank(
    _convolution,
    2,
    "conv2d",
    "Images convolved with `num_filters` filters; depthwise where `groups` is the number of channels.",
)
conv3d = _for_rank(
    _convolution,
    3,
    "conv3d",
    "Volumes convolved with `num_filters` filters. Raises ValueError for settings that don't fit.",
)


def _transposed_convolution(
    spatial: int,
    x: Value,
    num_filters: int,
    output_size: Size | None = None,
    filter_size: Size | None = None,
    *,
    padding: Padding = 0,
    stride: Size = 1,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_cudnn: bool = True,
    act: str | None = None,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Value:
    depthwise = spatial == 2 and x.shape[3 if data_format == "NHWC" else 1] == groups == num_filters and not use_cudnn
    op_type = "depthwise_conv2d_transpose" if depthwise else f"conv{spatial}d_transpose"
    last = _check(op_type, data_format, use_cudnn, spatial)
    draft, groups = x.draft, groups or 1
    minted = name_layer(draft, op_type, name)
    paddings, algorithm = paddings_of(padding, data_format)
    strides, dilations = each_dim(stride, spatial), each_dim(dilation, spatial)
    wanted = [] if output_size is None else each_dim(output_size, spatial)
    if filter_size is not None:
        size = each_dim(filter_size, spatial)
    elif wanted:
        images = x.shape[1:-1] if last else x.shape[2:]
        even = len(paddings) == spatial
        around = [2 * p for p in paddings] if even else [sum(paddings[at : at + 2]) for at in range(0, 2 * spatial, 2)]
        axes = zip(wanted, images, strides, around, dilations, strict=True)
        size = [(out - (side - 1) * step + pads - 1) // apart + 1 for out, side, step, pads, apart in axes]
    else:
        raise ValueError(f"{op_type} takes output_size or filter_size")
    shape = (x.shape[-1 if last else 1], num_filters // groups, *size)
    kernel = create_parameter(draft, minted, param_attr, shape, x.dtype)
    attrs = {
        "output_size": wanted,
        "strides": strides,
        "paddings": paddings,
        "padding_algorithm": algorithm,
        "dilations": dilations,
        "groups": groups,
        "use_cudnn": use_cudnn,
        "data_format": "NHWC" if last else "NCHW",  # also for volumes
    }
    out = layer(op_type, {"Input": x, "Filter": kernel}, x.dtype, attrs, out="Output", name=minted)
    biased = bias(minted, out, bias_attr, *((spatial + 1, spatial + 2) if last else (1, 2)))
    return activation(minted, biased, act, use_cudnn=use_cudnn)


conv2d_transpose = _for_rank(
    _transposed_convolution,
    2,
    "conv2d_transpose",
    "The transposed convolution to images of `output_size`, or of the size that `filter_size` gives.\n\n"
    "Raises ValueError when neither is given.",
)
conv3d_transpose = _for_rank(
    _transposed_convolution,
    3,
    "conv3d_transpose",
    "The transposed convolution of volumes. Raises ValueError as `conv2d_transpose`.",
)


def _pooling(
    spatial: int,
    x: Value,
    pool_size: Size = -1,
    *,
    pool_type: str = "max",
    pool_stride: Size = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    exclusive: bool = True,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Value:
    op_type = f"pool{spatial}d"
    if pool_type not in ("max", "avg"):
        raise ValueError(f"pool_type is {pool_type!r}, it must be 'max' or 'avg'")
    if not global_pooling and pool_size == -1:
        raise ValueError(f"{op_type} needs a pool_size, or global_pooling")
    if not isinstance(use_cudnn, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{op_type}: use_cudnn is True or False, not {use_cudnn!r}")
    _check(op_type, data_format, True, spatial)
    paddings, algorithm = paddings_of(pool_padding, data_format)
    if algorithm == "VALID" and ceil_mode:
        raise ValueError(f"{op_type}: padding 'VALID' and ceil_mode don't go together")
    attrs = {
        "pooling_type": pool_type,
        "ksize": each_dim(pool_size, spatial),
        "strides": each_dim(pool_stride, spatial),
        "paddings": paddings,
        "padding_algorithm": algorithm,
        "use_cudnn": use_cudnn,
        "data_format": data_format,
        "global_pooling": global_pooling,
        "ceil_mode": ceil_mode,
        "exclusive": exclusive,
    }
    return layer(op_type, {"X": x}, x.dtype, attrs, name=name)


pool2d = _for_rank(_pooling, 2, "pool2d", "The maximum or average (`avg`) of each window of an image.")
pool3d = _for_rank(_pooling, 3, "pool3d", "The maximum or average (`avg`) of each window of a volume.")


def simple_img_conv_pool(
    x: Value,
    num_filters: int,
    filter_size: Size,
    pool_size: Size,
    pool_stride: Size,
    *,
    act: str | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    pool_type: str = "max",
) -> Value:
    """A convolution followed by a pooling."""
    convolved = conv2d(x, num_filters, filter_size, act=act, param_attr=param_attr, bias_attr=bias_attr)
    return pool2d(convolved, pool_size, pool_type=pool_type, pool_stride=pool_stride)
