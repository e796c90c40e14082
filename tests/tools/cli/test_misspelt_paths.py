"""Paths where nothing is, of every option that reads: told with the most similar name that is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.data.source import Data
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.proof import make_feeds
from pstranspile.runtime.run.step_feeds import require_steps
from pstranspile.tools.cli import main
from tests.conftest import ROOT

PROGRAM = ROOT / "examples" / "linear_regression.ir"
RUN = ["run", "net.ir"]
JOB = ["--pservers", "1", "--trainers", "1"]

WRONG: dict[str, tuple[list[str], str]] = {
    "program": (["run", "nett.ir"], "net.ir"),
    "function": (["run", "made.py.py:net"], "made.py"),
    "startup": (["run", "net.pb", "--startup", "startt.pb"], "start.pb"),
    "meta": (["run", "net.pb", "--meta", "mett.json"], "meta.json"),
    "arrays": ([*RUN, "--feed", "arayz.npz"], "arrays.npz"),
    "rows": ([*RUN, "--feed", "dd.csv", "--batch", "1"], "d.csv"),
    "rows in a folder": ([*RUN, "--feed", "row/d.csv", "--batch", "1"], "rows"),
    "init": ([*RUN, "--feed", "arrays.npz", "--init", "initt.npz"], "init.npz"),
    "resume": ([*RUN, "--feed", "arrays.npz", "--resume", "keptt"], "kept"),
    "faults": ([*RUN, *JOB, "--feed", "arrays.npz", "--faults", "fault"], "faults"),
    "replay": ([*RUN, *JOB, "--feed", "arrays.npz", "--replay", "recor"], "record"),
    "plan": (["compile", "net.ir", *JOB, "--plan", "plann.txt", "-o", "out"], "plan.txt"),
    "config": (["compile", "net.ir", "--config", "job.tml", "-o", "out"], "job.toml"),
    "from": (["export", "net.ir", "--to", "onnx", "--fetch", "fc_0.tmp_1", "-o", "o", "--from", "int.npz"], "init.npz"),
    "folder to start": (["start", "jobs", "--role", "trainer_0"], "job"),
    "folder to launch": (["launch", "jobs"], "job"),
    "folder to explain": (["explain", "jobs"], "job"),
    "diff": (["diff", "net.ir", "nett.ir"], "net.ir"),
    "plan to show": (["plan", "net.ir", *JOB, "--plan", "plann.txt"], "plan.txt"),
    "import": (["import", "nett.pb", "-o", "o.ir"], "net.pb"),
    "fmt": (["fmt", "nett.ir"], "net.ir"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_bytes(PROGRAM.read_bytes())
    assert main(["export", "net.ir", "--to", "pb", "-o", "pb"]) == 0
    Path("pb/main.pb").rename("net.pb")
    Path("pb/startup.pb").rename("start.pb")
    for name in ("meta.json", "made.py", "init.npz", "faults", "record", "plan.txt", "job.toml"):
        Path(name).touch()
    for name in ("job", "kept", "rows"):
        Path(name).mkdir()
    Path("d.csv").write_text("x,y\n" + "1,2\n" * 5)
    np.savez("arrays.npz", **make_feeds(ps.load("net.ir").main, 1, 1))
    capsys.readouterr()


@pytest.mark.parametrize("name", WRONG)
def test_paths_where_nothing_is(name: str, capsys: pytest.CaptureFixture[str]):
    command, near = WRONG[name]
    assert main(command) in (1, 2)
    assert f"; did you mean {near}?" in capsys.readouterr().err


def test_which_rows_are_too_few():
    with pytest.raises(DiagnosticError) as raised:
        require_steps(5, 50, Data("d.csv", batch=1))
    message = "are enough for 5 steps, 50 are asked for; --epochs has them fed again"
    assert str(raised.value) == f"d.csv: error[run-file-unusable]: the rows {message}"
    Path("e.csv").write_text("x,y\n")
    with pytest.raises(DiagnosticError) as raised:
        require_steps(5, 50, Data(["d.csv", "e.csv"], batch=1))
    assert str(raised.value) == f"d.csv: error[run-file-unusable]: the rows of it and of 1 more file {message}"
