"""Kernels. Tensor arrays, and recurrences over ragged sequences, one step of all sequences at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.gradient import EMPTY_NAME, SUFFIX
from pstranspile.runtime.kernels.kernel import ExecutionContext, Run, Value, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import plain, row_counts, sequences
from pstranspile.runtime.values import Array, LoDTensor


def _index(value: Any) -> int:
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise ValueError("I must hold one index")
    index = int(value.ravel()[0])
    if index < 0:
        raise ValueError(f"I is {index}, an index must not be negative")
    return index


def _copy(value: Value) -> Value:
    return LoDTensor(value.data.copy(), value.lod) if isinstance(value, LoDTensor) else value.copy()


def _plus(total: Any, term: Any) -> Value:
    if isinstance(total, LoDTensor):
        return LoDTensor(total.data + (term.data if isinstance(term, LoDTensor) else term), total.lod)
    return total + (term.data if isinstance(term, LoDTensor) else term)


@kernel("write_to_array", lod="own")
def _run_write_to_array(op: Op) -> Run:
    array = op.outputs["Out"][0]
    adds = SUFFIX in array  # the gradient of an element is summed over all reads of it

    def run(X: Value, I: Any, context: ExecutionContext) -> list[Value]:  # noqa: E741 (Fluid's name of the slot)
        index = _index(I)
        result = context.find(array)
        items = cast("list[Value]", result) if isinstance(result, list) else []
        items += [None] * (index + 1 - len(items))
        held = items[index]
        items[index] = _copy(X) if held is None or not adds else _plus(held, X)
        return items

    return run


@kernel("read_from_array", lod="own")
def _run_read_from_array(op: Op) -> Run:
    like = op.input("X_W")
    takes = SUFFIX in (op.input("X") or "")  # the previous value of the element has a gradient of its own

    def run(I: Any, X: Value | None, X_W: Value | None) -> Value:  # noqa: E741
        index = _index(I)
        if X is not None and not isinstance(X, list):
            raise ValueError("X must be an array of tensors")
        items = cast("list[Value]", X or [])  # no step has written the gradient yet
        if index < len(items) and items[index] is not None:
            result = items[index]
            if not takes:
                return _copy(result)
            items[index] = None
            return result
        if like is None:
            raise ValueError(f"X has no element {index}; it has {len(items)} elements")
        # no op has written this gradient: zeros like the value
        data = np.zeros_like(X_W.data if isinstance(X_W, LoDTensor) else X_W)
        return LoDTensor(data, X_W.lod) if isinstance(X_W, LoDTensor) else data

    return run


@plain_kernel("lod_array_length", lod="own")
def _run_array_length(X: list[Value]) -> Any:
    return np.array([len(X)], "int64")


class RankTable(NamedTuple):
    """The sequences of a ragged value sorted by length, longest first; ties keep their order.

    `order[i]` is the number of the i-th longest sequence and `lengths[i]` its length. `lod` is the LoD down to the
    ranked level.
    """

    order: Array
    lengths: Array
    lod: list[list[int]]

    def running(self, step: int) -> int:
        """The number of sequences that have this step."""
        return int(np.count_nonzero(self.lengths > step))


def _table(value: Any) -> RankTable:
    if not isinstance(value, RankTable):
        raise ValueError("RankTable must come from the op lod_rank_table")
    return value


@plain_kernel("lod_rank_table", lod="own")
def _rank(X: Any, *, level: int) -> RankTable:
    _, lod = sequences(X, "X")
    if not 0 <= level < len(lod):
        raise ValueError(f"X has {len(lod)} LoD levels, level {level} is asked for")
    lengths = row_counts(lod[level])
    order = np.argsort(-lengths, kind="stable")
    return RankTable(order, lengths[order], lod[: level + 1])


@plain_kernel("max_sequence_len", lod="own")
def _longest(RankTable: Any) -> Array:
    lengths = _table(RankTable).lengths
    return np.array([lengths[0] if len(lengths) else 0], "int64")


def _step_rows(table: RankTable, step: int) -> Array:
    """The numbers of the rows of a step: one row of each sequence that is long enough, the longest sequence first."""
    running = table.order[: table.running(step)]
    return np.asarray(table.lod[-1])[running] + step


def _taken(items: Array, below: Sequence[Sequence[int]]) -> tuple[Array, list[list[int]]]:
    """(rows of the given items, in order; their LoD). An item is a row, or a sequence of level `below`."""
    levels: list[list[int]] = []
    for level in below:
        offsets = np.asarray(level)
        starts, lengths = offsets[items], offsets[items + 1] - offsets[items]
        ends = np.cumsum(lengths)
        levels.append([0, *ends.tolist()])
        items = np.arange(int(lengths.sum())) + np.repeat(starts - (ends - lengths), lengths)
    return items, levels


def _with_lod(data: Array, lod: list[list[int]]) -> Any:
    return LoDTensor(data, lod) if lod else data


@plain_kernel("lod_tensor_to_array", lod="own")
def _to_array(X: Any, RankTable: Any) -> list[Any]:
    table, (x, lod) = _table(RankTable), sequences(X, "X")
    if len(lod) < len(table.lod):
        raise ValueError(f"X has {len(lod)} LoD levels; the ranked level, {len(table.lod)}, must be one of them")
    count = int(table.lengths[0]) if len(table.lengths) else 0
    parts: list[Any] = []
    for step in range(count):
        rows, levels = _taken(_step_rows(table, step), lod[len(table.lod) :])
        parts.append(_with_lod(x[rows], levels))
    return parts


@plain_kernel("array_to_lod_tensor", lod="new")
def _from_array(X: Any, RankTable: Any) -> LoDTensor:
    table = _table(RankTable)
    sizes = [len(part.lod[0]) - 1 if isinstance(part, LoDTensor) and part.lod else len(plain(part)) for part in X]
    count = int(table.lengths[0]) if len(table.lengths) else 0
    if len(sizes) != count or any(size != table.running(step) for step, size in enumerate(sizes)):
        raise ValueError(f"X holds {sizes} rows, the ranked sequences have {count} steps")
    if not sizes:
        raise ValueError("X holds no steps")
    places = np.concatenate([_step_rows(table, step) for step in range(count)])
    rows, levels = _taken(np.argsort(places), _joined([part.lod for part in X if isinstance(part, LoDTensor)]))
    return LoDTensor(np.concatenate([plain(part) for part in X])[rows], [*table.lod, *levels])


def _joined(lods: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """The LoD of concatenated tensors."""
    levels: list[list[int]] = []
    for parts in zip(*lods, strict=True):
        offsets = [0]
        for part in parts:
            offsets += [offsets[-1] + end for end in part[1:]]
        levels.append(offsets)
    return levels


@plain_kernel("shrink_rnn_memory", lod="own")
def _shrink(X: Any, RankTable: Any, I: Any) -> Any:  # noqa: E741 (Fluid's name of the slot)
    count, lod = _table(RankTable).running(int(plain(I).reshape(-1)[0])), list[list[int]]()
    for level in X.lod if isinstance(X, LoDTensor) else ():
        lod.append(list(level[: count + 1]))
        count = lod[-1][-1]
    rows = plain(X)[:count].copy()
    return LoDTensor(rows, lod) if lod else rows


@kernel("shrink_rnn_memory_grad", "X@GRAD", lod="own")
def _shrink_grad(op: Op) -> Run:
    gradient = op.input("Out@GRAD") or EMPTY_NAME

    def run(context: ExecutionContext, X: Any) -> Any:
        grad = np.zeros_like(plain(X))
        result = context.find(gradient)  # the last step gets no gradient
        if result is not None:
            grad[: len(plain(result))] = plain(result)
        return LoDTensor(grad, X.lod) if isinstance(X, LoDTensor) else grad

    return run


def _by_sequence(x: Any) -> list[tuple[Array, list[list[int]]]]:
    """For every outermost sequence of x: (its rows, for each level the lengths of its sequences)."""
    data = plain(x)
    if not isinstance(x, LoDTensor):
        return [(data[row : row + 1], []) for row in range(len(data))]
    pieces: list[tuple[Array, list[list[int]]]] = []
    for number in range(len(x.lod[0]) - 1):
        start, stop, lengths = number, number + 1, list[list[int]]()
        for level in x.lod:
            lengths.append(np.diff(level[start : stop + 1]).tolist())
            start, stop = level[start], level[stop]
        pieces.append((data[start:stop], lengths))
    return pieces


def _reordered(x: Any, order: Any) -> Any:
    pieces = _by_sequence(x)
    if sorted(order) != list(range(len(pieces))):
        raise ValueError(f"X has {len(pieces)} sequences, RankTable ranks {len(order)}")
    chosen: list[tuple[Array, list[list[int]]]] = [pieces[number] for number in order]
    out = np.concatenate([rows for rows, _ in chosen]) if chosen else plain(x).copy()
    if not isinstance(x, LoDTensor):
        return out
    levels = [[n for _, lengths in chosen for n in lengths[level]] for level in range(len(x.lod))]
    return LoDTensor(out, [[0, *np.cumsum(level).tolist()] for level in levels])


@plain_kernel("reorder_lod_tensor_by_rank", lod="own")
def _reorder(X: Any, RankTable: Any) -> Any:
    return _reordered(X, _table(RankTable).order)


@plain_kernel("reorder_lod_tensor_by_rank_grad", lod="own")
def _reorder_back(X: Any, RankTable: Any) -> Any:
    return _reordered(X, np.argsort(_table(RankTable).order))


@plain_kernel("tensor_array_to_tensor", "Out OutIndex", lod="own")
def _join(X: Any, *, axis: int, use_stack: bool) -> tuple[Array, Array]:
    parts = [plain(part) for part in X]
    if not parts:
        raise ValueError("X is an empty array")
    sizes = np.array([1 if use_stack else part.shape[axis] for part in parts], "int32")
    return (np.stack if use_stack else np.concatenate)(parts, axis=axis), sizes


@plain_kernel("tensor_array_to_tensor_grad", "X@GRAD", lod="own")
def _join_grad(X: Any, Out_GRAD: Any, *, axis: int, use_stack: bool) -> list[Array]:
    sizes = [1 if use_stack else plain(part).shape[axis] for part in X]
    parts = np.split(plain(Out_GRAD), np.cumsum(sizes)[:-1], axis=axis)
    return [part.reshape(plain(like).shape).copy() for part, like in zip(parts, X, strict=True)]
