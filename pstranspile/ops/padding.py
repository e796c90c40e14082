"""Tensors with their edges padded or cropped."""

from __future__ import annotations

from typing import TypeAlias

from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import first, real, text
from pstranspile.ops.rows import add_rows
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, given, ints_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

_Dims: TypeAlias = "tuple[int, ...]"
_Padding: TypeAlias = "list[tuple[int, int]]"
"""How many elements to put before and after each dim."""


# Shape rules


def _pairs(paddings: _Dims) -> _Padding:
    return list(zip(paddings[::2], paddings[1::2], strict=True))


def _padded(dims: _Dims, padding: _Padding) -> _Dims:
    return tuple(-1 if dim < 0 else before + dim + after for dim, (before, after) in zip(dims, padding, strict=True))


@shape_rule("pad")
def _pad(op: Op, types: Types) -> Types:
    x, paddings = one(types, "X"), ints_attr(op, "paddings")
    if len(paddings) != 2 * len(x.shape):
        raise ShapeError(f"paddings is {list(paddings)}, it needs two numbers for each dim of X, {describe(x)}", "X")
    return {"Out": (x._replace(shape=_padded(x.shape, _pairs(paddings))),)}


@shape_rule("pad_grad")
def _pad_grad_types(op: Op, types: Types) -> Types:
    out, paddings = one(types, "Out@GRAD"), ints_attr(op, "paddings")
    less = [(-before, -after) for before, after in _pairs(paddings)]
    return {"X@GRAD": (out._replace(shape=_padded(out.shape, less)),)}


@shape_rule("pad2d")
def _pad2d(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) != 4:
        raise ShapeError(f"X is {describe(x)}, images have four dims", "X")
    if "Paddings" in types:
        return {
            "Out": (x._replace(shape=(*x.shape[:2], -1, -1) if not _last(op) else (x.shape[0], -1, -1, x.shape[3])),)
        }
    return {"Out": (x._replace(shape=_padded(x.shape, _image_padding(op, ints_attr(op, "paddings")))),)}


@shape_rule("pad_constant_like")
def _pad_constant_like(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    if len(x.shape) != len(y.shape) or any(0 <= big < small for big, small in zip(x.shape, y.shape, strict=True)):
        disagree("Y", y, "X", x)
    return {"Out": (x,)}


@shape_rule("crop", "crop_tensor")
def _crop(op: Op, types: Types) -> Types:
    x, shape = one(types, "X"), ints_attr(op, "shape")
    like = given(types, "Y")
    if like is not None:
        shape = like.shape
    if "Shape" in types or "ShapeTensor" in types or not shape:
        shape = (-1,) * len(x.shape)
    if len(shape) != len(x.shape):
        raise ShapeError(f"shape is {list(shape)}, but X is {describe(x)}", "X")
    for dim, size in zip(x.shape, shape, strict=True):
        if 0 <= dim < size:
            raise ShapeError(f"shape is {list(shape)}, which is more than X has, {describe(x)}", "X")
    return {"Out": (x._replace(shape=shape),)}


# Kernels


def _last(op: Op) -> bool:
    return text(op, "data_format") == "NHWC"


def _image_padding(op: Op, paddings: _Dims) -> _Padding:
    """The padding of every dim of images; `paddings` are top, bottom, left, right."""
    if len(paddings) != 4:
        raise ValueError(f"paddings is {list(paddings)}, not top, bottom, left and right")
    spatial = _pairs(paddings)
    return [(0, 0), *spatial, (0, 0)] if _last(op) else [(0, 0), (0, 0), *spatial]


def _inner(dims: _Dims, padding: _Padding) -> tuple[slice, ...]:
    """Where the elements are inside their padding."""
    return tuple(slice(before, before + dim) for dim, (before, _) in zip(dims, padding, strict=True))


@kernel("pad", lod="none")
def _pad_values(op: Op) -> Run:
    padding, value = _pairs(ints_attr(op, "paddings")), real(op, "pad_value")

    def run(X: Array) -> Array:
        return np.pad(X, padding, constant_values=value)

    return run


@kernel("pad_grad", "X@GRAD", lod="none")
def _pad_grad(op: Op) -> Run:
    padding = _pairs(ints_attr(op, "paddings"))

    def run(Out_GRAD: Array) -> Array:
        dims = tuple(dim - sum(around) for dim, around in zip(Out_GRAD.shape, padding, strict=True))
        return np.ascontiguousarray(Out_GRAD[_inner(dims, padding)])

    return run


def _given_padding(op: Op, held: Array | None) -> _Padding:
    listed = ints_attr(op, "paddings") if held is None else tuple(held.reshape(-1).tolist())
    return _image_padding(op, listed)


def _mode(op: Op, dims: _Dims, padding: _Padding) -> str:
    """How to fill the padding. Raises ValueError for other modes, and for reflections of more than there is."""
    mode = text(op, "mode")
    if mode not in ("constant", "reflect", "edge"):
        raise ValueError(f"mode is {mode!r}, not constant, reflect or edge")
    if mode == "reflect" and any(max(around) >= dim for dim, around in zip(dims, padding, strict=True) if any(around)):
        raise ValueError(f"the padding {padding} reflects more elements than X has, whose dims are {list(dims)}")
    return mode


@kernel("pad2d")
def _pad2d_values(op: Op) -> Run:
    value = real(op, "pad_value")

    def run(X: Array, Paddings: Array | None) -> Array:
        padding = _given_padding(op, Paddings)
        mode = _mode(op, X.shape, padding)
        return np.pad(X, padding, constant_values=value) if mode == "constant" else np.pad(X, padding, mode=mode)

    return run


@kernel("pad2d_grad", "X@GRAD", lod="none")
def _pad2d_grad(op: Op) -> Run:
    def run(X: Array, Paddings: Array | None, Out_GRAD: Array) -> Array:
        padding = _given_padding(op, Paddings)
        mode = _mode(op, X.shape, padding)
        if mode == "constant":
            return np.ascontiguousarray(Out_GRAD[_inner(X.shape, padding)])
        found = Out_GRAD
        for axis, around in enumerate(padding):
            if any(around):
                source = np.pad(np.arange(X.shape[axis]), around, mode=mode)
                found = folded(found, axis, source, X.shape[axis])
        return found

    return run


def folded(gradient: Array, axis: int, source: Array, dim: int) -> Array:
    """The gradient of `np.take(x, source, axis)`, where x has `dim` elements along the axis."""
    moved = np.moveaxis(gradient, axis, 0)
    found = np.zeros((dim, *moved.shape[1:]), gradient.dtype)
    add_rows(found, source, moved)
    return np.ascontiguousarray(np.moveaxis(found, 0, axis))


@kernel("pad_constant_like", lod="none")
def _pad_constant_like_values(op: Op) -> Run:
    value = real(op, "pad_value")

    def run(X: Array, Y: Array) -> Array:
        if X.ndim != Y.ndim or any(small > big for small, big in zip(Y.shape, X.shape, strict=True)):
            raise ValueError(f"Y has the dims {list(Y.shape)}, which don't fit into those of X, {list(X.shape)}")
        found = np.full(X.shape, value, Y.dtype)
        found[tuple(map(slice, Y.shape))] = Y
        return found

    return run


@kernel("pad_constant_like_grad", "Y@GRAD", lod="none")
def _pad_constant_like_grad(_op: Op) -> Run:
    def run(Y: Array, Out_GRAD: Array) -> Array:
        return np.ascontiguousarray(Out_GRAD[tuple(map(slice, Y.shape))])

    return run


def _listed(op: Op, name: str, tensor: Array | None, parts: list[Array] | None) -> _Dims:
    """Numbers from a list of tensors, a tensor or an attribute, the first of them that is there."""
    if parts:
        return tuple(int(first(part)) for part in parts)
    return ints_attr(op, name) if tensor is None else tuple(tensor.reshape(-1).tolist())


def _window(x: Array, offsets: _Dims, shape: _Dims) -> tuple[slice, ...]:
    """The part of x that is taken; -1 in `shape` goes on to the end. Raises ValueError where x has less."""
    offsets = offsets or (0,) * x.ndim
    if len(offsets) != x.ndim or len(shape) != x.ndim:
        raise ValueError(f"X has {x.ndim} dims, offsets is {list(offsets)}, shape is {list(shape)}")
    found: list[slice] = []
    for dim, start, size in zip(x.shape, offsets, shape, strict=True):
        end = dim if size < 0 else start + size
        if not 0 <= start <= end <= dim:
            raise ValueError(f"X has the dims {list(x.shape)}, not {list(shape)} from {list(offsets)} on")
        found.append(slice(start, end))
    return tuple(found)


@kernel("crop", lod="none")
def _crop_values(op: Op) -> Run:
    def run(X: Array, Y: Array | None, Offsets: Array | None) -> Array:
        shape = ints_attr(op, "shape") if Y is None else Y.shape
        return X[_window(X, _listed(op, "offsets", Offsets, None), shape)].copy()

    return run


@kernel("crop_tensor", lod="none")
def _crop_tensor_values(op: Op) -> Run:
    def run(
        X: Array,
        Shape: Array | None,
        Offsets: Array | None,
        ShapeTensor: list[Array] | None,
        OffsetsTensor: list[Array] | None,
    ) -> Array:
        offsets = _listed(op, "offsets", Offsets, OffsetsTensor)
        return X[_window(X, offsets, _listed(op, "shape", Shape, ShapeTensor))].copy()

    return run


@kernel("crop_grad crop_tensor_grad", "X@GRAD", lod="none")
def _crop_grad(op: Op) -> Run:
    def run(X: Array, Offsets: Array | None, OffsetsTensor: list[Array] | None, Out_GRAD: Array) -> Array:
        found = np.zeros(X.shape, Out_GRAD.dtype)
        found[_window(X, _listed(op, "offsets", Offsets, OffsetsTensor), Out_GRAD.shape)] = Out_GRAD
        return found

    return run
