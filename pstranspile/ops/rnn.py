"""Recurrent units over whole sequences."""

from __future__ import annotations

from pstranspile.ops.schema import declare, declare_gradient

declare(
    "lstm",
    "Input H0? C0? Weight Bias -> Hidden Cell BatchGate BatchCellPreAct",
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
    "Input H0? C0? Weight ProjWeight Bias -> Projection Cell BatchGate BatchCellPreAct BatchHidden",
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
declare("lstm_unit", "X C_prev -> C H", {"forget_bias": 0.0}, doc="C, H = one step of a long short-term memory")
declare_gradient("lstm_unit", "X C_prev C C@GRAD H@GRAD -> X@GRAD C_prev@GRAD")
declare(
    "gru",
    "Input H0? Weight Bias? -> BatchGate BatchResetHiddenPrev BatchHidden Hidden",
    {"activation": "tanh", "gate_activation": "sigmoid", "is_reverse": False, "origin_mode": False},
    doc="Hidden = a gated recurrent unit over each sequence",
)
declare_gradient(
    "gru",
    "Input H0? Weight Bias? BatchGate BatchResetHiddenPrev BatchHidden Hidden Hidden@GRAD -> "
    "Input@GRAD H0@GRAD? Weight@GRAD Bias@GRAD?",
)
declare(
    "gru_unit",
    "Input HiddenPrev Weight Bias? -> Gate ResetHiddenPrev Hidden",
    {"activation": 2, "gate_activation": 1, "origin_mode": False},
    doc="Hidden = one step of a gated recurrent unit",
)
declare_gradient(
    "gru_unit",
    "Input HiddenPrev Weight Bias? Gate ResetHiddenPrev Hidden@GRAD -> "
    "Input@GRAD HiddenPrev@GRAD Weight@GRAD Bias@GRAD?",
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
