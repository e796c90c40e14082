"""Kernels. Channels of images rearranged, and activations with parameters for each channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, text
from pstranspile.ops.images.channels import RATIOS, SIZES, scaled_dim
from pstranspile.ops.shapes import Dims
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import first_number
from pstranspile.runtime.kernels.rows import add_rows
from pstranspile.runtime.kernels.tensors.shape import gradient_of_take
from pstranspile.runtime.values import Array


def _require_multiple(dim: int, of: int, what: str) -> None:
    if of < 1 or dim % of:
        raise ValueError(f"{dim} {what} can't be cut into {of} equal parts")


@plain_kernel("pixel_shuffle")
def _pixel_shuffle_values(X: Array, *, upscale_factor: int = 1) -> Array:
    batch, channels, height, width = X.shape
    _require_multiple(channels, upscale_factor * upscale_factor, "channels")
    parts = X.reshape(batch, -1, upscale_factor, upscale_factor, height, width).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(batch, -1, height * upscale_factor, width * upscale_factor)


@plain_kernel("pixel_shuffle_grad", "X@GRAD")
def _pixel_shuffle_grad(Out_GRAD: Array, *, upscale_factor: int = 1) -> Array:
    batch, channels, height, width = Out_GRAD.shape
    parts = Out_GRAD.reshape(
        batch, channels, height // upscale_factor, upscale_factor, width // upscale_factor, upscale_factor
    )
    return parts.transpose(0, 1, 3, 5, 2, 4).reshape(batch, -1, height // upscale_factor, width // upscale_factor)


def _shuffle_channels(x: Array, groups: int) -> Array:
    _require_multiple(x.shape[1], groups, "channels")
    return x.reshape(len(x), groups, x.shape[1] // groups, -1).swapaxes(1, 2).reshape(x.shape)


@plain_kernel("shuffle_channel")
def _shuffle_channel_values(X: Array, *, group: int = 1) -> Array:
    return _shuffle_channels(X, group)


@plain_kernel("shuffle_channel_grad", "X@GRAD")
def _shuffle_channel_grad(Out_GRAD: Array, *, group: int = 1) -> Array:
    _require_multiple(Out_GRAD.shape[1], group, "channels")
    return _shuffle_channels(Out_GRAD, Out_GRAD.shape[1] // group)


def _squares(op: Op, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The dims of X with its channels split, for space_to_depth. As in Fluid, the blocks are laid out as larger images,
    whose memory is read as the result.
    """
    size = int_attr(op, "blocksize", 2)
    batch, channels, height, width = shape
    _require_multiple(channels, size * size, "channels")
    _require_multiple(height, size, "rows")
    _require_multiple(width, size, "columns")
    return batch, size, size, channels // (size * size), height, width


@plain_kernel("space_to_depth")
def _space_to_depth_values(X: Array, *, op: Op, blocksize: int = 2) -> Array:
    batch, channels, height, width = X.shape
    parts = X.reshape(_squares(op, X.shape)).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(batch, channels * blocksize * blocksize, height // blocksize, width // blocksize)


@plain_kernel("space_to_depth_grad", "X@GRAD")
def _space_to_depth_grad(X: Array, Out_GRAD: Array, *, op: Op) -> Array:
    batch, rows, columns, channels, height, width = _squares(op, X.shape)
    parts = Out_GRAD.reshape(batch, channels, height, rows, width, columns)
    return parts.transpose(0, 3, 5, 1, 2, 4).reshape(X.shape)


def _shift_channels(op: Op, x: Array, *, back: bool) -> Array:
    """X with some channels moved one step later and as many one step earlier within each sequence of images, and zeros
    in the gaps; `back`: in the opposite directions, for the gradient.
    """
    steps, ratio = int_attr(op, "seg_num"), real(op, "shift_ratio")
    _require_multiple(len(x), steps, "images")
    channels = x.shape[1]
    later, earlier = (int(np.float32(channels * times) * np.float32(ratio)) for times in (1, 2))
    parts = x.reshape(-1, steps, *x.shape[1:])
    result = parts.copy()
    moved = ((slice(0, later), not back), (slice(later, earlier), back))
    for which, forward in moved:
        to, come, gap = (slice(1, None), slice(0, -1), 0) if forward else (slice(0, -1), slice(1, None), -1)
        result[:, to, which] = parts[:, come, which]
        result[:, gap, which] = 0
    return result.reshape(x.shape)


@plain_kernel("temporal_shift")
def _temporal_shift_values(X: Array, *, op: Op) -> Array:
    return _shift_channels(op, X, back=False)


@plain_kernel("temporal_shift_grad", "X@GRAD")
def _temporal_shift_grad(Out_GRAD: Array, *, op: Op) -> Array:
    return _shift_channels(op, Out_GRAD, back=True)


def _candidates(op: Op, x: Array) -> tuple[Array, int]:
    """X with the members of each group of channels along a dim of their own, and the index of this dim."""
    groups, axis = int_attr(op, "groups"), int_attr(op, "axis", 1) % x.ndim
    _require_multiple(x.shape[axis], groups, "channels")
    dims = (*x.shape[:axis], x.shape[axis] // groups, groups, *x.shape[axis + 1 :])
    return x.reshape(dims), axis + 1


@plain_kernel("maxout")
def _maxout_values(X: Array, *, op: Op) -> Array:
    parts, axis = _candidates(op, X)
    return np.maximum.reduce(parts, axis=axis)


@plain_kernel("maxout_grad", "X@GRAD", lod="none")
def _maxout_grad(X: Array, Out_GRAD: Array, *, op: Op) -> Array:
    """Gradient of maxout: of equal elements, the first gets the whole gradient."""
    parts, axis = _candidates(op, X)
    result = np.zeros(parts.shape, Out_GRAD.dtype)
    first = np.expand_dims(np.argmax(parts, axis=axis), axis)
    np.put_along_axis(result, first, np.expand_dims(Out_GRAD, axis), axis=axis)
    return result.reshape(X.shape)


def _slopes(op: Op, alpha: Array, x: Array) -> Array:
    """Alpha with dims that broadcast to X. Raises ValueError if its number of elements does not fit."""
    mode = text(op, "mode")
    dims = {"all": (), "channel": x.shape[1:2], "element": x.shape[1:]}.get(mode)
    if dims is None:
        raise ValueError(f"mode is {mode!r}, not all, channel or element")
    if alpha.size != math.prod(dims):
        raise ValueError(f"Alpha has {alpha.size} elements, X needs {math.prod(dims)} (mode {mode})")
    return alpha.reshape((1, *dims, *(1 for _ in x.shape[1 + len(dims) :])))


@plain_kernel("prelu")
def _prelu_values(X: Array, Alpha: Array, *, op: Op) -> Array:
    return np.where(X > 0, X, X * _slopes(op, Alpha, X))


@plain_kernel("prelu_grad", "X@GRAD Alpha@GRAD", lod="none")
def _prelu_grad(
    X: Array, Alpha: Array, Out_GRAD: Array, *, op: Op, wants_Alpha_GRAD: bool
) -> tuple[Array, Array | None]:
    slopes, positive = _slopes(op, Alpha, X), X > 0
    x_grad = Out_GRAD * np.where(positive, 1, slopes).astype(X.dtype, copy=False)
    if not wants_Alpha_GRAD:
        return x_grad, None
    parts = Out_GRAD * np.where(positive, 0, X).astype(X.dtype, copy=False)
    over = tuple(dim for dim in range(X.ndim) if slopes.shape[dim] == 1)
    return x_grad, np.add.reduce(parts, axis=over).reshape(Alpha.shape)


def _largest(slices: Array) -> Array:
    """The largest elements of each [n, rows, columns], chosen greedily with one for each row and column."""
    count, rows, columns = slices.shape
    chosen, left = np.zeros(slices.shape, bool), np.ones(slices.shape, bool)
    images = np.arange(count)
    for _ in range(min(rows, columns)):
        at = np.argmax(np.where(left, slices, -np.inf).reshape(count, rows * columns), axis=1)
        row, column = at // columns, at % columns
        chosen[images, row, column] = True
        left[images, row, :] = False
        left[images, :, column] = False
    return chosen


@kernel("similarity_focus")
def _similarity_focus_values(op: Op) -> Run:
    axis, indexes = int_attr(op, "axis"), ints_attr(op, "indexes")
    if axis not in (1, 2, 3):
        raise ValueError(f"axis is {axis}, not 1, 2 or 3")

    def run(X: Array) -> Array:
        wrong = [index for index in indexes if not 0 <= index < X.shape[axis]]
        if wrong:
            raise ValueError(f"index {wrong[0]} is not in 0 to {X.shape[axis] - 1}")
        marks = np.zeros(X.shape[:axis] + X.shape[axis + 1 :], bool)
        for index in indexes:
            marks |= _largest(np.take(X, index, axis=axis))
        return np.broadcast_to(np.expand_dims(marks, axis), X.shape).astype(X.dtype)

    return run


# Kernels. Interpolation: images resized, and sampled at points.

# Resizing. Every spatial dim is resized separately; an element is the weighted sum of its taps.

_Taps: TypeAlias = "list[tuple[Array, Array]]"
"""The taps of a resized dim: for each tap the indices in X that it reads for the elements of the result, and their
weights.
"""


class _ResizedDim(NamedTuple):
    """A dim that is resized: its old and its new size, and the distance in X of neighbouring elements of the result."""

    dim: int
    size: int
    ratio: Array
    precise: bool
    """Whether the distance is given, and positions are computed in double precision."""


def _resized_dim(op: Op, dim: int, size: int, given: object) -> _ResizedDim:
    """A dim with the distance that an attribute gives, or else as in Fluid, which computes distances in float32."""
    aligned = flag(op, "align_corners")
    if isinstance(given, float):
        return _ResizedDim(dim, size, np.float64(given), precise=True)
    if not aligned and flag(op, "by_scale") and real(op, "scale") > 0:
        ratio = np.float32(1) / np.float32(real(op, "scale"))
    elif size <= 1:
        ratio = np.float32(0)
    else:
        ratio = np.float32(dim - 1) / np.float32(size - 1) if aligned else np.float32(dim) / np.float32(size)
    return _ResizedDim(dim, size, ratio, precise=False)


def _nearest(op: Op, layout: _ResizedDim) -> _Taps:
    places = np.float32(layout.ratio) * np.arange(layout.size, dtype="float32")
    index = (places.astype("float64") + 0.5 if flag(op, "align_corners") else places).astype("int64")
    return [(np.minimum(index, layout.dim - 1), np.ones(layout.size, "float32"))]


def _linear(op: Op, layout: _ResizedDim) -> _Taps:
    at, kind = np.arange(layout.size), "float64" if layout.precise else "float32"  # Fluid computes positions in float32
    if int_attr(op, "align_mode", 1) == 0 and not flag(op, "align_corners"):
        places = np.maximum(layout.ratio.astype("float64") * (at + 0.5) - 0.5, 0).astype(kind)
    else:
        places = layout.ratio * at.astype(kind)
    low = np.minimum(places.astype("int64"), layout.dim - 1)
    weight = places - low.astype(kind)
    return [(low, 1 - weight), (np.minimum(low + 1, layout.dim - 1), weight)]


def _cubic(op: Op, layout: _ResizedDim) -> _Taps:
    """The kernel of bicubic interpolation: piecewise cubic polynomials whose slope at 1 is -0.75."""
    at, kind = np.arange(layout.size), "float64" if layout.precise else "float32"
    if flag(op, "align_corners"):
        places = (layout.ratio * at.astype(kind)).astype("float64")
    else:
        places = layout.ratio.astype("float64") * (at + 0.5) - 0.5
    low = np.floor(places).astype("int64")
    after, slope = places - low, -0.75

    def near(x: Array) -> Array:
        return ((slope + 2) * x - (slope + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((slope * x - 5 * slope) * x + 8 * slope) * x - 4 * slope

    weights = (far(after + 1), near(after), near(1 - after), far(2 - after))
    return [
        (np.clip(low + move, 0, layout.dim - 1), weight) for move, weight in zip((-1, 0, 1, 2), weights, strict=True)
    ]


_METHODS: dict[str, Callable[[Op, _ResizedDim], _Taps]] = {
    "nearest": _nearest,
    "bilinear": _linear,
    "trilinear": _linear,
    "bicubic": _cubic,
}


def _spatial(op: Op, rank: int) -> tuple[int, ...]:
    """The dims that are resized."""
    return tuple(range(1, rank - 1)) if text(op, "data_layout") == "NHWC" else tuple(range(2, rank))


def _sizes(op: Op, dims: Dims, given: tuple[Array | None, list[Array] | None, Array | None]) -> Dims:
    """The new spatial dims: from SizeTensor, else from OutSize, else the dims of X times Scale, else from the
    attributes.
    """
    out_size, size_tensors, scale_tensor = given
    scale = real(op, "scale") if scale_tensor is None else first_number(scale_tensor)
    if size_tensors:
        result = tuple(int(first_number(part)) for part in size_tensors)
    elif out_size is not None:
        result = tuple(out_size.reshape(-1).tolist())
    elif scale > 0:
        result = tuple(scaled_dim(dim, scale) for dim in dims)
    else:
        result = tuple(int_attr(op, name) for name in SIZES[-len(dims) :])
    if len(result) != len(dims) or min(result) < 1:
        raise ValueError(f"images of {list(dims)} can't be scaled to {list(result)}")
    return result


def _plan(
    op: Op, x: Array, given: tuple[Array | None, list[Array] | None, Array | None]
) -> Iterator[tuple[int, list[tuple[Array, Array]]]]:
    """Yields every resized dim, and its taps with weights that broadcast to X."""
    axes = _spatial(op, x.ndim)
    dims = tuple(x.shape[axis] for axis in axes)
    method = _METHODS[op.type.partition("_")[0]]
    kind = x.dtype if x.dtype.kind == "f" else np.float32  # as in Fluid, integers are truncated after weighting
    ratios = [op.attrs.get(name) for name in RATIOS[-len(dims) :]]
    for axis, dim, size, ratio in zip(axes, dims, _sizes(op, dims, given), ratios, strict=True):
        broadcast = [size if at == axis else 1 for at in range(x.ndim)]
        taps = method(op, _resized_dim(op, dim, size, ratio))
        yield axis, [(index, weight.astype(kind).reshape(broadcast)) for index, weight in taps]


@kernel("bilinear_interp nearest_interp bicubic_interp trilinear_interp")
def _interpolate_values(op: Op) -> Run:
    plain = op.type == "nearest_interp"

    def run(X: Array, OutSize: Array | None, SizeTensor: list[Array] | None, Scale: Array | None) -> Array:
        result = X
        for axis, taps in _plan(op, X, (OutSize, SizeTensor, Scale)):
            if plain:
                result = np.take(result, taps[0][0], axis=axis)
            else:
                result = sum(np.take(result, index, axis=axis) * weight for index, weight in taps)
        return np.asarray(result).astype(X.dtype, copy=False)

    return run


@kernel("bilinear_interp_grad nearest_interp_grad bicubic_interp_grad trilinear_interp_grad", "X@GRAD", lod="none")
def _interpolate_grad(op: Op) -> Run:
    def run(
        X: Array, OutSize: Array | None, SizeTensor: list[Array] | None, Scale: Array | None, Out_GRAD: Array
    ) -> Array:
        result = Out_GRAD
        for axis, taps in _plan(op, X, (OutSize, SizeTensor, Scale)):
            result = sum(gradient_of_take(result * weight, axis, index, X.shape[axis]) for index, weight in taps)
        return result

    return run


# Sampling


def _corners(x: Array, grid: Array) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
    """For the four corners around every point of the grid [images, points]: row numbers in X as a matrix [elements,
    channels], whether the corner is in the image, its weights along width and height, and its side of the point.
    """
    height, width = x.shape[2:]
    points = grid.reshape(len(grid), -1, 2)
    column, row = ((points[..., at] + 1) * (0.5 * (dim - 1)) for at, dim in enumerate((width, height)))
    left, top = np.floor(column), np.floor(row)
    images = np.arange(len(x)).reshape(-1, 1) * (height * width)
    for down in (0, 1):
        for right in (0, 1):
            j, i = left + right, top + down
            inside = (j >= 0) & (j <= width - 1) & (i >= 0) & (i <= height - 1)
            number = np.where(inside, i * width + j, 0).astype("int64") + images
            across = column - left if right else 1 - (column - left)
            along = row - top if down else 1 - (row - top)
            yield number, inside, across, along, np.array([1 if right else -1, 1 if down else -1])


def _by_channel(x: Array) -> Array:
    """Images as a matrix [elements of all images, channels]."""
    return np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])


@plain_kernel("grid_sampler", "Output")
def _grid_sampler_values(X: Array, Grid: Array) -> Array:
    _require_grid(X, Grid)
    elements, total = _by_channel(X), 0
    for number, inside, across, along, _ in _corners(X, Grid):
        total = total + np.where(inside, across * along, 0)[..., None] * elements[number]
    result = np.moveaxis(np.asarray(total), -1, 1)
    return np.ascontiguousarray(result).reshape(*X.shape[:2], *Grid.shape[1:3])


def _require_grid(x: Array, grid: Array) -> None:
    if grid.ndim != 4 or grid.shape[3] != 2 or len(grid) != len(x):
        raise ValueError(f"X has the dims {list(x.shape)}, Grid {list(grid.shape)}: it needs points for each image")


@plain_kernel("grid_sampler_grad", "X@GRAD Grid@GRAD", lod="none")
def _grid_sampler_grad(
    X: Array, Grid: Array, Output_GRAD: Array, *, wants_X_GRAD: bool, wants_Grid_GRAD: bool
) -> tuple[Array | None, Array | None]:
    _require_grid(X, Grid)
    elements = _by_channel(X)
    gradient = Output_GRAD.reshape(*X.shape[:2], -1).swapaxes(1, 2)
    of_elements, of_points = np.zeros(elements.shape, X.dtype), np.zeros((*gradient.shape[:2], 2), X.dtype)
    for number, inside, across, along, side in _corners(X, Grid):
        if wants_X_GRAD:
            parts = gradient * np.where(inside, across * along, 0)[..., None]
            add_rows(of_elements, number.reshape(-1), parts.reshape(-1, parts.shape[-1]).astype(X.dtype))
        if wants_Grid_GRAD:
            value = np.where(inside, np.add.reduce(gradient * elements[number], axis=-1), 0)
            of_points += np.stack([side[0] * value * along, side[1] * value * across], axis=-1).astype(X.dtype)
    height, width = X.shape[2:]
    of_points *= np.array([0.5 * (width - 1), 0.5 * (height - 1)], X.dtype)
    images = np.moveaxis(of_elements.reshape(len(X), height, width, -1), -1, 1)
    return np.ascontiguousarray(images) if wants_X_GRAD else None, of_points.reshape(Grid.shape)


def _base_points(op: Op, shape: Array | None, dtype: str) -> Array:
    """The points of an image from -1 to 1, each [x, y, 1]: [height, width, 3]. A single row or column is at -1."""
    listed = ints_attr(op, "output_shape") if shape is None else tuple(shape.reshape(-1).tolist())
    if len(listed) != 4:
        raise ValueError(f"the output shape is {list(listed)}, images have four dims")
    height, width = listed[2:]
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    return np.stack([x, y, np.ones_like(x)], axis=-1).astype(dtype)


@plain_kernel("affine_grid", "Output", lod="none")
def _affine_grid_values(Theta: Array, OutputShape: Array | None, *, op: Op) -> Array:
    points = _base_points(op, OutputShape, Theta.dtype)
    result = points.reshape(-1, 3) @ Theta.swapaxes(1, 2)
    return result.reshape(len(Theta), *points.shape[:2], 2)


@plain_kernel("affine_grid_grad", "Theta@GRAD", lod="none")
def _affine_grid_grad(OutputShape: Array | None, Output_GRAD: Array, *, op: Op) -> Array:
    points = _base_points(op, OutputShape, Output_GRAD.dtype).reshape(-1, 3)
    gradient = Output_GRAD.reshape(len(Output_GRAD), -1, 2)
    return gradient.swapaxes(1, 2) @ points
