"""Instances chosen by their tags."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.ir.types import DType
from pstranspile.layers.draft import Value


class Tagged(NamedTuple):
    """The instances that were kept, and a weight for the loss of each, f32[instances, 1]: 0 where none was."""

    instances: Value
    loss_weight: Value


def filter_by_instag(
    instances: Value, tags: Value, wanted: Value, is_lod: bool, *, out_val_if_empty: int = 0
) -> Tagged:
    """The instances that have one of the tags `wanted`. `is_lod`: an instance is a sequence, not a row."""
    draft = instances.draft
    minted = draft.names.mint("filter_by_instag")
    out = draft.temporary(minted, instances.dtype)
    weight = draft.temporary(minted, DType.FP64)
    places = draft.temporary(minted, tags.dtype)
    inputs = {"Ins": instances, "Ins_tag": tags, "Filter_tag": wanted}
    outputs = {"Out": out, "LossWeight": weight, "IndexMap": places}
    attrs = {"is_lod": is_lod, "out_val_if_empty": out_val_if_empty}
    draft.op("filter_by_instag", inputs, outputs, attrs)
    weight.declared([-1, 1])
    places.declared([-1, 2])  # one column too few, as in Fluid
    return Tagged(out, weight)
