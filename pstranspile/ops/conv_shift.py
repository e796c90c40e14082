"""Kernels of `conv_shift`: rows convolved with rows as if their ends met.

With K the width of Y, an odd number: Out[n, i] = the sum over j of X[n, i + j - (K - 1) / 2] * Y[n, j], where places
of X beyond an end are counted on from the other.
"""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.shapes import ShapeError, Types, describe, given, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")


def _places(x: Array, y: Array) -> Array:
    """The column of X that meets column j of Y at column i of Out, as [i, j]."""
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or y.shape[1] % 2 == 0 or y.shape[1] > x.shape[1]:
        raise ValueError(
            f"X has the dims {list(x.shape)}, Y {list(y.shape)}: Y must have as many rows and an odd number of "
            f"columns, no more than X"
        )
    width = y.shape[1]
    return (np.arange(x.shape[1])[:, None] + np.arange(width) - (width - 1) // 2) % x.shape[1]


@kernel("conv_shift")
def _conv_shift(_op: Op) -> Run:
    def run(X: Array, Y: Array) -> Array:
        return (X[:, _places(X, Y)] * Y[:, None]).sum(axis=2)

    return run


@kernel("conv_shift_grad", "X@GRAD Y@GRAD", lod="none")
def _conv_shift_grad(_op: Op) -> Run:
    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array, Array]:
        places = _places(X, Y)
        x_grad = np.zeros_like(X)
        np.add.at(x_grad, (slice(None), places), Out_GRAD[:, :, None] * Y[:, None])
        return x_grad, (X[:, places] * Out_GRAD[:, :, None]).sum(axis=1)

    return run


@shape_rule("conv_shift")
def _conv_shift_types(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), given(types, "Y")
    for held, slot in ((x, "X"), (y, "Y")):
        if held is not None and len(held.shape) != 2:
            raise ShapeError(f"{slot} is {describe(held)}, it must have 2 dims", slot)
    if y is not None and y.shape[1] >= 0 and y.shape[1] % 2 == 0:
        raise ShapeError(f"Y is {describe(y)}, its width must be odd", "Y")
    return {"Out": (x,)}
