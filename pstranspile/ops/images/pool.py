"""Pooling: the maximum or average of windows of images and volumes."""

from __future__ import annotations

from math import prod

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.images.conv import image_dims, images_type, window_counts
from pstranspile.ops.schema import INT, INTS, among, bounded, declare, declare_gradient, ints, words
from pstranspile.ops.shapes import ShapeError, Types, one, shape_rule
from pstranspile.ops.work import elements, work_rule

declare(
    "pool2d",
    "X -> Out",
    {
        "pooling_type": among("max", "avg"),
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
        "data_format": words("NCHW", "NHWC", "AnyLayout"),
        "is_test": False,
        "padding_algorithm": words("EXPLICIT", "SAME", "VALID"),
    },
    typed_by="X",
    doc="Out = the maximum or average of each window",
)
declare_gradient("pool2d", "X Out Out@GRAD -> X@GRAD", result_lod="none")
declare(
    "pool3d",
    "X -> Out",
    {
        "pooling_type": among("max", "avg"),
        "ksize": INTS,
        "global_pooling": False,
        "strides": ints(1, 1, 1),
        "paddings": ints(0, 0, 0),
        "exclusive": True,
        "adaptive": False,
        "use_cudnn": False,
        "ceil_mode": False,
        "use_mkldnn": False,
        "data_format": words("NCDHW", "NDHWC", "NCHW", "NHWC", "AnyLayout"),
        "padding_algorithm": words("EXPLICIT", "SAME", "VALID"),
    },
    typed_by="X",
    doc="as pool2d, over volumes",
)
declare_gradient("pool3d", "X Out Out@GRAD -> X@GRAD")


@shape_rule("pool2d", "pool3d")
def _pool(op: Op, types: Types) -> Types:
    x = one(types, "X")
    spatial = 3 if op.type == "pool3d" else 2
    batch, channels, dims = image_dims(op, x, "X", spatial)
    return {"Out": (images_type(op, x, batch, channels, pooled_dims(op, dims)),)}


def pooled_dims(op: Op, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The spatial dims after pooling images with these spatial dims."""
    if op.attrs.get("adaptive"):
        size = ints_attr(op, "ksize")
        if not op.attrs.get("global_pooling") and len(size) != len(dims):
            raise ShapeError(f"ksize is {list(size)}, but there are {len(dims)} spatial dims", "X")
        return dims if op.attrs.get("global_pooling") else tuple(size)
    if op.attrs.get("global_pooling"):
        return tuple(min(dim, 1) for dim in dims)  # as in Fluid, an unknown dim stays unknown
    return tuple(window_counts(op, dims, ints_attr(op, "ksize"), (1,) * len(dims)))


# Max pooling with indices, its inverse, and pyramid pooling.

declare(
    "max_pool2d_with_index",
    "X -> Out Mask",
    {
        "ksize": INTS,
        "global_pooling": False,
        "adaptive": False,
        "strides": bounded(ints(1, 1), counts=(2,)),
        "paddings": bounded(ints(0, 0), counts=(2,)),
    },
    doc="Out = the maximum of each window, Mask = where it was",
)
declare_gradient("max_pool2d_with_index", "X Mask Out@GRAD -> X@GRAD")
declare(
    "max_pool3d_with_index",
    "X -> Out Mask",
    {
        "ksize": INTS,
        "global_pooling": False,
        "adaptive": False,
        "strides": bounded(ints(1, 1, 1), counts=(3,)),
        "paddings": bounded(ints(0, 0, 0), counts=(3,)),
    },
    doc="as max_pool2d_with_index, over volumes",
)
declare_gradient("max_pool3d_with_index", "X Mask Out@GRAD -> X@GRAD")
declare(
    "unpool",
    "X Indices -> Out",
    {
        "ksize": bounded(INTS, 1, counts=(2,)),
        "strides": bounded(ints(1, 1), 1, counts=(2,)),
        "paddings": bounded(ints(0, 0), counts=(2,)),
        "unpooling_type": among("max"),
    },
    doc="Out = X put back to the places Indices of a pooling",
)
declare_gradient("unpool", "X Indices Out Out@GRAD -> X@GRAD")
declare(
    "spp",
    "X -> Out",
    {"pyramid_height": bounded(INT, 1, 16), "pooling_type": among("max", "avg")},
    doc="Out = poolings of X over a pyramid of windows",
)
declare_gradient("spp", "X Out Out@GRAD -> X@GRAD")


# Shape rules


@shape_rule("max_pool2d_with_index", "max_pool3d_with_index")
def _max_pool_with_index(op: Op, types: Types) -> Types:
    x = one(types, "X")
    spatial = 3 if op.type == "max_pool3d_with_index" else 2
    batch, channels, dims = image_dims(op, x, "X", spatial)
    shape = (batch, channels, *pooled_dims(op, dims))
    return {"Out": (x._replace(shape=shape),), "Mask": (TensorType(DType.INT32, shape, x.lod_level),)}


@shape_rule("unpool")
def _unpool(op: Op, types: Types) -> Types:
    x = one(types, "X")
    batch, channels, dims = image_dims(op, x, "X")
    return {"Out": (x._replace(shape=(batch, channels, *unpooled_dims(op, dims))),)}


def unpooled_dims(op: Op, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The spatial dims that pooling reduces to `dims`."""
    size, strides, paddings = (ints_attr(op, name) for name in ("ksize", "strides", "paddings"))
    return tuple(
        -1 if dim < 0 else (dim - 1) * stride - 2 * padding + k
        for dim, k, stride, padding in zip(dims, size, strides, paddings, strict=True)
    )


@shape_rule("spp")
def _spp(op: Op, types: Types) -> Types:
    x = one(types, "X")
    batch, channels, _ = image_dims(op, x, "X")
    bins = sum(4**level for level in range(int_attr(op, "pyramid_height")))
    return {"Out": (TensorType(x.dtype, (batch, -1 if channels < 0 else channels * bins), x.lod_level),)}


# The work of pooling: an operation for each element of each window.


@work_rule("pool2d", "pool3d", "max_pool2d_with_index", "max_pool3d_with_index", factors="X", family="pools")
def _pool_work(op: Op, types: Types) -> float:
    parts = op.attrs.get("adaptive") or op.attrs.get("global_pooling")
    return float(elements(types, "X") if parts else elements(types, "Out") * prod(ints_attr(op, "ksize")))
