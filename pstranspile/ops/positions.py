"""Elements and slices chosen by tensors of positions, or put there."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import check_ids
from pstranspile.ops.rows import add_rows
from pstranspile.ops.schema import INT, UNSCOPED, declare, declare_gradient
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    given,
    int_attr,
    one,
    outputs_like,
    several,
    shape_rule,
)
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare("gather_nd", "X Index -> Out", doc="Out = the elements of X at the positions in the last dim of Index")
declare_gradient("gather_nd", "X Index Out@GRAD -> X@GRAD")
declare(
    "scatter_nd_add",
    "X Index Updates -> Out",
    doc="Out = X with Updates added at the positions in the last dim of Index",
)
declare_gradient("scatter_nd_add", "Index Updates Out@GRAD -> X@GRAD Updates@GRAD")
declare("index_select", "X Index -> Out", {"dim": 0}, doc="Out = the slices of X at Index along `dim`")
declare_gradient("index_select", "X Index Out@GRAD -> X@GRAD")
declare("index_sample", "X Index -> Out", doc="Out = the elements of each row of X at that row of Index")
declare_gradient("index_sample", "X Index Out@GRAD -> X@GRAD", UNSCOPED)
declare("multiplex", "Ids X* -> Out", doc="Out = for each row, that row of the X whose number Ids tells")
declare_gradient("multiplex", "Ids Out@GRAD -> X@GRAD*")
declare("where", "Condition X Y -> Out", doc="Out = X where Condition is true, else Y")
declare_gradient("where", "Condition X Y Out@GRAD -> X@GRAD Y@GRAD", UNSCOPED)
declare("where_index", "Condition -> Out", doc="Out = the positions at which Condition is true")
declare(
    "shard_index",
    "X -> Out",
    {"index_num": INT, "nshards": INT, "shard_id": INT, "ignore_value": -1},
    doc="Out = X less the start of its shard, ignore_value outside this shard",
)


def _picked(x: TensorType, index: TensorType) -> tuple[int, ...]:
    """The dims of what the positions in `index` pick from x. Raises ShapeError if they have too many numbers."""
    depth = index.shape[-1]
    if len(index.shape) < 2:
        raise ShapeError(f"Index is {describe(index)}, it must have at least two dims", "Index")
    if depth > len(x.shape):
        raise ShapeError(f"Index is {describe(index)}, its positions have more numbers than X, {describe(x)}", "Index")
    return (*index.shape[:-1], *x.shape[depth:])


@shape_rule("gather_nd")
def _gather_nd(_op: Op, types: Types) -> Types:
    x, index = one(types, "X"), one(types, "Index")
    return {"Out": (TensorType(x.dtype, _picked(x, index) if index.shape[-1] >= 0 else (), x.lod_level),)}


@shape_rule("scatter_nd_add")
def _scatter_nd_add(_op: Op, types: Types) -> Types:
    x, index, updates = one(types, "X"), given(types, "Index"), given(types, "Updates")
    if index is not None and updates is not None and index.shape[-1] >= 0:
        dims = _picked(x, index)
        if not fits(updates.shape, dims):
            raise ShapeError(f"Updates is {describe(updates)}, but Index picks {list(dims)}", "Updates")
    return {"Out": (x,)}


@shape_rule("scatter_nd_add_grad")
def _scatter_nd_add_grad(_op: Op, types: Types) -> Types:
    return {"X@GRAD": types.get("Out@GRAD", ()), "Updates@GRAD": types.get("Updates", ())}


@shape_rule("index_select")
def _index_select(op: Op, types: Types) -> Types:
    x, index = one(types, "X"), one(types, "Index")
    axis, rank = int_attr(op, "dim"), len(x.shape)
    if not -rank <= axis < rank:
        raise ShapeError(f"dim is {axis}, but X is {describe(x)}", "X")
    axis %= rank
    return {"Out": (x._replace(shape=(*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :])),)}


@shape_rule("index_sample")
def _index_sample(_op: Op, types: Types) -> Types:
    x, index = one(types, "X"), one(types, "Index")
    if len(x.shape) != 2 or len(index.shape) != 2 or not fits(x.shape[:1], index.shape[:1]):
        disagree("X", x, "Index", index)
    return {"Out": (TensorType(x.dtype, index.shape),)}


@shape_rule("multiplex")
def _multiplex(_op: Op, types: Types) -> Types:
    parts = several(types, "X")
    for part in parts[1:]:
        if part.dtype is not parts[0].dtype or not fits(part.shape, parts[0].shape):
            disagree("X", part, "the first part", parts[0])
    return {"Out": (parts[0]._replace(lod_level=0),)}


@shape_rule("multiplex_grad")
def _multiplex_grad(op: Op, types: Types) -> Types:
    return {"X@GRAD": (one(types, "Out@GRAD"),) * len(op.outputs["X@GRAD"])}


@shape_rule("where")
def _where(_op: Op, types: Types) -> Types:
    x, y, condition = one(types, "X"), given(types, "Y"), given(types, "Condition")
    if y is not None and (y.dtype is not x.dtype or not fits(y.shape, x.shape)):
        disagree("Y", y, "X", x)
    if condition is not None and not fits(condition.shape, x.shape):
        disagree("Condition", condition, "X", x)
    return {"Out": (x,)}


@shape_rule("where_index")
def _where_index(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(DType.INT64, (-1, len(one(types, "Condition").shape))),)}


shape_rule("shard_index")(outputs_like(Out="X"))


# Kernels


def _places(index: Array, dims: tuple[int, ...]) -> tuple[Array, ...]:
    """The positions in the last dim of `index` as one array of numbers for each of the first dims."""
    if index.ndim < 2:
        raise ValueError(f"Index has dims {list(index.shape)}, it must have at least two")
    if index.shape[-1] > len(dims):
        raise ValueError(f"the positions in Index have {index.shape[-1]} numbers, X has {len(dims)} dims")
    for axis, dim in enumerate(dims[: index.shape[-1]]):
        check_ids(index[..., axis], dim, f"Index of dim {axis}")
    return tuple(np.moveaxis(index, -1, 0))


def _added(target: Array, index: Array, values: Array) -> Array:
    """Adds the values at the positions of `index` in `target`, in place and in order; positions may repeat."""
    places, depth = _places(index, target.shape), index.shape[-1]
    picked = (*index.shape[:-1], *target.shape[depth:])
    if values.shape != picked:
        raise ValueError(f"dims {list(values.shape)} can't be added at positions that pick {list(picked)}")
    if depth and values.size:
        numbers = np.ravel_multi_index(places, target.shape[:depth]).reshape(-1)
        flat = target.reshape(-1, *target.shape[depth:])
        add_rows(flat, numbers, values.reshape(len(numbers), *target.shape[depth:]))
    elif values.size:
        target += values.reshape(-1, *target.shape).sum(0)
    return target


@kernel("gather_nd")
def _gather_nd_values(_op: Op) -> Run:
    def run(X: Array, Index: Array) -> Array:
        places = _places(Index, X.shape)
        if not places:
            return np.broadcast_to(X, (*Index.shape[:-1], *X.shape)).copy()
        return X[places]

    return run


@kernel("gather_nd_grad", "X@GRAD", lod="each")
def _gather_nd_grad(_op: Op) -> Run:
    def run(X: Array, Index: Array, Out_GRAD: Array) -> Array:
        return _added(np.zeros(X.shape, Out_GRAD.dtype), Index, Out_GRAD)

    return run


@kernel("scatter_nd_add", lod="none")
def _scatter_nd_add_values(_op: Op) -> Run:
    def run(X: Array, Index: Array, Updates: Array) -> Array:
        return _added(X.copy(), Index, Updates)

    return run


@kernel("scatter_nd_add_grad", "X@GRAD Updates@GRAD", lod="none")
def _scatter_nd_add_grad_values(op: Op) -> Run:
    wants_updates = wanted(op, "Updates@GRAD")

    def run(Index: Array, Out_GRAD: Array) -> tuple[Array, Array | None]:
        return Out_GRAD.copy(), Out_GRAD[_places(Index, Out_GRAD.shape)] if wants_updates else None

    return run


@kernel("index_select")
def _index_select_values(op: Op) -> Run:
    axis = int_attr(op, "dim")

    def run(X: Array, Index: Array) -> Array:
        check_ids(Index, X.shape[axis], "Index")
        return np.take(X, Index.reshape(-1), axis=axis)

    return run


@kernel("index_select_grad", "X@GRAD", lod="none")
def _index_select_grad(op: Op) -> Run:
    axis = int_attr(op, "dim")

    def run(X: Array, Index: Array, Out_GRAD: Array) -> Array:
        check_ids(Index, X.shape[axis], "Index")
        rows = np.moveaxis(X, axis, 0).shape
        found = np.zeros(rows, Out_GRAD.dtype)
        add_rows(found, Index.reshape(-1), np.moveaxis(Out_GRAD, axis, 0))
        return np.ascontiguousarray(np.moveaxis(found, 0, axis))

    return run


@kernel("index_sample", lod="none")
def _index_sample_values(_op: Op) -> Run:
    def run(X: Array, Index: Array) -> Array:
        if X.ndim != 2 or Index.ndim != 2 or len(X) != len(Index):
            dims = f"{list(X.shape)} and {list(Index.shape)}"
            raise ValueError(f"X and Index have dims {dims}, they must be matrices with as many rows")
        check_ids(Index, X.shape[1], "Index")
        return np.take_along_axis(X, Index, axis=1)

    return run


@kernel("index_sample_grad", "X@GRAD", lod="none")
def _index_sample_grad(_op: Op) -> Run:
    def run(X: Array, Index: Array, Out_GRAD: Array) -> Array:
        check_ids(Index, X.shape[1], "Index")
        found = np.zeros(X.shape, Out_GRAD.dtype)
        np.add.at(found, (np.arange(len(X))[:, None], Index), Out_GRAD)
        return found

    return run


@kernel("multiplex", lod="none")
def _multiplex_values(_op: Op) -> Run:
    def run(Ids: Array, X: list[Array]) -> Array:
        ids = _sources(Ids, len(X), len(X[0]))
        found = np.empty(X[0].shape, X[0].dtype)
        for number, part in enumerate(X):
            rows = np.flatnonzero(ids == number)
            found[rows] = part[rows]
        return found

    return run


def _sources(ids: Array, parts: int, rows: int) -> Array:
    """Which part each row comes from. Raises ValueError unless there is one for every row."""
    check_ids(ids, parts, "Ids")
    if ids.size != rows:
        raise ValueError(f"Ids has {ids.size} elements, but there are {rows} rows")
    return ids.reshape(-1)


@kernel("multiplex_grad", "X@GRAD", lod="none")
def _multiplex_grad_values(op: Op) -> Run:
    count = len(op.outputs["X@GRAD"])

    def run(Ids: Array, Out_GRAD: Array) -> list[Array]:
        ids = _sources(Ids, count, len(Out_GRAD))
        chosen = (ids == number for number in range(count))
        return [Out_GRAD * each.reshape(-1, *[1] * (Out_GRAD.ndim - 1)) for each in chosen]

    return run


@kernel("where", inline="np.where({Condition}, {X}, {Y})")
def _where_values(_op: Op) -> Run:
    def run(Condition: Array, X: Array, Y: Array) -> Array:
        return np.where(Condition, X, Y)

    return run


@kernel("where_grad", "X@GRAD Y@GRAD", lod="none")
def _where_grad(_op: Op) -> Run:
    def run(Condition: Array, Out_GRAD: Array) -> tuple[Array, Array]:
        zero = Out_GRAD.dtype.type(0)
        return np.where(Condition, Out_GRAD, zero), np.where(Condition, zero, Out_GRAD)

    return run


@kernel("where_index", lod="none")
def _where_index_values(_op: Op) -> Run:
    def run(Condition: Array) -> Array:
        return np.argwhere(Condition)

    return run


@kernel("shard_index")
def _shard_index_values(op: Op) -> Run:
    count, shards, shard = int_attr(op, "index_num"), int_attr(op, "nshards"), int_attr(op, "shard_id")
    ignored = int_attr(op, "ignore_value", -1)
    if count <= 0 or shards <= 0 or not 0 <= shard < shards:
        raise ValueError(f"there is no shard {shard} of {shards} shards of {count} ids")
    size = (count + shards - 1) // shards

    def run(X: Array) -> Array:
        check_ids(X, count, "the id")
        return np.where(X // size == shard, X % size, ignored).astype(X.dtype, copy=False)

    return run
