"""Kernels. Activation functions: one tensor in, one of the same shape out."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.runtime.arithmetic import (
    exp,
    loops,
    norm,
    number_of,
    power,
    same_everywhere,
    shares_of_exp,
    sum_of_row,
)
from pstranspile.runtime.arithmetic.numpy import erf
from pstranspile.runtime.kernels.kernel import OVER, Run, in_place, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import LEAST_LOGIT, below_largest, first_number, formula
from pstranspile.runtime.kernels.rows import merge_rows
from pstranspile.runtime.values import Array, SelectedRows

formula("relu", "np.maximum({X}, 0)", over="np.maximum({X}, 0, out={X})", new=True)
formula("relu_grad", "relu_grad({Out_GRAD}, {Out})", "X@GRAD")


def _shrinks(op: Op) -> bool:
    """Whether 0 < alpha <= 1, so that leaky_relu is a maximum. A selection would be slow where signs
    follow no pattern.
    """
    return 0 < real(op, "alpha") <= 1


formula(
    "leaky_relu",
    lambda op: "np.maximum({X}, {X} * $alpha)" if _shrinks(op) else "np.where({X} > 0, {X}, {X} * $alpha)",
)
formula(
    "leaky_relu_grad",
    lambda op: (
        "{Out_GRAD} * np.maximum(({Out} > 0).astype({Out}.dtype), $alpha)"
        if _shrinks(op)
        else "np.where({Out} > 0, {Out_GRAD}, {Out_GRAD} * $alpha)"
    ),
    "X@GRAD",
)
formula("sigmoid", "sigmoid({X})")
formula("sigmoid_grad", "sigmoid_grad({Out_GRAD}, {Out})", "X@GRAD")
formula("logsigmoid", "-softplus(-{X})")
formula("logsigmoid_grad", "{Out_GRAD} * softplus_slope(-{X})", "X@GRAD")
formula("tanh", "tanh({X})")
formula("tanh_grad", "tanh_grad({Out_GRAD}, {Out})", "X@GRAD")
formula("softplus", "softplus({X})")
formula("softplus_grad", "{Out_GRAD} * softplus_slope({X})", "X@GRAD")
formula("softsign", "{X} / (1 + np.abs({X}))")
formula("softsign_grad", "{Out_GRAD} * (1 / np.square(1 + np.abs({X})))", "X@GRAD")


_ROOT_HALF = 0.7071067811865476
_DENSITY_AT_0 = 0.3989422804014327
"""The density of the standard normal distribution at 0: 1 / sqrt(2 pi)."""
_CUBE = 0.044715
"""The constant of the tanh approximation: gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""


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


@kernel("softmax", new=True, reuses=True)
def _softmax(op: Op) -> Run:
    axis, over = int_attr(op, "axis", -1), OVER in op.attrs

    def run(X: Array) -> Array:
        in_place = over and X.flags.writeable
        if axis in (-1, X.ndim - 1) and same_everywhere():
            out = X if in_place else np.empty(X.shape, X.dtype)
            if loops.softmax(X, out, LEAST_LOGIT):
                return out
        return shares_of_exp(below_largest(X, axis, in_place), axis)[0]

    return run


@plain_kernel("softmax_grad", "X@GRAD", lod="none")
def _softmax_grad(Out: Array, Out_GRAD: Array, *, axis: int = -1) -> Array:
    if axis in (-1, Out.ndim - 1):
        result = np.empty_like(Out)
        if same_everywhere() and loops.softmax_grad(Out, Out_GRAD, result):
            return result
    result = Out_GRAD - sum_of_row(Out_GRAD * Out, axis)
    result *= Out
    return result


def _selu_limit(op: Op) -> float:
    """The value scale * alpha, rounded to float32 as in Fluid."""
    return float(np.float32(real(op, "scale")) * np.float32(real(op, "alpha")))


formula("acos", "np.arccos({X})")
formula("acos_grad", "-{Out_GRAD} / np.sqrt(1 - {X} * {X})", "X@GRAD")
formula("asin", "np.arcsin({X})")
formula("asin_grad", "{Out_GRAD} / np.sqrt(1 - {X} * {X})", "X@GRAD")
formula("atan", "np.arctan({X})")
formula("atan_grad", "{Out_GRAD} / (1 + {X} * {X})", "X@GRAD")
formula("log1p", "np.log1p({X})")
formula("log1p_grad", "{Out_GRAD} / (1 + {X})", "X@GRAD")
formula("brelu", "np.minimum(np.maximum({X}, $t_min), $t_max)")
formula("brelu_grad", "{Out_GRAD} * (({X} > $t_min) & ({X} < $t_max))", "X@GRAD")
formula("relu6", "np.minimum(np.maximum({X}, 0), $threshold)")
formula("relu6_grad", "{Out_GRAD} * (({Out} > 0) & ({Out} < $threshold))", "X@GRAD")
formula("elu", "np.maximum({X}, 0) + np.minimum($alpha * np.expm1({X}), 0)")
formula("elu_grad", "{Out_GRAD} * np.where({X} > 0, 1, $alpha * np.exp(np.minimum({X}, 0)))", "X@GRAD")
formula("selu", "$scale * np.where({X} > 0, {X}, $alpha * np.expm1(np.minimum({X}, 0)))")
formula(
    "selu_grad",
    lambda op: f"{{Out_GRAD}} * np.where({{Out}} > 0, $scale, {{Out}} + {_selu_limit(op)!r})",
    "X@GRAD",
    lod="none",
)
formula("hard_sigmoid", "np.minimum(np.maximum({X} * $slope + $offset, 0), 1)")
formula("hard_sigmoid_grad", "{Out_GRAD} * (({Out} > 0) & ({Out} < 1)) * $slope", "X@GRAD")
formula("hard_swish", "{X} * np.minimum(np.maximum({X} + $offset, 0), $threshold) / $scale")
formula(
    "hard_swish_grad",
    "{Out_GRAD} * np.where({X} + $offset < $threshold, "
    "({X} + $offset > 0) * (2 * {X} + $offset) / $scale, $threshold / $scale)",
    "X@GRAD",
)
formula("hard_shrink", "{X} * (np.abs({X}) > $threshold)")
formula("hard_shrink_grad", "{Out_GRAD} * (np.abs({X}) > $threshold)", "X@GRAD")
formula("softshrink", "np.sign({X}) * np.maximum(np.abs({X}) - $lambda, 0)")
formula("softshrink_grad", "{Out_GRAD} * (np.abs({X}) > $lambda)", "X@GRAD")
formula("soft_relu", "log(1 + exp(np.clip({X}, -$threshold, $threshold)))")
formula(
    "soft_relu_grad",
    "{Out_GRAD} * (1 - exp(-{Out})) * (({Out} > -$threshold) & ({Out} < $threshold))",
    "X@GRAD",
)
formula("stanh", "$scale_b * tanh($scale_a * {X})")
formula("stanh_grad", "{Out_GRAD} * $scale_a * $scale_b * (1 - np.square(tanh($scale_a * {X})))", "X@GRAD")
formula("swish", "{X} / (1 + exp(-$beta * {X}))")
formula("tanh_shrink", "{X} - tanh({X})")
formula("tanh_shrink_grad", "{Out_GRAD} * np.square(tanh({X}))", "X@GRAD")
formula("thresholded_relu", "{X} * ({X} > $threshold)")
formula("thresholded_relu_grad", "{Out_GRAD} * ({X} > $threshold)", "X@GRAD")


@plain_kernel("swish_grad", "X@GRAD")
def _swish_grad(X: Array, Out_GRAD: Array, *, beta: float) -> Array:
    share = 1 / (1 + exp(-beta * X))
    scaled = beta * (X * share)
    return Out_GRAD * (scaled + share * (1 - scaled))


@plain_kernel("erf")
def _erf(X: Array) -> Array:
    return erf(X)


formula("erf_grad", "{Out_GRAD} * 1.1283791670955126 * np.exp(-{X} * {X})", "X@GRAD")


def _softplus(x: Array, threshold: float) -> Array:
    """log(1 + exp(x)); x itself above the threshold, and exp(x) below its negative."""
    near = np.log1p(np.exp(np.minimum(x, threshold)))
    return np.where(x > threshold, x, np.where(x < -threshold, np.exp(np.minimum(x, threshold)), near))


@plain_kernel("mish")
def _mish(X: Array, *, threshold: float) -> Array:
    return X * np.tanh(_softplus(X, threshold))


@plain_kernel("mish_grad", "X@GRAD", lod="none")
def _mish_grad(X: Array, Out_GRAD: Array, *, threshold: float) -> Array:
    soft = _softplus(X, threshold)
    bent = np.tanh(soft)
    return Out_GRAD * (bent - X * (1 - np.square(bent)) * np.expm1(-soft))


# Kernels. Functions of one tensor, element by element, and clipping.

formula("abs", "np.abs({X})")
formula("abs_grad", "{Out_GRAD} * np.sign({X})", "X@GRAD")
formula("ceil", "np.ceil({X})")
formula("floor", "np.floor({X})")
for _flat in ("ceil", "floor", "round"):
    formula(f"{_flat}_grad", "np.zeros_like({Out_GRAD})", "X@GRAD")
formula("cos", "cos({X})")
formula("cos_grad", "-{Out_GRAD} * sin({X})", "X@GRAD")
formula("sin", "sin({X})")
formula("sin_grad", "{Out_GRAD} * cos({X})", "X@GRAD")
formula("exp", "exp({X})")
formula("exp_grad", "{Out_GRAD} * {Out}", "X@GRAD")
formula("log", "log({X})")
formula("log_grad", "{Out_GRAD} * (1 / {X})", "X@GRAD")
formula("sqrt", "root({X})")
formula("sqrt_grad", "0.5 * {Out_GRAD} / {Out}", "X@GRAD")
formula("rsqrt", "1 / np.sqrt({X})")
formula("rsqrt_grad", "-0.5 * {Out_GRAD} * {Out} * {Out} * {Out}", "X@GRAD")
formula("square", "np.square({X})")
formula("square_grad", "2 * {Out_GRAD} * {X}", "X@GRAD")
formula("reciprocal", "1 / {X}")
formula("reciprocal_grad", "-{Out_GRAD} * {Out} * {Out}", "X@GRAD")
formula(
    "sign", "np.subtract(np.greater({X}, 0).view('int8'), np.less({X}, 0).view('int8')).astype({X}.dtype)", new=True
)


@plain_kernel("round")
def _round(X: Array) -> Array:
    whole = np.trunc(X)
    return np.where(np.abs(X - whole) == 0.5, whole + np.sign(X), np.rint(X))


@plain_kernel("pow")
def _pow(X: Array, FactorTensor: Array | None, *, factor: float) -> Array:
    return power(X, X.dtype.type(factor if FactorTensor is None else first_number(FactorTensor)))


@plain_kernel("pow_grad", "X@GRAD")
def _pow_grad(X: Array, FactorTensor: Array | None, Out_GRAD: Array, *, factor: float) -> Array:
    exponent = factor if FactorTensor is None else first_number(FactorTensor)
    return Out_GRAD * X.dtype.type(exponent) * power(X, X.dtype.type(exponent - 1))


def _bounds(op: Op, low: Array | None, high: Array | None) -> tuple[float, float]:
    # As in Fluid, bounds from tensors are rounded to float32 like the attributes, for every element type
    bounds = tuple(
        real(op, name) if given is None else float(np.float32(first_number(given)))
        for name, given in (("min", low), ("max", high))
    )
    if bounds[0] > bounds[1]:
        raise ValueError(f"the lower bound {bounds[0]!r} is above the upper bound {bounds[1]!r}")
    return bounds[0], bounds[1]


@plain_kernel("clip")
def _clip(X: Array | SelectedRows, Min: Array | None, Max: Array | None, *, op: Op) -> Array | SelectedRows:
    low, high = _bounds(op, Min, Max)
    if isinstance(X, SelectedRows):
        merged = merge_rows([X])
        return merged._replace(value=np.minimum(np.maximum(merged.value, low), high))
    return np.minimum(np.maximum(X, low), high)


@plain_kernel("clip_grad", "X@GRAD", lod="none")
def _clip_grad(X: Array, Min: Array | None, Max: Array | None, Out_GRAD: Array, *, op: Op) -> Array:
    low, high = _bounds(op, Min, Max)
    return Out_GRAD * ((low < X) & (high > X))


def _limit_norm(x: Array, max_norm: float) -> Array:
    """A copy of x, scaled down to the norm max_norm if its norm is larger."""
    number = number_of(x)
    own = number(norm(x))
    return x * x.dtype.type(number(max_norm) / own) if own > max_norm else x.copy()


@plain_kernel("clip_by_norm")
def _clip_by_norm(X: Array | SelectedRows, *, max_norm: float) -> Array | SelectedRows:
    if isinstance(X, SelectedRows):
        merged = merge_rows([X])
        return merged._replace(value=_limit_norm(merged.value, max_norm))
    return _limit_norm(X, max_norm)


@kernel("dgc_clip_by_norm")
def _dgc_clip_by_norm(op: Op) -> Run:
    max_norm, begin = real(op, "max_norm"), real(op, "rampup_begin_step")
    same = in_place(op, "X", "Out")

    def run(current_step: Array, X: Array) -> Array | None:
        if begin < 0 or first_number(current_step) < begin:
            return None if same else X.copy()
        return _limit_norm(X, max_norm)

    return run
