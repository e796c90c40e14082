"""Kernels. Normalisation of batches and layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real, text
from pstranspile.ops.images.norm import channel_axis
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
from pstranspile.runtime.kernels.kernel import ExecutionContext, Run, has_output, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import as_matrix, first_number
from pstranspile.runtime.values import Array


def _channels(op: Op) -> Callable[[Array], tuple[tuple[int, ...], tuple[int, ...]]]:
    """A function from X to (the dims to reduce, the dims with which a value for each channel broadcasts to X)."""
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
    """Whether each channel has a single element, so that there is nothing to normalise; Fluid then copies X."""
    return x.size == channels


BatchNormOutputs: TypeAlias = "tuple[Array | None, Array | None, Array | None, Array | None, Array | None]"


@kernel("batch_norm", "Y MeanOut VarianceOut SavedMean SavedVariance", lod="Y")
def _batch_norm_values(op: Op) -> Run:
    channels, epsilon = _channels(op), real(op, "epsilon")
    of_sample = bool(op.attrs.get("sample_variance"))

    def normalise_channels(x: Array, scale: Array, bias: Array, mean: Array, inverse: Array) -> Array:
        over, dims = channels(x)
        out = np.empty_like(x)
        if 1 not in over and loops.scale_channels(x, inverse * scale, bias - mean * inverse * scale, out):
            return out
        return x * (inverse * scale).reshape(dims) + (bias - mean * inverse * scale).reshape(dims)

    def run_inference(X: Array, Scale: Array, Bias: Array, Mean: Array, Variance: Array) -> BatchNormOutputs:
        inverse = 1 / root(Variance + epsilon)
        return normalise_channels(X, Scale, Bias, Mean, inverse), None, None, Mean.copy(), inverse

    def run_training(
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
        kept = float(number_of(X)(real(op, "momentum"))) if MomentumTensor is None else first_number(MomentumTensor)
        y = normalise_channels(X, Scale, Bias, mean, inverse)
        spread = variance * (count / max(count - 1, 1)) if of_sample else variance
        return y, Mean * kept + mean * (1 - kept), Variance * kept + spread * (1 - kept), mean, inverse

    return run_inference if _fixed_statistics(op) else run_training


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
    """Kernel of inplace_abn_grad. It writes the values that X had to Y, because gradient ops of earlier ops may read
    them.
    """
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
    wants_x = has_output(op, "X@GRAD")

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


# Kernels. Normalisation of groups of channels, of instances and across channels, and spectral norm.


def _broadcastable(values: Array, rank: int, axis: int) -> Array:
    """A value for each channel with dims that broadcast to X."""
    return values.reshape([values.size if dim == axis else 1 for dim in range(rank)])


def _split_groups(op: Op, x: Array) -> Array:
    """X as [images, groups, channels of a group, elements]. Raises ValueError unless groups divide the channels."""
    groups, axis = int_attr(op, "groups"), channel_axis(op, x.ndim)
    if groups < 1 or x.shape[axis] % groups:
        raise ValueError(f"{x.shape[axis]} channels can't be cut into {groups} groups")
    return np.moveaxis(x, axis, 1).reshape(len(x), groups, x.shape[axis] // groups, -1)


def _merge_groups(op: Op, x: Array, like: Array) -> Array:
    axis = channel_axis(op, like.ndim)
    dims = np.moveaxis(like, axis, 1).shape
    return np.ascontiguousarray(np.moveaxis(x.reshape(dims), 1, axis))


def _of_groups(values: Array, like: Array) -> Array:
    """A value for each channel with dims that broadcast to the result of `_split_groups`."""
    return values.reshape(like.shape[1], like.shape[2], 1)


@plain_kernel("group_norm", "Y Mean Variance", lod="Y")
def _group_norm_values(
    X: Array, Scale: Array | None, Bias: Array | None, *, op: Op, epsilon: float
) -> tuple[Array, Array, Array]:
    x = _split_groups(op, X)
    mean = np.mean(x, axis=(2, 3), keepdims=True)
    y = x - mean
    variance = np.mean(np.square(y), axis=(2, 3), keepdims=True)
    y /= np.sqrt(variance + epsilon)
    if Scale is not None:
        y *= _of_groups(Scale, x)
    if Bias is not None:
        y += _of_groups(Bias, x)
    return _merge_groups(op, y, X), mean[:, :, 0, 0], variance[:, :, 0, 0]


@plain_kernel("group_norm_grad", "X@GRAD Scale@GRAD Bias@GRAD", lod="none")
def _group_norm_grad(
    Scale: Array | None, Bias: Array | None, Y: Array, Variance: Array, Y_GRAD: Array, *, op: Op, epsilon: float
) -> tuple[Array, Array | None, Array | None]:
    normal, gradient = _split_groups(op, Y), _split_groups(op, Y_GRAD)
    inner = gradient
    if Bias is not None:
        normal = normal - _of_groups(Bias, normal)
    if Scale is not None:
        scale = _of_groups(Scale, normal)
        inner = gradient * scale
        # Y does not determine X where Scale is 0
        normal = np.where(scale == 0, 0, normal / np.where(scale == 0, 1, scale)).astype(Y.dtype, copy=False)
    inverse = 1 / np.sqrt(Variance[:, :, None, None] + epsilon)
    shared = np.mean(inner, axis=(2, 3), keepdims=True)
    shared = shared + normal * np.mean(inner * normal, axis=(2, 3), keepdims=True)
    scale_grad = None if Scale is None else np.add.reduce(gradient * normal, axis=(0, 3)).reshape(-1)
    bias_grad = None if Bias is None else np.add.reduce(gradient, axis=(0, 3)).reshape(-1)
    return _merge_groups(op, (inner - shared) * inverse, Y), scale_grad, bias_grad


@plain_kernel("instance_norm", "Y SavedMean SavedVariance", lod="Y")
def _instance_norm_values(X: Array, Scale: Array, Bias: Array, *, epsilon: float) -> tuple[Array, Array, Array]:
    x = X.reshape(*X.shape[:2], -1)
    mean = np.mean(x, axis=2, keepdims=True)
    y = x - mean
    inverse = 1 / np.sqrt(np.mean(np.square(y), axis=2, keepdims=True) + epsilon)
    y *= inverse
    y = y * Scale.reshape(-1, 1) + Bias.reshape(-1, 1)
    return y.reshape(X.shape), mean.reshape(-1), inverse.reshape(-1)


@plain_kernel("instance_norm_grad", "X@GRAD Scale@GRAD Bias@GRAD", lod="none")
def _instance_norm_grad(
    X: Array, Scale: Array, SavedMean: Array, SavedVariance: Array, Y_GRAD: Array
) -> tuple[Array, Array, Array]:
    x, gradient = (value.reshape(*X.shape[:2], -1) for value in (X, Y_GRAD))
    inverse = SavedVariance.reshape(*X.shape[:2], 1)
    normal = (x - SavedMean.reshape(inverse.shape)) * inverse
    of_normal, of_bias = gradient * normal, gradient
    shared = np.mean(of_bias, axis=2, keepdims=True) + normal * np.mean(of_normal, axis=2, keepdims=True)
    x_grad = (gradient - shared) * (inverse * Scale.reshape(-1, 1))
    return x_grad.reshape(X.shape), np.add.reduce(of_normal, axis=(0, 2)), np.add.reduce(of_bias, axis=(0, 2))


@plain_kernel("affine_channel")
def _affine_channel_values(X: Array, Scale: Array, Bias: Array, *, op: Op) -> Array:
    axis = channel_axis(op, X.ndim)
    return X * _broadcastable(Scale, X.ndim, axis) + _broadcastable(Bias, X.ndim, axis)


@plain_kernel("affine_channel_grad", "X@GRAD Scale@GRAD Bias@GRAD", lod="none")
def _affine_channel_grad(X: Array, Scale: Array, Out_GRAD: Array, *, op: Op) -> tuple[Array, Array, Array]:
    axis = channel_axis(op, X.ndim)
    over = tuple(dim for dim in range(X.ndim) if dim != axis)
    scale_grad, bias_grad = np.add.reduce(Out_GRAD * X, axis=over), np.add.reduce(Out_GRAD, axis=over)
    return Out_GRAD * _broadcastable(Scale, X.ndim, axis), scale_grad, bias_grad


def _over_neighbours(op: Op, x: Array, *, after: bool = False) -> Array:
    """For each channel the sum over the `n` channels around it; `after`: over the channels that have it among their
    `n`.
    """
    n, axis = int_attr(op, "n"), channel_axis(op, x.ndim)
    if n < 1:
        raise ValueError(f"n is {n}, not positive")
    before = (n - 1) // 2
    around = (n - 1 - before, before) if after else (before, n - 1 - before)
    channels = x.shape[axis]
    padded = np.pad(x, [around if dim == axis else (0, 0) for dim in range(x.ndim)])
    parts = np.moveaxis(padded, axis, 0)
    total = sum(parts[at : at + channels] for at in range(n))
    return np.moveaxis(np.asarray(total), 0, axis)


@plain_kernel("lrn", "Out MidOut")
def _lrn_values(X: Array, *, op: Op, k: float, alpha: float, beta: float) -> tuple[Array, Array]:
    middle = np.ascontiguousarray(k + alpha * _over_neighbours(op, np.square(X)))
    return X * np.power(middle, -beta), middle


@plain_kernel("lrn_grad", "X@GRAD", lod="none")
def _lrn_grad(X: Array, Out: Array, MidOut: Array, Out_GRAD: Array, *, op: Op, alpha: float, beta: float) -> Array:
    of_middle = _over_neighbours(op, Out_GRAD * Out / MidOut, after=True)
    return Out_GRAD * np.power(MidOut, -beta) - (2 * alpha * beta) * X * of_middle


_Matrix: TypeAlias = "tuple[Array, Array, Array, Array]"


def _as_matrix(op: Op, weight: Array, u: Array, v: Array) -> _Matrix:
    """(Weight as a matrix with the rows along `dim`, its singular vectors after the power iterations, its largest
    singular value).
    """
    dim, steps, eps = int_attr(op, "dim"), int_attr(op, "power_iters"), real(op, "eps")
    if not 0 <= dim < weight.ndim:
        raise ValueError(f"dim is {dim}, but Weight has {weight.ndim} dims")
    matrix = np.moveaxis(weight, dim, 0).reshape(weight.shape[dim], -1)
    if (u.size, v.size) != matrix.shape:
        rows, columns = matrix.shape
        raise ValueError(f"Weight is {rows} times {columns}, U has {u.size} elements, V has {v.size}")
    u, v = u.reshape(-1), v.reshape(-1)
    for _ in range(steps):
        before = u
        v = matrix.T @ u
        v = v / (np.sqrt(np.add.reduce(np.square(v))) + eps)
        u = matrix @ v
        u = u / (np.sqrt(np.add.reduce(np.square(u))) + eps)
        if u.tobytes() == before.tobytes():  # all further turns would give the same
            break
    return matrix, u, v, u @ matrix @ v


@plain_kernel("spectral_norm")
def _spectral_norm_values(Weight: Array, U: Array, V: Array, *, op: Op) -> Array:
    return Weight / _as_matrix(op, Weight, U, V)[3]


@plain_kernel("spectral_norm_grad", "Weight@GRAD", lod="none")
def _spectral_norm_grad(Weight: Array, U: Array, V: Array, Out_GRAD: Array, *, op: Op, dim: int) -> Array:
    """Gradient of spectral_norm. The singular vectors are treated as constants."""
    matrix, u, v, sigma = _as_matrix(op, Weight, U, V)
    gradient = np.moveaxis(Out_GRAD, dim, 0).reshape(matrix.shape)
    of_sigma = np.add.reduce(gradient * matrix, axis=None) / sigma
    result = (gradient - of_sigma * np.outer(u, v)) / sigma
    dims = (Weight.shape[dim], *Weight.shape[:dim], *Weight.shape[dim + 1 :])
    return np.ascontiguousarray(np.moveaxis(result.reshape(dims), 0, dim))
