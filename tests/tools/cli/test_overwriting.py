"""Commands replace what they have written, and nothing else: no input, no file of another kind, nothing of others."""

from __future__ import annotations

import os
import resource
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.tools.cli import main
from tests.cluster.checkpoint.jobs import feed, model
from tests.conftest import ROOT
from tests.devices import FULL

JOB = ["--pservers", "1", "--trainers", "1"]
MODEL = ["export", "net.ir", "--fetch", "fc_1.tmp_1", "--from", "kept/step_00000001", "--to"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(ps.dumps(model()))
    np.savez("data.npz", **{name: np.stack([value]) for name, value in feed(0).items()})
    Path("thesis").write_text("everything")


def content() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is told of a command that is refused; every file is as it was."""
    before = content()
    capsys.readouterr()
    assert main(arguments) == (2 if arguments[0] == "diff" else 1)
    assert content() == before
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "net.ir", "--feed", "data.npz", "--save", "net.ir"],
        ["run", "net.ir", "--feed", "data.npz", "--save", "./data.npz"],
        ["run", "net.ir", *JOB, "--feed", "data.npz", "--init", "start.npz", "--save", "start.npz"],
        ["run", "net.ir", *JOB, "--feed", "data.npz", "--trace", "net.ir"],
        ["run", "net.ir", "--config", "link.svg", "--feed", "data.npz", "--plot", "link.svg"],
        ["launch", "net.ir", *JOB, "--feed", "data.npz", "--save", "data.npz"],
        ["launch", "net.ir", *JOB, "--feed", "data.npz", "--record", "net.ir"],
        ["grad", "forward.ir", "--loss", "mean_0.tmp_0", "--optimizer", "sgd", "-o", "forward.ir"],
        ["import", "pb/main.pb", "--startup", "pb/startup.pb", "-o", "pb/startup.pb"],
        ["export", "pb/main.pb", "--startup", "pb/startup.pb", "--to", "pb", "-o", "pb"],
        ["compile", "jobs/trainer_0.ir", *JOB, "-o", "jobs"],
        ["report", "net.ir", *JOB, "-o", "net.ir"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_what_is_read_is_not_replaced(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["export", "net.ir", "--to", "pb", "-o", "pb"]) == 0
    np.savez("start.npz")
    Path("jobs").mkdir()
    shutil.copy("net.ir", "jobs/trainer_0.ir")
    shutil.copy("net.ir", "forward.ir")
    Path("job.toml").write_text("trainers = 1\n")
    os.symlink("job.toml", "link.svg")
    assert "error[output-unwritable]: is read, so it can't be written" in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["run", "net.ir", "--feed", "data.npz", "--save", "thesis"],
            "thesis: error[output-foreign]: it is there, and is ",
        ),
        (
            ["run", "net.ir", "--feed", "data.npz", "--plot", "t.svg"],
            "t.svg: error[output-foreign]: it is there, and is ",
        ),
        (["run", "net.ir", *JOB, "--feed", "data.npz", "--trace", "thesis"], "is no trace of a run; name another file"),
        (
            ["run", "net.ir", *JOB, "--feed", "data.npz", "--trace", "own.json"],
            "is no trace of a run; name another file",
        ),
        (
            ["launch", "net.ir", *JOB, "--feed", "data.npz", "--record", "own.json"],
            "is no record of a run; name another",
        ),
        (
            ["export", "net.ir", "--to", "pb", "-o", "own"],
            "own/meta.json: error[output-foreign]: it is there, and is no",
        ),
        (
            ["import", "net.ir", "-o", "list.md"],
            "list.md: error[output-foreign]: it is there, and is no text of a program",
        ),
        (["launch", "net.ir", *JOB, "--feed", "data.npz", "--save", "thesis"], "is no archive of arrays; name another"),
        (["report", "net.ir", *JOB, "-o", "data.npz"], "data.npz: error[output-foreign]: it is there, and is no page"),
        (
            ["diff", "net.ir", "net.ir", "--html", "thesis"],
            "thesis: error[output-foreign]: it is there, and is no page",
        ),
        (
            ["compile", "net.ir", *JOB, "-o", "plans"],
            "plans/plan.json: error[output-foreign]: it is there, and is no plan",
        ),
        (
            ["compile", "net.ir", *JOB, "-o", "roles"],
            "roles/trainer_0.ir: error[output-foreign]: it is there, and no plan",
        ),
        (
            ["import", "net.ir", "-o", "thesis"],
            "thesis: error[output-foreign]: it is there, and is no text of a program",
        ),
        (
            ["grad", "forward.ir", "--loss", "mean_0.tmp_0", "--optimizer", "sgd", "-o", "thesis"],
            "is no text of a prog",
        ),
        (
            ["run", "net.ir", *JOB, "--feed", "data.npz", "--chart", "thesis.txt"],
            "is no chart of messages; name another",
        ),
        (
            ["launch", "net.ir", *JOB, "--feed", "data.npz", "--record", "thesis"],
            "thesis: error[output-foreign]: it is ",
        ),
        (
            ["export", "net.ir", "--to", "pb", "-o", "mine"],
            "mine/main.pb: error[output-foreign]: it is there, and is no",
        ),
        (["export", "net.ir", "--to", "mlir", "-o", "mine"], "mine/module.mlir: error[output-foreign]: it is there"),
        (["export", "net.ir", "--to", "dot", "-o", "mine"], "mine/main.dot: error[output-foreign]: it is there"),
        (["export", "net.ir", "--to", "mermaid", "-o", "mine"], "mine/main.mmd: error[output-foreign]: it is there"),
        ([*MODEL, "onnx", "-o", "mine"], "mine/main.onnx: error[output-foreign]: it is there, and is no ONNX model"),
        ([*MODEL, "inference", "-o", "mine"], "mine/fc_0.w_0: error[output-foreign]: it is there, and is no file of a"),
        (
            [
                "export",
                "net.ir",
                "--to",
                "inference",
                "--fetch",
                "fc_1.tmp_1",
                "--from",
                "kept",
                "-o",
                "kept/step_00000001",
            ],
            "kept/step_00000001: error[output-foreign]: it is a checkpoint",
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_is_of_another_kind_is_not_replaced(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    for name in ("t.svg", "thesis.txt"):
        shutil.copy("thesis", name)
    shutil.copy("net.ir", "forward.ir")
    Path("mine").mkdir()
    for name in ("main.pb", "main.onnx", "module.mlir", "main.dot", "main.mmd", "fc_0.w_0"):
        Path("mine", name).write_text("\neverything else")
    for folder, name, text in (("plans", "plan.json", '{"rooms": 3}'), ("roles", "trainer_0.ir", "mine")):
        Path(folder).mkdir()
        Path(folder, name).write_text(text)
    Path("own").mkdir()
    for name in ("own.json", "own/meta.json"):
        Path(name).write_text('{"name": 1}')
    Path("list.md").write_text("# Shopping\n")
    assert main(["run", "net.ir", "--feed", "data.npz", "--checkpoint", "kept"]) == 0
    assert told in refused(capsys, *arguments)


def test_what_a_command_has_written_it_replaces():
    Path("empty").touch()
    assert main(["run", "net.ir", "--feed", "data.npz", "--checkpoint", "kept"]) == 0
    save = ["run", "net.ir", *JOB, "--feed", "data.npz", "--trace", "trace.json", "--save"]
    launch = ["launch", "net.ir", *JOB, "--feed", "data.npz", "--record", "record", "--trace", "trace.json"]
    assert [main(launch), main(launch)] == [0, 0]
    for name in ("out.npz", "out.npz", "empty"):
        assert main([*save, name]) == 0
    for turn in range(2):
        assert main(["report", "net.ir", *JOB, "-o", "page.html"]) == 0
        assert main(["compile", "net.ir", *JOB, "-o", "out"]) == 0
        assert main(["compile", "net.ir", *JOB, "--emit", "pb", "-o", "out"]) == 0
        for form in ("pb", "mlir", "dot", "mermaid"):
            assert main(["export", "net.ir", "--to", form, "-o", "pb"]) == 0
        for form in ("onnx", "inference"):
            assert main([*MODEL, form, "-o", "model"]) == 0
        assert main(["import", "net.ir", "-o", "other.ir"]) == 0
        Path("other.ir").write_text("# mine\n\n" + Path("other.ir").read_text())
        assert (
            main(["run", "net.ir", *JOB, "--feed", "data.npz", "--chart", "chart.txt", "--checkpoint", f"c{turn}"]) == 0
        )
    assert main(["compile", "out/trainer_0.main.pb", *JOB, "--startup", "out/trainer_0.startup.pb", "-o", "other"]) == 1


def test_a_smaller_job_removes_what_a_larger_one_has_left_and_says_so(capsys: pytest.CaptureFixture[str]):
    assert main(["compile", "net.ir", "--pservers", "2", "--trainers", "2", "-o", "out"]) == 0
    shutil.copy("thesis", "out/trainer_7.ir")
    shutil.copy("thesis", "out/notes.txt")
    capsys.readouterr()
    assert main(["compile", "net.ir", *JOB, "-o", "out"]) == 0
    told = "pstranspile compile: out: removed, of the earlier compile: pserver_1.ir, trainer_1.ir\n"
    assert told in capsys.readouterr().err
    assert sorted(os.listdir("out")) == ["notes.txt", "plan.json", "pserver_0.ir", "trainer_0.ir", "trainer_7.ir"]


@pytest.mark.parametrize("name", ["trainer_0.main.pb", "trainer_0.ir", "pserver_0.startup.pb"])
@pytest.mark.parametrize("emit", ["ir", "pb"])
def test_a_file_of_a_role_that_no_compile_has_written_stays(name: str, emit: str, capsys: pytest.CaptureFixture[str]):
    """Neither removed as what an earlier compile has left, nor replaced."""
    assert main(["compile", "net.ir", *JOB, "-o", "jobs"]) == 0
    Path("jobs", name).write_text("my own")
    told = refused(capsys, "compile", "net.ir", *JOB, "-o", "jobs", "--emit", emit)
    assert f"jobs/{name}: error[output-foreign]: it is there, and is no " in told


def test_states_that_servers_of_an_earlier_run_have_left(capsys: pytest.CaptureFixture[str]):
    """A new run does not begin with them: its trainers would be at the first step."""
    Path("states").mkdir()
    Path("states/pserver_0.kept").write_text("of another run")
    told = refused(capsys, "launch", "net.ir", *JOB, "--feed", "data.npz", "--state", "states")
    assert "states/pserver_0.kept: error[cluster-kept]: an earlier run has left it, from which trainers can't" in told
    os.rename("states/pserver_0.kept", "states/mine")
    assert main(["launch", "net.ir", *JOB, "--feed", "data.npz", "--state", "states"]) == 0
    assert os.listdir("states") == ["mine"]


def test_rows_take_the_place_of_no_checkpoint(capsys: pytest.CaptureFixture[str]):
    draft = L.Draft(seed=7)
    ids = L.data(draft, "ids", [-1, 1], "i64")
    words = L.embedding(ids, [50, 4], is_sparse=True, param_attr=L.ParamAttr(name="words"))
    minimize(L.mean(L.fc(words, 1)), SGD(0.05))
    Path("words.ir").write_text(ps.dumps(draft.module()))
    np.savez("ids.npz", ids=np.arange(4).reshape(1, 4, 1))
    job = ["--pservers", "1", "--set", "large_tables=words", "--feed", "ids.npz"]
    assert main(["run", "words.ir", *job, "--checkpoint", "kept"]) == 0
    told = refused(capsys, "rows", "kept", "words", "-o", "kept/step_00000001")
    assert "kept/step_00000001: error[" in told
    assert "it is a checkpoint; name another folder for rows" in told


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_a_plan_that_is_no_file_is_not_waited_for(what: str, capsys: pytest.CaptureFixture[str]):
    Path("out").mkdir()
    if what == "pipe":
        os.mkfifo("out/plan.json")
    else:
        os.symlink("/dev/zero", "out/plan.json")
    told = refused(capsys, "compile", "net.ir", *JOB, "-o", "out")
    assert "it is a pipe or a device, a file is needed" in told


FOREIGN: dict[str, tuple[list[str], str, bytes]] = {
    "an empty object": (["compile", "net.ir", *JOB, "-o", "out"], "out/plan.json", b"{}"),
    "a plan of a house": (
        ["compile", "net.ir", *JOB, "-o", "out"],
        "out/plan.json",
        b'{"version": 1, "source": "architect", "mode": "sync", "pservers": "", "trainers": 1}',
    ),
    "a machine of no job": (
        ["compile", "net.ir", "--trainers", "2", *JOB[:2], "-o", "job"],
        "job/trainer_1.ir",
        b"mine",
    ),
    "a document": (["run", "net.ir", "--feed", "data.npz", "--save", "thesis.docx"], "thesis.docx", b""),
    "a figure of another": (
        ["run", "net.ir", "--feed", "data.npz", "--plot", "figure.png"],
        "figure.png",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01",
    ),
    "a page of another": (["report", "net.ir", *JOB, "-o", "index.html"], "index.html", b"<!DOCTYPE html>\n<html>"),
    "a drawing of another": (
        ["run", "net.ir", *JOB, "--feed", "data.npz", "--chart", "logo.svg"],
        "logo.svg",
        b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    ),
    "a programme": (["import", "net.ir", "-o", "evening"], "evening", b"program of the evening\n"),
    "settings": (["export", "net.ir", "--to", "pb", "-o", "pb"], "pb/meta.json", b'{"random_seed": 3}'),
    "another message": (["export", "net.ir", "--to", "pb", "-o", "pb"], "pb/main.pb", b"\n\x03abc\x10\x01"),
    "another model": (
        [*MODEL, "onnx", "-o", "net.onnx"],
        "net.onnx",
        b"\x08\x07\x12\x07pytorch",
    ),
    "a graph": (["export", "net.ir", "--to", "dot", "-o", "drawn"], "drawn/main.dot", b"digraph family {\n a -> b\n}"),
    "a flowchart": (
        ["export", "net.ir", "--to", "mermaid", "-o", "drawn"],
        "drawn/main.mmd",
        b"flowchart LR\n  a --> b\n",
    ),
    "another dialect": (
        ["export", "net.ir", "--to", "mlir", "-o", "drawn"],
        "drawn/module.mlir",
        b'"builtin.module"() ({\n  "func.func"() ({',
    ),
    "zeros": ([*MODEL, "inference", "-o", "model"], "model/fc_0.w_0", bytes(4) + b"many of them"),
    "a plan of something": (["plan", "net.ir", *JOB, "-o", "holidays"], "holidays", b"plan the holidays\n"),
    "JSON of something": (["plan", "net.ir", *JOB, "--json", "-o", "holidays"], "holidays", b"{}"),
    "the other form of a plan": (["plan", "net.ir", *JOB, "--json", "-o", "text.plan"], "text.plan", b"plan 1\n"),
}
"""What is there under the name of an output, and passes for one at a glance."""


@pytest.mark.parametrize("name", FOREIGN)
def test_what_only_looks_like_an_output_is_not_replaced(name: str, capsys: pytest.CaptureFixture[str]):
    arguments, path, content_ = FOREIGN[name]
    if "kept/step_00000001" in arguments:
        assert main(["run", "net.ir", "--feed", "data.npz", "--checkpoint", "kept"]) == 0
    if path.startswith("job/"):
        assert main(["compile", "net.ir", *JOB, "-o", "job"]) == 0
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_bytes(content_)
    if path.endswith(".docx"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("[Content_Types].xml", "<Types/>")
    assert f"{path}: error[output-foreign]: it is there, and " in refused(capsys, *arguments)


def test_a_plan_replaces_its_like_and_no_edited_plan(capsys: pytest.CaptureFixture[str]):
    for form in ([], ["--json"]):
        for _ in range(2):
            assert main(["plan", "net.ir", *JOB, *form, "-o", "made.plan"]) == 0
        assert capsys.readouterr().err.count("made.plan: the plan of 1 trainer, 1 server (sync), which places ") == 2
        Path("made.plan").unlink()
    assert main(["plan", "net.ir", *JOB, "-o", "made.plan"]) == 0
    Path("made.plan").write_text("# mine\n\n" + Path("made.plan").read_text())
    told = refused(capsys, "plan", "net.ir", *JOB, "--plan", "made.plan", "-o", "made.plan")
    assert "made.plan: error[output-unwritable]: is read, so it can't be written" in told
    edited = Path("made.plan").read_text()
    told = refused(capsys, "plan", "net.ir", *JOB, "-o", "made.plan")
    assert "made.plan: error[output-foreign]: it holds another plan, which may be edited" in told
    assert Path("made.plan").read_text() == edited
    Path("made.plan").unlink()
    assert main(["plan", "net.ir", *JOB, "-o", "made.plan"]) == 0
    capsys.readouterr()
    printed = [main(["plan", "net.ir", *JOB, *option]) or capsys.readouterr() for option in ([], ["-o", "-"])]
    assert printed[0] == printed[1]
    assert printed[0].out == Path("made.plan").read_text()
    assert main(["plan", "net.ir", *JOB, "--against", "out", "-o", "x"]) == 2


def test_a_program_that_takes_the_place_of_another_is_told(capsys: pytest.CaptureFixture[str]):
    shutil.copy("net.ir", "mine.ir")
    assert main(["export", "net.ir", "--to", "pb", "-o", "pb"]) == 0
    capsys.readouterr()
    into = ["import", "pb/main.pb", "-o", "mine.ir"]
    assert main(into) == 0
    assert "mine.ir: the text of @main, in place of another that was there\n" in capsys.readouterr().err
    assert main(into) == 0
    assert "in place of" not in capsys.readouterr().err


def test_a_pipe_is_not_formatted_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["fmt", str(pipe)]) == 1
    assert "this is no regular file" in capsys.readouterr().err


@FULL
@pytest.mark.parametrize(
    "command", ["plan net.ir --pservers 1 --trainers 1", "grad forward.ir --loss loss --optimizer sgd"]
)
def test_an_endless_device_is_not_read_to_see_what_it_holds(command: str, capsys: pytest.CaptureFixture[str]):
    shutil.copy(ROOT / "tests" / "data" / "forward.ir", "forward.ir")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))  # where it were read, memory ends
    try:
        assert main([*command.split(), "-o", "/dev/full"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert "/dev/full: error[output-unwritable]: can't be written: No space left on device" in capsys.readouterr().err
