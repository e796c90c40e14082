"""Reads one statement: from its parse tree to values of the model, reporting errors."""

from __future__ import annotations

from collections.abc import Iterable

from pstranspile.ir.model import ParameterInfo, TensorType, Var
from pstranspile.ir.text.attributes import integer, literal_kind, read_text, report_escape
from pstranspile.ir.text.context import BlockHead, Context, ProgramHead, did_you_mean, one_of
from pstranspile.ir.text.literals import (
    ELEMENT_WORDS,
    INT_MAX,
    INT_MIN,
    KIND_WORDS,
    LONG_MAX,
    LONG_MIN,
    STORAGE_CLASSES,
    WRITTEN_FIELDS,
    read_name,
)
from pstranspile.ir.text.tree import Node, Token, Tree, node_at, nodes, token, tokens
from pstranspile.ir.types import DTYPES, DType, VarKind

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
