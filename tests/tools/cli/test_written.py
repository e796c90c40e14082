"""Commands say what they have written, where, and what comes next; and of an interrupted one, what is missing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.tools.cli import main

JOB = ["--pservers", "1", "--trainers", "2"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draft = L.Draft(seed=7)
    x, y = L.data(draft, "x", [-1, 3]), L.data(draft, "y", [-1, 1])
    loss = L.mean(L.square_error_cost(L.fc(x, 1), y))
    Path("forward.ir").write_text(ps.dumps(draft.module()))
    minimize(loss, SGD(0.1))
    Path("net.ir").write_text(ps.dumps(draft.module()))
    module = draft.module()
    Path("one.ir").write_text(ps.dumps(ps.Module({"main": module.main})))


GRAD = ["grad", "forward.ir", "--loss", "mean_0.tmp_0", "--optimizer", "adam"]
MODEL = ["export", "net.ir", "--fetch", "fc_0.tmp_1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*GRAD, "-o", "a.ir"], "a.ir: a training program, which trains 2 parameters with adam\n... check a.ir "),
        (["report", "net.ir", *JOB, "-o", "a.html"], "a.html: a page of the job net.ir (sync), to be opened in a "),
        (["export", "net.ir", "--to", "pb", "-o", "a"], "a: ProgramDescs: main.pb, startup.pb, meta.json\n... import "),
        (["export", "net.ir", "--to", "dot", "-o", "a"], "a: a graph for Graphviz: main.dot, startup.dot\n... dot "),
        (["export", "net.ir", "--to", "mermaid", "-o", "a"], "a: a graph for Mermaid: main.mmd, startup.mmd\n...mmdc "),
        (["export", "net.ir", "--to", "mlir", "-o", "a"], "a: MLIR: module.mlir\n... a/module.mlir"),
        ([*MODEL, "--to", "inference", "-o", "a"], "a: an inference model: __model__, and a file for each of 2 para"),
        (["run", "net.ir", "--feed", "d.npz", "--save", "a.npz"], "a.npz: the fetched values and the final parameters"),
        (["diff", "net.ir", "net.ir", "--html", "a.html"], "a.html: a page of the differences"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_what_is_written_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    np.savez("d.npz", x=np.ones((1, 2, 3), "float32"), y=np.ones((1, 2, 1), "float32"))
    assert main(arguments) == 0
    first, _, then = told.partition("\n...")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(first)
    assert then.strip() in "\n".join(lines[1:])


def test_what_is_imported_is_told(capsys: pytest.CaptureFixture[str]):
    assert main(["export", "net.ir", "--to", "pb", "-o", "pb"]) == 0
    command = capsys.readouterr().err.partition("pstranspile ")[2].split()
    assert command[0] == "import"
    assert main(command) == 0  # the next step that is named works
    assert main([*command, "-o", "again.ir"]) == 0
    told = "again.ir: the text of @main and @startup\nis it well formed?  pstranspile verify again.ir\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("option", [["-o", "-"], []])
def test_of_stdout_nothing_is_told(option: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*GRAD, *option]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert ps.loads(told.out)
    assert main(["report", "net.ir", *JOB, "-o", "-"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("form", "name"), [("mlir", "net.mlir"), ("dot", "net.dot"), ("dot", "net.GV"), ("mermaid", "net.mmd")]
)
def test_a_single_file_has_the_name_that_is_given(form: str, name: str, capsys: pytest.CaptureFixture[str]):
    assert main(["export", "one.ir", "--to", form, "-o", "folder"]) == 0
    assert main(["export", "one.ir", "--to", form, "-o", name]) == 0
    (made,) = Path("folder").iterdir()
    assert Path(name).read_bytes() == made.read_bytes()
    assert f"{name}: " in capsys.readouterr().err
    assert main(["export", "one.ir", "--to", form, "-o", f"{name}2/"]) == 0
    Path("x.dot").write_text("my own words")
    if form == "dot":
        assert main(["export", "one.ir", "--to", form, "-o", "x.dot"]) == 1
        assert Path("x.dot").read_text() == "my own words"


def test_an_onnx_model_is_a_file(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("onnx")
    assert main([*MODEL, "--to", "onnx", "-o", "made/net.onnx"]) == 0
    assert Path("made/net.onnx").read_bytes()[:1] == b"\x08"
    assert "made/net.onnx: an ONNX model (made the folder made)\n" in capsys.readouterr().err
    assert main(["import", "made/net.onnx", "--params", "p.npz", "-o", "again.ir"]) == 0
    assert "p.npz: the model's 2 parameters, for --init of run and check\n" in capsys.readouterr().err
    Path("old.onnx").mkdir()
    assert main([*MODEL, "--to", "onnx", "-o", "old.onnx"]) == 0  # a folder that is there stays one
    assert Path("old.onnx/main.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["export", "net.ir", "--to", "dot", "-o", "a.dot"], "there are 2 to write: main.dot, startup.dot; name a fol"),
        (["export", "net.ir", "--to", "pb", "-o", "a.pb"], "--to pb writes several; name a folder (a.pb/ is one)"),
        ([*MODEL, "--to", "inference", "-o", "a.pdmodel"], "--to inference writes several; name a folder"),
        (
            ["export", "net.ir", "--to", "mlir", "-o", "a.onnx"],
            "the file of --to mlir ends in .mlir; any other name is",
        ),
        (["compile", "net.ir", *JOB, "-o", "a.ir"], "a.ir is the name of a file, and more than one is written; name a"),
        (["rows", "kept", "words", "-o", "a.npz"], "a.npz is the name of a file, and more than one is written"),
    ],
)
def test_no_folder_has_the_name_of_a_file_by_mistake(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    before = sorted(Path().iterdir())
    assert main(arguments) == 2
    assert told in capsys.readouterr().err
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["compile", "net.ir", *JOB, "-o"], "out"),
        (["export", "net.ir", "--to", "mlir", "-o"], "out"),
        ([*GRAD, "-o"], "a.ir"),
        (["report", "net.ir", *JOB, "-o"], "a.html"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_folders_that_are_missing_are_made_and_told(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
):
    assert main([*arguments, f"no/such/{name}"]) == 0
    assert " (made the folder no)\n" in capsys.readouterr().err
    assert main([*arguments, f"no/such/{name}"]) == 0
    assert "made the folder" not in capsys.readouterr().err


@pytest.mark.parametrize("in_place", [False, True])
def test_files_of_others_in_an_output_folder_are_told(
    in_place: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    command = ["compile", str(Path("net.ir").absolute()), *JOB]
    assert main([*command, "-o", "out"]) == 0
    assert "left as" not in capsys.readouterr().err
    for name in ("thesis.txt", "trainer_7.ir", "c", "d", "e", "f"):
        Path("out", name).write_text("mine")
    folder = "out"
    if in_place:
        monkeypatch.chdir("out")
        folder = "."
    smaller = [*command[:-1], "1", "-o", folder]
    assert main(smaller) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"pstranspile compile: {folder}: removed, of the earlier compile: trainer_1.ir"
    assert told[1] == f"{folder}: left as it was, being none of this command's: c, d, e, f and 2 more"
    assert main(["export", command[1], "--to", "mlir", "-o", folder]) == 0
    assert "left as it was, being none of this command's: c, d, e, f and 5 more" in capsys.readouterr().err
    assert Path(folder, "trainer_7.ir").read_text() == "mine"


STOPPED = """
import sys, time
import {module} as where
real = where.{name}
def stopping(*given, **named):
    result = real(*given, **named)
    print("at work", flush=True)
    time.sleep(100)
    return result
where.{name} = stopping
from pstranspile.__main__ import main
sys.exit(main())
"""
LOADED = STOPPED.format(module="pstranspile.frontends.loading", name="load")
WRITING = STOPPED.format(module="pstranspile.runtime.files.outputs", name="_write")


def interrupted(script: str, number: int, arguments: list[str]) -> tuple[int, str]:
    """The exit status, and what is told, of a command that gets a signal at the place where a script stops it."""
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    return process.returncode, told


@pytest.mark.parametrize("script", [LOADED, WRITING], ids=["loaded", "writing"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "net.ir", *JOB, "-o", "new/a.html"],
        ["compile", "net.ir", *JOB, "-o", "new/out"],
        ["export", "net.ir", "--to", "mlir", "-o", "new/out"],
        ["import", "net.ir", "-o", "new/a.ir"],
        [*GRAD, "-o", "new/a.ir"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_interrupted_command_says_what_is_missing(arguments: list[str], number: int, script: str):
    before = {path: path.read_bytes() for path in Path().rglob("*.ir")}
    told = f"interrupted: {arguments[-1]} was not written\n"
    assert interrupted(script, number, arguments) == (128 + number, told)
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    assert not Path("new").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_has_no_verdict(number: int):
    told = "interrupted: the check has come to no verdict\n"
    assert interrupted(LOADED, number, ["check", "net.ir", *JOB]) == (128 + number, told)


def test_a_page_tells_the_verdict_of_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that trainers can't share evenly train another model, unless shares are weighted."""
    report = ["report", "net.ir", *JOB, "--check", "-o", "page.html"]
    assert main(report) == 0
    assert "the cluster trains as the single machine does\n" in capsys.readouterr().err
    assert main([*report, "--batch", "3"]) == 1
    assert "DIFFERENT" in capsys.readouterr().err
    assert Path("page.html").stat().st_size


@pytest.mark.parametrize("option", ["--save", "--trace", "--checkpoint", "--init"])
def test_no_file_is_called_as_stdin_and_stdout_are(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "net.ir", *JOB, "--steps", "1", option, "-"]) == 2
    assert f"{option} takes the name of a file or folder, not - (./- is" in capsys.readouterr().err
    assert not Path("-").exists()


def test_a_model_for_inference_is_read_back() -> None:
    np.savez("data.npz", x=np.ones((1, 2, 3), "float32"), y=np.ones((1, 2, 1), "float32"))
    np.savez("rows.npz", x=np.ones((1, 2, 3), "float32"))
    assert main(["run", "net.ir", "--feed", "data.npz", "--save", "trained.npz"]) == 0
    assert main([*MODEL, "--to", "inference", "--from", "trained.npz", "-o", "model"]) == 0
    asked = ["--feed", "rows.npz", "--fetch", "fc_0.tmp_1", "--save"]
    assert main(["run", "model/__model__", "--init", "model", *asked, "served.npz"]) == 0
    assert (
        main(["export", "net.ir", "--fetch", "fc_0.tmp_1", "--to", "inference", "--from", "model", "-o", "again"]) == 0
    )
    names = sorted(path.name for path in Path("model").iterdir())
    assert names == sorted(path.name for path in Path("again").iterdir())
    assert all(Path("model", name).read_bytes() == Path("again", name).read_bytes() for name in names)
