"""Kernels. Convolutions.

`conv_shift` is a circular convolution of rows. With K the width of Y, which is not a multiple of 2: Out[n, i] = the sum
over j of X[n, i + j - (K - 1) / 2] * Y[n, j], with columns of X taken modulo its width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.images.conv import (
    channels_last,
    counts_of,
    dilations_of,
    grown_dims,
    moved_dims,
    padding_of,
    transposed_dims,
    window_counts,
)
from pstranspile.ops.shapes import Dims, Padding
from pstranspile.runtime.arithmetic import either, loops, matmul, sum_of_products
from pstranspile.runtime.kernels.detection.boxes import Samples, samples, scatter_samples
from pstranspile.runtime.kernels.kernel import Run, has_output, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import plain
from pstranspile.runtime.values import Array, LoDTensor

# The windows of a convolution, and conversions between images and matrices of windows.


_ELEMENTS = 1 << 17
"""The most elements in the windows of images that are processed at a time."""


class Windows(NamedTuple):
    """The windows of a convolution over images of the dims `shape`, with the channels first.

    `counts` is the number of windows along each spatial dim, which need not fit into the images. As columns of matrices
    the windows are [images, groups, channels of a group * size, windows].
    """

    shape: Dims
    size: Dims
    groups: int
    strides: Dims
    dilations: Dims
    padding: Padding
    counts: Dims

    def columns(self, x: Array) -> Array:
        """The windows of the images x as columns of matrices."""
        terms = x.shape[1] // self.groups * math.prod(self.size)
        if len(self.counts) == 2:
            result = np.empty((x.shape[0], self.groups, terms, math.prod(self.counts)), x.dtype)
            if loops.unfold(x, result, _geometry(self)):
                return result
        padded = self._pad_images(x) if any(map(any, self.padding)) else x
        images, channels, *spatial = padded.strides
        in_window = (stride * dilation for stride, dilation in zip(spatial, self.dilations, strict=True))
        to_next = (stride * step for stride, step in zip(spatial, self.strides, strict=True))
        windows = np.lib.stride_tricks.as_strided(
            padded,
            (*x.shape[:2], *self.size, *self.counts),
            (images, channels, *in_window, *to_next),
            writeable=False,
        )
        return windows.reshape(x.shape[0], self.groups, terms, math.prod(self.counts))

    def _pad_images(self, x: Array) -> Array:
        result = np.zeros((*x.shape[:2], *self.padded_dims()), x.dtype)
        result[(..., *self.inner())] = x
        return result

    def pieces(self) -> Iterator[tuple[slice, Windows]]:
        """Yields slices of images whose windows fit into the processor's cache, each with the Windows of these images
        alone.
        """
        images, channels = self.shape[:2]
        count = max(_ELEMENTS // max(channels * math.prod(self.size) * math.prod(self.counts), 1), 1)
        for at in range(0, images, count):
            yield slice(at, at + count), self._replace(shape=(min(count, images - at), *self.shape[1:]))

    def images(self, columns: Array) -> Array:
        """The adjoint of `columns`: images in which every element is the sum of all its occurrences in the windows."""
        if len(self.counts) == 2:
            result = np.empty(self.shape, columns.dtype)
            if loops.fold(result, columns, _geometry(self)):
                return result
        whole = np.zeros((*self.shape[:2], *self.padded_dims()), columns.dtype)
        parts = columns.reshape(*self.shape[:2], *self.size, *self.counts)
        for element, place in self.places():
            whole[(..., *place)] += parts[(slice(None), slice(None), *element)]
        return whole[(..., *self.inner())]

    def places(self) -> Iterator[tuple[Dims, tuple[slice, ...]]]:
        """Yields the elements of the filter, each with the slice of the padded images that it is multiplied with."""
        for element in itertools.product(*map(range, self.size)):
            yield (
                element,
                tuple(
                    slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
                    for at, dilation, count, stride in zip(
                        element, self.dilations, self.counts, self.strides, strict=True
                    )
                ),
            )

    def inner(self) -> tuple[slice, ...]:
        """The slice of the padded images that holds the images."""
        return tuple(slice(b, b + dim) for dim, (b, _) in zip(self.shape[2:], self.padding, strict=True))

    def padded_dims(self) -> Dims:
        """The spatial dims of the images with their padding."""
        return tuple(b + dim + a for dim, (b, a) in zip(self.shape[2:], self.padding, strict=True))


@lru_cache(256)
def _geometry(windows: Windows) -> Array:
    """The integers that `loops.unfold` and `loops.fold` take."""
    before = [padding[0] for padding in windows.padding]
    numbers = (*windows.shape, *windows.size, *windows.counts, *windows.strides, *windows.dilations, *before)
    return np.array(numbers, np.int64)


# The gradient of a convolution whose groups are single channels, without the matrix of windows.
#
# With the channels last, each element of the filter multiplies a shifted part of the padded images. So the gradient is
# a sum of products of whole arrays, one for each element of the filter.


def depthwise_gradients(
    windows: Windows, x: Array, filters: Array, gradient: Array, wants_input: bool, wants_filter: bool
) -> tuple[Array | None, Array | None]:
    """The gradients of images and filters of a convolution with one filter for each channel; None for an unwanted
    gradient.

    `x` and `gradient` have the channels before the spatial dims.
    """
    images, channels = x.shape[:2]
    of_windows = _channels_last(gradient)
    taps = filters.reshape(channels, -1).T
    weights = np.tile(taps, (1, images))
    padded = _pad_channels_last(windows, x) if wants_filter else None
    whole = np.zeros((*windows.padded_dims(), images * channels), of_windows.dtype) if wants_input else None
    terms, sums = np.empty_like(of_windows), np.empty(weights.shape, of_windows.dtype)
    for element, (_, place) in enumerate(windows.places()):
        if whole is not None:
            np.multiply(of_windows, weights[element], out=terms)
            whole[place] += terms
        if padded is not None:
            np.multiply(of_windows, padded[place], out=terms)
            np.add.reduce(terms.reshape(-1, terms.shape[-1]), axis=0, out=sums[element])
    input_grad = None if whole is None else _channels_first(whole[windows.inner()], x.shape)
    filter_grad = np.add.reduce(sums.reshape(len(taps), images, channels), axis=1).T.reshape(filters.shape)
    return input_grad, filter_grad if wants_filter else None


def _channels_last(x: Array) -> Array:
    """Images [n, channels, ...] as [..., n * channels]."""
    return np.ascontiguousarray(np.moveaxis(x.reshape(math.prod(x.shape[:2]), *x.shape[2:]), 0, -1))


def _channels_first(x: Array, dims: tuple[int, ...]) -> Array:
    """The inverse of `_channels_last`, to images of these dims."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 0)).reshape(dims)


def _pad_channels_last(windows: Windows, x: Array) -> Array:
    result = np.zeros((*windows.padded_dims(), math.prod(x.shape[:2])), x.dtype)
    result[windows.inner()] = np.moveaxis(x.reshape(-1, *x.shape[2:]), 0, -1)
    return result


# Convolutions of small images, with the images of the batch as the last dim of all arrays.
#
# The rows of small images are too short for numpy to copy and add them fast. With the batch last, the elements at one
# place of all images lie together, and one product computes all images.

_LONGEST = 12
"""The most windows in a row for which the functions with the batch last are faster."""

_FEWEST = 8
"""The fewest images for which the functions with the batch last are faster."""


def is_faster(windows: Windows) -> bool:
    """Whether images are small enough, and numerous enough, for the functions with the batch last to be faster."""
    return (
        windows.groups == 1
        and math.prod(windows.size) > 1
        and set(windows.strides) == {1}
        and windows.counts[-1] <= _LONGEST
        and windows.shape[0] >= _FEWEST
    )


def values(windows: Windows, x: Array, filters: Array) -> Array:
    """The convolution: products of the filters with the windows of images, [images, filters, windows...]."""
    product = np.dot(filters.reshape(len(filters), -1), _columns(windows, x))
    return _images_first(product.reshape(len(filters), *windows.counts, len(x)))


def gradients(
    windows: Windows, x: Array, filters: Array, gradient: Array, wants_input: bool, wants_filter: bool
) -> tuple[Array | None, Array | None]:
    """The gradients of images and filters; None for an unwanted one."""
    of_windows = _images_last(gradient).reshape(len(filters), -1)
    matrix = filters.reshape(len(filters), -1)
    input_grad = _sums(windows, np.dot(matrix.T, of_windows)) if wants_input else None
    # the transposed product is faster than a product with transposed columns
    filter_grad = np.dot(_columns(windows, x), of_windows.T).T.reshape(filters.shape) if wants_filter else None
    return input_grad, filter_grad


def _images_last(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, 0, -1))


def _images_first(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, -1, 0))


def _columns(windows: Windows, x: Array) -> Array:
    """The windows as columns of a matrix: [channels * size, windows * images]."""
    padded = np.zeros((x.shape[1], *windows.padded_dims(), len(x)), x.dtype)
    padded[(slice(None), *windows.inner())] = np.moveaxis(x, 0, -1)
    channel, *spatial, image = padded.strides
    in_window = (stride * dilation for stride, dilation in zip(spatial, windows.dilations, strict=True))
    view = np.lib.stride_tricks.as_strided(
        padded,
        (x.shape[1], *windows.size, *windows.counts, len(x)),
        (channel, *in_window, *spatial, image),
        writeable=False,
    )
    return view.reshape(x.shape[1] * math.prod(windows.size), -1)


def _sums(windows: Windows, columns: Array) -> Array:
    """The adjoint of `_columns`: images in which every element is the sum of all its occurrences in the windows."""
    images, channels = windows.shape[:2]
    whole = np.zeros((channels, *windows.padded_dims(), images), columns.dtype)
    parts = columns.reshape(channels, *windows.size, *windows.counts, images)
    for element, place in windows.places():
        whole[(slice(None), *place)] += parts[(slice(None), *element)]
    return _images_first(whole[(slice(None), *windows.inner())])


def padding_to_last(padding: Padding, dims: Dims, size: Dims, strides: Dims, counts: Dims) -> Padding:
    """The padding that the last of `counts` windows of this size needs, as windows may reach beyond the images."""
    return tuple(
        (before, max(after, (count - 1) * stride + k - dim - before))
        for (before, after), dim, k, stride, count in zip(padding, dims, size, strides, counts, strict=True)
    )


def channels_first(op: Op, x: Array) -> Array:
    """Images or volumes of the op's layout, with their channels moved before the spatial dims."""
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
    """The kernel of convolutions: Output from Input and Filter."""

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
    way = values if is_faster(windows) else _values_in_pieces
    return way(windows, x, filters)


_values = either(_fastest_values, _values_by_image)


def _gradients_by_image(
    windows: Windows, x: Array, filters: Array, gradient: Array, wants_input: bool, wants_filter: bool
) -> tuple[Array | None, Array | None]:
    """The gradients of images and filters, with channels before the spatial dims; None for an unwanted one."""
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
        way = gradients if is_faster(windows) else _gradients_in_pieces
    return way(windows, x, filters, gradient, wants_input, wants_filter)


_gradients = either(_fastest_gradients, _gradients_by_image)


@kernel("conv2d_grad depthwise_conv2d_grad conv3d_grad", "Input@GRAD Filter@GRAD", lod="none")
def _conv_grad(op: Op) -> Run:
    return conv_gradients(op, has_output(op, "Input@GRAD"), has_output(op, "Filter@GRAD"))


def conv_gradients(op: Op, wants_input: bool, wants_filter: bool) -> Run:
    """The kernel of convolutions' gradients: those of Input and Filter from Input, Filter and Output@GRAD; None for an
    unwanted one.
    """

    def run(Input: Array, Filter: Array, Output_GRAD: Array) -> tuple[Array | None, Array | None]:
        x, gradient = channels_first(op, Input), channels_first(op, Output_GRAD)
        windows = _windows(op, x, Filter)
        input_grad, filter_grad = _gradients(windows, x, Filter, gradient, wants_input, wants_filter)
        return None if input_grad is None else as_asked(op, input_grad), filter_grad

    return run


def _places(x: Array, y: Array) -> Array:
    """The column of X that is multiplied with column j of Y for column i of Out, as element [i, j]."""
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


# Kernels. Transposed convolution, and windows of images as columns or sequences.


def _transposed_windows(op: Op, x: Array, filters: Array) -> Windows:
    """The windows of a transposed convolution: they lie over its result, one for each element of x."""
    size, counts = filters.shape[2:], x.shape[2:]
    groups = max(int_attr(op, "groups", 1), 1)
    if x.shape[1] != len(filters):
        raise ValueError(f"Input has {x.shape[1]} channels, Filter takes {len(filters)}")
    if x.shape[1] % groups:
        raise ValueError(f"Input has {x.shape[1]} channels, which can't be cut into {groups} groups")
    padding = padding_of(op, counts, size)
    dims, least = transposed_dims(op, counts, size), grown_dims(op, counts, size)
    reached = tuple(
        (before, after - (dim - small)) for (before, after), dim, small in zip(padding, dims, least, strict=True)
    )
    shape = (len(x), filters.shape[1] * groups, *dims)
    return Windows(shape, size, groups, ints_attr(op, "strides"), dilations_of(op), reached, counts)


def _channel_columns(x: Array, groups: int) -> Array:
    """Images as matrices: [images, groups, channels of a group, elements]."""
    return x.reshape(len(x), groups, x.shape[1] // groups, math.prod(x.shape[2:]))


def _without_negative_padding(windows: Windows) -> Windows:
    """The windows with negative padding replaced by 0. Elements of the result beyond the last window stay 0."""
    extra = tuple(max(-after, 0) for _, after in windows.padding)
    shape = (*windows.shape[:2], *(dim - more for dim, more in zip(windows.shape[2:], extra, strict=True)))
    padding = tuple((before, max(after, 0)) for before, after in windows.padding)
    return windows._replace(shape=shape, padding=padding)


def _to(images: Array, dims: Dims) -> Array:
    """Images cropped to these dims, or padded with zeros at the end."""
    cut = images[(..., *(slice(dim) for dim in dims))]
    missing = tuple((0, dim - had) for dim, had in zip(dims, cut.shape[2:], strict=True))
    return np.pad(cut, ((0, 0), (0, 0), *missing)) if any(map(any, missing)) else cut


@plain_kernel("conv2d_transpose depthwise_conv2d_transpose conv3d_transpose", "Output")
def _conv_transpose_values(Input: Array, Filter: Array, *, op: Op) -> Array:
    x = channels_first(op, Input)
    windows = _transposed_windows(op, x, Filter)
    filters = filter_matrices(Filter, windows.groups)
    images = _without_negative_padding(windows).images(
        matmul(filters, _channel_columns(x, windows.groups), transpose_a=True)
    )
    return as_asked(op, np.ascontiguousarray(_to(images, windows.shape[2:])))


@plain_kernel(
    "conv2d_transpose_grad depthwise_conv2d_transpose_grad conv3d_transpose_grad",
    "Input@GRAD Filter@GRAD",
    lod="none",
)
def _conv_transpose_grad(
    Input: Array, Filter: Array, Output_GRAD: Array, *, op: Op, wants_Input_GRAD: bool, wants_Filter_GRAD: bool
) -> tuple[Array | None, Array | None]:
    x = channels_first(op, Input)
    windows = _transposed_windows(op, x, Filter)
    inner = _without_negative_padding(windows)
    gradient = inner.columns(_to(channels_first(op, Output_GRAD), inner.shape[2:]))
    input_grad = filter_grad = None
    if wants_Input_GRAD:
        product = matmul(filter_matrices(Filter, windows.groups), gradient)
        input_grad = as_asked(op, product.reshape(x.shape))
    if wants_Filter_GRAD:
        filter_grad = sum_of_products(_channel_columns(x, windows.groups), gradient).reshape(Filter.shape)
    return input_grad, filter_grad


def _plain_windows(shape: Dims, size: Dims, strides: Dims, dilations: Dims, paddings: Dims) -> Windows:
    counts = counts_of(shape[2:], size, strides, dilations, paddings)
    if min(counts) < 1:
        raise ValueError(f"X has images of {list(shape[2:])}, which have no window of {list(size)}")
    top, left, bottom, right = paddings
    reach = tuple((k - 1) * dilation + 1 for k, dilation in zip(size, dilations, strict=True))
    padding = padding_to_last(((top, bottom), (left, right)), shape[2:], reach, strides, counts)
    return Windows(shape, size, 1, strides, dilations, padding, counts)


def _unfold_windows(op: Op, shape: Dims) -> Windows:
    strides, dilations = ints_attr(op, "strides"), ints_attr(op, "dilations")
    return _plain_windows(shape, ints_attr(op, "kernel_sizes"), strides, dilations, ints_attr(op, "paddings"))


@plain_kernel("unfold", "Y")
def _unfold_values(X: Array, *, op: Op) -> Array:
    return _unfold_windows(op, X.shape).columns(X)[:, 0]


@plain_kernel("unfold_grad", "X@GRAD", lod="none")
def _unfold_grad(X: Array, Y_GRAD: Array, *, op: Op) -> Array:
    return np.ascontiguousarray(_unfold_windows(op, X.shape).images(Y_GRAD))


def _im2sequence_windows(op: Op, shape: Dims) -> Windows:
    return _plain_windows(shape, ints_attr(op, "kernels"), ints_attr(op, "strides"), (1, 1), ints_attr(op, "paddings"))


def _as_rows(columns: Array) -> Array:
    """Columns of windows [images, 1, size, windows] as rows [images * windows, size]."""
    return columns[:, 0].swapaxes(1, 2).reshape(-1, columns.shape[2])


def _of_real_size(op: Op, windows: Windows, dims: Dims) -> Windows:
    """The windows of one image whose real size is `dims`, which may be smaller than X."""
    counts = counts_of(dims, windows.size, windows.strides, (1, 1), ints_attr(op, "paddings"))
    if min(counts) < 1:
        raise ValueError(f"Y has an image of {list(dims)}, which has no window of {list(windows.size)}")
    padding: list[tuple[int, int]] = []
    for at, count in enumerate(counts):
        before = windows.padding[at][0]
        reached = (count - 1) * windows.strides[at] + windows.size[at]
        padding.append((before, max(reached - before - windows.shape[2 + at], 0)))
    return windows._replace(shape=(1, *windows.shape[1:]), padding=tuple(padding), counts=counts)


@kernel("im2sequence", lod="new")
def _im2sequence_values(op: Op) -> Run:
    scale = ints_attr(op, "out_stride") or (1, 1)

    def run(X: Array | LoDTensor, Y: Array | LoDTensor | None) -> LoDTensor:
        x: Array = plain(X)
        windows = _im2sequence_windows(op, x.shape)
        if Y is None:
            step = math.prod(windows.counts)
            return LoDTensor(_as_rows(windows.columns(x)), [list(range(0, len(x) * step + 1, step))])
        parts: list[Array] = []
        ends = [0]
        for image, sizes in zip(x, plain(Y).tolist(), strict=True):
            dims = tuple(-(-int(size) // by) for size, by in zip(sizes, scale, strict=True))
            parts.append(_as_rows(_of_real_size(op, windows, dims).columns(image[None])))
            ends.append(ends[-1] + len(parts[-1]))
        return LoDTensor(np.concatenate(parts), [ends])

    return run


@plain_kernel("im2sequence_grad", "X@GRAD", lod="none")
def _im2sequence_grad(X: Array, Out_GRAD: Array, *, op: Op) -> Array:
    windows = _im2sequence_windows(op, X.shape)
    rows = len(X) * math.prod(windows.counts)
    if len(Out_GRAD) != rows:
        raise ValueError(f"Out has {len(Out_GRAD)} rows, X has {rows} windows: Y lets no gradient through")
    columns = Out_GRAD.reshape(len(X), rows // len(X), -1).swapaxes(1, 2)
    return np.ascontiguousarray(windows.images(columns))


# Kernels. Deformable convolution: every sample has an offset of its own.


class _DeformedSamples(NamedTuple):
    """The samples of one image for a deformable convolution.

    `samples` has one entry for each part of the channels, each [window, places]. `mask` is [parts, window, places].
    `dims` are height and width of the result.
    """

    samples: list[Samples]
    mask: Array
    dims: tuple[int, ...]


def _deformed_samples(op: Op, x: Array, offset: Array, mask: Array | None, window: tuple[int, ...]) -> _DeformedSamples:
    """The samples of an image [channels, height, width]. There are two offsets, a row and a column, for each element of
    the window.
    """
    parts = int_attr(op, "deformable_groups")
    dims = moved_dims(op, x.shape[1:], window)
    size, places = window[0] * window[1], dims[0] * dims[1]
    if offset.size != 2 * parts * size * places or (mask is not None and mask.size != parts * size * places):
        raise ValueError(f"offsets and mask are not for {parts} parts of windows {list(window)} at {list(dims)} places")
    first = [
        ((np.arange(count) * stride - padding)[None, :] + (np.arange(side) * dilation)[:, None]).astype(offset.dtype)
        for count, side, stride, padding, dilation in zip(
            dims, window, *(ints_attr(op, name) for name in ("strides", "paddings", "dilations")), strict=True
        )
    ]
    down = np.broadcast_to(first[0][:, None, :, None], (*window, *dims)).reshape(size, places)
    along = np.broadcast_to(first[1][None, :, None, :], (*window, *dims)).reshape(size, places)
    by = offset.reshape(parts, size, 2, places)
    at = [_within_image(down + part[:, 0], along + part[:, 1], x.shape[1], x.shape[2]) for part in by]
    return _DeformedSamples(
        at, np.ones((parts, size, places), x.dtype) if mask is None else mask.reshape(parts, size, places), dims
    )


def _within_image(down: Array, along: Array, height: int, width: int) -> Samples:
    """Samples at points. Points a pixel or more outside of the image have the value 0 and slopes of 0."""
    made = samples(down, along, height, width)
    there = (down > -1) & (along > -1) & (down < height) & (along < width)
    return made._replace(weights=made.weights * there, slopes=(made.slopes[0] * there, made.slopes[1] * there))


def _deformed_columns(moved: _DeformedSamples, x: Array) -> Array:
    """The samples without the mask: [parts, channels of a part, window, places]."""
    flat = x.reshape(len(moved.samples), -1, x.shape[1] * x.shape[2])
    return np.stack([at.of(part) for at, part in zip(moved.samples, flat, strict=True)])


def _split_groups(op: Op, columns: Array) -> Array:
    """Columns as [groups, channels of a group and window, places]."""
    return columns.reshape(int_attr(op, "groups"), -1, columns.shape[-1])


@kernel("deformable_conv deformable_conv_v1", "Output", lod="none")
def _deformable_conv_values(op: Op) -> Run:
    groups = int_attr(op, "groups")

    def image(x: Array, offset: Array, mask: Array | None, filters: Array) -> Array:
        moved = _deformed_samples(op, x, offset, mask, filters.shape[2:])
        columns = _split_groups(op, _deformed_columns(moved, x) * moved.mask[:, None])
        made = filters.reshape(groups, len(filters) // groups, -1) @ columns
        return made.reshape(len(filters), *moved.dims)

    def convolve(Input: Array, Offset: Array, Mask: Array | None, Filter: Array) -> Array:
        masks = [None] * len(Input) if Mask is None else Mask
        return np.stack([image(x, offset, mask, Filter) for x, offset, mask in zip(Input, Offset, masks, strict=True)])

    def convolve_unmasked(Input: Array, Offset: Array, Filter: Array) -> Array:
        return convolve(Input, Offset, None, Filter)

    return convolve if op.type == "deformable_conv" else convolve_unmasked


def _slopes(op: Op, x: Array, offset: Array, mask: Array | None, filters: Array, slope: Array) -> tuple[Array, ...]:
    """The gradients of an image, its offsets, its mask and the filters."""
    groups, pixels = int_attr(op, "groups"), x.shape[1] * x.shape[2]
    moved = _deformed_samples(op, x, offset, mask, filters.shape[2:])
    values = _deformed_columns(moved, x)
    by_group = slope.reshape(groups, len(filters) // groups, -1)
    of_filters = by_group @ _split_groups(op, values * moved.mask[:, None]).transpose(0, 2, 1)
    rows = filters.reshape(groups, len(filters) // groups, -1).transpose(0, 2, 1) @ by_group
    back = rows.reshape(values.shape)
    masked = back * moved.mask[:, None]
    flat = x.reshape(len(moved.samples), -1, pixels)
    of_x = np.stack([scatter_samples(at, part, pixels) for at, part in zip(moved.samples, masked, strict=True)])
    of_offset = np.stack(
        [
            np.stack(
                [((part[:, at.places] * slopes).sum(axis=1) * weights).sum(axis=0) for slopes in at.slopes],
                axis=1,
            )
            for at, part, weights in zip(moved.samples, flat, masked, strict=True)
        ]
    )
    of_mask = (back * values).sum(axis=1)
    of_mask = of_mask if mask is None else of_mask.reshape(mask.shape)
    return of_x.reshape(x.shape), of_offset.reshape(offset.shape), of_mask, of_filters.reshape(filters.shape)


@plain_kernel("deformable_conv_grad", "Input@GRAD Offset@GRAD Mask@GRAD Filter@GRAD", lod="none")
def _deformable_conv_grad(
    Input: Array, Offset: Array, Mask: Array | None, Filter: Array, Output_GRAD: Array, *, op: Op
) -> tuple[Array, ...]:
    masks = [None] * len(Input) if Mask is None else Mask
    images = zip(Input, Offset, masks, Output_GRAD, strict=True)
    slopes = [_slopes(op, x, offset, mask, Filter, slope) for x, offset, mask, slope in images]
    *of_images, of_filters = zip(*slopes, strict=True)
    return *map(np.stack, of_images), np.sum(of_filters, axis=0, dtype=Filter.dtype)


@plain_kernel("deformable_conv_v1_grad", "Input@GRAD Offset@GRAD Filter@GRAD", lod="none")
def _deformable_conv_v1_grad(
    Input: Array, Offset: Array, Filter: Array, Output_GRAD: Array, *, op: Op
) -> tuple[Array, Array, Array]:
    of_x, of_offset, _, of_filters = _deformable_conv_grad(Input, Offset, None, Filter, Output_GRAD, op=op)
    return of_x, of_offset, of_filters
