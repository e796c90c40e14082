"""Activation functions that are less often used, and functions of one tensor."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients
from pstranspile.ops.schema import INT, declare, declare_gradient
from pstranspile.ops.shapes import outputs_like, shape_rule

_ENGINE = {"use_mkldnn": False, "use_cudnn": False}

declare("acos", "X -> Out", row_wise=True, doc="Out = arccos(X)")
declare_gradient("acos", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("asin", "X -> Out", row_wise=True, doc="Out = arcsin(X)")
declare_gradient("asin", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("atan", "X -> Out", row_wise=True, doc="Out = arctan(X)")
declare_gradient("atan", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("erf", "X -> Out", row_wise=True, doc="Out = the error function of X")
declare_gradient("erf", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("log1p", "X -> Out", _ENGINE, row_wise=True, doc="Out = log(1 + X)")
declare_gradient("log1p", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("brelu", "X -> Out", {"t_min": 0.0, "t_max": 24.0}, row_wise=True, doc="Out = X limited to [t_min, t_max]")
declare_gradient("brelu", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("relu6", "X -> Out", {"threshold": 6.0}, row_wise=True, doc="Out = X limited to [0, threshold]")
declare_gradient("relu6", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare("elu", "X -> Out", {"alpha": 1.0}, row_wise=True, doc="Out = X where X > 0, else alpha * (exp(X) - 1)")
declare_gradient("elu", "X Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "selu",
    "X -> Out",
    {"scale": 1.050701, "alpha": 1.6732632},
    row_wise=True,
    doc="Out = scale * X where X > 0, else scale * alpha * (exp(X) - 1)",
)
declare_gradient("selu", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "prelu",
    "X Alpha -> Out",
    {"mode": "all"},
    doc="Out = X where X > 0, else Alpha * X; one Alpha for all, for each channel or for each element",
)
declare_gradient("prelu", "X Alpha Out@GRAD -> X@GRAD Alpha@GRAD")
declare(
    "hard_sigmoid",
    "X -> Out",
    {"slope": 0.2, "offset": 0.5},
    row_wise=True,
    doc="Out = slope * X + offset limited to [0, 1]",
)
declare_gradient("hard_sigmoid", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "hard_swish",
    "X -> Out",
    {"threshold": 6.0, "scale": 6.0, "offset": 3.0},
    row_wise=True,
    doc="Out = X * min(max(X + offset, 0), threshold) / scale",
)
declare_gradient("hard_swish", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("hard_shrink", "X -> Out", {"threshold": 0.5}, row_wise=True, doc="Out = X, but 0 where abs(X) <= threshold")
declare_gradient("hard_shrink", "X Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "softshrink",
    "X -> Out",
    {"lambda": 0.5},
    row_wise=True,
    doc="Out = X drawn toward 0 by lambda, 0 where abs(X) <= lambda",
)
declare_gradient("softshrink", "X Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "soft_relu",
    "X -> Out",
    {"threshold": 40.0},
    row_wise=True,
    doc="Out = log(1 + exp(X limited to [-threshold, threshold]))",
)
declare_gradient("soft_relu", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "stanh", "X -> Out", {"scale_a": 0.67, "scale_b": 1.7159}, row_wise=True, doc="Out = scale_b * tanh(scale_a * X)"
)
declare_gradient("stanh", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("swish", "X -> Out", {"beta": 1.0, "use_mkldnn": False}, row_wise=True, doc="Out = X * sigmoid(beta * X)")
declare_gradient("swish", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("mish", "X -> Out", {"threshold": 20.0}, row_wise=True, doc="Out = X * tanh(softplus(X))")
declare_gradient("mish", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("tanh_shrink", "X -> Out", _ENGINE, row_wise=True, doc="Out = X - tanh(X)")
declare_gradient("tanh_shrink", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("thresholded_relu", "X -> Out", {"threshold": 1.0}, row_wise=True, doc="Out = X where X > threshold, else 0")
declare_gradient("thresholded_relu", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("maxout", "X -> Out", {"groups": INT, "axis": 1}, doc="Out = the largest of each group of channels")
declare_gradient("maxout", "X Out Out@GRAD -> X@GRAD")
declare(
    "cumsum",
    "X -> Out",
    {"axis": -1, "exclusive": False, "reverse": False},
    doc="Out = the running sums of X along `axis`",
)
declare("isinf", "X -> Out", doc="Out = whether any element of X is infinite")
declare("isnan", "X -> Out", doc="Out = whether any element of X is not a number")

shape_rule(
    *("acos", "asin", "atan", "erf", "log1p", "brelu", "relu6", "elu", "selu", "prelu", "hard_sigmoid", "hard_swish"),
    *("hard_shrink", "softshrink", "soft_relu", "stanh", "swish", "mish", "tanh_shrink", "thresholded_relu"),
)(outputs_like(Out="X"))


@gradient("cumsum")
def _cumsum_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    """Sums from the other end. Fluid's `axis`, `exclusive` and `reverse` are the only attributes it carries."""
    attrs = {"axis": op.attrs["axis"], "exclusive": op.attrs["exclusive"], "reverse": not op.attrs["reverse"]}
    return (bare_op("cumsum", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}, attrs),)
