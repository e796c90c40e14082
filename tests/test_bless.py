"""The golden harness itself: what a mismatch prints, what `--bless` does, and when it is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import Goldens

ROOT = Path(__file__).parent.parent


def test_equal_text_passes(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    Goldens(tmp_path).check(tmp_path / "a.txt", "one\n", "tests/x.py::t")


def test_mismatch_shows_a_diff_and_the_command(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(pytest.fail.Exception) as caught:
        Goldens(tmp_path).check(tmp_path / "a.txt", "one\nthree\n", "tests/x.py::t[a b]")
    text = str(caught.value)
    assert "--- a.txt" in text
    assert "\n-two\n+three\n" in text
    assert "pytest --bless 'tests/x.py::t[a b]'" in text


def test_missing_file_fails(tmp_path):
    with pytest.raises(pytest.fail.Exception, match=r"\+one"):
        Goldens(tmp_path).check(tmp_path / "none.txt", "one\n", "t")


def test_folder_reports_every_file_and_stale_ones(tmp_path):
    (tmp_path / "a").write_text("1\n")
    (tmp_path / "old").write_text("1\n")
    with pytest.raises(pytest.fail.Exception) as caught:
        Goldens(tmp_path).check_folder(tmp_path, {"a": "2\n", "b": "3\n"}, "t")
    text = str(caught.value)
    assert "+2" in text
    assert "+3" in text
    assert "old is recorded and no longer made" in text
    assert text.count("pytest --bless") == 1


def test_bless_rewrites_and_lists(tmp_path):
    (tmp_path / "a").write_text("1\n")
    (tmp_path / "old").write_text("1\n")
    kept = Goldens(tmp_path, bless=True)
    kept.check_folder(tmp_path, {"a": "2\n", "b": "3\n"}, "t")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "2\n", "b": "3\n"}
    assert kept.changed == ["a (changed)", "b (new)", "old (removed)"]


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 4)])
def test_bless_is_refused_under_ci(ci, status):
    environment = {**os.environ, "CI": ci}
    command = [sys.executable, "-m", "pytest", "--bless", "--collect-only", "tests/test_bless.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert ("refused under CI" in done.stderr) == bool(ci)
