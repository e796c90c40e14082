"""Statements that are too long for a line are printed on several, and read as if they stood on one."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

import pstranspile as ps
from pstranspile.compiler.explain.job import shorten_line, source_line_of
from pstranspile.ir import layout
from pstranspile.ir.diagnostics import DiagnosticError, render
from pstranspile.ir.model import Block, FrozenMap, Module, Op, Program
from pstranspile.ops.textual import format_text, parse, print_module
from pstranspile.tools.cli import main
from tests.hostile.counts import cases
from tests.ir import by_grammar
from tests.strategies import exactly, modules

DATA = Path(__file__).parents[1] / "data" / "programs"
PAIRS = ", ".join([f"%name_{index}" for index in range(40)])
LONG = f"""ir 1

program @main {{
  block ^0 {{
    # what is joined
    concat(X=[{PAIRS}]) -> Out=%all {{axis=1}}  # here
    relu(X=%all) -> Out=%y
  }}
}}
"""


@settings(
    max_examples=cases(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(modules)
def test_statements_on_several_lines_are_those_on_one(module: Module):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "WIDTH", 30)
        text = print_module(module)
        by_hand = parse(text, "a.ir")
        assert exactly(by_hand, places=True) == exactly(by_grammar.read(text, "a.ir"), places=True)
        assert exactly(by_hand) == exactly(module)
        assert format_text(text) == text


def test_a_long_op_is_broken_after_commas_and_keeps_its_comments():
    text = format_text(LONG)
    lines = text.split("\n")
    assert lines[4] == "    # what is joined"
    assert lines[5].startswith("    concat(X=[%name_0, ")
    assert lines[5].endswith(",")
    assert lines[6].startswith("        %name_")
    assert max(map(len, lines[:8])) <= 200
    assert sum(len(line) > 150 for line in lines) == 2
    assert lines[7].endswith("  # here")
    assert format_text(text) == text
    assert parse(text) == parse(LONG)


def test_a_list_of_literals_stays_on_one_line():
    numbers = ", ".join(map(str, range(100)))
    strings = ", ".join([f'"a, [{index}]"' for index in range(40)])
    op = f"foo(X=%x) -> Out=%y {{a=[{strings}], b=1, c=[{numbers}], d=2}} : backward"
    module = parse(f"ir 1\nprogram @main {{\n  block ^0 {{\n    {op}\n  }}\n}}\n")
    lines = [line.strip() for line in print_module(module).split("\n")[4:-3]]
    assert lines == [f"foo(X=%x) -> Out=%y {{a=[{strings}],", "b=1,", f"c=[{numbers}],", "d=2} : backward"]
    assert parse(print_module(module)) == module


def test_a_finding_points_at_the_line_of_its_variable():
    text = format_text(LONG.replace("    relu", "    fill_constant -> Out=%name_0 {shape=[1]}\n    relu"))
    findings = [finding for finding in ps.verify(parse(text, "net.ir")) if "%name_35" in finding.message]
    shown = render(findings, {"net.ir": text}).split("\n")
    line = text.split("\n")[6]
    assert shown[0].startswith(f"net.ir:7:{line.index('%name_35') + 1}: error[undeclared-variable]")
    marked = shown[2].index("^")
    assert shown[1][marked : marked + len("%name_35")] == "%name_35"


def test_a_mistake_on_a_further_line_is_placed_there():
    text = format_text(LONG).replace("%name_35", "%%name_35")
    with pytest.raises(DiagnosticError) as caught:
        parse(text, "net.ir")
    (found,) = caught.value.diagnostics
    assert found.location is not None
    assert (found.location.line, found.location.column) == (7, text.split("\n")[6].index("%%name_35") + 1)


def test_many_long_statements_have_their_own_lines():
    names = tuple([f"name_{index}" for index in range(40)])
    op = Op("sum", FrozenMap(X=names), FrozenMap(Out=("all",)), FrozenMap())
    module = Module(FrozenMap(main=Program((Block(ops=(op,) * 30),))))
    lines = [op.origin.location.line for op in parse(print_module(module)).main.main_block.ops if op.origin]
    assert lines == list(range(5, 5 + 3 * 30, 3))


def test_a_real_program_has_no_long_line(tmp_path):
    """A CTR model made in Fluid: 26 sparse inputs, AUC, adam."""
    for name, file in (("main", "ctr_call_stacks.pb.gz"), ("startup", "ctr_call_stacks.startup.pb.gz")):
        (tmp_path / f"{name}.pb").write_bytes(gzip.decompress((DATA / file).read_bytes()))
    module = ps.load(tmp_path / "main.pb", startup=tmp_path / "startup.pb")
    text = print_module(module)
    assert max(map(len, text.split("\n"))) <= 200
    assert exactly(parse(text)) == exactly(module)
    (tmp_path / "net.ir").write_text(text, encoding="utf-8")
    assert main(["fmt", "--check", str(tmp_path / "net.ir")]) == 0


def test_explain_quotes_the_whole_statement():
    module = parse(format_text(LONG), "net.ir")
    origin = module.main.main_block.ops[0].origin
    assert origin is not None
    quoted = source_line_of(module)(origin)
    assert quoted is not None
    assert quoted == shorten_line(LONG.split("\n")[5].removesuffix("  # here"))
