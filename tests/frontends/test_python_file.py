"""The input `FILE.py:NAME`: a function of a user's file gives the program, and the values that it starts with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main
from pstranspile.tools.cli.common import begun_on_machines

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = ("--pservers", "2", "--trainers", "2")

FILE = f'''
from dataclasses import replace

import numpy as np

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Momentum, minimize
from pstranspile.ir.model import FrozenMap


def training():
    """A program with values of its own to start with, and a batch as an example."""
    print("made")
    module = ps.load({str(EXAMPLES / "mnist_mlp.ir")!r})
    draw = np.random.default_rng(7)
    shape = module.main.main_block.vars["fc_0.w_0"].shape
    start = {{"fc_0.w_0": draw.normal(size=shape).astype("f4")}}
    example = {{"img": draw.normal(size=(4, 784)).astype("f4"), "label": np.array([[1], [2], [3], [9]])}}
    return replace(module, start=FrozenMap(start), example=FrozenMap(example))


module = ps.load({str(EXAMPLES / "mnist_mlp.ir")!r})


class Traced:
    """What a frontend gives: an object with a module."""

    module = module


traced = Traced()


def failing():
    return helper([])


def helper(items):
    return items[3]


def number():
    return 3


def ending():
    raise SystemExit(4)


def loader(rank, trainers):
    """Batches of two rows for each of the trainers."""
    draw = np.random.default_rng(5)
    for _ in range(3):
        img, label = draw.normal(size=(4, 784)).astype("f4"), draw.integers(0, 10, (4, 1))
        yield {{"img": np.array_split(img, trainers)[rank], "label": np.array_split(label, trainers)[rank]}}


def pairs(rank, trainers):
    """The same batches without names."""
    for batch in loader(rank, trainers):
        yield batch["img"], batch["label"]


def warm():
    """A program with a momentum that is not zero to start with."""
    draft = L.Draft(seed=3)
    loss = L.mean(L.square_error_cost(L.fc(L.data(draft, "x", [-1, 20]), 1), L.data(draft, "y", [-1, 1])))
    minimize(loss, Momentum(0.1, 0.9))
    module = draft.module()
    held = [var for var in module.main.main_block.vars.values() if "velocity" in var.name]
    return replace(module, start=FrozenMap({{var.name: np.full(var.shape, 0.5, "f4") for var in held}}))


def rows(rank, trainers):
    draw = np.random.default_rng(5)
    for _ in range(3):
        x, y = draw.normal(size=(4, 20)).astype("f4"), draw.normal(size=(4, 1)).astype("f4")
        yield {{"x": np.array_split(x, trainers)[rank], "y": np.array_split(y, trainers)[rank]}}


def forgetful(rank, trainers):
    loader(rank, trainers)


once = loader(0, 1)


def shared(rank, trainers):
    return once


def empty(rank, trainers):
    return []


def without():
    return []


def endless(rank, trainers):
    while True:
        yield from loader(rank, trainers)


def stumbling(rank, trainers):
    yield from loader(rank, trainers)
    raise ValueError("no more")
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "model_of_a_user", raising=False)
    Path("model_of_a_user.py").write_text(FILE)
    yield "model_of_a_user.py"
    sys.modules.pop("model_of_a_user", None)


def test_a_function_a_module_and_what_has_a_module_are_taken(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = ps.load(EXAMPLES / "mnist_mlp.ir")
    for name in ("training", "module", "traced"):
        assert ps.load(f"{file}:{name}") == expected
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "made\n"


def test_what_is_wrong_is_told_at_the_line(file: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        ps.load(f"{file}:failing")
    (found,) = caught.value.diagnostics
    assert found.code == "input-python"
    assert found.message == "IndexError: list index out of range"
    lines = FILE.splitlines()
    assert found.location is not None
    assert (found.location.file, lines[found.location.line - 1]) == (file, "    return items[3]")
    assert [lines[note.location.line - 1] for note in found.notes if note.location] == ["    return helper([])"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trainin", "it has no trainin; did you mean training?"),
        ("zzz", "it has no zzz; it has "),
        ("number", "number gives a value of type int; what pstranspile.torch.trace gives is needed"),
        ("ending", "it ends the process (status 4)"),
    ],
)
def test_names_that_give_no_program(file: str, name: str, message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        ps.load(f"{file}:{name}")
    assert message in caught.value.diagnostics[0].message
    assert caught.value.diagnostics[0].code == "input-python"


def test_files_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text("def training(:\n")
    Path("folder.py").mkdir()
    for given, told in (
        ("gone.py:training", "gone.py: error[input-unreadable]: there is no such file"),
        ("folder.py:training", "folder.py: error[input-unreadable]: this is a folder"),
        ("wrong.py:training", "wrong.py:1:14: error[input-python]: SyntaxError"),
    ):
        assert main(["plan", given, *JOB]) == 1
        assert told in capsys.readouterr().err
    assert main(["plan", "wrong.py:training", *JOB, "--startup", "startup.pb"]) == 1
    assert "no file of it can be given" in capsys.readouterr().err


def test_a_file_that_is_called_so_is_read_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py:b").write_text((EXAMPLES / "regression.ir").read_text())
    assert ps.load("a.py:b") == ps.load(EXAMPLES / "regression.ir")


def test_check_begins_with_the_values_and_makes_data_like_the_example(file: str) -> None:
    module = ps.load(f"{file}:training")
    seen: list[ps.Report] = [ps.check(module, ps.Job(pservers=2, trainers=2)) for _ in range(2)]
    assert seen[0].holds
    assert seen[0] == seen[1]


def test_every_verb_starts_with_the_values(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = f"{file}:training"
    draw = np.random.default_rng(1)
    np.savez("data.npz", img=draw.normal(size=(2, 4, 784)).astype("f4"), label=draw.integers(0, 10, (2, 4, 1)))
    feed = ("--feed", "data.npz")
    module = ps.load(given)
    np.savez("start.npz", **module.start)
    assert main(["run", str(EXAMPLES / "mnist_mlp.ir"), *feed, "--init", "start.npz", "--save", "expected.npz"]) == 0
    assert main(["run", given, *feed, "--save", "single.npz"]) == 0
    expected, single = dict(np.load("expected.npz")), dict(np.load("single.npz"))
    assert expected.keys() == single.keys()
    assert all(np.array_equal(expected[name], single[name]) for name in expected)
    assert main(["run", given, *JOB, *feed, "--save", "cluster.npz"]) == 0
    assert main(["launch", given, *JOB, *feed, "--save", "processes.npz"]) == 0
    assert main(["compile", given, *JOB, "-o", "out"]) == 0
    assert "start.npz with the values that it starts with" in capsys.readouterr().err
    assert main(["launch", "out", *feed, "--save", "folder.npz"]) == 0
    cluster = dict(np.load("cluster.npz"))
    for name in ("processes.npz", "folder.npz"):
        other = dict(np.load(name))
        assert all(np.array_equal(other[key], cluster[key]) for key in cluster if key.startswith("param/"))
    np.testing.assert_allclose(cluster["param/fc_0.w_0"], expected["param/fc_0.w_0"], rtol=1e-4, atol=1e-5)
    for verb in ("verify", "report", "explain"):
        assert main([verb, "out"] if verb != "report" else [verb, "out", "-o", "page.html"]) == 0
    assert main(["check", given, *JOB]) == 0
    capsys.readouterr()


def test_a_program_of_a_python_file_is_written_as_text(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = f"{file}:training"
    assert main(["import", given, "-o", "net.ir"]) == 2
    told = capsys.readouterr().err
    assert "the model holds 1 start value; --params FILE.npz says where they go" in told
    assert not Path("net.ir").exists()
    assert main(["import", given, "-o", "net.ir", "--params", "start.npz"]) == 0
    assert "what does it compute?  pstranspile run net.ir --init start.npz --feed FILE.npz" in capsys.readouterr().err
    assert main(["diff", "net.ir", given]) == main(["fmt", "--check", "net.ir"]) == 0
    with np.load("start.npz") as values:
        assert values["fc_0.w_0"].tobytes() == ps.load(given).start["fc_0.w_0"].tobytes()
    assert main(["import", f"{file}:module", "-o", "net.ir", "--params", "start.npz"]) == 2
    assert f"{file}:module gives none" in capsys.readouterr().err
    assert main(["fmt", given]) == 1
    assert "error[input-format]: this is no file of text; pstranspile import" in capsys.readouterr().err


def test_values_of_an_earlier_compile_do_not_stay(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", f"{file}:training", *JOB, "-o", "out"]) == 0
    assert json.loads(Path("out/plan.json").read_text())["start"] == "start.npz"
    before = Path("out/start.npz").read_bytes()
    assert main(["compile", f"{file}:training", *JOB, "-o", "out"]) == 0
    assert Path("out/start.npz").read_bytes() == before
    assert main(["compile", f"{file}:module", *JOB, "-o", "out"]) == 0
    assert "removed, of the earlier compile: start.npz" in capsys.readouterr().err
    assert not Path("out/start.npz").exists()
    Path("out/start.npz").write_bytes(b"mine")
    assert main(["compile", f"{file}:module", *JOB, "-o", "out"]) == 0
    assert Path("out/start.npz").read_bytes() == b"mine"
    assert main(["compile", f"{file}:training", *JOB, "-o", "out"]) == 1
    assert Path("out/start.npz").read_bytes() == b"mine"
    capsys.readouterr()


def test_a_job_whose_values_are_gone_is_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", f"{file}:training", *JOB, "-o", "out"]) == 0
    Path("out/start.npz").unlink()
    capsys.readouterr()
    assert main(["launch", "out"]) == 1
    assert "start.npz, with the values that the job starts with, is missing" in capsys.readouterr().err


def test_a_function_gives_each_trainer_its_batches(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = f"{file}:training"
    assert main(["run", given, "--feed", f"{file}:loader", "--save", "single.npz"]) == 0
    assert main(["run", given, *JOB, "--feed", f"{file}:loader", "--save", "cluster.npz"]) == 0
    assert main(["run", given, *JOB, "--feed", f"{file}:pairs", "--save", "pairs.npz"]) == 0
    assert main(["launch", given, *JOB, "--feed", f"{file}:pairs", "--save", "processes.npz"]) == 0
    assert main(["check", given, *JOB, "--feed", f"{file}:loader"]) == 0
    capsys.readouterr()
    cluster, single = dict(np.load("cluster.npz")), dict(np.load("single.npz"))
    assert len(single["step/mean_0.tmp_0"]) == 3
    np.testing.assert_allclose(cluster["param/fc_0.w_0"], single["param/fc_0.w_0"], rtol=1e-4, atol=1e-5)
    for name in ("pairs.npz", "processes.npz"):
        other = dict(np.load(name))
        assert all(np.array_equal(other[key], cluster[key]) for key in cluster if key.startswith("param/"))


def test_what_is_wrong_with_a_loader_is_told(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = str(EXAMPLES / "mnist_mlp.ir")
    assert main(["run", program, "--feed", f"{file}:stumbling"]) == 1
    assert "error[input-python]: ValueError: no more" in capsys.readouterr().err
    assert main(["run", program, "--feed", f"{file}:pairs"]) == 1
    assert "inputs whose order is not known (--names)" in capsys.readouterr().err
    assert main(["run", program, "--feed", f"{file}:pairs", "--names", "img,label"]) == 0
    assert main(["run", program, "--feed", f"{file}:loader", "--batch", "4"]) == 2
    assert "--batch is about rows; the function" in capsys.readouterr().err


def test_a_run_with_a_loader_goes_on(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("run", f"{file}:training", *JOB, "--feed", f"{file}:loader")
    assert main([*given, "--save", "whole.npz"]) == 0
    assert main([*given, "--steps", "2", "--checkpoint", "kept"]) == 0
    assert main([*given, "--resume", "kept", "--save", "resumed.npz"]) == 0
    whole, resumed = dict(np.load("whole.npz")), dict(np.load("resumed.npz"))
    assert all(np.array_equal(whole[key], resumed[key]) for key in whole if key.startswith("param/"))
    capsys.readouterr()


@pytest.mark.parametrize("command", [("run",), ("run", *JOB), ("check", *JOB), ("launch", *JOB)])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("forgetful", "it returns a value of type NoneType; batches are needed"),
        ("empty", "it gives no batches"),
        ("without", "it is called with the number of a trainer and how many there are"),
        ("module", "module is a value of type Module; a function is needed"),
    ],
)
def test_functions_that_give_no_batches(
    file: str, command: tuple[str, ...], name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *job = command
    assert main([verb, str(EXAMPLES / "mnist_mlp.ir"), *job, "--feed", f"{file}:{name}"]) == 1
    err = capsys.readouterr().err
    assert told in err


def test_states_of_optimizers_reach_the_servers(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = (f"{file}:warm", "--feed", f"{file}:rows")
    for name, command in (("single", ("run",)), ("cluster", ("run", *JOB)), ("processes", ("launch", *JOB))):
        assert main([command[0], *given, *command[1:], "--save", f"{name}.npz"]) == 0
    single, cluster, processes = (dict(np.load(f"{name}.npz")) for name in ("single", "cluster", "processes"))
    parameters = [name for name in single if name.startswith("param/")]
    assert parameters
    for name in parameters:
        assert np.array_equal(processes[name], cluster[name])
        np.testing.assert_allclose(cluster[name], single[name], rtol=1e-4, atol=1e-5)
    module = ps.load(given[0])
    trainer = ps.compile(module, ps.Job(pservers=2, trainers=2)).trainer(0)
    assert begun_on_machines(None, trainer, module, start=module.start).keys() == module.start.keys()
    capsys.readouterr()


def test_batches_that_can_be_had_once(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where they are counted, none are left; the processes of a launch each import the file, and have their own."""
    program, feed = str(EXAMPLES / "mnist_mlp.ir"), ("--feed", f"{file}:shared")
    for verb, *job in (("run",), ("run", *JOB), ("check", *JOB)):
        sys.modules.pop("model_of_a_user", None)
        assert main([verb, program, *job, *feed]) == 1
        assert "when it was called once more" in capsys.readouterr().err
    sys.modules.pop("model_of_a_user", None)
    assert main(["launch", program, *JOB, *feed]) == 0
    assert capsys.readouterr().out.count("trainer_1") == 3


def test_batches_without_an_end(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, feed = str(EXAMPLES / "mnist_mlp.ir"), ("--feed", f"{file}:endless")
    assert main(["run", program, *feed, "--steps", "4"]) == 0
    assert "counted" not in capsys.readouterr().err
    assert main(["check", program, *JOB, *feed]) == 0
    captured = capsys.readouterr()
    assert "5 steps" in captured.out
    assert "endless: its batches are counted first; --steps N spares that" in captured.err


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 knows no columns")
def test_carets_stand_under_the_expression(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "net.py").write_text(
        "def net():\n    \u00fc = 1; raise_it(2)\n\n\ndef raise_it(x):\n    return x + []\n"
    )
    assert main(["check", f"{tmp_path / 'net.py'}:net"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(f"{tmp_path / 'net.py'}:6:12: error[input-python]: TypeError")
    assert told[1:3] == ["    6 |     return x + []", "      |            ^^^^^^"]
    assert told[4:6] == ["    2 |     \u00fc = 1; raise_it(2)", "      |            ^^^^^^^^^^^"]
