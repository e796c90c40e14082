"""ONNX models of torch (and ours, read back): the same numbers, gradients, and a cluster that trains alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile import Scope, compile, dumps, loads, run, verify
from pstranspile.cluster.checkpoint.inference import onnx_model
from pstranspile.compiler.job import Job
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main
from tests.frontends.onnx.programs import CASES, floats, ids, inferred, played, started

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, checker = onnx.helper, onnx.checker
from pstranspile.frontends.onnx.importing import ImportedModel, from_onnx  # noqa: E402

MODELS = Path(__file__).parent / "models"
FEEDS: dict[str, Any] = {
    "activations": floats(4, 6),
    "attention": floats(4, 6, 16),
    "dense": floats(4, 13),
    "depthwise": floats(4, 4, 8, 8),
    "gates": floats(4, 3, 5),
    "machine": ids(20, 4, 4),
    "norms": floats(4, 2, 6, 6),
    "residual": floats(4, 3, 8, 8),
    "upsampling": floats(4, 2, 8, 8),
    "words": ids(30, 4, 4),
}
"""What the models of `models/make.py` are fed."""


def computed(imported: ImportedModel, feed: dict[str, Any]) -> Any:
    scope = Scope()
    assert imported.module.startup is not None
    run(imported.module.startup, scope=scope)
    for name, value in imported.values.items():
        scope[name] = value
    return run(imported.module.main, feed, imported.outputs, scope)[imported.outputs[0]]


@pytest.mark.parametrize("name", FEEDS)
def test_models_of_torch_compute_the_same(name: str):
    data = (MODELS / f"{name}.onnx").read_bytes()
    imported = from_onnx(data)
    assert verify(loads(dumps(imported.module))) == ()
    (want,) = played(data, {"x": FEEDS[name]})
    got = computed(imported, {"x": FEEDS[name]})
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FEEDS)
def test_models_of_torch_train_on_a_cluster_as_on_one_machine(name: str, tmp_path: Path):
    imported = from_onnx((MODELS / f"{name}.onnx").read_bytes())
    draft = Draft(imported.module.main, imported.module.startup)
    parameters = {var.name for var in draft.parameters()}
    gradients = minimize(L.mean(L.square(Value(draft, imported.outputs[0]))), SGD(0.01))
    assert gradients
    module = draft.module()
    updated = {op.input("Param") for op in module.main.main_block.ops if op.type == "sgd"}
    assert updated == parameters != set()
    compile(module, Job(pservers=2, trainers=2))
    (tmp_path / "net.ir").write_text(dumps(module), encoding="utf-8")
    np.savez(tmp_path / "net.npz", **imported.values)
    np.savez(tmp_path / "feed.npz", x=np.stack([FEEDS[name]] * 2))
    options = ["--init", str(tmp_path / "net.npz"), "--feed", str(tmp_path / "feed.npz"), "--steps", "2"]
    assert main(["check", str(tmp_path / "net.ir"), "--pservers", "2", "--trainers", "2", *options]) == 0


@pytest.mark.parametrize("name", CASES)
def test_exported_programs_come_back(name: str):
    case = CASES[name]()
    scope = started(case)
    model = onnx_model(case.module.main, scope, [case.target])
    imported = from_onnx(model)
    assert imported.outputs == (case.target,)
    np.testing.assert_allclose(computed(imported, case.feed), inferred(case, scope), rtol=1e-5, atol=1e-5)


def test_the_command_writes_text_and_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, text, values = MODELS / "dense.onnx", tmp_path / "net.ir", tmp_path / "net.npz"
    assert main(["import", str(model), "-o", str(text)]) == 2
    assert "the model holds 6 parameters; --params FILE.npz says where they go" in capsys.readouterr().err
    assert main(["import", str(model), "-o", str(text), "--params", str(values)]) == 0
    np.savez(tmp_path / "feed.npz", x=FEEDS["dense"][None])
    arguments = ["run", str(text), "--feed", str(tmp_path / "feed.npz"), "--fetch", "y"]
    assert main([*arguments, "--init", str(values), "--save", str(tmp_path / "out.npz")]) == 0
    (want,) = played(model.read_bytes(), {"x": FEEDS["dense"]})
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["step/y"][0], want, rtol=1e-5, atol=1e-5)
    capsys.readouterr()
    assert main([*arguments, "--save", str(tmp_path / "nan.npz")]) == 0
    assert np.isnan(np.load(tmp_path / "nan.npz")["step/y"]).all()


def test_other_commands_say_how_a_model_is_read(capsys: pytest.CaptureFixture[str]):
    assert main(["verify", str(MODELS / "dense.onnx")]) == 1
    assert "this looks like an ONNX model; `pstranspile import` makes text of it" in capsys.readouterr().err


def model_of(*nodes: Any, version: int = 17) -> bytes:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, ["n", 4])], [value("y", 1, ["n", 4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8).SerializeToString()


def findings(data: bytes) -> list[tuple[str, str]]:
    with pytest.raises(DiagnosticError) as caught:
        from_onnx(data, "model.onnx")
    return [(found.code, found.message) for found in caught.value.diagnostics]


def test_every_node_without_a_counterpart_is_named():
    nodes = [
        helper.make_node("Det", ["x"], ["a"], name="top"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Acosh", ["x"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    assert findings(model_of(*nodes)) == [
        ("onnx-op", "node 0 Det top: no op of Fluid computes this here"),
        ("onnx-op", "node 2 Acosh: no op of Fluid computes this here"),
    ]


def test_a_damaged_file_is_refused():
    data = (MODELS / "dense.onnx").read_bytes()
    for damaged in (data[:100], b"\x08", b"\x08\x07garbage", data[:-1]):
        assert [code for code, _ in findings(damaged)] == ["onnx-model"]


def test_old_operators_are_refused():
    ((code, message),) = findings(model_of(helper.make_node("Relu", ["x"], ["y"]), version=9))
    assert (code, message) == (
        "onnx-model",
        "the model has version 9; versions 13 to 23 of ONNX's own operators are read",
    )


def test_an_imported_model_shows_its_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(MODELS / "dense.onnx"), "-o", "net.ir", "--params", "net.npz"]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "what does it compute?  pstranspile run net.ir --init net.npz --fetch y --feed FILE.npz"
    np.savez("FILE.npz", x=FEEDS["dense"][None])
    shown: list[str] = []
    for command in (last.split()[5:], ["run", "net.ir", "--init", "net.npz", "--feed", "FILE.npz"]):
        assert main(command) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[0].startswith("step 1/1  y f32[4, ")
