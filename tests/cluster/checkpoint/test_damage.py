"""What is wrong with a checkpoint is found before anything is set, and told with the file and the reason."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstranspile.cluster.checkpoint.api import load_checkpoint, save_checkpoint
from pstranspile.cluster.checkpoint.manifest import MANIFEST, _checksum, manifest_bytes, parse_manifest
from pstranspile.cluster.checkpoint.runs import newest
from pstranspile.cluster.checkpoint.store import read_checkpoint, read_manifest
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values.encoding import write_values
from tests.cluster.checkpoint.jobs import codes, everything, files, job, machines, started

VICTIM = "fc_0.w_0_moment1_0"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "c"
    save_checkpoint(machines(started(job(2, 2), 2)), job(2, 2), folder, step=2)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "c")
    return tmp_path / "c"


def refused(folder: Path) -> DiagnosticError:
    """The error of loading, which leaves everything as it was."""
    live = machines(started(job(2, 2)))
    before = everything(live)
    with pytest.raises(DiagnosticError) as problem:
        load_checkpoint(live, job(2, 2), folder)
    assert everything(live) == before
    return problem.value


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda data: data[:-2],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"\0",
    "first bit": lambda data: flip(data, 0),
    "last bit": lambda data: flip(data, len(data) - 1),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_every_file_damaged_in_turn(how: str, saved: Path, tmp_path: Path):
    paths = sorted(path.relative_to(saved) for path in saved.rglob("*") if path.is_file())
    assert len(paths) > 15
    for number, path in enumerate(paths):
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        (folder / path).write_bytes(DAMAGE[how]((folder / path).read_bytes()))
        with pytest.raises(DiagnosticError) as problem:
            read_checkpoint(folder)
        assert files(problem.value) == {str(folder / path)}
        assert codes(problem.value) <= {"checkpoint-file", "checkpoint-manifest"}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bit_flipped(data: st.DataObject, saved: Path):
    """One bit, anywhere in the folder."""
    paths = sorted(path for path in saved.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from([*paths, saved / MANIFEST, saved / MANIFEST]))
    content = path.read_bytes()
    at, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    try:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
        with pytest.raises(DiagnosticError) as problem:
            read_checkpoint(saved)
        assert files(problem.value) == {str(path)}
    finally:
        path.write_bytes(content)
    read_checkpoint(saved)


def test_live_state_is_untouched(copy: Path):
    (copy / VICTIM).write_bytes((copy / VICTIM).read_bytes()[:-3])
    found = refused(copy)
    assert codes(found) == {"checkpoint-file"}
    assert files(found) == {str(copy / VICTIM)}
    assert "bytes" in str(found)


def test_all_bad_files_are_told_at_once(copy: Path):
    os.unlink(copy / VICTIM)
    (copy / "learning_rate_0").write_bytes(b"nothing")
    assert files(refused(copy)) == {str(copy / VICTIM), str(copy / "learning_rate_0")}


def test_files_exchanged(copy: Path):
    """Two variables of the same dims: only the hash tells."""
    one, other = copy / VICTIM, copy / "fc_0.w_0_moment2_0"
    first, second = one.read_bytes(), other.read_bytes()
    assert len(first) == len(second)
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)
    assert files(refused(copy)) == {str(one), str(other)}


def test_file_of_another_checkpoint(copy: Path, tmp_path: Path):
    save_checkpoint(machines(started(job(2, 2), 5)), job(2, 2), tmp_path / "later", step=5)
    shutil.copy(tmp_path / "later" / VICTIM, copy / VICTIM)
    found = refused(copy)
    assert codes(found) == {"checkpoint-file"}
    assert "hash" in str(found)


def test_a_folder_or_a_link_in_place_of_a_file(copy: Path, tmp_path: Path):
    data = (copy / VICTIM).read_bytes()
    os.unlink(copy / VICTIM)
    (copy / VICTIM).mkdir()
    assert codes(refused(copy)) == {"checkpoint-file"}
    (copy / VICTIM).rmdir()
    (tmp_path / "outside").write_bytes(data)
    (copy / VICTIM).symlink_to(tmp_path / "outside")
    assert codes(refused(copy)) == {"checkpoint-name"}


# The manifest


def change(folder: Path, edit: Callable[[dict], object]) -> None:
    """Changes the manifest as someone would who can also make its checksum."""
    held = json.loads((folder / MANIFEST).read_text())
    edit(held)
    held["checksum"] = _checksum(held)
    (folder / MANIFEST).write_text(json.dumps(held))


def entry(held: dict, name: str = VICTIM) -> dict:
    return next(value for value in held["values"] if value["name"] == name)


def rename(held: dict, path: str) -> None:
    next(file for file in held["files"] if file["path"] == VICTIM)["path"] = path
    entry(held)["file"] = path


EDITS = {
    "another format": ("checkpoint-manifest", lambda held: held.update(format="other")),
    "a later version": ("checkpoint-manifest", lambda held: held.update(version=2)),
    "an unknown layout": ("checkpoint-manifest", lambda held: held.update(layout="tar")),
    "no files": ("checkpoint-manifest", lambda held: held.pop("files")),
    "a step below 0": ("checkpoint-manifest", lambda held: held.update(step=-1)),
    "a step that is none": ("checkpoint-manifest", lambda held: held["steps"].update(trainer_0="two")),
    "a value twice": ("checkpoint-manifest", lambda held: held["values"].append(entry(held))),
    "a value in no file": ("checkpoint-manifest", lambda held: entry(held).update(file="elsewhere")),
    "a size that is a text": ("checkpoint-manifest", lambda held: held["files"][0].update(size="12")),
    "dims that are none": ("checkpoint-manifest", lambda held: entry(held).update(shape=[2, -1])),
    "a file twice": ("checkpoint-name", lambda held: held["files"].append(dict(held["files"][0]))),
    "a file above the folder": ("checkpoint-name", lambda held: rename(held, "../" + VICTIM)),
    "a file further above": ("checkpoint-name", lambda held: rename(held, "a/../../" + VICTIM)),
    "an absolute path": ("checkpoint-name", lambda held: rename(held, "/etc/passwd")),
    "a path of another system": ("checkpoint-name", lambda held: rename(held, "..\\" + VICTIM)),
    "other dims": ("checkpoint-file", lambda held: entry(held).update(shape=[10, 6])),
    "another element type": ("checkpoint-file", lambda held: entry(held).update(dtype="float64")),
    "other bytes": ("checkpoint-file", lambda held: held["files"][0].update(sha256="0" * 64)),
    "another program": ("checkpoint-model", lambda held: held.update(fingerprint="sha256:0")),
    "a variable less": ("checkpoint-variable", lambda held: held["values"].remove(entry(held))),
}


@pytest.mark.parametrize("what", EDITS)
def test_manifest_changed(what: str, copy: Path):
    code, edit = EDITS[what]
    change(copy, edit)
    found = refused(copy)
    assert codes(found) == {code}
    assert all(str(copy) in file for file in files(found))


def test_manifest_changed_by_hand(copy: Path):
    text = (copy / MANIFEST).read_text()
    (copy / MANIFEST).write_text(text.replace('"step": 2', '"step": 3'))
    found = refused(copy)
    assert codes(found) == {"checkpoint-manifest"}
    assert "checksum" in str(found)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1, "a": 2}', "[" * 100_000, "\xff"])
def test_manifest_that_is_none(text: str, copy: Path):
    (copy / MANIFEST).write_text(text, encoding="latin-1")
    found = refused(copy)
    assert codes(found) == {"checkpoint-manifest"}
    assert files(found) == {str(copy / MANIFEST)}


def test_half_a_folder(copy: Path):
    os.unlink(copy / MANIFEST)
    found = refused(copy)
    assert codes(found) == {"checkpoint-manifest"}
    assert "load_persistables" in str(found)
    assert codes(refused(copy.parent / "nowhere")) == {"checkpoint-manifest"}


def test_cut_manifests_are_never_read(saved: Path):
    data = (saved / MANIFEST).read_bytes()
    for size in range(0, len(data) - 2, 97):
        with pytest.raises(DiagnosticError):
            parse_manifest(data[:size], "here")


# Other models and machines


def test_another_program(copy: Path):
    other = job(2, 2, "momentum")
    live = machines(started(other))
    before = everything(live)
    with pytest.raises(DiagnosticError) as problem:
        load_checkpoint(live, other, copy)
    assert codes(problem.value) == {"checkpoint-model"}
    with pytest.raises(DiagnosticError) as problem:
        load_checkpoint(live, other, copy, same_program=False)
    assert codes(problem.value) == {"checkpoint-variable"}
    assert "fc_0.w_0_velocity_0" in str(problem.value)
    assert everything(live) == before


def test_another_program_with_the_same_variables(copy: Path):
    """Incremental training: the plain SGD of the same model takes over parameters and statistics."""
    other = job(3, 2, "sgd")
    cluster = started(other)
    load_checkpoint(machines(cluster), other, copy, same_program=False)
    want = started(job(2, 2), 2).parameters()
    assert {name: value.tobytes() for name, value in cluster.parameters().items()} == {
        name: value.tobytes() for name, value in want.items()
    }


def test_machines_of_another_job(copy: Path):
    live = machines(started(job(3, 2)))
    before = everything(live)
    with pytest.raises(DiagnosticError) as problem:
        load_checkpoint(live, job(2, 2), copy)
    assert codes(problem.value) == {"checkpoint-place"}
    assert "pserver_2" in str(problem.value)
    assert everything(live) == before


def test_wrong_dims_in_a_consistent_checkpoint(copy: Path):
    """A checkpoint that someone put together: all hashes are right, a variable is not."""
    from hashlib import sha256

    write_values(copy / VICTIM, np.zeros((3, 3), "float32"))
    data = (copy / VICTIM).read_bytes()

    def edit(held: dict) -> None:
        file = next(file for file in held["files"] if file["path"] == VICTIM)
        file.update(size=len(data), sha256=sha256(data).hexdigest())
        entry(held).update(shape=[3, 3])

    change(copy, edit)
    found = refused(copy)
    assert codes(found) == {"checkpoint-variable"}
    assert files(found) == {str(copy / VICTIM)}


# Numbered checkpoints


def test_newest(saved: Path, tmp_path: Path):
    assert newest(saved) == saved
    with pytest.raises(DiagnosticError) as problem:
        newest(tmp_path)
    assert codes(problem.value) == {"checkpoint-manifest"}
    for step in (2, 10, 9):
        place = tmp_path / f"step_{step:08d}"
        shutil.copytree(saved, place)
        (place / MANIFEST).write_bytes(manifest_bytes(read_manifest(saved)._replace(step=step)))
    (tmp_path / ".step_00000011.99-0.part").mkdir()  # not finished
    assert newest(tmp_path).name == "step_00000010"
    with pytest.raises(DiagnosticError):
        newest(tmp_path / "nowhere")
