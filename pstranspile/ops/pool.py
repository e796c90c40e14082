"""Pooling: the maximum or average of windows of images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.conv import (
    Padding,
    as_asked,
    channels_first,
    image_dims,
    images_type,
    padding_of,
    window_counts,
)
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import flag, text
from pstranspile.ops.schema import INTS, STRING, declare, declare_gradient, ints
from pstranspile.ops.shapes import Types, ints_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare(
    "pool2d",
    "X -> Out",
    {
        "pooling_type": STRING,
        "ksize": INTS,
        "global_pooling": False,
        "strides": ints(1, 1),
        "paddings": ints(0, 0),
        "exclusive": True,
        "adaptive": False,
        "use_cudnn": False,
        "ceil_mode": False,
        "use_mkldnn": False,
        "use_quantizer": False,
        "data_format": "NCHW",
        "is_test": False,
        "padding_algorithm": "EXPLICIT",
    },
    doc="Out = the maximum or average of each window",
)
declare_gradient("pool2d", "X Out Out@GRAD -> X@GRAD")


@shape_rule("pool2d")
def _pool(op: Op, types: Types) -> Types:
    x = one(types, "X")
    batch, channels, dims = image_dims(op, x, "X")
    if op.attrs.get("adaptive"):
        found = dims if op.attrs.get("global_pooling") else ints_attr(op, "ksize")
    elif op.attrs.get("global_pooling"):
        found = (1, 1)
    else:
        found = window_counts(op, dims, ints_attr(op, "ksize"), (1, 1))
    return {"Out": (images_type(op, x, batch, channels, found),)}


# Kernels

_LEAST = -3.4028234663852886e38
"""The maximum of a window that has no element, for every element type: the least float32."""


class _Windows(NamedTuple):
    """The windows of images. `rows[i]` chooses the i-th row of every window of the padded images, `columns` likewise.

    The windows of adaptive pooling differ in size; the last row or column of the smaller ones comes several times.
    `counts` is how many elements the average of each window divides by.
    """

    padding: Padding
    rows: list[Any]
    columns: list[Any]
    counts: Array

    def pad(self, x: Array, value: float) -> Array:
        """The images with their padding, filled with `value`."""
        if not any(map(any, self.padding)):
            return x
        return np.pad(x, ((0, 0), (0, 0), *self.padding), constant_values=value)

    def places(self) -> Iterator[tuple[Any, Any]]:
        """Which rows and which columns hold an element of every window, in row-major order of the elements."""
        return ((row, column) for row in self.rows for column in self.columns)


def _adaptive_bounds(dim: int, count: int) -> tuple[Array, Array]:
    """Where each window of adaptive pooling starts and ends."""
    at = np.arange(count)
    return at * dim // count, -(-(at + 1) * dim // count)


def _adaptive_counts(op: Op, dims: tuple[int, ...]) -> tuple[int, ...]:
    """How many windows adaptive pooling makes of each of the dims; with global_pooling, one per element."""
    return dims if flag(op, "global_pooling") else ints_attr(op, "ksize")


def _windows(op: Op, dims: tuple[int, ...]) -> _Windows:
    if flag(op, "adaptive"):
        counts = _adaptive_counts(op, dims)
        bounds = [_adaptive_bounds(dim, count) for dim, count in zip(dims, counts, strict=True)]
        sizes = [ends - starts for starts, ends in bounds]
        rows, columns = (
            [np.minimum(starts + at, ends - 1) for at in range(int((ends - starts).max()))] for starts, ends in bounds
        )
        return _Windows(((0, 0), (0, 0)), rows, columns, np.multiply.outer(*sizes))
    whole = flag(op, "global_pooling")
    size = dims if whole else ints_attr(op, "ksize")
    strides = (1, 1) if whole else ints_attr(op, "strides")
    found = (1, 1) if whole else window_counts(op, dims, size, (1, 1))
    padding = ((0, 0), (0, 0)) if whole else padding_of(op, dims, size)
    choices: list[list[slice]] = []
    real: list[Array] = []
    reached: list[tuple[int, int]] = []
    for dim, k, stride, count, (before, after) in zip(dims, size, strides, found, padding, strict=True):
        last = (count - 1) * stride
        choices.append([slice(at, at + last + 1, stride) for at in range(k)])
        starts = np.arange(count) * stride - before
        real.append(np.minimum(starts + k, dim) - np.maximum(starts, 0))
        # With ceil_mode the last window may reach beyond the padding
        reached.append((before, max(after, last + k - dim - before)))
    counts = np.multiply.outer(*real) if flag(op, "exclusive") else np.full(found, size[0] * size[1])
    rows, columns = choices
    return _Windows(tuple(reached), rows, columns, counts)


@kernel("pool2d")
def _pool_values(op: Op) -> Run:
    def largest(X: Array) -> Array:
        x = channels_first(op, X)
        windows = _windows(op, x.shape[2:])
        padded, found = windows.pad(x, _LEAST), None
        for row, column in windows.places():
            part = padded[:, :, row][..., column]
            found = part.copy() if found is None else np.maximum(found, part, out=found)
        return as_asked(op, found)

    def average(X: Array) -> Array:
        x = channels_first(op, X)
        windows = _windows(op, x.shape[2:])
        counts = windows.counts.astype(x.dtype)
        if flag(op, "adaptive"):
            return as_asked(op, _members(op, x, 0) @ x @ _members(op, x, 1).T / counts)
        padded, total = windows.pad(x, 0), np.zeros((*x.shape[:2], *counts.shape), x.dtype)
        for row, column in windows.places():
            total += padded[:, :, row][..., column]
        return as_asked(op, total / counts)

    return largest if _is_max(op) else average


def _is_max(op: Op) -> bool:
    kind = text(op, "pooling_type")
    if kind not in ("max", "avg"):
        raise ValueError(f"pooling_type is {kind!r}, not max or avg")
    return kind == "max"


def _members(op: Op, x: Array, axis: int) -> Array:
    """Which elements along height (0) or width (1) each window of adaptive pooling has, as a matrix of 0 and 1."""
    dim = x.shape[2 + axis]
    starts, ends = _adaptive_bounds(dim, _adaptive_counts(op, x.shape[2:])[axis])
    at = np.arange(dim)
    return ((at >= starts[:, None]) & (at < ends[:, None])).astype(x.dtype)


@kernel("pool2d_grad", "X@GRAD", lod="none")
def _pool_grad(op: Op) -> Run:
    def of_largest(X: Array, Out: Array, Out_GRAD: Array) -> Array:
        x, out, gradient = (channels_first(op, value) for value in (X, Out, Out_GRAD))
        windows = _windows(op, x.shape[2:])
        padded = windows.pad(x, _LEAST)
        found, taken = np.zeros_like(padded), np.zeros(out.shape, bool)
        for row, column in windows.places():
            hit = padded[:, :, row][..., column] == out
            hit &= ~taken  # the first of equal elements takes it all
            taken |= hit
            if isinstance(row, slice):
                found[:, :, row, column] += gradient * hit
            else:  # windows of adaptive pooling overlap
                np.add.at(found, (slice(None), slice(None), row[:, None], column), gradient * hit)
        return as_asked(op, _cropped(windows, found, x))

    def of_average(X: Array, Out_GRAD: Array) -> Array:
        x, gradient = channels_first(op, X), channels_first(op, Out_GRAD)
        windows = _windows(op, x.shape[2:])
        share = gradient / windows.counts.astype(x.dtype)
        if flag(op, "adaptive"):
            return as_asked(op, _members(op, x, 0).T @ share @ _members(op, x, 1))
        found = np.zeros_like(windows.pad(x, 0))
        for row, column in windows.places():
            found[:, :, row, column] += share
        return as_asked(op, _cropped(windows, found, x))

    return of_largest if _is_max(op) else of_average


def _cropped(windows: _Windows, padded: Array, like: Array) -> Array:
    """Without the padding."""
    (top, _), (left, _) = windows.padding
    return padded[:, :, top : top + like.shape[2], left : left + like.shape[3]]
