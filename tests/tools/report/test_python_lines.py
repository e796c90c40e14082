"""A report of a PyTorch model has the user's lines of Python beside the ops that were traced from them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tests.tools.report.jobs import ROOT, data_of

MODEL = ROOT / "examples" / "masked_loss.py"


def test_ops_have_the_lines_that_they_were_traced_from(tmp_path: Path):
    page = tmp_path / "report.html"
    command = ["report", f"{MODEL}:by_rows", "--pservers", "2", "--trainers", "2", "-o", str(page)]
    subprocess.run([sys.executable, "-m", "pstranspile", *command], check=True, capture_output=True)
    programs = data_of(page.read_text())["programs"]
    source = programs["machines"][0]
    lines = MODEL.read_text().split("\n")
    assert all(file == str(MODEL) and text == lines[line - 1].strip() for file, line, text in source["code"])
    texts = [source["code"][at][2] for at in source["code_of"] if at >= 0]
    assert "return (losses.sum(1) / (tags != 0).sum(1)).mean()" in texts
    assert "return self.tags(self.words(words).tanh())" in texts
