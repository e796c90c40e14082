"""Models of recurrent layers and of ragged sequences that the other recordings don't hold."""

from __future__ import annotations

from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adam, minimize
from pstranspile.ir.types import DType
from tests.frontends.layers.layer_models import data, model, sgd


def seq_to_loss(x: L.Value, y: L.Value) -> None:
    sgd(L.mean(L.square_error_cost(L.fc(L.sequence_pool(x, "last"), 1), y)))


@model
def lstm(m: L.Draft):
    x = data(m, "x", [-1, 6], "f32", 1)
    y = data(m, "y", [-1, 1])
    p = L.fc(x, 16)
    h, c = L.dynamic_lstm(p, 16)
    h2, _c2 = L.dynamic_lstm(
        L.fc([h, c], 16),
        16,
        use_peepholes=False,
        is_reverse=True,
        gate_activation="tanh",
        cell_activation="relu",
        candidate_activation="sigmoid",
        name="second",
        param_attr="lw",
        bias_attr=L.ParamAttr(name="lb", learning_rate=2.0),
    )
    seq_to_loss(h2, y)


@model
def lstm_starts(m: L.Draft):
    x = data(m, "x", [-1, 16], "f32", 1)
    y = data(m, "y", [-1, 1])
    h0 = data(m, "h0", [-1, 4])
    c0 = data(m, "c0", [-1, 4])
    _h, c = L.dynamic_lstm(x, 16, h_0=h0, c_0=c0)
    seq_to_loss(c, y)


@model
def lstmp(m: L.Draft):
    x = data(m, "x", [-1, 6], "f32", 1)
    y = data(m, "y", [-1, 1])
    p, _c = L.dynamic_lstmp(L.fc(x, 16), 16, 3)
    p, _c = L.dynamic_lstmp(
        L.fc(p, 16), 16, 5, use_peepholes=False, proj_activation="relu", cell_clip=2.0, proj_clip=1.5, is_reverse=True
    )
    seq_to_loss(p, y)


@model
def gru(m: L.Draft):
    x = data(m, "x", [-1, 6], "f32", 1)
    y = data(m, "y", [-1, 1])
    h0 = data(m, "h0", [-1, 4])
    a = L.dynamic_gru(L.fc(x, 12), 4, h_0=h0)
    b = L.dynamic_gru(
        L.fc(a, 9, bias_attr=False),
        3,
        is_reverse=True,
        gate_activation="relu",
        candidate_activation="sigmoid",
        origin_mode=True,
        param_attr="gw",
    )
    minimize(L.mean(L.square_error_cost(L.fc(L.sequence_last_step(b), 1), y)), Adam(0.1))


@model
def units(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    h = data(m, "h", [-1, 4])
    c = data(m, "c", [-1, 4])
    s, _r, _g = L.gru_unit(L.fc(x, 12), L.fc(h, 4), 12)
    s2, _r2, _g2 = L.gru_unit(L.fc(s, 12), s, 12, bias_attr=False, origin_mode=True)
    a, b = L.lstm_unit(x, s2, L.fc(c, 4), forget_bias=1.0)
    a2, b2 = L.lstm_unit(a, a, b, param_attr="uw", bias_attr=False)
    sgd(L.mean(L.square_error_cost(L.fc([a2, b2], 1), y)))


@model
def crf(m: L.Draft):
    x = data(m, "x", [-1, 6], "f32", 1)
    label = data(m, "l", [-1, 1], "i64", 1)
    e = L.fc(x, 5)
    cost = L.linear_chain_crf(e, label, param_attr=L.ParamAttr(name="crfw", learning_rate=0.5))
    sgd(L.mean(cost))
    L.crf_decoding(e, param_attr=L.ParamAttr(name="crfw"))
    L.crf_decoding(e, param_attr=L.ParamAttr(name="crfw"), label=label)


@model
def crf_padded(m: L.Draft):
    x = data(m, "x", [-1, 7, 6])
    label = data(m, "l", [-1, 7], "i64")
    n = data(m, "n", [-1, 1], "i64")
    e = L.fc(x, 5, num_flatten_dims=2)
    cost = L.linear_chain_crf(e, label, length=n)
    sgd(L.mean(cost))
    L.crf_decoding(e, param_attr=L.ParamAttr(name="linear_chain_crf_0.w_0"), length=n)


@model
def ctc(m: L.Draft):
    x = data(m, "x", [-1, 6], "f32", 1)
    label = data(m, "l", [-1, 1], "i32", 1)
    g = data(m, "g", [-1, 1], "i64", 1)
    e = L.fc(x, 5)
    cost = L.warpctc(e, label, blank=4, norm_by_times=True)
    sgd(L.mean(cost))
    L.edit_distance(g, g, ignored_tokens=[0, 2])
    L.edit_distance(g, g, normalized=False)


@model
def steps(m: L.Draft):
    x = data(m, "x", [-1, 6], "f32", 1)
    y = data(m, "y", [-1, 1])
    h = L.fc(x, 6)
    a = L.sequence_first_step(h)
    b = L.sequence_last_step(L.sequence_reverse(h))
    sgd(L.mean(L.square_error_cost(L.fc([a, b], 1), y)))


@model
def padded(m: L.Draft):
    x = data(m, "x", [-1, 6], "f32", 1)
    y = data(m, "y", [-1, 1])
    h = L.fc(x, 6)
    v = L.fill_constant(m, [1], DType.FP32, 0.0)
    p, n = L.sequence_pad(h, v)
    _p2, _n2 = L.sequence_pad(h, v, maxlen=12)
    u = L.sequence_unpad(p, n)
    seq_to_loss(u, y)


@model
def relaid(m: L.Draft):
    x = data(m, "x", [-1, 6], "f32", 1)
    data(m, "y", [-1, 1])
    z = data(m, "z", [-1, 6])
    o = data(m, "o", [-1, 1], "i64")
    n = data(m, "n", [-1, 1], "i64")
    h = L.fc(x, 6)
    r = L.sequence_reshape(h, 3)
    e = L.sequence_expand_as(L.fc(z, 6), x)
    s = L.sequence_slice(L.elementwise_add(h, e), o, n)
    sgd(L.sums([L.mean(r), L.mean(s)]))


@model
def enumerated(m: L.Draft):
    i = data(m, "i", [-1, 1], "i64", 1)
    n = data(m, "n", [-1], "i64")
    y = data(m, "y", [-1, 1])
    m = data(m, "m", [1], "i32")
    L.sequence_enumerate(i, 3, pad_value=9)
    L.sequence_mask(n)
    L.sequence_mask(n, maxlen=7, dtype="f32")
    L.sequence_mask(n, maxlen=m, dtype="i32")
    e = L.embedding(i, (20, 6), is_sparse=True)
    seq_to_loss(L.row_conv(e, 2, act="tanh"), y)


@model
def relodded(m: L.Draft):
    x = data(m, "x", [-1, 6], "f32", 1)
    y = data(m, "y", [-1, 1])
    z = data(m, "z", [-1, 1], "f32", 1)
    h = L.fc(x, 6)
    a = L.lod_reset(h, y=z)
    b = L.lod_reset(h, target_lod=[0, 2, 5])
    L.sequence_pool(b, "sum")
    seq_to_loss(a, y)


@model
def scattered(m: L.Draft):
    x = data(m, "x", [-1, 6])
    i = data(m, "i", [-1, 1], "i64", 1)
    u = data(m, "u", [-1, 1], "f32", 1)
    y = data(m, "y", [-1, 1])
    sgd(L.mean(L.square_error_cost(L.fc(L.sequence_scatter(L.fc(x, 6), i, L.fc(u, 1)), 1), y)))
