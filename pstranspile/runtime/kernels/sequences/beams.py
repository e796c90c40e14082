"""Kernels. Beam search: the best continuations of every prefix, step by step, and the resulting sentences."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids, plain, sequences
from pstranspile.runtime.values import Array, LoDTensor


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
