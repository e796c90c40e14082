"""`paddle.nn.functional`: activations, layers without parameters of their own, and losses.

The order is: convolutions, pools, norms and resizing of sequences, images and volumes; losses; everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pstranspile.fluid import layers, nets, unique_name
from pstranspile.fluid.graph.values import several
from pstranspile.fluid.graph.variable import last_op
from pstranspile.fluid.layers.adapt import bound, signature_of, to_core, wrap
from pstranspile.fluid.missing import unsupported_error
from pstranspile.fluid.paddle.later import from_tables, later
from pstranspile.fluid.paddle.tensor import norm
from pstranspile.frontends.layers.basic import layer_outputs
from pstranspile.frontends.layers.conv import each_dim, paddings_of

_CHANNELS_FIRST = {1: "NCL", 2: "NCHW", 3: "NCDHW"}


def _op(op_type: str, inputs: dict[str, Any], outputs: str, attrs: dict[str, Any], name: Any = None) -> list[Any]:
    """The outputs of an op, which have the element type of its first input."""
    given = {slot: to_core(value) for slot, value in inputs.items() if value is not None}
    kind: Any = next(iter(given.values())).dtype
    slots: dict[str, Any] = dict.fromkeys(outputs.split(), kind)
    return wrap(layer_outputs(op_type, given, slots, attrs, name=name))


def _wide(value: Any, before: Any) -> Any:
    """A setting for one dim as a setting for two dims, with `before` for the first."""
    if isinstance(value, str) or value is None:
        return value
    listed = [value] if isinstance(value, int) else list(value)
    return [*([before] * len(listed)), *listed]


def _is_channels_last(data_format: str) -> bool:
    return data_format.endswith("C")


def _add_bias(result: Any, bias: Any, data_format: str) -> Any:
    return result if bias is None else L.elementwise_add(result, bias, axis=-1 if _is_channels_last(data_format) else 1)


def _sequences(function: Callable[[Any], Any], x: Any, data_format: str) -> Any:
    """The result for sequences of a function of images, to which they are passed as images of height 1."""
    axis = 1 if _is_channels_last(data_format) else 2
    return L.squeeze(function(L.unsqueeze(x, [axis])), [axis])


def convolution(rank: int, x: Any, weight: Any, bias: Any, settings: tuple[Any, ...], data_format: str) -> Any:
    """x convolved with filters; `settings` are stride, padding, dilation and groups."""
    stride, padding, dilation, groups = settings
    if rank == 1:
        wide = _wide(stride, 1), _wide(padding, 0), _wide(dilation, 1), groups
        image, filters = ("NHWC" if _is_channels_last(data_format) else "NCHW"), L.unsqueeze(weight, [2])
        return _sequences(lambda held: convolution(2, held, filters, bias, wide, image), x, data_format)
    paddings, algorithm = paddings_of(padding, data_format)
    attrs = {
        "strides": each_dim(stride, rank),
        "paddings": paddings,
        "dilations": each_dim(dilation, rank),
        "groups": groups,
        "use_cudnn": True,
        "padding_algorithm": algorithm,
        "data_format": data_format,
    }
    return _add_bias(_op(f"conv{rank}d", {"Input": x, "Filter": weight}, "Output", attrs)[0], bias, data_format)


def transposed_convolution(
    rank: int, x: Any, weight: Any, bias: Any, settings: tuple[Any, ...], output_size: Any, data_format: str
) -> Any:
    """The transposed convolution of x; `settings` are stride, padding, output padding, dilation and groups."""
    stride, padding, more, dilation, groups = settings
    if rank == 1:
        wide = _wide(stride, 1), _wide(padding, 0), _wide(more, 0), _wide(dilation, 1), groups
        image, filters = ("NHWC" if _is_channels_last(data_format) else "NCHW"), L.unsqueeze(weight, [2])
        sizes = _wide(output_size, 1)
        return _sequences(
            lambda held: transposed_convolution(2, held, filters, bias, wide, sizes, image), x, data_format
        )
    paddings, algorithm = paddings_of(padding, data_format)
    strides, dilations = each_dim(stride, rank), each_dim(dilation, rank)
    sizes = [] if output_size is None else each_dim(output_size, rank)
    if any(added := each_dim(more, rank)):
        images = x.shape[1:-1] if _is_channels_last(data_format) else x.shape[2:]
        if min(images) < 0 or len(paddings) != rank:
            raise unsupported_error("output_padding for images of open size", "give output_size")
        axes = zip(images, strides, paddings, dilations, weight.shape[2:], added, strict=True)
        sizes = [(size - 1) * step - 2 * p + apart * (k - 1) + 1 + a for size, step, p, apart, k, a in axes]
    attrs = {
        "output_size": sizes,
        "strides": strides,
        "paddings": paddings,
        "padding_algorithm": algorithm,
        "dilations": dilations,
        "groups": groups,
        "use_cudnn": True,
        "data_format": "NHWC" if _is_channels_last(data_format) else "NCHW",
    }
    made = _op(f"conv{rank}d_transpose", {"Input": x, "Filter": weight}, "Output", attrs)[0]
    return _add_bias(made, bias, data_format)


def pool_windows(
    rank: int,
    kind: str,
    x: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    exclusive: bool = True,
    data_format: str | None = None,
    refuse: Any = None,
) -> Any:
    """The maxima (`max`) or the means (`avg`) of windows. Raises NotHere if `refuse` is set."""
    if refuse:
        raise unsupported_error(f"{kind}_pool{rank}d(return_mask or divisor_override)", "leave it out")
    stride, data_format = stride or kernel_size, data_format or _CHANNELS_FIRST[rank]
    if rank == 1:
        settings = _wide(kernel_size, 1), _wide(stride, 1), _wide(padding, 0), ceil_mode, exclusive
        image = "NHWC" if _is_channels_last(data_format) else "NCHW"
        return _sequences(lambda held: pool_windows(2, kind, held, *settings, image), x, data_format)
    pool = L.pool2d if rank == 2 else L.pool3d
    return pool(
        x, kernel_size, kind, stride, padding, ceil_mode=ceil_mode, exclusive=exclusive, data_format=data_format
    )


def adaptive(rank: int, kind: str, x: Any, output_size: Any, data_format: str | None = None, mask: bool = False) -> Any:
    """The maxima or the means of windows, whose number in each dim is `output_size`."""
    if data_format not in (None, _CHANNELS_FIRST[rank]):
        raise unsupported_error(f"adaptive_{kind}_pool{rank}d(data_format={data_format!r})", "put channels first")
    if rank == 1:
        return _sequences(lambda held: adaptive(2, kind, held, _wide(output_size, 1)), x, "NCL")
    sizes: list[Any] = [output_size] * rank if isinstance(output_size, int) else list(output_size)
    sizes = [x.shape[2 + dim] if size in (None, -1) else size for dim, size in enumerate(sizes)]
    return (L.adaptive_pool2d if rank == 2 else L.adaptive_pool3d)(x, sizes, kind, mask)


def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    training: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    data_format: str = "NCHW",
    use_global_stats: bool | None = None,
    name: Any = None,
) -> Any:
    """Each channel normalised to mean 0 and variance 1, then scaled and shifted.

    In training, the mean and the variance are those of the batch, and the running ones are updated; otherwise they are
    the running ones. `use_global_stats` overrides this choice.
    """
    held = {"X": x, "Mean": running_mean, "Variance": running_var, "Scale": weight, "Bias": bias}
    given = {slot: to_core(value) for slot, value in held.items()}
    kept = not training if use_global_stats is None else use_global_stats
    attrs = {"momentum": momentum, "epsilon": epsilon, "is_test": not training, "use_global_stats": kept}
    attrs |= {"data_layout": "NHWC" if _is_channels_last(data_format) and len(data_format) > 2 else "NCHW"}
    attrs |= {"trainable_statistics": use_global_stats is False}
    outputs = {"Y": given["X"].dtype, "MeanOut": given["Mean"], "VarianceOut": given["Variance"]}
    outputs |= dict.fromkeys(("SavedMean", "SavedVariance"), given["Mean"].dtype)
    return wrap(layer_outputs("batch_norm", given, outputs, attrs, name=name))[0]


def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, epsilon: float = 1e-05, name: Any = None
) -> Any:
    """Each sample normalised to mean 0 and variance 1 over its last dims, then scaled and shifted."""
    dims = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
    attrs = {"epsilon": epsilon, "begin_norm_axis": len(x.shape) - dims}
    return _op("layer_norm", {"X": x, "Scale": weight, "Bias": bias}, "Y Mean Variance", attrs)[0]


def group_norm(
    x: Any,
    num_groups: int,
    epsilon: float = 1e-05,
    weight: Any = None,
    bias: Any = None,
    data_format: str = "NCHW",
    name: Any = None,
) -> Any:
    """Each group of channels of a sample normalised to mean 0 and variance 1, then scaled and shifted."""
    attrs = {"epsilon": epsilon, "groups": num_groups, "data_layout": data_format}
    return _op("group_norm", {"X": x, "Scale": weight, "Bias": bias}, "Y Mean Variance", attrs, name)[0]


def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.9,
    eps: float = 1e-05,
    data_format: str = "NCHW",
    name: Any = None,
) -> Any:
    """Each channel of a sample normalised to mean 0 and variance 1, then scaled by `weight` and shifted by `bias` if
    given.
    """
    if len(x.shape) == 3:
        return _sequences(lambda held: instance_norm(held, None, None, weight, bias, eps=eps), x, "NCL")
    held = [
        L.fill_constant([x.shape[1]], x.dtype, value) if given is None else given
        for given, value in ((weight, 1.0), (bias, 0.0))
    ]
    inputs = {"X": x, "Scale": held[0], "Bias": held[1]}
    return _op("instance_norm", inputs, "Y SavedMean SavedVariance", {"epsilon": eps})[0]


def local_response_norm(
    x: Any,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    data_format: str = "NCHW",
    name: Any = None,
) -> Any:
    """Elements divided by a power of the mean of squares over `size` neighbouring channels."""
    if len(x.shape) != 4:
        raise unsupported_error(f"local_response_norm of {len(x.shape)} dims", "it takes images")
    return L.lrn(x, size, k, alpha / size, beta, data_format=data_format)


def pad(
    x: Any, pad: Any, mode: str = "constant", value: float = 0.0, data_format: str = "NCHW", name: Any = None
) -> Any:
    """x padded along its last dims: two numbers for the last dim, then two for the one before it, and so on.

    Two numbers for each of all dims are in the order of the dims.
    """
    sides = [pad] * (2 * (len(x.shape) - 2)) if isinstance(pad, int) else [int(side) for side in pad]
    if len(sides) == 2 * len(x.shape):
        if mode != "constant":
            raise unsupported_error(f"pad of all dims with {mode}", "it pads with a constant")
        return L.pad(x, sides, float(value))
    pairs = [sides[at : at + 2] for at in range(0, len(sides), 2)][::-1]
    if mode != "constant":
        if len(x.shape) != 4 or mode == "circular":
            raise unsupported_error(
                f"pad of {len(x.shape)} dims with {mode}", "it pads images with constant, reflect, replicate"
            )
        kind = {"reflect": "reflect", "replicate": "edge"}[mode]
        return L.pad2d(x, [side for pair in pairs for side in pair], kind, data_format=data_format)
    outer = [[0, 0], *pairs, [0, 0]] if _is_channels_last(data_format) else [[0, 0], [0, 0], *pairs]
    return L.pad(x, [side for pair in outer for side in pair], float(value))


def interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    align_mode: int = 0,
    data_format: str = "NCHW",
    name: Any = None,
) -> Any:
    """Images resized to a given size, or by a factor."""
    kind = {"nearest": "NEAREST", "bilinear": "BILINEAR", "trilinear": "TRILINEAR"}.get(mode)
    factors: set[Any] = {*scale_factor} if several(scale_factor) else {scale_factor}
    factor = next(iter(factors))
    if kind is None or len(factors) > 1:
        raise unsupported_error(
            f"interpolate(mode={mode!r}, scale_factor={scale_factor!r})", "it takes one factor; no cubes"
        )
    corners = align_corners if mode != "nearest" else False
    made = L.image_resize(
        x, size, factor, resample=kind, align_corners=corners, align_mode=align_mode, data_format=data_format
    )
    if size is None:
        last_op(made)._set_attr("by_scale", True)
    return made


def reduce_loss(loss: Any, reduction: str) -> Any:
    """The mean or the sum of a loss, or the loss itself (`none`). Raises ValueError for another `reduction`."""
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is mean, sum or none, not {reduction!r}")
    return L.mean(loss) if reduction == "mean" else L.reduce_sum(loss)


def mse_loss(input: Any, label: Any, reduction: str = "mean", name: Any = None) -> Any:
    """The squared difference, reduced to its mean by default."""
    return reduce_loss(L.square_error_cost(input, label), reduction)


def l1_loss(input: Any, label: Any, reduction: str = "mean", name: Any = None) -> Any:
    """The absolute difference, reduced to its mean by default."""
    return reduce_loss(L.abs(L.elementwise_sub(input, label)), reduction)


def _mean_of_counted(loss: Any, label: Any, shares: Any, ignore_index: int) -> Any:
    """The mean of losses over the labels that are not ignored, weighted by `shares` if given."""
    if ignore_index != -100:
        counted = L.cast(L.not_equal(label, L.fill_constant([1], label.dtype, ignore_index)), loss.dtype)
        shares = counted if shares is None else L.elementwise_mul(shares, counted)
    return L.mean(loss) if shares is None else L.elementwise_div(L.reduce_sum(loss), L.reduce_sum(shares))


def _shares(weight: Any, label: Any, ignore_index: int) -> Any:
    """The weight of each label's class; for ignored labels, that of class 0."""
    if ignore_index != -100:
        kept = L.cast(L.not_equal(label, L.fill_constant([1], label.dtype, ignore_index)), label.dtype)
        label = L.elementwise_mul(label, kept)
    return L.gather_nd(weight, L.unsqueeze(label, [len(label.shape)]))


def cross_entropy(
    input: Any,
    label: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    soft_label: bool = False,
    axis: int = -1,
    use_softmax: bool = True,
    name: Any = None,
) -> Any:
    """The cross entropy of logits, whose softmax it takes, or of probabilities without `use_softmax`.

    `weight` has a factor for each class's losses. The mean is taken over the labels that are not ignored. Raises
    ValueError for a `weight` with soft labels.
    """
    if soft_label and weight is not None:
        raise ValueError("cross_entropy weighs labels that are numbers of classes: leave out weight or soft_label")
    if not soft_label and len(label.shape) < len(input.shape):
        label = L.unsqueeze(label, [axis])
    if use_softmax:
        loss = L.softmax_with_cross_entropy(input, label, soft_label, ignore_index, axis=axis)
    else:
        loss = L.cross_entropy(input, label, soft_label, ignore_index)
    shares = None
    if weight is not None:
        shares = _shares(weight, label, ignore_index)
        loss = L.elementwise_mul(loss, shares)
    if reduction == "mean" and not soft_label:
        return _mean_of_counted(loss, label, shares, ignore_index)
    return reduce_loss(loss, reduction)


def nll_loss(
    input: Any, label: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", name: Any = None
) -> Any:
    """The negative logarithm of each label's probability, from log probabilities; `weight` has a factor
    for each class.
    """
    axes = [0, *range(2, len(input.shape)), 1]
    rows = input if len(input.shape) == 2 else L.transpose(input, axes)
    classes = input.shape[1]
    label = L.unsqueeze(label, [len(label.shape)])
    kept = L.not_equal(label, L.fill_constant([1], label.dtype, ignore_index))
    counted = L.elementwise_mul(label, L.cast(kept, label.dtype))
    one_hot = L.one_hot(L.reshape(counted, [-1, 1]), classes)
    picked = L.reduce_sum(L.elementwise_mul(L.reshape(rows, [-1, classes]), one_hot), dim=1)
    loss = L.elementwise_mul(L.scale(picked, -1.0), L.reshape(L.cast(kept, input.dtype), [-1]))
    shares = None
    if weight is not None:
        shares = L.reshape(_shares(weight, counted, -100), [-1])
        loss = L.elementwise_mul(loss, shares)
    if reduction == "mean":
        return _mean_of_counted(loss, L.reshape(label, [-1]), shares, ignore_index)
    if reduction == "none" and len(input.shape) > 2:
        loss = L.reshape(loss, [input.shape[0], *input.shape[2:]])
    return reduce_loss(loss, reduction)


def margin_ranking_loss(
    input: Any, other: Any, label: Any, margin: float = 0.0, reduction: str = "mean", name: Any = None
) -> Any:
    """The amount by which `input` is on the wrong side of `other`, plus a margin; the label is 1 if `input` should be
    larger, else -1.
    """
    ordered = L.elementwise_mul(L.elementwise_sub(other, input), label)
    return reduce_loss(L.relu(L.scale(ordered, 1.0, margin)), reduction)


def ctc_loss(
    log_probs: Any,
    labels: Any,
    input_lengths: Any,
    label_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    norm_by_times: bool = False,
) -> Any:
    """The CTC loss of sequences [steps, samples, classes] with unaligned labels; the mean first divides by the labels'
    lengths.
    """
    loss = L.squeeze(L.warpctc(log_probs, labels, blank, norm_by_times, input_lengths, label_lengths), [-1])
    if reduction == "mean":
        return L.mean(L.elementwise_div(loss, L.cast(label_lengths, loss.dtype)))
    return reduce_loss(loss, reduction)


def sigmoid_focal_loss(
    logit: Any,
    label: Any,
    normalizer: Any = None,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "sum",
    name: Any = None,
) -> Any:
    """The focal loss of logits and labels, which are 0 or 1: a cross entropy in which well classified samples have less
    weight.
    """
    entropy, shares = L.sigmoid_cross_entropy_with_logits(logit, label), L.sigmoid(logit)
    alike = L.elementwise_add(
        L.elementwise_mul(shares, label), L.elementwise_mul(L.scale(shares, -1.0, 1.0), L.scale(label, -1.0, 1.0))
    )
    chosen = L.scale(label, 2 * alpha - 1, 1 - alpha)
    loss = L.elementwise_mul(L.elementwise_mul(chosen, entropy), L.pow(L.scale(alike, -1.0, 1.0), gamma))
    return reduce_loss(loss if normalizer is None else L.elementwise_div(loss, normalizer), reduction)


def binary_cross_entropy(input: Any, label: Any, weight: Any = None, reduction: str = "mean", name: Any = None) -> Any:
    """The cross entropy of probabilities and labels, which are 0 or 1."""
    loss = wrap(
        layer_outputs("bce_loss", {"X": to_core(input), "Label": to_core(label)}, {"Out": to_core(input).dtype})[0]
    )
    return reduce_loss(loss if weight is None else L.elementwise_mul(loss, weight), reduction)


def binary_cross_entropy_with_logits(
    logit: Any, label: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None, name: Any = None
) -> Any:
    """The cross entropy of logits and labels, which are 0 or 1; losses with label 1 are multiplied by `pos_weight`."""
    loss = L.sigmoid_cross_entropy_with_logits(logit, label)
    if pos_weight is not None:
        more = L.elementwise_mul(label, L.scale(pos_weight, 1.0, -1.0))
        loss = L.elementwise_mul(loss, L.scale(more, 1.0, 1.0))
    return reduce_loss(loss if weight is None else L.elementwise_mul(loss, weight), reduction)


def smooth_l1_loss(input: Any, label: Any, reduction: str = "mean", delta: float = 1.0, name: Any = None) -> Any:
    """The Huber loss: half the squared difference where this is below `delta`, linear beyond."""
    return reduce_loss(L.huber_loss(input, label, delta), reduction)


def kl_div(input: Any, label: Any, reduction: str = "mean", name: Any = None) -> Any:
    """The Kullback-Leibler divergence of `label` from the distribution whose logarithm is `input`."""
    return L.kldiv_loss(input, label, reduction)


def cosine_similarity(x1: Any, x2: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    """The cosines of the angles between vectors along `axis`."""
    product = L.reduce_sum(L.elementwise_mul(x1, x2), dim=axis)
    squares = L.elementwise_mul(*(L.reduce_sum(L.square(x), dim=axis) for x in (x1, x2)))
    return L.elementwise_div(product, L.sqrt(L.elementwise_max(squares, L.fill_constant([1], x1.dtype, eps * eps))))


L: Any = layers

_TABLE: dict[str, tuple[str, ...]] = {
    "leaky_relu": ("leaky_relu", "x, negative_slope=0.01", "negative_slope=alpha"),
    "elu": ("elu", "x, alpha=1.0"),
    "gelu": ("gelu", "x, approximate=False"),
    "relu6": ("relu6", "x"),
    "hardswish": ("hard_swish", "x"),
    "hardsigmoid": ("hard_sigmoid", "x, slope=0.1666667, offset=0.5"),
    "hardtanh": ("brelu", "x, min=-1.0, max=1.0", "min=t_min max=t_max"),
    "log_sigmoid": ("logsigmoid", "x"),
    "swish": ("swish", "x"),
    "maxout": ("maxout", "x, groups, axis=1"),
    "label_smooth": ("label_smooth", "label, prior_dist=None, epsilon=0.1"),
    "log_loss": ("log_loss", "input, label, epsilon=0.0001"),
    "square_error_cost": ("square_error_cost", "input, label"),
    "sequence_mask": ("sequence_mask", "x, maxlen=None, dtype='int64'"),
    "pixel_shuffle": ("pixel_shuffle", "x, upscale_factor"),
    "selu": ("selu", "x, scale=1.0507009873554805, alpha=1.6732632423543772"),
    "hardshrink": ("hard_shrink", "x, threshold=0.5"),
    "softshrink": ("softshrink", "x, threshold=0.5", "threshold=alpha"),
    "tanhshrink": ("tanh_shrink", "x"),
    "thresholded_relu": ("thresholded_relu", "x, threshold=1.0"),
    "temporal_shift": ("temporal_shift", "x, seg_num, shift_ratio=0.25"),
    "mish": ("mish", "x"),
}
_SAME = """diag_embed dice_loss gather_tree npair_loss relu sigmoid softmax_with_cross_entropy softsign tanh unfold"""


def softmax(x: Any, axis: int = -1, dtype: Any = None, name: Any = None) -> Any:
    """The softmax along `axis`, of x converted to `dtype` if given."""
    return L.softmax(x if dtype is None else L.cast(x, dtype), axis=axis, name=name)


def log_softmax(x: Any, axis: int = -1, dtype: Any = None, name: Any = None) -> Any:
    """The logarithm of the softmax along `axis`."""
    x = x if dtype is None else L.cast(x, dtype)
    shifted = L.elementwise_sub(x, L.reduce_max(x, dim=axis, keep_dim=True))
    return L.elementwise_sub(shifted, L.log(L.reduce_sum(L.exp(shifted), dim=axis, keep_dim=True)))


def dropout(
    x: Any, p: float = 0.5, axis: Any = None, training: bool = True, mode: str = "upscale_in_train", name: Any = None
) -> Any:
    """In training, sets random elements to zero; with an `axis`, one random choice for each position in these dims
    zeroes whole slices.
    """
    if axis is not None and training:
        sizes, kept = L.shape(x), [axis] if isinstance(axis, int) else axis
        dims: list[Any] = [1] * len(x.shape)
        for dim in kept:
            dims[dim] = x.shape[dim] if x.shape[dim] > 0 else L.slice(sizes, [0], [dim], [dim + 1])
        return L.elementwise_mul(x, dropout(L.fill_constant(dims, x.dtype, 1.0), p, mode=mode))
    if not training:
        return L.scale(x, 1.0 - p if mode == "downscale_in_infer" else 1.0, name=name)
    return L.dropout(x, p, dropout_implementation=mode.replace("downscale_in_infer", "downgrade_in_infer"), name=name)


def linear(x: Any, weight: Any, bias: Any = None, name: Any = None) -> Any:
    """x * weight + bias."""
    own = name or unique_name.generate("linear")  # the name of both ops, from the same counters as layers, as in 2.x
    made = L.matmul(x, weight, name=own)
    return made if bias is None else L.elementwise_add(made, bias, axis=len(x.shape) - 1, name=own)


def embedding(x: Any, weight: Any, padding_idx: int | None = None, sparse: bool = False, name: Any = None) -> Any:
    """The rows of a table for ids."""
    ids, table = to_core(x), to_core(weight)
    padding = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx
    attrs = {"is_sparse": sparse, "is_distributed": False, "remote_prefetch": sparse, "padding_idx": padding}
    own = name or unique_name.generate("embedding")
    return wrap(layer_outputs("lookup_table_v2", {"Ids": ids, "W": table}, {"Out": table.dtype}, attrs, name=own)[0])


def one_hot(x: Any, num_classes: Any, name: Any = None) -> Any:
    """A row for each id, all 0 but a 1 at the id."""
    from pstranspile.fluid.input import one_hot as rows

    return rows(x, num_classes)


def softplus(x: Any, beta: float = 1, threshold: float = 20, name: Any = None) -> Any:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""
    if beta == 1 and threshold >= 20:
        return L.softplus(x)
    scaled = L.scale(x, float(beta))
    # The gradient of clip is 0 at the limit, where softplus still has one.
    near = L.scale(L.softplus(L.clip(scaled, -3e38, float(np.nextafter(np.float32(threshold), np.inf)))), 1.0 / beta)
    beyond = L.cast(L.greater_than(scaled, L.fill_constant([1], x.dtype, float(threshold))), x.dtype)
    return L.elementwise_add(L.elementwise_mul(near, L.scale(beyond, -1.0, 1.0)), L.elementwise_mul(x, beyond))


def silu(x: Any, name: Any = None) -> Any:
    """x times its sigmoid."""
    return L.swish(x)


def prelu(x: Any, weight: Any, name: Any = None) -> Any:
    """x where it is positive, otherwise x times a weight; one weight for all channels, or one for each."""
    alone = weight.shape[0] == 1
    below = L.elementwise_mul(L.elementwise_min(x, L.zeros_like(x)), weight, axis=-1 if alone else 1)
    return L.elementwise_add(L.relu(x), below)


def normalize(x: Any, p: float = 2, axis: int = 1, epsilon: float = 1e-12, name: Any = None) -> Any:
    """Vectors along `axis` divided by their p-norms."""
    sizes = norm(x, float(p), axis, True)
    return L.elementwise_div(x, L.elementwise_max(sizes, L.fill_constant([1], x.dtype, epsilon)))


def bilinear(x1: Any, x2: Any, weight: Any, bias: Any = None, name: Any = None) -> Any:
    """Bilinear forms of pairs of vectors: one number for each matrix of the weight."""
    inputs = {"X": to_core(x1), "Y": to_core(x2), "Weight": to_core(weight)}
    if bias is not None:
        inputs["Bias"] = to_core(bias)
    return wrap(layer_outputs("bilinear_tensor_product", inputs, {"Out": inputs["X"].dtype})[0])


def alpha_dropout(x: Any, p: float = 0.5, training: bool = True, name: Any = None) -> Any:
    """In training, sets random elements to the lower limit of `selu`, then rescales so that mean and
    variance are kept.
    """
    if not training or p == 0:
        return x
    low = -1.0507009873554805 * 1.6732632423543772
    spread = ((1 - p) * (1 + p * low**2)) ** -0.5
    kept = L.dropout(L.ones_like(x), p, dropout_implementation="downgrade_in_infer")
    made = L.elementwise_add(L.elementwise_mul(x, kept), L.scale(kept, -low, low))
    return L.scale(made, spread, -spread * p * low)


def dropout2d(x: Any, p: float = 0.5, training: bool = True, data_format: str = "NCHW", name: Any = None) -> Any:
    """In training, sets random channels to zero."""
    return dropout(x, p, [0, len(x.shape) - 1 if data_format.endswith("C") else 1], training)


def dropout3d(x: Any, p: float = 0.5, training: bool = True, data_format: str = "NCDHW", name: Any = None) -> Any:
    """In training, sets random channels to zero."""
    return dropout(x, p, [0, len(x.shape) - 1 if data_format.endswith("C") else 1], training)


def affine_grid(theta: Any, out_shape: Any, align_corners: bool = True, name: Any = None) -> Any:
    """For each pixel of images of `out_shape`, its position in the original image under the affine map `theta`."""
    if not align_corners:
        raise ValueError("affine_grid takes corners as pixels: leave out align_corners")
    return L.affine_grid(theta, out_shape)


def grid_sample(
    x: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = True,
    name: Any = None,
) -> Any:
    """The values of images at the positions of a grid."""
    if (mode, padding_mode, align_corners) != ("bilinear", "zeros", True):
        raise ValueError("grid_sample is bilinear, with zeros outside and corners as pixels")
    return L.grid_sampler(x, grid)


def max_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    name: Any = None,
) -> Any:
    """The maxima of windows of sequences."""
    return pool_windows(1, "max", x, kernel_size, stride, padding, ceil_mode, refuse=return_mask)


def avg_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    exclusive: bool = True,
    ceil_mode: bool = False,
    name: Any = None,
) -> Any:
    """The means of windows of sequences."""
    return pool_windows(1, "avg", x, kernel_size, stride, padding, ceil_mode, exclusive)


def _max_pool(rank: int) -> Any:
    def pool(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        return_mask: bool = False,
        ceil_mode: bool = False,
        data_format: str | None = None,
        name: Any = None,
    ) -> Any:
        """The maxima of windows."""
        return pool_windows(
            rank, "max", x, kernel_size, stride, padding, ceil_mode, data_format=data_format, refuse=return_mask
        )

    return pool


def _avg_pool(rank: int) -> Any:
    def pool(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        exclusive: bool = True,
        divisor_override: Any = None,
        data_format: str | None = None,
        name: Any = None,
    ) -> Any:
        """The means of windows."""
        settings = kernel_size, stride, padding, ceil_mode, exclusive, data_format, divisor_override
        return pool_windows(rank, "avg", x, *settings)

    return pool


def _adaptive(rank: int, kind: str) -> Any:
    if kind == "max":

        def largest(x: Any, output_size: Any, return_mask: bool = False, name: Any = None) -> Any:
            """The maxima of windows, whose number in each dim is `output_size`."""
            return adaptive(rank, "max", x, output_size, mask=return_mask)

        return largest

    def means(x: Any, output_size: Any, data_format: str | None = None, name: Any = None) -> Any:
        """The means of windows, whose number in each dim is `output_size`."""
        return adaptive(rank, "avg", x, output_size, data_format)

    return means


def _conv(rank: int, first: str) -> Any:
    def conv(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        data_format: str = first,
        name: Any = None,
    ) -> Any:
        """x convolved with filters."""
        return convolution(rank, x, weight, bias, (stride, padding, dilation, groups), data_format)

    return conv


def _conv_transpose_function(rank: int, first: str) -> Any:
    signature = signature_of(
        "x, weight, bias=None, stride=1, padding=0, output_padding=0, "
        + ("dilation=1, groups=1" if rank == 2 else "groups=1, dilation=1")
        + f", output_size=None, data_format='{first}', name=None"
    )

    def conv(*args: Any, **options: Any) -> Any:
        """The transposed convolution of x with filters."""
        given = bound(f"conv{rank}d_transpose", signature, args, options)
        settings = tuple(given[key] for key in ("stride", "padding", "output_padding", "dilation", "groups"))
        held = given["x"], given["weight"], given["bias"]
        return transposed_convolution(rank, *held, settings, given["output_size"], given["data_format"])

    conv.__signature__ = signature  # type: ignore[attr-defined]
    return conv


max_pool2d, max_pool3d, avg_pool2d, avg_pool3d = _max_pool(2), _max_pool(3), _avg_pool(2), _avg_pool(3)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive(rank, "avg") for rank in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive(rank, "max") for rank in (1, 2, 3))
conv1d, conv2d, conv3d = _conv(1, "NCL"), _conv(2, "NCHW"), _conv(3, "NCDHW")
conv1d_transpose, conv2d_transpose = _conv_transpose_function(1, "NCL"), _conv_transpose_function(2, "NCHW")
conv3d_transpose = _conv_transpose_function(3, "NCDHW")
upsample = interpolate
glu = later("glu", nets.glu, "x, axis=-1", "x=input axis=dim")


_tabled = from_tables("paddle.nn.functional", globals(), _TABLE, _SAME)


def __getattr__(name: str) -> Any:
    if name in ("relu_", "elu_", "softmax_", "tanh_"):  # nothing is changed in place
        name = name[:-1]
        return globals().get(name) or _tabled(name)
    return _tabled(name)
