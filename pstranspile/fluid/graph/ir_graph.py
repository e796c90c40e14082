"""Fluid's `IrGraph`: a program as a graph, whose nodes scripts rearrange."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pstranspile.fluid.graph import nodes
from pstranspile.fluid.graph.desc import OpDesc
from pstranspile.fluid.graph.nodes import Graph, Node
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.var_desc import VarDesc


class IrNode:
    """A node of a graph: `node` is the core's. What that has, and what its description has, can be asked here too."""

    def __init__(self, node: Node):
        assert isinstance(node, Node), "a node is a core.Node"  # pyright: ignore[reportUnnecessaryIsInstance]
        self.node = node

    def __getattr__(self, name: str) -> Any:
        """Raises AttributeError for what neither has, AssertionError for a node without a description."""
        if name.startswith("_") or name == "node":
            raise AttributeError(name)
        if hasattr(self.node, name):
            return getattr(self.node, name)
        described = self.node.op() or self.node.var()
        assert described is not None, f"the node {self.node.name()} has no description, and no {name}"
        return getattr(described, name if hasattr(described, name) else f"_{name}")

    def remove_input(self, node: IrNode | int) -> None:
        """Takes a node, or the one of a number, off the inputs."""
        self.node.remove_input(node if isinstance(node, int) else node.node)

    def remove_output(self, node: IrNode | int) -> None:
        """Takes a node, or the one of a number, off the outputs."""
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
        """The nodes that the node comes from."""
        return [_wrapped(node, self) for node in self.node.inputs]

    @property
    def outputs(self) -> list[IrNode]:
        """The nodes that come from the node."""
        return [_wrapped(node, self) for node in self.node.outputs]


class IrVarNode(IrNode):
    """A node of a variable: `shape`, `dtype`, `persistable`, `set_shape` and the like are its description's."""

    def __init__(self, node: Node):
        super().__init__(node)
        assert node.is_var(), "the node is no variable"


class IrOpNode(IrNode):
    """A node of an op: `input`, `rename_input`, `set_attr` and the like are its description's."""

    def __init__(self, node: Node):
        super().__init__(node)
        assert node.is_op(), "the node is no op"


def _wrapped(node: Node, beside: IrNode) -> IrNode:
    if type(beside) is IrNode:
        return IrNode(node)
    return IrOpNode(node) if node.is_op() else IrVarNode(node)


class IrGraph:
    """A graph, `graph` in Fluid's core; `for_test` notes that it is one for tests."""

    def __init__(self, graph: Graph, for_test: bool = False):
        assert isinstance(graph, Graph), "a graph is a core.Graph"  # pyright: ignore[reportUnnecessaryIsInstance]
        self.graph, self._for_test = graph, for_test

    def clone(self) -> IrGraph:
        """A copy."""
        return IrGraph(self.graph.clone(), self._for_test)

    def is_test(self) -> bool:
        """Whether the graph is one for tests."""
        return self._for_test

    def all_nodes(self) -> set[IrNode]:
        """All nodes."""
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
        """Makes a node, and a variable that is kept from run to run."""
        made = self.create_var_node(name, var_type, shape, var_dtype)
        made.node.var().set_persistable(True)
        return made

    def create_var_node(self, name: str, var_type: Any, shape: Any, var_dtype: Any) -> IrVarNode:
        """Makes a node, and a variable."""
        desc = VarDesc(name)
        desc.set_type(var_type)
        desc.set_dtype(var_dtype)
        desc.set_shape(shape)
        return self.create_var_node_from_desc(desc)

    def create_control_dep_var(self) -> IrVarNode:
        """Makes a node that can say that one op runs after another."""
        return IrVarNode(self.graph.create_control_dep_var())

    def create_var_node_from_desc(self, var_desc: Any) -> IrVarNode:
        """Makes a node of a variable that is described."""
        return IrVarNode(self.graph.create_var_node(var_desc))

    def create_op_node(
        self, op_type: str, attrs: Mapping[str, Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> IrOpNode:
        """Makes a node, and an op of nodes of variables. Edges are made with `link_to`."""
        desc = OpDesc()
        desc.set_type(op_type)
        for name, value in attrs.items():
            desc.set_attr(name, value)
        for slots, put in ((inputs, desc.set_input), (outputs, desc.set_output)):
            for slot, held in slots.items():
                put(slot, [node.name() for node in (held if several(held) else [held])])
        return self.create_op_node_from_desc(desc)

    def create_op_node_from_desc(self, op_desc: Any) -> IrOpNode:
        """Makes a node of an op that is described."""
        return IrOpNode(self.graph.create_op_node(op_desc))

    def _require(self, *wanted: IrNode) -> None:
        known = (self.graph.retrieve_node(node.node.id()) is node.node for node in wanted)
        assert all(known), "nodes of the arguments are not in the graph"

    def update_input_link(self, old_input_node: IrNode, new_input_node: IrNode, op_node: IrOpNode) -> None:
        """Has an op read another node in place of one. Raises AssertionError for nodes that are not in the graph."""
        self._require(old_input_node, new_input_node, op_node)
        old_input_node.remove_output(op_node)
        op_node.remove_input(old_input_node)
        self.link_to(new_input_node, op_node)
        op_node.rename_input(old_input_node.name(), new_input_node.name())

    def update_output_link(self, old_output_node: IrNode, new_output_node: IrNode, op_node: IrOpNode) -> None:
        """Has an op write another node in place of one. Raises AssertionError for nodes that are not in the graph."""
        self._require(old_output_node, new_output_node, op_node)
        old_output_node.remove_input(op_node)
        op_node.remove_output(old_output_node)
        self.link_to(op_node, new_output_node)
        op_node.rename_output(old_output_node.name(), new_output_node.name())

    def link_to(self, node_in: IrNode, node_out: IrNode) -> None:
        """Makes an edge. Raises AssertionError for nodes that are not in the graph."""
        self._require(node_in, node_out)
        node_in.append_output(node_out)
        node_out.append_input(node_in)

    def safe_remove_nodes(self, remove_nodes: Any) -> None:
        """Takes one node or several out, and the edges to them."""
        nodes.graph_safe_remove_nodes(self.graph, {node.node for node in _gathered(remove_nodes)})

    def resolve_hazard(self) -> None:
        """Has ops run in order that write a variable, or read it before it is overwritten."""
        versions: dict[str, list[Node]] = {}
        for op in nodes.topology_sort(self.graph):
            for var in op.inputs:
                if not var.is_ctrl_var():
                    versions.setdefault(var.name(), [var])
            for var in op.outputs:
                if not var.is_ctrl_var():
                    versions.setdefault(var.name(), []).append(var)
        self.graph.resolve_hazard(versions)

    def has_circle(self) -> bool:
        """Whether an op reads what it makes, perhaps through other ops."""
        return nodes.has_circle(self.graph)

    def graph_num(self) -> int:
        """How many parts the graph has that no edge joins."""
        return nodes.graph_num(self.graph)

    def topology_sort(self) -> list[IrNode]:
        """The ops, each after those that it reads from. Raises ValueError for a circle."""
        return [IrNode(node) for node in nodes.topology_sort(self.graph)]

    def build_adjacency_list(self) -> dict[IrNode, set[IrNode]]:
        """For each op, the ops that make its inputs."""
        found = nodes.build_adjacency_list(self.graph)
        return {IrNode(op): {IrNode(other) for other in others} for op, others in found.items()}

    def draw(self, save_path: str, name: str, marked_nodes: Any = None, remove_ctr_var: bool = True) -> None:
        """Writes the graph to `save_path/name.dot`, and as a PDF where Graphviz is installed.

        Nodes that are marked are filled. `remove_ctr_var` takes out the nodes that only say what runs after what.
        """
        if remove_ctr_var:
            self.safe_remove_nodes({node for node in self.all_var_nodes() if node.is_ctrl_var()})
        print(f"Total ops num = {len(self.all_op_nodes())}.")
        marked = {node.node for node in _gathered(marked_nodes or ())}
        drawn = sorted(self.graph.nodes(), key=Node.id)
        lines = [
            f'  node_{node.id()} [label="{node.name()}" shape={"box" if node.is_op() else "ellipse"}'
            f"{' style=filled fillcolor=yellow' if node in marked else ''}]"
            for node in drawn
        ]
        lines += [f"  node_{node.id()} -> node_{target.id()}" for node in drawn for target in node.outputs]
        write_graph(Path(save_path) / f"{name}.dot", lines)

    def to_program(self) -> Program:
        """The graph as a program. Raises ValueError for a circle."""
        return self.graph.inner_program


def write_graph(file: str | Path, lines: Iterable[str]) -> None:
    """Writes lines of nodes and edges as a graph of Graphviz, and as a PDF beside it where that is installed."""
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["digraph G {", *lines, "}", ""]), encoding="utf-8")
    try:
        subprocess.run(["dot", "-Tpdf", str(path), "-o", str(path.with_suffix(".pdf"))], check=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"The dot command is needed for creating pdf files.\nThe {path} is saved as the dot filetype.")


def _gathered(held: Any) -> set[IrNode]:
    return {*held} if isinstance(held, Iterable) else {held}  # pyright: ignore[reportUnknownVariableType]
