"""Kernels. Convolutions.

`conv_shift` is a circular convolution of rows. With K the width of Y, which is not a multiple of 2: Out[n, i] = the sum
over j of X[n, i + j - (K - 1) / 2] * Y[n, j], with columns of X taken modulo its width.
"""

from __future__ import annotations

import math

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.images.conv import channels_last, dilations_of, padding_of, window_counts
from pstranspile.ops.shapes import Dims, Padding
from pstranspile.runtime.arithmetic import either, matmul, sum_of_products
from pstranspile.runtime.kernels import conv_images_last
from pstranspile.runtime.kernels.conv_depthwise import depthwise_gradients
from pstranspile.runtime.kernels.conv_windows import Windows
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel, wanted
from pstranspile.runtime.values import Array


def padding_to_last(padding: Padding, dims: Dims, size: Dims, strides: Dims, counts: Dims) -> Padding:
    """The padding that the last of `counts` windows of this size needs, as windows may reach beyond the images."""
    return tuple(
        (before, max(after, (count - 1) * stride + k - dim - before))
        for (before, after), dim, k, stride, count in zip(padding, dims, size, strides, counts, strict=True)
    )


def channels_first(op: Op, x: Array) -> Array:
    """Images or volumes with their channels before the spatial dims."""
    return np.moveaxis(x, -1, 1) if channels_last(op) else x


def as_asked(op: Op, x: Array) -> Array:
    """Images or volumes with channels first, converted to the op's layout."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if channels_last(op) else x


def _windows(op: Op, x: Array, filters: Array) -> Windows:
    size, dims = filters.shape[2:], x.shape[2:]
    dilations = dilations_of(op)
    groups = max(int_attr(op, "groups", 1), 1)
    if x.shape[1] != groups * filters.shape[1]:
        raise ValueError(f"Input has {x.shape[1]} channels, Filter takes {groups * filters.shape[1]}")
    strides, counts = ints_attr(op, "strides"), window_counts(op, dims, size, dilations)
    reach = tuple((k - 1) * dilation + 1 for k, dilation in zip(size, dilations, strict=True))
    padding = padding_to_last(padding_of(op, dims, size), dims, reach, strides, counts)
    return Windows(x.shape, size, groups, strides, dilations, padding, counts)


def filter_matrices(filters: Array, groups: int) -> Array:
    """The filters as matrices: [groups, filters of a group, channels of a group * size]."""
    return filters.reshape(groups, len(filters) // groups, -1)


@kernel("conv2d depthwise_conv2d conv3d", "Output", new=True)
def conv_values(op: Op) -> Run:
    """Output from Input and Filter."""

    def run(Input: Array, Filter: Array) -> Array:
        x = channels_first(op, Input)
        return as_asked(op, _values(_windows(op, x, Filter), x, Filter))

    return run


def _values_by_image(windows: Windows, x: Array, filters: Array) -> Array:
    product = matmul(filter_matrices(filters, windows.groups), windows.columns(x))
    return product.reshape(len(x), len(filters), *windows.counts)


def _values_in_pieces(windows: Windows, x: Array, filters: Array) -> Array:
    result = np.empty((len(x), len(filters), *windows.counts), x.dtype)
    matrices = filter_matrices(filters, windows.groups)
    for images, piece in windows.pieces():
        into = result[images].reshape(piece.shape[0], *matrices.shape[:2], math.prod(windows.counts))
        np.matmul(matrices, piece.columns(x[images]), out=into)
    return result


def _fastest_values(windows: Windows, x: Array, filters: Array) -> Array:
    way = conv_images_last.values if conv_images_last.is_faster(windows) else _values_in_pieces
    return way(windows, x, filters)


_values = either(_fastest_values, _values_by_image)


def _gradients_by_image(
    windows: Windows, x: Array, filters: Array, gradient: Array, wants_input: bool, wants_filter: bool
) -> tuple[Array | None, Array | None]:
    """The gradients of images and filters, with channels before the spatial dims; None for one that is not wanted."""
    matrices = filter_matrices(filters, windows.groups)
    gradient = gradient.reshape(len(x), *matrices.shape[:2], math.prod(windows.counts))
    input_grad = windows.images(matmul(matrices, gradient, transpose_a=True)) if wants_input else None
    filter_grad = sum_of_products(gradient, windows.columns(x)).reshape(filters.shape) if wants_filter else None
    return input_grad, filter_grad


def _gradients_in_pieces(
    windows: Windows, x: Array, filters: Array, gradient: Array, wants_input: bool, wants_filter: bool
) -> tuple[Array | None, Array | None]:
    input_grad = np.empty(windows.shape, x.dtype) if wants_input else None
    filter_grad = np.zeros(filters.shape, x.dtype) if wants_filter else None
    for images, piece in windows.pieces():
        of_input, of_filter = _gradients_by_image(
            piece, x[images], filters, gradient[images], wants_input, wants_filter
        )
        if input_grad is not None:
            input_grad[images] = of_input
        if filter_grad is not None:
            filter_grad += of_filter
    return input_grad, filter_grad


def _fastest_gradients(
    windows: Windows, x: Array, filters: Array, gradient: Array, wants_input: bool, wants_filter: bool
) -> tuple[Array | None, Array | None]:
    if windows.groups == x.shape[1] == len(filters):
        way = depthwise_gradients
    else:
        way = conv_images_last.gradients if conv_images_last.is_faster(windows) else _gradients_in_pieces
    return way(windows, x, filters, gradient, wants_input, wants_filter)


_gradients = either(_fastest_gradients, _gradients_by_image)


@kernel("conv2d_grad depthwise_conv2d_grad conv3d_grad", "Input@GRAD Filter@GRAD", lod="none")
def _conv_grad(op: Op) -> Run:
    return conv_gradients(op, wanted(op, "Input@GRAD"), wanted(op, "Filter@GRAD"))


def conv_gradients(op: Op, wants_input: bool, wants_filter: bool) -> Run:
    """The gradients of Input and Filter from Input, Filter and Output@GRAD; None for one that is not wanted."""

    def run(Input: Array, Filter: Array, Output_GRAD: Array) -> tuple[Array | None, Array | None]:
        x, gradient = channels_first(op, Input), channels_first(op, Output_GRAD)
        windows = _windows(op, x, Filter)
        input_grad, filter_grad = _gradients(windows, x, Filter, gradient, wants_input, wants_filter)
        return None if input_grad is None else as_asked(op, input_grad), filter_grad

    return run


def _places(x: Array, y: Array) -> Array:
    """The column of X that column j of Y is multiplied with for column i of Out, as [i, j]."""
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or y.shape[1] % 2 == 0 or y.shape[1] > x.shape[1]:
        raise ValueError(
            f"X has the dims {list(x.shape)}, Y {list(y.shape)}: Y must have as many rows and an odd number of "
            f"columns, no more than X"
        )
    width = y.shape[1]
    return (np.arange(x.shape[1])[:, None] + np.arange(width) - (width - 1) // 2) % x.shape[1]


@plain_kernel("conv_shift")
def _conv_shift(X: Array, Y: Array) -> Array:
    return (X[:, _places(X, Y)] * Y[:, None]).sum(axis=2)


@plain_kernel("conv_shift_grad", "X@GRAD Y@GRAD", lod="none")
def _conv_shift_grad(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array, Array]:
    places = _places(X, Y)
    x_grad = np.zeros_like(X)
    np.add.at(x_grad, (slice(None), places), Out_GRAD[:, :, None] * Y[:, None])
    return x_grad, (X[:, places] * Out_GRAD[:, :, None]).sum(axis=1)
