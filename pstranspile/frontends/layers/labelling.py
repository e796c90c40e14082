"""Layers for sequence labelling: conditional random fields, connectionist temporal classification, edit distance."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.frontends.layers.basic import layer, layer_outputs
from pstranspile.frontends.layers.draft import Value
from pstranspile.frontends.layers.parameters import Attr, attr_of, create_parameter
from pstranspile.ir.types import DType


def linear_chain_crf(x: Value, label: Value, *, param_attr: Attr = None, length: Value | None = None) -> Value:
    """The negative log-likelihood of the labels of each sequence under a linear-chain CRF with the scores x.

    Its parameter holds the transition scores: two rows for the ends and one for each label. x and the label are ragged,
    or padded, with the `length` of each sequence.
    """
    draft = x.draft
    minted = draft.names.mint("linear_chain_crf")
    labels = x.shape[1 if length is None else 2]
    transition = create_parameter(draft, minted, param_attr, (labels + 2, labels), x.dtype)
    inputs = {"Emission": x, "Transition": transition, "Label": label}
    if length is not None:
        inputs["Length"] = length
    outputs = {"Alpha": x.dtype, "EmissionExps": x.dtype, "TransitionExps": x.dtype, "LogLikelihood": x.dtype}
    return layer_outputs("linear_chain_crf", inputs, outputs, name=minted)[3]


def crf_decoding(x: Value, param_attr: Attr, *, label: Value | None = None, length: Value | None = None) -> Value:
    """The most likely labels for the scores x and the transitions in the parameter that `param_attr` names, i64.

    With a `label`, whether each predicted label is right. Raises ValueError if no parameter has that name.
    """
    draft = x.draft
    attr = attr_of(param_attr)
    known = draft.blocks[0].vars.get(attr.name) if attr and attr.name else None
    if known is None or known.parameter is None:
        named = attr.name if attr else None
        raise ValueError(f"crf_decoding takes the parameter of a linear_chain_crf by name, {named!r} is none")
    inputs = {"Emission": x, "Transition": Value(draft, known.name)}
    inputs |= {slot: value for slot, value in (("Label", label), ("Length", length)) if value is not None}
    return layer("crf_decoding", inputs, DType.INT64, out="ViterbiPath")


def warpctc(
    x: Value,
    label: Value,
    *,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Value | None = None,
    label_length: Value | None = None,
) -> Value:
    """The loss of connectionist temporal classification, for labels without an alignment to the rows of x.

    Both are ragged, or padded, with both lengths.
    """
    inputs = {"Logits": x, "Label": label}
    if input_length is not None and label_length is not None:
        inputs |= {"LogitsLength": input_length, "LabelLength": label_length}
    attrs = {"blank": blank, "norm_by_times": norm_by_times}
    return layer_outputs("warpctc", inputs, {"Loss": x.dtype, "WarpCTCGrad": x.dtype}, attrs)[0]


def edit_distance(
    x: Value,
    label: Value,
    *,
    normalized: bool = True,
    ignored_tokens: Sequence[int] = (),
    input_length: Value | None = None,
    label_length: Value | None = None,
) -> tuple[Value, Value]:
    """The number of insertions, deletions and replacements from x to the label, and the number of sequences."""
    name = x.draft.names.mint("edit_distance")
    if ignored_tokens:
        tokens = {"tokens": ignored_tokens}
        x, label = (layer("sequence_erase", {"X": value}, DType.INT64, tokens, name=name) for value in (x, label))
    inputs = {"Hyps": x, "Refs": label}
    if input_length is not None and label_length is not None:
        inputs |= {"HypsLength": input_length, "RefsLength": label_length}
    outputs = {"Out": DType.INT64, "SequenceNum": DType.INT64}
    distance, number = layer_outputs("edit_distance", inputs, outputs, {"normalized": normalized}, name=name)
    return distance.declared(label.shape), number  # the op gives one row for each sequence
