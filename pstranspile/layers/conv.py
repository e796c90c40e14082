"""Layers over images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from pstranspile.layers.basic import activation, layer
from pstranspile.layers.draft import Value
from pstranspile.layers.initializers import Normal
from pstranspile.layers.nn import bias, name_layer
from pstranspile.layers.parameters import Attr, create_parameter

Size = int | Sequence[int]
"""One number for all spatial dims, or one for each of them."""

Padding = Size | Sequence[Sequence[int]] | str
"""A Size, one number for each side of each spatial dim, a pair for each dim including batch and channels, or an
algorithm (`SAME`, `VALID`).
"""


def _each(size: Size, count: int) -> list[int]:
    """A number for each of `count` dims. Raises ValueError for another count."""
    if isinstance(size, int):
        return [size] * count
    sizes = list(size)
    if len(sizes) != count:
        raise ValueError(f"{size!r} is no whole number, and not {count} of them")
    return sizes


def _padding(padding: Padding, data_format: str) -> tuple[list[int], str]:
    """The paddings and the padding algorithm. Raises ValueError for others."""
    count = len(data_format) - 2
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise ValueError(f"padding is {padding!r}, it must be numbers, 'SAME' or 'VALID'")
        return [0] * count, padding.upper()
    if isinstance(padding, int) or not any(isinstance(side, Sequence) for side in padding):
        number = 2 * count if not isinstance(padding, int) and len(padding) == 2 * count else count
        sides = _each(padding, number)  # pyright: ignore[reportArgumentType]
    else:
        pairs = [_each(pair, 2) for pair in padding]
        inner = pairs[2:] if data_format[1] == "C" else pairs[1:-1]
        if len(pairs) != count + 2 or sum(map(sum, pairs)) != sum(map(sum, inner)):
            raise ValueError(f"padding is {padding!r}: batch and channels can't be padded")
        sides = [side for pair in inner for side in pair]
    if len(sides) == 2 * count and sides[::2] == sides[1::2]:
        sides = sides[::2]
    return sides, "EXPLICIT"


def _check(layer: str, data_format: str, use_cudnn: object, count: int) -> bool:
    """Whether channels come last. Raises ValueError for other formats, and for a `use_cudnn` that is no bool."""
    formats = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}[count]
    if data_format not in formats:
        raise ValueError(f"{layer}: data_format is {data_format!r}, it must be one of {', '.join(formats)}")
    if not isinstance(use_cudnn, bool):
        raise ValueError(f"{layer}: use_cudnn is True or False, not {use_cudnn!r}")
    return data_format == formats[1]


def conv2d(
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
    """Images convolved with `num_filters` filters; depthwise where `groups` is the number of channels."""
    _check("conv2d", data_format, use_cudnn, 2)
    channels = x.shape[3 if data_format == "NHWC" else 1]
    depthwise = channels == groups and num_filters % channels == 0 and not use_cudnn
    op_type = "depthwise_conv2d" if depthwise else "conv2d"
    settings = _Settings(stride, padding, dilation, groups, use_cudnn, data_format)
    return _convolved(op_type, x, num_filters, filter_size, settings, (param_attr, bias_attr), act, name)


def conv3d(
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
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Value:
    """Volumes convolved with `num_filters` filters. Raises ValueError for settings that don't fit."""
    _check("conv3d", data_format, use_cudnn, 3)
    settings = _Settings(stride, padding, dilation, groups, use_cudnn, data_format)
    return _convolved("conv3d", x, num_filters, filter_size, settings, (param_attr, bias_attr), act, name)


class _Settings(NamedTuple):
    stride: Size
    padding: Padding
    dilation: Size
    groups: int | None
    use_cudnn: bool
    data_format: str


def _convolved(
    op_type: str,
    x: Value,
    num_filters: int,
    filter_size: Size,
    settings: _Settings,
    attrs_of: tuple[Attr, Attr],
    act: str | None,
    name: str | None,
) -> Value:
    """The layer of a convolution: kernel, op, bias for each channel, activation."""
    draft, count = x.draft, len(settings.data_format) - 2
    last = settings.data_format[1] != "C"
    channels, groups = x.shape[-1 if last else 1], settings.groups
    if channels < 0 or (groups and channels % groups):
        raise ValueError(f"{op_type}: %{x.name} has {channels} channels, which {groups or 1} groups can't share")
    minted = name_layer(draft, op_type, name)
    size = _each(filter_size, count)
    paddings, algorithm = _padding(settings.padding, settings.data_format)
    attrs = {
        "strides": _each(settings.stride, count),
        "paddings": paddings,
        "dilations": _each(settings.dilation, count),
        "groups": groups or 1,
        "use_cudnn": settings.use_cudnn,
        "padding_algorithm": algorithm,
        "data_format": settings.data_format,
    }
    start = Normal(0.0, (2.0 / (prod(size) * channels)) ** 0.5)
    shape = (num_filters, channels // (groups or 1), *size)
    kernel = create_parameter(draft, minted, attrs_of[0], shape, x.dtype, default=start)
    out = layer(op_type, {"Input": x, "Filter": kernel}, x.dtype, attrs, out="Output", name=minted)
    biased = bias(minted, out, attrs_of[1], *((count + 1, count + 2) if last else (1, 2)))
    return activation(minted, biased, act, use_cudnn=settings.use_cudnn)


def conv2d_transpose(
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
    """The transposed convolution: images of `output_size`, or of what `filter_size` leads to.

    Raises ValueError when neither is given.
    """
    channels = x.shape[3 if data_format == "NHWC" else 1]
    depthwise = channels == groups == num_filters and not use_cudnn
    op_type = "depthwise_conv2d_transpose" if depthwise else "conv2d_transpose"
    settings = _Settings(stride, padding, dilation, groups, use_cudnn, data_format)
    return _transposed(
        op_type, x, num_filters, (output_size, filter_size), settings, (param_attr, bias_attr), act, name
    )


def conv3d_transpose(
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
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Value:
    """The transposed convolution of volumes. Raises ValueError as `conv2d_transpose`."""
    settings = _Settings(stride, padding, dilation, groups, use_cudnn, data_format)
    sizes = (output_size, filter_size)
    return _transposed("conv3d_transpose", x, num_filters, sizes, settings, (param_attr, bias_attr), act, name)


def _transposed(
    op_type: str,
    x: Value,
    num_filters: int,
    sizes: tuple[Size | None, Size | None],
    settings: _Settings,
    attrs_of: tuple[Attr, Attr],
    act: str | None,
    name: str | None,
) -> Value:
    """The layer of a transposed convolution with the given output size or filter size."""
    draft, count = x.draft, len(settings.data_format) - 2
    last = _check(op_type, settings.data_format, settings.use_cudnn, count)
    groups = settings.groups or 1
    minted = name_layer(draft, op_type, name)
    paddings, algorithm = _padding(settings.padding, settings.data_format)
    strides, dilations = _each(settings.stride, count), _each(settings.dilation, count)
    wanted = [] if sizes[0] is None else _each(sizes[0], count)
    if sizes[1] is not None:
        size = _each(sizes[1], count)
    elif wanted:
        images = x.shape[1:-1] if last else x.shape[2:]
        even = len(paddings) == count
        around = [2 * p for p in paddings] if even else [sum(paddings[at : at + 2]) for at in range(0, 2 * count, 2)]
        axes = zip(wanted, images, strides, around, dilations, strict=True)
        size = [(out - (side - 1) * step + pads - 1) // apart + 1 for out, side, step, pads, apart in axes]
    else:
        raise ValueError(f"{op_type} takes output_size or filter_size")
    shape = (x.shape[-1 if last else 1], num_filters // groups, *size)
    kernel = create_parameter(draft, minted, attrs_of[0], shape, x.dtype)
    attrs = {
        "output_size": wanted,
        "strides": strides,
        "paddings": paddings,
        "padding_algorithm": algorithm,
        "dilations": dilations,
        "groups": groups,
        "use_cudnn": settings.use_cudnn,
        "data_format": "NHWC" if last else "NCHW",  # of volumes too
    }
    out = layer(op_type, {"Input": x, "Filter": kernel}, x.dtype, attrs, out="Output", name=minted)
    biased = bias(minted, out, attrs_of[1], *((count + 1, count + 2) if last else (1, 2)))
    return activation(minted, biased, act, use_cudnn=settings.use_cudnn)


def pool2d(
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
    """The maximum or average (`avg`) of each window of an image."""
    settings = _Settings(pool_stride, pool_padding, 1, None, use_cudnn, data_format)
    means = {"global_pooling": global_pooling, "ceil_mode": ceil_mode, "exclusive": exclusive}
    return _pooled("pool2d", x, pool_size, pool_type, settings, means, name)


def pool3d(
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
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Value:
    """The maximum or average (`avg`) of each window of a volume."""
    settings = _Settings(pool_stride, pool_padding, 1, None, use_cudnn, data_format)
    means = {"global_pooling": global_pooling, "ceil_mode": ceil_mode, "exclusive": exclusive}
    return _pooled("pool3d", x, pool_size, pool_type, settings, means, name)


def _pooled(
    op_type: str,
    x: Value,
    pool_size: Size,
    pool_type: str,
    settings: _Settings,
    means: dict[str, bool],
    name: str | None,
) -> Value:
    """The layer of a pooling. Raises ValueError for settings that don't fit."""
    if pool_type not in ("max", "avg"):
        raise ValueError(f"pool_type is {pool_type!r}, it must be 'max' or 'avg'")
    if not means["global_pooling"] and pool_size == -1:
        raise ValueError(f"{op_type} needs a pool_size, or global_pooling")
    if not isinstance(settings.use_cudnn, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{op_type}: use_cudnn is True or False, not {settings.use_cudnn!r}")
    count = 3 if op_type == "pool3d" else 2
    _check(op_type, settings.data_format, True, count)
    paddings, algorithm = _padding(settings.padding, settings.data_format)
    if algorithm == "VALID" and means["ceil_mode"]:
        raise ValueError(f"{op_type}: padding 'VALID' and ceil_mode don't go together")
    attrs = {
        "pooling_type": pool_type,
        "ksize": _each(pool_size, count),
        "strides": _each(settings.stride, count),
        "paddings": paddings,
        "padding_algorithm": algorithm,
        "use_cudnn": settings.use_cudnn,
        "data_format": settings.data_format,
        **means,
    }
    return layer(op_type, {"X": x}, x.dtype, attrs, name=name)


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
    """A convolution and a pooling after it."""
    convolved = conv2d(x, num_filters, filter_size, act=act, param_attr=param_attr, bias_attr=bias_attr)
    return pool2d(convolved, pool_size, pool_type=pool_type, pool_stride=pool_stride)
