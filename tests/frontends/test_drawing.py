"""Programs as graphs for other tools."""

import re
from pathlib import Path

import pytest

from pstranspile import load, loads
from pstranspile.frontends.texts import Graph, dot_text, graph_of, mermaid_text
from pstranspile.tools.cli import main

ROOT = Path(__file__).parent.parent.parent
LOOP = ROOT / "tests" / "tools" / "lsp" / "loop.ir"


def lasting(graph: Graph) -> set[tuple[str, str, str]]:
    """The edges, by the labels of what they join."""
    labels = {node.name: node.label for node in graph.nodes}
    return {(labels[edge.source], labels[edge.target], edge.variable) for edge in graph.edges}


def test_edges_go_from_what_wrote_last_to_what_reads():
    edges = lasting(graph_of(load(ROOT / "examples" / "regression.ir").main))
    assert ("%w f32[1000, 20]", "mul", "w") in edges
    assert ("mul", "elementwise_add", "xw") in edges
    assert ("mul_grad", "sgd", "w@GRAD") in edges
    assert not any(target == "mul" and source == "sgd" for source, target, _ in edges)


@pytest.mark.parametrize("file", [ROOT / "examples" / "regression.ir", LOOP])
def test_both_forms_have_every_op_and_edge(file: Path):
    program = load(file).main
    graph = graph_of(program)
    count = sum(len(block.ops) for block in program.blocks)
    dot, mermaid = dot_text(program, "main"), mermaid_text(program, "main")
    nodes = {node.name for node in graph.nodes}
    assert len(nodes) == len(graph.nodes)
    for text, node, edge in (
        (dot, r"^ *(\w+) \[label=.*shape=", r"^  (\w+) -> (\w+) \["),
        (mermaid, r"^ *(\w+)(?:\(\[|\[)\"", r"^  (\w+) -- \".*\" --> (\w+)$"),
    ):
        assert {*re.findall(node, text, re.MULTILINE)} == nodes
        assert len([name for name in nodes if name.startswith("op_")]) == count
        assert re.findall(edge, text, re.MULTILINE) == [(e.source, e.target) for e in graph.edges]
    assert dot.count("{") == dot.count("}")
    assert dot.count("subgraph cluster_") == mermaid.count("subgraph ") == len(program.blocks)
    assert mermaid.count("\n") == dot.count("\n") - 2


def test_names_are_only_names():
    text = (ROOT / "examples" / "regression.ir").read_text().replace("%xw ", r'%"a\"];x<b>#\\" ')
    text = re.sub(r"%xw(?=[,)\n]| )", lambda _: r'%"a\"];x<b>#\\"', text)
    program = loads(text).main
    dot, mermaid = dot_text(program, "main"), mermaid_text(program, "main")
    assert r'[label="%a\"];x<b>#\\"]' in dot
    assert '-- "%a#34;];x#60;b#62;#35;\\" -->' in mermaid


def test_names_with_entities_are_shown_as_they_are():
    body = '    temp %"a&lt;" : f32[1]\n    relu(X=%"a&lt;") -> Out=%"a&lt;"\n'
    program = loads(f"ir 1\nprogram @main {{\n  block ^0 {{\n{body}  }}\n}}\n").main
    assert 'label="%a&amp;lt; f32[1]"' in dot_text(program, "main")
    assert "%a#38;lt; f32[1]" in mermaid_text(program, "main")


def test_the_command_writes_a_file_for_each_program(tmp_path: Path):
    for form, ending in (("dot", "dot"), ("mermaid", "mmd")):
        assert main(["export", str(LOOP), "--to", form, "-o", str(tmp_path / form)]) == 0
        assert sorted(file.name for file in (tmp_path / form).iterdir()) == [f"main.{ending}", f"startup.{ending}"]
    assert (tmp_path / "dot" / "main.dot").read_text() == dot_text(load(LOOP).main, "main")
