"""Losses that look at few classes of many."""

from __future__ import annotations

from pstranspile.ops.schema import INT, declare, declare_gradient, ints, longs, strings

_TABLES = {
    "remote_prefetch": False,
    "trainer_id": 0,
    "height_sections": longs(),
    "epmap": strings(),
    "table_names": strings(),
}

declare(
    "nce",
    "Input Label Weight Bias? SampleWeight? CustomDistProbs? CustomDistAlias? CustomDistAliasProbs? -> "
    "Cost SampleLogits SampleLabels",
    {
        "num_total_classes": INT,
        "num_neg_samples": 10,
        "sampler": 0,
        "seed": 0,
        "is_sparse": False,
        "custom_neg_classes": ints(),
        **_TABLES,
    },
    doc="Cost = noise contrastive estimation of Label against sampled classes",
)
declare_gradient(
    "nce",
    "Input Label Weight Bias? SampleWeight? CustomDistProbs? CustomDistAlias? CustomDistAliasProbs? "
    "SampleLogits SampleLabels Cost@GRAD -> Input@GRAD Weight@GRAD Bias@GRAD?",
)
declare(
    "hierarchical_sigmoid",
    "X W Label PathTable? PathCode? Bias? -> Out PreOut W_Out",
    {"num_classes": 2, "is_sparse": False, **_TABLES},
    doc="Out = the sum of binary losses along the label's path in a tree of classes",
)
declare_gradient(
    "hierarchical_sigmoid", "X W Label PathTable? PathCode? Bias? PreOut Out@GRAD -> X@GRAD W@GRAD Bias@GRAD?"
)
