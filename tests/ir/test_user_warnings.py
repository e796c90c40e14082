"""Warnings point at the line of whoever uses the package, however deep in it they are given."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pstranspile.ir.user_warnings import warn

PACKAGE = Path(__file__).parents[2] / "pstranspile"


def test_no_module_warns_in_another_way() -> None:
    """`warnings.warn` points as many calls up as somebody has counted once."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "warnings.warn" in text else ():
            named = node.attr if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
            if named in ("warn", "warn_explicit") and ast.unparse(node) == f"warnings.{named}":
                assert path == PACKAGE / "ir" / "user_warnings.py"


SCRIPT = """\
import numpy as np
import paddle.fluid as fluid

x = fluid.data("x", [None, 3])
y = fluid.data("y", [None, 1])
out = fluid.layers.fc(x, 1)
loss = fluid.layers.mean(fluid.layers.square_error_cost(out, y))
value, *_ = fluid.layers.auc(fluid.layers.softmax(out), fluid.layers.cast(y, "int64"))
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())

def save(**more):
    fluid.io.save_inference_model("model", ["x"], [value], exe, **more)  # line 13

save()
with fluid.program_guard(fluid.Program()):
    data = fluid.data("z", [None, 1])
    fluid.io.save_inference_model("none", ["z"], [data], exe)  # line 18
exe.run(fluid.Program())  # line 19
feed = {"x": np.ones((2, 3), "float32"), "y": np.ones((2, 1), "float32"), "w": 1}
exe.run(feed=feed, fetch_list=[loss])  # line 21
exe.run(fluid.CompiledProgram(fluid.default_main_program()), feed=feed, fetch_list=[loss])  # line 22
fluid.save(fluid.default_main_program(), "saved")
with fluid.device_guard("cpu"):
    fluid.layers.less_than(x, x, force_cpu=True)  # line 25
try:
    fluid.require_version("9")
except Exception:
    pass
fluid.ParallelExecutor(use_cuda=False, loss_name=loss.name, num_trainers=2)  # line 30
with fluid.profiler.profiler("CPU", profile_path="/dev/null/profile"):
    exe.run(feed=feed, fetch_list=[loss])  # line 32
"""


def test_warnings_point_at_the_script_s_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHONWARNINGS": "always"}
    command = [sys.executable, "-m", "pstranspile.fluid", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "Warning: " in line]
    assert all(line.startswith("train.py:") for line in told), done.stderr
    numbers = {int(line.split(":")[1]) for line in told}
    assert {13, 18, 19, 21, 22, 25, 30, 31, 32} >= numbers >= {13, 18, 19, 21, 22, 25, 30}


def test_the_innermost_line_of_the_user_is_taken() -> None:
    with pytest.warns(DeprecationWarning, match="old") as seen:
        warn("old", DeprecationWarning)
    assert seen[0].filename == __file__


def test_a_line_warns_once() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("again")
    assert len(seen) == 1
