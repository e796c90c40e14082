"""What files are that were named in place of others: told in one error, with the command that takes them."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.fluid.__main__ import parse_options
from pstranspile.ir.diagnostics import MAX_FINDINGS
from pstranspile.ir.reading import kind_of
from pstranspile.tools.cli import main

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "regression.ir"


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=np.ones(3))
    return stream.getvalue()


def saved() -> bytes:
    """An archive as torch.save writes it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("m/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("m/data/0", bytes(16))
    return stream.getvalue()


ROWS = "\n".join(f"{number},{number}.5" for number in range(100))
KINDS: dict[str, tuple[bytes, str]] = {
    "d.csv": (f"x,y\n{ROWS}".encode(), "this is a CSV file; its rows are data, for `pstranspile run --feed FILE"),
    "semicolons": (b"x;y\n1;2\n", "this is a CSV file; its rows are data"),
    "tabs": (b"x\ty\n1\t2\n", "this is a CSV file; its rows are data"),
    "one.csv": (b"x,y\n", "this is a CSV file"),
    "d.jsonl": (b'{"x": 1}\n{"x": 2}\n', "this is JSON lines; its rows are data"),
    "d.json": (b'{"x": [1,\n 2]}\n', "this is JSON, and no program"),
    "job.json": (b'{"pservers": "a:1"}', "this is a job file; --config takes it"),
    "job.toml": (b'# the job\npservers = "a:1"\n', "this is a job file; --config takes it"),
    "script": (b"import paddle.fluid as fluid\nx = 1\n", "this is a Python script; dump its programs where it runs"),
    "script.py": (b"x = (1\n", "this is a Python script"),
    "d.npz": (npz(), "this is an archive of arrays (.npz); `pstranspile run` takes its arrays as --feed"),
    "a.zip": (b"PK\x03\x04" + b"\0" * 26 + b"a.txt", "this is an archive (.zip), neither a serialized ProgramDesc nor"),
    "d.parquet": (b"PAR1\x15\x04", "this is a Parquet file; its rows are data"),
    "m.pt": (saved(), "this is what torch.save has written; in Python, load_state_dict gives what torch.load reads"),
    "old.pt": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M", "this is what torch.save has written; in Python"),
    "m.safetensors": (b'X\0\0\0\0\0\0\0{"w":{', "this is a safetensors file; `load_variables` of Python reads it"),
    "net.onnx": (b"\x08\x08\x12\x07", "this looks like an ONNX model; `pstranspile import` makes text of it"),
    "w": (bytes(8) + b"\x01", "this is a variable, or several, as Fluid saves them; `pstranspile run --init` takes it"),
    "p.png": (b"\x89PNG\r\n\x1a\n", "this is a picture, neither a serialized ProgramDesc nor program text: byte 0x1a"),
    "page": (b"<!doctype html>\n<p>", "this is a page or a picture of XML, and no program"),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_a_file_is_in_place_of_a_program(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data, told = KINDS[name]
    file = tmp_path / name
    file.write_bytes(data)
    for command in (["run", str(file)], ["compile", str(file), "--pservers", "1"], ["launch", str(file)]):
        assert main(command) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"{file}: error[input-format]: {told}")
        assert err.count("\n") == 1
    assert main(["fmt", str(file)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("path", sorted((ROOT / "golden").rglob("*.ir")), ids=lambda path: path.stem)
def test_programs_are_nothing_else(path: Path):
    """Also those with errors, and without their first lines."""
    text = path.read_bytes()
    body = text.partition(b"program @")[2].partition(b"\n")[2]
    for data in (text, body, b"\n".join(body.split(b"\n")[5:])):
        kind = kind_of(data)
        assert kind is None or kind.description == "the text of a program"


def test_findings_of_one_text_are_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "net.ir"
    file.write_text("ir 1\n" + "1 2 3\n" * 1000)
    assert main(["run", str(file)]) == 1
    assert capsys.readouterr().err.count("error[") <= MAX_FINDINGS


def test_what_a_file_is_in_place_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("d.csv").write_text(f"x,y\n{ROWS}")
    csv = "this is a CSV file; its rows are data, for `pstranspile run --feed FILE --batch N`"
    program = "this is the text of a program; `pstranspile run` takes it"
    cluster = [str(PROGRAM), "--pservers", "1", "--trainers", "1"]
    for options, told in (
        (["--init", "d.csv"], f"d.csv: error[run-file-unusable]: not an .npz file: {csv}\n"),
        (["--feed", str(PROGRAM)], f"{PROGRAM}: error[run-file-unusable]: not an .npz file: {program}\n"),
        (["--faults", "d.csv"], f"d.csv: error[cluster-scenario]: {csv}; a scenario has a line for each fault"),
        (["--replay", "d.csv"], f"d.csv: error[cluster-record]: is no record of a run: {csv}\n"),
        (["--config", "d.csv"], f"d.csv: error[job-file]: not a job file: {csv}\n"),
        (["--config", str(PROGRAM)], f"{PROGRAM}: error[job-file]: not a job file: {program}\n"),
    ):
        assert main(["run", *cluster, *options]) in (1, 2)
        err = capsys.readouterr().err
        assert err.startswith(told)
        assert err.count("\n") == 1
    assert parse_options(["d.csv"]) == f"d.csv: {csv}; a script is needed"
    assert parse_options([str(PROGRAM)]) == f"{PROGRAM}: {program}; a script is needed"
    assert parse_options(["."]) == ". is a folder; name a script"


@pytest.mark.parametrize("name", ["m.pt", "old.pt", "m.safetensors"])
def test_what_other_programs_save_in_place_of_arrays(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    data, told = KINDS[name]
    Path(name).write_bytes(data)
    made = next(iter(ps.load(PROGRAM).main.main_block.ops[0].output_names))
    model = ["export", str(PROGRAM), "--to", "inference", "--fetch", made, "-o", "m"]
    for command in (["run", str(PROGRAM), "--init"], ["run", str(PROGRAM), "--feed"], [*model, "--from"]):
        assert main([*command, name]) == 1
        err = capsys.readouterr().err
        assert err.startswith(f"{name}: error[run-file-unusable]: not an .npz file: {told}")
        assert "np.savez writes" in err
        assert err.count("\n") == 1


def test_folders_without_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    assert main(["compile", str(PROGRAM), "--pservers", "1", "-o", "out"]) == 0
    Path("rows").mkdir()
    Path("rows/d.csv").write_text(f"x,y\n{ROWS}")
    Path("rows/more.json").write_text(json.dumps([1]))
    capsys.readouterr()
    taken = "an .npz file of arrays by name, what --save wrote, a checkpoint and a folder of Fluid's save_persistables"
    model = [
        "export",
        str(PROGRAM),
        "--to",
        "inference",
        "--fetch",
        next(iter(ps.load(PROGRAM).main.main_block.ops[0].output_names)),
    ]
    for command in (["run", str(PROGRAM), "--init"], [*model, "-o", "m", "--from"]):
        assert main([*command, "out"]) == 1
        told = f"it is a folder of compiled programs, without values; {taken} are taken"
        assert capsys.readouterr().err == f"out: error[run-file-unusable]: {told}\n"
        assert main([*command, "rows"]) == 1
        told = f"it is no folder of values: d.csv is a CSV file; {taken} are taken"
        assert capsys.readouterr().err == f"rows: error[run-file-unusable]: {told}\n"
