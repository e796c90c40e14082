"""Reads a text by Lark and the grammar alone: what the reader by hand is compared with.

It says nothing of what is wrong with a text but that something is.
"""

from __future__ import annotations

from typing import Any

from lark import Token, Tree
from lark.exceptions import UnexpectedInput

from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind
from pstranspile.ir.model import (
    MAX_DEPTH,
    Block,
    Distribution,
    FrozenMap,
    Location,
    Module,
    Op,
    Origin,
    ParameterInfo,
    Program,
    TensorType,
    Var,
)
from pstranspile.ir.text.diagnose import grammar_parser
from pstranspile.ir.text.distribution import STATEMENTS, read_distribution
from pstranspile.ir.text.literals import (
    ELEMENT_KIND,
    ELEMENT_WORDS,
    INT_MAX,
    INT_MIN,
    KIND_OF_ATTR,
    KIND_WORDS,
    LONG_MAX,
    LONG_MIN,
    ROLE_WORDS,
    STORAGE_CLASSES,
    WRITTEN_FIELDS,
    double,
    integer,
    read_name,
    read_script,
    read_word,
    real,
    unquote,
)
from pstranspile.ir.text.statement import OpParts
from pstranspile.ir.types import DTYPES, OpRole, VarKind
from pstranspile.ops.textual import LANGUAGE


class Wrong(Exception):
    """Raised for a text that the grammar accepts, but that stands for nothing."""


def hold(condition: object) -> None:
    if not condition:
        raise Wrong


def one_of(token: str, words: Any) -> Any:
    hold(str(token) in words)
    return words[str(token)] if isinstance(words, dict) else str(token)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    hold(len({name for name, _ in pairs}) == len(pairs))
    return dict(pairs)


def settings(nodes: list[Tree], known: tuple[str, ...]) -> dict[str, Token]:
    return unique([(one_of(name, known), value) for name, value in (node.children for node in nodes)])


def number(token: Token, low: int = INT_MIN, high: int = INT_MAX) -> int:
    return integer(token.lstrip("^"), low, high)


def number_or(token: Token | None, kind: str, default: int, *bounds: int) -> int:
    hold(token is None or token.type == kind)
    return default if token is None else number(token, *bounds)


KIND = {"INT": AttrKind.INT, "FLOAT": AttrKind.FLOAT, "STRING": AttrKind.STRING, "LABEL": AttrKind.BLOCK}
WORD = {"true": AttrKind.BOOLEAN, "false": AttrKind.BOOLEAN, "inf": AttrKind.FLOAT, "nan": AttrKind.FLOAT}
WIDER = {
    AttrKind.INT: (AttrKind.LONG, AttrKind.FLOAT, AttrKind.FLOAT64),
    AttrKind.FLOAT: (AttrKind.FLOAT64,),
}
ANY_INTEGER = {
    AttrKind.INT: (INT_MIN, INT_MAX),
    AttrKind.LONG: (LONG_MIN, LONG_MAX),
    AttrKind.BLOCK: (INT_MIN, INT_MAX),
}


def natural(token: Token) -> AttrKind:
    return KIND.get(token.type) or one_of(token, WORD)


def scalar(token: Token, kind: AttrKind) -> Any:
    if kind in ANY_INTEGER:
        return number(token, *ANY_INTEGER[kind])
    if kind is AttrKind.STRING:
        return unquote(token)
    if kind is AttrKind.FLOAT64:
        return double(token)
    return real(token) if kind is AttrKind.FLOAT else token == "true"


def value(literal: Token | Tree, kind: AttrKind | None, *, forced: bool) -> Any:
    """The value of a literal: of this kind if it fits; else of its own, unless the kind is forced."""
    parts = [literal] if isinstance(literal, Token) else literal.children
    kinds = {natural(part) for part in parts}
    implied = AttrKind.FLOAT if kinds == {AttrKind.INT, AttrKind.FLOAT} else next(iter(kinds), None)
    hold(len(kinds) < 2 or kinds == {AttrKind.INT, AttrKind.FLOAT})
    is_list = literal is not parts[0] if parts else True
    element = ELEMENT_KIND.get(kind) if is_list and kind is not None else kind
    fits = kind is not None and is_list == (kind in ELEMENT_KIND)
    wider = element in WIDER.get(implied, ())
    if not fits or not (implied is None or implied is element or wider):
        hold(not forced and implied is not None)
        element = implied
        kind = {e: k for k, e in ELEMENT_KIND.items()}[implied] if is_list else implied
    read = [scalar(part, element) for part in parts]
    return PYTHON_TYPES[kind](read if is_list else read[0])


def attributes(node: Tree, op_type: str) -> tuple[dict[str, Any], set[str]]:
    schema = LANGUAGE.schema_of(op_type)
    given, absent = {}, set[str]()
    unique([(read_word(child.children[0]), child) for child in node.children])
    for child in node.children:
        name, kind = read_word(child.children[0]), LANGUAGE.kind(schema, read_word(child.children[0]))
        if child.data == "absent":
            hold(schema is None or kind is not None or name == "op_role_var")
            absent.add(name)
            continue
        hold(name not in ("op_role", "op_role_var"))
        if child.data == "typed_attribute":
            given[name] = value(child.children[2], one_of(child.children[1], KIND_OF_ATTR), forced=True)
        else:
            hold(schema is None or kind is not None)
            given[name] = value(child.children[1], kind, forced=False)
    return given, absent


def slots(node: Tree | None, base: Any, schema: Any) -> FrozenMap:
    read = [(read_word(child.children[0]), child) for child in (node.children if node else ())]
    unique(read)
    absent = {name for name, child in read if child.data == "absent"}
    hold(schema is None or absent <= set(schema.inputs))
    given = {n: tuple([read_name(v) for v in c.children[1:]]) for n, c in read if c.data != "absent"}
    return FrozenMap({**{name: names for name, names in base.items() if name not in absent}, **given})


def role_of(node: Tree | None) -> tuple[OpRole | None, tuple[str, ...], bool]:
    role: OpRole | None = OpRole.FORWARD
    names, target = (), False
    for child in node.children if node else ():
        if isinstance(child, Token):
            target = bool(one_of(child, ("target",)))
        elif child.data == "role_vars":
            names = tuple([read_name(name) for name in child.children])
        elif child.data == "role_number":
            hold(child.children[0] == "role")
            role = OpRole(number(child.children[1], 0))
        elif child.children == ["norole"]:
            role = None
        else:
            for word in child.children:
                role |= one_of(word, ROLE_WORDS)
    return role, names, target


def op_of(node: Tree) -> OpParts:
    first, last = node.children[0], node.children[-1]
    op_type = read_word(first)
    schema = LANGUAGE.schema_of(op_type)
    parts = {part.data: part for part in node.children if isinstance(part, Tree)}
    inputs, outputs = parts.get("inputs"), parts.get("outputs")
    hold(not outputs or all(child.data != "absent" for child in outputs.children))
    role, role_vars, target = role_of(parts.get("role"))
    given, absent = attributes(parts["attributes"], op_type) if "attributes" in parts else ({}, set[str]())
    defaults = LANGUAGE.defaults(schema)
    carried = None if "op_role_var" in absent else ()
    hold(not role_vars or carried is not None)
    return OpParts(
        op_type,
        slots(inputs, schema.empty_inputs if schema is not None and inputs is not None else {}, schema),
        slots(outputs, {}, None),
        FrozenMap({**{name: v for name, v in defaults.items() if name not in absent}, **given}),
        role,
        role_vars or carried,
        target,
        first.line,
        first.column,
        read_script(last) if isinstance(last, Token) and last.type == "SCRIPT" else None,
    )


def tensor_of(node: Tree) -> TensorType:
    dims = node.children[1].children
    return TensorType(one_of(node.children[0], DTYPES), tuple([number(dim, LONG_MIN, LONG_MAX) for dim in dims]))


def in_reader(specs: Tree) -> TensorType:
    (tensor,) = [tensor_of(spec) for spec in specs.children if spec.data == "element"] or [None]
    lods = [spec for spec in specs.children if spec.data == "setting"]
    hold(tensor is not None and len(lods) + 1 == len(specs.children))
    for name, level in [lod.children for lod in lods]:
        tensor = tensor._replace(lod_level=number(level))
        hold(name == "lod")
    return tensor


def words_of(group: Tree) -> list[str]:
    hold(all([spec.data for spec in specs.children] == ["word"] for specs in group.children[1:]))
    return [str(specs.children[0].children[0]) for specs in group.children[1:]]


def declaration_of(node: Tree, file: str) -> Var:
    storage, name, *specs = node.children
    one_of(storage, STORAGE_CLASSES)
    braces = specs.pop() if specs[-1].data == "attributes" else None
    kind: VarKind | None = None
    fields: dict[str, Any] = {}
    lod: int | None = None
    for spec in specs:
        first = str(spec.children[0])
        if spec.data == "setting":
            hold(first == "lod" and lod is None)
            lod = number(spec.children[1])
        elif spec.data == "element":
            hold("tensor" not in fields)
            fields["tensor"] = tensor_of(spec)
            kind = kind or VarKind.LOD_TENSOR
        elif spec.data == "group" and first == "written" and kind is not None:
            fields["written_defaults"] = tuple([one_of(word, WRITTEN_FIELDS) for word in words_of(spec)])
        elif spec.data == "group":
            hold(first in ("reader", "tuple") and kind is None)
            kind = KIND_WORDS[first]
            if first == "tuple":
                fields["elements"] = tuple([one_of(word, ELEMENT_WORDS) for word in words_of(spec)])
            else:
                fields["readers"] = tuple([in_reader(specs) for specs in spec.children[1:]])
        elif first == "feed" and kind is not None:
            fields["need_check_feed"] = True
        else:
            hold(kind is None)
            kind = one_of(first, KIND_WORDS)
    hold(lod is None or "tensor" in fields)
    if lod is not None:
        fields["tensor"] = fields["tensor"]._replace(lod_level=lod)
    persistable = storage == "state"
    if storage == "param":
        fields["parameter"], persistable = parameter_of(braces)
    else:
        hold(braces is None)
    place = Location(file, storage.line, storage.column)
    return Var(read_name(name), kind or VarKind.LOD_TENSOR, persistable=persistable, location=place, **fields)


def parameter_of(braces: Tree | None) -> tuple[ParameterInfo, bool]:
    children = braces.children if braces else []
    hold(all(child.data == "attribute" and isinstance(child.children[1], Token) for child in children))
    given = unique([(str(child.children[0]), child.children[1]) for child in children])
    info: dict[str, Any] = {}
    for name, token in given.items():
        if name in ("trainable", "is_distributed", "persistable"):
            info[name] = one_of(token, ("true", "false")) == "true"
        elif name == "regularizer":
            hold(token.type == "STRING")
            info[name] = unquote(token)
        else:
            hold(name == "learning_rate" and (token.type in ("INT", "FLOAT") or token in ("inf", "nan")))
            info[name] = float(token)
    persistable = info.pop("persistable", True)
    return ParameterInfo(**info), persistable


class Programs:
    """Builds programs of a tree."""

    def __init__(self, file: str):
        self.file = file

    def program(self, node: Tree) -> tuple[str, Program]:
        head, *rest = node.children
        first, name, *given = head.children
        hold(first == "program")
        found = settings(given, ("seed", "version"))
        version = found.get("version")
        none = version is not None and version == "none"
        numbers = [number_or(found.get(key), "INT", 0, LONG_MIN, LONG_MAX) for key in (["seed"] if none else found)]
        self.name, self.blocks = read_name(name), {}
        statements = [op_of(child) for child in rest if isinstance(child, Tree) and child.data == "op"]
        hold(all(op.type in STATEMENTS and op.script is None for op in statements))
        for child in rest:
            if isinstance(child, Tree) and child.data == "block":
                self.block(child, -1, 1)
        hold(sorted(self.blocks) == list(range(len(self.blocks))))
        distribution: Distribution | None = None
        if statements:
            distribution, problems = read_distribution(statements, self.file, LANGUAGE)
            hold(not problems)
        seed = dict(zip(["seed"] if none else found, numbers, strict=True))
        blocks = tuple([self.blocks[index] for index in range(len(self.blocks))])
        return self.name, Program(blocks, seed.get("seed", 0), None if none else seed.get("version", 0), distribution)

    def block(self, node: Tree, standing_in: int, depth: int) -> None:
        hold(depth <= MAX_DEPTH)
        head, *rest = node.children
        first, label, *given = head.children
        hold(first == "block")
        parents = [part.children for part in given if part.data == "parent"]
        hold(len(parents) < 2 and all(word == "in" for word, _ in parents))
        index = number(label, 0)
        hold(index not in self.blocks)
        self.blocks[index] = Block()
        variables: list[tuple[str, Var]] = []
        ops: list[Op] = []
        for child in rest:
            if isinstance(child, Token):
                continue
            if child.data == "block":
                self.block(child, index, depth + 1)
            elif child.data == "declaration":
                var = declaration_of(child, self.file)
                variables.append((var.name, var))
            else:
                parts = op_of(child)
                place = Location(self.file, parts.line, parts.column, parts.script)
                ops.append(Op(*parts[:7], Origin(self.name, index, len(ops), place)))
        forward = settings([part for part in given if part.data == "setting"], ("forward",)).get("forward")
        self.blocks[index] = Block(
            FrozenMap(unique(variables)),
            tuple(ops),
            number(parents[0][1]) if parents else standing_in,
            number_or(forward, "LABEL", -1),
            Location(self.file, first.line, first.column),
        )


def read(text: str, file: str = "<text>") -> Module | None:
    """The module that `text` holds, None if it holds none."""
    try:
        version, *programs = (
            grammar_parser().parse(text if text.endswith("\n") else text + "\n", start="module").children
        )
        hold(version.children[0] == "ir" and version.children[1].lstrip("0") == "1")
        return Module(FrozenMap(unique([Programs(file).program(program) for program in programs])))
    except (UnexpectedInput, Wrong, ValueError, OverflowError, RecursionError):
        return None
