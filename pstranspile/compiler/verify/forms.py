"""Slots and attributes of one op against its schema."""

from __future__ import annotations

from collections.abc import Mapping

from pstranspile.compiler.verify.places import Findings, slot_text, suggestion
from pstranspile.ir.attributes import KINDS, AttrKind
from pstranspile.ir.describe import var_text
from pstranspile.ir.diagnostics import Note, Severity
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import Attrs, Op
from pstranspile.ir.text.literals import ATTR_KIND_TEXT, word
from pstranspile.ops import all_schemas, schema_of
from pstranspile.ops.schema import CARRIED_ATTRS, GENERIC_ATTRS, AttrSpec, OpSchema, Slot

UNDECLARED_SLOTS = frozenset({("create_py_reader", "blocking_queue"), ("rnn_memory_helper_grad", "Out@GRAD")})
"""(op type, slot) whose variables need no declaration: the queue of a reader is made by the process that feeds
it, and the gradient of a memory that nobody needs after the last step counts as zero."""

_CONVERTED = frozenset((AttrKind[a], AttrKind[b]) for a in ("INT", "LONG") for b in ("FLOAT", "BOOLEAN"))
"""(given kind, kind of the schema) where Fluid converts the value: whole numbers to others, and to true or false."""

_ALIKE = frozenset({(AttrKind.FLOAT64, AttrKind.FLOAT)})
"""(given kind, kind of the schema) where a value stands for one of the schema's kind."""

ANY_OP: Mapping[str, AttrKind] = {name: spec.kind for name, spec in {**GENERIC_ATTRS, **CARRIED_ATTRS}.items()}
"""Attributes that ops of every type may carry."""


def missing_slots(op: Op, schema: OpSchema) -> list[tuple[Slot, bool]]:
    """(slot, whether it is an output) of every slot that must hold a variable and does not.

    A gradient op may leave out any gradient that nobody needs.
    """
    may_be_empty = schema.facts.lists_may_be_empty
    result: list[tuple[Slot, bool]] = []
    for is_output, slots, held in ((False, schema.inputs, op.inputs), (True, schema.outputs, op.outputs)):
        for name, slot in slots.items():
            if held.get(name) or slot.dispensable or (slot.duplicable and may_be_empty):
                continue
            if not (is_output and schema.forward):
                result.append((slot, is_output))
    return result


def needed_variables(op: Op, reading: bool) -> set[str]:
    """The variables an op can't do without: not those of slots that may be empty, unless they are lists.

    A gradient op with several gradients makes those that are asked for, and a dropout that tests makes no mask.
    """
    schema = schema_of(op.type)
    held = op.inputs if reading else op.outputs
    slots = schema.inputs if schema is not None and reading else EMPTY
    optional = {slot.name for slot in slots.values() if slot.dispensable and not slot.duplicable}
    if schema is not None and not reading and schema.forward and len(schema.outputs) > 1:
        optional = {slot.name for slot in schema.outputs.values() if not slot.duplicable}
    elif not reading and op.type == "dropout" and op.attrs.get("is_test") is True:
        optional = {"Mask"}
    return {name for slot, names in held.items() if slot not in optional for name in names}


def slots_fit(op: Op, schema: OpSchema) -> bool:
    """Whether `check_slots` has nothing to report."""
    for slots, held in ((schema.inputs, op.inputs), (schema.outputs, op.outputs)):
        for name, names in held.items():
            slot = slots.get(name)
            if slot is None or (len(names) > 1 and not slot.duplicable):
                return False
    return not missing_slots(op, schema)


def check_slots(op: Op, schema: OpSchema, place: tuple[int, int], findings: Findings) -> None:
    """Reports unknown slots, missing ones, and lists where one variable belongs."""
    for side, slots, held in (("input", schema.inputs, op.inputs), ("output", schema.outputs, op.outputs)):
        for name, names in held.items():
            slot = slots.get(name)
            if slot is None:
                others = [other for other in slots if other not in held]
                hint = suggestion(name, others) or f"; it has {_listed(slots) or 'none'}"
                message = f"there is no {side} slot {word(name)}, so it has no effect{hint}"
                findings.op("unknown-slot", message, place, focus=slot_text(name), severity=Severity.WARNING)
            elif len(names) > 1 and not slot.duplicable:
                message = f"the {side} slot {word(name)} takes one variable, here are {len(names)}"
                findings.op("slot-not-list", message, place, focus=slot_text(name))
    for slot, is_output in missing_slots(op, schema):
        side = "output" if is_output else "input"
        message = f"the {side} slot {word(slot.name)} needs a variable"
        findings.op("missing-slot", message, place, focus=op.type)


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(word(name) for name in names)


def attributes_fit(attrs: Attrs, schema: OpSchema) -> bool:
    """Whether `check_attributes` has nothing to report."""
    known = schema.attrs
    for name, value in attrs.items():
        spec = known.get(name)
        kind = spec.kind if spec is not None else ANY_OP.get(name)
        if kind is not (given := KINDS.get(type(value))) and (given, kind) not in _ALIKE:
            return False
    return all(name in attrs or spec.default is not None or spec.optional for name, spec in known.items())


def generic_attributes_fit(attrs: Attrs) -> bool:
    """Whether attributes that ops of every type may carry have the right kinds, for an op without a schema."""
    return all(ANY_OP.get(name) in (None, KINDS.get(type(value))) for name, value in attrs.items())


def check_attributes(op: Op, schema: OpSchema | None, place: tuple[int, int], findings: Findings) -> None:
    """Reports attributes of a wrong kind, unknown ones, and required ones that the op lacks."""
    known: Mapping[str, AttrSpec] = schema.attrs if schema is not None else EMPTY
    for name, value in op.attrs.items():
        spec = known.get(name)
        kind = spec.kind if spec is not None else ANY_OP.get(name)
        given = KINDS.get(type(value))
        if kind is None and schema is not None:
            hint = suggestion(name, [other for other in known if other not in op.attrs])
            message = f"the schema has no attribute {word(name)}, so it has no effect{hint}"
            focus = findings.attribute_focus(op, name)
            findings.op("extra-attribute", message, place, focus=focus, severity=Severity.WARNING)
        elif kind is not None and kind is not given and (given, kind) not in _ALIKE:
            is_kind = f"of kind {ATTR_KIND_TEXT[given]}" if given is not None else f"a {type(value).__name__}"
            message = f"the attribute {word(name)} is {is_kind}, it must be of kind {ATTR_KIND_TEXT[kind]}"
            converted = (given, kind) in _CONVERTED
            severity = Severity.WARNING if converted else Severity.ERROR
            focus = findings.attribute_focus(op, name)
            findings.op("attribute-kind", message, place, focus=focus, severity=severity)
    for name, spec in known.items():
        if name not in op.attrs and spec.default is None and not spec.optional:
            message = f"the attribute {word(name)} ({ATTR_KIND_TEXT[spec.kind]}) must be given"
            findings.op("missing-attribute", message, place, focus=op.type)


def report_unknown_op(op: Op, count: int, place: tuple[int, int], findings: Findings) -> None:
    """Reports an op type without a schema, once for all its ops in a program."""
    assert schema_of(op.type) is None
    times = "" if count == 1 else f", which {count} ops have"
    message = f"neither Fluid nor a plug-in has this op type{times}{suggestion(op.type, all_schemas())}"
    findings.op("unknown-op", message, place, focus=word(op.type))


def unwritten(op: Op, name: str, writer: Op | None) -> tuple[str, tuple[Note, ...]]:
    """The message about a variable that an op reads, but that only `writer` writes, later or at once."""
    what, notes = "nothing has written it before, and nothing brings it into this block", ()
    if writer is op:
        what = "this op itself is the first to write it"
    elif writer is not None:
        what = "this op runs before any op that writes it"
        location = writer.location
        notes = (Note(f"it is first written here, by {writer.type}", location, var_text(name)),)
    return f"{var_text(name)} is read, but {what}", notes
