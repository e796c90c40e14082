"""Programs that a Fluid script gives away keep the lines of the script that made their ops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pstranspile.tools.cli import main
from tests.conftest import ROOT

SCRIPT = """import paddle.fluid as fluid
from nets import hidden

x = fluid.layers.data("x", [3])
y = fluid.layers.data("y", [1])
norm = fluid.layers.batch_norm(hidden(x))
guess = fluid.layers.fc(norm, 1)
loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
fluid.optimizer.Adam(0.1).minimize(loss)
number = fluid.layers.fill_constant([1], "int64", 0)
limit = fluid.layers.fill_constant([1], "int64", 3)
going = fluid.layers.less_than(number, limit)
loop = fluid.layers.While(going)
with loop.block():
    fluid.layers.increment(number)
    fluid.layers.less_than(number, limit, cond=going)
main = fluid.default_main_program()
open("main.pb", "wb").write(main.desc.serialize_to_string())
open("startup.pb", "wb").write(fluid.default_startup_program().desc.serialize_to_string())
again = fluid.Program.parse_from_string(main.desc.serialize_to_string())
open("again.pb", "wb").write(again.desc.serialize_to_string())
executor = fluid.Executor(fluid.CPUPlace())
executor.run(fluid.default_startup_program())
fluid.io.save_inference_model("model", ["x"], [guess], executor)
print(main.global_block().ops[0].attr("op_callstack")[-1])
"""
NETS = """import paddle.fluid as fluid


def hidden(x):
    return fluid.layers.fc(x, 4, act="tanh")
"""
JOB = ("--pservers", "2", "--trainers", "2")
MADE = [
    *[("mul", "nets.py:5"), ("elementwise_add", "nets.py:5"), ("tanh", "nets.py:5"), ("batch_norm", "train.py:6")],
    *[("mul", "train.py:7"), ("elementwise_add", "train.py:7"), ("square", "train.py:8"), ("mean", "train.py:8")],
    *[("square_grad", "train.py:8"), ("batch_norm_grad", "train.py:6"), ("tanh_grad", "nets.py:5")],
    *[("adam", "train.py:9"), ("less_than", "train.py:12"), ("while", "train.py:14"), ("increment", "train.py:15")],
]
"""Ops of the script, in their order, and the lines that made them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `pstranspile fluid --ir built` has run the script."""
    made = tmp_path_factory.mktemp("script")
    (made / "train.py").write_text(SCRIPT)
    (made / "nets.py").write_text(NETS)
    command = [sys.executable, "-m", "pstranspile", "fluid", "--ir", "built", "train.py"]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=made, env=here, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (made / "stdout").write_text(done.stdout)
    return made


def made_at(text: str) -> list[tuple[str, str]]:
    """The types of the ops in the text of a program, and the lines that made them, with the names of files alone."""
    lines = text.replace(",\n        ", ", ").split("program @startup")[0].splitlines()
    ops = [line.split() for line in lines if " @" in line and "->" in line]
    return [(words[0].partition("(")[0], words[-1].strip('"@').rpartition("/")[2].replace('"', "")) for words in ops]


def found_in_order(wanted: list[tuple[str, str]], there: list[tuple[str, str]]) -> bool:
    """Whether all that is wanted is there, in its order."""
    rest = iter(there)
    return all(one in rest for one in wanted)


def test_the_text_of_what_the_script_has_built_states_its_lines(folder: Path) -> None:
    assert found_in_order(MADE, made_at((folder / "built" / "script.ir").read_text()))


@pytest.mark.parametrize("name", ["main.pb", "again.pb"])
def test_a_serialized_program_keeps_the_lines(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert main(["import", name, "--startup", "startup.pb", "-o", f"{name}.ir"]) == 0
    assert found_in_order(MADE, made_at(Path(f"{name}.ir").read_text()))


def test_a_saved_model_keeps_the_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert main(["import", "model/__model__", "-o", "model.ir"]) == 0
    assert found_in_order(MADE[:6], made_at(Path("model.ir").read_text()))


def test_a_model_of_paddle_2_has_no_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import paddle\n"
        "paddle.enable_static()\n"
        'x = paddle.static.data("x", [-1, 3])\n'
        "guess = paddle.static.nn.fc(x, 1)\n"
        "executor = paddle.static.Executor()\n"
        "executor.run(paddle.static.default_startup_program())\n"
        'paddle.static.save_inference_model("model", [x], [guess], executor)\n'
    )
    done = [sys.executable, "-m", "pstranspile.fluid", str(script)]
    assert subprocess.run(done, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    written = (tmp_path / "model.pdmodel").read_bytes()
    assert b"fc_0.w_0" in written
    assert b"train.py" not in written


def test_a_script_sees_the_attribute_in_the_form_of_fluid(folder: Path) -> None:
    told = (folder / "stdout").read_text()
    assert told.startswith('  File "')
    assert told.rstrip().endswith('nets.py", line 5')


def test_a_plan_is_of_the_text_of_the_same_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of scripts are no part of what a program is."""
    monkeypatch.chdir(folder)
    text = Path("built/script.ir").read_text()
    plain = re.sub(r" @[^ ]+:\d+$", "", text, flags=re.MULTILINE)
    assert plain != text
    Path("plain.ir").write_text(plain)
    assert main(["plan", "plain.ir", *JOB, "-o", "plan.txt"]) == 0
    assert main(["compile", "built/script.ir", *JOB, "--plan", "plan.txt", "-o", "planned"]) == 0
    assert "plan-mismatch" not in capsys.readouterr().err


def test_lines_of_the_script_are_explained_and_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    text = Path("built/script.ir").read_text()
    assert main(["explain", "built/script.ir", *JOB, "--line", "train.py:6"]) == 0
    assert "batch_norm_grad(" in capsys.readouterr().out
    assert main(["check", "built/script.ir", *JOB]) == 1
    assert "train.py:6" in capsys.readouterr().out
    Path("broken.ir").write_text(text.replace("Out=%mean_0.tmp_0 ", "Out=%mean_0.gone ", 1))
    assert main(["verify", "broken.ir"]) == 1
    assert "\ntrain.py:8: note: made here" in capsys.readouterr().err
