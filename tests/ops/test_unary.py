"""Functions of one tensor, and clipping."""

import math

import numpy as np
import pytest
from hypothesis import given

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values import SelectedRows
from tests.ops.computing import compute
from tests.ops.differences import check_gradients, dims, one_output, quick, seeds, values

FORMULAS = {
    "abs": abs,
    "cos": math.cos,
    "sin": math.sin,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "pow": lambda x: x**2.5,
}
STEPS = {"ceil": math.ceil, "floor": math.floor, "round": lambda x: math.floor(abs(x) + 0.5) * (1 if x > 0 else -1)}


def attrs_of(op_type):
    return {"factor": 2.5} if op_type == "pow" else {}


@pytest.mark.parametrize("op_type", FORMULAS)
@quick
@given(shape=dims(), seed=seeds)
def test_formula_and_gradient(op_type, shape, seed):
    x = values(seed, *shape, low=0.3)
    found = one_output(op_type, {"X": x}, attrs_of(op_type))
    np.testing.assert_allclose(found, np.vectorize(FORMULAS[op_type], otypes=[float])(x), rtol=1e-12)
    check_gradients(op_type, {"X": x}, ["Out"], attrs_of(op_type))
    assert one_output(op_type, {"X": x.astype("float32")}, attrs_of(op_type)).dtype == "float32"


@pytest.mark.parametrize("op_type", STEPS)
@quick
@given(shape=dims(), seed=seeds)
def test_steps_have_no_slope(op_type, shape, seed):
    x = values(seed, *shape)
    expected = np.vectorize(STEPS[op_type], otypes=[float])(x)
    np.testing.assert_array_equal(one_output(op_type, {"X": x}), expected)
    assert not one_output(f"{op_type}_grad", {"Out@GRAD": x}, slot="X@GRAD").any()


def test_halves_are_rounded_away_from_zero():
    x = np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388609.0], "float32")
    assert one_output("round", {"X": x}).tolist() == [1, -1, 2, 3, -3, 0, 8388609]


def test_sign_and_the_slope_of_abs_at_zero():
    assert one_output("sign", {"X": np.array([-2.0, 0.0, 3.0, -0.0, np.nan])}).tolist() == [
        -1,
        0,
        1,
        0,
        0,
    ]  # as in Fluid
    inputs = {"X": np.array([-2.0, 0.0, 3.0]), "Out@GRAD": np.ones(3)}
    assert one_output("abs_grad", inputs, slot="X@GRAD").tolist() == [-1, 0, 1]


def test_the_factor_of_pow_may_be_a_tensor():
    inputs = {"X": np.array([2.0, 3.0]), "FactorTensor": np.array([2.0], "float32")}
    assert one_output("pow", inputs, {"factor": 7.0}).tolist() == [4, 9]
    check_gradients("pow", inputs, ["Out"])


@quick
@given(shape=dims(), seed=seeds)
def test_clip(shape, seed):
    x = values(seed, *shape)
    bounds = {"min": -0.5, "max": 0.75}
    np.testing.assert_array_equal(one_output("clip", {"X": x}, bounds), np.minimum(np.maximum(x, -0.5), 0.75))
    check_gradients("clip", {"X": x}, ["Out"], bounds)


def test_clip_lets_no_gradient_through_at_its_bounds():
    inputs = {"X": np.array([-1.0, 0.0, 1.0]), "Out@GRAD": np.ones(3)}
    assert one_output("clip_grad", inputs, {"min": -1.0, "max": 1.0}, "X@GRAD").tolist() == [0, 1, 0]


def test_bounds_of_clip_may_be_tensors_and_must_be_in_order():
    inputs = {"X": np.array([-3.0, 3.0]), "Min": np.array([-1.0]), "Max": np.array([2.0])}
    assert one_output("clip", inputs, {"min": 0.0, "max": 0.0}).tolist() == [-1, 2]
    with pytest.raises(DiagnosticError, match=r"min is 1, it must be at most max, which is 0.5"):
        one_output("clip", {"X": np.ones(1)}, {"min": 1.0, "max": 0.5})


@quick
@given(shape=dims(), seed=seeds)
def test_clip_by_norm(shape, seed):
    x = values(seed, *shape)
    norm = math.sqrt(sum(v * v for v in x.reshape(-1)))
    found = one_output("clip_by_norm", {"X": x}, {"max_norm": 1.5})
    np.testing.assert_allclose(found, x * 1.5 / norm if norm > 1.5 else x, rtol=1e-12)


def test_clip_by_norm_leaves_zeros():
    assert one_output("clip_by_norm", {"X": np.zeros(3)}, {"max_norm": 1.0}).tolist() == [0, 0, 0]


def test_rows_are_merged_before_they_are_clipped():
    rows = SelectedRows(np.array([4, 1, 4]), np.array([[3.0], [0.5], [1.0]]), 6)
    found = one_output("clip", {"X": rows}, {"min": -2.0, "max": 2.0})
    assert (found.rows.tolist(), found.value.tolist(), found.height) == ([1, 4], [[0.5], [2.0]], 6)
    found = one_output("clip_by_norm", {"X": rows}, {"max_norm": 1.0})
    norm = math.hypot(4, 0.5)
    np.testing.assert_allclose(found.value, [[0.5 / norm], [4 / norm]])


def test_dgc_clip_by_norm_starts_at_a_step():
    attrs = {"rampup_begin_step": 5.0, "max_norm": 1.0}
    for step, expected in ((4.0, [3, 4]), (5.0, [0.6, 0.8])):
        inputs = {"current_step": np.array([step]), "X": np.array([3.0, 4.0])}
        for name in ("out", "X"):
            found = compute("dgc_clip_by_norm", inputs, {"Out": name}, attrs).find(name)
            np.testing.assert_allclose(found, expected)


def test_bounds_of_tensors_are_as_precise_as_attributes():
    """As Fluid 1.8.5 computes it for float64."""
    found = one_output("clip", {"X": np.array([-1.0, 2.0]), "Min": np.array([-0.3])}, {"min": -9.0, "max": 1.0})
    assert found.tolist() == [-0.30000001192092896, 1.0]


def test_exp_of_integers_keeps_their_type():
    found = one_output("exp", {"X": np.array([0, 1, 3], "int32")})
    assert (found.tolist(), found.dtype) == ([1, 2, 20], "int32")
