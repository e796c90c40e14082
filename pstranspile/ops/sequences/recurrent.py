"""Recurrent cells over sequences: GRU and LSTM."""

from __future__ import annotations

from math import prod

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import flag
from pstranspile.ops.schema import bounded, declare, declare_gradient, words
from pstranspile.ops.shapes import Types, one, one_or_none, require_dims, shape_rule, unit_width
from pstranspile.ops.work import elements, work_rule

# The gated recurrent unit, over sequences and of a single step; a single step of the long short-term memory.

declare("lstm_unit", "X C_prev -> C H", {"forget_bias": 0.0}, doc="C, H = one step of a long short-term memory")
declare_gradient("lstm_unit", "X C_prev C C@GRAD H@GRAD -> X@GRAD C_prev@GRAD", result_lod="none")
declare(
    "gru",
    "Input H0? Weight Bias? -> BatchGate~ BatchResetHiddenPrev~ BatchHidden~ Hidden",
    {
        "activation": words("tanh", "sigmoid", "relu", "identity", ""),
        "gate_activation": words("sigmoid", "tanh", "relu", "identity", ""),
        "is_reverse": False,
        "origin_mode": False,
    },
    doc="Hidden = a gated recurrent unit over each sequence",
    calls=88,
    calls_per_step=4,
)
declare_gradient(
    "gru",
    "Input H0? Weight Bias? BatchGate BatchResetHiddenPrev BatchHidden Hidden Hidden@GRAD -> "
    "Input@GRAD H0@GRAD? Weight@GRAD Bias@GRAD?",
    result_lod="none",
    calls=112,
    calls_per_step=3,
)
declare(
    "gru_unit",
    "Input HiddenPrev Weight Bias? -> Gate~ ResetHiddenPrev~ Hidden",
    {"activation": bounded(2, 0, 3), "gate_activation": bounded(1, 0, 3), "origin_mode": False},
    doc="Hidden = one step of a gated recurrent unit",
)
declare_gradient(
    "gru_unit",
    "Input HiddenPrev Weight Bias? Gate ResetHiddenPrev Hidden@GRAD -> "
    "Input@GRAD HiddenPrev@GRAD Weight@GRAD Bias@GRAD?",
    result_lod="none",
)


def _require_weights(types: Types, width: int) -> None:
    wide = 3 * width if width >= 0 else -1
    weight, bias = one_or_none(types, "Weight"), one_or_none(types, "Bias")
    if weight is not None:
        require_dims(weight, (width, wide), "Weight")
    if bias is not None:
        require_dims(bias, (1, wide), "Bias")


@shape_rule("gru")
def _gru_types(_op: Op, types: Types) -> Types:
    x = one(types, "Input")
    width = unit_width(x, 3, "Input")
    _require_weights(types, width)
    hidden = TensorType(x.dtype, (x.shape[0], width))
    return {
        "Hidden": (hidden._replace(lod_level=x.lod_level),),
        "BatchGate": (x._replace(lod_level=0),),
        "BatchResetHiddenPrev": (hidden,),
        "BatchHidden": (hidden,),
    }


@shape_rule("gru_unit")
def _gru_unit_types(_op: Op, types: Types) -> Types:
    x = one(types, "Input")
    width = unit_width(x, 3, "Input")
    _require_weights(types, width)
    before = one_or_none(types, "HiddenPrev")
    if before is not None:
        require_dims(before, (x.shape[0], width), "HiddenPrev")
    hidden = TensorType(x.dtype, (x.shape[0], width))
    return {"Gate": (x._replace(lod_level=0),), "ResetHiddenPrev": (hidden,), "Hidden": (hidden,)}


@shape_rule("lstm_unit")
def _lstm_unit_types(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    width = unit_width(x, 4, "X")
    before = one_or_none(types, "C_prev")
    if before is not None:
        require_dims(before, (x.shape[0], width), "C_prev")
    cell = TensorType(x.dtype, (x.shape[0], width))
    return {"C": (cell,), "H": (cell,)}


# The long short-term memory over sequences, with and without a projection of the hidden state.

declare(
    "lstm",
    "Input H0? C0? Weight Bias -> Hidden Cell BatchGate~ BatchCellPreAct~",
    {
        "use_peepholes": True,
        "is_reverse": False,
        "gate_activation": words("sigmoid", "tanh", "relu", "identity"),
        "cell_activation": words("tanh", "sigmoid", "relu", "identity"),
        "candidate_activation": words("tanh", "sigmoid", "relu", "identity"),
    },
    doc="Hidden, Cell = a long short-term memory over each sequence",
    calls=115,
    calls_per_step=8,
)
declare_gradient(
    "lstm",
    "Input H0? C0? Weight Bias Hidden Cell BatchGate BatchCellPreAct Hidden@GRAD -> "
    "Input@GRAD H0@GRAD? C0@GRAD? Weight@GRAD Bias@GRAD",
    result_lod="none",
    calls=199,
    calls_per_step=6,
)
declare(
    "lstmp",
    "Input H0? C0? Weight ProjWeight Bias -> Projection Cell BatchGate~ BatchCellPreAct~ BatchHidden~",
    {
        "use_peepholes": True,
        "is_reverse": False,
        "cell_clip": 0.0,
        "proj_clip": 0.0,
        "gate_activation": words("sigmoid", "tanh", "relu", "identity"),
        "cell_activation": words("tanh", "sigmoid", "relu", "identity"),
        "candidate_activation": words("tanh", "sigmoid", "relu", "identity"),
        "proj_activation": words("tanh", "sigmoid", "relu", "identity"),
    },
    doc="as lstm, with a projection of the hidden state",
    calls=115,
    calls_per_step=9,
)
declare_gradient(
    "lstmp",
    "H0? C0? Weight ProjWeight Bias "
    "Projection Cell BatchGate BatchCellPreAct BatchHidden Projection@GRAD -> "
    "Input@GRAD H0@GRAD? C0@GRAD? Weight@GRAD ProjWeight@GRAD Bias@GRAD",
    result_lod="none",
    calls=199,
    calls_per_step=8,
)

declare(
    "cudnn_lstm",
    "Input InitH InitC W Cache? -> Out last_h last_c",
    {
        "max_len": 20,
        "dropout_prob": 0.0,
        "is_bidirec": False,
        "input_size": 10,
        "hidden_size": 100,
        "num_layers": 1,
        "is_test": False,
        "seed": -1,
    },
    doc="Out = layers of long short-term memory, as in cuDNN",
)
declare_gradient(
    "cudnn_lstm",
    "Input InitH InitC W Cache? Out Out@GRAD last_h@GRAD last_c@GRAD -> Input@GRAD InitH@GRAD InitC@GRAD W@GRAD",
)


@shape_rule("lstm", "lstmp")
def _lstm_types(op: Op, types: Types) -> Types:
    x = one(types, "Input")
    width = unit_width(x, 4, "Input")
    weight, projection, bias = (
        one_or_none(types, "Weight"),
        one_or_none(types, "ProjWeight"),
        one_or_none(types, "Bias"),
    )
    rows, state = x.shape[0], width
    if op.type == "lstmp":
        state = projection.shape[-1] if projection is not None else -1
        if projection is not None:
            require_dims(projection, (width, state), "ProjWeight")
    if weight is not None:
        require_dims(weight, (state, 4 * width if width >= 0 else -1), "Weight")
    if bias is not None:
        require_dims(bias, (1, (7 if flag(op, "use_peepholes") else 4) * width if width >= 0 else -1), "Bias")
    cell = TensorType(x.dtype, (rows, width), x.lod_level)
    flat = cell._replace(lod_level=0)
    gates = x._replace(lod_level=0)
    if op.type == "lstm":
        return {"Hidden": (cell,), "Cell": (cell,), "BatchGate": (gates,), "BatchCellPreAct": (flat,)}
    return {
        "Projection": (TensorType(x.dtype, (rows, state), x.lod_level),),
        "Cell": (cell,),
        "BatchGate": (gates,),
        "BatchCellPreAct": (flat,),
        "BatchHidden": (flat,),
    }


# The work of recurrent ops: the products of each step's state with the weights, and some 30 operations on each element
# of a state.

_GATES = 30.0
"""The operations of a step on each element of its state, besides products: gates, activations and sums."""


@work_rule("gru", "lstm", factors="Input Weight", family="recurrent")
def _recurrent_work(_op: Op, types: Types) -> float:
    weight = one(types, "Weight").shape
    rows = one(types, "Input").shape[0]
    return rows * (2.0 * weight[0] * weight[1] + _GATES * weight[0])


@work_rule("lstmp", factors="Input Weight", family="recurrent")
def _projected_work(_op: Op, types: Types) -> float:
    weight, projection = one(types, "Weight").shape, one(types, "ProjWeight").shape
    rows = one(types, "Input").shape[0]
    return rows * (2.0 * prod(weight) + 2.0 * prod(projection) + _GATES * projection[0])


@work_rule("gru_unit", factors="Input Weight", family="products")
def _gru_unit_work(_op: Op, types: Types) -> float:
    weight = one(types, "Weight").shape
    return one(types, "Input").shape[0] * (2.0 * prod(weight) + _GATES * weight[0])


@work_rule("lstm_unit", factors="X")
def _lstm_unit_work(_op: Op, types: Types) -> float:
    return _GATES * elements(types, "C_prev")
