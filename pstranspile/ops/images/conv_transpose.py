"""Transposed convolution, and windows of images as columns or sequences."""

from __future__ import annotations

import math

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.images.conv import dilations_of, image_dims, images_type, padding_of
from pstranspile.ops.schema import INTS, declare, declare_gradient, ints
from pstranspile.ops.shapes import Dims, ShapeError, Types, describe, one, require_one_dtype, shape_rule

_CONV2D_TRANSPOSE = {
    "is_test": False,
    "output_size": ints(),
    "groups": 1,
    "dilations": ints(1, 1),
    "strides": ints(1, 1),
    "paddings": ints(0, 0),
    "use_cudnn": False,
    "use_mkldnn": False,
    "fuse_relu": False,
    "fuse_activation": "",
    "fuse_alpha": 0.0,
    "fuse_beta": 0.0,
    "data_format": "NCHW",
    "padding_algorithm": "EXPLICIT",
    "workspace_size_MB": 512,
}

declare(
    "conv2d_transpose",
    "Input Filter Bias? -> Output",
    _CONV2D_TRANSPOSE,
    doc="Output = the gradient of conv2d, run forward",
)
declare_gradient("conv2d_transpose", "Input Filter Bias? Output@GRAD -> Input@GRAD Filter@GRAD Bias@GRAD?")
declare(
    "depthwise_conv2d_transpose",
    "Input Filter Bias? -> Output",
    _CONV2D_TRANSPOSE,
    doc="as conv2d_transpose, each group one channel",
)
declare_gradient("depthwise_conv2d_transpose", "Input Filter Bias? Output@GRAD -> Input@GRAD Filter@GRAD Bias@GRAD?")
declare(
    "conv3d_transpose",
    "Input Filter -> Output",
    {
        "output_size": ints(),
        "dilations": ints(1, 1, 1),
        "strides": ints(1, 1, 1),
        "paddings": ints(0, 0, 0),
        "groups": 1,
        "use_cudnn": False,
        "use_mkldnn": False,
        "data_format": "NCHW",
        "padding_algorithm": "EXPLICIT",
        "workspace_size_MB": 512,
    },
    doc="as conv2d_transpose, over volumes",
)
declare_gradient("conv3d_transpose", "Input Filter Output@GRAD -> Input@GRAD Filter@GRAD")
declare(
    "unfold",
    "X -> Y",
    {"kernel_sizes": INTS, "strides": INTS, "paddings": INTS, "dilations": INTS},
    doc="Y = the windows of X as columns",
)
declare_gradient("unfold", "X Y@GRAD -> X@GRAD")
declare(
    "im2sequence",
    "X Y? -> Out",
    {"kernels": INTS, "strides": ints(1, 1), "paddings": ints(0, 0, 0, 0), "out_stride": ints(1, 1)},
    doc="Out = the windows of X as sequences",
)
declare_gradient("im2sequence", "X Out@GRAD -> X@GRAD")


# Shape rules


def grown_dims(op: Op, dims: Dims, size: Dims) -> Dims:
    """The spatial dims of a transposed convolution without `output_size`; -1 if a dim is not known."""
    result: list[int] = []
    known = tuple(max(dim, 1) for dim in dims)
    for dim, k, stride, dilation, around in zip(
        dims, size, ints_attr(op, "strides"), dilations_of(op), padding_of(op, known, size), strict=True
    ):
        unknown = dim < 0 or k < 0
        result.append(-1 if unknown else (dim - 1) * stride - sum(around) + dilation * (k - 1) + 1)
    return tuple(result)


def transposed_dims(op: Op, dims: Dims, size: Dims) -> Dims:
    """The spatial dims of the result. Raises ValueError if the strides don't allow `output_size`."""
    least, asked = grown_dims(op, dims, size), ints_attr(op, "output_size")
    if not asked:
        return least
    for want, dim, stride in zip(asked, least, ints_attr(op, "strides"), strict=True):
        if dim >= 0 and not dim <= want < dim + stride:
            raise ValueError(f"output_size has {want}, it must be from {dim} to {dim + stride - 1}")
    return asked


@shape_rule("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose")
def _conv_transpose(op: Op, types: Types) -> Types:
    require_one_dtype(types, "Input", "Filter")
    x, kernel = one(types, "Input"), one(types, "Filter")
    spatial = 3 if op.type == "conv3d_transpose" else 2
    batch, channels, dims = image_dims(op, x, "Input", spatial)
    if len(kernel.shape) != spatial + 2 or (channels >= 0 and kernel.shape[0] >= 0 and kernel.shape[0] != channels):
        message = f"Filter is {describe(kernel)}, which takes {kernel.shape[0]} channels; Input is {describe(x)}"
        raise ShapeError(message, "Filter")
    try:
        result = transposed_dims(op, dims, kernel.shape[2:])
    except ValueError as error:
        raise ShapeError(str(error), "Input") from None
    made = kernel.shape[1] * int_attr(op, "groups", 1)
    return {"Output": (images_type(op, x, batch, made, result)._replace(lod_level=0),)}


@shape_rule("unfold")
def _unfold(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) != 4:
        raise ShapeError(f"X is {describe(x)}, images have four dims", "X")
    size = ints_attr(op, "kernel_sizes")
    counts = counts_of(
        x.shape[2:], size, ints_attr(op, "strides"), ints_attr(op, "dilations"), ints_attr(op, "paddings")
    )
    columns = -1 if min(counts) < 0 else math.prod(counts)
    rows = -1 if x.shape[1] < 0 else x.shape[1] * math.prod(size)
    return {"Y": (TensorType(x.dtype, (x.shape[0], rows, columns)),)}


@shape_rule("im2sequence")
def _im2sequence(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) != 4:
        raise ShapeError(f"X is {describe(x)}, images have four dims", "X")
    width = -1 if x.shape[1] < 0 else x.shape[1] * math.prod(ints_attr(op, "kernels"))
    return {"Out": (TensorType(x.dtype, (-1, width), 1),)}


def counts_of(dims: Dims, size: Dims, strides: Dims, dilations: Dims, paddings: Dims) -> Dims:
    """The number of windows along each dim; `paddings` are top, left, bottom, right. -1 if a dim is not known."""
    return tuple(
        -1 if dim < 0 else int((dim + paddings[at] + paddings[at + 2] - dilation * (k - 1) - 1) / stride) + 1
        for at, (dim, k, stride, dilation) in enumerate(zip(dims, size, strides, dilations, strict=True))
    )
