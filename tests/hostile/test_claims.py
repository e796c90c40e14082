"""Files of a few bytes that claim to be large, or that are no files at all: refused at once, before they are read."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.checkpoint import row_files
from pstranspile.cluster.checkpoint.api import load_checkpoint, save_checkpoint
from pstranspile.cluster.checkpoint.manifest import MANIFEST, _checksum
from pstranspile.cluster.checkpoint.persistables import load_persistables, save_persistables
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.files.variables import read_safetensors
from pstranspile.runtime.values.encoding import read_tensor, write_values
from pstranspile.tools.cli import main
from tests.cluster.checkpoint.jobs import job, machines, started
from tests.conftest import ROOT
from tests.devices import PIPES

NET = str(ROOT / "golden" / "linear_regression.ir")
LARGE = 200 * 10**9
FILE = "fc_0.w_0"

pytestmark = PIPES


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_checkpoint(machines(started(job(2, 2), 1)), job(2, 2), tmp_path / "c", step=1)
    return tmp_path / "c"


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(DiagnosticError) as found:
        load_checkpoint(machines(started(job(2, 2))), job(2, 2), folder, **options)
    return str(found.value)


def edit(folder: Path, change: Any) -> None:
    held = json.loads((folder / MANIFEST).read_text())
    change(held)
    held["checksum"] = _checksum(held)
    (folder / MANIFEST).write_text(json.dumps(held))


def entry(rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
    return next(row for row in rows if row[key] == FILE)


def sparse(path: Path, size: int = LARGE) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize("name", [FILE, MANIFEST])
def test_a_pipe_in_a_checkpoint(saved: Path, name: str):
    (saved / name).unlink()
    os.mkfifo(saved / name)
    assert "it is a pipe or a device, a file is needed" in refused(saved)


def test_a_device_in_a_checkpoint(saved: Path):
    (saved / FILE).unlink()
    (saved / FILE).symlink_to("/dev/zero")
    assert "it leads out of the checkpoint" in refused(saved)


def test_a_file_of_a_checkpoint_that_is_larger_than_its_values(saved: Path):
    sparse(saved / FILE)
    assert f"has {LARGE} bytes, the manifest lists" in refused(saved)
    edit(saved, lambda held: entry(held["files"], "path").update(size=LARGE))
    assert f"it lists {LARGE} bytes for {FILE}, whose values take" in refused(saved)


def test_values_of_a_checkpoint_that_are_larger_than_the_job_s(saved: Path):
    sparse(saved / FILE)

    def claim(held: Any) -> None:
        entry(held["files"], "path").update(size=LARGE)
        entry(held["values"], "name").update(shape=[LARGE // 4])

    edit(saved, claim)
    assert "more than the job's variables can take" in refused(saved)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("parts", 10**9, "not all 1000000000 parts of the table fc_0.w_0 are listed"),
        ("parts", 10**30, "`parts` is not a count"),
        ("part", 10**30, "`part` is not a count"),
        ("offset", 10**30, "`offset` is not a count"),
        ("shape", [10**30], "`shape` does not hold dims"),
        ("shape", [10**12, 0], "the manifest lists float32[1000000000000, 0]"),
    ],
)
def test_numbers_of_a_manifest_that_nothing_has(saved: Path, key: str, value: object, says: str):
    edit(saved, lambda held: entry(held["values"], "name").update({key: value}))
    assert says in refused(saved)


@pytest.mark.parametrize("key", ["step", "trainers", "seed"])
def test_counts_of_a_manifest_that_nothing_has(saved: Path, key: str):
    edit(saved, lambda held: held.update({key: 10**30}))
    assert f"`{key}` is no" in refused(saved)


def test_fluid_s_files(tmp_path: Path):
    live, compiled = machines(started(job(2, 2), 1)), job(2, 2)
    save_persistables(live, compiled, tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    for damage in (os.mkfifo, sparse):
        (tmp_path / FILE).unlink()
        damage(tmp_path / FILE)
        with pytest.raises(DiagnosticError, match=r"pipe or a device|the descriptor has none"):
            load_persistables(live, compiled, tmp_path)
    (tmp_path / FILE).write_bytes(whole)
    os.truncate(tmp_path / FILE, LARGE)
    with pytest.raises(DiagnosticError, match="bytes follow after all that is to be read"):
        load_persistables(live, compiled, tmp_path)
    write_values(tmp_path / "many", np.zeros((1, 2), "float32"))
    head = (tmp_path / "many").read_bytes().replace(b"\x10\x01\x10\x02", b"\x10\x80\x80\x80\x08\x10\x02")
    head = head.replace(b"\x06\x00\x00\x00\x08\x05", b"\x09\x00\x00\x00\x08\x05")
    (tmp_path / FILE).write_bytes(head)
    os.truncate(tmp_path / FILE, LARGE)
    with pytest.raises(DiagnosticError, match="bytes are more than what is to be read has"):
        load_persistables(live, compiled, tmp_path)


def test_single_tensors(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    sparse(tmp_path / "large")
    for reader in (read_tensor, read_safetensors):
        for name in ("pipe", "large"):
            with pytest.raises(DiagnosticError):
                reader(tmp_path / name)
    header = json.dumps({"w": {"dtype": "F32", "shape": [10**30, 0], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "w").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DiagnosticError, match="there can't be a tensor of dims"):
        read_safetensors(tmp_path / "w")


def test_a_folder_of_compiled_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    assert main(["compile", NET, "--pservers", "2", "-o", str(out)]) == 0
    (out / "plan.json").unlink()
    os.mkfifo(out / "plan.json")
    assert main(["explain", str(out)]) == 1
    assert "it is a pipe or a device" in capsys.readouterr().err
    (out / "plan.json").unlink()
    (out / "plan.json").write_text('{"settings": ' + "[" * 100_000)
    assert main(["explain", str(out)]) == 1


def test_a_hash_does_not_vouch_for_what_is_kept(tmp_path: Path):
    from pstranspile.cluster.machines.snapshots import FORM, read_snapshot

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DiagnosticError, match="pipe or a device"):
        read_snapshot(tmp_path / "pipe", "pserver_0")
    body = b'{"tuple": ["pserver_0", {"array": ["|O", [1]]}]}\n' + bytes(8)
    (tmp_path / "kept").write_bytes(f"{FORM} {sha256(body).hexdigest()}\n".encode() + body)
    with pytest.raises(DiagnosticError, match="is no state that a server kept"):
        read_snapshot(tmp_path / "kept", "pserver_0")


def npy(shape: tuple[int, ...], data: bytes) -> bytes:
    """A `.npy` file that says it holds so many f32."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


def test_arrays_that_expand_to_more_than_their_file_can_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    os.mkfifo(tmp_path / "pipe.npz")
    with zipfile.ZipFile(tmp_path / "claim.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy((10**12,), bytes(16)))
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number in range(300):  # several times the same: what they take together counts
            archive.writestr(f"x{number}.npy", npy((1 << 20,), bytes(4 << 20)))
    told = {"pipe": "it is a pipe or a device", "claim": "the array x says that it has 4000000000000 bytes"}
    told["bomb"] = "more than 64 times as many"
    for name, message in told.items():
        for option in ("--feed", "--init"):
            assert main(["run", NET, option, str(tmp_path / f"{name}.npz")]) == 1
            assert message in capsys.readouterr().err
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros((2, 4, 13), "float32"), y=np.zeros((2, 4, 1), "float32"))
    assert main(["run", NET, "--feed", str(tmp_path / "zeros.npz")]) == 0


def test_jobs_and_scenarios_are_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Nobody writes to the pipe: who waits for it waits for ever."""
    os.mkfifo(tmp_path / "pipe")
    for options in (["--config"], ["--pservers", "2", "--trainers", "2", "--faults"]):
        assert main(["check", NET, *options, str(tmp_path / "pipe")]) in (1, 2)
        assert "it is a pipe or a device, a file is needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "header",
    [
        "(" * 9000,
        "{'descr':'''",
        "  {\n 'a'",
        "-" * 9000 + "1",
        "1+" * 4000 + "1",
        "\\",
        "{'shape': (" + "9" * 5000 + ",)}",
    ],
    ids=["brackets", "text", "indented", "signs", "sums", "backslash", "digits"],
)
def test_headers_of_arrays_that_are_no_headers(header: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", head)
    for option in ("--feed", "--init"):
        assert main(["run", NET, option, str(tmp_path / "x.npz")]) == 1
        told = capsys.readouterr().err
        assert "error[run-file-unusable]" in told
        assert told.count("\n") == 1, "advice of numpy"
        assert len(told) < len(str(tmp_path)) + 300
    (tmp_path / "rows.npy").write_bytes(head)
    with pytest.raises(DiagnosticError, match=r"checkpoint-table"):
        row_files._read(tmp_path, "rows")
