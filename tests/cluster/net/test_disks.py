"""Disks that are full, or slow, while servers keep their state there: the job goes on, and is the same to the bit."""

from __future__ import annotations

import errno
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.simulate import simulate
from pstranspile.cluster.machines.snapshots import Snapshot
from pstranspile.cluster.net import state
from tests.cluster.net.played import compiled, play

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
STEPS = 30

write_snapshot = state.write_snapshot


def trained_as_simulated(folder: Path) -> list[str]:
    """Trains with a state that is kept after every update; the outcome is the simulation's. Gives what the launcher is
    told of states that are not kept.
    """
    reasons: list[str] = []
    job = compiled(folder / "job", PROGRAM, "--pservers", "1", "--trainers", "2")
    rows = np.random.RandomState(0).rand(STEPS, 8, 1000).astype("float32")

    def feed(trainer: int, step: int) -> dict[str, Any] | None:
        if step >= STEPS:
            return None
        time.sleep(0.01)  # so that there is time for many writes
        return {"x": rows[step, trainer::2], "y": rows[step, trainer::2, :20]}

    def told(_role: str, unkept: str = "", **_: object) -> None:
        reasons.extend([unkept] if unkept else [])

    found = play(job, feed, STEPS, state=(folder, 1), fetch=["loss"], told=told)
    expected = simulate(job.roles, feed, STEPS, ["loss"], seed=1)
    for name, value in expected.arrays().items():
        np.testing.assert_array_equal(found.arrays()[name], value, err_msg=name)
    return reasons


def test_a_full_disk_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries: list[bool] = []

    def write(path: Path, name: str, snapshot: Snapshot) -> None:
        tries.append(len(tries) >= 3)
        if not tries[-1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_snapshot(path, name, snapshot)

    monkeypatch.setattr(state, "write_snapshot", write)
    monkeypatch.setattr(state, "RETRY", 0.02)
    (reason,) = trained_as_simulated(tmp_path)
    assert os.strerror(errno.ENOSPC) in reason
    assert tries[:4] == [False, False, False, True]
    assert capsys.readouterr().err.count("pserver_0: its state is not kept: ") == 1
    assert not (tmp_path / "pserver_0.kept").exists()  # needed no more


def test_nobody_waits_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates go on while a state is written, and trainers keep what it does not contain."""
    updates: list[int] = []

    def write(path: Path, name: str, snapshot: Snapshot) -> None:
        updates.append(snapshot.state["updates"])
        time.sleep(0.1)
        write_snapshot(path, name, snapshot)

    monkeypatch.setattr(state, "write_snapshot", write)
    assert not trained_as_simulated(tmp_path)
    assert updates == sorted(updates)
    assert max(later - one for one, later in pairwise(updates)) > 1


def test_a_state_that_can_not_be_removed_at_the_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All is done by then: the process ends well."""
    unlink = Path.unlink

    def denied(path: Path, missing_ok: bool = False) -> None:
        if path.name == "pserver_0.kept":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", denied)
    assert not trained_as_simulated(tmp_path)
    assert "pserver_0.kept is needed no more, but can't be removed: Permission denied" in capsys.readouterr().err
