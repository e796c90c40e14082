"""The textual form of programs: parsing, printing, formatting.

`pstranspile.textual` holds the functions with the declared op types filled in; those here take them as a
`Language`.
"""

from __future__ import annotations

from pstranspile.ir.model import Module
from pstranspile.ir.text.printer import print_module, print_program
from pstranspile.ir.text.schemas import Language


def parse(text: str, language: Language, file: str = "<text>") -> Module:
    """The module that `text` holds. Raises DiagnosticError with all findings."""
    from pstranspile.ir.text.parser import parse_plainly

    return parse_plainly(text, file, language)


__all__ = ["Language", "parse", "print_module", "print_program"]
