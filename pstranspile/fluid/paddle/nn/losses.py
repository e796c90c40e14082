"""The losses of `paddle.nn.functional`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.layers.adapt import to_core, wrap
from pstranspile.frontends.layers.basic import layer_outputs

L: Any = layers


def reduced(loss: Any, reduction: str) -> Any:
    """The mean or the sum of a loss, or the loss itself (`none`). Raises ValueError for others."""
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is mean, sum or none, not {reduction!r}")
    return L.mean(loss) if reduction == "mean" else L.reduce_sum(loss)


def mse_loss(input: Any, label: Any, reduction: str = "mean", name: Any = None) -> Any:
    """The square of the difference."""
    return reduced(L.square_error_cost(input, label), reduction)


def l1_loss(input: Any, label: Any, reduction: str = "mean", name: Any = None) -> Any:
    """The absolute difference."""
    return reduced(L.abs(L.elementwise_sub(input, label)), reduction)


def _mean_of_counted(loss: Any, label: Any, shares: Any, ignore_index: int) -> Any:
    """The mean over the labels that are not ignored, each of which counts as its share, if any."""
    if ignore_index != -100:
        counted = L.cast(L.not_equal(label, L.fill_constant([1], label.dtype, ignore_index)), loss.dtype)
        shares = counted if shares is None else L.elementwise_mul(shares, counted)
    return L.mean(loss) if shares is None else L.elementwise_div(L.reduce_sum(loss), L.reduce_sum(shares))


def _shares(weight: Any, label: Any, ignore_index: int) -> Any:
    """The weight of each label's class; that of class 0 for labels that are ignored."""
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
    """The cross entropy of logits, whose softmax it takes; of probabilities without `use_softmax`.

    `weight` has a number for each class, by which its losses count. The mean is that of the labels that are not
    ignored. Raises ValueError for a `weight` of soft labels.
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
    return reduced(loss, reduction)


def nll_loss(
    input: Any, label: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", name: Any = None
) -> Any:
    """The logarithm of the probability of each label, negative; `weight` has a number for each class."""
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
    return reduced(loss, reduction)


def margin_ranking_loss(
    input: Any, other: Any, label: Any, margin: float = 0.0, reduction: str = "mean", name: Any = None
) -> Any:
    """How far `input` is on the wrong side of `other`, by the label 1 or -1, and a margin."""
    ordered = L.elementwise_mul(L.elementwise_sub(other, input), label)
    return reduced(L.relu(L.scale(ordered, 1.0, margin)), reduction)


def ctc_loss(
    log_probs: Any,
    labels: Any,
    input_lengths: Any,
    label_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    norm_by_times: bool = False,
) -> Any:
    """The loss of sequences [steps, samples, classes] by unaligned labels; the mean is that by the labels' lengths."""
    loss = L.squeeze(L.warpctc(log_probs, labels, blank, norm_by_times, input_lengths, label_lengths), [-1])
    if reduction == "mean":
        return L.mean(L.elementwise_div(loss, L.cast(label_lengths, loss.dtype)))
    return reduced(loss, reduction)


def sigmoid_focal_loss(
    logit: Any,
    label: Any,
    normalizer: Any = None,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "sum",
    name: Any = None,
) -> Any:
    """The cross entropy of logits and labels of 0 and 1, in which samples that are right anyhow count less."""
    entropy, shares = L.sigmoid_cross_entropy_with_logits(logit, label), L.sigmoid(logit)
    alike = L.elementwise_add(
        L.elementwise_mul(shares, label), L.elementwise_mul(L.scale(shares, -1.0, 1.0), L.scale(label, -1.0, 1.0))
    )
    chosen = L.scale(label, 2 * alpha - 1, 1 - alpha)
    loss = L.elementwise_mul(L.elementwise_mul(chosen, entropy), L.pow(L.scale(alike, -1.0, 1.0), gamma))
    return reduced(loss if normalizer is None else L.elementwise_div(loss, normalizer), reduction)


def binary_cross_entropy(input: Any, label: Any, weight: Any = None, reduction: str = "mean", name: Any = None) -> Any:
    """The cross entropy of probabilities and labels of 0 and 1."""
    loss = wrap(
        layer_outputs("bce_loss", {"X": to_core(input), "Label": to_core(label)}, {"Out": to_core(input).dtype})[0]
    )
    return reduced(loss if weight is None else L.elementwise_mul(loss, weight), reduction)


def binary_cross_entropy_with_logits(
    logit: Any, label: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None, name: Any = None
) -> Any:
    """The cross entropy of logits and labels of 0 and 1, of which those of 1 count as `pos_weight`."""
    loss = L.sigmoid_cross_entropy_with_logits(logit, label)
    if pos_weight is not None:
        more = L.elementwise_mul(label, L.scale(pos_weight, 1.0, -1.0))
        loss = L.elementwise_mul(loss, L.scale(more, 1.0, 1.0))
    return reduced(loss if weight is None else L.elementwise_mul(loss, weight), reduction)


def smooth_l1_loss(input: Any, label: Any, reduction: str = "mean", delta: float = 1.0, name: Any = None) -> Any:
    """Half the square of a difference below `delta`, beyond it linear."""
    return reduced(L.huber_loss(input, label, delta), reduction)


def kl_div(input: Any, label: Any, reduction: str = "mean", name: Any = None) -> Any:
    """How far the distribution whose logarithm is `input` is from `label`."""
    return L.kldiv_loss(input, label, reduction)


def cosine_similarity(x1: Any, x2: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    """The cosines of the angles between vectors along `axis`."""
    product = L.reduce_sum(L.elementwise_mul(x1, x2), dim=axis)
    squares = L.elementwise_mul(*(L.reduce_sum(L.square(x), dim=axis) for x in (x1, x2)))
    return L.elementwise_div(product, L.sqrt(L.elementwise_max(squares, L.fill_constant([1], x1.dtype, eps * eps))))
