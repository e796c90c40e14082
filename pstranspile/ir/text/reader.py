"""Reads one statement: from its parse tree to values of the model, reporting errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias, cast

from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind, AttrValue, float32
from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, Note, error, nearest
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import Attrs, Location, ParameterInfo, Slots, TensorType, Var
from pstranspile.ir.text.literals import (
    ATTR_KIND_TEXT,
    ELEMENT_KIND,
    ELEMENT_WORDS,
    INT_MAX,
    INT_MIN,
    KIND_OF_ATTR,
    KIND_WORDS,
    LONG_MAX,
    LONG_MIN,
    NAN,
    NO_ROLE,
    ROLE_WORDS,
    STORAGE_CLASSES,
    WRITTEN_FIELDS,
    Language,
    SchemaView,
    name,
    read_name,
    read_word,
    unquote,
)
from pstranspile.ir.types import DTYPES, DType, OpRole, VarKind

# Parse trees, whose children are tokens or trees by the rules of the grammar, and typed access to them.


class Token(str):
    """A piece of the text: `type` is the name of its terminal; lines and columns count from 1.

    Lark's own tokens have the same attributes and replace these if Lark parses.
    """

    __slots__ = ("column", "line", "start_pos", "type")

    type: str
    start_pos: int
    line: int
    column: int


def make_token(type_name: str, text: str, start_pos: int, line: int, column: int) -> Token:
    """A token with its place."""
    made = Token(text)
    made.type, made.start_pos, made.line, made.column = type_name, start_pos, line, column
    return made


class Tree:
    """A parse tree; `data` is the name of its rule."""

    __slots__ = ("children", "data")

    def __init__(self, data: str, children: list[Token | Tree], meta: object = None):
        self.data = data
        self.children = children


Node: TypeAlias = Tree


def token(node: Node, index: int) -> Token:
    """The child at `index`, which is a token by the grammar."""
    return cast(Token, node.children[index])


def tokens(node: Node) -> list[Token]:
    """All children of a rule that has tokens only."""
    return cast("list[Token]", node.children)


def nodes(node: Node) -> list[Node]:
    """The children of a rule that has only trees (or only trees from some index on)."""
    return cast("list[Node]", node.children)


def node_at(node: Node, index: int) -> Node:
    """The child at `index`, which is a tree by the grammar."""
    return cast(Node, node.children[index])


# What the readers of statements share: the file, the language, and the findings so far.


class OpParts(NamedTuple):
    """An op before its position is known. The fields are those of `Op`, `column` is the column of its type, and
    `script` the line of a script that created it.
    """

    type: str
    inputs: Slots
    outputs: Slots
    attrs: Attrs
    role: OpRole | None
    role_vars: tuple[str, ...] | None
    is_target: bool
    line: int
    column: int
    script: Location | None = None


class ProgramHead(NamedTuple):
    """The properties in the head of a program."""

    name: str
    seed: int
    version: int | None
    location: Location


class BlockHead(NamedTuple):
    """The properties in the head of a block; `parent` None means the enclosing block."""

    label: int
    parent: int | None
    forward: int
    location: Location


class Context:
    """Collects findings while statements are read. `first_line` is the line at which the parsed text starts."""

    def __init__(self, file: str, language: Language, first_line: int = 1):
        self.file = file
        self.language = language
        self.first_line = first_line
        self.findings: list[Diagnostic] = []

    def line(self, token: Token) -> int:
        """The line of a token in the whole file."""
        return self.first_line - 1 + (token.line)

    def at(self, token: Token) -> Location:
        """The place of a token in the whole file."""
        return Location(self.file, self.line(token), token.column)

    def report(self, code: Code, message: str, token: Token, notes: Iterable[Note] = ()) -> None:
        """Adds a finding that marks `token`."""
        self.findings.append(error(code, message, self.at(token), focus=str(token).split("\n")[0], notes=notes))


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` when a known word is near the given one, in whatever case that is written; else nothing."""
    words = list(known)
    near = nearest(given, words) or nearest(given.lower(), words)
    return f"; did you mean `{near}`?" if near else ""


def one_of(words: Iterable[str]) -> str:
    """The words as a choice, for a message: "`a`, `b` or `c`"."""
    quoted = [f"`{word}`" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


# Reads attributes: from the literal, the schema and the written kind to a typed value.

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


# The place in a Python script where an op was created: `@train.py:20` at the end of its line.

_WRITTEN = re.compile(r'(@(?:[A-Za-z0-9_.@/]+|"(?:[^"\\\n]|\\[^\n])*"):[0-9]+)[ \t\r]*').fullmatch


def script_text(location: Location | None) -> str:
    """The suffix of an op at this location, with the blank before it; empty if no script is known."""
    script = location.script if location is not None else None
    return f" @{name(script.file)}:{script.line}" if script is not None else ""


def read_script(text: str) -> Location:
    """The place in `@train.py:20`. Raises ValueError for a bad escape, OverflowError for a line number out of range."""
    file, _, line = text.rpartition(":")
    if len(line.lstrip("0")) > 10 or not 0 < int(line) <= INT_MAX:
        raise OverflowError(line)
    return Location(read_name(file), int(line))


def script_of(op: Node, context: Context) -> Location | None:
    """The place at the end of an op; reports an invalid line number."""
    given = op.children[-1]
    if isinstance(given, Tree) or given.type != "SCRIPT":
        return None
    try:
        return read_script(given)
    except OverflowError:
        context.report("number-range", f"a line has a number from 1 to {INT_MAX}", given)
    except ValueError as bad:
        report_escape(given, str(bad), context)
    return None


class Scripts(dict[str, Location | None]):
    """A cache of the ends of lines that begin with `@`: their place in a script, None if they name none."""

    def __missing__(self, end: str) -> Location | None:
        written = _WRITTEN(end)
        made = self[end] = read_script(written[1]) if written else None
        return made

    def cut(self, line: str) -> tuple[str, Location | None]:
        """The line without the place at its end, and the place. Raises ValueError or OverflowError as `read_script`."""
        at = line.rfind(" @")
        script = self[line[at + 1 :]] if at >= 0 else None
        return (line[:at], script) if script is not None else (line, None)


# The statements that are ops: slots, outputs, attributes and roles.


def _slots(node: Node | None, base: Slots, schema: SchemaView | None, op_type: str, context: Context) -> Slots:
    given: dict[str, tuple[str, ...]] = {}
    absent: set[str] = set()
    for child in nodes(node) if node is not None else ():
        name = token(child, 0)
        slot = read_text(name, context)
        if slot in given or slot in absent:
            context.report("duplicate-name", f"slot `{slot}` is written twice", name)
        if child.data == "absent":
            absent.add(slot)
            if schema is not None and slot not in schema.inputs:
                hint = did_you_mean(slot, schema.inputs)
                context.report("unknown-absent-slot", f"{op_type} has no input `{slot}`{hint}", name)
        else:
            given[slot] = tuple(read_sigil_name(variable, context) for variable in tokens(child)[1:])
    merged = {slot: names for slot, names in base.items() if slot not in absent}
    merged.update(given)
    return FrozenMap(merged) if merged else EMPTY


def _outputs(node: Node | None, context: Context) -> Slots:
    for child in nodes(node) if node is not None else ():
        if child.data == "absent":
            context.report("syntax", "an output that is not written is not present; leave it out", token(child, 0))
    return _slots(node, EMPTY, None, "", context)


def read_role(node: Node | None, context: Context) -> tuple[OpRole | None, tuple[str, ...], bool]:
    """Role, role variables, and whether the op is a target."""
    if node is None:
        return OpRole.FORWARD, (), False
    role: OpRole | None = OpRole.FORWARD
    names: tuple[str, ...] = ()
    target = False
    for child in node.children:
        if not isinstance(child, Tree):
            target = keyword(child, ["target"], "mark of an op", context)
        elif child.data == "role_vars":
            names = tuple(read_sigil_name(variable, context) for variable in tokens(child))
        elif child.data == "role_number":
            word, value = tokens(child)
            keyword(word, ["role"], "role with a number", context)
            role = OpRole(number(value, context, low=0))
        else:
            role = _role_words(tokens(child), context)
    return role, names, target


def _role_words(words: list[Token], context: Context) -> OpRole | None:
    if words == [NO_ROLE]:
        return None
    role = OpRole.FORWARD
    for word in words:
        if keyword(word, [*ROLE_WORDS, NO_ROLE] if len(words) == 1 else ROLE_WORDS, "role", context):
            role |= ROLE_WORDS[word]
    return role


def read_op(node: Node, context: Context) -> OpParts:
    """`mul(X=%x, Y=%w) -> Out=%y {x_num_col_dims=2} : backward`."""
    first = token(node, 0)
    op_type = read_text(first, context)
    schema = context.language.schema_of(op_type)
    parts = {str(part.data): part for part in node.children if isinstance(part, Tree)}
    inputs = parts.get("inputs")
    empty = schema.empty_inputs if schema is not None and inputs is not None else EMPTY
    role, role_vars, target = read_role(parts.get("role"), context)
    braces = parts.get("attributes")
    given, not_carried = read_given(braces, op_type, schema, context) if braces is not None else ({}, frozenset[str]())
    attrs, default_vars = merge_attributes(given, not_carried, context.language.defaults(schema))
    if role_vars and default_vars is None:
        context.report("duplicate-name", "`-op_role_var` stands beside role variables", first)
    return OpParts(
        op_type,
        _slots(inputs, empty, schema, op_type, context),
        _outputs(parts.get("outputs"), context),
        attrs,
        role,
        role_vars or default_vars,
        target,
        context.line(first),
        first.column,
        script_of(node, context),
    )


VERSION = "1"
"""The version of the text that this parser reads."""


def keyword(given: Token, known: Iterable[str], what: str, context: Context) -> bool:
    """Whether `given` is one of the known words; reports it with a suggestion if not."""
    known = list(known)
    if given in known:
        return True
    hint = did_you_mean(given, known) or (f"; {one_of(known)} can stand here" if len(known) < 12 else "")
    context.report("unknown-word", f"`{given}` is no {what}{hint}", given)
    return False


def read_sigil_name(given: Token, context: Context) -> str:
    """The name of a `%name` or `@name` token; reports a bad escape."""
    try:
        return read_name(given)
    except ValueError as bad:
        report_escape(given, str(bad), context)
        return str(given)


def number(given: Token, context: Context, bits: int = 32, low: int | None = None) -> int:
    """The value of an INT (or `^n`) token; reports one that does not fit."""
    lowest, highest = (INT_MIN, INT_MAX) if bits == 32 else (LONG_MIN, LONG_MAX)
    try:
        return integer(given.lstrip("^"), lowest if low is None else low, highest)
    except OverflowError:
        message = f"does not fit {bits} bits" if low is None else f"is not between {low} and {highest}"
        context.report("number-range", f"the number {message}", given)
        return 0


def read_version(node: Node, context: Context) -> None:
    """Checks the version line."""
    name, given = tokens(node)
    if name != "ir":
        message = f"the text opens with the version line `ir {VERSION}`, found `{name}`"
        context.report("version-line", message, name)
    elif given.lstrip("0") != VERSION:
        context.report("version-line", f"version {given} of the text is not known here; known is {VERSION}", given)


def _settings(children: Iterable[Node], known: Iterable[str], what: str, context: Context) -> dict[str, Token]:
    result: dict[str, Token] = {}
    for child in children:
        name, value = tokens(child)
        if not keyword(name, known, what, context):
            continue
        if name in result:
            context.report("duplicate-name", f"`{name}` is written twice", name)
        result[str(name)] = value
    return result


def _setting_number(value: Token | None, kind: str, default: int, context: Context) -> int:
    if value is None:
        return default
    if value.type != kind:
        wanted = "a block (`^n`)" if kind == "LABEL" else "a number"
        context.report("syntax", f"expected {wanted} here", value)
        return default
    return number(value, context, 32 if kind == "LABEL" else 64)


def read_program_head(node: Node, context: Context) -> ProgramHead:
    """`program @main seed=1 version=none {`."""
    first, name = token(node, 0), token(node, 1)
    keyword(first, ["program"], "statement with an `@name`", context)
    settings = _settings(nodes(node)[2:], ["seed", "version"], "setting of a program", context)
    version_token = settings.get("version")
    version = None
    if version_token is None or version_token != "none":
        version = _setting_number(version_token, "INT", 0, context)
    seed = _setting_number(settings.get("seed"), "INT", 0, context)
    return ProgramHead(read_sigil_name(name, context), seed, version, context.at(first))


def read_block_head(node: Node, context: Context) -> BlockHead:
    """`block ^2 in ^0 forward=^1 {`."""
    first, label = token(node, 0), token(node, 1)
    keyword(first, ["block"], "statement with a `^n`", context)
    parent: int | None = None
    rest = nodes(node)[2:]
    for child in rest:
        if child.data == "parent":
            word, value = tokens(child)
            if keyword(word, ["in"], "clause of a block", context):
                if parent is not None:
                    context.report("duplicate-name", "`in` is written twice", word)
                parent = number(value, context)
    settings = _settings(
        (child for child in rest if child.data == "setting"), ["forward"], "setting of a block", context
    )
    forward = _setting_number(settings.get("forward"), "LABEL", -1, context)
    return BlockHead(number(label, context, low=0), parent, forward, context.at(first))


def _shape(node: Node, context: Context) -> tuple[int, ...]:
    return tuple(number(dim, context, 64) for dim in tokens(node))


def _tensor(node: Node, context: Context) -> tuple[DType, tuple[int, ...]] | None:
    """`f32[-1, 13]`."""
    name = token(node, 0)
    if not keyword(name, DTYPES, "element type", context):
        return None
    return DTYPES[name], _shape(node_at(node, 1), context)


def _described(node: Node, context: Context) -> TensorType | None:
    """A tensor inside `reader(...)`: an element type with dims, and its LoD level."""
    tensor: tuple[DType, tuple[int, ...]] | None = None
    lod = 0
    for spec in nodes(node):
        first = token(spec, 0)
        if spec.data == "element" and tensor is None:
            tensor = _tensor(spec, context)
        elif spec.data == "setting" and keyword(first, ["lod"], "setting of a tensor", context):
            lod = number(token(spec, 1), context)
        elif spec.data != "setting":
            context.report("syntax", "expected an element type with its dims, as in `f32[-1, 784]`", first)
            return None
    if tensor is None and nodes(node)[0].data == "setting":
        context.report("syntax", "expected an element type with its dims", token(nodes(node)[0], 0))
    return tensor and TensorType(*tensor, lod)


def _elements(node: Node, context: Context) -> tuple[VarKind | DType, ...]:
    result: list[VarKind | DType] = []
    for specs in nodes(node)[1:]:
        for spec in nodes(specs):
            first = token(spec, 0)
            if spec.data != "word" or len(specs.children) != 1:
                context.report("syntax", "a tuple lists kinds and element types, one word each", first)
            elif keyword(first, ELEMENT_WORDS, "kind or element type", context):
                result.append(ELEMENT_WORDS[first])
    return tuple(result)


def _written(node: Node, context: Context) -> tuple[str, ...]:
    """`written(persistable, lod_level)`: the fields that a file contains with their default values."""
    names: list[str] = []
    for specs in nodes(node)[1:]:
        first = token(nodes(specs)[0], 0)
        if len(specs.children) != 1 or nodes(specs)[0].data != "word":
            context.report("syntax", "`written` lists names of fields", first)
        elif keyword(first, WRITTEN_FIELDS, "optional field of a variable", context):
            names.append(str(first))
    return tuple(names)


class _Description:
    """The combined meaning of the words after the colon of a declaration."""

    def __init__(self) -> None:
        self.kind: VarKind | None = None
        self.tensor: tuple[DType, tuple[int, ...]] | None = None
        self.lod: int | None = None
        self.feed = False
        self.readers: tuple[TensorType, ...] = ()
        self.elements: tuple[VarKind | DType, ...] = ()
        self.written: tuple[str, ...] | None = None

    def add(self, spec: Node, context: Context) -> None:
        first = token(spec, 0)
        if spec.data == "setting":
            if keyword(first, ["lod"], "setting of a variable", context):
                if self.lod is not None:
                    context.report("duplicate-name", "`lod` is written twice", first)
                self.lod = number(token(spec, 1), context)
        elif spec.data == "element":
            if self.tensor is not None:
                context.report("syntax", "a variable has one element type", first)
            self.tensor = _tensor(spec, context)
            self.kind = self.kind or VarKind.LOD_TENSOR
        elif spec.data == "group":
            self._group(spec, first, context)
        elif first == "feed" and self.kind is not None:
            self.feed = True
        elif self.kind is None:
            if first in DTYPES:
                context.report("syntax", f"the dims are missing: `{first}[...]`, or `{first}[]` for none", first)
                self.kind = VarKind.LOD_TENSOR
            elif keyword(first, [*KIND_WORDS, *DTYPES], "kind or element type", context):
                self.kind = KIND_WORDS[first]
            else:
                self.kind = VarKind.RAW
        else:
            context.report("unknown-word", f"`{first}` can't stand here{did_you_mean(first, ['feed'])}", first)

    def _group(self, spec: Node, first: Token, context: Context) -> None:
        if first == "written" and self.kind is not None:
            self.written = _written(spec, context)
            return
        if not keyword(first, ["reader", "tuple"], "kind with parentheses", context):
            self.kind = self.kind or VarKind.RAW
            return
        if self.kind is not None:
            context.report("syntax", "a variable has one kind", first)
        self.kind = KIND_WORDS[first]
        if self.kind is VarKind.TUPLE:
            self.elements = _elements(spec, context)
        else:
            read = [_described(specs, context) for specs in nodes(spec)[1:]]
            self.readers = tuple(tensor for tensor in read if tensor is not None)


_PARAMETER_WORDS = {
    "learning_rate": ("FLOAT", "INT"),
    "trainable": ("WORD",),
    "is_distributed": ("WORD",),
    "regularizer": ("STRING",),
    "persistable": ("WORD",),
}


def _parameter_settings(node: Node, context: Context) -> dict[str, Token]:
    result: dict[str, Token] = {}
    for child in nodes(node):
        name, value = token(child, 0), child.children[-1]
        if not keyword(name, _PARAMETER_WORDS, "property of a parameter", context):
            continue
        if name in result:
            context.report("duplicate-name", f"`{name}` is written twice", name)
        if child.data != "attribute" or isinstance(value, Tree):
            context.report("syntax", f"expected `{name}=` and one value", name)
        elif value.type not in _PARAMETER_WORDS[name] and not (name == "learning_rate" and value in ("inf", "nan")):
            literal_kind(value, context)
            context.report("attribute-literal", f"`{name}` does not take this value", value)
        elif (
            value.type == "WORD"
            and name != "learning_rate"
            and not keyword(value, ["true", "false"], "truth value", context)
        ):
            continue
        else:
            result[str(name)] = value
    return result


def _parameter(node: Node | None, context: Context) -> tuple[ParameterInfo, bool]:
    """The properties in the braces of a `param`, and whether it is persistable."""
    result = _parameter_settings(node, context) if node is not None else {}
    regularizer = result.get("regularizer")
    info = ParameterInfo(
        trainable=result.get("trainable", "true") == "true",
        learning_rate=float(result.get("learning_rate", 1.0)),
        is_distributed=result.get("is_distributed", "false") == "true",
        regularizer=None if regularizer is None else read_text(regularizer, context),
    )
    return info, result.get("persistable", "true") == "true"


def read_declaration(node: Node, context: Context) -> Var:
    """`param %w : f32[13, 1] {learning_rate=0.5}`."""
    storage, name = token(node, 0), token(node, 1)
    keyword(storage, STORAGE_CLASSES, "storage class", context)
    braces = nodes(node)[-1] if nodes(node)[-1].data == "attributes" else None
    described = _Description()
    for spec in nodes(node)[2 : -1 if braces is not None else None]:
        described.add(spec, context)
    parameter, persistable = None, storage == "state"
    if storage == "param":
        parameter, persistable = _parameter(braces, context)
    elif braces is not None:
        context.report("syntax", "only a `param` has properties in braces", storage)
    if described.lod is not None and described.tensor is None:
        context.report("syntax", "`lod` needs an element type with dims", storage)
    return Var(
        read_sigil_name(name, context),
        described.kind or VarKind.LOD_TENSOR,
        described.tensor and TensorType(*described.tensor, described.lod or 0),
        persistable,
        described.feed,
        parameter,
        described.readers,
        described.elements,
        context.at(storage),
        described.written,
    )
