"""Comparisons and logic."""

import operator

import numpy as np
import pytest

from tests.ops.differences import one_output

COMPARE = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less_than": operator.lt,
    "less_equal": operator.le,
    "greater_than": operator.gt,
    "greater_equal": operator.ge,
}
LOGIC = {"logical_and": operator.and_, "logical_or": operator.or_, "logical_xor": operator.xor}


@pytest.mark.parametrize("op_type", COMPARE)
def test_comparisons_broadcast_from_the_axis_on(op_type):
    x, y = np.arange(12).reshape(2, 3, 2) % 5, np.array([1, 2, 3])
    found = one_output(op_type, {"X": x, "Y": y}, {"axis": 1})
    assert found.dtype == bool
    for place in np.ndindex(x.shape):
        assert found[place] == COMPARE[op_type](x[place], y[place[1]])
    assert one_output(op_type, {"X": x, "Y": x}).tolist() == COMPARE[op_type](x, x).tolist()


@pytest.mark.parametrize("op_type", LOGIC)
def test_logic(op_type):
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    expected = [LOGIC[op_type](bool(a), bool(b)) for a, b in zip(x, y, strict=True)]
    assert one_output(op_type, {"X": x, "Y": y}).tolist() == expected
    assert one_output("logical_not", {"X": x}).tolist() == [True, True, False, False]
