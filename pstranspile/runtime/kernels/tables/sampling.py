"""Kernels. Sampled classes: logits of a few classes, and nodes of a tree of items, level by level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr
from pstranspile.runtime.kernels.context import Surroundings
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids, numpy_dtype
from pstranspile.runtime.kernels.random.mersenne import mersenne_words
from pstranspile.runtime.kernels.random.streams import words
from pstranspile.runtime.kernels.training.sampled_loss import evenly
from pstranspile.runtime.values import Array


@kernel("tdm_child", "Child LeafMask")
def _tdm_child_values(op: Op) -> Run:
    """A row of TreeInfo is the item, the level, the parent and the children of a node; 0 stands for none."""
    count, kind = int_attr(op, "child_nums"), numpy_dtype(int_attr(op, "dtype"))

    def run(X: Array, TreeInfo: Array) -> tuple[Array, Array]:
        if TreeInfo.shape[1] < count + 3:
            raise ValueError(f"TreeInfo has {TreeInfo.shape[1]} columns, {count} children need {count + 3}")
        check_ids(X, len(TreeInfo), "node")
        children = np.where((TreeInfo[X, 3:4] != 0) & (X[..., None] != 0), TreeInfo[X, 3 : 3 + count], 0)
        check_ids(children, len(TreeInfo), "child")
        leaves = (children != 0) & (TreeInfo[children, 0] != 0)
        return children.astype(kind), leaves.astype(kind)

    return run


def _others(rng: Iterator[int], layer: Array, positive: int, count: int) -> list[int]:
    """`count` distinct nodes of a level other than the positive one, as Fluid draws them."""
    taken: list[int] = []
    while len(taken) < count:
        at = next(rng)
        if layer[at] != positive and at not in taken:
            taken.append(at)
    return taken


def _numbers(seed: int, classes: int) -> Iterator[int]:
    """Uniform numbers below `classes`, those of Fluid's sampler with this seed."""
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

    def fresh(surroundings: Surroundings, rows: int, width: int) -> Array:
        """Random words for each row of the batch, from a separate stream for every level."""
        key, offset = surroundings.stream(op.output("Out") or op.type, 0, op.inputs["X"][0], (rows, width))
        return words(key, offset, rows * width).reshape(rows, width)

    def drawn(surroundings: Surroundings, layer: Array, path: Array, count: int) -> Array:
        """Indices of the samples of a level, for every row."""
        if seed:
            rng = _numbers(seed, len(layer))
            samples = [_others(rng, layer, node, count) if node else [0] * count for node in path.tolist()]
            return np.array(samples, "int64").reshape(len(path), count)
        order = np.where(layer == path[:, None], np.uint64(2**64 - 1), fresh(surroundings, len(path), len(layer)))
        return np.argsort(order, axis=1, kind="stable")[:, :count]

    def run(surroundings: Surroundings, X: Array, Travel: Array, Layer: Array) -> tuple[Array, Array, Array]:
        leaves, nodes = X.reshape(-1), Layer.reshape(-1)
        check_ids(leaves, len(Travel), "leaf")
        if Travel.shape[1] < len(counts) or bounds[-1] > len(nodes):
            raise ValueError(f"Travel has {Travel.shape[1]} levels and Layer {len(nodes)} nodes, the op names more")
        out: list[Array] = []
        labels: list[Array] = []
        mask: list[Array] = []
        for level, (count, (start, stop)) in enumerate(zip(counts, pairwise(bounds), strict=True)):
            path = Travel[leaves, level]
            there = (path != 0)[:, None]
            parts = [path[:, None]] if positive else []
            parts.append(nodes[start:stop][drawn(surroundings, nodes[start:stop], path, count)])
            held = np.concatenate(parts, axis=1)
            out.append(np.where(there, held, 0))
            labels.append(np.where(there, np.arange(held.shape[1]) < int(positive), False))
            mask.append(np.broadcast_to(there, held.shape))
        whole = [np.concatenate(parts, axis=1).astype(kind) for parts in (out, labels, mask)]
        return whole[0], whole[1], whole[2]

    return run


def _source(op: Op, surroundings: Surroundings) -> Callable[[int], Array]:
    """A function from a count to random words: those of the op's seed, as in Fluid, or fresh ones."""
    seed = int_attr(op, "seed")
    if seed:
        return lambda count: mersenne_words(seed, count)
    key, offset = surroundings.stream(op.output("Samples") or op.type, 0)
    return lambda count: words(key, offset, count)


def _draw(source: Callable[[int], Array], wanted: int, classes: int) -> tuple[Array, int]:
    """Distinct classes from the log-uniform distribution, in the order drawn, and the number of draws."""
    count = 4 * wanted
    while True:
        drawn = (np.exp(source(count) * 2.0**-64 * np.log(classes + 1)).astype("int64") - 1) % classes
        places = np.sort(np.unique(drawn, return_index=True)[1])
        if len(places) >= wanted:
            places = places[:wanted]
            return drawn[places], int(places[-1]) + 1
        count *= 2


def _expected(classes: Array, count: int, tries: int, samples: int) -> Array:
    """The expected count of each class among `samples` distinct ones after this many draws.

    As in Fluid, the probability of a class in one draw is rounded to float32.
    """
    likely = np.log((classes + 2.0) / (classes + 1.0)) / float(np.float32(np.log(count + 1)))
    likely = likely.astype("float32").astype("float64")
    return likely * samples if tries == samples else -np.expm1(tries * np.log1p(-likely))


def _sampler(op: Op) -> Callable[[Array, int, Surroundings], tuple[Array, Array]]:
    """A function from labels and the number of classes to the classes of each row, and their probabilities."""
    samples = int_attr(op, "num_samples")

    def sampled(labels: Array, classes: int, surroundings: Surroundings) -> tuple[Array, Array]:
        if not 0 < samples <= classes:
            raise ValueError(f"{samples} distinct classes can't be sampled from {classes}")
        drawn, tries = _draw(_source(op, surroundings), samples, classes)
        chosen = np.concatenate([labels, np.broadcast_to(drawn, (len(labels), samples))], axis=1)
        return chosen, _expected(chosen, classes, tries, samples)

    return sampled


@kernel("sample_logits", "Samples Probabilities LogitsDim LabelsDim SampledLogits SampledLabels", lod="none")
def _sample_logits_values(op: Op) -> Run:
    sampler, custom, no_hits = _sampler(op), flag(op, "use_customized_samples"), flag(op, "remove_accidental_hits")
    if not flag(op, "uniq") and not custom:
        raise ValueError("uniq is false; samples are always distinct")

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
