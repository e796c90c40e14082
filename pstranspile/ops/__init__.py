"""What ops mean: one file per family, each declaring its op types with `schema.declare`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from pstranspile.ops.schema import OpSchema, registered

FAMILIES: tuple[str, ...] = (
    "elementwise",
    "algebra",
    "activation",
    "unary",
    "reduce",
    "compare",
    "loss",
    "sampled_loss",
    "shape",
    "select",
    "index",
    "fill",
    "random",
    "conv",
    "pool",
    "norm",
    "embedding",
    "sparse",
    "sequence",
    "sequence_rows",
    "array",
    "control",
    "blocks",
    "io",
    "feeding",
    "metric",
    "optimizer",
    "optimizer_adaptive",
    "distributed",
    "collective",
    "box",
    "activation_more",
    "loss_more",
    "algebra_more",
    "rearrange",
    "image",
    "ragged",
    "rnn",
)
"""The modules of this package that declare op types."""

_loaded = False


def _load() -> None:
    global _loaded
    if not _loaded:
        for family in FAMILIES:
            importlib.import_module(f"pstranspile.ops.{family}")
        _loaded = True


def schema_of(op_type: str) -> OpSchema | None:
    """The declaration of an op type, None if it has none."""
    _load()
    return registered().get(op_type)


def all_schemas() -> Mapping[str, OpSchema]:
    """Every declared op type by name."""
    _load()
    return registered()
