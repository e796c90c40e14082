"""Marks where chosen slices of a tensor are largest."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.schema import INT, INTS, declare
from pstranspile.ops.shapes import ShapeError, Types, describe, int_attr, ints_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare(
    "similarity_focus",
    "X -> Out",
    {"axis": INT, "indexes": INTS},
    doc="Out = 1 along `axis` where a chosen slice has the largest elements, one for each row and column; 0 elsewhere",
)


@shape_rule("similarity_focus")
def _similarity_focus(op: Op, types: Types) -> Types:
    x, axis = one(types, "X"), int_attr(op, "axis")
    if len(x.shape) != 4:
        raise ShapeError(f"X is {describe(x)}, it must have 4 dims", "X")
    if axis not in (1, 2, 3):
        raise ShapeError(f"axis is {axis}, not 1, 2 or 3", "X")
    return {"Out": (x,)}


# Kernels


def _largest(slices: Array) -> Array:
    """Of each of [n, rows, columns] the largest elements: always the largest left, one for each row and column."""
    count, rows, columns = slices.shape
    chosen, left = np.zeros(slices.shape, bool), np.ones(slices.shape, bool)
    each = np.arange(count)
    for _ in range(min(rows, columns)):
        at = np.argmax(np.where(left, slices, -np.inf).reshape(count, rows * columns), axis=1)
        row, column = at // columns, at % columns
        chosen[each, row, column] = True
        left[each, row, :] = False
        left[each, :, column] = False
    return chosen


@kernel("similarity_focus")
def _similarity_focus_values(op: Op) -> Run:
    axis, indexes = int_attr(op, "axis"), ints_attr(op, "indexes")
    if axis not in (1, 2, 3):
        raise ValueError(f"axis is {axis}, not 1, 2 or 3")

    def run(X: Array) -> Array:
        wrong = [index for index in indexes if not 0 <= index < X.shape[axis]]
        if wrong:
            raise ValueError(f"index {wrong[0]} is not in 0 to {X.shape[axis] - 1}")
        marks = np.zeros(X.shape[:axis] + X.shape[axis + 1 :], bool)
        for index in indexes:
            marks |= _largest(np.take(X, index, axis=axis))
        return np.broadcast_to(np.expand_dims(marks, axis), X.shape).astype(X.dtype)

    return run
