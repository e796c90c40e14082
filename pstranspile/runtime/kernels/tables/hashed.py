"""Kernels. Search models: parameters chosen by pairs of ranks, and embeddings of groups of words found by hashing.

A row of RankOffset is the rank of a row of X from 1 (0: none), and for each of `MaxRank` others its rank (0: none) and
its row in X. RankParam has a block of as many rows as X has columns for each pair of ranks.

`pyramid_hash` takes the groups of 2 to `pyramid_layer` words that follow each other in a sequence, short ones first.
Each gets `num_emb` numbers of W in parts of `rand_len`: the part from element j on begins where the group's hash with
the seed j says. A filter says which groups count.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.runtime.kernels.context import ExecutionContext
from pstranspile.runtime.kernels.kernel import per_op, plain_kernel
from pstranspile.runtime.kernels.ragged import plain, sequences
from pstranspile.runtime.kernels.random.bloom import filtered
from pstranspile.runtime.kernels.random.xxhash import row_hashes_32
from pstranspile.runtime.values import Array, LoDTensor


def _pairs(x: Array, ranks: Array, param: Array, most: int) -> tuple[Array, Array, Array]:
    """For each row of X and each other: the row of X [rows, others, width], 0 for none, the number of its block, and
    the blocks [pairs, width, columns].
    """
    if len(ranks) != len(x) or ranks.shape[1] != 2 * most + 1 or len(param) != most * most * x.shape[1]:
        raise ValueError(
            f"{len(x)} rows of {x.shape[1]} numbers need {len(x)} rows of {2 * most + 1} ranks and places, and "
            f"{most * most * x.shape[1]} rows of parameters"
        )
    own, others, places = ranks[:, :1] - 1, ranks[:, 1::2] - 1, ranks[:, 2::2]
    there = (own >= 0) & (others >= 0)
    taken = x[np.where(there, places, 0)] * there[..., None]
    return taken, np.where(there, own * most + others, 0), param.reshape(most * most, x.shape[1], -1)


@plain_kernel("rank_attention")
def _rank_attention(X: Array, RankOffset: Array, RankParam: Array, *, MaxRank: int) -> Array:
    taken, blocks, param = _pairs(X, RankOffset, RankParam, MaxRank)
    return (taken[:, :, None] @ param[blocks])[:, :, 0].sum(axis=1)


@plain_kernel("rank_attention_grad", "RankParam@GRAD", lod="none")
def _rank_attention_grad(X: Array, RankOffset: Array, RankParam: Array, Out_GRAD: Array, *, MaxRank: int) -> Array:
    taken, blocks, param = _pairs(X, RankOffset, RankParam, MaxRank)
    result = np.zeros_like(param)
    np.add.at(result, blocks, taken[..., None] * Out_GRAD[:, None, None])
    return result.reshape(RankParam.shape)


class _Pyramid(NamedTuple):
    """The settings of an op."""

    width: int
    part: int
    space: int
    layers: int
    dropped: float
    training: bool
    seed: int
    filters: bool


def _pyramid(op: Op) -> _Pyramid:
    return _Pyramid(
        width=int_attr(op, "num_emb"),
        part=int_attr(op, "rand_len"),
        space=int_attr(op, "space_len"),
        layers=int_attr(op, "pyramid_layer"),
        dropped=real(op, "drop_out_percent"),
        training=int_attr(op, "is_training") != 0,
        seed=int_attr(op, "seed"),
        filters=flag(op, "use_filter"),
    )


def _groups(words: Array, offsets: list[int], layers: int) -> tuple[Array, list[Array]]:
    """The sequence of each group, and the words of the groups as bits [groups, words], by length.

    Groups are in the order of their length, then in that of the sequences.
    """
    sequence: list[Array] = []
    bits: list[Array] = []
    for more in range(1, layers):
        starts = [np.arange(first, last - more) for first, last in pairwise(offsets)]
        at = np.concatenate([np.zeros(0, int), *starts])
        bits.append(words.view(np.uint32)[at[:, None] + np.arange(more + 1)])
        sequence.append(np.repeat(np.arange(len(starts)), [len(part) for part in starts]))
    return np.concatenate(sequence), bits


def _rand_r(seed: int, count: int) -> Array:
    """The first numbers, 0 to 1, that C's `rand_r` of the GNU library draws from a seed."""
    with np.errstate(over="ignore"):
        factors = np.multiply.accumulate(np.full(3 * count, 1103515245, np.uint32), dtype=np.uint32)
        before = np.add.accumulate(np.concatenate([np.uint32([1]), factors[:-1]]), dtype=np.uint32)
        states = (factors * np.uint32(seed & 0xFFFFFFFF) + before * np.uint32(12345)).reshape(-1, 3) >> np.uint32(16)
    drawn = (states[:, 0] % 2048) << np.uint32(20) | (states[:, 1] % 1024) << np.uint32(10) | states[:, 2] % 1024
    return drawn.astype(np.float32) / np.float32(2147483647)


def _places(bits: list[Array], of: _Pyramid) -> Array:
    """Where in W the numbers of each group are: [groups, num_emb]."""
    parts = np.arange(0, of.width, of.part)
    hashes = [np.stack([row_hashes_32(group, int(j)) for j in parts], axis=1) % np.uint32(of.space) for group in bits]
    starts = np.concatenate(hashes).astype(np.int64)
    return (starts[:, :, None] + np.arange(of.part)).reshape(len(starts), of.width)


@plain_kernel("pyramid_hash", "Out DropPos X_Temp_Out", lod="new")
def _pyramid_hash(
    X: Any, W: Any, WhiteList: Any, BlackList: Any, *, of: _Pyramid = per_op(_pyramid), op: Op
) -> tuple[LoDTensor, LoDTensor, Array]:
    x, lod = sequences(X, "X")
    words = x.reshape(-1)[: len(x)].astype(np.float32)
    sequence, bits = _groups(words, lod[0], of.layers)
    kept = np.ones(len(sequence), bool)
    for table, length, black in ((WhiteList, "white_list_len", False), (BlackList, "black_list_len", True)):
        if of.filters and int_attr(op, length) > 0:
            kept &= np.concatenate([filtered(plain(table), group) for group in bits]) != black
    order = np.argsort(sequence, kind="stable")
    sequence, kept = sequence[order], kept[order]
    if of.training:
        kept[kept] = _rand_r(of.seed, int(kept.sum())) >= np.float32(of.dropped)
    counts = np.bincount(sequence[kept], minlength=len(lod[0]) - 1)
    ends = np.concatenate([[0], np.cumsum(np.maximum(counts, 1))])
    out = np.zeros((ends[-1], of.width), plain(W).dtype)
    filled = np.repeat(counts > 0, np.maximum(counts, 1))
    out[filled] = plain(W).reshape(-1)[_places(bits, of)[order][kept]]
    if not of.training:
        out *= np.float32(of.dropped)
    drop_ends = [0, *np.cumsum(counts).tolist()]
    room = np.zeros((x.size * of.layers, 1), np.int32)
    room[: len(kept), 0] = kept
    temporary = np.zeros(x.shape, np.float32)
    temporary.reshape(-1)[: len(x)] = words
    return LoDTensor(out, [ends.tolist()]), LoDTensor(room, [drop_ends]), temporary


@plain_kernel("pyramid_hash_grad", "X@GRAD", lod="own")
def _pyramid_hash_grad(
    X: Any, W: Any, DropPos: Any, X_Temp_Out: Any, Out_GRAD: Any, context: ExecutionContext, *, op: Op
) -> None:
    """Moves W against its gradient by the rate `lr` itself, as no optimizer does; X gets none."""
    of, (x, lod) = _pyramid(op), sequences(X, "X")
    sequence, bits = _groups(plain(X_Temp_Out).reshape(-1)[: len(x)], lod[0], of.layers)
    order = np.argsort(sequence, kind="stable")
    kept = plain(DropPos).reshape(-1)[: len(order)] != 0
    counts = np.bincount(sequence[order][kept], minlength=len(lod[0]) - 1)
    slopes = plain(Out_GRAD)[np.repeat(counts > 0, np.maximum(counts, 1))]
    moved = plain(W).copy()
    np.subtract.at(moved.reshape(-1), _places(bits, of)[order][kept], np.float32(real(op, "lr")) * slopes)
    context.write(op.inputs["W"][0], moved)
