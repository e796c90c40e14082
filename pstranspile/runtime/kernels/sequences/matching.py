"""Kernels. Sequences compared word by word: matrices of matches, and convolution over images of any size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr
from pstranspile.runtime.kernels.kernel import per_op, plain_kernel
from pstranspile.runtime.kernels.ragged import plain, row_counts, sequences
from pstranspile.runtime.values import Array, LoDTensor


def _pairs(x: Any, y: Any) -> list[tuple[slice, slice]]:
    """The rows of X and of Y that are compared with each other. Raises ValueError for other counts of sequences."""
    (_, x_lod), (_, y_lod) = sequences(x, "X"), sequences(y, "Y")
    if len(x_lod[0]) != len(y_lod[0]):
        raise ValueError(f"X has {len(x_lod[0]) - 1} sequences, Y has {len(y_lod[0]) - 1}")
    spans = ([slice(*ends) for ends in pairwise(lod[0])] for lod in (x_lod, y_lod))
    return list(zip(*spans, strict=True))


def _ragged(parts: list[Array], dtype: Any) -> LoDTensor:
    """Parts of any dims as the sequences of one column."""
    ends = np.cumsum([0, *(part.size for part in parts)]).tolist()
    flat = [np.zeros(0, dtype), *(part.reshape(-1) for part in parts)]
    return LoDTensor(np.concatenate(flat).reshape(-1, 1), [ends])


@plain_kernel("match_matrix_tensor", "Out Tmp", lod="own")
def _match_matrix_tensor(X: Any, Y: Any, W: Any) -> tuple[LoDTensor, Array]:
    x, y, w = plain(X), plain(Y), plain(W)
    moved = np.tensordot(x, w, 1)  # [words of X, dim_t, width of Y]
    made = [moved[a].swapaxes(0, 1) @ y[b].T for a, b in _pairs(X, Y)]
    return _ragged(made, x.dtype), moved.reshape(-1, 1)


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


class _Windows(NamedTuple):
    """Where a convolution takes its numbers: channels, and for rows and columns the size and step of its windows."""

    channels: int
    size: tuple[int, int]
    step: tuple[int, int]

    def positions(self, rows: int, columns: int) -> tuple[int, int]:
        """How many windows an image has down and along."""
        return -(-rows // self.step[0]), -(-columns // self.step[1])

    def cells(self, rows: int, columns: int) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
        """Each place of a window, and the numbers of a padded image that all windows have there."""
        down, along = self.positions(rows, columns)
        for y, x in np.ndindex(self.size):
            rows_read = slice(y, y + down * self.step[0], self.step[0])
            yield y, x, (rows_read, slice(x, x + along * self.step[1], self.step[1]))

    def padded(self, rows: int, columns: int) -> tuple[int, int]:
        """The dims of a padded image."""
        return rows + self.size[0] + self.step[0], columns + self.size[1] + self.step[1]

    def inside(self, rows: int, columns: int) -> tuple[slice, slice]:
        """Where the image lies in the padded one."""
        top, left = self.size[0] // 2, self.size[1] // 2
        return slice(top, top + rows), slice(left, left + columns)


def _windows(op: Op) -> _Windows:
    names = ("InputChannel", "KernelH", "KernelW", "StrideH", "StrideW")
    channels, *others = (int_attr(op, name, 1) for name in names)
    if min(channels, *others) < 1:
        raise ValueError(f"{', '.join(names)} must be positive")
    return _Windows(channels, (others[0], others[1]), (others[2], others[3]))


def _images(x: Any, row: Any, column: Any) -> list[tuple[int, int, int]]:
    """Where the image of each sequence begins in X, its rows and its columns. Raises ValueError for other counts."""
    starts, rows, columns = (sequences(of, slot)[1][0] for of, slot in ((x, "X"), (row, "ROW"), (column, "COLUMN")))
    if not len(starts) == len(rows) == len(columns):
        raise ValueError(f"X has {len(starts) - 1} sequences, ROW {len(rows) - 1} and COLUMN {len(columns) - 1}")
    return list(zip(starts[:-1], row_counts(rows).tolist(), row_counts(columns).tolist(), strict=True))


def _numbers(x: Array, start: int, dims: tuple[int, int, int]) -> Array:
    """The image that begins at a number of X. As in Fluid, it may reach into the next ones; after the last come 0s."""
    count = dims[0] * dims[1] * dims[2]
    held = x[start : start + count]
    return np.concatenate([held, np.zeros(count - len(held), x.dtype)]).reshape(dims)


@plain_kernel("var_conv_2d", "Out Col", lod="own")
def _var_conv_2d(
    X: Any, ROW: Any, COLUMN: Any, W: Any, *, of: _Windows = per_op(_windows)
) -> tuple[LoDTensor, LoDTensor]:
    x, w = plain(X).reshape(-1), plain(W)
    taken: list[Array] = []
    for start, rows, columns in _images(X, ROW, COLUMN):
        image = np.zeros((of.channels, *of.padded(rows, columns)), x.dtype)
        numbers = _numbers(x, start, (of.channels, rows, columns))
        image[(..., *of.inside(rows, columns))] = numbers
        made = np.zeros((of.channels, *of.size, *of.positions(rows, columns)), x.dtype)
        for down, along, spans in of.cells(rows, columns) if numbers.size else ():
            made[:, down, along] = image[(..., *spans)]
        taken.append(made.reshape(w.shape[1], -1) if numbers.size else made[..., :0, :0].reshape(w.shape[1], 0))
    return _ragged([w @ part for part in taken], x.dtype), _ragged(taken, x.dtype)


@plain_kernel("var_conv_2d_grad", "X@GRAD W@GRAD", lod="own")
def _var_conv_2d_grad(
    X: Any, W: Any, ROW: Any, COLUMN: Any, Col: Any, Out: Any, Out_GRAD: Any, *, of: _Windows = per_op(_windows)
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
        image = np.zeros((of.channels, *of.padded(rows, columns)), x.dtype)
        for y, z, spans in of.cells(rows, columns):
            image[(..., *spans)] += spread[:, y, z]
        numbers = image[(..., *of.inside(rows, columns))].reshape(-1)[: x.size - start]
        x_grad[start : start + len(numbers)] += numbers
    return LoDTensor(x_grad.reshape(x.shape), lod), w_grad
