"""Every `golden/*.ir` says in `# RUN:` lines what to do with it; what comes out is recorded beside it.

`compile` is recorded file by file in `<name>.expected/`, together with what went to stderr; every other verb
in `<name>.<verb>.txt` (`<name>.<verb>.<options>.txt` where options choose the form of the output).
"""

import shlex
from pathlib import Path

import pytest

from pstranspile.tools.cli import main
from tests.golden import Goldens

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted((ROOT / "golden").glob("*.ir"))
MARK = "# RUN: "
FORMS = {"--json": "json", "--check": "check"}


def commands(path: Path) -> list[list[str]]:
    head = [line for line in path.read_text().splitlines() if line.startswith(MARK)]
    return [shlex.split(line.removeprefix(MARK)) for line in head]


CASES = [
    pytest.param(path, command, id=" ".join([path.stem, *command[:1], *(o for o in command if o in FORMS)]))
    for path in PROGRAMS
    for command in commands(path)
]


def test_there_are_programs_and_all_have_commands():
    assert PROGRAMS
    assert all(commands(path) for path in PROGRAMS)


@pytest.mark.parametrize(("path", "command"), CASES)
def test_golden(
    path: Path,
    command: list[str],
    goldens: Goldens,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
):
    monkeypatch.chdir(ROOT)
    verb, *options = command
    argv = [verb, str(path.relative_to(ROOT)), *options]
    if verb != "compile":
        status = main(argv)
        shown = capsys.readouterr()
        assert (status, shown.err) == (0, "")
        name = ".".join([path.stem, verb, *(FORMS[o] for o in options if o in FORMS), "txt"])
        goldens.check(path.with_name(name), shown.out, request.node.nodeid)
        return
    out = tmp_path / "out"
    status = main([*argv, "-o", str(out)])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    assert shown.out == ""
    files = {file.name: file.read_text() for file in sorted(out.iterdir())}
    files["stderr.txt"] = shown.err.replace(str(out), "out")
    goldens.check_folder(path.with_suffix(".expected"), files, request.node.nodeid)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_golden_programs_are_in_canonical_form(path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["fmt", "--check", str(path)]) == 0, capsys.readouterr().out


def test_nothing_is_recorded_without_a_program():
    recorded = [p for p in (ROOT / "golden").iterdir() if p.suffix == ".expected" or p.suffix == ".txt"]
    names = {path.stem for path in PROGRAMS}
    assert [p.name for p in recorded if p.name.split(".")[0] not in names] == []
