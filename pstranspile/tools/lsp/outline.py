"""The programs and blocks of a text, and the colours of its words, found by its lines alone, also while a statement is
incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from pstranspile.ir.diagnostics import quantity
from pstranspile.ir.layout import BLANKS, begins_statement, cut_comment, is_head, statement_length
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.text.literals import STORAGE_CLASSES
from pstranspile.ir.types import DTYPES
from pstranspile.tools.lsp.values import Fold, LineSpan, Piece, pieces

# The outline that an editor shows beside a program: its programs, their blocks, and what these hold.

_KINDS = {"param": "Constant", "state": "Field", "temp": "Variable"}
"""The protocol's kind of symbol for each storage class."""


class Symbol(NamedTuple):
    """An entry of an outline. `kind` is a word of the protocol (`Module`, `Namespace`, `Function`, ...).

    `first_line` and `last_line` are its lines, `name_at` is where its name stands.
    """

    name: str
    kind: str
    detail: str
    first_line: int
    last_line: int
    name_at: LineSpan
    children: tuple[Symbol, ...] = ()


def symbols(outline: Outline) -> list[Symbol]:
    """The programs of a text, with their blocks, and in these the variables that are kept and the ops, in order.

    Variables that a step makes anew (`temp`) are left out: the ops that make them stand there.
    """
    return list(_symbols_within(outline, 0, len(outline.lines) - 1, {s.first_line: s for s in outline.sections}))


def _symbols_within(outline: Outline, first: int, last: int, sections: dict[int, Section]) -> Iterator[Symbol]:
    """The symbols of lines `first` to `last`, one level deep, each with its own inside it."""
    line = first
    while line <= last:
        section = sections.get(line)
        if section is not None:
            inner = tuple(_symbols_within(outline, section.first_line + 1, section.last_line, sections))
            yield _section(outline, section, inner)
            line = section.last_line + 1
            continue
        symbol = _statement(outline, line)
        if symbol is not None:
            yield symbol
        line = outline.end_of(line) + 1


def _section(outline: Outline, section: Section, inner: tuple[Symbol, ...]) -> Symbol:
    found = list(pieces(outline.lines[section.first_line]))
    name = found[1] if len(found) > 1 else found[0]
    kind = "Module" if section.block < 0 and found[0].text == "program" else "Namespace"
    ops = sum(symbol.kind == "Function" for symbol in inner)
    detail = quantity(ops, "op") if kind == "Namespace" else ""
    return Symbol(name.text, kind, detail, section.first_line, section.last_line, name.span(section.first_line), inner)


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


_OPENS = Pattern(rf"[{BLANKS}]*(program[{BLANKS}]*@|block[{BLANKS}]*\^)").match
_PARENT = Pattern(r"\bin\s*\^(-?[0-9]{1,9})").search
_FORWARD = Pattern(r"\bforward\s*=\s*\^(-?[0-9]{1,9})").search
_DECLARES = Pattern(rf"[{BLANKS}]*({'|'.join(STORAGE_CLASSES)})[{BLANKS}]*%").match


_HEAD, _END, _WHOLE, _BEGUN = "head", "end", "whole statement", "begun statement"


class Section(NamedTuple):
    """A block (or with `block` -1 a whole program): its lines, and which blocks it sees variables of."""

    program: str
    block: int
    parent: int
    forward: int
    first_line: int
    last_line: int


class Declaration(NamedTuple):
    """The declaration of a variable: the name's place, and the statement without what stands around it."""

    name: str
    section: Section
    span: LineSpan
    text: str

    @property
    def storage(self) -> str:
        """`param`, `state` or `temp`."""
        return self.text.split(None, 1)[0].partition("%")[0]


class Outline:
    """The lines of a text and its sections, outer ones first. Takes time in proportion to the text."""

    def __init__(self, lines: Sequence[str]):
        self.lines = list(lines)
        self.sections: list[Section] = []
        self.continued_lines: dict[int, int] = {}
        """Line -> the line on which its statement begins, for the lines after the first."""
        self._read()

    def _read(self) -> None:
        lines, at, program = self.lines, 0, ""
        open_sections: list[Section] = []
        while at < len(lines):
            line = lines[at]
            kind = _kind(line)
            if kind == _HEAD:
                section = self._head(line, at, program, open_sections)
                program = section.program
                open_sections.append(section)
            elif kind == _END:
                if open_sections:
                    self.sections.append(open_sections.pop()._replace(last_line=at))
            elif kind == _BEGUN:
                last = self._statement_end(at)
                self.continued_lines.update(dict.fromkeys(range(at + 1, last + 1), at))
                at = last
            at += 1
        self.sections += [section._replace(last_line=len(lines) - 1) for section in open_sections]
        self.sections.sort(key=lambda section: (section.first_line, -section.last_line))

    def _head(self, line: str, at: int, program: str, around: list[Section]) -> Section:
        words = list(pieces(line))
        if words[0].text == "program":
            return Section(words[1].name, -1, -1, -1, at, at)
        parent, forward = _PARENT(line), _FORWARD(line)
        label = words[1].text[1:]
        return Section(
            program,
            int(label) if label.isdigit() and len(label) < 10 else -1,
            int(parent[1]) if parent else around[-1].block if around else -1,
            int(forward[1]) if forward else -1,
            at,
            at,
        )

    def _statement_end(self, at: int) -> int:
        """The last line of a statement on several; one whose brackets are never closed ends where the next begins."""
        last = at + statement_length(self.lines, at, _cut) - 1
        for line in range(at + 1, last + 1):
            closing = line == last and self.lines[line].lstrip(BLANKS)[:1] == "}"
            if begins_statement(self.lines[line]) and not closing:
                return line - 1
        return last

    def start_of(self, line: int) -> int:
        """The line on which the statement of a line begins."""
        return self.continued_lines.get(line, line)

    def end_of(self, line: int) -> int:
        """The last line of the statement of a line."""
        first = line = self.start_of(line)
        while self.continued_lines.get(line + 1) == first:
            line += 1
        return line

    def section_at(self, line: int) -> Section | None:
        """The innermost block (or program, outside its blocks) that a line is in."""
        return next((s for s in reversed(self.sections) if s.first_line <= line <= s.last_line), None)

    @cached_property
    def declarations(self) -> dict[str, list[Declaration]]:
        """Every declaration by the variable's name, in order."""
        result: dict[str, list[Declaration]] = {}
        inside: list[Section] = []
        starts = {section.first_line: section for section in self.sections}
        for number, line in enumerate(self.lines):
            while inside and inside[-1].last_line < number:
                inside.pop()
            if number in starts:
                inside.append(starts[number])
            elif inside and "%" in line and _DECLARES(line):
                variable = next(piece for piece in pieces(line) if piece.kind == "variable")
                text = " ".join(line.split())
                declared = Declaration(variable.name, inside[-1], variable.span(number), text)
                result.setdefault(declared.name, []).append(declared)
        return result

    def visible_from(self, section: Section) -> Iterator[Section]:
        """The sections whose variables a block sees: its own first, then its forward block's, then the enclosing."""
        blocks = {s.block: s for s in self.sections if s.program == section.program and s.block >= 0}
        waiting, seen = [section.block], set[int]()
        for number in waiting:
            if number in blocks and number not in seen:
                seen.add(number)
                yield blocks[number]
                waiting += (blocks[number].forward, blocks[number].parent)

    def declaration(self, name: str, line: int) -> Declaration | None:
        """The declaration that a name means on a line; outside of blocks that of the program's first block."""
        here = self.section_at(line)
        if here is None:
            return None
        known = {d.section: d for d in self.declarations.get(name, ())}
        start = here if here.block >= 0 else here._replace(block=0)
        return next((known[section] for section in self.visible_from(start) if section in known), None)

    def folds(self) -> list[Fold]:
        """Programs, blocks and statements on several lines."""
        result = [Fold(s.first_line, s.last_line - 1) for s in self.sections if s.last_line - 1 > s.first_line]
        starts = dict.fromkeys(self.continued_lines.values())
        result += [Fold(start, self.end_of(start)) for start in starts]
        return sorted(result)

    def statement(self, line: int) -> list[tuple[int, Piece]]:
        """The pieces of the statement of a line, each with its line, without comments."""
        first, last = self.start_of(line), self.end_of(line)
        return [(n, p) for n in range(first, last + 1) for p in pieces(self.lines[n]) if p.kind != "comment"]


# Cached: from one keystroke to the next nearly all lines are the same.
_cut = lru_cache(maxsize=1 << 16)(cut_comment)


@lru_cache(maxsize=1 << 16)
def _kind(line: str) -> str:
    """What a line is by itself. A statement counts as whole only where its brackets are closed also with strings and
    comments taken for code; others are looked at closely."""
    if "{" in line and _OPENS(line) and is_head(_cut(line)[0]):
        return _HEAD
    if line.lstrip(BLANKS)[:1] == "}":
        return _END
    if "," in line and (_cut(line)[0] if "#" in line else line.rstrip(BLANKS)).endswith(","):
        return _BEGUN
    closed = all(line.count(opening) == line.count(closing) for opening, closing in ("()", "[]", "{}"))
    return _WHOLE if closed else _BEGUN


# Semantic tokens: the type of each word of a program, from which an editor chooses its colour.

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

    span: LineSpan
    type: int
    modifiers: int = 0


def tokens(outline: Outline, first: int, last: int) -> list[Token]:
    """The tokens of lines `first` to `last`, from top to bottom; statements that begin before are given whole."""
    result: list[Token] = []
    line = outline.start_of(max(first, 0))
    while line <= min(last, len(outline.lines) - 1):
        end = outline.end_of(line)
        result += _tokens_of(outline, line, end)
        line = end + 1
    return result


def _tokens_of(outline: Outline, first: int, last: int) -> Iterator[Token]:
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
