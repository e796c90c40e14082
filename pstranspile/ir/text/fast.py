"""The fast path: Lark parses each new skeleton of a line once, and templates handle further lines.

It gives exactly the module of the plain path, or None if it can't decide. The plain path then reads the text and
reports errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind, AttrValue, kind_of
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.layout import BLANKS, cut_comment, is_head, statement_length, statement_text
from pstranspile.ir.model import Attrs, Location, Module, Op, Origin, Slots, SourceText, TensorType, Var
from pstranspile.ir.text.assemble import Assembler
from pstranspile.ir.text.grammar import accepted_statement
from pstranspile.ir.text.literals import (
    ELEMENT_KIND,
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
    Language,
    SchemaView,
    unquote,
)
from pstranspile.ir.text.reader import (
    BlockHead,
    Context,
    Node,
    OpParts,
    ProgramHead,
    Scripts,
    Tree,
    integer,
    merge_attributes,
    node_at,
    read_block_head,
    read_declaration,
    read_given,
    read_op,
    read_program_head,
    read_version,
    real,
)

# Templates: one statement read by Lark serves for every statement that differs only in names and literals.
#
# A statement is split into its *skeleton* and the names or literals in between. The skeleton with numbered placeholders
# (`%0`, `%1`, ...) is a statement that Lark parses and the ordinary reader reads. Where the numbers occur in its value,
# the names of other statements with this skeleton belong.


class Unfit(Exception):
    """Raised if a text needs the plain path: it has errors, or an unusual layout."""


_CUT_LITERALS = re.compile(
    r'("(?:[^"\\\n]|\\[^\n])*"|(?<![-A-Za-z0-9_.@])-?[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)?)'
)
_LONG = 2000
"""A list of numbers with more characters is read separately, because its text hardly occurs again."""
_LONG_LIST = re.compile(rf"(?<![^{{, \n])([A-Za-z_][A-Za-z0-9_.@]*)((?::[a-z]+)?=)\[([-+0-9.eE, \n]{{{_LONG},}})\]")
_NEXT_NUMBER = re.compile(r"[ \n]*(-?[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)?)[ \n]*(,|\Z)")
_ONLY_ATTRIBUTES = re.compile(r'(?:[^"{}#\n]|"(?:[^"\\\n]|\\[^\n])*")*').fullmatch


def read_line(text: str) -> Node:
    """The tree of one statement. Raises Unfit when the grammar refuses it."""
    statement = accepted_statement(text)
    tree = statement and statement.children[0]
    if not isinstance(tree, Tree):
        raise Unfit
    return tree


def _checked(context: Context) -> None:
    if context.findings:
        raise Unfit


def read_statement(text: str, number: int, file: str, language: Language) -> OpParts | Var | BlockHead | ProgramHead:
    """The value of the one statement that `text` holds, which begins at line `number`. Raises Unfit."""
    tree = read_line(text)
    context = Context(file, language, number)
    readers: dict[str, Callable[[Node, Context], Any]] = {
        "op": read_op,
        "declaration": read_declaration,
        "block_head": read_block_head,
        "program_head": read_program_head,
    }
    reader = readers.get(tree.data)
    if reader is None:
        raise Unfit
    value = reader(tree, context)
    _checked(context)
    return value


def numbered(pieces: tuple[str, ...]) -> str:
    """The statement of a skeleton, with the names %0, %1, %2, ... in place of those cut out."""
    return "".join([f"{piece}%{index}" for index, piece in enumerate(pieces[:-1])]) + pieces[-1]


_NEW: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _tuple_source(names: tuple[str, ...], shared: bool) -> str:
    """Source of the tuple of these names; a tuple of one name is shared between all ops."""
    if len(names) == 1 and shared:
        return f"one[n{names[0]}]"
    return f"({', '.join([f'one[n{index}][0]' for index in names])}{',' if len(names) == 1 else ''})"


def _slots_source(slots: Slots) -> str:
    if not slots:
        return "EMPTY"
    items = [f"{slot!r}: {_tuple_source(names, True)}" for slot, names in slots.items()]
    return f"FrozenMap({{{', '.join(items)}}})"


class Ones(dict[str, tuple[str, ...]]):
    """A cache of tuples of one name: equal names share one tuple and one string, so that look-ups are fast."""

    def __missing__(self, name: str) -> tuple[str, ...]:
        made = self[name] = (name,)
        return made


def op_filler(parts: OpParts, count: int, ones: Ones) -> Callable[..., Op]:
    """A function (names, (attributes, role variables or None), origin) -> Op, compiled for one skeleton.

    Its Python source contains nothing of the text but quoted slot names.
    """
    names = "".join([f"n{index}, " for index in range(count)])
    role_vars = _tuple_source(parts.role_vars, False) if parts.role_vars else "role_vars"
    lines = [
        "def fill(names, value, origin):",
        *([f"    {names}= names"] if count else []),
        "    attrs, role_vars = value",
        *(["    if role_vars is None: raise Unfit"] if parts.role_vars else []),
        f"    return new(Op, (op_type, {_slots_source(parts.inputs)}, {_slots_source(parts.outputs)},",
        f"        attrs, role, {role_vars}, {parts.is_target!r}, origin))",
    ]
    scope: dict[str, Any] = {
        "new": _NEW,
        "Op": Op,
        "EMPTY": EMPTY,
        "FrozenMap": FrozenMap,
        "Unfit": Unfit,
        "one": ones,
        "op_type": parts.type,
        "role": parts.role,
    }
    exec("\n".join(lines), scope)
    return scope.pop("fill")  # which its own globals shall not hold: nothing here is a cycle


def op_interpreter(parts: OpParts, ones: Ones) -> Callable[..., Op]:
    """The function of `op_filler` without compilation, for skeletons that are used seldom."""

    def slots(template: Slots, names: list[str]) -> Slots:
        if not template:
            return EMPTY
        filled: dict[str, tuple[str, ...]] = {}
        for slot, indexes in template.items():
            row = [ones[names[int(index)]] for index in indexes]
            filled[slot] = row[0] if len(row) == 1 else tuple([name for (name,) in row])
        return FrozenMap(filled)

    def fill(names: list[str], value: tuple[Attrs, tuple[str, ...] | None], origin: Any) -> Op:
        attrs, role_vars = value
        if parts.role_vars:
            if role_vars is None:
                raise Unfit
            role_vars = tuple([ones[names[int(index)]][0] for index in parts.role_vars])
        inputs, outputs = slots(parts.inputs, names), slots(parts.outputs, names)
        return Op(parts.type, inputs, outputs, attrs, parts.role, role_vars, parts.is_target, origin)

    return fill


class _Literals(NamedTuple):
    """The attributes of one skeleton: constants, and the positions of its literals."""

    constants: tuple[tuple[str, AttrValue], ...]
    scalars: tuple[tuple[str, AttrKind, int], ...]
    lists: tuple[tuple[str, AttrKind, tuple[int | float, ...]], ...]
    absent: frozenset[str]


def _convert(kind: AttrKind, literal: str) -> Any:
    """The value of a literal. Raises OverflowError or ValueError if it has none."""
    if kind is AttrKind.STRING:
        return unquote(literal)
    if kind is AttrKind.FLOAT:
        return real(literal)
    if kind is AttrKind.LONG:
        return integer(literal, LONG_MIN, LONG_MAX)
    return integer(literal, INT_MIN, INT_MAX)


def _numbers(text: str, start: int, end: int, kind: AttrKind) -> Iterator[int | float]:
    """The numbers between two places of a text, with commas between. Raises Unfit, OverflowError or ValueError."""
    more = ","
    while more:
        number = _NEXT_NUMBER.match(text, start, end)
        if number is None:
            raise Unfit
        literal, more = number.groups()
        start = number.end()
        yield _convert(kind, literal)


class AttributeReader:
    """Reads the text between the braces of ops, cached by text and by skeleton."""

    def __init__(self, language: Language):
        self.language = language
        self.templates: dict[tuple[str, tuple[str, ...], str], _Literals | None] = {}

    def read(self, op_type: str, text: str) -> tuple[Attrs, tuple[str, ...] | None]:
        """(attributes, `()` or None where the op carries no role variables). Raises Unfit."""
        if len(text) > _LONG and '"' not in text and _LONG_LIST.search(text):
            return self._read_long(op_type, text)
        if not _ONLY_ATTRIBUTES(text):
            raise Unfit
        schema = self.language.schema_of(op_type)
        pieces = _CUT_LITERALS.split(text)
        literals = pieces[1::2]
        kinds = "".join(["s" if part[0] == '"' else "i" if part.lstrip("-").isdigit() else "f" for part in literals])
        key = (op_type, tuple(pieces[::2]), kinds)
        if key not in self.templates:
            self.templates[key] = self._template(op_type, schema, key[1], kinds)
        template = self.templates[key]
        if template is None:
            given, absent = self._given(op_type, schema, text)
        else:
            given, absent = self._filled(template, literals), template.absent
        return merge_attributes(given, absent, self.language.defaults(schema))

    def _read_long(self, op_type: str, text: str) -> tuple[Attrs, tuple[str, ...] | None]:
        """Reads a text with long lists: with one number in each, then with the numbers put in."""
        result: dict[str, tuple[int, int]] = {}

        def cut(match: re.Match[str]) -> str:
            if match[1] in result:
                raise Unfit
            result[match[1]] = start, end = match.span(3)
            whole = all(text.find(mark, start, end) < 0 for mark in ".eE")
            return f"{match[1]}{match[2]}[{'0' if whole else '0.5'}]"

        attrs, role_vars = self.read(op_type, _LONG_LIST.sub(cut, text))
        values: dict[str, AttrValue] = {**attrs}
        for name, span in result.items():
            kind = kind_of(values[name]) if name in values else AttrKind.BOOLEAN
            element = ELEMENT_KIND.get(kind)
            if element is None or len(values[name]) != 1:  # pyright: ignore[reportArgumentType]
                raise Unfit
            try:
                values[name] = PYTHON_TYPES[kind](_numbers(text, *span, element))
            except (OverflowError, ValueError):
                raise Unfit from None
        return FrozenMap(values), role_vars

    def _given(self, op_type: str, schema: SchemaView | None, text: str) -> tuple[dict[str, AttrValue], frozenset[str]]:
        tree = read_line(f"x {{{text}}}")
        context = Context("", self.language)
        given, absent = read_given(node_at(tree, 1), op_type, schema, context)
        _checked(context)
        return given, absent

    def _template(
        self, op_type: str, schema: SchemaView | None, pieces: tuple[str, ...], kinds: str
    ) -> _Literals | None:
        """The template of a skeleton; None when a literal is the name of an attribute."""
        stand_ins = {"s": '"{}"', "i": "{}", "f": "{}.5"}
        parts = [piece + stand_ins[kind].format(i) for i, (piece, kind) in enumerate(zip(pieces, kinds, strict=False))]
        try:
            given, absent = self._given(op_type, schema, "".join(parts) + pieces[-1])
        except Unfit:  # refused, or the quoted name of an attribute was cut out: reading the text itself will tell
            return None
        if any(name.isdigit() for name in (*given, *absent)):
            return None
        constants: list[tuple[str, AttrValue]] = []
        scalars: list[tuple[str, AttrKind, int]] = []
        lists: list[tuple[str, AttrKind, tuple[int | float, ...]]] = []
        for name, value in given.items():
            kind = kind_of(value)
            element = ELEMENT_KIND.get(kind)
            if kind in (AttrKind.BOOLEAN, AttrKind.BOOLEANS) or (kind is AttrKind.FLOAT and not _finite(value)):
                constants.append((name, value))
            elif element is None:
                scalars.append((name, kind, int(value)))  # pyright: ignore[reportArgumentType]
            else:
                where: list[int | float] = [int(v) if _finite(v) else v for v in value]  # pyright: ignore
                lists.append((name, kind, tuple(where)))
        return _Literals(tuple(constants), tuple(scalars), tuple(lists), absent)

    def _filled(self, template: _Literals, literals: list[str]) -> dict[str, AttrValue]:
        given = dict(template.constants)
        try:
            for name, kind, index in template.scalars:
                given[name] = PYTHON_TYPES[kind](_convert(kind, literals[index]))
            for name, kind, where in template.lists:
                element = ELEMENT_KIND[kind]
                given[name] = PYTHON_TYPES[kind](
                    [_convert(element, literals[at]) if isinstance(at, int) else at for at in where]
                )
        except (OverflowError, ValueError):
            raise Unfit from None
        return given


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or (value == value and abs(value) != float("inf"))


_DIMS = re.compile(r"([^\[]*\[)([-0-9, ]*)(\].*)", re.DOTALL).fullmatch
_DIM = re.compile(r"-?[0-9]+")
_DIGITS = re.compile(r"[0-9]+")


class DeclarationReader:
    """Reads declarations without their names, by skeleton where only the dims are new."""

    def __init__(self, language: Language):
        self.language = language
        self.templates: dict[tuple[str, str, str], Var] = {}

    def read(self, pieces: tuple[str, str]) -> Var:
        """The variable that a declaration without its name stands for. Raises Unfit."""
        dims = _DIMS(pieces[1])
        if dims is None:
            return self._plainly(pieces)
        before, inside, after = dims.groups()
        numbers = _DIM.findall(inside)
        key = (f"{pieces[0]}%{before}", _DIGITS.sub("0", inside), after)
        template = self.templates.get(key)
        if template is None:
            template = self._plainly((pieces[0], before + key[1] + after))
            if template.tensor is None or len(template.tensor.shape) != len(numbers):
                return self._plainly(pieces)
            self.templates[key] = template
        try:
            shape = tuple([integer(number, LONG_MIN, LONG_MAX) for number in numbers])
        except OverflowError:
            raise Unfit from None
        assert template.tensor is not None
        return template._replace(tensor=TensorType(template.tensor.dtype, shape, template.tensor.lod_level))

    def _plainly(self, pieces: tuple[str, str]) -> Var:
        value = read_statement(numbered(pieces), 1, "", self.language)
        if not isinstance(value, Var):
            raise Unfit
        return value


# Entries for the skeletons of lines: lines without their names and values.

OP = 0
"""The kind of a line that is an op."""

DECLARATION = 1
"""The kind of a line that is a declaration."""

CLOSE = 2
"""The kind of a line that closes a block."""

BLANK = 3
"""The kind of a line without content."""

VERSION = 4
"""The kind of a line with the version. (Kinds are numbers: every line is compared with them.)"""


class Entry(NamedTuple):
    """The entry of a skeleton. `values` maps texts between the braces (None: no braces) to their values."""

    kind: int
    fill: Callable[..., Op] | None
    values: dict[str | None, Any]
    column: int
    op_type: str


# Statements that continue on the next line.


def is_plain(line: str) -> bool:
    """Whether a line, its attributes taken out, ends its statement and has no other braces."""
    return "{" not in line.replace(" {}", "", 1) and not line.rstrip(BLANKS).endswith((",", "(", "["))


def with_next_lines(lines: list[str], number: int) -> tuple[str, int]:
    """(a line joined with its continuation lines, their number); the line itself if it needs a closer look."""
    parts: list[str] = []
    for at in range(number - 1, len(lines)):
        line = lines[at]
        parts.append(line.lstrip(BLANKS) if parts else line)
        if not line.endswith(",") or "#" in line or "\\" in line or line.count('"') % 2:
            break
    text = " ".join(parts)
    balanced = all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "{}"))
    return (text, len(parts) - 1) if balanced else (lines[number - 1], 0)


_STRING = r'"(?:[^"\\\n]|\\[^\n])*"'
_CUT_NAMES = re.compile(r"%([A-Za-z0-9_.@/]+)").split
# Compiled on first use, as few texts need them.
_QUOTED_NAMES = rf"%([A-Za-z0-9_.@/]+|{_STRING})"
_CUT_LABELS = re.compile(r"\^(-?[0-9]+)").split
_BRACES = rf'((?:[^"{{]|{_STRING})*)(?:\{{((?:[^"}}]|{_STRING})*)\}}((?:[^"]|{_STRING})*))?'
_DECLARES = re.compile(rf"[{BLANKS}]*[A-Za-z_][A-Za-z0-9_.@]*[{BLANKS}]*").fullmatch
_LOCATION = Var._fields.index("location")
_COMPILE_AFTER = 12  # uses of a skeleton; compiling pays from about there on


_KEPT_TEXT = 2000
"""The value of a longer text between braces is not cached, as it hardly occurs again."""


class LineReader:
    """The skeletons of one text, and the module built from its lines.

    Reading stops after `most` findings. `at` is the number of the line read last.
    """

    def __init__(self, context: Context, most: int = 1):
        self.file = context.file
        self.language = language = context.language
        self.context = context
        self.assembler = Assembler(self.context)
        self.entries: dict[tuple[str, ...], Entry] = {}
        self.values_of_type: dict[str, dict[str | None, Any]] = {}
        self.heads: dict[tuple[str, ...], BlockHead] = {}
        self.attributes = AttributeReader(language)
        self.declarations = DeclarationReader(language)
        self.ones = Ones()
        self.scripts = Scripts()
        self.started = False
        self.most = most
        self.at = 0

    def lines(self, lines: list[str], start: int = 0) -> None:
        """Reads lines from index `start` on. Raises Unfit if the plain path is needed, or after `most` findings."""
        new: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        file, cut, known, ones = self.file, _CUT_NAMES, self.entries.get, self.ones
        program, block, variables, ops = self._inside()
        iterator = iter(enumerate(lines[start:], start + 1))
        script = None
        for number, line in iterator:
            self.at, joined = number, 0
            if line.endswith(","):
                line, joined = with_next_lines(lines, number)
                for _ in range(joined):
                    next(iterator)
            if " @" in line:
                line, script = self._cut(line)
            head, brace, rest = line.partition(" {")
            text = None
            if brace:
                text, close, tail = rest.rpartition("}")
                head = f"{head} {{}}{tail}" if close else '"'  # no brace closed: read carefully
            pieces = cut(head)
            entry = known(tuple(pieces[::2]))
            if '"' in head or "#" in head or (entry is None and not is_plain(head)):
                script = None
                for _ in range(self.carefully(lines, number) - joined):
                    next(iterator)
            else:
                entry = entry or self.entry(tuple(pieces[::2]))
                kind, fill, values, column, _ = entry
                if kind == OP and ops is not None:
                    value = values.get(text) or self.value(entry, pieces, text)
                    origin = new(Origin, (program, block, len(ops), new(Location, (file, number, column, script)), ""))
                    ops.append(fill(pieces[1::2], value, origin))  # pyright: ignore[reportOptionalCall]
                    script = None
                    continue
                if script is not None:
                    raise Unfit
                if kind == DECLARATION and variables is not None:
                    before, after = values.get(text) or self.value(entry, pieces, text)
                    (name,) = ones[pieces[1]]
                    if name in variables:
                        raise Unfit
                    variables[name] = new(Var, (name, *before, new(Location, (file, number, column, None)), *after))
                    continue
                if kind == OP:
                    self._outside(entry, pieces[1::2], values.get(text) or self.value(entry, pieces, text), number)
                else:
                    self.other(kind, number, head)
                self._check()
            program, block, variables, ops = self._inside()

    def _inside(self) -> tuple[str, int, dict[str, Var] | None, list[Op] | None]:
        """Program, number, variables and ops of the innermost open block."""
        if not self.assembler.stack:
            return "", -1, None, None
        opened = self.assembler.stack[-1]
        return opened.program, opened.index, opened.vars, opened.ops

    def _cut(self, line: str) -> tuple[str, Location | None]:
        """The line without the place in a script at its end, and the place. Raises Unfit."""
        try:
            return self.scripts.cut(line)
        except (OverflowError, ValueError):
            raise Unfit from None

    def entry(self, pieces: tuple[str, ...]) -> Entry:
        """The entry of a new skeleton. Raises Unfit."""
        statement = numbered(pieces)
        stripped = statement.strip(BLANKS)
        column = len(statement) - len(statement.lstrip(BLANKS)) + 1
        if not stripped or stripped == "}":
            entry = Entry(CLOSE if stripped else BLANK, None, {}, column, "")
        elif len(pieces) == 2 and _DECLARES(pieces[0]):
            entry = Entry(DECLARATION, None, {}, column, "")
        else:
            tree = read_line(statement)
            context = Context(self.file, self.language)
            if tree.data == "version":
                read_version(tree, context)
                entry = Entry(VERSION, None, {}, column, "")
            elif tree.data == "op":
                parts = read_op(tree, context)
                if parts.script is not None:  # not in the canonical layout
                    raise Unfit
                values = self.values_of_type.setdefault(parts.type, {})
                entry = Entry(OP, self._counting(pieces, parts), values, column, parts.type)
            else:
                raise Unfit
            if context.findings:
                raise Unfit
        self.entries[pieces] = entry
        return entry

    def _counting(self, pieces: tuple[str, ...], parts: OpParts) -> Callable[..., Op]:
        """Fills a skeleton by interpretation, and puts a compiled function in its place when it is used often."""
        fill = op_interpreter(parts, self.ones)
        uses = 0

        def counting(names: list[str], value: Any, origin: Any) -> Op:
            nonlocal uses
            uses += 1
            if uses == _COMPILE_AFTER:
                compiled = op_filler(parts, len(pieces) - 1, self.ones)
                self.entries[pieces] = self.entries[pieces]._replace(fill=compiled)
            return fill(names, value, origin)

        return counting

    def value(self, entry: Entry, pieces: list[str], text: str | None) -> Any:
        """What a new text between the braces stands for. Raises Unfit."""
        if entry.kind == OP:
            if text is None:
                made: Any = (self.language.defaults(self.language.schema_of(entry.op_type)), ())
            else:
                made = self.attributes.read(entry.op_type, text)
        else:
            after = pieces[2] if text is None else pieces[2].replace("{}", f"{{{text}}}", 1)
            template = self.declarations.read((pieces[0], after))
            made = (template[1:_LOCATION], template[_LOCATION + 1 :])
        if text is None or len(text) < _KEPT_TEXT:
            entry.values[text] = made
        return made

    def other(self, kind: int, number: int, code: str) -> None:
        """Handles a closing brace, a blank line or the version line. Raises Unfit for one in a wrong place."""
        if kind == CLOSE:
            self.assembler.close(Location(self.file, number, 1))
        elif kind == VERSION and not self.started:
            self.started = True
        elif kind != BLANK:
            raise Unfit

    def _outside(self, entry: Entry, names: list[str], value: Any, number: int) -> None:
        """A statement with the shape of an op outside any block."""
        assert entry.fill is not None
        op = entry.fill(names, value, None)
        self.assembler.add(OpParts(*op[:7], number, entry.column))

    @property
    def is_full(self) -> bool:
        """Whether there are so many findings that reading stops."""
        return len(self.context.findings) >= self.most or self.assembler.too_deep

    def _check(self) -> None:
        if self.is_full:
            raise Unfit

    def carefully(self, lines: list[str], number: int) -> int:
        """Reads a line with quoted names, comments or an open bracket; gives the number of additional lines it took.

        Raises Unfit if it can't be read, or if it is in a wrong place.
        """
        taken = self.line(lines, number)
        self._check()
        return taken - 1

    def line(self, lines: list[str], number: int) -> int:
        """Reads any line and reports it if it is in a wrong place; gives the number of lines it took.

        Raises Unfit, without having changed anything, if the plain path is needed.
        """
        code, _, depth = cut_comment(lines[number - 1])
        taken = 1
        if is_head(code):
            self._head(code, number)
        elif depth > 0 or code.endswith(","):
            taken = statement_length(lines, number - 1)
            code = statement_text(lines, number - 1) if taken > 1 else None
            if code is not None:
                self._code(code, number)
            else:
                self._whole("\n".join(lines[number - 1 : number - 1 + taken]), number)
        else:
            self._code(code, number)
        return taken

    def _whole(self, statement: str, number: int) -> None:
        """Reads a statement with Lark as a whole."""
        value = read_statement(statement, number, self.file, self.language)
        if isinstance(value, OpParts):
            self.assembler.add(value)
        elif isinstance(value, Var):
            self.assembler.declare(value)
        elif isinstance(value, ProgramHead) and self.started:
            self.assembler.open_program(value)
        else:
            raise Unfit

    def _head(self, code: str, number: int) -> None:
        pieces = _CUT_LABELS(code)
        if len(pieces) == 1 or '"' in code:
            self._whole(code, number)
            return
        key = tuple(pieces[::2])
        template = self.heads.get(key)
        if template is None:
            read = read_statement("".join([f"{p}^{i}" for i, p in enumerate(key[:-1])]) + key[-1], 1, "", self.language)
            if not isinstance(read, BlockHead):
                raise Unfit
            template = self.heads[key] = read
        labels = pieces[1::2]
        try:
            label = integer(labels[template.label], 0, INT_MAX)
            parent = None if template.parent is None else integer(labels[template.parent], INT_MIN, INT_MAX)
            forward = -1 if template.forward == -1 else integer(labels[template.forward], INT_MIN, INT_MAX)
        except OverflowError:
            raise Unfit from None
        location = Location(self.file, number, template.location.column)
        self.assembler.open_block(BlockHead(label, parent, forward, location))

    def _code(self, code: str, number: int) -> None:
        """A line without its comment, possibly with quoted names."""
        whole = code
        code, script = self._cut(code)
        parts = re.fullmatch(_BRACES, code)
        if parts is None:
            raise Unfit
        head, text, tail = parts.groups()
        pieces = re.split(_QUOTED_NAMES, head if text is None else f"{head}{{}}{tail}")
        if any('"' in piece for piece in pieces[::2]):
            self._whole(whole, number)
            return
        if any(re.match(r"[A-Za-z0-9_.@/]", piece) for piece in pieces[2::2]):
            raise Unfit  # a quoted name runs into a word, which it would become a part of
        try:
            names = [unquote(name) if name[0] == '"' else name for name in pieces[1::2]]
        except ValueError:
            raise Unfit from None
        pieces[1::2] = names
        key = tuple(pieces[::2])
        entry = self.entries.get(key) or self.entry(key)
        location = Location(self.file, number, entry.column, script)
        if script is not None and (entry.kind != OP or not self.assembler.stack):
            raise Unfit
        if entry.kind == OP:
            value = entry.values.get(text) or self.value(entry, pieces, text)
            if not self.assembler.stack:
                self._outside(entry, names, value, number)
                return
            block = self.assembler.stack[-1]
            assert entry.fill is not None
            origin = Origin(block.program, block.index, len(block.ops), location)
            block.ops.append(entry.fill(names, value, origin))
        elif entry.kind == DECLARATION:
            before, after = entry.values.get(text) or self.value(entry, pieces, text)
            self.assembler.declare(Var._make((*self.ones[names[0]], *before, location, *after)))
        else:
            self.other(entry.kind, number, code)


def parse_quickly(text: str, file: str, language: Language) -> Module | None:
    """The module that `text` holds, None where the plain path has to read it."""
    reader = LineReader(Context(file, language))
    try:
        reader.lines((text.replace("\r\n", "\n") if "\r" in text else text).split("\n"))
    except Unfit:
        return None
    finally:
        reader.entries.clear()  # they hold the reader
    if not reader.started:
        return None
    module = reader.assembler.finish(SourceText(file, text))
    return None if reader.context.findings else module
