"""Convolutions."""

from __future__ import annotations

import math

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.schema import INTS, bounded, declare, declare_gradient, floats, ints, words
from pstranspile.ops.shapes import (
    Dims,
    Padding,
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    gradient_types,
    one,
    one_or_none,
    require_one_dtype,
    shape_rule,
)
from pstranspile.ops.work import elements, work_rule

_CONV = {
    "is_test": False,
    "strides": bounded(ints(1, 1), 1, counts=(2,)),
    "paddings": bounded(ints(0, 0), counts=(2, 4)),
    "padding_algorithm": words("EXPLICIT", "SAME", "VALID"),
    "groups": bounded(1, 1),
    "dilations": bounded(ints(1, 1), counts=(2,)),
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
    "data_format": words("NCHW", "NHWC", "AnyLayout"),
    "workspace_size_MB": 512,
    "exhaustive_search": False,
}

declare(
    "conv2d",
    "Input Filter Bias? ResidualData? -> Output",
    _CONV,
    typed_by="Input",
    doc="Output = Input convolved with Filter [out, in / groups, height, width]",
    memory="new",
)
declare_gradient("conv2d", "Input Filter Bias? Output@GRAD -> Input@GRAD Filter@GRAD Bias@GRAD?", result_lod="none")
declare(
    "depthwise_conv2d",
    "Input Filter Bias? ResidualData? -> Output",
    _CONV,
    typed_by="Input",
    doc="as conv2d, each group one channel",
    memory="new",
)
declare_gradient(
    "depthwise_conv2d", "Input Filter Bias? Output@GRAD -> Input@GRAD Filter@GRAD Bias@GRAD?", result_lod="none"
)

declare(
    "conv3d",
    "Input Filter ResidualData? -> Output",
    {
        "is_test": False,
        "strides": bounded(ints(1, 1, 1), 1, counts=(3,)),
        "paddings": bounded(ints(0, 0, 0), counts=(3, 6)),
        "padding_algorithm": words("EXPLICIT", "SAME", "VALID"),
        "groups": bounded(1, 1),
        "dilations": bounded(ints(1, 1, 1), counts=(3,)),
        "use_cudnn": False,
        "use_mkldnn": False,
        "fuse_relu": False,
        "fuse_activation": "",
        "fuse_alpha": 0.0,
        "fuse_beta": 0.0,
        "fuse_residual_connection": False,
        "data_format": words("NCDHW", "NDHWC", "NCHW", "NHWC", "AnyLayout"),
        "force_fp32_output": False,
        "workspace_size_MB": 512,
        "exhaustive_search": False,
    },
    typed_by="Input",
    doc="as conv2d, over volumes",
    memory="new",
)
declare_gradient("conv3d", "Input Filter ResidualData? Output@GRAD -> Input@GRAD Filter@GRAD")


def window_counts(
    op: Op, dims: tuple[int, ...], kernel: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[int, ...]:
    """The number of windows along each dim, padding included; -1 if it is not known.

    Fluid divides as in C, so a dim that is less than a stride too short for one window has one window, which ends
    outside. Raises ShapeError for a dim without windows.
    """
    strides, paddings = ints_attr(op, "strides"), ints_attr(op, "paddings")
    listed = {"strides": len(strides), "dilations": len(dilations), "paddings": len(paddings)}
    for name, count in {**listed, "the kernel's dims": len(kernel)}.items():
        if count != len(dims) and (name, count) != ("paddings", 2 * len(dims)):
            raise ShapeError(f"{name} are {count}, but there are {len(dims)} spatial dims", next(iter(op.inputs)))
    if min((*strides, *dilations), default=1) < 1:
        raise ShapeError("strides and dilations must be at least 1", next(iter(op.inputs)))
    pairs = paddings if len(paddings) == 2 * len(dims) else tuple(p for p in paddings for _ in "ab")
    algorithm, result = op.attrs.get("padding_algorithm"), list[int]()
    for at, dim in enumerate(dims):
        if dim < 0 or kernel[at] < 0:
            result.append(-1)
        else:
            padding = 0 if algorithm == "VALID" else pairs[2 * at] + pairs[2 * at + 1]
            if algorithm == "SAME":
                padding = sum(same_padding(dim, strides[at], kernel[at]))
            room = dim + padding - (dilations[at] * (kernel[at] - 1) + 1)
            if op.attrs.get("ceil_mode"):
                room += strides[at] - 1
            count = int(room / strides[at]) + 1
            if count < 1:
                slot = next(iter(op.inputs))
                raise ShapeError(f"{slot} has images of {list(dims)}, which have no window of {list(kernel)}", slot)
            result.append(count)
    return tuple(result)


def channels_last(op: Op) -> bool:
    """Whether the images or volumes of an op have their channels after the spatial dims."""
    return op.attrs.get("data_format") in ("NHWC", "NDHWC")


def image_dims(op: Op, x: TensorType, slot: str, spatial: int = 2) -> tuple[int, int, Dims]:
    """Batch, channels and spatial dims of images (or of volumes, with `spatial` 3).

    Raises ShapeError if x has another number of dims.
    """
    if len(x.shape) != spatial + 2:
        what = "images have four dims" if spatial == 2 else "volumes have five dims"
        raise ShapeError(f"{slot} is {describe(x)}, {what}", slot)
    if channels_last(op):
        return x.shape[0], x.shape[-1], x.shape[1:-1]
    return x.shape[0], x.shape[1], x.shape[2:]


def images_type(op: Op, x: TensorType, batch: int, channels: int, dims: Dims) -> TensorType:
    """The type of images of these dims, in the layout that the op asks for."""
    last = channels_last(op)
    return TensorType(x.dtype, (batch, *dims, channels) if last else (batch, channels, *dims), x.lod_level)


@shape_rule("conv2d", "depthwise_conv2d")
def _conv(op: Op, types: Types) -> Types:
    return convolution_types(op, types, 2)


@shape_rule("conv3d")
def _conv3d(op: Op, types: Types) -> Types:
    return convolution_types(op, types, 3)


def convolution_types(op: Op, types: Types, spatial: int) -> Types:
    """The shape rule of convolutions over images (`spatial` 2) or volumes (3)."""
    require_one_dtype(types, "Input", "Filter")
    x, kernel = one(types, "Input"), one(types, "Filter")
    batch, channels, dims = image_dims(op, x, "Input", spatial)
    if len(kernel.shape) != spatial + 2:
        raise ShapeError(f"Filter is {describe(kernel)}, it must have {spatial + 2} dims", "Filter")
    taken = kernel.shape[1] * int_attr(op, "groups", 1)
    if channels >= 0 and kernel.shape[1] >= 0 and taken != channels:
        message = f"Filter is {describe(kernel)}, which takes {taken} channels; Input is {describe(x)}"
        raise ShapeError(message, "Filter")
    result = window_counts(op, dims, kernel.shape[2:], dilations_of(op))
    return {"Output": (images_type(op, x, batch, kernel.shape[0], result),)}


def dilations_of(op: Op) -> Dims:
    """The distances between the elements of a kernel: as listed, but 1 for SAME padding."""
    listed = ints_attr(op, "dilations")
    return (1,) * len(listed) if op.attrs.get("padding_algorithm") == "SAME" else listed


def padding_of(op: Op, dims: Dims, size: Dims) -> Padding:
    """The padding of images: as listed, none (VALID), or such that there is a window at every stride (SAME)."""
    algorithm, listed = op.attrs.get("padding_algorithm"), ints_attr(op, "paddings")
    if algorithm == "VALID":
        return ((0, 0),) * len(dims)
    if algorithm == "SAME":
        return tuple(same_padding(*of_dim) for of_dim in zip(dims, ints_attr(op, "strides"), size, strict=True))
    if len(listed) == len(dims):
        return tuple((size, size) for size in listed)
    return tuple(zip(listed[::2], listed[1::2], strict=True))


def same_padding(dim: int, stride: int, size: int) -> tuple[int, int]:
    """The padding before and after a dim that gives one window for every stride."""
    total = max((-(-dim // stride) - 1) * stride + size - dim, 0)
    return total // 2, total - total // 2


@shape_rule("conv_shift")
def _conv_shift_types(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one_or_none(types, "Y")
    for tensor, slot in ((x, "X"), (y, "Y")):
        if tensor is not None and len(tensor.shape) != 2:
            raise ShapeError(f"{slot} is {describe(tensor)}, it must have 2 dims", slot)
    if y is not None and y.shape[1] >= 0 and y.shape[1] % 2 == 0:
        raise ShapeError(f"Y is {describe(y)}, its width must be odd", "Y")
    return {"Out": (x,)}


declare("conv_shift", "X Y -> Out", doc="Out = the circular convolution of the rows of X and Y")
declare_gradient("conv_shift", "X Y Out@GRAD -> X@GRAD Y@GRAD")


# Transposed convolution, and windows of images as columns or sequences.

_CONV2D_TRANSPOSE = {
    "is_test": False,
    "output_size": ints(),
    "groups": bounded(1, 1),
    "dilations": bounded(ints(1, 1), counts=(2,)),
    "strides": bounded(ints(1, 1), 1, counts=(2,)),
    "paddings": bounded(ints(0, 0), counts=(2, 4)),
    "use_cudnn": False,
    "use_mkldnn": False,
    "fuse_relu": False,
    "fuse_activation": "",
    "fuse_alpha": 0.0,
    "fuse_beta": 0.0,
    "data_format": words("NCHW", "NHWC", "NCDHW", "NDHWC", "AnyLayout"),
    "padding_algorithm": words("EXPLICIT", "SAME", "VALID"),
    "workspace_size_MB": 512,
}

declare(
    "conv2d_transpose",
    "Input Filter Bias? -> Output",
    _CONV2D_TRANSPOSE,
    doc="Output = the gradient of conv2d, run forward",
)
declare_gradient(
    "conv2d_transpose", "Input Filter Bias? Output@GRAD -> Input@GRAD Filter@GRAD Bias@GRAD?", result_lod="none"
)
declare(
    "depthwise_conv2d_transpose",
    "Input Filter Bias? -> Output",
    _CONV2D_TRANSPOSE,
    doc="as conv2d_transpose, each group one channel",
)
declare_gradient(
    "depthwise_conv2d_transpose",
    "Input Filter Bias? Output@GRAD -> Input@GRAD Filter@GRAD Bias@GRAD?",
    result_lod="none",
)
declare(
    "conv3d_transpose",
    "Input Filter -> Output",
    {
        "output_size": ints(),
        "dilations": bounded(ints(1, 1, 1), counts=(3,)),
        "strides": bounded(ints(1, 1, 1), 1, counts=(3,)),
        "paddings": bounded(ints(0, 0, 0), counts=(3, 6)),
        "groups": bounded(1, 1),
        "use_cudnn": False,
        "use_mkldnn": False,
        "data_format": words("NCHW", "NHWC", "NCDHW", "NDHWC", "AnyLayout"),
        "padding_algorithm": words("EXPLICIT", "SAME", "VALID"),
        "workspace_size_MB": 512,
    },
    doc="as conv2d_transpose, over volumes",
)
declare_gradient("conv3d_transpose", "Input Filter Output@GRAD -> Input@GRAD Filter@GRAD")
declare(
    "unfold",
    "X -> Y",
    {
        "kernel_sizes": bounded(INTS, 1, counts=(2,)),
        "strides": bounded(INTS, 1, counts=(2,)),
        "paddings": bounded(INTS, 0, counts=(4,)),
        "dilations": bounded(INTS, 1, counts=(2,)),
    },
    doc="Y = the windows of X as columns",
)
declare_gradient("unfold", "X Y@GRAD -> X@GRAD")
declare(
    "im2sequence",
    "X Y? -> Out",
    {
        "kernels": bounded(INTS, 1, counts=(2,)),
        "strides": bounded(ints(1, 1), 1, counts=(2,)),
        "paddings": bounded(ints(0, 0, 0, 0), counts=(4,)),
        "out_stride": ints(1, 1),
    },
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
    """The spatial dims of the result of a transposed convolution. Raises ValueError if the strides don't allow
    `output_size`.
    """
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


# Deformable convolution: every sample has an offset of its own (arXiv 1703.06211, with a mask 1811.11168).

_DEFORMABLE = {
    "strides": bounded(ints(1, 1), 1, counts=(2,)),
    "paddings": bounded(ints(0, 0), counts=(2, 4)),
    "dilations": bounded(ints(1, 1), counts=(2,)),
    "groups": bounded(1, 1),
    "deformable_groups": bounded(1, 1),
    "im2col_step": bounded(64, 1),
}

declare(
    "deformable_conv",
    "Input Offset Mask Filter -> Output",
    _DEFORMABLE,
    doc="Output = Input, sampled at places moved by Offset, times Mask, convolved with Filter",
)
declare_gradient(
    "deformable_conv", "Input Offset Mask Filter Output@GRAD -> Input@GRAD Offset@GRAD Mask@GRAD Filter@GRAD"
)
declare(
    "deformable_conv_v1",
    "Input Offset Filter -> Output",
    _DEFORMABLE,
    doc="Output = Input, sampled at places moved by Offset, convolved with Filter",
)
declare_gradient("deformable_conv_v1", "Input Offset Filter Output@GRAD -> Input@GRAD Offset@GRAD Filter@GRAD")


def moved_dims(op: Op, dims: tuple[int, ...], window: tuple[int, ...]) -> tuple[int, ...]:
    """Height and width of the result; -1 for a dim that is not known. Raises ShapeError if no window fits."""
    strides, paddings, dilations = (ints_attr(op, name) for name in ("strides", "paddings", "dilations"))
    if not len(strides) == len(paddings) == len(dilations) == 2 or min(*strides, *dilations) < 1:
        raise ShapeError("strides, paddings and dilations must be two numbers each, strides and dilations above 0")
    result: list[int] = []
    for dim, size, stride, padding, dilation in zip(dims, window, strides, paddings, dilations, strict=True):
        made = -1 if min(dim, size) < 0 else (dim + 2 * padding - dilation * (size - 1) - 1) // stride + 1
        if made < 1 and min(dim, size) >= 0:
            raise ShapeError(f"images of {list(dims)} have no window of {list(window)}", "Input")
        result.append(made)
    return tuple(result)


@shape_rule("deformable_conv", "deformable_conv_v1")
def _deformable_conv(op: Op, types: Types) -> Types:
    x, filters, offset = one(types, "Input"), one(types, "Filter"), one(types, "Offset")
    for slot, tensor in (("Input", x), ("Filter", filters), ("Offset", offset)):
        if len(tensor.shape) != 4:
            raise ShapeError(f"{slot} is {describe(tensor)}, it must have four dims", slot)
    groups, parts = int_attr(op, "groups"), int_attr(op, "deformable_groups")
    if min(groups, parts) < 1:
        raise ShapeError(f"groups is {groups}, deformable_groups {parts}, both must be above 0", "Input")
    if min(x.shape[1], filters.shape[1]) >= 0 and x.shape[1] != filters.shape[1] * groups:
        disagree("Input", x, "Filter", filters)
    if (x.shape[1] % parts and x.shape[1] > 0) or (filters.shape[0] % groups and filters.shape[0] > 0):
        raise ShapeError(f"Input is {describe(x)}, Filter {describe(filters)}; groups cut neither evenly", "Input")
    dims = moved_dims(op, x.shape[2:], filters.shape[2:])
    window = filters.shape[2] * filters.shape[3] if min(filters.shape[2:]) >= 0 else -1
    for slot, channels in (("Offset", 2), ("Mask", 1)):
        tensor = one_or_none(types, slot)
        if tensor is not None and not fits(tensor.shape[1:], (channels * parts * window if window >= 0 else -1, *dims)):
            disagree(slot, tensor, "Filter", filters)
    return {"Output": (TensorType(x.dtype, (x.shape[0], filters.shape[0], *dims)),)}


shape_rule("deformable_conv_grad", "deformable_conv_v1_grad")(gradient_types)


# The work of convolutions: an addition and a multiplication for each weight that an element of the result has.


def _windows(op: Op, types: Types) -> float:
    """The elements of all windows, which are copied to the columns of matrices."""
    return _conv_work(op, types) * max(int_attr(op, "groups", 1), 1) / 2 / max(one(types, "Filter").shape[0], 1)


def _windows_of_result(op: Op, types: Types) -> float:
    """The elements of all windows of a transposed convolution, which lie over its result."""
    return _transposed_work(op, types) * max(int_attr(op, "groups", 1), 1) / 2 / max(one(types, "Filter").shape[0], 1)


@work_rule(
    *("conv2d", "depthwise_conv2d", "conv3d", "deformable_conv", "deformable_conv_v1"),
    factors="Input Filter",
    family="convolutions",
    copies=_windows,
)
def _conv_work(_op: Op, types: Types) -> float:
    return 2.0 * elements(types, "Output") * math.prod(one(types, "Filter").shape[1:])


@work_rule(
    *("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose"),
    factors="Input Filter",
    family="convolutions",
    copies=_windows_of_result,
)
def _transposed_work(_op: Op, types: Types) -> float:
    return 2.0 * elements(types, "Input") * math.prod(one(types, "Filter").shape[1:])
