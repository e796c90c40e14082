"""Elementwise activations in addition to those of `nn`, and `prelu`, which learns its slope."""

from __future__ import annotations

from pstranspile.frontends.layers.basic import layer, unary, unary_layer
from pstranspile.frontends.layers.draft import Value
from pstranspile.frontends.layers.initializers import Constant
from pstranspile.frontends.layers.nn import name_layer
from pstranspile.frontends.layers.parameters import Attr, create_parameter

swish = unary_layer("swish", "x * sigmoid(x). (Fluid 1.8.5 computes with a `beta` of 1 whatever its layer is given.)")
logsigmoid = unary_layer("logsigmoid", "log(sigmoid(x)).")
softplus = unary_layer("softplus", "log(1 + exp(x)).")
softsign = unary_layer("softsign", "x / (1 + |x|).")
tanh_shrink = unary_layer("tanh_shrink", "x - tanh(x).")
atan = unary_layer("atan", "The angle whose tangent is x.")
rsqrt = unary_layer("rsqrt", "1 / sqrt(x).")
reciprocal = unary_layer("reciprocal", "1 / x.")
round_ = unary_layer("round", "The nearest integer (Fluid's `round`).")
sign = unary_layer("sign", "-1, 0 or 1.")
erf = unary_layer("erf", "The error function.")


def leaky_relu(x: Value, *, alpha: float = 0.02) -> Value:
    """x where it is positive, else alpha * x."""
    return unary("leaky_relu", x, alpha=alpha)


def elu(x: Value, *, alpha: float = 1.0) -> Value:
    """x where it is positive, else alpha * (exp(x) - 1)."""
    return unary("elu", x, alpha=alpha)


def selu(x: Value, *, scale: float | None = None, alpha: float | None = None) -> Value:
    """scale * elu(x); None takes the constants that keep mean and variance."""
    given = (("scale", scale), ("alpha", alpha))
    return unary("selu", x, **{name: value for name, value in given if value is not None})


def relu6(x: Value, *, threshold: float = 6.0) -> Value:
    """x limited to [0, threshold]."""
    return unary("relu6", x, threshold=threshold)


def brelu(x: Value, *, t_min: float = 0.0, t_max: float = 24.0) -> Value:
    """x limited to [t_min, t_max]."""
    return unary("brelu", x, t_min=t_min, t_max=t_max)


def soft_relu(x: Value, *, threshold: float = 40.0) -> Value:
    """log(1 + exp(x)), x limited to +-threshold."""
    return unary("soft_relu", x, threshold=threshold)


def thresholded_relu(x: Value, *, threshold: float = 1.0) -> Value:
    """x where it is larger than the threshold, else 0."""
    return unary("thresholded_relu", x, threshold=threshold)


def hard_swish(x: Value, *, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0) -> Value:
    """x * min(max(x + offset, 0), threshold) / scale."""
    return unary("hard_swish", x, threshold=threshold, scale=scale, offset=offset)


def hard_sigmoid(x: Value, *, slope: float = 0.2, offset: float = 0.5) -> Value:
    """slope * x + offset limited to [0, 1]."""
    return unary("hard_sigmoid", x, slope=slope, offset=offset)


def softshrink(x: Value, *, alpha: float = 0.5) -> Value:
    """x drawn toward 0 by alpha, 0 within it."""
    return unary("softshrink", x, **{"lambda": alpha})


def hard_shrink(x: Value, *, threshold: float = 0.5) -> Value:
    """x where it is further from 0 than the threshold, else 0."""
    return unary("hard_shrink", x, threshold=threshold)


def stanh(x: Value, *, scale_a: float = 0.67, scale_b: float = 1.7159) -> Value:
    """scale_b * tanh(scale_a * x)."""
    return unary("stanh", x, scale_a=scale_a, scale_b=scale_b)


def power(x: Value, factor: float | Value = 1.0) -> Value:
    """x to the power of a number, or of a value f32[1] (Fluid's `pow`)."""
    if isinstance(factor, Value):
        return layer("pow", {"X": x, "FactorTensor": factor.stopped()}, x.dtype)
    return unary("pow", x, factor=factor)


def prelu(x: Value, mode: str, *, param_attr: Attr = None, name: str | None = None) -> Value:
    """x where it is positive, else a learned slope times x: one for `all`, each `channel`, or each `element`."""
    shapes = {"all": (1,), "channel": (1, *x.shape[1:2], 1, 1), "element": (1, *x.shape[1:])}
    if mode not in shapes:
        raise ValueError(f"the mode of prelu is {mode!r}, it must be 'all', 'channel' or 'element'")
    draft = x.draft
    minted = name_layer(draft, "prelu", name)
    slope = create_parameter(draft, minted, param_attr, shapes[mode], "f32", default=Constant(0.25))
    return layer("prelu", {"X": x, "Alpha": slope}, x.dtype, {"mode": mode}, name=minted)
