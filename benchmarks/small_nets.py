"""Recurrent and sequence nets whose steps take a millisecond or two: writes their programs, as `real.py` reads them.

    PYTHON benchmarks/small_nets.py FOLDER [--rows 4 16 64] [--widths 32] [--only NAME]
    python benchmarks/real.py FOLDER --fluid PYTHON

PYTHON has Fluid 1.8. Each net is written once for every number of sequences in a batch and every width: its programs,
its variables after start-up, and the feeds of six steps with sequences of 2 to 14 rows each.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os

import numpy as np
import paddle.fluid as fluid

L = fluid.layers
WORDS, LABELS, STEPS = 1000, 7, 6


def words(name="words", level=1):
    return L.data(name, [1], dtype="int64", lod_level=level)


def embedded(ids, width, **options):
    return L.embedding(ids, [WORDS, width], **options)


def classified(x, label=None, labels=2):
    label = L.data("label", [1], dtype="int64") if label is None else label
    return L.mean(L.cross_entropy(L.fc(x, labels, act="softmax"), label))


def gru_text(width):
    """Whether a sentence is good, by the last state of a gated recurrent unit."""
    x = L.fc(embedded(words(), width), 3 * width)
    return classified(L.sequence_last_step(L.dynamic_gru(x, width))), fluid.optimizer.SGD(0.01)


def gru_both_ways(width):
    """Units in either direction, and the largest of their states."""
    x = embedded(words(), width)
    ways = [L.dynamic_gru(L.fc(x, 3 * width), width, is_reverse=reverse) for reverse in (False, True)]
    pooled = [L.sequence_pool(L.tanh(way), "max") for way in ways]
    return classified(L.fc(L.concat(pooled, 1), width, act="tanh")), fluid.optimizer.Adagrad(0.01)


def lstm_text(width):
    """A long short-term memory without peepholes, and the average of its states."""
    hidden, _ = L.dynamic_lstm(L.fc(embedded(words(), width), 4 * width), 4 * width, use_peepholes=False)
    return classified(L.sequence_pool(hidden, "average")), fluid.optimizer.Adam(0.001)


def lstm_stacked(width):
    """Three long short-term memories with peepholes, every other one in reverse."""
    x = L.fc(embedded(words(), width), 4 * width)
    inputs = [x, L.dynamic_lstm(x, 4 * width)[0]]
    for number in range(2):
        x = L.fc(inputs, 4 * width)
        inputs = [x, L.dynamic_lstm(x, 4 * width, is_reverse=number % 2 == 0)[0]]
    pooled = [L.sequence_pool(each, "max") for each in inputs]
    return classified(L.concat(pooled, 1)), fluid.optimizer.Adagrad(0.002)


def lstm_projected(width):
    """A memory with a projection."""
    hidden, _ = L.dynamic_lstmp(L.fc(embedded(words(), width), 4 * width), 4 * width, width // 2)
    return classified(L.sequence_pool(hidden, "max")), fluid.optimizer.SGD(0.01)


def conv_text(width):
    """Convolutions over words, of two lengths."""
    x = embedded(words(), width)
    pooled = [
        fluid.nets.sequence_conv_pool(x, width, length, act="tanh", pool_type=pool)
        for length, pool in ((3, "max"), (4, "sqrt"))
    ]
    return classified(L.concat(pooled, 1)), fluid.optimizer.Adagrad(0.01)


def bag_of_words(width):
    """The sum of the words, and two layers."""
    x = L.tanh(L.sequence_pool(embedded(words(), width), "sum"))
    return classified(L.fc(L.fc(x, width, act="tanh"), width, act="tanh")), fluid.optimizer.Adagrad(0.01)


def pools(width):
    """Every way to pool."""
    x = embedded(words(), width)
    ways = ("sum", "average", "sqrt", "max", "last", "first")
    return classified(L.fc(L.concat([L.sequence_pool(x, way) for way in ways], 1), width)), fluid.optimizer.SGD(0.01)


def sessions(width):
    """The next item at each place of a session, among all items."""
    label = words("label")
    x = L.fc(embedded(words(), width), 3 * width)
    scores = L.fc(L.dynamic_gru(x, width), WORDS, act="softmax")
    return L.mean(L.cross_entropy(scores, label)), fluid.optimizer.Adagrad(0.01)


def ranked_sessions(width):
    """A session against an item that was bought and one that was not, by the cosine."""
    table = fluid.ParamAttr(name="items")
    user, good, bad = (
        embedded(words(name), width, param_attr=table, is_sparse=True) for name in ("user", "good", "bad")
    )
    user = L.sequence_pool(L.dynamic_gru(L.fc(user, 3 * width), width), "max")
    good, bad = (L.sequence_pool(each, "sum") for each in (good, bad))
    user, good, bad = (
        L.fc(each, width, param_attr=f"{name}.w") for each, name in ((user, "u"), (good, "i"), (bad, "i"))
    )
    near, far = L.cos_sim(user, good), L.cos_sim(user, bad)
    zeros = L.fill_constant_batch_size_like(near, [-1, 1], "float32", 0.0)
    loss = L.elementwise_max(zeros, L.elementwise_add(L.elementwise_sub(far, near), zeros + 0.8))
    return L.mean(loss), fluid.optimizer.Adagrad(0.01)


def attention(width):
    """Attention over the words of a sentence, from a query."""
    x = L.fc(embedded(words(), width), width, act="tanh")
    query = L.fc(embedded(L.data("query", [1], dtype="int64"), width), width)
    both = L.tanh(x + L.sequence_expand_as(query, x))
    weights = L.sequence_softmax(L.fc(both, 1, bias_attr=False))
    context = L.sequence_pool(L.elementwise_mul(x, weights, axis=0), "sum")
    return classified(context), fluid.optimizer.Adam(0.001)


def expanded(width):
    """A sentence's last word beside each of its words, with other offsets in between."""
    ids = words()
    x = embedded(ids, width)
    last = L.fc(L.sequence_last_step(x), width)
    beside = L.concat([x, L.sequence_expand(last, x)], 1)
    flat = L.lod_reset(L.fc(beside, width, act="relu"), ids)
    return classified(L.sequence_pool(flat, "sum")), fluid.optimizer.SGD(0.01)


def tags(width):
    """A label for each word: a random field over a recurrent unit, and the best path."""
    label = words("label")
    x = L.dynamic_gru(L.fc(embedded(words(), width), 3 * width), width)
    scores = L.fc(x, LABELS)
    loss = L.linear_chain_crf(scores, label, param_attr=fluid.ParamAttr(name="chain"))
    L.crf_decoding(scores, param_attr=fluid.ParamAttr(name="chain"))
    return L.mean(loss), fluid.optimizer.SGD(0.01)


def dynamic_rnn(width):
    """A gated recurrent unit, step by step."""
    x = L.fc(embedded(words(), width), 3 * width)
    rnn = L.DynamicRNN()
    with rnn.block():
        now, before = rnn.step_input(x), rnn.memory(shape=[width], value=0.0)
        state, _, _ = L.gru_unit(now, before, 3 * width)
        rnn.update_memory(before, state)
        rnn.output(state)
    return classified(L.sequence_last_step(rnn())), fluid.optimizer.SGD(0.01)


def static_rnn(width):
    """A long short-term memory over eight steps of a padded batch."""
    x = L.transpose(embedded(L.data("words", [8, 1], dtype="int64"), width), [1, 0, 2])
    first = L.fill_constant_batch_size_like(x, [-1, width], "float32", 0.0, input_dim_idx=1)
    rnn = L.StaticRNN()
    with rnn.step():
        now = rnn.step_input(x)
        state, cell = rnn.memory(init=first), rnn.memory(init=first)
        new, new_cell = L.lstm_unit(now, state, cell)
        rnn.update_memory(state, new)
        rnn.update_memory(cell, new_cell)
        rnn.step_output(new)
    return classified(L.reduce_max(rnn(), 0)), fluid.optimizer.SGD(0.01)


def loop(width):
    """A state over eight steps of a loop."""
    x = L.transpose(embedded(L.data("words", [8, 1], dtype="int64"), width), [1, 0, 2])
    parts = L.split(x, 8, dim=0)
    zero = L.fill_constant([1], "int64", 0)
    zero.stop_gradient = True
    inputs = L.array_write(parts[0], zero)
    count = zero
    for part in parts[1:]:
        count = L.increment(count, in_place=False)
        count.stop_gradient = True
        L.array_write(part, count, array=inputs)
    at, end = L.fill_constant([1], "int64", 0), L.fill_constant([1], "int64", 8)
    at.stop_gradient = True
    states = L.array_write(L.fill_constant_batch_size_like(parts[0], [1, -1, width], "float32", 0.0, 1, 1), at)
    more = L.less_than(at, end)
    with L.While(more).block():
        now, state = L.array_read(inputs, at), L.array_read(states, at)
        new = L.fc([now, state], width, num_flatten_dims=2, act="tanh")
        at = L.increment(at, in_place=True)
        L.array_write(new, at, array=states)
        L.less_than(at, end, cond=more)
    last = L.reshape(L.array_read(states, end), [-1, width])
    return classified(last), fluid.optimizer.SGD(0.01)


def sampled(width):
    """The word between four others, by noise-contrastive estimation."""
    x = L.concat([embedded(L.data(f"w{at}", [1], dtype="int64"), width, param_attr="table") for at in range(4)], 1)
    loss = L.nce(L.fc(x, width, act="tanh"), L.data("label", [1], dtype="int64"), WORDS, num_neg_samples=10)
    return L.mean(loss), fluid.optimizer.SGD(0.01)


def hierarchical(width):
    """The word between four others, by a tree of words."""
    x = L.concat([embedded(L.data(f"w{at}", [1], dtype="int64"), width, param_attr="table") for at in range(4)], 1)
    loss = L.hsigmoid(L.fc(x, width, act="tanh"), L.data("label", [1], dtype="int64"), WORDS)
    return L.mean(loss), fluid.optimizer.SGD(0.01)


def padded(width):
    """Sentences turned, padded, multiplied with each other, and cut again."""
    x = embedded(words(), width)
    both = L.fc(L.concat([x, L.sequence_reverse(x)], 1), width)
    rows, lengths = L.sequence_pad(both, L.assign(np.zeros(1, "float32")))
    alike = L.softmax(L.matmul(rows, rows, transpose_y=True))
    back = L.sequence_unpad(L.matmul(alike, rows), lengths)
    return classified(L.sequence_pool(back, "max")), fluid.optimizer.SGD(0.01)


NETS = (
    *(gru_text, gru_both_ways, lstm_text, lstm_stacked, lstm_projected, conv_text, bag_of_words, pools, sessions),
    *(ranked_sessions, attention, expanded, tags, dynamic_rnn, static_rnn, loop, sampled, hierarchical, padded),
)


def feeds_of(program, rows, of_words, rng):
    """The feeds of a step: ids of words, and labels, which are classes or words as well."""
    lengths = rng.randint(2, 15, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    found = {}
    for name in sorted(program.global_block().vars):
        var = program.global_block().vars[name]
        if var.is_data:
            inner = [abs(size) for size in var.shape[1:]]
            count = offsets[-1] if var.lod_level else rows
            found[name] = rng.randint(0, of_words if name == "label" else WORDS, [count, *inner]).astype("int64")
            if var.lod_level:
                found[f"{name}|0"] = np.array(offsets)
    return found


def write(net, rows, width, folder):
    """Writes a net's folder."""
    main, startup, scope, kind = fluid.Program(), fluid.Program(), fluid.Scope(), fluid.core.VarDesc.VarType
    startup.random_seed = main.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(scope):
        loss, optimizer = net(width)
        optimizer.minimize(loss)
        fluid.Executor(fluid.CPUPlace()).run(startup)
        # not what an op of this program makes, such as a table's rows, but what it starts with
        names = [var.name for var in main.list_vars() if var.persistable and var.type == kind.LOD_TENSOR]
        init = {name: np.array(scope.find_var(name).get_tensor()) for name in names if scope.find_var(name)}
    os.makedirs(folder, exist_ok=True)
    for name, program in (("main", main), ("startup", startup)):
        with open(f"{folder}/{name}.pb", "wb") as file:
            file.write(program.desc.serialize_to_string())
    data = [var for var in main.global_block().vars.values() if var.is_data]
    types = {kind.INT64: "INT64", kind.FP32: "FP32"}
    feeds = [
        {"name": var.name, "shape": list(var.shape), "dtype": types[var.dtype], "lod_level": var.lod_level}
        for var in data
    ]
    about = {"name": os.path.basename(folder), "loss": loss.name, "feeds": feeds, "fetches": [loss.name]}
    about["params"] = [
        {"name": param.name, "shape": list(param.shape), "dtype": "FP32", "trainable": True, "lod_level": 0}
        for param in main.all_parameters()
    ]
    with open(f"{folder}/case.json", "w") as file:
        json.dump(about, file)
    rng, of_words = (
        np.random.RandomState(rows),
        {"sessions": WORDS, "sampled": WORDS, "hierarchical": WORDS, "tags": LABELS},
    )
    steps = {}
    for step in range(STEPS):
        made = feeds_of(main, rows, of_words.get(net.__name__, 2), rng)
        steps.update({f"{step}|{name}": value for name, value in made.items()})
    np.savez(f"{folder}/init.npz", **init)
    np.savez(f"{folder}/feeds_steps.npz", **steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rows", nargs="+", type=int, default=[4, 16, 64])
    parser.add_argument("--widths", nargs="+", type=int, default=[32])
    parser.add_argument("--only", default="*")
    args = parser.parse_args()
    for net in NETS:
        for rows in args.rows if fnmatch.fnmatch(net.__name__, args.only) else ():
            for width in args.widths:
                write(net, rows, width, f"{args.folder}/{net.__name__}-{rows}-{width}")


if __name__ == "__main__":
    main()
