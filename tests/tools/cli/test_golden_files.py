"""For those who keep outputs: `compile --check`, `plan --against`, `verify DIR`, `diff --json`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pstranspile.tools.cli import main

ROOT = Path(__file__).parents[3]
SOURCE = str(ROOT / "examples" / "regression.ir")
JOB = ["--pservers", "a:1,b:1", "--trainers", "2", "--set", "min_block_size=100"]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    assert main(["compile", SOURCE, *JOB, "-o", str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_check_of_what_was_written(out: Path, capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "compile", SOURCE, *JOB, "--check", out) == (0, "", "")


def test_check_shows_what_differs_and_writes_nothing(out: Path, capsys: pytest.CaptureFixture[str]):
    text = (out / "pserver_0.ir").read_text()
    assert "value=0.01" in text
    (out / "pserver_0.ir").write_text(text.replace("value=0.01", "value=0.25"))
    (out / "trainer_1.ir").unlink()
    shutil.copy(out / "trainer_0.ir", out / "trainer_7.ir")
    before = content(out)
    status, shown, told = run(capsys, "compile", SOURCE, *JOB, "--check", out)
    assert (status, told) == (1, f"{out}: 3 files differ\n")
    lines = shown.split("\n")
    assert f"{out}/trainer_1.ir: is missing" in lines
    assert f"{out}/trainer_7.ir: no machine of the job has these programs" in lines
    assert [line for line in lines if line.startswith("-") and "0.25" in line]
    assert [line for line in lines if line.startswith("+") and "0.01" in line]
    assert len([line for line in lines if line.startswith(("-", "+"))]) == 4
    assert content(out) == before


def test_check_of_another_job(out: Path, capsys: pytest.CaptureFixture[str]):
    status, shown, _ = run(capsys, "compile", SOURCE, *JOB, "--mode", "async", "--check", out)
    assert status == 1
    assert '-  "mode": "sync",' in shown
    assert '+  "mode": "async",' in shown


def test_check_of_serialized_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    assert run(capsys, "compile", SOURCE, *JOB, "--emit", "pb", "-o", out)[0] == 0
    assert run(capsys, "compile", SOURCE, *JOB, "--emit", "pb", "--check", out) == (0, "", "")
    shutil.copy(out / "pserver_1.startup.pb", out / "pserver_0.startup.pb")
    status, shown, _ = run(capsys, "compile", SOURCE, *JOB, "--emit", "pb", "--check", out)
    assert status == 1
    assert shown.startswith(f"--- {out}/pserver_0.startup.pb")
    assert "%w.block" in shown
    status, shown, _ = run(capsys, "compile", SOURCE, *JOB, "--check", out)  # nothing of it is there as text
    assert status == 1
    assert f"{out}/trainer_0.ir: is missing" in shown


def test_check_without_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, shown, _ = run(capsys, "compile", SOURCE, *JOB, "--check", tmp_path / "none")
    assert status == 1
    assert shown.count("is missing") == 5
    assert not (tmp_path / "none").exists()
    assert run(capsys, "compile", SOURCE, *JOB, "--check", tmp_path, "-o", tmp_path)[0] == 2


def test_plan_against_what_was_written(out: Path, capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "plan", SOURCE, *JOB, "--against", out) == (0, "no changes\n", "")


def test_plan_against_another(out: Path, capsys: pytest.CaptureFixture[str]):
    job = [*JOB, "--pservers", "a:1,c:1,d:1"]
    job.remove("a:1,b:1")
    job.remove("--pservers")
    status, shown, _ = run(capsys, "plan", SOURCE, *job, "--mode", "async", "--against", out)
    lines = shown.rstrip("\n").split("\n")
    assert status == 1
    assert lines[:4] == ["~ mode: sync -> async", "- server b:1", "+ server c:1", "+ server d:1"]
    assert any(line.startswith("~ %w.block") and "slice_shape: [500, 20] -> [334, 20]" in line for line in lines)
    assert any(line.startswith("+ %w.block2 of %w [332, 20] @ ") for line in lines)
    counts = [sum(line[0] == sign for line in lines[:-1]) for sign in "+~-"]
    assert lines[-1] == f"{counts[0]} to add, {counts[1]} to change, {counts[2]} to remove"


def test_plan_against_another_program(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    faster = tmp_path / "faster.ir"
    faster.write_text(Path(SOURCE).read_text().replace("value=0.01", "value=0.1"))
    assert run(capsys, "plan", faster, *JOB, "--against", out)[1].split("\n")[0] == "~ the programs"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mode": 1}', '{"mode": "sync", "trainers": 1, "pservers": [2]}'])
def test_plan_against_something_else(out: Path, capsys: pytest.CaptureFixture[str], text: str):
    (out / "plan.json").write_text(text)
    status, shown, told = run(capsys, "plan", SOURCE, *JOB, "--against", out)
    assert (status, shown) == (1, "")
    assert f"{out}/plan.json: error[explain-" in told


def test_verify_a_folder(out: Path, capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "verify", out) == (0, "", "")
    text = (out / "pserver_1.ir").read_text()
    (out / "pserver_1.ir").write_text(text.replace("sgd(Param=%w", "sgd(Param=%no_w"))
    status, _, told = run(capsys, "verify", out, SOURCE)
    assert status == 1
    assert f"{out}/pserver_1.ir: 1 error\n" in told


def test_verify_a_folder_whose_machines_do_not_fit(out: Path, capsys: pytest.CaptureFixture[str]):
    (out / "trainer_1.ir").unlink()
    status, _, told = run(capsys, "verify", out)
    assert status == 1
    assert told.endswith(f"{out}: the programs of the machines do not fit together\n")
    assert f"{out}/pserver_0.ir:" in told  # at its line


def test_verify_other_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "verify", tmp_path)[0] == 1
    shutil.copy(SOURCE, tmp_path / "net.ir")
    assert run(capsys, "verify", tmp_path) == (0, "", "")


def test_diff_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = tmp_path / "other.ir"
    other.write_text(Path(SOURCE).read_text().replace("value=0.01", "value=0.1").replace("sgd(", "dpsgd("))
    status, shown, _ = run(capsys, "diff", SOURCE, other)
    assert status == 1
    assert shown.rstrip("\n").split("\n")[-1] == "2 differences (2 in ops): 3 lines less, 3 more"
    status, shown, _ = run(capsys, "diff", SOURCE, other, "--json")
    found = json.loads(shown)
    assert (status, found["count"]) == (1, 2)
    assert [(item["program"], item["block"], item["what"]) for item in found["differences"]] == [
        ("main", 0, "ops"),
        ("startup", 0, "ops"),
    ]
    signs = [line["sign"] for item in found["differences"] for line in item["lines"]]
    assert (signs.count("-"), signs.count("+")) == (3, 3)
    assert run(capsys, "diff", SOURCE, SOURCE) == (0, "", "")
    assert json.loads(run(capsys, "diff", SOURCE, SOURCE, "--json")[1]) == {"count": 0, "differences": []}


def test_diff_with_start_up_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pb = tmp_path / "pb"
    assert run(capsys, "export", SOURCE, "--to", "pb", "-o", pb)[0] == 0
    main_pb, companions = pb / "main.pb", ["--startup", pb / "startup.pb", "--meta", pb / "meta.json"]
    assert run(capsys, "diff", SOURCE, main_pb)[0] == 1
    assert run(capsys, "diff", SOURCE, main_pb, *companions)[:2] == (0, "")
    assert run(capsys, "diff", main_pb, SOURCE, *companions)[:2] == (0, "")
    assert run(capsys, "diff", main_pb, main_pb, *companions, *companions)[:2] == (0, "")
    for wrong in ([main_pb, main_pb], [SOURCE, SOURCE], [pb, pb]):
        assert run(capsys, "diff", *wrong, *companions)[0] == 2
