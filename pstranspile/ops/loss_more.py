"""Losses of sequences, and measures."""

from __future__ import annotations

from pstranspile.ops.schema import INT, declare, declare_gradient, ints

declare(
    "linear_chain_crf",
    "Emission Transition Label Length? -> Alpha EmissionExps TransitionExps LogLikelihood",
    doc="LogLikelihood = that of the label paths under a linear chain",
)
declare_gradient(
    "linear_chain_crf",
    "Emission Transition Label Length? Alpha EmissionExps TransitionExps LogLikelihood@GRAD -> "
    "Emission@GRAD Transition@GRAD",
)
declare(
    "crf_decoding",
    "Emission Transition Label? Length? -> ViterbiPath",
    doc="ViterbiPath = the likeliest path under a linear chain, or whether it is Label",
)
declare(
    "warpctc",
    "Logits Label LogitsLength? LabelLength? -> WarpCTCGrad Loss",
    {"blank": 0, "norm_by_times": False},
    doc="Loss = connectionist temporal classification",
)
declare_gradient("warpctc", "Logits LogitsLength? WarpCTCGrad Loss@GRAD -> Logits@GRAD")
declare(
    "ctc_align",
    "Input InputLength? -> Output OutputLength?",
    {"blank": 0, "merge_repeated": True, "padding_value": 0},
    doc="Output = Input without repeats and blanks",
)
declare(
    "edit_distance",
    "Hyps Refs HypsLength? RefsLength? -> SequenceNum Out",
    {"normalized": False},
    doc="Out = how many changes turn each Hyps into its Refs",
)
declare(
    "chunk_eval",
    "Inference Label SeqLength? -> Precision Recall F1-Score NumInferChunks NumLabelChunks NumCorrectChunks",
    {"num_chunk_types": INT, "chunk_scheme": "IOB", "excluded_chunk_types": ints()},
    doc="precision, recall and F1 of chunks found in sequences",
)
