"""Kernels of click-through models: counts of shows and clicks, data normalisation, hashes, and filtering by tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real
from pstranspile.runtime.kernels.kernel import (
    ExecutionContext,
    Run,
    Surroundings,
    has_output,
    kernel,
    per_op,
    plain_kernel,
)
from pstranspile.runtime.kernels.numeric import check_ids, numpy_dtype, plain, row_counts, sequences
from pstranspile.runtime.kernels.random import bloom_filter_mask, mersenne_words, row_hashes, row_hashes_32, words
from pstranspile.runtime.kernels.training.loss import evenly
from pstranspile.runtime.values import Array, LoDTensor


@kernel("cvm", "Y")
def _cvm_values(op: Op) -> Run:
    def with_counts(X: Array) -> Array:
        result = X.copy()
        logs = np.log(X[:, :2] + 1)
        result[:, 0] = logs[:, 0]
        result[:, 1] = logs[:, 1] - logs[:, 0]  # the logarithm of the share of clicks
        return result

    def without_counts(X: Array) -> Array:
        return X[:, 2:].copy()

    return with_counts if flag(op, "use_cvm") else without_counts


@kernel("cvm_grad", "X@GRAD", lod="own")
def _cvm_grad(op: Op) -> Run:
    skipped = 2 if flag(op, "use_cvm") else 0

    def run(X: Array | LoDTensor, CVM: Array | LoDTensor, Y_GRAD: Array | LoDTensor) -> Array | LoDTensor:
        """Gradient of cvm. The first two columns of X@GRAD get the counts of CVM instead of a gradient, for a table
        that adds them up.
        """
        counts, rows = plain(CVM), len(plain(X))
        if isinstance(X, LoDTensor):
            if len(X.lod[-1]) != len(counts) + 1:
                raise ValueError(f"CVM has {len(counts)} rows, X has {len(X.lod[-1]) - 1} sequences")
            counts = np.repeat(counts, row_counts(X.lod[-1]), axis=0)
        if len(counts) != rows:
            raise ValueError(f"CVM has {len(counts)} rows, X has {rows}")
        result = np.concatenate([counts, plain(Y_GRAD)[:, skipped:]], axis=1)
        return LoDTensor(result, X.lod) if isinstance(X, LoDTensor) else result

    return run


def _shown_mask(op: Op, x: Array) -> Array | None:
    """A mask of the elements that count: those of slots whose first element, the number of shows, is not 0. None if all
    count.
    """
    width = int_attr(op, "slot_dim", -1)
    if width <= 0:
        return None
    if x.shape[-1] % width:
        raise ValueError(f"the rows of X have {x.shape[-1]} elements, not slots of slot_dim {width}")
    return np.repeat(np.abs(x[:, ::width]) >= _NOTHING, width, axis=1)


_NOTHING = 1e-7
"""A smaller number of shows counts as none."""


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


@kernel("data_norm", "Y Means Scales", lod="Y")
def _data_norm_values(op: Op) -> Run:
    shifts = flag(op, "enable_scale_and_shift")

    def run(
        scale_w: Array | None, bias: Array | None, X: Array, BatchSize: Array, BatchSum: Array, BatchSquareSum: Array
    ) -> tuple[Array, Array, Array]:
        means, scales = BatchSum / BatchSize, np.sqrt(BatchSize / BatchSquareSum)
        y = (X - means) * scales
        if shifts:
            y = y * scale_w + bias
        shown = _shown_mask(op, _rows(X))
        if shown is not None:
            y = np.where(shown.reshape(X.shape), y, 0).astype(X.dtype, copy=False)
        return y, means, scales

    return run


@kernel(
    "data_norm_grad",
    "scale_w@GRAD bias@GRAD X@GRAD BatchSize@GRAD BatchSum@GRAD BatchSquareSum@GRAD",
    lod="none",
)
def _data_norm_grad(op: Op) -> Run:
    """Gradient of data_norm. The "gradients" of the statistics are no derivatives but the batch's contributions, which
    an optimizer adds.
    """
    shifts, epsilon, wants_x = flag(op, "enable_scale_and_shift"), real(op, "epsilon"), has_output(op, "X@GRAD")

    def run(scale_w: Array | None, X: Array, Means: Array, Scales: Array, Y_GRAD: Array) -> tuple[Array | None, ...]:
        x, gradient = _rows(X), _rows(Y_GRAD)
        shown, away = _shown_mask(op, x), x - Means
        total, squares = x, np.square(away)
        if shown is not None:
            total, squares, gradient = (np.where(shown, part, 0).astype(x.dtype) for part in (x, squares, gradient))
        of_sum, of_squares = np.add.reduce(total, axis=0), np.add.reduce(squares, axis=0)
        of_size = np.full(Means.shape, len(x), x.dtype)
        if shown is not None:  # Fluid counts a batch of slots as one
            counts = np.add.reduce(shown, axis=0).astype(x.dtype)
            of_size = (counts > 0).astype(x.dtype)
            of_sum, of_squares = (part / np.maximum(counts, 1) for part in (of_sum, of_squares))
            of_squares += counts * epsilon
        else:
            of_squares += len(x) * epsilon
        scale_grad = bias_grad = x_grad = None
        if shifts:
            scale_grad = np.add.reduce(gradient * (away * Scales), axis=0)
            bias_grad = np.add.reduce(gradient, axis=0)
        if wants_x:
            x_grad = ((gradient * scale_w if shifts else gradient) * Scales).reshape(X.shape)
        return scale_grad, bias_grad, x_grad, of_size, of_sum, of_squares

    return run


@kernel("hash")
def _hash_values(op: Op) -> Run:
    count, modulus = int_attr(op, "num_hash", 1), int_attr(op, "mod_by", 100000)
    if count < 1 or modulus < 1:
        raise ValueError(f"num_hash is {count} and mod_by {modulus}, both must be positive")

    def run(X: Array) -> Array:
        if X.ndim != 2:
            raise ValueError(f"X has dims {list(X.shape)}, it must have two")
        words = np.ascontiguousarray(X).astype(f"<i{X.itemsize}", copy=False).view("<u4")
        hashes = [row_hashes(words, seed) % np.uint64(modulus) for seed in range(count)]
        return np.stack(hashes, axis=1)[..., None].astype(X.dtype)

    return run


def _cumulative_offsets(counts: Array) -> list[int]:
    return [0, *np.cumsum(counts).tolist()]


@plain_kernel("filter_by_instag", "Out LossWeight IndexMap", lod="new")
def _filter_by_instag_values(
    Ins: Any, Ins_tag: Any, Filter_tag: Any, *, is_lod: bool, out_val_if_empty: int
) -> tuple[LoDTensor, LoDTensor, LoDTensor]:
    rows, tags = plain(Ins), plain(Ins_tag).reshape(-1)
    bounds = np.asarray(sequences(Ins, "Ins")[1][0]) if is_lod else np.arange(len(rows) + 1)
    tag_bounds = np.asarray(Ins_tag.lod[0]) if isinstance(Ins_tag, LoDTensor) else np.arange(len(tags) + 1)
    if len(tag_bounds) != len(bounds):
        raise ValueError(f"there are {len(bounds) - 1} instances in Ins, and tags of {len(tag_bounds) - 1}")
    hits = np.concatenate([[0], np.cumsum(np.isin(tags, plain(Filter_tag)))])
    chosen = np.flatnonzero(hits[tag_bounds[1:]] > hits[tag_bounds[:-1]])
    if not len(chosen):
        result = np.full((1, *rows.shape[1:]), out_val_if_empty, rows.dtype)
        return _with_steps(result, [0, 1]), _single(np.zeros((1, 1), "float32")), _single(np.array([[0, 1, 1]]))
    starts, counts = bounds[chosen], np.diff(bounds)[chosen]
    ends = _cumulative_offsets(counts)
    places = np.repeat(starts - ends[:-1], counts) + np.arange(ends[-1])
    index = np.stack([np.asarray(ends[:-1]), starts, counts], axis=1).astype("int64")
    return _with_steps(rows[places], ends), _single(np.ones((len(chosen), 1), "float32")), _single(index)


def _with_steps(value: Array, ends: list[int]) -> LoDTensor:
    return LoDTensor(value, [ends])


def _single(value: Array) -> LoDTensor:
    """The value as a ragged tensor with a sequence for each row."""
    return _with_steps(value, list(range(len(value) + 1)))


@plain_kernel("filter_by_instag_grad", "Ins@GRAD", lod="each")
def _filter_by_instag_grad(Ins: Array, LossWeight: Array, IndexMap: Array, Out_GRAD: Array) -> Array:
    result = np.zeros(Ins.shape, Out_GRAD.dtype)
    if LossWeight.any():  # all are 0 if no instance was chosen
        for begin, start, count in IndexMap.tolist():
            result[start : start + count] = Out_GRAD[begin : begin + count]
    return result


# Kernels. Search models: parameters chosen by pairs of ranks, and embeddings of groups of words found by hashing.
#
# A row of RankOffset is the rank of a row of X from 1 (0: none), and for each of `MaxRank` others its rank (0: none)
# and its row in X. RankParam has a block of as many rows as X has columns for each pair of ranks.
#
# `pyramid_hash` takes the groups of 2 to `pyramid_layer` words that follow each other in a sequence, short ones first.
# Each gets `num_emb` numbers of W in parts of `rand_len`: the part from element j on begins at the position that the
# group's hash with seed j gives. A Bloom filter determines which groups count.


def _pairs(x: Array, ranks: Array, param: Array, most: int) -> tuple[Array, Array, Array]:
    """For each row of X and each of its others: (the other's row of X [rows, others, width], 0 if there is none; the
    number of its parameter block), and the blocks [pairs, width, columns].
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
    drop_probability: float
    training: bool
    seed: int
    filters: bool


def _pyramid(op: Op) -> _Pyramid:
    return _Pyramid(
        width=int_attr(op, "num_emb"),
        part=int_attr(op, "rand_len"),
        space=int_attr(op, "space_len"),
        layers=int_attr(op, "pyramid_layer"),
        drop_probability=real(op, "drop_out_percent"),
        training=int_attr(op, "is_training") != 0,
        seed=int_attr(op, "seed"),
        filters=flag(op, "use_filter"),
    )


def _groups(words: Array, offsets: list[int], layers: int) -> tuple[Array, list[Array]]:
    """(sequence of each group, words of the groups as bits [groups, words] by length).

    Groups are ordered by length, then by sequence.
    """
    sequence: list[Array] = []
    bits: list[Array] = []
    longest = max((last - first for first, last in pairwise(offsets)), default=0)
    for more in range(1, min(layers, max(longest, 2))):
        starts = [np.arange(first, last - more) for first, last in pairwise(offsets)]
        at = np.concatenate([np.zeros(0, int), *starts])
        bits.append(words.view(np.uint32)[at[:, None] + np.arange(more + 1)])
        sequence.append(np.repeat(np.arange(len(starts)), [len(part) for part in starts]))
    return np.concatenate(sequence), bits


def _rand_r(seed: int, count: int) -> Array:
    """The first `count` numbers in [0, 1] of the GNU C library's `rand_r` after the seed."""
    with np.errstate(over="ignore"):
        factors = np.multiply.accumulate(np.full(3 * count, 1103515245, np.uint32), dtype=np.uint32)
        before = np.add.accumulate(np.concatenate([np.uint32([1]), factors[:-1]]), dtype=np.uint32)
        states = (factors * np.uint32(seed & 0xFFFFFFFF) + before * np.uint32(12345)).reshape(-1, 3) >> np.uint32(16)
    drawn = (states[:, 0] % 2048) << np.uint32(20) | (states[:, 1] % 1024) << np.uint32(10) | states[:, 2] % 1024
    return drawn.astype(np.float32) / np.float32(2147483647)


def _places(bits: list[Array], of: _Pyramid) -> Array:
    """The places in W of the numbers of each group: [groups, num_emb]."""
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
    mask = np.ones(len(sequence), bool)
    for table, length, black in ((WhiteList, "white_list_len", False), (BlackList, "black_list_len", True)):
        if of.filters and int_attr(op, length) > 0:
            mask &= np.concatenate([bloom_filter_mask(plain(table), group) for group in bits]) != black
    order = np.argsort(sequence, kind="stable")
    sequence, mask = sequence[order], mask[order]
    if of.training:
        mask[mask] = _rand_r(of.seed, int(mask.sum())) >= np.float32(of.drop_probability)
    counts = np.bincount(sequence[mask], minlength=len(lod[0]) - 1)
    ends = np.concatenate([[0], np.cumsum(np.maximum(counts, 1))])
    out = np.zeros((ends[-1], of.width), plain(W).dtype)
    filled = np.repeat(counts > 0, np.maximum(counts, 1))
    out[filled] = plain(W).reshape(-1)[_places(bits, of)[order][mask]]
    if not of.training:
        out *= np.float32(of.drop_probability)
    drop_ends = [0, *np.cumsum(counts).tolist()]
    room = np.zeros((x.size * of.layers, 1), np.int32)
    room[: len(mask), 0] = mask
    temporary = np.zeros(x.shape, np.float32)
    temporary.reshape(-1)[: len(x)] = words
    return LoDTensor(out, [ends.tolist()]), LoDTensor(room, [drop_ends]), temporary


@plain_kernel("pyramid_hash_grad", "X@GRAD", lod="own")
def _pyramid_hash_grad(
    X: Any, W: Any, DropPos: Any, X_Temp_Out: Any, Out_GRAD: Any, context: ExecutionContext, *, op: Op
) -> None:
    """Gradient of pyramid_hash. It updates W itself with the rate `lr`, as no optimizer does; X gets no gradient."""
    of, (x, lod) = _pyramid(op), sequences(X, "X")
    sequence, bits = _groups(plain(X_Temp_Out).reshape(-1)[: len(x)], lod[0], of.layers)
    order = np.argsort(sequence, kind="stable")
    kept = plain(DropPos).reshape(-1)[: len(order)] != 0
    counts = np.bincount(sequence[order][kept], minlength=len(lod[0]) - 1)
    slopes = plain(Out_GRAD)[np.repeat(counts > 0, np.maximum(counts, 1))]
    moved = plain(W).copy()
    np.subtract.at(moved.reshape(-1), _places(bits, of)[order][kept], np.float32(real(op, "lr")) * slopes)
    context.write(op.inputs["W"][0], moved)


# Kernels. Sampled classes: logits of a few classes, and nodes of a tree of items, level by level.


@plain_kernel("tdm_child", "Child LeafMask")
def _tdm_child_values(
    X: Array, TreeInfo: Array, *, child_nums: int, kind: str = per_op(lambda op: numpy_dtype(int_attr(op, "dtype")))
) -> tuple[Array, Array]:
    """Kernel of tdm_child. A row of TreeInfo holds the item, the level, the parent and the children of a node; 0 stands
    for none.
    """
    if TreeInfo.shape[1] < child_nums + 3:
        raise ValueError(f"TreeInfo has {TreeInfo.shape[1]} columns, {child_nums} children need {child_nums + 3}")
    check_ids(X, len(TreeInfo), "node")
    children = np.where((TreeInfo[X, 3:4] != 0) & (X[..., None] != 0), TreeInfo[X, 3 : 3 + child_nums], 0)
    check_ids(children, len(TreeInfo), "child")
    leaves = (children != 0) & (TreeInfo[children, 0] != 0)
    return children.astype(kind), leaves.astype(kind)


def _sample_negatives(rng: Iterator[int], layer: Array, positive: int, count: int) -> list[int]:
    """`count` distinct nodes of a level other than the positive one, as Fluid draws them."""
    taken: list[int] = []
    while len(taken) < count:
        at = next(rng)
        if layer[at] != positive and at not in taken:
            taken.append(at)
    return taken


def _numbers(seed: int, classes: int) -> Iterator[int]:
    """Yields the numbers of Fluid's uniform sampler with this seed, below `classes`."""
    start, count = 0, 256
    while True:
        yield from evenly(mersenne_words(seed, start + count)[start:], 64, classes).tolist()
        start, count = start + count, 2 * count


@kernel("tdm_sampler", "Out Labels Mask", lod="none")
def _tdm_sampler_values(op: Op) -> Run:
    counts, bounds = ints_attr(op, "neg_samples_num_list"), ints_attr(op, "layer_offset_lod")
    positive, seed, kind = flag(op, "output_positive"), int_attr(op, "seed"), numpy_dtype(int_attr(op, "dtype"))
    if len(bounds) != len(counts) + 1:
        raise ValueError(f"layer_offset_lod has {len(bounds)} numbers, {len(counts)} levels need {len(counts) + 1}")
    for count, (start, stop) in zip(counts, pairwise(bounds), strict=True):
        if count >= stop - start:
            raise ValueError(f"a level of {stop - start} nodes can't give {count} that are not the positive one")

    starts = [0, *accumulate(int(positive) + count for count in counts)]
    of_column = np.repeat(np.arange(len(counts)), np.diff(starts))
    is_positive = np.zeros(starts[-1], bool)
    if positive:
        is_positive[starts[:-1]] = True

    def fresh(surroundings: Surroundings, rows: int, width: int) -> Array:
        """Random words for each row of the batch, from a separate stream for every level."""
        key, offset = surroundings.stream(op.output("Out") or op.type, 0, op.inputs["X"][0], (rows, width))
        return words(key, offset, rows * width).reshape(rows, width)

    def sample_level(surroundings: Surroundings, layer: Array, path: Array, count: int) -> Array:
        """Indices of the samples of a level, for every row."""
        if seed:
            rng = _numbers(seed, len(layer))
            samples = [_sample_negatives(rng, layer, node, count) if node else [0] * count for node in path.tolist()]
            return np.array(samples, "int64").reshape(len(path), count)
        order = fresh(surroundings, len(path), len(layer))
        order[layer == path[:, None]] = 2**64 - 1
        return order.argsort(axis=1, kind="stable")[:, :count]

    def run(surroundings: Surroundings, X: Array, Travel: Array, Layer: Array) -> tuple[Array, Array, Array]:
        leaves, nodes = X.reshape(-1), Layer.reshape(-1)
        check_ids(leaves, len(Travel), "leaf")
        if Travel.shape[1] < len(counts) or bounds[-1] > len(nodes):
            raise ValueError(f"Travel has {Travel.shape[1]} levels and Layer {len(nodes)} nodes, the op names more")
        paths, taken = Travel.take(leaves, axis=0), np.empty((len(leaves), len(of_column)), kind)
        for level, (count, (start, stop)) in enumerate(zip(counts, pairwise(bounds), strict=True)):
            here, layer = taken[:, starts[level] : starts[level + 1]], nodes[start:stop]
            path = paths[:, level]
            if positive:
                here[:, 0] = path
            here[:, int(positive) :] = layer.take(sample_level(surroundings, layer, path, count))
        there = paths.take(of_column, axis=1) != 0
        return taken * there, (there & is_positive).astype(kind), there.astype(kind)

    return run


def _source(op: Op, surroundings: Surroundings) -> Callable[[int], Array]:
    """A function from a count to random words: those of the op's seed, as in Fluid, or fresh ones."""
    seed = int_attr(op, "seed")
    if seed:
        return lambda count: mersenne_words(seed, count)
    key, offset = surroundings.stream(op.output("Samples") or op.type, 0)
    return lambda count: words(key, offset, count)


def _draw(source: Callable[[int], Array], wanted: int, classes: int) -> tuple[Array, int]:
    """(distinct classes from the log-uniform distribution, in the order drawn; number of draws)."""
    count = 4 * wanted
    while True:
        drawn = (np.exp(source(count) * 2.0**-64 * np.log(classes + 1)).astype("int64") - 1) % classes
        places = np.sort(np.unique(drawn, return_index=True)[1])
        if len(places) >= wanted:
            places = places[:wanted]
            return drawn[places], int(places[-1]) + 1
        count *= 2


def _expected_counts(classes: Array, count: int, tries: int, samples: int) -> Array:
    """The expected count of each class among `samples` distinct ones after this many draws.

    As in Fluid, the probability of a class in one draw is rounded to float32.
    """
    likely = np.log((classes + 2.0) / (classes + 1.0)) / float(np.float32(np.log(count + 1)))
    likely = likely.astype("float32").astype("float64")
    return likely * samples if tries == samples else -np.expm1(tries * np.log1p(-likely))


def _sampler(op: Op) -> Callable[[Array, int, Surroundings], tuple[Array, Array]]:
    """A function from labels and the number of classes to the classes of each row, and their probabilities."""
    samples = int_attr(op, "num_samples")

    def sample_classes(labels: Array, classes: int, surroundings: Surroundings) -> tuple[Array, Array]:
        if not 0 < samples <= classes:
            raise ValueError(f"{samples} distinct classes can't be sampled from {classes}")
        drawn, tries = _draw(_source(op, surroundings), samples, classes)
        chosen = np.concatenate([labels, np.broadcast_to(drawn, (len(labels), samples))], axis=1)
        return chosen, _expected_counts(chosen, classes, tries, samples)

    return sample_classes


@kernel("sample_logits", "Samples Probabilities LogitsDim LabelsDim SampledLogits SampledLabels", lod="none")
def _sample_logits_values(op: Op) -> Run:
    sampler, custom, no_hits = _sampler(op), flag(op, "use_customized_samples"), flag(op, "remove_accidental_hits")
    if not flag(op, "uniq") and not custom:
        raise ValueError("uniq is false; only distinct samples are drawn here (uniq = true)")

    def run(
        Logits: Array,
        Labels: Array,
        CustomizedSamples: Array | None,
        CustomizedProbabilities: Array | None,
        surroundings: Surroundings,
    ) -> tuple[Array, Array, Array, Array, Array, Array]:
        true, classes = Labels.shape[1], Logits.shape[1]
        check_ids(Labels, classes, "the label")
        if not custom:
            chosen, likely = sampler(Labels, classes, surroundings)
        elif CustomizedSamples is None or CustomizedProbabilities is None:
            raise ValueError("use_customized_samples needs CustomizedSamples and CustomizedProbabilities")
        else:
            chosen, likely = CustomizedSamples, CustomizedProbabilities
            check_ids(chosen, classes, "the sample")
        likely = likely.astype(Logits.dtype)
        logits = np.take_along_axis(Logits, chosen, axis=1)
        if no_hits:
            hits = (chosen[:, true:, None] == chosen[:, None, :true]).any(axis=2)
            logits[:, true:] -= hits * Logits.dtype.type(1e20)
        logits = np.clip(logits - np.log(likely), -1e20, 1e20)
        places = np.broadcast_to(np.arange(true, dtype=Labels.dtype), Labels.shape).copy()
        sizes = (np.empty((*given.shape, 0), given.dtype) for given in (Logits, Labels))
        return (chosen, likely, *sizes, logits, places)

    return run


@plain_kernel("sample_logits_grad", "Logits@GRAD", lod="none")
def _sample_logits_grad_values(LogitsDim: Array, Samples: Array, SampledLogits_GRAD: Array) -> Array:
    rows, classes, _ = LogitsDim.shape
    places = Samples + classes * np.arange(rows)[:, None]
    total = np.bincount(places.reshape(-1), SampledLogits_GRAD.reshape(-1), rows * classes)
    return total.astype(SampledLogits_GRAD.dtype).reshape(rows, classes)
