"""Kernels. Convolutions.

`conv_shift` is a circular convolution of rows. With K the width of Y, which is not a multiple of 2: Out[n, i] = the sum
over j of X[n, i + j - (K - 1) / 2] * Y[n, j], with columns of X taken modulo its width.
"""

from __future__ import annotations

import math
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
from pstranspile.runtime.arithmetic import either, matmul, sum_of_products
from pstranspile.runtime.kernels import conv_windows
from pstranspile.runtime.kernels.conv_windows import Windows, depthwise_gradients
from pstranspile.runtime.kernels.detection.boxes import Samples, samples, scattered
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel, wanted
from pstranspile.runtime.values import Array, LoDTensor


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
    way = conv_windows.values if conv_windows.is_faster(windows) else _values_in_pieces
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
        way = conv_windows.gradients if conv_windows.is_faster(windows) else _gradients_in_pieces
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


# Kernels. Transposed convolution, and windows of images as columns or sequences.


def _transposed_windows(op: Op, x: Array, filters: Array) -> Windows:
    """The windows over the result, one for each element of x."""
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


def _columns(x: Array, groups: int) -> Array:
    """Images as matrices: [images, groups, channels of a group, elements]."""
    return x.reshape(len(x), groups, x.shape[1] // groups, math.prod(x.shape[2:]))


def _within(windows: Windows) -> Windows:
    """The windows with paddings clipped at 0. Elements of the result beyond the last window stay 0."""
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
    images = _within(windows).images(matmul(filters, _columns(x, windows.groups), transpose_a=True))
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
    inner = _within(windows)
    gradient = inner.columns(_to(channels_first(op, Output_GRAD), inner.shape[2:]))
    input_grad = filter_grad = None
    if wants_Input_GRAD:
        product = matmul(filter_matrices(Filter, windows.groups), gradient)
        input_grad = as_asked(op, product.reshape(x.shape))
    if wants_Filter_GRAD:
        filter_grad = sum_of_products(_columns(x, windows.groups), gradient).reshape(Filter.shape)
    return input_grad, filter_grad


def _plain_windows(shape: Dims, size: Dims, strides: Dims, dilations: Dims, paddings: Dims) -> Windows:
    counts = counts_of(shape[2:], size, strides, dilations, paddings)
    if min(counts) < 1:
        raise ValueError(f"X has images of {list(shape[2:])}, which have no window of {list(size)}")
    top, left, bottom, right = paddings
    reach = tuple((k - 1) * dilation + 1 for k, dilation in zip(size, dilations, strict=True))
    padding = padding_to_last(((top, bottom), (left, right)), shape[2:], reach, strides, counts)
    return Windows(shape, size, 1, strides, dilations, padding, counts)


def _unfolded(op: Op, shape: Dims) -> Windows:
    strides, dilations = ints_attr(op, "strides"), ints_attr(op, "dilations")
    return _plain_windows(shape, ints_attr(op, "kernel_sizes"), strides, dilations, ints_attr(op, "paddings"))


@plain_kernel("unfold", "Y")
def _unfold_values(X: Array, *, op: Op) -> Array:
    return _unfolded(op, X.shape).columns(X)[:, 0]


@plain_kernel("unfold_grad", "X@GRAD", lod="none")
def _unfold_grad(X: Array, Y_GRAD: Array, *, op: Op) -> Array:
    return np.ascontiguousarray(_unfolded(op, X.shape).images(Y_GRAD))


def _sequenced(op: Op, shape: Dims) -> Windows:
    return _plain_windows(shape, ints_attr(op, "kernels"), ints_attr(op, "strides"), (1, 1), ints_attr(op, "paddings"))


def _as_rows(columns: Array) -> Array:
    """Columns of windows [images, 1, size, windows] as rows, image after image."""
    return columns[:, 0].swapaxes(1, 2).reshape(-1, columns.shape[2])


def _of_real_size(op: Op, windows: Windows, dims: Dims) -> Windows:
    """The windows of one image whose real size is `dims`, however large X is."""
    counts = counts_of(dims, windows.size, windows.strides, (1, 1), ints_attr(op, "paddings"))
    if min(counts) < 1:
        raise ValueError(f"Y has an image of {list(dims)}, which has no window of {list(windows.size)}")
    padding: list[tuple[int, int]] = []
    for at, count in enumerate(counts):
        before = windows.padding[at][0]
        reached = (count - 1) * windows.strides[at] + windows.size[at]
        padding.append((before, max(reached - before - windows.shape[2 + at], 0)))
    return windows._replace(shape=(1, *windows.shape[1:]), padding=tuple(padding), counts=counts)


def _data(value: Array | LoDTensor) -> Array:
    return value.data if isinstance(value, LoDTensor) else value


@kernel("im2sequence", lod="new")
def _im2sequence_values(op: Op) -> Run:
    scale = ints_attr(op, "out_stride") or (1, 1)

    def run(X: Array | LoDTensor, Y: Array | LoDTensor | None) -> LoDTensor:
        x: Array = _data(X)
        windows = _sequenced(op, x.shape)
        if Y is None:
            step = math.prod(windows.counts)
            return LoDTensor(_as_rows(windows.columns(x)), [list(range(0, len(x) * step + 1, step))])
        parts: list[Array] = []
        ends = [0]
        for image, sizes in zip(x, _data(Y).tolist(), strict=True):
            dims = tuple(-(-int(size) // by) for size, by in zip(sizes, scale, strict=True))
            parts.append(_as_rows(_of_real_size(op, windows, dims).columns(image[None])))
            ends.append(ends[-1] + len(parts[-1]))
        return LoDTensor(np.concatenate(parts), [ends])

    return run


@plain_kernel("im2sequence_grad", "X@GRAD", lod="none")
def _im2sequence_grad(X: Array, Out_GRAD: Array, *, op: Op) -> Array:
    windows = _sequenced(op, X.shape)
    rows = len(X) * math.prod(windows.counts)
    if len(Out_GRAD) != rows:
        raise ValueError(f"Out has {len(Out_GRAD)} rows, X has {rows} windows: Y lets no gradient through")
    columns = Out_GRAD.reshape(len(X), rows // len(X), -1).swapaxes(1, 2)
    return np.ascontiguousarray(windows.images(columns))


# Kernels. Deformable convolution: every sample has an offset of its own.


class _Moved(NamedTuple):
    """The samples of one image.

    `at` is one entry for each part of the channels, each [window, places]. `mask` is [parts, window, places]. `dims`
    are height and width of the result.
    """

    at: list[Samples]
    mask: Array
    dims: tuple[int, ...]


def _moved(op: Op, x: Array, offset: Array, mask: Array | None, window: tuple[int, ...]) -> _Moved:
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
    return _Moved(
        at, np.ones((parts, size, places), x.dtype) if mask is None else mask.reshape(parts, size, places), dims
    )


def _within_image(down: Array, along: Array, height: int, width: int) -> Samples:
    """Samples at points. Points a pixel or more beyond the edges give 0, and their slopes are 0."""
    made = samples(down, along, height, width)
    there = (down > -1) & (along > -1) & (down < height) & (along < width)
    return made._replace(weights=made.weights * there, slopes=(made.slopes[0] * there, made.slopes[1] * there))


def _deformed_columns(moved: _Moved, x: Array) -> Array:
    """The samples without the mask: [parts, channels of a part, window, places]."""
    flat = x.reshape(len(moved.at), -1, x.shape[1] * x.shape[2])
    return np.stack([at.of(part) for at, part in zip(moved.at, flat, strict=True)])


def _grouped(op: Op, columns: Array) -> Array:
    """Columns as [groups, channels of a group and window, places]."""
    return columns.reshape(int_attr(op, "groups"), -1, columns.shape[-1])


@kernel("deformable_conv deformable_conv_v1", "Output", lod="none")
def _deformable_conv_values(op: Op) -> Run:
    groups = int_attr(op, "groups")

    def image(x: Array, offset: Array, mask: Array | None, filters: Array) -> Array:
        moved = _moved(op, x, offset, mask, filters.shape[2:])
        columns = _grouped(op, _deformed_columns(moved, x) * moved.mask[:, None])
        made = filters.reshape(groups, len(filters) // groups, -1) @ columns
        return made.reshape(len(filters), *moved.dims)

    def convolved(Input: Array, Offset: Array, Mask: Array | None, Filter: Array) -> Array:
        masks = [None] * len(Input) if Mask is None else Mask
        return np.stack([image(x, offset, mask, Filter) for x, offset, mask in zip(Input, Offset, masks, strict=True)])

    def unmasked(Input: Array, Offset: Array, Filter: Array) -> Array:
        return convolved(Input, Offset, None, Filter)

    return convolved if op.type == "deformable_conv" else unmasked


class _Slopes(NamedTuple):
    """The gradients of an image, its offsets and mask, and the filters."""

    x: Array
    offset: Array
    mask: Array
    filters: Array


def _slopes(op: Op, x: Array, offset: Array, mask: Array | None, filters: Array, slope: Array) -> _Slopes:
    groups, pixels = int_attr(op, "groups"), x.shape[1] * x.shape[2]
    moved = _moved(op, x, offset, mask, filters.shape[2:])
    values = _deformed_columns(moved, x)
    by_group = slope.reshape(groups, len(filters) // groups, -1)
    of_filters = by_group @ _grouped(op, values * moved.mask[:, None]).transpose(0, 2, 1)
    rows = filters.reshape(groups, len(filters) // groups, -1).transpose(0, 2, 1) @ by_group
    back = rows.reshape(values.shape)
    masked = back * moved.mask[:, None]
    flat = x.reshape(len(moved.at), -1, pixels)
    of_x = np.stack([scattered(at, part, pixels) for at, part in zip(moved.at, masked, strict=True)])
    of_offset = np.stack(
        [
            np.stack(
                [((part[:, at.places] * slopes).sum(axis=1) * weights).sum(axis=0) for slopes in at.slopes],
                axis=1,
            )
            for at, part, weights in zip(moved.at, flat, masked, strict=True)
        ]
    )
    return _Slopes(
        of_x.reshape(x.shape),
        of_offset.reshape(offset.shape),
        (back * values).sum(axis=1),
        of_filters.reshape(filters.shape),
    )


@kernel("deformable_conv_grad", "Input@GRAD Offset@GRAD Mask@GRAD Filter@GRAD", lod="none")
def _deformable_conv_grad(op: Op) -> Run:
    def run(Input: Array, Offset: Array, Mask: Array, Filter: Array, Output_GRAD: Array) -> tuple[Array, ...]:
        images = zip(Input, Offset, Mask, Output_GRAD, strict=True)
        results = [_slopes(op, x, offset, mask, Filter, slope) for x, offset, mask, slope in images]
        masks = np.stack([item.mask for item in results]).reshape(Mask.shape)
        filters = np.sum([item.filters for item in results], axis=0, dtype=Filter.dtype)
        return (
            np.stack([item.x for item in results]),
            np.stack([item.offset for item in results]),
            masks,
            filters,
        )

    return run


@kernel("deformable_conv_v1_grad", "Input@GRAD Offset@GRAD Filter@GRAD", lod="none")
def _deformable_conv_v1_grad(op: Op) -> Run:
    def run(Input: Array, Offset: Array, Filter: Array, Output_GRAD: Array) -> tuple[Array, ...]:
        images = zip(Input, Offset, Output_GRAD, strict=True)
        results = [_slopes(op, x, offset, None, Filter, slope) for x, offset, slope in images]
        filters = np.sum([item.filters for item in results], axis=0, dtype=Filter.dtype)
        return (
            np.stack([item.x for item in results]),
            np.stack([item.offset for item in results]),
            filters,
        )

    return run
