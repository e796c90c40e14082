"""Kernels. Tensors with their edges padded or cropped."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import ints_attr, real, text
from pstranspile.ops.shapes import Dims
from pstranspile.ops.tensors.padding import Padding, image_padding, pairs
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import listed
from pstranspile.runtime.kernels.rows import add_rows
from pstranspile.runtime.values import Array


def _inner(dims: Dims, padding: Padding) -> tuple[slice, ...]:
    """The slice of the elements inside their padding."""
    return tuple(slice(before, before + dim) for dim, (before, _) in zip(dims, padding, strict=True))


@kernel("pad", lod="none")
def _pad_values(op: Op) -> Run:
    padding, value = pairs(ints_attr(op, "paddings")), real(op, "pad_value")

    def run(X: Array) -> Array:
        return np.pad(X, padding, constant_values=value)

    return run


@kernel("pad_grad", "X@GRAD", lod="none")
def _pad_grad(op: Op) -> Run:
    padding = pairs(ints_attr(op, "paddings"))

    def run(Out_GRAD: Array) -> Array:
        dims = tuple(dim - sum(around) for dim, around in zip(Out_GRAD.shape, padding, strict=True))
        return np.ascontiguousarray(Out_GRAD[_inner(dims, padding)])

    return run


def _given_padding(op: Op, paddings: Array | None) -> Padding:
    return image_padding(op, listed(paddings, None, ints_attr(op, "paddings")))


def _mode(op: Op, dims: Dims, padding: Padding) -> str:
    """How to fill the padding. Raises ValueError for other modes, and for reflections of more than there is."""
    mode = text(op, "mode")
    if mode not in ("constant", "reflect", "edge"):
        raise ValueError(f"mode is {mode!r}, not constant, reflect or edge")
    if mode == "reflect" and any(max(around) >= dim for dim, around in zip(dims, padding, strict=True) if any(around)):
        raise ValueError(f"the padding {padding} reflects more elements than X has, whose dims are {list(dims)}")
    return mode


@plain_kernel("pad2d")
def _pad2d_values(X: Array, Paddings: Array | None, *, op: Op, pad_value: float) -> Array:
    padding = _given_padding(op, Paddings)
    mode = _mode(op, X.shape, padding)
    return np.pad(X, padding, constant_values=pad_value) if mode == "constant" else np.pad(X, padding, mode=mode)


@plain_kernel("pad2d_grad", "X@GRAD", lod="none")
def _pad2d_grad(X: Array, Paddings: Array | None, Out_GRAD: Array, *, op: Op) -> Array:
    padding = _given_padding(op, Paddings)
    mode = _mode(op, X.shape, padding)
    if mode == "constant":
        return np.ascontiguousarray(Out_GRAD[_inner(X.shape, padding)])
    result = Out_GRAD
    for axis, around in enumerate(padding):
        if any(around):
            source = np.pad(np.arange(X.shape[axis]), around, mode=mode)
            result = folded(result, axis, source, X.shape[axis])
    return result


def folded(gradient: Array, axis: int, source: Array, dim: int) -> Array:
    """The adjoint of `np.take(x, source, axis)`, where x has `dim` elements along the axis."""
    moved = np.moveaxis(gradient, axis, 0)
    result = np.zeros((dim, *moved.shape[1:]), gradient.dtype)
    add_rows(result, source, moved)
    return np.ascontiguousarray(np.moveaxis(result, 0, axis))


@plain_kernel("pad_constant_like", lod="none")
def _pad_constant_like_values(X: Array, Y: Array, *, pad_value: float) -> Array:
    if X.ndim != Y.ndim or any(small > big for small, big in zip(Y.shape, X.shape, strict=True)):
        raise ValueError(f"Y has the dims {list(Y.shape)}, which don't fit into those of X, {list(X.shape)}")
    result = np.full(X.shape, pad_value, Y.dtype)
    result[tuple(map(slice, Y.shape))] = Y
    return result


@plain_kernel("pad_constant_like_grad", "Y@GRAD", lod="none")
def _pad_constant_like_grad(Y: Array, Out_GRAD: Array) -> Array:
    return np.ascontiguousarray(Out_GRAD[tuple(map(slice, Y.shape))])


def _window(x: Array, offsets: Dims, shape: Dims) -> tuple[slice, ...]:
    """The slice of x that is taken; -1 in `shape` means up to the end. Raises ValueError if x is smaller."""
    offsets = offsets or (0,) * x.ndim
    if len(offsets) != x.ndim or len(shape) != x.ndim:
        raise ValueError(f"X has {x.ndim} dims, offsets is {list(offsets)}, shape is {list(shape)}")
    result: list[slice] = []
    for dim, start, size in zip(x.shape, offsets, shape, strict=True):
        end = dim if size < 0 else start + size
        if not 0 <= start <= end <= dim:
            raise ValueError(f"X has the dims {list(x.shape)}, not {list(shape)} from {list(offsets)} on")
        result.append(slice(start, end))
    return tuple(result)


def _offsets(op: Op, tensor: Array | None, parts: list[Array] | None) -> Dims:
    return listed(None if parts else tensor, parts, ints_attr(op, "offsets"))


@plain_kernel("crop", lod="none")
def _crop_values(X: Array, Y: Array | None, Offsets: Array | None, *, op: Op) -> Array:
    shape = ints_attr(op, "shape") if Y is None else Y.shape
    return X[_window(X, listed(Offsets, None, ints_attr(op, "offsets")), shape)].copy()


@kernel("crop_tensor", lod="none")
def _crop_tensor_values(op: Op) -> Run:
    def run(
        X: Array,
        Shape: Array | None,
        Offsets: Array | None,
        ShapeTensor: list[Array] | None,
        OffsetsTensor: list[Array] | None,
    ) -> Array:
        dims = listed(None if ShapeTensor else Shape, ShapeTensor, ints_attr(op, "shape"))
        return X[_window(X, _offsets(op, Offsets, OffsetsTensor), dims)].copy()

    return run


@plain_kernel("crop_grad crop_tensor_grad", "X@GRAD", lod="none")
def _crop_grad(X: Array, Offsets: Array | None, OffsetsTensor: list[Array] | None, Out_GRAD: Array, *, op: Op) -> Array:
    result = np.zeros(X.shape, Out_GRAD.dtype)
    result[_window(X, _offsets(op, Offsets, OffsetsTensor), Out_GRAD.shape)] = Out_GRAD
    return result
