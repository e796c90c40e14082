"""Losses of each row."""

from __future__ import annotations

from pstranspile.ops.schema import FLOAT, declare, declare_gradient

declare(
    "cross_entropy",
    "X Label -> Y",
    {"soft_label": False, "ignore_index": -100},
    doc="Y = -log(X at the label), or -sum(Label * log(X)) with soft labels",
)
declare_gradient("cross_entropy", "X Label Y@GRAD -> X@GRAD")
declare(
    "cross_entropy2",
    "X Label -> Y XShape MatchX",
    {"ignore_index": -100},
    doc="Y = -log(MatchX), MatchX = X at the label",
)
declare_gradient("cross_entropy2", "Label XShape MatchX Y@GRAD -> X@GRAD", op_type="cross_entropy_grad2")
declare(
    "softmax_with_cross_entropy",
    "Logits Label -> Softmax Loss",
    {"soft_label": False, "numeric_stable_mode": True, "ignore_index": -100, "axis": -1},
    doc="Loss = the cross entropy of Softmax = softmax(Logits) along `axis`",
)
declare_gradient("softmax_with_cross_entropy", "Label Softmax Loss@GRAD -> Logits@GRAD")
declare(
    "sigmoid_cross_entropy_with_logits",
    "X Label -> Out",
    {"normalize": False, "ignore_index": -100},
    doc="Out = the cross entropy of sigmoid(X) with Label, element by element",
)
declare_gradient("sigmoid_cross_entropy_with_logits", "X Label Out@GRAD -> X@GRAD")
declare(
    "log_loss",
    "Predicted Labels -> Loss",
    {"epsilon": FLOAT},
    doc="Loss = -Labels * log(p + epsilon) - (1 - Labels) * log(1 - p + epsilon), p = Predicted",
)
declare_gradient("log_loss", "Predicted Labels Loss@GRAD -> Predicted@GRAD")
declare(
    "huber_loss",
    "X Y -> Residual Out",
    {"delta": FLOAT},
    doc="Out = r * r / 2 where abs(r) <= delta, else delta * (abs(r) - delta / 2); Residual r = Y - X",
)
declare_gradient("huber_loss", "Residual Out@GRAD -> X@GRAD Y@GRAD")
