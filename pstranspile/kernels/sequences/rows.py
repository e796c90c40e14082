"""Kernels. Ragged sequences whose rows are repeated, joined, looked at in windows, or grouped anew."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.arithmetic import dot
from pstranspile.ir.model import Op
from pstranspile.kernels.kernel import Run, kernel, plain_kernel, wanted
from pstranspile.kernels.numeric import as_matrix, formula
from pstranspile.kernels.ragged import plain, row_counts, runs_between, sequences, with_lod
from pstranspile.ops.attributes import int_attr, real
from pstranspile.values import Array, LoDTensor


class _Expansion:
    """How sequence_expand repeats X: `rows` of X in the order of the output, and the LoD of the output."""

    def __init__(self, op: Op, x: Any, y: Any):
        _, y_lod = sequences(y, "Y")
        level = int_attr(op, "ref_level", -1)
        if not -1 <= level < len(y_lod):
            raise ValueError(f"ref_level is {level}, Y has {len(y_lod)} levels of LoD")
        times = row_counts(y_lod[level])
        self.data = plain(x)
        offsets: list[int] = x.lod[0] if isinstance(x, LoDTensor) else list(range(len(self.data) + 1))
        if len(offsets) - 1 != len(times):
            raise ValueError(f"X has {len(offsets) - 1} sequences, level {level} of Y has {len(times)}")
        starts, lengths = np.asarray(offsets[:-1], np.int64), row_counts(offsets)
        starts, lengths = np.repeat(starts, times), np.repeat(lengths, times)
        ends = np.cumsum(lengths)
        self.rows = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
        self.lod = [[0, *ends.tolist()]] if isinstance(x, LoDTensor) else None


@kernel("sequence_expand", lod="own")
def _run_sequence_expand(op: Op) -> Run:
    def run(X: Any, Y: Any) -> object:
        expansion = _Expansion(op, X, Y)
        out = expansion.data[expansion.rows]
        return out if expansion.lod is None else LoDTensor(out, expansion.lod)

    return run


@kernel("sequence_expand_grad", "X@GRAD", lod="own")
def _run_sequence_expand_grad(op: Op) -> Run:
    def run(X: Any, Y: Any, Out_GRAD: Any) -> object:
        expansion = _Expansion(op, X, Y)
        out = np.zeros_like(expansion.data)
        np.add.at(out, expansion.rows, plain(Out_GRAD))
        return LoDTensor(out, X.lod) if isinstance(X, LoDTensor) else out

    return run


def _joined_order(lods: list[list[int]]) -> tuple[Array, list[int]]:
    """Rows of all parts, one after another, in the order of the joined sequences; the offsets of these."""
    if len({len(offsets) for offsets in lods}) > 1:
        raise ValueError(f"the parts have {', '.join(str(len(offsets) - 1) for offsets in lods)} sequences")
    firsts = np.cumsum([0, *[offsets[-1] for offsets in lods]])
    pieces: list[Array] = []
    ends = [0]
    for number in range(len(lods[0]) - 1):
        for first, offsets in zip(firsts, lods, strict=False):
            pieces.append(np.arange(first + offsets[number], first + offsets[number + 1]))
        ends.append(ends[-1] + sum(offsets[number + 1] - offsets[number] for offsets in lods))
    return np.concatenate(pieces) if pieces else np.arange(0), ends


@plain_kernel("sequence_concat", lod="own")
def _run_sequence_concat(X: list[Any]) -> LoDTensor:
    parts = [sequences(x, "X") for x in X]
    order, ends = _joined_order([lod[-1] for _, lod in parts])
    return LoDTensor(np.concatenate([data for data, _ in parts])[order], [ends])


@plain_kernel("sequence_concat_grad", "X@GRAD", lod="own")
def _run_sequence_concat_grad(X: list[Any], Out_GRAD: Any) -> list[LoDTensor]:
    parts = [sequences(x, "X") for x in X]
    order, _ = _joined_order([lod[-1] for _, lod in parts])
    grad = plain(Out_GRAD)
    apart = np.empty_like(grad)
    apart[order] = grad
    cuts = np.cumsum([len(data) for data, _ in parts])[:-1]
    return [LoDTensor(part, lod) for part, (_, lod) in zip(np.split(apart, cuts), parts, strict=True)]


class _Windows(NamedTuple):
    """The rows around each row: `rows[i, k]` is the k-th row around row i, or any where that is in no sequence.

    `outside` are the places in `rows`, counted through, that are in none; row i + shift[k] is the k-th row around i.
    """

    rows: Array
    outside: Array
    shifts: range

    def gather(self, x: Array) -> Array:
        """[rows, contextLength * width]: zeros where a window reaches out of its sequence."""
        windows = x.take(self.rows, axis=0)
        self.clear(windows)
        return as_matrix(windows)

    def clear(self, windows: Array) -> None:
        """Puts zeros where windows [rows, contextLength, ...] reach out of their sequences."""
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


@kernel("lod_reset", lod="new")
def _run_lod_reset(op: Op) -> Run:
    def run(X: Any, Y: Any = None) -> LoDTensor:
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

    return run


@plain_kernel("lod_reset_grad", "X@GRAD", lod="own")
def _run_lod_reset_grad(X: Any, Out_GRAD: Any) -> object:
    grad = plain(Out_GRAD).copy()
    return LoDTensor(grad, X.lod) if isinstance(X, LoDTensor) else grad


def _encoding(positions: Array, width: int) -> Array:
    """[positions, width]: sines, then cosines, of wave lengths that grow from 2 pi to 10000 times that."""
    half = width // 2
    steps = np.arange(half) / (half - 1) if half > 1 else np.ones(1)
    angles = positions[:, None] / 10000.0**steps
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


@kernel("add_position_encoding", lod="own")
def _add_position_encoding_values(op: Op) -> Run:
    alpha, beta = real(op, "alpha"), real(op, "beta")

    def run(X: Array | LoDTensor) -> Array | LoDTensor:
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

    return run


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
    x, (_, lod) = plain(X), sequences(Y, "Y")
    grad = np.zeros_like(x)
    np.add.at(grad, np.repeat(np.arange(len(x)), _repeats(x, lod)), plain(Out_GRAD))
    return with_lod(X, grad)


@plain_kernel("row_conv", lod="own")
def _row_conv(X: Any, Filter: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    out = np.zeros_like(x)
    for start, stop in pairwise(lod[-1]):
        for ahead in range(min(len(Filter), stop - start)):
            out[start : stop - ahead] += x[start + ahead : stop] * Filter[ahead]
    return LoDTensor(out, lod)


@plain_kernel("row_conv_grad", "X@GRAD Filter@GRAD", lod="own")
def _row_conv_grad(X: Any, Filter: Any, Out_GRAD: Any) -> tuple[Array, Array]:
    x, lod = sequences(X, "X")
    grad = plain(Out_GRAD)
    x_grad, filter_grad = np.zeros_like(x), np.zeros_like(Filter)
    for start, stop in pairwise(lod[-1]):
        for ahead in range(min(len(Filter), stop - start)):
            x_grad[start + ahead : stop] += grad[start : stop - ahead] * Filter[ahead]
            filter_grad[ahead] += (grad[start : stop - ahead] * x[start + ahead : stop]).sum(axis=0)
    return x_grad, filter_grad
