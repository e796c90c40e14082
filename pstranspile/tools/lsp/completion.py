"""Completions at a place of a program or of a job file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from pstranspile.compiler.explain.answers import value_text
from pstranspile.compiler.job import BOOLEANS, DEFAULTS, DISTRIBUTED_TABLES, INTEGERS, KEYS, SPLIT_METHODS
from pstranspile.compiler.job.modes import COLLECTIVE_MODES, mode_names, settings_of
from pstranspile.ir.attributes import AttrKind, AttrValue
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.text.literals import (
    ATTR_KIND_TEXT,
    KIND_WORDS,
    NO_ROLE,
    ROLE_WORDS,
    STORAGE_CLASSES,
    float_text,
    name,
    quote,
    word,
)
from pstranspile.ir.types import DTYPES
from pstranspile.ops import all_schemas, schema_of
from pstranspile.ops.schema import GENERIC_ATTRS, OpSchema, Slot
from pstranspile.tools.lsp import hover as statement
from pstranspile.tools.lsp.hover import StatementPart, attribute_text, part_at, slot_meaning
from pstranspile.tools.lsp.outline import Outline
from pstranspile.tools.lsp.values import HoverText, LineSpan, Proposal, TextPosition, piece_at, pieces

TRIGGERS = ("%", "(", "{", "=", ":", "^", " ")
"""Characters after which an editor asks for completions by itself."""


def complete(outline: Outline, spot: TextPosition) -> list[Proposal]:
    """The completions at a place, in the order of declarations. The editor filters them by the text already typed."""
    if spot.line >= len(outline.lines):
        return []
    line = outline.lines[spot.line]
    piece = piece_at(line, spot.column)
    if piece is not None and piece.kind == "comment" and piece.start < spot.column:
        return []
    typed = piece if piece is not None and piece.start < spot.column and piece.kind not in ("mark", "arrow") else None
    span = LineSpan(spot.line, typed.start if typed else spot.column, spot.column)
    part = part_at(outline, spot)
    if line[span.start : span.start + 1] == "%":
        return list(_variables(outline, spot, span))
    if line[span.start : span.start + 1] == "^":
        return list(_labels(outline, spot, span))
    return list(_in_part(outline, spot, span, part))


def _in_part(outline: Outline, spot: TextPosition, span: LineSpan, part: StatementPart) -> Iterator[Proposal]:
    if part.zone == statement.START:
        yield from _statements(outline, spot, span)
        return
    if part.zone == statement.DECLARATION:
        for text in DTYPES:
            yield Proposal(text, "Keyword", "an element type", f"{text}[$0]", span, True)
        yield from (Proposal(text, "Keyword", "", text, span) for text in (*KIND_WORDS, "feed", "lod="))
        return
    if part.zone == statement.ROLE:
        yield from (Proposal(text, "EnumMember", "a role", text, span) for text in (*ROLE_WORDS, NO_ROLE, "target"))
        return
    if part.zone == statement.ROLE_VARIABLES:
        yield from _variables(outline, spot, span)
        return
    schema = schema_of(part.op) if part.op else None
    if schema is None:
        return
    if part.zone in (statement.INPUTS, statement.OUTPUTS):
        slots = schema.inputs if part.zone == statement.INPUTS else schema.outputs
        yield from _variables(outline, spot, span) if part.name else _slots(slots, part, span)
    elif part.zone == statement.ATTRIBUTES:
        yield from _values(outline, spot, span, schema, part) if part.name else _attributes(schema, part, span)


def _statements(outline: Outline, spot: TextPosition, span: LineSpan) -> Iterator[Proposal]:
    section = outline.section_at(spot.line)
    if section is None:
        yield Proposal(
            "program", "Keyword", "a program", "program @${1:main} {\n  block ^0 {\n    $0\n  }\n}", span, True
        )
        return
    if section.block < 0:
        yield Proposal("block", "Keyword", "a block", "block ^${1:0} {\n  $0\n}", span, True)
        return
    for storage in STORAGE_CLASSES:
        yield Proposal(storage, "Keyword", "a declaration", f"{storage} %${{1:name}} : f32[$0]", span, True)
    for op_type, schema in sorted(all_schemas().items()):
        yield Proposal(op_type, "Function", schema.doc, _snippet(schema), span, True)


def _snippet(schema: OpSchema) -> str:
    """A snippet of an op with its required slots, and its attributes without a default."""
    number = 0

    def place() -> str:
        nonlocal number
        number += 1
        return f"${number}"

    def slots(known: Iterable[Slot]) -> str:
        return ", ".join(f"{s.name}=[%{place()}]" if s.duplicable else f"{s.name}=%{place()}" for s in known)

    inputs = slots(s for s in schema.inputs.values() if not s.dispensable)
    outputs = slots(s for s in schema.outputs.values() if not s.dispensable)
    needed = [n for n, spec in sorted(schema.attrs.items()) if spec.default is None and not spec.optional]
    attributes = ", ".join(f"{word(n)}={place()}" for n in needed)
    text = word(schema.type) + (f"({inputs})" if schema.inputs else "") + (f" -> {outputs}" if outputs else "")
    return f"{text} {{{attributes}\\}}" if attributes else text


def _slots(slots: Mapping[str, Slot], part: StatementPart, span: LineSpan) -> Iterator[Proposal]:
    for slot in slots.values():
        if slot.name not in part.typed:
            insert = f"{word(slot.name)}=[%$0]" if slot.duplicable else f"{word(slot.name)}=%$0"
            yield Proposal(slot.name, "Field", slot_meaning(slot), insert, span, True)


def _attributes(schema: OpSchema, part: StatementPart, span: LineSpan) -> Iterator[Proposal]:
    for attribute, spec in sorted({**schema.attrs, **GENERIC_ATTRS}.items()):
        if attribute not in part.typed:
            yield Proposal(attribute, "Property", attribute_text(attribute, spec), f"{word(attribute)}=", span)


def _values(
    outline: Outline, spot: TextPosition, span: LineSpan, schema: OpSchema, part: StatementPart
) -> Iterator[Proposal]:
    spec = {**GENERIC_ATTRS, **schema.attrs}.get(part.name)
    if spec is None:
        return
    detail = f"{ATTR_KIND_TEXT[spec.kind]} of {schema.type}"
    if spec.kind in (AttrKind.BLOCK, AttrKind.BLOCKS):
        yield from _labels(outline, spot, span)
    elif spec.kind is AttrKind.BOOLEAN:
        yield from (Proposal(text, "Value", detail, text, span) for text in ("true", "false"))
    else:
        texts = [] if spec.default is None else [_literal(spec.default)]
        texts += _used_values(outline, schema.type, part.name)
        yield from (Proposal(text, "Value", detail, text, span) for text in dict.fromkeys(texts))


def _literal(value: AttrValue) -> str:
    if isinstance(value, str):
        return quote(value)
    return float_text(value) if isinstance(value, float) else value_text(value)


def _used_values(outline: Outline, op_type: str, attribute: str) -> Iterator[str]:
    """The values that other ops of a type have for an attribute, lists left out, as they are written."""
    for line in outline.lines:
        if attribute in line and line.lstrip().startswith(op_type):
            listed = list(pieces(line))
            for at in range(len(listed) - 2):
                if listed[at].text == attribute and listed[at + 1].text == "=" and listed[at + 2].kind != "mark":
                    yield listed[at + 2].text


def _variables(outline: Outline, spot: TextPosition, span: LineSpan) -> Iterator[Proposal]:
    here = outline.section_at(spot.line)
    if here is None:
        return
    seen = list(outline.visible_from(here if here.block >= 0 else here._replace(block=0)))
    for variable, declarations in outline.declarations.items():
        declared = next((d for d in declarations if d.section in seen), None)
        if declared is not None:
            text = f"%{name(variable)}"
            yield Proposal(text, "Variable", declared.text, text, span)


def _labels(outline: Outline, spot: TextPosition, span: LineSpan) -> Iterator[Proposal]:
    here = outline.section_at(spot.line)
    for section in outline.sections:
        if here is not None and section.program == here.program and section.block >= 0:
            head = outline.lines[section.first_line].strip()
            yield Proposal(f"^{section.block}", "Reference", head, f"^{section.block}", span)


# Completion and hovering in job files.

_KEY = Pattern(r"""\s*[{,]?\s*["']?([A-Za-z_]\w*)?""").match
_GIVEN = Pattern(r"""(?<!\w)["']?([A-Za-z_]\w*)["']?\s*[=:]\s*(.*)$""").search


def values_of(key: str) -> tuple[str, ...]:
    """The values that a key takes, where they can be listed."""
    if key in BOOLEANS:
        return ("true", "false")
    listed = {
        "mode": mode_names(),
        "split_method": SPLIT_METHODS,
        "distributed_table": DISTRIBUTED_TABLES,
        "collective_mode": tuple(COLLECTIVE_MODES),
    }
    return tuple(f'"{value}"' for value in listed.get(key, ()))


def about_key(key: str) -> str:
    """A sentence about the values that a key takes."""
    if key in BOOLEANS:
        kind = "true or false"
    elif key in INTEGERS:
        kind = "a whole number from {} to {}".format(*INTEGERS[key])
    elif values_of(key):
        kind = f"one of {', '.join(values_of(key))}"
    else:
        kind = "a text"
    if key in ("pservers", "trainers", "trainer_endpoints"):
        kind = "a number, a list of endpoints, or a text of endpoints with commas between them"
    default = f"; {DEFAULTS[key]!r} where it is not given" if DEFAULTS.get(key) not in (None, "", ()) else ""
    return f"{key}: {kind}{default}"


def complete_job(lines: list[str], spot: TextPosition, *, json: bool) -> list[Proposal]:
    """Completions in a job file: keys at the start of a line, and values after a key."""
    before = lines[spot.line][: spot.column] if spot.line < len(lines) else ""
    given = _GIVEN(before)
    if given:
        span = LineSpan(spot.line, given.start(2), spot.column)
        return [Proposal(v, "Value", _mode_doc(v), v, span) for v in values_of(given[1])]
    key = _KEY(before)
    start = key.start(1) if key and key[1] else spot.column
    quoted = before[start - 1 : start] == '"'
    span = LineSpan(spot.line, start, spot.column)
    return list(_keys(span, json and not quoted, ": " if json else " = ", quoted))


def _keys(span: LineSpan, quoting: bool, between: str, quoted: bool) -> Iterator[Proposal]:
    for key in KEYS:
        text = key if quoted else f'"{key}"{between}' if quoting else f"{key}{between}"
        yield Proposal(key, "Property", about_key(key), text, span)


def _mode_doc(value: str) -> str:
    mode = value.strip("'\"")
    return settings_of(mode).doc if mode in mode_names() else ""


def hover_job(lines: list[str], spot: TextPosition) -> HoverText | None:
    """The text for hovering over a key or a mode of a job file; None elsewhere."""
    line = lines[spot.line] if spot.line < len(lines) else ""
    for match in re.finditer(r"[A-Za-z_][\w-]*", line):
        if match.start() <= spot.column <= match.end():
            text = about_key(match[0]) if match[0] in KEYS else _mode_doc(match[0])
            return HoverText(text, LineSpan(spot.line, match.start(), match.end())) if text else None
    return None
