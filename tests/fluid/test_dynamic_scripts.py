"""Scripts of 2.x that don't ask for static graphs are told that dynamic ones are not run; others are let be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])


def ran(folder: Path, script: str) -> tuple[int, str, str]:
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "pstranspile.fluid", "train.py"]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "print(paddle.ones([2]) + 1)",
        "x = paddle.to_tensor([1.0, 2.0])",
        "net = paddle.nn.Linear(4, 1)",
        "x = paddle.static.data('x', [None, 4], 'float32')",
        "y = paddle.nn.functional.relu(paddle.zeros([1]))",
        "layer = paddle.nn.Embedding(10, 3)",
        "paddle.static.create_parameter([2], 'float32')",
    ],
)
def test_the_first_line_that_makes_a_dynamic_graph_is_named(line: str, tmp_path: Path) -> None:
    status, out, errors = ran(tmp_path, f"import paddle\n\nprint('begun')\n{line}\n")
    assert (status, out) == (1, "begun\n")
    assert errors.startswith("train.py:4:1: error[script-dynamic]: dynamic graphs are not run: in Paddle 2.x, ")
    assert f"\n    4 | {line}\n" in errors
    assert "Traceback" not in errors


def test_the_line_is_that_of_a_module_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from paddle import nn\n\n\ndef build():\n    return nn.Linear(2, 3)\n")
    status, _, errors = ran(tmp_path, "from net import build\nbuild()\n")
    assert status == 1
    assert "net.py:5:5: error[script-dynamic]" in errors


@pytest.mark.parametrize(
    "script",
    [
        "import paddle\npaddle.enable_static()\nprint(type(paddle.ones([2])).__name__)",
        "import paddle.fluid as fluid\nprint(type(fluid.layers.fill_constant([2], 'float32', 1)).__name__)",
        "from paddle import fluid\nprint(type(fluid.layers.fill_constant([2], 'float32', 1)).__name__)",
        "import paddle\nx = paddle.fluid.layers.fill_constant([2], 'float32', 1)\nprint(type(x).__name__)",
        "import pstranspile.fluid as fluid\nprint(type(fluid.data('x', [2])).__name__)",
    ],
)
def test_static_graphs_are_built(script: str, tmp_path: Path) -> None:
    assert ran(tmp_path, script) == (0, "Variable\n", "")


def test_scripts_that_make_no_graph_are_let_be(tmp_path: Path) -> None:
    script = """
import numpy as np
import paddle
from paddle.io import BatchSampler, Dataset

class Rows(Dataset):
    def __getitem__(self, index):
        return index
    def __len__(self):
        return 4

class Net(paddle.nn.Layer):
    def forward(self, x):
        return x + 1

paddle.seed(3)
print(paddle.in_dynamic_mode(), [*BatchSampler(Rows(), batch_size=2)])
print([*paddle.batch(lambda: iter(range(3)), 2)()])
print(paddle.metric.Precision().name())
paddle.enable_static()
print(paddle.in_dynamic_mode())
"""
    assert ran(tmp_path, script) == (0, "True [[0, 1], [2, 3]]\n[[0, 1], [2]]\nprecision\nFalse\n", "")


def test_a_process_that_a_script_starts_says_so_itself(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import paddle\npaddle.ones([2])\n")
    script = "import subprocess, sys\nimport paddle\npaddle.enable_static()\n"
    script += "sys.exit(subprocess.call([sys.executable, 'other.py']))\n"
    status, _, errors = ran(tmp_path, script)
    assert status == 1
    assert "dynamic graphs are not run" in errors
