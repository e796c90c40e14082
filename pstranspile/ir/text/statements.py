"""Printing one statement: the canonical line of an op or a declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pstranspile.ir.attributes import AttrKind, kind_of, same_attr
from pstranspile.ir.model import Attrs, Op, Slots, TensorType, Var
from pstranspile.ir.roles import OpRole
from pstranspile.ir.text.literals import (
    ATTR_KIND_TEXT,
    ELEMENT_KIND,
    INT_MAX,
    INT_MIN,
    KIND_TEXT,
    LONG_MAX,
    LONG_MIN,
    float_text,
    name,
    quote,
    role_text,
    word,
)
from pstranspile.ir.text.schemas import Language, SchemaView
from pstranspile.ir.types import DType, VarKind


def _integer(value: int, low: int, high: int) -> str:
    if not low <= value <= high:
        raise ValueError(f"{int(value)} is no integer of {'32' if high == INT_MAX else '64'} bits")
    return int.__repr__(value)


def _scalar(value: Any, kind: AttrKind) -> str:
    if kind is AttrKind.FLOAT:
        return float_text(value)
    if kind is AttrKind.BOOLEAN:
        return "true" if value else "false"
    if kind is AttrKind.STRING:
        return quote(value)
    if kind is AttrKind.LONG:
        return _integer(value, LONG_MIN, LONG_MAX)
    number = _integer(value, INT_MIN, INT_MAX)
    return f"^{number}" if kind is AttrKind.BLOCK else number


def literal(value: Any, kind: AttrKind) -> str:
    """The literal of an attribute value. Raises ValueError for an integer that does not fit its kind."""
    element = ELEMENT_KIND.get(kind)
    if element is None:
        return _scalar(value, kind)
    return f"[{', '.join([_scalar(part, element) for part in value])}]"


def _needs_kind(value: Any, kind: AttrKind, known: AttrKind | None, schema: SchemaView | None) -> bool:
    """Whether the kind must be written: it is not the schema's, and the literal implies another one or none."""
    if known is not None:
        return kind is not known
    return schema is not None or kind in (AttrKind.LONG, AttrKind.LONGS) or (kind in ELEMENT_KIND and not value)


def attribute_list(op_type: str, attrs: Attrs, carries_role_vars: bool, language: Language) -> list[str]:
    """The text between the braces of an op: the attributes unlike the defaults, then the absent ones."""
    schema = language.schema_of(op_type)
    defaults = language.defaults(schema)
    out: list[str] = []
    for attribute in sorted(attrs):
        value = attrs[attribute]
        if attribute in defaults and same_attr(value, defaults[attribute]):
            continue
        kind = kind_of(value)
        text = literal(value, kind)
        if _needs_kind(value, kind, language.kind(schema, attribute), schema):
            out.append(f"{word(attribute)}:{ATTR_KIND_TEXT[kind]}={text}")
        else:
            out.append(f"{word(attribute)}={text}")
    absent = [attribute for attribute in defaults if attribute not in attrs]
    if not carries_role_vars:
        absent.append("op_role_var")
    return out + [f"-{word(attribute)}" for attribute in sorted(absent)]


def braces_text(op_type: str, attrs: Attrs, carries_role_vars: bool, language: Language) -> str:
    """The braces of an op with the blank before them, nothing if they would be empty."""
    inside = attribute_list(op_type, attrs, carries_role_vars, language)
    return f" {{{', '.join(inside)}}}" if inside else ""


class _Names:
    """How names are written: quoted if necessary, or (to make a template) unquoted."""

    def __init__(self, write: Callable[[str], str]):
        self.write = write

    def slot(self, slot: str, names: tuple[str, ...]) -> str:
        if len(names) == 1:
            return f"{word(slot)}=%{self.write(names[0])}"
        return f"{word(slot)}=[{self.listed(names)}]"

    def listed(self, names: tuple[str, ...]) -> str:
        return ", ".join([f"%{self.write(text)}" for text in names])

    def inputs(self, op: Op, schema: SchemaView | None) -> str:
        if not op.inputs:
            return ""
        empty: Slots | dict[str, tuple[str, ...]] = schema.empty_inputs if schema is not None else {}
        order = _in_order(op.inputs, schema.inputs if schema else ())
        shown = [slot for slot in order if op.inputs[slot] or slot not in empty]
        absent = [f"-{word(slot)}" for slot in sorted(empty) if slot not in op.inputs]
        return f"({', '.join([self.slot(slot, op.inputs[slot]) for slot in shown] + absent)})"

    def outputs(self, op: Op, schema: SchemaView | None) -> str:
        if not op.outputs:
            return ""
        order = _in_order(op.outputs, schema.outputs if schema else ())
        return f" -> {', '.join([self.slot(slot, op.outputs[slot]) for slot in order])}"

    def role(self, op: Op) -> str:
        if op.role is OpRole.FORWARD and not op.role_vars and not op.is_target:
            return ""
        names = f"({self.listed(op.role_vars)})" if op.role_vars else ""
        return f" : {role_text(op.role)}{names}{' target' if op.is_target else ''}"


def _in_order(slots: Slots, declared: Iterable[str]) -> list[str]:
    """Slots in the order of the schema, the ones it does not know after them by name."""
    known = [slot for slot in declared if slot in slots]
    return known + sorted(slots.keys() - set(known))


def op_text(op: Op, language: Language, braces: str | None = None, write: Callable[[str], str] = name) -> str:
    """The canonical line of an op, without indentation. Raises ValueError for numbers beyond their kind.

    `braces` is the text of its attributes if that is known already; `write` turns a name into text.
    """
    schema = language.schema_of(op.type)
    if braces is None:
        braces = braces_text(op.type, op.attrs, op.role_vars is not None, language)
    names = _Names(write)
    return f"{word(op.type)}{names.inputs(op, schema)}{names.outputs(op, schema)}{braces}{names.role(op)}"


def _tensor(tensor: TensorType) -> str:
    lod = f" lod={tensor.lod_level}" if tensor.lod_level else ""
    return f"{tensor.dtype.text}[{', '.join(map(str, tensor.shape))}]{lod}"


def _described(var: Var) -> str:
    """The text after the colon of a declaration."""
    if (var.readers and var.kind is not VarKind.READER) or (var.elements and var.kind is not VarKind.TUPLE):
        raise ValueError(f"variable {var.name!r} is a {var.kind.name} but describes another kind")
    kind = KIND_TEXT[var.kind]
    if var.readers:
        kind += f"({', '.join(map(_tensor, var.readers))})"
    elif var.elements:
        parts = [part.text if isinstance(part, DType) else KIND_TEXT[part] for part in var.elements]
        kind += f"({', '.join(parts)})"
    if var.tensor is None:
        return kind
    return _tensor(var.tensor) if var.kind is VarKind.LOD_TENSOR else f"{kind} {_tensor(var.tensor)}"


def _properties(var: Var) -> str:
    """The braces of a parameter."""
    info = var.parameter
    if info is None:
        return ""
    out: list[str] = []
    if info.is_distributed:
        out.append("is_distributed=true")
    if info.learning_rate != 1.0:
        out.append(f"learning_rate={float(info.learning_rate)!r}")
    if not var.persistable:
        out.append("persistable=false")
    if info.regularizer is not None:
        out.append(f"regularizer={quote(info.regularizer)}")
    if not info.trainable:
        out.append("trainable=false")
    return f" {{{', '.join(out)}}}" if out else ""


def var_parts(var: Var) -> tuple[str, str]:
    """The canonical line of a declaration: what stands before and after the name, without indentation.

    Raises ValueError for a variable that describes another kind than it is.
    """
    storage = "param" if var.parameter is not None else "state" if var.persistable else "temp "
    feed = " feed" if var.need_check_feed else ""
    written = "" if var.written_defaults is None else f" written({', '.join(var.written_defaults)})"
    return f"{storage} %", f" : {_described(var)}{feed}{written}{_properties(var)}"
