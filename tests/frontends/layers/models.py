"""The models of the recorded training programs, written with layers; each takes a draft and gives its loss."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pstranspile.frontends import layers as L
from pstranspile.ir.types import DType


def regression(prediction: L.Value, y: L.Value) -> L.Value:
    return L.mean(L.square_error_cost(prediction, y))


def classification(probabilities: L.Value, label: L.Value, *, acc: bool = False) -> L.Value:
    loss = L.mean(L.cross_entropy(probabilities, label))
    if acc:
        L.accuracy(probabilities, label)
    return loss


def fit_a_line(m: L.Draft) -> L.Value:
    x, y = L.data(m, "x", [-1, 13]), L.data(m, "y", [-1, 1])
    return regression(L.fc(x, 1), y)


def mlp(
    m: L.Draft,
    sizes: Sequence[int],
    act: str = "tanh",
    classify: bool = True,
    acc: bool = True,
    lr_attr: dict[str, float] | None = None,
) -> L.Value:
    x = L.data(m, "img" if classify else "x", [-1, sizes[0]])
    y = L.data(m, "label" if classify else "y", [-1, 1], "i64" if classify else "f32")
    for at, size in enumerate(sizes[1:]):
        last = at == len(sizes) - 2
        attr = L.ParamAttr(learning_rate=(lr_attr or {}).get(str(at), 1.0))
        x = L.fc(x, size, act=("softmax" if classify else None) if last else act, param_attr=attr)
    return classification(x, y, acc=acc) if classify else regression(x, y)


def deep_mlp(m: L.Draft, n: int, width: int) -> L.Value:
    x, y = L.data(m, "x", [-1, width]), L.data(m, "y", [-1, 1])
    for _ in range(n - 1):
        x = L.fc(x, width, act="relu")
    return regression(L.fc(x, 1), y)


def basic_fc(m: L.Draft, din: int = 1000, dout: int = 1000, bias: bool = True) -> L.Value:
    x, y = L.data(m, "x", [-1, din]), L.data(m, "y", [-1, 1])
    return regression(L.fc(x, dout, param_attr="fc_w", bias_attr="fc_b" if bias else False), y)


def mnist_conv(m: L.Draft, img: int = 28, nf: Sequence[int] = (20, 50), fs: int = 5) -> L.Value:
    x, label = L.data(m, "img", [-1, 1, img, img]), L.data(m, "label", [-1, 1], "i64")
    for filters in nf:
        x = L.simple_img_conv_pool(x, filters, fs, 2, 2, act="relu")
    return classification(L.fc(x, 10, act="softmax"), label, acc=True)


def word2vec(m: L.Draft, dict_size: int, emb: int, hid: int, sparse: bool = False) -> L.Value:
    words = [L.data(m, name, [-1, 1], "i64") for name in ("firstw", "secondw", "thirdw", "forthw")]
    following = L.data(m, "nextw", [-1, 1], "i64")
    rows = [L.embedding(word, (dict_size, emb), is_sparse=sparse, param_attr="shared_w") for word in words]
    hidden = L.fc(L.concat(rows, axis=1), hid, act="sigmoid")
    return classification(L.fc(hidden, dict_size, act="softmax"), following)


def ctr_dnn(m: L.Draft, dnn_dim: int = 1000, lr_dim: int = 800, auc: bool = True, const: bool = True) -> L.Value:
    start = L.Constant(0.01) if const else None
    dnn, lr = (L.data(m, name, [-1, 1], "i64", lod_level=1) for name in ("dnn_data", "lr_data"))
    click = L.data(m, "click", [-1, 1], "i64")

    def table(ids: L.Value, rows: int, width: int, name: str) -> L.Value:
        found = L.embedding(ids, (rows, width), is_sparse=True, param_attr=L.ParamAttr(name, start))
        return L.sequence_pool(found, "sum")

    deep = table(dnn, dnn_dim, 16, "deep_embedding")
    for at, size in enumerate((64, 32)):
        deep = L.fc(deep, size, act="relu", param_attr=L.ParamAttr(initializer=start), name=f"dnn-fc-{at}")
    wide = table(lr, lr_dim, 1, "wide_embedding")
    predict = L.fc(L.concat([deep, wide], axis=1), 2, act="softmax")
    if auc:
        L.accuracy(predict, click)
        L.auc(predict, click, num_thresholds=255)
    return classification(predict, click)


def ctr_slots(m: L.Draft, slots: int, vocab: int, emb: int, padding_idx: int | None = None) -> L.Value:
    dense = L.data(m, "dense_input", [-1, 5])
    ids = [L.data(m, f"C{at + 1}", [-1, 1], "i64", lod_level=1) for at in range(slots)]
    label = L.data(m, "label", [-1, 1], "i64")
    pooled: list[L.Value] = []
    for at, held in enumerate(ids):
        attr = L.ParamAttr(f"emb_slot{at}", L.Uniform())
        rows = L.embedding(held, (vocab, emb), is_sparse=True, padding_idx=padding_idx, param_attr=attr)
        pooled.append(L.sequence_pool(rows, "sum"))
    hidden = L.concat([*pooled, dense], axis=1)
    for _ in range(2):
        start = L.Normal(0.0, 1 / hidden.shape[1] ** 0.5)
        hidden = L.fc(hidden, 40, act="relu", param_attr=L.ParamAttr(initializer=start))
    return classification(L.fc(hidden, 2, act="softmax"), label)


def dist_table(m: L.Draft, lookups: int = 2, distributed: bool = True, v2: bool = False) -> L.Value:
    names = (*("title_ids", "brand_ids", "tag_ids")[:lookups], "profile_ids")
    ids = [L.data(m, name, [-1, 1], "i64", lod_level=1) for name in names]
    label = L.data(m, "label", [-1, 1], "i64")
    look = L.embedding_v2 if v2 else L.embedding
    pooled: list[L.Value] = []
    for held in ids:
        own = held.name == "profile_ids"
        rows = look(
            held,
            (1000, 64),
            is_sparse=True,
            is_distributed=distributed and not own,
            param_attr="profile_emb" if own else "shared_w",
        )
        pooled.append(L.sequence_pool(L.reshape(rows, [-1, 64]) if v2 else rows, "average"))
    probabilities = L.fc(L.concat(pooled, axis=1), 2, act="softmax", param_attr="fc_w", bias_attr="fc_b")
    return classification(probabilities, label)


def frozen_mlp(m: L.Draft) -> L.Value:
    x, y = L.data(m, "x", [-1, 64]), L.data(m, "y", [-1, 1])
    for at in range(2):
        attr = L.ParamAttr(f"w{at}", trainable=at > 0)
        x = L.fc(x, 150, act="tanh", param_attr=attr, bias_attr=f"b{at}")
    return regression(L.fc(x, 1, param_attr="w2", bias_attr="b2"), y)


def hsigmoid_net(m: L.Draft, classes: int, dim: int, vocab: int, sparse: bool) -> L.Value:
    ids, label = L.data(m, "ids", [-1, 1], "i64"), L.data(m, "label", [-1, 1], "i64")
    table, code = L.data(m, "path_table", [-1, 3], "i64"), L.data(m, "path_code", [-1, 3], "i64")
    attr = L.ParamAttr("hs_emb", L.Normal(0.0, 0.3))
    rows = L.embedding(ids, (vocab, dim), is_sparse=sparse, param_attr=attr)
    return L.mean(L.hsigmoid(rows, label, classes, path_table=table, path_code=code, is_sparse=sparse))


def ids3d(m: L.Draft) -> L.Value:
    ids, y = L.data(m, "ids", [-1, 4, 1], "i64"), L.data(m, "y", [-1, 1])
    rows = L.embedding(ids, (300, 32), is_sparse=True, param_attr="emb3")
    return regression(L.fc(L.reduce_mean(rows, 1), 1), y)


def lookup_chain(m: L.Draft, sparse: bool = True) -> L.Value:
    ids, y = L.data(m, "ids", [-1, 1], "i64"), L.data(m, "y", [-1, 1])
    first = L.embedding(ids, (300, 32), is_sparse=sparse, param_attr="chain_emb")
    following = L.reshape(L.arg_max(L.fc(first, 20), axis=-1), [-1, 1])
    second = L.embedding(following, (300, 32), is_sparse=sparse, param_attr="chain_emb")
    return regression(L.fc(L.concat([first, second], axis=1), 1), y)


def nce_net(m: L.Draft, sparse: bool = False) -> L.Value:
    label, x = L.data(m, "label", [-1, 1], "i64"), L.data(m, "input", [-1, 10])
    weight, bias = L.ParamAttr("nce_w", L.Constant(0.1)), L.ParamAttr("nce_b")
    cost = L.nce(x, label, 20, num_neg_samples=5, param_attr=weight, bias_attr=bias, seed=1, is_sparse=sparse)
    return L.mean(cost)


def simnet_bow(m: L.Draft, dict_dim: int = 600, emb: int = 32, const: bool = True, lr_attr: float = 1.0) -> L.Value:
    start = L.Constant(0.01) if const else None
    query, positive, negative = (
        L.data(m, name, [-1, 1], "i64", lod_level=1) for name in ("query_ids", "pos_title_ids", "neg_title_ids")
    )

    def bag(ids: L.Value, weight: str, bias: str | None) -> L.Value:
        attr = L.ParamAttr("__emb__", start, learning_rate=lr_attr)
        pooled = L.sequence_pool(L.embedding(ids, (dict_dim, emb), is_sparse=True, param_attr=attr), "sum")
        return L.fc(L.unary("softsign", pooled), 16, param_attr=L.ParamAttr(weight, start), bias_attr=bias)

    asked = bag(query, "__q_fc__", None)
    right, wrong = bag(positive, "__fc__", "__fc_b__"), bag(negative, "__fc__", "__fc_b__")
    good, bad = L.cos_sim(asked, right), L.cos_sim(asked, wrong)
    margin = L.fill_constant_batch_size_like(good, [-1, 1], "f32", 0.1)
    excess = L.elementwise_add(L.elementwise_sub(margin, good), bad)
    zero = L.fill_constant_batch_size_like(excess, [-1, 1], "f32", 0.0)
    return L.mean(L.elementwise_max(zero, excess))


def text_conv(m: L.Draft) -> L.Value:
    words, label = L.data(m, "words", [-1, 1], "i64", lod_level=1), L.data(m, "label", [-1, 1], "i64")
    rows = L.embedding(words, (500, 32))
    pooled = L.sequence_conv_pool(rows, 32, 3, act="tanh")
    return classification(L.fc(L.fc(pooled, 24), 2, act="softmax"), label, acc=True)


def tied_softmax(m: L.Draft, sparse: bool) -> L.Value:
    ids, label = L.data(m, "ids", [-1, 1], "i64"), L.data(m, "label", [-1, 1], "i64")
    attr = L.ParamAttr("tied_emb", L.Normal(0.0, 0.1))
    hidden = L.fc(L.embedding(ids, (400, 30), is_sparse=sparse, param_attr=attr), 30, act="tanh")
    logits = L.matmul(hidden, L.Value(m, "tied_emb"), transpose_y=True)
    return L.mean(L.softmax_with_cross_entropy(logits, label))


def tied_mlp(m: L.Draft, dim: int) -> L.Value:
    x, y = L.data(m, "x", [-1, dim]), L.data(m, "y", [-1, 1])
    for bias in ("tied_b0", "tied_b1", "tied_b0"):
        x = L.fc(x, dim, act="tanh", param_attr="tied_w", bias_attr=bias)
    return regression(L.fc(x, 1), y)


def attention(x: L.Value, heads: int, drop: float, *, bias: bool) -> L.Value:
    width = x.shape[2]
    size = width // heads
    query, key, value = (L.fc(x, width, num_flatten_dims=2, bias_attr=False) for _ in range(3))

    def by_head(held: L.Value) -> L.Value:
        return L.transpose(L.reshape(held, [0, 0, heads, size]), [0, 2, 1, 3])

    weights = L.softmax(L.matmul(by_head(query), by_head(key), transpose_y=True, alpha=size**-0.5))
    if drop:
        weights = L.dropout(weights, drop, implementation="upscale_in_train")
    mixed = L.transpose(L.matmul(weights, by_head(value)), [0, 2, 1, 3])
    return L.fc(L.reshape(mixed, [0, 0, width]), width, num_flatten_dims=2, bias_attr=None if bias else False)


def encoder(x: L.Value, heads: int, ffn: int, drop: float, late: float, *, bias: bool) -> L.Value:
    def dropped(held: L.Value) -> L.Value:
        return L.dropout(held, late, implementation="upscale_in_train") if late else held

    attended = dropped(attention(x, heads, drop, bias=bias))
    x = L.layer_norm(L.elementwise_add(x, attended), begin_norm_axis=2)
    hidden = dropped(L.fc(x, ffn, num_flatten_dims=2, act="relu"))
    out = dropped(L.fc(hidden, x.shape[2], num_flatten_dims=2))
    return L.layer_norm(L.elementwise_add(x, out), begin_norm_axis=2)


def transformer_block(
    m: L.Draft, seq: int = 8, d: int = 32, heads: int = 4, ffn: int = 64, drop: float = 0.1
) -> L.Value:
    x, y = L.data(m, "x", [-1, seq, d]), L.data(m, "y", [-1, 1])
    return regression(L.fc(L.reduce_mean(encoder(x, heads, ffn, drop, drop, bias=False), 1), 1), y)


def transformer_v2(m: L.Draft) -> L.Value:
    ids, y = L.data(m, "src", [-1, 6], "i64"), L.data(m, "y", [-1, 1])
    x = L.embedding_v2(ids, (400, 24), is_sparse=True, param_attr="word_emb")
    return regression(L.fc(L.reduce_mean(encoder(x, 2, 48, 0.1, 0.0, bias=True), 1), 1), y)


def tricky_names(m: L.Draft, names: Sequence[str]) -> L.Value:
    x, y = L.data(m, "x", [-1, 100]), L.data(m, "y", [-1, 1])
    hidden = L.fc(x, 170, act="relu", param_attr=names[0], bias_attr=names[1])
    return regression(L.fc(hidden, 1, param_attr=names[2], bias_attr=names[3]), y)


def two_losses(m: L.Draft) -> L.Value:
    x, y = L.data(m, "x", [-1, 70]), L.data(m, "y", [-1, 1])
    label = L.data(m, "label", [-1, 1], "i64")
    hidden = L.fc(x, 130, act="relu")
    first = regression(L.fc(hidden, 1), y)
    second = classification(L.fc(hidden, 4, act="softmax"), label)
    return L.elementwise_add(L.scale(first, 0.3), second)


def se_resnext_small(m: L.Draft) -> L.Value:
    x, label = L.data(m, "image", [-1, 3, 16, 16]), L.data(m, "label", [-1, 1], "i64")

    def conv_bn(x: L.Value, filters: int, size: int, stride: int = 1, groups: int = 1, act: str | None = None):
        out = L.conv2d(x, filters, size, stride=stride, padding=(size - 1) // 2, groups=groups, bias_attr=False)
        return L.batch_norm(out, act=act)

    def block(x: L.Value, filters: int, stride: int) -> L.Value:
        hidden = conv_bn(x, filters, 1, act="relu")
        hidden = conv_bn(hidden, filters, 3, stride, groups=4, act="relu")
        wide = conv_bn(hidden, filters * 2, 1)
        pooled = L.pool2d(wide, pool_type="avg", global_pooling=True)
        squeezed = L.fc(pooled, filters * 2 // 4, act="relu")
        excited = L.fc(squeezed, filters * 2, act="sigmoid")
        scaled = L.elementwise_mul(wide, excited, axis=0)
        return L.relu(L.elementwise_add(conv_bn(x, filters * 2, 1, stride), scaled))

    x = L.pool2d(conv_bn(x, 8, 3, act="relu"), 2, pool_stride=2)
    x = block(block(x, 8, 1), 16, 2)
    dropped = L.dropout(L.pool2d(x, pool_type="avg", global_pooling=True), 0.2)
    return classification(L.fc(dropped, 10, act="softmax"), label, acc=True)


def numpy_init_mlp(m: L.Draft, values: NDArray[np.float32]) -> L.Value:
    x, y = L.data(m, "x", [-1, 64]), L.data(m, "y", [-1, 1])
    hidden = L.fc(
        x,
        260,
        act="relu",
        param_attr=L.ParamAttr("np_w0", L.Array(values)),
        bias_attr=L.ParamAttr("np_b0", L.Constant(0.1)),
    )
    weight = L.ParamAttr("np_w1", L.MSRA(uniform=False))
    out = L.fc(hidden, 1, param_attr=weight, bias_attr=L.ParamAttr("np_b1", L.TruncatedNormal(0.0, 0.1)))
    return regression(out, y)


def while_net(m: L.Draft) -> L.Value:
    x, y = L.data(m, "x", [-1, 12]), L.data(m, "y", [-1, 1])
    step = L.fill_constant(m, [1], DType.INT64, 0)
    steps = L.fill_constant(m, [1], DType.INT64, 4)
    array = L.array_write(x, step)
    going_on = L.less_than(step, steps)
    with L.while_(going_on):
        hidden = L.fc(L.array_read(array, step), 12, act="tanh", param_attr="loop_w", bias_attr="loop_b")
        L.increment(step)
        L.array_write(hidden, step, array)
        L.less_than(step, steps, out=going_on)
    return regression(L.fc(L.array_read(array, step), 1), y)


def static_rnn(m: L.Draft) -> L.Value:
    x, y = L.data(m, "x", [-1, 6, 16]), L.data(m, "y", [-1, 1])
    steps = L.transpose(x, [1, 0, 2])
    start = L.fill_constant_batch_size_like(x, [-1, 24], "f32", 0.0)
    rnn = L.StaticRNN(m)
    with rnn.step():
        word = rnn.step_input(steps)
        before = rnn.memory(start)
        hidden = L.fc([word, before], 24, act="tanh")
        rnn.update_memory(before, hidden)
        rnn.step_output(hidden)
    last = L.slice_(rnn(), [0], [5], [6])
    return regression(L.fc(L.reshape(last, [-1, 24]), 1), y)


MODELS: dict[str, Callable[..., L.Value]] = {
    made.__name__: made
    for made in (
        fit_a_line,
        mlp,
        deep_mlp,
        basic_fc,
        mnist_conv,
        word2vec,
        ctr_dnn,
        ctr_slots,
        dist_table,
        frozen_mlp,
        hsigmoid_net,
        ids3d,
        lookup_chain,
        nce_net,
        simnet_bow,
        text_conv,
        tied_softmax,
        tied_mlp,
        transformer_block,
        transformer_v2,
        tricky_names,
        two_losses,
        se_resnext_small,
        numpy_init_mlp,
        while_net,
        static_rnn,
    )
}
