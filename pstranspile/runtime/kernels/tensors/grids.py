"""Kernels. Tensors laid out by position: diagonals, triangles, grids, evenly spaced numbers."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.tensors.grids import diagonal_dims, eye_dims, no_diagonal_dims
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import first, numpy_dtype
from pstranspile.runtime.values import Array


@plain_kernel("range", lod="none")
def _range_values(Start: Array, End: Array, Step: Array) -> Array:
    start, end, step = first(Start), first(End), first(Step)
    if step == 0:
        raise ValueError("Step is 0")
    return np.arange(start, end, step).astype(Start.dtype)


@plain_kernel("meshgrid", lod="none")
def _meshgrid_values(X: list[Array]) -> list[Array]:
    if any(part.ndim != 1 for part in X):
        raise ValueError("coordinates have one dim")
    return list(np.meshgrid(*X, indexing="ij"))


@plain_kernel("meshgrid_grad", "X@GRAD", lod="none")
def _meshgrid_grad(Out_GRAD: list[Array]) -> list[Array]:
    axes = range(len(Out_GRAD))
    return [
        np.add.reduce(gradient, axis=tuple(axis for axis in axes if axis != number))
        for number, gradient in enumerate(Out_GRAD)
    ]


@plain_kernel("tril_triu")
def _tril_triu_values(X: Array, *, diagonal: int, lower: bool) -> Array:
    return np.tril(X, diagonal) if lower else np.triu(X, diagonal)


@plain_kernel("tril_triu_grad", "X@GRAD", lod="none")
def _tril_triu_grad(Out_GRAD: Array, *, diagonal: int, lower: bool) -> Array:
    return _tril_triu_values(Out_GRAD, diagonal=diagonal, lower=lower)


@plain_kernel("diag", lod="none")
def _diag_values(Diagonal: Array) -> Array:
    if Diagonal.ndim != 1:
        raise ValueError(f"Diagonal has dims {list(Diagonal.shape)}, it must have one")
    return np.diag(Diagonal)


@plain_kernel("diag_embed", lod="none")
def _diag_embed_values(Input: Array, *, op: Op, offset: int) -> Array:
    at = diagonal_dims(op, Input.ndim + 1)
    if at is None:
        raise ValueError(no_diagonal_dims(op, Input.ndim + 1))
    count = Input.shape[-1]
    size = count + abs(offset)
    result = np.zeros((*Input.shape[:-1], size, size), Input.dtype)
    places = np.arange(count)
    result[..., places + max(-offset, 0), places + max(offset, 0)] = Input
    return np.ascontiguousarray(np.moveaxis(result, (-2, -1), at))


@kernel("eye")
def _eye_values(op: Op) -> Run:
    dims, made = eye_dims(op), numpy_dtype(int_attr(op, "dtype", 5))
    if min(dims) < 0:
        raise ValueError(f"a matrix can't have the dims {list(dims)}")

    def run() -> Array:
        return np.eye(*dims, dtype=made)

    return run


@plain_kernel("linspace", lod="none")
def _linspace_values(Start: Array, Stop: Array, Num: Array) -> Array:
    count = first(Num)
    if count < 1:
        raise ValueError(f"Num is {count}, it must be positive")
    start, stop = Start.reshape(-1)[0], Stop.reshape(-1)[0]
    result = np.full(count, (stop - start) / Start.dtype.type(max(count - 1, 1)))
    result[0] = start
    return np.add.accumulate(result)  # accumulated as in Fluid, also in f32
