"""Kernels. Transposed convolution, and windows of images as columns or sequences."""

from __future__ import annotations

import math

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.images.conv import dilations_of, padding_of
from pstranspile.ops.images.conv_transpose import counts_of, grown_dims, transposed_dims
from pstranspile.ops.shapes import Dims
from pstranspile.runtime.arithmetic import matmul, sum_of_products
from pstranspile.runtime.kernels.conv_windows import Windows
from pstranspile.runtime.kernels.images.conv import as_asked, channels_first, filter_matrices, padding_to_last
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.values import Array, LoDTensor


def _windows(op: Op, x: Array, filters: Array) -> Windows:
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
    windows = _windows(op, x, Filter)
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
    windows = _windows(op, x, Filter)
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
