"""Reductions against loops over all elements."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.attributes import Ints
from tests.ops.differences import check_gradients, one_output, quick, seeds, values

FORMULAS = {
    "reduce_sum": math.fsum,
    "reduce_mean": lambda group: math.fsum(group) / len(group),
    "reduce_max": max,
    "reduce_min": min,
    "reduce_prod": math.prod,
}


@st.composite
def reductions(draw):
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    over = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    signed = [draw(st.sampled_from([axis, axis - len(shape)])) for axis in over]
    everything = draw(st.booleans())
    attrs = {"dim": Ints(signed), "keep_dim": draw(st.booleans()), "reduce_all": everything}
    return values(draw(seeds), *shape), set(range(len(shape))) if everything else set(over), attrs


def groups(x, over):
    """The elements that come together, by the indices of the dims that stay."""
    found = {}
    for place in np.ndindex(x.shape):
        found.setdefault(tuple(0 if at in over else i for at, i in enumerate(place)), []).append(x[place])
    return found


@pytest.mark.parametrize("op_type", FORMULAS)
@quick
@given(case=reductions())
def test_formula_and_gradient(op_type, case):
    x, over, attrs = case
    found = one_output(op_type, {"X": x}, attrs)
    kept = tuple(1 if at in over else dim for at, dim in enumerate(x.shape))
    left = tuple(dim for at, dim in enumerate(x.shape) if at not in over)
    assert found.shape == (kept if attrs["keep_dim"] else left or (1,))
    for place, group in groups(x, over).items():
        assert found.reshape(kept)[place] == pytest.approx(FORMULAS[op_type](group), rel=1e-12, abs=1e-12)
    check_gradients(op_type, {"X": x}, ["Out"], attrs)


def test_equal_largest_elements_all_get_the_gradient():
    x = np.array([[2.0, 2.0, 1.0]])
    inputs = {"X": x, "Out": np.array([2.0]), "Out@GRAD": np.array([5.0])}
    assert one_output("reduce_max_grad", inputs, {"dim": Ints((1,))}, "X@GRAD").tolist() == [[5, 5, 0]]


def test_the_gradient_of_a_product_with_zeros_is_the_product_of_the_others():
    x = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.0], [4.0, 2.0, 3.0]])
    check_gradients("reduce_prod", {"X": x}, ["Out"], {"dim": Ints((1,))})


def test_means_of_integers_are_integers():
    x = np.array([[7, 0], [-7, 0]])
    found = one_output("reduce_mean", {"X": x}, {"dim": Ints((1,))})
    assert found.dtype == "int64"
    assert found.tolist() == [3, -3]


@pytest.mark.parametrize("kind", ["float32", "int32", "int64"])
def test_element_types_stay_unless_asked_otherwise(kind):
    x = np.ones((2, 2), kind)
    assert one_output("reduce_sum", {"X": x}).dtype == kind
    assert one_output("reduce_sum", {"X": x}, {"out_dtype": 6}).dtype == "float64"


def test_all_any_and_isfinite():
    x = np.array([[True, False], [True, True]])
    assert one_output("reduce_all", {"X": x}, {"dim": Ints((1,))}).tolist() == [False, True]
    assert one_output("reduce_any", {"X": x}, {"reduce_all": True}).tolist() == [True]
    assert one_output("isfinite", {"X": np.array([1.0, np.nan])}).tolist() == [False]
    assert one_output("isfinite", {"X": np.array([1.0, 2.0])}).tolist() == [True]
