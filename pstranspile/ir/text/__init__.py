"""The textual form of programs: parsing, printing, formatting.

`pstranspile.ops.textual` holds the functions with the declared op types filled in; the functions here take the op types
as a `Language`.
"""

from __future__ import annotations

from pstranspile.ir.model import Module, collector_paused
from pstranspile.ir.text.literals import Language
from pstranspile.ir.text.printer import print_module, print_program
from pstranspile.ir.text.reader import ModuleReader


def parse(text: str, language: Language, file: str = "<text>") -> Module:
    """The module that `text` holds. Raises DiagnosticError with all findings."""
    with collector_paused():
        return ModuleReader(text, file, language).read()


def format_text(text: str, language: Language, file: str = "<text>") -> str:
    """The canonical form of a text, comments kept. Raises DiagnosticError if the text has errors."""
    from pstranspile.ir.text.printer import format_module

    return format_module(parse(text, language, file), text, language)


__all__ = ["Language", "format_text", "parse", "print_module", "print_program"]
