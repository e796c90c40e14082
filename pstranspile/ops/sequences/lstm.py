"""The long short-term memory over sequences, with and without a projection of the hidden state."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import flag
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import Types, given, one, require_dims, shape_rule, unit_width

declare(
    "lstm",
    "Input H0? C0? Weight Bias -> Hidden Cell BatchGate~ BatchCellPreAct~",
    {
        "use_peepholes": True,
        "is_reverse": False,
        "gate_activation": "sigmoid",
        "cell_activation": "tanh",
        "candidate_activation": "tanh",
    },
    doc="Hidden, Cell = a long short-term memory over each sequence",
)
declare_gradient(
    "lstm",
    "Input H0? C0? Weight Bias Hidden Cell BatchGate BatchCellPreAct Hidden@GRAD -> "
    "Input@GRAD H0@GRAD? C0@GRAD? Weight@GRAD Bias@GRAD",
)
declare(
    "lstmp",
    "Input H0? C0? Weight ProjWeight Bias -> Projection Cell BatchGate~ BatchCellPreAct~ BatchHidden~",
    {
        "use_peepholes": True,
        "is_reverse": False,
        "cell_clip": 0.0,
        "proj_clip": 0.0,
        "gate_activation": "sigmoid",
        "cell_activation": "tanh",
        "candidate_activation": "tanh",
        "proj_activation": "tanh",
    },
    doc="as lstm, with a projection of the hidden state",
)
declare_gradient(
    "lstmp",
    "H0? C0? Weight ProjWeight Bias "
    "Projection Cell BatchGate BatchCellPreAct BatchHidden Projection@GRAD -> "
    "Input@GRAD H0@GRAD? C0@GRAD? Weight@GRAD ProjWeight@GRAD Bias@GRAD",
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
    weight, projection, bias = given(types, "Weight"), given(types, "ProjWeight"), given(types, "Bias")
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
