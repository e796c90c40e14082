"""What kernels of optimizers share: updating in place, in pieces that stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import in_place
from pstranspile.ops.rows import merge_rows, scatter
from pstranspile.ops.values import Array, SelectedRows

np = lazy_import("numpy")

_PIECE = 16384
"""Elements updated at a time: parameter, gradient, moments and temporaries of a piece fit into a second-level cache."""


def owned(op: Op, slots: str) -> Callable[..., tuple[Array, ...]]:
    """A function from the values of these input slots to the arrays to update.

    They are the values themselves where the op writes the same variable (slot `Moment` and `MomentOut`, or as
    `SquaredAccumulator:SquaredAccumOut` says), copies otherwise.
    """
    pairs = [(slot, out or f"{slot}Out") for slot, _, out in (word.partition(":") for word in slots.split())]
    same = [in_place(op, slot, out) for slot, out in pairs]
    if all(same):
        return lambda *values: values
    return lambda *values: tuple(v if kept else v.copy() for v, kept in zip(values, same, strict=True))


def steps(gradient: Array | SelectedRows, *arrays: Array) -> Iterable[tuple[Array, ...]]:
    """Pieces of the gradient and of the arrays that an element-by-element update changes in place.

    Sparse rows count as a gradient that is zero in all other rows; if there are no rows at all, no gradient has come
    and there are no pieces.
    """
    if isinstance(gradient, SelectedRows):
        if not len(gradient.rows):
            return ()
        gradient = scatter(merge_rows([gradient]), arrays[0].shape)
    every: tuple[Array, ...] = (gradient, *arrays)
    size = every[0].size
    if any(array.size != size for array in arrays):
        raise ValueError("the gradient, the parameter and what is kept of it differ in size")
    if size <= _PIECE or not all(array.flags.c_contiguous for array in every):
        return (every,)
    flat = [array.reshape(-1) for array in every]
    return (tuple(array[at : at + _PIECE] for array in flat) for at in range(0, size, _PIECE))


def squared_norm(value: Array) -> float:
    """The sum of the squares of all elements, in float64."""
    flat = value.reshape(-1).astype("float64", copy=False)
    return float(np.dot(flat, flat))
