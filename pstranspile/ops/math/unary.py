"""Functions of one tensor, element by element, and clipping."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ops.functions import declare_function
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients
from pstranspile.ops.schema import FLOAT, declare, declare_gradient
from pstranspile.ops.shapes import outputs_like, shape_rule

_ENGINE = {"use_mkldnn": False, "use_cudnn": False}

declare_function("abs", "Out = the absolute value of X", _ENGINE)
declare_function("ceil", "Out = X rounded up", _ENGINE, reads="")
declare_function("floor", "Out = X rounded down", _ENGINE, reads="")
declare_function("round", "Out = X rounded to the nearest integer, halves away from zero", _ENGINE, reads="")
declare_function("cos", "Out = cos(X)", _ENGINE)
declare_function("sin", "Out = sin(X)", _ENGINE)
declare_function("exp", "Out = exp(X)", _ENGINE, reads="Out")
declare_function("log", "Out = the natural logarithm of X", _ENGINE)
declare_function("sqrt", "Out = the square root of X", _ENGINE, reads="Out")
declare_function("rsqrt", "Out = 1 / sqrt(X)", _ENGINE, reads="Out")
declare_function("square", "Out = X * X", _ENGINE)
declare_function("reciprocal", "Out = 1 / X", _ENGINE, reads="Out")
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


shape_rule("sign", "pow", "clip", "clip_by_norm", "dgc_clip_by_norm")(outputs_like(Out="X"))


@gradient("sign")
def _sign_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (bare_op("scale", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}, {"scale": 0.0}),)
