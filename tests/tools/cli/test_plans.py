"""A plan that was edited goes to every verb that takes a job, and is refused by all in the same words."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.tools.cli import VERBS, main
from pstranspile.tools.cli.common import Parser
from tests.conftest import ROOT

JOB = ["--pservers", "a:1,b:2", "--trainers", "2"]
VERBS_WITH_PLANS: dict[str, list[str]] = {
    "compile": ["-o", "out"],
    "plan": [],
    "check": ["--steps", "1"],
    "run": ["--feed", "data.npz"],
    "launch": ["--feed", "data.npz"],
    "report": ["-o", "report.html"],
    "explain": ["--var", "fc_0.w_0"],
}
"""Every verb that takes a job, with what else it needs."""


@cache
def model() -> ps.Module:
    """Two layers."""
    draft = L.Draft(seed=7)
    x, y = L.data(draft, "x", [-1, 3]), L.data(draft, "y", [-1, 1])
    minimize(L.mean(L.square_error_cost(L.fc(L.fc(x, 4), 1), y)), SGD(0.1))
    return draft.module()


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(ps.dumps(model()))
    draw = np.random.default_rng(0)
    np.savez("data.npz", x=draw.normal(size=(1, 4, 3)).astype("f4"), y=draw.normal(size=(1, 4, 1)).astype("f4"))


def plan() -> str:
    """The plan of the job, without the lines that are for the reader."""
    lines = str(ps.prepare(model(), ps.Job(["a:1", "b:2"], 2)).plan).split("\n")
    return "\n".join(line for line in lines if not line.startswith("#"))


def edited() -> str:
    """The plan with all on the second server, and one parameter cut unevenly."""
    lines = plan().replace('@ "a:1"', '@ "b:2"').split("\n")
    at = next(number for number, line in enumerate(lines) if line.startswith("whole %fc_0.w_0"))
    rows = model().main.main_block.vars["fc_0.w_0"].shape[0]
    lines[at : at + 1] = [f'slice %fc_0.w_0 rows 1..{rows}   @ "a:1"  # most', 'slice %fc_0.w_0 rows 0..1 @ "b:2"']
    return "\n".join(lines)


def do(verb: str, *options: str) -> int:
    return main([verb, "net.ir", *JOB, *VERBS_WITH_PLANS[verb], *options])


def test_every_verb_with_a_job_is_here(monkeypatch: pytest.MonkeyPatch):
    """The option is declared once, so that its help is the same everywhere."""
    helps: dict[str, str] = {}

    def parse_args(parser: Parser, *_: object) -> None:
        for action in parser._actions:
            if "--plan" in action.option_strings or "--pservers" in action.option_strings:
                helps.setdefault(parser.prog.split()[-1], "")
            if "--plan" in action.option_strings:
                helps[parser.prog.split()[-1]] = f"{action.metavar} {action.help}"
        raise SystemExit(0)

    with monkeypatch.context() as patch:
        patch.setattr(Parser, "parse_args", parse_args)
        for verb in sorted({*VERBS} - {"fluid"}):
            main([verb])
    assert helps.keys() == VERBS_WITH_PLANS.keys()
    assert len(set(helps.values())) == 1


@pytest.mark.parametrize("verb", VERBS_WITH_PLANS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_an_edited_plan(verb: str, end: str, capsys: pytest.CaptureFixture[str]):
    Path("my.plan").write_bytes(("\ufeff" + edited().replace("\n", end)).encode() if end != "\n" else edited().encode())
    assert do(verb, "--plan", "my.plan") == 0
    told = capsys.readouterr()
    assert "error" not in told.err
    if verb == "plan":
        assert "b:2: 4 slices" in told.out
    if verb == "compile":
        held = json.loads(Path("out/plan.json").read_text())
        assert {row["endpoint"] for row in held["distributed_vars"] if row["origin"] != "fc_0.w_0"} - {"a:1"} == {"b:2"}
        assert "--plan my.plan" in told.err
    if verb == "explain":
        assert "fc_0.w_0.block1" in told.out
    if verb == "report":
        assert b"fc_0.w_0.block1" in Path("report.html").read_bytes()


WRONG: dict[str, tuple[Callable[[str], str], str]] = {
    "another program": (
        lambda text: re.sub("sha256:[0-9a-f]*", "sha256:00", text),
        "my.plan:2:8: error[plan-mismatch]: the plan was made for another program: it says sha256:00, this one is sha",
    ),
    "no source": (
        lambda text: re.sub("source .*", "", text),
        "my.plan:1:1: error[plan-mismatch]: the plan was made for another program: it has no line `source`, this one i",
    ),
    "another number of servers": (
        lambda text: text.replace('["a:1", "b:2"]', '["a:1", "b:2", "c:3"]'),
        'my.plan:3:26: error[plan-mismatch]: the plan was made for another job: it says pservers=["a:1", "b:2", "c:3"',
    ),
    "another number of trainers": (
        lambda text: text.replace("trainers=2", "trainers=3"),
        "my.plan:3:15: error[plan-mismatch]: the plan was made for another job: it says trainers=3, this one has train",
    ),
    "another mode": (
        lambda text: text.replace("mode=sync", "mode=async"),
        "my.plan:3:5: error[plan-mismatch]: the plan was made for another job: it says mode=async, this one has mode=s",
    ),
    "no job": (
        lambda text: re.sub("job .*", "", text),
        "my.plan:1:1: error[plan-mismatch]: the plan was made for another job: it has no line `job`, this one has mode",
    ),
    "an unknown variable": (
        lambda text: text.replace("whole %fc_0.b_0", "whole %fc_0.b_9"),
        "error[plan-invalid]: %fc_0.b_9 is not a parameter that the program distributes; did you mean %fc_0.b_0?",
    ),
    "a server that is none": (
        lambda text: text.replace('@ "a:1"', '@ "a:2"'),
        "error[plan-invalid]: 'a:2' is not a server of the job; did you mean",
    ),
    "rows that are left out": (
        lambda text: text.replace("whole %fc_0.w_0 -> %fc_0.w_0", "slice %fc_0.w_0 rows 0..1"),
        "error[plan-invalid]: %fc_0.w_0 has rows 0..",
    ),
    "rows that are placed twice": (
        lambda text: f'{text}\nslice %fc_0.w_0 rows 0..1 @ "a:1"',
        "error[plan-invalid]: rows 0..",
    ),
    "a gap": (
        lambda text: text.replace("whole %fc_0.w_0 -> %fc_0.w_0", "slice %fc_0.w_0 rows 1..2"),
        "error[plan-invalid]: rows 0..1 of %fc_0.w_0 leave a gap: no line places them",
    ),
    "no rows": (
        lambda text: f'{text}\nslice %fc_0.w_0 rows 1..1 @ "a:1"',
        "error[plan-invalid]: 1..1 are no rows of %fc_0.w_0",
    ),
    "a parameter left out": (
        lambda text: re.sub("whole %fc_0.b_0.*", "", text),
        "my.plan:1:1: error[plan-invalid]: no line places %fc_0.b_0",
    ),
    "a name that was chosen": (
        lambda text: text.replace("-> %fc_0.b_0", "-> %mine"),
        "error[plan-invalid]: this slice is called %fc_0.b_0; names can't be chosen",
    ),
    "another version": (
        lambda text: text.replace("plan 1", "plan 2").replace("whole", "part"),
        "my.plan:1:6: error[plan-syntax]: this is a plan of version 2; version 1 is read here",
    ),
    "no plan": (lambda text: text.replace("plan 1", "ir 1"), "my.plan:1:1: error[plan-syntax]: this is not a plan: "),
    "nothing": (lambda text: "\n", "my.plan:1:1: error[plan-syntax]: this is not a plan: a plan begins with the line"),
    "two jobs": (
        lambda text: text.replace("\njob ", "\njob mode=geo trainers=1 pservers=[]\njob "),
        "my.plan:4:1: error[plan-syntax]: a second line `job`",
    ),
    "servers without quotes": (
        lambda text: text.replace('@ "a:1"', "@ a:1"),
        "error[plan-syntax]: not a line of a plan: 'whole ",
    ),
}
"""How a plan is edited, and what is told of it."""


@pytest.mark.parametrize("name", WRONG)
def test_every_verb_tells_the_same_of_a_plan_that_does_not_fit(name: str, capsys: pytest.CaptureFixture[str]):
    edit, told = WRONG[name]
    Path("my.plan").write_text(edit(plan()))
    seen: set[str] = set()
    for verb in VERBS_WITH_PLANS:
        assert do(verb, "--plan", "my.plan") == 1
        err = capsys.readouterr().err
        assert told in err
        assert "^" in err
        seen.add(err)
    assert len(seen) == 1
    assert not Path("out").exists()
    with pytest.raises(ps.DiagnosticError) as raised:
        ps.check(model(), ps.Job(["a:1", "b:2"], 2), plan=ps.load_plan("my.plan"))
    assert told.partition("error")[2] in str(raised.value)


@pytest.mark.parametrize("verb", VERBS_WITH_PLANS)
def test_a_plan_from_stdin_and_from_a_pipe(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for text, status in ((edited(), 0), (edited().replace("rows 0..1", "rows 0..2"), 1)):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        assert do(verb, "--plan", "-") == status
        told = capsys.readouterr().err
        if status:
            assert re.search(r"<stdin>:\d+:\d+: error\[plan-invalid\]: rows 1\.\.\d+ of %fc_0.w_0 overlap", told)
            assert "| slice %fc_0.w_0 rows 1.." in told
        ours, theirs = os.pipe()
        writer = threading.Thread(target=lambda end=theirs, text=text: Path(f"/dev/fd/{end}").write_text(text))
        writer.start()
        writer.join()
        os.close(theirs)
        assert do(verb, "--plan", f"/dev/fd/{ours}") == status
        os.close(ours)
        assert ("| slice %fc_0.w_0 rows 1.." in capsys.readouterr().err) == bool(status)


def test_input_and_plan_can_not_both_be_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(Path("net.ir").read_bytes())))
    assert main(["plan", "-", *JOB, "--plan", "-"]) == 1
    assert "error[input-unreadable]: INPUT and --plan can't both be read from stdin" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS_WITH_PLANS)
def test_the_plan_of_a_compiled_folder(verb: str, capsys: pytest.CaptureFixture[str]):
    Path("my.plan").write_text(edited())
    assert main(["compile", "net.ir", *JOB, "--plan", "my.plan", "-o", "kept"]) == 0
    capsys.readouterr()
    for name in ("kept", "kept/plan.json"):
        assert do(verb, "--plan", name) == 0
    if verb == "plan":
        assert main(["plan", "net.ir", *JOB, "--plan", "kept", "--against", "kept"]) == 0
        assert capsys.readouterr().out.endswith("no changes\n")
    held = json.loads(Path("kept/plan.json").read_text())
    row = next(row for row in held["distributed_vars"] if row["slice"] == "fc_0.w_0.block1")
    text = Path("kept/plan.json").read_text().replace(json.dumps(row), json.dumps({**row, "endpoint": "c:3"}))
    Path("kept/plan.json").write_text(text)
    assert do(verb, "--plan", "kept") == 1
    told = capsys.readouterr().err
    assert re.search(r"kept/plan.json:\d+:\d+: error\[plan-invalid\]: 'c:3' is not a server of the job", told)


ROW = {
    "origin": "w",
    "slice": "w.block1",
    "slice_shape": [2, 4],
    "offset": 4,
    "is_slice": True,
    "endpoint": "a:1",
    "vtype": "Param",
}


def _json(row: object) -> str:
    """The JSON of a plan with one row."""
    job = {"source": "sha256:0", "mode": "sync", "trainers": 2, "pservers": ["a:1", "b:2"]}
    return json.dumps({"version": 1, **job, "distributed_lookup_table": None, "distributed_vars": [row]})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}", "this is not a plan of version 1 (`version` is null)"),
        ('{"version": 2}', "this is not a plan of version 1 (`version` is 2)"),
        ('{"version": 1}', "not a plan: 'mode' is missing"),
        ('{"version": 1,', "not JSON: "),
        ('{"version": 1, "mode": 3}', "not a plan: 3 is no text"),
        (_json([]), "not a plan: [] is no object"),
        (_json({"vtype": "Param"}), "not a plan: 'origin' is missing"),
        (_json({**ROW, "offset": 3}), "not a plan: a slice of w begins within a row, at element 3 of rows of 4"),
        (_json({**ROW, "slice_shape": [-1, 4]}), "not a plan: a slice of w has no rows"),
        (_json({**ROW, "is_slice": 1}), "not a plan: 1 is no truth value"),
    ],
)
def test_json_that_is_no_plan(content: str, told: str, capsys: pytest.CaptureFixture[str]):
    Path("plan.json").write_text(content)
    for name in ("plan.json", "."):
        assert main(["check", "net.ir", *JOB, "--plan", name]) == 1
        assert f"plan.json: error[plan-syntax]: {told}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none", "none: error[input-unreadable]: there is no such file\n"),
        ("empty", "empty/plan.json: error[input-unreadable]: there is no such file\nnote: empty is a folder; `com"),
        ("bytes", "bytes: error[plan-syntax]: not a plan: byte 0 is not UTF-8\n"),
    ],
)
def test_plans_that_can_not_be_read(name: str, told: str, capsys: pytest.CaptureFixture[str]):
    Path("empty").mkdir()
    Path("bytes").write_text(plan(), "utf-16")
    for verb in VERBS_WITH_PLANS:
        assert do(verb, "--plan", name) == 1
        assert told in capsys.readouterr().err


def test_a_plan_without_a_cluster_or_beside_a_folder(capsys: pytest.CaptureFixture[str]):
    Path("my.plan").write_text(plan())
    assert main(["run", "net.ir", "--feed", "data.npz", "--plan", "my.plan"]) == 1
    assert "error[run-cluster]: --plan is for a cluster; describe one" in capsys.readouterr().err
    assert main(["compile", "net.ir", *JOB, "-o", "out"]) == 0
    for verb in ("launch", "explain", "report"):
        capsys.readouterr()
        assert main([verb, "out", *(["-o", "r.html"] if verb == "report" else []), "--plan", "my.plan"]) == 2
        assert "--plan goes with a program; out is a folder of compiled programs" in capsys.readouterr().err
    assert main(["check", "net.ir", *JOB, "--plan", ""]) == 2
    assert "--plan: the name is empty" in capsys.readouterr().err
    assert main(["launch", "net.ir", "--on", "ray", "--trainers", "1..2", "--pservers", "2", "--plan", "my.plan"]) == 2
    assert "--plan is for a job whose machines stay as many as the plan says" in capsys.readouterr().err


def test_a_cluster_of_processes_runs_the_edited_plan(capsys: pytest.CaptureFixture[str]):
    """Two trainers and two servers give what the simulated cluster of the same plan gives."""
    Path("my.plan").write_text(edited())
    assert do("run", "--plan", "my.plan", "--save", "run.npz") == 0
    assert do("launch", "--plan", "my.plan", "--save", "launch.npz") == 0
    with np.load("run.npz") as one, np.load("launch.npz") as other:
        assert {*one.files} == {*other.files}
        for name in one.files:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_check_in_double_precision_has_the_edited_plan():
    """The programs of the second look come of the same plan, or their servers would not hold what is compared."""
    module, job = ps.load(ROOT / "examples" / "regression.ir"), ps.Job(["a:1", "b:2"], 2)
    text = re.sub("slice %w .*\n", "", str(ps.prepare(module, job).plan))
    text += '\nslice %w rows 0..300 @ "b:2"\nslice %w rows 300..900 @ "a:1"\nslice %w rows 900..1000 @ "a:1"\n'
    report = ps.check(module, job, plan=ps.parse_plan(text))
    assert report.holds
    assert "double precision" in {verdict.settled_by for verdict in report.verdicts}
