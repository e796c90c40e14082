"""Pipes that are named in place of files are read, and a wait for one is told; sockets and devices are refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import pstranspile as ps
import pstranspile.torch as pt
from pstranspile.tools.cli import main
from tests.devices import PIPES

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "golden" / "linear_regression.ir"
READERS = {
    "verify": ["verify", "{}"],
    "import": ["import", "{}"],
    "startup": ["verify", "main.pb", "--startup", "{}"],
    "meta": ["verify", str(PROGRAM), "--meta", "{}"],
    "plan": ["plan", str(PROGRAM), "--pservers", "2", "--plan", "{}"],
    "diff": ["diff", str(PROGRAM), "{}"],
}


@PIPES
@pytest.mark.parametrize("words", READERS.values(), ids=READERS)
def test_a_pipe_that_nobody_writes_to_is_told(words: list[str], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["export", str(PROGRAM), "--to", "pb", "-o", str(tmp_path)]) == 0
    command = [sys.executable, "-m", "pstranspile", *(word.format(pipe) for word in words)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline() == f"waiting for {pipe}, a pipe that nobody writes to yet\n"
        finally:
            process.kill()


@PIPES
def test_what_comes_late_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Timer(3.0, lambda: pipe.write_bytes(PROGRAM.read_bytes()))
    writer.start()
    assert ps.load(pipe) == ps.load(PROGRAM)
    writer.join()
    assert capsys.readouterr().err == f"waiting for {pipe}, a pipe that nobody writes to yet\n"


@pytest.mark.parametrize(
    "line",
    [
        "verify <(cat {program})",
        "verify /dev/stdin < {program}",
        "verify - < {program}",
        "verify /dev/stdin <<< '{text}'",
        "plan {program} --pservers 2 --plan <({plan})",
    ],
)
def test_pipes_of_a_shell_are_read_as_files_are(line: str) -> None:
    command = f"{sys.executable} -m pstranspile"
    plan = f"{command} plan {PROGRAM} --pservers 2"
    text = PROGRAM.read_text().replace("'", "")
    whole = f"{command} {line.format(program=PROGRAM, plan=plan, text=text)}"
    done = subprocess.run(["bash", "-c", whole], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "waiting" not in done.stderr


@pytest.mark.parametrize("words", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("kind", "said"), [("socket", "it is a socket"), ("/dev/zero", "it is a device")])
def test_sockets_and_devices_are_refused(
    kind: str,
    said: str,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(PROGRAM), "--to", "pb", "-o", "."]) == 0
    capsys.readouterr()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        assert main([word.format(kind) for word in words]) in (1, 2)
    told = capsys.readouterr().err
    assert "error[input-unreadable]: " in told
    assert said in told


@PIPES
def test_python_files_and_saved_results_are_no_pipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("pipe.py", "pipe.npz"):
        os.mkfifo(tmp_path / name)
    assert main(["verify", f"{tmp_path / 'pipe.py'}:model"]) == 1
    assert "it is a pipe, a socket or a device, a file is needed" in capsys.readouterr().err
    with pytest.raises(ps.DiagnosticError, match="it is a pipe or a device, a file is needed"):
        pt.state_dict(tmp_path / "pipe.npz")
