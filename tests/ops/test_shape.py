"""Other shapes of the same elements."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.attributes import Ints
from pstranspile.ir.diagnostics import DiagnosticError
from tests.ops.computing import compute
from tests.ops.differences import check_gradients, dims, one_output, quick, seeds, values


def both(op_type, x, attrs, of=None):
    """What an op and its form with XShape give, which must be the same; checks both gradients."""
    first = one_output(op_type, {"X": x, **(of or {})}, attrs)
    frame = compute(f"{op_type}2", {"X": x, **(of or {})}, {"Out": "out", "XShape": "shape"}, attrs)
    np.testing.assert_array_equal(frame.find("out"), first)
    assert frame.find("shape").shape == (0, *x.shape)
    assert not np.shares_memory(frame.find("out"), frame.find("X"))
    check_gradients(f"{op_type}2", {"X": x, **(of or {})}, ["Out", "XShape"], attrs)
    if op_type != "reshape":
        check_gradients(op_type, {"X": x, **(of or {})}, ["Out"], attrs)
    return first


@quick
@given(shape=dims(2, 3), seed=seeds, data=st.data())
def test_reshape(shape, seed, data):
    x = values(seed, *shape)
    kept = data.draw(st.integers(0, 1))
    asked = Ints((*[0] * kept, -1, *shape[kept + 1 :][::-1]))
    expected = x.reshape(*shape[:kept], -1, *shape[kept + 1 :][::-1])
    np.testing.assert_array_equal(both("reshape", x, {"shape": asked}), expected)


def test_dims_may_come_as_tensors():
    x = np.arange(6.0)
    shape = {"X": x, "Shape": np.array([3, 2])}
    assert one_output("reshape2", shape, {"shape": Ints((6,))}).shape == (3, 2)
    parts = {**shape, "ShapeTensor": [np.array([2]), np.array([-1])]}
    assert one_output("reshape2", parts, {"shape": Ints((6,))}).shape == (2, 3)
    assert one_output("unsqueeze2", {"X": x, "AxesTensor": np.array([1, 0])}).shape == (1, 6, 1)
    assert one_output("unsqueeze2", {"X": x, "AxesTensorList": [np.array([0])]}).shape == (1, 6)


@quick
@given(shape=dims(1, 4, 3), seed=seeds, data=st.data())
def test_transpose(shape, seed, data):
    order = data.draw(st.permutations(range(len(shape))))
    x = values(seed, *shape)
    found = both("transpose", x, {"axis": Ints(order)})
    for place in np.ndindex(found.shape):
        assert found[place] == x[tuple(place[order.index(at)] for at in range(len(shape)))]


@quick
@given(shape=dims(1, 4, 2), seed=seeds, data=st.data())
def test_squeeze_and_unsqueeze(shape, seed, data):
    single = [at for at, dim in enumerate(shape) if dim == 1]
    chosen = data.draw(st.lists(st.sampled_from(single), unique=True)) if single else []
    x = values(seed, *shape)
    found = both("squeeze", x, {"axes": Ints(at - len(shape) if at % 2 else at for at in chosen)})
    gone = chosen or single
    assert found.shape == (tuple(dim for at, dim in enumerate(shape) if at not in gone) or (1,))
    axes = data.draw(st.lists(st.integers(0, len(shape)), max_size=2))
    expected = list(shape)
    for axis in axes:
        expected.insert(axis, 1)
    assert both("unsqueeze", x, {"axes": Ints(axes)}).shape == tuple(expected)


def test_a_dim_that_is_not_one_is_not_squeezed():
    with pytest.raises(DiagnosticError, match="axes has 0, which is not a dim of size 1 of X"):
        one_output("squeeze2", {"X": np.ones((2, 1))}, {"axes": Ints((0,))})
    with pytest.raises(DiagnosticError, match="axes has 3, but X has 1 dims"):
        one_output("unsqueeze2", {"X": np.ones(2)}, {"axes": Ints((3,))})


def test_dims_of_other_sizes_stay_where_only_ones_are_squeezed():
    x = np.arange(6.0).reshape(1, 2, 3, 1)
    for axes, left in (((1,), (1, 2, 3, 1)), ((0, 1), (2, 3, 1)), ((-1, -2), (1, 2, 3)), ((), (2, 3))):
        found = both("squeeze", x, {"axes": Ints(axes), "ones_only": True})
        assert found.shape == left
        assert found.ravel().tolist() == x.ravel().tolist()


@quick
@given(shape=dims(1, 4), seed=seeds, data=st.data())
def test_flatten(shape, seed, data):
    axis = data.draw(st.integers(0, len(shape)))
    x = values(seed, *shape)
    expected = x.reshape(math.prod(shape[:axis]), math.prod(shape[axis:]))
    np.testing.assert_array_equal(both("flatten", x, {"axis": axis}), expected)


def test_shape():
    found = one_output("shape", {"Input": np.ones((2, 3))})
    assert (found.tolist(), found.dtype) == ([2, 3], "int32")
