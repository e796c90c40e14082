"""A command whose output nobody reads, or can't be written, goes on where files are still to be written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.ir.diagnostics import lasting
from pstranspile.runtime.files import outputs
from pstranspile.tools.cli import main
from tests.cluster.checkpoint.test_runs import module
from tests.devices import FULL

CLUSTER = ["--pservers", "1", "--trainers", "2"]
STEPS = 2000
"""More than a pipe holds the lines of."""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(ps.dumps(module()))
    np.savez("data.npz", x=np.ones((STEPS, 2, 6), "float32"), y=np.ones((STEPS, 2, 1), "float32"))


def unread(*arguments: str, module: str = "pstranspile", both: bool = False) -> tuple[int, list[str]]:
    """The exit status of a command whose output is a pipe that nobody reads, and what it tells (`both`: there too)."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            stdout=writing,
            stderr=writing if both else subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writing)
    return done.returncode, (done.stderr or "").splitlines()


@pytest.mark.parametrize("verb", [["run"], ["run", *CLUSTER], ["launch", *CLUSTER]], ids=" ".join)
@pytest.mark.parametrize("both", [False, True])
def test_a_run_goes_on_for_its_files(verb: list[str], both: bool) -> None:
    command = [verb[0], "net.ir", *verb[1:], "--feed", "data.npz", "--steps", "50", "--save", "a.npz"]
    status, told = unread(*command, "--checkpoint", "kept", both=both)
    assert status == 0
    goes_on = f"pstranspile {verb[0]}: nobody reads the output any more; it goes on, to write a.npz and kept"
    written = "a.npz: the fetched values and the final parameters"
    kept = "kept: the checkpoint step_00000050, to go on from with --resume kept"
    assert told == ([] if both else [goes_on, written, kept])
    with np.load("a.npz") as saved:
        assert len(saved["step/mean_0.tmp_0" if verb == ["run"] else "trainer_0/step/mean_0.tmp_0"]) == 50
    assert Path("kept/step_00000050").is_dir()


@pytest.mark.parametrize("verb", [["run"], ["run", *CLUSTER], ["launch", *CLUSTER]], ids=" ".join)
@pytest.mark.parametrize("both", [False, True])
def test_a_run_without_files_ends(verb: list[str], both: bool) -> None:
    assert unread(verb[0], "net.ir", *verb[1:], "--feed", "data.npz", both=both) == (141, [])


def test_a_run_that_is_traced_ends_when_nobody_reads_the_trace() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pstranspile", "run", "net.ir", "--feed", "data.npz", "--trace"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writing, timeout=120, check=False)
    os.close(writing)
    assert (done.returncode, done.stdout.count(b"step ")) == (141, 1)


@FULL
def test_output_that_is_lost_is_an_error_though_files_are_written() -> None:
    command = [sys.executable, "-m", "pstranspile", "run", "net.ir", "--feed", "data.npz", "--steps", "3"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, "--save", "a.npz"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
        lost = "pstranspile run: the output can't be written: No space left on device; it goes on, to write a.npz"
        assert (done.returncode, done.stderr.splitlines()[0]) == (1, lost)
        assert Path("a.npz").is_file()
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == "pstranspile: error: standard input or output: No space left on device\n"


def test_all_files_are_formatted() -> None:
    text = Path("net.ir").read_text().replace("\n  block", "\n      block")
    for name in ("a.ir", "b.ir", "c.ir"):
        Path(name).write_text(text)
    goes_on = "pstranspile fmt: nobody reads the output any more; it goes on, to write "
    status, told = unread("fmt", "a.ir", "b.ir", "c.ir")
    assert status in (0, 141)  # the names may be printed together, when all files are written
    assert [line for line in told if not line.startswith(goes_on)] == []
    assert [Path(name).read_text() == text for name in ("a.ir", "b.ir", "c.ir")] == [False] * 3


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("pstranspile", ["run", "--bad"]),
        ("pstranspile", ["nothing"]),
        ("pstranspile", ["fluid"]),
        ("pstranspile", ["fluid", "--bad"]),
        ("pstranspile.fluid", []),
        ("pstranspile.fluid", ["--bad"]),
        ("pstranspile.fluid.launch", []),
        ("pstranspile.fluid.launch_ps", ["--bad"]),
    ],
    ids=str,
)
def test_wrong_usage_is_status_2_whoever_reads_it(module: str, arguments: list[str]) -> None:
    assert unread(*arguments, module=module, both=True)[0] == 2


def test_findings_are_findings_though_nobody_reads_them() -> None:
    Path("bad.ir").write_text("x\n")
    for verb in ("verify", "fmt", "run"):
        assert unread(verb, "bad.ir", both=True)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["import", "net.ir", "-o", "net.ir/a.ir"], "net.ir"),
        (["import", "net.ir", "-o", "./sub/../net.ir/a.ir"], "net.ir"),
        (["report", "net.ir", *CLUSTER, "-o", "net.ir/page.html"], "net.ir"),
        (["compile", "net.ir", *CLUSTER, "-o", "net.ir/out"], "net.ir"),
        (["fmt", "odd.ir"], "odd.ir"),
    ],
    ids=str,
)
def test_a_file_that_can_t_be_written_is_named_as_it_was_given(
    arguments: list[str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sub").mkdir()
    Path("odd.ir").write_text(Path("net.ir").read_text().replace("\n  block", "\n      block"))

    def full(folder: Path, files: Mapping[str, object]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / next(iter(files))))

    monkeypatch.setattr(outputs, "_write_in_place", full)
    assert main(arguments) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.partition(": error[")[0].removeprefix("./sub/../").removeprefix("sub/../") == named
    assert str(Path.cwd()) not in told


@pytest.mark.parametrize(
    ("seconds", "text"), [(1, "1 second"), (1.0, "1 second"), (0.5, "0.5 seconds"), (30, "30 seconds")]
)
def test_times_are_counted(seconds: float, text: str) -> None:
    assert lasting(seconds) == text
