"""Templates: one statement read by Lark serves for every statement that differs only in names and literals.

A statement is split into its *skeleton* and the names or literals in between. The skeleton with numbered placeholders
(`%0`, `%1`, ...) is a statement that Lark parses and the ordinary reader reads. Where the numbers occur in its value,
the names of other statements with this skeleton belong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind, AttrValue, kind_of
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import Attrs, Op, Slots, TensorType, Var
from pstranspile.ir.text.attributes import integer, merge_attributes, read_given, real
from pstranspile.ir.text.context import BlockHead, Context, OpParts, ProgramHead
from pstranspile.ir.text.grammar import accepted_statement
from pstranspile.ir.text.literals import ELEMENT_KIND, INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, unquote
from pstranspile.ir.text.op_reader import read_op
from pstranspile.ir.text.reader import read_block_head, read_declaration, read_program_head
from pstranspile.ir.text.schemas import Language, SchemaView
from pstranspile.ir.text.tree import Node, Tree, node_at


class Unfit(Exception):
    """Raised if a text needs the plain path: it has errors, or an unusual layout."""


_CUT_LITERALS = re.compile(
    r'("(?:[^"\\\n]|\\[^\n])*"|(?<![-A-Za-z0-9_.@])-?[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)?)'
)
_LONG = 2000
"""A list of numbers with more characters is read separately, because its text hardly occurs again."""
_LONG_LIST = re.compile(rf"(?<![^{{, \n])([A-Za-z_][A-Za-z0-9_.@]*)((?::[a-z]+)?=)\[([-+0-9.eE, \n]{{{_LONG},}})\]")
_NEXT_NUMBER = re.compile(r"[ \n]*(-?[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)?)[ \n]*(,|\Z)")
_ONLY_ATTRIBUTES = re.compile(r'(?:[^"{}#\n]|"(?:[^"\\\n]|\\[^\n])*")*').fullmatch


def read_line(text: str) -> Node:
    """The tree of one statement. Raises Unfit when the grammar refuses it."""
    statement = accepted_statement(text)
    tree = statement and statement.children[0]
    if not isinstance(tree, Tree):
        raise Unfit
    return tree


def _checked(context: Context) -> None:
    if context.findings:
        raise Unfit


def read_statement(text: str, number: int, file: str, language: Language) -> OpParts | Var | BlockHead | ProgramHead:
    """The value of the one statement that `text` holds, which begins at line `number`. Raises Unfit."""
    tree = read_line(text)
    context = Context(file, language, number)
    readers: dict[str, Callable[[Node, Context], Any]] = {
        "op": read_op,
        "declaration": read_declaration,
        "block_head": read_block_head,
        "program_head": read_program_head,
    }
    reader = readers.get(tree.data)
    if reader is None:
        raise Unfit
    value = reader(tree, context)
    _checked(context)
    return value


def numbered(pieces: tuple[str, ...]) -> str:
    """The statement of a skeleton, with the names %0, %1, %2, ... in place of those cut out."""
    return "".join([f"{piece}%{index}" for index, piece in enumerate(pieces[:-1])]) + pieces[-1]


_NEW: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _tuple_source(names: tuple[str, ...], shared: bool) -> str:
    """Source of the tuple of these names; a tuple of one name is shared between all ops."""
    if len(names) == 1 and shared:
        return f"one[n{names[0]}]"
    return f"({', '.join([f'one[n{index}][0]' for index in names])}{',' if len(names) == 1 else ''})"


def _slots_source(slots: Slots) -> str:
    if not slots:
        return "EMPTY"
    items = [f"{slot!r}: {_tuple_source(names, True)}" for slot, names in slots.items()]
    return f"FrozenMap({{{', '.join(items)}}})"


class Ones(dict[str, tuple[str, ...]]):
    """A cache of tuples of one name: equal names share one tuple and one string, so that look-ups are fast."""

    def __missing__(self, name: str) -> tuple[str, ...]:
        made = self[name] = (name,)
        return made


def op_filler(parts: OpParts, count: int, ones: Ones) -> Callable[..., Op]:
    """A function (names, (attributes, role variables or None), origin) -> Op, compiled for one skeleton.

    Its Python source contains nothing of the text but quoted slot names.
    """
    names = "".join([f"n{index}, " for index in range(count)])
    role_vars = _tuple_source(parts.role_vars, False) if parts.role_vars else "role_vars"
    lines = [
        "def fill(names, value, origin):",
        *([f"    {names}= names"] if count else []),
        "    attrs, role_vars = value",
        *(["    if role_vars is None: raise Unfit"] if parts.role_vars else []),
        f"    return new(Op, (op_type, {_slots_source(parts.inputs)}, {_slots_source(parts.outputs)},",
        f"        attrs, role, {role_vars}, {parts.is_target!r}, origin))",
    ]
    scope: dict[str, Any] = {
        "new": _NEW,
        "Op": Op,
        "EMPTY": EMPTY,
        "FrozenMap": FrozenMap,
        "Unfit": Unfit,
        "one": ones,
        "op_type": parts.type,
        "role": parts.role,
    }
    exec("\n".join(lines), scope)
    return scope.pop("fill")  # which its own globals shall not hold: nothing here is a cycle


def op_interpreter(parts: OpParts, ones: Ones) -> Callable[..., Op]:
    """The function of `op_filler` without compilation, for skeletons that are used seldom."""

    def slots(template: Slots, names: list[str]) -> Slots:
        if not template:
            return EMPTY
        filled: dict[str, tuple[str, ...]] = {}
        for slot, indexes in template.items():
            row = [ones[names[int(index)]] for index in indexes]
            filled[slot] = row[0] if len(row) == 1 else tuple([name for (name,) in row])
        return FrozenMap(filled)

    def fill(names: list[str], value: tuple[Attrs, tuple[str, ...] | None], origin: Any) -> Op:
        attrs, role_vars = value
        if parts.role_vars:
            if role_vars is None:
                raise Unfit
            role_vars = tuple([ones[names[int(index)]][0] for index in parts.role_vars])
        inputs, outputs = slots(parts.inputs, names), slots(parts.outputs, names)
        return Op(parts.type, inputs, outputs, attrs, parts.role, role_vars, parts.is_target, origin)

    return fill


class _Literals(NamedTuple):
    """The attributes of one skeleton: constants, and the positions of its literals."""

    constants: tuple[tuple[str, AttrValue], ...]
    scalars: tuple[tuple[str, AttrKind, int], ...]
    lists: tuple[tuple[str, AttrKind, tuple[int | float, ...]], ...]
    absent: frozenset[str]


def _convert(kind: AttrKind, literal: str) -> Any:
    """The value of a literal. Raises OverflowError or ValueError if it has none."""
    if kind is AttrKind.STRING:
        return unquote(literal)
    if kind is AttrKind.FLOAT:
        return real(literal)
    if kind is AttrKind.LONG:
        return integer(literal, LONG_MIN, LONG_MAX)
    return integer(literal, INT_MIN, INT_MAX)


def _numbers(text: str, start: int, end: int, kind: AttrKind) -> Iterator[int | float]:
    """The numbers between two places of a text, with commas between. Raises Unfit, OverflowError or ValueError."""
    more = ","
    while more:
        number = _NEXT_NUMBER.match(text, start, end)
        if number is None:
            raise Unfit
        literal, more = number.groups()
        start = number.end()
        yield _convert(kind, literal)


class AttributeReader:
    """Reads the text between the braces of ops, cached by text and by skeleton."""

    def __init__(self, language: Language):
        self.language = language
        self.templates: dict[tuple[str, tuple[str, ...], str], _Literals | None] = {}

    def read(self, op_type: str, text: str) -> tuple[Attrs, tuple[str, ...] | None]:
        """(attributes, `()` or None where the op carries no role variables). Raises Unfit."""
        if len(text) > _LONG and '"' not in text and _LONG_LIST.search(text):
            return self._read_long(op_type, text)
        if not _ONLY_ATTRIBUTES(text):
            raise Unfit
        schema = self.language.schema_of(op_type)
        pieces = _CUT_LITERALS.split(text)
        literals = pieces[1::2]
        kinds = "".join(["s" if part[0] == '"' else "i" if part.lstrip("-").isdigit() else "f" for part in literals])
        key = (op_type, tuple(pieces[::2]), kinds)
        if key not in self.templates:
            self.templates[key] = self._template(op_type, schema, key[1], kinds)
        template = self.templates[key]
        if template is None:
            given, absent = self._given(op_type, schema, text)
        else:
            given, absent = self._filled(template, literals), template.absent
        return merge_attributes(given, absent, self.language.defaults(schema))

    def _read_long(self, op_type: str, text: str) -> tuple[Attrs, tuple[str, ...] | None]:
        """Reads a text with long lists: with one number in each, then with the numbers put in."""
        result: dict[str, tuple[int, int]] = {}

        def cut(match: re.Match[str]) -> str:
            if match[1] in result:
                raise Unfit
            result[match[1]] = start, end = match.span(3)
            whole = all(text.find(mark, start, end) < 0 for mark in ".eE")
            return f"{match[1]}{match[2]}[{'0' if whole else '0.5'}]"

        attrs, role_vars = self.read(op_type, _LONG_LIST.sub(cut, text))
        values: dict[str, AttrValue] = {**attrs}
        for name, span in result.items():
            kind = kind_of(values[name]) if name in values else AttrKind.BOOLEAN
            element = ELEMENT_KIND.get(kind)
            if element is None or len(values[name]) != 1:  # pyright: ignore[reportArgumentType]
                raise Unfit
            try:
                values[name] = PYTHON_TYPES[kind](_numbers(text, *span, element))
            except (OverflowError, ValueError):
                raise Unfit from None
        return FrozenMap(values), role_vars

    def _given(self, op_type: str, schema: SchemaView | None, text: str) -> tuple[dict[str, AttrValue], frozenset[str]]:
        tree = read_line(f"x {{{text}}}")
        context = Context("", self.language)
        given, absent = read_given(node_at(tree, 1), op_type, schema, context)
        _checked(context)
        return given, absent

    def _template(
        self, op_type: str, schema: SchemaView | None, pieces: tuple[str, ...], kinds: str
    ) -> _Literals | None:
        """The template of a skeleton; None when a literal is the name of an attribute."""
        stand_ins = {"s": '"{}"', "i": "{}", "f": "{}.5"}
        parts = [piece + stand_ins[kind].format(i) for i, (piece, kind) in enumerate(zip(pieces, kinds, strict=False))]
        try:
            given, absent = self._given(op_type, schema, "".join(parts) + pieces[-1])
        except Unfit:  # refused, or the quoted name of an attribute was cut out: reading the text itself will tell
            return None
        if any(name.isdigit() for name in (*given, *absent)):
            return None
        constants: list[tuple[str, AttrValue]] = []
        scalars: list[tuple[str, AttrKind, int]] = []
        lists: list[tuple[str, AttrKind, tuple[int | float, ...]]] = []
        for name, value in given.items():
            kind = kind_of(value)
            element = ELEMENT_KIND.get(kind)
            if kind in (AttrKind.BOOLEAN, AttrKind.BOOLEANS) or (kind is AttrKind.FLOAT and not _finite(value)):
                constants.append((name, value))
            elif element is None:
                scalars.append((name, kind, int(value)))  # pyright: ignore[reportArgumentType]
            else:
                where: list[int | float] = [int(v) if _finite(v) else v for v in value]  # pyright: ignore
                lists.append((name, kind, tuple(where)))
        return _Literals(tuple(constants), tuple(scalars), tuple(lists), absent)

    def _filled(self, template: _Literals, literals: list[str]) -> dict[str, AttrValue]:
        given = dict(template.constants)
        try:
            for name, kind, index in template.scalars:
                given[name] = PYTHON_TYPES[kind](_convert(kind, literals[index]))
            for name, kind, where in template.lists:
                element = ELEMENT_KIND[kind]
                given[name] = PYTHON_TYPES[kind](
                    [_convert(element, literals[at]) if isinstance(at, int) else at for at in where]
                )
        except (OverflowError, ValueError):
            raise Unfit from None
        return given


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or (value == value and abs(value) != float("inf"))


_DIMS = re.compile(r"([^\[]*\[)([-0-9, ]*)(\].*)", re.DOTALL).fullmatch
_DIM = re.compile(r"-?[0-9]+")
_DIGITS = re.compile(r"[0-9]+")


class DeclarationReader:
    """Reads declarations without their names, by skeleton where only the dims are new."""

    def __init__(self, language: Language):
        self.language = language
        self.templates: dict[tuple[str, str, str], Var] = {}

    def read(self, pieces: tuple[str, str]) -> Var:
        """The variable that a declaration without its name stands for. Raises Unfit."""
        dims = _DIMS(pieces[1])
        if dims is None:
            return self._plainly(pieces)
        before, inside, after = dims.groups()
        numbers = _DIM.findall(inside)
        key = (f"{pieces[0]}%{before}", _DIGITS.sub("0", inside), after)
        template = self.templates.get(key)
        if template is None:
            template = self._plainly((pieces[0], before + key[1] + after))
            if template.tensor is None or len(template.tensor.shape) != len(numbers):
                return self._plainly(pieces)
            self.templates[key] = template
        try:
            shape = tuple([integer(number, LONG_MIN, LONG_MAX) for number in numbers])
        except OverflowError:
            raise Unfit from None
        assert template.tensor is not None
        return template._replace(tensor=TensorType(template.tensor.dtype, shape, template.tensor.lod_level))

    def _plainly(self, pieces: tuple[str, str]) -> Var:
        value = read_statement(numbered(pieces), 1, "", self.language)
        if not isinstance(value, Var):
            raise Unfit
        return value
