"""Layers of `layers.nn` whose samples are moved."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.layers.accepted import checked_all
from pstranspile.fluid.layers.adapt import live, to_core, wrap
from pstranspile.fluid.param_attr import core_attr
from pstranspile.frontends.layers.basic import layer
from pstranspile.frontends.layers.initializers import Normal
from pstranspile.frontends.layers.nn import bias, name_layer
from pstranspile.frontends.layers.parameters import create_parameter


def _both(name: str, value: Any) -> list[int]:
    """A number for height and width, or one for each. Raises ValueError for another count."""
    held = list(value) if several(value) else [value, value]
    if len(held) != 2:
        raise ValueError(f"deformable_conv: {name} must be a number or two, not {value!r}")
    return held


def deformable_conv(
    input: Any,
    offset: Any,
    mask: Any,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int | None = None,
    deformable_groups: int | None = None,
    im2col_step: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    modulated: bool = True,
    name: str | None = None,
) -> Any:
    """Images convolved, with samples moved by `offset`, and if `modulated` multiplied by `mask`.

    Raises ValueError for groups that can't share the channels, and for settings of another length.
    """
    draft = live()
    x = to_core(input)
    channels = x.shape[1]
    if channels < 0 or channels % (groups or 1):
        raise ValueError(f"deformable_conv: %{x.name} has {channels} channels, which {groups} groups can't share")
    size = _both("filter_size", filter_size)
    minted = name_layer(draft, "deformable_conv", name)
    start = Normal(0.0, (2.0 / (size[0] * size[1] * channels)) ** 0.5)
    shape = (num_filters, channels // (groups or 1), *size)
    kernel = create_parameter(draft, minted, core_attr(param_attr, draft), shape, x.dtype, default=start)
    attrs = {
        "strides": _both("stride", stride),
        "paddings": _both("padding", padding),
        "dilations": _both("dilation", dilation),
        "groups": groups or 1,
        "deformable_groups": deformable_groups or 1,
        "im2col_step": im2col_step or 64,
    }
    inputs = {"Input": x, "Filter": kernel, "Offset": to_core(offset)}
    if modulated:
        inputs["Mask"] = to_core(mask)
    op_type = "deformable_conv" if modulated else "deformable_conv_v1"
    out = layer(op_type, inputs, x.dtype, attrs, out="Output", name=minted)
    return wrap(bias(minted, out, core_attr(bias_attr, draft), 1, 2))


checked_all(globals())
