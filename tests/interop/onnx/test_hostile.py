"""Models that are damaged, claim too much, or hold what Fluid has not: a finding, in little time and memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cli import main
from pstranspile.ir.diagnostics import DiagnosticError
from tests.interop.onnx.programs import floats, played

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, from_array = onnx.helper, onnx.numpy_helper.from_array
from pstranspile.interop.onnx.importing import from_onnx  # noqa: E402

node = helper.make_node
HELD: dict[str, Any] = {
    "two": np.int64([10**6, 10**6]),
    "none": np.int64(0),
    "one": np.int64(1),
    "far": np.int64(10**14),
    "scale": np.float32(0.1),
    "yes": np.array(True),
    "w": np.float32(np.eye(4)),
}


def model_of(*nodes: Any, functions: Any = (), kind: int = 1) -> Any:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", kind, ["n", 4])],
        [value("y", kind, ["a", "b"])],
        [from_array(array, name) for name, array in HELD.items()],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8, functions=functions)


def finding(model: Any) -> tuple[str, str]:
    with pytest.raises(DiagnosticError) as caught:
        from_onnx(model.SerializeToString())
    return caught.value.diagnostics[0].code, caught.value.diagnostics[0].message


@pytest.mark.parametrize(
    "made",
    [
        [node("ConstantOfShape", ["two"], ["z"])],
        [node("Expand", ["scale", "two"], ["z"])],
        [node("Range", ["none", "far", "one"], ["r"]), node("Cast", ["r"], ["z"], to=1)],
    ],
    ids=["constant", "expand", "range"],
)
def test_what_is_very_large_is_not_computed_while_a_model_is_read(made: Any):
    rest = [node("ReduceSum", ["z"], ["s"], keepdims=0), node("Add", ["x", "s"], ["y"])]
    assert from_onnx(model_of(*made, *rest).SerializeToString()).module.main.main_block.ops


def branch(kind: str) -> Any:
    return helper.make_graph([node(kind, ["x"], ["o"])], "b", [], [helper.make_tensor_value_info("o", 1, ["n", 4])])


def test_a_branch_that_is_known_is_read():
    made = node("If", ["yes"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))
    imported = from_onnx(model_of(made).SerializeToString())
    assert [op.type for op in imported.module.main.main_block.ops] == ["relu", "assign"]


def test_nodes_that_fluid_has_not_are_refused_with_the_reason():
    condition = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Cast", ["s"], ["c"], to=9)]
    made = node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))
    assert finding(model_of(*condition, made)) == (
        "onnx-op",
        "node 2 If: a run decides which branch it takes; export the model with one of them",
    )
    quantised = [node("QuantizeLinear", ["x", "scale"], ["q"]), node("DequantizeLinear", ["q", "scale"], ["y"])]
    assert finding(model_of(*quantised)) == (
        "onnx-op",
        "node 0 QuantizeLinear: its numbers are quantised; import the model as it was before",
    )


def test_functions_of_functions_are_read_up_to_a_number():
    def doubled(name: str, of: str, domain: str) -> Any:
        nodes = [node(of, ["a"], ["b"], domain=domain), node(of, ["b"], ["c"], domain=domain)]
        return helper.make_function("f", name, ["a"], ["c"], nodes, model_of().opset_import)

    functions = [doubled("f0", "Relu", ""), *(doubled(f"f{at}", f"f{at - 1}", "f") for at in range(1, 40))]
    small = model_of(node("f1", ["x"], ["y"], domain="f"), functions=functions[:2])
    assert [op.type for op in from_onnx(small.SerializeToString()).module.main.main_block.ops] == ["relu"] * 4
    code, message = finding(model_of(node("f39", ["x"], ["y"], domain="f"), functions=functions))
    assert (code, message.rpartition(": ")[2]) == ("onnx-model", "its functions stand for more than 100000 nodes")
    itself = [doubled("f0", "f0", "f")]
    assert "stand for themselves" in finding(model_of(node("f0", ["x"], ["y"], domain="f"), functions=itself))[1]


def test_a_graph_in_a_circle_and_tensors_that_claim_more_than_they_hold_are_damaged():
    circle = model_of(node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["a"]), node("Add", ["a", "x"], ["y"]))
    assert finding(circle)[0] == "onnx-model"
    claim = model_of(node("MatMul", ["x", "w"], ["y"]))
    claim.graph.initializer[-1].dims[:] = [4, 1 << 40]
    assert finding(claim)[0] == "onnx-model"


def test_numbers_of_other_widths_are_read():
    for kind, name in ((10, "f16"), (11, "f64")):
        model = model_of(node("Relu", ["x"], ["y"]), kind=kind)
        tensor = from_onnx(model.SerializeToString()).module.main.main_block.vars["y"].tensor
        assert tensor is not None
        assert tensor.dtype.text == name
    assert finding(model_of(node("Relu", ["x"], ["y"]), kind=16)) == (
        "onnx-op",
        "x has elements of ONNX's type 16, which Fluid has not",
    )


def test_weights_in_a_file_beside_the_model_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, file = model_of(node("MatMul", ["x", "w"], ["y"])), tmp_path / "net.onnx"
    feed = {"x": floats(2, 4)}
    (want,) = played(model.SerializeToString(), feed)
    onnx.save(model, file, save_as_external_data=True, location="net.data", size_threshold=8)
    arguments = ["import", str(file), "-o", str(tmp_path / "net.ir"), "--params", str(tmp_path / "net.npz")]
    assert main(arguments) == 0
    np.savez(tmp_path / "feed.npz", x=feed["x"][None])
    ran = ["run", str(tmp_path / "net.ir"), "--init", str(tmp_path / "net.npz"), "--feed", str(tmp_path / "feed.npz")]
    assert main([*ran, "--fetch", "y", "--save", str(tmp_path / "out.npz")]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["step/y"][0], want, rtol=1e-5)
    (tmp_path / "net.data").unlink()
    assert main(arguments) == 1
    assert "onnx-model" in capsys.readouterr().err
