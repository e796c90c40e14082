"""Convolution and pooling over images."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.schema import INTS, STRING, declare, declare_gradient, floats, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, int_attr, ints_attr, one, shape_rule

_CONV = {
    "is_test": False,
    "strides": ints(1, 1),
    "paddings": ints(0, 0),
    "padding_algorithm": "EXPLICIT",
    "groups": 1,
    "dilations": ints(1, 1),
    "use_cudnn": False,
    "fuse_relu_before_depthwise_conv": False,
    "use_mkldnn": False,
    "use_quantizer": False,
    "fuse_relu": False,
    "fuse_brelu": False,
    "fuse_brelu_threshold": 6.0,
    "fuse_activation": "",
    "fuse_alpha": 0.0,
    "fuse_beta": 0.0,
    "fuse_residual_connection": False,
    "Scale_in": 1.0,
    "Scale_out": 1.0,
    "Scale_in_eltwise": 1.0,
    "Scale_weights": floats(1.0),
    "force_fp32_output": False,
    "data_format": "NCHW",
    "workspace_size_MB": 512,
    "exhaustive_search": False,
}

declare(
    "conv2d",
    "Input Filter Bias? ResidualData? -> Output",
    _CONV,
    doc="Output = Input convolved with Filter [out, in / groups, height, width]",
)
declare_gradient("conv2d", "Input Filter Bias? Output@GRAD -> Input@GRAD Filter@GRAD Bias@GRAD?")
declare(
    "depthwise_conv2d",
    "Input Filter Bias? ResidualData? -> Output",
    _CONV,
    doc="as conv2d, each group one channel",
)
declare_gradient("depthwise_conv2d", "Input Filter Bias? Output@GRAD -> Input@GRAD Filter@GRAD Bias@GRAD?")
declare(
    "pool2d",
    "X -> Out",
    {
        "pooling_type": STRING,
        "ksize": INTS,
        "global_pooling": False,
        "strides": ints(1, 1),
        "paddings": ints(0, 0),
        "exclusive": True,
        "adaptive": False,
        "use_cudnn": False,
        "ceil_mode": False,
        "use_mkldnn": False,
        "use_quantizer": False,
        "data_format": "NCHW",
        "is_test": False,
        "padding_algorithm": "EXPLICIT",
    },
    doc="Out = the maximum or average of each window",
)
declare_gradient("pool2d", "X Out Out@GRAD -> X@GRAD")


def _windows(op: Op, dims: tuple[int, ...], kernel: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[int, ...]:
    """How many windows of the kernel's size fit into each of the dims, padding included."""
    strides, paddings = ints_attr(op, "strides"), ints_attr(op, "paddings")
    pairs = paddings if len(paddings) == 2 * len(dims) else tuple(p for p in paddings for _ in "ab")
    algorithm, found = op.attrs.get("padding_algorithm"), list[int]()
    for at, dim in enumerate(dims):
        if dim < 0 or kernel[at] < 0:
            found.append(-1)
        elif algorithm == "SAME":
            found.append(-(-dim // strides[at]))
        else:
            padding = 0 if algorithm == "VALID" else pairs[2 * at] + pairs[2 * at + 1]
            room = dim + padding - (dilations[at] * (kernel[at] - 1) + 1)
            if op.attrs.get("ceil_mode"):
                room += strides[at] - 1
            found.append(room // strides[at] + 1)
    return tuple(found)


def _image(op: Op, x: TensorType, slot: str) -> tuple[int, int, tuple[int, ...]]:
    """Batch, channels and spatial dims of images. Raises ShapeError unless there are four dims."""
    if len(x.shape) != 4:
        raise ShapeError(f"{slot} is {describe(x)}, images have four dims", slot)
    if op.attrs.get("data_format") == "NHWC":
        return x.shape[0], x.shape[3], x.shape[1:3]
    return x.shape[0], x.shape[1], x.shape[2:]


def _images(op: Op, x: TensorType, batch: int, channels: int, dims: tuple[int, ...]) -> TensorType:
    last = op.attrs.get("data_format") == "NHWC"
    return TensorType(x.dtype, (batch, *dims, channels) if last else (batch, channels, *dims), x.lod_level)


@shape_rule("conv2d", "depthwise_conv2d")
def _conv(op: Op, types: Types) -> Types:
    x, kernel = one(types, "Input"), one(types, "Filter")
    batch, channels, dims = _image(op, x, "Input")
    taken = kernel.shape[1] * int_attr(op, "groups", 1)
    if len(kernel.shape) != 4 or (channels >= 0 and kernel.shape[1] >= 0 and taken != channels):
        message = f"Filter is {describe(kernel)}, which takes {taken} channels; Input is {describe(x)}"
        raise ShapeError(message, "Filter")
    found = _windows(op, dims, kernel.shape[2:], ints_attr(op, "dilations"))
    return {"Output": (_images(op, x, batch, kernel.shape[0], found),)}


@shape_rule("pool2d")
def _pool(op: Op, types: Types) -> Types:
    x = one(types, "X")
    batch, channels, dims = _image(op, x, "X")
    if op.attrs.get("adaptive"):
        found = ints_attr(op, "ksize")
    elif op.attrs.get("global_pooling"):
        found = (1, 1)
    else:
        found = _windows(op, dims, ints_attr(op, "ksize"), (1, 1))
    return {"Out": (_images(op, x, batch, channels, found),)}
