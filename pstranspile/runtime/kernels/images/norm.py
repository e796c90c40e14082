"""Kernels. Normalisation of batches and layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real, text
from pstranspile.runtime.arithmetic import (
    inverse_root,
    loops,
    norm_grad_mean,
    norm_mean,
    number_of,
    over_root,
    root,
    sum_of_channels,
)
from pstranspile.runtime.kernels.context import ExecutionContext
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel, wanted
from pstranspile.runtime.kernels.numeric import as_matrix, first
from pstranspile.runtime.values import Array


def _channels(op: Op) -> Callable[[Array], tuple[tuple[int, ...], tuple[int, ...]]]:
    """From X to the dims to reduce, and the dims with which a value for each channel broadcasts to X."""
    last = text(op, "data_layout") == "NHWC"

    def channels(x: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
        at = x.ndim - 1 if last else 1
        over = tuple([dim for dim in range(x.ndim) if dim != at])
        return over, tuple([x.shape[at] if dim == at else 1 for dim in range(x.ndim)])

    return channels


def _fixed_statistics(op: Op) -> bool:
    """Whether the op uses the running statistics and does not update them."""
    return flag(op, "use_global_stats") or (flag(op, "is_test") and not flag(op, "trainable_statistics"))


def _is_single(x: Array, channels: int) -> bool:
    """Whether each channel has a single element. Fluid then copies X, as there is nothing to normalise."""
    return x.size == channels


BatchNormOutputs: TypeAlias = "tuple[Array | None, Array | None, Array | None, Array | None, Array | None]"


@kernel("batch_norm", "Y MeanOut VarianceOut SavedMean SavedVariance", lod="Y")
def _batch_norm_values(op: Op) -> Run:
    channels, epsilon = _channels(op), real(op, "epsilon")

    def normalised(x: Array, scale: Array, bias: Array, mean: Array, inverse: Array) -> Array:
        over, dims = channels(x)
        out = np.empty_like(x)
        if 1 not in over and loops.scale_channels(x, inverse * scale, bias - mean * inverse * scale, out):
            return out
        return x * (inverse * scale).reshape(dims) + (bias - mean * inverse * scale).reshape(dims)

    def fixed(X: Array, Scale: Array, Bias: Array, Mean: Array, Variance: Array) -> BatchNormOutputs:
        inverse = 1 / root(Variance + epsilon)
        return normalised(X, Scale, Bias, Mean, inverse), None, None, Mean.copy(), inverse

    def trained(
        X: Array, Scale: Array, Bias: Array, Mean: Array, Variance: Array, MomentumTensor: Array | None
    ) -> BatchNormOutputs:
        if _is_single(X, Scale.size):
            return X.copy(), None, None, np.zeros_like(Mean), np.zeros_like(Variance)
        over, dims = channels(X)
        count = X.dtype.type(X.size // Scale.size)
        mean = sum_of_channels(X, over, True) / count
        squares = np.empty_like(X)
        if 1 in over or not loops.squares(X, mean, squares):
            squares = np.square(X - mean.reshape(dims))
        variance = sum_of_channels(squares, over, False) / count
        inverse = inverse_root(variance + epsilon)
        kept = float(number_of(X)(real(op, "momentum"))) if MomentumTensor is None else first(MomentumTensor)
        y = normalised(X, Scale, Bias, mean, inverse)
        return y, Mean * kept + mean * (1 - kept), Variance * kept + variance * (1 - kept), mean, inverse

    return fixed if _fixed_statistics(op) else trained


@kernel("batch_norm_grad", "X@GRAD Scale@GRAD Bias@GRAD", lod="none")
def _batch_norm_grad(op: Op) -> Run:
    channels, epsilon, fixed = _channels(op), real(op, "epsilon"), _fixed_statistics(op)

    def run(
        X: Array,
        Scale: Array,
        SavedMean: Array,
        SavedVariance: Array,
        Mean: Array | None,
        Variance: Array | None,
        Y_GRAD: Array,
    ) -> tuple[Array, Array, Array]:
        if not fixed and _is_single(X, Scale.size):
            return Y_GRAD.copy(), np.zeros_like(Scale), np.zeros_like(Scale)
        mean, inverse = SavedMean, SavedVariance
        if fixed and Mean is not None and Variance is not None:
            mean, inverse = Mean, 1 / root(Variance + epsilon)
        over, dims = channels(X)
        bias_grad = sum_of_channels(Y_GRAD, over, True)
        products = np.empty_like(X)
        if 1 in over or not loops.norm_products(X, Y_GRAD, mean, inverse, products):
            products = (X - mean.reshape(dims)) * inverse.reshape(dims) * Y_GRAD
        scale_grad = sum_of_channels(products, over, False)
        factor = Scale * inverse
        if fixed:
            return Y_GRAD * factor.reshape(dims), scale_grad, bias_grad
        images, elements = len(X), X.size // max(len(X) * Scale.size, 1)
        factor /= X.dtype.type(images * elements)
        gradient = products
        if 1 in over or not loops.norm_grad(X, Y_GRAD, mean, inverse, bias_grad, scale_grad, factor, gradient):
            gradient = Y_GRAD * images * elements - bias_grad.reshape(dims)
            gradient -= (X - mean.reshape(dims)) * scale_grad.reshape(dims) * inverse.reshape(dims)
            gradient *= factor.reshape(dims)
        return gradient, scale_grad, bias_grad

    return run


def _activation(op: Op) -> str:
    name = text(op, "activation")
    if name not in ("", "identity", "leaky_relu", "elu"):
        raise ValueError(f"activation is {name}, it must be identity, leaky_relu or elu")
    return name


@kernel("inplace_abn", "Y MeanOut VarianceOut SavedMean SavedVariance", lod="Y")
def _inplace_abn_values(op: Op) -> Run:
    normalise, name, alpha = _batch_norm_values(op), _activation(op), real(op, "alpha")
    takes = 5 if _fixed_statistics(op) else 6

    def run(
        X: Array, Scale: Array, Bias: Array, Mean: Array, Variance: Array, MomentumTensor: Array | None
    ) -> BatchNormOutputs:
        y, *others = normalise(*(X, Scale, Bias, Mean, Variance, MomentumTensor)[:takes])
        if name == "leaky_relu":
            y = np.maximum(y, y * alpha)
        elif name == "elu":
            y = np.where(y > 0, y, alpha * np.expm1(np.minimum(y, 0)))
        return y.astype(X.dtype, copy=False), *others

    return run


@kernel("inplace_abn_grad", "X@GRAD Scale@GRAD Bias@GRAD", lod="none")
def _inplace_abn_grad(op: Op) -> Run:
    """Gives Y the values that X had, which ops before this one may read."""
    slopes, name, alpha = _batch_norm_grad(op), _activation(op), real(op, "alpha")
    channels, epsilon, fixed = _channels(op), real(op, "epsilon"), _fixed_statistics(op)

    def run(
        Y: Array,
        Y_GRAD: Array,
        Scale: Array,
        Bias: Array,
        SavedMean: Array,
        SavedVariance: Array,
        Mean: Array | None,
        Variance: Array | None,
        context: ExecutionContext,
    ) -> tuple[Array, ...]:
        low, x, gradient = Y < 0, Y, Y_GRAD
        if name == "leaky_relu":
            gradient, x = np.where(low, gradient * alpha, gradient), np.where(low, x / alpha, x)
        elif name == "elu":
            gradient = np.where(low, gradient * (x + alpha), gradient)
            x = np.where(low, np.log(np.where(low, x, 0) / alpha + 1), x)
        mean, inverse = SavedMean, SavedVariance
        if fixed and Mean is not None and Variance is not None:
            mean, inverse = Mean, 1 / root(Variance + epsilon)
        if fixed or not _is_single(x, Scale.size):
            dims = channels(x)[1]
            x = (x - Bias.reshape(dims)) / (Scale * inverse).reshape(dims) + mean.reshape(dims)
        x, gradient = (value.astype(Scale.dtype, copy=False) for value in (x, gradient))
        context.write(op.inputs["Y"][0], x)
        return slopes(x, Scale, SavedMean, SavedVariance, Mean, Variance, gradient)

    return run


@plain_kernel("layer_norm", "Y Mean Variance", lod="Y")
def _layer_norm_values(
    X: Array, Scale: Array | None, Bias: Array | None, *, begin_norm_axis: int = 1, epsilon: float
) -> tuple[Array, Array, Array]:
    x = as_matrix(X, begin_norm_axis)
    mean = norm_mean(x)
    y = x - mean
    variance = norm_mean(np.square(y))
    y /= np.sqrt(variance + epsilon)
    if Scale is not None:
        y *= Scale.reshape(-1)
    if Bias is not None:
        y += Bias.reshape(-1)
    return y.reshape(X.shape), mean.reshape(-1), variance.reshape(-1)


@kernel("layer_norm_grad", "X@GRAD Scale@GRAD Bias@GRAD", lod="none")
def _layer_norm_grad(op: Op) -> Run:
    axis, epsilon = int_attr(op, "begin_norm_axis", 1), real(op, "epsilon")
    wants_x = wanted(op, "X@GRAD")

    def run(
        X: Array, Scale: Array | None, Mean: Array, Variance: Array, Y_GRAD: Array
    ) -> tuple[Array | None, Array, Array]:
        x = as_matrix(X, axis)
        gradient = Y_GRAD.reshape(x.shape)
        squared = Variance.reshape(-1, 1) + epsilon
        normal = over_root(x - Mean.reshape(-1, 1), squared).astype(x.dtype, copy=False)
        scale_grad, bias_grad = np.add.reduce(gradient * normal, axis=0), np.add.reduce(gradient, axis=0)
        if not wants_x:
            return None, scale_grad, bias_grad
        inner = gradient if Scale is None else gradient * Scale.reshape(-1)
        centred = inner - norm_grad_mean(inner) - normal * norm_grad_mean(inner * normal)
        x_grad = over_root(centred, squared).astype(x.dtype, copy=False)
        return x_grad.reshape(X.shape), scale_grad, bias_grad

    return run
