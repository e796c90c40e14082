"""Convolution and pooling over images."""

from __future__ import annotations

from pstranspile.ops.schema import INTS, STRING, declare, declare_gradient, floats, ints

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
