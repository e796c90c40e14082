"""Trees of items, as tree-based models search them: children of nodes, and samples of nodes level by level."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Surroundings
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.mersenne import mersenne_words
from pstranspile.ops.numeric import check_ids, flag, numpy_dtype
from pstranspile.ops.random_numbers import words
from pstranspile.ops.sampled_loss import evenly
from pstranspile.ops.schema import INT, declare, ints
from pstranspile.ops.shapes import Types, dtype_attr, int_attr, ints_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare(
    "tdm_child",
    "X TreeInfo -> Child LeafMask",
    {"child_nums": INT, "dtype": DType.INT32.value},
    doc="Child = the children of the nodes X of a tree, LeafMask = which of them are leaves",
)
declare(
    "tdm_sampler",
    "X Travel Layer -> Out Labels? Mask",
    {
        "output_positive": True,
        "neg_samples_num_list": ints(),
        "layer_offset_lod": ints(),
        "seed": 0,
        "dtype": DType.INT32.value,
    },
    doc="Out = of each level of a tree the node above the leaf X, and some others",
)


@shape_rule("tdm_child")
def _tdm_child(op: Op, types: Types) -> Types:
    x = one(types, "X")
    found = TensorType(dtype_attr(op), (*x.shape, int_attr(op, "child_nums")), x.lod_level)
    return {"Child": (found,), "LeafMask": (found,)}


@shape_rule("tdm_sampler")
def _tdm_sampler(op: Op, types: Types) -> Types:
    one(types, "X")
    counts = ints_attr(op, "neg_samples_num_list")
    found = (TensorType(dtype_attr(op), (-1, sum(counts) + len(counts) * bool(op.attrs.get("output_positive", True)))),)
    return {"Out": found, "Labels": found, "Mask": found}


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
    """Places of `count` different nodes of a level that are not the positive one, as Fluid draws them."""
    taken: list[int] = []
    while len(taken) < count:
        at = next(rng)
        if layer[at] != positive and at not in taken:
            taken.append(at)
    return taken


def _numbers(seed: int, classes: int) -> Iterator[int]:
    """Evenly drawn numbers below `classes`: those of Fluid's sampler with this seed."""
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

    def fresh(surroundings: Surroundings, rows: int, level: int, width: int) -> Array:
        key, offset = surroundings.stream(op.output("Out") or op.type, 0)
        return words(key, offset + (level << 40), rows * width).reshape(rows, width)

    def drawn(surroundings: Surroundings, layer: Array, path: Array, level: int, count: int) -> Array:
        """Places in a level of its samples, for every row."""
        if seed:
            rng = _numbers(seed, len(layer))
            held = [_others(rng, layer, node, count) if node else [0] * count for node in path.tolist()]
            return np.array(held, "int64").reshape(len(path), count)
        order = np.where(
            layer == path[:, None], np.uint64(2**64 - 1), fresh(surroundings, len(path), level, len(layer))
        )
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
            parts.append(nodes[start:stop][drawn(surroundings, nodes[start:stop], path, level, count)])
            held = np.concatenate(parts, axis=1)
            out.append(np.where(there, held, 0))
            labels.append(np.where(there, np.arange(held.shape[1]) < int(positive), False))
            mask.append(np.broadcast_to(there, held.shape))
        whole = [np.concatenate(parts, axis=1).astype(kind) for parts in (out, labels, mask)]
        return whole[0], whole[1], whole[2]

    return run
