"""Images and volumes."""

from __future__ import annotations

from pstranspile.ops.schema import INT, INTS, STRING, declare, declare_gradient, ints

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
declare(
    "max_pool2d_with_index",
    "X -> Out Mask",
    {"ksize": INTS, "global_pooling": False, "adaptive": False, "strides": ints(1, 1), "paddings": ints(0, 0)},
    doc="Out = the maximum of each window, Mask = where it was",
)
declare_gradient("max_pool2d_with_index", "X Mask Out@GRAD -> X@GRAD")
declare(
    "max_pool3d_with_index",
    "X -> Out Mask",
    {"ksize": INTS, "global_pooling": False, "adaptive": False, "strides": ints(1, 1, 1), "paddings": ints(0, 0, 0)},
    doc="as max_pool2d_with_index, over volumes",
)
declare_gradient("max_pool3d_with_index", "X Mask Out@GRAD -> X@GRAD")
declare(
    "unpool",
    "X Indices -> Out",
    {"ksize": INTS, "strides": ints(1, 1), "paddings": ints(0, 0), "unpooling_type": STRING},
    doc="Out = X put back to the places Indices of a pooling",
)
declare_gradient("unpool", "X Indices Out Out@GRAD -> X@GRAD")
declare(
    "spp",
    "X -> Out",
    {"pyramid_height": INT, "pooling_type": STRING},
    doc="Out = poolings of X over a pyramid of windows",
)
declare_gradient("spp", "X Out Out@GRAD -> X@GRAD")
declare("row_conv", "X Filter -> Out", doc="Out = X convolved with Filter over the rows that follow")
declare_gradient("row_conv", "X Filter Out@GRAD -> X@GRAD Filter@GRAD")
declare("conv_shift", "X Y -> Out", doc="Out = the circular convolution of the rows of X and Y")
declare_gradient("conv_shift", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "add_position_encoding",
    "X -> Out",
    {"alpha": 1.0, "beta": 1.0},
    doc="Out = alpha * X + beta * sines of the position",
)
declare_gradient("add_position_encoding", "Out@GRAD -> X@GRAD")
declare("fsp", "X Y -> Out", doc="Out = the products of all channels of X with all of Y")
declare_gradient("fsp", "X Y Out@GRAD -> X@GRAD Y@GRAD")
