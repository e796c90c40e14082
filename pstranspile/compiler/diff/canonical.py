"""What counts in ops and variables when programs are compared.

Left out: attributes at their schema's default (or empty, where there is no default), empty slots, the order of
slots and attributes, `op_callstack`, `op_namescope`, `op_device`, and where things came from. Generated names
are compared by their use (see `Renaming`), not by their spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pstranspile.ir.attributes import AttrValue, Floats, Strings, same_attr
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Attrs, Op, Program, Slots, Var
from pstranspile.ir.roles import OpRole
from pstranspile.ir.text.literals import name as name_text
from pstranspile.ir.text.statements import op_text, var_parts
from pstranspile.ir.types import DType
from pstranspile.ops import schema_of
from pstranspile.ops.schema import GENERIC_ATTRS, AttrSpec
from pstranspile.ops.textual import LANGUAGE

IGNORED = frozenset({"op_callstack", "op_namescope", "op_device"})
"""Attributes that change nothing in what an op does."""

UNORDERED = frozenset({"grad_to_block_id"})
"""Lists whose order means nothing."""

_GENERATED = re.compile(r"__control_var@|_generated_var|tmp_dc_output").match
_MASK = "\x00"


def generated_names(programs: Iterable[Program]) -> frozenset[str]:
    """The declared variables whose names a transpiler made up, so that the spelling means nothing."""
    blocks = [block for program in programs for block in program.blocks]
    return frozenset([name for block in blocks for name in block.vars if _GENERATED(name)])


class Renaming:
    """Which generated name of the first input stands for which of the second: one to one, decided at first use."""

    def __init__(self, generated: frozenset[str]) -> None:
        self.generated = generated
        self.forward: dict[str, str] = {}
        self.backward: dict[str, str] = {}

    def pair(self, first: Iterable[str], second: Iterable[str]) -> bool:
        """Whether names can stand for each other, in order; if they can, the generated ones do from now on."""
        new: dict[str, str] = {}
        back: dict[str, str] = {}
        for a, b in zip(first, second, strict=True):
            if a not in self.generated:
                if a != b:
                    return False
                continue
            if self.forward.get(a, new.get(a, b)) != b or self.backward.get(b, back.get(b, a)) != a:
                return False
            new[a], back[b] = b, a
        self.forward.update(new)
        self.backward.update(back)
        return True


class Keys:
    """Keys of ops: equal for ops that mean the same, whatever names of the set `generated` they use."""

    def __init__(self, generated: frozenset[str]) -> None:
        self._generated = generated
        self._attrs: dict[tuple[str, int], tuple[Any, ...]] = {}
        self._kept: list[Attrs] = []  # keeps the attributes alive, so that no other object gets their ids

    def op(self, op: Op) -> tuple[Any, ...]:
        """The key of an op."""
        known = (op.type, id(op.attrs))
        attrs = self._attrs.get(known)
        if attrs is None:
            attrs = self._attrs[known] = _attrs_key(op.type, op.attrs)
            self._kept.append(op.attrs)
        role_vars = self._names(op.role_vars or ())
        return (
            op.type,
            int(op.role or 0),
            role_vars,
            op.is_target,
            self._slots(op.inputs),
            self._slots(op.outputs),
            attrs,
        )

    def _names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if self._generated.isdisjoint(names):
            return names
        return tuple([_MASK if name in self._generated else name for name in names])

    def _slots(self, slots: Slots) -> tuple[Any, ...]:
        return tuple(sorted([(slot, self._names(names)) for slot, names in slots.items() if names]))


def op_names(op: Op) -> list[str]:
    """Every variable name of an op, in the order of its key."""
    names = list(op.role_vars or ())
    for slots in (op.inputs, op.outputs):
        for slot in sorted(slots):
            names += slots[slot]
    return names


def _attrs_key(op_type: str, attrs: Attrs) -> tuple[Any, ...]:
    kept = sorted(_significant(op_type, attrs).items())
    return tuple([(name, type(value), _comparable(name, value)) for name, value in kept])


def _comparable(name: str, value: AttrValue) -> object:
    if isinstance(value, float | Floats):
        return repr(value)  # a NaN is equal to itself
    return tuple(sorted(value)) if name in UNORDERED and isinstance(value, Strings) else value


def _significant(op_type: str, attrs: Attrs) -> dict[str, AttrValue]:
    """The attributes that say something: not those ignored, at their default, or empty without a default."""
    schema = schema_of(op_type)
    specs: Mapping[str, AttrSpec] = schema.attrs if schema is not None else {}
    kept: dict[str, AttrValue] = {}
    for name, value in attrs.items():
        if name in IGNORED:
            continue
        spec = specs.get(name)
        default = spec.default if spec is not None else None
        if default is not None and same_attr(value, default):
            continue
        if value in ("", ()) and (default is None or default in ("", ())):
            continue
        kept[name] = value
    return kept


def op_line(op: Op) -> str:
    """The canonical text of what counts in an op."""
    schema = schema_of(op.type)
    inputs = {slot: names for slot, names in sorted(op.inputs.items()) if names}
    defaults: dict[str, AttrValue] = {}
    if schema is not None:
        inputs = {**schema.empty_inputs, **inputs}
        defaults.update(schema.defaults)
    else:
        defaults.update({name: spec.default for name, spec in GENERIC_ATTRS.items() if spec.default is not None})
    shown = op._replace(
        inputs=FrozenMap(inputs),
        outputs=FrozenMap({slot: names for slot, names in sorted(op.outputs.items()) if names}),
        attrs=FrozenMap({**defaults, **_significant(op.type, op.attrs)}),
        role=op.role or OpRole.FORWARD,
        role_vars=op.role_vars or (),
    )
    return op_text(shown, LANGUAGE)


def var_key(var: Var) -> tuple[Any, ...]:
    """What counts in a declaration, but for its name. Without a description it has the default one."""
    tensor = var.tensor
    described = (DType.BOOL.value, (), 0) if tensor is None else (tensor.dtype.value, *tensor[1:])
    return (
        var.kind.value,
        described,
        var.persistable,
        var.need_check_feed,
        var.parameter,
        tuple([(reader.dtype.value, *reader[1:]) for reader in var.readers]),
        var.elements,
    )


def var_line(var: Var) -> str:
    """The canonical text of a declaration."""
    before, after = var_parts(var._replace(written_defaults=None))
    return f"{before}{name_text(var.name)}{after}"
