"""Reads a text line by line into a module, and reports statements that can't be read or don't fit.

Lines that differ only in names, and in attributes that have occurred before, are parsed once; for further ones, only
the names are filled in.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import MAX_FINDINGS, DiagnosticError, Note, error, first_findings
from pstranspile.ir.layout import BLANKS, cut_comment, statement_length
from pstranspile.ir.model import (
    EMPTY,
    MAX_DEPTH,
    Block,
    Distribution,
    FrozenMap,
    Location,
    Module,
    Op,
    Origin,
    Program,
    Slots,
    SourceText,
    Var,
)
from pstranspile.ir.text.distribution import STATEMENTS, read_distribution
from pstranspile.ir.text.literals import VERSION, Language, read_script
from pstranspile.ir.text.literals import name as name_text
from pstranspile.ir.text.statement import (
    BlockHead,
    ClosingBrace,
    Context,
    NotAStatement,
    OpParts,
    ProgramHead,
    Statement,
    VersionLine,
    piece,
)

STRUCTURE = frozenset({"unbalanced", "misplaced", "missing-block", "duplicate-block"})
"""Codes of findings that depend on the whole text."""


class OpenBlock:
    """A block whose statements are being read."""

    def __init__(self, program: str, index: int, parent: int, forward: int, location: Location):
        self.program = program
        self.index = index
        self.parent = parent
        self.forward = forward
        self.location = location
        self.vars: dict[str, Var] = {}
        self.ops: list[Op] = []

    def close(self) -> Block:
        """The finished block."""
        variables = FrozenMap(self.vars) if self.vars else EMPTY
        return Block(variables, tuple(self.ops), self.parent, self.forward, self.location)


class Assembler:
    """Builds the module from the statements of a text in order, and reports statements that don't fit."""

    def __init__(self, context: Context):
        self.context = context
        self.programs: dict[str, Program] = {}
        self.heads: dict[str, ProgramHead] = {}
        self.program: ProgramHead | None = None
        self.blocks: dict[int, OpenBlock] = {}
        self.stack: list[OpenBlock] = []
        self.distribution: list[OpParts] = []
        self.too_deep = False
        self.misplaced = False  # the open program is a placeholder for a block outside any program
        self.unbalanced = False  # braces don't match; reported once

    def _report(self, code: Code, message: str, location: Location, focus: str = "", *notes: Note) -> None:
        self.context.findings.append(error(code, message, location, focus=focus, notes=notes))

    def take(self, statement: OpParts | Var | BlockHead | ProgramHead | ClosingBrace) -> None:
        """Adds the value of any statement but the version line to the module."""
        if isinstance(statement, OpParts):
            self.add(statement)
        elif isinstance(statement, Var):
            self.declare(statement)
        elif isinstance(statement, ClosingBrace):
            self.close(statement.location)
        elif isinstance(statement, BlockHead):
            self.open_block(statement)
        else:
            self.open_program(statement)

    def open_program(self, head: ProgramHead) -> None:
        """Begins a program: `program @name {`."""
        if self.program is not None:
            unclosed = self.stack[-1].location if self.stack else self.program.location
            self._report(
                "unbalanced",
                f"a program can't stand inside the program @{name_text(self.program.name)}; is a `}}` missing?",
                head.location,
                "program",
                Note("this `{` is not closed", unclosed),
            )
            self.unbalanced = True
            self._end_program()
        earlier = self.heads.get(head.name)
        if earlier is not None:
            self._report(
                "duplicate-program",
                f"the program @{name_text(head.name)} is defined twice",
                head.location,
                f"@{name_text(head.name)}",
                Note("the first one", earlier.location, f"@{name_text(head.name)}"),
            )
        self.heads.setdefault(head.name, head)
        self.program = head

    def open_block(self, head: BlockHead) -> None:
        """Begins a block: `block ^n {`."""
        program = self.program
        if program is None:
            self._report("misplaced", "a block stands outside any program", head.location, "block")
            program = self.program = ProgramHead("", 0, 0, head.location)
            self.misplaced = True
        standing_in = self.stack[-1].index if self.stack else -1
        parent = standing_in if head.parent is None else head.parent
        block = OpenBlock(program.name, head.label, parent, head.forward, head.location)
        earlier = self.blocks.get(head.label)
        if earlier is not None:
            self._report(
                "duplicate-block",
                f"the block ^{head.label} is defined twice in @{name_text(program.name)}",
                head.location,
                f"^{head.label}",
                Note("the first one", earlier.location, f"^{head.label}"),
            )
        self.blocks.setdefault(head.label, block)
        self.stack.append(block)
        if len(self.stack) > MAX_DEPTH and not self.too_deep:
            self.too_deep = True
            self._report(
                "nesting", f"blocks stand inside each other more than {MAX_DEPTH} deep", head.location, "block"
            )

    def declare(self, var: Var) -> None:
        """Adds a variable to the innermost open block."""
        assert var.location is not None
        if not self.stack:
            self._report("misplaced", "a variable is declared outside any block", var.location)
            return
        variables = self.stack[-1].vars
        earlier = variables.get(var.name)
        if earlier is not None:
            focus = f"%{name_text(var.name)}"
            notes = (Note("the first one", earlier.location, focus),) if earlier.location else ()
            message = f"{focus} is declared twice in the block ^{self.stack[-1].index}"
            self._report("duplicate-variable", message, var.location, focus, *notes)
            return
        variables[var.name] = var

    def add(self, parts: OpParts) -> None:
        """Adds an op to the innermost open block."""
        location = Location(self.context.file, parts.line, parts.column, parts.script)
        if not self.stack:
            self._add_outside(parts, location)
            return
        block = self.stack[-1]
        origin = Origin(block.program, block.index, len(block.ops), location)
        block.ops.append(Op(*parts[:7], origin))

    def _add_outside(self, parts: OpParts, location: Location) -> None:
        """Handles a statement that looks like an op outside any block."""
        if parts.type not in STATEMENTS:
            self._report("misplaced", f"the op {parts.type} stands outside any block", location)
        elif self.program is None or self.blocks:
            self._report("misplaced", f"`{parts.type}` stands in a program, before its blocks", location)
        else:
            self.distribution.append(parts)

    def close(self, location: Location) -> None:
        """Ends the innermost block, or the program: `}`."""
        if self.stack:
            self.stack.pop()
            if self.misplaced and not self.stack:
                self.program, self.blocks, self.misplaced = None, {}, False
        elif self.program is not None:
            self._end_program()
        elif not self.unbalanced:
            self.unbalanced = True
            self._report("unbalanced", "this `}` closes nothing", location, "}")

    def _end_program(self) -> None:
        head = self.program
        assert head is not None
        blocks: list[Block] = []
        for index, label in enumerate(sorted(self.blocks)):
            if label != index:
                block = self.blocks[label]
                where = f"@{name_text(head.name)} has a block ^{label} but no block ^{index}"
                message = f"{where}: labels count from 0 without a gap"
                self._report("missing-block", message, block.location, f"^{label}")
                break
            blocks.append(self.blocks[label].close())
        distribution: Distribution | None = None
        if self.distribution:
            distribution, result = read_distribution(self.distribution, self.context.file, self.context.language)
            self.context.findings += result
        self.programs.setdefault(head.name, Program(tuple(blocks), head.seed, head.version, distribution))
        self.program, self.blocks, self.stack, self.distribution = None, {}, [], []

    def finish(self, source: SourceText) -> Module:
        """The finished module. Reports a brace that is still open."""
        if self.stack:
            self._report("unbalanced", "the `{` of this block is not closed", self.stack[-1].location, "block")
        elif self.program is not None:
            self._report("unbalanced", "the `{` of this program is not closed", self.program.location, "program")
        if self.program is not None:
            self._end_program()
        return Module(FrozenMap(self.programs) if self.programs else EMPTY, source)


# Shapes of lines: what lines have in common that differ only in names and attributes.


class Shape(NamedTuple):
    """The common form of lines that differ only in names and attributes. In `op` (None: they are declarations), each
    name is replaced by its number in the line.

    `values` maps the text between the braces (None: no braces) to its value: (attributes, role variables) of an op, or
    the variable of a declaration.
    """

    op: OpParts | None
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    values: dict[str | None, Any]
    column: int

    def with_dims(self, dims: tuple[int, ...]) -> Shape:
        """The same shape for declarations with other dims."""
        (kind, tensor, *rest), after = self.values[None]
        return self._replace(values={None: ((kind, tensor._replace(shape=dims), *rest), after)})


def _numbers(slots: Slots) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple([(slot, tuple(map(int, names))) for slot, names in slots.items()])


def _substitute_names(slots: tuple[tuple[str, tuple[int, ...]], ...], names: list[tuple[str, ...]]) -> Slots:
    """Slots in which each number is replaced by the name with this number. `names` are tuples of one name."""
    if not slots:
        return EMPTY
    return FrozenMap(
        {slot: names[at[0]] if len(at) == 1 else tuple([names[number][0] for number in at]) for slot, at in slots}
    )


_LOCATION = Var._fields.index("location")


def _around(var: Var) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The fields of a variable between its name and its location, and those after the location."""
    return var[1:_LOCATION], var[_LOCATION + 1 :]


_SCRIPT = re.compile(r'(@(?:[A-Za-z0-9_.@/]+|"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"):[0-9]+)[ \t\r]*').fullmatch


class Scripts(dict[str, Location | None]):
    """A cache: the end of a line from `@` on -> its place in a script, None if it does not name one."""

    def __missing__(self, end: str) -> Location | None:
        written = _SCRIPT(end)
        try:
            made = read_script(written[1]) if written else None
        except (OverflowError, ValueError):
            made = None
        self[end] = made
        return made


def _join_continuation(lines: list[str], number: int) -> tuple[str, int]:
    """(a line joined with its continuation lines, the number of these); the line alone if its brackets don't match."""
    parts: list[str] = []
    for at in range(number - 1, len(lines)):
        line = lines[at]
        parts.append(line.lstrip(BLANKS) if parts else line)
        if not line.endswith(",") or "#" in line or "\\" in line or line.count('"') % 2:
            break
    text = " ".join(parts)
    balanced = all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "{}"))
    return (text, len(parts) - 1) if balanced else (lines[number - 1], 0)


_DIMS = re.compile(r" : ([a-z0-9_]+\[)(-?[0-9]{1,18}(?:, -?[0-9]{1,18})*)(\][a-z0-9_= ]*)").fullmatch
"""Splits the description of a tensor around its dims, which have few enough digits to fit into 64 bits."""

_CUT_NAMES = re.compile(r"%([A-Za-z0-9_.@/]+)").split
_OPENS = re.compile(rf"(?:[{BLANKS}]*(?:#[^\n]*)?\n)*[{BLANKS}]*ir\b").match
_OPENS_OR_ENDS = re.compile(rf"\{{[{BLANKS}]*(#.*)?$|^[{BLANKS}]*\}}").search
_KEPT_TEXT = 2000
"""The longest text between braces whose value is cached; longer ones hardly occur again."""


class ModuleReader:
    """The statements of a text as they are read, and the module built from them."""

    def __init__(self, text: str, file: str, language: Language):
        self.source = SourceText(file, text)
        self.file = file
        self.language = language
        self.context = Context(file, language)
        self.assembler = Assembler(self.context)
        self.lines = (text.replace("\r\n", "\n") if "\r" in text else text).split("\n")
        self.shapes: dict[tuple[str, ...], Shape | None] = {}
        self.values_of_type: dict[str, dict[str | None, Any]] = {}
        self.declared: dict[tuple[str, str, str], Shape] = {}
        self.scripts = Scripts()
        self.started = False
        self.structure_lost: int | None = None  # the number of findings before the grammar refused a head or an end

    def read(self) -> Module:
        """The module. Raises DiagnosticError with all findings."""
        if not _OPENS(self.source.text):
            from pstranspile.ir.text.diagnose import check_start

            check_start(self.source.text, self.context)
            self.started = bool(self.context.findings)  # a missing version line has been reported
        at = 0
        while at < len(self.lines) and not self.is_full:
            at = self.read_known_shapes(at)
            if at < len(self.lines):
                at += self.statement(at)
        module = None if self.is_full and at < len(self.lines) else self.assembler.finish(self.source)
        lost, findings = self.structure_lost, self.context.findings
        if lost is not None:
            findings = findings[:lost] + [finding for finding in findings[lost:] if finding.code not in STRUCTURE]
        if findings or module is None:
            raise DiagnosticError(first_findings(findings))
        return module

    @property
    def is_full(self) -> bool:
        """Whether there are so many findings that reading stops."""
        return len(self.context.findings) >= MAX_FINDINGS or self.assembler.too_deep

    def read_known_shapes(self, start: int) -> int:
        """Reads ops and declarations by their shapes from line index `start` on.

        Returns the index of the first line that is another statement or must be parsed by itself, or the number of
        lines.
        """
        if not self.assembler.stack:
            return start
        new: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        file, lines, shapes, one = self.file, self.lines, self.shapes, self.context.names
        block = self.assembler.stack[-1]
        program, index, variables, ops = block.program, block.index, block.vars, block.ops
        skip = 0
        for number in range(start + 1, len(lines) + 1):
            if skip:
                skip -= 1
                continue
            line = lines[number - 1]
            text = script = None
            if line.endswith(","):
                line, skip = _join_continuation(lines, number)
            if "#" in line:
                line = cut_comment(line)[0]
            if " @" in line:
                at = line.rfind(" @")
                script = self.scripts[line[at + 1 :]]
                if script is not None:
                    line = line[:at]
            head, brace, rest = line.partition(" {")
            if brace:
                text, close, tail = rest.rpartition("}")
                head = f"{head} {{}}{tail}" if close else '"'  # no brace closed: a closer look
            if '"' in head:
                return number - 1
            pieces = _CUT_NAMES(head)
            key = tuple(pieces[::2])
            shape = shapes[key] if key in shapes else self.shape(key)
            if shape is None:
                return number - 1
            value = shape.values.get(text) or self.value(shape, pieces, text)
            if value is None:
                return number - 1
            op, inputs, outputs, _, column = shape
            names = [one[name] for name in pieces[1::2]]
            if op is not None:
                attrs, role_vars = value
                if op.role_vars:
                    if role_vars is None:
                        return number - 1
                    role_vars = tuple([names[int(at)][0] for at in op.role_vars])
                origin = new(Origin, (program, index, len(ops), new(Location, (file, number, column, script)), ""))
                inputs, outputs = _substitute_names(inputs, names), _substitute_names(outputs, names)
                ops.append(new(Op, (op[0], inputs, outputs, attrs, op[4], role_vars, op[6], origin)))
                continue
            before, after = value
            name = names[0][0]
            if script is not None or name in variables:
                return number - 1
            variables[name] = new(Var, (name, *before, new(Location, (file, number, column, None)), *after))
        return len(lines)

    def shape(self, pieces: tuple[str, ...]) -> Shape | None:
        """The shape of lines that consist of these pieces with names in between; None if each line must be parsed by
        itself.

        The shape is parsed from a line with the numbers 0, 1, 2, ... as names.
        """
        dims = _DIMS(pieces[1]) if len(pieces) == 2 else None
        declared = (pieces[0], dims[1], dims[3]) if dims is not None else None
        shape = self.declared.get(declared) if declared is not None else None
        if shape is not None and dims is not None:
            shape = shape.with_dims(tuple(map(int, dims[2].split(","))))
        else:
            shape = self._new_shape("".join([f"{piece}%{at}" for at, piece in enumerate(pieces[:-1])]) + pieces[-1])
            if declared is not None and shape is not None and shape.op is None:
                self.declared[declared] = shape
        self.shapes[pieces] = shape
        return shape

    def _new_shape(self, line: str) -> Shape | None:
        if "{" in line.replace(" {}", "", 1):
            return None  # a head, or braces that are not in the canonical layout
        context = Context(self.file, self.language)
        try:
            read = Statement(line, context).read()
        except NotAStatement:
            return None
        if context.findings:
            return None
        column = len(line) - len(line.lstrip(BLANKS)) + 1
        if isinstance(read, Var):
            return Shape(None, (), (), {None: _around(read)}, column)
        if isinstance(read, OpParts) and read.script is None:
            values = self.values_of_type.setdefault(read.type, {})
            return Shape(read, _numbers(read.inputs), _numbers(read.outputs), values, column)
        return None

    def value(self, shape: Shape, pieces: list[str], text: str | None) -> Any:
        """The value of a new text between the braces; None if the line must be parsed by itself."""
        context = Context(self.file, self.language)
        try:
            if shape.op is not None and text is None:
                value: Any = (self.language.defaults(self.language.schema_of(shape.op.type)), ())
            elif shape.op is not None:
                statement = Statement(f"{{{text}}}", context)
                value = statement.attributes(shape.op.type)
                statement.end()
            else:
                after = pieces[2].replace("{}", f"{{{text}}}", 1)
                read = Statement(f"{pieces[0]}%0{after}", context).read()
                value = _around(read) if isinstance(read, Var) else None
        except NotAStatement:
            return None
        if context.findings:
            return None
        if text is None or len(text) < _KEPT_TEXT:
            shape.values[text] = value
        return value

    def statement(self, at: int) -> int:
        """Reads the statement of any kind on line index `at`. Returns the number of its lines."""
        line = self.lines[at]
        code = line.strip(BLANKS)
        if not code or code[0] == "#":
            return 1
        count = 1
        context = Context(self.file, self.language, at + 1)
        context.names = self.context.names
        try:
            read = Statement(line, context).read()
        except NotAStatement:
            count = statement_length(self.lines, at)
            if count == 1:
                return self.report_refused(at)
            context.findings.clear()
            try:
                read = Statement("\n".join(self.lines[at : at + count]), context).read()
            except NotAStatement:
                return self.report_refused(at)
        self.context.findings += context.findings
        if isinstance(read, VersionLine):
            self._version(read, context)
        else:
            self.started = self.started or isinstance(read, ProgramHead)
            self.assembler.take(read)
        return count

    def report_refused(self, at: int) -> int:
        """Reports a statement that the grammar refuses, with Lark's explanation. Returns the number of its lines."""
        from pstranspile.ir.text.diagnose import is_comment_elsewhere, refused_statement

        self.started = self.started or not is_comment_elsewhere(self.lines[at])
        self.context.first_line = at + 1
        count = refused_statement(self.lines, at, self.context)
        if self.structure_lost is None and _OPENS_OR_ENDS(self.lines[at]):
            self.structure_lost = len(self.context.findings)
        return count

    def _version(self, line: VersionLine, context: Context) -> None:
        """Checks the version line."""
        word, number = piece(line.word), piece(line.number)
        findings = len(context.findings)
        if self.started:
            context.report("misplaced", "the version line stands once, at the start of the text", line.word)
        elif word != "ir":
            message = f"the text opens with the version line `ir {VERSION}`, found `{word}`"
            context.report("version-line", message, line.word)
        elif number.lstrip("0") != VERSION:
            message = f"version {number} of the text is not known here; known is {VERSION}"
            context.report("version-line", message, line.number)
        self.context.findings += context.findings[findings:]
        self.started = True
