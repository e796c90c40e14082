"""An interrupted run says which checkpoint is left of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from tests.cluster.checkpoint.test_runs import module

CLUSTER = ["--pservers", "1", "--trainers", "2"]
STEPS = 100_000


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "net.ir").write_text(ps.dumps(module()))
    np.savez(tmp_path / "data.npz", x=np.ones((STEPS, 2, 6), "float32"), y=np.ones((STEPS, 2, 1), "float32"))
    return tmp_path


def interrupted(files: Path, verb: list[str], number: int, *options: str) -> tuple[int, str]:
    """The exit status and the last line on stderr of a run that gets a signal after its first step."""
    command = [sys.executable, "-u", "-m", "pstranspile", verb[0], "net.ir", *verb[1:], "--feed", "data.npz"]
    process: Any = subprocess.Popen(
        [*command, *options], cwd=files, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        for line in process.stdout:
            if line.startswith("step 3/"):
                break
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    return process.returncode, told.strip().rpartition("\n")[2]


@pytest.mark.parametrize("verb", [["run"], ["run", *CLUSTER], ["launch", *CLUSTER]], ids=" ".join)
def test_the_last_checkpoint_is_named(verb: list[str], files: Path):
    status, told = interrupted(files, verb, signal.SIGINT, "--checkpoint", "kept", "--checkpoint-every", "1")
    assert status == 130
    kept = sorted(path.name for path in (files / "kept").glob("step_*"))
    assert told == f"interrupted: --resume kept goes on from the last checkpoint, {kept[-1]}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_that_there_is_none_is_told(number: int, files: Path):
    status, told = interrupted(files, ["run"], number, "--checkpoint", "kept")
    assert status == 128 + number
    assert told.startswith("interrupted: no checkpoint was saved in kept; one is saved at the end, and during the run")


@pytest.mark.parametrize("verb", [["run"], ["launch", *CLUSTER]], ids=" ".join)
def test_results_that_are_lost_are_named(verb: list[str], files: Path):
    assert interrupted(files, verb, signal.SIGINT, "--save", "k.npz") == (130, "interrupted: k.npz was not written")
    assert not (files / "k.npz").exists()


def test_a_run_that_keeps_nothing_ends_without_a_word(files: Path):
    assert interrupted(files, ["run"], signal.SIGINT) == (130, "")
