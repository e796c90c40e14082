"""Kernels. Ragged sequences expanded, concatenated, convolved and encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr, real
from pstranspile.runtime.arithmetic import dot, loops, shares_of_runs, sum_runs
from pstranspile.runtime.kernels.kernel import Run, has_output, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import (
    as_matrix,
    formula,
    plain,
    row_counts,
    runs_between,
    sequences,
    side_by_side,
    upper,
    with_lod,
)
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
    """The expansion of X, from the offsets of X (None without LoD) and those of the chosen level of Y."""
    times = row_counts(y)
    offsets = np.arange(len(y)) if x is None else np.asarray(x, np.int64)
    starts, lengths = offsets[:-1].repeat(times), np.diff(offsets).repeat(times)
    ends = lengths.cumsum()
    rows = np.arange(int(lengths.sum())) + (starts - (ends - lengths)).repeat(lengths)
    return _Expansion(rows, [0, *ends.tolist()], tuple(times.tolist()) if (np.diff(offsets) == 1).all() else None)


def _find_expansion(op: Op, x: Any, y: Any) -> _Expansion:
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
    expansion = _find_expansion(op, X, Y)
    out = plain(X).take(expansion.rows, axis=0)
    return LoDTensor(out, [[*expansion.offsets]]) if isinstance(X, LoDTensor) else out


@plain_kernel("sequence_expand_grad", "X@GRAD", lod="own")
def _run_sequence_expand_grad(X: Any, Y: Any, Out_GRAD: Any, *, op: Op) -> object:
    expansion, grad = _find_expansion(op, X, Y), plain(Out_GRAD)
    if expansion.times is not None:
        return with_lod(X, _sums(grad, expansion.times))
    out = np.zeros_like(plain(X))
    add_rows(out, expansion.rows, grad)
    return with_lod(X, out)


def _sums(x: Array, lengths: tuple[int, ...]) -> Array:
    """The sum of each of several runs of rows that make up x; zeros for an empty run."""
    starts, counts, filled, _, _ = runs_between((0, *accumulate(lengths)))
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

    `outside_positions` are flat indices into `rows` of positions outside of the sequence. The k-th row around i is
    i + shift[k].
    """

    rows: Array
    outside_positions: Array
    shifts: range

    def gather(self, x: Array) -> Array:
        """The windows of rows x, [rows, contextLength * width], with zeros outside of the sequence."""
        windows = x.take(self.rows, axis=0)
        self.clear(windows)
        return as_matrix(windows)

    def clear(self, windows: Array) -> None:
        """Zeroes the positions of windows [rows, contextLength, ...] outside of their sequences."""
        windows.reshape(-1, *windows.shape[2:])[self.outside_positions] = 0


def _gather_and_spread(
    op: Op,
) -> tuple[Callable[[Array, list[int]], Array], Callable[[Array, list[int], Array], Array]]:
    """Functions of rows x and their offsets: one gives the windows of rows, [rows, contextLength * width], with zeros
    outside of the sequence; the other the sums of all occurrences of each row in given windows.
    """
    length, start = int_attr(op, "contextLength"), int_attr(op, "contextStart")

    def refuse() -> None:
        if op.attrs["contextStride"] != 1:
            raise ValueError(f"contextStride is {op.attrs['contextStride']}, it must be 1")

    def gather(x: Array, offsets: list[int]) -> Array:
        refuse()
        windows = np.empty((len(x), length * x[:1].size), x.dtype)
        if len(x) and loops.unfold_runs(x, _ends_of_filled(tuple(offsets)), start, length, windows):
            return windows
        return _windows_between(tuple(offsets), start, length).gather(x)

    def spread(x: Array, offsets: list[int], windows: Array) -> Array:
        refuse()
        result, count = np.zeros(x.shape, x.dtype), len(x)
        if count and loops.fold_runs(result, _ends_of_filled(tuple(offsets)), start, length, windows):
            return result
        places = _windows_between(tuple(offsets), start, length)
        parts = windows.reshape(*places.rows.shape, *x.shape[1:])
        places.clear(parts)
        for column in reversed(range(length)):  # sums are in the order of windows
            shift = places.shifts[column]
            low, high = max(0, -shift), min(count, count - shift)
            if low < high:
                result[low + shift : high + shift] += parts[low:high, column]
        return result

    return gather, spread


@lru_cache(64)
def _ends_of_filled(offsets: tuple[int, ...]) -> Array:
    """The offsets without those of empty sequences."""
    starts, lengths, filled, _, ends = runs_between(offsets)
    return ends if filled else np.append(starts[lengths > 0], ends[-1:])


@lru_cache(64)
def _windows_between(offsets: tuple[int, ...], start: int, length: int) -> _Windows:
    starts, lengths, _, _, _ = runs_between(offsets)
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
    gather, _ = _gather_and_spread(op)

    def run(X: Any, Filter: Any) -> LoDTensor:
        x, lod = sequences(X, "X")
        return LoDTensor(dot(gather(x, lod[-1]), Filter), lod)

    return run


@kernel("sequence_conv_grad", "X@GRAD Filter@GRAD", lod="own")
def _run_sequence_conv_grad(op: Op) -> Run:
    _refuse_padding(op)
    gather, spread = _gather_and_spread(op)

    def run(X: Any, Filter: Any, Out_GRAD: Any) -> tuple[object, object]:
        x, lod = sequences(X, "X")
        grad = plain(Out_GRAD)
        filter_grad = dot(gather(x, lod[-1]), grad, transpose_a=True) if has_output(op, "Filter@GRAD") else None
        if not has_output(op, "X@GRAD"):
            return None, filter_grad
        return LoDTensor(spread(x, lod[-1], dot(grad, Filter, transpose_b=True)), lod), filter_grad

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
    """Position encodings [positions, width]: sines, then cosines, with wavelengths from 2 pi to 10000 * 2 pi."""
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
def _rows_with_successors(offsets: tuple[int, ...], ahead: int) -> Array:
    """The numbers of the rows after which their sequence has at least `ahead` further rows."""
    ends = np.asarray(offsets[1:], np.int64).repeat(row_counts(offsets))
    return np.flatnonzero(np.arange(offsets[-1]) + ahead < ends)


def _require_row_filter(weights: Array) -> None:
    """Raises ValueError unless a filter has a row for each row ahead."""
    if weights.ndim != 2:
        raise ValueError(f"Filter has dims {list(weights.shape)}, and not [rows ahead, width]")


@plain_kernel("row_conv", lod="own")
def _row_conv(X: Any, Filter: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    _require_row_filter(Filter)
    out = x * Filter[0]
    for ahead in range(1, len(Filter)):
        rows = _rows_with_successors(tuple(lod[-1]), ahead)
        out[rows] += x.take(rows + ahead, axis=0) * Filter[ahead]
    return LoDTensor(out, lod)


@plain_kernel("row_conv_grad", "X@GRAD Filter@GRAD", lod="own")
def _row_conv_grad(X: Any, Filter: Any, Out_GRAD: Any) -> tuple[Array, Array]:
    x, lod = sequences(X, "X")
    _require_row_filter(Filter)
    grad = plain(Out_GRAD)
    x_grad, filter_grad = grad * Filter[0], np.empty_like(Filter)
    filter_grad[0] = np.add.reduce(grad * x, axis=0)
    for ahead in range(1, len(Filter)):
        rows = _rows_with_successors(tuple(lod[-1]), ahead)
        given, later = grad.take(rows, axis=0), rows + ahead
        x_grad[later] += given * Filter[ahead]
        filter_grad[ahead] = np.add.reduce(given * x.take(later, axis=0), axis=0)
    return x_grad, filter_grad


# Kernels. Pooling and softmax of ragged sequences.
#
# For `sequence_topk_avg_pooling` a sequence of X is a block [channels, rows, columns], whose rows and columns are as
# many as the same sequence of ROW and COLUMN has. A row of Out holds, for each channel and each k of `topks`, the sum
# of the k largest numbers of that row divided by k (even if there are fewer). `pos` holds, for each row and channel,
# the columns of the largest numbers, padded with -1.


@lru_cache(64)
def _divisors(offsets: tuple[int, ...], pool: str, dtype: Any, rank: int) -> Array:
    """The number by which the sum of each sequence is divided, with trailing dims that broadcast to rows of a tensor of
    this rank; 1 for an empty sequence. Calls with the same offsets share the array.
    """
    lengths = np.maximum(runs_between(offsets)[1], 1)
    divisors = (np.sqrt(lengths) if pool == "SQRT" else lengths).astype(dtype).reshape(-1, *[1] * (rank - 1))
    divisors.setflags(write=False)
    return divisors


@lru_cache(64)
def _columns(width: int) -> Array:
    """The array of 0 to width - 1."""
    columns = np.arange(width)
    columns.setflags(write=False)
    return columns


_POOLS = ("SUM", "AVERAGE", "SQRT", "MAX", "LAST", "FIRST")


def _pool_type(op: Op) -> str:
    pool = str(op.attrs["pooltype"])
    if pool not in _POOLS:
        raise ValueError(f"pooltype is {pool}, it must be one of {', '.join(_POOLS)}")
    return pool


@kernel("sequence_pool", "Out MaxIndex", lod="own")
def _run_sequence_pool(op: Op) -> Run:
    pool, empty = _pool_type(op), op.attrs["pad_value"]
    index_wanted = pool == "MAX" and not op.attrs["is_test"]

    def pool_sequences(x: Array, starts: Array, lengths: Array, offsets: tuple[int, ...]) -> Array:
        if pool in ("FIRST", "LAST"):
            return x.take(starts if pool == "FIRST" else starts + lengths - 1, axis=0)
        total = sum_runs(x, starts, lengths)
        if pool != "SUM":
            total = total / _divisors(offsets, pool, x.dtype, x.ndim)
        return total

    def run(X: Any) -> tuple[object, object]:
        x, lod = sequences(X, "X")
        offsets = tuple(lod[-1])
        starts, lengths, full, even, _ = runs_between(offsets)
        if full:  # the usual case
            if pool == "MAX":
                out, index = _largest(x, offsets)
                return upper(out, lod), index if index_wanted else None
            return upper(x.copy() if even == 1 else pool_sequences(x, starts, lengths, offsets), lod), None
        out = np.full((len(lengths), *x.shape[1:]), empty, x.dtype)
        index = np.full(out.shape, -1, np.int32) if index_wanted else None
        filled = lengths > 0
        if filled.any() and pool == "MAX":
            out[filled], result = _largest(x, [0, *lengths[filled].cumsum().tolist()])
            if index is not None:
                index[filled] = result
        elif filled.any():
            ends = (0, *lengths[filled].cumsum().tolist())
            out[filled] = pool_sequences(x, starts[filled], lengths[filled], ends)
        return upper(out, lod), index

    return run


def _largest(x: Array, offsets: Sequence[int]) -> tuple[Array, Array]:
    """The largest values of every sequence, none of them empty, and the first rows of x that hold them.

    NaN is the largest of its column.
    """
    starts, lengths, _, _, ends = runs_between(tuple(offsets))
    out, index = np.empty((len(starts), *x.shape[1:]), x.dtype), np.empty((len(starts), *x.shape[1:]), np.int32)
    if loops.largest_of_runs(x, ends, out, index):
        return out, index
    padded = side_by_side(x, offsets)
    if padded is not None:
        within, first = padded[0].argmax(axis=1), starts.reshape(-1, *(1 for _ in x.shape[1:]))
        return np.take_along_axis(padded[0], within[:, None], axis=1)[:, 0], (within + first).astype(np.int32)
    largest = np.maximum.reduceat(x, starts, axis=0)
    holds = x == largest.repeat(lengths, axis=0)
    holds |= x != x
    rows = np.arange(len(x), dtype=np.int32).reshape(-1, *(1 for _ in x.shape[1:]))
    index = np.minimum.reduceat(np.where(holds, rows, np.int32(len(x))), starts, axis=0)
    return np.take_along_axis(x, index, axis=0), index


@plain_kernel("sequence_pool_grad", "X@GRAD", lod="own")
def _run_sequence_pool_grad(X: Any, MaxIndex: Any, Out_GRAD: Any, *, pool: str = per_op(_pool_type)) -> LoDTensor:
    x, lod = sequences(X, "X")
    grad = plain(Out_GRAD)
    starts, lengths, full, _, ends = runs_between(tuple(lod[-1]))
    if pool in ("SUM", "AVERAGE", "SQRT"):
        if pool != "SUM":
            grad = grad / _divisors(tuple(lod[-1]), pool, grad.dtype, grad.ndim)
        return LoDTensor(grad.repeat(lengths, axis=0), lod)
    if pool == "MAX":
        out = np.empty(x.shape, x.dtype)
        if loops.put_largest(out, plain(MaxIndex), grad):
            return LoDTensor(out, lod)
    out = np.zeros(x.shape, x.dtype)
    if pool == "MAX":
        rows, columns = as_matrix(plain(MaxIndex)), as_matrix(grad)
        places = rows.astype(np.int64)
        places *= columns.shape[1]
        places += _columns(columns.shape[1])
        if not full:
            places, columns = places[rows >= 0], columns[rows >= 0]
        out.reshape(-1)[places] = columns
    else:
        rows = starts if pool == "FIRST" else ends[1:] - 1
        if full:  # the usual case
            out[rows] = grad
        else:
            out[rows[lengths > 0]] = grad[lengths > 0]
    return LoDTensor(out, lod)


@plain_kernel("sequence_softmax", lod="own")
def _run_sequence_softmax(X: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    starts, lengths = _non_empty(lod[-1])
    if x.size != len(x):
        raise ValueError(f"X has {x.size // len(x)} numbers in a row, it must have one")
    if not len(starts):
        return LoDTensor(x.copy(), lod)
    return LoDTensor(shares_of_runs(x.reshape(-1), starts, lengths).reshape(x.shape), lod)


def _non_empty(offsets: list[int]) -> tuple[Array, Array]:
    """Starts and lengths of the sequences that are not empty."""
    starts, lengths, full, _, _ = runs_between(tuple(offsets))
    return (starts, lengths) if full else (starts[lengths > 0], lengths[lengths > 0])


@plain_kernel("sequence_softmax_grad", "X@GRAD", lod="own")
def _run_sequence_softmax_grad(X: Any, Out: Any, Out_GRAD: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    out, grad = plain(Out).reshape(len(x)), plain(Out_GRAD).reshape(len(x))
    starts, lengths = _non_empty(lod[-1])
    if len(starts):
        grad = (grad - sum_runs(out * grad, starts, lengths).repeat(lengths)) * out
    return LoDTensor(grad.reshape(x.shape), lod)


def _topks_and_channels(op: Op) -> tuple[tuple[int, ...], int]:
    """`topks` and the number of channels. Raises ValueError unless they are positive and `topks` ascends."""
    topks, channels = ints_attr(op, "topks"), int_attr(op, "channel_num")
    if not topks or list(topks) != sorted(set(topks)) or topks[0] < 1:
        raise ValueError(f"topks is {list(topks)}, it must be positive numbers in ascending order")
    if channels < 1:
        raise ValueError(f"channel_num is {channels}, it must be positive")
    return topks, channels


def _blocks(x: Any, row: Any, column: Any, channels: int) -> list[tuple[int, int, int]]:
    """For each sequence of X: (start, rows, columns) of its block. Raises ValueError if the lengths don't fit."""
    (_, x_lod), (_, row_lod), (_, column_lod) = sequences(x, "X"), sequences(row, "ROW"), sequences(column, "COLUMN")
    rows, columns = row_counts(row_lod[-1]), row_counts(column_lod[-1])
    sizes = row_counts(x_lod[-1])
    if len(rows) != len(sizes) or len(columns) != len(sizes) or (channels * rows * columns != sizes).any():
        raise ValueError(
            f"the sequences of X are {sizes.tolist()} long: they must be channel_num {channels} times {rows.tolist()} "
            f"rows of ROW times {columns.tolist()} rows of COLUMN"
        )
    return list(zip(x_lod[-1][:-1], rows.tolist(), columns.tolist(), strict=True))


def _layout(blocks: list[tuple[int, int, int]], channels: int) -> Iterator[tuple[slice, tuple[int, int, int], slice]]:
    """Yields, for every sequence, its slice of X, the dims of its block, and its slice of Out's rows."""
    ends = np.cumsum([0, *(rows for _, rows, _ in blocks)]).tolist()
    for (start, rows, columns), (first, last) in zip(blocks, pairwise(ends), strict=True):
        yield slice(start, start + channels * rows * columns), (channels, rows, columns), slice(first, last)


@kernel("sequence_topk_avg_pooling", "Out pos", lod="own")
def _pool(op: Op) -> Run:
    topks, channels = _topks_and_channels(op)
    most = topks[-1]

    def run(X: Any, ROW: Any, COLUMN: Any) -> tuple[LoDTensor, Array]:
        blocks = _blocks(X, ROW, COLUMN, channels)
        x = plain(X).reshape(-1)
        _, lod = sequences(ROW, "ROW")
        out = np.zeros((lod[-1][-1], channels, len(topks)), x.dtype)
        places: list[Array] = [np.zeros(0, np.int32)]
        for numbers, dims, rows in _layout(blocks, channels):
            block = x[numbers].reshape(dims)
            order = np.argsort(-block, axis=2, kind="stable")[:, :, :most]
            pos = np.full((*dims[:2], most), -1, np.int32)
            pos[:, :, : order.shape[2]] = order
            places.append(pos.swapaxes(0, 1).reshape(-1))
            largest = np.take_along_axis(block, order, axis=2)
            for at, k in enumerate(topks):
                out[rows, :, at] = (largest[:, :, :k].sum(axis=2) / k).T
        return LoDTensor(as_matrix(out), lod), np.concatenate(places)

    return run


@kernel("sequence_topk_avg_pooling_grad", "X@GRAD", lod="own")
def _pool_grad(op: Op) -> Run:
    topks, channels = _topks_and_channels(op)
    most = topks[-1]

    def run(X: Any, ROW: Any, COLUMN: Any, pos: Any, Out_GRAD: Any) -> LoDTensor:
        blocks = _blocks(X, ROW, COLUMN, channels)
        x, lod = sequences(X, "X")
        grad = np.zeros(x.size, x.dtype)
        out_grad = plain(Out_GRAD).reshape(-1, channels, len(topks))
        shares = np.zeros((*out_grad.shape[:2], most), x.dtype)
        for at, k in enumerate(topks):
            shares[:, :, :k] += out_grad[:, :, at : at + 1] / k
        places, at = plain(pos).reshape(-1, most), 0
        for numbers, dims, rows in _layout(blocks, channels):
            chosen = places[at : at + dims[0] * dims[1]].reshape(dims[1], dims[0], most)
            at += dims[0] * dims[1]
            row, channel, rank = np.nonzero(chosen >= 0)
            block = grad[numbers].reshape(dims)
            block[channel, row, chosen[row, channel, rank]] = shares[rows][row, channel, rank]
        return LoDTensor(grad.reshape(x.shape), lod)

    return run


# Kernels. Sequences compared word by word: matrices of matches, and convolution over images of any size.


def _pairs(x: Any, y: Any) -> list[tuple[slice, slice]]:
    """For each sequence: (slice of its rows of X, slice of its rows of Y). Raises ValueError if X and Y have different
    numbers of sequences.
    """
    (_, x_lod), (_, y_lod) = sequences(x, "X"), sequences(y, "Y")
    if len(x_lod[0]) != len(y_lod[0]):
        raise ValueError(f"X has {len(x_lod[0]) - 1} sequences, Y has {len(y_lod[0]) - 1}")
    spans = ([slice(*ends) for ends in pairwise(lod[0])] for lod in (x_lod, y_lod))
    return list(zip(*spans, strict=True))


def _ragged_from_parts(parts: list[Array], dtype: Any) -> LoDTensor:
    """Parts of any dims as the sequences of a ragged value with one column."""
    ends = np.cumsum([0, *(part.size for part in parts)]).tolist()
    flat = [np.zeros(0, dtype), *(part.reshape(-1) for part in parts)]
    return LoDTensor(np.concatenate(flat).reshape(-1, 1), [ends])


@plain_kernel("match_matrix_tensor", "Out Tmp", lod="own")
def _match_matrix_tensor(X: Any, Y: Any, W: Any) -> tuple[LoDTensor, Array]:
    x, y, w = plain(X), plain(Y), plain(W)
    moved = np.tensordot(x, w, 1)  # [words of X, dim_t, width of Y]
    made = [moved[a].swapaxes(0, 1) @ y[b].T for a, b in _pairs(X, Y)]
    return _ragged_from_parts(made, x.dtype), moved.reshape(-1, 1)


@plain_kernel("match_matrix_tensor_grad", "X@GRAD Y@GRAD W@GRAD", lod="own")
def _match_matrix_tensor_grad(X: Any, Y: Any, W: Any, Tmp: Any, Out_GRAD: Any) -> tuple[LoDTensor, LoDTensor, Array]:
    x, y, w = plain(X), plain(Y), plain(W)
    moved, grad = plain(Tmp).reshape(len(x), *w.shape[1:]), plain(Out_GRAD).reshape(-1)
    moved_grad, y_grad, at = np.zeros_like(moved), np.zeros_like(y), 0
    for a, b in _pairs(X, Y):
        dims = (w.shape[1], a.stop - a.start, b.stop - b.start)
        block = grad[at : at + dims[0] * dims[1] * dims[2]].reshape(dims)
        at += block.size
        moved_grad[a] = (block @ y[b]).swapaxes(0, 1)
        y_grad[b] = np.tensordot(block, moved[a], ((0, 1), (1, 0)))
    x_grad = moved_grad.reshape(len(x), -1) @ w.reshape(len(w), -1).T
    w_grad = np.tensordot(x, moved_grad, ((0,), (0,)))
    return LoDTensor(x_grad, sequences(X, "X")[1]), LoDTensor(y_grad, sequences(Y, "Y")[1]), w_grad


class _GridWindows(NamedTuple):
    """The windows of a convolution: the number of channels, and size and step of a window along rows and columns."""

    channels: int
    size: tuple[int, int]
    step: tuple[int, int]

    def positions(self, rows: int, columns: int) -> tuple[int, int]:
        """(number of windows down a column of an image, number along a row)."""
        return -(-rows // self.step[0]), -(-columns // self.step[1])

    def cells(self, rows: int, columns: int) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
        """Yields, for each element of a window, its row and column, and the slices of a padded image that hold this
        element of all windows.
        """
        down, along = self.positions(rows, columns)
        for y, x in np.ndindex(self.size):
            rows_read = slice(y, y + down * self.step[0], self.step[0])
            yield y, x, (rows_read, slice(x, x + along * self.step[1], self.step[1]))

    def padded_dims(self, rows: int, columns: int) -> tuple[int, int]:
        """The dims of a padded image."""
        return rows + self.size[0] + self.step[0], columns + self.size[1] + self.step[1]

    def image_slices(self, rows: int, columns: int) -> tuple[slice, slice]:
        """The slices of the padded image that hold the image."""
        top, left = self.size[0] // 2, self.size[1] // 2
        return slice(top, top + rows), slice(left, left + columns)


def _grid_windows(op: Op) -> _GridWindows:
    names = ("InputChannel", "KernelH", "KernelW", "StrideH", "StrideW")
    channels, *others = (int_attr(op, name, 1) for name in names)
    if min(channels, *others) < 1:
        raise ValueError(f"{', '.join(names)} must be positive")
    return _GridWindows(channels, (others[0], others[1]), (others[2], others[3]))


def _images(x: Any, row: Any, column: Any) -> list[tuple[int, int, int]]:
    """For each sequence of X: (start, rows, columns) of its image. Raises ValueError if the numbers of sequences
    differ.
    """
    starts, rows, columns = (sequences(of, slot)[1][0] for of, slot in ((x, "X"), (row, "ROW"), (column, "COLUMN")))
    if not len(starts) == len(rows) == len(columns):
        raise ValueError(f"X has {len(starts) - 1} sequences, ROW {len(rows) - 1} and COLUMN {len(columns) - 1}")
    return list(zip(starts[:-1], row_counts(rows).tolist(), row_counts(columns).tolist(), strict=True))


def _numbers(x: Array, start: int, dims: tuple[int, int, int]) -> Array:
    """The image that begins at element `start` of X. As in Fluid, it may extend into the following images; beyond the
    last one it is 0.
    """
    count = dims[0] * dims[1] * dims[2]
    held = x[start : start + count]
    return np.concatenate([held, np.zeros(count - len(held), x.dtype)]).reshape(dims)


@plain_kernel("var_conv_2d", "Out Col", lod="own")
def _var_conv_2d(
    X: Any, ROW: Any, COLUMN: Any, W: Any, *, of: _GridWindows = per_op(_grid_windows)
) -> tuple[LoDTensor, LoDTensor]:
    x, w = plain(X).reshape(-1), plain(W)
    taken: list[Array] = []
    for start, rows, columns in _images(X, ROW, COLUMN):
        image = np.zeros((of.channels, *of.padded_dims(rows, columns)), x.dtype)
        numbers = _numbers(x, start, (of.channels, rows, columns))
        image[(..., *of.image_slices(rows, columns))] = numbers
        made = np.zeros((of.channels, *of.size, *of.positions(rows, columns)), x.dtype)
        for down, along, spans in of.cells(rows, columns) if numbers.size else ():
            made[:, down, along] = image[(..., *spans)]
        taken.append(made.reshape(w.shape[1], -1) if numbers.size else made[..., :0, :0].reshape(w.shape[1], 0))
    return _ragged_from_parts([w @ part for part in taken], x.dtype), _ragged_from_parts(taken, x.dtype)


@plain_kernel("var_conv_2d_grad", "X@GRAD W@GRAD", lod="own")
def _var_conv_2d_grad(
    X: Any,
    W: Any,
    ROW: Any,
    COLUMN: Any,
    Col: Any,
    Out: Any,
    Out_GRAD: Any,
    *,
    of: _GridWindows = per_op(_grid_windows),
) -> tuple[LoDTensor, Array]:
    x, lod = sequences(X, "X")
    w, taken, grad = plain(W), plain(Col).reshape(-1), plain(Out_GRAD).reshape(-1)
    x_grad, w_grad, at = np.zeros(x.size, x.dtype), np.zeros_like(w), 0
    for start, rows, columns in _images(X, ROW, COLUMN):
        down, along = of.positions(rows, columns) if rows * columns else (0, 0)
        ends = at + down * along
        slopes = grad[at * len(w) : ends * len(w)].reshape(len(w), -1)
        w_grad += slopes @ taken[at * w.shape[1] : ends * w.shape[1]].reshape(w.shape[1], -1).T
        at = ends
        if not slopes.size:
            continue
        spread = (w.T @ slopes).reshape(of.channels, *of.size, down, along)
        image = np.zeros((of.channels, *of.padded_dims(rows, columns)), x.dtype)
        for y, z, spans in of.cells(rows, columns):
            image[(..., *spans)] += spread[:, y, z]
        numbers = image[(..., *of.image_slices(rows, columns))].reshape(-1)[: x.size - start]
        x_grad[start : start + len(numbers)] += numbers
    return LoDTensor(x_grad.reshape(x.shape), lod), w_grad


# Kernels. Convolution over the nodes of trees.
#
# A tree is given by its edges [parent, child] with nodes counted from 1. The first edge with a 0 ends them. The subtree
# of a node are the nodes below it, down to `max_depth` levels with the node itself. Each gets three weights: for its
# depth, and for its place from the left and from the right among the children of its parent.


def _children(edges: Array, room: int) -> list[list[int]]:
    """The children of each node, nodes counted from 0. Raises ValueError for nodes without room."""
    full = (edges != 0).all(axis=1)
    count = int(full.sum()) + 1
    given = edges[: len(edges) if full.all() else int(full.argmin())] - 1
    if count > room or (given < 0).any() or (given >= count).any():
        raise ValueError(f"{count - 1} edges are a tree of {count} nodes, of {room}: the edges name other nodes")
    children: list[list[int]] = [[] for _ in range(count)]
    for parent, child in given:
        children[int(parent)].append(int(child))
    return children


def _subtree(root: int, levels: int, children: list[list[int]]) -> list[tuple[int, int, int, int]]:
    """The nodes of a subtree: (node, its place among its siblings from 1, number of siblings, depth)."""
    found, seen, open_nodes = [(root, 1, 1, 0)], {root}, [(root, 0)]
    while open_nodes:
        node, depth = open_nodes[-1]
        new = (
            [(at, child) for at, child in enumerate(children[node]) if child not in seen] if depth + 1 < levels else []
        )
        if not new:
            open_nodes.pop()
        for at, child in new:
            seen.add(child)
            open_nodes.append((child, depth + 1))
            found.append((child, at + 1, len(children[node]), depth + 1))
    return found


def _weights(edges: Array, room: int, levels: int, kind: np.dtype[np.generic]) -> Array:
    """The weights of each node in the subtree of each node, [3, subtrees, nodes]: by the place from the left, from the
    right, and by depth.
    """
    weights = np.zeros((3, room, room), kind)
    children = _children(edges, room)
    rows = [(root, *entry) for root in range(len(children)) for entry in _subtree(root, levels, children)]
    root, node, place, siblings, depth = np.array(rows).T
    top = (levels - depth) / levels
    left = (1 - top) * np.where(siblings == 1, 0.5, (place - 1) / np.maximum(siblings - 1, 1))
    weights[:, root, node] = left, (1 - top) * (1 - left), top
    return weights


@plain_kernel("tree_conv", lod="none")
def _tree_conv(NodesVector: Array, EdgeSet: Array, Filter: Array, *, max_depth: int) -> Array:
    out = np.zeros((*NodesVector.shape[:2], *Filter.shape[2:]), NodesVector.dtype)
    for tree, (nodes, edges) in enumerate(zip(NodesVector, EdgeSet, strict=True)):
        weights = _weights(edges, len(nodes), max_depth, nodes.dtype)
        out[tree] = np.tensordot(weights @ nodes, Filter, ((0, 2), (1, 0)))
    return out


@plain_kernel("tree_conv_grad", "NodesVector@GRAD Filter@GRAD", lod="none")
def _tree_conv_grad(
    Out_GRAD: Array, Filter: Array, EdgeSet: Array, NodesVector: Array, *, max_depth: int
) -> tuple[Array, Array]:
    nodes_grad, filter_grad = np.zeros_like(NodesVector), np.zeros_like(Filter)
    for tree, (nodes, edges) in enumerate(zip(NodesVector, EdgeSet, strict=True)):
        weights = _weights(edges, len(nodes), max_depth, nodes.dtype)
        spread = np.tensordot(Out_GRAD[tree], Filter, ((1, 2), (2, 3)))  # [subtrees, width, 3]
        nodes_grad[tree] = np.einsum("kuv,ufk->vf", weights, spread)
        filter_grad += np.tensordot(weights @ nodes, Out_GRAD[tree], ((1,), (0,))).swapaxes(0, 1)
    return nodes_grad, filter_grad
