"""A folder in place of a program is named as what it is, before the job of the options is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from pstranspile.tools.cli import main

JOB = ["--pservers", "2", "--trainers", "2"]


@pytest.mark.parametrize(
    "command",
    [
        ["check"],
        ["plan"],
        ["compile"],
        ["check", *JOB],
        ["run", *JOB],
        ["plan", "--mode", "nccl2"],
        ["compile", "--trainers", "2"],
        ["run", "--pservers", "two"],
    ],
)
def test_the_folder_is_refused(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    verb, *job = command
    empty, out = tmp_path / "empty", tmp_path / "out"
    empty.mkdir()
    out.mkdir()
    (out / "plan.json").write_text("{}")
    assert main([verb, str(empty), *job]) == 1
    told = "error[input-unreadable]: this is a folder, a program is needed\n"
    assert capsys.readouterr().err == f"{empty}: {told}"
    assert main([verb, str(out), *job]) == 1
    note = "note: compiled programs are for launch, explain, report and verify; here, name their source\n"
    assert capsys.readouterr().err == f"{out}: {told}{note}"
