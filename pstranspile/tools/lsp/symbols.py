"""The outline that an editor shows beside a program: its programs, their blocks, and what these hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pstranspile.ir.diagnostics import counted
from pstranspile.tools.lsp.outline import Outline, Section
from pstranspile.tools.lsp.tokens import Piece, pieces
from pstranspile.tools.lsp.values import Span

_KINDS = {"param": "Constant", "state": "Field", "temp": "Variable"}
"""The protocol's kind of symbol for each storage class."""


class Symbol(NamedTuple):
    """An entry of an outline. `kind` is a word of the protocol (`Module`, `Namespace`, `Function`, ...).

    `first` and `last` are its lines, `name_at` is where its name stands.
    """

    name: str
    kind: str
    detail: str
    first: int
    last: int
    name_at: Span
    children: tuple[Symbol, ...] = ()


def symbols(outline: Outline) -> list[Symbol]:
    """The programs of a text, with their blocks, and in these the variables that are kept and the ops, in order.

    Variables that a step makes anew (`temp`) are left out: the ops that make them stand there.
    """
    return list(_inside(outline, 0, len(outline.lines) - 1, {s.first: s for s in outline.sections}))


def _inside(outline: Outline, first: int, last: int, sections: dict[int, Section]) -> Iterator[Symbol]:
    """The symbols of lines `first` to `last`, one level deep, each with its own inside it."""
    line = first
    while line <= last:
        section = sections.get(line)
        if section is not None:
            inner = tuple(_inside(outline, section.first + 1, section.last, sections))
            yield _section(outline, section, inner)
            line = section.last + 1
            continue
        symbol = _statement(outline, line)
        if symbol is not None:
            yield symbol
        line = outline.end_of(line) + 1


def _section(outline: Outline, section: Section, inner: tuple[Symbol, ...]) -> Symbol:
    found = list(pieces(outline.lines[section.first]))
    name = found[1] if len(found) > 1 else found[0]
    kind = "Module" if section.block < 0 and found[0].text == "program" else "Namespace"
    ops = sum(symbol.kind == "Function" for symbol in inner)
    detail = counted(ops, "op") if kind == "Namespace" else ""
    return Symbol(name.text, kind, detail, section.first, section.last, name.span(section.first), inner)


def _statement(outline: Outline, line: int) -> Symbol | None:
    """The symbol of a declaration of what is kept, or of an op; None for other lines."""
    found = [piece for piece in pieces(outline.lines[line]) if piece.kind != "comment"]
    if not found or found[0].kind not in ("word", "string") or found[0].text in ("ir", "program", "block"):
        return None
    last = outline.end_of(line)
    if found[0].text in _KINDS and len(found) > 1 and found[1].kind == "variable":
        if found[0].text == "temp":
            return None
        detail = outline.lines[line].partition(":")[2].strip() if len(found) > 2 and found[2].text == ":" else ""
        return Symbol(found[1].text, _KINDS[found[0].text], detail, line, last, found[1].span(line))
    statement = outline.statement(line)
    return Symbol(found[0].text, "Function", _written(statement), line, last, found[0].span(line))


def _written(statement: list[tuple[int, Piece]]) -> str:
    """`-> %y`: the variables that an op writes."""
    texts = [piece for _, piece in statement]
    arrow = next((n for n, piece in enumerate(texts) if piece.kind == "arrow"), None)
    if arrow is None:
        return ""
    names: list[str] = []
    for piece in texts[arrow + 1 :]:
        if piece.text in ("{", ":"):
            break
        if piece.kind == "variable":
            names.append(piece.text)
    return "-> " + ", ".join(names) if names else ""
