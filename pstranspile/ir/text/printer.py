"""Prints the canonical text of a program, statement by statement, each tagged with its value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pstranspile.ir.layout import all_wrapped
from pstranspile.ir.model import MAX_DEPTH, Block, Module, Program
from pstranspile.ir.text.distribution import Statement, statements
from pstranspile.ir.text.lines import Lines
from pstranspile.ir.text.literals import name
from pstranspile.ir.text.schemas import Language


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
