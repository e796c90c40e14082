"""Models that are damaged, claim too much, or hold what Fluid has not: a finding, in little time and memory."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.frontends.layers.draft import Refused
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main
from tests.frontends.onnx.programs import floats, played

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, from_array = onnx.helper, onnx.numpy_helper.from_array
from pstranspile.frontends.onnx import importing  # noqa: E402
from pstranspile.frontends.onnx.importing import from_onnx  # noqa: E402
from pstranspile.frontends.onnx.reading import BYTES_A_BYTE, FREE_BYTES, FREE_WORK, Budget  # noqa: E402

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


def summed(nodes: Any, last: str, **held: Any) -> Any:
    """A model that adds to x the sum of a value that nodes make of constants."""
    rest = [
        node("Cast", [last], ["f"], to=1),
        node("ReduceSum", ["f"], ["s"], keepdims=0),
        node("Add", ["x", "s"], ["y"]),
    ]
    made = model_of(*nodes, *rest)
    made.graph.initializer.extend(from_array(np.asarray(array), name) for name, array in held.items())
    return made


def chain(kind: str, count: int, **attrs: Any) -> Any:
    return [node(kind, [f"c{at}"] * 2, [f"c{at + 1}"], **attrs) for at in range(count)]


ONES = np.ones(64, "float32")
BOMBS: dict[str, Any] = {
    "doubled": lambda: summed(chain("Concat", 30, axis=0), "c30", c0=ONES),
    "doubled whole numbers": lambda: summed(chain("Concat", 40, axis=0), "c40", c0=np.ones(2, "int64")),
    "multiplied matrices": lambda: summed(chain("MatMul", 200), "c200", c0=np.eye(600, dtype="float32")),
    "many constants": lambda: summed(
        [
            *(node("ConstantOfShape", ["d"], [f"z{at}"]) for at in range(9)),
            node("Max", [f"z{at}" for at in range(9)], ["m"]),
        ],
        "m",
        d=np.int64([1 << 26]),
    ),
    "many results of one size": lambda: summed(
        [
            *(node("Expand", ["one", "d"], [f"z{at}"]) for at in range(99)),
            node("Max", [f"z{at}" for at in range(99)], ["m"]),
        ],
        "m",
        d=np.int64([1 << 22]),
    ),
    "tiled": lambda: summed([node("Tile", ["w", "d"], ["m"])], "m", d=np.int64([1 << 14, 1 << 14])),
    "padded": lambda: summed([node("Pad", ["a", "d"], ["m"])], "m", a=ONES, d=np.int64([1 << 30, 0])),
    "rows again": lambda: summed(
        [node("Gather", ["a", "i"], ["m0"]), *(node("Gather", [f"m{at}", "i"], [f"m{at + 1}"]) for at in range(3))],
        "m3",
        a=ONES,
        i=np.zeros(400, "int64"),
    ),
    "hot": lambda: summed(
        [node("OneHot", ["i", "far", "v"], ["m"])], "m", i=np.zeros(9, "int64"), v=np.float32([0, 1])
    ),
    "broadcast": lambda: summed(
        [node("Add", ["a", "b"], ["m"])], "m", a=np.ones((1 << 14, 1)), b=np.ones((1, 1 << 14))
    ),
    "diagonal": lambda: summed(
        [node("ConstantOfShape", ["d"], ["z"]), node("EyeLike", ["z"], ["m"])], "m", d=np.int64([1 << 14, 1 << 14])
    ),
    "scaled image": lambda: summed(
        [node("Resize", ["a", "", "", "d"], ["m"])],
        "m",
        a=np.ones((1, 1, 2, 2), "float32"),
        d=np.int64([1, 1, 4096, 4096]),
    ),
    "combinations": lambda: summed([node("Einsum", ["a"] * 4, ["m"], equation="a,b,c,d->abcd")], "m", a=ONES),
    "sums without end": lambda: summed(
        [*(node("CumSum", [f"m{at}", "none"], [f"m{at + 1}"]) for at in range(200))], "m200", m0=np.ones(1 << 18)
    ),
    "wide windows": lambda: summed(
        [node("MaxPool", ["a"], ["m"], kernel_shape=[4096, 4096], pads=[4000] * 4)], "m", a=np.ones((1, 1, 200, 200))
    ),
    "dims repeated": lambda: summed(
        [node("Shape", ["x"], ["t"]), node("Expand", ["t", "d"], ["e"]), node("Add", ["e", "one"], ["m"])],
        "m",
        d=np.int64([1 << 22, 2]),
    ),
    "dims multiplied": lambda: summed(
        [node("Shape", ["x"], ["t"]), node("Gather", ["t", "none"], ["c0"]), *chain("Mul", 40)], "c40"
    ),
    "dims of dims": lambda: summed(
        [
            node("Shape", ["x"], ["t"]),
            node("Gather", ["t", "i"], ["c0"]),
            *chain("Mul", 14),
            node("ConstantOfShape", ["c14"], ["m"]),
        ],
        "m",
        i=np.int64([1]),
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_constants_of_any_nodes_take_what_one_budget_allows(name: str, monkeypatch: pytest.MonkeyPatch):
    """The nodes that are computed make no more than the budget, and what is left are ops, or refused by name."""
    made = BOMBS[name]().SerializeToString()
    sizes: list[int] = []
    computed = importing.compute_node

    def counted(held: Any, arrays: Any) -> Any:
        results = computed(held, arrays)
        sizes.append(sum(np.asarray(result).nbytes for result in results))
        return results

    monkeypatch.setattr(importing, "compute_node", counted)
    tracemalloc.start()
    try:
        from_onnx(made)
    except DiagnosticError as refused:
        finding = refused.diagnostics[0]
        assert finding.code in ("onnx-op", "onnx-model")
        assert finding.message.startswith("node ") or "op_type" in finding.message
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert sum(sizes) <= FREE_BYTES + BYTES_A_BYTE * max(len(made), 1 << 21)
    assert most < 4 * FREE_BYTES


def test_a_budget_is_used_up_by_what_is_taken():
    budget = Budget(0)
    assert budget.affords(FREE_BYTES // 2, 0)
    assert not budget.affords(FREE_BYTES // 2, 0)
    with pytest.raises(Refused, match="it takes 67108864 bytes while the model is read, and 33554432 are left"):
        budget.take(FREE_BYTES)
    with pytest.raises(Refused, match="works on"):
        budget.take(0, FREE_WORK + 1)


def test_large_weights_of_the_file_are_read_and_changed():
    nodes = [node("Transpose", ["a"], ["t"]), node("Cast", ["t"], ["c"], to=1), node("MatMul", ["x", "c"], ["y"])]
    model = model_of(*nodes)
    model.graph.initializer.append(from_array(np.ones((5 << 20, 4), "float16"), "a"))
    imported = from_onnx(model.SerializeToString())
    assert [(name, array.shape) for name, array in imported.values.items()] == [("c", (4, 5 << 20))]


def test_many_numbers_computed_of_dims_are_made_one_after_the_other():
    adds = [node("Add", [f"c{at}", "one"], [f"c{at + 1}"]) for at in range(3000)]
    made = summed([node("Shape", ["x"], ["t"]), node("Gather", ["t", "none"], ["c0"]), *adds], "c3000")
    assert len(from_onnx(made.SerializeToString()).module.main.main_block.ops) > 3000


def test_functions_in_branches_and_constants_in_functions_count():
    sets = model_of().opset_import

    def called(of: str, source: str, made: str) -> Any:
        return node(of, [source, "c"], [made], domain="f")

    def doubled(of: str) -> Any:
        value = helper.make_tensor_value_info("o", 1, ["n", 4])
        return helper.make_graph([called(of, "a", "t"), called(of, "t", "o")], "b", [], [value])

    functions = [helper.make_function("f", "f0", ["a", "c"], ["r"], [node("Relu", ["a"], ["r"])], sets)]
    for at in range(1, 40):
        held = node("If", ["c"], ["r"], then_branch=doubled(f"f{at - 1}"), else_branch=doubled(f"f{at - 1}"))
        functions.append(helper.make_function("f", f"f{at}", ["a", "c"], ["r"], [held], sets))
    model = model_of(node("f39", ["x", "yes"], ["y"], domain="f"), functions=functions)
    assert "stand for more than 100000 nodes" in finding(model)[1]
    wide = [
        node("Constant", [], ["k"], value=from_array(np.ones(1 << 18, "float32"))),
        node("ReduceSum", ["k"], ["s"], keepdims=0),
        node("Add", ["a", "s"], ["r"]),
    ]
    functions = [helper.make_function("f", "f0", ["a"], ["r"], wide, sets)]
    for at in range(1, 14):
        twice = [node(f"f{at - 1}", [a], [b], domain="f") for a, b in ("at", "tr")]
        functions.append(helper.make_function("f", f"f{at}", ["a"], ["r"], twice, sets))
    model = model_of(node("f13", ["x"], ["y"], domain="f"), functions=functions)
    assert "its functions stand for more than" in finding(model)[1]


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


def beside(name: str, dims: Sequence[int], **where: object) -> Any:
    """A tensor whose data are in another file."""
    tensor = onnx.TensorProto(name=name, data_type=1, dims=dims, data_location=1)
    for key, value in where.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ({"location": "data", "offset": "x"}, "the data of w begin, or end, at what is no number of bytes"),
        ({"location": "data", "offset": "-4"}, "the data of w begin, or end, at what is no number of bytes"),
        ({"location": "data", "length": "9" * 5000}, "the data of w begin, or end, at what is no number of bytes"),
        ({"location": "data", "offset": 4}, "w has 64 bytes by its dims, and 60 in data"),
        ({"location": "data", "length": 1 << 40}, "w has 64 bytes by its dims, and 1099511627776 in data"),
        ({"location": "sparse"}, "w has 64 bytes by its dims, and 1099511627776 in sparse"),
        ({"location": "sparse", "offset": 1 << 60, "length": 64}, "offset"),
        ({"location": "../data", "length": 64}, "outside"),
        ({"location": "nowhere", "length": 64}, "nowhere"),
        ({}, "Location"),
    ],
    ids=str,
)
def test_data_in_other_files_are_as_large_as_dims_say(where: dict[str, object], told: str, tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    for data in (tmp_path / "data", folder / "data"):
        data.write_bytes(bytes(64))
    with (folder / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    model = model_of(node("MatMul", ["x", "w"], ["y"]))
    del model.graph.initializer[:]
    model.graph.initializer.append(beside("w", (4, 4), **where))
    with pytest.raises(DiagnosticError, match=told) as found:
        from_onnx(model.SerializeToString(), "m.onnx", str(folder))
    assert found.value.diagnostics[0].code == "onnx-model"


@pytest.mark.parametrize(
    ("size", "count", "told"),
    [(1 << 16, 40, "in files of 65536: many have the same ones"), (1 << 31, 1, "models of 2 GiB are read")],
)
def test_tensors_of_the_same_bytes_are_not_read_again_and_again(size: int, count: int, told: str, tmp_path: Path):
    """Of a file that holds nothing: what it claims is enough."""
    with (tmp_path / "data").open("wb") as sparse:
        sparse.truncate(size)
    model = model_of(node("MatMul", ["x", "w"], ["y"]))
    model.graph.initializer.extend(
        beside(f"w{number}", (size // 4,), location="data", offset=0, length=size) for number in range(count)
    )
    with pytest.raises(DiagnosticError, match=told):
        from_onnx(model.SerializeToString(), "m.onnx", str(tmp_path))


@pytest.mark.parametrize(
    ("made", "attribute"),
    [
        (node("OneHot", ["i", "huge", "v"], ["m"]), "depth of one_hot_v2"),
        (node("Tile", ["x", "pair"], ["m"]), "expand_times of expand"),
        (node("Pad", ["x", "sides"], ["m"]), "paddings of pad"),
        (node("Trilu", ["x", "huge"], ["m"]), "diagonal of tril_triu"),
        (node("Slice", ["x", "zeros", "pair", "axes", "pair"], ["m"]), "strides of strided_slice"),
    ],
    ids=lambda held: held.op_type if not isinstance(held, str) else "",
)
def test_numbers_that_no_attribute_of_fluid_holds_are_refused(made: Any, attribute: str):
    large = 10**12
    held = {
        "huge": np.int64(large),
        "pair": np.int64([large, large]),
        "v": np.float32([0, 1]),
        "zeros": np.int64([0, 0]),
    }
    held |= {"sides": np.int64([0, large, 0, 0]), "axes": np.int64([0, 1])}
    model = summed([node("Cast", ["x"], ["i"], to=7), made], "m", **held)
    code, message = finding(model)
    assert (code, message) == (
        "onnx-op",
        f"node 1 {made.op_type}: the attribute {attribute} would be {large}; it is an integer of 32 bits",
    )
