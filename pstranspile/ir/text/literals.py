"""Names, strings, numbers and types, and their textual form, also in messages that describe variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from pstranspile.ir.attributes import AttrKind, float32
from pstranspile.ir.diagnostics import Note
from pstranspile.ir.model import Attrs, Location, Slots, Var
from pstranspile.ir.types import DTYPES, DType, OpRole, VarKind

# The properties of op types that the text depends on: attribute kinds and defaults.


class AttrView(Protocol):
    """The kind of a declared attribute."""

    @property
    def kind(self) -> AttrKind:
        """The kind its values have."""
        ...


class SchemaView(Protocol):
    """The part of an op type's declaration that the text depends on (`pstranspile.ops.schema.OpSchema`)."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The input slots, in the order to print them."""
        ...

    @property
    def outputs(self) -> Mapping[str, Any]:
        """The output slots, in the order to print them."""
        ...

    @property
    def attrs(self) -> Mapping[str, AttrView]:
        """The declared attributes."""
        ...

    @property
    def defaults(self) -> Attrs:
        """The attributes that an op carries when its text does not mention them."""
        ...

    @property
    def empty_inputs(self) -> Slots:
        """The inputs that are present and empty when the text of an op does not mention them."""
        ...


class Language(NamedTuple):
    """The lookup of op types, and the attributes that ops of every type may carry.

    `generic_defaults` are the attributes of an op without a schema whose text mentions none; `generic_kinds` are the
    kinds of the attributes that any op may carry.
    """

    schema_of: Callable[[str], SchemaView | None]
    generic_defaults: Attrs
    generic_kinds: Mapping[str, AttrKind]

    def defaults(self, schema: SchemaView | None) -> Attrs:
        """The attributes an op of this schema carries when its text does not mention them."""
        return self.generic_defaults if schema is None else schema.defaults

    def kind(self, schema: SchemaView | None, attribute: str) -> AttrKind | None:
        """The kind an attribute has by the schema or for every op; None when neither knows it."""
        if schema is not None:
            spec = schema.attrs.get(attribute)
            if spec is not None:
                return spec.kind
        return self.generic_kinds.get(attribute)

    def attribute_names(self, schema: SchemaView) -> Iterable[str]:
        """Every attribute name known for a schema, for suggestions."""
        return [*schema.attrs, *self.generic_kinds, "op_role_var"]


VERSION = "1"
"""The version of the text that is read and written."""

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
NAN = float("nan")
"""The NaN that every `nan` of a text stands for: one object, so that equal texts give equal values."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.@/]+").fullmatch
_PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.@]*").fullmatch

# Control characters, the marks that reorder or hide text, line separators, and surrogates. A fixed list:
# str.isprintable changes with the Unicode tables of the Python that runs.
_ESCAPED = re.compile(
    '["\\\\\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]'
)
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_LONG = {escape[1]: char for char, escape in _SHORT.items()}
_ESCAPE = r"\\(?:x([89a-fA-F][0-9a-fA-F])|u([0-9a-fA-F]{4})|([^\n]?))"  # compiled on first use


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    short = _SHORT.get(char)
    if short is not None:
        return short
    code = ord(char)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def quote(text: str) -> str:
    """`text` as a string literal. A byte that is no UTF-8 (surrogateescape) is written `\\x80` .. `\\xff`."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _unescape(match: re.Match[str]) -> str:
    byte, code, short = match.groups()
    if byte:
        return chr(0xDC00 + int(byte, 16))
    if code:
        return chr(int(code, 16))
    if short not in _LONG:
        raise ValueError(match.group())
    return _LONG[short]


def unquote(literal: str) -> str:
    """The text of a string literal. Raises ValueError with the escape as its message if the language does not know the
    escape.
    """
    inner = literal[1:-1]
    return re.sub(_ESCAPE, _unescape, inner) if "\\" in inner else inner


def word(text: str) -> str:
    """An op type, slot or attribute name as text: plain, or quoted if necessary."""
    return text if _PLAIN_WORD(text) else quote(text)


def read_word(text: str) -> str:
    """The op type, slot or attribute name that a WORD or STRING token stands for."""
    return unquote(text) if text[0] == '"' else str(text)  # a plain str, as programs must not hold tokens


def name(text: str) -> str:
    """A variable or program name without its sigil: plain, or quoted if necessary."""
    return text if _PLAIN_NAME(text) else quote(text)


def read_name(token: str) -> str:
    """The name that a `%name` or `@name` token stands for."""
    return unquote(token[1:]) if token[1] == '"' else token[1:]


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


def double(digits: str) -> float:
    """The float64 `digits` stand for. Raises OverflowError when a finite number is beyond float64."""
    value = NAN if digits == "nan" else float(digits)
    if value in (float("inf"), float("-inf")) and digits not in ("inf", "-inf"):
        raise OverflowError
    return value


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


@lru_cache(maxsize=65536)
def _shortest(value: float) -> str:
    for digits in range(1, 10):
        decimal = float(f"{value:.{digits}g}")
        if float32(decimal) == value:
            return repr(decimal)
    return repr(value)


def float_text(value: float) -> str:
    """The shortest decimal that reads back as the float32 `value`; `inf`, `-inf` or `nan` for those."""
    value = float32(value)
    return _shortest(value) if value else repr(value)


STORAGE_CLASSES = ("param", "state", "temp")
"""The storage classes of variables: a parameter, another persistable variable, any other variable."""

WRITTEN_FIELDS = ("persistable", "need_check_feed", "lod_level")
"""The optional fields of a variable that a ProgramDesc can contain with their default values."""

KIND_WORDS: dict[str, VarKind] = {
    "tensor": VarKind.LOD_TENSOR,
    "rows": VarKind.SELECTED_ROWS,
    "array": VarKind.LOD_TENSOR_ARRAY,
    "reader": VarKind.READER,
    "tuple": VarKind.TUPLE,
    "raw": VarKind.RAW,
    "step_scopes": VarKind.STEP_SCOPES,
    "feed_list": VarKind.FEED_MINIBATCH,
    "fetch_list": VarKind.FETCH_LIST,
    "lod_rank_table": VarKind.LOD_RANK_TABLE,
    "place_list": VarKind.PLACE_LIST,
}
"""The kinds of variables by the word that stands for each in the text."""

KIND_TEXT = {kind: text for text, kind in KIND_WORDS.items()}
"""The word of each variable kind."""

ELEMENT_WORDS: dict[str, VarKind | DType] = {**DTYPES, **KIND_WORDS}
"""The kinds and dtypes that a tuple can hold, by their word."""

ROLE_WORDS: dict[str, OpRole] = {
    "forward": OpRole.FORWARD,
    "backward": OpRole.BACKWARD,
    "optimize": OpRole.OPTIMIZE,
    "rpc": OpRole.RPC,
    "dist": OpRole.DIST,
    "lr_sched": OpRole.LR_SCHED,
    "loss": OpRole.LOSS,
    "not_specified": OpRole.NOT_SPECIFIED,
}
"""Roles of ops by their word."""

NO_ROLE = "norole"
"""The word that says an op carries no role."""

KIND_OF_ATTR: dict[str, AttrKind] = {
    "int": AttrKind.INT,
    "float": AttrKind.FLOAT,
    "string": AttrKind.STRING,
    "ints": AttrKind.INTS,
    "floats": AttrKind.FLOATS,
    "strings": AttrKind.STRINGS,
    "bool": AttrKind.BOOLEAN,
    "bools": AttrKind.BOOLEANS,
    "block": AttrKind.BLOCK,
    "long": AttrKind.LONG,
    "blocks": AttrKind.BLOCKS,
    "longs": AttrKind.LONGS,
    "double": AttrKind.FLOAT64,
}
"""Attribute kinds by the word that stands after an attribute's name."""

ATTR_KIND_TEXT = {kind: text for text, kind in KIND_OF_ATTR.items()}
"""The word of each attribute kind."""

ELEMENT_KIND: dict[AttrKind, AttrKind] = {
    AttrKind.INTS: AttrKind.INT,
    AttrKind.LONGS: AttrKind.LONG,
    AttrKind.FLOATS: AttrKind.FLOAT,
    AttrKind.BOOLEANS: AttrKind.BOOLEAN,
    AttrKind.STRINGS: AttrKind.STRING,
    AttrKind.BLOCKS: AttrKind.BLOCK,
}
"""The kind of the elements of each kind of list."""


def role_text(role: OpRole | None) -> str:
    """A role as the text writes it: words joined by `|` in order of their number, or `role=77`."""
    if role is None:
        return NO_ROLE
    number = int(role)
    words = [text for text, bit in ROLE_WORDS.items() if number & bit]
    if number == 0:
        return "forward"
    known = sum(int(ROLE_WORDS[text]) for text in words)
    return "|".join(words) if known == number else f"role={number}"


def var_text(variable: str) -> str:
    """The name of a variable as the textual IR writes it: `%w`."""
    return f"%{name(variable)}"


def type_text(var: Var) -> str:
    """The type of a variable as the textual IR writes it, without LoD level: `rows f32[1000, 16]`, `raw`."""
    kind = KIND_TEXT[var.kind]
    if var.tensor is None:
        return kind
    dims = f"{var.tensor.dtype.text}[{', '.join(map(str, var.tensor.shape))}]"
    return dims if var.kind is VarKind.LOD_TENSOR else f"{kind} {dims}"


def declared_here(var: Var) -> tuple[Note, ...]:
    """A note that points at a declaration; empty if it has no place in a text."""
    if var.location is None:
        return ()
    return (Note(f"{var_text(var.name)} is declared here", var.location, var_text(var.name)),)
