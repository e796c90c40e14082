"""Fluid's `contrib.layers.nn`: layers of recommendation models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from pstranspile.fluid import layers, unique_name
from pstranspile.fluid.graph.vartype import dtype_of
from pstranspile.fluid.initializer import Constant
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers.adapt import live, one_op, to_core, wrap
from pstranspile.fluid.layers.detection_found import multiclass_nms2 as multiclass_nms2
from pstranspile.fluid.missing import names_of_fluid

partial_concat = one_op("partial_concat", "input, start_index=0, length=-1", "X=input", attrs="start_index length")
partial_sum = one_op("partial_sum", "input, start_index=0, length=-1", "X=input", attrs="start_index length")


def tdm_child(x: Any, node_nums: int, child_nums: int, param_attr: Any = None, dtype: Any = "int32") -> Any:
    """The children of the nodes x of a tree, and which of them are leaves.

    The tree is a parameter [node_nums, 3 + child_nums]: for each node its item, its level, its parent and its children,
    0 for none.
    """
    helper, kind = LayerHelper("tdm_child", param_attr=param_attr), dtype_of(dtype)
    tree = _table(helper, param_attr, [node_nums, 3 + child_nums], dtype)
    tree.stop_gradient = True
    children, leaves = (live().temporary(helper.name, kind) for _ in range(2))
    inputs = {"X": to_core(x), "TreeInfo": to_core(tree)}
    attrs = {"child_nums": int(child_nums), "dtype": kind}
    live().op("tdm_child", inputs, {"Child": children, "LeafMask": leaves}, attrs)
    return wrap(children), wrap(leaves)


def tdm_sampler(
    x: Any,
    neg_samples_num_list: Sequence[int],
    layer_node_num_list: Sequence[int],
    leaf_node_num: int,
    tree_travel_attr: Any = None,
    tree_layer_attr: Any = None,
    output_positive: bool = True,
    output_list: bool = True,
    seed: int = 0,
    tree_dtype: Any = "int32",
    dtype: Any = "int32",
) -> Any:
    """Of each level of a tree the node above the leaves x and so many others: nodes, labels, a mask of what counts.

    `tree_travel_attr` is of a parameter [leaf_node_num, levels] with the way to each leaf, `tree_layer_attr` of one
    with the nodes level by level. With `output_list` there is a tensor [-1, nodes, 1] for each level. Raises ValueError
    where levels are not as many, or have fewer nodes than are asked for.
    """
    if len(neg_samples_num_list) != len(layer_node_num_list):
        raise ValueError(f"{len(neg_samples_num_list)} counts of samples are for {len(layer_node_num_list)} levels")
    for level, (asked, count) in enumerate(zip(neg_samples_num_list, layer_node_num_list, strict=True)):
        if asked >= count:
            raise ValueError(f"level {level} has {count} nodes: {asked} others than the one above a leaf are too many")
    helper, kind = LayerHelper("tdm_sampler"), dtype_of(dtype)
    offsets = list(accumulate(layer_node_num_list, initial=0))
    travel = _table(helper, tree_travel_attr, [leaf_node_num, len(layer_node_num_list)], tree_dtype)
    nodes = _table(helper, tree_layer_attr, [offsets[-1], 1], tree_dtype)
    made = [live().temporary(helper.name, kind, stop_gradient=True) for _ in range(3)]
    inputs = {"X": to_core(x), "Travel": to_core(travel), "Layer": to_core(nodes)}
    attrs = {
        "neg_samples_num_list": list(neg_samples_num_list),
        "output_positive": bool(output_positive),
        "layer_offset_lod": offsets,
        "seed": int(seed),
        "dtype": kind,
    }
    live().op("tdm_sampler", inputs, dict(zip(("Out", "Labels", "Mask"), made, strict=True)), attrs)
    whole = [wrap(value) for value in made]
    if not output_list:
        return tuple(whole)
    columns = accumulate((count + bool(output_positive) for count in neg_samples_num_list), initial=0)
    by_level: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for start, stop in pairwise(columns):
        parts = [layers.slice(value, axes=[1], starts=[start], ends=[stop]) for value in whole]
        for levels, part in zip(by_level, parts, strict=True):
            level = layers.reshape(part, [-1, stop - start, 1])
            level.stop_gradient = True
            levels.append(level)
    return by_level


def shuffle_batch(x: Any, seed: Any = None) -> Any:
    """The rows of x in random order; `seed` is a number, or a variable that changes from step to step.

    Without one it is the seed of the program, or drawn with `numpy.random` if that has none.
    """
    helper, value, attrs = LayerHelper("shuffle_batch"), to_core(x), {}
    if seed is None:
        seed = helper.main_program.random_seed or int(np.random.randint(-65536, 65535))
    if isinstance(seed, int):
        attrs = {"startup_seed": seed}
        seed = helper.create_variable(name=unique_name.generate("shuffle_batch_seed"), dtype="int64", persistable=True)
    shuffled = live().temporary(helper.name, value.dtype)
    order = live().temporary(helper.name, dtype_of("int64"))
    inputs = {"X": value, "Seed": to_core(seed)}
    live().op("shuffle_batch", inputs, {"Out": shuffled, "ShuffleIdx": order, "SeedOut": to_core(seed)}, attrs)
    return wrap(shuffled)


def fused_embedding_seq_pool(
    input: Any,
    size: Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    combiner: str = "sum",
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Any:
    """For each sequence of ids the sum of their rows of a table; a negative `padding_idx` counts from behind."""
    helper = LayerHelper("fused_embedding_seq_pool", param_attr=param_attr)
    table = helper.create_parameter(attr=helper.param_attr, shape=list(size), dtype=dtype)
    padding = -1 if padding_idx is None else padding_idx + size[0] * (padding_idx < 0)
    pooled = live().temporary(helper.name, dtype_of(dtype))
    attrs = {"combiner": combiner, "is_sparse": bool(is_sparse), "padding_idx": padding}
    inputs = {"W": to_core(table), "Ids": to_core(input)}
    live().op("fused_embedding_seq_pool", inputs, {"Out": pooled}, attrs)
    return wrap(pooled)


def sequence_topk_avg_pooling(input: Any, row: Any, col: Any, topks: Sequence[int], channel_num: int) -> Any:
    """Of each row of pictures [channels * rows * columns] of any size the means of the largest elements.

    `row` and `col` have as many rows and columns as the pictures; `topks` says of how many elements. Gives
    [rows, channels * number of topks].
    """
    helper = LayerHelper("sequence_topk_avg_pooling")
    pooled, places = (helper.create_variable_for_type_inference(input.dtype) for _ in range(2))
    places.stop_gradient = True
    inputs = {"X": input, "ROW": row, "COLUMN": col}
    attrs = {"topks": list(topks), "channel_num": channel_num}
    helper.append_op(
        type="sequence_topk_avg_pooling", inputs=inputs, outputs={"Out": pooled, "pos": places}, attrs=attrs
    )
    return pooled


def _table(helper: LayerHelper, attr: Any, shape: list[int], dtype: Any) -> Any:
    return helper.create_parameter(attr=attr, shape=shape, dtype=dtype, default_initializer=Constant(0))


__getattr__ = names_of_fluid(__name__, globals())
