"""Reads one statement of the text: piece by piece, straight to values of the model.

`grammar/ir.lark` is the definition of the language. A method of `Statement` reads one rule of it, and refuses what the
grammar refuses; it then reports what the shape of the statement leaves open: words, kinds, ranges and names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind, AttrValue
from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, error, nearest
from pstranspile.ir.model import EMPTY, Attrs, FrozenMap, Location, ParameterInfo, Slots, TensorType, Var
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
    NO_ROLE,
    ROLE_WORDS,
    STORAGE_CLASSES,
    WRITTEN_FIELDS,
    Language,
    SchemaView,
    double,
    integer,
    read_name,
    read_script,
    read_word,
    real,
    unquote,
)
from pstranspile.ir.types import DTYPES, DType, OpRole, VarKind

# The pieces of a statement. Each has the pattern that the grammar gives its terminal.

_GAP = r"[ \t\r]*(?:#[^\n]*(?![^\n]))?"
_LINES = r"(?:[ \t\r]*(?:#[^\n]*)?\n)*"
_CLOSING = rf"(?:\n{_LINES}[ \t\r]*)?"
_STRING = r'"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"'
_NAME = rf"(?:[A-Za-z0-9_.@/]+|{_STRING})"
_WORD = r"(?P<WORD>[A-Za-z_][A-Za-z0-9_.@]*)"

_PIECE = re.compile(
    rf"{_GAP}(?:{_WORD}|(?P<VAR>%{_NAME})|(?P<EQUAL>=)|(?P<COMMA>,{_LINES})|(?P<COLON>:)|(?P<LSQB>\[{_LINES})"
    rf"|(?P<LBRACE>\{{{_LINES})|(?P<RBRACE>{_CLOSING}\}})|(?P<END>\Z)|(?P<LPAR>\({_LINES})|(?P<RPAR>{_CLOSING}\))"
    rf"|(?P<RSQB>{_CLOSING}\])|(?P<INT>-?[0-9]+)|(?P<ARROW>->)|(?P<MINUS>-)|(?P<VBAR>\|)"
    rf"|(?P<LABEL>\^-?[0-9]+)|(?P<STRING>{_STRING})|(?P<SCRIPT>@{_NAME}:[0-9]+)|(?P<PROGRAM>@{_NAME}))"
).match
"""Matches a piece at any place but that of a literal."""

_SCALAR = (
    rf"(?:(?P<FLOAT>-?[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)|-inf)|(?P<INT>-?[0-9]+)"
    rf"|(?P<STRING>{_STRING})|{_WORD}|(?P<LABEL>\^-?[0-9]+))"
)
_LITERAL = re.compile(rf"{_GAP}(?:{_SCALAR}|(?P<LSQB>\[{_LINES}))").match
"""Matches the piece with which a literal begins."""

_ELEMENT = re.compile(_GAP + _SCALAR).match
"""Matches the first element of a list."""

_NEXT_ELEMENT = re.compile(f"{_GAP},{_LINES}{_GAP}{_SCALAR}").match
"""Matches a further element of a list, with the comma before it."""

Token: TypeAlias = "re.Match[str]"
"""A piece of a statement: `lastgroup` is the name of its terminal. Its `string` is the text of the statement."""


def piece(token: Token) -> str:
    """The text of a piece."""
    return token[token.lastindex or 0]


class NotAStatement(Exception):
    """Raised if a text is not a statement of the grammar. `pstranspile.ir.text.diagnose` explains why, with Lark."""


# The context that the statements of a text share: the file, the language, the names and the findings so far.


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


class VersionLine(NamedTuple):
    """The line that opens a text: its word, and the number of the version."""

    word: Token
    number: Token


class ClosingBrace(NamedTuple):
    """A `}` that ends a block or a program."""

    location: Location


class Names(dict[str, tuple[str, ...]]):
    """A cache of tuples of one name: equal names share one tuple and one string, so that look-ups are fast."""

    def __missing__(self, name: str) -> tuple[str, ...]:
        made = self[name] = (name,)
        return made


class Context:
    """Collects findings while statements are read. `first_line` is the line at which the parsed text starts."""

    def __init__(self, file: str, language: Language, first_line: int = 1):
        self.file = file
        self.language = language
        self.first_line = first_line
        self.findings: list[Diagnostic] = []
        self.names = Names()

    def at(self, token: Token) -> Location:
        """The place of a token in the whole file."""
        text, start = token.string, token.start(token.lastindex or 0)
        return Location(self.file, self.first_line + text.count("\n", 0, start), start - text.rfind("\n", 0, start))

    def report(self, code: Code, message: str, token: Token) -> None:
        """Adds a finding that marks `token`."""
        self.findings.append(error(code, message, self.at(token), focus=piece(token)))


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The hint `; did you mean ...?` with the known word nearest to the given one, in any case of letters; "" if none
    is near.
    """
    words = list(known)
    near = nearest(given, words) or nearest(given.lower(), words)
    return f"; did you mean `{near}`?" if near else ""


def one_of(words: Iterable[str]) -> str:
    """The words as a choice, for a message: "`a`, `b` or `c`"."""
    quoted = [f"`{word}`" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


class Literal(NamedTuple):
    """A literal. `first` is its piece, or the first element of a list (None: an empty list).

    `kinds` holds the first element of each kind that the elements imply; None is the kind of a word that is no literal.
    """

    first: Token | None
    is_list: bool
    kinds: dict[AttrKind | None, Token]

    @property
    def elements(self) -> Iterator[Token]:
        """The pieces of the elements. A list may be long, so they are not kept."""
        element = self.first
        while element is not None:
            yield element
            element = _NEXT_ELEMENT(element.string, element.end()) if self.is_list else None


class WrittenAttribute(NamedTuple):
    """An attribute as written: its name, its kind (None if not written), and its literal (None for the
    form `-name`).
    """

    name: Token
    kind: Token | None
    literal: Literal | None


class Spec(NamedTuple):
    """A part of the description of a variable: `word`, `setting=1`, `element[1, 2]` or `group(part, part)`.

    `numbers` are the dims, or the number of a setting. `parts` are the parts between the commas of a group.
    """

    first: Token
    form: str
    numbers: tuple[Token, ...] = ()
    parts: tuple[list[Spec], ...] = ()


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
_PARAMETER_WORDS = {
    "learning_rate": ("FLOAT", "INT"),
    "trainable": ("WORD",),
    "is_distributed": ("WORD",),
    "regularizer": ("STRING",),
    "persistable": ("WORD",),
}


def _natural_kind(element: Token) -> AttrKind | None:
    """The kind that one literal implies, None for a word that is no literal."""
    return _TOKEN_KINDS.get(element.lastgroup or "") or _LITERAL_WORDS.get(piece(element))


_WIDER = {
    AttrKind.INT: (AttrKind.LONG, AttrKind.FLOAT, AttrKind.FLOAT64),
    AttrKind.FLOAT: (AttrKind.FLOAT64,),
}
"""The other kinds for which a literal of each kind may be written."""


def _fits(kind: AttrKind, natural: AttrKind | None, is_list: bool) -> bool:
    """Whether a literal of kind `natural` (None: an empty list) can stand for a value of `kind`."""
    element = ELEMENT_KIND.get(kind)
    if is_list != (element is not None):
        return False
    if natural is None or kind is natural:
        return is_list or natural is not None
    one, implied = element or kind, ELEMENT_KIND[natural] if is_list else natural
    return one is implied or one in _WIDER.get(implied, ())


def merge_attributes(
    given: dict[str, AttrValue], absent: frozenset[str], defaults: Attrs
) -> tuple[Attrs, tuple[str, ...] | None]:
    """(attributes of an op: defaults that are not absent, and given ones; role variables of an op that names none:
    `()`, or None if they are absent).
    """
    merged = {attribute: value for attribute, value in defaults.items() if attribute not in absent}
    merged.update(given)
    return FrozenMap(merged), None if ROLE_VARS in absent else ()


class Statement:
    """A statement being read. `token` is the next piece.

    What is wrong in a statement that the grammar accepts is added to the findings of the context.
    """

    def __init__(self, text: str, context: Context):
        self.text = text
        self.context = context
        self.token: Token
        self.kind: str | None
        self.look(0)

    def look(self, position: int, scan: Callable[[str, int], Token | None] = _PIECE) -> None:
        """Makes the piece at a position the next one. Raises Refused if there is none."""
        token = scan(self.text, position)
        if token is None:
            raise NotAStatement
        self.token = token
        self.kind = token.lastgroup

    def next(self) -> Token:
        """Takes the next piece, whatever it is."""
        token = self.token
        self.look(token.end())
        return token

    def need(self, kind: str) -> Token:
        """Takes a piece of this kind. Raises Refused if the next one is of another."""
        token = self.token
        if self.kind != kind:
            raise NotAStatement
        self.look(token.end())
        return token

    def accept(self, kind: str) -> bool:
        """Takes a piece of this kind, if it is the next one."""
        if self.kind != kind:
            return False
        self.look(self.token.end())
        return True

    def read_list(self, close: str, item: Callable[[], Any]) -> list[Any]:
        """Reads items up to the bracket `close`; the opening bracket is read already. Items are separated by commas,
        and a comma may follow the last one.
        """
        items: list[Any] = []
        while self.kind != close:
            items.append(item())
            if not self.accept("COMMA"):
                break
        self.need(close)
        return items

    def read(self) -> OpParts | Var | BlockHead | ProgramHead | VersionLine | ClosingBrace:
        """The value of the statement. Raises Refused, and then the findings of the statement do not count."""
        if self.kind == "RBRACE" and piece(self.token) == "}":
            value: Any = ClosingBrace(self.context.at(self.next()))
        elif self.kind == "STRING":
            value = self.op(self.next())
        else:
            first = self.need("WORD")
            if self.kind == "VAR":
                value = self.declaration(first)
            elif self.kind == "LABEL":
                value = self.block_head(first)
            elif self.kind == "PROGRAM":
                value = self.program_head(first)
            elif self.kind == "INT":
                value = VersionLine(first, self.next())
            else:
                value = self.op(first)
        self.end()
        return value

    def end(self) -> None:
        """Raises Refused if anything follows."""
        if self.kind != "END":
            raise NotAStatement

    # Words, names and numbers.

    def keyword(self, given: Token, known: Collection[str], what: str) -> bool:
        """Whether `given` is one of the known words; reports it with a suggestion if not."""
        text = piece(given)
        if text in known:
            return True
        hint = did_you_mean(text, known) or (f"; {one_of(known)} can stand here" if len(known) < 12 else "")
        self.context.report("unknown-word", f"`{text}` is no {what}{hint}", given)
        return False

    def plain(self, given: Token, read: Callable[[str], str]) -> str:
        """The text of a name, a word or a string; reports an escape that the language does not know."""
        try:
            return read(piece(given))
        except ValueError as bad:
            known = 'known are \\" \\\\ \\n \\t \\r \\uNNNN, and \\x80 to \\xff for bytes that are no UTF-8'
            self.context.report("syntax", f"unknown escape `{bad}` in a string; {known}", given)
            return piece(given)

    def name(self) -> Token:
        """Takes the name of a slot or an attribute."""
        return self.need("STRING" if self.kind == "STRING" else "WORD")

    def variable(self) -> tuple[str, ...]:
        """The name of a `%name`, alone in a tuple."""
        return self.context.names[self.plain(self.need("VAR"), read_name)]

    def number(self, given: Token, bits: int = 32, low: int | None = None) -> int:
        """The value of a number or a `^n`. Reports a number out of range."""
        lowest, highest = (INT_MIN, INT_MAX) if bits == 32 else (LONG_MIN, LONG_MAX)
        try:
            return integer(piece(given).lstrip("^"), lowest if low is None else low, highest)
        except OverflowError:
            message = f"does not fit {bits} bits" if low is None else f"is not between {low} and {highest}"
            self.context.report("number-range", f"the number {message}", given)
            return 0

    # The heads of programs and blocks.

    def _setting(self, known: Collection[str], what: str, settings: dict[str, Token]) -> None:
        """Adds `name=value` to the settings of a head; the name is the next piece."""
        name = self.need("WORD")
        self.need("EQUAL")
        if self.kind not in ("INT", "WORD", "LABEL"):
            raise NotAStatement
        value = self.next()
        if self.keyword(name, known, what):
            if piece(name) in settings:
                self.context.report("duplicate-name", f"`{piece(name)}` is written twice", name)
            settings[piece(name)] = value

    def _setting_number(self, value: Token | None, kind: str, default: int) -> int:
        if value is None:
            return default
        if value.lastgroup != kind:
            expected = "a block (`^n`)" if kind == "LABEL" else "a number"
            self.context.report("syntax", f"expected {expected} here", value)
            return default
        return self.number(value, 32 if kind == "LABEL" else 64)

    def _open(self) -> None:
        """Takes the `{` at the end of a head."""
        if piece(self.token) != "{":
            raise NotAStatement
        self.next()

    def program_head(self, first: Token) -> ProgramHead:
        """Reads the head of a program: `program @main seed=1 version=none {`."""
        self.keyword(first, ["program"], "statement with an `@name`")
        name = self.need("PROGRAM")
        settings: dict[str, Token] = {}
        while self.kind == "WORD":
            self._setting(["seed", "version"], "setting of a program", settings)
        self._open()
        given = settings.get("version")
        version = None
        if given is None or piece(given) != "none":
            version = self._setting_number(given, "INT", 0)
        seed = self._setting_number(settings.get("seed"), "INT", 0)
        return ProgramHead(self.plain(name, read_name), seed, version, self.context.at(first))

    def block_head(self, first: Token) -> BlockHead:
        """Reads the head of a block: `block ^2 in ^0 forward=^1 {`."""
        self.keyword(first, ["block"], "statement with a `^n`")
        label = self.need("LABEL")
        parent: int | None = None
        settings: dict[str, Token] = {}
        while self.kind == "WORD":
            follows = _PIECE(self.text, self.token.end())
            if follows is None or follows.lastgroup != "LABEL":
                self._setting(["forward"], "setting of a block", settings)
                continue
            word, value = self.next(), self.next()
            if self.keyword(word, ["in"], "clause of a block"):
                if parent is not None:
                    self.context.report("duplicate-name", "`in` is written twice", word)
                parent = self.number(value)
        self._open()
        forward = self._setting_number(settings.get("forward"), "LABEL", -1)
        return BlockHead(self.number(label, low=0), parent, forward, self.context.at(first))

    # Ops: slots, attributes and roles.

    def op(self, first: Token) -> OpParts:
        """Reads an op: `mul(X=%x, Y=%w) -> Out=%y {x_num_col_dims=2} : backward`."""
        context = self.context
        op_type = self.plain(first, read_word)
        schema = context.language.schema_of(op_type)
        inputs = outputs = EMPTY
        if self.accept("LPAR"):
            base = schema.empty_inputs if schema is not None else EMPTY
            inputs = self._merge_slots(base, self.read_list("RPAR", self._slot), op_type, schema)
        if self.accept("ARROW"):
            slots = [self._slot()]
            while self.accept("COMMA"):
                slots.append(self._slot())
            for name, names in slots:
                if names is None:
                    context.report("syntax", "an output that is not written is not present; leave it out", name)
            outputs = self._merge_slots(EMPTY, slots, op_type, None)
        attrs, default_vars = self.attributes(op_type) if self.kind == "LBRACE" else (None, ())
        if attrs is None:
            attrs = context.language.defaults(schema)
        role, role_vars, target = self._role() if self.accept("COLON") else (OpRole.FORWARD, (), False)
        if role_vars and default_vars is None:
            context.report("duplicate-name", "`-op_role_var` stands beside role variables", first)
        script = self._script(self.next()) if self.kind == "SCRIPT" else None
        place = context.at(first)
        return OpParts(
            op_type,
            inputs,
            outputs,
            attrs,
            role,
            role_vars or default_vars,
            is_target=target,
            line=place.line,
            column=place.column,
            script=script,
        )

    def _slot(self) -> tuple[Token, tuple[str, ...] | None]:
        """Reads a slot: `X=%x`, `X=[%x, %y]`, or `-X`, for which the names are None."""
        if self.accept("MINUS"):
            return self.name(), None
        name = self.name()
        self.need("EQUAL")
        if not self.accept("LSQB"):
            return name, self.variable()
        return name, tuple([variable for (variable,) in self.read_list("RSQB", self.variable)])

    def _merge_slots(
        self,
        base: Slots,
        slots: list[tuple[Token, tuple[str, ...] | None]],
        op_type: str,
        schema: SchemaView | None,
    ) -> Slots:
        given_slots: dict[str, tuple[str, ...]] = {}
        absent: set[str] = set()
        for name, names in slots:
            slot = self.plain(name, read_word)
            if slot in given_slots or slot in absent:
                self.context.report("duplicate-name", f"slot `{slot}` is written twice", name)
            if names is not None:
                given_slots[slot] = names
                continue
            absent.add(slot)
            if schema is not None and slot not in schema.inputs:
                hint = did_you_mean(slot, schema.inputs)
                self.context.report("unknown-absent-slot", f"{op_type} has no input `{slot}`{hint}", name)
        merged = {slot: names for slot, names in base.items() if slot not in absent}
        merged.update(given_slots)
        return FrozenMap(merged) if merged else EMPTY

    def _role(self) -> tuple[OpRole | None, tuple[str, ...], bool]:
        """Reads the end of an op: its role, its role variables, and whether it is a target."""
        words = [self.need("WORD")]
        if self.accept("EQUAL"):
            value = self.need("INT")
            self.keyword(words[0], ["role"], "role with a number")
            role: OpRole | None = OpRole(self.number(value, low=0))
        else:
            while self.accept("VBAR"):
                words.append(self.need("WORD"))
            role = self._role_words(words)
        names: list[tuple[str, ...]] = self.read_list("RPAR", self.variable) if self.accept("LPAR") else []
        target = self.kind == "WORD" and self.keyword(self.next(), ["target"], "mark of an op")
        return role, tuple([variable for (variable,) in names]), target

    def _role_words(self, words: list[Token]) -> OpRole | None:
        if len(words) == 1 and piece(words[0]) == NO_ROLE:
            return None
        role = OpRole.FORWARD
        for word in words:
            if self.keyword(word, [*ROLE_WORDS, NO_ROLE] if len(words) == 1 else ROLE_WORDS, "role"):
                role |= ROLE_WORDS[piece(word)]
        return role

    def _script(self, given: Token) -> Location | None:
        """Reads the place in a script at the end of an op. Reports an invalid line number."""
        try:
            return read_script(piece(given))
        except OverflowError:
            self.context.report("number-range", f"a line has a number from 1 to {INT_MAX}", given)
        except ValueError:
            self.plain(given, lambda text: read_name(text.rpartition(":")[0]))
        return None

    # Attributes: from the literal, the schema and the written kind to a typed value.

    def _braces(self) -> list[WrittenAttribute]:
        """Reads the attributes in braces, as written."""
        self.need("LBRACE")
        return self.read_list("RBRACE", self._attribute)

    def _attribute(self) -> WrittenAttribute:
        """Reads an attribute: `name=literal`, `name:kind=literal` or `-name`."""
        if self.accept("MINUS"):
            return WrittenAttribute(self.name(), None, None)
        name = self.name()
        kind = self.need("WORD") if self.accept("COLON") else None
        if self.kind != "EQUAL":
            raise NotAStatement
        self.look(self.token.end(), _LITERAL)
        value = self.token
        if value.lastgroup == "LSQB":
            return WrittenAttribute(name, kind, self._list())
        self.next()
        return WrittenAttribute(name, kind, Literal(value, False, {_natural_kind(value): value}))

    def _list(self) -> Literal:
        """Takes a list, the `[` of which is the next piece."""
        first = element = _ELEMENT(self.text, self.token.end())
        end = self.token.end()
        kinds: dict[AttrKind | None, Token] = {}
        while element is not None:
            kinds.setdefault(_natural_kind(element), element)
            end = element.end()
            element = _NEXT_ELEMENT(self.text, end)
        self.look(end)
        if first is not None:
            self.accept("COMMA")
        self.need("RSQB")
        return Literal(first, True, kinds)

    def attributes(self, op_type: str) -> tuple[Attrs, tuple[str, ...] | None]:
        """Reads the attributes in braces and adds the defaults of the op type: (attributes, role variables as
        `merge_attributes` gives them).
        """
        given_values: dict[str, AttrValue] = {}
        absent: set[str] = set()
        seen: set[str] = set()
        language = self.context.language
        schema = language.schema_of(op_type)
        for written in self._braces():
            attribute = self.plain(written.name, read_word)
            if attribute in seen:
                self.context.report("duplicate-name", f"attribute `{attribute}` is written twice", written.name)
            seen.add(attribute)
            if written.literal is None:
                absent.add(attribute)
                if schema is not None and attribute != ROLE_VARS and language.kind(schema, attribute) is None:
                    hint = did_you_mean(attribute, language.attribute_names(schema))
                    message = f"{op_type} has no attribute `{attribute}`{hint}"
                    self.context.report("unknown-attribute", message, written.name)
                continue
            kind = self._kind(written, written.literal, attribute, op_type, schema)
            if kind is not None:
                given_values[attribute] = self._value(written.literal, kind)
        return merge_attributes(given_values, frozenset(absent), language.defaults(schema))

    def _kind(
        self, written: WrittenAttribute, literal: Literal, attribute: str, op_type: str, schema: SchemaView | None
    ) -> AttrKind | None:
        """The kind of an attribute; None after reporting a finding.

        A literal that does not fit the schema's kind keeps the kind that it implies; the verifier reports it.
        """
        context = self.context
        if attribute in _RESERVED:
            message = f"`{attribute}` is written after the colon: {_RESERVED[attribute]}"
            context.report("misplaced", message, written.name)
            return None
        natural, usable = self.literal_kind(literal)
        if not usable:
            return None
        if written.kind is not None:
            kind = KIND_OF_ATTR.get(piece(written.kind))
            if kind is None:
                word = piece(written.kind)
                hint = did_you_mean(word, KIND_OF_ATTR) or f"; the kinds are {one_of(KIND_OF_ATTR)}"
                context.report("unknown-word", f"`{word}` is no kind of attribute{hint}", written.kind)
            elif not _fits(kind, natural, literal.is_list):
                message = f"the literal of `{attribute}` is not of kind `{piece(written.kind)}`"
                context.report("attribute-literal", message, written.kind)
                return None
            return kind
        kind = self._kind_by_schema(written.name, attribute, natural, op_type, schema)
        if kind is not None and natural is not None and not _fits(kind, natural, literal.is_list):
            return natural
        if kind is not None and natural is None and kind not in ELEMENT_KIND:
            message = f"`{attribute}` of {op_type} is no list; an empty list of another kind names it"
            context.report("attribute-literal", f"{message} (`{attribute}:ints=[]`)", written.name)
            return None
        return kind

    def literal_kind(self, literal: Literal) -> tuple[AttrKind | None, bool]:
        """(the kind that the literal implies, or None if it implies none; whether the literal is usable at all)."""
        kinds = literal.kinds
        if None in kinds:
            word = piece(kinds[None])
            hint = did_you_mean(word, _LITERAL_WORDS) or "; a string is written in quotes"
            self.context.report("unknown-word", f"`{word}` is no literal{hint}", kinds[None])
            return None, False
        if kinds.keys() == {AttrKind.INT, AttrKind.FLOAT}:
            return AttrKind.FLOATS, True
        if len(kinds) > 1:
            different = list(kinds.values())[1]
            self.context.report("attribute-literal", "the elements of a list are all of one kind", different)
            return None, False
        kind = next(iter(kinds), None)
        return (_LIST_KIND[kind] if kind is not None and literal.is_list else kind), True

    def _kind_by_schema(
        self, name: Token, attribute: str, natural: AttrKind | None, op_type: str, schema: SchemaView | None
    ) -> AttrKind | None:
        """The kind of an attribute written without one; None after reporting a finding."""
        language = self.context.language
        kind = language.kind(schema, attribute)
        if kind is None and schema is not None:
            hint = did_you_mean(attribute, language.attribute_names(schema))
            if not hint:
                as_kind = ATTR_KIND_TEXT[natural] if natural else "ints"
                hint = f"; to carry one its schema does not know, give the kind (`{attribute}:{as_kind}=...`)"
            self.context.report("unknown-attribute", f"{op_type} has no attribute `{attribute}`{hint}", name)
        elif kind is None and natural is None:
            message = f"the kind of an empty list can't be told; write it after the name (`{attribute}:ints=[]`)"
            self.context.report("attribute-literal", message, name)
        return kind or (natural if schema is None else None)

    def _value(self, literal: Literal, kind: AttrKind) -> AttrValue:
        """The value of a literal, which fits `kind`."""
        if literal.is_list:
            element = ELEMENT_KIND[kind]
            return PYTHON_TYPES[kind](self._scalar(part, element) for part in literal.elements)
        assert literal.first is not None
        return PYTHON_TYPES[kind](self._scalar(literal.first, kind))

    def _scalar(self, given: Token, kind: AttrKind) -> Any:
        """The plain Python value of one fitting literal; reports numbers out of range and bad escapes."""
        if kind is AttrKind.STRING:
            return self.plain(given, unquote)
        text = piece(given)
        if kind is AttrKind.BOOLEAN:
            return text == "true"
        try:
            if kind is AttrKind.FLOAT:
                return real(text)
            if kind is AttrKind.FLOAT64:
                return double(text)
            if kind is AttrKind.LONG:
                return integer(text, LONG_MIN, LONG_MAX)
            return integer(text[1:] if kind is AttrKind.BLOCK else text, INT_MIN, INT_MAX)
        except OverflowError:
            bits = "64 bits" if kind is AttrKind.LONG else "32 bits"
            size = {AttrKind.FLOAT: "a float32", AttrKind.FLOAT64: "a float64"}.get(kind)
            size = f"{size} (write `inf`)" if size else bits
            hint = "; a 64-bit number has the kind `long` (`name:long=...`)" if kind is AttrKind.INT else ""
            self.context.report("number-range", f"the number does not fit {size}{hint}", given)
            return 0

    # Declarations.

    def declaration(self, storage: Token) -> Var:
        """Reads a declaration: `param %w : f32[13, 1] {learning_rate=0.5}`."""
        self.keyword(storage, STORAGE_CLASSES, "storage class")
        name = self.need("VAR")
        self.need("COLON")
        specs = self._specs()
        braces = self._braces() if self.kind == "LBRACE" else None
        described = _Description(self)
        for spec in specs:
            described.add(spec)
        parameter, persistable = None, piece(storage) == "state"
        if piece(storage) == "param":
            parameter, persistable = self._parameter(braces or [])
        elif braces is not None:
            self.context.report("syntax", "only a `param` has properties in braces", storage)
        if described.lod is not None and described.tensor is None:
            self.context.report("syntax", "`lod` needs an element type with dims", storage)
        return Var(
            self.context.names[self.plain(name, read_name)][0],
            described.kind or VarKind.LOD_TENSOR,
            described.tensor and TensorType(*described.tensor, described.lod or 0),
            persistable,
            described.feed,
            parameter,
            described.readers,
            described.elements,
            self.context.at(storage),
            described.written,
        )

    def _specs(self) -> list[Spec]:
        """Reads the parts of a description. Groups may be nested to any depth, as in the grammar."""
        specs: list[Spec] = []
        outer: list[tuple[Token, list[list[Spec]], list[Spec]]] = []  # (open groups, where they begin)
        while True:
            if outer and self.kind == "COMMA" and specs:
                self.next()
                specs = []
                outer[-1][1].append(specs)
            elif outer and self.kind == "RPAR":
                self.next()
                first, parts, around = outer.pop()
                around.append(Spec(first, "group", (), tuple([part for part in parts if part])))
                specs = around
            elif self.kind != "WORD":
                break
            else:
                first = self.next()
                if self.accept("LPAR"):
                    outer.append((first, [[]], specs))
                    specs = outer[-1][1][0]
                elif self.token.lastgroup == "LSQB":
                    dims = self._list()
                    if dims.kinds.keys() - {AttrKind.INT}:
                        raise NotAStatement
                    specs.append(Spec(first, "element", tuple(dims.elements)))
                elif self.accept("EQUAL"):
                    specs.append(Spec(first, "setting", (self.need("INT"),)))
                else:
                    specs.append(Spec(first, "word"))
        if outer or not specs:
            raise NotAStatement
        return specs

    def _parameter(self, braces: list[WrittenAttribute]) -> tuple[ParameterInfo, bool]:
        """(properties in the braces of a `param`, whether it is persistable)."""
        result: dict[str, Token] = {}
        for written in braces:
            if self.keyword(written.name, _PARAMETER_WORDS, "property of a parameter"):
                name = piece(written.name)
                if name in result:
                    self.context.report("duplicate-name", f"`{name}` is written twice", written.name)
                value = self._property(written, name)
                if value is not None:
                    result[name] = value
        texts = {name: piece(value) for name, value in result.items()}
        info = ParameterInfo(
            trainable=texts.get("trainable", "true") == "true",
            learning_rate=float(texts.get("learning_rate", 1.0)),
            is_distributed=texts.get("is_distributed", "false") == "true",
            regularizer=self.plain(result["regularizer"], read_word) if "regularizer" in result else None,
        )
        return info, texts.get("persistable", "true") == "true"

    def _property(self, written: WrittenAttribute, name: str) -> Token | None:
        """The value of a property of a parameter; None after reporting a finding."""
        literal = written.literal
        if literal is None or literal.is_list or literal.first is None or written.kind is not None:
            self.context.report("syntax", f"expected `{name}=` and one value", written.name)
            return None
        value = literal.first
        if name == "learning_rate" and piece(value) in ("inf", "nan"):
            return value
        if value.lastgroup not in _PARAMETER_WORDS[name]:
            self.literal_kind(literal)
            self.context.report("attribute-literal", f"`{name}` does not take this value", value)
            return None
        return value if value.lastgroup != "WORD" or self.keyword(value, ["true", "false"], "truth value") else None


class _Description:
    """The combined meaning of the words after the colon of a declaration."""

    def __init__(self, statement: Statement) -> None:
        self.statement = statement
        self.context = statement.context
        self.kind: VarKind | None = None
        self.tensor: tuple[DType, tuple[int, ...]] | None = None
        self.lod: int | None = None
        self.feed = False
        self.readers: tuple[TensorType, ...] = ()
        self.elements: tuple[VarKind | DType, ...] = ()
        self.written: tuple[str, ...] | None = None

    def add(self, spec: Spec) -> None:
        """Adds one part of the description."""
        first, word = spec.first, piece(spec.first)
        if spec.form == "setting":
            if self.statement.keyword(first, ["lod"], "setting of a variable"):
                if self.lod is not None:
                    self.context.report("duplicate-name", "`lod` is written twice", first)
                self.lod = self.statement.number(spec.numbers[0])
        elif spec.form == "element":
            if self.tensor is not None:
                self.context.report("syntax", "a variable has one element type", first)
            self.tensor = self._tensor(spec)
            self.kind = self.kind or VarKind.LOD_TENSOR
        elif spec.form == "group":
            self._group(spec)
        elif word == "feed" and self.kind is not None:
            self.feed = True
        elif self.kind is None:
            if word in DTYPES:
                self.context.report("syntax", f"the dims are missing: `{word}[...]`, or `{word}[]` for none", first)
                self.kind = VarKind.LOD_TENSOR
            elif self.statement.keyword(first, [*KIND_WORDS, *DTYPES], "kind or element type"):
                self.kind = KIND_WORDS[word]
            else:
                self.kind = VarKind.RAW
        else:
            self.context.report("unknown-word", f"`{word}` can't stand here{did_you_mean(word, ['feed'])}", first)

    def _group(self, spec: Spec) -> None:
        first, word = spec.first, piece(spec.first)
        if word == "written" and self.kind is not None:
            self.written = self._fields(spec)
            return
        if not self.statement.keyword(first, ["reader", "tuple"], "kind with parentheses"):
            self.kind = self.kind or VarKind.RAW
            return
        if self.kind is not None:
            self.context.report("syntax", "a variable has one kind", first)
        self.kind = KIND_WORDS[word]
        if self.kind is VarKind.TUPLE:
            self.elements = self._elements(spec)
        else:
            read = [self._reader_tensor(specs) for specs in spec.parts]
            self.readers = tuple(tensor for tensor in read if tensor is not None)

    def _tensor(self, spec: Spec) -> tuple[DType, tuple[int, ...]] | None:
        """(dtype, dims) of a tensor such as `f32[-1, 13]`; None after reporting a finding."""
        if not self.statement.keyword(spec.first, DTYPES, "element type"):
            return None
        return DTYPES[piece(spec.first)], tuple([self.statement.number(dim, 64) for dim in spec.numbers])

    def _reader_tensor(self, specs: list[Spec]) -> TensorType | None:
        """A tensor inside `reader(...)`: an element type with dims, and its LoD level."""
        tensor: tuple[DType, tuple[int, ...]] | None = None
        lod = 0
        for spec in specs:
            if spec.form == "element" and tensor is None:
                tensor = self._tensor(spec)
            elif spec.form == "setting" and self.statement.keyword(spec.first, ["lod"], "setting of a tensor"):
                lod = self.statement.number(spec.numbers[0])
            elif spec.form != "setting":
                message = "expected an element type with its dims, as in `f32[-1, 784]`"
                self.context.report("syntax", message, spec.first)
                return None
        if tensor is None and specs[0].form == "setting":
            self.context.report("syntax", "expected an element type with its dims", specs[0].first)
        return tensor and TensorType(*tensor, lod)

    def _elements(self, group: Spec) -> tuple[VarKind | DType, ...]:
        """The kinds and dtypes in `tuple(f32, rows)`."""
        result: list[VarKind | DType] = []
        for specs in group.parts:
            for spec in specs:
                if spec.form != "word" or len(specs) != 1:
                    message = "a tuple lists kinds and element types, one word each"
                    self.context.report("syntax", message, spec.first)
                elif self.statement.keyword(spec.first, ELEMENT_WORDS, "kind or element type"):
                    result.append(ELEMENT_WORDS[piece(spec.first)])
        return tuple(result)

    def _fields(self, group: Spec) -> tuple[str, ...]:
        """The fields in `written(persistable, lod_level)`: those that a file contains with their default values."""
        names: list[str] = []
        for specs in group.parts:
            first = specs[0].first
            if len(specs) != 1 or specs[0].form != "word":
                self.context.report("syntax", "`written` lists names of fields", first)
            elif self.statement.keyword(first, WRITTEN_FIELDS, "optional field of a variable"):
                names.append(piece(first))
        return tuple(names)
