"""Programs as graphs of nodes (`core.Graph`, `IrGraph`), as in Fluid 1.8.5."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid import core
from pstranspile.fluid.framework import IrGraph, IrOpNode, IrVarNode
from pstranspile.fluid.graph.nodes import IrNode
from tests.fluid.running import fresh


def _program() -> tuple[fluid.Program, fluid.Variable]:
    x = fluid.data("x", [2, 3])
    doubled = fluid.layers.scale(fluid.layers.relu(x), 2.0)
    return fluid.default_main_program(), doubled


def _named(nodes: set[IrNode], name: str) -> IrNode:
    (found,) = [node for node in nodes if node.name() == name]
    return found


def test_ops_and_each_value_of_a_variable_are_nodes() -> None:
    with fresh():
        x = fluid.data("x", [1])
        fluid.layers.increment(x)
        fluid.layers.increment(x)
        graph = core.Graph(fluid.default_main_program().desc)
        nodes = sorted(graph.nodes(), key=lambda node: node.id())
        # numbers and edges as in Fluid: the second op waits for the first, as it writes the same variable
        assert [(node.name(), [other.id() for other in node.inputs]) for node in nodes] == [
            ("increment", [1]),
            ("x", []),
            ("x", [0]),
            ("increment", [2, 5]),
            ("x", [3]),
            ("__control_var@5", [0]),
        ]
        assert [node.name() for node in core.topology_sort(graph)] == ["increment", "increment"]
        assert not core.has_circle(graph)
        assert core.graph_num(graph) == 1


def test_a_graph_that_was_rearranged_is_run_as_a_program() -> None:
    with fresh():
        program, doubled = _program()
        graph = IrGraph(core.Graph(program.desc), for_test=True)
        relu, scale = (_named(graph.all_op_nodes(), name) for name in ("relu", "scale"))
        between = relu.outputs[0]
        added = graph.create_var_node("added", between.type(), between.shape(), between.dtype())
        square = graph.create_op_node("square", {}, {"X": between}, {"Out": added})
        graph.link_to(between, square)
        graph.link_to(square, added)
        graph.update_input_link(between, added, scale)
        relu.set_type("tanh")
        changed = graph.to_program()
        assert [op.type for op in changed.global_block().ops] == ["tanh", "square", "scale"]
        fed = np.array([[-1, 0, 1], [2, 3, 4]], "float32")
        for run in (changed, fluid.CompiledProgram(graph.graph)):
            (made,) = fluid.Executor().run(run, {"x": fed}, [doubled.name])
            np.testing.assert_allclose(made, 2 * np.tanh(fed) ** 2, rtol=1e-6)
        assert [op.type for op in program.global_block().ops] == ["relu", "scale"]  # which stays as it was
        assert len(graph.clone().all_nodes()) == len(graph.all_nodes())
        graph.safe_remove_nodes(scale)
        assert graph.graph_num() == 2
        graph.link_to(added, relu)
        assert graph.has_circle()
        with pytest.raises(ValueError, match="circle"):
            graph.to_program()


def test_nodes_are_of_their_kind_and_graph() -> None:
    with fresh():
        program, _ = _program()
        graph = IrGraph(core.Graph(program.desc))
        other = IrGraph(core.Graph(program.desc))
        op, var = _named(graph.all_op_nodes(), "relu"), _named(graph.all_var_nodes(), "x")
        assert (op.is_op(), var.node_type(), op.input("X")) == (True, core.Node.Type.Variable, ["x"])
        for wrong in (lambda: IrVarNode(op.node), lambda: IrOpNode(var.node), lambda: other.link_to(var, op)):
            with pytest.raises(AssertionError):
                wrong()
        with pytest.raises(AssertionError, match="no description"):
            graph.create_control_dep_var().shape()
        graph.graph.set("kept", 1)
        assert graph.graph.get_int("kept") == 1
        with pytest.raises(ValueError, match="kept"):
            graph.graph.set("kept", 2)


def test_a_graph_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with fresh():
        program, _ = _program()
        graph = IrGraph(core.Graph(program.desc))
        graph.draw(str(tmp_path / "drawn"), "net", marked_nodes=_named(graph.all_op_nodes(), "relu"))
    text = (tmp_path / "drawn/net.dot").read_text()
    assert 'label="relu" shape=box style=filled' in text
    assert text.count("->") == 4
    assert capsys.readouterr().out.startswith("Total ops num = 2.\nThe dot command is needed")


def test_a_copy_of_a_program_is_alike_by_its_notes() -> None:
    with fresh():
        program, _ = _program()
        copy = program.clone()
        assert {name: copy.__dict__[name] == value for name, value in vars(program).items()}.keys() == vars(copy).keys()
        assert [name for name, value in vars(program).items() if copy.__dict__[name] != value] == []
