"""Pooling: the maximum or average of windows of images and volumes."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.images.conv import image_dims, images_type, window_counts
from pstranspile.ops.schema import INTS, STRING, declare, declare_gradient, ints
from pstranspile.ops.shapes import Types, one, shape_rule

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
declare(
    "pool3d",
    "X -> Out",
    {
        "pooling_type": STRING,
        "ksize": INTS,
        "global_pooling": False,
        "strides": ints(1, 1, 1),
        "paddings": ints(0, 0, 0),
        "exclusive": True,
        "adaptive": False,
        "use_cudnn": False,
        "ceil_mode": False,
        "use_mkldnn": False,
        "data_format": "NCDHW",
        "padding_algorithm": "EXPLICIT",
    },
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
        return dims if op.attrs.get("global_pooling") else tuple(ints_attr(op, "ksize"))
    if op.attrs.get("global_pooling"):
        return tuple(min(dim, 1) for dim in dims)  # a dim that is not known stays so, as in Fluid
    return tuple(window_counts(op, dims, ints_attr(op, "ksize"), (1,) * len(dims)))
