"""Functions that kernels share: for element types, kernels from expressions, and small array functions.

Numbers from attributes are Python numbers, which don't change the element type of an array.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real
from pstranspile.ops.shapes import Dims
from pstranspile.runtime.arithmetic import FUNCTIONS, NUMBERS, loops, sum_over
from pstranspile.runtime.kernels.kernel import OVER, Run, kernel
from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor

# Functions that kernels of ragged tensors share.


def sequences(x: object, slot: str) -> tuple[Array, list[list[int]]]:
    """The rows and the LoD of a ragged value. Raises ValueError if it has no LoD."""
    if not isinstance(x, LoDTensor):
        raise ValueError(f"{slot} has no LoD, a ragged sequence is needed")
    return x.data, x.lod


def plain(x: Any) -> Array:
    """The rows of a value, ragged or not."""
    return x.data if isinstance(x, LoDTensor) else x


def upper(value: Array, lod: list[list[int]]) -> object:
    """A value with one row for each sequence, which keeps the LoD levels above the last one."""
    return LoDTensor(value, lod[:-1]) if len(lod) > 1 else value


class Runs(NamedTuple):
    """The sequences between offsets. Values with the same LoD share one of these, so it must not be changed."""

    starts: Array
    lengths: Array
    filled: bool
    """Whether every sequence has a row."""
    even: int
    """The number of rows of every sequence; 0 if they differ."""
    ends: Array
    """The offsets."""


@lru_cache(64)
def runs_between(offsets: tuple[int, ...]) -> Runs:
    """The sequences between offsets."""
    ends = np.array(offsets, np.int64)
    starts, lengths = ends[:-1].copy(), ends[1:] - ends[:-1]
    for array in (starts, lengths, ends):
        array.setflags(write=False)
    least = lengths.item(lengths.argmin()) if len(lengths) else 0  # places take less time than reductions
    even = least if least > 0 and least == lengths.item(lengths.argmax()) else 0
    return Runs(starts, lengths, least > 0, even, ends)


_SPARE = 4
"""Sequences are padded to one length only if this takes at most this many times their rows."""


@lru_cache(64)
def _padded_places(offsets: tuple[int, ...]) -> tuple[Array, Array] | None:
    """(row number of every place of sequences laid side by side [sequences, longest], where places behind the end of a
    sequence hold its last row; mask of these places). None if padding would take more than `_SPARE` times the rows.
    """
    starts, lengths, _, _, _ = runs_between(offsets)
    longest = int(lengths.max())
    if len(starts) * longest > _SPARE * offsets[-1]:
        return None
    within = np.arange(longest)
    return starts[:, None] + np.minimum(within, lengths[:, None] - 1), within >= lengths[:, None]


def side_by_side(x: Array, offsets: Sequence[int]) -> tuple[Array, Array | None] | None:
    """(rows of sequences, none of them empty, padded to [sequences, longest, ...] with each sequence's last row; mask
    of the padding, None if there is none).

    None if the lengths differ so much that padding would take much more memory.
    """
    key = tuple(offsets)
    even = runs_between(key).even
    if even:
        return x.reshape(-1, even, *x.shape[1:]), None
    result = _padded_places(key)
    return None if result is None else (x.take(result[0], axis=0), result[1])


def row_counts(offsets: Sequence[int]) -> Array:
    """The number of rows of every sequence."""
    result = np.asarray(offsets)
    return result[1:] - result[:-1]


def with_lod(x: Any, data: Array) -> Any:
    """The data with the LoD of x, if it has one."""
    return LoDTensor(data, x.lod) if isinstance(x, LoDTensor) else data


# Fluid's axis broadcasting in terms of numpy's broadcasting.


def align(x: Array, y: Array, axis: int) -> tuple[Array, Array]:
    """x and y with trailing dims of size 1 appended to the one of lower rank, so that numpy aligns it at dim `axis`.

    With axis -1 the last dims are aligned, as numpy does by itself.
    """
    if axis >= 0 and x.ndim != y.ndim:
        if x.ndim < y.ndim:
            return x.reshape(x.shape + (1,) * (y.ndim - axis - x.ndim)), y
        return x, y.reshape(y.shape + (1,) * (x.ndim - axis - y.ndim))
    return x, y


def aligned_kernel(op: Op, function: Callable[[Array, Array], Array]) -> Run:
    """The kernel of an op that is a function of X and Y, aligned at the op's attribute `axis`."""
    axis = int_attr(op, "axis", -1)

    def run(X: Array, Y: Array) -> Array:
        return function(X, Y)

    def run_aligned(X: Array, Y: Array) -> Array:
        if X.ndim - Y.ndim == axis:  # the usual case: numpy broadcasts the same way
            return function(X, Y)
        return function(*align(X, Y, axis))

    return run if axis < 0 else run_aligned


def aligned_expression(op: Op, expression: str, *conditions: str) -> str:
    """`expression`, which numpy broadcasts, where numpy aligns X and Y as the op's attribute `axis` says and the
    conditions hold; otherwise a call of the kernel.
    """
    axis = int_attr(op, "axis", -1)
    tests = [*([f"{{X}}.ndim - {{Y}}.ndim == {axis}"] if axis >= 0 else []), *conditions]
    return f"{expression} if {' and '.join(tests)} else {{call}}" if tests else expression


_REUSED = 1 << 14
"""The least elements of an array whose memory is reused for a result: to make a smaller one takes less time than to
find out whether the result fits.
"""


def register_ufuncs(names: Mapping[str, str]) -> None:
    """Registers kernels for ops that are ufuncs of X and Y: op type -> name of the ufunc."""

    def inline(op: Op) -> str | None:
        text = f"np.{names[op.type]}({{X}}, {{Y}})"
        if OVER in op.attrs and int_attr(op, "axis", -1) >= 0:
            return None  # the kernel puts the result where X is, also if X is small
        conditions = [f"{{X}}.size < {_REUSED}"] if OVER in op.attrs else []
        return aligned_expression(op, text, *conditions)

    def make(op: Op) -> Run:
        ufunc = getattr(np, names[op.type])
        return aligned_kernel(op, partial(_over_first, ufunc) if OVER in op.attrs else ufunc)

    kernel(" ".join(names), inline=inline, new=True, reuses=True)(make)


def _over_first(ufunc: Callable[..., Array], x: Array, y: Array) -> Array:
    """The result of a ufunc of x and y, in the memory of x if it has the dims and dtype of the result."""
    if x.__class__ is y.__class__ is np.ndarray and x.dtype == y.dtype and _fits_in(y.shape, x.shape):
        return ufunc(x, y, out=x if x.flags.writeable else None)
    return ufunc(x, y)


@lru_cache(maxsize=1024)
def _fits_in(narrow: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    """Whether broadcasting the shape `narrow` with `wide` gives `wide`."""
    start = len(wide) - len(narrow)
    return start >= 0 and all(n in (1, w) for n, w in zip(narrow, wide[start:], strict=True))


def sum_to(gradient: Array, shape: tuple[int, ...], axis: int) -> Array:
    """A gradient of the broadcast shape, summed over the dims that were broadcast from `shape`."""
    if gradient.shape == shape:
        return gradient
    repeated = _broadcast_axes(gradient.shape, shape, axis)
    return sum_over(gradient, repeated).reshape(shape)


@lru_cache(maxsize=1024)
def _broadcast_axes(wide: tuple[int, ...], narrow: tuple[int, ...], axis: int) -> tuple[int, ...]:
    start = axis if axis >= 0 and len(wide) != len(narrow) else len(wide) - len(narrow)
    end = start + len(narrow)
    return tuple(at for at in range(len(wide)) if not start <= at < end or narrow[at - start] == 1)


def numpy_dtype(number: int) -> str:
    """numpy's name of an element type given by Fluid's number. Raises ValueError for an unknown number."""
    return NUMPY_TYPES[DType(number)]


def formula(
    op_type: str,
    expression: str | Callable[[Op], str],
    output: str = "Out",
    *,
    lod: str = "share",
    over: str | None = None,
    new: bool = False,
) -> None:
    """Registers the kernel of an op that is one numpy expression of its inputs, written like a kernel's `inline`.

    The expression, or the result of a function of the op, is the only definition; calls and generated code both use it.
    `$name` stands for the FLOAT attribute `name`. `over` and `new` are those of `kernel`.
    """

    def expand_attributes(op: Op) -> str:
        text = expression(op) if callable(expression) else expression
        return re.sub(r"\$(\w+)", lambda name: repr(real(op, name[1])), text)

    constant = isinstance(expression, str) and "$" not in expression
    kernel(op_type, output, lod=lod, inline=expression if constant else expand_attributes, over=over, new=new)(
        lambda op: _function(expand_attributes(op))
    )


@lru_cache(maxsize=1024)
def _function(expression: str) -> Run:
    """A function that computes an expression. `{X}` and `{Out_GRAD}` become its parameters, in order of appearance."""
    names: dict[str, str] = _RecordedNames()
    body = expression.format_map(names)
    return eval(f"lambda {', '.join(names)}: {body}", {"np": np, **FUNCTIONS, **NUMBERS})


class _RecordedNames(dict[str, str]):
    """A mapping that records every name that is looked up."""

    def __missing__(self, name: str) -> str:
        self[name] = name
        return name


def truncated_quotient(x: Array, y: Array | int) -> Array:
    """x / y of integers, rounded toward zero. Raises ValueError where y has a zero."""
    if not np.all(y):
        raise ValueError("an integer is divided by zero")
    quotient = np.floor_divide(x, y)
    return quotient + ((quotient < 0) & (quotient * y != x))


def as_matrix(x: Array, split: int = 1) -> Array:
    """x as a matrix: dims before `split` are the rows, the others the columns. (A dim of -1 is unknown if x has no
    elements.)
    """
    if split == x.ndim - 1 and x.size:  # the usual case
        return x if split == 1 else x.reshape(-1, x.shape[-1])
    return x.reshape(prod(x.shape[:split]), prod(x.shape[split:]))


def integers_from(tensor: Array | None, parts: Sequence[Array] | None, attribute: Dims) -> Dims:
    """Integers from a tensor, else from a list of tensors with one element each, else from an attribute."""
    if tensor is not None:
        return tuple(int(number) for number in tensor.reshape(-1))
    return tuple(int(first_number(part)) for part in parts or ()) or attribute


def reduced_axes(op: Op) -> Callable[[int], tuple[int, ...]]:
    """A function from the rank of X to the dims that an op reduces, as non-negative numbers."""
    dims = None if flag(op, "reduce_all") else ints_attr(op, "dim")

    @lru_cache(8)
    def axes(rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if dims is None else tuple([dim % rank for dim in dims])

    return axes


def at_least_1d(value: Array) -> Array:
    """The value as an array of at least one dim, because Fluid has no 0-d tensors."""
    return np.asarray(value).reshape(-1) if np.ndim(value) == 0 else value


def first_number(value: Array) -> Any:
    """The first element as a Python number."""
    return value.item(0)


_NARROW = 32


def largest_along(x: Array, axis: int) -> Array:
    """The largest element along an axis, which is kept as a dim of 1."""
    width = x.shape[axis]
    if axis % x.ndim != x.ndim - 1 or not 1 < width <= _NARROW or x.size < 8 * width:
        return np.maximum.reduce(x, axis=axis, keepdims=True)
    # numpy reduces short rows one at a time, but columns in bulk
    return np.maximum.reduce(x.reshape(-1, width).T.copy(), axis=0).reshape(*x.shape[:-1], 1)


def below_largest(x: Array, axis: int, over: bool = False) -> Array:
    """Logits minus the largest one along an axis, limited below by -64 as in Fluid; with `over` computed in the memory
    of x.
    """
    if axis in (-1, x.ndim - 1):
        shifted = x if over else np.empty(x.shape, x.dtype)
        if loops.below_largest(x, shifted, LEAST_LOGIT):
            return shifted
    shifted = np.subtract(x, largest_along(x, axis), out=x if over else None)
    return np.maximum(shifted, _least(x.dtype), out=shifted)


LEAST_LOGIT = -64
"""The limit below of logits minus the largest one, as in Fluid."""


@lru_cache(8)
def _least(kind: Any) -> Array:
    """The lower limit of `below_largest` as a 0-d array, which numpy handles faster than a number."""
    return np.array(LEAST_LOGIT, kind)


_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def all_ids(ids: Array, count: int) -> bool:
    """Whether all ids are in 0 .. count - 1. A view as unsigned integers makes negative ids large."""
    if not ids.size:
        return True
    unsigned = ids.view(_UNSIGNED[ids.itemsize])
    return unsigned.item(unsigned.argmax()) < count  # argmax takes less time than a reduction


def check_ids(ids: Array, count: int, what: str) -> None:
    """Raises ValueError naming `what` unless all ids are in 0 .. count - 1, because numpy would take -1 for the last
    row.
    """
    if not all_ids(ids, count):
        wrong = first_number(ids[(ids < 0) | (ids >= count)])
        raise ValueError(f"{what} {wrong} is not in 0 to {count - 1}")
