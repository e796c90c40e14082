"""Models that Fluid built once more, for what the other recordings don't hold; the file of the same name is Fluid's."""

from __future__ import annotations

from collections.abc import Callable

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import (
    L1,
    L2,
    SGD,
    Adagrad,
    Adam,
    Adamax,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    Cosine,
    DecayedAdagrad,
    Dpsgd,
    ExponentialMovingAverage,
    Ftrl,
    Lamb,
    LarsMomentum,
    LinearWarmup,
    ModelAverage,
    Momentum,
    Polynomial,
    RMSProp,
    minimize,
    set_gradient_clip,
)
from pstranspile.ir.types import DType

MODELS: dict[str, Callable[[L.Draft], dict[str, ps.Program] | None]] = {}
"""Each appends a model and its training to a draft, and gives further programs by name."""


def model(made: Callable[[L.Draft], dict[str, ps.Program] | None]) -> Callable[[L.Draft], dict[str, ps.Program] | None]:
    MODELS[made.__name__] = made
    return made


def data(m: L.Draft, name: str, shape: list[int], dtype: str = "f32", lod_level: int = 0) -> L.Value:
    return L.data(m, name, shape, dtype, lod_level=lod_level)


def sec(prediction: L.Value, y: L.Value) -> L.Value:
    return L.mean(L.square_error_cost(prediction, y))


@model
def clip_sparse_global(m: L.Draft):
    ids = data(m, "ids", [-1, 1], "i64")
    y = data(m, "y", [-1, 1])
    e = L.embedding(ids, (30, 8), is_sparse=True)
    minimize(sec(L.fc(e, 1), y), Adam(0.01, clip=ClipByGlobalNorm(1.0), regularizer=L2(0.1)))


@model
def clip_sparse_value(m: L.Draft):
    ids = data(m, "ids", [-1, 1], "i64")
    y = data(m, "y", [-1, 1])
    e = L.embedding(ids, (30, 8), is_sparse=True)
    minimize(sec(L.fc(e, 1), y), SGD(0.01, clip=ClipByValue(1.0)))


@model
def setclip_sparse_global(m: L.Draft):
    ids = data(m, "ids", [-1, 1], "i64")
    y = data(m, "y", [-1, 1])
    e = L.embedding(ids, (30, 8), is_sparse=True)
    loss = sec(L.fc(e, 1), y)
    set_gradient_clip(m, ClipByGlobalNorm(1.0))
    minimize(loss, SGD(0.01, regularizer=L1(0.1)))


@model
def need_clip(m: L.Draft):
    x = data(m, "x", [-1, 4])
    y = data(m, "y", [-1, 1])
    minimize(sec(L.fc(L.fc(x, 5), 1), y), SGD(0.01, clip=ClipByNorm(1.0, need_clip=lambda n: n.endswith("w_0"))))


@model
def split_unused(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    a, _, c = L.split(L.fc(x, 6, act="relu"), 3, dim=1)
    minimize(sec(L.fc(a * c, 1), y), SGD(0.01))


@model
def square_by_mul(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    h = L.fc(x, 6)
    s = L.elementwise_mul(h, h)
    t = L.elementwise_add(s, h)
    minimize(sec(L.fc(L.concat([t, h, h], axis=1), 1), y), Momentum(0.01, 0.9, use_nesterov=True))


@model
def param_regularizers(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    h = L.fc(
        x, 6, param_attr=L.ParamAttr(regularizer=L1(0.5), learning_rate=3.0), bias_attr=L.ParamAttr(trainable=False)
    )
    minimize(sec(L.fc(h, 1), y), Adagrad(0.01, regularizer=L2(0.25), initial_accumulator_value=0.3))


@model
def two_separate_losses(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    h = L.fc(x, 6, act="tanh")
    a = sec(L.fc(h, 1), y)
    b = L.mean(L.square(h))
    minimize(a, SGD(0.01))
    minimize(b, Adam(0.02))


@model
def lamb_named(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    minimize(sec(L.fc(L.fc(x, 6, act="gelu"), 1), y), Lamb(0.01, exclude=lambda n: n.endswith("b_0"), name="mine"))


@model
def cast_and_stop(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    n = data(m, "n", [-1, 1], "i64")
    h = L.fc(x, 6, act="tanh")
    k = L.cast(n, DType.FP32)
    g = L.fc(h, 6).stopped()
    s = L.sums([h, g, L.scale(h, 2.0)])
    minimize(L.reduce_mean(L.square_error_cost(L.dropout(L.fc([s, k], 1), 0.3), y)), RMSProp(0.01, momentum=0.1))


@model
def warm_poly(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    minimize(sec(L.fc(x, 1), y), Adamax(LinearWarmup(Polynomial(0.1, 10, 0.01, 2.0, True), 5, 0.0, 0.1)))


@model
def shapes(m: L.Draft):
    x = data(m, "x", [-1, 3, 4])
    y = data(m, "y", [-1, 1])
    h = L.fc(x, 8, num_flatten_dims=2)
    t = L.transpose(L.reshape(h, [0, 3, 2, 4]), [0, 2, 1, 3])
    u = L.squeeze(L.slice_(t, [1], [0], [1]), [1])
    v = L.unsqueeze(L.reduce_sum(u, 1), [1])
    mm = L.matmul(u, v, transpose_y=True)
    f = L.flatten(L.stack([mm, mm], axis=1))
    p = L.fc(f, 5)
    minimize(L.mean(L.softmax_with_cross_entropy(p, L.cast(y, DType.INT64))), DecayedAdagrad(0.1))


@model
def unused_op_after(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    h = L.fc(x, 6, act="tanh")
    z = L.fc(h, 3)
    loss = sec(L.fc(h, 1), y)
    s = L.softmax(z)
    L.accuracy(s, L.cast(y, DType.INT64))
    minimize(loss, Dpsgd(0.1, clip_norm=2.0, batch_size=4.0, sigma=0.1))


@model
def loss_is_sum(m: L.Draft):
    x = data(m, "x", [-1, 6])
    a = L.mean(L.fc(x, 1))
    b = L.mean(L.fc(x, 2))
    minimize(L.sums([a, b]), SGD(0.1))


@model
def loss_is_scale(m: L.Draft):
    x = data(m, "x", [-1, 6])
    minimize(L.scale(L.mean(L.fc(x, 1)), 2.0), SGD(0.1))


@model
def nograd_branch(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    h = L.fc(x, 6, act="tanh")
    g = L.fc(h, 4)
    minimize(sec(L.fc(g, 1), y), SGD(0.1), no_grad=[g.name])


@model
def depthwise(m: L.Draft):
    x = data(m, "x", [-1, 4, 8, 8])
    label = data(m, "l", [-1, 1], "i64")
    c = L.conv2d(x, 8, 3, groups=4, padding="SAME", use_cudnn=False, act="leaky_relu")
    b = L.batch_norm(c, use_global_stats=True)
    p = L.pool2d(b, 3, pool_type="avg", pool_stride=2, pool_padding=1, ceil_mode=True)
    minimize(L.mean(L.cross_entropy(L.fc(p, 3, act="softmax"), label)), LarsMomentum(0.1, 0.9))


@model
def arith(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 6])
    h = L.fc(x, 6)
    a = 2.0 / (h * h + 1.5)
    b = 1.0 - a
    c = b / 3.0 - h
    d = c**2.0
    e = 3.0**d
    f = -e + y * h
    minimize(L.reduce_mean(f / 2 + 1), SGD(0.1))


@model
def losses(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    label = data(m, "l", [-1, 1], "i64")
    h = L.fc(x, 1)
    s = L.fc(x, 1, act="sigmoid")
    a = L.mean(L.sigmoid_cross_entropy_with_logits(h, y))
    b = L.mean(L.log_loss(s, y))
    c = L.mean(L.huber_loss(h, y, 0.5))
    p = L.softmax(L.fc(x, 4))
    q = L.softmax(L.fc(x, 4))
    d = L.mean(L.cross_entropy(p, q, soft_label=True))
    e = L.mean(L.softmax_with_cross_entropy(L.fc(x, 3), label))
    f = L.mean(L.cos_sim(L.fc(x, 3), L.fc(x, 3)))
    minimize(L.sums([a, b, c, d, e, f]), Adam(0.1))


@model
def nce_log(m: L.Draft):
    x = data(m, "x", [-1, 6])
    label = data(m, "l", [-1, 1], "i64")
    minimize(
        L.mean(L.nce(x, label, 50, num_neg_samples=7, sampler="log_uniform", is_sparse=True, bias_attr=False)),
        Adagrad(0.1),
    )


@model
def hs_default(m: L.Draft):
    x = data(m, "x", [-1, 6])
    label = data(m, "l", [-1, 1], "i64")
    minimize(L.mean(L.hsigmoid(L.fc(x, 8), label, 12)), Ftrl(0.1))


@model
def ln_variants(m: L.Draft):
    x = data(m, "x", [-1, 3, 4])
    a = L.layer_norm(x, scale=False)
    b = L.layer_norm(a, shift=False, begin_norm_axis=2, act="tanh")
    minimize(L.mean(L.fc(b, 2, num_flatten_dims=-1)), SGD(0.1))


@model
def seqs(m: L.Draft):
    w = data(m, "w", [-1, 1], "i64", 1)
    y = data(m, "y", [-1, 1])
    e = L.embedding(w, (20, 4), padding_idx=-1)
    s = L.sequence_softmax(L.fc(e, 1))
    o = L.sequence_pool(L.elementwise_mul(e, s, axis=0), "sqrt")
    q = L.sequence_expand(o, w)
    c = L.sequence_concat([e, q])
    cv = L.sequence_conv(c, 6, 4, act="relu", bias_attr=False)
    mm = L.sequence_pool(cv, "max")
    f = L.sequence_pool(cv, "first")
    minimize(sec(L.fc([mm, f], 1), y), Adam(0.1, lazy_mode=True))


@model
def rnn2(m: L.Draft):
    x = data(m, "x", [5, 8, 3])
    z = data(m, "z", [8, 4])
    s0 = L.fc(z, 4)
    s1 = L.fc(z, 4)
    x = L.scale(x, 2.0)
    rnn = L.StaticRNN(m)
    with rnn.step():
        w = rnn.step_input(x)
        p = rnn.memory(s0)
        c = rnn.memory(s1)
        h = L.fc([w, p], 4, act="tanh")
        c2 = L.elementwise_add(h, c)
        rnn.update_memory(p, h)
        rnn.update_memory(c, c2)
        rnn.step_output(h)
        rnn.step_output(c2)
    a, b = rnn.outputs()
    minimize(L.mean(L.elementwise_add(a, b)), SGD(0.1))


@model
def lods(m: L.Draft):
    w = data(m, "w", [-1, 1], "i64", 1)
    label = data(m, "l", [-1, 1], "i64", 1)
    e = L.embedding(w, (20, 4))
    U = L.unary
    hs = [
        L.relu(e),
        L.softmax(e),
        L.dropout(e, 0.2),
        L.scale(e, 2.0),
        L.layer_norm(e),
        L.square(e),
        L.elementwise_mul(e, e),
    ]
    f = L.fc(e, 4)
    hs += [
        L.elementwise_add(e, f),
        L.tanh(e),
        U("leaky_relu", e, alpha=0.1),
        U("pow", e, factor=2.0),
        L.clip(e, -1.0, 1.0),
        L.exp(e),
        L.sigmoid(e),
        L.gelu(e),
    ]
    s = L.sums(hs)
    c = L.concat([s, e], axis=1)
    r = L.reduce_sum(c, 1, keep_dim=True)
    k = L.cast(L.cast(r, DType.FP64), DType.FP32)
    sl = L.slice_(c, [1], [0], [4])
    a, b = L.split(c, 2, dim=1)
    rs = L.reshape(c, [-1, 8])
    t = L.concat([k, sl, a, b, rs], axis=1)
    p = L.fc(t, 5, act="softmax")
    one = L.mean(L.cross_entropy(p, label))
    two = L.mean(L.softmax_with_cross_entropy(L.fc(t, 5), label))
    u = one + two
    loss = u + L.mean(L.matmul(t, t, transpose_y=True))
    minimize(loss, SGD(0.1))


@model
def inits(m: L.Draft):
    x = data(m, "x", [-1, 6])
    A = L.ParamAttr
    h = L.fc(
        x, 4, param_attr=A(initializer=L.Xavier(uniform=False)), bias_attr=A(initializer=L.Uniform(-0.1, 0.1, seed=3))
    )
    h = L.fc(h, 4, param_attr=A(initializer=L.MSRA()), bias_attr=A(initializer=L.Normal(0.0, 2.0, 7)))
    h = L.fc(h, 4, param_attr=A(initializer=L.MSRA(fan_in=9)), bias_attr=A(initializer=L.TruncatedNormal(1.0, 0.5)))
    h = L.fc(h, 4, param_attr=A(name="shared", initializer=L.Xavier(fan_in=3, fan_out=5)))
    h = L.fc(h, 4, param_attr="shared", name="named")
    minimize(L.mean(h), SGD(0.1))


@model
def convs(m: L.Draft):
    x = data(m, "x", [-1, 3, 9, 9])
    label = data(m, "l", [-1, 1], "i64")
    c = L.conv2d(x, 4, [3, 2], stride=[2, 1], padding=[1, 0], dilation=2, groups=1, act="sigmoid")
    b = L.batch_norm(c, act="relu", momentum=0.8, epsilon=1e-4, moving_mean_name="mm", moving_variance_name="mv")
    p = L.pool2d(b, [2, 2], pool_type="avg", pool_stride=[2, 2], exclusive=False)
    f = L.fc(p, 3)
    loss = L.mean(L.softmax_with_cross_entropy(f, label))
    L.accuracy(L.softmax(f), label, k=2)
    minimize(loss, Momentum(0.1, 0.9, regularizer=L2(1e-3)))


@model
def aucs(m: L.Draft):
    x = data(m, "x", [-1, 6])
    label = data(m, "l", [-1, 1], "i64")
    p = L.fc(x, 2, act="softmax")
    L.auc(p, label)
    L.auc(p, label, num_thresholds=100, slide_steps=3)
    loss = L.mean(L.cross_entropy(p, label))
    minimize(loss, SGD(Cosine(0.1, 10, 3)))


@model
def ema_named(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    minimize(sec(L.fc(x, 1), y), SGD(0.1))
    e = ExponentialMovingAverage(m, 0.9, name="my")
    e.update()
    return {"apply": e.apply_program}


@model
def model_avg(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    minimize(sec(L.fc(x, 1), y), SGD(0.1))
    e = ModelAverage(m, 0.2, name="my")
    return {"apply": e.apply_program}
