"""An interrupted run says which checkpoint is left of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint import runs
from pstranspile.ir.diagnostics import error
from pstranspile.tools.cli import main
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


FOUND = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")


def stopped(files: Path, role: str, *options: str) -> list[str]:
    """What a launch tells on stderr of which a machine is killed after the third step."""
    command = [sys.executable, "-u", "-m", "pstranspile", "launch", "net.ir", *CLUSTER, "--feed", "data.npz", *options]
    process: Any = subprocess.Popen(command, cwd=files, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        for line in process.stdout:
            if line.startswith("step 3/"):
                break
        for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
            for child in children.read_text().split():
                if f"--role\0{role}\0".encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"error[launch-ended]: {role} has ended by SIGKILL" in told
    return told.splitlines()


@FOUND
@pytest.mark.parametrize("role", ["trainer_1", "pserver_0"])
def test_a_launch_of_which_a_machine_is_killed_names_how_to_go_on(role: str, files: Path):
    told = stopped(files, role, "--checkpoint", "kept", "--checkpoint-every", "1", "--state", "s", "--logs", "logs")
    kept = sorted(path.name for path in (files / "kept").glob("step_*"))
    assert told[-1] == f"stopped: --resume kept goes on from the last checkpoint, {kept[-1]}"
    assert "pstranspile launch: s: left, since the job did not come to its end: pserver_0.kept" in told
    assert "pstranspile launch: logs in logs" in told
    told = stopped(files, role, "--checkpoint", "none")
    assert told[-1].startswith("stopped: no checkpoint was saved in none; the first one is saved at the end, or after")


@FOUND
def test_a_launch_of_which_a_machine_is_killed_names_what_is_lost(files: Path):
    assert stopped(files, "pserver_0", "--save", "k.npz")[-1] == "stopped: k.npz was not written"
    told = stopped(files, "pserver_0", "--save", "k.npz", "--record", "r", "--checkpoint", "none")
    assert told[-1].startswith("stopped: no checkpoint was saved in none; the first one is saved at the end, or after")
    assert told[-1].endswith("; k.npz was not written")  # a record is, up to here
    assert not (files / "k.npz").exists()


def test_a_machine_whose_servers_are_not_there_names_what_is_lost(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(files)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{free.getsockname()[1]}"
    assert main(["compile", "net.ir", "--pservers", server, "--trainers", "1", "-o", "out"]) == 0
    command = ["start", "out", "--role", "trainer_0", "--feed", "data.npz", "--patience", "0.2", "--save", "k.npz"]
    assert main(command) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "stopped: k.npz was not written"


@pytest.mark.parametrize("verb", [["run"], ["run", *CLUSTER], ["launch", *CLUSTER]], ids=" ".join)
def test_a_run_that_an_error_stops_names_what_is_lost(
    verb: list[str], files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(files)
    Path("made.py").write_text(
        "import numpy as np\n"
        "def loader(rank, trainers):\n"
        "    yield {'x': np.ones((2, 6), 'f4'), 'y': np.ones((2, 1), 'f4')}\n"
        "    raise ValueError('no more')\n"
    )
    command = [verb[0], "net.ir", *verb[1:], "--feed", "made.py:loader", "--steps", "3", "--save", "k.npz"]
    assert main(command) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "stopped: k.npz was not written"
    assert main([verb[0], "net.ir", *verb[1:], "--feed", "nothing.npz", "--save", "k.npz"]) == 1
    assert "stopped" not in capsys.readouterr().err  # it has not begun


@pytest.mark.parametrize("verb", [["run"], ["run", *CLUSTER]], ids=" ".join)
def test_a_run_that_an_error_stops_names_how_to_go_on(
    verb: list[str], files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(files)
    x = np.ones((5, 2, 6), "float32")
    np.savez("nan.npz", x=x, y=np.ones((5, 2, 1), "float32"))
    command = [verb[0], "net.ir", *verb[1:], "--feed", "nan.npz", "--checkpoint", "kept", "--checkpoint-every", "1"]
    real = runs.Target.record_checkpoint

    def failing(target: runs.Target, manifest: Any, keep: int = 2) -> None:
        real(target, manifest, keep)
        if manifest.step == 3:
            raise ps.DiagnosticError([error("checkpoint-target", "can't be written: no space")])

    with monkeypatch.context() as patch:
        patch.setattr(runs.Target, "record_checkpoint", failing)
        assert main(command) == 1
    told = capsys.readouterr().err.splitlines()
    assert "no space" in told[-2]
    assert told[-1] == "stopped: --resume kept goes on from the last checkpoint, step_00000003"
    assert main([*command, "--resume", "kept"]) == 0
    told = capsys.readouterr().err
    assert told == "kept: the checkpoints step_00000004 and step_00000005, to go on from with --resume kept\n"
    assert main(["run", "net.ir", "--feed", "nothing.npz", "--checkpoint", "kept"]) == 1
    assert "stopped" not in capsys.readouterr().err  # it has not begun


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_that_there_is_none_is_told(number: int, files: Path):
    status, told = interrupted(files, ["run"], number, "--checkpoint", "kept")
    assert status == 128 + number
    assert told.startswith("interrupted: no checkpoint was saved in kept; the first one is saved at the end, or after")


@pytest.mark.parametrize("verb", [["run"], ["launch", *CLUSTER]], ids=" ".join)
def test_results_that_are_lost_are_named(verb: list[str], files: Path):
    assert interrupted(files, verb, signal.SIGINT, "--save", "k.npz") == (130, "interrupted: k.npz was not written")
    assert not (files / "k.npz").exists()


def test_a_run_that_writes_nothing_says_that_it_was_interrupted(files: Path):
    assert interrupted(files, ["run"], signal.SIGINT) == (130, "interrupted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb", [["run", *CLUSTER], ["launch", *CLUSTER]], ids=" ".join)
def test_every_file_that_is_lost_is_named(verb: list[str], number: int, files: Path):
    record = ["--record", "r"] if verb[0] == "launch" else ["--plot", "p.svg"]
    asked = ["--trace", "t.json", "--chart", "c.txt", *record, "--save", "k.npz"]
    lost = "k.npz, t.json, c.txt and r" if verb[0] == "launch" else "k.npz, p.svg, t.json and c.txt"
    assert interrupted(files, verb, number, *asked) == (128 + number, f"interrupted: {lost} were not written")


@pytest.mark.parametrize("verb", [["run"], ["run", *CLUSTER], ["launch", *CLUSTER]], ids=" ".join)
def test_a_first_checkpoint_that_is_not_saved_leaves_no_folder(verb: list[str], files: Path):
    (files / "there").mkdir()
    for folder in ("new/kept", "there"):
        assert interrupted(files, verb, signal.SIGINT, "--checkpoint", folder)[0] == 130
    assert not (files / "new").exists()
    assert [*(files / "there").iterdir()] == []  # it was the user's own


@pytest.mark.parametrize("verb", [["run"], ["run", *CLUSTER], ["launch", *CLUSTER]], ids=" ".join)
def test_a_run_that_goes_on_and_keeps_nothing_says_so(
    verb: list[str], files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(files)
    np.savez("short.npz", x=np.ones((5, 2, 6), "float32"), y=np.ones((5, 2, 1), "float32"))
    command = [verb[0], "net.ir", *verb[1:], "--feed", "short.npz"]
    assert main([*command, "--steps", "2", "--checkpoint", "kept"]) == 0
    capsys.readouterr()
    assert main([*command, "--resume", "kept"]) == 0
    advice = "--checkpoint DIR keeps it to go on from, --save FILE.npz its results"
    told = f"kept: nothing is kept of the run that goes on from here; {advice}"
    assert capsys.readouterr().err.splitlines().count(told) == 1
    assert main([*command, "--resume", "kept", "--save", "a.npz"]) == 0
    assert main([*command, "--resume", "kept", "--checkpoint", "kept"]) == 0
    assert "nothing is kept" not in capsys.readouterr().err
    assert main([*command, "--resume", "kept"]) == 0
    again = capsys.readouterr().err
    assert "nothing is left to do" in again
    assert "nothing is kept" not in again


def test_an_interrupt_that_is_lost_comes_again(tmp_path: Path):
    """Python drops what is raised while an object is cleaned up."""
    script = tmp_path / "lost.py"
    script.write_text(
        "import sys, time\n"
        "import pstranspile.__main__ as command\n"
        "sys.unraisablehook = command._send_again\n"
        "class Cleaned:\n"
        "    def __del__(self):\n"
        "        raise KeyboardInterrupt\n"
        "try:\n"
        "    Cleaned()\n"
        "    time.sleep(20)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_signal_in_the_code_of_a_user_is_no_fault_of_it(tmp_path: Path):
    (tmp_path / "stopped.py").write_text(
        "import os, signal, time\n"
        "def loader(rank, trainers):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(20)\n"
    )
    net = str(Path(__file__).parents[3] / "examples" / "linear_regression.ir")
    command = [sys.executable, "-m", "pstranspile", "run", net, "--feed", "stopped.py:loader", "--save", "kept.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 143, done.stderr
    assert "kept.npz was not written" in done.stderr
    assert "input-python" not in done.stderr
