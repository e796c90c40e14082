"""`launch` when it is told to end, ends without being told, or loses a machine: no process is left, and it says why."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.net import status
from pstranspile.cluster.net.launch import token_of_job
from pstranspile.tools.cli import main
from tests.terminal import interrupts

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")


SERVED = ["--pservers", "2", "--trainers", "2"]


def launched(folder: Path, *options: str, job: Sequence[str] = SERVED) -> subprocess.Popen[str]:
    """A job on 2 servers and 2 trainers, or another one, that has done a few of its many steps."""
    x = np.zeros((2000, 4, 1000), "float32")
    np.savez_compressed(folder / "data.npz", x=x, y=x[:, :, :20])
    command = [sys.executable, "-m", "pstranspile", "launch", PROGRAM, *job, *options]
    command += ["--feed", str(folder / "data.npz")]
    with interrupts(signal.SIG_DFL):  # a shell has what it starts in the background ignore them
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 3/"):
            return process
    raise AssertionError(process.communicate()[1])


def stat(process: int) -> list[str]:
    """State, parent and so on of a process; a zombie's state if it has gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", "0"]


def machines(launch: int) -> dict[str, int]:
    """The processes of a job, by role."""
    found: dict[str, int] = {}
    for process in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()):
        if int(stat(process)[1]) == launch:
            words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
            found[words[words.index("--role") + 1]] = process
    return found


def all_gone(processes: dict[str, int]) -> bool:
    end = time.monotonic() + 20
    while any(stat(process)[0] != "Z" for process in processes.values()):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_process_outlives_launch(number: int, status: int, tmp_path: Path) -> None:
    launch = launched(tmp_path)
    processes = machines(launch.pid)
    assert sorted(processes) == ["pserver_0", "pserver_1", "trainer_0", "trainer_1"]
    launch.send_signal(number)
    launch.communicate(timeout=30)
    assert launch.returncode == status
    assert all_gone(processes)


def test_a_death_ends_in_a_report_of_who_waited_for_what(tmp_path: Path) -> None:
    launch = launched(tmp_path)
    processes = machines(launch.pid)
    os.kill(processes["pserver_1"], signal.SIGKILL)
    told = launch.communicate(timeout=30)[1]
    assert launch.returncode == 1
    assert "error[launch-ended]: pserver_1 has ended by SIGKILL" in told
    for trainer in ("trainer_0", "trainer_1"):
        assert f"note: {trainer} waits at " in told
    assert "not come: pserver_1" in told
    assert all_gone(processes)


def test_trainers_without_servers_all_begin_again_when_one_has_ended(tmp_path: Path) -> None:
    """From the last checkpoint: nobody would let in one alone. The end is that of a run in which nothing happened."""
    job = ["--mode", "grad-allreduce", "--trainers", "a:1,b:1"]
    init = ["--init", str(tmp_path / "w.npz"), "--steps", "300"]
    options = [*init, "--restarts", "1", "--lease", "5", "--save", str(tmp_path / "real.npz")]
    np.savez(tmp_path / "w.npz", b=np.ones(20, "float32"))
    options += ["--checkpoint", str(tmp_path / "kept"), "--checkpoint-every", "20"]
    launch = launched(tmp_path, *options, job=job)
    processes = machines(launch.pid)
    while not list((tmp_path / "kept").glob("step_*")):
        time.sleep(0.01)
    os.kill(processes["trainer_0"], signal.SIGKILL)
    told = launch.communicate(timeout=60)[1]
    assert launch.returncode == 0, told
    assert all_gone(processes)
    again = "pstranspile launch: trainer_0 has ended by SIGKILL: all begin again from step [0-9]*[02468]1\n"
    saved = f"{re.escape(str(tmp_path / 'real.npz'))}: the fetched values and the final parameters\n"
    kept = f"{re.escape(str(tmp_path / 'kept'))}: the checkpoints .*, to go on from with --resume .*\n"
    assert re.fullmatch(again + saved + kept, told), told
    simulated = ["run", PROGRAM, *job, "--feed", str(tmp_path / "data.npz"), *init]
    assert main([*simulated, "--save", str(tmp_path / "run.npz")]) == 0
    with np.load(tmp_path / "real.npz") as real, np.load(tmp_path / "run.npz") as expected:
        for name in ("param/w", "param/b"):
            np.testing.assert_array_equal(real[name], expected[name])
        assert 0.01 < real["param/b"].max() < 0.99


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python looks into the working folder first, always")
def test_files_of_the_working_folder_are_not_taken_for_libraries(tmp_path: Path) -> None:
    """Where `launch` itself does not look for modules there, as the console script."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('of the user')")
    code = "import sys; del sys.path[0]; from pstranspile.__main__ import main; sys.exit(main())"
    np.savez(tmp_path / "data.npz", x=np.ones((1, 4, 1000), "float32"), y=np.ones((1, 4, 20), "float32"))
    command = [sys.executable, "-c", code, "launch", PROGRAM, *SERVED[:2], "--feed", "data.npz"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False, timeout=60
    )
    assert done.stdout.startswith("step 1/1  trainer_0 loss ")
    assert "of the user" not in done.stderr + done.stdout


def test_a_process_that_loses_the_signal_to_end_is_told_again() -> None:
    """An exception that a signal raises is lost in a finalizer, for one."""
    code = """
import signal, time
import pstranspile as ps
from pstranspile.cluster.net import status
status.AGAIN = 0.1
told = []
def end(*_):
    told.append(1)
    if len(told) == 2:
        raise SystemExit(7)
signal.signal(signal.SIGTERM, end)
status.end_with_parent()
time.sleep(60)
time.sleep(60)
"""
    environment = {**os.environ, status.PARENT: "1"}
    process = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, env=environment, timeout=30, check=False
    )
    assert process.returncode == 7


@pytest.mark.parametrize("before", [None, "", "mine"])
def test_a_job_has_a_token_also_where_the_environment_has_an_empty_one(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PSTRANSPILE_TOKEN", raising=False)
    if before is not None:
        monkeypatch.setenv("PSTRANSPILE_TOKEN", before)
    with token_of_job():
        token = os.environ["PSTRANSPILE_TOKEN"]
        assert token == before if before else len(token) == 32
    assert os.environ.get("PSTRANSPILE_TOKEN") == before


def test_a_mapping_per_step_is_fed_as_in_the_simulation() -> None:
    draw = np.random.default_rng(0)
    batches = [{"x": draw.normal(size=(4, 1000)), "y": draw.normal(size=(4, 20))} for _ in range(2)]
    feeds = [{name: value.astype("float32") for name, value in batch.items()} for batch in batches]
    compiled = ps.compile(ps.load(PROGRAM), ps.Job(pservers=1, trainers=2))
    done, expected = ps.launch(compiled, feeds), ps.simulate(compiled, feeds)
    for name, value in expected.parameters.items():
        assert np.asarray(done.parameters[name]).tobytes() == np.asarray(value).tobytes(), name
    with pytest.raises(TypeError, match="launch takes what is fed as arrays by name, or a list of mappings"):
        ps.launch(compiled, lambda _trainer, _step: None)
