"""Channels of images moved, regrouped and compared, and activations by channel."""

from __future__ import annotations

import math

from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import real, text
from pstranspile.ops.schema import INT, declare, declare_gradient, long
from pstranspile.ops.shapes import ShapeError, Types, describe, gradient_types, int_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare("pixel_shuffle", "X -> Out", {"upscale_factor": 1}, doc="Out = X with channels moved into larger images")
declare_gradient("pixel_shuffle", "Out@GRAD -> X@GRAD")
declare("shuffle_channel", "X -> Out", {"group": 1}, doc="Out = X with channels of groups interleaved")
declare_gradient("shuffle_channel", "Out@GRAD -> X@GRAD")
declare("space_to_depth", "X -> Out", {"blocksize": long(2)}, doc="Out = X with squares moved into channels")
declare_gradient("space_to_depth", "X Out@GRAD -> X@GRAD")
declare(
    "temporal_shift",
    "X -> Out",
    {"seg_num": INT, "shift_ratio": 0.25},
    doc="Out = X with part of its channels shifted in time",
)
declare_gradient("temporal_shift", "Out@GRAD -> X@GRAD")

# Shape rules


def _images(types: Types, slot: str = "X") -> TensorType:
    x = one(types, slot)
    if len(x.shape) != 4:
        raise ShapeError(f"{slot} is {describe(x)}, images have four dims", slot)
    return x


def _times(dim: int, factor: int) -> int:
    return -1 if dim < 0 else dim * factor


def _part(dim: int, of: int, x: TensorType, what: str) -> int:
    """A dim divided by `of`. Raises ShapeError where something is left over."""
    if of < 1 or (dim >= 0 and dim % of):
        raise ShapeError(f"X is {describe(x)}, where {dim} is not a multiple of {of}, {what}", "X")
    return -1 if dim < 0 else dim // of


@shape_rule("pixel_shuffle")
def _pixel_shuffle(op: Op, types: Types) -> Types:
    x, factor = _images(types), int_attr(op, "upscale_factor")
    channels = _part(x.shape[1], factor * factor, x, "upscale_factor squared")
    dims = (x.shape[0], channels, _times(x.shape[2], factor), _times(x.shape[3], factor))
    return {"Out": (TensorType(x.dtype, dims),)}


@shape_rule("pixel_shuffle_grad")
def _pixel_shuffle_grad_types(op: Op, types: Types) -> Types:
    out, factor = _images(types, "Out@GRAD"), int_attr(op, "upscale_factor")
    batch, channels, height, width = out.shape
    dims = (batch, _times(channels, factor * factor), *(-1 if dim < 0 else dim // factor for dim in (height, width)))
    return {"X@GRAD": (out._replace(shape=dims),)}


@shape_rule("shuffle_channel")
def _shuffle_channel(op: Op, types: Types) -> Types:
    x = _images(types)
    _part(x.shape[1], int_attr(op, "group"), x, "group")
    return {"Out": (x._replace(lod_level=0),)}


@shape_rule("shuffle_channel_grad", "temporal_shift_grad")
def _as_they_come(_op: Op, types: Types) -> Types:
    return {"X@GRAD": (_images(types, "Out@GRAD"),)}


@shape_rule("temporal_shift")
def _temporal_shift(op: Op, types: Types) -> Types:
    x = _images(types)
    _part(x.shape[0], int_attr(op, "seg_num"), x, "seg_num")
    return {"Out": (x,)}


@shape_rule("space_to_depth")
def _space_to_depth(op: Op, types: Types) -> Types:
    x, size = _images(types), int_attr(op, "blocksize")
    height, width = (_part(dim, size, x, "blocksize") for dim in x.shape[2:])
    _part(x.shape[1], size * size, x, "blocksize squared")
    return {"Out": (x._replace(shape=(x.shape[0], _times(x.shape[1], size * size), height, width)),)}


@shape_rule("maxout")
def _maxout(op: Op, types: Types) -> Types:
    x = _images(types)
    axis = int_attr(op, "axis", 1) % 4
    channels = _part(x.shape[axis], int_attr(op, "groups"), x, "groups")
    return {"Out": (TensorType(x.dtype, (*x.shape[:axis], channels, *x.shape[axis + 1 :])),)}


shape_rule("maxout_grad", "space_to_depth_grad", "prelu_grad")(gradient_types)

# Kernels


def _require_multiple(dim: int, of: int, what: str) -> None:
    if of < 1 or dim % of:
        raise ValueError(f"{dim} {what} can't be cut into {of} equal parts")


@kernel("pixel_shuffle")
def _pixel_shuffle_values(op: Op) -> Run:
    factor = int_attr(op, "upscale_factor", 1)

    def run(X: Array) -> Array:
        batch, channels, height, width = X.shape
        _require_multiple(channels, factor * factor, "channels")
        parts = X.reshape(batch, -1, factor, factor, height, width).transpose(0, 1, 4, 2, 5, 3)
        return parts.reshape(batch, -1, height * factor, width * factor)

    return run


@kernel("pixel_shuffle_grad", "X@GRAD")
def _pixel_shuffle_grad(op: Op) -> Run:
    factor = int_attr(op, "upscale_factor", 1)

    def run(Out_GRAD: Array) -> Array:
        batch, channels, height, width = Out_GRAD.shape
        parts = Out_GRAD.reshape(batch, channels, height // factor, factor, width // factor, factor)
        return parts.transpose(0, 1, 3, 5, 2, 4).reshape(batch, -1, height // factor, width // factor)

    return run


def _interleaved(x: Array, groups: int) -> Array:
    _require_multiple(x.shape[1], groups, "channels")
    return x.reshape(len(x), groups, x.shape[1] // groups, -1).swapaxes(1, 2).reshape(x.shape)


@kernel("shuffle_channel")
def _shuffle_channel_values(op: Op) -> Run:
    groups = int_attr(op, "group", 1)

    def run(X: Array) -> Array:
        return _interleaved(X, groups)

    return run


@kernel("shuffle_channel_grad", "X@GRAD")
def _shuffle_channel_grad(op: Op) -> Run:
    groups = int_attr(op, "group", 1)

    def run(Out_GRAD: Array) -> Array:
        _require_multiple(Out_GRAD.shape[1], groups, "channels")
        return _interleaved(Out_GRAD, Out_GRAD.shape[1] // groups)

    return run


def _squares(op: Op, shape: tuple[int, ...]) -> tuple[int, ...]:
    """X with its channels taken apart. Fluid moves them into larger images, whose memory it then calls the result."""
    size = int_attr(op, "blocksize", 2)
    batch, channels, height, width = shape
    _require_multiple(channels, size * size, "channels")
    _require_multiple(height, size, "rows")
    _require_multiple(width, size, "columns")
    return batch, size, size, channels // (size * size), height, width


@kernel("space_to_depth")
def _space_to_depth_values(op: Op) -> Run:
    size = int_attr(op, "blocksize", 2)

    def run(X: Array) -> Array:
        batch, channels, height, width = X.shape
        parts = X.reshape(_squares(op, X.shape)).transpose(0, 3, 4, 1, 5, 2)
        return parts.reshape(batch, channels * size * size, height // size, width // size)

    return run


@kernel("space_to_depth_grad", "X@GRAD")
def _space_to_depth_grad(op: Op) -> Run:
    def run(X: Array, Out_GRAD: Array) -> Array:
        batch, rows, columns, channels, height, width = _squares(op, X.shape)
        parts = Out_GRAD.reshape(batch, channels, height, rows, width, columns)
        return parts.transpose(0, 3, 5, 1, 2, 4).reshape(X.shape)

    return run


def _shifted(op: Op, x: Array, *, back: bool) -> Array:
    """Of every sequence of images, some channels one step later and as many one step earlier; `back`: undone."""
    steps, ratio = int_attr(op, "seg_num"), real(op, "shift_ratio")
    _require_multiple(len(x), steps, "images")
    channels = x.shape[1]
    later, earlier = (int(np.float32(channels * times) * np.float32(ratio)) for times in (1, 2))
    parts = x.reshape(-1, steps, *x.shape[1:])
    found = parts.copy()
    moved = ((slice(0, later), not back), (slice(later, earlier), back))
    for which, forward in moved:
        to, come, gap = (slice(1, None), slice(0, -1), 0) if forward else (slice(0, -1), slice(1, None), -1)
        found[:, to, which] = parts[:, come, which]
        found[:, gap, which] = 0
    return found.reshape(x.shape)


@kernel("temporal_shift")
def _temporal_shift_values(op: Op) -> Run:
    def run(X: Array) -> Array:
        return _shifted(op, X, back=False)

    return run


@kernel("temporal_shift_grad", "X@GRAD")
def _temporal_shift_grad(op: Op) -> Run:
    def run(Out_GRAD: Array) -> Array:
        return _shifted(op, Out_GRAD, back=True)

    return run


def _candidates(op: Op, x: Array) -> tuple[Array, int]:
    """X with each group of channels along a dim of its own, and which dim that is."""
    groups, axis = int_attr(op, "groups"), int_attr(op, "axis", 1) % x.ndim
    _require_multiple(x.shape[axis], groups, "channels")
    dims = (*x.shape[:axis], x.shape[axis] // groups, groups, *x.shape[axis + 1 :])
    return x.reshape(dims), axis + 1


@kernel("maxout")
def _maxout_values(op: Op) -> Run:
    def run(X: Array) -> Array:
        parts, axis = _candidates(op, X)
        return np.maximum.reduce(parts, axis=axis)

    return run


@kernel("maxout_grad", "X@GRAD", lod="none")
def _maxout_grad(op: Op) -> Run:
    """The first of equal elements takes it all."""

    def run(X: Array, Out_GRAD: Array) -> Array:
        parts, axis = _candidates(op, X)
        found = np.zeros(parts.shape, Out_GRAD.dtype)
        first = np.expand_dims(np.argmax(parts, axis=axis), axis)
        np.put_along_axis(found, first, np.expand_dims(Out_GRAD, axis), axis=axis)
        return found.reshape(X.shape)

    return run


def _slopes(op: Op, alpha: Array, x: Array) -> Array:
    """Alpha with the dims to go beside X. Raises ValueError where it has another number of elements."""
    mode = text(op, "mode")
    dims = {"all": (), "channel": x.shape[1:2], "element": x.shape[1:]}.get(mode)
    if dims is None:
        raise ValueError(f"mode is {mode!r}, not all, channel or element")
    if alpha.size != math.prod(dims):
        raise ValueError(f"Alpha has {alpha.size} elements, X needs {math.prod(dims)} (mode {mode})")
    return alpha.reshape((1, *dims, *(1 for _ in x.shape[1 + len(dims) :])))


@kernel("prelu")
def _prelu_values(op: Op) -> Run:
    def run(X: Array, Alpha: Array) -> Array:
        return np.where(X > 0, X, X * _slopes(op, Alpha, X))

    return run


@kernel("prelu_grad", "X@GRAD Alpha@GRAD", lod="none")
def _prelu_grad(op: Op) -> Run:
    wants_alpha = wanted(op, "Alpha@GRAD")

    def run(X: Array, Alpha: Array, Out_GRAD: Array) -> tuple[Array, Array | None]:
        slopes, positive = _slopes(op, Alpha, X), X > 0
        x_grad = Out_GRAD * np.where(positive, 1, slopes).astype(X.dtype, copy=False)
        if not wants_alpha:
            return x_grad, None
        parts = Out_GRAD * np.where(positive, 0, X).astype(X.dtype, copy=False)
        over = tuple(dim for dim in range(X.ndim) if slopes.shape[dim] == 1)
        return x_grad, np.add.reduce(parts, axis=over).reshape(Alpha.shape)

    return run
