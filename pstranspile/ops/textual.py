"""The textual IR with the declared op types: parse, print, format."""

from __future__ import annotations

from pstranspile.ir import text as _text
from pstranspile.ir.argument_checks import expect_module, suggesting
from pstranspile.ir.model import Module, Program
from pstranspile.ir.text.printer import module_lines
from pstranspile.ops import language

LANGUAGE = language()
"""The language of the op types declared in `pstranspile.ops`."""


def parse(text: str, file: str = "<text>") -> Module:
    """The module that `text` holds; `file` names it in locations and messages.

    Raises DiagnosticError with every finding, and nothing else, whatever the text.
    """
    return _text.parse(text, LANGUAGE, file)


@suggesting
def print_module(module: Module) -> str:
    """The canonical text of a module: `parse` gives the module back, equal in value and kind.

    Raises ValueError for values that no ProgramDesc can hold, such as an INT beyond 32 bits.
    """
    expect_module(module, "dumps")
    return _text.print_module(module, LANGUAGE)


def one_line_each(module: Module) -> str:
    """The text of a module with each statement on one line, however long, and without places in scripts. Hashes are
    computed from this text: they are the same for equal programs.
    """
    programs = {name: _without_places(program) for name, program in module.programs.items()}
    return "\n".join([*module_lines(module.with_programs(programs), LANGUAGE).lines, ""])


def _without_places(program: Program) -> Program:
    """The program, in which no op has a place in a script."""
    blocks = list(program.blocks)
    for index, block in enumerate(blocks):
        if any(op.location is not None and op.location.script is not None for op in block.ops):
            blocks[index] = block._replace(ops=tuple(op._replace(origin=None) for op in block.ops))
    return program._replace(blocks=tuple(blocks))


def print_program(program: Program, name: str = "main") -> str:
    """The canonical text of one program, as within the text of a module."""
    return _text.print_program(program, name, LANGUAGE)


def format_text(text: str, file: str = "<text>") -> str:
    """The canonical form of a text, with its comments and at most one blank line in a row kept.

    Raises DiagnosticError with every finding if the text has errors.
    """
    return _text.format_text(text, LANGUAGE, file)
