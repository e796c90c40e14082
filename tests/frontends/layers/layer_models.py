"""Models of layers that the other recordings don't hold; the function of the same name is in Fluid's terms."""

from __future__ import annotations

from collections.abc import Callable

from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.ir.types import DType

MODELS: dict[str, Callable[[L.Draft], None]] = {}
"""Each appends a model and its training to a draft."""


def model(made: Callable[[L.Draft], None]) -> Callable[[L.Draft], None]:
    MODELS[made.__name__] = made
    return made


def data(m: L.Draft, name: str, shape: list[int], dtype: str = "f32", lod_level: int = 0) -> L.Value:
    return L.data(m, name, shape, dtype, lod_level=lod_level)


def sgd(loss: L.Value) -> None:
    minimize(loss, SGD(0.1))


@model
def activations(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    h = L.fc(x, 6)
    made = [
        L.leaky_relu(h),
        L.leaky_relu(h, alpha=0.1),
        L.elu(h),
        L.elu(h, alpha=0.5),
        L.selu(h),
        L.selu(h, scale=1.5, alpha=2.0),
        L.relu6(h),
        L.relu6(h, threshold=3.0),
        L.brelu(h),
        L.brelu(h, t_min=1.0, t_max=4.0),
        L.soft_relu(h),
        L.soft_relu(h, threshold=3.0),
        L.thresholded_relu(h),
        L.thresholded_relu(h, threshold=0.3),
        L.swish(h),
        L.hard_swish(h),
        L.hard_swish(h, threshold=5.0, scale=4.0, offset=2.0),
        L.hard_sigmoid(h),
        L.hard_sigmoid(h, slope=0.3, offset=0.4),
        L.logsigmoid(h),
        L.softplus(h),
        L.softsign(h),
        L.softshrink(h),
        L.softshrink(h, alpha=0.2),
        L.hard_shrink(h),
        L.hard_shrink(h, threshold=0.1),
        L.tanh_shrink(h),
        L.stanh(h),
        L.stanh(h, scale_a=0.5, scale_b=2.0),
        L.atan(h),
        L.rsqrt(h),
        L.reciprocal(h),
        L.round_(h),
        L.sign(h),
        L.erf(h),
    ]
    sgd(L.mean(L.square_error_cost(L.fc(L.concat(made, axis=1), 1), y)))


@model
def powers(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    f = data(m, "f", [1])
    h = L.fc(x, 6)
    made = [L.power(h), L.power(h, 2.0), L.power(h, f), L.elementwise_pow(h, h)]
    sgd(L.mean(L.square_error_cost(L.fc(L.concat(made, axis=1), 1), y)))


@model
def prelus(m: L.Draft):
    x = data(m, "x", [-1, 3, 4, 4])
    y = data(m, "y", [-1, 1])
    h = L.conv2d(x, 5, 3)
    h = L.prelu(h, "all")
    h = L.prelu(h, "channel", param_attr=L.ParamAttr(name="slopes", initializer=L.Constant(0.1)))
    h = L.prelu(h, "element", name="each")
    sgd(L.mean(L.square_error_cost(L.fc(h, 1), y)))


@model
def norms(m: L.Draft):
    x = data(m, "x", [-1, 4, 6, 6])
    y = data(m, "y", [-1, 1])
    h = L.conv2d(x, 4, 3, padding=1)
    h = L.group_norm(h, 2)
    h = L.group_norm(h, 4, epsilon=1e-3, param_attr=True, bias_attr=True, act="relu")
    h = L.group_norm(h, 2, param_attr=L.ParamAttr(name="gs"), bias_attr="gb", name="named")
    h = L.instance_norm(h)
    h = L.instance_norm(h, epsilon=1e-4, param_attr=L.ParamAttr(name="is"), name="inst")
    h = L.lrn(h)
    h = L.lrn(h, n=3, k=2.0, alpha=1e-3, beta=0.5)
    h = L.l2_normalize(h, axis=1)
    h = L.l2_normalize(L.fc(h, 6), axis=-1, epsilon=1e-6)
    sgd(L.mean(L.square_error_cost(L.fc(h, 1), y)))


@model
def click(m: L.Draft):
    x = data(m, "x", [-1, 8])
    c = data(m, "c", [-1, 2])
    y = data(m, "y", [-1, 1])
    i = data(m, "i", [-1, 1], "i64")
    e = L.embedding(i, (30, 8), is_sparse=True)
    a = L.continuous_value_model(e, c)
    b = L.continuous_value_model(L.fc(x, 8), c, use_cvm=False)
    z = L.fc(L.concat([a, b], axis=1), 1)
    sgd(L.mean(L.teacher_student_sigmoid_loss(z, y)))


@model
def click_bounds(m: L.Draft):
    x = data(m, "x", [-1, 8])
    y = data(m, "y", [-1, 1])
    h = L.data_norm(x)
    h2 = L.data_norm(L.fc(h, 6), name="mine", epsilon=1e-3, slot_dim=2, summary_decay_rate=0.99, act="relu")
    z = L.fc(h2, 1)
    sgd(L.mean(L.teacher_student_sigmoid_loss(z, y, soft_max_up_bound=10.0, soft_max_lower_bound=-5.0)))


@model
def transposed(m: L.Draft):
    x = data(m, "x", [-1, 4, 5, 6])
    y = data(m, "y", [-1, 1])
    h = L.conv2d_transpose(x, 6, filter_size=3)
    h = L.conv2d_transpose(h, 4, output_size=[16, 18], stride=2, padding=[1, 0], act="relu")
    h = L.conv2d_transpose(
        h, 4, filter_size=[3, 2], padding="SAME", groups=2, bias_attr=False, use_cudnn=False, dilation=1
    )
    h = L.conv2d_transpose(h, 4, filter_size=2, groups=4, use_cudnn=False, padding=[1, 2, 0, 1])
    sgd(L.mean(L.square_error_cost(L.fc(h, 1), y)))


@model
def resized(m: L.Draft):
    x = data(m, "x", [-1, 3, 5, 6])
    y = data(m, "y", [-1, 1])
    o = data(m, "o", [2], "i32")
    h = L.conv2d(x, 8, 3, padding=1)
    h = L.resize_bilinear(h, [7, 9])
    h = L.resize_nearest(h, scale=2.0)
    h = L.resize_bilinear(h, scale=0.5, align_corners=False, align_mode=0)
    h = L.image_resize(h, [6, 8], resample="NEAREST", align_corners=False, name="sized")
    L.image_resize(h, o)
    h = L.pad2d(h, [1, 2, 0, 3])
    h = L.pad2d(h, [1, 1, 1, 1], mode="reflect")
    h = L.pad2d(h, [0, 1, 1, 0], mode="edge", pad_value=2.0)
    h = L.shuffle_channel(h, 2)
    h = L.maxout(h, 2)
    h = L.pixel_shuffle(h, 2)
    sgd(L.mean(L.square_error_cost(L.fc(h, 1), y)))


@model
def padded_as_told(m: L.Draft):
    x = data(m, "x", [-1, 3, 5, 6])
    margins = data(m, "margins", [4], "i32")
    sgd(L.mean(L.pad2d(L.conv2d(x, 8, 3), margins)))


@model
def depths(m: L.Draft):
    x = data(m, "x", [-1, 4, 4, 4])
    y = data(m, "y", [-1, 1])
    h = L.space_to_depth(L.conv2d(x, 4, 3, padding=1), 2)
    sgd(L.mean(L.square_error_cost(L.fc(h, 1), y)))


@model
def losses(m: L.Draft):
    x = data(m, "x", [-1, 6])
    label = data(m, "l", [-1, 1], "i64")
    t = data(m, "t", [-1, 4])
    h = L.fc(x, 4)
    s = L.softmax(h)
    made = [
        L.mean(L.bpr_loss(s, label)),
        L.kldiv_loss(L.log(s), t),
        L.mean(L.kldiv_loss(L.log(s), t, reduction="none")),
        L.mean(L.smooth_l1(h, t)),
        L.mean(L.smooth_l1(h, t, inside_weight=t, outside_weight=t, sigma=2.0)),
        L.mse_loss(h, t),
        L.mean(L.softmax_with_cross_entropy(h, L.label_smooth(L.one_hot(label, 4)), soft_label=True)),
    ]
    sgd(L.sums(made))


@model
def smoothed(m: L.Draft):
    x = data(m, "x", [-1, 6])
    label = data(m, "l", [-1], "i64")
    d = data(m, "d", [1, 4])
    h = L.fc(x, 4)
    o = L.one_hot_v2(label, 4)
    L.one_hot_v2(label, 3, allow_out_of_range=True)
    sgd(L.mean(L.cross_entropy(L.softmax(h), L.label_smooth(o, prior_dist=d, epsilon=0.2), soft_label=True)))


@model
def ranks(m: L.Draft):
    x = data(m, "x", [-1, 6])
    z = data(m, "z", [-1, 6])
    label = data(m, "l", [-1, 1])
    a = L.fc(x, 1, param_attr="w", bias_attr="b")
    b = L.fc(z, 1, param_attr="w", bias_attr="b")
    sgd(
        L.sums(
            [
                L.mean(L.rank_loss(label, a, b)),
                L.mean(L.margin_rank_loss(label, a, b)),
                L.mean(L.margin_rank_loss(label, a, b, margin=0.5)),
            ]
        )
    )


@model
def sampled(m: L.Draft):
    x = data(m, "x", [-1, 6])
    label = data(m, "l", [-1, 1], "i64")
    h = L.fc(x, 40)
    sgd(L.mean(L.sampled_softmax_with_cross_entropy(h, label, 7)))


@model
def sampled_given(m: L.Draft):
    x = data(m, "x", [-1, 6])
    label = data(m, "l", [-1, 1], "i64")
    s = data(m, "s", [-1, 8], "i64")
    p = data(m, "p", [-1, 8])
    h = L.fc(x, 40)
    sgd(
        L.mean(
            L.sampled_softmax_with_cross_entropy(
                h, label, 7, customized_samples=s, customized_probabilities=p, remove_accidental_hits=False, seed=3
            )
        )
    )


@model
def reductions(m: L.Draft):
    x = data(m, "x", [-1, 3, 4])
    y = data(m, "y", [-1, 1])
    h = L.fc(x, 4, num_flatten_dims=2)
    f = [
        L.reduce_max(h, dim=1),
        L.reduce_min(h, dim=[1]),
        L.reduce_prod(h, dim=-2),
        L.reduce_sum(h, dim=[1]),
        L.reduce_mean(h, dim=1),
    ]
    g = [
        L.reduce_max(h),
        L.reduce_min(h, dim=[0, 1, 2]),
        L.reduce_prod(h, dim=[0, 1, 2], keep_dim=True),
        L.reduce_sum(h, dim=[0, 1, 2]),
        L.reduce_mean(h, dim=[0, 1, 2]),
    ]
    c = L.less_than(x, h)
    L.reduce_all(c)
    L.reduce_any(c, dim=1, keep_dim=True)
    sgd(L.sums([L.mse_loss(L.fc(L.concat(f, axis=1), 1), y)] + [L.mean(v) for v in g]))


@model
def indexed(m: L.Draft):
    x = data(m, "x", [-1, 6])
    i = data(m, "i", [-1, 1], "i64")
    u = data(m, "u", [-1, 6])
    y = data(m, "y", [-1, 1])
    n = data(m, "n", [-1, 2], "i64")
    v = data(m, "v", [-1])
    j = data(m, "j", [-1], "i64")
    h = L.fc(x, 6)
    a = L.gather(h, i)
    b = L.gather(h, i, overwrite=False)
    c = L.scatter(h, j, L.fc(u, 6))
    d = L.scatter(h, j, u, overwrite=False)
    e = L.gather_nd(h, n)
    f = L.scatter_nd_add(h, n, v)
    sgd(L.sums([L.mse_loss(L.fc([a, b, c, d, f], 1), y), L.mean(e)]))


@model
def repeated(m: L.Draft):
    x = data(m, "x", [4, 6])
    data(m, "y", [-1, 1])
    t = data(m, "t", [2], "i32")
    z = data(m, "z", [8, 18])
    h = L.fc(x, 6)
    a = L.expand(h, [2, 3])
    b = L.expand(h, t)
    c = L.expand_as(h, z)
    sgd(L.sums([L.mean(a), L.mean(b), L.mean(c)]))


@model
def ordered(m: L.Draft):
    x = data(m, "x", [-1, 6])
    y = data(m, "y", [-1, 1])
    h = L.fc(x, 6)
    L.argsort(h)
    L.argsort(h, axis=0, descending=True)
    L.arg_min(h, axis=1)
    L.arg_min(h)
    L.where(L.less_than(x, h))
    L.shape(h)
    L.size(h)
    p = L.unstack(h, axis=1)
    q = L.unstack(L.fc(x, 3), axis=1, num=3)
    r = L.reverse(h, 1)
    r2 = L.reverse(h, [0, 1])
    c = L.cumsum(h)
    c2 = L.cumsum(h, axis=0, exclusive=True, reverse=True)
    o = L.pad(h, [0, 0, 1, 2])
    o2 = L.pad(h, [0, 0, 2, 0], pad_value=0.5)
    k = L.elementwise_mul(L.zeros_like(h), L.ones_like(h))
    L.elementwise_floordiv(L.cast(y, DType.INT64), L.cast(y, DType.INT64))
    sgd(L.sums([L.mse_loss(L.fc([r, r2, c, c2, o, o2, k], 1), y), L.mean(L.elementwise_add(p[0], q[1]))]))


@model
def images_beside(m: L.Draft):
    x = data(m, "x", [-1, 4, 6, 6])
    h = L.conv2d(x, 8, 3, padding=1)
    made = [L.maxout(h, 2), L.pixel_shuffle(h, 2), L.shuffle_channel(h, 4), L.space_to_depth(h, 2), L.lrn(h)]
    made += [L.prelu(h, "all"), L.group_norm(h, 2), L.instance_norm(h), L.batch_norm(h), L.pad2d(h, [1, 1, 1, 1])]
    made += [L.resize_bilinear(h, [4, 4]), L.resize_nearest(h, [4, 4]), L.conv2d_transpose(h, 3, filter_size=2)]
    made += [L.pool2d(h, 2), L.transpose(h, [0, 2, 3, 1]), L.l2_normalize(h, 1)]
    sgd(L.sums([L.mean(each) for each in made]))


@model
def rows_beside(m: L.Draft):
    x = data(m, "x", [-1, 6])
    label = data(m, "label", [-1, 1], "i64")
    margins = data(m, "margins", [-1, 2])
    h = L.fc(x, 6, act="relu")
    made = [L.bpr_loss(h, label), L.kldiv_loss(h, h, reduction="none"), L.smooth_l1(h, h), L.cos_sim(h, h)]
    made += [L.stack([h, h], axis=1), L.transpose(h, [1, 0]), L.continuous_value_model(h, margins), L.data_norm(h)]
    made += [L.expand(h, [1, 2]), L.pad(h, [0, 0, 1, 1]), L.reverse(h, 1), L.cumsum(h), L.softmax(L.log(h))]
    made += [L.softmax(L.square(h)), L.softmax(L.swish(h)), L.softmax(L.power(h, 2.0)), L.softmax(L.selu(h))]
    made += [L.bilinear_tensor_product(h, h, 5, act="tanh"), L.bilinear_tensor_product(h, h, 2, bias_attr=False)]
    made += [L.sigmoid_cross_entropy_with_logits(h, L.sigmoid(h)), L.add_position_encoding(h, 1.0, 2.0)]
    sgd(L.sums([L.mean(each) for each in made]))


@model
def tagged(m: L.Draft):
    tags = data(m, "tags", [-1, 1], "i64", 1)
    wanted = data(m, "wanted", [2], "i64")
    x = data(m, "x", [-1, 6])
    kept = L.filter_by_instag(L.fc(x, 6), tags, wanted, False)
    sgd(L.mean(kept.instances))


@model
def noisy(m: L.Draft):
    x = data(m, "x", [4, 6])
    h = L.fc(x, 6)
    noise = L.elementwise_add(L.uniform_random(m, [4, 6], low=0.0, seed=3), L.gaussian_random(m, [4, 6], std=0.5))
    a = x < h
    b = L.logical_or(a, L.logical_xor(a, L.logical_not(a)))
    sgd(L.mean(L.elementwise_mul(L.elementwise_mul(h, noise), L.cast(b, DType.FP32))))
