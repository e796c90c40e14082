"""What stands at a place of a statement: a part of an op or declaration, and the slot or attribute that it is of."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.ir.text.literals import STORAGE_CLASSES, read_word
from pstranspile.tools.lsp.outline import Outline
from pstranspile.tools.lsp.tokens import Piece
from pstranspile.tools.lsp.values import Spot

START, DECLARATION, INPUTS, OUTPUTS, ATTRIBUTES, ROLE, ROLE_VARIABLES, HEAD, AFTER_OP = (
    "start",
    "declaration",
    "inputs",
    "outputs",
    "attributes",
    "role",
    "role variables",
    "head",
    "after an op",
)


class Part(NamedTuple):
    """The part of a statement that a place is in. `op` is the op type ("" in other statements).

    `name` is the slot or attribute whose value stands here, "" where a name itself would stand; `typed` are the slots
    or attributes that the part already has.
    """

    zone: str
    op: str
    name: str
    typed: tuple[str, ...]


def part_at(outline: Outline, spot: Spot) -> Part:
    """The part that a place is in, by what stands before it in its statement (the piece that it is in left out)."""
    before: list[Piece] = []
    for line, piece in outline.statement(spot.line):
        typed = line == spot.line and piece.stop >= spot.column and piece.kind not in ("mark", "arrow")
        if typed or (line, piece.start) >= spot:
            break
        before.append(piece)
    if not before:
        return Part(START, "", "", ())
    first = before[0]
    if first.text in STORAGE_CLASSES:
        return Part(DECLARATION, "", "", ())
    if first.text in ("program", "block", "ir"):
        return Part(HEAD, "", "", ())
    return _in_op(before)


def _in_op(before: list[Piece]) -> Part:
    zone, name, last, depth = AFTER_OP, "", "", 0
    typed: list[str] = []
    previous = ""
    for piece in before[1:]:
        text = piece.text
        if depth == 0 and text in ("(", "{"):
            zone = ATTRIBUTES if text == "{" else ROLE_VARIABLES if zone == ROLE else INPUTS
            name, typed = "", []
        elif piece.kind == "arrow":
            zone, name, typed = OUTPUTS, "", []
        elif text == ":" and depth == 0:
            zone, name = ROLE, ""
        elif text == "=" and zone != ROLE:
            name = last
            typed.append(last)
        elif text == "," and depth == (0 if zone == OUTPUTS else 1):
            name = ""
        elif piece.kind in ("word", "string") and not name and previous != ":":  # after it stands an attribute's kind
            last = _word(text)
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        if depth == 0 and text in (")", "}"):
            zone, name = AFTER_OP, ""
        previous = text
    return Part(zone, _word(before[0].text), name, tuple(typed))


def _word(text: str) -> str:
    try:
        return read_word(text)
    except (ValueError, IndexError):
        return text.strip('"')
