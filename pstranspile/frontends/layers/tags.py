"""Selection of instances by their tags."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.frontends.layers.basic import layer_outputs
from pstranspile.frontends.layers.draft import Value
from pstranspile.ir.types import DType


class Tagged(NamedTuple):
    """The selected instances, and a weight of each for the loss, f32[instances, 1]: 0 if none was selected."""

    instances: Value
    loss_weight: Value


def filter_by_instag(
    instances: Value, tags: Value, wanted: Value, is_lod: bool, *, out_val_if_empty: int = 0
) -> Tagged:
    """The instances that have one of the tags `wanted`. `is_lod`: an instance is a sequence, not a row."""
    inputs = {"Ins": instances, "Ins_tag": tags, "Filter_tag": wanted}
    outputs = {"Out": instances.dtype, "LossWeight": DType.FP64, "IndexMap": tags.dtype}
    attrs = {"is_lod": is_lod, "out_val_if_empty": out_val_if_empty}
    out, weight, places = layer_outputs("filter_by_instag", inputs, outputs, attrs)
    weight.declared([-1, 1])
    places.declared([-1, 2])  # one column too few, as in Fluid
    return Tagged(out, weight)
