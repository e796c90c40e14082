"""Names that are spelt wrong: in Python, in options and in scripts, told with the nearest name that there is."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pstranspile as ps
from pstranspile.ir.diagnostics import nearest
from pstranspile.tools.cli import main

ROOT = Path(__file__).parents[1]
PROGRAM = str(ROOT / "examples" / "linear_regression.ir")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ps.Job(pserver=2), "Job has no argument 'pserver'; did you mean pservers?"),
        (lambda: ps.Data("x.csv", batchs=2), "Data has no argument 'batchs'; did you mean batch?"),
        (lambda: ps.Rows([], batch=1, epoch=2), "Rows has no argument 'epoch'; did you mean epochs?"),
        (lambda: ps.Cluster({}, fech=[]), "Cluster has no argument 'fech'; did you mean fetch?"),
        (lambda: ps.load("x.pb", startop="y"), "load has no argument 'startop'; did you mean startup?"),
        (lambda: ps.loads(txt=""), "loads has no argument 'txt'; did you mean text?"),
        (lambda: ps.compile(modul=1, job=2), "compile has no argument 'modul'; did you mean module?"),
        (lambda: ps.run(None, feeds={}), "run has no argument 'feeds'; did you mean feed?"),
        (lambda: ps.simulate(None, step=3), "simulate has no argument 'step'; did you mean steps?"),
        (lambda: ps.check(None, None, schedule=3), "check has no argument 'schedule'; did you mean schedules?"),
        (lambda: ps.verify(None, stric=True), "verify has no argument 'stric'; did you mean strict?"),
        (lambda: ps.compile(None, qqq=1), "compile has no argument 'qqq'; it takes module, job, plan, on_pass"),
        (lambda: ps.loads(qqq=1), "loads has no argument 'qqq'; it takes text"),
    ],
)  # fmt: skip
def test_arguments_of_public_functions(call: Callable[[], Any], says: str):
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value) == says


JOBS: list[tuple[Callable[..., Any], str]] = [(ps.compile, "mode"), (ps.check, "pservers"), (ps.prepare, "strict")]


@pytest.mark.parametrize(("called", "name"), JOBS, ids=lambda value: getattr(value, "__name__", value))
def test_an_argument_of_a_job_is_told_where_it_belongs(called: Callable[..., Any], name: str):
    with pytest.raises(TypeError) as raised:
        called(None, **{name: 2, "trainers": 2})
    belongs = f"Job has it: job=Job({name}=..., trainers=...)"
    assert str(raised.value) == f"{called.__name__} has no argument {name!r}; {belongs}"


def test_what_suggests_is_otherwise_the_same():
    assert pickle.loads(pickle.dumps(ps.compile)) is ps.compile
    job = ps.Job(pservers=2)
    assert pickle.loads(pickle.dumps(job)) == job
    assert type(job).__init__.__name__ == "__init__"
    with pytest.raises(TypeError, match=re.escape("compile takes a Module, not a value of type int")):
        ps.compile(module=1, job=job)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        ps.compile(module=1)  # type: ignore[call-arg]


def test_names_of_the_package():
    for wrong, right in {
        "complie": "compile",
        "job": "Job",
        "save_checkpoints": "save_checkpoint",
        "layer": "layers",
    }.items():
        with pytest.raises(AttributeError) as raised:
            getattr(ps, wrong)
        assert str(raised.value) == f"module 'pstranspile' has no attribute '{wrong}'; did you mean {right}?"
    with pytest.raises(AttributeError, match=r"has no attribute 'zzzz'$"):
        getattr(ps, "zzzz")  # noqa: B009 (types have no such name)
    assert not hasattr(ps, "__wrapped__")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("complie x", "there is no command 'complie'; did you mean compile?"),
        ("compile x --pservrs 2", "there is no option --pservrs; did you mean --pservers?"),
        ("compile x --servr_num 2", "there is no option --servr_num; did you mean --pservers?"),
        ("compile x --server_num 2", "there is no option --server_num; did you mean --pservers?"),
        ("launch x --worker_num 2", "there is no option --worker_num; did you mean --trainers?"),
        ("check x --no_dropuot", "there is no option --no_dropuot; did you mean --no-dropout?"),
        ("export x --to onx -o y", "argument --to: there is no 'onx'; did you mean onnx?"),
        ("export x --to zz -o y", "argument --to: there is no 'zz'; it takes pb, onnx, inference, mlir, dot, mermaid"),
        ("compile x --emit irr", "argument --emit: there is no 'irr'; did you mean ir?"),
        ("run x --arithmetic FLUID", "argument --arithmetic: there is no 'FLUID'; did you mean fluid?"),
        ("compile x --PSERVERS 2", "there is no option --PSERVERS; did you mean --pservers?"),
        ("run x --arithmetic fuid", "argument --arithmetic: there is no 'fuid'; did you mean fluid?"),
        ("run x --format parqet", "argument --format: there is no 'parqet'; did you mean parquet?"),
        ("run x --shares weigthed", "argument --shares: there is no 'weigthed'; did you mean weighted?"),
    ],
)
def test_options_and_choices(command: str, says: str, capsys: pytest.CaptureFixture[str]):
    assert main(command.split()) == 2
    assert f"error: {says}\n" in capsys.readouterr().err


def test_names_that_differ_in_capitals_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for fetch, verb in (
        ("MEAN_0.TMP_0", ["run"]),
        ("Y", ["run"]),
        ("Y", ["launch", "--trainers", "1", "--pservers", "1"]),
    ):
        assert main([verb[0], PROGRAM, *verb[1:], "--fetch", fetch]) == 1
        assert f"did you mean {fetch.lower()}?" in capsys.readouterr().err


def test_the_line_of_a_file_with_line_ends_of_windows_is_shown_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = Path(PROGRAM).read_text().replace("Y=%fc_0.w_0)", "Y=%fc_0.w0)")
    (tmp_path / "net.ir").write_bytes(text.replace("\n", "\r\n").encode())
    assert main(["verify", str(tmp_path / "net.ir")]) == 1
    assert "Out=%fc_0.tmp_0\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["onnx", "inference"])
def test_outputs_of_models(name: str, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("onnx")
    assert main(["export", PROGRAM, "--to", name, "--fetch", "fc_0.tmp1", "-o", "nowhere"]) == 1
    assert "the program declares no such variable; did you mean fc_0.tmp_1?" in capsys.readouterr().err


IMPORTS = {
    "import paddle.flud": "No module named 'paddle.flud'; did you mean paddle.fluid?",
    "import padle.fluid": "No module named 'padle'; did you mean paddle?",
    "import paddle.fluid.layer": "No module named 'paddle.fluid.layer'; did you mean paddle.fluid.layers?",
    "import paddle.distributed.flet": "; did you mean paddle.distributed.fleet?",
    "import paddle.nn.functonal": "No module named 'paddle.nn.functonal'; did you mean paddle.nn.functional?",
    "from paddle import flud": "; did you mean fluid?",
    "from paddle.fluid import layrs": "; did you mean layers?",
    "from paddle.fluid.layers import fcc": "; did you mean fc?",
}


@pytest.mark.parametrize("line", IMPORTS)
def test_modules_and_names_of_scripts(line: str, tmp_path: Path):
    (tmp_path / "s.py").write_text(f"{line}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pstranspile.fluid", "s.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(IMPORTS[line])
    assert done.stderr.count("did you mean") == 1


def test_modules_that_are_not_here_are_still_imported(tmp_path: Path):
    """They fail where they are used."""
    (tmp_path / "s.py").write_text("import paddle.geometric\nimport paddle.fluid.graphviz\nimport paddle.hub\n")
    done = subprocess.run(
        [sys.executable, "-m", "pstranspile.fluid", "s.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


FETCHED = """\
import numpy as np
import paddle.fluid as fluid
out = fluid.layers.mean(fluid.data("x", [None, 3]))
exe = fluid.Executor(fluid.CPUPlace())
exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=["mean_0.tmp0"])
"""


def test_a_fetch_list_of_a_script(tmp_path: Path):
    (tmp_path / "s.py").write_text(FETCHED)
    done = subprocess.run(
        [sys.executable, "-m", "pstranspile.fluid", "s.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "the program declares no such variable; did you mean mean_0.tmp_0?" in done.stderr


@pytest.mark.parametrize(
    ("given", "known", "found"),
    [
        ("sdg", ["sum", "sgd", "sin"], "sgd"),
        ("mlu", ["mul", "mle"], "mul"),
        ("SGD", ["sdg", "sgd"], "sgd"),
        ("ab", ["ba", "abc"], "ba"),
        ("abcd", ["dcba", "bcda"], "bcda"),
        ("sdg", ["xyz"], None),
        ("sgd", ["sgd"], "sgd"),
    ],
)
def test_letters_that_are_exchanged_are_nearest(given: str, known: list[str], found: str | None) -> None:
    assert nearest(given, known, 0.7) == found


def test_exchanged_letters_of_an_op_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "golden" / "linear_regression.ir").read_text()
    assert "sgd(Param=" in text
    (tmp_path / "net.ir").write_text(text.replace("sgd(Param=", "sdg(Param="))
    assert main(["verify", str(tmp_path / "net.ir")]) == 1
    assert "did you mean `sgd`?" in capsys.readouterr().err
