"""Recurrent layers over ragged sequences, and single steps of them."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.frontends.layers.basic import layer_outputs
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.frontends.layers.nn import fc, name_layer
from pstranspile.frontends.layers.parameters import Attr, Element, attr_of, create_parameter
from pstranspile.frontends.layers.tensor import concat
from pstranspile.ir.types import element_type

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
    """An LSTM over sequences of rows of `size` elements, the inputs of four gates from an `fc` without bias.

    Gives rows of size / 4. `h_0` and `c_0` are the initial states, one row for each sequence.
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
    """A GRU over sequences of rows of 3 * size elements, from an `fc` before it; gives rows of `size`.

    With `origin_mode` the update gate keeps the old state; without it the gate admits the new one.
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
