"""Sequences of labels: evaluation of chunks, edit distance, and decoding of frames."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.schema import INT, declare, ints
from pstranspile.ops.shapes import Types, one, shape_rule


@shape_rule("chunk_eval")
def _chunk_eval_types(_op: Op, _types: Types) -> Types:
    rates = {slot: (TensorType(DType.FP32, (1,)),) for slot in ("Precision", "Recall", "F1-Score")}
    counts = ("NumInferChunks", "NumLabelChunks", "NumCorrectChunks")
    return {**rates, **{slot: (TensorType(DType.INT64, (1,)),) for slot in counts}}


@shape_rule("edit_distance")
def _edit_distance_types(_op: Op, _types: Types) -> Types:
    # Fluid declares Out with the element type and, where sequences are padded, the dims of Refs: it makes others
    return {"SequenceNum": (TensorType(DType.INT64, (1,)),)}


@shape_rule("ctc_align")
def _ctc_align_types(_op: Op, types: Types) -> Types:
    x = one(types, "Input")
    if not types.get("InputLength"):
        return {"Output": (TensorType(x.dtype, (-1, *x.shape[1:]), x.lod_level),)}
    length = types["InputLength"][0]
    lengths = None if length is None else TensorType(length.dtype, (x.shape[0], 1))
    return {"Output": (x,), "OutputLength": (lengths,)}


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
