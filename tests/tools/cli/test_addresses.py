"""Addresses of other file systems are rows of --feed and nothing else: no folder called `hdfs:` is made of one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import save_checkpoint
from pstranspile.cluster.checkpoint.runs import Target
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.files.outputs import require_writable, write_output, write_outputs
from pstranspile.tools.cli import main
from tests.cluster.checkpoint.jobs import feed, model

JOB = ["--pservers", "1", "--trainers", "1"]
ADDRESS = "hdfs://name:9000/out"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(ps.dumps(model()))
    np.savez("data.npz", **{name: np.stack([value]) for name, value in feed(0).items()})


@pytest.mark.parametrize(
    "arguments",
    [
        *(["run", "net.ir", *JOB, "--feed", "data.npz", f"--{name}", f"{ADDRESS}.svg"] for name in ("save", "plot")),
        *(["run", "net.ir", *JOB, "--feed", "data.npz", f"--{name}", ADDRESS] for name in ("trace", "chart", "init")),
        *(["run", "net.ir", "--feed", "data.npz", f"--{name}", ADDRESS] for name in ("checkpoint", "resume")),
        *(["launch", "net.ir", *JOB, f"--{name}", ADDRESS] for name in ("record", "logs", "state", "table-folder")),
        ["run", ADDRESS],
        ["compile", "net.ir", *JOB, "-o", ADDRESS],
        ["compile", "net.ir", "--config", ADDRESS, "-o", "out"],
        ["export", "net.ir", "--to", "pb", "-o", "s3://bucket/x"],
        ["import", "file:///main.pb"],
        ["diff", "net.ir", ADDRESS],
        ["report", "net.ir", *JOB, "-o", ADDRESS],
        ["fmt", ADDRESS],
        ["verify", ADDRESS],
    ],
    ids=" ".join,
)
def test_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    before = sorted(os.listdir())
    assert main(arguments) == 2
    assert " is an address; files and folders are of this file system" in capsys.readouterr().err
    assert sorted(os.listdir()) == before


def test_rows_may_be_of_others(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "net.ir", "--feed", "none://host/x.parquet", "--batch", "2"]) == 1
    assert "none://host/x.parquet: error[data-source]: it can't be looked into" in capsys.readouterr().err
    assert main(["run", "net.ir", "--feed", f"{ADDRESS}.npz"]) == 1
    assert f"{ADDRESS}.npz: error[run-file-unusable]: the file can't be read: it is an address" in (
        capsys.readouterr().err
    )


def test_python():
    scope = ps.Scope()
    for write in (
        lambda: write_output(ADDRESS, b"x"),
        lambda: write_outputs(ADDRESS, {"x": b"x"}),
        lambda: require_writable(ADDRESS),
        lambda: Target(ADDRESS, None, None),
        lambda: save_checkpoint(scope, model(), ADDRESS),
    ):
        with pytest.raises(DiagnosticError):
            write()
    assert not [name for name in os.listdir() if name.startswith("hdfs")]
