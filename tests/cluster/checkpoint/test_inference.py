"""Inference models: the programs are Fluid's, op for op, and the parameters are whole."""

from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.inference import inference_program, load_inference_model, save_inference_model
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main
from tests.cluster.checkpoint import recorded
from tests.cluster.checkpoint.jobs import codes, everything, feed, job, machines, model, started
from tests.training import differences

CASES = {
    "while_loop": (["x"], ["fc_1.tmp_1"]),
    "ctr_dnn_adam": (["dnn_data", "lr_data"], ["fc_0.tmp_2", "sequence_pool_0.tmp_0"]),
    "mnist_conv_momentum": (["img"], ["fc_0.tmp_2"]),
}
PREDICTION = "fc_1.tmp_1"


@pytest.mark.parametrize("case", CASES)
def test_the_program_is_fluids(case: str):
    feeds, targets = CASES[case]
    source = recorded.program(f"{case}/main.pb")
    made = inference_program(source, feeds, targets)
    assert differences(made.program, recorded.program(f"{case}/__model__")) == []
    assert made.targets == tuple(f"save_infer_model/scale_{k}.tmp_0" for k in range(len(targets)))


def predicted(cluster, x: np.ndarray) -> np.ndarray:
    """What the parameters of trainer 0 give, computed by hand; its statistics are used, not those of the batch."""
    scope = cluster.trainers[0].scope
    hidden = np.tanh(x @ scope["fc_0.w_0"] + scope["fc_0.b_0"])
    scale = scope["batch_norm_0.w_0"] / np.sqrt(scope["batch_norm_0.w_2"] + 1e-5)
    hidden = (hidden - scope["batch_norm_0.w_1"]) * scale + scope["batch_norm_0.b_0"]
    return hidden @ scope["fc_1.w_0"] + scope["fc_1.b_0"]


@pytest.mark.parametrize("params_filename", [None, "__params__"])
def test_a_model_of_a_cluster(params_filename: str | None, tmp_path: Path):
    cluster = started(job(3, 2), 4)
    targets = save_inference_model(
        machines(cluster), job(3, 2), tmp_path, ["x"], [PREDICTION], params_filename=params_filename
    )
    scope = ps.Scope()
    loaded = load_inference_model(tmp_path, scope, params_filename=params_filename)
    assert (loaded.feeds, loaded.targets) == (("x",), targets)
    x = feed(99)["x"]
    (found,) = ps.run(loaded.program, {"x": x}, loaded.targets, scope).values()
    np.testing.assert_allclose(found, predicted(cluster, x), rtol=1e-4, atol=1e-5)
    assert not [name for name in scope if "moment" in name or "learning_rate" in name]


def test_rows_of_a_file_are_fed_to_a_saved_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Its op `feed` writes the input, which no other op does."""
    cluster, x = started(job(3, 2), 4), feed(99)["x"]
    (target,) = save_inference_model(machines(cluster), job(3, 2), tmp_path / "model", ["x"], [PREDICTION])
    names = [f"f{column}" for column in range(x.shape[1])]
    rows = [",".join(map(repr, map(float, row))) for row in x]
    (tmp_path / "rows.csv").write_text("\n".join([",".join(names), *rows, ""]))
    saved = str(tmp_path / "model" / "__model__")
    command = ["run", saved, "--init", str(tmp_path / "model"), "--feed", str(tmp_path / "rows.csv")]
    found = ["--batch", str(len(x)), "--fetch", target, "--save", str(tmp_path / "out.npz")]
    assert main([*command, *found, "--columns", "x=f*"]) == 0, capsys.readouterr().err
    with np.load(tmp_path / "out.npz") as out:
        (made,) = (out[name] for name in out.files if target in name)
    np.testing.assert_allclose(made.reshape(len(x), -1), predicted(cluster, x), rtol=1e-4, atol=1e-5)
    capsys.readouterr()
    assert main([*command, *found, "--columns", "x=f*", "--columns", "z=f1"]) == 1
    assert "columns are given for z, which is no input; inputs are x\n" in capsys.readouterr().err


def test_the_source_is_not_touched(tmp_path: Path):
    """Fluid inserts its scale ops into the user's own program."""
    before = ps.dumps(model())
    save_inference_model(machines(started(job())), job(), tmp_path, ["x"], [PREDICTION])
    assert ps.dumps(model()) == before


def test_what_only_training_needs_is_gone():
    made = inference_program(model().main, ["x"], [PREDICTION]).program
    kinds = [op.type for op in made.main_block.ops]
    assert kinds == ["feed", "mul", "elementwise_add", "tanh", "batch_norm", "mul", "elementwise_add", "scale", "fetch"]
    assert made.main_block.ops[4].attrs["is_test"] is True
    assert "y" not in made.main_block.vars


def test_a_target_that_is_fed():
    made = inference_program(model().main, ["x", "y"], ["y", PREDICTION])
    assert made.program.main_block.ops[-1].attrs["col"] == 1
    scope = ps.Scope()
    ps.run(model()["startup"], scope=scope)
    found = ps.run(made.program, feed(1), made.targets, scope)
    assert np.array_equal(found[made.targets[0]], feed(1)["y"])


REFUSED = {
    "no such target": (["x"], ["nothing"], "declares no such variable"),
    "no such feed": (["z"], [PREDICTION], "declares no such variable"),
    "an input that is not fed": (["x"], ["mean_0.tmp_0"], "y, which is not to be fed"),
    "nothing computes it": (["x"], ["learning_rate_0"], "no op computes"),
    "no target": (["x"], [], "no target"),
    "a feed twice": (["x", "x"], [PREDICTION], "twice"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, tmp_path: Path):
    feeds, targets, reason = REFUSED[what]
    with pytest.raises(DiagnosticError, match=reason) as problem:
        save_inference_model(machines(started(job())), job(), tmp_path / "m", feeds, targets)
    assert codes(problem.value) == {"inference-program"}
    assert not (tmp_path / "m").exists()


def test_a_damaged_model_sets_nothing(tmp_path: Path):
    save_inference_model(machines(started(job())), job(), tmp_path, ["x"], [PREDICTION])
    (tmp_path / "fc_1.w_0").write_bytes(b"")
    scope = ps.Scope()
    ps.run(model()["startup"], scope=scope)
    before = everything({"": scope})
    with pytest.raises(DiagnosticError) as problem:
        load_inference_model(tmp_path, scope)
    assert codes(problem.value) == {"values-damaged"}
    assert everything({"": scope}) == before


def test_a_program_that_is_no_inference_model(tmp_path: Path):
    from pstranspile.frontends.program_desc import program_to_bytes

    (tmp_path / "__model__").write_bytes(program_to_bytes(model().main))
    with pytest.raises(DiagnosticError) as problem:
        load_inference_model(tmp_path, ps.Scope())
    assert codes(problem.value) == {"inference-program"}


# Tables


def sparse_job() -> ps.Compiled:
    draft = L.Draft(seed=3)
    ids, y = L.data(draft, "ids", [-1, 1], dtype="i64"), L.data(draft, "y", [-1, 1])
    rows = L.embedding(ids, [40, 4], is_sparse=True)
    minimize(L.mean(L.square_error_cost(L.fc(rows, 1), y)), SGD(0.1))
    return ps.compile(draft.module(), ps.Job(["a:1", "b:2"], 2, min_block_size=4))


def test_a_model_that_looks_rows_up_on_other_servers(tmp_path: Path):
    compiled = sparse_job()
    scopes = {name: {} for name in ("pserver_0", "pserver_1", "trainer_0", "trainer_1")}
    for number, endpoint in enumerate(("a:1", "b:2")):
        ps.run(compiled.pserver(endpoint).startup, scope=(scope := ps.Scope()))
        scopes[f"pserver_{number}"] = scope
    for number in (0, 1):
        scopes[f"trainer_{number}"] = {"fc_0.w_0": np.ones((4, 1), "float32"), "fc_0.b_0": np.ones(1, "float32")}
    save_inference_model(scopes, compiled, tmp_path, ["ids"], ["fc_0.tmp_1"], remote_tables=True)
    assert not (tmp_path / "embedding_0.w_0").exists()
    loaded = load_inference_model(tmp_path, ps.Scope(), pserver_endpoints=["c:3", "d:4"])
    (lookup,) = (op for op in loaded.program.main_block.ops if op.type == "distributed_lookup_table")
    assert tuple(lookup.attrs["endpoints"]) == ("c:3", "d:4")
    with pytest.raises(DiagnosticError, match="on 2 servers, not on 3"):
        load_inference_model(tmp_path, ps.Scope(), pserver_endpoints=["c:3", "d:4", "e:5"])
    save_inference_model(scopes, compiled, tmp_path / "local", ["ids"], ["fc_0.tmp_1"])
    here = ps.Scope()
    local = load_inference_model(tmp_path / "local", here)
    whole = np.concatenate(
        [scopes["pserver_0"]["embedding_0.w_0.block0"], scopes["pserver_1"]["embedding_0.w_0.block1"]]
    )
    (found,) = ps.run(local.program, {"ids": np.array([[3], [33]])}, local.targets, here).values()
    servers_fc = np.concatenate([s["fc_0.w_0"] for s in list(scopes.values())[:2] if "fc_0.w_0" in s]).reshape(4, 1)
    assert found.ravel() == pytest.approx((whole[[3, 33]] @ servers_fc).ravel(), rel=1e-5)
