"""Ragged sequences: rows held together by LoD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstranspile.arithmetic import shares_of_runs, sum_runs
from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.gradient import from_declaration, gradient
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.lod import Array, plain, ragged, runs_between, sequences, side_by_side, upper
from pstranspile.ops.numeric import as_matrix
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import Types, shape_rule
from pstranspile.ops.values import LoDTensor

np = lazy_import("numpy")

declare(
    "sequence_pool",
    "X -> Out MaxIndex",
    {"is_test": False, "pooltype": "AVERAGE", "pad_value": 0.0},
    doc="Out = one row of each sequence: its sum, average, maximum, first, ...",
)
declare_gradient("sequence_pool", "X MaxIndex- Out@GRAD -> X@GRAD")
declare(
    "sequence_softmax",
    "X -> Out",
    {"use_cudnn": False, "data_format": "AnyLayout"},
    doc="Out = softmax within each sequence",
)
declare_gradient("sequence_softmax", "X Out Out@GRAD -> X@GRAD")


@shape_rule("sequence_pool")
def _sequence_pool(_op: Op, types: Types) -> Types:
    x = ragged(types, "X")
    # MaxIndex has the dims of X, but Fluid declares it without dims and with the element type of X.
    return {"Out": (TensorType(x.dtype, (-1, *x.shape[1:]), x.lod_level - 1),)}


@shape_rule("sequence_softmax")
def _sequence_softmax(_op: Op, types: Types) -> Types:
    return {"Out": (ragged(types, "X"),)}


def _takes_maximum(op: Op) -> bool:
    return op.attrs.get("pooltype") == "MAX"


gradient("sequence_pool")(from_declaration("sequence_pool_grad", MaxIndex=_takes_maximum))


def _column(values: Array, like: Array) -> Array:
    """One number per sequence, shaped to scale the rows of `like`."""
    return values.astype(like.dtype).reshape(-1, *[1] * (like.ndim - 1))


def _divisor(pool: str, lengths: Array) -> Array:
    return np.sqrt(lengths) if pool == "SQRT" else lengths


_POOLS = ("SUM", "AVERAGE", "SQRT", "MAX", "LAST", "FIRST")


def _pool_type(op: Op) -> str:
    pool = str(op.attrs["pooltype"])
    if pool not in _POOLS:
        raise ValueError(f"pooltype is {pool}, it must be one of {', '.join(_POOLS)}")
    return pool


@kernel("sequence_pool", "Out MaxIndex", lod="own")
def _run_sequence_pool(op: Op) -> Run:
    pool, empty = _pool_type(op), op.attrs["pad_value"]
    index_wanted = pool == "MAX" and not op.attrs["is_test"]

    def pooled(x: Array, starts: Array, lengths: Array) -> Array:
        if pool in ("FIRST", "LAST"):
            return x.take(starts if pool == "FIRST" else starts + lengths - 1, axis=0)
        total = sum_runs(x, starts, lengths)
        return total if pool == "SUM" else total / _column(_divisor(pool, lengths), x)

    def run(X: Any) -> tuple[object, object]:
        x, lod = sequences(X, "X")
        offsets = lod[-1]
        starts, lengths, full, even = runs_between(tuple(offsets))
        if full:  # as it mostly is
            if pool == "MAX":
                out, index = _largest(x, offsets, index_wanted)
                return upper(out, lod), index
            return upper(x.copy() if even == 1 else pooled(x, starts, lengths), lod), None
        out = np.full((len(lengths), *x.shape[1:]), empty, x.dtype)
        index = np.full(out.shape, -1, np.int32) if index_wanted else None
        filled = lengths > 0
        if filled.any() and pool == "MAX":
            out[filled], found = _largest(x, [0, *lengths[filled].cumsum().tolist()], index_wanted)
            if index is not None:
                index[filled] = found
        elif filled.any():
            out[filled] = pooled(x, starts[filled], lengths[filled])
        return upper(out, lod), index

    return run


def _largest(x: Array, offsets: Sequence[int], index_wanted: bool) -> tuple[Array, Array | None]:
    """The largest values of every sequence, none of them empty, and the first rows of x, if they are asked for, that
    hold them. NaN is the largest of its column.
    """
    starts, lengths, _, _ = runs_between(tuple(offsets))
    beside = side_by_side(x, offsets)
    if beside is not None:
        largest = np.maximum.reduce(beside[0], axis=1)
        first = starts.reshape(-1, *(1 for _ in x.shape[1:]))
        return largest, (beside[0].argmax(axis=1) + first).astype(np.int32) if index_wanted else None
    largest = np.maximum.reduceat(x, starts, axis=0)
    if not index_wanted:
        return largest, None
    holds = x == largest.repeat(lengths, axis=0)
    holds |= x != x
    rows = np.arange(len(x), dtype=np.int32).reshape(-1, *(1 for _ in x.shape[1:]))
    return largest, np.minimum.reduceat(np.where(holds, rows, np.int32(len(x))), starts, axis=0)


@kernel("sequence_pool_grad", "X@GRAD", lod="own")
def _run_sequence_pool_grad(op: Op) -> Run:
    pool = _pool_type(op)

    def run(X: Any, MaxIndex: Any, Out_GRAD: Any) -> LoDTensor:
        x, lod = sequences(X, "X")
        grad = plain(Out_GRAD)
        starts, lengths, full, _ = runs_between(tuple(lod[-1]))
        if pool in ("SUM", "AVERAGE", "SQRT"):
            if pool != "SUM":
                grad = grad / _column(_divisor(pool, np.maximum(lengths, 1)), grad)
            return LoDTensor(grad.repeat(lengths, axis=0), lod)
        out = np.zeros(x.shape, x.dtype)
        if pool == "MAX":
            rows, columns = as_matrix(plain(MaxIndex)), as_matrix(grad)
            places = rows.astype(np.int64) * columns.shape[1] + np.arange(columns.shape[1])
            if not full:
                places, columns = places[rows >= 0], columns[rows >= 0]
            out.reshape(-1)[places] = columns
        else:
            filled = lengths > 0
            out[(starts if pool == "FIRST" else starts + lengths - 1)[filled]] = grad[filled]
        return LoDTensor(out, lod)

    return run


@kernel("sequence_softmax", lod="own")
def _run_sequence_softmax(_op: Op) -> Run:
    def run(X: Any) -> LoDTensor:
        x, lod = sequences(X, "X")
        starts, lengths = _filled(lod[-1])
        if x.size != len(x):
            raise ValueError(f"X has {x.size // len(x)} numbers in a row, it must have one")
        if not len(starts):
            return LoDTensor(x.copy(), lod)
        return LoDTensor(shares_of_runs(x.reshape(-1), starts, lengths).reshape(x.shape), lod)

    return run


def _filled(offsets: list[int]) -> tuple[Array, Array]:
    """Starts and lengths of the sequences that are not empty."""
    starts, lengths, full, _ = runs_between(tuple(offsets))
    return (starts, lengths) if full else (starts[lengths > 0], lengths[lengths > 0])


@kernel("sequence_softmax_grad", "X@GRAD", lod="own")
def _run_sequence_softmax_grad(_op: Op) -> Run:
    def run(X: Any, Out: Any, Out_GRAD: Any) -> LoDTensor:
        x, lod = sequences(X, "X")
        out, grad = plain(Out).reshape(len(x)), plain(Out_GRAD).reshape(len(x))
        starts, lengths = _filled(lod[-1])
        if len(starts):
            grad = (grad - sum_runs(out * grad, starts, lengths).repeat(lengths)) * out
        return LoDTensor(grad.reshape(x.shape), lod)

    return run
