"""Programs as texts for other tools: graphs as Graphviz's DOT and Mermaid's flowcharts, and MLIR's generic form.

In a graph each op is a box, and so is each variable that is read before an op has written it: parameters, state and
inputs. Each edge is a variable, from the op that wrote it last to an op that reads it. The ops of a block stand in a
frame.

MLIR's form is a text that tools for compilers read, as ops of an unregistered dialect `fluid`. A variable that is
written again becomes a new value, as values of MLIR are defined once. A variable that a block reads before anything has
written it is defined by a `fluid.variable` at the start of the block. The blocks of an op are its regions.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import NamedTuple

from pstranspile.ir.attributes import (
    AttrValue,
    BlockRef,
    BlockRefs,
    Bools,
    Double,
    Floats,
    Ints,
    Long,
    Longs,
    Strings,
)
from pstranspile.ir.model import Module, Op, Program, Slots, Var
from pstranspile.ir.text.literals import type_text
from pstranspile.ir.types import VarKind

# Programs as graphs.


class Node(NamedTuple):
    """A box: its name in the graph, the block that it is in (-1: none), its label, and whether it is a variable."""

    name: str
    block: int
    label: str
    is_variable: bool


class Edge(NamedTuple):
    """A variable on the way from one box to another."""

    source: str
    target: str
    variable: str


class Graph(NamedTuple):
    """The graph of a program."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    parents: tuple[int, ...]
    """For each block the index of the enclosing block."""


def graph_of(program: Program) -> Graph:
    """The graph of a program, block by block."""
    nodes: list[Node] = []
    edges: dict[Edge, None] = {}
    written: dict[str, str] = {}
    variables = count()
    for index, block in enumerate(program.blocks):
        for number, op in enumerate(block.ops):
            name = f"op_{index}_{number}"
            nodes.append(Node(name, index, op.type, False))
            for variable in dict.fromkeys(op.input_names):
                if variable not in written:
                    var = program.find_var(variable, index)
                    label = f"%{variable}" + (f" {type_text(var)}" if var is not None else "")
                    written[variable] = f"var_{next(variables)}"
                    nodes.append(Node(written[variable], -1, label, True))
                edges[Edge(written[variable], name, variable)] = None
            written.update(dict.fromkeys(op.output_names, name))
    return Graph(tuple(nodes), tuple(edges), tuple(block.parent for block in program.blocks))


def dot_text(program: Program, name: str) -> str:
    """A program as a graph in the DOT language of Graphviz."""
    graph = graph_of(program)

    def node(item: Node) -> str:
        shape = "ellipse" if item.is_variable else "box"
        return f"{item.name} [label={_label(item.label)}, shape={shape}];"

    def frame(index: int) -> tuple[str, str]:
        return f'subgraph cluster_{index} {{ label="block ^{index}";', "}"

    lines = [f"digraph {_quote_text(name)} {{", "  rankdir=LR;", *_framed_lines(graph, node, frame)]
    lines += (f"  {edge.source} -> {edge.target} [label={_label(f'%{edge.variable}')}];" for edge in graph.edges)
    return "\n".join([*lines, "}", ""])


def mermaid_text(program: Program, _: str) -> str:
    """A program as a flowchart of Mermaid."""
    graph = graph_of(program)

    def node(item: Node) -> str:
        label = _entities(item.label)
        return f'{item.name}(["{label}"])' if item.is_variable else f'{item.name}["{label}"]'

    def frame(index: int) -> tuple[str, str]:
        return f'subgraph block_{index}["block ^{index}"]', "end"

    lines = ["flowchart LR", *_framed_lines(graph, node, frame)]
    lines += (f'  {edge.source} -- "{_entities(f"%{edge.variable}")}" --> {edge.target}' for edge in graph.edges)
    return "\n".join([*lines, ""])


def drawings(module: Module, form: str) -> dict[str, bytes]:
    """Every program of a module as a file: `main.dot`, or `main.mmd` for the form `mermaid`."""
    draw, ending = {"dot": (dot_text, "dot"), "mermaid": (mermaid_text, "mmd")}[form]
    return {
        f"{name}.{ending}": draw(program, name).encode("utf-8", "backslashreplace")
        for name, program in module.programs.items()
    }


def _framed_lines(graph: Graph, node: Callable[[Node], str], frame: Callable[[int], tuple[str, str]]) -> Iterator[str]:
    """Yields the lines of the nodes. The nodes of a block stand in its frame, which is inside the frame of the
    enclosing block.
    """
    nodes: dict[int, list[Node]] = {}
    for item in graph.nodes:
        nodes.setdefault(item.block, []).append(item)
    inner: dict[int, list[int]] = {}
    for index, parent in enumerate(graph.parents):
        inner.setdefault(parent if index else -1, []).append(index)

    def lines_of_block(block: int, margin: str) -> Iterator[str]:
        yield from (f"{margin}{node(item)}" for item in nodes.get(block, ()))
        for index in inner.pop(block, ()):
            opening, closing = frame(index)
            yield f"{margin}{opening}"
            yield from lines_of_block(index, f"{margin}  ")
            yield f"{margin}{closing}"

    yield from lines_of_block(-1, "  ")


def _quote_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _label(text: str) -> str:
    """A label for Graphviz, with `&` escaped, as Graphviz reads entities such as `&amp;`."""
    return _quote_text(text.replace("&", "&amp;"))


def _entities(text: str) -> str:
    """A label for Mermaid, with numeric entities for quotes and other characters that have a meaning in HTML."""
    return "".join(f"#{ord(char)};" if char in '"#<>&`' or ord(char) < 32 else char for char in text)


# Programs in MLIR's generic form.


_ELEMENTS = {"bool": "i1", "u8": "ui8", "size_t": "ui64"}
"""MLIR's names of the element types for which they differ from those of the textual IR."""


def mlir_text(module: Module) -> str:
    """All programs of a module as one MLIR module: a `fluid.program` each."""
    lines = ['"builtin.module"() ({']
    for name, program in module.programs.items():
        lines.append('  "fluid.program"() ({')
        lines += _Writer(program).program()
        attributes = {
            "sym_name": _string(name),
            "random_seed": f"{program.random_seed} : i64",
            **({} if program.version is None else {"version": f"{program.version} : i64"}),
        }
        lines.append(f"  }}) {_dictionary(attributes)} : () -> ()")
    return "\n".join([*lines, "}) : () -> ()", ""])


class _Value(NamedTuple):
    """A value of MLIR: its name as written, and its type."""

    text: str
    type: str


class _Writer:
    """Writes a program, block by block; each block stands at the op that runs it."""

    def __init__(self, program: Program):
        self._program = program
        self._count = 0
        self._written_blocks: set[int] = set()

    def program(self) -> Iterator[str]:
        """Yields the lines of block 0, and of the blocks that no op runs."""
        yield from self._block(0, {}, "    ")
        for index in range(1, len(self._program.blocks)):
            if index not in self._written_blocks:
                yield '    "fluid.block"() ({'
                yield from self._block(index, {}, "      ")
                yield f"    }}) {{blocks = [{index} : i32]}} : () -> ()"

    def _block(self, index: int, outer: Mapping[str, _Value], margin: str) -> Iterator[str]:
        self._written_blocks.add(index)
        own = self._program.blocks[index].vars
        values = {name: value for name, value in outer.items() if name not in own}
        for op in self._program.blocks[index].ops:
            for name in op.input_names:
                if name not in values:
                    values[name] = self._value(name, index)
                    yield f"{margin}{values[name].text} = {self._variable(name, index)}"
            yield from self._op(op, index, values, margin)

    def _value(self, variable: str, index: int) -> _Value:
        self._count += 1
        return _Value(f"%{self._count - 1}", _type(self._program.find_var(variable, index)))

    def _variable(self, name: str, index: int) -> str:
        var = self._program.find_var(name, index)
        attributes = {"name": _string(name)}
        if var is not None:
            attributes |= {flag: "unit" for flag in ("persistable", "need_check_feed") if getattr(var, flag)}
            attributes |= {"parameter": "unit"} if var.parameter is not None else {}
            attributes |= {"lod_level": f"{var.tensor.lod_level} : i32"} if var.tensor and var.tensor.lod_level else {}
        return f'"fluid.variable"() {_dictionary(attributes)} : () -> {_type(var)}'

    def _op(self, op: Op, index: int, values: dict[str, _Value], margin: str) -> Iterator[str]:
        input_values = [values[name] for name in op.input_names]
        blocks = [
            block for block in _blocks(op) if block not in self._written_blocks and block < len(self._program.blocks)
        ]
        regions: list[str] = []
        for block in blocks:
            regions += [f"{margin}}}, {{"] if regions else []
            regions += self._block(block, values, f"{margin}  ")
        output_values = [self._value(name, index) for name in op.output_names]
        left = f"{', '.join(value.text for value in output_values)} = " if output_values else ""
        types = [", ".join(value.type for value in listed) for listed in (input_values, output_values)]
        head = f'{margin}{left}"fluid.{op.type}"({", ".join(value.text for value in input_values)})'
        tail = f"{_dictionary(_attributes(op, blocks))} : ({types[0]}) -> ({types[1]})"
        if blocks:
            yield f"{head} ({{"
            yield from regions
            yield f"{margin}}}) {tail}"
        else:
            yield f"{head} {tail}"
        values.update(zip(op.output_names, output_values, strict=True))


def _blocks(op: Op) -> Iterator[int]:
    for value in op.attrs.values():
        if isinstance(value, BlockRef):
            yield int(value)
        elif isinstance(value, BlockRefs):
            yield from map(int, value)


def _attributes(op: Op, blocks: Iterable[int]) -> dict[str, str]:
    """The attributes of an op in MLIR: the slots of the operands, the names of the outputs, and the op's own
    attributes.
    """
    result = {
        "inputs": _slots(op.inputs),
        "outputs": _slots(op.outputs),
        "names": _list(map(_string, op.output_names)),
        "attributes": _dictionary({name: _attribute(value) for name, value in op.attrs.items()}),
    }
    if op.role:
        result["role"] = f"{int(op.role)} : i32"
    if op.role_vars:
        result["role_vars"] = _list(map(_string, op.role_vars))
    regions = list(blocks)
    if regions:
        result["blocks"] = _list(f"{block} : i32" for block in regions)
    return result


def _slots(slots: Slots) -> str:
    """The number of operands in each slot, in order."""
    return _dictionary({slot: f"{len(names)} : i32" for slot, names in slots.items()})


def _type(var: Var | None) -> str:
    if var is None:
        return "none"
    if var.kind is not VarKind.LOD_TENSOR or var.tensor is None:
        return f"!fluid.{var.kind.name.lower()}"
    dims = "".join(f"{'?' if dim < 0 else dim}x" for dim in var.tensor.shape)
    text = var.tensor.dtype.text
    return f"tensor<{dims}{_ELEMENTS.get(text, text)}>"


def _attribute(value: AttrValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Ints | BlockRefs):
        return _list(f"{int(number)} : i32" for number in value)
    if isinstance(value, Longs):
        return _list(f"{number} : i64" for number in value)
    if isinstance(value, Floats):
        return _list(map(_float, value))
    if isinstance(value, Bools):
        return _list("true" if flag else "false" for flag in value)
    if isinstance(value, Strings):
        return _list(map(_string, value))
    if isinstance(value, Double):
        return _double(value)
    if isinstance(value, float):
        return _float(value)
    return f"{int(value)} : {'i64' if isinstance(value, Long) else 'i32'}"


def _float(value: float) -> str:
    if not math.isfinite(value):
        return f"0x{struct.unpack('>I', struct.pack('>f', value))[0]:08X} : f32"
    return f"{_decimal(value)} : f32"


def _double(value: float) -> str:
    if not math.isfinite(value):
        return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X} : f64"
    return f"{_decimal(value)} : f64"


def _decimal(value: float) -> str:
    mantissa, e, exponent = float.__repr__(value).partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{e}{exponent}"


def _string(text: str) -> str:
    """A string of MLIR, in which bytes other than plain characters are written as two hexadecimal digits."""
    data = text.encode("utf-8", "surrogatepass")
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data) + '"'


def _list(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"


def _dictionary(items: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{_key(name)} = {value}' for name, value in items.items())}}}"


def _key(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else _string(name)
