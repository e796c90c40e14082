"""What ops mean: one file per family, each declaring its op types with `schema.declare`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pstranspile.ir.attributes import AttrKind, AttrValue, float32
from pstranspile.ir.codes import declare as declare_code
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op
from pstranspile.ops.schema import OpSchema, registered

FAMILIES: tuple[str, ...] = (
    "elementwise",
    "products",
    "algebra",
    "activation",
    "unary",
    "reduce",
    "compare",
    "loss",
    "sampled_loss",
    "tree_index",
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
    "cvm",
    "sequence",
    "sequence_rows",
    "array",
    "control",
    "blocks",
    "branches",
    "io",
    "feeding",
    "metric",
    "metric_more",
    "optimizer",
    "optimizer_adaptive",
    "distributed",
    "collective",
    "box",
    "activation_more",
    "loss_more",
    "crf",
    "label_sequences",
    "ctc",
    "conv_shift",
    "topk_pooling",
    "loss_binary",
    "loss_rows",
    "sampled_logits",
    "algebra_more",
    "norm_more",
    "rearrange",
    "position_encoding",
    "similarity_focus",
    "ordering",
    "positions",
    "slicing",
    "grids",
    "hashing",
    "seeds",
    "tags",
    "beams",
    "image",
    "conv_transpose",
    "channels",
    "padding",
    "pool_index",
    "interpolation",
    "norm_image",
    "data_norm",
    "ragged",
    "sequence_more",
    "rank_table",
    "rnn",
    "rnn_lstm",
    "rnn_gru",
)
"""The modules of this package that declare op types."""

GROUP = "pstranspile.ops"
"""Entry point group through which other packages add op types: each entry is a module that declares some.

They are looked for when an op type comes up that is not one of ours.
"""

FAMILY = declare_code("op-family", "An op family of another installed package can't be loaded.")

_PLACES = Path(__file__).with_name("places.json")
_complete: set[str] = set()
_everything: list[bool] = []


@cache
def _places() -> dict[str, list[str]]:
    """Op type -> the families that declare it or say more of it, as `pstranspile.ops.places` wrote them down."""
    return {} if not _PLACES.exists() else json.loads(_PLACES.read_text())


def _load_all() -> None:
    if not _everything:
        for family in FAMILIES:
            importlib.import_module(f"pstranspile.ops.{family}")
        _load_others()
        _everything.append(True)


def _load_others() -> None:
    """Imports the families of other installed packages. Raises DiagnosticError (`op-family`) if one can't be."""
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        try:
            point.load()
        except Exception as reason:  # whatever the other package does as it is imported
            message = f"the op family {point.name!r} ({point.value}) can't be loaded: {type(reason).__name__}: {reason}"
            raise DiagnosticError([error(FAMILY, message)]) from reason


def _load_for(op_type: str) -> None:
    """Imports the families of one op type, or all if it is not known where it is declared.

    What was written down only saves time: a type that is not where it should be is looked for everywhere.
    """
    for family in _places().get(op_type, ()):
        importlib.import_module(f"pstranspile.ops.{family}")
    if op_type not in registered():
        _load_all()
    else:
        _complete.add(op_type)


def schema_of(op_type: str) -> OpSchema | None:
    """The declaration of an op type, None if it has none.

    Its shape rule, kernel and gradient rule are registered from then on.
    """
    if op_type not in _complete and not _everything:
        _load_for(op_type)
    return registered().get(op_type)


def is_optimizer(op: Op) -> bool:
    """Whether the op's schema declares how it updates a parameter."""
    schema = schema_of(op.type)
    return schema is not None and schema.is_optimizer


def with_defaults(op: Op) -> Op:
    """The op with its schema's defaults in place of attributes that it does not carry.

    Whole numbers where the schema wants others, or true or false, are converted, as Fluid does.
    """
    schema = schema_of(op.type)
    if schema is None:
        return op
    attrs: dict[str, AttrValue] = {**schema.defaults, **op.attrs}
    for name, value in op.attrs.items():
        kind = schema.attrs[name].kind if name in schema.attrs else None
        if isinstance(value, int) and not isinstance(value, bool) and kind in (AttrKind.FLOAT, AttrKind.BOOLEAN):
            attrs[name] = float32(value) if kind is AttrKind.FLOAT else bool(value)
    return op._replace(attrs=FrozenMap(attrs))


def all_schemas() -> Mapping[str, OpSchema]:
    """Every declared op type by name."""
    _load_all()
    return registered()
