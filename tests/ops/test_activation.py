"""Activation functions and softmax against their formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ops import schema_of
from pstranspile.runtime.arithmetic.numpy import erf
from tests.ops.differences import check_gradients, dims, one_output, quick, seeds, values
from tests.ops.test_schema import NOT_REGISTERED

FORMULAS = {
    "relu": (lambda x: max(x, 0), {}),
    "leaky_relu": (lambda x: x if x > 0 else 0.25 * x, {"alpha": 0.25}),
    "sigmoid": (lambda x: 1 / (1 + math.exp(-x)), {}),
    "logsigmoid": (lambda x: -math.log(1 + math.exp(-x)), {}),
    "tanh": (math.tanh, {}),
    "gelu": (lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))), {}),
    "softplus": (lambda x: math.log(1 + math.exp(x)), {}),
    "softsign": (lambda x: x / (1 + abs(x)), {}),
}
"""Functions of one number by op, with attributes that differ from their defaults. Ops that Fluid has are also held to
its recorded runs, in `test_opdata.py`.
"""


def test_functions_that_fluid_does_not_have_are_held_to_a_formula():
    own = {name for name in NOT_REGISTERED if schema_of(name).module.endswith(".activation")}
    assert {name for name in own if not schema_of(name).forward} <= FORMULAS.keys()
    for name, (_, attributes) in FORMULAS.items():
        assert all(attributes[key] != schema_of(name).attrs[key].default for key in attributes), name


@pytest.mark.parametrize("op_type", FORMULAS)
@quick
@given(shape=dims(), seed=seeds)
def test_formula_and_gradient(op_type, shape, seed):
    x = values(seed, *shape)
    formula, attributes = FORMULAS[op_type]
    found = one_output(op_type, {"X": x}, attributes)
    np.testing.assert_allclose(found, np.vectorize(formula, otypes=[float])(x), rtol=1e-12)
    check_gradients(op_type, {"X": x}, ["Out"], attributes)
    single = one_output(op_type, {"X": x.astype("float32")}, attributes)
    assert single.dtype == "float32"
    np.testing.assert_allclose(single, found, rtol=1e-5, atol=1e-6)


@quick
@given(seed=seeds)
def test_gelu_in_its_tanh_form_is_nearly_gelu(seed):
    x = values(seed, 4, 3)
    found = one_output("gelu", {"X": x}, {"approximate": True})
    np.testing.assert_allclose(found, one_output("gelu", {"X": x}), atol=1e-3)
    check_gradients("gelu", {"X": x}, ["Out"], {"approximate": True})


def test_at_zero_relu_gives_no_gradient_and_leaky_relu_alpha():
    zero, one = np.zeros(1), np.ones(1)
    assert one_output("relu_grad", {"Out": zero, "Out@GRAD": one}, slot="X@GRAD").tolist() == [0]
    assert one_output("leaky_relu_grad", {"Out": zero, "Out@GRAD": one}, {"alpha": 0.5}, "X@GRAD").tolist() == [0.5]


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.25, 1.0, 3.0])
def test_leaky_relu_of_every_slope_is_a_selection_bit_by_bit(alpha):
    x = np.array([[-2, -0.0, 0, 3], [np.inf, -np.inf, np.nan, 1e-44]], "float32")
    grad = np.array([[1, -2, 3, -4], [np.nan, np.inf, 5, -np.inf]], "float32")
    with np.errstate(invalid="ignore"):
        want, of_x = np.where(x > 0, x, x * alpha), np.where(x > 0, grad, grad * alpha)
        found = one_output("leaky_relu", {"X": x}, {"alpha": alpha})
        gradient = one_output("leaky_relu_grad", {"Out": x, "Out@GRAD": grad}, {"alpha": alpha}, "X@GRAD")
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(gradient, of_x)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(want))
    assert found.dtype == gradient.dtype == x.dtype


def test_large_arguments_stay_finite():
    x = np.array([-1e4, 1e4])
    assert one_output("sigmoid", {"X": x}).tolist() == [0, 1]
    assert one_output("softplus", {"X": x}).tolist() == [0, 1e4]
    assert one_output("logsigmoid", {"X": x}).tolist() == [-1e4, 0]
    for op_type in ("softplus_grad", "logsigmoid_grad"):
        assert np.isfinite(one_output(op_type, {"X": x, "Out@GRAD": np.ones(2)}, slot="X@GRAD")).all()


@quick
@given(shape=dims(1, 3), axis=st.integers(-3, 2), seed=seeds)
def test_softmax_along_any_axis(shape, axis, seed):
    axis = axis % len(shape) - (len(shape) if axis < 0 else 0)
    x = values(seed, *shape)
    power = np.exp(x)
    expected = power / power.sum(axis=axis, keepdims=True)
    np.testing.assert_allclose(one_output("softmax", {"X": x}, {"axis": axis}), expected, rtol=1e-12)
    check_gradients("softmax", {"X": x}, ["Out"], {"axis": axis})


def test_softmax_counts_logits_as_at_most_64_below_the_largest():
    found = one_output("softmax", {"X": np.array([[0.0, -1000.0], [1000.0, 1000.0]])})
    np.testing.assert_allclose(found, [[1, math.exp(-64)], [0.5, 0.5]], rtol=1e-12)


@given(st.floats(-8, 8))
def test_the_error_function(x):
    assert erf(np.array([x]))[0] == pytest.approx(math.erf(x), rel=1e-15, abs=1e-300)


def test_the_error_function_of_special_values():
    np.testing.assert_array_equal(erf(np.array([np.inf, -np.inf, np.nan, 0.0])), [1, -1, np.nan, 0])
    assert np.signbit(erf(np.array([-0.0])))[0]
    assert erf(np.ones(2, "float32")).dtype == "float32"
