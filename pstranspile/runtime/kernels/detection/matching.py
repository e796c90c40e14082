"""Kernels. Boxes matched with objects, and the choice of boxes without objects that count in a loss."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, real
from pstranspile.ops.detection.matching import MATCH_TYPES, MINING_TYPES, one_of
from pstranspile.runtime.kernels.boxes import joined, offsets_of, parts_of, require_count
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.values import Array

_NO_MATCH = 1e-6
"""Rows and columns with a smaller similarity are not matched."""


def _matched(likeness: Array) -> tuple[Array, Array]:
    """For each column the row that it is matched with, or -1, and their similarity.

    Matching is greedy: the largest remaining similarity comes first; ties go to the first column, then to the first
    row.
    """
    rows, columns = likeness.shape
    left = np.where(likeness < _NO_MATCH, -1, likeness).T.copy()  # column by column
    indices, similarity = np.full(columns, -1, "int32"), np.zeros(columns, likeness.dtype)
    for _ in range(min(rows, columns)):
        column, row = divmod(int(left.argmax()), rows)
        if left[column, row] < 0:
            break
        indices[column], similarity[column] = row, left[column, row]
        left[column], left[:, row] = -1, -1
    return indices, similarity


@kernel("bipartite_match", "ColToRowMatchIndices ColToRowMatchDist", lod="new")
def _bipartite_match_values(op: Op) -> Run:
    """With `per_prediction`, an unmatched column takes its most similar row if the similarity reaches the threshold."""
    per_prediction = one_of(op, "match_type", MATCH_TYPES, "DistMat") == MATCH_TYPES[1]
    threshold = real(op, "dist_threshold")

    def run(DistMat: object) -> tuple[Array, Array]:
        likeness = plain(DistMat)
        ends = offsets_of(DistMat, len(likeness))
        indices = np.full((len(ends) - 1, likeness.shape[1]), -1, "int32")
        similarity = np.zeros(indices.shape, likeness.dtype)
        for image, (start, stop) in enumerate(pairwise(ends)):
            part = likeness[start:stop]
            if not part.size:
                continue
            indices[image], similarity[image] = _matched(part)
            if per_prediction:
                best = part.argmax(axis=0)
                most = part[best, np.arange(part.shape[1])]
                takes = (indices[image] < 0) & (most >= threshold) & (most >= _NO_MATCH)
                indices[image, takes], similarity[image, takes] = best[takes], most[takes]
        return indices, similarity

    return run


@plain_kernel("target_assign", "Out OutWeight", lod="new")
def _target_assign_values(
    X: object, MatchIndices: object, NegIndices: object, *, mismatch_value: int
) -> tuple[Array, Array]:
    parts, matched = parts_of(X, "X"), plain(MatchIndices)
    require_count(parts, len(matched), "X")
    rows = plain(X)
    out = np.full((*matched.shape, rows.shape[2]), mismatch_value, rows.dtype)
    weight = np.zeros((*matched.shape, 1), "float32")
    for image, (part, indices) in enumerate(zip(parts, matched, strict=True)):
        there = np.nonzero(indices > -1)[0]
        check_ids(indices[there], len(part), "MatchIndices has")
        out[image, there] = part[indices[there], there % rows.shape[1]]
        weight[image, there] = 1
    if NegIndices is not None:
        negatives = parts_of(NegIndices, "NegIndices")
        require_count(negatives, len(matched), "NegIndices")
        for image, part in enumerate(negatives):
            places = part.reshape(-1)
            check_ids(places, matched.shape[1], "NegIndices has")
            out[image, places], weight[image, places] = mismatch_value, 1
    return out, weight


@kernel("mine_hard_examples", "NegIndices UpdatedMatchIndices", lod="new")
def _mine_hard_examples_values(op: Op) -> Run:
    """`max_negative` takes boxes that are unlike every object, up to a multiple of the matched ones.

    `hard_example` takes the largest losses of all boxes; other matched boxes lose their match.
    """
    hard = one_of(op, "mining_type", MINING_TYPES, "ClsLoss") == MINING_TYPES[1]
    ratio, threshold, size = real(op, "neg_pos_ratio"), real(op, "neg_dist_threshold"), int_attr(op, "sample_size")

    def chosen(loss: Array, indices: Array, similarity: Array) -> Array:
        able = np.ones(len(loss), bool) if hard else (indices == -1) & (similarity < threshold)
        places = np.nonzero(able)[0]
        count = size if hard else int(np.float32(np.count_nonzero(indices != -1)) * np.float32(ratio))
        order = np.argsort(-loss[places], kind="stable")
        return np.sort(places[order[: max(count, 0)]])

    def run(ClsLoss: object, LocLoss: object, MatchIndices: object, MatchDist: object) -> tuple[object, Array]:
        loss, matched, similarity = plain(ClsLoss), plain(MatchIndices), plain(MatchDist)
        if hard and LocLoss is not None:
            loss = loss + plain(LocLoss)
        updated, negatives = matched.copy(), list[Array]()
        for image, indices in enumerate(matched):
            places = chosen(loss[image], indices, similarity[image])
            if hard:
                left_out = np.ones(len(indices), bool)
                left_out[places] = False
                updated[image, left_out & (indices > -1)] = -1
                places = places[indices[places] <= -1]
            negatives.append(places.astype("int32").reshape(-1, 1))
        return joined(negatives), updated

    return run
