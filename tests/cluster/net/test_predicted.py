"""The command line of the benchmark of predictions."""

import subprocess
import sys
from pathlib import Path

import pytest

PREDICTED = Path(__file__).parents[3] / "benchmarks" / "predicted.py"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "'nope' is no model; there are mlp, "),
        (["mlp", "--memory"], "'mlp' is no model; there are parameters, "),
        (["--clusters", "2"], "'2' is no cluster, such as 2x1"),
        (["--modes", "fast"], "'fast' is not sync, async, geo or ddp"),
        (["--links", "quick"], "'quick' is no link, such as 1Gb,200us"),
    ],
)
def test_wrong_usage(words: list[str], said: str):
    found = subprocess.run([sys.executable, PREDICTED, *words], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert said in found.stderr
