"""Activation functions: one tensor in, one of the same shape out."""

from __future__ import annotations

from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import outputs_like, shape_rule

_ENGINE = {"use_mkldnn": False, "use_cudnn": False}

declare("relu", "X -> Out", _ENGINE, row_wise=True, doc="Out = max(X, 0)")
declare_gradient("relu", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "leaky_relu",
    "X -> Out",
    {"alpha": 0.02, "use_mkldnn": False},
    row_wise=True,
    doc="Out = X where X >= 0, else alpha * X",
)
declare_gradient("leaky_relu", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare("sigmoid", "X -> Out", _ENGINE, row_wise=True, doc="Out = 1 / (1 + exp(-X))")
declare_gradient("sigmoid", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare("logsigmoid", "X -> Out", _ENGINE, row_wise=True, doc="Out = log(sigmoid(X))")
declare_gradient("logsigmoid", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("tanh", "X -> Out", _ENGINE, row_wise=True, doc="Out = tanh(X)")
declare_gradient("tanh", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "gelu",
    "X -> Out",
    {"approximate": False, **_ENGINE},
    row_wise=True,
    doc="Out = X times the normal distribution function of X; `approximate` takes the tanh form",
)
declare_gradient("gelu", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("softplus", "X -> Out", _ENGINE, row_wise=True, doc="Out = log(1 + exp(X))")
declare_gradient("softplus", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("softsign", "X -> Out", _ENGINE, row_wise=True, doc="Out = X / (1 + abs(X))")
declare_gradient("softsign", "X Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "softmax",
    "X -> Out",
    {"axis": -1, "data_format": "AnyLayout", "is_test": False, **_ENGINE},
    doc="Out = exp(X) / sum(exp(X)) along `axis`",
)
declare_gradient("softmax", "Out Out@GRAD -> X@GRAD")


shape_rule("relu", "leaky_relu", "sigmoid", "logsigmoid", "tanh", "gelu", "softplus", "softsign", "softmax")(
    outputs_like(Out="X")
)
shape_rule("softmax_grad")(outputs_like(**{"X@GRAD": "Out"}))
