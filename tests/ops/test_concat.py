"""Parts of tensors, and tensors put together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.attributes import Ints
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values import LoDTensor
from tests.ops.computing import compute
from tests.ops.differences import check_gradients, dims, one_output, quick, seeds, values


@quick
@given(shape=dims(), sizes=st.lists(st.integers(0, 3), min_size=1, max_size=3), seed=seeds, data=st.data())
def test_concat_and_split_are_inverse(shape, sizes, seed, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    at = axis % len(shape)
    parts = [values(seed, *shape[:at], size, *shape[at + 1 :]) for size in sizes]
    whole = one_output("concat", {"X": parts}, {"axis": axis})
    start = 0
    for part in parts:
        np.testing.assert_array_equal(whole.take(range(start, start + part.shape[at]), axis), part)
        start += part.shape[at]
    names = [f"part{number}" for number in range(len(parts))]
    listed = [*sizes]
    listed[data.draw(st.integers(0, len(sizes) - 1))] = -1
    frame = compute("split", {"X": whole}, {"Out": names}, {"axis": axis, "sections": Ints(listed)})
    for name, part in zip(names, parts, strict=True):
        np.testing.assert_array_equal(frame.find(name), part)
        assert not np.shares_memory(frame.find(name), frame.find("X"))
    check_gradients("concat", {"X": parts}, ["Out"], {"axis": axis})


def test_split_into_equal_parts():
    frame = compute("split", {"X": np.arange(6)}, {"Out": ["a", "b"]}, {"num": 2})
    assert (frame.find("a").tolist(), frame.find("b").tolist()) == ([0, 1, 2], [3, 4, 5])
    with pytest.raises(DiagnosticError, match=r"dim 0 of X has 6 elements, not cut into \[4, 4\]"):
        compute("split", {"X": np.arange(6)}, {"Out": ["a", "b"]}, {"sections": Ints((4, 4))})


def test_sequences_are_appended():
    a, b = LoDTensor(np.ones((3, 1)), [[0, 1, 3]]), LoDTensor(np.zeros((4, 1)), [[0, 3, 4]])
    found = one_output("concat", {"X": [a, b]}, {"axis": 0})
    assert found.lod == [[0, 1, 3, 6, 7]]
    assert found.data.tolist() == [[1], [1], [1], [0], [0], [0], [0]]
    assert one_output("concat", {"X": [a, a]}, {"axis": 1}).lod == [[0, 1, 3]]
    gradients = compute("concat_grad", {"X": [a, b], "Out@GRAD": found}, {"X@GRAD": ["ga", "gb"]}, {"axis": 0})
    assert (gradients.find("ga").lod, gradients.find("gb").lod) == (a.lod, b.lod)


@quick
@given(shape=dims(0, 3), count=st.integers(1, 3), seed=seeds, data=st.data())
def test_stack(shape, count, seed, data):
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    parts = [values(seed + at, *shape or (1,)) for at in range(count)]
    found = one_output("stack", {"X": parts}, {"axis": min(axis, 1) if not shape else axis}, "Y")
    for at, part in enumerate(parts):
        np.testing.assert_array_equal(found.take(at, min(axis, 1) if not shape else axis), part)
    attrs = {"axis": min(axis, 1) if not shape else axis}
    check_gradients("stack", {"X": parts}, ["Y"], attrs, through=["Y"])


@quick
@given(shape=dims(1, 3, 4), seed=seeds, data=st.data())
def test_slice(shape, seed, data):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    starts = [data.draw(st.integers(-shape[axis] - 2, shape[axis] - 1)) for axis in axes]
    first = [max(start + shape[axis], 0) if start < 0 else start for axis, start in zip(axes, starts, strict=True)]
    ends = [
        data.draw(st.sampled_from([at + 1, 1000, -1 if at + 1 < shape[axis] else 1000]))
        for axis, at in zip(axes, first, strict=True)
    ]
    x = values(seed, *shape)
    expected = x
    for axis, start, end in zip(axes, first, ends, strict=True):
        stop = shape[axis] + end if end < 0 else min(end, shape[axis])
        expected = expected.take(range(start, stop), axis)
    gone = [axis for axis in axes if expected.shape[axis] == 1][:1] if data.draw(st.booleans()) else []
    attrs = {"axes": Ints(axes), "starts": Ints(starts), "ends": Ints(ends), "decrease_axis": Ints(gone)}
    found = one_output("slice", {"Input": x}, attrs)
    left = tuple(dim for at, dim in enumerate(expected.shape) if at not in gone) or (1,)
    np.testing.assert_array_equal(found, expected.reshape(left))
    check_gradients("slice", {"Input": x}, ["Out"], attrs, of=["Input"])


def test_bounds_of_slice_may_be_tensors():
    attrs = {"axes": Ints((0,)), "starts": Ints((0,)), "ends": Ints((1,))}
    inputs = {"Input": np.arange(5), "StartsTensor": np.array([1]), "EndsTensor": np.array([3])}
    assert one_output("slice", inputs, attrs).tolist() == [1, 2]
    inputs = {"Input": np.arange(5), "StartsTensorList": [np.array([2])], "EndsTensorList": [np.array([9])]}
    assert one_output("slice", inputs, attrs).tolist() == [2, 3, 4]


@quick
@given(shape=dims(1, 3, 3), seed=seeds, data=st.data())
def test_expand(shape, seed, data):
    times = [data.draw(st.integers(1, 3)) for _ in shape]
    x = values(seed, *shape)
    found = one_output("expand", {"X": x}, {"expand_times": Ints(times)})
    assert found.shape == tuple(dim * n for dim, n in zip(shape, times, strict=True))
    for place in np.ndindex(found.shape):
        assert found[place] == x[tuple(at % dim for at, dim in zip(place, shape, strict=True))]
    np.testing.assert_array_equal(one_output("expand", {"X": x, "ExpandTimes": np.array(times)}), found)
    check_gradients("expand", {"X": x}, ["Out"], {"expand_times": Ints(times)})
