"""`paddle.nn.functional`: activations, layers without parameters of their own, and losses."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.layers.adapt import to_core, wrap
from pstranspile.fluid.paddle.later import from_tables
from pstranspile.layers.basic import layer_outputs

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
    "normalize": ("l2_normalize", "x, axis=1, epsilon=1e-12"),
    "label_smooth": ("label_smooth", "label, prior_dist=None, epsilon=0.1"),
    "log_loss": ("log_loss", "input, label, epsilon=0.0001"),
    "square_error_cost": ("square_error_cost", "input, label"),
    "sequence_mask": ("sequence_mask", "x, maxlen=None, dtype='int64'"),
    "pixel_shuffle": ("pixel_shuffle", "x, upscale_factor"),
}
_SAME = "relu selu sigmoid softplus softsign tanh softmax_with_cross_entropy dice_loss npair_loss sigmoid_focal_loss"


def softmax(x: Any, axis: int = -1, dtype: Any = None, name: Any = None) -> Any:
    """Shares along `axis` that sum to one, as elements of `dtype`."""
    return L.softmax(x if dtype is None else L.cast(x, dtype), axis=axis, name=name)


def log_softmax(x: Any, axis: int = -1, dtype: Any = None, name: Any = None) -> Any:
    """The logarithm of `softmax`."""
    return L.log_softmax(x, axis=axis, dtype=dtype)


def dropout(
    x: Any, p: float = 0.5, axis: Any = None, training: bool = True, mode: str = "upscale_in_train", name: Any = None
) -> Any:
    """Some elements zero in training. Raises ValueError for an `axis`, along which whole slices would be zero."""
    if axis is not None:
        raise ValueError("dropout takes single elements: leave out axis")
    return L.dropout(x, p, is_test=not training, dropout_implementation=mode, name=name)


def linear(x: Any, weight: Any, bias: Any = None, name: Any = None) -> Any:
    """x * weight + bias."""
    made = L.matmul(x, weight)
    return made if bias is None else L.elementwise_add(made, bias, axis=len(x.shape) - 1)


def embedding(x: Any, weight: Any, padding_idx: int | None = None, sparse: bool = False, name: Any = None) -> Any:
    """The rows of a table that ids choose."""
    ids, table = to_core(x), to_core(weight)
    padding = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx
    attrs = {"is_sparse": sparse, "is_distributed": False, "remote_prefetch": sparse, "padding_idx": padding}
    return wrap(layer_outputs("lookup_table_v2", {"Ids": ids, "W": table}, {"Out": table.dtype}, attrs, name=name)[0])


def one_hot(x: Any, num_classes: Any, name: Any = None) -> Any:
    """A row for each id, one at the id and else zero."""
    from pstranspile.fluid.input import one_hot as rows

    return rows(x, num_classes)


def _pooled(kind: str, x: Any, size: Any, stride: Any, padding: Any, ceil_mode: bool, exclusive: bool = True) -> Any:
    return L.pool2d(x, size, kind, stride or size, padding, ceil_mode=ceil_mode, exclusive=exclusive)


def max_pool2d(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False) -> Any:
    """The largest elements of windows."""
    return _pooled("max", x, kernel_size, stride, padding, ceil_mode)


def avg_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    exclusive: bool = True,
) -> Any:
    """The means of windows."""
    return _pooled("avg", x, kernel_size, stride, padding, ceil_mode, exclusive)


def adaptive_avg_pool2d(x: Any, output_size: Any) -> Any:
    """The means of as many windows as `output_size` says."""
    return L.adaptive_pool2d(x, output_size, "avg")


def adaptive_max_pool2d(x: Any, output_size: Any) -> Any:
    """The largest elements of as many windows as `output_size` says."""
    return L.adaptive_pool2d(x, output_size, "max")


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


def cross_entropy(
    input: Any,
    label: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    soft_label: bool = False,
    axis: int = -1,
    name: Any = None,
) -> Any:
    """The cross entropy of logits, whose softmax it takes. Raises ValueError for a `weight` of classes.

    The mean is that of the labels that are not ignored.
    """
    if weight is not None:
        raise ValueError("cross_entropy counts all classes alike: leave out weight")
    if not soft_label and len(label.shape) < len(input.shape):
        label = L.unsqueeze(label, [axis])
    loss = L.softmax_with_cross_entropy(input, label, soft_label, ignore_index, axis=axis)
    if reduction == "mean" and not soft_label and ignore_index >= 0:
        ignored = L.fill_constant([1], "int64", ignore_index)
        counted = L.reduce_sum(L.cast(L.not_equal(label, ignored), input.dtype))
        return L.elementwise_div(L.reduce_sum(loss), counted)
    return reduced(loss, reduction)


def binary_cross_entropy(input: Any, label: Any, weight: Any = None, reduction: str = "mean", name: Any = None) -> Any:
    """The cross entropy of probabilities and labels of 0 and 1."""
    loss = wrap(
        layer_outputs("bce_loss", {"X": to_core(input), "Label": to_core(label)}, {"Out": to_core(input).dtype})[0]
    )
    return reduced(loss if weight is None else L.elementwise_mul(loss, weight), reduction)


def binary_cross_entropy_with_logits(
    logit: Any, label: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None, name: Any = None
) -> Any:
    """The cross entropy of logits and labels of 0 and 1. Raises ValueError for a `pos_weight`."""
    if pos_weight is not None:
        raise ValueError("binary_cross_entropy_with_logits counts labels alike: leave out pos_weight")
    loss = L.sigmoid_cross_entropy_with_logits(logit, label)
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


__getattr__ = from_tables("paddle.nn.functional", globals(), _TABLE, _SAME)
