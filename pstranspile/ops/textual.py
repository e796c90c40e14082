"""The textual IR with the declared op types: parse, print, format."""

from __future__ import annotations

from pstranspile.ir import text as _text
from pstranspile.ir.expect import expect_module, suggesting
from pstranspile.ir.model import FrozenMap, Module, Program
from pstranspile.ir.text.distribution import STATEMENTS
from pstranspile.ir.text.literals import Language, SchemaView
from pstranspile.ir.text.printer import module_lines
from pstranspile.ops import schema_of
from pstranspile.ops.schema import CARRIED_ATTRS, GENERIC_ATTRS


def _schema_of(op_type: str) -> SchemaView | None:
    """The schema of an op type; None for the statements that only look like ops, so that no family is
    loaded for them.
    """
    return None if op_type in STATEMENTS else schema_of(op_type)


LANGUAGE = Language(
    _schema_of,
    FrozenMap({name: spec.default for name, spec in GENERIC_ATTRS.items() if spec.default is not None}),
    FrozenMap({name: spec.kind for name, spec in {**GENERIC_ATTRS, **CARRIED_ATTRS}.items()}),
)
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
    """The text of a module with each statement on one line, however long. Hashes are computed from this text."""
    return "\n".join([*module_lines(module, LANGUAGE).lines, ""])


def print_program(program: Program, name: str = "main") -> str:
    """The canonical text of one program, as within the text of a module."""
    return _text.print_program(program, name, LANGUAGE)


def format_text(text: str, file: str = "<text>") -> str:
    """The canonical form of a text, with its comments and at most one blank line in a row kept.

    Raises DiagnosticError with every finding if the text has errors.
    """
    return _text.format_text(text, LANGUAGE, file)
