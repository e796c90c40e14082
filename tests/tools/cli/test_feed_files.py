"""Feed files whose steps have other shapes, or sequences of sequences, in every verb that takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.tools.cli import main

NET = """ir 1
program @main {
  block ^0 {
    param %w : f32[10, 2]
    state %lr : f32[1]
    temp %ids : i64[-1, 1] lod=2 feed
    temp %words : f32[-1, 2] lod=2
    temp %sentences : f32[-1, 2] lod=1
    temp %texts : f32[-1, 2]
    temp %loss : f32[1]
    temp %m : i32[-1, 2]
    temp %n : i32[-1, 2]
    lookup_table(Ids=%ids, W=%w) -> Out=%words
    sequence_pool(X=%words) -> Out=%sentences, MaxIndex=%m {pooltype="SUM"}
    sequence_pool(X=%sentences) -> Out=%texts, MaxIndex=%n {pooltype="SUM"}
    mean(X=%texts) -> Out=%loss
  }
}
program @startup {
  block ^0 {
    param %w : f32[10, 2]
    fill_constant() -> Out=%w {shape=[10, 2], dtype=5, value=1.0}
  }
}
"""
SIZES = (8, 8, 4)
"""Rows of each step: the last batch is smaller."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main([*arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_sequences_of_sequences(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "net.ir").write_text(NET)
    lengths = [([2, 1], [1, 2, 3]), ([0, 1, 2], [0, 1, 4])]
    arrays: dict[str, Any] = {}
    for step, (texts, sentences) in enumerate(lengths, 1):
        arrays[f"{step}|ids"] = np.zeros((sum(sentences), 1), "int64")
        arrays[f"{step}|ids|0"], arrays[f"{step}|ids|1"] = np.array(texts), np.array(sentences)
    np.savez("data.npz", **arrays)
    fetch = ["--fetch", "texts", "--fetch", "words"]
    status, _, err = result(capsys, "run", "net.ir", "--feed", "data.npz", *fetch, "--save", "out.npz")
    assert status == 0, err
    with np.load("out.npz") as out:
        assert out["step/1|texts"].tolist() == [[3, 3], [3, 3]]
        assert out["step/2|texts"].tolist() == [[0, 0], [0, 0], [5, 5]]
        assert out["step/1|words|0"].tolist() == [2, 1]
        assert out["step/2|words|1"].tolist() == [0, 1, 4]


def regression(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    batches = [random.normal(size=(size, 13)).astype("float32") for size in sizes]
    return [{"x": x, "y": x[:, :1]} for x in batches]


MODEL = str(Path(__file__).parents[3] / "examples" / "linear_regression.ir")
CLUSTER = ["--pservers", "2", "--trainers", "2"]


def test_a_last_batch_that_is_smaller(folder: Path, capsys: pytest.CaptureFixture[str]):
    """One machine, a cluster, a run from a checkpoint, and Python: all take the same steps."""
    del folder
    ps.save_feeds("data.npz", regression(SIZES))
    for name, job in (("one", []), ("cluster", CLUSTER)):
        assert result(capsys, "run", MODEL, *job, "--feed", "data.npz", "--save", f"{name}.npz")[0] == 0
    run = ["run", MODEL, *CLUSTER, "--feed", "data.npz"]
    assert result(capsys, *run, "--steps", "2", "--checkpoint", "kept")[0] == 0
    status, out, _ = result(capsys, *run, "--resume", "kept", "--save", "resumed.npz")
    assert status == 0
    assert out.startswith("step 3/3 ")
    job = ps.Job(pservers=2, trainers=2)
    python = ps.simulate(ps.compile(ps.load(MODEL), job), regression(SIZES)).parameters
    with np.load("one.npz") as one, np.load("cluster.npz") as cluster, np.load("resumed.npz") as resumed:
        assert len(one["step/mean_0.tmp_0"]) == 3
        for name, value in python.items():
            np.testing.assert_allclose(cluster[f"param/{name}"], one[f"param/{name}"], rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(cluster[f"param/{name}"], resumed[f"param/{name}"])
            np.testing.assert_allclose(cluster[f"param/{name}"], value, rtol=1e-5, atol=1e-6)
    status, out, _ = result(capsys, "check", MODEL, *CLUSTER, "--feed", "data.npz")
    assert status == 0, out
    assert "3 steps" in out
    assert out.startswith("the cluster trains as the single machine does\n")


def test_arrays_of_one_trainer(folder: Path, capsys: pytest.CaptureFixture[str]):
    """A trainer's own arrays of each step take the place of those for all."""
    del folder
    batches = regression((4, 4))
    arrays = {key: np.stack([batch[key] for batch in batches]) for key in ("x", "y")}
    own = {f"trainer_1/{step}|{key}": batches[step - 1][key][2:] for step in (1, 2) for key in ("x", "y")}
    own |= {f"trainer_0/{key}": array[:, :2] for key, array in arrays.items()}
    np.savez("shared.npz", **arrays)
    np.savez("own.npz", **arrays, **own)
    saved = []
    for name in ("shared", "own"):
        status, out, err = result(capsys, "run", MODEL, *CLUSTER, "--feed", f"{name}.npz", "--save", "out.npz")
        assert status == 0, err
        with np.load("out.npz") as held:
            saved.append((out, {key: held[key].tolist() for key in held.files}))
    assert saved[0] == saved[1]
    np.savez("wrong.npz", **arrays, **{"trainer_2/1|x": arrays["x"][0]})
    _, _, err = result(capsys, "run", MODEL, *CLUSTER, "--feed", "wrong.npz")
    assert "wrong.npz: error[cluster-feeds]: trainer_2/1|x is for trainer_2, which is none of 2 trainers" in err


@pytest.mark.parametrize("verb", ["run", "check"])
def test_mistakes_name_the_file(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    del folder
    np.savez("data.npz", x=np.ones((2, 4, 13), "float32"), **{"1|y": np.ones((4, 2), "float32")})
    status, _, err = result(capsys, verb, MODEL, *CLUSTER, "--feed", "data.npz")
    assert status == 1
    assert "data.npz: error[run-file-unusable]: step 1: y is declared f32[-1, 1], but is fed f32[4, 2]" in err


def test_a_run_without_inputs_says_how_they_are_given(folder: Path, capsys: pytest.CaptureFixture[str]):
    del folder
    for job in ([], CLUSTER):
        status, _, err = result(capsys, "run", MODEL, *job)
        assert (status, err.count("note: --feed FILE.npz gives the inputs of all steps")) == (1, 1)
    np.savez("data.npz", x=np.ones((1, 4, 13), "float32"))
    assert "note: --feed" not in result(capsys, "run", MODEL, "--feed", "data.npz")[2]


def test_steps_of_a_check_are_those_that_are_fed(folder: Path, capsys: pytest.CaptureFixture[str]):
    del folder
    ps.save_feeds("data.npz", regression((4,) * 7))
    assert ", 5 of 7 fed steps\n" in result(capsys, "check", MODEL, *CLUSTER, "--feed", "data.npz")[1]
    assert ", 7 steps\n" in result(capsys, "check", MODEL, *CLUSTER, "--feed", "data.npz", "--steps", "7")[1]
    assert (
        "7 steps are fed, 8 are asked for"
        in result(capsys, "check", MODEL, *CLUSTER, "--feed", "data.npz", "--steps", "8")[2]
    )


@pytest.fixture
def rows(folder: Path) -> Path:
    """20 rows of the model's inputs as CSV, JSON lines and, if pyarrow is there, Parquet."""
    draw = np.random.RandomState(0)
    table = {f"f{i}": draw.rand(20).astype("float32").tolist() for i in range(13)}
    table["y"] = draw.rand(20).astype("float32").tolist()
    lines = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    (folder / "rows.csv").write_text(
        "\n".join([",".join(table), *(",".join(map(str, line.values())) for line in lines)]) + "\n"
    )
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rows.txt").write_text(
        "".join("13 " + " ".join(str(line[f"f{i}"]) for i in range(13)) + f" 1 {line['y']}\n" for line in lines)
    )
    return folder


COLUMNS = ("--columns", "x=f*")
MULTISLOT = ("--format", "multislot", "--names", "x,y")


@pytest.mark.parametrize(
    "options",
    [
        ("rows.csv", "--batch", "6", *COLUMNS),
        ("rows.jsonl", "--batch", "5", "--epochs", "2", "--shuffle", "3", *COLUMNS),
        ("rows.*l", "--batch", "4", "--format", "jsonl", *COLUMNS),
        ("rows.txt", "--batch", "8", *MULTISLOT),
    ],
)
def test_rows_are_checked_as_they_are_run(options: Any, rows: Path, capsys: pytest.CaptureFixture[str]):
    """The single machine of a check is fed in each step what all trainers of a run are."""
    del rows
    feed = ("--feed", *options)
    status, out, err = result(capsys, "check", MODEL, *CLUSTER, *feed, "--shares", "weighted", "--json")
    assert status == 0, out + err
    checked = json.loads(out)
    batch, epochs = int(options[2]), 2 if "--epochs" in options else 1
    steps = epochs * -(-20 // batch)
    assert checked["steps"] == min(steps, 5)
    assert result(capsys, "report", MODEL, *CLUSTER, *feed, "--check", "--shares", "equal", "-o", "page.html")[0] == 2
    status, _, err = result(capsys, "report", MODEL, *CLUSTER, *feed, "--check", "-o", "page.html")
    equal = result(capsys, "check", MODEL, *CLUSTER, *feed)[0]  # without weights: some batches can't be shared evenly
    assert status == equal, err
    page = Path("page.html").read_text()
    assert f'"steps":{min(steps, 5)}' in page.replace(" ", "")
    status, out, _ = result(capsys, "run", MODEL, *CLUSTER, *feed, "--save", "out.npz")
    assert f"step {steps}/{steps} " in out


def test_rows_that_a_check_cannot_take(rows: Path, capsys: pytest.CaptureFixture[str]):
    del rows
    check = ("check", MODEL, *CLUSTER)
    assert "holds rows; --batch N says" in result(capsys, *check, "--feed", "rows.csv")[2]
    assert "--columns is about rows, and --feed names none" in result(capsys, *check, *COLUMNS)[2]
    few = result(capsys, *check, "--feed", "rows.csv", "--batch", "10", *COLUMNS, "--steps", "3")[2]
    assert "the rows are enough for 2 steps, 3 are asked for" in few
    turns = result(capsys, *check, "--feed", "rows.csv", "--batch", "10", *COLUMNS, "--program", "main")[2]
    assert "rows are fed to one program; several take turns here" in turns
    Path("rows.csv").write_text(Path("rows.csv").read_text().replace("0.", "x.", 1))
    bad = ("--feed", "rows.csv", "--batch", "10", *COLUMNS)
    assert "rows.csv:2" in result(capsys, *check, *bad)[2]
    status, _, err = result(capsys, *check, *bad, "--bad-rows", "skip", "--shares", "weighted")
    assert status == 0
    assert "is left out" in err


def test_the_verdict_of_a_check_comes_first(folder: Path, capsys: pytest.CaptureFixture[str]):
    del folder
    status, out, _ = result(capsys, "check", MODEL, *CLUSTER)
    assert (status, out.splitlines()[0]) == (0, "the cluster trains as the single machine does")
    assert len(out.splitlines()) <= 5
    every = result(capsys, "check", MODEL, *CLUSTER, "--all")[1].splitlines()
    assert every[:3] == out.splitlines()[:3]
    assert len([line for line in every if line.startswith("  ")]) == 4
    status, out, _ = result(capsys, "check", MODEL, *CLUSTER, "--mode", "async")
    assert status == 0
    assert out.count(" variables differ, ") == 1
    assert "of 4 variables differ, which the mode allows; the largest relative difference: %" in out
    status, out, _ = result(capsys, "check", MODEL, *CLUSTER, "--batch", "5")
    lines = out.splitlines()
    assert (status, lines[0].partition(":")[0]) == (1, "DIFFERENT")
    assert lines[2].split()[2] == "different"
    assert "it is a mean over rows" in lines[5]
