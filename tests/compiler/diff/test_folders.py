"""Output folders are compared role by role."""

import json
import os
from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.compiler.diff import diff, diff_folders, render
from pstranspile.frontends.program_desc import program_to_bytes
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "golden" / "linear_regression.ir"


def write(folder: Path, form: str = "ir", **job: object) -> Path:
    folder.mkdir()
    compiled = ps.compile(ps.load(SOURCE), ps.Job(**{"pservers": 2, "trainers": 2, **job}))  # type: ignore[arg-type]
    for name, role in compiled.roles().items():
        if form == "ir":
            (folder / f"{name}.ir").write_text(ps.dumps(role.module))
        else:
            (folder / f"{name}.main.pb").write_bytes(program_to_bytes(role.main))
            (folder / f"{name}.startup.pb").write_bytes(program_to_bytes(role.startup))
    (folder / "plan.json").write_text("{}")
    return folder


def test_equal_folders(tmp_path: Path):
    assert diff_folders(write(tmp_path / "a"), write(tmp_path / "b")) == ()
    assert diff(tmp_path / "a", tmp_path / "b") == ()
    assert diff_folders(write(tmp_path / "c", "pb"), write(tmp_path / "d", "pb")) == ()


def test_text_against_serialized(tmp_path: Path):
    """A ProgramDesc carries no seed; nothing else is lost."""
    found = diff_folders(write(tmp_path / "a"), write(tmp_path / "b", "pb"))
    assert {text for f in found for _, text in f.lines} <= {
        "program @main seed=1",
        "program @startup seed=1",
        "program @main",
        "program @startup",
    }


def test_exported_folders_are_compared_with_their_metadata(tmp_path: Path):
    """What a ProgramDesc does not carry, such as the seed, stands in meta.json."""
    for name, seed in (("a", 1), ("b", 7)):
        assert main(["export", str(SOURCE), "--to", "pb", "-o", str(tmp_path / name)]) == 0
        meta = tmp_path / name / "meta.json"
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "random_seed": seed}))
    found = diff_folders(tmp_path / "a", tmp_path / "b")
    assert {f.role for f in found} == {"main"}
    assert {text for f in found for _, text in f.lines} >= {"program @main seed=1", "program @main seed=7"}
    assert diff_folders(tmp_path / "a", tmp_path / "a") == ()
    for name in "ab":
        (tmp_path / name / "startup.pb").unlink()
        meta = tmp_path / name / "meta.json"
        meta.write_text(json.dumps({"random_seed": json.loads(meta.read_text())["random_seed"]}))
    alone = {text for f in diff_folders(tmp_path / "a", tmp_path / "b") for _, text in f.lines}
    assert alone >= {"program @main seed=1", "program @main seed=7"}


def test_a_role_on_one_side(tmp_path: Path):
    a, b = write(tmp_path / "a"), write(tmp_path / "b")
    (b / "trainer_1.ir").unlink()
    assert (
        render(diff(a, b), names=("old", "new")) == "--- old trainer_1\n+++ new trainer_1\n@@ role @@\n-trainer_1.ir\n"
    )


def test_differences_name_the_role(tmp_path: Path):
    found = diff_folders(write(tmp_path / "a"), write(tmp_path / "b", mode="async"))
    assert {f.role for f in found} == {"pserver_0", "pserver_1", "trainer_0", "trainer_1"}
    assert [f.role for f in found] == sorted(f.role for f in found)
    assert render(found).startswith("--- a pserver_0 @main\n")


def test_startup_programs_alone(tmp_path: Path):
    a, b = write(tmp_path / "a", "pb"), write(tmp_path / "b", "pb")
    for folder in (a, b):
        (folder / "trainer_0.main.pb").unlink()
    assert diff_folders(a, b) == ()


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ([], "folder-without-programs"),
        (["plan.json"], "folder-without-programs"),
        (["trainer_0.ir", "trainer_0.main.pb"], "folder-role-twice"),
        (["trainer_0.ir", "trainer_0.pb"], "folder-role-twice"),
    ],
)
def test_folders_that_hold_no_output(tmp_path: Path, files: list[str], code: str):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(DiagnosticError) as refusal:
        diff_folders(tmp_path, tmp_path)
    assert [d.code for d in refusal.value.diagnostics] == [code]


def test_a_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(DiagnosticError) as refusal:
        diff_folders(tmp_path / "gone", tmp_path)
    assert [d.code for d in refusal.value.diagnostics] == ["folder-without-programs"]


@pytest.mark.parametrize("name", ["trainer_0.ir", "trainer_0.meta.json"])
@pytest.mark.parametrize("verb", ["diff", "explain", "verify"])
def test_a_pipe_in_a_folder_is_not_waited_for(verb: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = str(tmp_path / "a")
    assert main(["compile", str(SOURCE), "--pservers", "2", "--trainers", "2", "-o", folder]) == 0
    (tmp_path / "a" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "a" / name)
    capsys.readouterr()
    status = main([verb, folder, *([folder] if verb == "diff" else [])])
    told = capsys.readouterr().err
    assert (status != 0 and "pipe or a device" in told) == name.endswith("ir")


def test_an_input_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for arguments in (["out", "missing"], ["missing", "out"], ["missing", "-"]):
        assert main(["diff", *arguments]) == 2
        assert "missing: error[input-unreadable]: there is no such file or folder\n" in capsys.readouterr().err
