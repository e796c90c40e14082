"""How f32 values are rounded: as numpy rounds them, or as Fluid's CPU library does.

numpy's way is the faster one and the default. Fluid's gives the bits of real runs, on every x86-64 machine. Which of
them holds is asked at every call, so it may be chosen around any run, also of what was prepared before:

    with fluid_arithmetic():
        run(program, feed, fetch)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import TYPE_CHECKING, Any

from pstranspile.lazy import lazy_import

if TYPE_CHECKING:
    from pstranspile.ops import channel_sums, float_functions, library_functions, product_order
    from pstranspile.ops.values import Array
else:
    channel_sums = lazy_import("pstranspile.ops.channel_sums")
    float_functions = lazy_import("pstranspile.ops.float_functions")
    library_functions = lazy_import("pstranspile.ops.library_functions")
    product_order = lazy_import("pstranspile.ops.product_order")

np = lazy_import("numpy")

_FLUID: ContextVar[bool] = ContextVar("fluid_arithmetic", default=False)


@contextmanager
def fluid_arithmetic(chosen: bool = True) -> Generator[None]:
    """Has f32 values rounded as Fluid 1.8.5 rounds them on a CPU, for what this thread runs while it holds.

    Every function below has both ways; docs/reference/kernels.md, "Two arithmetics", lists the ops that go by them.
    `fluid_arithmetic(False)` returns to numpy's.
    """
    token = _FLUID.set(chosen)
    try:
        yield
    finally:
        _FLUID.reset(token)


def rounds_as_fluid() -> bool:
    """Whether `fluid_arithmetic` holds."""
    return _FLUID.get()


def rounded(x: float) -> float:
    """A number that Fluid keeps in f32."""
    return np.float32(x).item() if _FLUID.get() else x


def dot(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False, factor: float = 1.0) -> Array:
    """The product of two matrices, either transposed first if asked, times a factor."""
    if transpose_a:
        a = a.T
    if transpose_b:
        b = b.T
    if _FLUID.get() and a.dtype == b.dtype == np.float32:
        return product_order.product_in_order(a, b, transpose_a, transpose_b, factor)
    found = product(a, b)
    if factor != 1:
        found *= factor
    return found


_FEW_ROWS = 8
_LARGE = 1 << 14
"""Up to so many rows, and from so many elements on, a row alone times a matrix costs less than its share of a product:
the library rearranges a matrix before it multiplies several rows by it.
"""


def product(a: Array, b: Array, out: Array | None = None) -> Array:
    """The product of two matrices as numpy rounds it."""
    if 1 < len(a) < _FEW_ROWS and b.size >= _LARGE and a.strides[1] == a.itemsize:
        return np.matmul(a[:, None], b, out=None if out is None else out[:, None])[:, 0]
    return np.matmul(a, b, out=out) if out is not None else np.dot(a, b)


def matmul(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False, factor: float = 1.0) -> Array:
    """The products of matrices [..., m, k] and [..., k, n], leading dims broadcast, each transposed first if asked,
    times a factor.
    """
    if transpose_a:
        a = a.swapaxes(-1, -2)
    if transpose_b:
        b = b.swapaxes(-1, -2)
    if _FLUID.get() and a.dtype == b.dtype == np.float32:
        return product_order.product_in_order(a, b, transpose_a, transpose_b, factor)
    found = np.matmul(a, b)
    if factor != 1:
        found *= factor
    return found


def sum_of_products(a: Array, b: Array) -> Array:
    """The sum over i of a[i] times b[i], the matrices in b transposed: [count, ..., m, k], [count, ..., n, k] give
    [..., m, n].
    """
    b = b.swapaxes(-1, -2)
    if _FLUID.get() and a.dtype == b.dtype == np.float32:
        return product_order.sum_of_products_in_order(a, b)
    return np.add.reduce(np.matmul(a, b), axis=0)


def exp(x: Array) -> Array:
    """e to the power of every element; of the element type of x."""
    if _FLUID.get() and x.dtype == np.float32:
        return float_functions.exp(x)
    return np.exp(x).astype(x.dtype, copy=False)


def exp_of_each(x: Array) -> Array:
    """e to the power of every element, as losses take it: by the C library, of one element after the other."""
    if _FLUID.get() and x.dtype == np.float32:
        return library_functions.exp(x)
    return np.exp(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) of every element."""
    if _FLUID.get() and x.dtype == np.float32:
        above = np.maximum(x, 0)
        return above + float_functions.log(float_functions.exp(-above) + float_functions.exp(x - above))
    return np.logaddexp(x, 0)


def softplus_slope(x: Array) -> Array:
    """The derivative of softplus: 1 / (1 + exp(-x)) of every element."""
    if _FLUID.get() and x.dtype == np.float32:
        above = np.maximum(x, 0)
        power = float_functions.exp(x - above)
        return power / (float_functions.exp(-above) + power)
    return 1 / (1 + np.exp(-x))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) of every element."""
    if _FLUID.get() and x.dtype == np.float32:
        return 1 / (1 + float_functions.exp(-x))
    found = np.exp(-x)
    if found.dtype.kind != "f" or not found.ndim:
        return 1 / (1 + found)
    found += 1
    return np.divide(1, found, out=found)


def log(x: Array) -> Array:
    """The natural logarithm of every element."""
    if _FLUID.get() and x.dtype == np.float32:
        return float_functions.log(x)
    return np.log(x)


def log_of_each(x: Array) -> Array:
    """The natural logarithm, as losses take it: by the C library, of one element after the other."""
    if _FLUID.get() and x.dtype == np.float32:
        return library_functions.log(x)
    return np.log(x)


def cos(x: Array) -> Array:
    """The cosine of every element."""
    if _FLUID.get() and x.dtype == np.float32:
        return library_functions.cos(x)
    return np.cos(x)


def sin(x: Array) -> Array:
    """The sine of every element."""
    if _FLUID.get() and x.dtype == np.float32:
        return library_functions.sin(x)
    return np.sin(x)


def power(x: Array, y: Any) -> Array:
    """x to the power of y, element by element, with numpy's broadcasting; y is an array or number of the same type."""
    if _FLUID.get() and x.dtype == np.float32:
        return np.power(x, y, dtype=np.float64).astype(np.float32)
    return np.power(x, y)


def root(x: Array) -> Array:
    """The square root of every element."""
    if _FLUID.get() and x.dtype == np.float32:
        return float_functions.root(x, x.size % 8)
    return np.sqrt(x)


def root_in_step(x: Array, alone: int | None, out: Array | None = None) -> Array:
    """The square root of every element, as optimizers take it; the memory of `out` may be used.

    `alone` is how many of the last elements are not among whole eights (`ops.optimizer_steps.last_alone`).
    """
    if _FLUID.get() and x.dtype == np.float32:
        return float_functions.root(x, x.size % 8 if alone is None else alone)
    return np.sqrt(x, out=out)


def tanh(x: Array) -> Array:
    """The hyperbolic tangent of every element."""
    if _FLUID.get() and x.dtype == np.float32:
        return float_functions.tanh(x)
    return np.tanh(x)


def total(x: Array) -> Array:
    """The sum of all elements, as a tensor of dims [1]."""
    if _FLUID.get() and x.dtype == np.float32:
        return float_functions.total(x)
    return np.add.reduce(x.reshape(1, -1), axis=1, dtype=x.dtype)


def norm(x: Array) -> Any:
    """The root of the sum of the squares of all elements, as a number."""
    if _FLUID.get() and x.dtype == np.float32:
        return np.sqrt(float_functions.total(x * x)[0])
    flat = x.reshape(-1).astype(np.float64, copy=False)
    return np.sqrt(np.dot(flat, flat))


def number_of(x: Array) -> Callable[[float], Any]:
    """What numbers are calculated in that go with an array: in its element type as in Fluid, or in float64."""
    return x.dtype.type if _FLUID.get() else float


FUNCTIONS = {
    function.__name__: function
    for function in (cos, exp, log, root, sigmoid, sin, softplus, softplus_slope, tanh, total)
}
"""What the expressions of kernels may call, beside numpy."""


def softmax(x: Array, axis: int) -> Array:
    """The softmax along an axis. Logits more than 64 below the largest count as 64 below it, as in Fluid."""
    shifted = x - np.maximum.reduce(x, axis=axis, keepdims=True)
    np.maximum(shifted, -64, out=shifted)
    return shares_of_exp(shifted, axis)[0]


def shares_of_exp(x: Array, axis: int) -> tuple[Array, Array]:
    """exp(x) over its sum along an axis, and that sum, kept as a dim. x may be overwritten."""
    if _FLUID.get() and x.dtype == np.float32 and axis in (-1, x.ndim - 1):
        return float_functions.shares_of_exp(x)
    np.exp(x, out=x)
    of_all = np.add.reduce(x, axis=axis, keepdims=True)
    x /= of_all
    return x, of_all


def sum_of_row(x: Array, axis: int) -> Array:
    """The sum along an axis, kept as a dim, as the gradient of a softmax takes it."""
    if _FLUID.get() and x.dtype == np.float32 and axis in (-1, x.ndim - 1):
        return float_functions.sum_of_lanes(x)
    return np.add.reduce(x, axis=axis, keepdims=True)


def sum_over(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum over axes along which an operand was repeated."""
    if _FLUID.get() and x.dtype == np.float32:
        return float_functions.sum_in_order(x, axes)
    return np.add.reduce(x, axis=axes, dtype=x.dtype)


def sum_runs(x: Array, starts: Array, lengths: Array) -> Array:
    """The sums of runs of rows, none of them empty: `lengths` rows from `starts` on, runs one after the other."""
    if _FLUID.get() and x.dtype == np.float32:
        return float_functions.sum_runs(x, starts, lengths)
    return np.add.reduceat(x, starts, axis=0)


def shares_of_runs(x: Array, starts: Array, lengths: Array) -> Array:
    """The softmax of each of several runs, none of them empty, that make up an array of dims [n]."""
    if _FLUID.get() and x.dtype == np.float32:
        return float_functions.shares_of_runs(x, starts, lengths)
    powers = np.exp(x - np.repeat(np.maximum.reduceat(x, starts), lengths))
    powers /= np.repeat(np.add.reduceat(powers, starts), lengths)
    return powers


def sum_of_channels(x: Array, over: tuple[int, ...], in_memory: bool) -> Array:
    """The sum over all dims but that of the channels, 1 or the last, as batch_norm takes it.

    `in_memory`: whether x is a variable, not what an expression gives (see `ops.channel_sums`).
    """
    if not (_FLUID.get() and x.dtype == np.float32):
        return np.add.reduce(x, axis=over)
    if 1 in over:
        return float_functions.sum_in_order(x, over)
    return channel_sums.sum_of_channels(x.reshape(*x.shape[:2], prod(x.shape[2:])), in_memory)


def inverse_root(x: Array) -> Array:
    """1 / sqrt(x) of every element, as batch_norm takes it of a batch's variance."""
    if _FLUID.get() and x.dtype == np.float32:
        return root(1 / x)
    return 1 / np.sqrt(x)


def norm_mean(x: Array) -> Array:
    """The mean of each row of a matrix [rows, n], as the forward pass of a layer_norm takes it: [rows, 1]."""
    if _FLUID.get() and x.dtype == np.float32 and x.shape[1] >= 8:
        return float_functions.mean_of_lanes(x)
    return _mean_of_rows(x)


def norm_grad_mean(x: Array) -> Array:
    """The mean of each row of a matrix [rows, n], as the backward pass of a layer_norm takes it: [rows, 1]."""
    if _FLUID.get() and x.dtype == np.float32:
        return float_functions.sum_in_order(x, (1,)).reshape(-1, 1) / np.float32(x.shape[1])
    return _mean_of_rows(x)


def _mean_of_rows(x: Array) -> Array:
    found = np.add.reduce(x, axis=1, keepdims=True)
    found /= x.shape[1]
    return found


def over_root(x: Array, squared: Array) -> Array:
    """x / sqrt(squared), as the backward pass of a layer_norm divides."""
    if _FLUID.get() and x.dtype == np.float32:
        return np.divide(x, np.sqrt(squared, dtype=np.float64), dtype=np.float64).astype(np.float32)
    return x / np.sqrt(squared)
