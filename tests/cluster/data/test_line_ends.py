"""Rows whose lines end as on old Macs, first lines with many names, and the order in which bad rows are told."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.data import text_files
from pstranspile.cluster.data.source import Data
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.ir.diagnostics import DiagnosticError, error, fold_similar
from pstranspile.tools.cli import main

pyarrow = pytest.importorskip("pyarrow")

ROWS = {
    "csv": b"x,y\n1,2\n3,4\n5,6\n",
    "tsv": b"x\ty\n1\t2\n3\t4\n5\t6\n",
    "jsonl": b'{"x": 1, "y": 2}\n{"x": 3, "y": 4}\n{"x": 5, "y": 6}\n',
}


def module() -> ps.Module:
    draft = L.Draft(seed=7)
    x, y = L.data(draft, "x", [-1, 1]), L.data(draft, "y", [-1, 1])
    minimize(L.mean(L.square_error_cost(L.fc(x, 1), y)), SGD(0.01))
    return draft.module()


def fed(path: Path, **options: Any) -> tuple[list[float], list[float]]:
    """What a trainer is fed of a file, x and y, row by row."""
    feeds, steps = Data(path, batch=2, **options).feeds([module().main])
    batches = [feeds[0](step) for step in range(steps)]
    return tuple([float(n) for b in batches if b is not None for n in np.ravel(b[name])] for name in "xy")  # pyright: ignore


@pytest.mark.parametrize("block", [None, 7, 8, 9])
@pytest.mark.parametrize("end", [b"\r", b"\r\n", b"\n"])
@pytest.mark.parametrize("form", ROWS)
def test_line_ends(form: str, end: bytes, block: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if block is not None:
        monkeypatch.setattr(text_files, "BLOCK", block)
    path = tmp_path / f"rows.{form}"
    path.write_bytes(ROWS[form].replace(b"\n", end))
    if block is None or end != b"\r":
        assert fed(path) == ([1, 3, 5], [2, 4, 6])
    path.write_bytes(ROWS[form].replace(b"\n", end).removesuffix(end))
    if block is None or end != b"\r":
        assert fed(path) == ([1, 3, 5], [2, 4, 6])


def test_rows_without_names(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"1,2\r3,4\r")
    assert fed(path, names=["x", "y"]) == ([1, 3], [2, 4])


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5])
def test_a_first_line_that_ends_between_pieces(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_files, "_PIECE", piece)
    path = tmp_path / "rows.csv"
    for end in (b"\r", b"\r\n", b"\n"):
        path.write_bytes(ROWS["csv"].replace(b"\n", end))
        assert fed(path) == ([1, 3, 5], [2, 4, 6])


def test_a_carriage_return_in_a_row_is_told(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"x,y\n1,2\r3,4\n5,6\n")
    with pytest.raises(DiagnosticError, match="it is more than one row: a carriage return stands in it"):
        fed(path)


@pytest.mark.parametrize(
    "line",
    [
        "x,y",
        "x",
        "x,,y",
        '"a b","c,d"',
        '"a""b",c',
        "x , y",
        "é,ü",
        "x,y,",
        ",",
        "\ufeffx,y",
        '"x"',
        "1,2",
        "x;y",
        "'x',y",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_names_are_those_that_arrow_reads(line: str, end: str):
    from pyarrow import csv

    data = f"{line}{end}".encode()
    assert text_files._names_in(data, ",", "rows.csv") == csv.read_csv(io.BytesIO(data)).column_names  # pyright: ignore


@pytest.mark.parametrize("line", [b"", b"\n", b"\r\n"])
def test_a_first_line_without_names(line: bytes):
    with pytest.raises(DiagnosticError, match="it has no first line with the names of its columns"):
        text_files._names_in(line, ",", "rows.csv")  # pyright: ignore


def test_many_columns_take_little_memory(tmp_path: Path):
    names = ["x", "y", *(f"c{at}" for at in range(100_000))]
    (tmp_path / "wide.csv").write_text("\n".join([",".join(names), *[",".join(["1"] * len(names))] * 2]))
    (tmp_path / "net.ir").write_text(ps.dumps(module()))
    command = [sys.executable, "-m", "pstranspile", "run", "net.ir", "--feed", "wide.csv", "--batch", "2"]
    # A small process starts it, since a process is counted the memory of the one that it begins as a copy of.
    starts = "import resource, subprocess, sys\nstatus = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
    starts += "print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", starts, *command], cwd=tmp_path, capture_output=True, check=True)
    status, most = map(int, done.stdout.split())
    assert status == 0, done.stderr
    assert most * (1 if sys.platform == "darwin" else 1 << 10) < 600 << 20  # counted in bytes, or in KiB


def told(lines: Sequence[str], capsys: pytest.CaptureFixture[str]) -> list[int]:
    """The lines that are told of."""
    return [int(line.split(":")[1]) for line in lines if line.startswith("rows.csv:")]


@pytest.mark.parametrize("more", [[], ["--shuffle", "3"]], ids=["in order", "shuffled"])
def test_bad_rows_are_told_in_the_order_of_the_file(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(ps.dumps(module()))
    bad = {3: "a,1", 5: "1,b", 9: "a,1", 12: "1,2,3", 15: "1,b", 20: "a,1"}
    Path("rows.csv").write_text("\n".join(["x,y", *[bad.get(at, "1,2") for at in range(30)]]))
    assert main(["run", "net.ir", "--feed", "rows.csv", "--batch", "30", *more]) == 1
    assert told(capsys.readouterr().err.splitlines(), capsys) == [5, 7, 11, 14, 17, 22]


def test_findings_of_two_kinds_stay_in_their_order():
    given = [error("data-row", f"{'a' if at % 2 else 'b'}") for at in range(6)]
    assert [finding.message for finding in fold_similar(given)] == ["b", "a", "b", "a", "b", "a"]
    more = [*given, error("data-row", "b")]
    assert [(finding.message, len(finding.notes)) for finding in fold_similar(more)] == [
        ("b", 1),
        ("a", 0),
        ("a", 0),
        ("a", 0),
    ]
