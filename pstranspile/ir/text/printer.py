"""Prints the canonical text of a program, statement by statement, each tagged with its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from pstranspile.ir.attributes import AttrKind, BlockRef, BlockRefs, Floats, kind_of, same_attr
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.layout import BLANKS, all_wrapped, cut_comment, is_head, wrapped
from pstranspile.ir.model import MAX_DEPTH, Attrs, Block, Module, Op, Program, Slots, TensorType, Var
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
    word,
)
from pstranspile.ir.text.literals import name as name_text
from pstranspile.ir.text.reader import script_text
from pstranspile.ir.types import DType, OpRole, VarKind

# Printing one statement: the canonical line of an op or a declaration.


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


# Prints many ops and declarations: with a function for each shape of op, and cached text for each description.
#
# The result equals that of `op_text` and `var_text`, which print everything else.

_ALL_PLAIN = re.compile(r"[A-Za-z0-9_.@/\n]*").fullmatch
_PLAIN = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.@/"
_MADE_FOR = 12  # uses of a shape before a function is compiled for it
_LONGEST = 200  # names beyond which none is compiled
_MARK = "\x00"


def block_refs(attrs: Attrs) -> tuple[int, ...]:
    """The blocks that attributes refer to, in order of the attributes' names."""
    result: list[int] = []
    for attribute in sorted([a for a, value in attrs.items() if isinstance(value, BlockRef | BlockRefs)]):
        value = attrs[attribute]
        result += value if isinstance(value, BlockRefs) else [int(value)]  # pyright: ignore[reportArgumentType]
    return tuple(result)


# The fields of a variable that its line shows, what stands before its name, what after.
_Description: TypeAlias = tuple[tuple[Any, ...], str, str]


# A compiled function, and the number of odd characters it puts around names and braces.
_Show: TypeAlias = tuple[Callable[..., str | None], int]

# The text of attributes in braces, its odd characters, the blocks it refers to.
_Braces: TypeAlias = tuple[str, int, tuple[int, ...]]


class _Shape:
    """What ops of one type, role and set of slots share.

    `braces` is keyed by the identity of the attributes, which outlive the printing.
    """

    def __init__(self) -> None:
        self.uses = 0
        self.braces: dict[int, _Braces] = {}
        self.show: Callable[..., str | None] | None = None
        self.quoted = 0
        self.variants: dict[tuple[int, ...], _Show | int | None] = {}


def odd_characters(text: str) -> int:
    """The number of bytes in `text` that can't occur in unquoted names.

    Lines are made with unquoted names. If no name needs quotes, the number for all lines equals that of the shapes.
    Counting once is cheaper than checking every name.
    """
    return len(text.encode("utf-8", "surrogatepass").translate(None, _PLAIN))


def _pattern(first: int, counts: Iterable[int]) -> str:
    """Source of an assignment target that unpacks the slots: `(a0,), (), (a1, a2), `."""
    out: list[str] = []
    for count in counts:
        out.append(f"({', '.join([f'a{first + i}' for i in range(count)])}{',' if count == 1 else ''}), ")
        first += count
    return "".join(out)


def _compiled(op: Op, language: Language) -> _Show | None:
    """A function that prints ops like this one, and the number of odd characters it puts around the names.

    It takes (values of inputs, values of outputs, braces, role variables, indentation), gives None when a name
    is empty, and raises ValueError when slots hold other numbers of names. None for ops with too many names.
    """
    counts = [len(names) for names in (*op.inputs.values(), *op.outputs.values())]
    role_vars = op.role_vars or ()
    total = sum(counts) + len(role_vars)
    if total > _LONGEST:
        return None
    marks = iter([f"{_MARK}{index}{_MARK}" for index in range(total)])
    marked = op._replace(
        inputs=FrozenMap({slot: tuple([next(marks) for _ in names]) for slot, names in op.inputs.items()}),
        outputs=FrozenMap({slot: tuple([next(marks) for _ in names]) for slot, names in op.outputs.items()}),
        role_vars=tuple([next(marks) for _ in role_vars]) or op.role_vars,
    )
    parts = op_text(marked, language, braces=f"{_MARK}braces{_MARK}", write=str).split(_MARK)
    source: list[str] = []
    for index, part in enumerate(parts):
        literal = "f" + repr(part.replace("{", "{{").replace("}", "}}"))
        source.append(literal if index % 2 == 0 else f'f"{{{_expression(part)}}}"')
    first_output = sum(counts[: len(op.inputs)])
    inputs = _pattern(0, counts[: len(op.inputs)])
    outputs = _pattern(first_output, counts[len(op.inputs) :])
    lines = [
        "def show(inputs, outputs, braces, role_vars, indent):",
        f"    {inputs}= inputs" if inputs else "    pass",
        f"    {outputs}= outputs" if outputs else "    pass",
        f"    {_pattern(sum(counts), [len(role_vars)])}= role_vars," if role_vars else "    pass",
        f"    if {' and '.join([f'a{index}' for index in range(total)]) or 'True'}:",
        f'        return f"{{indent}}" {" ".join(source)}',
        "    return None",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope["show"], odd_characters("".join(parts[::2]))


def _with_scripts(lines: list[str], ops: tuple[Op, ...], start: int) -> list[str]:
    """Lines of the ops from `start` on, each with the place in the script that created the op, if known."""
    for index, op in enumerate(ops[start : start + len(lines)] if start or len(lines) < len(ops) else ops):
        origin = op[7]
        location = origin[3] if origin is not None else None
        if location is not None and location[3] is not None:
            lines[index] += script_text(location)
    return lines


def _expression(mark: str) -> str:
    return "braces" if mark == "braces" else f"a{mark}"


class Lines:
    """Prints the ops and declarations of one program, which must live as long as this does."""

    def __init__(self, language: Language):
        self.language = language
        self.shapes: dict[tuple[Any, ...], _Shape] = {}
        self.descriptions: dict[str, dict[int, _Description]] = {}
        self.described: dict[tuple[Any, ...], _Description] = {}
        self.alike: dict[tuple[Any, ...], _Braces] = {}

    def declarations(self, variables: Iterable[Var], indent: str) -> list[str]:
        """The lines of the declarations of a block."""
        names = [var.name for var in variables]
        joined = "\n".join(names)
        if not _ALL_PLAIN(joined) or joined.count("\n") != len(names) - 1 or "" in names:
            parts = [var_parts(var) for var in variables]
            return [f"{indent}{p[0]}{name_text(name)}{p[1]}" for name, p in zip(names, parts, strict=True)]
        known, out = self.descriptions.setdefault(indent, {}).get, list[str]()
        for var in variables:
            name, tensor, described = var[0], var[2], var[1:8]
            result = known(id(tensor))
            if result is None or result[0] != described or result[0][4] is not var[5] or var[9] is not None:
                result = self._description(var, indent)
            out.append(f"{result[1]}{name}{result[2]}")
        return out

    def _description(self, var: Var, indent: str) -> _Description:
        """The text around the name of a variable, cached by the identity of its tensor description."""
        key = (indent, *var[1:8], repr(var.parameter), var.written_defaults)
        result = self.described.get(key)
        if result is None:
            before, after = var_parts(var)
            result = self.described[key] = (var[1:8], indent + before, after)
        if var.written_defaults is None:
            self.descriptions[indent][id(var.tensor)] = result
        return result

    def ops(self, ops: tuple[Op, ...], start: int, indent: str) -> tuple[list[str], tuple[int, ...]]:
        """(the lines of the ops from `start` up to the first that refers to blocks, those blocks)."""
        known, out, refs = self.shapes.get, list[str](), ()
        quoted = 0
        for op in ops[start:] if start else ops:
            op_type, inputs, outputs, attrs, role, role_vars, is_target, _ = op
            key = (op_type, role, is_target, role_vars and True, *inputs, None, *outputs)
            shape = known(key)
            if shape is None:
                shape = self.shapes[key] = _Shape()
            braces = shape.braces.get(id(attrs))
            if braces is None:
                braces = shape.braces[id(attrs)] = self._braces(op)
            text = None
            if shape.show is not None:
                try:
                    text = shape.show(inputs.values(), outputs.values(), braces[0], role_vars, indent)
                    quoted += shape.quoted + braces[1] if text is not None else 0
                except ValueError:
                    text, more = self._variant(shape, op, braces, indent)
                    quoted += more
            if text is None:
                text, more = self._plainly(shape, op, braces[0], indent)
                quoted += more
            out.append(text)
            if braces[2]:
                refs = braces[2]
                break
        quoted += (len(indent) + 1) * len(out) - 1
        if out and odd_characters("\n".join(out)) != quoted:  # some name has to be quoted
            out = [indent + op_text(op, self.language) for op in ops[start : start + len(out)]]
        return _with_scripts(out, ops, start), refs

    def _braces(self, op: Op) -> _Braces:
        """The text between the braces of an op, cached for attributes of equal kinds and values."""
        values = op.attrs.values()
        exact = [repr(v) if isinstance(v, float | Floats) else v for v in values]  # tells -0.0 from 0.0
        key = (op.type, op.role_vars is None, *op.attrs, None, *map(type, values), *exact)
        result = self.alike.get(key)
        if result is None:
            text = braces_text(op.type, op.attrs, op.role_vars is not None, self.language)
            result = self.alike[key] = (text, odd_characters(text), block_refs(op.attrs))
        return result

    def _plainly(self, shape: _Shape, op: Op, braces: str, indent: str) -> tuple[str, int]:
        """(the line of an op whose shape has no function yet, the odd characters in it)."""
        shape.uses += 1
        if shape.uses == _MADE_FOR:
            shape.show, shape.quoted = _compiled(op, self.language) or (None, 0)
        text = op_text(op, self.language, braces)
        return indent + text, odd_characters(text)

    def _variant(self, shape: _Shape, op: Op, braces: _Braces, indent: str) -> tuple[str | None, int]:
        """(the line of an op with other numbers of names than the first of its shape, its odd characters)."""
        counts = tuple([len(names) for names in (*op.inputs.values(), *op.outputs.values(), op.role_vars or ())])
        made = shape.variants.get(counts, 0)
        if isinstance(made, int):
            made = shape.variants[counts] = _compiled(op, self.language) if made == _MADE_FOR else made + 1
        if made is None or isinstance(made, int):
            return None, 0
        text = made[0](op.inputs.values(), op.outputs.values(), braces[0], op.role_vars, indent)
        return text, made[1] + braces[1] if text is not None else 0


class End(NamedTuple):
    """The tag of the closing brace of a block or program."""

    of: Block | Program


class Printed:
    """The statements of a text, and the value of each (None: the version line or an empty line)."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: list[object] = []

    def add(self, line: str, value: object = None) -> None:
        """One line."""
        self.lines.append(line)
        self.values.append(value)

    def extend(self, lines: Iterable[str], values: Iterable[object]) -> None:
        """Many statements."""
        self.lines += lines
        self.values += values


class ProgramPrinter:
    """Prints the blocks of one program, each once, next to the first op that refers to it."""

    def __init__(self, program: Program, language: Language, printed: Printed):
        self.program = program
        self.lines = Lines(language)
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
        variables = block.vars.values()
        self.printed.extend(self.lines.declarations(variables, indent + "  "), variables)
        start = 0
        while start < len(block.ops):
            texts, refs = self.lines.ops(block.ops, start, indent + "  ")
            stop = start + len(texts)
            self.printed.extend(texts, block.ops[start:stop])
            start = stop
            for ref in refs if depth < MAX_DEPTH else ():
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
    if program.distribution is not None:
        ops = statements(program.distribution, language)
        texts, _ = Lines(language).ops(ops, 0, "  ")
        printed.extend(texts, map(Statement, range(len(texts))))
    ProgramPrinter(program, language, printed).blocks()
    printed.add("}", End(program))


def module_lines(module: Module, language: Language) -> Printed:
    """The statements of a whole module, each in one line however long it is."""
    printed = Printed()
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
    printed = Printed()
    program_lines(program, program_name, language, printed)
    return "\n".join([*all_wrapped(printed.lines), ""])


# Formatting: the canonical text with the comments and blank lines of the text it was made from.
#
# A comment on lines of its own goes with the statement that follows it, a comment at the end of a line with the
# statement on that line. The comments inside a statement written on several lines go before it.

_PROGRAM = re.compile(rf"program[{BLANKS}]*@").match
_BLOCK = re.compile(rf"block[{BLANKS}]*\^").match


class Written(NamedTuple):
    """A statement as written in a text, and the comments of the lines around it.

    `above` holds comment lines, and "" for a blank line; `trailing` is the comment at its end or "".
    """

    line: int
    code: str
    above: tuple[str, ...]
    trailing: str


def written_statements(text: str) -> Iterator[Written]:
    """The statements of a text that parses, and last an empty one that holds what follows them."""
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
        yield Written(start, first, (*above, *inside), comment)
        above, inside = [], []
    yield Written(0, "", tuple(above), "")


def _line_of(value: object) -> int:
    """The source line of a value that a line was printed for; 0 if it is not known."""
    location = value.location if isinstance(value, Op | Var | Block) else None
    return location.line if location else 0


class _Sources:
    """Finds the written statement of each printed line. Programs must be queried in order."""

    def __init__(self, text: str):
        self.at_line: dict[int, Written] = {}
        self.ends: dict[tuple[int, int], Written] = {}
        self.programs: list[Written] = []
        self.distributions: list[list[Written]] = []
        self.version: Written | None = None
        self.last = Written(0, "", (), "")
        open_at: list[int] = []
        for written in written_statements(text):
            if not written.line:
                self.last = written
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

    def of(self, value: object) -> Written | None:
        """The statement that a printed value was read from."""
        if isinstance(value, Program):
            self.current += 1
            return self.programs[self.current - 1]
        if isinstance(value, Statement):
            return self.distributions[self.current - 1][value.number]
        if isinstance(value, End):
            return self.ends.get((self.current, _line_of(value.of)))
        return self.at_line.get(_line_of(value)) if value is not None else None


def _with_comments(printed: Printed, sources: _Sources) -> Iterator[str]:
    assert sources.version is not None
    for position, (line, value) in enumerate(zip(printed.lines, printed.values, strict=True)):
        written = sources.version if position == 0 else sources.of(value)
        text = wrapped(line)
        if written is not None:
            indent = line[: len(line) - len(line.lstrip(" "))]
            ends = isinstance(value, End)
            inner = indent + "  " if ends else indent
            above = list(written.above)
            if ends and above and above[-1] == "":
                above.pop()
            at_top = position and printed.lines[position - 1].endswith("{")
            if above and above[0] == "" and (at_top or printed.lines[position - 1] == ""):
                above.pop(0)
            yield from (inner + comment if comment else "" for comment in above)
            if written.trailing:
                text = f"{text}  {written.trailing}"
        yield text
    rest = list(sources.last.above)
    while rest and rest[-1] == "":
        rest.pop()
    yield from rest


def format_module(module: Module, text: str, language: Language) -> str:
    """The canonical text of `module` with the comments and blank lines of `text`, which it was parsed from."""
    printed = module_lines(module, language)
    return "\n".join(_with_comments(printed, _Sources(text))) + "\n"
