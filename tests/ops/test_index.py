"""Choosing by index."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.attributes import Long
from pstranspile.ir.diagnostics import DiagnosticError
from tests.ops.computing import compute
from tests.ops.differences import check_gradients, dims, one_output, quick, seeds, values

PLACES = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@quick
@given(places=PLACES, width=st.integers(1, 3), column=st.booleans(), seed=seeds)
def test_gather(places, width, column, seed):
    x = values(seed, 4, width)
    index = np.array(places).reshape(-1, 1) if column else np.array(places, "int32")
    np.testing.assert_array_equal(one_output("gather", {"X": x, "Index": index}), [x[at] for at in places])
    check_gradients("gather", {"X": x, "Index": index}, ["Out"], {"overwrite": False})
    gradient = values(seed, len(places), width)
    inputs = {"X": x, "Index": index, "Out@GRAD": gradient}
    expected = np.zeros_like(x)
    for at, row in zip(places, gradient, strict=True):
        expected[at] = row
    np.testing.assert_array_equal(one_output("gather_grad", inputs, {"overwrite": True}, "X@GRAD"), expected)


@quick
@given(places=PLACES, overwrite=st.booleans(), seed=seeds)
def test_scatter(places, overwrite, seed):
    places = list(dict.fromkeys(places)) if overwrite else places
    x, updates = values(seed, 4, 2), values(seed + 1, len(places), 2)
    inputs = {"X": x, "Ids": np.array(places), "Updates": updates}
    expected = x.copy()
    expected[places] = 0
    for at, row in zip(places, updates, strict=True):
        expected[at] += row
    np.testing.assert_allclose(one_output("scatter", inputs, {"overwrite": overwrite}), expected)
    check_gradients("scatter", inputs, ["Out"], {"overwrite": overwrite}, of=("X", "Updates"))


@pytest.mark.parametrize(("op_type", "slot"), [("gather", "Index"), ("scatter", "Ids")])
def test_rows_outside_are_refused(op_type, slot):
    for wrong in (4, -1):
        inputs = {"X": np.ones((4, 1)), slot: np.array([wrong]), "Updates": np.ones((1, 1))}
        inputs = inputs if op_type == "scatter" else {"X": inputs["X"], slot: inputs[slot]}
        with pytest.raises(DiagnosticError, match=f"{slot} {wrong} is not in 0 to 3"):
            one_output(op_type, inputs)


@quick
@given(shape=dims(1, 3), seed=seeds, data=st.data())
def test_top_k(shape, seed, data):
    k = data.draw(st.integers(1, shape[-1]))
    x = values(seed, *shape)
    frame = compute("top_k", {"X": x}, {"Out": "out", "Indices": "at"}, {"k": k})
    np.testing.assert_array_equal(frame.find("out"), -np.sort(-x, axis=-1)[..., :k])
    np.testing.assert_array_equal(np.take_along_axis(x, frame.find("at"), -1), frame.find("out"))
    assert frame.find("at").dtype == "int64"
    check_gradients("top_k", {"X": x}, ["Out", "Indices"], {"k": k})
    np.testing.assert_array_equal(one_output("top_k", {"X": x, "K": np.array([k])}), frame.find("out"))


@pytest.mark.parametrize("kinds", [3, 50, 10**6])
@pytest.mark.parametrize("width", [40, 500])
def test_top_k_of_wide_rows_equals_sorting(width: int, kinds: int):
    x = np.random.default_rng(0).integers(0, kinds, (2, 9, width)).astype("float32")
    want = np.argsort(-x, axis=-1, kind="stable")[..., :5]
    np.testing.assert_array_equal(one_output("top_k", {"X": x}, {"k": 5}, "Indices"), want)
    np.testing.assert_array_equal(one_output("top_k", {"X": x}, {"k": 5}), np.take_along_axis(x, want, axis=-1))
    x[1, 2, 3] = np.nan  # comes last
    want = np.argsort(-x, axis=-1, kind="stable")[..., :5]
    np.testing.assert_array_equal(one_output("top_k", {"X": x}, {"k": 5}, "Indices"), want)


def test_of_equal_elements_top_k_takes_the_first():
    assert one_output("top_k", {"X": np.array([1.0, 2, 2, 1])}, {"k": 3}, "Indices").tolist() == [1, 2, 0]
    with pytest.raises(DiagnosticError, match="k is 3, but the rows of X have 2 elements"):
        one_output("top_k", {"X": np.ones((1, 2))}, {"k": 3})


def test_arg_max():
    x = np.array([[1.0, 5, 5], [7, 0, 2]])
    found = one_output("arg_max", {"X": x}, {"axis": Long(-1)})
    assert (found.tolist(), found.dtype) == ([1, 0], "int64")
    found = one_output("arg_max", {"X": x}, {"axis": Long(0), "keepdims": True, "dtype": 2})
    assert (found.tolist(), found.dtype) == ([[1, 0, 0]], "int32")


@quick
@given(shape=dims(1, 3), depth=st.integers(1, 5), seed=seeds)
def test_one_hot(shape, depth, seed):
    ids = np.random.default_rng(seed).integers(0, depth, shape)
    expected = np.eye(depth)[ids]
    np.testing.assert_array_equal(one_output("one_hot", {"X": ids[..., None]}, {"depth": depth}), expected)
    found = one_output("one_hot_v2", {"X": ids, "depth_tensor": np.array([depth])}, {"dtype": 3})
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == "int64"


def test_ids_beyond_the_depth():
    ids = {"X": np.array([[1], [3], [-1]])}
    assert one_output("one_hot", ids, {"depth": 2, "allow_out_of_range": True}).tolist() == [[0, 1], [0, 0], [0, 0]]
    with pytest.raises(DiagnosticError, match="the id 3 is not in 0 to 1"):
        one_output("one_hot", ids, {"depth": 2})


@pytest.mark.parametrize(("start", "end", "step"), [(1, 9, 3), (9, 0, -2), (0, 1, 0.25), (1, 1, 1)])
def test_range(start, end, step):
    inputs = {"Start": np.array([start], "float32"), "End": np.array([end]), "Step": np.array([step])}
    found = one_output("range", inputs)
    assert (found.tolist(), found.dtype) == (np.arange(start, end, step).tolist(), "float32")
