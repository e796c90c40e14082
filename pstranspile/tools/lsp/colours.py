"""Semantic tokens: the type of each word of a program, from which an editor chooses its colour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pstranspile.ir.text.literals import STORAGE_CLASSES
from pstranspile.ir.types import DTYPES
from pstranspile.tools.lsp.outline import Outline
from pstranspile.tools.lsp.values import Piece, Span, pieces

TYPES = (
    "namespace",
    "type",
    "variable",
    "property",
    "function",
    "keyword",
    "modifier",
    "comment",
    "string",
    "number",
    "operator",
    "decorator",
    "label",
)
"""The types of tokens that are given, words of the protocol; a token has the index of its type here."""

MODIFIERS = ("declaration", "readonly")
"""The modifiers of tokens that are given, words of the protocol: the bits of a token's modifiers, lowest first."""

_DECLARATION, _READONLY = 1, 2
_BY_KIND = {
    "comment": "comment",
    "script": "decorator",
    "variable": "variable",
    "program": "namespace",
    "label": "label",
    "string": "string",
    "arrow": "operator",
    "number": "number",
}


class Token(NamedTuple):
    """A word: where it stands, the index of its type in `TYPES`, and the bits of its modifiers."""

    span: Span
    type: int
    modifiers: int = 0


def tokens(outline: Outline, first: int, last: int) -> list[Token]:
    """The tokens of lines `first` to `last`, from top to bottom; statements that begin before are given whole."""
    result: list[Token] = []
    line = outline.start_of(max(first, 0))
    while line <= min(last, len(outline.lines) - 1):
        end = outline.end_of(line)
        result += _statement(outline, line, end)
        line = end + 1
    return result


def _statement(outline: Outline, first: int, last: int) -> Iterator[Token]:
    """The tokens of one statement."""
    all_pieces = [(n, piece) for n in range(first, last + 1) for piece in pieces(outline.lines[n])]
    code = [piece for _, piece in all_pieces if piece.kind != "comment"]
    head = code[0].text if code else ""
    declares = head in STORAGE_CLASSES and len(code) > 1 and code[1].kind == "variable"
    opens = head in ("program", "block", "ir")
    depth = {"(": 0, "[": 0, "{": 0}
    after_colon = False
    number = -1
    for line, piece in all_pieces:
        if piece.kind != "comment":
            number += 1
        following = code[number + 1].text if piece.kind != "comment" and number + 1 < len(code) else ""
        kind, modifiers = _BY_KIND.get(piece.kind, ""), 0
        if piece.kind == "mark":
            _count(depth, piece.text)
            after_colon = after_colon or (piece.text == ":" and not any(depth.values()))
        elif piece.kind == "word":
            kind = _word(piece, number, following, declares, opens, after_colon, depth["{"] > 0)
        elif piece.kind == "string" and number == 0:
            kind = "function"
        elif declares and number == 1:
            modifiers = _DECLARATION | (_READONLY if head == "param" else 0)
        elif opens and number == 1 and piece.kind in ("program", "label"):
            modifiers = _DECLARATION
        if kind:
            yield Token(piece.span(line), TYPES.index(kind), modifiers)


def _count(depth: dict[str, int], mark: str) -> None:
    """Updates the number of open brackets of each kind."""
    closes = {")": "(", "]": "[", "}": "{"}
    if mark in depth:
        depth[mark] += 1
    elif mark in closes:
        depth[closes[mark]] = max(depth[closes[mark]] - 1, 0)


def _word(
    piece: Piece, number: int, following: str, declares: bool, opens: bool, after_colon: bool, in_attributes: bool
) -> str:
    """The type of a word by its place in the statement; `in_attributes`: between `{` and `}`."""
    if number == 0:
        return "keyword" if declares or opens else "function"
    if following == "=" or (in_attributes and following == ":"):
        return "property"
    if in_attributes:
        return "keyword"  # a literal such as `true`, or the kind of an attribute
    if declares:
        return "type" if piece.text in DTYPES else "modifier"
    if opens:
        return "keyword"
    return "modifier" if after_colon else "property"
