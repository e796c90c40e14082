"""The text for hovering over a name, op type, slot or attribute; and the part of a statement at a place."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.compiler.explain.answers import value_text
from pstranspile.ir.text.literals import ATTR_KIND_TEXT, STORAGE_CLASSES, read_word
from pstranspile.ops import schema_of
from pstranspile.ops.schema import CARRIED_ATTRS, GENERIC_ATTRS, AttrSpec, OpSchema, Slot
from pstranspile.tools.lsp.names import NameReference, Placement, definitions, named_at, references, where
from pstranspile.tools.lsp.outline import Declaration, Outline
from pstranspile.tools.lsp.values import HoverText, Piece, TextPosition, piece_at

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


class StatementPart(NamedTuple):
    """The part of a statement that a place is in. `op` is the op type ("" in other statements).

    `name` is the slot or attribute whose value stands here, "" where a name itself would stand; `typed` are the slots
    or attributes that the part already has.
    """

    zone: str
    op: str
    name: str
    typed: tuple[str, ...]


def part_at(outline: Outline, spot: TextPosition) -> StatementPart:
    """The part that a place is in, by what stands before it in its statement (the piece that it is in left out)."""
    before: list[Piece] = []
    for line, piece in outline.statement(spot.line):
        typed = line == spot.line and piece.stop >= spot.column and piece.kind not in ("mark", "arrow")
        if typed or (line, piece.start) >= spot:
            break
        before.append(piece)
    if not before:
        return StatementPart(START, "", "", ())
    first = before[0]
    if first.text in STORAGE_CLASSES:
        return StatementPart(DECLARATION, "", "", ())
    if first.text in ("program", "block", "ir"):
        return StatementPart(HEAD, "", "", ())
    return _in_op(before)


def _in_op(before: list[Piece]) -> StatementPart:
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
    return StatementPart(zone, _word(before[0].text), name, tuple(typed))


def _word(text: str) -> str:
    try:
        return read_word(text)
    except (ValueError, IndexError):
        return text.strip('"')


STORAGE = {
    "param": "A parameter: training updates it, and every program of the file that declares it has the same one.",
    "state": "A persistable variable: it keeps its value from step to step.",
    "temp": "A temporary variable: its value is of one step.",
}
"""The meaning of each storage class for a variable."""


def hover(outline: Outline, spot: TextPosition, placement: Placement | None = None) -> HoverText | None:
    """The text for hovering at a place; None for blanks and for words that explain themselves."""
    if spot.line >= len(outline.lines):
        return None
    named = named_at(outline, spot)
    if named is not None:
        text = _variable(outline, named, placement) if named.kind == "variable" else _block(outline, named)
        return HoverText(text, named.span) if text else None
    piece = piece_at(outline.lines[spot.line], spot.column)
    if piece is None or piece.kind not in ("word", "string"):
        return None
    text = _word_at(outline, spot, piece)
    return HoverText(text, piece.span(spot.line)) if text else None


def _variable(outline: Outline, named: NameReference, placement: Placement | None) -> str:
    declared = outline.declaration(named.name, named.span.line)
    if declared is None:
        return ""
    return "\n\n".join([_code(declared.text), *_about(outline, declared, named), *_lives(declared, placement)])


def _about(outline: Outline, declared: Declaration, named: NameReference) -> list[str]:
    section = declared.section
    uses = len(references(outline, named)) - 1
    place = f"Declared in block ^{section.block} of `@{section.program}`, line {declared.span.line + 1}"
    return [STORAGE[declared.storage], f"{place}; named at {uses} other place{'' if uses == 1 else 's'}."]


def _lives(declared: Declaration, placement: Placement | None) -> list[str]:
    text = where(declared, placement)[1] if placement else ""
    return [text] if text else []


def _block(outline: Outline, named: NameReference) -> str:
    return "\n\n".join(_code(outline.lines[span.line].strip()) for span in definitions(outline, named))


def _word_at(outline: Outline, spot: TextPosition, piece: Piece) -> str:
    try:
        word = read_word(piece.text)
    except (ValueError, IndexError):
        return ""
    part = part_at(outline, TextPosition(spot.line, piece.stop))
    if part.zone == START:
        return op_text(schema_of(word))
    schema = schema_of(part.op) if part.op else None
    if schema is None or part.name:
        return ""
    slots = {INPUTS: schema.inputs, OUTPUTS: schema.outputs}.get(part.zone)
    if slots is not None and word in slots:
        which = "input" if part.zone == INPUTS else "output"
        return f"{_code(slot_text(slots[word]))}\n\nAn {which} of `{part.op}`: {slot_meaning(slots[word])}."
    spec = {**GENERIC_ATTRS, **CARRIED_ATTRS, **schema.attrs}.get(word) if part.zone == ATTRIBUTES else None
    return f"{_code(attribute_text(word, spec))}\n\nAn attribute of `{part.op}`." if spec else ""


def op_text(schema: OpSchema | None) -> str:
    """The declaration of an op type as Markdown; empty if there is none."""
    if schema is None:
        return ""
    head = f"{schema.type}({', '.join(map(slot_text, schema.inputs.values()))})"
    outputs = ", ".join(map(slot_text, schema.outputs.values()))
    signature = f"{head} -> {outputs}" if outputs else head
    attributes = [f"- `{attribute_text(name, spec)}`" for name, spec in sorted(schema.attrs.items())]
    about = [schema.doc] if schema.doc else []
    about += [f"The gradient of `{schema.forward}`."] if schema.forward else []
    about += ["It updates a parameter."] if schema.is_optimizer else []
    return "\n\n".join([_code(signature), *about, *(["\n".join(attributes)] if attributes else [])])


def slot_text(slot: Slot) -> str:
    """A slot as declarations write it: `X*` takes a list, `X?` may be missing."""
    return f"{slot.name}{'*' if slot.duplicable else ''}{'?' if slot.dispensable else ''}"


def slot_meaning(slot: Slot) -> str:
    """A description of what a slot takes."""
    what = "a list of variables" if slot.duplicable else "one variable"
    return f"{what}, may be missing" if slot.dispensable else what


def attribute_text(name: str, spec: AttrSpec) -> str:
    """An attribute with its kind and default."""
    default = "" if spec.default is None else f" = {value_text(spec.default)}"
    return f"{name}: {ATTR_KIND_TEXT[spec.kind]}{default}"


def _code(text: str) -> str:
    return f"```pstranspile-ir\n{text}\n```"
