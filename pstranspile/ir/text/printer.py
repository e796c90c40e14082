"""Printing: the canonical text of a program, one statement per line, each tagged with what it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pstranspile.ir.attributes import AttrKind, AttrValue, BlockRef, BlockRefs, kind_of
from pstranspile.ir.model import Attrs, Block, Module, Op, Program, Slots, TensorType, Var
from pstranspile.ir.roles import OpRole
from pstranspile.ir.text.assemble import MAX_DEPTH
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


def same(a: AttrValue, b: AttrValue) -> bool:
    """Equal in kind and value, as the text tells values apart: -0.0 is not 0.0, NaN is NaN."""
    if type(a) is not type(b):
        return False
    return repr(a) == repr(b) if kind_of(a) in (AttrKind.FLOAT, AttrKind.FLOATS) else a == b


def _needs_kind(value: Any, kind: AttrKind, known: AttrKind | None, schema: SchemaView | None) -> bool:
    """Whether the kind must be written: it is not the schema's, or the literal alone does not tell."""
    if known is not None:
        return kind is not known
    return schema is not None or kind in (AttrKind.LONG, AttrKind.LONGS) or (kind in ELEMENT_KIND and not value)


def attribute_list(op_type: str, attrs: Attrs, carries_role_vars: bool, language: Language) -> list[str]:
    """What stands between the braces of an op: the attributes unlike the defaults, then the absent ones."""
    schema = language.schema_of(op_type)
    defaults = language.defaults(schema)
    out: list[str] = []
    for attribute in sorted(attrs):
        value = attrs[attribute]
        if attribute in defaults and same(value, defaults[attribute]):
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


def _slot(slot: str, names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return f"{word(slot)}=%{name(names[0])}"
    return f"{word(slot)}=[{', '.join([f'%{name(text)}' for text in names])}]"


def _in_order(slots: Slots, declared: Iterable[str]) -> list[str]:
    """Slots in the order of the schema, the ones it does not know after them by name."""
    known = [slot for slot in declared if slot in slots]
    return known + sorted(slots.keys() - set(known))


def _inputs(op: Op, schema: SchemaView | None) -> str:
    if not op.inputs:
        return ""
    empty: Slots | dict[str, tuple[str, ...]] = schema.empty_inputs if schema is not None else {}
    shown = [
        slot for slot in _in_order(op.inputs, schema.inputs if schema else ()) if op.inputs[slot] or slot not in empty
    ]
    absent = [f"-{word(slot)}" for slot in sorted(empty) if slot not in op.inputs]
    return f"({', '.join([_slot(slot, op.inputs[slot]) for slot in shown] + absent)})"


def _outputs(op: Op, schema: SchemaView | None) -> str:
    if not op.outputs:
        return ""
    order = _in_order(op.outputs, schema.outputs if schema else ())
    return f" -> {', '.join([_slot(slot, op.outputs[slot]) for slot in order])}"


def _role(role: OpRole | None, role_vars: tuple[str, ...] | None, is_target: bool) -> str:
    if role is OpRole.FORWARD and not role_vars and not is_target:
        return ""
    names = f"({', '.join([f'%{name(text)}' for text in role_vars])})" if role_vars else ""
    return f" : {role_text(role)}{names}{' target' if is_target else ''}"


def op_text(op: Op, language: Language) -> str:
    """The canonical line of an op, without indentation."""
    schema = language.schema_of(op.type)
    attrs = attribute_list(op.type, op.attrs, op.role_vars is not None, language)
    braces = f" {{{', '.join(attrs)}}}" if attrs else ""
    role = _role(op.role, op.role_vars, op.is_target)
    return f"{word(op.type)}{_inputs(op, schema)}{_outputs(op, schema)}{braces}{role}"


def _tensor(tensor: TensorType) -> str:
    lod = f" lod={tensor.lod_level}" if tensor.lod_level else ""
    return f"{tensor.dtype.text}[{', '.join(map(str, tensor.shape))}]{lod}"


def _described(var: Var) -> str:
    """What stands after the colon of a declaration."""
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


def var_text(var: Var) -> str:
    """The canonical line of a declaration, without indentation. Raises ValueError for impossible variables."""
    storage = "param" if var.parameter is not None else "state" if var.persistable else "temp "
    feed = " feed" if var.need_check_feed else ""
    written = "" if var.written_defaults is None else f" written({', '.join(var.written_defaults)})"
    return f"{storage} %{name(var.name)} : {_described(var)}{feed}{written}{_properties(var)}"


def block_refs(attrs: Attrs) -> list[int]:
    """The blocks that attributes refer to, in order of the attributes' names."""
    found: list[int] = []
    for attribute in sorted(a for a, value in attrs.items() if isinstance(value, BlockRef | BlockRefs)):
        value = attrs[attribute]
        found += value if isinstance(value, BlockRefs) else [int(value)]  # pyright: ignore
    return found


class End(NamedTuple):
    """What the closing brace of a block or program stands for."""

    of: Block | Program


@dataclass
class Printed:
    """The lines of a text, and for each the value it stands for (None: the version line or an empty line)."""

    lines: list[str] = field(default_factory=list[str])
    values: list[object] = field(default_factory=list[object])

    def add(self, line: str, value: object = None) -> None:
        """One line."""
        self.lines.append(line)
        self.values.append(value)


class ProgramPrinter:
    """Prints the blocks of one program, each once, next to the first op that refers to it."""

    def __init__(self, program: Program, language: Language, printed: Printed):
        self.program = program
        self.language = language
        self.printed = printed
        self.placed: set[int] = set()

    def blocks(self) -> None:
        """Every block of the program."""
        count = len(self.program.blocks)
        if count:
            self.block(0, -1, 1)

    def block(self, index: int, standing_in: int, depth: int) -> None:
        """A block at a nesting depth (1: directly in the program), with the blocks its ops refer to."""
        self.placed.add(index)
        block = self.program.blocks[index]
        indent = "  " * depth
        parent = "" if block.parent == standing_in else f" in ^{block.parent}"
        forward = "" if block.forward_block == -1 else f" forward=^{block.forward_block}"
        self.printed.add(f"{indent}block ^{index}{parent}{forward} {{", block)
        for var in block.vars.values():
            self.printed.add(f"{indent}  {var_text(var)}", var)
        for op in block.ops:
            self.printed.add(f"{indent}  {op_text(op, self.language)}", op)
            if depth < MAX_DEPTH:
                for ref in block_refs(op.attrs):
                    if 0 <= ref < len(self.program.blocks) and ref not in self.placed:
                        self.block(ref, index, depth + 1)
        if index == 0:
            for rest in range(len(self.program.blocks)):
                if rest not in self.placed:
                    self.block(rest, 0, depth + 1)
        self.printed.add(indent + "}", End(block))


def program_lines(program: Program, program_name: str, language: Language, printed: Printed) -> None:
    """Appends the lines of one program."""
    seed = f" seed={program.random_seed}" if program.random_seed else ""
    version = "" if program.version == 0 else f" version={'none' if program.version is None else program.version}"
    printed.add(f"program @{name(program_name)}{seed}{version} {{", program)
    ProgramPrinter(program, language, printed).blocks()
    printed.add("}", End(program))


def module_lines(module: Module, language: Language) -> Printed:
    """The lines of a whole module."""
    printed = Printed()
    printed.add("ir 1")
    for program_name, program in module.programs.items():
        printed.add("")
        program_lines(program, program_name, language, printed)
    return printed


def print_module(module: Module, language: Language) -> str:
    """The canonical text of a module. Raises ValueError for values that no ProgramDesc can hold."""
    return "\n".join(module_lines(module, language).lines) + "\n"


def print_program(program: Program, program_name: str, language: Language) -> str:
    """The canonical text of one program, without the version line. Raises ValueError as `print_module`."""
    printed = Printed()
    program_lines(program, program_name, language, printed)
    return "\n".join(printed.lines) + "\n"
