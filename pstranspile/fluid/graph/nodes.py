"""A program as a graph of nodes, under the names of Fluid's core (`core.Graph`, `core.Node`).

Fluid's `IrGraph` wraps such a graph; scripts rearrange its nodes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pstranspile.fluid.graph.block import Operator
from pstranspile.fluid.graph.desc import OpDesc, VarDesc
from pstranspile.fluid.graph.program import Program, ProgramDesc
from pstranspile.fluid.graph.values import Numbers, several
from pstranspile.ir.model import FrozenMap

EMPTY, CONTROL = "@EMPTY@", "__control_var"


class Node:
    """An op, or one value of a variable: every write of a variable by an op makes a new node."""

    class Type(Numbers):
        """What a node stands for: an op or a variable."""

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
        """The node's number in its graph."""
        return self._number

    def op(self) -> Any:
        """The op's description, None for a variable's node."""
        return self._described if self.is_op() else None

    def var(self) -> Any:
        """The variable's description, None for an op's node or a variable without one."""
        return self._described if self.is_var() else None

    def is_op(self) -> bool:
        """Whether the node is an op."""
        return self._kind == Node.Type.Operation

    def is_var(self) -> bool:
        """Whether the node is a variable."""
        return not self.is_op()

    def is_ctrl_var(self) -> bool:
        """Whether the node only makes one op run after another."""
        return self.is_var() and CONTROL in self._name

    def clear_inputs(self) -> None:
        """Removes all input nodes."""
        self.inputs.clear()

    def clear_outputs(self) -> None:
        """Removes all output nodes."""
        self.outputs.clear()

    def remove_input(self, node: Node | int) -> None:
        """Removes a node, given itself or by number, from the inputs, if it is there."""
        _take_off(self.inputs, node)

    def remove_output(self, node: Node | int) -> None:
        """Removes a node, given itself or by number, from the outputs, if it is there."""
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
        self._next_id = 0
        self._notes: dict[str, Any] = {}
        versions: dict[str, list[Node]] = {}
        main = self._program.global_block()
        for op in list(main.ops):
            node = self.create_op_node(op.desc)
            for name in op.input_arg_names:
                if name not in versions:
                    versions[name] = [self._add_variable_node(name)]
                _link(versions[name][-1], node)
            if repeated := [n for n in set(op.output_arg_names) if n != EMPTY and op.output_arg_names.count(n) > 1]:
                raise ValueError(f"{op.type} writes {min(repeated)} several times")
            for name in op.output_arg_names:
                made = self._add_variable_node(name)
                versions.setdefault(name, []).append(made)
                _link(node, made)
        for name in main.vars:
            if name not in versions and name != EMPTY:
                versions[name] = [self._add_variable_node(name)]
        self.resolve_hazard({name: versions[name] for name in sorted(versions)})

    def _add(self, name: str, kind: Node.Type, described: OpDesc | VarDesc | None = None) -> Node:
        node = self._nodes[self._next_id] = Node(self._next_id, name, kind, described)
        self._next_id += 1
        return node

    def _add_variable_node(self, name: str) -> Node:
        known = self._program.global_block().vars.get(name)
        return self._add(name, Node.Type.Variable, None if known is None else known.desc)

    def nodes(self) -> set[Node]:
        """All nodes of the graph."""
        return set(self._nodes.values())

    def create_var_node(self, desc: VarDesc) -> Node:
        """Adds a node for a variable, and declares the variable in the program if there is none of its name."""
        variable: Any = desc._variable  # pyright: ignore[reportPrivateUsage]
        self._program.global_block().draft.vars.setdefault(desc.name(), variable.var)
        return self._add_variable_node(desc.name())

    def create_op_node(self, desc: OpDesc) -> Node:
        """Adds a node for a copy of an op, without edges."""
        return self._add(desc.type(), Node.Type.Operation, Operator(self._program.global_block(), desc.frozen).desc)

    def create_control_dep_var(self) -> Node:
        """Adds a node that, with edges, makes one op run after another."""
        return self._add(f"{CONTROL}@{self._next_id}", Node.Type.Variable)

    def create_empty_node(self, name: str, kind: Node.Type) -> Node:
        """Adds a node without a description."""
        return self._add(name, kind)

    def remove_node(self, node: Node) -> Node:
        """Removes a node and returns it; edges to it stay. Raises KeyError for a node of another graph."""
        return self._nodes.pop(node.id())

    def release_nodes(self) -> set[Node]:
        """Removes all nodes and returns them."""
        nodes = self.nodes()
        self._nodes.clear()
        return nodes

    def retrieve_node(self, number: int) -> Node | None:
        """The node with a number, None if there is none."""
        return self._nodes.get(number)

    def resolve_hazard(self, versions: Mapping[str, Sequence[Node]]) -> None:
        """Adds nodes that order the writers of each variable, and put the readers of a value before the op that
        overwrites it.

        `versions` has the nodes of each variable, in order. Raises ValueError if a later node of a variable has no op
        that writes it.
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
        """A copy of the graph, without its notes (`set`)."""
        copy = Graph(ProgramDesc(Program()))
        copy._program, copy._next_id = self._program.clone(), self._next_id
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
        """The description of the program that the graph was made of."""
        return self._program.desc

    @property
    def inner_program(self) -> Program:
        """The nodes as a program, whose ops come after those that they read from. Raises ValueError if the graph has a
        circle.
        """
        frozen = self._program.freeze()
        ops = tuple(node.op().frozen for node in topology_sort(self) if node.op() is not None)
        names = {node.name() for node in self._nodes.values() if node.var() is not None}
        held = FrozenMap({name: var for name, var in frozen.main_block.vars.items() if name in names})
        main = frozen.main_block._replace(ops=ops, vars=held)
        return Program.of(frozen._replace(blocks=(main, *frozen.blocks[1:])))

    # notes

    def has(self, name: str) -> bool:
        """Whether the graph has a note under a name."""
        return name in self._notes

    def set(self, name: str, value: Any) -> None:
        """Stores a value as a note under a name. Raises ValueError if the name has one."""
        if name in self._notes:
            raise ValueError(f"the graph has {name} already: erase it first")
        self._notes[name] = value

    def get_string(self, name: str) -> Any:
        """The note under a name. Raises KeyError if there is none."""
        return self._notes[name]

    get_int = get_bool = get_float = get_double = get_marked_nodes = get_string

    def erase(self, name: str) -> None:
        """Removes the note under a name. Raises KeyError if there is none."""
        del self._notes[name]


def _link(source: Node, target: Node) -> None:
    source.outputs.append(target)
    target.inputs.append(source)


def build_adjacency_list(graph: Graph) -> dict[Node, set[Node]]:
    """For each op, in the order of node numbers, the ops that make its inputs."""
    ops = sorted((node for node in graph.nodes() if node.is_op()), key=Node.id)
    return {op: {maker for var in op.inputs for maker in var.inputs} for op in ops}


def _topological_order(graph: Graph) -> tuple[list[Node], bool]:
    """The ops, each after those that it reads from, and whether the graph has a circle."""
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
    """The ops, each after those that it reads from. Raises ValueError if the graph has a circle."""
    nodes, circle = _topological_order(graph)
    if circle:
        raise ValueError("the graph has a circle")
    return nodes


def has_circle(graph: Graph) -> bool:
    """Whether the graph has a circle: an op that reads what it makes, perhaps through other ops."""
    return _topological_order(graph)[1]


def graph_num(graph: Graph) -> int:
    """The number of connected parts of the graph."""
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
    """Removes nodes, and the edges to them."""
    gone = set(nodes)
    for node in gone:
        graph.remove_node(node)
    beside = {other for node in gone for other in (*node.inputs, *node.outputs)}
    for node in beside:
        node.inputs = [other for other in node.inputs if other not in gone]
        node.outputs = [other for other in node.outputs if other not in gone]


class IrNode:
    """A wrapper around a node of the core, `node`. Methods of that node and of its description can be called on the
    wrapper too.
    """

    def __init__(self, node: Node):
        assert isinstance(node, Node), "a node is a core.Node"  # pyright: ignore[reportUnnecessaryIsInstance]
        self.node = node

    def __getattr__(self, name: str) -> Any:
        """Looks an attribute up in the core's node, then in its description. Raises AttributeError if neither has it,
        AssertionError for a node without a description.
        """
        if name.startswith("_") or name == "node":
            raise AttributeError(name)
        if hasattr(self.node, name):
            return getattr(self.node, name)
        described = self.node.op() or self.node.var()
        assert described is not None, f"the node {self.node.name()} has no description, and no {name}"
        return getattr(described, name if hasattr(described, name) else f"_{name}")

    def remove_input(self, node: IrNode | int) -> None:
        """Removes a node, given itself or by number, from the inputs."""
        self.node.remove_input(node if isinstance(node, int) else node.node)

    def remove_output(self, node: IrNode | int) -> None:
        """Removes a node, given itself or by number, from the outputs."""
        self.node.remove_output(node if isinstance(node, int) else node.node)

    remove_input_by_id, remove_output_by_id = remove_input, remove_output

    def append_input(self, node: IrNode) -> None:
        """Adds a node to the inputs."""
        self.node.append_input(node.node)

    def append_output(self, node: IrNode) -> None:
        """Adds a node to the outputs."""
        self.node.append_output(node.node)

    @property
    def inputs(self) -> list[IrNode]:
        """The nodes that have an edge to this one."""
        return [_wrap_node(node, self) for node in self.node.inputs]

    @property
    def outputs(self) -> list[IrNode]:
        """The nodes that this one has an edge to."""
        return [_wrap_node(node, self) for node in self.node.outputs]


class IrVarNode(IrNode):
    """A node of a variable, with the methods of its description, such as `shape`, `dtype`, `persistable` and
    `set_shape`.
    """

    def __init__(self, node: Node):
        super().__init__(node)
        assert node.is_var(), "the node is no variable"


class IrOpNode(IrNode):
    """A node of an op, with the methods of its description, such as `input`, `rename_input` and `set_attr`."""

    def __init__(self, node: Node):
        super().__init__(node)
        assert node.is_op(), "the node is no op"


def _wrap_node(node: Node, beside: IrNode) -> IrNode:
    if type(beside) is IrNode:
        return IrNode(node)
    return IrOpNode(node) if node.is_op() else IrVarNode(node)


class IrGraph:
    """A wrapper around a graph of the core, `graph`; `for_test` marks a graph for tests."""

    def __init__(self, graph: Graph, for_test: bool = False):
        assert isinstance(graph, Graph), "a graph is a core.Graph"  # pyright: ignore[reportUnnecessaryIsInstance]
        self.graph, self._for_test = graph, for_test

    def clone(self) -> IrGraph:
        """A copy of the graph, without its notes."""
        return IrGraph(self.graph.clone(), self._for_test)

    def is_test(self) -> bool:
        """Whether the graph is marked as one for tests."""
        return self._for_test

    def all_nodes(self) -> set[IrNode]:
        """All nodes of the graph."""
        return {IrNode(node) for node in self.graph.nodes()}

    def all_var_nodes(self) -> set[IrVarNode]:
        """All nodes of variables."""
        return {IrVarNode(node) for node in self.graph.nodes() if node.is_var()}

    def all_persistable_nodes(self) -> set[IrVarNode]:
        """All nodes of variables that are kept from run to run."""
        return {node for node in self.all_var_nodes() if node.node.var() is not None and node.persistable()}

    def all_op_nodes(self) -> set[IrOpNode]:
        """All nodes of ops."""
        return {IrOpNode(node) for node in self.graph.nodes() if node.is_op()}

    def create_persistable_node(self, name: str, var_type: Any, shape: Any, var_dtype: Any) -> IrVarNode:
        """Adds a node for a variable that is kept from run to run, and declares the variable."""
        made = self.create_var_node(name, var_type, shape, var_dtype)
        made.node.var().set_persistable(True)
        return made

    def create_var_node(self, name: str, var_type: Any, shape: Any, var_dtype: Any) -> IrVarNode:
        """Adds a node for a variable, and declares the variable."""
        desc = VarDesc(name)
        desc.set_type(var_type)
        desc.set_dtype(var_dtype)
        desc.set_shape(shape)
        return self.create_var_node_from_desc(desc)

    def create_control_dep_var(self) -> IrVarNode:
        """Adds a node that, with edges, makes one op run after another."""
        return IrVarNode(self.graph.create_control_dep_var())

    def create_var_node_from_desc(self, var_desc: Any) -> IrVarNode:
        """Adds a node for a variable that a description declares."""
        return IrVarNode(self.graph.create_var_node(var_desc))

    def create_op_node(
        self, op_type: str, attrs: Mapping[str, Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> IrOpNode:
        """Adds a node for an op that reads and writes the variables of the given nodes. `link_to` adds the edges."""
        desc = OpDesc()
        desc.set_type(op_type)
        for name, value in attrs.items():
            desc.set_attr(name, value)
        for slots, put in ((inputs, desc.set_input), (outputs, desc.set_output)):
            for slot, held in slots.items():
                put(slot, [node.name() for node in (held if several(held) else [held])])
        return self.create_op_node_from_desc(desc)

    def create_op_node_from_desc(self, op_desc: Any) -> IrOpNode:
        """Adds a node for a copy of the op that a description has."""
        return IrOpNode(self.graph.create_op_node(op_desc))

    def _require(self, *wanted: IrNode) -> None:
        known = (self.graph.retrieve_node(node.node.id()) is node.node for node in wanted)
        assert all(known), "nodes of the arguments are not in the graph"

    def update_input_link(self, old_input_node: IrNode, new_input_node: IrNode, op_node: IrOpNode) -> None:
        """Replaces an input node of an op, and the variable that the op reads. Raises AssertionError for nodes that are
        not in the graph.
        """
        self._require(old_input_node, new_input_node, op_node)
        old_input_node.remove_output(op_node)
        op_node.remove_input(old_input_node)
        self.link_to(new_input_node, op_node)
        op_node.rename_input(old_input_node.name(), new_input_node.name())

    def update_output_link(self, old_output_node: IrNode, new_output_node: IrNode, op_node: IrOpNode) -> None:
        """Replaces an output node of an op, and the variable that the op writes. Raises AssertionError for nodes that
        are not in the graph.
        """
        self._require(old_output_node, new_output_node, op_node)
        old_output_node.remove_input(op_node)
        op_node.remove_output(old_output_node)
        self.link_to(op_node, new_output_node)
        op_node.rename_output(old_output_node.name(), new_output_node.name())

    def link_to(self, node_in: IrNode, node_out: IrNode) -> None:
        """Adds an edge. Raises AssertionError for nodes that are not in the graph."""
        self._require(node_in, node_out)
        node_in.append_output(node_out)
        node_out.append_input(node_in)

    def safe_remove_nodes(self, remove_nodes: Any) -> None:
        """Removes one node or several, and the edges to them."""
        graph_safe_remove_nodes(self.graph, {node.node for node in _as_node_set(remove_nodes)})

    def resolve_hazard(self) -> None:
        """Adds nodes that order the writers of each variable, and put the readers of a value before the op that
        overwrites it.
        """
        versions: dict[str, list[Node]] = {}
        for op in topology_sort(self.graph):
            for var in op.inputs:
                if not var.is_ctrl_var():
                    versions.setdefault(var.name(), [var])
            for var in op.outputs:
                if not var.is_ctrl_var():
                    versions.setdefault(var.name(), []).append(var)
        self.graph.resolve_hazard(versions)

    def has_circle(self) -> bool:
        """Whether the graph has a circle: an op that reads what it makes, perhaps through other ops."""
        return has_circle(self.graph)

    def graph_num(self) -> int:
        """The number of connected parts of the graph."""
        return graph_num(self.graph)

    def topology_sort(self) -> list[IrNode]:
        """The ops, each after those that it reads from. Raises ValueError if the graph has a circle."""
        return [IrNode(node) for node in topology_sort(self.graph)]

    def build_adjacency_list(self) -> dict[IrNode, set[IrNode]]:
        """For each op, the ops that make its inputs."""
        found = build_adjacency_list(self.graph)
        return {IrNode(op): {IrNode(other) for other in others} for op, others in found.items()}

    def draw(self, save_path: str, name: str, marked_nodes: Any = None, remove_ctr_var: bool = True) -> None:
        """Writes the graph to `save_path/name.dot`, and as a PDF where Graphviz is installed.

        Nodes in `marked_nodes` are filled with a colour. `remove_ctr_var` first removes the nodes that only make one op
        run after another.
        """
        if remove_ctr_var:
            self.safe_remove_nodes({node for node in self.all_var_nodes() if node.is_ctrl_var()})
        print(f"Total ops num = {len(self.all_op_nodes())}.")
        marked = {node.node for node in _as_node_set(marked_nodes or ())}
        drawn = sorted(self.graph.nodes(), key=Node.id)
        lines = [
            f'  node_{node.id()} [label="{node.name()}" shape={"box" if node.is_op() else "ellipse"}'
            f"{' style=filled fillcolor=yellow' if node in marked else ''}]"
            for node in drawn
        ]
        lines += [f"  node_{node.id()} -> node_{target.id()}" for node in drawn for target in node.outputs]
        write_graph(Path(save_path) / f"{name}.dot", lines)

    def to_program(self) -> Program:
        """The graph as a program. Raises ValueError if the graph has a circle."""
        return self.graph.inner_program


def write_graph(file: str | Path, lines: Iterable[str]) -> None:
    """Writes lines of nodes and edges as a file of Graphviz, and a PDF beside it where Graphviz is installed."""
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["digraph G {", *lines, "}", ""]), encoding="utf-8")
    try:
        subprocess.run(["dot", "-Tpdf", str(path), "-o", str(path.with_suffix(".pdf"))], check=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"The dot command is needed for creating pdf files.\nThe {path} is saved as the dot filetype.")


def _as_node_set(held: Any) -> set[IrNode]:
    return {*held} if isinstance(held, Iterable) else {held}  # pyright: ignore[reportUnknownVariableType]
