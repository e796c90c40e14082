"""Programs as graphs for other tools: Graphviz's DOT and Mermaid's flowcharts.

Each op is a box, and so is each variable that is read before an op has written it: parameters, state and inputs. Each
edge is a variable, from the op that wrote it last to an op that reads it. The ops of a block stand in a frame.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

from pstranspile.ir.model import Module, Program
from pstranspile.ir.text.literals import type_text


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

    lines = [f"digraph {_quoted(name)} {{", "  rankdir=LR;", *_framed(graph, node, frame)]
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

    lines = ["flowchart LR", *_framed(graph, node, frame)]
    lines += (f'  {edge.source} -- "{_entities(f"%{edge.variable}")}" --> {edge.target}' for edge in graph.edges)
    return "\n".join([*lines, ""])


def drawings(module: Module, form: str) -> dict[str, bytes]:
    """Every program of a module as a file: `main.dot`, or `main.mmd` for the form `mermaid`."""
    draw, ending = {"dot": (dot_text, "dot"), "mermaid": (mermaid_text, "mmd")}[form]
    return {
        f"{name}.{ending}": draw(program, name).encode("utf-8", "backslashreplace")
        for name, program in module.programs.items()
    }


def _framed(graph: Graph, node: Callable[[Node], str], frame: Callable[[int], tuple[str, str]]) -> Iterator[str]:
    """Yields the lines of the nodes. The nodes of a block stand in its frame, which is inside the frame of the
    enclosing block.
    """
    nodes: dict[int, list[Node]] = {}
    for item in graph.nodes:
        nodes.setdefault(item.block, []).append(item)
    inner: dict[int, list[int]] = {}
    for index, parent in enumerate(graph.parents):
        inner.setdefault(parent if index else -1, []).append(index)

    def inside(block: int, margin: str) -> Iterator[str]:
        yield from (f"{margin}{node(item)}" for item in nodes.get(block, ()))
        for index in inner.pop(block, ()):
            opening, closing = frame(index)
            yield f"{margin}{opening}"
            yield from inside(index, f"{margin}  ")
            yield f"{margin}{closing}"

    yield from inside(-1, "  ")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _label(text: str) -> str:
    """A label for Graphviz, with `&` escaped, as Graphviz reads entities such as `&amp;`."""
    return _quoted(text.replace("&", "&amp;"))


def _entities(text: str) -> str:
    """A label for Mermaid, with numeric entities for quotes and other characters that have a meaning in HTML."""
    return "".join(f"#{ord(char)};" if char in '"#<>&`' or ord(char) < 32 else char for char in text)
