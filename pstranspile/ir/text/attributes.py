"""Reads attributes: from the literal, the schema and the written kind to a typed value."""

from __future__ import annotations

from typing import Any

from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind, AttrValue, float32
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Attrs
from pstranspile.ir.text.context import Context, did_you_mean, one_of
from pstranspile.ir.text.literals import (
    ATTR_KIND_TEXT,
    ELEMENT_KIND,
    INT_MAX,
    INT_MIN,
    KIND_OF_ATTR,
    LONG_MAX,
    LONG_MIN,
    NAN,
    read_word,
    unquote,
)
from pstranspile.ir.text.schemas import SchemaView
from pstranspile.ir.text.tree import Node, Token, Tree, nodes, token, tokens

ROLE_VARS = "op_role_var"
_RESERVED = {"op_role": "the role", ROLE_VARS: "the role variables"}
_LITERAL_WORDS = {"true": AttrKind.BOOLEAN, "false": AttrKind.BOOLEAN, "inf": AttrKind.FLOAT, "nan": AttrKind.FLOAT}
_TOKEN_KINDS = {
    "INT": AttrKind.INT,
    "FLOAT": AttrKind.FLOAT,
    "STRING": AttrKind.STRING,
    "LABEL": AttrKind.BLOCK,
}
_LIST_KIND = {element: many for many, element in ELEMENT_KIND.items()}
FITS: dict[AttrKind, frozenset[AttrKind]] = {
    AttrKind.INT: frozenset({AttrKind.INT}),
    AttrKind.LONG: frozenset({AttrKind.INT}),
    AttrKind.FLOAT: frozenset({AttrKind.INT, AttrKind.FLOAT}),
    AttrKind.BOOLEAN: frozenset({AttrKind.BOOLEAN}),
    AttrKind.STRING: frozenset({AttrKind.STRING}),
    AttrKind.BLOCK: frozenset({AttrKind.BLOCK}),
}
"""The literals that each attribute kind accepts, by the kind that a literal implies."""


def natural_kind(token: Token, context: Context) -> AttrKind | None:
    """The kind that one literal implies; reports a word that is no literal and gives None."""
    kind = _TOKEN_KINDS.get(token.type) or _LITERAL_WORDS.get(token)
    if kind is None:
        hint = did_you_mean(token, _LITERAL_WORDS)
        context.report("unknown-word", f"`{token}` is no literal{hint or '; a string is written in quotes'}", token)
    return kind


def integer(digits: str, low: int, high: int) -> int:
    """The number `digits` stand for. Raises OverflowError when it is not in low..high."""
    if len(digits) > 20:  # int() refuses thousands of digits
        sign = "-" if digits[0] == "-" else ""
        digits = sign + (digits.lstrip("-").lstrip("0") or "0")
        if len(digits) > 20:
            raise OverflowError
    number = int(digits)
    if not low <= number <= high:
        raise OverflowError
    return number


def real(digits: str) -> float:
    """The float32 `digits` stand for. Raises OverflowError when a finite number is beyond float32."""
    if digits in ("inf", "-inf"):
        return float(digits)
    if digits == "nan":
        return NAN
    value = float32(float(digits))
    if value in (float("inf"), float("-inf")):
        raise OverflowError
    return value


def scalar(token: Token, kind: AttrKind, context: Context) -> Any:
    """The plain Python value of one fitting literal; reports numbers out of range and bad escapes."""
    try:
        if kind is AttrKind.FLOAT:
            return real(token)
        if kind is AttrKind.BOOLEAN:
            return token == "true"
        if kind is AttrKind.STRING:
            return unquote(token)
        if kind is AttrKind.BLOCK:
            return integer(token[1:], INT_MIN, INT_MAX)
        if kind is AttrKind.LONG:
            return integer(token, LONG_MIN, LONG_MAX)
        return integer(token, INT_MIN, INT_MAX)
    except OverflowError:
        bits = "a float32 (write `inf`)" if kind is AttrKind.FLOAT else f"{64 if kind is AttrKind.LONG else 32} bits"
        hint = "; a 64-bit number has the kind `long` (`name:long=...`)" if kind is AttrKind.INT else ""
        context.report("number-range", f"the number does not fit {bits}{hint}", token)
        return 0
    except ValueError as bad:
        report_escape(token, str(bad), context)
        return ""


def report_escape(token: Token, escape: str, context: Context) -> None:
    """Reports an escape sequence that the language does not know."""
    known = 'known are \\" \\\\ \\n \\t \\r \\uNNNN, and \\x80 to \\xff for bytes that are no UTF-8'
    context.report("syntax", f"unknown escape `{escape}` in a string; {known}", token)


def read_text(token: Token, context: Context) -> str:
    """The op type, slot or attribute name of a WORD or STRING token; reports a bad escape."""
    try:
        return read_word(token)
    except ValueError as bad:
        report_escape(token, str(bad), context)
        return str(token)


def literal_kind(literal: Token | Node, context: Context) -> tuple[AttrKind | None, bool]:
    """(the kind that the literal implies, or None if it implies none; whether the literal is usable at all)."""
    if not isinstance(literal, Tree):
        kind = natural_kind(literal, context)
        return kind, kind is not None
    parts = tokens(literal)
    result: dict[AttrKind, Token] = {}
    for part in parts:
        kind = natural_kind(part, context)
        if kind is None:
            return None, False
        result.setdefault(kind, part)
    if result.keys() == {AttrKind.INT, AttrKind.FLOAT}:
        return AttrKind.FLOATS, True
    if len(result) > 1:
        different = list(result.values())[1]
        context.report("attribute-literal", "the elements of a list are all of one kind", different)
        return None, False
    return (_LIST_KIND[next(iter(result))] if result else None), True


def fits(kind: AttrKind, natural: AttrKind | None, is_list: bool) -> bool:
    """Whether a literal of kind `natural` (None: an empty list) can stand for a value of `kind`."""
    element = ELEMENT_KIND.get(kind)
    if element is None:
        return not is_list and natural in FITS[kind]
    if not is_list:
        return False
    return natural is None or ELEMENT_KIND[natural] in FITS[element]


def convert(literal: Token | Node, kind: AttrKind, context: Context) -> AttrValue:
    """The value of a literal that fits `kind`."""
    if isinstance(literal, Tree):
        element = ELEMENT_KIND[kind]
        return PYTHON_TYPES[kind](scalar(part, element, context) for part in tokens(literal))
    return PYTHON_TYPES[kind](scalar(literal, kind, context))


def _written_kind(token: Token, context: Context) -> AttrKind | None:
    kind = KIND_OF_ATTR.get(token)
    if kind is None:
        hint = did_you_mean(token, KIND_OF_ATTR) or f"; the kinds are {one_of(KIND_OF_ATTR)}"
        context.report("unknown-word", f"`{token}` is no kind of attribute{hint}", token)
    return kind


def _by_schema(
    name: Token, attribute: str, natural: AttrKind | None, op_type: str, schema: SchemaView | None, context: Context
) -> AttrKind | None:
    """The kind of an attribute written without one; None after reporting a finding."""
    kind = context.language.kind(schema, attribute)
    if kind is None and schema is not None:
        hint = did_you_mean(attribute, context.language.attribute_names(schema))
        if not hint:
            as_kind = ATTR_KIND_TEXT[natural] if natural else "ints"
            hint = f"; to carry one its schema does not know, give the kind (`{attribute}:{as_kind}=...`)"
        context.report("unknown-attribute", f"{op_type} has no attribute `{attribute}`{hint}", name)
    elif kind is None and natural is None:
        message = f"the kind of an empty list can't be told; write it after the name (`{attribute}:ints=[]`)"
        context.report("attribute-literal", message, name)
    return kind or (natural if schema is None else None)


def read_attribute(
    node: Node, op_type: str, schema: SchemaView | None, context: Context
) -> tuple[str, AttrValue] | None:
    """One `name=literal` or `name:kind=literal`; None after reporting a finding.

    A literal that does not fit the schema's kind keeps the kind that it implies; the verifier reports it.
    """
    name, literal = token(node, 0), node.children[-1]
    attribute = read_text(name, context)
    if attribute in _RESERVED:
        context.report("misplaced", f"`{attribute}` is written after the colon: {_RESERVED[attribute]}", name)
        return None
    natural, usable = literal_kind(literal, context)
    if not usable:
        return None
    if node.data == "typed_attribute":
        written = token(node, 1)
        kind = _written_kind(written, context)
        if kind is not None and not fits(kind, natural, isinstance(literal, Tree)):
            context.report("attribute-literal", f"the literal of `{attribute}` is not of kind `{written}`", written)
            return None
    else:
        kind = _by_schema(name, attribute, natural, op_type, schema, context)
        if kind is not None and natural is not None and not fits(kind, natural, isinstance(literal, Tree)):
            kind = natural
        elif kind is not None and natural is None and kind not in ELEMENT_KIND:
            message = f"`{attribute}` of {op_type} is no list; an empty list of another kind names it"
            context.report("attribute-literal", f"{message} (`{attribute}:ints=[]`)", name)
            return None
    return None if kind is None else (attribute, convert(literal, kind, context))


def _check_absent(name: Token, attribute: str, op_type: str, schema: SchemaView | None, context: Context) -> None:
    if schema is None or attribute == ROLE_VARS or context.language.kind(schema, attribute) is not None:
        return
    hint = did_you_mean(attribute, context.language.attribute_names(schema))
    context.report("unknown-attribute", f"{op_type} has no attribute `{attribute}`{hint}", name)


def read_given(
    node: Node, op_type: str, schema: SchemaView | None, context: Context
) -> tuple[dict[str, AttrValue], frozenset[str]]:
    """(the attributes written between the braces of an op, the names written there as absent)."""
    given: dict[str, AttrValue] = {}
    absent: set[str] = set()
    seen: set[str] = set()
    for child in nodes(node):
        name = token(child, 0)
        attribute = read_text(name, context)
        if attribute in seen:
            context.report("duplicate-name", f"attribute `{attribute}` is written twice", name)
        seen.add(attribute)
        if child.data == "absent":
            absent.add(attribute)
            _check_absent(name, attribute, op_type, schema, context)
            continue
        read = read_attribute(child, op_type, schema, context)
        if read is not None:
            given[read[0]] = read[1]
    return given, frozenset(absent)


def merge_attributes(
    given: dict[str, AttrValue], absent: frozenset[str], defaults: Attrs
) -> tuple[Attrs, tuple[str, ...] | None]:
    """(the attributes an op carries, its role variables if it names none: `()`, or None if it carries none)."""
    merged = {attribute: value for attribute, value in defaults.items() if attribute not in absent}
    merged.update(given)
    return FrozenMap(merged), None if ROLE_VARS in absent else ()
