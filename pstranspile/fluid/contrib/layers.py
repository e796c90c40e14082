"""Fluid's `contrib.layers`: layers of recommendation models, metrics of clicks, and stacked gated recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from pstranspile.fluid import layers, unique_name
from pstranspile.fluid.communicator import warn_unused
from pstranspile.fluid.data_feeder import check_type
from pstranspile.fluid.graph.values import dtype_of, numpy_name, several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.initializer import Constant
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers.adapt import check_variable, made_by, one_op
from pstranspile.fluid.layers.detection import CHOICE_OF_BOXES, with_index
from pstranspile.fluid.layers.objects import BasicGRUUnit as BasicGRUUnit
from pstranspile.fluid.layers.objects import BasicLSTMUnit as BasicLSTMUnit
from pstranspile.fluid.layers.objects import kept_where, with_name_suffix
from pstranspile.fluid.layers.utils import convert_to_list
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.param_attr import attr_of
from pstranspile.fluid.running.large_tables import EntryAttr, make_large
from pstranspile.ir.table_rules import Rules

partial_concat = one_op("partial_concat", "input, start_index=0, length=-1", "X=input", attrs="start_index length")
partial_sum = one_op("partial_sum", "input, start_index=0, length=-1", "X=input", attrs="start_index length")


def tdm_child(x: Any, node_nums: int, child_nums: int, param_attr: Any = None, dtype: Any = "int32") -> Any:
    """The children of the nodes x of a tree, and a mask of those that are leaves.

    The tree is a parameter [node_nums, 3 + child_nums]: for each node its item, its level, its parent and its children,
    0 for none.
    """
    helper, dtype = LayerHelper("tdm_child", param_attr=param_attr), numpy_name(dtype)
    tree = _table(helper, param_attr, [node_nums, 3 + child_nums], dtype)
    tree.stop_gradient = True
    outputs, attrs = f"Child:{dtype} LeafMask:{dtype}", {"child_nums": int(child_nums), "dtype": dtype_of(dtype)}
    return tuple(made_by("tdm_child", {"X": x, "TreeInfo": tree}, outputs, attrs, name=helper.name))


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
    """Samples nodes of each level of a tree: the node above each leaf in `x`, and random others of the level. Returns
    the nodes, their labels (1: above the leaf) and a mask of the nodes that count.

    `tree_travel_attr` belongs to a parameter [leaf_node_num, levels] with the path to each leaf, `tree_layer_attr` to
    one with the nodes level by level. `neg_samples_num_list` and `layer_node_num_list` have the numbers of random nodes
    and of all nodes for each level. With `output_list` there is a tensor [-1, nodes, 1] for each level. Raises
    ValueError if these lists differ in length, or a level has too few nodes.
    """
    if len(neg_samples_num_list) != len(layer_node_num_list):
        raise ValueError(f"{len(neg_samples_num_list)} counts of samples are for {len(layer_node_num_list)} levels")
    for level, (asked, count) in enumerate(zip(neg_samples_num_list, layer_node_num_list, strict=True)):
        if asked >= count:
            raise ValueError(f"level {level} has {count} nodes: {asked} others than the one above a leaf are too many")
    helper, dtype = LayerHelper("tdm_sampler"), numpy_name(dtype)
    offsets = list(accumulate(layer_node_num_list, initial=0))
    travel = _table(helper, tree_travel_attr, [leaf_node_num, len(layer_node_num_list)], tree_dtype)
    nodes = _table(helper, tree_layer_attr, [offsets[-1], 1], tree_dtype)
    inputs, outputs = {"X": x, "Travel": travel, "Layer": nodes}, f"Out:{dtype} Labels:{dtype} Mask:{dtype}"
    attrs = {
        "neg_samples_num_list": list(neg_samples_num_list),
        "output_positive": bool(output_positive),
        "layer_offset_lod": offsets,
        "seed": int(seed),
        "dtype": dtype_of(dtype),
    }
    whole = made_by("tdm_sampler", inputs, outputs, attrs, name=helper.name, stopped="*")
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

    The default is the seed of the program, or if it has none, a seed drawn by `numpy.random`.
    """
    helper, attrs = LayerHelper("shuffle_batch"), {}
    if seed is None:
        seed = helper.main_program.random_seed or int(np.random.randint(-65536, 65535))
    if isinstance(seed, int):
        attrs = {"startup_seed": seed}
        seed = helper.create_variable(name=unique_name.generate("shuffle_batch_seed"), dtype="int64", persistable=True)
    inputs, outputs = {"X": x, "Seed": seed}, "Out ShuffleIdx:int64 SeedOut"
    return made_by("shuffle_batch", inputs, outputs, attrs, name=helper.name, into={"SeedOut": seed})[0]


def fused_embedding_seq_pool(
    input: Any,
    size: Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    combiner: str = "sum",
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Any:
    """For each sequence of ids, the sum of their rows of a table; a negative `padding_idx` counts from the end."""
    helper = LayerHelper("fused_embedding_seq_pool", param_attr=param_attr)
    table = helper.create_parameter(attr=helper.param_attr, shape=list(size), dtype=dtype)
    padding = -1 if padding_idx is None else padding_idx + size[0] * (padding_idx < 0)
    attrs = {"combiner": combiner, "is_sparse": bool(is_sparse), "padding_idx": padding}
    return made_by("fused_embedding_seq_pool", {"W": table, "Ids": input}, attrs=attrs, name=helper.name)[0]


sequence_topk_avg_pooling = one_op(
    "sequence_topk_avg_pooling",
    "input, row, col, topks, channel_num",
    "X=input ROW=row COLUMN=col",
    "Out pos",
    "topks:items channel_num",
    stopped="pos",
)


def match_matrix_tensor(
    x: Any,
    y: Any,
    channel_num: int,
    act: str | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> tuple[Any, Any]:
    """The match of the words of each sequence of x with those of y, [channels, words, words] flattened to a column; and
    x times the parameter.
    """
    assert [len(x.shape), len(y.shape), x.shape[-1]] == [2, 2, y.shape[-1]], "x and y must be rows of one width"
    helper = LayerHelper("match_matrix_tensor", param_attr=param_attr, act=act, name=name)
    w = helper.create_parameter(attr=helper.param_attr, shape=[x.shape[1], channel_num, y.shape[1]], dtype=dtype)
    inputs, attrs = {"X": x, "Y": y, "W": w}, {"dim_t": channel_num}
    out, moved = made_by("match_matrix_tensor", inputs, "Out:W Tmp:W", attrs, name=helper.name, stopped="Tmp")
    return helper.append_activation(out), moved


def var_conv_2d(
    input: Any,
    row: Any,
    col: Any,
    input_channel: int,
    output_channel: int,
    filter_size: Any,
    stride: Any = 1,
    param_attr: Any = None,
    act: str | None = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> Any:
    """The convolution of pictures of any size, each flattened to a column [channels * rows * columns]; the sequences of
    `row` and `col` are as long as the pictures have rows and columns.
    """
    assert len(input.shape) == 2, "input must have two dims"
    helper = LayerHelper("var_conv_2d", param_attr=param_attr, act=act, name=name)
    size, steps = convert_to_list(filter_size, 2, "filter_size"), convert_to_list(stride, 2, "stride")
    shape = [int(output_channel), int(input_channel) * size[0] * size[1]]
    w = helper.create_parameter(attr=helper.param_attr, shape=shape, dtype=dtype)
    attrs = {
        "InputChannel": input_channel,
        "OutputChannel": output_channel,
        "StrideH": steps[0],
        "StrideW": steps[1],
        "KernelH": size[0],
        "KernelW": size[1],
    }
    inputs = {"X": input, "ROW": row, "COLUMN": col, "W": w}
    made = made_by("var_conv_2d", inputs, "Out:W Col:W", attrs, name=helper.name, stopped="Col")
    return helper.append_activation(made[0])


def tree_conv(
    nodes_vector: Any,
    edge_set: Any,
    output_size: int,
    num_filters: int = 1,
    max_depth: int = 2,
    act: str | None = "tanh",
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Any:
    """For each node of trees, the convolution of its subtree: [trees, nodes, output_size, num_filters].

    `nodes_vector` has a row for each node [trees, nodes, width], `edge_set` the edges from parents to children, whose
    numbers begin with 1 [trees, edges, 2].
    """
    check_type(nodes_vector, "nodes_vector", Variable, "tree_conv")
    check_type(edge_set, "edge_set", Variable, "tree_conv")
    helper = LayerHelper("tree_conv", param_attr=param_attr, bias_attr=bias_attr, act=act, name=name)
    shape = [nodes_vector.shape[2], 3, output_size, num_filters]
    w = helper.create_parameter(attr=helper.param_attr, shape=shape, dtype=nodes_vector.dtype)
    inputs = {"NodesVector": nodes_vector, "EdgeSet": edge_set, "Filter": w}
    out = made_by("tree_conv", inputs, attrs={"max_depth": max_depth}, name=helper.name)[0]
    return helper.append_activation(helper.append_bias_op(out) if helper.bias_attr else out)


def rank_attention(
    input: Any, rank_offset: Any, rank_param_shape: Sequence[int], rank_param_attr: Any, max_rank: int = 3
) -> Any:
    """Rows times blocks of a parameter, which are chosen by the rows' ranks, summed over the other rows listed in
    `rank_offset`.
    """
    assert input.shape[1] * max_rank * max_rank == rank_param_shape[0], "rank_param_shape must have a block per pair"
    helper = LayerHelper("rank_attention")
    param = helper.create_parameter(attr=rank_param_attr, shape=list(rank_param_shape), dtype=input.dtype)
    param.stop_gradient = False
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.create_variable_for_type_inference(input.dtype, stop_gradient=True)  # Fluid's layer makes one more
    inputs = {"X": input, "RankOffset": rank_offset, "RankParam": param}
    helper.append_op(type="rank_attention", inputs=inputs, outputs={"Out": out}, attrs={"MaxRank": max_rank})
    return out


def _functors(given: dict[str, Any]) -> dict[str, Any]:
    functors = given["functor_list"]
    functors = functors.split(",") if isinstance(functors, str) else functors
    if not several(functors) or len(functors) != 2:
        raise ValueError(f"functor_list must be two names, not {given['functor_list']!r}")
    return {"functor_list": functors}


fused_elemwise_activation = one_op(
    "fused_elemwise_activation",
    "x, y, functor_list, axis=-1, scale=0.0, save_intermediate_out=True",
    "X=x Y=y",
    "Out IntermediateOut",
    "axis scale save_intermediate_out",
    more=_functors,
)


def search_pyramid_hash(
    input: Any,
    num_emb: int,
    space_len: int,
    pyramid_layer: int,
    rand_len: int,
    drop_out_percent: float,
    is_training: Any,
    use_filter: bool,
    white_list_len: int,
    black_list_len: int,
    seed: int,
    lr: float,
    param_attr: Any = None,
    param_attr_wl: Any = None,
    param_attr_bl: Any = None,
    name: str | None = None,
    distribute_update_vars: list[str] | None = None,
    dtype: Any = "float32",
) -> Any:
    """Embeddings, found by hashing, of groups of words in each sequence of ids: [groups, num_emb].

    The parameters `param_attr_wl` and `param_attr_bl` are filters of groups that count and of groups that don't. Raises
    ValueError for an updated variable that is not a parameter of the layer.
    """
    helper = LayerHelper("search_pyramid_hash", name=name)

    def parameter_without_gradient(attr: Any, length: int) -> Any:
        made = helper.create_parameter(attr=attr, shape=[length, 1], dtype=dtype)
        made.stop_gradient = True
        return made

    inputs = {"X": input, "W": parameter_without_gradient(param_attr, space_len + rand_len)}
    if white_list_len > 0:
        inputs["WhiteList"] = parameter_without_gradient(param_attr_wl, white_list_len)
    if black_list_len >= 0:
        inputs["BlackList"] = parameter_without_gradient(param_attr_bl, black_list_len)
    known = [attr.name for attr in (param_attr, param_attr_wl, param_attr_bl) if attr]
    for updated in distribute_update_vars or ():
        if updated not in known:
            raise ValueError(f"search_pyramid_hash: {updated} is none of its parameters {known}")
    attrs = {
        "num_emb": num_emb,
        "space_len": space_len,
        "pyramid_layer": pyramid_layer,
        "rand_len": rand_len,
        "drop_out_percent": drop_out_percent,
        "is_training": is_training,
        "use_filter": use_filter,
        "white_list_len": white_list_len,
        "black_list_len": black_list_len,
        "seed": seed,
        "lr": lr,
        "distribute_update_vars": ",".join(distribute_update_vars or ()),
    }
    return made_by("pyramid_hash", inputs, "Out:W DropPos:W X_Temp_Out:W", attrs, name=helper.name)[0]


def _table(helper: LayerHelper, attr: Any, shape: list[int], dtype: Any) -> Any:
    return helper.create_parameter(attr=attr, shape=shape, dtype=dtype, default_initializer=Constant(0))


_SUMS = ("abserr", "sqrerr", "prob", "q", "pos", "total")


class _Bundle:
    """The sums of the metrics over all steps; the value of each step is added to them."""

    def __init__(self, helper: LayerHelper):
        self._helper = helper
        self._sums = {name: self._variable([1], persistable=True) for name in _SUMS}
        self._steps: dict[str, Any] = {}

    def _variable(self, dims: list[int], *, persistable: bool = False) -> Any:
        return self._helper.create_global_variable(persistable=persistable, dtype="float32", shape=dims)

    def temporaries(self) -> list[Any]:
        """Three variables for values computed for each row; also makes the variables for the values of a step."""
        rows = [self._variable([-1]) for _ in range(3)]
        self._steps = {name: self._variable([1]) for name in ("prob", "abserr", "sqrerr", "q", "pos", "total")}
        for name in ("abserr", "sqrerr", "prob", "q"):
            self._start(self._sums[name], self._steps[name])
        self._start(self._steps["pos"], self._steps["total"], self._sums["pos"], self._sums["total"])
        return rows

    def _start(self, *variables: Any) -> None:
        for variable in variables:
            self._helper.set_variable_initializer(variable, Constant(0.0, force_cpu=True))

    def add(self, name: str, op_type: str, x: Any) -> None:
        """Adds ops that compute the value of a step from x by an op type, and add it to a sum."""
        step, total = self._steps[name], self._sums[name]
        self._helper.append_op(type=op_type, inputs={"X": [x]}, outputs={"Out": [step]})
        inputs = {"X": [step], "Y": [total]}
        self._helper.append_op(type="elementwise_add", inputs=inputs, outputs={"Out": [total]})

    def result(self) -> tuple[Any, ...]:
        """The sums, in the order of the layer's results."""
        return tuple(self._sums[name] for name in ("sqrerr", "abserr", "prob", "q", "pos", "total"))


def ctr_metric_bundle(input: Any, label: Any) -> tuple[Any, ...]:
    """Sums over all rows up to now, each float32 [1], for probabilities `input` and clicks `label`, both [rows, 1].

    They are the sums of squared errors, absolute errors, probabilities, sigmoids of probabilities, clicks, and the
    number of rows. Raises AssertionError for different dims.
    """
    if tuple(input.shape) != tuple(label.shape):
        raise AssertionError(f"input has the dims {list(input.shape)}, label {list(label.shape)}")
    helper = LayerHelper("ctr_metric_bundle")
    bundle = _Bundle(helper)
    error, sigmoid, ones = bundle.temporaries()
    helper.append_op(type="elementwise_sub", inputs={"X": [input], "Y": [label]}, outputs={"Out": [error]})
    bundle.add("sqrerr", "squared_l2_norm", error)
    bundle.add("abserr", "l1_norm", error)
    bundle.add("prob", "reduce_sum", input)
    helper.append_op(type="sigmoid", inputs={"X": [input]}, outputs={"Out": [sigmoid]})
    bundle.add("q", "reduce_sum", sigmoid)
    bundle.add("pos", "reduce_sum", label)
    attrs = {"shape": [-1, 1], "dtype": ones.dtype, "value": 1.0}
    helper.append_op(
        type="fill_constant_batch_size_like", inputs={"Input": label}, outputs={"Out": [ones]}, attrs=attrs
    )
    bundle.add("total", "reduce_sum", ones)
    return bundle.result()


class _Network:
    """Several layers of units; each state has `states` parts (hidden; or hidden and cell)."""

    def __init__(self, input: Any, starts: list[Any], hidden_size: int, num_layers: int, dropout: dict[str, Any]):
        self.input, self.starts, self.size, self.layers, self.dropout = (
            input,
            starts,
            hidden_size,
            num_layers,
            dropout,
        )

    def one_way(self, steps: Any, units: list[Any], mask: Any, direction: int) -> tuple[Any, list[Any]]:
        """The outputs of the last layer over all steps, and the last state of every layer, part by part."""
        rnn = layers.StaticRNN()
        with rnn.step():
            step = rnn.step_input(steps)
            step_mask = rnn.step_input(mask) if mask is not None else None
            for layer, unit in enumerate(units):
                step = self._layer(rnn, steps, step, unit, step_mask, layer, direction)
            rnn.step_output(step)
        *states, outputs = rnn()
        parts = len(self.starts)
        last: list[list[Any]] = [[] for _ in range(parts)]
        for at, state in enumerate(states):
            last[at % parts].append(state[-1])
        shape = [self.layers, -1, self.size]
        return outputs, [layers.reshape(layers.concat(part, axis=0), shape=shape) for part in last]

    def _layer(self, rnn: Any, steps: Any, step: Any, unit: Any, mask: Any, layer: int, direction: int) -> Any:
        if self.starts[0] is not None:
            before = [rnn.memory(init=start[layer, direction]) for start in self.starts]
        else:
            before = [rnn.memory(batch_ref=steps, shape=[-1, self.size], ref_batch_dim_idx=1) for _ in self.starts]
        made = unit(step, *before)
        after = [made] if len(before) == 1 else list(made)
        if mask is not None:
            after = [kept_where(new, old, mask) for new, old in zip(after, before, strict=True)]
        for old, new in zip(before, after, strict=True):
            rnn.update_memory(old, new)
        for new in after:
            rnn.step_output(new)
        return layers.dropout(after[0], **self.dropout) if self.dropout.get("dropout_prob") else after[0]


def _run(network: _Network, units: list[list[Any]], sequence_length: Any, batch_first: bool) -> tuple[Any, ...]:
    """The outputs and the last states of units that run forward, and perhaps backward."""
    steps = layers.transpose(network.input, [1, 0, 2]) if batch_first else network.input
    mask = None
    if sequence_length is not None:
        longest = layers.shape(steps)[0]
        mask = layers.transpose(layers.sequence_mask(sequence_length, maxlen=longest, dtype="float32"), [1, 0])
    ways = len(units)
    if network.starts[0] is not None:
        shape = [network.layers, ways, -1, network.size]
        network.starts = [layers.reshape(start, shape=shape) for start in network.starts]
    outputs, last = network.one_way(steps, units[0], mask, 0)
    if ways == 2:
        turned = layers.reverse(steps, axis=[0])
        turned_mask = None if mask is None else layers.reverse(mask, axis=[0])
        other, other_last = network.one_way(turned, units[1], turned_mask, 1)
        outputs = layers.concat([outputs, layers.reverse(other, axis=[0])], axis=2)
        shape = [network.layers * ways, -1, network.size]
        last = [
            layers.reshape(layers.concat([first, second], axis=1), shape=shape)
            for first, second in zip(last, other_last, strict=True)
        ]
    return (layers.transpose(outputs, [1, 0, 2]) if batch_first else outputs, *last)


def _units(kind: Any, name: str, layers: int, both: bool, attrs: tuple[Any, Any], *size: Any, **more: Any) -> Any:
    """The units of each layer, in a list for each direction."""
    weight, bias = attrs
    return [
        [
            kind(
                f"{name}{way}_layers_{layer}",
                *size,
                param_attr=with_name_suffix(weight, f"_{short}_w_{layer}"),
                bias_attr=with_name_suffix(bias, f"_{short}_b_{layer}"),
                **more,
            )
            for layer in range(layers)
        ]
        for way, short in (("", "fw"), ("_reverse", "bw"))[: 2 if both else 1]
    ]


def basic_gru(
    input: Any,
    init_hidden: Any,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Any = None,
    dropout_prob: float | None = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Any = None,
    activation: Any = None,
    dtype: Any = "float32",
    name: str = "basic_gru",
) -> tuple[Any, ...]:
    """Stacked layers of gated recurrent units; returns the outputs over all steps, and the last hidden state of every
    layer.
    """
    functions = {"gate_activation": gate_activation, "activation": activation, "dtype": dtype}
    attrs = param_attr, bias_attr
    units = _units(BasicGRUUnit, name, num_layers, bidirectional, attrs, hidden_size, **functions)
    network = _Network(input, [init_hidden], hidden_size, num_layers, {"dropout_prob": dropout_prob})
    return _run(network, units, sequence_length, batch_first)


def basic_lstm(
    input: Any,
    init_hidden: Any,
    init_cell: Any,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Any = None,
    dropout_prob: float | None = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Any = None,
    activation: Any = None,
    forget_bias: float = 1.0,
    dtype: Any = "float32",
    name: str = "basic_lstm",
) -> tuple[Any, ...]:
    """Stacked layers of LSTMs; returns the outputs over all steps, and the last hidden state and the last cell of every
    layer.
    """
    functions = {"gate_activation": gate_activation, "activation": activation, "dtype": dtype}
    attrs = param_attr, bias_attr
    units = _units(
        BasicLSTMUnit, name, num_layers, bidirectional, attrs, hidden_size, forget_bias=forget_bias, **functions
    )
    dropout = {"dropout_prob": dropout_prob, "dropout_implementation": "upscale_in_train"}
    network = _Network(input, [init_hidden, init_cell], hidden_size, num_layers, dropout)
    return _run(network, units, sequence_length, batch_first)


def sparse_embedding(
    input: Any,
    size: Any,
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Any = None,
    param_attr: Any = None,
    dtype: str = "float32",
    table_class: str = "CommonSparseTable",
    slot: int | None = None,
) -> Any:
    """The rows of a table with a row for every id of 64 bits, whatever the height in `size` is.

    Servers have the table, or else the process itself. A row exists once it is trained, subject to the rule of an
    `entry`: `CountFilterEntry`, `ProbabilityEntry` or `ShowClickEntry`. Raises ValueError for another one.
    """
    if not isinstance(entry, EntryAttr | None):
        kinds = "a CountFilterEntry, a ProbabilityEntry or a ShowClickEntry"
        raise ValueError(f"entry is {kinds}, not a {type(entry).__name__}")
    if slot:
        warn_unused("sparse_embedding(slot=...)", slot, "rows have no slots")
    if table_class not in ("CommonSparseTable", "MemorySparseTable"):
        warn_unused(
            "sparse_embedding(table_class=...)", table_class, "rows lie in memory, or in a folder that is named"
        )
    check_variable("sparse_embedding", "input", input, ("int64",))
    helper = LayerHelper("sparse_embedding")
    attr: Any = attr_of(param_attr)
    block = helper.main_program.global_block()
    name: Any = getattr(attr, "name", None)
    dims = block.var(name).shape if name and block.has_var(name) else size  # another lookup may have made the table
    table = helper.create_parameter(attr, list(dims), dtype)
    make_large(table, Rules() if entry is None else entry.rules)
    padding = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else size[0] + padding_idx
    made = helper.create_variable_for_type_inference(dtype)
    attrs = {"is_sparse": True, "is_distributed": False, "remote_prefetch": True, "padding_idx": padding}
    kind = "lookup_table" if input.shape[-1] == 1 else "lookup_table_v2"
    helper.append_op(kind, inputs={"Ids": input, "W": table}, outputs={"Out": made}, attrs=attrs)
    return made


multiclass_nms2 = one_op(
    "multiclass_nms2",
    "bboxes, scores, score_threshold, nms_top_k, keep_top_k, nms_threshold=0.3, normalized=True, nms_eta=1.0, "
    "background_label=0, return_index=False, name=None",
    "BBoxes=bboxes Scores=scores",
    "Out Index:int64",
    CHOICE_OF_BOXES,
    stopped="*",
    gives=with_index,
)


__getattr__ = names_of_fluid(__name__, globals())
