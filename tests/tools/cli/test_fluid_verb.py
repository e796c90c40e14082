"""`pstranspile fluid SCRIPT`: what `python -m pstranspile.fluid SCRIPT` does, beside the other commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pstranspile.tools.cli import main
from tests.terminal import interrupts

ROOT = Path(__file__).parents[3]
FIT = str(ROOT / "examples" / "fluid_fit_a_line.py")
WAYS = (["pstranspile", "fluid"], ["pstranspile.fluid"])


def ran(way: list[str], *arguments: str, folder: Path = ROOT) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *way, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "import sys\nimport beside\nprint(__name__, __file__, sys.argv[1:], sys.path[0] == beside.HERE)",
        "import sys\nsys.exit(7)",
        "import sys\nsys.exit('no rows')",
        "def f():\n    raise ValueError('bad')\nf()",
        "import paddle.fluid as fluid\nfluid.Executor().run(feed={'x': 3}, fetch_list=['y'])",
        "import paddle\npaddle.ones([2])",
        "import sys\nsys.excepthook = lambda *about: print('hooked', about[1], file=sys.stderr)\n1 / 0",
        "import signal\nprint(signal.getsignal(signal.SIGTERM))",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    ],
)
def test_both_ways_do_the_same(script: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import os\nHERE = os.path.dirname(os.path.abspath(__file__))\n")
    (tmp_path / "train.py").write_text(script)
    one, other = (ran(way, "train.py", "--help", "--lr=3", folder=tmp_path) for way in WAYS)
    assert one == other
    assert "runpy" not in one[2]


def test_the_options_are_the_same() -> None:
    out: list[str] = []
    for way in WAYS:
        status, told, _ = ran(way, "--check", FIT)
        assert status == 0
        out.append(told)
    assert out[0] == out[1]
    assert out[0].startswith("the cluster trains as the single machine does\n")


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        (["--nope", FIT], "pstranspile fluid: there is no option --nope"),
        (["none.py"], "pstranspile fluid: there is no file none.py"),
        ([], "usage: pstranspile fluid [--ir DIR]"),
        (["--check", "--pservers", "0", FIT], "pstranspile fluid: --pservers is 0; it must be at least 1"),
        (
            ["--explain", "--pservers", "x", FIT],
            "pstranspile fluid: --pservers 'x' is neither a number",
        ),
        (["--check", "--pservers", "a:1,a:1", FIT], "pstranspile fluid: --pservers a:1 stands there twice"),
        (
            ["--check", "--pservers", "a:99999", FIT],
            "pstranspile fluid: --pservers 'a:99999': the port 99999",
        ),
        (["--check", "--trainers", "9" * 20, FIT], "pstranspile fluid: --trainers is 99999999999999999999; it must be"),
        (["--check", "--trainers", "0", FIT], "pstranspile fluid: --trainers takes a number from 1 on, not '0'"),
    ):
        assert main(["fluid", *arguments]) == 2
        out, errors = capsys.readouterr()
        assert out == ""
        assert told in errors


def test_an_interrupt_ends_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('begun', flush=True)\nwhile True:\n    time.sleep(0.1)\n")
    command = [sys.executable, "-m", "pstranspile", "fluid", "train.py"]
    with interrupts(signal.SIG_DFL):
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT)


def test_a_folder_of_ir_that_can_not_be_written_is_told_before_the_script_runs(tmp_path, capsys):
    (tmp_path / "s.py").write_text("print('ran')\n")
    (tmp_path / "file").write_text("")
    assert main(["fluid", "--ir", str(tmp_path / "file" / "ir"), str(tmp_path / "s.py")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "error[output-unwritable]" in err


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("count", [1, 100_000], ids=["at the end", "meanwhile"])
@pytest.mark.parametrize("options", [[], ["--check"], ["--ir", "made"]], ids=" ".join)
def test_output_that_nobody_reads_ends_the_script_without_a_word(
    way: list[str], count: int, options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        f"import paddle.fluid as fluid\nfor i in range({count}):\n    print('line', i)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONUNBUFFERED", None)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", *way, *options, "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert done.returncode == 128 + signal.SIGPIPE
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_connection_of_the_script_is_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nreading, writing = os.pipe()\nos.close(reading)\nos.write(writing, b'x')\n"
    )
    status, _, told = ran(WAYS[0], "train.py", folder=tmp_path)
    assert status == 1
    assert told.endswith("BrokenPipeError: [Errno 32] Broken pipe\n")
