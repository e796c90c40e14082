"""Tensors of Fluid's interface, as scripts fill and read them."""

from __future__ import annotations

import numpy as np
import pytest

import pstranspile.fluid as fluid


def made(which: str) -> fluid.LoDTensor:
    """A tensor of its own, or that of a variable of a scope."""
    return fluid.LoDTensor() if which == "alone" else fluid.Scope().var("x").get_tensor()


@pytest.mark.parametrize("which", ["alone", "in a scope"])
def test_elements_are_made_with_the_dims_that_were_set(which: str):
    tensor = made(which)
    assert not tensor._is_initialized()
    assert tensor.shape() == [0]
    tensor._set_dims([2, 3])
    assert tensor.shape() == [2, 3]
    assert not tensor._is_initialized()
    tensor._alloc_float(fluid.CPUPlace())
    tensor._set_float_element(1, 2.5)
    np.testing.assert_array_equal(np.array(tensor), np.float32([[0, 2.5, 0], [0, 0, 0]]))
    tensor._set_dims([3, 2])
    np.testing.assert_array_equal(np.array(tensor), np.float32([[0, 2.5], [0, 0], [0, 0]]))
    tensor._set_dims([7, 2])
    tensor._alloc_int(fluid.CPUPlace())
    assert (tensor.shape(), np.array(tensor).dtype) == ([7, 2], "int32")


@pytest.mark.parametrize("which", ["alone", "in a scope"])
def test_a_tensor_that_is_cleared_keeps_its_dims(which: str):
    tensor = made(which)
    tensor.set(np.ones((2, 3), "float64"), fluid.CPUPlace())
    tensor._clear()
    assert not tensor._is_initialized()
    assert tensor._get_dims() == [2, 3]


def test_what_is_fetched_as_a_tensor_has_elements():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        y = fluid.layers.scale(fluid.data("x", [None, 2]), 2.0)
    executor = fluid.Executor(fluid.CPUPlace())
    feed = {"x": np.ones((3, 2), "float32")}
    (value,) = executor.run(main, feed=feed, fetch_list=[y], return_numpy=False)
    assert value._is_initialized()
    np.testing.assert_array_equal(np.array(value), np.full((3, 2), 2, "float32"))
