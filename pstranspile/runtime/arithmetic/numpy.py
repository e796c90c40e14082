"""The functions of `pstranspile.runtime.arithmetic` as numpy rounds them, which is the default."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.arithmetic.loops import shares
from pstranspile.runtime.values import Array

# The error function, which numpy does not have.

_END = 6
"""The number from which on erf is 1 in float64: erf(6) is 1 - 2e-17."""
_FINE = {"float64": (32, 8), "float32": (1024, 3)}
"""For each dtype, the number of points of the table per unit, and of terms of the series around each point, for errors
of about 1e-16 and 1e-10.
"""


@lru_cache(maxsize=2)
def _table(steps: int, terms: int) -> Array:
    """Taylor coefficients of erf around 0, 1/steps, ..., 6: `_table(...)[n, k]` is that of the power n
    around k/steps.
    """
    at = np.arange(_END * steps + 1) / steps
    coefficients = np.empty((terms, len(at)))
    coefficients[0] = [math.erf(point) for point in at]
    # erf' is 2 / sqrt(pi) * g with g = exp(-x^2), and g' = -2 x g gives the coefficients of g one from the other
    before, power = np.zeros(len(at)), np.exp(-at * at)
    for n in range(1, terms):
        coefficients[n] = power * 2 / math.sqrt(math.pi) / n
        before, power = power, -2 * (at * power + before) / n
    return coefficients


def erf(x: Array) -> Array:
    """The error function, element by element, in the precision of the dtype, which is kept."""
    steps, terms = _FINE.get(x.dtype.name, _FINE["float64"])
    table = _table(steps, terms)
    of_each = np.empty(x.shape, x.dtype)
    if loops.erf(x, of_each, table, steps):
        return of_each
    rest = np.abs(x, dtype="float64")
    np.minimum(rest, _END, out=rest)
    rest *= steps
    nearest = np.rint(rest)
    rest -= nearest
    rest /= steps
    np.fmax(nearest, 0, out=nearest)  # NaN needs a valid index into the table as well
    places = nearest.astype("int64")
    result = table[-1].take(places)
    for n in range(terms - 2, -1, -1):
        result *= rest
        result += table[n].take(places)
    return np.copysign(result, x, out=result).astype(x.dtype)


def number_of(x: Array) -> Callable[[float], Any]:
    """The type of the numbers that are combined with an array, so that its dtype stays."""
    return float


# products


def dot(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False, factor: float = 1.0) -> Array:
    """The product of two matrices, each transposed first if requested, times `factor`."""
    a, b = a.T if transpose_a else a, b.T if transpose_b else b
    small = a.shape[1] > 1 and b.size < _LARGE and a.size * b.shape[1] <= _FEW_FACTORS  # as in `product`
    result = a.dot(b) if small else product(a, b)
    if factor != 1:
        result *= factor
    return result


_FEW_ROWS = 8
_LARGE = 1 << 14
"""For up to `_FEW_ROWS` rows and a matrix of at least this many elements, separate products of each row with the matrix
are faster than one product.

For several rows the BLAS library first rearranges the matrix.
"""
_SOME_ROWS = 48
"""For more than `_FEW_ROWS` rows up to this many, in single precision, the product with a large transposed matrix is
computed as the transpose of (the matrix as it lies in memory @ the transposed rows), which is faster.
"""
_WIDE = 384
"""The size that both dims of a matrix must have so that `_MORE_ROWS` applies."""

_MORE_ROWS = 112
"""The most rows of a small product if both dims of the matrix are at least `_WIDE`."""


_FEW_FACTORS = 10**6
_FEW_RESULTS = 1200
"""For up to this many elements of the result, the BLAS library multiplies with a transposed matrix without rearranging
it. (For other matrices, `_FEW_FACTORS` multiplications are the limit.)
"""


def is_small(rows: int, b: Array) -> bool:
    """Whether the BLAS library multiplies this many rows with a matrix like b without rearranging the matrix, which is
    fast.
    """
    if rows * b.size > _FEW_FACTORS:
        return False
    return b.strides[1] == b.itemsize or rows * b.shape[1] <= _FEW_RESULTS


_FEW_TERMS = 40
"""For up to this many terms of each sum, products of `_FEW_FACTORS` multiplications each are faster than one large
product.
"""
_FEWEST_ROWS = 12
"""The fewest rows of a part, if a product is computed in parts."""

_FEWEST_COLUMNS = 64
"""The fewest columns of a part, if a product is computed in parts."""

_MOST_COLUMNS = 4096
"""The width from which on products of some columns write memory that is too scattered."""


def _in_parts(a: Array, b: Array) -> Array | None:
    """The product of a transposed matrix with few columns and b, computed in parts, as for the gradient of weights for
    a small batch; None if parts are not faster.
    """
    rows, terms = a.shape
    columns = b.shape[1]
    height = _FEW_FACTORS // (terms * columns)
    if height >= _FEWEST_ROWS:
        result = np.empty((rows, columns), a.dtype)
        for at in range(0, rows, height):
            np.matmul(a[at : at + height], b, out=result[at : at + height])
        return result
    width = _FEW_FACTORS // (terms * rows) // 16 * 16
    if width < _FEWEST_COLUMNS or columns > _MOST_COLUMNS:
        return None
    result = np.empty((rows, columns), a.dtype)
    for at in range(0, columns, width):
        np.matmul(a, b[:, at : at + width], out=result[:, at : at + width])
    return result


def product(a: Array, b: Array) -> Array:
    """The product of two matrices."""
    if a.shape[1] > 1 and b.size < _LARGE and a.size * b.shape[1] <= _FEW_FACTORS:  # the usual case of small ones
        return a.dot(b)
    if a.shape[1] == 1 and a.dtype == b.dtype and a.dtype.kind == "f":  # no sums, for which a library prepares much
        return a * b
    if a.strides[0] == a.itemsize == 4 == b.itemsize == b.strides[1] and a.size * b.shape[1] > _FEW_FACTORS:
        if 1 < a.shape[1] <= _FEW_TERMS and (parts := _in_parts(a, b)) is not None:
            return parts
        return np.dot(a, b)
    most_rows = _SOME_ROWS if min(b.shape) < _WIDE else _MORE_ROWS
    if 1 < len(a) <= most_rows and b.size >= _LARGE and a.strides[1] == a.itemsize and not is_small(len(a), b):
        if len(a) < _FEW_ROWS:
            return np.matmul(a[:, None], b)[:, 0]
        if b.strides[0] == a.itemsize == 4:
            return np.ascontiguousarray(np.dot(b.T, a.T).T)
    return np.dot(a, b)


Product: TypeAlias = Callable[[Array, Array, Array], object]
"""A function that writes the product of two matrices into a third one with contiguous rows."""


_MOST_PARTS = 4
"""The most parts of a matrix by whose columns a product is computed."""


def product_of(rows: int, b: Array) -> Product:
    """The fastest function for products of this many rows with a matrix like b. It is chosen once for many products.

    The compiled loops choose by the same rules.
    """
    if is_small(rows, b):
        return np.matmul
    if 1 < rows < _FEW_ROWS and b.size >= _LARGE:
        return _row_by_row
    parts, columns = 1, b.shape[1]
    while parts < _MOST_PARTS and columns % (2 * parts) == 0 and rows * b.size // parts > _FEW_FACTORS:
        parts *= 2
    if b.strides[1] != b.itemsize or rows * b.size // parts > _FEW_FACTORS:
        return np.matmul
    return partial(_by_columns, columns // parts)


def _by_columns(width: int, a: Array, b: Array, out: Array) -> None:
    for start in range(0, b.shape[1], width):
        np.matmul(a, b[:, start : start + width], out=out[:, start : start + width])


def _row_by_row(a: Array, b: Array, out: Array) -> None:
    np.matmul(a[:, None], b, out=out[:, None])


def matmul(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False, factor: float = 1.0) -> Array:
    """The products of matrices [..., m, k] and [..., k, n], leading dims broadcast, each transposed first if requested,
    times `factor`.
    """
    left, right = a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b
    if left.ndim == 2 == right.ndim:
        result = product(left, right)
    elif left.ndim == 3 and right.ndim == 4 and right.shape[-1] <= _FEW_COLUMNS and len(left) == right.shape[1]:
        result = _of_shared_matrices(left, right)
    else:
        result = np.matmul(left, right)
    if factor != 1:
        result *= factor
    return result


_FEW_COLUMNS = 16
"""For up to this many columns, one product with the columns of all matrices is faster than a product
for each matrix.
"""


def _of_shared_matrices(a: Array, b: Array) -> Array:
    """The products of the matrices a [groups, m, k] with b [count, groups, k, n]: [count, groups, m, n]."""
    count, groups, terms, columns = b.shape
    together = b.transpose(1, 2, 0, 3).reshape(groups, terms, count * columns)
    return np.matmul(a, together).reshape(groups, a.shape[1], count, columns).transpose(2, 0, 1, 3)


def sum_of_products(a: Array, b: Array) -> Array:
    """The sum over i of a[i] times b[i], the matrices in b transposed: [count, ..., m, k], [count, ..., n, k] give
    [..., m, n].

    If the matrices have few columns for their rows, all of them are joined to one product: moving them takes less time
    than writing a product for each of them and adding the products up.
    """
    *_, m, k = a.shape
    if a.ndim == 4 and k * (m + b.shape[-2]) < m * b.shape[-2]:
        a, b = (x.transpose(1, 2, 0, 3).reshape(*x.shape[1:3], len(x) * k) for x in (a, b))
        return np.matmul(a, b.swapaxes(-1, -2))
    return np.add.reduce(np.matmul(a, b.swapaxes(-1, -2)), axis=0)


# functions of single elements


def exp(x: Array) -> Array:
    """e to the power of every element, in the dtype of x."""
    return np.exp(x).astype(x.dtype, copy=False)


def exp_of_each(x: Array) -> Array:
    """e to the power of every element, as losses compute it: one element at a time."""
    return np.exp(x)


def log(x: Array) -> Array:
    """The natural logarithm of every element."""
    return np.log(x)


def log_of_each(x: Array) -> Array:
    """The natural logarithm, as losses compute it: one element at a time."""
    return np.log(x)


def log1p_of_each(x: Array) -> Array:
    """log(1 + x) of every element, as losses compute it."""
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
    """The square root of every element; the memory of `out` may be used for the result."""
    return np.sqrt(x, out=out)


def inverse_root(x: Array) -> Array:
    """1 / sqrt(x) of every element, as batch_norm computes it for a batch's variance."""
    return 1 / np.sqrt(x)


def over_root(x: Array, squared: Array, epsilon: float = 0.0) -> Array:
    """x / (sqrt(squared) + epsilon), in the dtype of x or a more precise one."""
    return x / (np.sqrt(squared) + epsilon)


# sums


def total(x: Array) -> Array:
    """The sum of all elements, as a tensor of dims [1]."""
    out = np.empty(1, x.dtype)
    if loops.sum_all(x, out):
        return out
    return np.add.reduce(x.reshape(1, -1), axis=1, dtype=x.dtype)


def norm(x: Array) -> Any:
    """The L2 norm of all elements, as a number."""
    flat = x.reshape(-1).astype(np.float64, copy=False)
    return np.sqrt(np.dot(flat, flat))


def sum_over(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum over axes, along which an operand was broadcast."""
    if axes == (0,) or axes == (0, 1):
        return sum_of_rows(x, len(axes))
    return np.add.reduce(x, axis=axes, dtype=x.dtype)


def sum_of_rows(x: Array, dims: int = 1) -> Array:
    """The sum over the first dims, added in order."""
    sums = np.empty(x.shape[dims:], x.dtype)
    return sums if loops.sum_rows(x, sums) else np.add.reduce(x, axis=tuple(range(dims)), dtype=x.dtype)


def sum_of_row(x: Array, axis: int) -> Array:
    """The sum along an axis, which is kept as a dim, as the gradient of a softmax computes it."""
    return np.add.reduce(x, axis=axis, keepdims=True)


_ZERO = np.add.reduceat(np.full(2, -0.0, np.float32), [0]).item()
"""The zero from which numpy adds a few elements up, whose sign releases differ in."""


def sum_runs(x: Array, starts: Array, lengths: Array) -> Array:
    """The sums of contiguous runs of rows, none of them empty: `lengths` rows from `starts` on."""
    out = np.empty((len(starts), *x.shape[1:]), x.dtype)
    if loops.sum_runs(x, starts, out, _ZERO):
        return out
    return np.add.reduceat(x, starts, axis=0)


def sum_of_channels(x: Array, over: tuple[int, ...], in_memory: bool) -> Array:
    """The sum over all dims but the channels, which are dim 1 or the last dim, as batch_norm computes it.

    `in_memory`: x is a variable rather than the result of an expression.
    """
    return np.add.reduce(x, axis=over)


def norm_mean(x: Array) -> Array:
    """The mean of each row of a matrix [rows, n], as the forward pass of layer_norm computes it: [rows, 1]."""
    result = np.add.reduce(x, axis=1, keepdims=True)
    result /= x.shape[1]
    return result


def norm_grad_mean(x: Array) -> Array:
    """The mean of each row of a matrix [rows, n], as the backward pass of layer_norm computes it: [rows, 1]."""
    return norm_mean(x)


# softmax


def shares_of_exp(x: Array, axis: int) -> tuple[Array, Array]:
    """(exp(x) divided by its sum along an axis, this sum with the axis kept as a dim). x may be overwritten."""
    np.exp(x, out=x)
    if axis in (-1, x.ndim - 1):
        sums = np.empty((*x.shape[:-1], 1), x.dtype)
        if shares(x, sums):
            return x, sums
    of_all = np.add.reduce(x, axis=axis, keepdims=True)
    x /= of_all
    return x, of_all


def minus_log_of_shares(shares: Array, x: Array, of_all: Array, pick: Callable[[Array], Array]) -> Array:
    """-log of the shares of x at the elements that `pick` selects, from the results of `shares_of_exp`, the shares and
    their sums `of_all`.

    The logarithm of the sum is more precise than that of a share.
    """
    return np.log(of_all) - pick(x)


def shares_of_runs(x: Array, starts: Array, lengths: Array) -> Array:
    """The softmax of each of several contiguous runs that make up an array of dims [n]. No run is empty."""
    powers = np.exp(x - np.maximum.reduceat(x, starts).repeat(lengths))
    powers /= np.add.reduceat(powers, starts).repeat(lengths)
    return powers


# Gradients of activations, from the gradient `dy` of the result and the result `y`, of the same dims.


def tanh_grad(dy: Array, y: Array) -> Array:
    """dy * (1 - y * y)."""
    out = np.empty(y.shape, y.dtype)
    return out if dy.shape == y.shape and loops.tanh_grad(y, dy, out) else dy * (1 - y * y)


def sigmoid_grad(dy: Array, y: Array) -> Array:
    """dy * y * (1 - y)."""
    out = np.empty(y.shape, y.dtype)
    return out if dy.shape == y.shape and loops.sigmoid_grad(y, dy, out) else dy * y * (1 - y)


def relu_grad(dy: Array, y: Array) -> Array:
    """dy where y > 0, otherwise dy * 0."""
    out = np.empty(y.shape, y.dtype)
    return out if dy.shape == y.shape and loops.relu_grad(y, dy, out) else dy * (y > 0)
