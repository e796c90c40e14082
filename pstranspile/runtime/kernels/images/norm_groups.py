"""Kernels. Normalisation of groups of channels, of instances and across channels, and spectral norm."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, real
from pstranspile.ops.images.norm_groups import channel_axis
from pstranspile.runtime.kernels.kernel import plain_kernel
from pstranspile.runtime.values import Array


def _broadcastable(values: Array, rank: int, axis: int) -> Array:
    """A value for each channel with dims that broadcast to X."""
    return values.reshape([values.size if dim == axis else 1 for dim in range(rank)])


def _grouped(op: Op, x: Array) -> Array:
    """X as [images, groups, channels of a group, elements]. Raises ValueError unless groups divide the channels."""
    groups, axis = int_attr(op, "groups"), channel_axis(op, x.ndim)
    if groups < 1 or x.shape[axis] % groups:
        raise ValueError(f"{x.shape[axis]} channels can't be cut into {groups} groups")
    return np.moveaxis(x, axis, 1).reshape(len(x), groups, x.shape[axis] // groups, -1)


def _ungrouped(op: Op, x: Array, like: Array) -> Array:
    axis = channel_axis(op, like.ndim)
    dims = np.moveaxis(like, axis, 1).shape
    return np.ascontiguousarray(np.moveaxis(x.reshape(dims), 1, axis))


def _of_groups(values: Array, like: Array) -> Array:
    """A value for each channel with dims that broadcast to the result of `_grouped`."""
    return values.reshape(like.shape[1], like.shape[2], 1)


@plain_kernel("group_norm", "Y Mean Variance", lod="Y")
def _group_norm_values(
    X: Array, Scale: Array | None, Bias: Array | None, *, op: Op, epsilon: float
) -> tuple[Array, Array, Array]:
    x = _grouped(op, X)
    mean = np.mean(x, axis=(2, 3), keepdims=True)
    y = x - mean
    variance = np.mean(np.square(y), axis=(2, 3), keepdims=True)
    y /= np.sqrt(variance + epsilon)
    if Scale is not None:
        y *= _of_groups(Scale, x)
    if Bias is not None:
        y += _of_groups(Bias, x)
    return _ungrouped(op, y, X), mean[:, :, 0, 0], variance[:, :, 0, 0]


@plain_kernel("group_norm_grad", "X@GRAD Scale@GRAD Bias@GRAD", lod="none")
def _group_norm_grad(
    Scale: Array | None, Bias: Array | None, Y: Array, Variance: Array, Y_GRAD: Array, *, op: Op, epsilon: float
) -> tuple[Array, Array | None, Array | None]:
    normal, gradient = _grouped(op, Y), _grouped(op, Y_GRAD)
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
    return _ungrouped(op, (inner - shared) * inverse, Y), scale_grad, bias_grad


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
    """The sums over the `n` channels around each channel; `after`: over the channels whose neighbour it is."""
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
    """Weight as a matrix with the rows along `dim`, its singular vectors after iterating, and the singular value."""
    dim, steps, eps = int_attr(op, "dim"), int_attr(op, "power_iters"), real(op, "eps")
    if not 0 <= dim < weight.ndim:
        raise ValueError(f"dim is {dim}, but Weight has {weight.ndim} dims")
    matrix = np.moveaxis(weight, dim, 0).reshape(weight.shape[dim], -1)
    if (u.size, v.size) != matrix.shape:
        rows, columns = matrix.shape
        raise ValueError(f"Weight is {rows} times {columns}, U has {u.size} elements, V has {v.size}")
    u, v = u.reshape(-1), v.reshape(-1)
    for _ in range(steps):
        v = matrix.T @ u
        v = v / (np.sqrt(np.add.reduce(np.square(v))) + eps)
        u = matrix @ v
        u = u / (np.sqrt(np.add.reduce(np.square(u))) + eps)
    return matrix, u, v, u @ matrix @ v


@plain_kernel("spectral_norm")
def _spectral_norm_values(Weight: Array, U: Array, V: Array, *, op: Op) -> Array:
    return Weight / _as_matrix(op, Weight, U, V)[3]


@plain_kernel("spectral_norm_grad", "Weight@GRAD", lod="none")
def _spectral_norm_grad(Weight: Array, U: Array, V: Array, Out_GRAD: Array, *, op: Op, dim: int) -> Array:
    """The singular vectors are treated as constants."""
    matrix, u, v, sigma = _as_matrix(op, Weight, U, V)
    gradient = np.moveaxis(Out_GRAD, dim, 0).reshape(matrix.shape)
    of_sigma = np.add.reduce(gradient * matrix, axis=None) / sigma
    result = (gradient - of_sigma * np.outer(u, v)) / sigma
    dims = (Weight.shape[dim], *Weight.shape[:dim], *Weight.shape[dim + 1 :])
    return np.ascontiguousarray(np.moveaxis(result.reshape(dims), 0, dim))
