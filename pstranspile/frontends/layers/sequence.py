"""Layers over ragged tensors (variables with a LoD level), also recurrent ones, and layers that change their LoD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pstranspile.frontends.layers.basic import activation, layer, layer_outputs
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.frontends.layers.nn import bias, fc, name_layer
from pstranspile.frontends.layers.parameters import Attr, Element, attr_of, create_parameter
from pstranspile.frontends.layers.tensor import concat
from pstranspile.ir.model import TensorType
from pstranspile.ir.types import DType, element_type

# Selection of instances by their tags.


class TaggedInstances(NamedTuple):
    """The selected instances, and the weight of each in the loss, f32[instances, 1]; the weight is 0 if none was
    selected.
    """

    instances: Value
    loss_weight: Value


def filter_by_instag(
    instances: Value, tags: Value, wanted: Value, is_lod: bool, *, out_val_if_empty: int = 0
) -> TaggedInstances:
    """The instances that have one of the tags `wanted`. `is_lod`: an instance is a sequence, not a row."""
    inputs = {"Ins": instances, "Ins_tag": tags, "Filter_tag": wanted}
    outputs = {"Out": instances.dtype, "LossWeight": DType.FP64, "IndexMap": tags.dtype}
    attrs = {"is_lod": is_lod, "out_val_if_empty": out_val_if_empty}
    out, weight, places = layer_outputs("filter_by_instag", inputs, outputs, attrs)
    weight.redeclare_dims([-1, 1])
    places.redeclare_dims([-1, 2])  # one column too few, as in Fluid
    return TaggedInstances(out, weight)


# Layers for sequence labelling: conditional random fields, connectionist temporal classification, edit distance.


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

    x and label are ragged, or both are padded and have their lengths given.
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
    return distance.redeclare_dims(label.shape), number  # the op gives one row for each sequence


def sequence_pool(x: Value, pool_type: str, *, is_test: bool = False, pad_value: float = 0.0) -> Value:
    """One row of each sequence: its `sum`, `average`, `sqrt`, `max`, `first` or `last`."""
    attrs = {"pooltype": pool_type.upper(), "is_test": is_test, "pad_value": pad_value}
    out, index = layer_outputs("sequence_pool", {"X": x}, {"Out": x.dtype, "MaxIndex": x.dtype}, attrs)
    if pool_type == "max":
        x.draft.declare(index.stopped().var._replace(tensor=TensorType(x.dtype, out.shape)))
    return out


def sequence_conv(
    x: Value,
    num_filters: int,
    filter_size: int = 3,
    *,
    filter_stride: int = 1,
    padding_start: int | None = None,
    bias_attr: Attr = None,
    param_attr: Attr = None,
    act: str | None = None,
    name: str | None = None,
) -> Value:
    """A weight times the `filter_size` rows around each row of a sequence."""
    draft = x.draft
    minted = name_layer(draft, "sequence_conv", name)
    kernel = create_parameter(draft, minted, param_attr, (filter_size * x.shape[1], num_filters), x.dtype)
    start = -(filter_size // 2) if padding_start is None else padding_start
    attrs = {"contextStride": filter_stride, "contextStart": start, "contextLength": filter_size}
    out = layer("sequence_conv", {"X": x, "Filter": kernel}, x.dtype, attrs, name=minted)
    return activation(minted, bias(minted, out, bias_attr), act)


def sequence_conv_pool(
    x: Value,
    num_filters: int,
    filter_size: int,
    *,
    param_attr: Attr = None,
    act: str | None = "sigmoid",
    pool_type: str = "max",
    bias_attr: Attr = None,
) -> Value:
    """A sequence convolution followed by a pooling."""
    convolved = sequence_conv(x, num_filters, filter_size, param_attr=param_attr, act=act, bias_attr=bias_attr)
    return sequence_pool(convolved, pool_type)


def sequence_softmax(x: Value, *, use_cudnn: bool = False) -> Value:
    """softmax within each sequence."""
    return layer("sequence_softmax", {"X": x}, x.dtype, {"use_cudnn": use_cudnn})


def sequence_expand(x: Value, y: Value, *, ref_level: int = -1) -> Value:
    """Each sequence of x, repeated according to y's level `ref_level`."""
    return layer("sequence_expand", {"X": x, "Y": y}, x.dtype, {"ref_level": ref_level})


def sequence_concat(values: Sequence[Value]) -> Value:
    """The sequences of all inputs, joined one by one."""
    return layer("sequence_concat", {"X": values}, values[0].dtype)


def sequence_first_step(x: Value) -> Value:
    """The first row of each sequence."""
    return sequence_pool(x, "first")


def sequence_last_step(x: Value) -> Value:
    """The last row of each sequence."""
    return sequence_pool(x, "last")


def sequence_pad(x: Value, pad_value: Value, *, maxlen: int = -1) -> tuple[Value, Value]:
    """The sequences padded with `pad_value` to `maxlen` rows (-1: the longest), and their lengths."""
    inputs, outputs = {"X": x, "PadValue": pad_value.stopped()}, {"Out": x.dtype, "Length": DType.INT64}
    out, length = layer_outputs("sequence_pad", inputs, outputs, {"padded_length": maxlen})
    if maxlen < 0:
        out.redeclare_dims([-1, 1, *x.shape[1:]])  # Fluid declares 1 row for a number that is known at run time
    return out, length.stopped()


def sequence_unpad(x: Value, length: Value) -> Value:
    """The rows of a padded tensor within the `length` of their sequence, as a ragged tensor."""
    return layer("sequence_unpad", {"X": x, "Length": length.stopped()}, x.dtype)


def sequence_reverse(x: Value) -> Value:
    """The rows of each sequence, last first."""
    return layer("sequence_reverse", {"X": x}, x.dtype, out="Y")


def sequence_reshape(x: Value, new_dim: int) -> Value:
    """The elements of each sequence as rows of `new_dim`."""
    return layer("sequence_reshape", {"X": x}, x.dtype, {"new_dim": new_dim})


def sequence_expand_as(x: Value, y: Value) -> Value:
    """Each row of x repeated as many times as the sequence of y has rows."""
    return layer("sequence_expand_as", {"X": x, "Y": y}, x.dtype)


def sequence_slice(x: Value, offset: Value, length: Value) -> Value:
    """`length` rows of each sequence from `offset` on."""
    inputs = {"X": x, "Offset": offset.stopped(), "Length": length.stopped()}
    return layer("sequence_slice", inputs, x.dtype)


def sequence_enumerate(x: Value, win_size: int, *, pad_value: int = 0) -> Value:
    """For each id a window of `win_size` ids: the id and those after it in its sequence, padded with `pad_value`."""
    return layer("sequence_enumerate", {"X": x}, x.dtype, {"win_size": win_size, "pad_value": pad_value}).stopped()


def sequence_mask(x: Value, *, maxlen: int | Value | None = None, dtype: Element = "i64") -> Value:
    """For each length in x a row that starts with that many ones, `maxlen` wide (None: as the longest)."""
    attrs: dict[str, object] = {"out_dtype": element_type(dtype)}
    inputs = {"X": x}
    if isinstance(maxlen, Value):
        inputs["MaxLenTensor"] = maxlen
    elif maxlen is not None:
        attrs["maxlen"] = maxlen
    return layer("sequence_mask", inputs, element_type(dtype), attrs, out="Y").stopped()


def sequence_scatter(x: Value, index: Value, updates: Value) -> Value:
    """x with the updates of sequence i added to row i, at the columns in `index`."""
    return layer("sequence_scatter", {"X": x, "Ids": index, "Updates": updates}, x.dtype)


def lod_reset(x: Value, *, y: Value | None = None, target_lod: Sequence[int] | None = None) -> Value:
    """The rows of x with another LoD: that of y, or these offsets. Raises ValueError without either."""
    if y is not None:
        return layer("lod_reset", {"X": x, "Y": y}, x.dtype)
    if target_lod is None:
        raise ValueError("lod_reset takes y or target_lod")
    return layer("lod_reset", {"X": x}, x.dtype, {"target_lod": target_lod})


def add_position_encoding(x: Value, alpha: float, beta: float) -> Value:
    """alpha * x + beta * sines and cosines of the position in the sequence (ragged x) or along dim 1."""
    return layer("add_position_encoding", {"X": x}, x.dtype, {"alpha": alpha, "beta": beta})


def row_conv(x: Value, future_context_size: int, *, param_attr: Attr = None, act: str | None = None) -> Value:
    """Each row plus the `future_context_size` rows after it in its sequence, weighted column by column."""
    draft = x.draft
    minted = draft.names.mint("row_conv")
    weight = create_parameter(draft, minted, param_attr, (future_context_size + 1, x.shape[-1]), x.dtype)
    return activation(minted, layer("row_conv", {"X": x, "Filter": weight}, x.dtype, name=minted), act)


# Recurrent layers over ragged sequences, and single steps of them.


_SIGMOID, _TANH = 1, 2


class LSTM(NamedTuple):
    """The results of an LSTM for each row: its output and its cell."""

    hidden: Value
    cell: Value


class GRUStep(NamedTuple):
    """One step of a GRU: the new state, the old state times the reset gate, and the gates with the candidate."""

    hidden: Value
    reset_hidden: Value
    gate: Value


def dynamic_lstm(
    x: Value,
    size: int,
    *,
    h_0: Value | None = None,
    c_0: Value | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: Element = "f32",
    name: str | None = None,
) -> LSTM:
    """An LSTM over sequences of rows of `size` elements, which hold the inputs of four gates from an `fc` without bias.

    Its results have rows of size / 4. `h_0` and `c_0` are the initial states, one row for each sequence.
    """
    draft, width = x.draft, size // 4
    minted, kind = name_layer(draft, "lstm", name), element_type(dtype)
    weight = create_parameter(draft, minted, param_attr, (width, 4 * width), kind)
    shift = _gate_bias(draft, minted, bias_attr, width, use_peepholes, kind)
    inputs = {"Input": x, "Weight": weight, "Bias": shift, **_starts(h_0, c_0)}
    outputs = {"Hidden": kind, "Cell": kind, "BatchGate": kind, "BatchCellPreAct": kind}
    attrs = {
        "use_peepholes": use_peepholes,
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "cell_activation": cell_activation,
        "candidate_activation": candidate_activation,
    }
    hidden, cell, *_ = layer_outputs("lstm", inputs, outputs, attrs, name=minted)
    return LSTM(hidden, cell)


def dynamic_lstmp(
    x: Value,
    size: int,
    proj_size: int,
    *,
    h_0: Value | None = None,
    c_0: Value | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    cell_clip: float = 0.0,
    proj_clip: float = 0.0,
    dtype: Element = "f32",
    name: str | None = None,
) -> LSTM:
    """The layer `dynamic_lstm` with a projection of the state to `proj_size` elements. A clip of 0 means no
    clipping.
    """
    draft, width = x.draft, size // 4
    minted, kind = name_layer(draft, "lstmp", name), element_type(dtype)
    weight = create_parameter(draft, minted, param_attr, (proj_size, 4 * width), kind)
    projection = create_parameter(draft, minted, param_attr, (width, proj_size), kind)
    shift = _gate_bias(draft, minted, bias_attr, width, use_peepholes, kind)
    projected, cell = (draft.temporary(minted, kind) for _ in range(2))
    draft.temporary(minted, kind)  # as in Fluid, where no op uses it
    hidden, gates, before = (draft.temporary(minted, kind) for _ in range(3))
    inputs = {"Input": x, "Weight": weight, "ProjWeight": projection, "Bias": shift, **_starts(h_0, c_0)}
    outputs = {
        "Projection": projected,
        "Cell": cell,
        "BatchHidden": hidden,
        "BatchGate": gates,
        "BatchCellPreAct": before,
    }
    attrs = {
        "use_peepholes": use_peepholes,
        "cell_clip": cell_clip,
        "proj_clip": proj_clip,
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "cell_activation": cell_activation,
        "candidate_activation": candidate_activation,
        "proj_activation": proj_activation,
    }
    draft.op("lstmp", inputs, outputs, attrs)
    return LSTM(projected, cell)


def dynamic_gru(
    x: Value,
    size: int,
    *,
    h_0: Value | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    origin_mode: bool = False,
) -> Value:
    """A GRU over sequences of rows of 3 * size elements, from an `fc` before it; its result has rows of `size`
    elements.

    With `origin_mode` the update gate is the share of the old state; without it, that of the new one.
    """
    draft = x.draft
    minted = draft.names.mint("gru")
    weight = create_parameter(draft, minted, param_attr, (size, 3 * size), x.dtype)
    shift = create_parameter(draft, minted, bias_attr, (1, 3 * size), x.dtype, is_bias=True)
    inputs = {"Input": x, "Weight": weight, "Bias": shift, **_starts(h_0, None)}
    outputs = {"Hidden": x.dtype, "BatchGate": x.dtype, "BatchResetHiddenPrev": x.dtype, "BatchHidden": x.dtype}
    attrs = {
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "activation": candidate_activation,
        "origin_mode": origin_mode,
    }
    return layer_outputs("gru", inputs, outputs, attrs, name=minted)[0]


def gru_unit(
    x: Value,
    hidden: Value,
    size: int,
    *,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    origin_mode: bool = False,
) -> GRUStep:
    """One step of a GRU from x, rows of `size` elements, and the previous state, rows of size / 3.

    The gates are sigmoids and the candidate a tanh, which Fluid 1.8.5 uses whatever its layer is given.
    """
    draft, width = x.draft, size // 3
    minted = draft.names.mint("gru_unit")
    weight = create_parameter(draft, minted, param_attr, (width, 3 * width), x.dtype)
    inputs = {"Input": x, "HiddenPrev": hidden, "Weight": weight}
    if attr_of(bias_attr) is not None:
        inputs["Bias"] = create_parameter(draft, minted, bias_attr, (1, 3 * width), x.dtype, is_bias=True)
    outputs = {"Gate": x.dtype, "ResetHiddenPrev": x.dtype, "Hidden": x.dtype}
    attrs = {"activation": _TANH, "gate_activation": _SIGMOID, "origin_mode": origin_mode}
    gate, reset, updated = layer_outputs("gru_unit", inputs, outputs, attrs, name=minted)
    return GRUStep(updated, reset, gate)


def lstm_unit(
    x: Value,
    hidden: Value,
    cell: Value,
    *,
    forget_bias: float = 0.0,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> LSTM:
    """One step of an LSTM from x and the previous hidden state and cell; an `fc` of both computes the gates."""
    draft = x.draft
    minted = name_layer(draft, "lstm_unit", name)
    joined = concat([x, hidden], axis=1)
    gates = fc(joined, 4 * cell.shape[1], param_attr=param_attr, bias_attr=bias_attr)
    inputs, outputs = {"X": gates, "C_prev": cell}, {"C": x.dtype, "H": x.dtype}
    new_cell, new_hidden = layer_outputs("lstm_unit", inputs, outputs, {"forget_bias": forget_bias}, name=minted)
    return LSTM(new_hidden, new_cell)


def _gate_bias(draft: Draft, layer: str, given: Attr, width: int, use_peepholes: bool, dtype: Element) -> Value:
    """The biases of the four gates and, with peepholes, the weights from the cell to three of them."""
    return create_parameter(draft, layer, given, (1, (7 if use_peepholes else 4) * width), dtype, is_bias=True)


def _starts(h_0: Value | None, c_0: Value | None) -> dict[str, Value]:
    """The given initial states by slot."""
    return {slot: value for slot, value in (("H0", h_0), ("C0", c_0)) if value is not None}
