"""ATen operators of networks as ops of a program: products, tables, norms, attention, convolutions and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.read_tensors import common, expand, reshape, sizes_of, swapped, transpose, with_x_shape
from pstranspile.frontends.onnx.reading import is_code
from pstranspile.frontends.torch.elements import compared, log_sum_exp, picked, reduced
from pstranspile.frontends.torch.tracing import FLOATS, Tracing, argument, aten
from pstranspile.ir.types import DType

# Products.


@aten("linear")
def _linear(node: Any, tracing: Tracing, out: str) -> None:
    x, weight, bias = tracing.value(node.args[0]), tracing.value(node.args[1]), argument(node, 2, "bias")
    sizes = sizes_of(x, tracing)
    product = tracing.temp(out) if bias is not None else out
    if len(sizes) == 2:
        tracing.op("matmul", {"X": x, "Y": weight}, {"Out": product}, transpose_Y=True)
    else:
        reshape(x, rows := tracing.temp(x), [-1, sizes[-1]], tracing)
        flat = tracing.made("matmul", out, {"transpose_Y": True}, X=rows, Y=weight)
        reshape(flat, product, [*sizes[:-1], tracing.dims(weight)[0]], tracing)
    if bias is not None:
        tracing.op("elementwise_add", {"X": product, "Y": tracing.value(bias)}, {"Out": out})


@aten("addmm", "baddbmm")
def _addmm(node: Any, tracing: Tracing, out: str) -> None:
    bias, x, y = (tracing.value(arg) for arg in node.args[:3])
    product = tracing.made("matmul", out, {"alpha": float(node.kwargs.get("alpha", 1))}, X=x, Y=y)
    beta = float(node.kwargs.get("beta", 1))
    bias = tracing.scaled(bias, beta) if beta != 1 else bias
    tracing.op("elementwise_add", {"X": product, "Y": bias}, {"Out": out})


@aten("mm", "bmm", "matmul", "mv", "dot")
def _matmul(node: Any, tracing: Tracing, out: str) -> None:
    product(tracing.value(node.args[0]), tracing.value(node.args[1]), out, tracing)


def product(x: str, y: str, out: str, tracing: Tracing, *, turned: bool = False, alpha: float = 1.0) -> None:
    """`out` is the product of two values as `torch.matmul` has it; with `turned`, of `x` and `y` transposed."""
    left, right = sizes_of(x, tracing), sizes_of(y, tracing)
    if min(len(left), len(right)) < 2:
        if len(left) == 1:
            reshape(x, row := tracing.temp(x), [1, *left], tracing)
            x = row
        if len(right) == 1:
            reshape(y, column := tracing.temp(y), [*right, 1], tracing)
            y = column
        product(x, y, made := tracing.temp(out), tracing)
        batch = left[:-2] if len(right) == 1 else right[:-2]
        kept = [*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else [])]
        reshape(made, out, kept, tracing)
        return
    attrs: dict[str, object] = {"transpose_Y": turned, "alpha": alpha}
    if len(right) == 2 and len(left) > 2:
        reshape(x, rows := tracing.temp(x), [-1, left[-1]], tracing)
        flat = tracing.made("matmul", out, attrs, X=rows, Y=y)
        reshape(flat, out, [*left[:-1], right[0] if turned else right[1]], tracing)
        return
    if left[:-2] != right[:-2]:
        batch = common([x, y], tracing, but=2)
        for at, (name, dims) in enumerate(((x, left), (y, right))):
            if dims[:-2] == batch:
                continue
            expand(name, made := tracing.temp(name), [*batch, *dims[-2:]], tracing)
            made = tracing.resolved(made)
            x, y = (made, y) if at == 0 else (x, made)
    tracing.op("matmul", {"X": x, "Y": y}, {"Out": out}, **attrs)


@aten("einsum")
def _einsum(node: Any, tracing: Tracing, out: str) -> None:
    from pstranspile.frontends.onnx.read_math import _ordered, _parsed, _product, _summed

    terms, wanted = _parsed(node.args[0], [tracing.value(arg) for arg in node.args[1]], tracing)
    while len(terms) > 1:
        first, second, *others = terms
        later = {*wanted, *(letter for term in others for letter in term.letters)}
        kept = [letter for letter in dict.fromkeys(first.letters + second.letters) if letter in later]
        terms = [_product(first, second, "".join(kept), tracing), *others]
    (term,) = terms
    term = _summed(term, [letter for letter in term.letters if letter not in wanted], tracing)
    tracing.alias(out, _ordered(term, wanted, tracing).value)


@aten("scaled_dot_product_attention")
def _attention(node: Any, tracing: Tracing, out: str) -> None:
    query, key, value = (tracing.value(arg) for arg in node.args[:3])
    mask = argument(node, 3, "attn_mask")
    rate = float(argument(node, 4, "dropout_p", 0.0))
    causal = bool(argument(node, 5, "is_causal", False))
    scale = node.kwargs.get("scale")
    if node.kwargs.get("enable_gqa"):
        raise Refused("it has enable_gqa; repeat keys and values before")
    scale = 1 / math.sqrt(tracing.dims(query)[-1]) if scale is None else float(scale)
    product(tracing.scaled(query, scale), key, weights := tracing.temp(out), tracing, turned=True)
    kind = tracing.dtype(query)
    if causal:
        mask_name = _causal(weights, tracing)
        weights = _hidden(weights, mask_name, tracing)
    if mask is not None:
        name = tracing.value(mask)
        if tracing.dtype(name) is DType.BOOL:
            weights = _hidden(weights, name, tracing)
        else:
            weights = tracing.made("elementwise_add", out, X=weights, Y=tracing.as_type(name, kind))
    shares = tracing.made("softmax", out, {"axis": -1}, X=weights)
    if rate > 0:
        shares = dropped(shares, rate, tracing)
    product(shares, value, out, tracing)


def _causal(weights: str, tracing: Tracing) -> str:
    """Whether a query may see a key: those up to its own place."""
    from pstranspile.frontends.onnx.read_tensors import fill
    import numpy as np

    sizes = sizes_of(weights, tracing)[-2:]
    fill(ones := tracing.temp(weights), sizes, np.ones(1, "int32"), tracing)
    lower = tracing.made("tril_triu", weights, {"diagonal": 0, "lower": True}, X=ones)
    tracing.cast(lower, flags := tracing.temp(weights), DType.BOOL)
    tracing.draft.stop_gradient.update((ones, lower, flags))
    return flags


def _hidden(weights: str, seen: str, tracing: Tracing) -> str:
    """Weights with the smallest number where something is not seen."""
    from pstranspile.frontends.onnx.read_tensors import of_one_shape

    lowest = tracing.constant_of(-math.inf, tracing.dtype(weights), weights)
    condition, x, y = of_one_shape([seen, weights, lowest], tracing)
    return tracing.made("where", weights, Condition=condition, X=x, Y=y)


def dropped(x: str, rate: float, tracing: Tracing) -> str:
    """A value of which each element is 0 with this probability, and larger for it else."""
    made, mask = tracing.temp(x), tracing.temp(x)
    attrs = {"dropout_prob": rate, "dropout_implementation": "upscale_in_train"}
    tracing.op("dropout", {"X": x}, {"Out": made, "Mask": mask}, **attrs)
    return made


@aten("dropout", "native_dropout")
def _dropout(node: Any, tracing: Tracing, out: str) -> None:
    x, rate, training = tracing.value(node.args[0]), float(node.args[1]), bool(node.args[2])
    made = dropped(x, rate, tracing) if training and rate > 0 else x
    tracing.alias(out, made)
    if node.target.__name__.startswith("native"):
        tracing.parts[node.name] = [made, None]


# Tables.


@aten("embedding")
def _embedding(node: Any, tracing: Tracing, out: str) -> None:
    weight, ids = tracing.value(node.args[0]), tracing.value(node.args[1])
    padding = argument(node, 2, "padding_idx", -1)
    sparse = bool(argument(node, 4, "sparse", False))
    looked_up(weight, ids, out, padding, sparse, tracing)


def looked_up(weight: str, ids: str, out: str, padding: int, sparse: bool, tracing: Tracing) -> None:
    """`out` has the rows of a table that ids name; the row `padding` gets no gradient (-1: there is none)."""
    plain = padding < 0
    array = tracing.arrays.get(weight)
    if not plain and (array is None or array[padding].any()):
        raise Refused(f"the row {padding} of padding_idx is not 0; its ops give 0 for it")
    attrs = {"is_sparse": sparse, "padding_idx": padding if not plain else -1}
    ids = tracing.as_type(ids, DType.INT64)
    scalar = tracing.is_scalar(ids)
    made = tracing.temp(out) if scalar else out
    tracing.op("lookup_table_v2", {"W": weight, "Ids": ids}, {"Out": made}, **attrs)
    if scalar:
        reshape(made, out, [tracing.dims(weight)[1]], tracing)


@aten("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(node: Any, tracing: Tracing, out: str) -> None:
    weight, indices, offsets = node.args[:3]
    mode = argument(node, 4, "mode", 0)
    sparse, weights = bool(argument(node, 5, "sparse", False)), argument(node, 6, "per_sample_weights")
    padding = argument(node, 8, "padding_idx", None)
    padding = -1 if padding is None else padding
    bags = _bags(indices, offsets, tracing)
    if bags is None:
        raise Refused("its bags begin at offsets of the batch; give it a matrix of ids, a row for each bag")
    ids, width = bags
    looked_up(tracing.value(weight), ids, rows := tracing.temp(out), padding, sparse, tracing)
    if weights is not None:
        factors = tracing.value(weights)
        reshape(factors, wide := tracing.temp(factors), [*sizes_of(ids, tracing), 1], tracing)
        rows = tracing.made("elementwise_mul", out, X=rows, Y=wide)
    made = tracing.temp(out)
    if mode == 2 and padding >= 0:
        raise Refused("it takes the largest of bags with a padding_idx")
    if mode == 1 and padding >= 0:
        reduced("reduce_sum", rows, total := tracing.temp(out), [1], False, tracing)
        kind = tracing.dtype(rows)
        real = compared("not_equal", ids, tracing.constant_of(padding, DType.INT64, out), tracing)
        reduced("reduce_sum", tracing.as_type(real, kind), count := tracing.temp(out), [1], True, tracing)
        tracing.draft.stop_gradient.add(count)
        least = tracing.made("elementwise_max", out, X=count, Y=tracing.constant_of(1.0, kind, out))
        tracing.draft.stop_gradient.add(least)
        made = tracing.made("elementwise_div", out, X=total, Y=least)
    else:
        if mode == 2:
            made = picked("max", rows, out, 1, False, tracing)[0]
        else:
            reduced(("reduce_sum", "reduce_mean")[mode], rows, made, [1], False, tracing)
    _ = width
    tracing.parts[node.name] = [made, None, None, None]


def _bags(indices: Any, offsets: Any, tracing: Tracing) -> tuple[str, int] | None:
    """The matrix of ids, a row for each bag, that indices and offsets were made of; None if they are no such."""
    if indices.op != "call_function" or not indices.target.__name__.startswith(("view", "reshape")):
        return None
    if offsets.op != "call_function" or not offsets.target.__name__.startswith("arange"):
        return None
    matrix = indices.args[0]
    shape = matrix.meta["val"].shape
    numbers = list(offsets.args)
    if len(shape) != 2 or not isinstance(shape[1], int) or len(numbers) < 3 or numbers[2] != shape[1]:
        return None
    return tracing.value(matrix), int(shape[1])


# Norms.


@aten("layer_norm", "native_layer_norm")
def _layer_norm(node: Any, tracing: Tracing, out: str) -> None:
    x, shape = tracing.value(node.args[0]), list(node.args[1])
    scale, bias = argument(node, 2, "weight"), argument(node, 3, "bias")
    epsilon = float(argument(node, 4, "eps", 1e-5))
    begin = len(tracing.dims(x)) - len(shape)
    if tracing.dtype(x) is DType.FP64 or begin == 0:
        axes = [*range(begin, begin + len(shape))]
        made = normed(x, axes, epsilon, tracing)
        for op_type, arg in (("elementwise_mul", scale), ("elementwise_add", bias)):
            if arg is not None:
                made = tracing.made(op_type, out, X=made, Y=tracing.value(arg))
        tracing.alias(out, made)
    else:
        inputs = {"X": x}
        for slot, arg in (("Scale", scale), ("Bias", bias)):
            if arg is not None:
                name = tracing.value(arg)
                if len(shape) > 1:
                    reshape(name, flat := tracing.temp(name), [-1], tracing)
                    name = flat
                inputs[slot] = name
        results = {"Y": out, "Mean": tracing.temp(out), "Variance": tracing.temp(out)}
        tracing.op("layer_norm", inputs, results, begin_norm_axis=begin, epsilon=epsilon)
    if node.target.__name__.startswith("native"):
        tracing.parts[node.name] = [out, None, None]


def normed(x: str, axes: Sequence[int], epsilon: float, tracing: Tracing) -> str:
    """A value less its mean along axes, divided by the root of its variance and epsilon."""
    reduced("reduce_mean", x, mean := tracing.temp(x), axes, True, tracing)
    apart = tracing.made("elementwise_sub", x, X=x, Y=mean)
    reduced("reduce_mean", tracing.made("square", x, X=apart), variance := tracing.temp(x), axes, True, tracing)
    root = tracing.made("sqrt", x, X=tracing.scaled(variance, 1.0, epsilon))
    return tracing.made("elementwise_div", x, X=apart, Y=root)


@aten("rms_norm")
def _rms_norm(node: Any, tracing: Tracing, out: str) -> None:
    x, shape, scale = tracing.value(node.args[0]), list(node.args[1]), argument(node, 2, "weight")
    epsilon = argument(node, 3, "eps")
    epsilon = {DType.FP32: 1.1920928955078125e-07, DType.FP64: 2.220446049250313e-16}[tracing.dtype(x)] if epsilon is None else float(epsilon)
    rank = len(tracing.dims(x))
    axes = [*range(rank - len(shape), rank)]
    reduced("reduce_mean", tracing.made("square", out, X=x), mean := tracing.temp(out), axes, True, tracing)
    root = tracing.made("rsqrt", out, X=tracing.scaled(mean, 1.0, epsilon))
    made = tracing.made("elementwise_mul", out, X=x, Y=root)
    if scale is not None:
        made = tracing.made("elementwise_mul", out, X=made, Y=tracing.value(scale))
    tracing.alias(out, made)


@aten("batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training")
def _batch_norm(node: Any, tracing: Tracing, out: str) -> None:
    """With statistics of the batch, which are kept, or with those kept."""
    kind = node.target.__name__
    x, scale, bias, *rest = node.args
    name = tracing.value(x)
    if kind.endswith("no_stats"):
        mean, variance, training, momentum, epsilon = None, None, *rest[:3]
    elif "no_training" in kind:
        (mean, variance, momentum, epsilon), training = rest[:4], False
    else:
        mean, variance, training, momentum, epsilon = rest[:5]
    if mean is None or scale is None or bias is None:
        _plain_batch_norm(node, (name, scale, bias, mean, variance), bool(training), float(momentum), float(epsilon), tracing, out)
        return
    kept = [tracing.value(mean), tracing.value(variance)]
    made = {"Y": out, "MeanOut": kept[0], "VarianceOut": kept[1]}
    made |= {"SavedMean": tracing.temp(out), "SavedVariance": tracing.temp(out)}
    inputs = {"X": name, "Scale": tracing.value(scale), "Bias": tracing.value(bias), "Mean": kept[0], "Variance": kept[1]}
    attrs: dict[str, object] = {"epsilon": float(epsilon), "momentum": 1 - float(momentum)}
    attrs["sample_variance" if training else "use_global_stats"] = True
    tracing.op("batch_norm", inputs, made, **attrs)
    tracing.parts[node.name] = [out, None, None, *kept]


def _plain_batch_norm(
    node: Any, given: tuple[str, Any, Any, Any, Any], training: bool, momentum: float, epsilon: float, tracing: Tracing, out: str
) -> None:
    """A batch norm without scale and bias, or without statistics that are kept, out of sums."""
    x, scale, bias, mean, variance = given
    rank = len(tracing.dims(x))
    axes = [0, *range(2, rank)]
    parts: list[str | None] = [out, None, None, None, None]
    if training:
        made = normed(x, axes, epsilon, tracing)
        if mean is not None:
            parts[3:] = _kept_statistics(x, axes, tracing.value(mean), tracing.value(variance), momentum, tracing)
    else:
        wide = [_of_channels(tracing.value(arg), rank, tracing) for arg in (mean, variance)]
        apart = tracing.made("elementwise_sub", out, X=x, Y=wide[0])
        root = tracing.made("sqrt", out, X=tracing.scaled(wide[1], 1.0, epsilon))
        made = tracing.made("elementwise_div", out, X=apart, Y=root)
        if mean is not None:
            parts[3:] = [tracing.value(mean), tracing.value(variance)]
    for op_type, arg in (("elementwise_mul", scale), ("elementwise_add", bias)):
        if arg is not None:
            made = tracing.made(op_type, out, X=made, Y=_of_channels(tracing.value(arg), rank, tracing))
    tracing.alias(out, made)
    parts[0] = made
    tracing.parts[node.name] = parts


def _of_channels(values: str, rank: int, tracing: Tracing) -> str:
    """Values of channels with a dim of one element for each dim that comes after these."""
    if rank == 2:
        return values
    reshape(values, wide := tracing.temp(values), [tracing.dims(values)[0], *[1] * (rank - 2)], tracing)
    return wide


def _kept_statistics(
    x: str, axes: Sequence[int], mean: str, variance: str, momentum: float, tracing: Tracing
) -> tuple[str, str]:
    """New running statistics: the mean of the batch, and the variance of a sample of which it is one."""
    from pstranspile.frontends.torch.elements import _corrected

    reduced("reduce_mean", x, here := tracing.temp(x), axes, True, tracing)
    apart = tracing.made("square", x, X=tracing.made("elementwise_sub", x, X=x, Y=here))
    reduced("reduce_mean", apart, spread := tracing.temp(x), axes, False, tracing)
    reduced("reduce_mean", x, plain := tracing.temp(x), axes, False, tracing)
    spread = _corrected(spread, x, axes, 1.0, x, tracing)
    made: list[str] = []
    for before, new in ((mean, plain), (variance, spread)):
        tracing.draft.stop_gradient.add(new)
        both = tracing.made("elementwise_add", x, X=tracing.scaled(before, 1 - momentum), Y=tracing.scaled(new, momentum))
        tracing.draft.stop_gradient.add(both)
        made.append(both)
    return made[0], made[1]


@aten("group_norm", "native_group_norm", "instance_norm")
def _group_norm(node: Any, tracing: Tracing, out: str) -> None:
    kind, x = node.target.__name__.split(".")[0], tracing.value(node.args[0])
    sizes = sizes_of(x, tracing)
    if kind == "instance_norm":
        scale, bias, running = node.args[1], node.args[2], node.args[3]
        if running is not None:
            raise Refused("it is an instance norm with running statistics")
        made = normed(x, [*range(2, len(sizes))], float(node.args[7]), tracing)
    else:
        if kind == "native_group_norm":
            scale, bias, groups, epsilon = node.args[1], node.args[2], node.args[6], node.args[7]
        else:
            groups, scale, bias = node.args[1], argument(node, 2, "weight"), argument(node, 3, "bias")
            epsilon = argument(node, 4, "eps", 1e-5)
        reshape(x, grouped := tracing.temp(x), [sizes[0], groups, -1], tracing)
        flat = normed(grouped, [2], float(epsilon), tracing)
        reshape(flat, made := tracing.temp(x), sizes, tracing)
    for op_type, arg in (("elementwise_mul", scale), ("elementwise_add", bias)):
        if arg is not None:
            values = tracing.value(arg)
            if len(sizes) > 2:
                reshape(values, wide := tracing.temp(values), [sizes[1], *[1] * (len(sizes) - 2)], tracing)
                values = wide
            made = tracing.made(op_type, out, X=made, Y=values)
    tracing.alias(out, made)
    if kind == "native_group_norm":
        tracing.parts[node.name] = [made, None, None]


# Shares, and losses.


@aten("softmax", "_softmax")
def _softmax(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    tracing.op("softmax", {"X": x}, {"Out": out}, axis=node.args[1] % max(len(tracing.dims(x)), 1))


@aten("log_softmax", "_log_softmax")
def _log_softmax(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    logs(x, out, node.args[1] % max(len(tracing.dims(x)), 1), tracing)


def logs(x: str, out: str, axis: int, tracing: Tracing) -> None:
    """`out` has the logarithms of the shares that `x` gives along an axis."""
    log_sum_exp(x, total := tracing.temp(out), [axis], True, tracing)
    tracing.op("elementwise_sub", {"X": x, "Y": total}, {"Out": out})


_NONE, _MEAN, _SUM = 0, 1, 2


def averaged(x: str, out: str, reduction: int, tracing: Tracing) -> None:
    """`out` is a loss of elements as it is, its mean, or its sum."""
    if reduction == _NONE:
        tracing.alias(out, x)
    else:
        axes = [*range(len(tracing.dims(x)))]
        reduced("reduce_mean" if reduction == _MEAN else "reduce_sum", x, out, axes, False, tracing)


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
    if rank > 2:  # classes last, and every element a row
        order = [0, *range(2, rank), 1]
        transpose(x, turned := tracing.temp(x), order, tracing)
        reshape(turned, x := tracing.temp(x), [-1, sizes[1]], tracing)
    reshape(target, labels := tracing.temp(target), [-1, 1], tracing)
    if tracing.dtype(labels) is not DType.INT64:
        labels = tracing.as_type(labels, DType.INT64)
    kept = compared("not_equal", labels, tracing.constant_of(ignored, DType.INT64, out), tracing)
    real = tracing.as_type(kept, tracing.dtype(x))
    tracing.draft.stop_gradient.add(real)
    if kind == "cross_entropy_loss" and weights is None and not smoothing:
        losses, shares = tracing.temp(out), tracing.temp(out)
        attrs = {"ignore_index": ignored, "soft_label": False}
        tracing.op("softmax_with_cross_entropy", {"Logits": x, "Label": labels}, {"Loss": losses, "Softmax": shares}, **attrs)
        counts = real
    else:
        losses, counts = _picked_losses(kind, x, labels, real, weights, smoothing, reduction, out, tracing)
    _reduced_rows(losses, counts, reduction, sizes, out, tracing)


def _reduced_rows(losses: str, counts: str, reduction: int, sizes: list[int], out: str, tracing: Tracing) -> None:
    """Losses of rows [rows, 1] as they are, their sum, or their mean over what the rows count."""
    if reduction == _NONE:
        reshape(losses, out, [sizes[0], *sizes[2:]], tracing)
        return
    total = out if reduction == _SUM else tracing.temp(out)
    reduced("reduce_sum", losses, total, [0, 1], False, tracing)
    if reduction == _MEAN:
        reduced("reduce_sum", counts, number := tracing.temp(out), [0, 1], False, tracing)
        tracing.draft.stop_gradient.add(number)
        tracing.op("elementwise_div", {"X": total, "Y": number}, {"Out": out})


def _picked_losses(
    kind: str, x: str, labels: str, real: str, weights: str | None, smoothing: float, reduction: int, out: str, tracing: Tracing
) -> tuple[str, str]:
    """The losses of rows [rows, 1], and what each row counts."""
    width = tracing.dims(x)[1]
    if kind == "cross_entropy_loss":
        logs(x, shares := tracing.temp(out), 1, tracing)
    else:
        shares = x
    within = _within(labels, real, tracing)
    hot = tracing.made("one_hot_v2", out, {"depth": width}, X=_flat(within, tracing))
    hot = tracing.as_type(hot, tracing.dtype(x))
    hot = tracing.made("elementwise_mul", out, X=hot, Y=real)
    counts = real
    if weights is not None:
        hot = tracing.made("elementwise_mul", out, X=hot, Y=weights)
        reduced("reduce_sum", hot, counts := tracing.temp(out), [1], True, tracing)
    tracing.draft.stop_gradient.update((hot, counts))
    reduced("reduce_sum", tracing.made("elementwise_mul", out, X=shares, Y=hot), picked := tracing.temp(out), [1], True, tracing)
    losses = tracing.scaled(picked, smoothing - 1.0)
    if smoothing:
        every = shares if weights is None else tracing.made("elementwise_mul", out, X=shares, Y=weights)
        reduced("reduce_sum", every, spread := tracing.temp(out), [1], True, tracing)
        spread = tracing.made("elementwise_mul", out, X=spread, Y=real)
        losses = tracing.made("elementwise_add", out, X=losses, Y=tracing.scaled(spread, -smoothing / width))
    _ = reduction
    return losses, counts


def _within(labels: str, real: str, tracing: Tracing) -> str:
    """Labels with 0 for those that are ignored."""
    whole = tracing.as_type(real, DType.INT64)
    tracing.draft.stop_gradient.add(whole)
    made = tracing.made("elementwise_mul", labels, X=labels, Y=whole)
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
    terms = tracing.made("elementwise_mul", out, X=shares, Y=target)
    if weights is not None:
        rank = len(tracing.dims(x))
        if rank > 2:
            reshape(weights, wide := tracing.temp(weights), [width, *[1] * (rank - 2)], tracing)
            weights = wide
        terms = tracing.made("elementwise_mul", out, X=terms, Y=weights)
    reduced("reduce_sum", terms, rows := tracing.temp(out), [axis], False, tracing)
    averaged(tracing.scaled(rows, -1.0), out, reduction, tracing)


@aten("binary_cross_entropy")
def _bce(node: Any, tracing: Tracing, out: str) -> None:
    """-(y max(log p, -100) + (1 - y) max(log(1 - p), -100)), torch's bound on what a sure mistake costs."""
    x, y, weight = tracing.value(node.args[0]), tracing.value(node.args[1]), argument(node, 2, "weight")
    kind = tracing.dtype(x)
    bound = tracing.constant_of(-100.0, kind, out)
    first = tracing.made("elementwise_max", out, X=tracing.made("log", out, X=x), Y=bound)
    other = tracing.made("log", out, X=tracing.scaled(x, -1.0, 1.0))
    second = tracing.made("elementwise_max", out, X=other, Y=bound)
    parts = tracing.made(
        "elementwise_add",
        out,
        X=tracing.made("elementwise_mul", out, X=first, Y=y),
        Y=tracing.made("elementwise_mul", out, X=second, Y=tracing.scaled(y, -1.0, 1.0)),
    )
    losses = tracing.scaled(parts, -1.0)
    if weight is not None:
        losses = tracing.made("elementwise_mul", out, X=losses, Y=tracing.value(weight))
    averaged(losses, out, argument(node, 3, "reduction", _MEAN), tracing)


@aten("binary_cross_entropy_with_logits")
def _bce_with_logits(node: Any, tracing: Tracing, out: str) -> None:
    """(1 - y) x + (1 + (p - 1) y) (log(1 + exp(-|x|)) + max(-x, 0)), p being pos_weight or 1."""
    x, y = tracing.value(node.args[0]), tracing.value(node.args[1])
    weight, positive = argument(node, 2, "weight"), argument(node, 3, "pos_weight")
    y = tracing.as_type(y, tracing.dtype(x))
    if positive is None:
        losses = tracing.made("sigmoid_cross_entropy_with_logits", out, {"ignore_index": -100}, X=x, Label=y)
    else:
        from pstranspile.frontends.torch.elements import _soft

        soft = _soft(tracing.scaled(x, -1.0), out, tracing)
        factor = tracing.scaled(tracing.value(positive), 1.0, -1.0)
        factor = tracing.scaled(tracing.made("elementwise_mul", out, X=y, Y=factor), 1.0, 1.0)
        left = tracing.made("elementwise_mul", out, X=tracing.scaled(y, -1.0, 1.0), Y=x)
        losses = tracing.made("elementwise_add", out, X=left, Y=tracing.made("elementwise_mul", out, X=soft, Y=factor))
    if weight is not None:
        losses = tracing.made("elementwise_mul", out, X=losses, Y=tracing.value(weight))
    averaged(losses, out, argument(node, 4, "reduction", _MEAN), tracing)


@aten("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
def _distance(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    x, y = (tracing.value(arg) for arg in node.args[:2])
    reduction = argument(node, 2, "reduction", _MEAN)
    way = tracing.made("elementwise_sub", out, X=x, Y=tracing.as_type(y, tracing.dtype(x)))
    if kind == "mse_loss":
        losses = tracing.made("square", out, X=way)
    elif kind == "l1_loss":
        losses = tracing.made("abs", out, X=way)
    else:
        bound = float(argument(node, 3, "beta" if kind.startswith("smooth") else "delta", 1.0))
        far = tracing.made("abs", out, X=way)
        near = tracing.scaled(tracing.made("square", out, X=way), 0.5 / bound if kind.startswith("smooth") else 0.5)
        factor = 1.0 if kind.startswith("smooth") else bound
        line = tracing.scaled(far, factor, -0.5 * bound * factor)
        inside = compared("less_than", far, tracing.constant_of(bound, tracing.dtype(x), out), tracing)
        losses = tracing.made("where", out, Condition=inside, X=near, Y=line)
    averaged(losses, out, reduction, tracing)


@aten("kl_div")
def _kl_div(node: Any, tracing: Tracing, out: str) -> None:
    x, y = (tracing.value(arg) for arg in node.args[:2])
    kind = tracing.dtype(x)
    if bool(node.kwargs.get("log_target", False)):
        way = tracing.made("elementwise_sub", out, X=y, Y=x)
        losses = tracing.made("elementwise_mul", out, X=tracing.made("exp", out, X=y), Y=way)
    else:
        zero = tracing.constant_of(0.0, kind, out)
        from pstranspile.frontends.onnx.read_tensors import of_one_shape

        above = compared("greater_than", y, zero, tracing)
        condition, held, one = of_one_shape([above, y, tracing.constant_of(1.0, kind, out)], tracing)
        safe = tracing.made("where", out, Condition=condition, X=held, Y=one)
        own = tracing.made("elementwise_mul", out, X=y, Y=tracing.made("log", out, X=safe))
        losses = tracing.made("elementwise_sub", out, X=own, Y=tracing.made("elementwise_mul", out, X=y, Y=x))
    averaged(losses, out, argument(node, 2, "reduction", _MEAN), tracing)


@aten("cosine_similarity")
def _cosine(node: Any, tracing: Tracing, out: str) -> None:
    x, y = (tracing.value(arg) for arg in node.args[:2])
    axis = argument(node, 2, "dim", 1) % len(tracing.dims(x))
    epsilon = float(argument(node, 3, "eps", 1e-8))
    kind = tracing.dtype(x)
    norms: list[str] = []
    for name in (x, y):
        reduced("reduce_sum", tracing.made("square", out, X=name), total := tracing.temp(out), [axis], True, tracing)
        root = tracing.made("sqrt", out, X=total)
        least = tracing.made("elementwise_max", out, X=root, Y=tracing.constant_of(epsilon, kind, out))
        norms.append(tracing.made("elementwise_div", out, X=name, Y=least))
    reduced("reduce_sum", tracing.made("elementwise_mul", out, X=norms[0], Y=norms[1]), out, [axis], False, tracing)


# Images.


def _pair(numbers: Any, count: int) -> list[int]:
    listed = [numbers] if isinstance(numbers, int) else list(numbers)
    return [int(n) for n in (listed * count if len(listed) == 1 else listed)]


@aten("conv1d", "conv2d", "conv3d", "convolution")
def _convolution(node: Any, tracing: Tracing, out: str) -> None:
    x, weight, bias = tracing.value(node.args[0]), tracing.value(node.args[1]), argument(node, 2, "bias")
    count = len(tracing.dims(weight)) - 2
    if len(tracing.dims(x)) != count + 2:
        raise Refused("its image has no dim of the batch")
    stride, padding = argument(node, 3, "stride", 1), argument(node, 4, "padding", 0)
    dilation, groups = argument(node, 5, "dilation", 1), argument(node, 6, "groups", 1)
    flipped = False
    if node.target.__name__.startswith("convolution"):
        flipped, groups = bool(node.args[6]), node.args[8]
        if any(node.args[7]):
            raise Refused("it has output_padding")
    if isinstance(padding, str):
        dilated = _pair(dilation, count)
        spans = [(size - 1) * apart for size, apart in zip(tracing.dims(weight)[2:], dilated, strict=True)]
        if padding == "same" and any(span % 2 for span in spans):
            raise Refused("its padding is 'same' for an even window")
        padding = [span // 2 for span in spans] if padding == "same" else 0
    _convolved(tracing, out, x, weight, bias, _pair(stride, count), _pair(padding, count), _pair(dilation, count), groups, flipped)


@aten("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(node: Any, tracing: Tracing, out: str) -> None:
    x, weight, bias = tracing.value(node.args[0]), tracing.value(node.args[1]), argument(node, 2, "bias")
    count = len(tracing.dims(weight)) - 2
    if any(_pair(argument(node, 5, "output_padding", 0), count)):
        raise Refused("it has output_padding")
    numbers = [_pair(argument(node, at, "", default), count) for at, default in ((3, 1), (4, 0), (7, 1))]
    _convolved(tracing, out, x, weight, bias, *numbers, argument(node, 6, "groups", 1), True)


def _convolved(
    tracing: Tracing, out: str, x: str, weight: str, bias: Any, stride: list[int], padding: list[int], dilation: list[int], groups: int, flipped: bool
) -> None:
    flat = len(stride) == 1
    if flat:
        with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[2])
        with_x_shape("unsqueeze2", weight, filters := tracing.temp(weight), tracing, axes=[2])
        x, weight, stride, padding, dilation = wide, filters, [1, *stride], [0, *padding], [1, *dilation]
    kind = f"conv{len(stride)}d" + ("_transpose" if flipped else "")
    made = tracing.temp(out) if bias is not None or flat else out
    attrs = {"strides": stride, "paddings": padding, "dilations": dilation, "groups": groups}
    tracing.op(kind, {"Input": x, "Filter": weight}, {"Output": made}, **attrs)
    if bias is not None:
        added = tracing.temp(out) if flat else out
        tracing.op("elementwise_add", {"X": made, "Y": tracing.value(bias)}, {"Out": added}, axis=1)
        made = added
    if flat:
        with_x_shape("squeeze2", made, out, tracing, axes=[2])


@aten("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "max_pool2d_with_indices", "max_pool3d", "avg_pool3d")
def _pool(node: Any, tracing: Tracing, out: str) -> None:
    name, x = node.target.__name__.split(".")[0], tracing.value(node.args[0])
    count = int(name[8])
    size = _pair(node.args[1], count)
    stride = _pair(argument(node, 2, "stride") or size, count)
    padding = _pair(argument(node, 3, "padding", 0), count)
    average = name.startswith("avg")
    if average:
        ceil, whole = bool(argument(node, 4, "ceil_mode", False)), bool(argument(node, 5, "count_include_pad", True))
        if argument(node, 6, "divisor_override") is not None:
            raise Refused("it has divisor_override")
    else:
        ceil, whole = bool(argument(node, 5, "ceil_mode", False)), False
        if {*_pair(argument(node, 4, "dilation", 1), count)} != {1}:
            raise Refused("its windows are dilated")
    if ceil:
        raise Refused("it has ceil_mode, whose windows past the end are counted otherwise")
    attrs: dict[str, object] = {"pooling_type": "avg" if average else "max", "exclusive": not whole}
    pooled(x, out, size, stride, padding, attrs, tracing)
    if name.endswith("indices"):
        tracing.parts[node.name] = [out, None]


def pooled(x: str, out: str, size: list[int], stride: list[int], padding: list[int], attrs: dict[str, object], tracing: Tracing) -> None:
    """`out` has the largest or the mean of each window of images."""
    flat = len(size) == 1
    if flat:
        with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[2])
        x, size, stride, padding = wide, [1, *size], [1, *stride], [0, *padding]
    made = tracing.temp(out) if flat else out
    tracing.op(f"pool{len(size)}d", {"X": x}, {"Out": made}, ksize=size, strides=stride, paddings=padding, **attrs)
    if flat:
        with_x_shape("squeeze2", made, out, tracing, axes=[2])


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "_adaptive_avg_pool2d")
def _adaptive_pool(node: Any, tracing: Tracing, out: str) -> None:
    name, x = node.target.__name__.split(".")[0].lstrip("_"), tracing.value(node.args[0])
    count = 1 if "1d" in name else 2
    sizes, wanted = sizes_of(x, tracing)[-count:], _pair(node.args[1], count)
    kind = "avg" if "avg" in name else "max"
    if wanted == [1] * count:
        rank = len(tracing.dims(x))
        reduced("reduce_mean" if kind == "avg" else "reduce_max", x, out, [*range(rank - count, rank)], True, tracing)
    elif any(is_code(size) or size % new for size, new in zip(sizes, wanted, strict=True)):
        raise Refused("its windows are of different sizes")
    else:
        window = [size // new for size, new in zip(sizes, wanted, strict=True)]
        pooled(x, out, window, window, [0] * count, {"pooling_type": kind, "exclusive": False}, tracing)
    if "max" in name:
        tracing.parts[node.name] = [out, None]


_ = swapped
