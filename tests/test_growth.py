"""Work grows linearly with a program: calls are counted at three sizes, each twice the one before."""

from __future__ import annotations

import gc
import random
import re
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
import pstranspile.fluid.paddle as later
from pstranspile.compiler.cost.jobs import cost
from pstranspile.compiler.explain import answer_text
from pstranspile.compiler.explain.job import of_compiled
from pstranspile.compiler.explain.peers import Peers
from pstranspile.compiler.explain.questions import explain_job, explain_op, explain_role, explain_variable
from pstranspile.compiler.plan.plan_file import _BEFORE_COMMENT, _STRINGS, parse_plan
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adam, minimize
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.text.diagnose import _name_before
from pstranspile.ir.text.statement import _STRING
from pstranspile.tools.cli import main
from pstranspile.tools.lsp import names
from pstranspile.tools.lsp.completion import _GIVEN, complete
from pstranspile.tools.lsp.hover import hover
from pstranspile.tools.lsp.names import definitions, named_at, references, rename
from pstranspile.tools.lsp.outline import Outline, symbols, tokens
from pstranspile.tools.lsp.reading import Workspace
from pstranspile.tools.lsp.server import fixes
from pstranspile.tools.lsp.values import TextPosition
from pstranspile.tools.report.data import _LAYER
from tests.conftest import ROOT
from tests.fluid.running import fresh

SOURCE = (ROOT / "examples" / "linear_regression.ir").read_text().splitlines()
AT = next(number for number, line in enumerate(SOURCE) if line.startswith("    mul(X=%x"))
DECLARED = ["temp %c : bool[1]", "temp %s : step_scopes", "temp %z : f32[1]"]
BEFORE = ["fill_constant -> Out=%z {shape=[1], value=1.0}", "less_equal(X=%z, Y=%z) -> Out=%c"]


def branches(count: int) -> list[str]:
    run = "conditional_block(Cond=%c, Input=[]) -> Out=[], Scope=%s {{sub_block=^{0}, is_scalar_condition=true}}"
    return [
        line
        for at in range(1, count + 1)
        for line in (run.format(at), f"block ^{at} {{", "scale(X=%z) -> Out=%z {scale=2.0}", "}")
    ]


def loops(count: int) -> list[str]:
    run = "while(X=[%z], Condition=%c) -> Out=%z, StepScopes=%s {{sub_block=^{0}}}"
    test = "logical_not(X=%c) -> Out=%c"
    return [
        line
        for at in range(1, count + 1)
        for line in (run.format(at), f"block ^{at} {{", "scale(X=%z) -> Out=%z {scale=2.0}", test, "}")
    ]


def program(lines: list[str]) -> ps.Module:
    return ps.loads("\n".join([*SOURCE[:AT], *DECLARED, *BEFORE, *lines, *SOURCE[AT:]]))


@pytest.fixture(scope="module", autouse=True)
def _others_frozen() -> None:
    """What other tests have left is not looked at by the collector, which `calls` runs four times in a test."""
    gc.collect()
    gc.freeze()


def calls(work: Callable[[], Any]) -> int:
    """How many functions and generators are entered while this is done."""
    count = 0

    def seen(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.collect()
    gc.disable()  # what it calls of objects that other tests have left is no part of the work
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def grows_linearly(prepare: Callable[[int], Callable[[], Any]], first: int = 40) -> None:
    calls(prepare(first))  # what is imported and remembered at the first time
    small, middle, large = (calls(prepare(size)) for size in (first, 2 * first, 4 * first))
    assert large - middle < 2.2 * (middle - small)


@pytest.mark.parametrize("made", [branches, loops])
def test_peers_of_ops(made: Callable[[int], list[str]]):
    def prepare(size: int) -> Callable[[], Any]:
        module = program(made(size))
        job = of_compiled(ps.compile(module, ps.Job(pservers=["a:6174", "b:6174"], trainers=2)))
        places = [place for machine in job.machines for place in job.places(machine)]

        def work() -> None:
            peers = Peers(job)
            for place in places:
                list(peers.places(place))

        return work

    grows_linearly(prepare)


def test_blocks_that_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    np.savez(tmp_path / "feed.npz", x=np.zeros((3, 1, 13), "float32"), y=np.zeros((3, 1, 1), "float32"))

    def prepare(size: int) -> Callable[[], Any]:
        file = tmp_path / f"{size}.ir"
        file.write_text(ps.dumps(program(branches(size))))
        return lambda: main(["run", str(file), "--feed", str(tmp_path / "feed.npz")])

    grows_linearly(prepare, 100)
    assert "step 3/3" in capsys.readouterr().out


@pytest.mark.parametrize("made", [branches, loops])
def test_text_verify_and_compile(made: Callable[[int], list[str]]):
    def prepare(size: int) -> Callable[[], Any]:
        lines = made(size)

        def work() -> None:
            module = program(lines)
            assert not [found for found in ps.verify(module) if found.severity.value == "error"]
            ps.dumps(module)
            ps.compile(module, ps.Job(pservers=["a:6174", "b:6174"], trainers=2))

        return work

    grows_linearly(prepare)


SIZES = ("parameters", "trainers", "servers")
"""What a job may have many of."""


def job_of(what: str, count: int, mode: str = "sync") -> ps.Compiled:
    """A job with `count` of these, and few of all others; every server has some rows of each parameter."""
    many = {**dict.fromkeys(SIZES, 2), what: count}
    draft = L.Draft(seed=1)
    x, y = L.data(draft, "x", [-1, 4]), L.data(draft, "y", [-1, 1])
    for _ in range(many["parameters"]):
        x = L.fc(x, 4 if what == "parameters" else 200)
    minimize(L.mean(L.square_error_cost(L.fc(x, 1), y)), Adam(0.01))
    servers = [f"host{number}:6174" for number in range(many["servers"])]
    job = ps.Job(pservers=servers, trainers=many["trainers"], min_block_size=1, mode=mode)
    return ps.compile(ps.loads(ps.dumps(draft.module())), job)


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
@pytest.mark.parametrize("what", SIZES)
def test_compiling_and_running(what: str, mode: str):
    feeds = {"x": np.zeros((1, 40, 4), "float32"), "y": np.zeros((1, 40, 1), "float32")}

    def prepare(count: int) -> Callable[[], Any]:
        def work() -> None:
            job = job_of(what, count, mode)
            str(job.plan)
            ps.simulate(job, feeds)

        return work

    grows_linearly(prepare, 8)


@pytest.mark.parametrize("mode", ["sync", "geo"])
@pytest.mark.parametrize("what", SIZES)
def test_explaining(what: str, mode: str):
    """Answers about a job, a machine, a variable and an op, as text."""

    def prepare(count: int) -> Callable[[], Any]:
        job = of_compiled(job_of(what, count, mode))

        def work() -> None:
            machines = [*job.machines]
            middle = str(len(list(job.places("trainer_0"))) // 4)
            for answer in (
                explain_job(job),
                *(explain_role(job, machine) for machine in (machines[0], machines[-1])),
                *(explain_variable(job, name) for name in ("fc_0.w_0", "learning_rate_0")),
                *(explain_op(job, machine, "0") for machine in (machines[0], machines[-1])),
                explain_op(job, "trainer_0", middle),
            ):
                answer_text(answer, full=True)

        return work

    grows_linearly(prepare, 8)


@pytest.mark.parametrize("mode", ["sync", "geo"])
@pytest.mark.parametrize("what", ["parameters", "servers"])
def test_peers_of_all_ops(what: str, mode: str):
    def prepare(count: int) -> Callable[[], Any]:
        job = of_compiled(job_of(what, count, mode))
        places = [place for machine in job.machines for place in job.places(machine)]

        def work() -> None:
            peers = Peers(job)
            for place in places:
                list(peers.places(place))

        return work

    grows_linearly(prepare, 8)


def asked(outline: Outline, placed: names.Placement) -> None:
    """What an editor asks of a program that is open."""
    line = next(at for at, text in enumerate(outline.lines) if "%fc_0.w_0" in text)
    spot = TextPosition(line, outline.lines[line].index("%fc_0.w_0") + 3)
    assert hover(outline, spot, placed) is not None
    assert complete(outline, spot)
    named = named_at(outline, spot)
    assert named is not None
    assert definitions(outline, named)
    assert references(outline, named)
    assert rename(outline, named, "%other")
    assert outline.folds()
    assert [*symbols(outline)]
    assert [*tokens(outline, 0, sys.maxsize)]
    assert names.hints(outline, placed, 0, len(outline.lines))


@pytest.mark.parametrize("what", SIZES)
def test_an_editor_s_program(what: str, tmp_path: Path):
    """It is opened, asked about, and a line of it is changed."""

    def prepare(count: int) -> Callable[[], Any]:
        job = job_of(what, count)
        text, file = ps.dumps(job.source), tmp_path / f"{count}.ir"
        lines = text.splitlines()
        at = next(number for number, line in enumerate(lines) if "elementwise_add(" in line)
        wrong = [line.replace("elementwise_add(", "elementwise_ad(") for line in lines]
        changed = "\n".join([*lines[:at], f"{lines[at]} ", *lines[at + 1 :], ""])

        def work() -> None:
            workspace = Workspace(lambda _: None)
            reading = workspace.reading(file, text)
            assert reading.module is not None
            asked(reading.outline, names.place(reading.module, job.job))
            workspace.reading(file, changed)
            found = workspace.reading(file, "\n".join(wrong))
            assert fixes(found.findings, found.outline.lines, 0, len(wrong))

        return work

    grows_linearly(prepare, 10)


LONG = 200_000
"""Characters for which a search that begins again at each of them would take minutes."""


def test_searches_do_not_begin_again_at_each_character():
    assert _LAYER.fullmatch("fc" + "@x" * LONG + "\n")[1] == "fc"
    assert _LAYER.fullmatch("grad/" * LONG + "fc.w_0")[1] == "fc"
    assert _GIVEN("a" * LONG) is None
    assert _GIVEN("a " * LONG) is None
    assert _GIVEN("{'mode': 'sy").groups() == ("mode", "'sy")
    assert _GIVEN("x, trainers = 2").groups() == ("trainers", "2")
    assert _name_before("@" * LONG + "(", LONG + 1) == ""
    assert _name_before("%a@b/c.d", 8) == "%a@b/c.d"
    assert [_name_before(text, len(text)) for text in ("x@a@b", "%", "@", "ab", "%%a", "x %y")] == [
        "@a@b",
        "",
        "",
        "",
        "%a",
        "%y",
    ]


def test_minimize_with_callbacks_and_many_parameters():
    paddle: Any = later

    def prepare(size: int) -> Callable[[], Any]:
        def work() -> None:
            with fresh():
                x = paddle.static.data("x", [None, 2])
                total = x
                for _ in range(size):
                    total = total + paddle.matmul(x, paddle.static.create_parameter([2, 2], "float32"))
                paddle.optimizer.Adam(0.1).minimize(paddle.mean(total))

        return work

    grows_linearly(prepare, 25)


def looked_up(count: int) -> ps.Module:
    """A program with so many tables, each with a lookup."""
    draft = L.Draft(seed=1)
    ids, y = L.data(draft, "ids", [-1, 1], "i64"), L.data(draft, "y", [-1, 1])
    rows = [L.embedding(ids, (50, 3), is_sparse=True) for _ in range(count)]
    minimize(L.mean(L.square_error_cost(L.fc(L.concat(rows, axis=1), 1), y)), Adam(0.01))
    return draft.module()


@pytest.mark.parametrize("job", [{}, {"split_method": "cost"}])
def test_costs_of_many_tables(job: dict[str, Any]):
    def prepare(size: int) -> Callable[[], Any]:
        compiled = ps.compile(looked_up(size), ps.Job(pservers=["a:6174", "b:6174"], trainers=2, **job))
        return lambda: cost(compiled)

    grows_linearly(prepare)


def test_placement_of_many_tables():
    def prepare(size: int) -> Callable[[], Any]:
        module = looked_up(size)
        job = ps.Job(pservers=["a:6174", "b:6174"], trainers=2, split_method="cost")
        return lambda: ps.compile(module, job)

    grows_linearly(prepare)


def test_many_inputs_that_are_not_fed_are_each_named_once():
    program = program_of_inputs(4_000)
    with pytest.raises(DiagnosticError) as refused:
        ps.run(program, {})
    assert [each.focus for each in refused.value.diagnostics] == [f"x{number}" for number in range(4_000)]


def program_of_inputs(size: int) -> ps.Program:
    """A program whose ops read an input each."""
    lines = ["ir 1", "program @main {", "block ^0 {", *(f"temp %x{number} : f32[1] feed" for number in range(size))]
    lines += [f"temp %t{number} : f32[1]" for number in range(size)]
    lines += [f"scale(X=%x{number}) -> Out=%t{number} {{scale=2.0}}" for number in range(size)]
    return ps.loads("\n".join([*lines, "}", "}", ""])).main


def peak(work: Callable[[], Any]) -> int:
    """The bytes that this takes at one time."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_long_strings_take_little_memory():
    """A pattern that repeats a choice keeps a state for each character."""
    long = "a" * LONG
    text = "\n".join([*SOURCE[:AT], f'scale(X=%x) -> Out=%x {{scale=1.0, op_device="{long}"}}', *SOURCE[AT:]])
    assert peak(lambda: ps.loads(text)) < 20 * LONG
    assert peak(lambda: ps.dumps(ps.loads(text))) < 20 * LONG
    quoted = f'plan 1\nwhole %"{long}" -> %"{long}" @ "a:6174"\n'
    assert peak(lambda: parse_plan(quoted)) < 40 * LONG

    def refused() -> None:
        with pytest.raises(DiagnosticError):
            parse_plan(long)

    assert peak(refused) < 20 * LONG


PATTERNS = [
    (_STRINGS, r'"(?:[^"\\]|\\.)*"'),
    (_BEFORE_COMMENT, r'(?:[^"#]|"(?:[^"\\]|\\.)*")*(?=#|$)'),
    (re.compile(_STRING), r'"(?:[^"\\\n]|\\[^\n])*"'),
]
"""Patterns of strings that stay where they are in a long text, and the shorter ones that say the same."""


@pytest.mark.parametrize(("pattern", "choice"), PATTERNS)
def test_patterns_of_strings(pattern: Any, choice: str):
    draw = random.Random(0)
    for _ in range(2000):
        text = "".join(draw.choices('"\\#a\n', k=draw.randrange(12)))
        assert [match.span() for match in pattern.finditer(text)] == [m.span() for m in re.finditer(choice, text)]
    for part in ('"', "#", "a", "\\", '"\\"', "a#", 'a"'):
        pattern.match(part * LONG)
        pattern.match('"' + part * LONG)
