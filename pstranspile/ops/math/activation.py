"""Activation functions: one tensor in, one of the same shape out."""

from __future__ import annotations

from pstranspile.ops.functions import declare_function
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import outputs_like, shape_rule

_ENGINE = {"use_mkldnn": False, "use_cudnn": False}

declare_function("relu", "Out = max(X, 0)", _ENGINE, reads="Out")
declare_function(
    "leaky_relu", "Out = X where X >= 0, else alpha * X", {"alpha": 0.02, "use_mkldnn": False}, reads="Out"
)
declare_function("sigmoid", "Out = 1 / (1 + exp(-X))", _ENGINE, reads="Out")
declare_function("logsigmoid", "Out = log(sigmoid(X))", _ENGINE)
declare_function("tanh", "Out = tanh(X)", _ENGINE, reads="Out")
declare_function(
    "gelu",
    "Out = X times the normal distribution function of X; `approximate` takes the tanh form",
    {"approximate": False, **_ENGINE},
)
declare_function("softplus", "Out = log(1 + exp(X))", _ENGINE)
declare_function("softsign", "Out = X / (1 + abs(X))", _ENGINE)
declare(
    "softmax",
    "X -> Out",
    {"axis": -1, "data_format": "AnyLayout", "is_test": False, **_ENGINE},
    doc="Out = exp(X) / sum(exp(X)) along `axis`",
)
declare_gradient("softmax", "Out Out@GRAD -> X@GRAD")


shape_rule("softmax")(outputs_like(Out="X"))
shape_rule("softmax_grad")(outputs_like(**{"X@GRAD": "Out"}))

declare_function("acos", "Out = arccos(X)")
declare_function("asin", "Out = arcsin(X)")
declare_function("atan", "Out = arctan(X)")
declare_function("erf", "Out = the error function of X")
declare_function("log1p", "Out = log(1 + X)", _ENGINE)
declare_function("brelu", "Out = X limited to [t_min, t_max]", {"t_min": 0.0, "t_max": 24.0})
declare_function("relu6", "Out = X limited to [0, threshold]", {"threshold": 6.0}, reads="Out")
declare_function("elu", "Out = X where X > 0, else alpha * (exp(X) - 1)", {"alpha": 1.0})
declare_function(
    "selu",
    "Out = scale * X where X > 0, else scale * alpha * (exp(X) - 1)",
    {"scale": 1.050701, "alpha": 1.6732632},
    reads="Out",
)

declare_function(
    "hard_sigmoid", "Out = slope * X + offset limited to [0, 1]", {"slope": 0.2, "offset": 0.5}, reads="Out"
)
declare_function(
    "hard_swish",
    "Out = X * min(max(X + offset, 0), threshold) / scale",
    {"threshold": 6.0, "scale": 6.0, "offset": 3.0},
)
declare_function("hard_shrink", "Out = X, but 0 where abs(X) <= threshold", {"threshold": 0.5})
declare_function("softshrink", "Out = X drawn toward 0 by lambda, 0 where abs(X) <= lambda", {"lambda": 0.5})
declare_function(
    "soft_relu", "Out = log(1 + exp(X limited to [-threshold, threshold]))", {"threshold": 40.0}, reads="Out"
)
declare_function("stanh", "Out = scale_b * tanh(scale_a * X)", {"scale_a": 0.67, "scale_b": 1.7159})
declare_function("swish", "Out = X * sigmoid(beta * X)", {"beta": 1.0, "use_mkldnn": False})
declare_function("mish", "Out = X * tanh(softplus(X))", {"threshold": 20.0})
declare_function("tanh_shrink", "Out = X - tanh(X)", _ENGINE)
declare_function("thresholded_relu", "Out = X where X > threshold, else 0", {"threshold": 1.0})
