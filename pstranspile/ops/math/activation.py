"""Activation functions: one tensor in, one of the same shape out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pstranspile.ir.model import Op
from pstranspile.ops.gradient import WantedGradients, bare_op, gradient, output_gradients
from pstranspile.ops.schema import FLOAT, bounded, declare, declare_gradient, dim_of, words
from pstranspile.ops.shapes import Types, outputs_like, shape_rule
from pstranspile.ops.work import elements, work_rule

if TYPE_CHECKING:
    from pstranspile.ops.facts import Domain, LodOfResult, Memory


def declare_function(
    op_type: str,
    doc: str,
    attrs: Mapping[str, object] | None = None,
    *,
    reads: str = "X",
    positive: bool = False,
    typed_by: str = "X",
    gradient_lod: LodOfResult | None = None,
    branches: bool = False,
    memory: Memory = "",
) -> None:
    """Declares an op whose `Out` is an elementwise function of X, with X's type, and its gradient op.

    The gradient op reads `reads` ("X", "Out", or "" for neither) in addition to Out@GRAD. If X is read, Fluid declares
    X@GRAD with the LoD of Out@GRAD, unless `gradient_lod` says otherwise. `positive`: X must be above 0. `branches` and
    `memory` are facts of the op.
    """
    domains: Mapping[str, Domain] = {"X": "positive"} if positive else {}
    declare(
        op_type,
        "X -> Out",
        attrs,
        row_wise=True,
        typed_by=typed_by,
        domains=domains,
        doc=doc,
        branches=branches,
        memory=memory,
    )
    lod = gradient_lod or ("of_gradient" if reads == "X" else "inferred")
    declare_gradient(op_type, f"{reads} Out@GRAD -> X@GRAD", row_wise=True, result_lod=lod)
    shape_rule(op_type)(outputs_like(Out="X"))


_ENGINE = {"use_mkldnn": False, "use_cudnn": False}

declare_function("relu", "Out = max(X, 0)", _ENGINE, reads="Out", memory="over", branches=True)
declare_function(
    "leaky_relu",
    "Out = X where X >= 0, else alpha * X",
    {"alpha": 0.02, "use_mkldnn": False},
    reads="Out",
    gradient_lod="of_gradient",
    branches=True,
)
declare_function("sigmoid", "Out = 1 / (1 + exp(-X))", _ENGINE, reads="Out")
declare_function("logsigmoid", "Out = log(sigmoid(X))", _ENGINE)
declare_function("tanh", "Out = tanh(X)", _ENGINE, reads="Out")
declare_function(
    "gelu",
    "Out = X times the normal distribution function of X; `approximate` takes the tanh form",
    {"approximate": False, **_ENGINE},
    typed_by="",
    gradient_lod="inferred",
)
declare_function("softplus", "Out = log(1 + exp(X))", _ENGINE)
declare_function("softsign", "Out = X / (1 + abs(X))", _ENGINE)
declare(
    "softmax",
    "X -> Out",
    {"axis": dim_of(-1, "X"), "data_format": words("AnyLayout", "NCHW", "NHWC"), "is_test": False, **_ENGINE},
    typed_by="X",
    doc="Out = exp(X) / sum(exp(X)) along `axis`",
    memory="over",
)
declare_gradient("softmax", "Out Out@GRAD -> X@GRAD", result_lod="none")


@work_rule("softmax", factors="X", family="passes")
def _softmax_work(_op: Op, types: Types) -> float:
    return float(elements(types, "Out"))


shape_rule("softmax")(outputs_like(Out="X"))
shape_rule("softmax_grad")(outputs_like(**{"X@GRAD": "Out"}))

declare_function("acos", "Out = arccos(X)")
declare_function("asin", "Out = arcsin(X)")
declare_function("atan", "Out = arctan(X)")
declare_function("erf", "Out = the error function of X", typed_by="", gradient_lod="inferred")
declare_function("log1p", "Out = log(1 + X)", _ENGINE)
declare_function("brelu", "Out = X limited to [t_min, t_max]", {"t_min": 0.0, "t_max": 24.0})
declare_function("relu6", "Out = X limited to [0, threshold]", {"threshold": 6.0}, reads="Out", branches=True)
declare_function("elu", "Out = X where X > 0, else alpha * (exp(X) - 1)", {"alpha": 1.0}, branches=True)
declare_function(
    "selu",
    "Out = scale * X where X > 0, else scale * alpha * (exp(X) - 1)",
    {"scale": 1.050701, "alpha": 1.6732632},
    reads="Out",
    gradient_lod="none",
    branches=True,
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
declare_function("mish", "Out = X * tanh(softplus(X))", {"threshold": 20.0}, typed_by="", gradient_lod="inferred")
declare_function("tanh_shrink", "Out = X - tanh(X)", _ENGINE)
declare_function("thresholded_relu", "Out = X where X > threshold, else 0", {"threshold": 1.0})


# Functions of one tensor, element by element, and clipping.

_UNARY_ENGINE = {"use_mkldnn": False, "use_cudnn": False}

declare_function("abs", "Out = the absolute value of X", _UNARY_ENGINE, branches=True)
declare_function("ceil", "Out = X rounded up", _UNARY_ENGINE, reads="")
declare_function("floor", "Out = X rounded down", _UNARY_ENGINE, reads="")
declare_function("round", "Out = X rounded to the nearest integer, halves away from zero", _UNARY_ENGINE, reads="")
declare_function("cos", "Out = cos(X)", _UNARY_ENGINE)
declare_function("sin", "Out = sin(X)", _UNARY_ENGINE)
declare_function("exp", "Out = exp(X)", _UNARY_ENGINE, reads="Out")
declare_function("log", "Out = the natural logarithm of X", _UNARY_ENGINE, positive=True)
declare_function("sqrt", "Out = the square root of X", _UNARY_ENGINE, reads="Out", positive=True)
declare_function("rsqrt", "Out = 1 / sqrt(X)", _UNARY_ENGINE, reads="Out", positive=True)
declare_function("square", "Out = X * X", _UNARY_ENGINE)
declare_function("reciprocal", "Out = 1 / X", _UNARY_ENGINE, reads="Out")
declare("sign", "X -> Out", row_wise=True, doc="Out = -1, 0 or 1, the sign of X")
declare(
    "pow",
    "X FactorTensor? -> Out",
    {"factor": 1.0},
    row_wise=True,
    typed_by="X",
    doc="Out = X to the power of `factor`",
)
declare_gradient("pow", "X FactorTensor? Out@GRAD -> X@GRAD", row_wise=True, result_lod="of_gradient")
declare(
    "clip",
    "X Min? Max? -> Out",
    {"min": bounded(FLOAT, below="max"), "max": FLOAT},
    row_wise=True,
    doc="Out = X limited to [min, max]",
    branches=True,
)
declare_gradient("clip", "X Min? Max? Out@GRAD -> X@GRAD", row_wise=True, result_lod="none")
declare(
    "clip_by_norm",
    "X -> Out",
    {"max_norm": bounded(FLOAT, above=0)},
    whole_norm=True,
    doc="Out = X scaled down to the L2 norm max_norm if its norm is larger",
)
declare(
    "dgc_clip_by_norm",
    "current_step X -> Out",
    {"rampup_begin_step": -1.0, "max_norm": bounded(FLOAT, above=0)},
    whole_norm=True,
    doc="as clip_by_norm from step rampup_begin_step on, before it Out = X",
)


shape_rule("sign", "pow", "clip", "clip_by_norm", "dgc_clip_by_norm")(outputs_like(Out="X"))


@gradient("sign")
def _sign_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    return (
        bare_op("scale", {"X": output_gradients(op, "Out")}, {"Out": wanted.gradient_names(op, "X")}, {"scale": 0.0}),
    )
