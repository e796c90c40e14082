"""The Lark grammar: where it lies, and the parser made of it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pstranspile.ir.text.tree import Node

_NAME = "ir.lark"
_PACKAGE = Path(__file__).resolve().parents[2]

OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "lexer": "contextual",
    "start": ["module", "statement"],
    "maybe_placeholders": False,
    "propagate_positions": False,
}
"""How the grammar is loaded; the tests load it with `strict=True` besides."""


def grammar_text() -> str:
    """The text of the grammar, from the installed package or from the checkout. Raises FileNotFoundError."""
    for folder in (_PACKAGE / "grammar", _PACKAGE.parent / "grammar"):
        path = folder / _NAME
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(f"the grammar {_NAME} is missing from the installation of pstranspile")


@lru_cache(maxsize=1)
def _lark() -> Any:
    import lark

    return lark.Lark(grammar_text(), **OPTIONS)


def parse_module(text: str) -> Node:
    """The tree of a whole text. Raises lark.exceptions.UnexpectedInput."""
    return _lark().parse(text, start="module")


def parse_statement(text: str) -> Node:
    """The tree of one statement. Raises lark.exceptions.UnexpectedInput."""
    return _lark().parse(text, start="statement")
