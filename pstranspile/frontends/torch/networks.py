"""ATen operators of networks as ops: matrix products, attention, normalization, softmax, random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.read_math import einsum
from pstranspile.frontends.onnx.read_tensors import (
    common,
    expand,
    fill,
    of_one_shape,
    reshape,
    sizes_of,
    with_x_shape,
)
from pstranspile.frontends.onnx.reading import is_code
from pstranspile.frontends.torch.capture import CUMULATIVE
from pstranspile.frontends.torch.elements import (
    append_where,
    compare,
    comparison_flags,
    corrected_variance,
    log_sum_exp,
    reduce_axes,
)
from pstranspile.frontends.torch.tensors import append_repeat
from pstranspile.frontends.torch.tracing import FLOATS, Tracing, argument, aten, dtype_of
from pstranspile.ir.attributes import Double
from pstranspile.ir.types import DType

# Matrix products and attention.


@aten("linear")
def _linear(node: Any, tracing: Tracing, out: str) -> None:
    x, weight, bias = tracing.value(node.args[0]), tracing.value(node.args[1]), argument(node, 2, "bias")
    sizes = sizes_of(x, tracing)
    product = tracing.temp(out) if bias is not None else out
    if len(sizes) == 2:
        tracing.op("matmul", {"X": x, "Y": weight}, {"Out": product}, transpose_Y=True)
    else:
        reshape(x, rows := tracing.temp(x), [-1, sizes[-1]], tracing)
        flat = tracing.op_result("matmul", out, {"transpose_Y": True}, X=rows, Y=weight)
        reshape(flat, product, [*sizes[:-1], tracing.dims(weight)[0]], tracing)
    if bias is not None:
        tracing.op("elementwise_add", {"X": product, "Y": tracing.value(bias)}, {"Out": out})


@aten("addmm", "baddbmm")
def _addmm(node: Any, tracing: Tracing, out: str) -> None:
    bias, x, y = (tracing.value(arg) for arg in node.args[:3])
    product = tracing.op_result("matmul", out, {"alpha": float(node.kwargs.get("alpha", 1))}, X=x, Y=y)
    beta = float(node.kwargs.get("beta", 1))
    bias = tracing.scaled(bias, beta) if beta != 1 else bias
    tracing.op("elementwise_add", {"X": product, "Y": bias}, {"Out": out})


@aten("mm", "bmm", "matmul", "mv", "dot")
def _matmul(node: Any, tracing: Tracing, out: str) -> None:
    product(tracing.value(node.args[0]), tracing.value(node.args[1]), out, tracing)


def product(x: str, y: str, out: str, tracing: Tracing, *, turned: bool = False, alpha: float = 1.0) -> None:
    """`out` is `alpha * torch.matmul(x, y)`; with `turned`, `y` is transposed in its last two dims."""
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
        flat = tracing.op_result("matmul", out, attrs, X=rows, Y=y)
        reshape(flat, out, [*left[:-1], right[0] if turned else right[1]], tracing)
        return
    if left[:-2] != right[:-2]:
        batch = common([x, y], tracing, but=2)
        for at, (name, dims) in enumerate(((x, left), (y, right))):
            if dims[:-2] == batch:
                continue
            expand(name, made := tracing.temp(name), [*batch, *dims[-2:]], tracing)
            made = tracing.resolve_alias(made)
            x, y = (made, y) if at == 0 else (x, made)
    tracing.op("matmul", {"X": x, "Y": y}, {"Out": out}, **attrs)


@aten("einsum")
def _einsum(node: Any, tracing: Tracing, out: str) -> None:
    kind = dtype_of(node.meta["val"].dtype)  # of an outer product of whole numbers with others, that of the others
    operands = [tracing.as_type(tracing.value(arg), kind) for arg in node.args[1]]
    einsum(node.args[0], operands, out, tracing)


@aten("scaled_dot_product_attention")
def _attention(node: Any, tracing: Tracing, out: str) -> None:
    query, key, value = (tracing.value(arg) for arg in node.args[:3])
    mask = argument(node, 3, "attn_mask")
    rate = float(argument(node, 4, "dropout_p", 0.0))
    causal = bool(argument(node, 5, "is_causal", False))
    scale = node.kwargs.get("scale")
    if node.kwargs.get("enable_gqa"):
        key, value = (_for_every_head(part, query, tracing) for part in (key, value))
    scale = 1 / math.sqrt(tracing.dims(query)[-1]) if scale is None else float(scale)
    product(tracing.scaled(query, scale), key, weights := tracing.temp(out), tracing, turned=True)
    some = ""
    if causal:
        mask_name = _causal(weights, tracing)
        weights = _hidden(weights, mask_name, tracing)
    if mask is not None:
        name = tracing.value(mask)
        weights, some = _mask_scores(weights, name, tracing)
    shares = tracing.op_result("softmax", out, {"axis": -1}, X=weights)
    if some:
        shares = tracing.op_result("elementwise_mul", out, X=shares, Y=some)
    if rate > 0:
        shares = append_dropout(shares, rate, tracing)
    product(shares, value, out, tracing)


def _for_every_head(part: str, query: str, tracing: Tracing) -> str:
    """Keys or values [..., heads, steps, width], with each head repeated for the query heads that share it."""
    sizes, heads = sizes_of(part, tracing), tracing.size(query, len(tracing.dims(query)) - 3)
    if is_code(heads) or is_code(sizes[-3]):
        raise Refused("it has a number of heads that a run knows")
    axis = len(sizes) - 3
    with_x_shape("unsqueeze2", part, wide := tracing.temp(part), tracing, axes=[axis + 1])
    times = [1] * (len(sizes) + 1)
    times[axis + 1] = heads // sizes[axis]
    append_repeat(wide, many := tracing.temp(part), times, tracing)
    reshape(many, made := tracing.temp(part), [*sizes[:axis], heads, *sizes[axis + 1 :]], tracing)
    return made


def _causal(weights: str, tracing: Tracing) -> str:
    """The causal mask [queries, keys]: true where the key's position is at most the query's."""
    sizes = sizes_of(weights, tracing)[-2:]
    fill(ones := tracing.temp(weights), sizes, np.ones(1, "int32"), tracing)
    lower = tracing.op_result("tril_triu", weights, {"diagonal": 0, "lower": True}, X=ones)
    tracing.cast(lower, flags := tracing.temp(weights), DType.BOOL)
    tracing.draft.stop_gradient.update((ones, lower, flags))
    return flags


def _hidden(weights: str, seen: str, tracing: Tracing) -> str:
    """Attention scores, with -inf where the mask `seen` is false."""
    lowest = tracing.constant_of(-math.inf, tracing.dtype(weights), weights)
    condition, x, y = of_one_shape([seen, weights, lowest], tracing)
    return tracing.op_result("where", weights, Condition=condition, X=x, Y=y)


def _mask_scores(weights: str, mask: str, tracing: Tracing) -> tuple[str, str]:
    """Attention scores with a mask of flags, or of numbers to add; and 1 for each query that may see a key, else 0.

    A query that sees no key has finite scores here, so that its shares and their gradient are numbers.
    """
    kind = tracing.dtype(weights)
    lowest, zero = (tracing.constant_of(number, kind, weights) for number in (-math.inf, 0.0))
    flags = tracing.dtype(mask) is DType.BOOL
    mask = mask if flags else tracing.as_type(mask, kind)
    seen = mask if flags else comparison_flags("not_equal", mask, lowest, tracing)
    reduce_axes("reduce_any", seen, any_seen := tracing.temp(weights), [len(tracing.dims(seen)) - 1], True, tracing)
    some = tracing.as_type(any_seen, kind)
    tracing.draft.stop_gradient.update((any_seen, some))
    if flags:
        append_where(any_seen, lowest, zero, filler := tracing.temp(weights), tracing)
        tracing.draft.stop_gradient.add(filler)
        append_where(mask, weights, filler, made := tracing.temp(weights), tracing)
        return made, some
    append_where(any_seen, mask, zero, added := tracing.temp(weights), tracing)
    return tracing.op_result("elementwise_add", weights, X=weights, Y=added), some


def append_dropout(x: str, rate: float, tracing: Tracing) -> str:
    """Dropout: each element of `x` is 0 with probability `rate`, else multiplied by `1 / (1 - rate)`."""
    made, mask = tracing.temp(x), tracing.temp(x)
    attrs = {"dropout_prob": rate, "dropout_implementation": "upscale_in_train"}
    tracing.op("dropout", {"X": x}, {"Out": made, "Mask": mask}, **attrs)
    return made


@aten("dropout", "native_dropout")
def _dropout(node: Any, tracing: Tracing, out: str) -> None:
    x, rate, training = tracing.value(node.args[0]), float(node.args[1]), bool(node.args[2])
    made = append_dropout(x, rate, tracing) if training and rate > 0 else x
    tracing.alias(out, made)
    if node.target.__name__.startswith("native"):
        tracing.parts[node.name] = [made, None]


# Normalization.


@aten("layer_norm", "native_layer_norm")
def _layer_norm(node: Any, tracing: Tracing, out: str) -> None:
    x, shape = tracing.value(node.args[0]), list(node.args[1])
    scale, bias = argument(node, 2, "weight"), argument(node, 3, "bias")
    epsilon = float(argument(node, 4, "eps", 1e-5))
    begin = len(tracing.dims(x)) - len(shape)
    if tracing.dtype(x) is DType.FP64 or begin == 0:
        axes = [*range(begin, begin + len(shape))]
        made = normalise_along(x, axes, epsilon, tracing)
        for op_type, arg in (("elementwise_mul", scale), ("elementwise_add", bias)):
            if arg is not None:
                made = tracing.op_result(op_type, out, X=made, Y=tracing.value(arg))
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


def normalise_along(x: str, axes: Sequence[int], epsilon: float, tracing: Tracing) -> str:
    """`(x - mean) / sqrt(variance + epsilon)`, with mean and variance along axes."""
    reduce_axes("reduce_mean", x, mean := tracing.temp(x), axes, True, tracing)
    apart = tracing.op_result("elementwise_sub", x, X=x, Y=mean)
    reduce_axes(
        "reduce_mean", tracing.op_result("square", x, X=apart), variance := tracing.temp(x), axes, True, tracing
    )
    root = tracing.op_result("sqrt", x, X=tracing.scaled(variance, 1.0, epsilon))
    return tracing.op_result("elementwise_div", x, X=apart, Y=root)


@aten("rms_norm")
def _rms_norm(node: Any, tracing: Tracing, out: str) -> None:
    x, shape, scale = tracing.value(node.args[0]), list(node.args[1]), argument(node, 2, "weight")
    epsilon = argument(node, 3, "eps")
    epsilon = (
        {DType.FP32: 1.1920928955078125e-07, DType.FP64: 2.220446049250313e-16}[tracing.dtype(x)]
        if epsilon is None
        else float(epsilon)
    )
    rank = len(tracing.dims(x))
    axes = [*range(rank - len(shape), rank)]
    reduce_axes("reduce_mean", tracing.op_result("square", out, X=x), mean := tracing.temp(out), axes, True, tracing)
    root = tracing.op_result("rsqrt", out, X=tracing.scaled(mean, 1.0, epsilon))
    made = tracing.op_result("elementwise_mul", out, X=x, Y=root)
    if scale is not None:
        made = tracing.op_result("elementwise_mul", out, X=made, Y=tracing.value(scale))
    tracing.alias(out, made)


@aten(
    "batch_norm",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
)
def _batch_norm(node: Any, tracing: Tracing, out: str) -> None:
    """A batch norm with the batch's statistics, which update the running ones; in evaluation with the running ones."""
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
        _plain_batch_norm(
            node, (name, scale, bias, mean, variance), bool(training), float(momentum), float(epsilon), tracing, out
        )
        return
    kept = [tracing.value(mean), tracing.value(variance)]
    made = {"Y": out, "MeanOut": kept[0], "VarianceOut": kept[1]}
    made |= {"SavedMean": tracing.temp(out), "SavedVariance": tracing.temp(out)}
    inputs = {
        "X": name,
        "Scale": tracing.value(scale),
        "Bias": tracing.value(bias),
        "Mean": kept[0],
        "Variance": kept[1],
    }
    attrs: dict[str, object] = {"epsilon": float(epsilon), "momentum": 1 - float(momentum)}
    if momentum == CUMULATIVE and training:
        attrs["momentum"], inputs["MomentumTensor"] = 0.0, _share_kept(kept[0], tracing.dtype(name), tracing)
    attrs["sample_variance" if training else "use_global_stats"] = True
    tracing.op("batch_norm", inputs, made, **attrs)
    tracing.parts[node.name] = [out, None, None, *kept]


def _plain_batch_norm(
    node: Any,
    given: tuple[str, Any, Any, Any, Any],
    training: bool,
    momentum: float,
    epsilon: float,
    tracing: Tracing,
    out: str,
) -> None:
    """A batch norm without scale, bias or running statistics, composed of elementwise ops and reductions."""
    x, scale, bias, mean, variance = given
    rank = len(tracing.dims(x))
    axes = [0, *range(2, rank)]
    parts: list[str | None] = [out, None, None, None, None]
    if training:
        made = normalise_along(x, axes, epsilon, tracing)
        if mean is not None:
            kept = (tracing.value(mean), tracing.value(variance))
            parts[3:] = _kept_statistics(x, axes, *kept, momentum, tracing)
    else:
        wide = [_of_channels(tracing.value(arg), rank, tracing) for arg in (mean, variance)]
        apart = tracing.op_result("elementwise_sub", out, X=x, Y=wide[0])
        root = tracing.op_result("sqrt", out, X=tracing.scaled(wide[1], 1.0, epsilon))
        made = tracing.op_result("elementwise_div", out, X=apart, Y=root)
        if mean is not None:
            parts[3:] = [tracing.value(mean), tracing.value(variance)]
    for op_type, arg in (("elementwise_mul", scale), ("elementwise_add", bias)):
        if arg is not None:
            made = tracing.op_result(op_type, out, X=made, Y=_of_channels(tracing.value(arg), rank, tracing))
    tracing.alias(out, made)
    parts[0] = made
    tracing.parts[node.name] = parts


def _share_kept(mean: str, kind: DType, tracing: Tracing) -> str:
    """The weight (n - 1) / n of the old running statistics in the new ones, at the n-th batch."""
    count = f"{mean.removesuffix('running_mean')}num_batches_tracked"
    before = tracing.as_type(count, kind)
    after = tracing.scaled(before, 1.0, 1.0)
    share = tracing.op_result("elementwise_div", mean, X=before, Y=after)
    tracing.draft.stop_gradient.update((before, after, share))
    return share


def _of_channels(values: str, rank: int, tracing: Tracing) -> str:
    """Values of channels [channels] reshaped to [channels, 1, ...], to broadcast over `rank - 2` spatial dims."""
    if rank == 2:
        return values
    reshape(values, wide := tracing.temp(values), [tracing.dims(values)[0], *[1] * (rank - 2)], tracing)
    return wide


def _kept_statistics(
    x: str, axes: Sequence[int], mean: str, variance: str, momentum: float, tracing: Tracing
) -> tuple[str, str]:
    """The running mean and variance after a batch. The batch contributes its mean and its unbiased variance."""
    reduce_axes("reduce_mean", x, here := tracing.temp(x), axes, True, tracing)
    apart = tracing.op_result("square", x, X=tracing.op_result("elementwise_sub", x, X=x, Y=here))
    reduce_axes("reduce_mean", apart, spread := tracing.temp(x), axes, False, tracing)
    reduce_axes("reduce_mean", x, plain := tracing.temp(x), axes, False, tracing)
    spread = corrected_variance(spread, x, axes, 1.0, x, tracing)
    made: list[str] = []
    share = _share_kept(mean, tracing.dtype(x), tracing) if momentum == CUMULATIVE else None
    for before, new in ((mean, plain), (variance, spread)):
        tracing.draft.stop_gradient.add(new)
        if share is None:
            parts = {"X": tracing.scaled(before, 1 - momentum), "Y": tracing.scaled(new, momentum)}
        else:
            held = tracing.op_result("elementwise_mul", x, X=before, Y=share)
            parts = {"X": held, "Y": tracing.op_result("elementwise_mul", x, X=new, Y=tracing.scaled(share, -1.0, 1.0))}
        both = tracing.op_result("elementwise_add", x, X=parts["X"], Y=parts["Y"])
        tracing.draft.stop_gradient.add(both)
        made.append(both)
    return made[0], made[1]


@aten("group_norm", "native_group_norm", "instance_norm")
def _group_norm(node: Any, tracing: Tracing, out: str) -> None:
    kind, x = node.target.__name__.split(".")[0], tracing.value(node.args[0])
    sizes = sizes_of(x, tracing)
    if kind == "instance_norm":
        scale, bias = node.args[1], node.args[2]
        made = normalise_along(x, [*range(2, len(sizes))], float(node.args[7]), tracing)
    else:
        if kind == "native_group_norm":
            scale, bias, groups, epsilon = node.args[1], node.args[2], node.args[6], node.args[7]
        else:
            groups, scale, bias = node.args[1], argument(node, 2, "weight"), argument(node, 3, "bias")
            epsilon = argument(node, 4, "eps", 1e-5)
        reshape(x, grouped := tracing.temp(x), [sizes[0], groups, -1], tracing)
        flat = normalise_along(grouped, [2], float(epsilon), tracing)
        reshape(flat, made := tracing.temp(x), sizes, tracing)
    for op_type, arg in (("elementwise_mul", scale), ("elementwise_add", bias)):
        if arg is not None:
            values = tracing.value(arg)
            if len(sizes) > 2:
                reshape(values, wide := tracing.temp(values), [sizes[1], *[1] * (len(sizes) - 2)], tracing)
                values = wide
            made = tracing.op_result(op_type, out, X=made, Y=values)
    tracing.alias(out, made)
    if kind == "native_group_norm":
        tracing.parts[node.name] = [made, None, None]


# Softmax.


@aten("softmax", "_softmax")
def _softmax(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.as_type(tracing.value(node.args[0]), dtype_of(node.meta["val"].dtype))
    tracing.op("softmax", {"X": x}, {"Out": out}, axis=node.args[1] % max(len(tracing.dims(x)), 1))


@aten("log_softmax", "_log_softmax")
def _log_softmax(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.as_type(tracing.value(node.args[0]), dtype_of(node.meta["val"].dtype))
    logs(x, out, node.args[1] % max(len(tracing.dims(x)), 1), tracing)


def logs(x: str, out: str, axis: int, tracing: Tracing) -> None:
    """`out` is the log-softmax of `x` along an axis."""
    log_sum_exp(x, total := tracing.temp(out), [axis], True, tracing)
    tracing.op("elementwise_sub", {"X": x, "Y": total}, {"Out": out})


# Random numbers, which a program draws of its own.


def _append_random(op_type: str, node: Any, tracing: Tracing, out: str, **attrs: object) -> str:
    """`out`, filled with random numbers in the shape of the node. Raises Refused unless they are f32 or f64."""
    value = node.meta["val"]
    kind, sizes = dtype_of(value.dtype), tracing.shape_of(value, out)
    if kind not in FLOATS:
        raise Refused("it draws other numbers than f32 and f64")
    inputs: dict[str, Any] = {}
    if any(map(is_code, sizes)):
        inputs["ShapeTensorList"] = [tracing.size_variable(size) for size in sizes]
    shape = [-1 if is_code(size) else size for size in sizes] or [1]
    if not sizes:
        tracing.scalars.add(out)
    tracing.op(op_type, inputs, {"Out": out}, shape=shape, dtype=kind.value, **attrs)
    tracing.draft.stop_gradient.add(out)
    return out


@aten("rand", "rand_like")
def _evenly(node: Any, tracing: Tracing, out: str) -> None:
    _append_random("uniform_random", node, tracing, out, min=0.0, max=1.0)


@aten("randn", "randn_like")
def _normal(node: Any, tracing: Tracing, out: str) -> None:
    _append_random("gaussian_random", node, tracing, out)


@aten("uniform", "normal_functional")
def _uniform_or_normal(node: Any, tracing: Tracing, out: str) -> None:
    """Random numbers, uniform between two bounds, or normal with a mean and a standard deviation."""
    evenly = node.target.__name__.startswith("uniform")
    names, defaults = (("min", "max"), (0.0, 1.0)) if evenly else (("mean", "std"), (0.0, 1.0))
    given = [argument(node, at, name, number) for at, name, number in zip((1, 2), names, defaults, strict=True)]
    attrs = {name: Double(number) for name, number in zip(names, given, strict=True)}
    _append_random("uniform_random" if evenly else "gaussian_random", node, tracing, out, **attrs)


@aten("exponential")
def _exponential(node: Any, tracing: Tracing, out: str) -> None:
    """Numbers of an exponential distribution: logarithms of even ones above 0."""
    least = 2.0**-53 if dtype_of(node.meta["val"].dtype) is DType.FP64 else 2.0**-24
    drawn = _append_random("uniform_random", node, tracing, tracing.temp(out), min=Double(least), max=1.0)
    tracing.scale(tracing.op_result("log", out, X=drawn), out, -1 / float(argument(node, 1, "lambd", 1.0)))
    tracing.draft.stop_gradient.add(out)


@aten("bernoulli")
def _flags(node: Any, tracing: Tracing, out: str) -> None:
    """Elements that are 1 with a probability, else 0. The probability is one number, or a tensor with one for each."""
    x = tracing.value(node.args[0])
    rate = tracing.constant_of(float(node.args[1]), tracing.dtype(x), out) if len(node.args) > 1 else x
    drawn = _append_random("uniform_random", node, tracing, tracing.temp(out), min=0.0, max=1.0)
    compare("less_than", drawn, rate, below := tracing.temp(out), tracing)
    tracing.cast(below, out, dtype_of(node.meta["val"].dtype))
    tracing.draft.stop_gradient.add(out)
