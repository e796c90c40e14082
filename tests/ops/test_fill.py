"""Values out of nothing, copies and conversions."""

import numpy as np
import pytest

from pstranspile.ir.attributes import Floats, Ints, Longs
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values import LoDTensor, SelectedRows
from tests.ops.computing import compute
from tests.ops.differences import one_output


@pytest.mark.parametrize(
    ("attrs", "expected", "kind"),
    [
        ({"value": 2.7, "dtype": 3}, 2, "int64"),
        ({"value": -2.7, "dtype": 2}, -2, "int32"),
        ({"value": 0.5}, 0.5, "float32"),
        ({"value": 1.0, "dtype": 0}, True, "bool"),
        ({"value": 9.0, "str_value": "0.25", "dtype": 6}, 0.25, "float64"),
        ({"str_value": "9007199254740993", "dtype": 3}, 9007199254740993, "int64"),
        ({"str_value": "3.9", "dtype": 3}, 3, "int64"),
        ({"str_value": "-inf"}, -np.inf, "float32"),
    ],
)
def test_fill_constant(attrs, expected, kind):
    found = one_output("fill_constant", {}, {"shape": Longs((2, 1)), **attrs})
    assert (found.tolist(), found.dtype) == ([[expected], [expected]], kind)


def test_float16_is_rounded_toward_zero_as_in_fluid():
    numbers = np.array([-1.1798, 0.1, 2.0, 1e-9])
    assert one_output("cast", {"X": numbers}, {"in_dtype": 6, "out_dtype": 4}).tolist() == [
        -1.1796875,
        0.0999755859375,
        2,
        0,
    ]
    found = one_output("fill_constant", {}, {"shape": Longs((1,)), "value": 0.1, "dtype": 4})
    assert (found.tolist(), found.dtype) == ([0.0999755859375], "float16")


def test_a_number_that_the_element_type_can_not_hold():
    with pytest.raises(DiagnosticError, match=r"run-op-failed.*out of bounds for int32"):
        one_output("fill_constant", {}, {"shape": Longs((1,)), "str_value": "9007199254740993", "dtype": 2})


def test_value_and_dims_may_come_as_tensors():
    attrs = {"shape": Longs((9,)), "value": 1.0, "str_value": "2"}
    found = one_output("fill_constant", {"ValueTensor": np.array([3.0]), "ShapeTensor": np.array([2])}, attrs)
    assert found.tolist() == [3, 3]
    parts = {"ShapeTensorList": [np.array([1]), np.array([2])]}
    assert one_output("fill_constant", parts, attrs).tolist() == [[2, 2]]


def test_sparse_rows_get_room_for_rows():
    attrs = {"shape": Longs((3, 2)), "value": 0.5}
    found = compute("fill_constant", {}, {"Out": "out"}, attrs, sparse=("out",)).find("out")
    assert isinstance(found, SelectedRows)
    assert (len(found.rows), found.value.tolist(), found.height) == (0, [[0.5, 0.5]] * 3, 3)


def test_fill_constant_batch_size_like():
    attrs = {"shape": Ints((-1, 2)), "value": 3.0}
    x = np.zeros((5, 7))
    assert one_output("fill_constant_batch_size_like", {"Input": x}, attrs).shape == (5, 2)
    ragged = LoDTensor(x, [[0, 2, 2, 5]])
    found = one_output("fill_constant_batch_size_like", {"Input": ragged}, attrs)
    assert found.tolist() == [[3, 3]] * 3
    other = {**attrs, "shape": Ints((2, -1)), "input_dim_idx": 1, "output_dim_idx": 1}
    assert one_output("fill_constant_batch_size_like", {"Input": ragged}, other).shape == (2, 7)


def test_filled_as_another_tensor():
    x = np.ones((2, 1), "float32")
    assert one_output("fill_zeros_like", {"X": x}).dtype == "float32"
    assert not one_output("fill_zeros_like", {"X": x}).any()
    found = one_output("fill_any_like", {"X": x}, {"value": 2.5, "dtype": 2})
    assert (found.tolist(), found.dtype) == ([[2], [2]], "int32")


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3.0),
        LoDTensor(np.arange(3.0), [[0, 1, 3]]),
        SelectedRows(np.array([2, 2]), np.ones((2, 1)), 5),
    ],
)
def test_assign_copies(value):
    frame = compute("assign", {"X": value}, {"Out": "out"})
    found, given = frame.find("out"), frame.find("X")
    assert type(found) is type(value)
    parts = [(a, b) for a, b in zip(found, given, strict=True)] if isinstance(value, tuple) else [(found, given)]
    for made, source in parts:
        np.testing.assert_array_equal(made, source)
        assert not isinstance(made, np.ndarray) or not np.shares_memory(made, source)


def test_assign_value():
    found = one_output("assign_value", {}, {"shape": Ints((2, 1)), "dtype": 5, "fp32_values": Floats((1.5, 2.5))})
    assert (found.tolist(), found.dtype) == ([[1.5], [2.5]], "float32")
    found = one_output("assign_value", {}, {"shape": Ints((2,)), "dtype": 3, "int64_values": Longs((1, 2**40))})
    assert (found.tolist(), found.dtype) == ([1, 2**40], "int64")
    found = one_output("assign_value", {}, {"shape": Ints((2,)), "dtype": 0, "bool_values": Ints((1, 0))})
    assert (found.tolist(), found.dtype) == ([True, False], "bool")
    with pytest.raises(DiagnosticError, match="dtype is float64"):
        one_output("assign_value", {}, {"shape": Ints((1,)), "dtype": 6})


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, [True, False, True]), (2, [-1, 0, 2]), (3, [-1, 0, 2]), (6, [-1.5, 0, 2.5])],
)
def test_cast(number, expected):
    found = one_output("cast", {"X": np.array([-1.5, 0, 2.5], "float32")}, {"in_dtype": 5, "out_dtype": number})
    assert found.tolist() == expected
