"""Kernels. Sequences step by step: tensor arrays, recurrences over ragged sequences with one step of all sequences at a
time, and beam search, the best continuations of every prefix and the resulting sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.ops.gradient import EMPTY_NAME, SUFFIX
from pstranspile.runtime.kernels.kernel import ExecutionContext, Run, Value, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids, plain, row_counts, sequences
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


def _rows_of_items(items: Array, below: Sequence[Sequence[int]]) -> tuple[Array, list[list[int]]]:
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
        rows, levels = _rows_of_items(_step_rows(table, step), lod[len(table.lod) :])
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
    rows, levels = _rows_of_items(
        np.argsort(places), _concat_lods([part.lod for part in X if isinstance(part, LoDTensor)])
    )
    return LoDTensor(np.concatenate([plain(part) for part in X])[rows], [*table.lod, *levels])


def _concat_lods(lods: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
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


def _reorder_sequences(x: Any, order: Any) -> Any:
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
    return _reorder_sequences(X, _table(RankTable).order)


@plain_kernel("reorder_lod_tensor_by_rank_grad", lod="own")
def _reorder_back(X: Any, RankTable: Any) -> Any:
    return _reorder_sequences(X, np.argsort(_table(RankTable).order))


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


# Beam search.


@plain_kernel("gather_tree", lod="none")
def _gather_tree(Ids: Array, Parents: Array) -> Array:
    if Ids.ndim != 3 or Ids.shape != Parents.shape:
        dims = f"{list(Ids.shape)} and {list(Parents.shape)}"
        raise ValueError(f"Ids and Parents have dims {dims}, they must be [steps, batch, beams] alike")
    check_ids(Parents, Ids.shape[2], "Parents")
    result, parent = np.empty_like(Ids), np.broadcast_to(np.arange(Ids.shape[2]), Ids.shape[1:])
    for step in range(len(Ids) - 1, -1, -1):
        result[step] = np.take_along_axis(Ids[step], parent, axis=1)
        parent = np.take_along_axis(Parents[step], parent, axis=1)
    return result


def _absolute(lod: list[list[int]], level: int) -> list[int]:
    """The offsets of a level, counted in rows."""
    ends = lod[level]
    for below in lod[level + 1 :]:
        ends = [below[end] for end in ends]
    return ends


@kernel("beam_search", "selected_ids selected_scores parent_idx", lod="new")
def _beam_search_values(op: Op) -> Run:
    level, size, end_id = int_attr(op, "level"), int_attr(op, "beam_size"), int_attr(op, "end_id")
    accumulated = flag(op, "is_accumulated")
    if size < 1:
        raise ValueError(f"beam_size is {size}, it must be positive")

    def run(pre_ids: Any, pre_scores: Any, ids: Any, scores: Any) -> tuple[LoDTensor, LoDTensor, Array]:
        given_scores, lod = sequences(scores, "scores")
        if not 0 <= level < len(lod):
            raise ValueError(f"level is {level}, scores has a LoD of {len(lod)} levels")
        ends = _absolute(lod, level)
        rows = len(given_scores)
        last, so_far = plain(pre_ids).reshape(-1), plain(pre_scores).reshape(-1)
        if len(last) != rows or len(so_far) != rows or ends[-1] != rows:
            raise ValueError(f"there are {len(last)} pre_ids and {len(so_far)} pre_scores for {rows} rows of scores")
        offers = given_scores.reshape(rows, -1)
        words = np.broadcast_to(np.arange(offers.shape[1]), offers.shape) if ids is None else plain(ids)
        totals = offers if accumulated else so_far[:, None] + np.log(offers)
        chosen: list[tuple[Array, Array, Array]] = []
        for begin, end in pairwise(ends):
            best = _best(last[begin:end], so_far[begin:end], words[begin:end], totals[begin:end], end_id, size)
            if (best[1] != end_id).any() or (
                last[begin + best[0]] != end_id
            ).any():  # otherwise all prefixes ended in an earlier step
                chosen.append((begin + best[0], best[1], best[2]))
        parents = np.concatenate([np.empty(0, "int64"), *(part[0] for part in chosen)])
        result = np.concatenate([np.empty(0, "int64"), *(part[1] for part in chosen)]).astype("int64")
        total = np.concatenate([np.empty(0, so_far.dtype), *(part[2] for part in chosen)]).astype(so_far.dtype)
        counts = np.bincount(parents, minlength=rows)
        made = [list(ends), [0, *np.cumsum(counts).tolist()]]
        return LoDTensor(result[:, None], made), LoDTensor(total[:, None], made), parents.astype("int32")

    return run


def _best(
    last: Array, so_far: Array, words: Array, totals: Array, end_id: int, size: int
) -> tuple[Array, Array, Array]:
    """The `size` best continuations of a source's prefixes, in the order of the prefixes: (prefix, word, score) as
    arrays.

    A prefix that has ended continues only with its end and its score. Ties go to later prefixes. Among equal words of a
    prefix the first ones stay, but the last one takes the last place, as in Fluid.
    """
    ended = np.flatnonzero(last == end_id)
    open_ = np.flatnonzero(last != end_id)
    prefixes = np.concatenate([ended, np.repeat(open_, words.shape[1])])
    word = np.concatenate([np.full(len(ended), end_id), words[open_].reshape(-1)])
    score = np.concatenate([so_far[ended], totals[open_].reshape(-1)])
    candidates = np.argsort(prefixes, kind="stable")
    if len(candidates) > size:
        candidates = candidates[~(score[candidates] < np.partition(score, -size)[-size])]
    keys = {at: (float(score[at]), int(prefixes[at])) for at in candidates.tolist()}
    beam: list[int] = []
    for at, key in keys.items():
        if len(beam) == size:
            if key < keys[beam[-1]]:
                continue
            beam.pop()
        place = len(beam)
        while place and keys[beam[place - 1]] < key:
            place -= 1
        beam.insert(place, at)
    order = np.array(sorted(beam, key=lambda at: keys[at][1]), "int64")
    return prefixes[order], word[order], score[order]


@plain_kernel("beam_search_decode", "SentenceIds SentenceScores", lod="new")
def _beam_search_decode_values(
    Ids: list[Any], Scores: list[Any], *, beam_size: int, end_id: int
) -> tuple[LoDTensor, LoDTensor]:
    if not Ids or len(Ids) != len(Scores):
        raise ValueError(f"Ids has {len(Ids)} steps, Scores {len(Scores)}; they must have as many, and at least one")
    steps = [_step(ids, scores) for ids, scores in zip(Ids, Scores, strict=True)]
    sources = len(steps[0][2][0]) - 1
    words: list[Array] = []
    totals: list[Array] = []
    lengths: list[int] = []
    counts: list[int] = []
    for source in range(sources):
        sentences = _sentences(steps, source, end_id)
        if len(sentences) > beam_size:
            raise ValueError(f"source {source} has {len(sentences)} sentences, beam_size is {beam_size}")
        sentences.sort(key=lambda sentence: -sentence[1][0])  # by the score of the sentence, which is its last score
        counts.append(len(sentences))
        for sentence in sentences:
            words += sentence[0][::-1]
            totals += sentence[1][::-1]
            lengths.append(len(sentence[0]))
    lod = [[0, *np.cumsum(counts).tolist()], [0, *np.cumsum(lengths).tolist()]]
    return LoDTensor(np.array(words, "int64"), lod), LoDTensor(np.array(totals, steps[0][1].dtype), lod)


def _step(ids: Any, scores: Any) -> tuple[Array, Array, list[list[int]]]:
    """(words of a step, scores of a step, offsets of each source's prefixes and of each prefix's words)."""
    words, lod = sequences(ids, "Ids")
    if len(lod) != 2:
        raise ValueError(f"a step of Ids has a LoD of {len(lod)} levels, it must have sources and prefixes")
    return words.reshape(-1), plain(scores).reshape(-1), lod


def _sentences(
    steps: list[tuple[Array, Array, list[list[int]]]], source: int, end_id: int
) -> list[tuple[list[Any], list[Any]]]:
    """(words, scores) of each sentence of a source, last word first, traced back from the last step."""
    sentences: list[tuple[list[Any], list[Any]]] = []
    places: list[int] = []
    for words, scores, lod in reversed(steps):
        first, last = lod[0][source], lod[0][source + 1]
        if not places:
            places = list(range(lod[1][first], lod[1][last]))
            sentences = [([], []) for _ in places]
        for place, (so_far, totals) in zip(places, sentences, strict=True):
            if words[place] != end_id or not so_far:  # the end word appears once
                so_far.append(words[place])
                totals.append(scores[place])
        places = [int(np.searchsorted(lod[1], place, side="right")) - 1 for place in places]
    return sentences
