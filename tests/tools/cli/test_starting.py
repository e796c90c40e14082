"""What training has left is what a run begins with, and what a model is served with: checkpoints and saved results."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.inference import load_inference_model
from pstranspile.cluster.checkpoint.row_files import export_rows
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adam, minimize
from pstranspile.tools.cli import main

STEPS = 4
CLUSTER = ["--pservers", "2", "--trainers", "2", "--set", "min_block_size=4"]
WAYS = {"alone": ["run"], "cluster": ["run", *CLUSTER], "processes": ["launch", *CLUSTER]}


def module(width: int = 5) -> tuple[Any, str]:
    """A program, and its prediction."""
    draft = L.Draft(seed=7)
    x, y = L.data(draft, "x", [-1, 6]), L.data(draft, "y", [-1, 1])
    prediction = L.fc(L.dropout(L.fc(x, width, act="relu"), 0.4), 1)
    minimize(L.mean(L.square_error_cost(prediction, y)), Adam(0.05))
    return draft.module(), prediction.name


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(ps.dumps(module()[0]))
    random = np.random.default_rng(1)
    x, y = random.normal(size=(STEPS, 8, 6)), random.normal(size=(STEPS, 8, 1))
    np.savez("data.npz", x=x.astype("float32"), y=y.astype("float32"))
    saving = ["--checkpoint", "kept", "--checkpoint-every", "3", "--save", "out.npz"]
    assert main(["run", "net.ir", *CLUSTER, "--feed", "data.npz", *saving]) == 0


def trained(way: str, *options: str) -> dict[str, Any]:
    verb, *job = WAYS[way]
    assert main([verb, "net.ir", *job, "--feed", "data.npz", "--save", "found.npz", *options]) == 0
    with np.load("found.npz") as held:
        return {name: held[name] for name in held.files}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_begins_with_what_another_has_saved(way: str):
    """Results are those of a file with the parameters under their own names."""
    with np.load("out.npz") as held:
        np.savez("plain.npz", **{name[6:]: held[name] for name in held.files if name.startswith("param/")})
    wanted = trained(way, "--init", "plain.npz")
    assert equal(trained(way, "--init", "out.npz"), wanted)
    assert not equal(trained(way), wanted)


@pytest.mark.parametrize("way", ["alone", "cluster"])
def test_a_run_begins_with_all_that_a_checkpoint_holds(way: str):
    """Also what optimizers keep, and the newest of a folder. Its steps count from the beginning again."""
    first, again = trained(way, "--init", "kept"), trained(way, "--init", "kept/step_00000004")
    assert equal(first, again)
    assert not equal(first, trained(way, "--init", "kept/step_00000003"))
    assert not equal(first, trained(way, "--init", "out.npz"))  # moments begin anew there
    (steps,) = {len(value) for name, value in first.items() if "step/" in name}
    assert steps == STEPS


def test_machines_say_what_they_do_not_take_over(capsys: pytest.CaptureFixture[str]):
    found = trained("processes", "--init", "kept")
    err = capsys.readouterr().err
    assert "kept/step_00000004: warning[checkpoint-variable]: not taken over, since only servers have them: " in err
    assert "_moment1_0" in err
    assert "--resume goes on with all" in err
    assert equal(found, trained("processes", "--init", "out.npz"))


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_of_another_program(way: str, capsys: pytest.CaptureFixture[str]):
    verb, *job = WAYS[way]
    Path("wide.ir").write_text(ps.dumps(module(9)[0]))
    assert main([verb, "wide.ir", *job, "--feed", "data.npz", "--init", "kept"]) == 1
    assert "fc_0.w_0 is declared f32[6, 9], but the file holds f32[6, 5]" in capsys.readouterr().err


def test_a_checkpoint_that_lacks_something(capsys: pytest.CaptureFixture[str]):
    draft = L.Draft(seed=7)
    x, y = L.data(draft, "x", [-1, 6]), L.data(draft, "y", [-1, 1])
    more = L.fc(L.fc(L.fc(x, 5), 1), 1)
    minimize(L.mean(L.square_error_cost(more, y)), Adam(0.05))
    Path("more.ir").write_text(ps.dumps(draft.module()))
    assert main(["run", "more.ir", "--feed", "data.npz", "--init", "kept"]) == 0
    told = "kept/step_00000004: warning[checkpoint-variable]: it has no fc_2.w_0, which begins as the start-up program"
    assert told in capsys.readouterr().err
    assert main(["export", "more.ir", "--to", "inference", "--fetch", more.name, "--from", "kept", "-o", "m"]) == 1
    err = capsys.readouterr().err
    assert "kept/step_00000004: error[checkpoint-variable]: it has no fc_2.w_0, which the model needs" in err
    assert not Path("m").exists()


def prediction_of(folder: str) -> Any:
    scope = ps.Scope()
    model = load_inference_model(folder, scope)
    assert model.feeds == ("x",)
    (out,) = ps.run(model.program, {"x": np.load("data.npz")["x"][0]}, model.targets, scope).values()
    return out


def test_a_model_is_exported_from_what_training_has_left():
    """In one command, from a checkpoint, one step of it, and results; bit for bit the parameters."""
    export = ["export", "net.ir", "--to", "inference", "--fetch", module()[1]]
    for number, source in enumerate(["kept", "kept/step_00000004", "out.npz", "kept/step_00000003"]):
        assert main([*export, "--from", source, "-o", f"model_{number}"]) == 0
    first = sorted(os.listdir("model_0"))
    assert first == ["__model__", "fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]
    for other in ("model_1", "model_2"):
        assert sorted(os.listdir(other)) == first
        assert all(Path("model_0", name).read_bytes() == Path(other, name).read_bytes() for name in first)
    w = [np.load("out.npz")[f"param/fc_{n}.{kind}_0"] for n in (0, 1) for kind in ("w", "b")]
    x = np.load("data.npz")["x"][0]
    wanted = np.maximum(x @ w[0] + w[1], 0) * 0.6 @ w[2] + w[3]  # what dropout does when testing
    np.testing.assert_allclose(prediction_of("model_0"), wanted, rtol=1e-5)
    assert not np.array_equal(prediction_of("model_3"), prediction_of("model_0"))


def test_an_onnx_model_is_exported_from_a_checkpoint():
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    assert main(["export", "net.ir", "--to", "onnx", "--fetch", module()[1], "--from", "kept", "-o", "model"]) == 0
    model = onnx.load("model/main.onnx")
    held = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    np.testing.assert_array_equal(held["fc_0.w_0"], np.load("out.npz")["param/fc_0.w_0"])


def test_options_of_export(capsys: pytest.CaptureFixture[str]):
    export = ["export", "net.ir", "-o", "model", "--fetch", module()[1]]
    for more, told in (
        (["--to", "dot", "--from", "kept"], "are about models with values, not --to dot"),
        (["--to", "onnx", "--from", "kept", "--init", "out.npz"], "--from and --init both say which values"),
        (["--to", "inference", "--from", ""], "--from: the name is empty"),
    ):
        assert main([*export, *more]) == 2
        assert told in capsys.readouterr().err
    Path("kept/step_00000004/fc_0.w_0").write_bytes(b"")
    assert main([*export, "--to", "inference", "--from", "kept"]) == 1
    assert "kept/step_00000004/fc_0.w_0: error[checkpoint-file]" in capsys.readouterr().err
    shutil.rmtree("kept")
    assert main([*export, "--to", "inference", "--from", "kept"]) == 1
    assert "kept: error[run-file-unusable]: the file can't be read" in capsys.readouterr().err
    assert not Path("model").exists()


def test_large_tables(capsys: pytest.CaptureFixture[str]):
    """They are served with zeros for rows that do not exist; a run takes them over by --resume."""
    draft = L.Draft(seed=7)
    ids, y = L.data(draft, "ids", [-1, 1], "i64"), L.data(draft, "y", [-1, 1])
    words = L.embedding(ids, [50, 4], is_sparse=True, param_attr=L.ParamAttr(name="words"))
    prediction = L.fc(words, 1)
    minimize(L.mean(L.square_error_cost(prediction, y)), Adam(0.05))
    Path("words.ir").write_text(ps.dumps(draft.module()))
    fed = np.array([[3], [7], [3], [40]])
    np.savez("ids.npz", ids=np.stack([fed, fed]), y=np.ones((2, 4, 1), "float32"))
    job = ["words.ir", *CLUSTER, "--set", "large_tables=words", "--feed", "ids.npz"]
    assert main(["run", *job, "--checkpoint", "tables", "--save", "words.npz"]) == 0
    export_rows("tables", "words", "rows", rows="serving")
    rows, values = (np.load(f"rows/{name}.npy") for name in ("ids", "values"))
    assert set(rows) == {3, 7, 40}
    for source in ("tables", "words.npz"):
        made = ["--to", "inference", "--fetch", prediction.name, "--from", source, "-o", f"of_{source[:5]}"]
        assert main(["export", "words.ir", *made]) == 0
        scope = ps.Scope()
        load_inference_model(f"of_{source[:5]}", scope)
        np.testing.assert_array_equal(scope["words"][rows], values)
        assert not scope["words"][[0, 49]].any()
        assert main(["run", *job, "--init", source]) == 1
        assert "words is a large table, of which it has only rows: --resume takes them" in capsys.readouterr().err
