"""The arithmetic of kernels as numpy rounds it: what `pstranspile.arithmetic` offers, if no other way is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from pstranspile.values import Array


def number_of(x: Array) -> Callable[[float], Any]:
    """What numbers are calculated in that go with an array."""
    return float


# products


def dot(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False, factor: float = 1.0) -> Array:
    """The product of two matrices, either transposed first if asked, times a factor."""
    result = product(a.T if transpose_a else a, b.T if transpose_b else b)
    if factor != 1:
        result *= factor
    return result


_FEW_ROWS = 8
_LARGE = 1 << 14
"""Up to so many rows, and from so many elements on, a row alone times a matrix costs less than its share of a product:
the library rearranges a matrix before it multiplies several rows by it.
"""


def product(a: Array, b: Array) -> Array:
    """The product of two matrices."""
    if 1 < len(a) < _FEW_ROWS and b.size >= _LARGE and a.strides[1] == a.itemsize:
        return np.matmul(a[:, None], b)[:, 0]
    return np.dot(a, b)


Product: TypeAlias = Callable[[Array, Array, Array], object]
"""Puts the product of two matrices into a third one, whose rows lie one after the other."""


def product_of(rows: int, b: Array) -> Product:
    """How so many rows are multiplied by a matrix like b, which is asked once for many products."""
    return _row_by_row if 1 < rows < _FEW_ROWS and b.size >= _LARGE else np.ndarray.dot


def _row_by_row(a: Array, b: Array, out: Array) -> None:
    np.matmul(a[:, None], b, out=out[:, None])


def matmul(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False, factor: float = 1.0) -> Array:
    """The products of matrices [..., m, k] and [..., k, n], leading dims broadcast, each transposed first if asked,
    times a factor.
    """
    result = np.matmul(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b)
    if factor != 1:
        result *= factor
    return result


def sum_of_products(a: Array, b: Array) -> Array:
    """The sum over i of a[i] times b[i], the matrices in b transposed: [count, ..., m, k], [count, ..., n, k] give
    [..., m, n].
    """
    return np.add.reduce(np.matmul(a, b.swapaxes(-1, -2)), axis=0)


# functions of single elements


def exp(x: Array) -> Array:
    """e to the power of every element; of the element type of x."""
    return np.exp(x).astype(x.dtype, copy=False)


def exp_of_each(x: Array) -> Array:
    """e to the power of every element, as losses take it: of one element after the other."""
    return np.exp(x)


def log(x: Array) -> Array:
    """The natural logarithm of every element."""
    return np.log(x)


def log_of_each(x: Array) -> Array:
    """The natural logarithm, as losses take it: of one element after the other."""
    return np.log(x)


def log1p_of_each(x: Array) -> Array:
    """log(1 + x) of every element, as losses take it."""
    return np.log1p(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) of every element."""
    return np.logaddexp(x, 0)


def softplus_slope(x: Array) -> Array:
    """The derivative of softplus: 1 / (1 + exp(-x)) of every element."""
    return 1 / (1 + np.exp(-x))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) of every element."""
    result = np.exp(-x)
    if result.dtype.kind != "f" or not result.ndim:
        return 1 / (1 + result)
    result += 1
    return np.divide(1, result, out=result)


def tanh(x: Array) -> Array:
    """The hyperbolic tangent of every element."""
    return np.tanh(x)


def cos(x: Array) -> Array:
    """The cosine of every element."""
    return np.cos(x)


def sin(x: Array) -> Array:
    """The sine of every element."""
    return np.sin(x)


def power(x: Array, y: Any) -> Array:
    """x to the power of y, element by element, with numpy's broadcasting; y is an array or number of the same type."""
    return np.power(x, y)


def root(x: Array, out: Array | None = None) -> Array:
    """The square root of every element; the memory of `out` may be used."""
    return np.sqrt(x, out=out)


def inverse_root(x: Array) -> Array:
    """1 / sqrt(x) of every element, as batch_norm takes it of a batch's variance."""
    return 1 / np.sqrt(x)


def over_root(x: Array, squared: Array, epsilon: float = 0.0) -> Array:
    """x / (sqrt(squared) + epsilon); of the element type of x, or a more precise one."""
    return x / (np.sqrt(squared) + epsilon)


# sums


def total(x: Array) -> Array:
    """The sum of all elements, as a tensor of dims [1]."""
    return np.add.reduce(x.reshape(1, -1), axis=1, dtype=x.dtype)


def norm(x: Array) -> Any:
    """The root of the sum of the squares of all elements, as a number."""
    flat = x.reshape(-1).astype(np.float64, copy=False)
    return np.sqrt(np.dot(flat, flat))


def sum_over(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum over axes along which an operand was repeated."""
    return np.add.reduce(x, axis=axes, dtype=x.dtype)


def sum_of_row(x: Array, axis: int) -> Array:
    """The sum along an axis, kept as a dim, as the gradient of a softmax takes it."""
    return np.add.reduce(x, axis=axis, keepdims=True)


def sum_runs(x: Array, starts: Array, lengths: Array) -> Array:
    """The sums of runs of rows, none of them empty: `lengths` rows from `starts` on, runs one after the other."""
    return np.add.reduceat(x, starts, axis=0)


def sum_of_channels(x: Array, over: tuple[int, ...], in_memory: bool) -> Array:
    """The sum over all dims but that of the channels, 1 or the last, as batch_norm takes it.

    `in_memory`: whether x is a variable, not what an expression gives.
    """
    return np.add.reduce(x, axis=over)


def norm_mean(x: Array) -> Array:
    """The mean of each row of a matrix [rows, n], as the forward pass of a layer_norm takes it: [rows, 1]."""
    result = np.add.reduce(x, axis=1, keepdims=True)
    result /= x.shape[1]
    return result


def norm_grad_mean(x: Array) -> Array:
    """The mean of each row of a matrix [rows, n], as the backward pass of a layer_norm takes it: [rows, 1]."""
    return norm_mean(x)


# softmax


def shares_of_exp(x: Array, axis: int) -> tuple[Array, Array]:
    """exp(x) over its sum along an axis, and that sum, kept as a dim. x may be overwritten."""
    np.exp(x, out=x)
    of_all = np.add.reduce(x, axis=axis, keepdims=True)
    x /= of_all
    return x, of_all


def minus_log_of_shares(shares: Array, x: Array, of_all: Array, pick: Callable[[Array], Array]) -> Array:
    """-log of the shares that `shares_of_exp` gave of x, with the sum that it gave: where `pick` takes them.

    The logarithm of the sum loses less than that of a share.
    """
    return np.log(of_all) - pick(x)


def shares_of_runs(x: Array, starts: Array, lengths: Array) -> Array:
    """The softmax of each of several runs, none of them empty, that make up an array of dims [n]."""
    powers = np.exp(x - np.maximum.reduceat(x, starts).repeat(lengths))
    powers /= np.add.reduceat(powers, starts).repeat(lengths)
    return powers
