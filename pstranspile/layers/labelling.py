"""Layers that label sequences: chains of labels, and labels without alignment."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.ir.types import DType
from pstranspile.layers.draft import Value
from pstranspile.layers.parameters import Attr, attr_of, create_parameter


def linear_chain_crf(x: Value, label: Value, *, param_attr: Attr = None, length: Value | None = None) -> Value:
    """What a linear chain conditional random field costs the labels of each sequence, given the scores x.

    Its parameter, two rows for the ends and one for each label, holds the scores of transitions. x and the label
    are ragged, or padded, with the `length` of each sequence.
    """
    draft = x.draft
    minted = draft.names.mint("linear_chain_crf")
    labels = x.shape[1 if length is None else 2]
    transition = create_parameter(draft, minted, param_attr, (labels + 2, labels), x.dtype)
    alpha, emission, transitions, likelihood = (draft.temporary(minted, x.dtype) for _ in range(4))
    inputs = {"Emission": x, "Transition": transition, "Label": label}
    if length is not None:
        inputs["Length"] = length
    outputs = {
        "Alpha": alpha,
        "EmissionExps": emission,
        "TransitionExps": transitions,
        "LogLikelihood": likelihood,
    }
    draft.op("linear_chain_crf", inputs, outputs)
    return likelihood


def crf_decoding(x: Value, param_attr: Attr, *, label: Value | None = None, length: Value | None = None) -> Value:
    """The most likely labels given the scores x and the transitions that `param_attr` names, i64.

    With a `label`, whether each of them is right. Raises ValueError when no parameter has that name.
    """
    draft = x.draft
    attr = attr_of(param_attr)
    known = draft.blocks[0].vars.get(attr.name) if attr and attr.name else None
    if known is None or known.parameter is None:
        named = attr.name if attr else None
        raise ValueError(f"crf_decoding takes the parameter of a linear_chain_crf by name, {named!r} is none")
    path = draft.temporary(draft.names.mint("crf_decoding"), DType.INT64)
    inputs = {"Emission": x, "Transition": Value(draft, known.name)}
    inputs |= {slot: value for slot, value in (("Label", label), ("Length", length)) if value is not None}
    draft.op("crf_decoding", inputs, {"ViterbiPath": path})
    return path


def warpctc(
    x: Value,
    label: Value,
    *,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Value | None = None,
    label_length: Value | None = None,
) -> Value:
    """The loss of connectionist temporal classification: of labels that are not aligned with the rows of x.

    Both are ragged, or padded, with both lengths.
    """
    draft = x.draft
    minted = draft.names.mint("warpctc")
    inputs = {"Logits": x, "Label": label}
    if input_length is not None and label_length is not None:
        inputs |= {"LogitsLength": input_length, "LabelLength": label_length}
    loss, gradient = draft.temporary(minted, x.dtype), draft.temporary(minted, x.dtype)
    attrs = {"blank": blank, "norm_by_times": norm_by_times}
    draft.op("warpctc", inputs, {"WarpCTCGrad": gradient, "Loss": loss}, attrs)
    return loss


def edit_distance(
    x: Value,
    label: Value,
    *,
    normalized: bool = True,
    ignored_tokens: Sequence[int] = (),
    input_length: Value | None = None,
    label_length: Value | None = None,
) -> tuple[Value, Value]:
    """How many insertions, deletions and replacements lead from x to the label, and the number of sequences."""
    draft = x.draft
    minted = draft.names.mint("edit_distance")
    if ignored_tokens:
        erased = [draft.temporary(minted, DType.INT64) for _ in range(2)]
        for value, out in zip((x, label), erased, strict=True):
            draft.op("sequence_erase", {"X": value}, {"Out": out}, {"tokens": ignored_tokens})
        x, label = erased
    inputs = {"Hyps": x, "Refs": label}
    if input_length is not None and label_length is not None:
        inputs |= {"HypsLength": input_length, "RefsLength": label_length}
    distance, number = draft.temporary(minted, DType.INT64), draft.temporary(minted, DType.INT64)
    draft.op("edit_distance", inputs, {"Out": distance, "SequenceNum": number}, {"normalized": normalized})
    distance.declared(label.shape)  # the op gives one row for each sequence
    return distance, number
