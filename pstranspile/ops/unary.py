"""Functions of one tensor, element by element, and clipping."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients
from pstranspile.ops.schema import FLOAT, declare, declare_gradient
from pstranspile.ops.shapes import outputs_like, shape_rule

_ENGINE = {"use_mkldnn": False, "use_cudnn": False}

declare("abs", "X -> Out", _ENGINE, row_wise=True, doc="Out = the absolute value of X")
declare_gradient("abs", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("ceil", "X -> Out", _ENGINE, row_wise=True, doc="Out = X rounded up")
declare_gradient("ceil", "Out@GRAD -> X@GRAD", row_wise=True)
declare("floor", "X -> Out", _ENGINE, row_wise=True, doc="Out = X rounded down")
declare_gradient("floor", "Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "round", "X -> Out", _ENGINE, row_wise=True, doc="Out = X rounded to the nearest integer, halves away from zero"
)
declare_gradient("round", "Out@GRAD -> X@GRAD", row_wise=True)
declare("cos", "X -> Out", _ENGINE, row_wise=True, doc="Out = cos(X)")
declare_gradient("cos", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("sin", "X -> Out", _ENGINE, row_wise=True, doc="Out = sin(X)")
declare_gradient("sin", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("exp", "X -> Out", _ENGINE, row_wise=True, doc="Out = exp(X)")
declare_gradient("exp", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare("log", "X -> Out", _ENGINE, row_wise=True, doc="Out = the natural logarithm of X")
declare_gradient("log", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("sqrt", "X -> Out", _ENGINE, row_wise=True, doc="Out = the square root of X")
declare_gradient("sqrt", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare("rsqrt", "X -> Out", _ENGINE, row_wise=True, doc="Out = 1 / sqrt(X)")
declare_gradient("rsqrt", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare("square", "X -> Out", _ENGINE, row_wise=True, doc="Out = X * X")
declare_gradient("square", "X Out@GRAD -> X@GRAD", row_wise=True)
declare("reciprocal", "X -> Out", _ENGINE, row_wise=True, doc="Out = 1 / X")
declare_gradient("reciprocal", "Out Out@GRAD -> X@GRAD", row_wise=True)
declare("sign", "X -> Out", row_wise=True, doc="Out = -1, 0 or 1, the sign of X")
declare("pow", "X FactorTensor? -> Out", {"factor": 1.0}, row_wise=True, doc="Out = X to the power of `factor`")
declare_gradient("pow", "X FactorTensor? Out@GRAD -> X@GRAD", row_wise=True)
declare("clip", "X Min? Max? -> Out", {"min": FLOAT, "max": FLOAT}, row_wise=True, doc="Out = X limited to [min, max]")
declare_gradient("clip", "X Min? Max? Out@GRAD -> X@GRAD", row_wise=True)
declare(
    "clip_by_norm",
    "X -> Out",
    {"max_norm": FLOAT},
    whole_norm=True,
    doc="Out = X scaled down to the L2 norm max_norm if its norm is larger",
)
declare(
    "dgc_clip_by_norm",
    "current_step X -> Out",
    {"rampup_begin_step": -1.0, "max_norm": FLOAT},
    whole_norm=True,
    doc="as clip_by_norm from step rampup_begin_step on, before it Out = X",
)


shape_rule(
    "abs",
    "ceil",
    "floor",
    "round",
    "cos",
    "sin",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "square",
    "reciprocal",
    "sign",
    "pow",
    "clip",
    "clip_by_norm",
    "dgc_clip_by_norm",
)(outputs_like(Out="X"))


@gradient("sign")
def _sign_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (bare_op("scale", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}, {"scale": 0.0}),)
