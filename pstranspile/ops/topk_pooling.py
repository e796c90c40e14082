"""Kernels of `sequence_topk_avg_pooling`: averages of the largest elements of every row of ragged matrices.

A sequence of X is a block [channels, rows, columns], as many rows and columns as the same sequence of ROW and COLUMN
has. A row of Out holds, for each channel and each k of `topks`, the sum of the k largest numbers of that row divided by
k (also where there are fewer). `pos` holds, for each row and channel, the columns of the largest numbers, -1 where
there are no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.lod import plain, row_counts, sequences
from pstranspile.ops.numeric import as_matrix
from pstranspile.ops.shapes import Types, given, int_attr, ints_attr, one, shape_rule
from pstranspile.ops.values import Array, LoDTensor

np = lazy_import("numpy")


def _checked(op: Op) -> tuple[tuple[int, ...], int]:
    """The numbers k and how many channels there are. Raises ValueError unless they are positive and in order."""
    topks, channels = ints_attr(op, "topks"), int_attr(op, "channel_num")
    if not topks or list(topks) != sorted(set(topks)) or topks[0] < 1:
        raise ValueError(f"topks is {list(topks)}, it must be positive numbers in ascending order")
    if channels < 1:
        raise ValueError(f"channel_num is {channels}, it must be positive")
    return topks, channels


def _blocks(x: Any, row: Any, column: Any, channels: int) -> list[tuple[int, int, int]]:
    """Where each sequence of X starts, and its rows and columns. Raises ValueError if X has others."""
    (_, x_lod), (_, row_lod), (_, column_lod) = sequences(x, "X"), sequences(row, "ROW"), sequences(column, "COLUMN")
    rows, columns = row_counts(row_lod[-1]), row_counts(column_lod[-1])
    sizes = row_counts(x_lod[-1])
    if len(rows) != len(sizes) or len(columns) != len(sizes) or (channels * rows * columns != sizes).any():
        raise ValueError(
            f"the sequences of X are {sizes.tolist()} long: they must be channel_num {channels} times {rows.tolist()} "
            f"rows of ROW times {columns.tolist()} rows of COLUMN"
        )
    return list(zip(x_lod[-1][:-1], rows.tolist(), columns.tolist(), strict=True))


def _found(blocks: list[tuple[int, int, int]], channels: int) -> Iterator[tuple[slice, tuple[int, int, int], slice]]:
    """For every sequence its numbers in X, the dims of its block, and its rows of Out."""
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
        for numbers, dims, rows in _found(blocks, channels):
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
        for numbers, dims, rows in _found(blocks, channels):
            chosen = places[at : at + dims[0] * dims[1]].reshape(dims[1], dims[0], most)
            at += dims[0] * dims[1]
            row, channel, rank = np.nonzero(chosen >= 0)
            block = grad[numbers].reshape(dims)
            block[channel, row, chosen[row, channel, rank]] = shares[rows][row, channel, rank]
        return LoDTensor(grad.reshape(x.shape), lod)

    return run


@shape_rule("sequence_topk_avg_pooling")
def _pool_types(op: Op, types: Types) -> Types:
    x, row = one(types, "X"), given(types, "ROW")
    width = len(ints_attr(op, "topks")) * int_attr(op, "channel_num")
    return {"Out": (TensorType(x.dtype, (-1, width), row.lod_level if row is not None else x.lod_level),)}
