"""The fast path: Lark parses each new skeleton of a line once, and templates handle further lines.

It gives exactly the module of the plain path, or None if it can't decide. The plain path then reads the text and
reports errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pstranspile.ir.layout import BLANKS, cut_comment, is_head, statement_length, statement_text
from pstranspile.ir.model import Location, Module, Op, Origin, SourceText, Var
from pstranspile.ir.text.assemble import Assembler
from pstranspile.ir.text.attributes import integer
from pstranspile.ir.text.context import BlockHead, Context, OpParts, ProgramHead
from pstranspile.ir.text.entry import BLANK, CLOSE, DECLARATION, OP, VERSION, Entry
from pstranspile.ir.text.joining import is_plain, with_next_lines
from pstranspile.ir.text.literals import INT_MAX, INT_MIN, unquote
from pstranspile.ir.text.op_reader import read_op
from pstranspile.ir.text.reader import read_version
from pstranspile.ir.text.schemas import Language
from pstranspile.ir.text.scripts import Scripts
from pstranspile.ir.text.template import (
    AttributeReader,
    DeclarationReader,
    Ones,
    Unfit,
    numbered,
    op_filler,
    op_interpreter,
    read_line,
    read_statement,
)

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
