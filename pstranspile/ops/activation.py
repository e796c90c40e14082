"""Activation functions: one tensor in, one of the same shape out."""

from __future__ import annotations

from pstranspile.arithmetic import shares_of_exp, sum_of_row
from pstranspile.arithmetic.erf import erf
from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import below_largest, flag, formula, real
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import int_attr, outputs_like, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

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


# Kernels

formula("relu", "np.maximum({X}, 0)")
formula("relu_grad", "{Out_GRAD} * ({Out} > 0)", "X@GRAD")
formula("leaky_relu", lambda op: f"np.where({{X}} > 0, {{X}}, {{X}} * {real(op, 'alpha')!r})")
formula(
    "leaky_relu_grad",
    lambda op: f"np.where({{Out}} > 0, {{Out_GRAD}}, {{Out_GRAD}} * {real(op, 'alpha')!r})",
    "X@GRAD",
)
formula("sigmoid", "sigmoid({X})")
formula("sigmoid_grad", "{Out_GRAD} * {Out} * (1 - {Out})", "X@GRAD")
formula("logsigmoid", "-softplus(-{X})")
formula("logsigmoid_grad", "{Out_GRAD} * softplus_slope(-{X})", "X@GRAD")
formula("tanh", "tanh({X})")
formula("tanh_grad", "{Out_GRAD} * (1 - {Out} * {Out})", "X@GRAD")
formula("softplus", "softplus({X})")
formula("softplus_grad", "{Out_GRAD} * softplus_slope({X})", "X@GRAD")
formula("softsign", "{X} / (1 + np.abs({X}))")
formula("softsign_grad", "{Out_GRAD} * (1 / np.square(1 + np.abs({X})))", "X@GRAD")


_ROOT_HALF = 0.7071067811865476
_DENSITY_AT_0 = 0.3989422804014327
"""1 / sqrt(2 pi)."""
_CUBE = 0.044715
"""Of the tanh form: gelu(x) is nearly x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""


def _tanh_argument(x: Array) -> Array:
    return 2 * _DENSITY_AT_0 * (x + _CUBE * x * x * x)


@kernel("gelu")
def _gelu(op: Op) -> Run:
    def exact(X: Array) -> Array:
        return 0.5 * X * (1 + erf(X * _ROOT_HALF))

    def approximate(X: Array) -> Array:
        return 0.5 * X * (1 + np.tanh(_tanh_argument(X)))

    return approximate if flag(op, "approximate") else exact


@kernel("gelu_grad", "X@GRAD")
def _gelu_grad(op: Op) -> Run:
    def exact(X: Array, Out_GRAD: Array) -> Array:
        return Out_GRAD * (0.5 * (1 + erf(X * _ROOT_HALF)) + X * _DENSITY_AT_0 * np.exp(-0.5 * X * X))

    def approximate(X: Array, Out_GRAD: Array) -> Array:
        tanh = np.tanh(_tanh_argument(X))
        slope = 2 * _DENSITY_AT_0 * (1 + 3 * _CUBE * X * X)
        return Out_GRAD * (0.5 * (1 + tanh) + 0.5 * X * (1 - tanh * tanh) * slope)

    return approximate if flag(op, "approximate") else exact


@kernel("softmax")
def _softmax(op: Op) -> Run:
    axis = int_attr(op, "axis", -1)

    def run(X: Array) -> Array:
        return shares_of_exp(below_largest(X, axis), axis)[0]

    return run


@kernel("softmax_grad", "X@GRAD", lod="none")
def _softmax_grad(op: Op) -> Run:
    axis = int_attr(op, "axis", -1)

    def run(Out: Array, Out_GRAD: Array) -> Array:
        found = Out_GRAD - sum_of_row(Out_GRAD * Out, axis)
        found *= Out
        return found

    return run
