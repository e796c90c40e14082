"""The verdict comes first, then what differs; warnings of the input stand below."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HOLDS = "the cluster trains as the single machine does"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program whose declarations give three warnings."""
    text = (ROOT / "examples" / "linear_regression.ir").read_text()
    for name in ("fc_0.tmp_0", "square_error_cost_0.tmp_0", "square_error_cost_0.tmp_1"):
        text = text.replace(f"temp  %{name} : f32[-1, 1]", f"temp  %{name} : f32[-1, 2]")
    (tmp_path / "net.ir").write_text(text)
    return tmp_path


def ran(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Both streams as a terminal shows them."""
    command = [sys.executable, "-m", "pstranspile", *arguments]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("more", [[], ["--all"], ["--json"]])
def test_a_check_of_a_program_with_warnings(more: list[str], program: Path):
    status, lines = ran(program, "check", "net.ir", "--pservers", "2", "--trainers", "2", *more)
    warned = [number for number, line in enumerate(lines) if "warning[" in line]
    assert status == 0
    assert len(warned) >= 3
    assert lines[0] == (HOLDS if "--json" not in more else "{")
    assert min(warned) > max(number for number, line in enumerate(lines) if HOLDS in line or line == "}")


def test_warnings_stand_above_an_error(program: Path):
    status, lines = ran(program, "check", "net.ir", "--pservers", "2", "--trainers", "2", "--feed", "none.npz")
    assert status == 1
    assert "warning[" in lines[0]
    assert lines[-1].startswith("none.npz: error[run-file-unusable]")


def test_a_difference_of_files_with_warnings(program: Path):
    assert ran(program, "export", "net.ir", "--to", "pb", "-o", "a")[0] == 0
    assert ran(program, "export", str(ROOT / "examples" / "linear_regression.ir"), "--to", "pb", "-o", "b")[0] == 0
    (program / "meta.json").write_text('{"params": [{"name": "nothing"}]}')
    status, lines = ran(program, "diff", "a/main.pb", "b/main.pb", "--meta", "meta.json", "--meta", "meta.json")
    assert status == 1
    warned = [number for number, line in enumerate(lines) if "warning[" in line]
    assert len(warned) == 2
    assert lines[0] == "--- a/main.pb @main"
    assert min(warned) > next(number for number, line in enumerate(lines) if " difference" in line)
