"""Kernels. Ragged sequences expanded, concatenated, convolved and encoded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, real
from pstranspile.runtime.arithmetic import dot, sum_runs
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel, wanted
from pstranspile.runtime.kernels.numeric import as_matrix, formula
from pstranspile.runtime.kernels.ragged import plain, row_counts, runs_between, sequences, with_lod
from pstranspile.runtime.kernels.rows import add_rows
from pstranspile.runtime.values import Array, LoDTensor


class _Expansion(NamedTuple):
    """How sequence_expand repeats X: the `rows` of X in output order, and the offsets of the output.

    `times` is the number of repeats of each row of X, if every sequence of X is one row. Calls with the same LoD share
    this value.
    """

    rows: Array
    offsets: list[int]
    times: tuple[int, ...] | None


@lru_cache(64)
def _expansion(x: tuple[int, ...] | None, y: tuple[int, ...]) -> _Expansion:
    """The expansion, from the offsets of X (None without LoD) and those of the level of Y."""
    times = row_counts(y)
    offsets = np.arange(len(y)) if x is None else np.asarray(x, np.int64)
    starts, lengths = offsets[:-1].repeat(times), np.diff(offsets).repeat(times)
    ends = lengths.cumsum()
    rows = np.arange(int(lengths.sum())) + (starts - (ends - lengths)).repeat(lengths)
    return _Expansion(rows, [0, *ends.tolist()], tuple(times.tolist()) if (np.diff(offsets) == 1).all() else None)


def _expanded(op: Op, x: Any, y: Any) -> _Expansion:
    _, y_lod = sequences(y, "Y")
    level = int_attr(op, "ref_level", -1)
    if not -1 <= level < len(y_lod):
        raise ValueError(f"ref_level is {level}, Y has {len(y_lod)} levels of LoD")
    offsets = tuple(x.lod[0]) if isinstance(x, LoDTensor) else None
    count = len(x) if offsets is None else len(offsets) - 1
    if count != len(y_lod[level]) - 1:
        raise ValueError(f"X has {count} sequences, level {level} of Y has {len(y_lod[level]) - 1}")
    return _expansion(offsets, tuple(y_lod[level]))


@plain_kernel("sequence_expand", lod="own")
def _run_sequence_expand(X: Any, Y: Any, *, op: Op) -> object:
    expansion = _expanded(op, X, Y)
    out = plain(X).take(expansion.rows, axis=0)
    return LoDTensor(out, [[*expansion.offsets]]) if isinstance(X, LoDTensor) else out


@plain_kernel("sequence_expand_grad", "X@GRAD", lod="own")
def _run_sequence_expand_grad(X: Any, Y: Any, Out_GRAD: Any, *, op: Op) -> object:
    expansion, grad = _expanded(op, X, Y), plain(Out_GRAD)
    if expansion.times is not None:
        return with_lod(X, _sums(grad, expansion.times))
    out = np.zeros_like(plain(X))
    add_rows(out, expansion.rows, grad)
    return with_lod(X, out)


def _sums(x: Array, lengths: tuple[int, ...]) -> Array:
    """The sum of each of several runs of rows that make up x; zeros for an empty run."""
    starts, counts, filled, _ = runs_between((0, *accumulate(lengths)))
    if filled:
        return sum_runs(x, starts, counts)
    result = np.zeros((len(counts), *x.shape[1:]), x.dtype)
    if len(x):
        result[counts > 0] = sum_runs(x, starts[counts > 0], counts[counts > 0])
    return result


@lru_cache(64)
def _joined_order(lods: tuple[tuple[int, ...], ...]) -> tuple[Array, list[int]]:
    """The concatenated rows of all parts in the order of the joined sequences, and the offsets of these."""
    if len({len(offsets) for offsets in lods}) > 1:
        raise ValueError(f"the parts have {', '.join(str(len(offsets) - 1) for offsets in lods)} sequences")
    lengths = np.stack([row_counts(offsets) for offsets in lods], axis=1)  # [sequences, parts]
    before = np.cumsum([0, *[offsets[-1] for offsets in lods[:-1]]])
    starts = np.stack([np.asarray(offsets[:-1], np.int64) for offsets in lods], axis=1) + before
    counts = lengths.reshape(-1)
    moved = starts.reshape(-1) - (counts.cumsum() - counts)
    return np.arange(counts.sum()) + moved.repeat(counts), [0, *lengths.sum(axis=1).cumsum().tolist()]


@plain_kernel("sequence_concat", lod="own")
def _run_sequence_concat(X: list[Any]) -> LoDTensor:
    parts = [sequences(x, "X") for x in X]
    order, ends = _joined_order(tuple(tuple(lod[-1]) for _, lod in parts))
    return LoDTensor(np.concatenate([data for data, _ in parts]).take(order, axis=0), [[*ends]])


@plain_kernel("sequence_concat_grad", "X@GRAD", lod="own")
def _run_sequence_concat_grad(X: list[Any], Out_GRAD: Any) -> list[LoDTensor]:
    parts = [sequences(x, "X") for x in X]
    order, _ = _joined_order(tuple(tuple(lod[-1]) for _, lod in parts))
    grad = plain(Out_GRAD)
    apart = np.empty_like(grad)
    apart[order] = grad
    ends = list(accumulate(len(data) for data, _ in parts))
    return [LoDTensor(apart[end - len(data) : end], lod) for end, (data, lod) in zip(ends, parts, strict=True)]


class _Windows(NamedTuple):
    """The rows around each row: `rows[i, k]` is the k-th row around row i, or an arbitrary one outside of the sequence.

    `outside` are flat indices into `rows` of positions outside of the sequence. The k-th row around i is i + shift[k].
    """

    rows: Array
    outside: Array
    shifts: range

    def gather(self, x: Array) -> Array:
        """[rows, contextLength * width], with zeros outside of the sequence."""
        windows = x.take(self.rows, axis=0)
        self.clear(windows)
        return as_matrix(windows)

    def clear(self, windows: Array) -> None:
        """Zeroes the positions of windows [rows, contextLength, ...] outside of their sequences."""
        windows.reshape(-1, *windows.shape[2:])[self.outside] = 0


def _windows(op: Op, offsets: Sequence[int]) -> _Windows:
    length, start = int_attr(op, "contextLength"), int_attr(op, "contextStart")
    if op.attrs["contextStride"] != 1:
        raise ValueError(f"contextStride is {op.attrs['contextStride']}, it must be 1")
    return _windows_between(tuple(offsets), start, length)


@lru_cache(64)
def _windows_between(offsets: tuple[int, ...], start: int, length: int) -> _Windows:
    starts, lengths, _, _ = runs_between(offsets)
    first = starts.repeat(lengths)[:, None]
    rows = np.arange(offsets[-1])[:, None] + np.arange(start, start + length)
    outside = (rows < first) | (rows >= first + lengths.repeat(lengths)[:, None])
    rows[outside] = 0
    return _Windows(rows, outside.reshape(-1).nonzero()[0], range(start, start + length))


def _refuse_padding(op: Op) -> None:
    if op.attrs["paddingTrainable"]:
        raise ValueError("trainable padding (paddingTrainable) can't be run")


@kernel("sequence_conv", lod="own")
def _run_sequence_conv(op: Op) -> Run:
    _refuse_padding(op)

    def run(X: Any, Filter: Any) -> LoDTensor:
        x, lod = sequences(X, "X")
        return LoDTensor(dot(_windows(op, lod[-1]).gather(x), Filter), lod)

    return run


@kernel("sequence_conv_grad", "X@GRAD Filter@GRAD", lod="own")
def _run_sequence_conv_grad(op: Op) -> Run:
    _refuse_padding(op)

    def run(X: Any, Filter: Any, Out_GRAD: Any) -> tuple[object, object]:
        x, lod = sequences(X, "X")
        windows, grad = _windows(op, lod[-1]), plain(Out_GRAD)
        filter_grad = dot(windows.gather(x), grad, transpose_a=True) if wanted(op, "Filter@GRAD") else None
        if not wanted(op, "X@GRAD"):
            return None, filter_grad
        spread = dot(grad, Filter, transpose_b=True).reshape(*windows.rows.shape, *x.shape[1:])
        windows.clear(spread)
        x_grad, count = np.zeros(x.shape, x.dtype), len(x)
        for column in reversed(range(len(windows.shifts))):  # sums are in the order of windows
            shift = windows.shifts[column]
            low, high = max(0, -shift), min(count, count - shift)
            if low < high:
                x_grad[low + shift : high + shift] += spread[low:high, column]
        return LoDTensor(x_grad, lod), filter_grad

    return run


@plain_kernel("lod_reset", lod="new")
def _run_lod_reset(X: Any, Y: Any = None, *, op: Op) -> LoDTensor:
    x = plain(X)
    if isinstance(Y, LoDTensor):
        lod = Y.lod
    else:
        offsets: Any = op.attrs["target_lod"] if Y is None else Y.ravel()
        lod = [[int(offset) for offset in offsets]]
    if op.attrs["append"] and isinstance(X, LoDTensor) and not isinstance(Y, LoDTensor):
        lod = [*X.lod, *lod]
    if not lod[-1] or lod[-1][0] != 0 or lod[-1][-1] != len(x) or (row_counts(lod[-1]) < 0).any():
        raise ValueError(f"the offsets {lod[-1]} must rise from 0 to {len(x)}, the number of rows of X")
    return LoDTensor(x.copy(), lod)


@plain_kernel("lod_reset_grad", "X@GRAD", lod="own")
def _run_lod_reset_grad(X: Any, Out_GRAD: Any) -> object:
    grad = plain(Out_GRAD).copy()
    return LoDTensor(grad, X.lod) if isinstance(X, LoDTensor) else grad


def _encoding(positions: Array, width: int) -> Array:
    """[positions, width]: sines, then cosines, with wavelengths from 2 pi to 10000 times that."""
    half = width // 2
    steps = np.arange(half) / (half - 1) if half > 1 else np.ones(1)
    angles = positions[:, None] / 10000.0**steps
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


@plain_kernel("add_position_encoding", lod="own")
def _add_position_encoding_values(X: Array | LoDTensor, *, alpha: float, beta: float) -> Array | LoDTensor:
    x = plain(X)
    if x.shape[-1] % 2:
        raise ValueError(f"the last dim of X is {x.shape[-1]}, it must be even: half sines, half cosines")
    if isinstance(X, LoDTensor):
        lengths = row_counts(X.lod[0])
        positions = np.arange(len(x)) - np.repeat(X.lod[0][:-1], lengths)
    else:
        if x.ndim != 3:
            raise ValueError(f"X has no LoD and {x.ndim} dims, it must have 3: sequences, positions, columns")
        positions = np.arange(x.shape[1])
    result = alpha * x + (beta * _encoding(positions, x.shape[-1])).astype(x.dtype)
    return LoDTensor(result, X.lod) if isinstance(X, LoDTensor) else result


formula("add_position_encoding_grad", lambda op: f"{real(op, 'alpha')!r} * {{Out_GRAD}}", "X@GRAD", lod="none")


def _repeats(x: Array, lod: list[list[int]]) -> Any:
    if len(lod) != 1 or len(lod[0]) - 1 != len(x):
        raise ValueError(f"X has {len(x)} rows, Y must have one LoD level with as many sequences")
    return row_counts(lod[0])


@plain_kernel("sequence_expand_as", lod="own")
def _expand_as(X: Any, Y: Any) -> LoDTensor:
    x, (_, lod) = plain(X), sequences(Y, "Y")
    return LoDTensor(np.repeat(x, _repeats(x, lod), axis=0), lod)


@plain_kernel("sequence_expand_as_grad", "X@GRAD", lod="own")
def _expand_as_grad(X: Any, Y: Any, Out_GRAD: Any) -> Any:
    _, lod = sequences(Y, "Y")
    return with_lod(X, _sums(plain(Out_GRAD), tuple(_repeats(plain(X), lod).tolist())))


@lru_cache(64)
def _continued(offsets: tuple[int, ...], ahead: int) -> Array:
    """The rows whose sequence continues for at least this many rows after them."""
    ends = np.asarray(offsets[1:], np.int64).repeat(row_counts(offsets))
    return np.flatnonzero(np.arange(offsets[-1]) + ahead < ends)


@plain_kernel("row_conv", lod="own")
def _row_conv(X: Any, Filter: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    out = x * Filter[0]
    for ahead in range(1, len(Filter)):
        rows = _continued(tuple(lod[-1]), ahead)
        out[rows] += x.take(rows + ahead, axis=0) * Filter[ahead]
    return LoDTensor(out, lod)


@plain_kernel("row_conv_grad", "X@GRAD Filter@GRAD", lod="own")
def _row_conv_grad(X: Any, Filter: Any, Out_GRAD: Any) -> tuple[Array, Array]:
    x, lod = sequences(X, "X")
    grad = plain(Out_GRAD)
    x_grad, filter_grad = grad * Filter[0], np.empty_like(Filter)
    filter_grad[0] = np.add.reduce(grad * x, axis=0)
    for ahead in range(1, len(Filter)):
        rows = _continued(tuple(lod[-1]), ahead)
        given, later = grad.take(rows, axis=0), rows + ahead
        x_grad[later] += given * Filter[ahead]
        filter_grad[ahead] = np.add.reduce(given * x.take(later, axis=0), axis=0)
    return x_grad, filter_grad
