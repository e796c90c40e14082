"""Control flow of Fluid's interface: nested results, ragged steps, arguments that don't fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from tests.fluid.running import fresh

layers: Any = fluid.layers


def _fetched(*wanted: Any, feed: Any = None) -> Any:
    return fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=list(wanted), return_numpy=False)


def _number(value: float, dtype: str = "int64", dims: list[int] | None = None) -> Any:
    return layers.fill_constant(dims or [1], dtype, value)


def test_branches_may_give_other_dims_and_nested_results() -> None:
    with fresh():
        less = layers.less_than(_number(1), _number(2))
        made = layers.cond(
            less,
            lambda: {"a": _number(1, dims=[2, 3]), "b": [_number(2)]},
            lambda: {"a": _number(3, dims=[4]), "b": [_number(4)]},
        )
        first, second = _fetched(made["a"], made["b"][0])
        assert np.array(first).tolist() == [[1] * 3] * 2
        assert np.array(second).tolist() == [2]
        with pytest.raises(ValueError, match="false_fn gives nothing"):
            layers.cond(less, lambda: _number(1), lambda: None)


def test_the_last_function_is_the_one_for_all_other_numbers() -> None:
    with fresh():
        functions = {number: (lambda number=number: _number(number)) for number in (7, 2, 5)}
        chosen = [layers.switch_case(_number(at, "int32"), functions) for at in (2, 5, 7, 9)]
        assert [np.array(item).item() for item in _fetched(*chosen)] == [2, 5, 7, 7]
        with pytest.raises(TypeError, match="must hold pairs"):
            layers.switch_case(_number(1), [(1, _number), _number(2)])
        with pytest.raises(ValueError, match="the number 1 has more than one function"):
            layers.switch_case(_number(1), [(1, _number), (1, _number)])


def test_a_loop_takes_and_gives_nested_variables() -> None:
    with fresh():
        made = layers.while_loop(
            lambda i, held: layers.less_than(i, _number(3)),
            lambda i, held: [layers.increment(i), {"sum": held["sum"] + i}],
            [_number(0), {"sum": _number(0)}],
        )
        assert np.array(_fetched(made[1]["sum"])[0]).item() == 1 + 2 + 3
        with pytest.raises(ValueError, match="the body must give what it takes"):
            layers.while_loop(lambda i: layers.less_than(i, _number(3)), lambda i: [i, i], [_number(0)])


def test_steps_of_nested_sequences_keep_the_inner_ones() -> None:
    with fresh():
        x = layers.data("x", [1], lod_level=2)
        table = layers.lod_rank_table(x, level=0)
        steps = layers.lod_tensor_to_array(x, table)
        back = layers.array_to_lod_tensor(steps, table)
        assert (steps.lod_level, back.lod_level) == (1, 2)
        first = layers.array_read(steps, _number(0))
        rows = np.arange(6, dtype="float32").reshape(6, 1)
        fed = fluid.create_lod_tensor(rows, [[1, 2], [2, 1, 3]], fluid.CPUPlace())
        step, whole = _fetched(first, back, feed={"x": fed})
        assert np.array(step).ravel().tolist() == [2, 0, 1]
        assert step.lod() == [[0, 1, 3]]
        assert np.array(whole).tolist() == rows.tolist()
        assert whole.lod() == fed.lod()


def test_what_is_not_marked_to_be_checked_takes_what_is_fed() -> None:
    with fresh():
        doubled = layers.data("x", [1], dtype="int64") * 2
        fed = np.arange(3)
        assert np.array(_fetched(doubled, feed={"x": fed})[0]).tolist() == [0, 2, 4]
        assert np.array(_fetched(doubled, feed={"x": fed.astype("float64")})[0]).dtype == "float64"
        marked = fluid.data("y", [None, 1], dtype="int64") * 2
        assert np.array(_fetched(marked, feed={"x": fed, "y": fed})[0]).tolist() == [0, 2, 4]
        with pytest.raises(Exception, match="The fed Variable"):
            _fetched(marked, feed={"x": fed, "y": fed.repeat(2).reshape(3, 2)})


def test_layers_tell_what_they_take() -> None:
    with fresh():
        with pytest.raises(TypeError, match="increment: x must be Variable, not list"):
            layers.increment([1, 2])
        with pytest.raises(TypeError, match="softmax: input must be of float16 or float32 or float64, not of int64"):
            layers.softmax(input=_number(1))
        with pytest.raises(TypeError, match="each of input must be Variable, not int"):
            layers.fc([1], 3)
        with pytest.raises(TypeError, match="While: cond must have one element"):
            layers.While(layers.less_than(_number(0, dims=[2]), _number(1, dims=[2])))


def test_numpy_and_collections_have_the_names_that_scripts_of_the_time_use(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import collections, numpy as np\n"
        "print(np.product([2, 3]), np.dtype(np.int).kind, isinstance([], collections.Sequence))\n"
    )
    command = [sys.executable, "-m", "pstranspile.fluid", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.stdout == "6 i True\n", done.stderr


def test_an_array_has_the_dims_of_what_is_written_to_it() -> None:
    with fresh():
        array = layers.create_array("float32")
        layers.array_write(layers.fill_constant([4, 3], "float32", 2.0), _number(0), array=array)
        assert layers.fc(layers.array_read(array, _number(0)), 5).shape == (4, 5)


def test_a_dynamic_network_gives_what_its_steps_give() -> None:
    with fresh():
        x = layers.data("x", [1], lod_level=1)
        network = layers.DynamicRNN()
        with network.block():
            word = network.step_input(x)
            before = network.memory(shape=[1], value=0.0)
            after = word + before
            network.update_memory(before, after)
            network.output(after)
        fed = fluid.create_lod_tensor(np.ones((5, 1), "float32"), [[2, 3]], fluid.CPUPlace())
        assert np.array(_fetched(network(), feed={"x": fed})[0]).ravel().tolist() == [1, 2, 1, 2, 3]


def test_what_layers_use_among_themselves_takes_no_layers_name() -> None:
    assert layers.flatten is layers.nn.flatten


def test_an_array_is_declared_like_what_was_written_last() -> None:
    with fresh():
        x, number = fluid.data("x", [None, 3]), fluid.data("n", [None, 1], "int64")
        index = fluid.layers.zeros([1], "int64")
        array = fluid.layers.array_write(x, index)
        assert (array.shape, array.dtype) == ((-1, 3), fluid.core.VarDesc.VarType.FP32)
        fluid.layers.array_write(number, fluid.layers.increment(index), array)
        assert (array.shape, array.dtype) == ((-1, 1), fluid.core.VarDesc.VarType.INT64)


def test_a_variable_that_nested_loops_hand_on_unchanged_has_its_gradient() -> None:
    with fresh():
        x, count, steps = fluid.data("x", [3]), _number(0), _number(2)
        x.stop_gradient = False
        total = layers.array_write(layers.zeros([3], "float32"), count)

        def more(number: Any, *_: Any) -> Any:
            return layers.less_than(number, steps)

        def add(number: Any, taken: Any, array: Any) -> Any:
            both = taken + layers.array_read(array, number)
            number = layers.increment(number)
            layers.array_write(both, number, array)
            return [number, taken, array]

        def outer(number: Any, inner: Any, taken: Any, array: Any) -> Any:
            number, taken, array = add(number, taken, array)
            return [number, *layers.while_loop(more, add, [inner, taken, array])]

        inner = _number(1)
        once = _number(1)
        layers.while_loop(lambda number, *_: layers.less_than(number, once), outer, [count, inner, x, total])
        last = layers.array_read(total, inner)
        fluid.backward.append_backward(layers.reduce_sum(last))
        made, gradient = _fetched(last, "x@GRAD", feed={"x": np.full(3, 0.5, "float32")})
        assert (np.array(made).tolist(), np.array(gradient).tolist()) == ([1.0] * 3, [2.0] * 3)


@pytest.mark.parametrize("start", [0.0, 2.0])
def test_a_parameter_that_is_not_trained_may_be_read_in_branches(start: float) -> None:
    with fresh():
        fixed, weight = (
            layers.create_parameter([2], "float32", attr=name, default_initializer=fluid.initializer.Constant(3.0))
            for name in ("fixed", "weight")
        )
        before = fixed + weight
        fixed.stop_gradient = True
        number = layers.assign(np.array([start], "float32"))
        inside = layers.cond(number > 1.0, lambda: fixed * weight, lambda: fixed - weight)
        fluid.optimizer.SGD(1.0).minimize(layers.reduce_sum(before + inside))
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
        made = _fetched(fixed, weight)
    assert [np.array(value).tolist() for value in made] == [[3.0, 3.0], [-1.0, -1.0] if start > 1.0 else [3.0, 3.0]]


def test_a_number_chooses_what_is_read_and_what_is_written() -> None:
    with fresh():
        mask, parts = _number(1, "int32"), [_number(value, "float32") for value in (3, 4)]
        given = [_number(0, "float32") for _ in range(2)]
        assert layers.control_flow.select_output(parts[0], given, mask) is given
        chosen = layers.control_flow.select_input(parts, mask)
        assert [np.array(value).item() for value in _fetched(chosen, *given)] == [4.0, 0.0, 3.0]
        with pytest.raises(TypeError, match="select_input: mask must be of int32"):
            layers.control_flow.select_input(parts, _number(1))


def test_nested_sequences_are_put_into_the_order_of_a_rank_table() -> None:
    with fresh():
        x, like = (fluid.data(name, [None, 1], "float32", lod_level=level) for name, level in (("x", 2), ("like", 1)))
        made = layers.reorder_lod_tensor_by_rank(x, layers.lod_rank_table(like))
        rows = np.arange(6, dtype="float32").reshape(6, 1)
        fed = fluid.create_lod_tensor(rows, [[1, 2], [1, 2, 3]], None)
        (value,) = _fetched(made, feed={"x": fed, "like": fluid.create_lod_tensor(rows, [[2, 4]], None)})
        assert np.array(value).ravel().tolist() == [1, 2, 3, 4, 5, 0]
        assert value.recursive_sequence_lengths() == [[2, 1], [2, 3, 1]]
        with pytest.raises(TypeError, match="like is no rank table"):
            layers.reorder_lod_tensor_by_rank(x, like)


def test_programs_read_the_arrays_that_scripts_fill() -> None:
    with fresh():
        array = layers.create_array("float32")
        array.persistable = True
        held = fluid.global_scope().var(array.name).get_lod_tensor_array()
        for value in (1.0, 2.0):
            tensor = fluid.LoDTensor()
            tensor.set(np.array([value], "float32"))
            held.append(tensor)
        (last,) = _fetched(layers.array_read(array, _number(1)))
        assert (np.array(last).item(), np.array(held[0]).item(), len(held)) == (2.0, 1.0, 2)


def test_ops_carry_the_device_that_a_script_asks_for() -> None:
    with fresh():
        x = fluid.data("x", [4, 2])
        with fluid.device_guard("gpu"):
            hidden = layers.fc(x, 3)
            with fluid.device_guard("cpu"):
                loss = layers.mean(hidden)
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
        main, start = fluid.default_main_program(), fluid.default_startup_program()
        devices = {op.type: op.attr("op_device") for op in main.global_block().ops}
        assert [devices[name] for name in ("mul", "mean", "mul_grad", "mean_grad", "momentum")] == [
            *("gpu", "cpu", "gpu", "cpu", "gpu")
        ]
        assert {op.attr("op_device") for op in start.global_block().ops if "velocity" in op.output_arg_names[0]} == {
            "gpu"
        }
        with pytest.raises(ValueError, match="'cpu' or 'gpu'"), fluid.device_guard("tpu"):
            pass


def test_a_loop_gives_its_variables_the_dims_and_arrays_that_its_body_gives() -> None:
    with fresh():
        array = layers.array_write(_number(1, "float32"), _number(0))
        flat = _number(0, dims=[1, 2])

        def body(number: Any, held: Any, steps: Any) -> Any:
            return [layers.increment(number), layers.reshape(held, [2, -1]) + 1, steps]

        number = _number(0)
        layers.while_loop(lambda n, *_: layers.less_than(n, _number(3)), body, [number, flat, array])
        assert flat.shape == (2, 1)
        block = fluid.default_main_program().block(1)
        assert array.name in [op.output("Out")[0] for op in block.ops if op.type == "assign"]
        assert np.array(_fetched(flat)[0]).tolist() == [[3], [3]]


def test_steps_of_sequences_are_declared_as_in_fluid() -> None:
    with fresh():
        x = fluid.data("x", [None, 2], lod_level=1)
        x.stop_gradient = False
        table = layers.lod_rank_table(x)
        assert layers.max_sequence_len(table).shape == (1,)
        joined = layers.array_to_lod_tensor(layers.lod_tensor_to_array(x, table), table)
        fluid.backward.append_backward(layers.mean(joined))
        assert fluid.default_main_program().global_block().var("x@GRAD").lod_level == 1
        network = layers.StaticRNN()
        with network.step():
            part = network.step_input(fluid.data("steps", [5, 4, 2]))
            memory = network.memory(shape=[3, 2], batch_ref=fluid.data("like", [4, 4, 2]))
            network.update_memory(memory, part)
            network.step_output(memory)
        (start,) = [op for op in fluid.default_main_program().global_block().ops if op.type.endswith("size_like")]
        assert (start.attr("shape"), memory.shape) == ([3, 2], (4, 2))


def test_what_has_no_name_is_generated() -> None:
    with fresh():
        assert layers.create_global_var([1], 1.0, "float32").name == "_generated_var_0"
        assert layers.mean(fluid.default_main_program().current_block().create_var(dtype="float32")).shape == (1,)


def test_gradients_begin_with_ops_that_say_nothing_more_than_fluids() -> None:
    with fresh():
        x = fluid.data("x", [2, 2])
        x.stop_gradient = False
        fluid.gradients(layers.square(x), x)
        ops = {op.type: op.attr_names for op in fluid.default_main_program().global_block().ops}
        assert {"shape", "value", "dtype"} <= set(ops["fill_constant"])
        assert not {"str_value", "force_cpu"} & set(ops["fill_constant"])


def test_every_device_takes_its_own_branch() -> None:
    """Figures of Fluid 1.8.5: one device takes each branch, the table is sparse, the rate decays, gradients are cut."""
    with fresh():
        x, ids, y = fluid.data("x", [None, 2]), fluid.data("ids", [None, 1], "int64"), fluid.data("y", [None, 1])
        start = fluid.initializer.NumpyArrayInitializer(np.arange(8, dtype="float32").reshape(4, 2) / 8)
        row = fluid.embedding(layers.reshape(ids, [-1]), [4, 2], True, param_attr=fluid.ParamAttr("t", start))
        normed = layers.batch_norm(layers.concat([x, row], 1), moving_mean_name="mean", moving_variance_name="spread")
        weights = [fluid.ParamAttr(name, fluid.initializer.Constant(value)) for name, value in (("a", 0.1), ("b", 0.3))]
        branches = [lambda attr=attr: layers.fc(normed, 1, param_attr=attr, bias_attr=False) for attr in weights]
        loss = layers.mean(layers.square_error_cost(layers.cond(layers.reduce_mean(x) > 0.0, *branches), y))
        rate = layers.exponential_decay(0.1, 2, 0.5)
        fluid.optimizer.SGD(rate, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5)).minimize(loss)
        program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
            loss.name, places=fluid.cpu_places(2)
        )
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(fluid.default_startup_program())
        rows = np.float32([[1, 2], [3, 1], [-1, -3], [-2, 1]])
        feed = {"x": rows, "ids": np.int64([[0], [2], [2], [3]]), "y": np.float32([[1], [0], [2], [1]])}
        losses = [executor.run(program, feed, [loss])[0].tolist() for _ in range(2)]
        held = {name: np.array(fluid.global_scope().find_var(name).get_tensor()) for name in ("a", "b", "t", "mean")}
        got = [*np.ravel(losses), *(held[name].sum() for name in ("a", "b", "t", "mean"))]
        wanted = [0.7399797, 3.4595909, 0.6704592, 3.2533293, 0.35850787, 1.1355622, 3.5, 0.78375167]
        assert np.allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("feeds", [1, 2])
def test_dims_of_one_device_hold_for_each(feeds: int) -> None:
    with fresh():
        x = layers.data("x", [3], append_batch_size=False)
        weight = layers.create_parameter([3], "float32", "w", default_initializer=fluid.initializer.Constant(2.0))
        loss = layers.reduce_sum(layers.reshape(x, [3]) * weight)
        fluid.optimizer.SGD(layers.piecewise_decay([9], [1.0, 0.5])).minimize(loss)
        program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
            loss.name, places=fluid.cpu_places(2)
        )
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(fluid.default_startup_program())
        rows = np.float32([[1, 2, 3], [4, 5, 6]])
        feed: Any = {"x": rows} if feeds == 1 else [{"x": row} for row in rows]
        made, gradients, after = executor.run(program, feed, [loss, "w@GRAD", "w"], return_merged=False)
        assert [value.item() for value in made] == [12, 30]
        assert [value.tolist() for value in after] == [[-0.5, -1.5, -2.5]] * 2
        assert [value.tolist() for value in gradients] == [[2.5, 3.5, 4.5]] * 2


def test_steps_have_gradients_of_outputs_that_are_marked_outside() -> None:
    """Ops of the gradient block as Fluid 1.8.5 makes them."""
    with fresh():
        x, start = fluid.data("x", [5, 4, 3]), fluid.data("h", [4, 3])
        x.stop_gradient = start.stop_gradient = False
        network = layers.StaticRNN()
        with network.step():
            word, before = network.step_input(x), network.memory(init=start)
            after = layers.elementwise_add(word, before)
            network.update_memory(before, after)
            network.step_output(after)
            network.step_output(layers.scale(word, 2.0))
        made, other = network()
        other.stop_gradient = True
        fluid.backward.append_backward(layers.mean(made))
        inner = [op.type for op in fluid.default_main_program().blocks[2].ops]
        helper = "rnn_memory_helper_grad"
        assert inner == [helper, helper, "scale", helper, "sum", "elementwise_add_grad", "sum"]
