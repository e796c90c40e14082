"""A folder of compiled programs holds the programs that its plan.json was written with, or says which it does not."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pstranspile.cluster.net.job import load_job_folder
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.tools.cli import main

ROOT = Path(__file__).parents[2]
JOB = ["--pservers", "127.0.0.1:6174,127.0.0.1:6175", "--trainers", "2"]
TEXT = (ROOT / "golden" / "linear_regression.ir").read_text()
OTHER = re.sub(r"value=0\.[0-9]+", "value=0.5", TEXT)  # another rate: programs that fit together with the others
assert OTHER != TEXT


@pytest.fixture(params=["ir", "pb"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Two compiles whose programs fit together, and differ."""
    made: list[Path] = []
    for name, text in (("one", TEXT), ("other", OTHER)):
        (tmp_path / f"{name}.ir").write_text(text)
        made.append(tmp_path / name)
        assert main(["compile", f"{tmp_path / name}.ir", *JOB, "--emit", request.param, "-o", str(made[-1])]) == 0
    return made[0], made[1]


def copied(role: str, source: Path, target: Path) -> None:
    for path in source.glob(f"{role}.*"):
        shutil.copy(path, target)


def commands(folder: Path) -> list[list[str]]:
    return [
        ["verify", str(folder)],
        ["launch", str(folder), "--steps", "1"],
        ["start", str(folder), "--role", "pserver_0"],
        ["explain", str(folder)],
        ["report", str(folder), "-o", f"{folder}.html"],
    ]


@pytest.mark.parametrize("changed", ["pserver_0", "pserver_1", "plan"])
def test_programs_of_another_compile_are_told(
    changed: str, folders: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = folders
    copied(changed, other, one)
    require_told(one, ["pserver_0", "pserver_1"] if changed == "plan" else [changed], capfd)


def require_told(folder: Path, changed: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Has every command that reads a folder say once which machines have other programs."""
    feed = str(folder.with_name("feed.npz"))
    np.savez(feed, x=np.ones((1, 4, 13), "float32"), y=np.ones((1, 4, 1), "float32"))
    for command in commands(folder):
        if command[0] != "start":  # which would serve without end
            capfd.readouterr()
            assert main([*command, *(["--feed", feed] if command[0] == "launch" else [])]) == 0, command
            told = re.findall(r"(\w+)\.\S+: warning\[folder-changed\]: the programs of (\w+) ", capfd.readouterr().err)
            assert told == [(role, role) for role in changed], command


def test_programs_that_both_compiles_have_are_taken(folders: tuple[Path, Path]) -> None:
    """Trainers do not know the rate."""
    one, other = folders
    copied("trainer_0", other, one)
    found: list[Diagnostic] = []
    load_job_folder(one, report=found.extend)
    assert not found


def edited(folder: Path, edit: Callable[[str], str]) -> list[str]:
    """What is told of a folder after an edit of a server's text."""
    file = folder / "pserver_0.ir"
    text = file.read_bytes()
    file.write_bytes(edit(text.decode()).encode())
    assert file.read_bytes() != text
    found: list[Diagnostic] = []
    load_job_folder(folder, report=found.extend)
    return [f"{finding.code}: {finding.location and Path(finding.location.file).name}" for finding in found]


def another_rate(text: str) -> str:
    return re.sub(r"value=0\.[0-9]+", "value=0.25", text)


EDITS: dict[str, tuple[Callable[[str], str], list[str]]] = {
    "comment": (lambda text: f"# mine\n\n{text}", []),
    "layout": (lambda text: text.replace("  ", " "), []),
    "line ends": (lambda text: text.replace("\n", "\r\n"), []),
    "rate": (another_rate, ["folder-changed: pserver_0.ir"]),
}


@pytest.mark.parametrize("folders", ["ir"], indirect=True)
@pytest.mark.parametrize(("edit", "told"), EDITS.values(), ids=EDITS)
def test_edits_are_told_unless_they_change_nothing(
    edit: Callable[[str], str], told: list[str], folders: tuple[Path, Path]
) -> None:
    assert edited(folders[0], edit) == told


@pytest.mark.parametrize("folders", ["ir"], indirect=True)
def test_edited_programs_are_told(folders: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    edited(folders[0], another_rate)
    require_told(folders[0], ["pserver_0"], capfd)


def test_folders_without_hashes_are_read(folders: tuple[Path, Path]) -> None:
    one, other = folders
    plan = json.loads((one / "plan.json").read_text())
    del plan["programs"]
    (one / "plan.json").write_text(json.dumps(plan))
    copied("pserver_0", other, one)
    found: list[Diagnostic] = []
    load_job_folder(one, report=found.extend)
    assert not found


@pytest.mark.parametrize("programs", [None, [], {}, {"pserver_0": 1}])
def test_damaged_hashes_are_refused(programs: object, folders: tuple[Path, Path]) -> None:
    plan = json.loads((folders[0] / "plan.json").read_text())
    (folders[0] / "plan.json").write_text(json.dumps({**plan, "programs": programs}))
    with pytest.raises(DiagnosticError, match="programs is not the hash"):
        load_job_folder(folders[0])


def test_a_machine_that_the_plan_has_not_is_told(folders: tuple[Path, Path]) -> None:
    plan = json.loads((folders[0] / "plan.json").read_text())
    del plan["programs"]["pserver_0"]
    (folders[0] / "plan.json").write_text(json.dumps(plan))
    found: list[Diagnostic] = []
    load_job_folder(folders[0], report=found.extend)
    assert [finding.message for finding in found] == ["plan.json was written without programs of pserver_0"]


@pytest.mark.parametrize("folders", ["ir"], indirect=True)
def test_folders_of_two_compiles_of_one_source_are_the_same(folders: tuple[Path, Path], tmp_path: Path) -> None:
    assert main(["compile", str(tmp_path / "one.ir"), *JOB, "-o", str(tmp_path / "again")]) == 0
    assert {path.name: path.read_bytes() for path in folders[0].iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()
    }
