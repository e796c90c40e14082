"""Archives of arrays (`.npz`) that are damaged, or hold something else than what they say."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.ir.diagnostics import MAX_FINDINGS
from pstranspile.runtime.run.files import read_arrays
from pstranspile.tools.cli import main
from tests.conftest import ROOT

NET = str(ROOT / "golden" / "linear_regression.ir")
X, Y = np.ones((2, 4, 13), "float32"), np.ones((2, 4, 1), "float32")


def held(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ([("y.npy", held(Y * 5))], "it holds y several times"),
        ([("y", held(Y * 5))], "it holds y several times"),
        ([("z", b"no array")], "z is no array"),
        ([("z", b"")], "z is no array"),
        ([("z.npy", held(Y) + b"more")], "the array z says that it has 32 bytes; the file holds 36"),
        ([("z.npy", held(Y)[:-4])], "the array z says that it has 32 bytes; the file holds 28"),
    ],
)
@pytest.mark.parametrize("option", ["--feed", "--init"])
def test_what_an_archive_holds_is_read_once_and_whole(
    option: str, others: list[tuple[str, bytes]], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in [("x.npy", held(X)), ("y.npy", held(Y)), *others]:
            archive.writestr(name, data)
    with pytest.raises(ps.DiagnosticError, match=reason):
        read_arrays(path)
    assert main(["run", NET, option, str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"{path}: error[run-file-unusable]: {reason}")


@pytest.mark.parametrize("names", ["e{}", "step/{}/e{}"])
def test_arrays_that_no_input_takes_are_told_together(names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "a.npz"
    np.savez(path, **{names.format(number, number): X for number in range(300)})
    assert main(["run", NET, "--feed", str(path)]) == 1  # nothing else is fed
    lines = capsys.readouterr().err.splitlines()
    assert sum("run-feed-unknown" in line for line in lines) == 1
    assert len(lines) <= MAX_FINDINGS + 1


@pytest.mark.parametrize("names", ["e{}", "step/{}/e{}"])
def test_the_first_findings_are_told(names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "a.npz"
    np.savez(path, **{names.format(number, number): X for number in range(300)})
    assert main(["run", NET, "--init", str(path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_FINDINGS + 1
    assert lines[-1] == "note: there may be more findings; these are the first ones"
