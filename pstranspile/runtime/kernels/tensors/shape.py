"""Kernels. Changes of shape. XShape holds the shape of X after a leading 0, and no data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.shapes import Dims, size
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel, wanted
from pstranspile.runtime.kernels.numeric import first
from pstranspile.runtime.kernels.tensors.fill import asked_dims
from pstranspile.runtime.values import Array


def _with_x_shape(op: Op, change: Callable[[Array], Array]) -> Callable[[Array], tuple[Array, Array | None]]:
    """The kernel that gives XShape and a copy of `change(X)`, as X may be updated in place later."""
    named = wanted(op, "XShape")

    def run(x: Array) -> tuple[Array, Array | None]:
        return change(x).copy(), np.empty((0, *x.shape), x.dtype) if named else None

    return run


@plain_kernel("reshape reshape2", "Out XShape")
def _reshape_values(
    X: Array, Shape: Array | None, ShapeTensor: list[Array], *, op: Op, shape: Dims, wants_XShape: bool
) -> tuple[Array, Array | None]:
    dims = shape if Shape is None and not ShapeTensor else asked_dims(op, None if ShapeTensor else Shape, ShapeTensor)
    if 0 in dims:
        dims = [X.shape[at] if dim == 0 and at < X.ndim else dim for at, dim in enumerate(dims)]
    return X.reshape(dims).copy(), np.empty((0, *X.shape), X.dtype) if wants_XShape else None


@kernel("transpose transpose2", "Out XShape", lod="none")
def _transpose_values(op: Op) -> Run:
    order = ints_attr(op, "axis")
    make = _with_x_shape(op, lambda x: x.transpose(order))

    def run(X: Array) -> tuple[Array, Array | None]:
        return make(X)

    return run


@kernel("squeeze squeeze2", "Out XShape")
def _squeeze_values(op: Op) -> Run:
    axes = ints_attr(op, "axes")

    def squeezed(x: Array) -> Array:
        result = x.squeeze(axes or None)
        return result if result.ndim else result.reshape(1)

    make = _with_x_shape(op, squeezed)

    def run(X: Array) -> tuple[Array, Array | None]:
        return make(X)

    return run


@kernel("unsqueeze unsqueeze2", "Out XShape")
def _unsqueeze_values(op: Op) -> Run:
    given_axes = ints_attr(op, "axes")

    def run(X: Array, AxesTensor: Array | None, AxesTensorList: list[Array]) -> tuple[Array, Array | None]:
        axes = given_axes
        if AxesTensor is not None:
            axes = tuple(AxesTensor.reshape(-1).tolist())
        elif AxesTensorList:
            axes = tuple(first(part) for part in AxesTensorList)
        dims = list(X.shape)
        for axis in axes:
            at = axis if axis >= 0 else axis + len(dims) + 1
            if not 0 <= at <= len(dims):
                raise ValueError(f"axes has {axis}, but X has {len(dims)} dims")
            dims.insert(at, 1)
        return _with_x_shape(op, lambda x: x.reshape(dims))(X)

    return run


@kernel("flatten flatten2", "Out XShape")
def _flatten_values(op: Op) -> Run:
    axis = int_attr(op, "axis", 1)
    make = _with_x_shape(op, lambda x: x.reshape(size(x.shape[:axis]), size(x.shape[axis:])))

    def run(X: Array) -> tuple[Array, Array | None]:
        return make(X)

    return run


@plain_kernel("reshape2_grad squeeze2_grad unsqueeze2_grad flatten2_grad", "X@GRAD")
def _from_x_shape_values(XShape: Array, Out_GRAD: Array) -> Array:
    return Out_GRAD.reshape(XShape.shape[1:])


@plain_kernel("reshape_grad squeeze_grad unsqueeze_grad flatten_grad", "X@GRAD")
def _like_x(X: Array, Out_GRAD: Array) -> Array:
    return Out_GRAD.reshape(X.shape)


@kernel("transpose_grad transpose2_grad", "X@GRAD", lod="none")
def _transpose_grad(op: Op) -> Run:
    order = ints_attr(op, "axis")
    inverse = tuple(order.index(at) for at in range(len(order)))

    def run(Out_GRAD: Array) -> Array:
        return np.ascontiguousarray(Out_GRAD.transpose(inverse))

    return run


@plain_kernel("shape", lod="none")
def _shape_values(Input: Array) -> Array:
    return np.array(Input.shape, "int32")


@plain_kernel("size", lod="none")
def _size_values(Input: Array) -> Array:
    return np.array([Input.size], "int64")


@plain_kernel("is_empty", lod="none")
def _is_empty_values(X: Array) -> Array:
    return np.array([X.size == 0])
