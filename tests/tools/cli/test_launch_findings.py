"""What ends the machines of `launch`: each finding once, at its place in the user's files, with the machines named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.cluster.net.findings import findings_to_json, of_hosts, read_findings, told_once
from pstranspile.ir.diagnostics import Diagnostic, Note, error
from pstranspile.ir.model import Location
from pstranspile.tools.cli import main
from tests.conftest import ROOT

JOB = ["--pservers", "1", "--trainers", "2"]
LOADERS = """\
import numpy as np

Y = np.ones((3, 1), "float32")

def dims(trainer, trainers):
    yield {"x": np.ones((3, 5), "float32"), "y": Y}

def types(trainer, trainers):
    yield {"x": np.ones((3, 13), "complex64"), "y": Y}

def missing(trainer, trainers):
    yield {"x": np.ones((3, 13), "float32")}
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text((ROOT / "examples" / "linear_regression.ir").read_text())
    Path("wrong.py").write_text(LOADERS)
    names = [*(f"x{at}" for at in range(13)), "y"]
    Path("rows.csv").write_text("\n".join([",".join(names), "a" + ",1" * 13, *["1" + ",1" * 13] * 11]))


def findings(err: str) -> list[list[str]]:
    """The errors with their lines, without those about the processes and the note on machines."""
    found: list[list[str]] = []
    for line in err.splitlines():
        if re.match(r"(\S+: )?error\[", line):
            found.append([])
        if found and not line.startswith("note: on trainer_"):
            found[-1].append(line)
    return [one for one in found if "[launch-ended]" not in one[0]]


@pytest.mark.parametrize(
    "feed", ["wrong.py:dims", "wrong.py:types", "wrong.py:missing", "rows.csv --batch 6 --columns x=x*"]
)
def test_as_run_tells_it(feed: str, capsys: pytest.CaptureFixture[str]):
    given = ["net.ir", *JOB, "--feed", *feed.split()]
    assert main(["run", *given]) == 1
    told = findings(capsys.readouterr().err)
    assert len(told) == 1
    assert main(["launch", *given]) == 1
    err = capsys.readouterr().err
    assert findings(err) == told
    assert re.search(r"^note: on (trainer_[01]|trainer_0, trainer_1), step 1$", err, re.M)
    assert re.search(r"^error\[launch-ended\]: trainer_[01] has ended with status 1$", err, re.M)
    assert "pstranspile-launch-" not in err


def test_of_a_folder_it_stands_in_the_programs_of_one_trainer(capsys: pytest.CaptureFixture[str]):
    assert main(["compile", "net.ir", *JOB, "-o", "out"]) == 0
    assert main(["launch", "out", "--feed", "wrong.py:dims"]) == 1
    told = findings(capsys.readouterr().err)
    assert len(told) == 1
    assert re.match(r"out/trainer_[01]\.ir:\d+:5: error\[run-feed-mismatch\]: x is declared", told[0][0])
    assert "%x : f32[-1, 13]" in told[0][1]


def found(role: str, step: int, line: int = 8) -> Diagnostic:
    notes = (Note("first", Location("a.ir", 1, 2)), Note(f"on {role}, step {step}"))
    return error("run-op-failed", "wrong", Location(f"out/{role}.ir", line, 5), focus="%x", notes=notes)


def test_what_several_machines_report_is_told_once():
    of = {role: read_findings(findings_to_json([found(role, 3)])) for role in ("trainer_0", "trainer_1")}
    assert of["trainer_0"] == [found("trainer_0", 3)]
    (told,) = told_once(of)
    assert told.location == Location("out/trainer_0.ir", 8, 5)
    assert [note.message for note in told.notes] == ["first", "on trainer_0, trainer_1, step 3"]
    (told,) = told_once({**of, "trainer_2": [found("trainer_2", 4)]})
    assert [note.message for note in told.notes[1:]] == ["on trainer_0, trainer_1, step 3", "on trainer_2, step 4"]
    assert len(told_once({**of, "trainer_2": [found("trainer_2", 3, line=9)]})) == 2
    plain = error("data-source", "gone", Location("x.csv"))
    (told,) = told_once({"trainer_0": [plain], "trainer_1": [plain]})
    assert told == plain._replace(notes=(Note("on trainer_0, trainer_1"),))


def test_of_machines_on_other_hosts():
    compiled = ps.compile(ps.load("net.ir"), ps.Job(pservers=2, trainers=2))
    text = ps.dumps(compiled.trainer(0).module).splitlines()
    line = next(number for number, one in enumerate(text, 1) if one.strip().startswith("temp  %x "))
    there = error("run-feed-mismatch", "wrong", Location("/elsewhere/1/trainer_0.ir", line, 5))
    other = error("data-row", "wrong", Location(str(Path.cwd() / "x.csv"), 3, 1))
    moved, kept = of_hosts([there, other], compiled.roles())
    assert moved.location == Location("net.ir", 5, 5)
    assert kept.location == Location("x.csv", 3, 1)


def test_rows_are_told_by_the_file_as_it_was_named(capsys: pytest.CaptureFixture[str]):
    columns = ",".join(["y", *(f"x{at}" for at in range(13))])
    Path("nan.csv").write_text(f"{columns}\n" + f"{','.join(['1'] * 13)},nan\n" * 12)
    given = ["net.ir", *JOB, "--feed", "nan.csv", "--columns", "x=x*", "--batch", "6"]
    for verb in ("run", "launch"):
        assert main([verb, *given]) == 0
        told = capsys.readouterr().err.splitlines()
        assert "nan.csv:2:1: warning[data-nan]: the column x12 is NaN in row 1 (and in 11 more)" in told
