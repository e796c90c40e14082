"""Nodes that are refused whatever they compute, each with the reason."""

from __future__ import annotations

from typing import Any

_REASONS: dict[str, tuple[str, ...]] = {
    "its numbers are quantised; import the model as it was before": (
        *("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"),
        *("ConvInteger", "MatMulInteger"),
    ),
    "it repeats a graph of its own; Fluid's loops are made another way": ("Loop", "Scan", "SequenceMap"),
    "it handles a sequence of tensors or a value that may be missing; the values of a program are tensors": (
        *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength"),
        *("SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement"),
    ),
    "it handles text; the values of a program are numbers": (
        *("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer"),
    ),
    "its result has as many elements as a run finds, which Fluid tells by sequences of rows": (
        *("NonZero", "Compress", "Unique", "NonMaxSuppression"),
    ),
    "it draws numbers at random": (
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"),
    ),
}
_OF_TYPE = {kind: reason for reason, kinds in _REASONS.items() for kind in kinds}


def reason_against(node: Any) -> str:
    """Why a node is refused; "" if it may be read."""
    return _OF_TYPE.get(node.op_type, "") if node.domain in ("", "ai.onnx") else ""
