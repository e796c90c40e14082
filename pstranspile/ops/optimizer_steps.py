"""What kernels of optimizers share: updating in place, and gradients of either kind."""

from __future__ import annotations

from collections.abc import Callable

from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import in_place
from pstranspile.ops.rows import merge_rows, scatter
from pstranspile.ops.values import Array, SelectedRows

np = lazy_import("numpy")


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


def steps(gradient: Array | SelectedRows, *arrays: Array) -> tuple[tuple[Array, ...], ...]:
    """The dense gradient and the arrays that an element-by-element update changes in place, as its only item.

    Sparse rows count as a gradient that is zero in all other rows; if there are no rows at all, no gradient has come
    and there is no item.
    """
    if isinstance(gradient, SelectedRows):
        if not len(gradient.rows):
            return ()
        gradient = scatter(merge_rows([gradient]), arrays[0].shape)
    dense: Array = gradient
    for array in arrays:
        if array.size != dense.size:
            raise ValueError("the gradient, the parameter and what is kept of it differ in size")
    return ((dense, *arrays),)
