"""A program as a graph of nodes, under the names of Fluid's core (`core.Graph`, `core.Node`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pstranspile.fluid.graph.desc import OpDesc
from pstranspile.fluid.graph.operator import Operator
from pstranspile.fluid.graph.program import Program, ProgramDesc
from pstranspile.fluid.graph.var_desc import VarDesc
from pstranspile.fluid.graph.vartype import Numbers
from pstranspile.ir.frozen import FrozenMap

EMPTY, CONTROL = "@EMPTY@", "__control_var"


class Node:
    """An op, or a value of a variable: each time that an op writes a variable it makes another node."""

    class Type(Numbers):
        """What a node stands for."""

        Operation = 0
        Variable = 1

    def __init__(self, number: int, name: str, kind: Type, described: OpDesc | VarDesc | None = None):
        self._number, self._name, self._kind, self._described = number, name, kind, described
        self.inputs: list[Node] = []
        self.outputs: list[Node] = []

    def name(self) -> str:
        """The op type, or the variable's name."""
        return self._name

    def node_type(self) -> Type:
        """Whether the node is an op or a variable."""
        return self._kind

    def id(self) -> int:
        """The number of the node in its graph."""
        return self._number

    def op(self) -> Any:
        """The description of the op, None for none."""
        return self._described if self.is_op() else None

    def var(self) -> Any:
        """The description of the variable, None for none."""
        return self._described if self.is_var() else None

    def is_op(self) -> bool:
        """Whether the node is an op."""
        return self._kind == Node.Type.Operation

    def is_var(self) -> bool:
        """Whether the node is a variable."""
        return not self.is_op()

    def is_ctrl_var(self) -> bool:
        """Whether the node only says that one op runs after another."""
        return self.is_var() and CONTROL in self._name

    def clear_inputs(self) -> None:
        """Takes all nodes off the inputs."""
        self.inputs.clear()

    def clear_outputs(self) -> None:
        """Takes all nodes off the outputs."""
        self.outputs.clear()

    def remove_input(self, node: Node | int) -> None:
        """Takes a node, or the one of a number, off the inputs, if it is among them."""
        _take_off(self.inputs, node)

    def remove_output(self, node: Node | int) -> None:
        """Takes a node, or the one of a number, off the outputs, if it is among them."""
        _take_off(self.outputs, node)

    def append_input(self, node: Node) -> None:
        """Adds a node to the inputs."""
        self.inputs.append(node)

    def append_output(self, node: Node) -> None:
        """Adds a node to the outputs."""
        self.outputs.append(node)


def _take_off(nodes: list[Node], wanted: Node | int) -> None:
    at = next((at for at, node in enumerate(nodes) if node is wanted or node.id() == wanted), None)
    if at is not None:
        del nodes[at]


class Graph:
    """The ops of block 0 and their variables as nodes; other blocks stay as they are in the program."""

    def __init__(self, desc: ProgramDesc):
        self._program = desc._program.clone()  # pyright: ignore[reportPrivateUsage]
        self._nodes: dict[int, Node] = {}
        self._made = 0
        self._notes: dict[str, Any] = {}
        versions: dict[str, list[Node]] = {}
        main = self._program.global_block()
        for op in list(main.ops):
            node = self.create_op_node(op.desc)
            for name in op.input_arg_names:
                if name not in versions:
                    versions[name] = [self._named(name)]
                _link(versions[name][-1], node)
            if repeated := [n for n in set(op.output_arg_names) if n != EMPTY and op.output_arg_names.count(n) > 1]:
                raise ValueError(f"{op.type} writes {min(repeated)} several times")
            for name in op.output_arg_names:
                made = self._named(name)
                versions.setdefault(name, []).append(made)
                _link(node, made)
        for name in main.vars:
            if name not in versions and name != EMPTY:
                versions[name] = [self._named(name)]
        self.resolve_hazard({name: versions[name] for name in sorted(versions)})

    def _add(self, name: str, kind: Node.Type, described: OpDesc | VarDesc | None = None) -> Node:
        node = self._nodes[self._made] = Node(self._made, name, kind, described)
        self._made += 1
        return node

    def _named(self, name: str) -> Node:
        known = self._program.global_block().vars.get(name)
        return self._add(name, Node.Type.Variable, None if known is None else known.desc)

    def nodes(self) -> set[Node]:
        """All nodes."""
        return set(self._nodes.values())

    def create_var_node(self, desc: VarDesc) -> Node:
        """Makes a node for a variable, which the program gets if it has none of this name."""
        variable: Any = desc._variable  # pyright: ignore[reportPrivateUsage]
        self._program.global_block().draft.vars.setdefault(desc.name(), variable.var)
        return self._named(desc.name())

    def create_op_node(self, desc: OpDesc) -> Node:
        """Makes a node for a copy of an op, without edges."""
        return self._add(desc.type(), Node.Type.Operation, Operator(self._program.global_block(), desc.frozen).desc)

    def create_control_dep_var(self) -> Node:
        """Makes a node that can say that one op runs after another."""
        return self._add(f"{CONTROL}@{self._made}", Node.Type.Variable)

    def create_empty_node(self, name: str, kind: Node.Type) -> Node:
        """Makes a node that nothing describes."""
        return self._add(name, kind)

    def remove_node(self, node: Node) -> Node:
        """Takes a node out; its edges stay. Raises KeyError for one of another graph."""
        return self._nodes.pop(node.id())

    def release_nodes(self) -> set[Node]:
        """Takes all nodes out."""
        nodes = self.nodes()
        self._nodes.clear()
        return nodes

    def retrieve_node(self, number: int) -> Node | None:
        """The node of a number, None for none."""
        return self._nodes.get(number)

    def resolve_hazard(self, versions: Mapping[str, Sequence[Node]]) -> None:
        """Has ops run one after the other that write a variable, and those that read it before it is overwritten.

        `versions` has the nodes of each variable, in order. Raises ValueError for a later one that no op makes.
        """
        for name, nodes in versions.items():
            for old, new in list(pairwise(nodes))[::-1]:
                if not new.inputs:
                    raise ValueError(f"no op makes {name} anew")
                writer = new.inputs[0]
                before = [op for op in old.inputs[:1] if op is not writer]
                for op in (*before, *old.outputs):
                    if op is not writer and (op in before or not any(made in writer.inputs for made in op.outputs)):
                        control = self.create_control_dep_var()
                        _link(op, control)
                        _link(control, writer)

    def clone(self) -> Graph:
        """A copy, without what was noted."""
        copy = Graph(ProgramDesc(Program()))
        copy._program, copy._made = self._program.clone(), self._made
        twins: dict[Node, Node] = {}
        main = copy._program.global_block()
        for number, node in self._nodes.items():
            known = main.vars.get(node.name()) if node.var() is not None else None
            described = Operator(main, node.op().frozen).desc if node.op() is not None else None
            twins[node] = Node(number, node.name(), node.node_type(), known.desc if known is not None else described)
        for node, twin in twins.items():
            twin.inputs = [twins[other] for other in node.inputs if other in twins]
            twin.outputs = [twins[other] for other in node.outputs if other in twins]
        copy._nodes = {twin.id(): twin for twin in twins.values()}
        return copy

    def origin_program_desc(self) -> ProgramDesc:
        """The program that the graph was made of."""
        return self._program.desc

    @property
    def inner_program(self) -> Program:
        """The nodes as a program: its ops stand after those that they read from. Raises ValueError for a circle."""
        frozen = self._program.freeze()
        ops = tuple(node.op().frozen for node in topology_sort(self) if node.op() is not None)
        names = {node.name() for node in self._nodes.values() if node.var() is not None}
        held = FrozenMap({name: var for name, var in frozen.main_block.vars.items() if name in names})
        main = frozen.main_block._replace(ops=ops, vars=held)
        return Program.of(frozen._replace(blocks=(main, *frozen.blocks[1:])))

    # what is noted of the graph

    def has(self, name: str) -> bool:
        """Whether something is noted under a name."""
        return name in self._notes

    def set(self, name: str, value: Any) -> None:
        """Notes something. Raises ValueError for a name that is taken."""
        if name in self._notes:
            raise ValueError(f"the graph has {name} already: erase it first")
        self._notes[name] = value

    def get_string(self, name: str) -> Any:
        """What is noted under a name. Raises KeyError for nothing."""
        return self._notes[name]

    get_int = get_bool = get_float = get_double = get_marked_nodes = get_string

    def erase(self, name: str) -> None:
        """Forgets what is noted under a name. Raises KeyError for nothing."""
        del self._notes[name]


def _link(source: Node, target: Node) -> None:
    source.outputs.append(target)
    target.inputs.append(source)


def build_adjacency_list(graph: Graph) -> dict[Node, set[Node]]:
    """For each op, in the order of their numbers, the ops that make its inputs."""
    ops = sorted((node for node in graph.nodes() if node.is_op()), key=Node.id)
    return {op: {maker for var in op.inputs for maker in var.inputs} for op in ops}


def _sorted(graph: Graph) -> tuple[list[Node], bool]:
    """The ops, each after those that it reads from, and whether these form a circle."""
    before = build_adjacency_list(graph)
    done: dict[Node, None] = {}
    begun: set[Node] = set()
    circle = False
    for op in before:
        stack = [op]
        while stack:
            node = stack[-1]
            if node in begun:
                stack.pop()
                done[node] = None
                continue
            begun.add(node)
            earlier = sorted(before.get(node, ()), key=Node.id, reverse=True)
            circle |= any(other in begun and other not in done for other in earlier)
            stack += [other for other in earlier if other not in begun]
    return list(done), circle


def topology_sort(graph: Graph) -> list[Node]:
    """The ops, each after those that it reads from. Raises ValueError for a circle."""
    nodes, circle = _sorted(graph)
    if circle:
        raise ValueError("the graph has a circle")
    return nodes


def has_circle(graph: Graph) -> bool:
    """Whether an op reads what it makes, perhaps through other ops."""
    return _sorted(graph)[1]


def graph_num(graph: Graph) -> int:
    """How many parts the graph has that no edge joins."""
    left, parts = graph.nodes(), 0
    while left:
        parts += 1
        stack = [left.pop()]
        while stack:
            node = stack.pop()
            near = left.intersection((*node.inputs, *node.outputs))
            left -= near
            stack += near
    return parts


def graph_safe_remove_nodes(graph: Graph, nodes: Iterable[Node]) -> None:
    """Takes nodes out, and the edges to them."""
    gone = set(nodes)
    for node in gone:
        graph.remove_node(node)
    beside = {other for node in gone for other in (*node.inputs, *node.outputs)}
    for node in beside:
        node.inputs = [other for other in node.inputs if other not in gone]
        node.outputs = [other for other in node.outputs if other not in gone]
