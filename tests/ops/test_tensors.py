"""Ops that pick, order and lay out elements: what recordings of Fluid can't say, which are refusals and odd values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pstranspile.ir.attributes import Ints, Longs
from pstranspile.ir.diagnostics import DiagnosticError
from tests.ops.computing import compute
from tests.ops.differences import one_output

X = np.arange(6.0).reshape(2, 3)
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "positions": ("gather_nd", {"X": X, "Index": np.array([[0, 3]])}, {}, "Index of dim 1 3 is not in 0 to 2"),
    "one dim": ("gather_nd", {"X": X, "Index": np.array([0])}, {}, r"Index has dims \[1\], it must have at least two"),
    "deep": ("gather_nd", {"X": X, "Index": np.zeros((1, 3), "int64")}, {}, "have 3 numbers, X has 2 dims"),
    "updates": (
        "scatter_nd_add",
        {"X": X, "Index": np.array([[1]]), "Updates": np.zeros((1, 2))},
        {},
        r"dims \[1, 2\] can't be added at positions that pick \[1, 3\]",
    ),
    "negative": ("index_select", {"X": X, "Index": np.array([-1])}, {"dim": 1}, "Index -1 is not in 0 to 2"),
    "sample": ("index_sample", {"X": X, "Index": np.array([[0], [3]])}, {}, "Index 3 is not in 0 to 2"),
    "rows": ("index_sample", {"X": X, "Index": np.array([[0]])}, {}, "they must be matrices with as many rows"),
    "sources": ("multiplex", {"Ids": np.array([[0], [2]]), "X": [X, X]}, {}, "Ids 2 is not in 0 to 1"),
    "few sources": ("multiplex", {"Ids": np.array([[0]]), "X": [X, X]}, {}, "Ids has 1 elements, but there are 2 rows"),
    "shard": (
        "shard_index",
        {"X": np.array([[20]])},
        {"index_num": 20, "nshards": 2, "shard_id": 0},
        "the id 20 is not in 0 to 19",
    ),
    "no shard": (
        "shard_index",
        {"X": np.array([[2]])},
        {"index_num": 20, "nshards": 2, "shard_id": 2},
        "there is no shard 2 of 2",
    ),
    "empty": (
        "strided_slice",
        {"Input": X},
        {"axes": Ints((1,)), "starts": Ints((2,)), "ends": Ints((1,)), "strides": Ints((1,))},
        "dim 1 of Input has 3 elements, none from 2 to 1 by 1",
    ),
    "too few": (
        "strided_slice",
        {"Input": X, "StartsTensor": np.array([0, 1], "int32")},
        {"axes": Ints((1,)), "ends": Ints((1,)), "strides": Ints((1,))},
        "starts has 2 numbers, axes has 1",
    ),
    "shifts": ("roll", {"X": X}, {"shifts": Longs((1,)), "dims": Longs(())}, "shifts has 1 numbers, dims has 0"),
    "repeats": ("expand_as", {"X": X, "target_tensor": np.zeros((4, 4))}, {}, r"can't be repeated up to \[4, 4\]"),
    "columns": ("partial_sum", {"X": [X, X]}, {"start_index": 2, "length": 2}, "X has 3 columns, none from"),
    "matrix": ("diag", {"Diagonal": X}, {}, r"Diagonal has dims \[2, 3\], it must have one"),
    "same dims": ("diag_embed", {"Input": X}, {"dim1": 1, "dim2": -2}, "dim1 1 and dim2 -2 are not two of 3 dims"),
    "num": (
        "linspace",
        {"Start": np.zeros(1), "Stop": np.ones(1), "Num": np.array([0], "int32")},
        {},
        "Num is 0, it must be positive",
    ),
    "hash": ("hash", {"X": np.array([1, 2])}, {}, r"X has dims \[2\], it must have two"),
    "crop": (
        "random_crop",
        {"X": X, "Seed": np.array([3])},
        {"shape": Ints((4,))},
        r"X has dims \[2, 3\], it has no parts of dims \[4\]",
    ),
    "tags": (
        "filter_by_instag",
        {"Ins": X, "Ins_tag": np.zeros((3, 1), "int64"), "Filter_tag": np.array([0])},
        {"is_lod": False},
        "there are 2 instances in Ins, and tags of 3",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    op_type, inputs, attrs, message = REFUSED[name]
    with pytest.raises(DiagnosticError, match=message):
        one_output(op_type, inputs, attrs)


def test_slices_for_other_variables_are_refused():
    with pytest.raises(DiagnosticError, match="dim 1 of X has 3 elements, there are 2 variables for them"):
        compute("unstack", {"X": X}, {"Y": ["a", "b"]}, {"axis": 1, "num": 3})


@pytest.mark.parametrize(("descending", "order"), [(False, [2, 5, 4, 0, 1, 3]), (True, [1, 3, 0, 4, 2, 5])])
def test_nan_is_sorted_as_the_largest(descending: bool, order: list[int]):
    x = np.array([3, np.nan, 1, np.nan, 2, 1], "float32")
    found = compute("argsort", {"X": x}, {"Out": "out", "Indices": "places"}, {"descending": descending})
    assert found.find("places").tolist() == order
    np.testing.assert_array_equal(found.find("out"), x[order])


@pytest.mark.parametrize("op_type", ["unbind", "unstack"])
def test_slices_of_one_dim_have_one_element(op_type: str):
    attrs = {} if op_type == "unbind" else {"num": 2}
    found = compute(op_type, {"X": np.array([3.0, 4.0])}, {"Out" if op_type == "unbind" else "Y": ["a", "b"]}, attrs)
    assert found.find("a").tolist() == [3.0]
    assert found.find("b").tolist() == [4.0]


def test_columns_are_counted_from_the_end():
    assert one_output("partial_sum", {"X": [X, X]}, {"start_index": -2}).tolist() == (2 * X[:, 1:]).tolist()


def test_a_seed_of_zero_is_drawn_anew():
    drawn = {int(compute("seed", {}, {"Out": "out"}, step=step).find("out")[0]) for step in range(4)}
    assert len(drawn) > 1
    assert min(drawn) > 0


def test_the_gradient_of_a_part_without_a_dim():
    attrs = {"axes": Ints((0,)), "starts": Ints((1,)), "ends": Ints((2,)), "strides": Ints((1,))}
    inputs = {"Input": X, "Out@GRAD": np.array([1.0, 2.0, 3.0])}
    attrs["decrease_axis"] = Ints((0,))
    found = one_output("strided_slice_grad", inputs, attrs, "Input@GRAD")
    assert found.tolist() == [[0, 0, 0], [1, 2, 3]]
