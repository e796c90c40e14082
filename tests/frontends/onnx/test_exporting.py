"""Inference programs as ONNX models: the same numbers, and what can't be expressed is refused by name."""

from pathlib import Path

import numpy as np
import pytest

from pstranspile import Scope, load, loads, run
from pstranspile.cluster.checkpoint.inference import onnx_model
from pstranspile.frontends import layers as L
from pstranspile.frontends.layers import Draft
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main
from tests.frontends.onnx.programs import CASES, Case, floats, inferred, played, started

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("name", CASES)
def test_models_compute_the_same(name: str):
    case = CASES[name]()
    scope = started(case)
    model = onnx_model(case.module.main, scope, [case.target])
    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    (got,) = played(model, case.feed)
    np.testing.assert_allclose(got, inferred(case, scope), rtol=1e-5, atol=1e-5)


UNARY = [
    *("acos", "asin", "atan", "brelu", "elu", "erf", "hard_shrink", "hard_sigmoid", "hard_swish", "log1p"),
    *(
        "relu6",
        "selu",
        "soft_relu",
        "softshrink",
        "stanh",
        "swish",
        "tanh_shrink",
        "thresholded_relu",
        "cumsum",
        "logsigmoid",
        "pow",
    ),
]


@pytest.mark.parametrize("op_type", UNARY)
def test_functions_that_are_not_recorded_compute_the_same(op_type: str):
    model = Draft(seed=1)
    x = L.data(model, "x", [-1, 7])
    made = L.unary(op_type, x)
    case = Case(model.module(), made.name, {"x": np.clip(floats(5, 7) / 3, -0.99, 0.99)})
    (got,) = played(onnx_model(case.module.main, {}, [made.name]), case.feed)
    np.testing.assert_allclose(got, inferred(case, Scope()), rtol=1e-5, atol=1e-5)


def test_the_command_writes_a_model_of_what_is_fetched(tmp_path: Path):
    np.savez(tmp_path / "start.npz", **{"fc_0.b_0": np.full(1, 5, "float32")})
    arguments = ["export", str(EXAMPLES / "linear_regression.ir"), "--to", "onnx", "--fetch", "fc_0.tmp_1"]
    assert main([*arguments, "--init", str(tmp_path / "start.npz"), "-o", str(tmp_path / "out")]) == 0
    (got,) = played((tmp_path / "out" / "main.onnx").read_bytes(), {"x": np.zeros((2, 13), "float32")})
    assert np.array_equal(got, [[5], [5]])


def test_the_same_program_gives_the_same_bytes(tmp_path: Path):
    module = load(EXAMPLES / "mnist_conv.ir")
    scope = Scope()
    run(module["startup"], scope=scope)
    assert onnx_model(module.main, scope, ["fc_0.tmp_2"]) == onnx_model(module.main, scope, ["fc_0.tmp_2"])


def refused(text: str, *targets: str) -> list[tuple[str, str, int, str]]:
    with pytest.raises(DiagnosticError) as caught:
        onnx_model(loads(text).main, {}, targets)
    return [(f.code, f.message, f.location.line if f.location else 0, f.focus) for f in caught.value.diagnostics]


HEAD = "ir 1\nprogram @main {\n  block ^0 {\n    temp %x : f32[-1, 3] feed\n    temp %y : f32[-1, 3]\n"


def test_every_op_without_a_counterpart_is_named_with_its_line():
    ops = "    temp %z : f32[-1, 3]\n    row_conv(X=%x, Filter=%x) -> Out=%y\n    relu(X=%y) -> Out=%z\n  }\n}\n"
    assert refused(HEAD + ops, "z") == [("onnx-op", "row_conv: ONNX has no counterpart of this op here", 7, "")]


def test_a_variable_that_onnx_can_not_hold_is_named_with_its_line():
    text = HEAD.replace("%x : f32[-1, 3] feed", "%x : f32[-1, 3] lod=1 feed") + "    relu(X=%x) -> Out=%y\n  }\n}\n"
    assert refused(text, "y") == [
        ("onnx-op", "%x holds sequences of rows (lod_level=1), ONNX has none", 4, "%x"),
    ]


def test_a_parameter_without_a_value_is_named():
    text = HEAD + "    param %w : f32[3, 3]\n    mul(X=%x, Y=%w) -> Out=%y\n  }\n}\n"
    assert refused(text, "y") == [("onnx-op", "mul: it reads %w, and no value of it is given", 7, "%w")]


def test_a_program_without_fetch_ops_needs_targets():
    assert [code for code, *_ in refused(HEAD + "    relu(X=%x) -> Out=%y\n  }\n}\n")] == ["inference-program"]
