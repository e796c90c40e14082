"""The arithmetic of Fluid 1.8.5 on a CPU: the functions of `pstranspile.runtime.arithmetic` for f32 arrays.

On every machine they reproduce, bit for bit, the results of Fluid's PyPI wheel with one thread on an AMD CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import numpy as np

from pstranspile.fluid.arithmetic import float_functions, product_order
from pstranspile.fluid.arithmetic.float_functions import cos as cos
from pstranspile.fluid.arithmetic.float_functions import exp as exp
from pstranspile.fluid.arithmetic.float_functions import log as log
from pstranspile.fluid.arithmetic.float_functions import root
from pstranspile.fluid.arithmetic.float_functions import shares_of_runs as shares_of_runs
from pstranspile.fluid.arithmetic.float_functions import sin as sin
from pstranspile.fluid.arithmetic.float_functions import sum_in_order as sum_over
from pstranspile.fluid.arithmetic.float_functions import sum_runs as sum_runs
from pstranspile.fluid.arithmetic.float_functions import tanh as tanh
from pstranspile.fluid.arithmetic.float_functions import total as total
from pstranspile.runtime.arithmetic import arithmetic
from pstranspile.runtime.arithmetic import numpy as plain
from pstranspile.runtime.values import Array

NAME = "fluid"
"""The name of this arithmetic in options and checkpoints."""

exp_of_each, log_of_each = float_functions.library_exp, float_functions.library_log


def fluid_arithmetic(chosen: bool = True) -> AbstractContextManager[None]:
    """A context manager in which the present thread rounds f32 values as Fluid 1.8.5 does on a CPU.

    `fluid_arithmetic(False)` returns to numpy's arithmetic.
    """
    return arithmetic(__name__ if chosen else "")


def number_of(x: Array) -> Callable[[float], Any]:
    """The type of the numbers that are combined with an array, which is np.float32."""
    return np.float32


def matmul(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False, factor: float = 1.0) -> Array:
    """Products of matrices, which may be transposed first, times a factor; f32 terms are rounded before being added."""
    if b.dtype != np.float32:
        return plain.matmul(a, b, transpose_a, transpose_b, factor)
    a, b = a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b
    return product_order.product_in_order(a, b, transpose_a, transpose_b, factor)


dot = matmul


def sum_of_products(a: Array, b: Array) -> Array:
    """The sum over i of a[i] times the transpose of b[i]; f32 products are added block by block."""
    if b.dtype != np.float32:
        return plain.sum_of_products(a, b)
    return product_order.sum_of_products_in_order(a, b.swapaxes(-1, -2))


def log1p_of_each(x: Array) -> Array:
    """log(1 + x) of every element, with 1 + x rounded."""
    return log_of_each(1 + x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) of every element."""
    above = np.maximum(x, 0)
    return above + log(exp(-above) + exp(x - above))


def softplus_slope(x: Array) -> Array:
    """The derivative of softplus."""
    above = np.maximum(x, 0)
    power = exp(x - above)
    return power / (exp(-above) + power)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) of every element."""
    return 1 / (1 + exp(-x))


def power(x: Array, y: Any) -> Array:
    """x to the power of y, correctly rounded."""
    return np.power(x, y, dtype=np.float64).astype(np.float32)


def inverse_root(x: Array) -> Array:
    """1 / sqrt(x) of every element, computed as the square root of the reciprocal."""
    return root(1 / x)


def over_root(x: Array, squared: Array, epsilon: float = 0.0) -> Array:
    """x / (sqrt(squared) + epsilon) in f64, as scalar code computes it."""
    return np.divide(x, np.sqrt(squared, dtype=np.float64) + epsilon, dtype=np.float64)


def norm(x: Array) -> Any:
    """The square root of the sum of squares, which is rounded to f32."""
    return np.sqrt(total(x * x)[0])


def sum_of_row(x: Array, axis: int) -> Array:
    """The sum along an axis, kept as a dim; along the last axis it is taken in eight lanes."""
    return float_functions.sum_of_lanes(x) if _is_last(x, axis) else plain.sum_of_row(x, axis)


def sum_of_channels(x: Array, over: tuple[int, ...], in_memory: bool) -> Array:
    """The sum over all dims but the channels, which are dim 1 or the last dim. If they are dim 1, it is taken image by
    image.
    """
    if 1 in over:
        return sum_over(x, over)
    return product_order.sum_of_channels(x.reshape(*x.shape[:2], prod(x.shape[2:])), in_memory)


def norm_mean(x: Array) -> Array:
    """The mean of each row [rows, n], in eight lanes if there are enough elements."""
    return float_functions.mean_of_lanes(x) if x.shape[1] >= 8 else plain.norm_mean(x)


def norm_grad_mean(x: Array) -> Array:
    """The mean of each row [rows, n], element by element."""
    return sum_over(x, (1,)).reshape(-1, 1) / np.float32(x.shape[1])


def shares_of_exp(x: Array, axis: int) -> tuple[Array, Array]:
    """The softmax along an axis, exp(x) divided by its sum, and this sum, kept as a dim; along the last axis the sum is
    taken in eight lanes.
    """
    return float_functions.shares_of_exp(x) if _is_last(x, axis) else plain.shares_of_exp(x, axis)


def minus_log_of_shares(shares: Array, x: Array, of_all: Array, pick: Callable[[Array], Array]) -> Array:
    """The negative logarithms of the softmax's elements that `pick` selects, computed from these
    elements themselves.
    """
    return -log_of_each(pick(shares))


def _is_last(x: Array, axis: int) -> bool:
    return axis in (-1, x.ndim - 1)
