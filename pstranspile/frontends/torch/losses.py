"""ATen operators that are losses as ops of a program."""

from __future__ import annotations

from typing import Any

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.read_tensors import (
    of_one_shape,
    reshape,
    sizes_of,
    transpose,
    with_x_shape,
)
from pstranspile.frontends.onnx.reading import is_code
from pstranspile.frontends.torch.elements import comparison_flags, detached, reduce_axes, root, soft_plus
from pstranspile.frontends.torch.networks import logs
from pstranspile.frontends.torch.tracing import FLOATS, Tracing, argument, aten
from pstranspile.ir.attributes import float32
from pstranspile.ir.types import DType

_NONE, _MEAN, _SUM = 0, 1, 2


def reduce_loss(x: str, out: str, reduction: int, tracing: Tracing) -> None:
    """`out` is the loss of each element in `x`, or their mean or sum, as `reduction` says."""
    if reduction == _NONE:
        tracing.alias(out, x)
    else:
        axes = [*range(len(tracing.dims(x)))]
        reduce_axes("reduce_mean" if reduction == _MEAN else "reduce_sum", x, out, axes, False, tracing)


@aten("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward")
def _cross_entropy(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    if kind.endswith("forward"):
        tracing.parts[node.name] = [out, None]
    x, target = tracing.value(node.args[0]), tracing.value(node.args[1])
    weight, reduction = argument(node, 2, "weight"), argument(node, 3, "reduction", _MEAN)
    ignored = argument(node, 4, "ignore_index", -100)
    smoothing = float(argument(node, 5, "label_smoothing", 0.0)) if kind == "cross_entropy_loss" else 0.0
    rank = len(tracing.dims(x))
    axis = 1 if rank > 1 else 0
    soft = tracing.dtype(target) in FLOATS
    weights = tracing.value(weight) if weight is not None else None
    if soft:
        _soft_targets(x, target, weights, axis, reduction, smoothing, out, tracing)
        return
    sizes = sizes_of(x, tracing)
    if rank == 1:
        raise Refused("it is the loss of a single row")
    if rank > 2:  # move the classes last, and make a row of every element
        order = [0, *range(2, rank), 1]
        transpose(x, turned := tracing.temp(x), order, tracing)
        reshape(turned, x := tracing.temp(x), [-1, sizes[1]], tracing)
    reshape(target, labels := tracing.temp(target), [-1, 1], tracing)
    if tracing.dtype(labels) is not DType.INT64:
        labels = tracing.as_type(labels, DType.INT64)
    kept = comparison_flags("not_equal", labels, tracing.constant_of(ignored, DType.INT64, out), tracing)
    real = tracing.as_type(kept, tracing.dtype(x))
    tracing.draft.stop_gradient.add(real)
    if kind == "cross_entropy_loss" and weights is None and not smoothing:
        losses, shares = tracing.temp(out), tracing.temp(out)
        attrs = {"ignore_index": ignored, "soft_label": False}
        tracing.op(
            "softmax_with_cross_entropy", {"Logits": x, "Label": labels}, {"Loss": losses, "Softmax": shares}, **attrs
        )
        counts = real
    else:
        losses, counts = _picked_losses(kind, x, labels, real, weights, smoothing, reduction, out, tracing)
    _reduced_rows(losses, counts, reduction, sizes, out, tracing)


def _reduced_rows(losses: str, counts: str, reduction: int, sizes: list[int], out: str, tracing: Tracing) -> None:
    """`out` is the losses [rows, 1] of rows, their sum, or their mean weighted by `counts` [rows, 1]."""
    if reduction == _NONE:
        reshape(losses, out, [sizes[0], *sizes[2:]], tracing)
        return
    total = out if reduction == _SUM else tracing.temp(out)
    reduce_axes("reduce_sum", losses, total, [0, 1], False, tracing)
    if reduction == _MEAN:
        reduce_axes("reduce_sum", counts, number := tracing.temp(out), [0, 1], False, tracing)
        tracing.draft.stop_gradient.add(number)
        tracing.op("elementwise_div", {"X": total, "Y": number}, {"Out": out})


def _picked_losses(
    kind: str,
    x: str,
    labels: str,
    real: str,
    weights: str | None,
    smoothing: float,
    reduction: int,
    out: str,
    tracing: Tracing,
) -> tuple[str, str]:
    """The loss of each row [rows, 1], and the weight of each row in the mean [rows, 1]."""
    if kind == "cross_entropy_loss":
        logs(x, shares := tracing.temp(out), 1, tracing)
    else:
        shares = x
    within = _zero_ignored_labels(labels, real, tracing)
    counts = real
    if weights is not None:
        flat = tracing.op_result("gather", out, X=weights, Index=_flat(within, tracing))
        reshape(flat, each := tracing.temp(out), [-1, 1], tracing)
        counts = tracing.op_result("elementwise_mul", out, X=each, Y=real)
    tracing.draft.stop_gradient.add(counts)
    found = tracing.op_result("index_sample", out, X=shares, Index=within)
    picked = tracing.op_result("elementwise_mul", out, X=found, Y=counts)
    losses = tracing.scaled(picked, smoothing - 1.0)
    if smoothing:
        width = tracing.size(x, 1)
        if is_code(width):
            raise Refused("it smooths labels over as many classes as a batch has rows")
        every = shares if weights is None else tracing.op_result("elementwise_mul", out, X=shares, Y=weights)
        reduce_axes("reduce_sum", every, spread := tracing.temp(out), [1], True, tracing)
        spread = tracing.op_result("elementwise_mul", out, X=spread, Y=real)
        losses = tracing.op_result("elementwise_add", out, X=losses, Y=tracing.scaled(spread, -smoothing / width))
    _ = reduction
    return losses, counts


def _zero_ignored_labels(labels: str, real: str, tracing: Tracing) -> str:
    """The labels, with 0 in place of ignored ones; `real` is 1 for a label that counts, else 0."""
    whole = tracing.as_type(real, DType.INT64)
    tracing.draft.stop_gradient.add(whole)
    made = tracing.op_result("elementwise_mul", labels, X=labels, Y=whole)
    tracing.draft.stop_gradient.add(made)
    return made


def _flat(labels: str, tracing: Tracing) -> str:
    reshape(labels, flat := tracing.temp(labels), [-1], tracing)
    tracing.draft.stop_gradient.add(flat)
    return flat


def _soft_targets(
    x: str, target: str, weights: str | None, axis: int, reduction: int, smoothing: float, out: str, tracing: Tracing
) -> None:
    width = sizes_of(x, tracing)[axis]
    if smoothing:
        target = tracing.scaled(target, 1 - smoothing, smoothing / width)
    logs(x, shares := tracing.temp(out), axis, tracing)
    terms = tracing.op_result("elementwise_mul", out, X=shares, Y=target)
    if weights is not None:
        rank = len(tracing.dims(x))
        if rank > 2:
            reshape(weights, wide := tracing.temp(weights), [width, *[1] * (rank - 2)], tracing)
            weights = wide
        terms = tracing.op_result("elementwise_mul", out, X=terms, Y=weights)
    reduce_axes("reduce_sum", terms, rows := tracing.temp(out), [axis], False, tracing)
    reduce_loss(tracing.scaled(rows, -1.0), out, reduction, tracing)


@aten("binary_cross_entropy")
def _bce(node: Any, tracing: Tracing, out: str) -> None:
    """-(y max(log p, -100) + (1 - y) max(log(1 - p), -100)), where -100 is torch's lower bound of a logarithm.

    The gradient by p is (p - y) / max((1 - p) p, 1e-12), as in torch: finite where a logarithm is not.
    """
    given, y, weight = tracing.value(node.args[0]), tracing.value(node.args[1]), argument(node, 2, "weight")
    kind, x = tracing.dtype(given), detached(given, tracing)
    bound = tracing.constant_of(-100.0, kind, out)
    first = tracing.op_result("elementwise_max", out, X=tracing.op_result("log", out, X=x), Y=bound)
    beside = tracing.scaled(x, -1.0, 1.0)
    other = tracing.op_result("log", out, X=beside)
    second = tracing.op_result("elementwise_max", out, X=other, Y=bound)
    parts = tracing.op_result(
        "elementwise_add",
        out,
        X=tracing.op_result("elementwise_mul", out, X=first, Y=y),
        Y=tracing.op_result("elementwise_mul", out, X=second, Y=tracing.scaled(y, -1.0, 1.0)),
    )
    least = tracing.constant_of(float32(1e-12), kind, out)  # in doubles too it is that of single precision
    spread = tracing.op_result(
        "elementwise_max", out, X=tracing.op_result("elementwise_mul", out, X=beside, Y=x), Y=least
    )
    slope = tracing.op_result("elementwise_div", out, X=tracing.op_result("elementwise_sub", out, X=x, Y=y), Y=spread)
    tracing.draft.stop_gradient.add(slope)
    # this term is 0, and its gradient that of the loss
    way = tracing.op_result("elementwise_mul", out, X=tracing.op_result("elementwise_sub", out, X=given, Y=x), Y=slope)
    losses = tracing.op_result("elementwise_sub", out, X=way, Y=parts)
    if weight is not None:
        losses = tracing.op_result("elementwise_mul", out, X=losses, Y=tracing.value(weight))
    reduce_loss(losses, out, argument(node, 3, "reduction", _MEAN), tracing)


@aten("binary_cross_entropy_with_logits")
def _bce_with_logits(node: Any, tracing: Tracing, out: str) -> None:
    """(1 - y) x + (1 + (p - 1) y) (log(1 + exp(-|x|)) + max(-x, 0)), p being pos_weight or 1."""
    x, y = tracing.value(node.args[0]), tracing.value(node.args[1])
    weight, positive = argument(node, 2, "weight"), argument(node, 3, "pos_weight")
    y = tracing.as_type(y, tracing.dtype(x))
    if positive is None and tracing.has_gradient(node.args[1]):
        soft = soft_plus(tracing.scaled(x, -1.0), out, tracing)
        left = tracing.op_result("elementwise_mul", out, X=tracing.scaled(y, -1.0, 1.0), Y=x)
        losses = tracing.op_result("elementwise_add", out, X=left, Y=soft)
    elif positive is None:  # an op without a gradient by the labels
        losses = tracing.op_result("sigmoid_cross_entropy_with_logits", out, {"ignore_index": -100}, X=x, Label=y)
    else:
        soft = soft_plus(tracing.scaled(x, -1.0), out, tracing)
        factor = tracing.scaled(tracing.value(positive), 1.0, -1.0)
        factor = tracing.scaled(tracing.op_result("elementwise_mul", out, X=y, Y=factor), 1.0, 1.0)
        left = tracing.op_result("elementwise_mul", out, X=tracing.scaled(y, -1.0, 1.0), Y=x)
        losses = tracing.op_result(
            "elementwise_add", out, X=left, Y=tracing.op_result("elementwise_mul", out, X=soft, Y=factor)
        )
    if weight is not None:
        losses = tracing.op_result("elementwise_mul", out, X=losses, Y=tracing.value(weight))
    reduce_loss(losses, out, argument(node, 4, "reduction", _MEAN), tracing)


@aten("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
def _distance(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    x, y = (tracing.value(arg) for arg in node.args[:2])
    reduction = argument(node, 2, "reduction", _MEAN)
    way = tracing.op_result("elementwise_sub", out, X=x, Y=tracing.as_type(y, tracing.dtype(x)))
    if kind == "mse_loss":
        losses = tracing.op_result("square", out, X=way)
    elif kind == "l1_loss":
        losses = tracing.op_result("abs", out, X=way)
    else:
        bound = float(argument(node, 3, "beta" if kind.startswith("smooth") else "delta", 1.0))
        # h (w - h / 2), where h is the difference w limited to the bounds: its gradient is h, however large w is
        held = tracing.op_result("clip", out, {"min": -bound, "max": bound}, X=way)
        tracing.draft.stop_gradient.add(held)
        part = tracing.op_result("elementwise_sub", out, X=way, Y=tracing.scaled(held, 0.5))
        losses = tracing.op_result("elementwise_mul", out, X=part, Y=held)
        losses = tracing.scaled(losses, 1 / bound) if kind.startswith("smooth") and bound != 1 else losses
    reduce_loss(losses, out, reduction, tracing)


@aten("kl_div")
def _kl_div(node: Any, tracing: Tracing, out: str) -> None:
    x, y = (tracing.value(arg) for arg in node.args[:2])
    kind = tracing.dtype(x)
    if bool(node.kwargs.get("log_target", False)):
        way = tracing.op_result("elementwise_sub", out, X=y, Y=x)
        losses = tracing.op_result("elementwise_mul", out, X=tracing.op_result("exp", out, X=y), Y=way)
    else:
        zero = tracing.constant_of(0.0, kind, out)
        above = comparison_flags("greater_than", y, zero, tracing)
        condition, held, one = of_one_shape([above, y, tracing.constant_of(1.0, kind, out)], tracing)
        safe = tracing.op_result("where", out, Condition=condition, X=held, Y=one)
        own = tracing.op_result("elementwise_mul", out, X=y, Y=tracing.op_result("log", out, X=safe))
        losses = tracing.op_result("elementwise_sub", out, X=own, Y=tracing.op_result("elementwise_mul", out, X=y, Y=x))
    reduce_loss(losses, out, argument(node, 2, "reduction", _MEAN), tracing)


@aten("cosine_similarity")
def _cosine(node: Any, tracing: Tracing, out: str) -> None:
    x, y = (tracing.value(arg) for arg in node.args[:2])
    axis = argument(node, 2, "dim", 1) % len(tracing.dims(x))
    epsilon = float(argument(node, 3, "eps", 1e-8))
    kind = tracing.dtype(x)
    norms: list[str] = []
    for name in (x, y):
        reduce_axes(
            "reduce_sum", tracing.op_result("square", out, X=name), total := tracing.temp(out), [axis], True, tracing
        )
        root(total, norm := tracing.temp(out), tracing)
        least = tracing.op_result("elementwise_max", out, X=norm, Y=tracing.constant_of(epsilon, kind, out))
        more = tracing.op_result("elementwise_sub", out, X=least, Y=norm)  # torch's bound has no part in the gradient
        tracing.draft.stop_gradient.update((least, more))
        held = tracing.op_result("elementwise_add", out, X=norm, Y=more)
        norms.append(tracing.op_result("elementwise_div", out, X=name, Y=held))
    reduce_axes(
        "reduce_sum", tracing.op_result("elementwise_mul", out, X=norms[0], Y=norms[1]), out, [axis], False, tracing
    )


# Label sequences without an alignment.


@aten("_ctc_loss")
def _ctc_loss(node: Any, tracing: Tracing, out: str) -> None:
    """The loss of each row's label sequence; 0 where there are too few steps for it. The gradient is by scores whose
    softmax the probabilities are, as in torch.
    """
    if any(not hasattr(lengths, "name") for lengths in node.args[2:4]):
        raise Refused("its lengths are numbers for one number of rows; give tensors")
    scores, labels, steps, sizes = (tracing.value(arg) for arg in node.args[:4])
    if len(tracing.dims(scores)) != 3 or len(tracing.dims(labels)) != 2:
        raise Refused("its labels are one list; give a matrix with a row for each sequence")
    if not _is_log_softmax(node.args[0]):
        raise Refused("its scores are no log_softmax")
    inputs = {"Logits": scores, "Label": labels}
    inputs |= {"LogitsLength": tracing.as_type(steps, DType.INT64), "LabelLength": tracing.as_type(sizes, DType.INT64)}
    loss, own = tracing.temp(out), tracing.temp(out)
    tracing.op("warpctc", inputs, {"Loss": loss, "WarpCTCGrad": own}, blank=int(argument(node, 4, "blank", 0)))
    with_x_shape("squeeze2", loss, out, tracing, axes=[1])
    tracing.parts[node.name] = [out, None]


_MOVING = ("permute", "transpose", "clone", "contiguous", "alias", "_to_copy", "unsqueeze", "squeeze", "detach")
"""Operators that leave a log-softmax one."""


def _is_log_softmax(node: Any) -> bool:
    name = getattr(node.target, "__name__", "").split(".")[0]
    if name in _MOVING:
        return _is_log_softmax(node.args[0])
    return name in ("log_softmax", "_log_softmax")
