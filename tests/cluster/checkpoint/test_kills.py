"""Commands that leave checkpoints are killed again and again while they write them, and go on from what is there.

CI kills a few; PSTRANSPILE_KILLS says how many.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.store import read_checkpoint
from tests.cluster.checkpoint.jobs import feed, model

KILLS = int(os.environ.get("PSTRANSPILE_KILLS", "3"))
STEPS = 40
LEFT = re.compile(r"\.step_[0-9]{8}\.[0-9]+-[0-9]+\.part|\.lock")
"""What a killed process leaves beside checkpoints: an unfinished one, and the file of its lock, which is free."""


class Killed:
    """A command that saves after every step into `folder/kept`, its temporary files in `folder/temporary`."""

    def __init__(self, folder: Path, verb: str):
        self.folder, self.kept, self.temporary = folder, folder / "kept", folder / "temporary"
        self.temporary.mkdir()
        (folder / "net.ir").write_text(ps.dumps(model()))
        feeds = [feed(step) for step in range(STEPS)]
        np.savez(folder / "feeds.npz", **{name: np.stack([one[name] for one in feeds]) for name in feeds[0]})
        self.command = [sys.executable, "-m", "pstranspile", verb, "net.ir", "--pservers", "2", "--trainers", "2"]
        self.command += ["--feed", "feeds.npz", "--steps", str(STEPS)]

    def start(self, *options: str) -> subprocess.Popen[str]:
        where = {**os.environ, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        command, pipe = [*self.command, *options], subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=where, text=True, stdout=pipe, stderr=pipe)

    def saving(self) -> list[str]:
        """The options of a run that goes on from what is there."""
        there = self.kept.exists() and any(self.kept.glob("step_*"))
        return ["--checkpoint", "kept", "--checkpoint-every", "1", *(["--resume", "kept"] if there else [])]

    def saved(self) -> set[str]:
        return {path.name for path in self.kept.glob("step_*")} if self.kept.exists() else set()

    def kill(self, draw: random.Random) -> None:
        """Starts it, and kills it a moment after it has saved something."""
        before = self.saved()
        process = self.start(*self.saving())
        while self.saved() <= before and process.poll() is None:
            time.sleep(0.001)
        time.sleep(draw.uniform(0.0, 0.03))
        process.send_signal(draw.choice((signal.SIGKILL, signal.SIGTERM)))
        errors = process.communicate()[1]
        assert process.returncode in (0, 143, -signal.SIGKILL, -signal.SIGTERM), errors

    def end(self) -> dict[str, np.ndarray]:
        """Runs it to its end from what is there, and gives the parameters."""
        process = self.start("--save", "end.npz", *self.saving())
        errors = process.communicate()[1]
        assert process.returncode == 0, errors
        with np.load(self.folder / "end.npz") as arrays:
            return {name: arrays[name] for name in arrays if name.startswith("param/")}

    def begin_anew(self) -> None:
        """Takes the checkpoints away if the last step was done."""
        if f"step_{STEPS:08d}" in self.saved():
            shutil.rmtree(self.kept)


@pytest.mark.parametrize(("verb", "kills"), [("run", KILLS), ("launch", max(KILLS // 4, 1))])
def test_killed_while_saving(verb: str, kills: int, tmp_path: Path):
    """Every checkpoint that is there is whole, whatever is killed; the next run removes what is left of others."""
    if verb == "launch":
        pytest.importorskip("grpc")
    draw, killed = random.Random(5), Killed(tmp_path, verb)
    wanted, left = killed.end(), 0
    for _ in range(kills):
        killed.begin_anew()
        killed.kill(draw)
        for name in os.listdir(killed.kept):
            left += name.startswith(".step_")
            if LEFT.fullmatch(name) is None:
                read_checkpoint(killed.kept / name)
    killed.begin_anew()
    ends = killed.end()
    print(f"{verb}: {kills} kills left {left} unfinished checkpoints")
    assert sorted(os.listdir(killed.kept)) == [f"step_{STEPS - 1:08d}", f"step_{STEPS:08d}"]
    assert not os.listdir(killed.temporary)
    assert ends.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(ends[name], value, err_msg=name)
