"""Normalisation."""

from __future__ import annotations

from pstranspile.ops.schema import declare, declare_gradient

declare(
    "batch_norm",
    "X Scale Bias Mean Variance MomentumTensor? -> Y MeanOut VarianceOut SavedMean SavedVariance ReserveSpace?",
    {
        "is_test": False,
        "momentum": 0.9,
        "epsilon": 1e-05,
        "data_layout": "NCHW",
        "use_mkldnn": False,
        "fuse_with_relu": False,
        "use_global_stats": False,
        "trainable_statistics": False,
    },
    doc="Y = (X - mean) / std * Scale + Bias for each channel; MeanOut and VarianceOut are running statistics",
)
declare_gradient(
    "batch_norm",
    "X Scale Bias SavedMean SavedVariance ReserveSpace- Mean- Variance- Y@GRAD -> X@GRAD Scale@GRAD Bias@GRAD",
)
declare(
    "layer_norm",
    "X Scale? Bias? -> Y Mean Variance",
    {"epsilon": 1e-05, "begin_norm_axis": 1},
    doc="Y = (X - mean) / std * Scale + Bias over the dims from begin_norm_axis on",
)
declare_gradient("layer_norm", "X Scale? Bias? Mean Variance Y@GRAD -> X@GRAD Scale@GRAD? Bias@GRAD?")
