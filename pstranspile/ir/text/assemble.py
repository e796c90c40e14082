"""Assembles statements into programs and nested blocks."""

from __future__ import annotations

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Note, error
from pstranspile.ir.distribution import Distribution
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import MAX_DEPTH, Block, Location, Module, Op, Origin, Program, SourceText, Var
from pstranspile.ir.text.distribution import STATEMENTS, read_distribution
from pstranspile.ir.text.literals import name as name_text
from pstranspile.ir.text.reader import (
    BlockHead,
    Context,
    Node,
    OpParts,
    ProgramHead,
    Token,
    Tree,
    read_block_head,
    read_declaration,
    read_op,
    read_program_head,
    read_version,
)


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

    def take(self, statement: Node | Token) -> None:
        """Any statement, as the grammar gives it."""
        context = self.context
        if not isinstance(statement, Tree):
            self.close(context.at(statement))
        elif statement.data == "op":
            self.add(read_op(statement, context))
        elif statement.data == "declaration":
            self.declare(read_declaration(statement, context))
        elif statement.data == "block_head":
            self.open_block(read_block_head(statement, context))
        elif statement.data == "program_head":
            self.open_program(read_program_head(statement, context))
        else:
            read_version(statement, context)

    def open_program(self, head: ProgramHead) -> None:
        """`program @name {`."""
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
        """`block ^n {`."""
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
        """A variable of the innermost open block."""
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
        """An op of the innermost open block."""
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
        """`}`: ends the innermost block, or the program."""
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
        """The module. A brace that is still open is reported at its place."""
        if self.stack:
            self._report("unbalanced", "the `{` of this block is not closed", self.stack[-1].location, "block")
        elif self.program is not None:
            self._report("unbalanced", "the `{` of this program is not closed", self.program.location, "program")
        if self.program is not None:
            self._end_program()
        return Module(FrozenMap(self.programs) if self.programs else EMPTY, source)
