"""Layers of neural networks: fully connected, embedding and normalisation layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pstranspile.frontends.layers.basic import activation, bare, fill_constant, layer, layer_of, layer_outputs, unary
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.frontends.layers.parameters import Attr, Constant, Element, ParamAttr, attr_of, create_parameter
from pstranspile.ir.types import DType, element_type

# Normalisation of images, of rows, and of inputs of click-through models.

GENERATED = "_generated_var"
"""Fluid's name of variables that a layer creates without a name."""


def group_norm(
    x: Value,
    groups: int,
    *,
    epsilon: float = 1e-05,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: str | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Value:
    """Channels normalised in groups, image by image. As in Fluid, scale and bias are off by default."""
    if data_layout not in ("NCHW", "NHWC"):
        raise ValueError(f"data_layout is {data_layout!r}, it must be 'NCHW' or 'NHWC'")
    draft = x.draft
    minted = name_layer(draft, "group_norm", name)
    shape = (x.shape[1 if data_layout == "NCHW" else -1],)
    inputs = {"X": x}
    if param_attr:
        inputs["Scale"] = create_parameter(draft, minted, param_attr, shape, x.dtype, default=Constant(1.0))
    if bias_attr:
        inputs["Bias"] = create_parameter(draft, minted, bias_attr, shape, x.dtype, is_bias=True)
    mean, variance = (draft.fresh(GENERATED, x.dtype, stop_gradient=True) for _ in range(2))
    out = draft.fresh(GENERATED, x.dtype)
    attrs = {"epsilon": epsilon, "groups": groups, "data_layout": data_layout}
    draft.op("group_norm", inputs, {"Y": out, "Mean": mean, "Variance": variance}, attrs)
    return activation(minted, out, act)


def instance_norm(
    x: Value,
    *,
    epsilon: float = 1e-05,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Value:
    """Each channel of each image normalised by itself; without scale and shift if both parameters are False."""
    draft = x.draft
    minted = name_layer(draft, "instance_norm", name)
    shape = (x.shape[1],)
    if param_attr is False and bias_attr is False:
        scale, shift = (fill_constant(draft, shape, x.dtype, value) for value in (1.0, 0.0))
    else:
        scale = create_parameter(draft, minted, param_attr, shape, x.dtype, default=Constant(1.0))
        shift = create_parameter(draft, minted, bias_attr, shape, x.dtype, is_bias=True)
    mean, variance = (draft.temporary(minted, x.dtype, stop_gradient=True) for _ in range(2))
    out = draft.temporary(minted, x.dtype)
    outputs = {"Y": out, "SavedMean": mean, "SavedVariance": variance}
    draft.op("instance_norm", {"X": x, "Scale": scale, "Bias": shift}, outputs, {"epsilon": epsilon})
    return out


def l2_normalize(x: Value, axis: int | None, *, epsilon: float = 1e-12, name: str | None = None) -> Value:
    """x divided by its L2 norm along `axis` (None: 1; 0 where there is no other)."""
    along = 0 if len(x.shape) == 1 else 1 if axis is None else axis
    outputs, attrs = {"Out": x.dtype, "Norm": x.dtype}, {"axis": along, "epsilon": epsilon}
    return layer_outputs("norm", {"X": x}, outputs, attrs, key="l2_normalize", name=name)[0]


def lrn(
    x: Value,
    *,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Value:
    """x divided by (k + alpha * the sum of squares over `n` neighbouring channels) to the power of beta."""
    attrs = {"n": n, "k": k, "alpha": alpha, "beta": beta, "data_format": data_format}
    middle, out = layer_outputs("lrn", {"X": x}, {"MidOut": x.dtype, "Out": x.dtype}, attrs, name=name)
    middle.stopped()
    return out


def data_norm(
    x: Value,
    *,
    act: str | None = None,
    epsilon: float = 1e-05,
    data_layout: str = "NCHW",
    slot_dim: int = -1,
    summary_decay_rate: float = 0.9999999,
    starts: Mapping[str, float] | None = None,
    name: str | None = None,
) -> Value:
    """Inputs normalised by counts, sums and sums of squares, which are parameters `<name>.batch_size` and so on.

    `name` is `dn` by default, and layers of one name share their parameters. `slot_dim` is the number of columns of a
    slot, whose first column counts shows. `starts` has the first values of the parameters: `batch_size` (1e4),
    `batch_sum` (0) and `batch_square` (1e4).
    """
    draft, starts = x.draft, starts or {}
    minted, prefix = name_layer(draft, "data_norm", name), name or "dn"
    if data_layout not in ("NCHW", "NHWC"):
        raise ValueError(f"data_norm: data_layout is {data_layout!r}, it must be 'NCHW' or 'NHWC'")
    shape = (x.shape[1 if data_layout == "NCHW" else -1],)
    slots: dict[str, Value] = {"X": x}
    for slot, suffix, start in (
        ("BatchSize", "batch_size", starts.get("batch_size", 1e4)),
        ("BatchSum", "batch_sum", starts.get("batch_sum", 0.0)),
        ("BatchSquareSum", "batch_square_sum", starts.get("batch_square", 1e4)),
    ):
        attr = ParamAttr(f"{prefix}.{suffix}", Constant(start))
        slots[slot] = create_parameter(draft, minted, attr, shape, x.dtype)
    means, scales = (draft.fresh(GENERATED, x.dtype, stop_gradient=True) for _ in range(2))
    out = draft.fresh(GENERATED, x.dtype)
    attrs = {"epsilon": epsilon, "summary_decay_rate": summary_decay_rate}
    if slot_dim > 0:
        attrs["slot_dim"] = slot_dim
    draft.op("data_norm", slots, {"Y": out, "Means": means, "Scales": scales}, attrs)
    return activation(minted, out, act)


def continuous_value_model(x: Value, cvm: Value, *, use_cvm: bool = True) -> Value:
    """Rows whose first two columns are shows and clicks, with these columns as logarithms or removed.

    `cvm` holds the shows and clicks that become the gradient of those columns.
    """
    draft = x.draft
    draft.names.mint("cvm")
    out = draft.fresh(GENERATED, x.dtype)
    draft.op("cvm", {"X": x, "CVM": cvm}, {"Y": out}, {"use_cvm": use_cvm})
    return out


# Elementwise activations in addition to those of `nn`, and `prelu`, which learns its slope.

swish = layer_of(bare, "swish", "x * sigmoid(x). (Fluid 1.8.5 computes with a `beta` of 1, whatever it is given.)")
logsigmoid = layer_of(bare, "logsigmoid", "log(sigmoid(x)).")
softplus = layer_of(bare, "softplus", "log(1 + exp(x)).")
softsign = layer_of(bare, "softsign", "x / (1 + |x|).")
tanh_shrink = layer_of(bare, "tanh_shrink", "x - tanh(x).")
atan = layer_of(bare, "atan", "The angle whose tangent is x.")
rsqrt = layer_of(bare, "rsqrt", "1 / sqrt(x).")
reciprocal = layer_of(bare, "reciprocal", "1 / x.")
round_ = layer_of(bare, "round", "The nearest integer (Fluid's `round`).")
sign = layer_of(bare, "sign", "-1, 0 or 1.")
erf = layer_of(bare, "erf", "The error function.")


def leaky_relu(x: Value, *, alpha: float = 0.02) -> Value:
    """x where it is positive, else alpha * x."""
    return unary("leaky_relu", x, alpha=alpha)


def elu(x: Value, *, alpha: float = 1.0) -> Value:
    """x where it is positive, else alpha * (exp(x) - 1)."""
    return unary("elu", x, alpha=alpha)


def selu(x: Value, *, scale: float | None = None, alpha: float | None = None) -> Value:
    """scale * elu(x); None takes the constants that keep mean and variance."""
    given = (("scale", scale), ("alpha", alpha))
    return unary("selu", x, **{name: value for name, value in given if value is not None})


def relu6(x: Value, *, threshold: float = 6.0) -> Value:
    """x limited to [0, threshold]."""
    return unary("relu6", x, threshold=threshold)


def brelu(x: Value, *, t_min: float = 0.0, t_max: float = 24.0) -> Value:
    """x limited to [t_min, t_max]."""
    return unary("brelu", x, t_min=t_min, t_max=t_max)


def soft_relu(x: Value, *, threshold: float = 40.0) -> Value:
    """log(1 + exp(x)), x limited to +-threshold."""
    return unary("soft_relu", x, threshold=threshold)


def thresholded_relu(x: Value, *, threshold: float = 1.0) -> Value:
    """x where it is larger than the threshold, else 0."""
    return unary("thresholded_relu", x, threshold=threshold)


def hard_swish(x: Value, *, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0) -> Value:
    """x * min(max(x + offset, 0), threshold) / scale."""
    return unary("hard_swish", x, threshold=threshold, scale=scale, offset=offset)


def hard_sigmoid(x: Value, *, slope: float = 0.2, offset: float = 0.5) -> Value:
    """slope * x + offset limited to [0, 1]."""
    return unary("hard_sigmoid", x, slope=slope, offset=offset)


def softshrink(x: Value, *, alpha: float = 0.5) -> Value:
    """x moved toward 0 by alpha; 0 where |x| <= alpha."""
    return unary("softshrink", x, **{"lambda": alpha})


def hard_shrink(x: Value, *, threshold: float = 0.5) -> Value:
    """x where |x| > threshold, else 0."""
    return unary("hard_shrink", x, threshold=threshold)


def stanh(x: Value, *, scale_a: float = 0.67, scale_b: float = 1.7159) -> Value:
    """scale_b * tanh(scale_a * x)."""
    return unary("stanh", x, scale_a=scale_a, scale_b=scale_b)


def power(x: Value, factor: float | Value = 1.0) -> Value:
    """x to the power of a number, or of a value f32[1] (Fluid's `pow`)."""
    if isinstance(factor, Value):
        return layer("pow", {"X": x, "FactorTensor": factor.stopped()}, x.dtype)
    return unary("pow", x, factor=factor)


def prelu(x: Value, mode: str, *, param_attr: Attr = None, name: str | None = None) -> Value:
    """x where it is positive, else a learned slope times x: one slope for `all`, for each `channel`, or for each
    `element`.
    """
    shapes = {"all": (1,), "channel": (1, *x.shape[1:2], 1, 1), "element": (1, *x.shape[1:])}
    if mode not in shapes:
        raise ValueError(f"the mode of prelu is {mode!r}, it must be 'all', 'channel' or 'element'")
    draft = x.draft
    minted = name_layer(draft, "prelu", name)
    slope = create_parameter(draft, minted, param_attr, shapes[mode], "f32", default=Constant(0.25))
    return layer("prelu", {"X": x, "Alpha": slope}, x.dtype, {"mode": mode}, name=minted)


Single = ParamAttr | str | bool
"""The attributes of a single parameter."""


def name_layer(draft: Draft, op_type: str, name: str | None) -> str:
    """The name of a layer: the given one, or the next of its kind (`fc_0`)."""
    return name or draft.names.mint(op_type)


def bias(name: str, x: Value, given: Attr, start: int = 1, end: int | None = None) -> Value:
    """x plus a bias over the dims from `start` to `end`; x itself if `given` is False."""
    if attr_of(given) is None:
        return x
    draft = x.draft
    shift = create_parameter(draft, name, given, x.shape[start:end], x.dtype, is_bias=True)
    return layer("elementwise_add", {"X": x, "Y": shift}, x.dtype, {"axis": start}, name=name)


def fc(
    x: Value | Sequence[Value],
    size: int,
    *,
    num_flatten_dims: int = 1,
    param_attr: Attr | Sequence[Attr] = None,
    bias_attr: Attr = None,
    act: str | None = None,
    name: str | None = None,
) -> Value:
    """A fully connected layer: act(x @ w + b), with x as a matrix whose rows are the first `num_flatten_dims` dims.

    Several inputs have a weight each, and their products are added; `param_attr` may then be a list.
    """
    inputs = [x] if isinstance(x, Value) else list(x)
    param_attrs = (
        [param_attr] * len(inputs) if param_attr is None or isinstance(param_attr, Single) else list(param_attr)
    )
    if len(param_attrs) != len(inputs):
        raise ValueError(f"fc has {len(inputs)} inputs and {len(param_attrs)} param_attr")
    draft = inputs[0].draft
    if size == 0:  # Fluid's mul refuses a weight without elements
        raise ValueError("the size of fc is 0, it must be at least 1")
    minted = name_layer(draft, "fc", name)
    products: list[Value] = []
    for value, attr in zip(inputs, param_attrs, strict=True):
        at = len(value.shape) - 1 if num_flatten_dims == -1 else num_flatten_dims
        num_flatten_dims = at
        rows = math.prod(value.shape[at:])
        weight = create_parameter(draft, minted, attr, (rows, size), value.dtype)
        attrs = {"x_num_col_dims": at, "y_num_col_dims": 1}
        products.append(layer("mul", {"X": value, "Y": weight}, value.dtype, attrs, name=minted))
    total = products[0]
    if len(products) > 1:
        total = layer("sum", {"X": products}, total.dtype, name=minted)
    return activation(minted, bias(minted, total, bias_attr, num_flatten_dims), act)


def bilinear_tensor_product(
    x: Value,
    y: Value,
    size: int,
    *,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: str | None = None,
    name: str | None = None,
) -> Value:
    """`size` bilinear products x @ w @ y of the rows of x and y, plus a bias."""
    draft = x.draft
    minted = name_layer(draft, "bilinear_tensor_product", name)
    weight = create_parameter(draft, minted, param_attr, (size, x.shape[1], y.shape[1]), x.dtype)
    inputs = {"X": x, "Y": y, "Weight": weight}
    if attr_of(bias_attr) is not None:
        inputs["Bias"] = create_parameter(draft, minted, bias_attr, (1, size), x.dtype, is_bias=True)
    return activation(minted, layer("bilinear_tensor_product", inputs, x.dtype, name=minted), act)


def embedding(
    ids: Value,
    size: tuple[int, int],
    *,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Attr = None,
    dtype: Element = "f32",
    merge_rows: bool = False,
) -> Value:
    """The rows of a table of `size` (rows, width) at ids [..., 1] (`lookup_table`).

    With `is_sparse` the table's gradient holds only the rows that were looked up: one for each id, as in Fluid, or,
    with `merge_rows`, each row once, with the sum of its gradients, so that trainers send fewer bytes.
    """
    return _lookup("lookup_table", ids, size, is_sparse, is_distributed, padding_idx, param_attr, dtype, merge_rows)


def embedding_v2(
    ids: Value,
    size: tuple[int, int],
    *,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Attr = None,
    dtype: Element = "f32",
    merge_rows: bool = False,
) -> Value:
    """The layer `embedding` for ids of any dims (`lookup_table_v2`; `fluid.embedding`)."""
    return _lookup("lookup_table_v2", ids, size, is_sparse, is_distributed, padding_idx, param_attr, dtype, merge_rows)


def _lookup(
    op_type: str,
    ids: Value,
    size: tuple[int, int],
    is_sparse: bool,
    is_distributed: bool,
    padding_idx: int | None,
    given: Attr,
    dtype: Element,
    merge_rows: bool,
) -> Value:
    minted = ids.draft.names.mint("embedding")
    table = create_parameter(ids.draft, minted, given, size, dtype)
    padding = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else size[0] + padding_idx
    attrs = {
        "is_sparse": is_sparse,
        "is_distributed": is_distributed,
        "remote_prefetch": is_sparse and not is_distributed,
        "padding_idx": padding,
        **({"merge_rows": True} if is_sparse and merge_rows else {}),
    }
    return layer(op_type, {"Ids": ids, "W": table}, element_type(dtype), attrs, name=minted)


def batch_norm(
    x: Value,
    *,
    act: str | None = None,
    is_test: bool = False,
    momentum: float | Value = 0.9,
    epsilon: float = 1e-05,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    data_layout: str = "NCHW",
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    name: str | None = None,
) -> Value:
    """Each channel normalised over the batch, with running statistics for use after training.

    `momentum`, a number or a value [1], is the factor of the old statistics in each step. With
    `do_model_average_for_mean_and_var`, averages of parameters include the statistics.
    """
    minted = name_layer(x.draft, "batch_norm", name)
    settings = {"epsilon": epsilon, "is_test": is_test, "data_layout": data_layout}
    settings["use_global_stats"] = use_global_stats
    averaged = do_model_average_for_mean_and_var
    means = (moving_mean_name, moving_variance_name)
    out = _append_batch_norm("batch_norm", minted, x, (param_attr, bias_attr), means, averaged, momentum, settings)
    return activation(minted, out, act)


def inplace_abn(
    x: Value,
    *,
    act: str | None = None,
    is_test: bool = False,
    momentum: float | Value = 0.9,
    epsilon: float = 1e-05,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    act_alpha: float = 1.0,
) -> Value:
    """The layer `batch_norm` with an activation `identity`, `leaky_relu` or `elu`, computed in the memory of x.

    Raises ValueError for another layout, AssertionError for another activation or without a bias.
    """
    assert act in (None, "identity", "leaky_relu", "elu"), f"act is {act!r}, it must be identity, leaky_relu or elu"
    assert bias_attr is not False, "inplace_abn has a bias, bias_attr can't be False"
    if data_layout not in ("NCHW", "NHWC"):
        raise ValueError(f"data_layout is {data_layout!r}, it must be 'NCHW' or 'NHWC'")
    minted = name_layer(x.draft, "inplace_abn", name)
    settings: dict[str, Any] = {"epsilon": epsilon, "is_test": is_test, "data_layout": data_layout}
    settings |= {"use_global_stats": use_global_stats, "alpha": act_alpha}
    if act is not None:
        settings["activation"] = act
    averaged = do_model_average_for_mean_and_var
    means = (moving_mean_name, moving_variance_name)
    return _append_batch_norm("inplace_abn", minted, x, (param_attr, bias_attr), means, averaged, momentum, settings)


def _append_batch_norm(
    op_type: str,
    minted: str,
    x: Value,
    attrs: tuple[Attr, Attr],
    means: tuple[str | None, str | None],
    averaged: bool,
    momentum: float | Value,
    settings: dict[str, Any],
) -> Value:
    """The op of a layer that normalises batches, with its parameters. `averaged`: averages of parameters include the
    statistics.
    """
    draft = x.draft
    shape = (x.shape[1] if settings["data_layout"] == "NCHW" else x.shape[-1],)
    scale = create_parameter(draft, minted, attrs[0], shape, x.dtype, default=Constant(1.0))
    shift = create_parameter(draft, minted, attrs[1], shape, x.dtype, is_bias=True)
    fixed = {"trainable": False, "averaged": averaged}
    mean, variance = (
        create_parameter(draft, minted, ParamAttr(given, Constant(start), **fixed), shape, x.dtype)
        for given, start in zip(means, (0.0, 1.0), strict=True)
    )
    draft.stop_gradient.update((mean.name, variance.name))
    saved = [draft.temporary(minted, x.dtype, stop_gradient=True) for _ in range(2)]
    out = x if op_type == "inplace_abn" else draft.temporary(minted, x.dtype)
    known = not isinstance(momentum, Value)
    inputs, rate = ({}, {"momentum": momentum}) if known else ({"MomentumTensor": momentum}, {})
    draft.op(
        op_type,
        {"X": x, "Scale": scale, "Bias": shift, "Mean": mean, "Variance": variance, **inputs},
        {"Y": out, "MeanOut": mean, "VarianceOut": variance, "SavedMean": saved[0], "SavedVariance": saved[1]},
        {**rate, **settings},
    )
    return out


def layer_norm(
    x: Value,
    *,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-05,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: str | None = None,
    name: str | None = None,
) -> Value:
    """Each row normalised over the dims from `begin_norm_axis` on."""
    draft = x.draft
    minted = name_layer(draft, "layer_norm", name)
    shape = (math.prod(x.shape[begin_norm_axis:]),)
    inputs: dict[str, Value] = {"X": x}
    if scale:
        inputs["Scale"] = create_parameter(draft, minted, param_attr, shape, x.dtype, default=Constant(1.0))
    if shift:
        inputs["Bias"] = create_parameter(draft, minted, bias_attr, shape, x.dtype, is_bias=True)
    mean, variance = (draft.temporary(minted, x.dtype, stop_gradient=True) for _ in range(2))
    out = draft.temporary(minted, x.dtype)
    attrs = {"epsilon": epsilon, "begin_norm_axis": begin_norm_axis}
    draft.op("layer_norm", inputs, {"Y": out, "Mean": mean, "Variance": variance}, attrs)
    return activation(minted, out, act)


def dropout(
    x: Value,
    probability: float,
    *,
    is_test: bool = False,
    seed: int | None = None,
    implementation: str = "downgrade_in_infer",
    name: str | None = None,
) -> Value:
    """Elements of x set to zero with this probability. If `seed` is None, the program's seed is used, if it has one."""
    chosen = seed or x.draft.main_seed or seed
    attrs = {
        "dropout_prob": probability,
        "is_test": is_test,
        "fix_seed": chosen is not None,
        "seed": chosen or 0,
        "dropout_implementation": implementation,
    }
    out, mask = layer_outputs("dropout", {"X": x}, {"Out": x.dtype, "Mask": DType.UINT8}, attrs, name=name)
    mask.stopped()
    return out


def softmax(x: Value, *, axis: int = -1, use_cudnn: bool = False, name: str | None = None) -> Value:
    """exp(x) / sum(exp(x)) along `axis`."""
    return layer("softmax", {"X": x}, x.dtype, {"axis": axis, "use_cudnn": use_cudnn}, name=name)


relu = layer_of(bare, "relu", "max(x, 0).")
sigmoid = layer_of(bare, "sigmoid", "1 / (1 + exp(-x)).")
tanh = layer_of(bare, "tanh", "The hyperbolic tangent.")
gelu = layer_of(bare, "gelu", "x times the normal distribution function of x.")
