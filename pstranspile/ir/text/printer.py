"""Prints the canonical text of a program, statement by statement, each tagged with its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from pstranspile.ir.attributes import AttrKind, BlockRef, BlockRefs, Floats, kind_of, same_attr
from pstranspile.ir.layout import BLANKS, all_wrapped, cut_comment, is_head, wrap_statement
from pstranspile.ir.model import MAX_DEPTH, Attrs, Block, Module, Op, Program, Slots, TensorType, Var
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.text.distribution import Statement, statements
from pstranspile.ir.text.literals import (
    ATTR_KIND_TEXT,
    ELEMENT_KIND,
    INT_MAX,
    INT_MIN,
    KIND_TEXT,
    LONG_MAX,
    LONG_MIN,
    Language,
    SchemaView,
    float_text,
    name,
    quote,
    role_text,
    script_text,
    word,
)
from pstranspile.ir.types import DType, OpRole, VarKind

# Printing one statement: the canonical line of an op or a declaration.


def _integer(value: int, low: int, high: int) -> str:
    if not low <= value <= high:
        raise ValueError(f"{int(value)} is no integer of {'32' if high == INT_MAX else '64'} bits")
    return int.__repr__(value)


def _scalar(value: Any, kind: AttrKind) -> str:
    if kind is AttrKind.FLOAT:
        return float_text(value)
    if kind is AttrKind.FLOAT64:
        return float.__repr__(value)
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


_NAMED = (AttrKind.LONG, AttrKind.LONGS, AttrKind.FLOAT64)
"""Attribute kinds that no literal implies."""


def _needs_kind(value: Any, kind: AttrKind, known: AttrKind | None, schema: SchemaView | None) -> bool:
    """Whether the kind must be written: it is not the schema's, and the literal implies another one or none."""
    if known is not None:
        return kind is not known
    return schema is not None or kind in _NAMED or (kind in ELEMENT_KIND and not value)


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


class _WrittenNames(dict[str, str]):
    """A cache of names as the text writes them: plain, or quoted if necessary."""

    def __missing__(self, text: str) -> str:
        made = self[text] = name(text)
        return made


def _in_order(slots: Slots, declared: Iterable[str]) -> list[str]:
    """The names of slots in the order of the schema, followed by those that the schema does not have, in alphabetical
    order.
    """
    known = [slot for slot in declared if slot in slots]
    return known + sorted(slots.keys() - set(known))


def _escape_word(text: str) -> str:
    """An op type or slot as text with doubled braces, for use in a format string."""
    return word(text).replace("{", "{{").replace("}", "}}")


def _slot_text(slot: str, fields: list[str]) -> str:
    return f"{_escape_word(slot)}={fields[0]}" if len(fields) == 1 else f"{_escape_word(slot)}=[{', '.join(fields)}]"


def op_format(op: Op, schema: SchemaView | None) -> str:
    """The format string of the line of every op with this op's type, role and number of names in each slot.

    Its fields are the texts that `_texts` gives.
    """
    fields = iter([f"%{{{number}}}" for number in range(sum(map(len, (*op.inputs.values(), *op.outputs.values()))))])
    inputs = {slot: [next(fields) for _ in names] for slot, names in op.inputs.items()}
    outputs = {slot: [next(fields) for _ in names] for slot, names in op.outputs.items()}
    line = _escape_word(op.type)
    if inputs:
        empty: Slots | dict[str, tuple[str, ...]] = schema.empty_inputs if schema is not None else {}
        order = _in_order(op.inputs, schema.inputs if schema else ())
        shown = [_slot_text(slot, inputs[slot]) for slot in order if inputs[slot] or slot not in empty]
        absent = [f"-{_escape_word(slot)}" for slot in sorted(empty) if slot not in inputs]
        line += f"({', '.join(shown + absent)})"
    if outputs:
        order = _in_order(op.outputs, schema.outputs if schema else ())
        line += f" -> {', '.join([_slot_text(slot, outputs[slot]) for slot in order])}"
    first = sum(map(len, (*inputs.values(), *outputs.values())))
    line += f"{{{first}}}"
    if op.role is not OpRole.FORWARD or op.role_vars or op.is_target:
        names = ", ".join([f"%{{{first + number}}}" for number, _ in enumerate(op.role_vars or (), 1)])
        line += f" : {role_text(op.role)}{f'({names})' if names else ''}{' target' if op.is_target else ''}"
    return line


def _texts(op: Op, braces: str, names: _WrittenNames) -> list[str]:
    """The texts that fill the fields of `op_format`: names of inputs and of outputs, the text in braces, role
    variables.
    """
    written = names.__getitem__
    return [*map(written, chain(*op[1].values(), *op[2].values())), braces, *map(written, op[5] or ())]


def op_text(op: Op, language: Language) -> str:
    """The canonical line of an op, without indentation. Raises ValueError for numbers beyond their kind."""
    braces = braces_text(op.type, op.attrs, op.role_vars is not None, language)
    return op_format(op, language.schema_of(op.type)).format(*_texts(op, braces, _WrittenNames()))


def _tensor(tensor: TensorType) -> str:
    lod = f" lod={tensor.lod_level}" if tensor.lod_level else ""
    return f"{tensor.dtype.text}[{', '.join(map(str, tensor.shape))}]{lod}"


def _type_text(var: Var) -> str:
    """The description of a variable after the colon of its declaration."""
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
    """The text in braces of a parameter's declaration."""
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
    return f"{storage} %", f" : {_type_text(var)}{feed}{written}{_properties(var)}"


def block_refs(attrs: Attrs) -> tuple[int, ...]:
    """The blocks that attributes refer to, in order of the attributes' names."""
    result: list[int] = []
    for attribute in sorted([a for a, value in attrs.items() if isinstance(value, BlockRef | BlockRefs)]):
        value = attrs[attribute]
        result += value if isinstance(value, BlockRefs) else [int(value)]  # pyright: ignore[reportArgumentType]
    return tuple(result)


# The text of attributes in braces, and the blocks it refers to.
_Braces: TypeAlias = tuple[str, tuple[int, ...]]


class _Format(NamedTuple):
    """The format string for ops of one type and role with the same numbers of names, and the texts of their braces.

    `braces` is keyed by the identity of the attributes, which outlive the printing.
    """

    show: Callable[..., str]
    braces: dict[int, _Braces]


class Lines:
    """Prints the ops and declarations of one program, which must live as long as this does."""

    def __init__(self, language: Language):
        self.language = language
        self.names = _WrittenNames()
        self.formats: dict[tuple[Any, ...], _Format] = {}
        self.described: dict[tuple[Any, ...], tuple[str, str]] = {}
        self.braces: dict[tuple[Any, ...], _Braces] = {}

    def declarations(self, variables: Iterable[Var], indent: str) -> list[str]:
        """The lines of the declarations of a block."""
        out: list[str] = []
        for var in variables:
            parameter = var.parameter
            rate = None if parameter is None else repr(parameter.learning_rate)  # tells -0.0 from 0.0
            key = (*var[1:8], var[9], rate)
            parts = self.described.get(key)
            if parts is None:
                parts = self.described[key] = var_parts(var)
            out.append(f"{indent}{parts[0]}{self.names[var[0]]}{parts[1]}")
        return out

    def ops(self, ops: tuple[Op, ...], start: int, indent: str) -> tuple[list[str], tuple[int, ...]]:
        """(lines of the ops from `start` up to the first one that refers to blocks, indices of these blocks)."""
        names, out = self.names, list[str]()
        for op in ops[start:] if start else ops:
            op_type, inputs, outputs, attrs, role, role_vars, is_target, origin = op
            sizes = *map(len, inputs.values()), *map(len, outputs.values()), -1 if role_vars is None else len(role_vars)
            key = (op_type, role, is_target, *inputs, None, *outputs, *sizes)
            form = self.formats.get(key)
            if form is None:
                form = self.formats[key] = _Format(op_format(op, self.language.schema_of(op_type)).format, {})
            show, known = form
            braces, refs = known.get(id(attrs)) or self._braces(op, known)
            line = indent + show(*_texts(op, braces, names))
            location = origin[3] if origin is not None else None
            if location is not None and location[3] is not None:
                line += script_text(location)
            out.append(line)
            if refs:
                return out, refs
        return out, ()

    def _braces(self, op: Op, known: dict[int, _Braces]) -> _Braces:
        """(text in braces, blocks that it refers to) for an op whose `attrs` object has not been printed yet; equal
        attributes share one result.
        """
        values = op.attrs.values()
        exact = [repr(v) if isinstance(v, float | Floats) else v for v in values]  # tells -0.0 from 0.0
        alike = (op.type, op.role_vars is None, *op.attrs, None, *map(type, values), *exact)
        result = self.braces.get(alike)
        if result is None:
            text = braces_text(op.type, op.attrs, op.role_vars is not None, self.language)
            result = self.braces[alike] = text, block_refs(op.attrs)
        known[id(op.attrs)] = result
        return result


class ClosingTag(NamedTuple):
    """The tag of the closing brace of a block or program."""

    owner: Block | Program


class PrintedText:
    """The lines of a text, and the value that each line was printed from (None: the version line or an empty line)."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: list[object] = []

    def add(self, line: str, value: object = None) -> None:
        """Appends a line, and the value that it is printed from."""
        self.lines.append(line)
        self.values.append(value)

    def extend(self, lines: Iterable[str], values: Iterable[object]) -> None:
        """Appends lines, and the values that they are printed from."""
        self.lines += lines
        self.values += values


class ProgramPrinter:
    """Prints the blocks of one program, each once, next to the first op that refers to it."""

    def __init__(self, program: Program, language: Language, printed: PrintedText):
        self.program = program
        self.lines = Lines(language)
        self.printed = printed
        self.printed_blocks: set[int] = set()

    def blocks(self) -> None:
        """Prints every block of the program."""
        count = len(self.program.blocks)
        if count:
            self.block(0, -1, 1)

    def block(self, index: int, standing_in: int, depth: int) -> None:
        """Prints a block at a nesting depth (1: directly in the program), with the blocks that its ops refer to."""
        self.printed_blocks.add(index)
        block = self.program.blocks[index]
        indent = "  " * depth
        parent = "" if block.parent == standing_in else f" in ^{block.parent}"
        forward = "" if block.forward_block == -1 else f" forward=^{block.forward_block}"
        self.printed.add(f"{indent}block ^{index}{parent}{forward} {{", block)
        variables = block.vars.values()
        self.printed.extend(self.lines.declarations(variables, indent + "  "), variables)
        start = 0
        while start < len(block.ops):
            texts, refs = self.lines.ops(block.ops, start, indent + "  ")
            stop = start + len(texts)
            self.printed.extend(texts, block.ops[start:stop])
            start = stop
            for ref in refs if depth < MAX_DEPTH else ():
                if 0 <= ref < len(self.program.blocks) and ref not in self.printed_blocks:
                    self.block(ref, index, depth + 1)
        if index == 0:
            for rest in range(len(self.program.blocks)):
                if rest not in self.printed_blocks:
                    self.block(rest, 0, depth + 1)
        self.printed.add(indent + "}", ClosingTag(block))


def program_lines(program: Program, program_name: str, language: Language, printed: PrintedText) -> None:
    """Appends the lines of one program."""
    seed = f" seed={program.random_seed}" if program.random_seed else ""
    version = "" if program.version == 0 else f" version={'none' if program.version is None else program.version}"
    printed.add(f"program @{name(program_name)}{seed}{version} {{", program)
    if program.distribution is not None:
        ops = statements(program.distribution, language)
        texts, _ = Lines(language).ops(ops, 0, "  ")
        printed.extend(texts, map(Statement, range(len(texts))))
    ProgramPrinter(program, language, printed).blocks()
    printed.add("}", ClosingTag(program))


def module_lines(module: Module, language: Language) -> PrintedText:
    """The statements of a whole module, each in one line however long it is."""
    printed = PrintedText()
    printed.add("ir 1")
    for program_name, program in module.programs.items():
        printed.add("")
        program_lines(program, program_name, language, printed)
    return printed


def print_module(module: Module, language: Language) -> str:
    """The canonical text of a module. Raises ValueError for values that no ProgramDesc can hold."""
    return "\n".join([*all_wrapped(module_lines(module, language).lines), ""])


def print_program(program: Program, program_name: str, language: Language) -> str:
    """The canonical text of one program, without the version line. Raises ValueError as `print_module`."""
    printed = PrintedText()
    program_lines(program, program_name, language, printed)
    return "\n".join([*all_wrapped(printed.lines), ""])


def value_text(value: Module | Program | Block | Op | Var, language: Language) -> str:
    """The canonical text of a value, without a line end at its end. Raises ValueError as `print_module`.

    A program does not know its name: it has that of the program which its ops come from, if that is one, else `main`.
    """
    if isinstance(value, Module):
        return print_module(value, language)[:-1]
    if isinstance(value, Program):
        origins = {op.origin.program for block in value.blocks for op in block.ops if op.origin is not None}
        return print_program(value, origins.pop() if len(origins) == 1 else "main", language)[:-1]
    if isinstance(value, Block):
        variables = Lines(language).declarations(value.vars.values(), "")
        return "\n".join(all_wrapped([*variables, *(op_text(op, language) for op in value.ops)]))
    if isinstance(value, Op):
        return op_text(value, language)
    before, after = var_parts(value)
    return f"{before}{name(value.name)}{after}"


# Formatting: the canonical text with the comments and blank lines of the text it was made from.
#
# A comment on lines of its own goes with the statement that follows it, a comment at the end of a line with the
# statement on that line. The comments inside a statement written on several lines go before it.

_PROGRAM = Pattern(rf"program[{BLANKS}]*@").match
_BLOCK = Pattern(rf"block[{BLANKS}]*\^").match


class WrittenStatement(NamedTuple):
    """A statement as written in a text, with the comments around it."""

    line: int
    code: str
    comments_above: tuple[str, ...]
    trailing_comment: str


def written_statements(text: str) -> Iterator[WrittenStatement]:
    """The statements of a text without errors; the last one is empty and holds the comments that follow all others."""
    above: list[str] = []
    inside: list[str] = []
    start, first, open_brackets, unfinished = 0, "", 0, False
    for number, line in enumerate(text.split("\n"), 1):
        code, comment, depth = cut_comment(line)
        code = code.lstrip(BLANKS)
        if not unfinished and not code:
            if comment or (above and above[-1] != "") or (not above and start):
                above.append(comment)
            continue
        if not unfinished:
            start, first = number, code
            open_brackets = 0 if is_head(code) or code == "}" else depth
        else:
            open_brackets += depth
        unfinished = open_brackets > 0 or code.endswith(",") or (unfinished and not code)
        if unfinished:
            inside += [comment] if comment else []
            continue
        yield WrittenStatement(start, first, (*above, *inside), comment)
        above, inside = [], []
    yield WrittenStatement(0, "", tuple(above), "")


def _line_of(value: object) -> int:
    """The source line of a value that a line was printed for; 0 if it is not known."""
    location = value.location if isinstance(value, Op | Var | Block) else None
    return location.line if location else 0


class _Sources:
    """Finds the written statement of each printed line. Programs must be queried in order."""

    def __init__(self, text: str):
        self.at_line: dict[int, WrittenStatement] = {}
        self.ends: dict[tuple[int, int], WrittenStatement] = {}
        self.programs: list[WrittenStatement] = []
        self.distributions: list[list[WrittenStatement]] = []
        self.version: WrittenStatement | None = None
        self.last_statement = WrittenStatement(0, "", (), "")
        open_at: list[int] = []
        for written in written_statements(text):
            if not written.line:
                self.last_statement = written
            elif written.code == "}":
                self.ends[(len(self.programs), open_at.pop())] = written
            else:
                self.at_line[written.line] = written
                if _PROGRAM(written.code):
                    self.programs.append(written)
                    self.distributions.append([])
                    open_at.append(0)
                elif _BLOCK(written.code):
                    open_at.append(written.line)
                elif open_at == [0]:
                    self.distributions[-1].append(written)
                elif self.version is None:
                    self.version = written
        self.current = 0

    def of(self, value: object) -> WrittenStatement | None:
        """The statement that a printed value was read from."""
        if isinstance(value, Program):
            self.current += 1
            return self.programs[self.current - 1]
        if isinstance(value, Statement):
            return self.distributions[self.current - 1][value.number]
        if isinstance(value, ClosingTag):
            return self.ends.get((self.current, _line_of(value.owner)))
        return self.at_line.get(_line_of(value)) if value is not None else None


def _with_comments(printed: PrintedText, sources: _Sources) -> Iterator[str]:
    assert sources.version is not None
    for position, (line, value) in enumerate(zip(printed.lines, printed.values, strict=True)):
        written = sources.version if position == 0 else sources.of(value)
        text = wrap_statement(line)
        if written is not None:
            indent = line[: len(line) - len(line.lstrip(" "))]
            ends = isinstance(value, ClosingTag)
            inner = indent + "  " if ends else indent
            above = list(written.comments_above)
            if ends and above and above[-1] == "":
                above.pop()
            at_top = position and printed.lines[position - 1].endswith("{")
            if above and above[0] == "" and (at_top or printed.lines[position - 1] == ""):
                above.pop(0)
            yield from (inner + comment if comment else "" for comment in above)
            if written.trailing_comment:
                text = f"{text}  {written.trailing_comment}"
        yield text
    rest = list(sources.last_statement.comments_above)
    while rest and rest[-1] == "":
        rest.pop()
    yield from rest


def format_module(module: Module, text: str, language: Language) -> str:
    """The canonical text of `module` with the comments and blank lines of `text`, which it was parsed from."""
    printed = module_lines(module, language)
    return "\n".join(_with_comments(printed, _Sources(text))) + "\n"
