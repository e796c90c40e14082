"""Arithmetic of two tensors: the axis rule, ties, integers, gradients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values import SelectedRows
from tests.ops.differences import check_gradients, one_output, quick, seeds, values

FORMULAS = {
    "elementwise_add": lambda x, y: x + y,
    "elementwise_sub": lambda x, y: x - y,
    "elementwise_mul": lambda x, y: x * y,
    "elementwise_div": lambda x, y: x / y,
    "elementwise_max": max,
    "elementwise_min": min,
    "elementwise_pow": lambda x, y: x**y,
}


@st.composite
def operands(draw):
    """X, Y and an axis: Y has the dims of X from the axis on, some of them (of either) 1."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    start = draw(st.integers(0, len(shape) - 1))
    end = draw(st.integers(start + 1, len(shape)))
    axis = draw(st.sampled_from([start, -1])) if end == len(shape) else start
    narrow = [draw(st.sampled_from([1, dim])) for dim in shape[start:end]]
    wide = [
        draw(st.sampled_from([1, dim])) if start <= at < end and narrow[at - start] == dim else dim
        for at, dim in enumerate(shape)
    ]
    seed = draw(seeds)
    return values(seed, *wide, low=0.5), values(seed + 1, *narrow, low=0.5), axis, start


@pytest.mark.parametrize("op_type", FORMULAS)
@quick
@given(case=operands())
def test_every_element_meets_the_one_the_axis_says(op_type, case):
    x, y, axis, start = case
    found = one_output(op_type, {"X": x, "Y": y}, {"axis": axis})
    for place in np.ndindex(found.shape):
        left = x[tuple(min(at, size - 1) for at, size in zip(place, x.shape, strict=True))]
        right = y[tuple(min(place[start + at], size - 1) for at, size in enumerate(y.shape))]
        assert found[place] == pytest.approx(FORMULAS[op_type](left, right), rel=1e-12)
    swapped = one_output(op_type, {"X": y, "Y": x}, {"axis": axis})
    assert swapped.shape == found.shape


@pytest.mark.parametrize("op_type", FORMULAS)
@quick
@given(case=operands())
def test_gradients(op_type, case):
    x, y, axis, _ = case
    check_gradients(op_type, {"X": x, "Y": y}, ["Out"], {"axis": axis}, of=("X", "Y"))


@pytest.mark.parametrize("op_type", FORMULAS)
def test_element_types_stay(op_type):
    for kind in ("float32", "float64", "int32", "int64"):
        x, y = np.array([[4, 6]], kind), np.array([2, 3], kind)
        assert one_output(op_type, {"X": x, "Y": y}, {"axis": 1}).dtype == kind


def test_equal_elements_give_their_gradient_to_y():
    x, gradient = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    for op_type in ("elementwise_max_grad", "elementwise_min_grad"):
        inputs = {"X": x, "Y": x, "Out@GRAD": gradient}
        assert one_output(op_type, inputs, slot="X@GRAD").tolist() == [0, 0]
        assert one_output(op_type, inputs, slot="Y@GRAD").tolist() == [3, 4]


@given(x=st.integers(-(2**62), 2**62), y=st.integers(-50, 50).filter(bool))
def test_integers_are_divided_toward_zero(x, y):
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    inputs = {"X": np.array([x]), "Y": np.array([y])}
    assert one_output("elementwise_div", inputs).item() == quotient
    assert one_output("elementwise_floordiv", inputs).item() == quotient
    assert one_output("elementwise_mod", inputs).item() == x - quotient * y


def test_the_remainder_of_floats_has_the_sign_of_the_divisor():
    inputs = {"X": np.array([-7.0, 7.0]), "Y": np.array([3.0, -3.0])}
    assert one_output("elementwise_mod", inputs).tolist() == [2, -2]


@pytest.mark.parametrize("op_type", ["elementwise_div", "elementwise_floordiv", "elementwise_mod"])
def test_division_of_integers_by_zero_is_refused(op_type):
    with pytest.raises(DiagnosticError, match="an integer is divided by zero"):
        one_output(op_type, {"X": np.array([1, 2]), "Y": np.array([1, 0])})


def test_powers_of_integers_are_rounded():
    inputs = {"X": np.array([2, 2, -3]), "Y": np.array([-1, 10, 3])}
    assert one_output("elementwise_pow", inputs).tolist() == [0, 1024, -27]


def test_a_power_of_zero_does_not_change_with_the_exponent():
    inputs = {"X": np.zeros(1), "Y": np.array([2.0]), "Out@GRAD": np.ones(1)}
    assert one_output("elementwise_pow_grad", inputs, slot="Y@GRAD").tolist() == [0]


def test_sparse_rows_are_scaled_by_one_number():
    rows = SelectedRows(np.array([3, 1, 3]), np.arange(6.0).reshape(3, 2), 5)
    found = one_output("elementwise_mul", {"X": rows, "Y": np.array([2.0])})
    assert found.rows.tolist() == [3, 1, 3]
    assert found.value.tolist() == (rows.value * 2).tolist()
    with pytest.raises(DiagnosticError, match="SelectedRows"):
        one_output("elementwise_mul", {"X": rows, "Y": np.array([2.0, 3.0])})


def test_dims_that_do_not_fit_are_refused():
    with pytest.raises(DiagnosticError, match=r"Y is f64\[2\], which does not fit X, f64\[2, 3\]"):
        one_output("elementwise_add", {"X": np.ones((2, 3)), "Y": np.ones(2)})
