"""Kernels. Ragged sequences padded, cut, reversed and enumerated."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import numpy_dtype
from pstranspile.runtime.kernels.ragged import plain, row_counts, sequences, with_lod
from pstranspile.runtime.values import Array, LoDTensor


def _offsets(lengths: list[int]) -> list[int]:
    """The offsets of sequences of these lengths."""
    return [0, *accumulate(lengths)]


@plain_kernel("sequence_enumerate", lod="own")
def _enumerate(X: Any, *, win_size: int, pad_value: int) -> LoDTensor:
    x, lod = sequences(X, "X")
    ends = np.repeat(np.asarray(lod[-1][1:], np.int64), row_counts(lod[-1]))[:, None]
    places = np.arange(len(x))[:, None] + np.arange(win_size)
    inside = places < ends
    return LoDTensor(np.where(inside, x.reshape(-1)[np.where(inside, places, 0)], pad_value).astype(x.dtype), lod)


@kernel("sequence_erase", lod="own")
def _erase(op: Op) -> Run:
    tokens = list(ints_attr(op, "tokens"))

    def run(X: Any) -> LoDTensor:
        x, lod = sequences(X, "X")
        kept = ~np.isin(x.reshape(-1), tokens)
        counts = np.concatenate([[0], np.cumsum(kept)])
        return LoDTensor(x[kept], [*lod[:-1], counts[lod[-1]].tolist()])

    return run


@kernel("sequence_mask", "Y", lod="none")
def _mask(op: Op) -> Run:
    kind, given = numpy_dtype(int_attr(op, "out_dtype")), int_attr(op, "maxlen", -1)

    def run(X: Array, MaxLenTensor: Array | None = None) -> Array:
        longest = given if MaxLenTensor is None else int(MaxLenTensor.reshape(-1)[0])
        if longest < 0:
            longest = int(X.max()) if X.size else 0
        return (np.arange(longest) < X[..., None]).astype(kind)

    return run


class _Padding:
    """The positions of sequences' rows in a tensor that holds every sequence in `length` rows."""

    def __init__(self, lengths: list[int], length: int):
        longest = max(lengths, default=0)
        length = longest if length < 0 else length
        if length < longest:
            raise ValueError(f"a sequence has {longest} rows, more than the padded length {length}")
        self.dims = len(lengths), length
        self.inside = None if min(lengths, default=0) == length else np.arange(length) < np.array(lengths)[:, None]
        """The places that hold rows; None: all."""

    def taken(self, padded: Array) -> Array:
        """The rows of the sequences, concatenated in new memory."""
        if self.inside is None and padded.shape[:2] == self.dims:
            return padded.reshape(prod(self.dims), *padded.shape[2:]).copy()
        return padded[self._places()]

    def put(self, padded: Array, rows: Array) -> None:
        """Writes the rows of the sequences to their positions."""
        if self.inside is None and padded.shape[:2] == self.dims:
            padded[...] = rows.reshape(padded.shape)
        else:
            padded[self._places()] = rows

    def _places(self) -> Array:
        return np.ones(self.dims, bool) if self.inside is None else self.inside


@plain_kernel("sequence_pad", "Out Length", lod="own")
def _pad(X: Any, PadValue: Any, *, padded_length: int = -1) -> tuple[Array, Array]:
    x, lod = sequences(X, "X")
    lengths = row_counts(lod[-1])
    padding = _Padding(lengths.tolist(), padded_length)
    value = plain(PadValue)
    out = np.empty((*padding.dims, *x.shape[1:]), x.dtype)
    out[...] = value.reshape(()) if value.size == 1 else value.reshape(x.shape[1:])
    padding.put(out, x)
    return out, lengths.astype("int64")


@plain_kernel("sequence_pad_grad", "X@GRAD", lod="own")
def _pad_grad(X: Any, Out_GRAD: Any, *, padded_length: int = -1) -> LoDTensor:
    _, lod = sequences(X, "X")
    return LoDTensor(_Padding(row_counts(lod[-1]).tolist(), padded_length).taken(plain(Out_GRAD)), lod)


@plain_kernel("sequence_unpad", lod="new")
def _unpad(X: Any, Length: Any) -> LoDTensor:
    x, lengths = plain(X), plain(Length).reshape(-1).tolist()
    rows = _Padding(lengths, x.shape[1]).taken(x)
    return LoDTensor(rows if rows.ndim > 1 else rows[:, None], [_offsets(lengths)])


@plain_kernel("sequence_unpad_grad", "X@GRAD", lod="own")
def _unpad_grad(X: Any, Out_GRAD: Any) -> Any:
    x, (rows, lod) = plain(X), sequences(Out_GRAD, "Out@GRAD")
    grad = np.zeros_like(x)
    _Padding(row_counts(lod[-1]).tolist(), x.shape[1]).put(grad, rows.reshape(-1, *x.shape[2:]))
    return with_lod(X, grad)


@plain_kernel("sequence_reshape", lod="own")
def _reshape(X: Any, *, new_dim: int) -> LoDTensor:
    x, lod = sequences(X, "X")
    sizes = np.asarray(lod[-1]) * x.shape[1]
    if (sizes % new_dim).any():
        raise ValueError(f"a sequence of X can't be cut into rows of {new_dim} numbers")
    return LoDTensor(x.reshape(-1, new_dim).copy(), [*lod[:-1], (sizes // new_dim).tolist()])


@plain_kernel("sequence_reshape_grad", "X@GRAD", lod="own")
def _reshape_grad(X: Any, Out_GRAD: Any) -> Any:
    return with_lod(X, plain(Out_GRAD).reshape(plain(X).shape).copy())


@plain_kernel("sequence_reverse", "Y", lod="own")
def _reverse(X: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    lengths = row_counts(lod[-1])
    firsts, ends = np.asarray(lod[-1][:-1], np.int64), np.asarray(lod[-1][1:], np.int64)
    return LoDTensor(x[np.repeat(firsts + ends - 1, lengths) - np.arange(len(x))], lod)


def _targets(ids: Any) -> tuple[Array, Array]:
    """For every id its row (the number of its sequence) and its column (the id)."""
    columns, lod = sequences(ids, "Ids")
    return np.repeat(np.arange(len(lod[-1]) - 1), row_counts(lod[-1])), columns.reshape(-1)


@plain_kernel("sequence_scatter", lod="own")
def _scatter(X: Any, Ids: Any, Updates: Any) -> Any:
    out = plain(X).copy()
    rows, columns = _targets(Ids)
    if columns.size and (columns.min() < 0 or columns.max() >= out.shape[1]):
        raise ValueError(f"Ids must be columns of X, 0 to {out.shape[1] - 1}")
    np.add.at(out, (rows, columns), plain(Updates).reshape(-1))
    return with_lod(X, out)


@plain_kernel("sequence_scatter_grad", "X@GRAD Updates@GRAD", lod="own")
def _scatter_grad(Ids: Any, Updates: Any, Out_GRAD: Any) -> tuple[Any, Any]:
    grad = plain(Out_GRAD)
    return with_lod(Out_GRAD, grad.copy()), grad[_targets(Ids)].reshape(plain(Updates).shape)


def _parts(lod: list[list[int]], offset: Any, length: Any) -> tuple[Array, list[int]]:
    """The rows of parts of the sequences, and the offsets of the parts."""
    starts, sizes = plain(offset).reshape(-1), plain(length).reshape(-1)
    if len(starts) != len(lod[-1]) - 1 or len(sizes) != len(starts):
        raise ValueError(f"X has {len(lod[-1]) - 1} sequences, Offset and Length must have as many numbers")
    if (starts < 0).any() or (sizes < 0).any() or (starts + sizes > row_counts(lod[-1])).any():
        raise ValueError("Offset and Length reach beyond a sequence of X")
    firsts = np.asarray(lod[-1][:-1], np.int64) + starts
    pieces = [np.arange(first, first + size) for first, size in zip(firsts, sizes, strict=True)]
    return np.concatenate(pieces) if pieces else np.arange(0), _offsets(sizes.tolist())


@plain_kernel("sequence_slice", lod="own")
def _slice(X: Any, Offset: Any, Length: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    rows, offsets = _parts(lod, Offset, Length)
    return LoDTensor(x[rows], [offsets])


@plain_kernel("sequence_slice_grad", "X@GRAD", lod="own")
def _slice_grad(X: Any, Offset: Any, Length: Any, Out_GRAD: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    grad = np.zeros_like(x)
    grad[_parts(lod, Offset, Length)[0]] = plain(Out_GRAD)
    return LoDTensor(grad, lod)
