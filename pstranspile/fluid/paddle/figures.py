"""Functions of `paddle` of 2.x that combine several of Fluid's layers: dims, statistics, comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.fluid import layers
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layers.adapt import to_core, wrap
from pstranspile.frontends.layers import tensor
from pstranspile.frontends.layers.basic import layer_outputs

L: Any = layers
_END = 2**31 - 1
"""The end of a slice up to the last element."""


def _dims_of(x: Any) -> Any:
    return wrap(tensor.shape(to_core(x)))


def shape(input: Any) -> Any:
    """The dims of a variable of any element type, as an int32 vector."""
    return _dims_of(input)


def broadcast_shape(x_shape: Sequence[int], y_shape: Sequence[int]) -> list[int]:
    """The dims that two tensors broadcast to. Raises ValueError for dims that do not fit."""
    return list(np.broadcast_shapes(tuple(x_shape), tuple(y_shape)))


def expand(x: Any, shape: Any, name: Any = None) -> Any:
    """x with dims of length 1 repeated, and with new dims in front; -1 in `shape` keeps a dim."""
    if isinstance(shape, Variable):
        return _broadcast_to_shape(x, shape)
    dims = [1] * (len(shape) - len(x.shape)) + list(x.shape)
    if any(isinstance(dim, Variable) for dim in shape):
        known = _dims_of(x)
        front = len(shape) - len(x.shape)
        sizes = [
            L.slice(known, [0], [index - front], [index - front + 1]) if isinstance(dim, int) and dim < 0 else dim
            for index, dim in enumerate(shape)
        ]
        return _broadcast_to_shape(x, sizes)
    for dim, size in zip(dims, shape, strict=True):
        if dim > 1 and size not in (dim, -1):
            raise ValueError(f"expand: {x.name} has the dims {list(x.shape)}, which do not become {list(shape)}")
    if len(dims) > len(x.shape):
        x = L.unsqueeze(x, list(range(len(dims) - len(x.shape))))
    times = [size if dim == 1 and size > 0 else 1 for dim, size in zip(dims, shape, strict=True)]
    return x if set(times) == {1} else L.expand(x, times)


def _broadcast_to_shape(x: Any, shape: Any) -> Any:
    kind = "int32" if str(x.dtype).endswith("BOOL") else x.dtype
    made = L.elementwise_mul(L.fill_constant(shape, kind, 1), L.cast(x, kind))
    return L.cast(made, x.dtype)


def expand_as(x: Any, y: Any, name: Any = None) -> Any:
    """x repeated to the dims of y."""
    return _broadcast_to_shape(x, _dims_of(y)) if any(dim < 0 for dim in y.shape) else expand(x, list(y.shape))


def empty(shape: Any, dtype: Any = None, name: Any = None) -> Any:
    """A tensor for which no values are given; its elements are 0."""
    return L.fill_constant(shape, dtype or "float32", 0)


def empty_like(x: Any, dtype: Any = None, name: Any = None) -> Any:
    """A tensor with the dims of x, for which no values are given; its elements are 0."""
    return L.full_like(x, 0, dtype=dtype)


def diag(x: Any, offset: int = 0, padding_value: float = 0, name: Any = None) -> Any:
    """A matrix with a vector on a diagonal, and `padding_value` elsewhere; or the diagonal of a matrix."""
    if len(x.shape) == 1:
        made = L.diag_embed(x, offset, 0, 1)
        if padding_value == 0:
            return made
        return L.elementwise_add(
            made, L.scale(L.diag_embed(L.ones_like(x), offset, 0, 1), -padding_value, padding_value)
        )
    rows, columns = x.shape
    if rows < 0 or columns < 0:
        raise ValueError(f"diag: {x.name} has the dims {list(x.shape)}, which must be known")
    places = [[row, row + offset] for row in range(rows) if 0 <= row + offset < columns]
    return L.gather_nd(x, L.assign(np.array(places, "int64").reshape(-1, 2)))


def equal_all(x: Any, y: Any, name: Any = None) -> Any:
    """Whether all elements of two tensors are equal."""
    return L.reduce_all(L.equal(x, y))


def clone(x: Any, name: Any = None) -> Any:
    """A copy of x, through which gradients flow."""
    return L.assign(x)


def detach(x: Any) -> Any:
    """A copy of x, through which no gradient flows."""
    made = L.assign(x)
    made.stop_gradient = True
    return made


def is_tensor(x: Any) -> bool:
    """Whether a value is a variable."""
    return isinstance(x, Variable)


def _bits(op: str, *given: Any) -> Any:
    inputs = {slot: to_core(held) for slot, held in zip("XY", given, strict=False)}
    return wrap(layer_outputs(op, inputs, {"Out": inputs["X"].dtype})[0])


def bitwise_and(x: Any, y: Any, out: Any = None, name: Any = None) -> Any:
    """The bitwise and of x and y, element by element."""
    return _bits("bitwise_and", x, y)


def bitwise_or(x: Any, y: Any, out: Any = None, name: Any = None) -> Any:
    """The bitwise or of x and y, element by element."""
    return _bits("bitwise_or", x, y)


def bitwise_xor(x: Any, y: Any, out: Any = None, name: Any = None) -> Any:
    """The bitwise exclusive or of x and y, element by element."""
    return _bits("bitwise_xor", x, y)


def bitwise_not(x: Any, out: Any = None, name: Any = None) -> Any:
    """The bitwise complement of x, element by element."""
    return _bits("bitwise_not", x)


def isnan(x: Any, name: Any = None) -> Any:
    """A mask of the elements that are not a number."""
    return L.not_equal(x, x)


def isinf(x: Any, name: Any = None) -> Any:
    """A mask of the elements that are infinite."""
    return L.equal(L.abs(x), L.fill_constant([1], x.dtype, float("inf")))


def isfinite(x: Any, name: Any = None) -> Any:
    """A mask of the elements that are finite numbers."""
    return L.less_than(L.abs(x), L.fill_constant([1], x.dtype, float("inf")))


def cosh(x: Any, name: Any = None) -> Any:
    """The hyperbolic cosine."""
    return L.scale(L.elementwise_add(L.exp(x), L.exp(L.scale(x, -1.0))), 0.5)


def sinh(x: Any, name: Any = None) -> Any:
    """The hyperbolic sine."""
    return L.scale(L.elementwise_sub(L.exp(x), L.exp(L.scale(x, -1.0))), 0.5)


def trunc(input: Any, name: Any = None) -> Any:
    """Each element rounded towards 0."""
    return L.elementwise_mul(L.sign(input), L.floor(L.abs(input)))


def frac(x: Any, name: Any = None) -> Any:
    """The fractional part of each element, with its sign."""
    return L.elementwise_sub(x, trunc(x))


def lerp(x: Any, y: Any, weight: Any, name: Any = None) -> Any:
    """The linear interpolation from x to y, at `weight`: a number, or one for each element."""
    way = y - x
    return x + (L.scale(way, float(weight)) if isinstance(weight, int | float) else way * weight)


def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None, name: Any = None) -> Any:
    """The differences between neighbouring elements along `axis`, taken `n` times, after `prepend` and `append` were
    joined to x.

    Raises ValueError for an `n` below 1.
    """
    if n < 1:
        raise ValueError(f"diff takes n from 1 on, not {n}")
    parts = [part for part in (prepend, x, append) if part is not None]
    held, along = L.concat(parts, axis) if len(parts) > 1 else x, axis % len(x.shape)
    for _ in range(n):
        held = L.slice(held, [along], [1], [_END]) - L.slice(held, [along], [0], [-1])
    return held


def tan(x: Any, name: Any = None) -> Any:
    """The tangent."""
    return L.elementwise_div(L.sin(x), L.cos(x))


def log2(x: Any, name: Any = None) -> Any:
    """The logarithm to the base 2."""
    return L.scale(L.log(x), 1 / math.log(2))


def log10(x: Any, name: Any = None) -> Any:
    """The logarithm to the base 10."""
    return L.scale(L.log(x), 1 / math.log(10))


def masked_select(x: Any, mask: Any, name: Any = None) -> Any:
    """The elements of x where the mask is true, as a vector."""
    return L.gather_nd(x, L.where(mask))


def norm(x: Any, p: Any = "fro", axis: Any = None, keepdim: bool = False, name: Any = None) -> Any:
    """The p-norm over the dims in `axis` (default: all). Raises ValueError unless `p` is a number or `fro`."""
    if p == "fro":
        p = 2.0
    if not isinstance(p, int | float):
        raise ValueError(f"norm: p is a number or fro, not {p!r}")
    if math.isinf(p):
        return (L.reduce_max if p > 0 else L.reduce_min)(L.abs(x), dim=axis, keep_dim=keepdim)
    if p == 0:
        counted = L.cast(L.not_equal(x, L.zeros_like(x)), x.dtype)
        return L.reduce_sum(counted, dim=axis, keep_dim=keepdim)
    if p == 1:
        return L.reduce_sum(L.abs(x), dim=axis, keep_dim=keepdim)
    if p == 2:
        return L.sqrt(L.reduce_sum(L.square(x), dim=axis, keep_dim=keepdim))
    return L.pow(L.reduce_sum(L.pow(L.abs(x), float(p)), dim=axis, keep_dim=keepdim), 1.0 / p)


def _dims(x: Any, axis: Any) -> list[int]:
    listed = range(len(x.shape)) if axis is None else [axis] if isinstance(axis, int) else axis
    return [dim % len(x.shape) for dim in listed]


def var(x: Any, axis: Any = None, unbiased: bool = True, keepdim: bool = False, name: Any = None) -> Any:
    """The variance over the dims in `axis` (default: all); `unbiased` divides by one less than the count."""
    dims = _dims(x, axis)
    squares = L.square(L.elementwise_sub(x, L.reduce_mean(x, dim=dims, keep_dim=True)))
    biased = L.reduce_mean(squares, dim=dims, keep_dim=keepdim)
    if not unbiased:
        return biased
    sizes = [x.shape[dim] for dim in dims]
    if min(sizes) > 0:
        count = math.prod(sizes)
        return L.scale(biased, count / (count - 1.0)) if count > 1 else biased
    counted = L.cast(L.reduce_prod(L.gather(_dims_of(x), L.assign(np.array(dims, "int32")))), x.dtype)
    fewer = L.elementwise_max(L.scale(counted, 1.0, -1.0), L.fill_constant([1], x.dtype, 1.0))
    return L.elementwise_mul(biased, L.elementwise_div(counted, fewer))


def std(x: Any, axis: Any = None, unbiased: bool = True, keepdim: bool = False, name: Any = None) -> Any:
    """The standard deviation over the dims in `axis` (default: all); `unbiased` divides by one less than the count."""
    return L.sqrt(var(x, axis, unbiased, keepdim))


def median(x: Any, axis: Any = None, keepdim: bool = False, name: Any = None) -> Any:
    """The middle element along `axis` (default: of all elements), or the mean of the two middle ones. The dim must be
    known.
    """
    flat = L.reshape(x, [-1]) if axis is None else x
    axis = 0 if axis is None else axis % len(x.shape)
    size = math.prod(x.shape) if len(flat.shape) == 1 else flat.shape[axis]
    if size <= 0:
        raise ValueError(f"median: {x.name} has the dims {list(x.shape)}, of which that along axis must be known")
    ordered = L.argsort(flat, axis)[0]
    ordered.stop_gradient = x.stop_gradient  # Fluid's has no gradient
    middle = L.slice(ordered, [axis], [(size - 1) // 2], [size // 2 + 1])
    return L.reduce_mean(middle, dim=[axis], keep_dim=keepdim)


def bernoulli(x: Any, name: Any = None) -> Any:
    """1 with the probability that the element of x is, else 0."""
    return L.cast(L.less_than(L.uniform_random(_dims_of(x), x.dtype, 0.0, 1.0), x), x.dtype)


def multinomial(x: Any, num_samples: int = 1, replacement: bool = False, name: Any = None) -> Any:
    """Indices along the last dim, each drawn with the probability of its element, relative to the sum of all.

    Without replacement no index is drawn twice; fewer elements than samples raise an error when the program runs.
    """
    if not replacement:
        drawn = L.uniform_random(_dims_of(x), x.dtype, 1e-30, 1.0)
        return L.topk(L.elementwise_div(L.log(drawn), x), num_samples)[1]
    last = len(x.shape) - 1
    ones = [1] * last
    sums = L.cumsum(x, last)
    whole = L.expand(L.slice(sums, [last], [-1], [2**31 - 1]), [*ones, num_samples])
    drawn = L.elementwise_mul(L.uniform_random(_dims_of(whole), x.dtype, 0.0, 1.0), whole)
    ends = L.expand(L.unsqueeze(sums, [last]), [*ones, num_samples, 1])
    passed = L.less_equal(ends, L.unsqueeze(drawn, [last + 1]))
    return L.reduce_sum(L.cast(passed, "int64"), dim=[last + 1])


def unique(
    x: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    dtype: Any = "int64",
    name: Any = None,
) -> Any:
    """The distinct elements in ascending order, and how often each occurs if asked. Raises ValueError for the other
    options.
    """
    if return_index or return_inverse or axis is not None:
        raise ValueError("unique gives elements and counts: leave out return_index, return_inverse and axis")
    ordered = L.argsort(L.reshape(x, [-1]))[0]
    found = L.unique_with_counts(ordered)
    return (found[0], L.cast(found[2], dtype)) if return_counts else found[0]


broadcast_to = expand
NAMES: frozenset[str] = frozenset(
    name
    for name, held in list(globals().items())
    if callable(held) and not name.startswith("_") and getattr(held, "__module__", "") == __name__
)
"""The names of the functions of this module."""
