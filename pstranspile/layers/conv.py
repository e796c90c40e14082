"""Layers over images."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.layers.basic import activation, layer
from pstranspile.layers.draft import Value
from pstranspile.layers.initializers import Normal
from pstranspile.layers.nn import bias, name_layer
from pstranspile.layers.parameters import Attr, create_parameter

Size = int | Sequence[int]
"""A number for height and width, or both."""


def _pair(size: Size) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


def _padding(padding: Size | str) -> tuple[list[int], str]:
    """Paddings and how they are meant: given, or worked out (`SAME`, `VALID`)."""
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise ValueError(f"padding is {padding!r}, it must be numbers, 'SAME' or 'VALID'")
        return [0, 0], padding.upper()
    held = _pair(padding)
    if len(held) == 4 and held[0] == held[1] and held[2] == held[3]:
        held = [held[0], held[2]]
    return held, "EXPLICIT"


def conv2d(
    x: Value,
    num_filters: int,
    filter_size: Size,
    *,
    stride: Size = 1,
    padding: Size | str = 0,
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
    draft = x.draft
    channels = x.shape[3 if data_format == "NHWC" else 1]
    if channels < 0 or (groups and channels % groups):
        raise ValueError(f"conv2d: %{x.name} has {channels} channels, which {groups or 1} groups can't share")
    depthwise = channels == groups and num_filters % channels == 0 and not use_cudnn
    op_type = "depthwise_conv2d" if depthwise else "conv2d"
    minted = name_layer(draft, op_type, name)
    size = _pair(filter_size)
    shape = (num_filters, channels // (groups or 1), *size)
    start = Normal(0.0, (2.0 / (size[0] * size[1] * channels)) ** 0.5)
    kernel = create_parameter(draft, minted, param_attr, shape, x.dtype, default=start)
    paddings, algorithm = _padding(padding)
    attrs = {
        "strides": _pair(stride),
        "paddings": paddings,
        "dilations": _pair(dilation),
        "groups": groups or 1,
        "use_cudnn": use_cudnn,
        "padding_algorithm": algorithm,
        "data_format": data_format,
    }
    out = layer(op_type, {"Input": x, "Filter": kernel}, x.dtype, attrs, out="Output", name=minted)
    biased = bias(minted, out, bias_attr, *((1, 2) if data_format == "NCHW" else (3, 4)))
    return activation(minted, biased, act, use_cudnn=use_cudnn)


def conv2d_transpose(
    x: Value,
    num_filters: int,
    *,
    output_size: Size | None = None,
    filter_size: Size | None = None,
    padding: Size | str = 0,
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
    """The transpose of a convolution: larger images, of `output_size`, or as `filter_size` makes them.

    Raises ValueError when neither is given.
    """
    draft = x.draft
    channels = x.shape[3 if data_format == "NHWC" else 1]
    depthwise = channels == groups == num_filters and not use_cudnn
    op_type = "depthwise_conv2d_transpose" if depthwise else "conv2d_transpose"
    minted = name_layer(draft, op_type, name)
    paddings, algorithm = _padding(padding)
    strides, dilations = _pair(stride), _pair(dilation)
    wanted = [] if output_size is None else _pair(output_size)
    if filter_size is not None:
        size = _pair(filter_size)
    elif wanted:
        images = x.shape[1:3] if data_format == "NHWC" else x.shape[2:4]
        around = [2 * side for side in paddings] if len(paddings) == 2 else [sum(paddings[:2]), sum(paddings[2:])]
        axes = zip(wanted, images, strides, around, dilations, strict=True)
        size = [(out - (side - 1) * step + pads - 1) // apart + 1 for out, side, step, pads, apart in axes]
    else:
        raise ValueError("conv2d_transpose takes output_size or filter_size")
    shape = (channels, num_filters // (groups or 1), *size)
    kernel = create_parameter(draft, minted, param_attr, shape, x.dtype)
    attrs = {
        "output_size": wanted,
        "strides": strides,
        "paddings": paddings,
        "padding_algorithm": algorithm,
        "dilations": dilations,
        "groups": groups or 1,
        "use_cudnn": use_cudnn,
        "data_format": data_format,
    }
    out = layer(op_type, {"Input": x, "Filter": kernel}, x.dtype, attrs, out="Output", name=minted)
    biased = bias(minted, out, bias_attr, *((1, 2) if data_format == "NCHW" else (3, 4)))
    return activation(minted, biased, act, use_cudnn=use_cudnn)


def pool2d(
    x: Value,
    pool_size: Size = -1,
    *,
    pool_type: str = "max",
    pool_stride: Size = 1,
    pool_padding: Size | str = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    exclusive: bool = True,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Value:
    """The maximum or average (`avg`) of each window of an image."""
    if pool_type not in ("max", "avg"):
        raise ValueError(f"pool_type is {pool_type!r}, it must be 'max' or 'avg'")
    if not global_pooling and pool_size == -1:
        raise ValueError("pool2d needs a pool_size, or global_pooling")
    paddings, algorithm = _padding(pool_padding)
    attrs = {
        "pooling_type": pool_type,
        "ksize": _pair(pool_size),
        "global_pooling": global_pooling,
        "strides": _pair(pool_stride),
        "paddings": paddings,
        "padding_algorithm": algorithm,
        "use_cudnn": use_cudnn,
        "ceil_mode": ceil_mode,
        "exclusive": exclusive,
        "data_format": data_format,
    }
    return layer("pool2d", {"X": x}, x.dtype, attrs, name=name)


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
