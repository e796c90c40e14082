"""Elements in order: sorted, the smallest, without repeats."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.index import places_found
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import flag, numpy_dtype
from pstranspile.ops.schema import INT, LONG, declare, declare_gradient
from pstranspile.ops.select import axis_of
from pstranspile.ops.shapes import ShapeError, Types, describe, dtype_attr, int_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare(
    "arg_min",
    "X -> Out",
    {"axis": LONG, "keepdims": False, "dtype": -1},
    doc="Out = the index of the smallest element along `axis`",
)
declare(
    "argsort",
    "X -> Out Indices",
    {"axis": -1, "descending": False},
    doc="Out = X sorted along `axis`, Indices = where its elements were",
)
declare_gradient("argsort", "X Indices Out@GRAD -> X@GRAD")
declare(
    "unique", "X -> Out Index", {"dtype": INT}, doc="Out = the elements of X without repeats, Index = where each went"
)
declare("unique_with_counts", "X -> Out Index Count", {"dtype": INT}, doc="as unique, Count = how often each occurs")


@shape_rule("arg_min")
def _arg_min(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis = axis_of(op, x)
    number = int_attr(op, "dtype", -1)
    kept = (1,) if flag(op, "keepdims") else ()
    dims = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
    return {"Out": (TensorType(DType.INT64 if number < 0 else dtype_attr(op), dims or (1,)),)}


@shape_rule("argsort")
def _argsort(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis_of(op, x)
    return {"Out": (x,), "Indices": (x._replace(dtype=DType.INT64),)}


@shape_rule("unique", "unique_with_counts")
def _unique(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) != 1:
        raise ShapeError(f"X is {describe(x)}, it must have one dim", "X")
    counted = TensorType(dtype_attr(op), (-1,))
    return {
        "Out": (TensorType(x.dtype, (-1,)),),
        "Index": (TensorType(dtype_attr(op), x.shape),),
        "Count": (counted,),
    }


# Kernels


@kernel("arg_min", lod="none")
def _arg_min_values(op: Op) -> Run:
    return places_found(op, np.argmin)


def sorting_order(x: Array, axis: int, descending: bool) -> Array:
    """The places of the elements of x along `axis` in order. Equal ones stay as they stood, NaN is the largest."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # ascending from the far end, so that equal ones come out in their own order when it is turned around
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


@kernel("argsort", "Out Indices")
def _argsort_values(op: Op) -> Run:
    axis, descending = int_attr(op, "axis", -1), flag(op, "descending")

    def run(X: Array) -> tuple[Array, Array]:
        places = sorting_order(X, axis, descending)
        return np.take_along_axis(X, places, axis=axis), places.astype("int64", copy=False)

    return run


@kernel("argsort_grad", "X@GRAD")
def _argsort_grad(op: Op) -> Run:
    axis = int_attr(op, "axis", -1)

    def run(X: Array, Indices: Array, Out_GRAD: Array) -> Array:
        found = np.empty(X.shape, Out_GRAD.dtype)
        np.put_along_axis(found, Indices, Out_GRAD, axis=axis)
        return found

    return run


@kernel("unique unique_with_counts", "Out Index Count", lod="none")
def _unique_values(op: Op) -> Run:
    made, counted = numpy_dtype(int_attr(op, "dtype")), wanted(op, "Count")

    def run(X: Array) -> tuple[Array, Array, Array | None]:
        _, starts, places = np.unique(X, return_index=True, return_inverse=True, equal_nan=False)
        order = np.argsort(starts)  # elements stand where they first occur, not sorted
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        index = rank[places.reshape(-1)]
        count = np.bincount(index, minlength=len(order)).astype(made) if counted else None
        return X.reshape(-1)[starts[order]], index.astype(made), count

    return run
