"""Normalisation of images, of rows, and of inputs of click-through models."""

from __future__ import annotations

from collections.abc import Mapping

from pstranspile.frontends.layers.basic import activation, fill_constant, layer_outputs
from pstranspile.frontends.layers.draft import Value
from pstranspile.frontends.layers.initializers import Constant
from pstranspile.frontends.layers.nn import name_layer
from pstranspile.frontends.layers.parameters import Attr, ParamAttr, create_parameter

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
    """Each channel of each image normalised by itself; with False for both parameters not scaled and not shifted."""
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
