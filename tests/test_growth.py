"""Work grows linearly with a program: calls are counted at three sizes, each twice the one before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cli import main
from pstranspile.explain.job import of_compiled
from pstranspile.explain.peers import Peers
from pstranspile.ir.text.diagnose import _name_before
from pstranspile.lsp.jobs import _GIVEN
from pstranspile.report.programs import _LAYER
from tests.conftest import ROOT

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


def calls(work: Callable[[], Any]) -> int:
    """How many functions and generators are entered while this is done."""
    count = 0

    def seen(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
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
