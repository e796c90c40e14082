"""The Lark grammar, its location, and its parsers."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from typing import Any

from pstranspile.ir.text.parse_tables import Refused, Tables, load_tables, make_tables
from pstranspile.ir.text.tree import Node, Tree

_GRAMMAR, _TABLES = "ir.lark", "ir.tables.json"

OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "lexer": "contextual",
    "start": ["module", "statement"],
    "maybe_placeholders": False,
    "propagate_positions": False,
    "tree_class": Tree,
}
"""How the grammar is loaded; the tests load it with `strict=True` besides."""


@lru_cache(maxsize=1)
def _folder() -> str:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for folder in (os.path.join(package, "grammar"), os.path.join(os.path.dirname(package), "grammar")):
        if os.path.isfile(os.path.join(folder, _GRAMMAR)):
            return folder
    raise FileNotFoundError(f"the grammar {_GRAMMAR} is missing from the installation of pstranspile")


def _read(name: str) -> str:
    with open(os.path.join(_folder(), name), encoding="utf-8") as file:
        return file.read()


def grammar_text() -> str:
    """The text of the grammar, from the installed package or from the checkout. Raises FileNotFoundError."""
    return _read(_GRAMMAR)


@lru_cache(maxsize=1)
def _lark() -> Any:
    import lark

    return lark.Lark(grammar_text(), **OPTIONS)


@lru_cache(maxsize=1)
def _tables() -> Tables | None:
    """The parser on the tables kept in a file; None when they are missing or of another grammar."""
    try:
        content = _read(_TABLES)
    except FileNotFoundError:
        return None
    return load_tables(content, grammar_text())


def tables_text() -> str:
    """The content that the file of tables should have."""

    data = make_tables(grammar_text(), OPTIONS)
    rows = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in data.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def write_tables() -> None:
    """Makes the file of tables anew, after a change of the grammar."""
    with open(os.path.join(_folder(), _TABLES), "w", encoding="utf-8", newline="\n") as file:
        file.write(tables_text())


def parse_module(text: str) -> Node:
    """The tree of a whole text, by Lark. Raises lark.exceptions.UnexpectedInput."""
    return _lark().parse(text, start="module")


def parse_statement(text: str) -> Node:
    """The tree of one statement, by Lark. Raises lark.exceptions.UnexpectedInput."""
    return _lark().parse(text, start="statement")


def accepted_statement(text: str) -> Node | None:
    """The tree of one statement, None if the grammar refuses it; Lark is imported only if necessary."""
    tables = _tables()
    if tables is not None:
        try:
            return tables.parse(text, "statement")
        except Refused:
            return None
    from lark.exceptions import UnexpectedInput

    try:
        return parse_statement(text)
    except UnexpectedInput:
        return None


if __name__ == "__main__":
    write_tables()
