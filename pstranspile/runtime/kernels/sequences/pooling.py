"""Kernels. Pooling and softmax of ragged sequences.

For `sequence_topk_avg_pooling` a sequence of X is a block [channels, rows, columns], whose rows and columns are as many
as the same sequence of ROW and COLUMN has. A row of Out holds, for each channel and each k of `topks`, the sum of the k
largest numbers of that row divided by k (even if there are fewer). `pos` holds, for each row and channel, the columns
of the largest numbers, padded with -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.runtime.arithmetic import shares_of_runs, sum_runs
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import as_matrix
from pstranspile.runtime.kernels.ragged import plain, row_counts, runs_between, sequences, side_by_side, upper
from pstranspile.runtime.values import Array, LoDTensor


def _column(values: Array, like: Array) -> Array:
    """One number for each sequence, with dims that broadcast to the rows of `like`."""
    return values.astype(like.dtype).reshape(-1, *[1] * (like.ndim - 1))


def _divisor(pool: str, lengths: Array) -> Array:
    return np.sqrt(lengths) if pool == "SQRT" else lengths


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

    def pooled(x: Array, starts: Array, lengths: Array) -> Array:
        if pool in ("FIRST", "LAST"):
            return x.take(starts if pool == "FIRST" else starts + lengths - 1, axis=0)
        total = sum_runs(x, starts, lengths)
        return total if pool == "SUM" else total / _column(_divisor(pool, lengths), x)

    def run(X: Any) -> tuple[object, object]:
        x, lod = sequences(X, "X")
        offsets = lod[-1]
        starts, lengths, full, even = runs_between(tuple(offsets))
        if full:  # the usual case
            if pool == "MAX":
                out, index = _largest(x, offsets, index_wanted)
                return upper(out, lod), index
            return upper(x.copy() if even == 1 else pooled(x, starts, lengths), lod), None
        out = np.full((len(lengths), *x.shape[1:]), empty, x.dtype)
        index = np.full(out.shape, -1, np.int32) if index_wanted else None
        filled = lengths > 0
        if filled.any() and pool == "MAX":
            out[filled], result = _largest(x, [0, *lengths[filled].cumsum().tolist()], index_wanted)
            if index is not None:
                index[filled] = result
        elif filled.any():
            out[filled] = pooled(x, starts[filled], lengths[filled])
        return upper(out, lod), index

    return run


def _largest(x: Array, offsets: Sequence[int], index_wanted: bool) -> tuple[Array, Array | None]:
    """The largest values of every sequence, none of them empty, and, if wanted, the first rows of x that hold them.

    NaN is the largest of its column.
    """
    starts, lengths, _, _ = runs_between(tuple(offsets))
    padded = side_by_side(x, offsets)
    if padded is not None:
        largest = np.maximum.reduce(padded[0], axis=1)
        first = starts.reshape(-1, *(1 for _ in x.shape[1:]))
        return largest, (padded[0].argmax(axis=1) + first).astype(np.int32) if index_wanted else None
    largest = np.maximum.reduceat(x, starts, axis=0)
    if not index_wanted:
        return largest, None
    holds = x == largest.repeat(lengths, axis=0)
    holds |= x != x
    rows = np.arange(len(x), dtype=np.int32).reshape(-1, *(1 for _ in x.shape[1:]))
    return largest, np.minimum.reduceat(np.where(holds, rows, np.int32(len(x))), starts, axis=0)


@plain_kernel("sequence_pool_grad", "X@GRAD", lod="own")
def _run_sequence_pool_grad(X: Any, MaxIndex: Any, Out_GRAD: Any, *, pool: str = per_op(_pool_type)) -> LoDTensor:
    x, lod = sequences(X, "X")
    grad = plain(Out_GRAD)
    starts, lengths, full, _ = runs_between(tuple(lod[-1]))
    if pool in ("SUM", "AVERAGE", "SQRT"):
        if pool != "SUM":
            grad = grad / _column(_divisor(pool, np.maximum(lengths, 1)), grad)
        return LoDTensor(grad.repeat(lengths, axis=0), lod)
    out = np.zeros(x.shape, x.dtype)
    if pool == "MAX":
        rows, columns = as_matrix(plain(MaxIndex)), as_matrix(grad)
        places = rows.astype(np.int64) * columns.shape[1] + np.arange(columns.shape[1])
        if not full:
            places, columns = places[rows >= 0], columns[rows >= 0]
        out.reshape(-1)[places] = columns
    else:
        filled = lengths > 0
        out[(starts if pool == "FIRST" else starts + lengths - 1)[filled]] = grad[filled]
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
    starts, lengths, full, _ = runs_between(tuple(offsets))
    return (starts, lengths) if full else (starts[lengths > 0], lengths[lengths > 0])


@plain_kernel("sequence_softmax_grad", "X@GRAD", lod="own")
def _run_sequence_softmax_grad(X: Any, Out: Any, Out_GRAD: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    out, grad = plain(Out).reshape(len(x)), plain(Out_GRAD).reshape(len(x))
    starts, lengths = _non_empty(lod[-1])
    if len(starts):
        grad = (grad - sum_runs(out * grad, starts, lengths).repeat(lengths)) * out
    return LoDTensor(grad.reshape(x.shape), lod)


def _checked(op: Op) -> tuple[tuple[int, ...], int]:
    """`topks` and the number of channels. Raises ValueError unless they are positive and `topks` ascends."""
    topks, channels = ints_attr(op, "topks"), int_attr(op, "channel_num")
    if not topks or list(topks) != sorted(set(topks)) or topks[0] < 1:
        raise ValueError(f"topks is {list(topks)}, it must be positive numbers in ascending order")
    if channels < 1:
        raise ValueError(f"channel_num is {channels}, it must be positive")
    return topks, channels


def _blocks(x: Any, row: Any, column: Any, channels: int) -> list[tuple[int, int, int]]:
    """The start, rows and columns of each sequence of X. Raises ValueError if the lengths don't fit."""
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
    """For every sequence its slice of X, the dims of its block, and its rows of Out."""
    ends = np.cumsum([0, *(rows for _, rows, _ in blocks)]).tolist()
    for (start, rows, columns), (first, last) in zip(blocks, pairwise(ends), strict=True):
        yield slice(start, start + channels * rows * columns), (channels, rows, columns), slice(first, last)


@kernel("sequence_topk_avg_pooling", "Out pos", lod="own")
def _pool(op: Op) -> Run:
    topks, channels = _checked(op)
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
    topks, channels = _checked(op)
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
