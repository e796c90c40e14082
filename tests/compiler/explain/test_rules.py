"""Every op that is not the source's own has a rule that exists, in a mode it is for, and a place in the source."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.emit.rules import RULES, WHOLE, derived_origin, made_of_program
from pstranspile.ir.model import Location, Op, Origin
from tests.compiler.emit.test_fluid import REFUSED
from tests.compiler.explain.jobs import ALL, compiled
from tests.golden import Goldens
from tests.recorded_fluid import job_names, recording

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "explain.md"
NOT_OF_COMPILE = {"gradient"}
"""Rules of what is done to a program before it is compiled."""


def ops_of(found: Compiled) -> Iterable[tuple[str, Op]]:
    for role in found.roles().values():
        for name, program in role.module.programs.items():
            for index, block in enumerate(program.blocks):
                for number, op in enumerate(block.ops):
                    yield f"{role.name} @{name}^{index}#{number} {op.type}", op


def check(found: Compiled, *, with_lines: bool) -> set[str]:
    """Asserts what all emitted ops must say; returns the rules they name."""
    rules: set[str] = set()
    for place, op in ops_of(found):
        origin = op.origin
        assert origin is not None, place
        blocks = found.source[origin.program].blocks
        source = blocks[origin.block].ops[origin.op] if origin.op != WHOLE else None
        if origin.rule:
            assert origin.rule in RULES, (place, origin.rule)
            rules.add(origin.rule)
        else:
            assert source is not None, place
            assert (op.type, op.attrs, op.role) == (source.type, source.attrs, source.role), place
            assert list(op.inputs) == list(source.inputs), place
        assert origin.location is not None, place
        assert origin.location.line > 0 or not with_lines, place
        if source is not None:
            assert source.origin is not None
            assert origin[:4] == source.origin[:4], place
    return rules


@pytest.mark.parametrize("name", ALL)
def test_every_op_has_a_rule_or_is_the_sources(name: str):
    assert check(compiled(name), with_lines=True)


@pytest.mark.parametrize("name", [n for n in job_names() if n not in REFUSED and not recording(n).fault])
def test_every_op_of_recorded_jobs(name: str):
    recorded = recording(name)
    check(compile(recorded.module, recorded.job), with_lines=False)


def test_every_rule_is_used():
    found = {origin.rule for name in ALL for _, op in ops_of(compiled(name)) if (origin := op.origin)}
    for name in ("setclip_norm/sync_2x2", "lookahead_sgd/sync_2x2"):
        recorded = recording(name)
        found |= {op.origin.rule for _, op in ops_of(compile(recorded.module, recorded.job)) if op.origin}
    assert sorted(RULES.keys() - found - NOT_OF_COMPILE) == []


def test_the_document_lists_the_rules(goldens: Goldens, request: pytest.FixtureRequest):
    head = "| rule | why it makes an op |\n|---|---|\n"
    rows = [f"| `{r.name}` | {r.reason} |\n" for r in RULES.values()]
    text = DOCUMENT.read_text()
    start = text.index(head) + len(head)
    stop = start + len("".join(re.findall(r"^\| .*\n", text[start:], re.MULTILINE)))
    goldens.check(DOCUMENT, text[:start] + "".join(rows) + text[stop:], request.node.nodeid)


def test_rules_are_well_formed():
    for name, rule in RULES.items():
        assert name == rule.name
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert rule.reason.endswith(".")


def test_made():
    origin = Origin("main", 0, 17, Location("net.ir", 30, 5))
    assert derived_origin(origin, "serve") == origin._replace(rule="serve")
    assert str(derived_origin(origin, "serve")) == "@main^0#17"
    assert derived_origin(None, "serve") == Origin("main", 0, WHOLE, None, "serve")


def test_made_of_a_program_stands_at_its_block():
    found = made_of_program(compiled("linear_regression").source.main, "serve")
    assert (str(found), found.rule) == ("@main^0", "serve")
    assert found.location is not None
    assert found.location.line == compiled("linear_regression").source.main.main_block.location.line
