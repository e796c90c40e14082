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
def test_a_tensor_without_elements_is_there(which: str):
    """Scripts ask `if tensor:` whether a variable has one, and take its array, as in Fluid."""
    tensor = made(which)
    assert bool(tensor)
    assert tensor.has_valid_recursive_sequence_lengths()
    assert (np.array(tensor).shape, np.array(tensor).dtype) == ((0,), "float64")
    tensor.set(np.zeros((0, 3), "float32"), fluid.CPUPlace())
    assert bool(tensor)


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


def test_dims_may_be_variables_where_tensors_are_made():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.data("x", [None, 3])
        rows = fluid.layers.shape(x)[0]
        made = [
            fluid.layers.fill_constant([rows, 1], "float32", 0.5),
            fluid.layers.fill_constant(fluid.layers.shape(x), "float32", 0.5),
            fluid.layers.uniform_random([rows, 4]),
            fluid.layers.gaussian_random(fluid.layers.shape(x)),
        ]
        assert [var.shape for var in made] == [(-1, 1), (-1, -1), (-1, -1), (-1, -1)]  # as Fluid declares them
        filled = fluid.layers.fill_constant([fluid.layers.shape(made[0])[0], 2], "float32", 1.0)
    feed = {"x": np.ones((5, 3), "float32")}
    values = fluid.Executor(fluid.CPUPlace()).run(main, feed=feed, fetch_list=[*made, filled])
    assert [value.shape for value in values] == [(5, 1), (5, 3), (5, 4), (5, 3), (5, 2)]


def test_a_metric_of_a_script_counts_in_variables_of_its_own():
    """As metrics of PaddleRec do: counters made with a LayerHelper, accuracy among k that a variable says."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x, label = fluid.data("x", [None, 4]), fluid.data("label", [None, 1], "int64")
        k = fluid.layers.fill_constant([1], "int32", 2)
        hits = fluid.layers.accuracy(x, label, k=k)
        assert main.global_block().has_var("top_k_0.tmp_0")
        helper = fluid.layer_helper.LayerHelper("counted", input=x)
        count, is_new = helper.create_or_get_global_variable("rows", persistable=True, dtype="float32", shape=[1])
        assert is_new
        assert helper.create_or_get_global_variable("rows") == (count, False)
        helper.set_variable_initializer(count, fluid.initializer.Constant(0.0))
        ones = fluid.layers.fill_constant(fluid.layers.shape(label), "float32", 1.0)
        inputs = {"X": [count], "Y": [fluid.layers.reduce_sum(ones)]}
        helper.append_op(type="elementwise_add", inputs=inputs, outputs={"Out": [count]})
        with pytest.raises(TypeError, match="input of counted"):
            helper.is_instance("input", str)
        with pytest.raises(ValueError, match="rows is no parameter"):
            helper.get_parameter("rows")
        assert [var.name for var, _ in helper.iter_inputs_and_params()] == ["x"]
    feed = {"x": np.float32([[3, 2, 1, 0], [0, 1, 2, 3]]), "label": np.int64([[1], [0]])}
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        for rows in (2, 4):
            share, counted = executor.run(main, feed=feed, fetch_list=[hits, count])
            assert (float(share[0]), float(counted[0])) == (0.5, rows)


def test_elements_of_another_type_are_made_at_an_address() -> None:
    tensor, kinds = fluid.core.Scope().var("x").get_tensor(), fluid.core.VarDesc.VarType
    tensor._set_dims([2, 3])
    address = tensor._mutable_data(fluid.CPUPlace(), kinds.FP64)
    assert (tensor._dtype(), tensor.shape()) == (kinds.FP64, [2, 3])
    assert address == tensor._mutable_data(fluid.CPUPlace(), kinds.FP64)
