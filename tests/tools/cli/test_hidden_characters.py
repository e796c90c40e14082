"""What commands print stays in its line, and holds no characters that a terminal obeys, whatever programs name."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import pytest

from pstranspile.ir.diagnostics import HIDDEN, shell_line
from pstranspile.tools.cli import main
from tests.conftest import ROOT

NET = (ROOT / "golden" / "linear_regression.ir").read_text(encoding="utf-8")
EVIL = "a\x1b[31m\nb\u202ec"
WRITTEN = "a\\u001b[31m\\nb\\u202ec"
JOB = ["--pservers", "2", "--trainers", "2"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(NET)
    Path(f"{EVIL}0.ir").write_text(NET.replace("square(", "square  (").replace("0.01", "0.02"))
    for number, form in ((2, "ir"), (3, "pb")):
        assert main(["compile", f"{EVIL}0.ir", *JOB, "--emit", form, "-o", f"{EVIL}{number}"]) == 0
        Path(f"{EVIL}{number}", "trainer_7.ir").touch()
    Path("program.ir").write_text(NET.replace("@main", f'@"{WRITTEN}"'))
    Path("variable.ir").write_text(re.sub(r"%w\b(?!@)", lambda _: f'%"{WRITTEN}"', NET))


@pytest.mark.parametrize(
    "command",
    [
        ["diff", "program.ir", "net.ir"],
        ["diff", "variable.ir", "net.ir"],
        ["check", "variable.ir", *JOB, "--all"],
        ["export", "program.ir", "--to", "pb", "-o", "out"],
        ["export", "program.ir", "--to", "dot", "-o", "out"],
        ["export", "program.ir", "--to", "mermaid", "-o", "out"],
        ["compile", "net.ir", *JOB, "-o", EVIL],
        ["verify", "net.ir", f"--{EVIL}"],
        ["fmt", f"{EVIL}0.ir"],
        ["fmt", "--check", f"{EVIL}0.ir"],
        ["diff", "net.ir", f"{EVIL}0.ir"],
        ["compile", "net.ir", *JOB, "--check", EVIL],
        ["compile", "net.ir", *JOB, "--check", f"{EVIL}2"],
        ["compile", "net.ir", *JOB, "--emit", "pb", "--check", f"{EVIL}3"],
        ["run", "net.ir", "--steps", EVIL],
        ["explain", "net.ir", EVIL],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_output(command: list[str], capfd: pytest.CaptureFixture[str]):
    with contextlib.suppress(SystemExit):
        main(command)
    out, err = capfd.readouterr()
    assert not re.search(f"[{HIDDEN}]", re.sub("\n", "", out + err))
    assert not any(line.startswith("b") and "c" in line[:8] for line in (out + err).splitlines())
    assert "31m" in out + err


def test_what_is_left_of_a_folder(capfd: pytest.CaptureFixture[str]):
    Path("out").mkdir()
    Path("out", EVIL).touch()
    assert main(["export", "net.ir", "--to", "dot", "-o", "out"]) == 0
    assert f"left as it was, being none of this command's: {WRITTEN}\n" in capfd.readouterr().err


@pytest.mark.parametrize("word", ["net.ir", "a b", "it's", EVIL, "\x1b'\\", "\udcff\x01", "é\u200b"])
def test_shell_line(word: str):
    line = shell_line(["printf", "%s|", word, "é"])
    assert not re.search(f"[{HIDDEN}]", line)
    shown = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
    assert shown == word.encode("utf-8", "surrogateescape") + "|é|".encode()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["verify", f"{EVIL}.ir"], 1),
        (["run", "variable.ir", "--steps", "1", "--fetch", EVIL + "x"], 1),
        (["run", "variable.ir", "--steps", "1", "--fetch", "z"], 1),
    ],
    ids=["file", "fetched", "known"],
)
def test_messages(command: list[str], status: int, capfd: pytest.CaptureFixture[str]):
    assert main(command) == status
    err = capfd.readouterr().err
    assert WRITTEN in err
    assert not re.search(f"[{HIDDEN}]", err.replace("\n", ""))
