"""Kernels. Interpolation: images resized, and sampled at points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, text
from pstranspile.ops.images.interpolation import SIZES, scaled_dim
from pstranspile.ops.shapes import Dims
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import first
from pstranspile.runtime.kernels.rows import add_rows
from pstranspile.runtime.kernels.tensors.padding import folded
from pstranspile.runtime.values import Array

# Resizing. Every spatial dim is resized separately; an element is the weighted sum of its taps.

_Taps: TypeAlias = "list[tuple[Array, Array]]"
"""Which elements each element of the result takes along a dim, and by which weights."""


def _ratio(op: Op, dim: int, size: int, aligned: bool) -> Array:
    """The distance in X of neighbouring elements of the result. Fluid computes distances and positions in float32."""
    if not aligned and flag(op, "by_scale") and real(op, "scale") > 0:
        return np.float32(1) / np.float32(real(op, "scale"))
    if size <= 1:
        return np.float32(0)
    return np.float32(dim - 1) / np.float32(size - 1) if aligned else np.float32(dim) / np.float32(size)


def _nearest(op: Op, dim: int, size: int) -> _Taps:
    aligned = flag(op, "align_corners")
    places = _ratio(op, dim, size, aligned) * np.arange(size, dtype="float32")
    index = (places.astype("float64") + 0.5 if aligned else places).astype("int64")
    return [(np.minimum(index, dim - 1), np.ones(size, "float32"))]


def _linear(op: Op, dim: int, size: int) -> _Taps:
    aligned = flag(op, "align_corners")
    ratio, at = _ratio(op, dim, size, aligned), np.arange(size)
    if int_attr(op, "align_mode", 1) == 0 and not aligned:
        places = np.maximum(ratio.astype("float64") * (at + 0.5) - 0.5, 0).astype("float32")
    else:
        places = ratio * at.astype("float32")
    low = np.minimum(places.astype("int64"), dim - 1)
    weight = places - low.astype("float32")
    return [(low, 1 - weight), (np.minimum(low + 1, dim - 1), weight)]


def _cubic(op: Op, dim: int, size: int) -> _Taps:
    """The kernel of bicubic interpolation: piecewise cubic polynomials whose slope at 1 is -0.75."""
    aligned = flag(op, "align_corners")
    ratio, at = _ratio(op, dim, size, aligned), np.arange(size)
    places = (ratio * at.astype("float32")).astype("float64") if aligned else ratio.astype("float64") * (at + 0.5) - 0.5
    low = np.floor(places).astype("int64")
    after, slope = places - low, -0.75

    def near(x: Array) -> Array:
        return ((slope + 2) * x - (slope + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((slope * x - 5 * slope) * x + 8 * slope) * x - 4 * slope

    weights = (far(after + 1), near(after), near(1 - after), far(2 - after))
    return [(np.clip(low + move, 0, dim - 1), weight) for move, weight in zip((-1, 0, 1, 2), weights, strict=True)]


_METHODS: dict[str, Callable[[Op, int, int], _Taps]] = {
    "nearest": _nearest,
    "bilinear": _linear,
    "trilinear": _linear,
    "bicubic": _cubic,
}


def _spatial(op: Op, rank: int) -> tuple[int, ...]:
    """The dims that are resized."""
    return tuple(range(1, rank - 1)) if text(op, "data_layout") == "NHWC" else tuple(range(2, rank))


def _sizes(op: Op, dims: Dims, given: tuple[Array | None, list[Array] | None, Array | None]) -> Dims:
    """The new spatial dims: from SizeTensor, else OutSize, else the dims of X times Scale, else the attributes."""
    out_size, size_tensors, scale_tensor = given
    scale = real(op, "scale") if scale_tensor is None else first(scale_tensor)
    if size_tensors:
        result = tuple(int(first(part)) for part in size_tensors)
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
    """Every resized dim, and its taps with weights that broadcast to X."""
    axes = _spatial(op, x.ndim)
    dims = tuple(x.shape[axis] for axis in axes)
    method = _METHODS[op.type.partition("_")[0]]
    kind = x.dtype if x.dtype.kind == "f" else np.float32  # as in Fluid, integers are truncated after weighting
    for axis, dim, size in zip(axes, dims, _sizes(op, dims, given), strict=True):
        broadcast = [size if at == axis else 1 for at in range(x.ndim)]
        yield axis, [(index, weight.astype(kind).reshape(broadcast)) for index, weight in method(op, dim, size)]


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
            result = sum(folded(result * weight, axis, index, X.shape[axis]) for index, weight in taps)
        return result

    return run


# Sampling


def _corners(x: Array, grid: Array) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
    """The four elements around every point of the grid [images, points]: rows of X as a matrix [elements, channels],
    whether they are in the image, their weights along width and height, and their side of the point.
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
