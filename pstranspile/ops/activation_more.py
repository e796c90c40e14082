"""Activation functions that are less often used, and functions of one tensor."""

from __future__ import annotations

from collections.abc import Callable

from pstranspile.arithmetic import exp
from pstranspile.arithmetic.erf import erf
from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import flag, formula, real
from pstranspile.ops.schema import INT, declare, declare_gradient
from pstranspile.ops.shapes import int_attr, outputs_like, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

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
    "cumsum",
)(outputs_like(Out="X"))


@gradient("cumsum")
def _cumsum_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    """Sums from the other end. Fluid's `axis`, `exclusive` and `reverse` are the only attributes it carries."""
    attrs = {"axis": op.attrs["axis"], "exclusive": op.attrs["exclusive"], "reverse": not op.attrs["reverse"]}
    return (bare_op("cumsum", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}, attrs),)


# Kernels


def _with(expression: str, *names: str) -> Callable[[Op], str]:
    """The expression with the op's attributes in place of `$0`, `$1`, ..."""

    def of(op: Op) -> str:
        text = expression
        for number, name in enumerate(names):
            text = text.replace(f"${number}", repr(real(op, name)))
        return text

    return of


def _selu_limit(op: Op) -> float:
    """scale * alpha, as precise as a float32, since so it is in Fluid."""
    return float(np.float32(real(op, "scale")) * np.float32(real(op, "alpha")))


formula("acos", "np.arccos({X})")
formula("acos_grad", "-{Out_GRAD} / np.sqrt(1 - {X} * {X})", "X@GRAD")
formula("asin", "np.arcsin({X})")
formula("asin_grad", "{Out_GRAD} / np.sqrt(1 - {X} * {X})", "X@GRAD")
formula("atan", "np.arctan({X})")
formula("atan_grad", "{Out_GRAD} / (1 + {X} * {X})", "X@GRAD")
formula("log1p", "np.log1p({X})")
formula("log1p_grad", "{Out_GRAD} / (1 + {X})", "X@GRAD")
formula("brelu", _with("np.minimum(np.maximum({X}, $0), $1)", "t_min", "t_max"))
formula("brelu_grad", _with("{Out_GRAD} * (({X} > $0) & ({X} < $1))", "t_min", "t_max"), "X@GRAD")
formula("relu6", _with("np.minimum(np.maximum({X}, 0), $0)", "threshold"))
formula("relu6_grad", _with("{Out_GRAD} * (({Out} > 0) & ({Out} < $0))", "threshold"), "X@GRAD")
formula("elu", _with("np.maximum({X}, 0) + np.minimum($0 * np.expm1({X}), 0)", "alpha"))
formula("elu_grad", _with("{Out_GRAD} * np.where({X} > 0, 1, $0 * np.exp(np.minimum({X}, 0)))", "alpha"), "X@GRAD")
formula("selu", _with("$0 * np.where({X} > 0, {X}, $1 * np.expm1(np.minimum({X}, 0)))", "scale", "alpha"))
formula(
    "selu_grad",
    lambda op: f"{{Out_GRAD}} * np.where({{Out}} > 0, {real(op, 'scale')!r}, {{Out}} + {_selu_limit(op)!r})",
    "X@GRAD",
    lod="none",
)
formula("hard_sigmoid", _with("np.minimum(np.maximum({X} * $0 + $1, 0), 1)", "slope", "offset"))
formula("hard_sigmoid_grad", _with("{Out_GRAD} * (({Out} > 0) & ({Out} < 1)) * $0", "slope"), "X@GRAD")
formula("hard_swish", _with("{X} * np.minimum(np.maximum({X} + $0, 0), $1) / $2", "offset", "threshold", "scale"))
formula(
    "hard_swish_grad",
    _with(
        "{Out_GRAD} * np.where({X} + $0 < $1, ({X} + $0 > 0) * (2 * {X} + $0) / $2, $1 / $2)",
        *("offset", "threshold", "scale"),
    ),
    "X@GRAD",
)
formula("hard_shrink", _with("{X} * (np.abs({X}) > $0)", "threshold"))
formula("hard_shrink_grad", _with("{Out_GRAD} * (np.abs({X}) > $0)", "threshold"), "X@GRAD")
formula("softshrink", _with("np.sign({X}) * np.maximum(np.abs({X}) - $0, 0)", "lambda"))
formula("softshrink_grad", _with("{Out_GRAD} * (np.abs({X}) > $0)", "lambda"), "X@GRAD")
formula("soft_relu", _with("log(1 + exp(np.clip({X}, -$0, $0)))", "threshold"))
formula(
    "soft_relu_grad",
    _with("{Out_GRAD} * (1 - exp(-{Out})) * (({Out} > -$0) & ({Out} < $0))", "threshold"),
    "X@GRAD",
)
formula("stanh", _with("$1 * tanh($0 * {X})", "scale_a", "scale_b"))
formula("stanh_grad", _with("{Out_GRAD} * $0 * $1 * (1 - np.square(tanh($0 * {X})))", "scale_a", "scale_b"), "X@GRAD")
formula("swish", _with("{X} / (1 + exp(-$0 * {X}))", "beta"))
formula("tanh_shrink", "{X} - tanh({X})")
formula("tanh_shrink_grad", "{Out_GRAD} * np.square(tanh({X}))", "X@GRAD")
formula("thresholded_relu", _with("{X} * ({X} > $0)", "threshold"))
formula("thresholded_relu_grad", _with("{Out_GRAD} * ({X} > $0)", "threshold"), "X@GRAD")


@kernel("swish_grad", "X@GRAD")
def _swish_grad(op: Op) -> Run:
    beta = real(op, "beta")

    def run(X: Array, Out_GRAD: Array) -> Array:
        share = 1 / (1 + exp(-beta * X))
        scaled = beta * (X * share)
        return Out_GRAD * (scaled + share * (1 - scaled))

    return run


@kernel("erf")
def _erf(_op: Op) -> Run:
    def run(X: Array) -> Array:
        return erf(X)

    return run


formula("erf_grad", "{Out_GRAD} * 1.1283791670955126 * np.exp(-{X} * {X})", "X@GRAD")


def _softplus(x: Array, threshold: float) -> Array:
    """log(1 + exp(x)); beyond the threshold x, and exp(x) below its negative."""
    near = np.log1p(np.exp(np.minimum(x, threshold)))
    return np.where(x > threshold, x, np.where(x < -threshold, np.exp(np.minimum(x, threshold)), near))


@kernel("mish")
def _mish(op: Op) -> Run:
    threshold = real(op, "threshold")

    def run(X: Array) -> Array:
        return X * np.tanh(_softplus(X, threshold))

    return run


@kernel("mish_grad", "X@GRAD", lod="none")
def _mish_grad(op: Op) -> Run:
    threshold = real(op, "threshold")

    def run(X: Array, Out_GRAD: Array) -> Array:
        soft = _softplus(X, threshold)
        bent = np.tanh(soft)
        return Out_GRAD * (bent - X * (1 - np.square(bent)) * np.expm1(-soft))

    return run


@kernel("cumsum")
def _cumsum(op: Op) -> Run:
    axis, exclusive, reverse = int_attr(op, "axis", -1), flag(op, "exclusive"), flag(op, "reverse")

    def run(X: Array) -> Array:
        x = np.flip(X, axis) if reverse else X
        found = np.cumsum(x, axis, dtype=x.dtype)
        if exclusive:
            found -= x
        return np.ascontiguousarray(np.flip(found, axis) if reverse else found)

    return run


@kernel("isnan isinf", lod="none")
def _any_such(op: Op) -> Run:
    such = np.isnan if op.type == "isnan" else np.isinf

    def run(X: Array) -> Array:
        return np.array([such(X).any()])

    return run
