"""How an op type is declared: its slots, its attributes, and what slicing a parameter does to each slot.

One `declare(...)` call per op type, in the file of its family:

    declare(
        "sgd",
        "Param LearningRate Grad -> ParamOut",
        {},
        slicing="Param:follows Grad:follows ParamOut:follows LearningRate:whole",
        doc="ParamOut = Param - LearningRate * Grad",
    )

In the slot text `X*` takes a list of variables (duplicable), `X?` may be missing (dispensable), `X*?` both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind, AttrValue, float32, kind_of
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import Attrs, Slots


class Slot(NamedTuple):
    """A named input or output. `duplicable`: takes a list; `dispensable`: may be left out."""

    name: str
    duplicable: bool = False
    dispensable: bool = False


class AttrSpec(NamedTuple):
    """Kind and default of an attribute; `default` None means that every op must give it."""

    kind: AttrKind
    default: AttrValue | None = None


class Slicing(Enum):
    """What cutting a parameter into row slices does to a slot of an op that updates it.

    FOLLOWS: cut like the parameter when it has the parameter's shape. WHOLE: one per server, never cut.
    """

    FOLLOWS = "follows"
    WHOLE = "whole"


class OpSchema(NamedTuple):
    """The declaration of one op type.

    `slicing` is empty for ops that do not update a parameter. `row_wise` says that a slice of the outputs
    depends on the same slice of the inputs only, so that the op may run slice by slice.
    `defaults` are the attribute values an op carries when its text says nothing of them.
    """

    type: str
    inputs: FrozenMap[str, Slot]
    outputs: FrozenMap[str, Slot]
    attrs: FrozenMap[str, AttrSpec]
    defaults: Attrs
    empty_inputs: Slots
    slicing: FrozenMap[str, Slicing]
    row_wise: bool
    doc: str


GENERIC_ATTRS: FrozenMap[str, AttrSpec] = FrozenMap(
    op_namescope=AttrSpec(AttrKind.STRING, "/"), op_device=AttrSpec(AttrKind.STRING, "")
)
"""Attributes every op carries beside its own (`op_role` and `op_role_var` are fields of Op).

The default of `op_namescope` is what an op made outside any name scope carries.
"""

CARRIED_ATTRS: FrozenMap[str, AttrSpec] = FrozenMap(op_callstack=AttrSpec(AttrKind.STRINGS, None))
"""Attributes every op may carry, kept where they stand and never filled in."""

_REGISTRY: dict[str, OpSchema] = {}


def attr(kind: str, default: object = None) -> AttrSpec:
    """An attribute of the named kind (`int`, `float`, `ints`, ...) and default; no default: must be given."""
    attr_kind = AttrKind["BOOLEAN" if kind == "bool" else "BOOLEANS" if kind == "bools" else kind.upper()]
    if default is None:
        return AttrSpec(attr_kind, None)
    value: AttrValue = PYTHON_TYPES[attr_kind](default)
    if isinstance(value, float):
        value = float32(value)
    return AttrSpec(attr_kind, value)


def _plain(value: object) -> AttrSpec:
    """An attribute declared by its default alone: 1 is INT, 1.0 FLOAT, True BOOLEAN, "" STRING."""
    if isinstance(value, AttrSpec):
        return value
    if isinstance(value, float):
        return AttrSpec(AttrKind.FLOAT, float32(value))
    assert isinstance(value, bool | int | str)
    return AttrSpec(kind_of(value), value)


def _slots(text: str) -> FrozenMap[str, Slot]:
    slots = (Slot(word.rstrip("*?"), "*" in word, "?" in word) for word in text.split())
    return FrozenMap({slot.name: slot for slot in slots})


def declare(
    op_type: str,
    slots: str,
    attrs: Mapping[str, object] | None = None,
    *,
    slicing: str = "",
    row_wise: bool = False,
    doc: str = "",
) -> OpSchema:
    """Declares an op type and returns its schema. Raises ValueError if the type is already declared."""
    if op_type in _REGISTRY:
        raise ValueError(f"op type {op_type} is declared twice")
    inputs, _, outputs = slots.partition("->")
    specs = FrozenMap({name: _plain(value) for name, value in (attrs or {}).items()})
    given = {
        name: spec.default for name, spec in {**specs, **GENERIC_ATTRS}.items() if spec.default is not None
    }
    input_slots = _slots(inputs)
    rules = (word.split(":") for word in slicing.split())
    schema = OpSchema(
        type=op_type,
        inputs=input_slots,
        outputs=_slots(outputs),
        attrs=specs,
        defaults=FrozenMap(given),
        empty_inputs=FrozenMap({s.name: () for s in input_slots.values() if s.dispensable}),
        slicing=FrozenMap({slot: Slicing(rule) for slot, rule in rules}) if slicing else EMPTY,
        row_wise=row_wise,
        doc=doc,
    )
    _REGISTRY[op_type] = schema
    return schema


def registered() -> Mapping[str, OpSchema]:
    """Every declared op type, by name (of the families imported so far: see `pstranspile.ops.schema_of`)."""
    return _REGISTRY
