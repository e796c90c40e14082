"""What public scripts take of Fluid beside its usual layers."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile import fluid
from pstranspile.fluid.evaluator import ChunkEvaluator, EditDistance, Evaluator
from pstranspile.fluid.layers.learning_rate_scheduler import _decay_step_counter  # pyright: ignore
from pstranspile.fluid.wrapped_decorator import signature_safe_contextmanager, wrap_decorator

L: Any = fluid.layers


def sequences(values: list[int], lengths: list[int]) -> Any:
    return fluid.create_lod_tensor(np.array(values, "int64").reshape(-1, 1), [lengths], fluid.CPUPlace())


@pytest.fixture
def main() -> Any:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()), fluid.scope_guard(fluid.core.Scope()):
        yield program


def test_layers_go_on_in_a_clone_with_variables_of_the_first_program(main: Any):
    x = fluid.data("x", [-1, 4])
    hidden = L.fc(x, 3)
    clone = main.clone()
    with fluid.program_guard(clone, fluid.default_startup_program()):
        out = L.reduce_sum(L.concat([L.reshape(hidden, [-1, 3, 1]), L.reshape(hidden, [-1, 3, 1])], 1))
    assert out.block.program is clone
    assert [op.type for op in main.global_block().ops] == ["mul", "elementwise_add"]
    assert [op.type for op in clone.global_block().ops[2:]] == ["reshape2", "reshape2", "concat", "reduce_sum"]


def test_a_variable_that_the_program_in_use_does_not_have_is_refused(main: Any):
    x = fluid.data("x", [-1, 4])
    with fluid.program_guard(fluid.Program()), pytest.raises(ValueError, match="%x is a variable of another program"):
        L.relu(x)
    assert main.global_block().ops == []


def test_edit_distance_is_kept_over_batches(main: Any):
    places = [L.data(name, [1], dtype="int64", lod_level=1) for name in ("found", "label")]
    evaluator = EditDistance(*places)
    exe = fluid.Executor(fluid.CPUPlace())
    evaluator.reset(exe)
    for found in ([0, 1, 2, 3, 4, 0], [0, 1, 2, 3, 4, 4]):
        feed = {"found": sequences(found, [3, 3]), "label": sequences([0, 1, 2, 2, 4], [3, 2])}
        exe.run(main, feed=feed, fetch_list=evaluator.metrics)
    distance, errors = evaluator.eval(exe)
    np.testing.assert_allclose([distance, errors], [[(2 / 2 + 2 / 2) / 4], [2 / 4]])  # by the label's length
    evaluator.reset(exe)
    exe.run(main, feed=feed, fetch_list=[])
    assert evaluator.eval(exe)[1] == [0.5]


def test_chunks_are_counted_over_batches(main: Any):
    places = [L.data(name, [1], dtype="int64", lod_level=1) for name in ("found", "label")]
    evaluator = ChunkEvaluator(*places, chunk_scheme="IOB", num_chunk_types=2)
    exe = fluid.Executor(fluid.CPUPlace())
    evaluator.reset(exe)
    assert [share.tolist() for share in evaluator.eval(exe)] == [[0.0], [0.0], [0.0]]
    for found in ([0, 1, 2, 3], [0, 1, 4, 3]):  # two chunks of two; the second batch misses the start of the last one
        exe.run(main, feed={"found": sequences(found, [4]), "label": sequences([0, 1, 2, 3], [4])})
    precision, recall, f1 = (float(share[0]) for share in evaluator.eval(exe))
    assert (precision, recall) == (0.75, 0.75)
    assert f1 == pytest.approx(0.75)


def test_evaluators_are_made_in_block_0(main: Any):
    main._create_block()
    with pytest.raises(ValueError, match="EditDistance is made in block 0"):
        EditDistance(None, None)
    main._rollback()
    with pytest.raises(NotImplementedError):
        Evaluator("mine").eval(None)


def test_decorators_keep_signatures():
    calls: list[str] = []

    def noted(function: Any) -> Any:
        def call(*args: Any) -> Any:
            calls.append(function.__name__)
            return function(*args)

        return call

    @wrap_decorator(noted)
    def twice(x: int) -> int:
        return 2 * x

    @signature_safe_contextmanager
    def around(x: int) -> Any:
        yield x + 1

    assert (twice(3), calls, list(signature(twice).parameters)) == (6, ["twice"], ["x"])
    with around(1) as value:
        assert value == 2


def test_schedules_of_scripts_have_the_step_that_others_go_by(main: Any):
    step = _decay_step_counter(1)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    assert [exe.run(main, fetch_list=[step])[0].tolist() for _ in range(2)] == [[1.0], [2.0]]
    assert main.global_block().ops[0].output("Out") == ["@LR_DECAY_COUNTER@"]


@pytest.mark.parametrize(
    ("numbers", "windows"),
    [
        ({}, 4 * 5),
        ({"filter_size": [2, 3], "stride": 2, "padding": [1, 0]}, 3 * 2),
        ({"padding": [0, 1, 2, 0]}, 6 * 6),
    ],
)
def test_windows_of_images_are_sequences_whatever_form_sizes_have(main: Any, numbers: dict[str, Any], windows: int):
    x = fluid.data("x", [-1, 1, 4, 5])
    rows = L.im2sequence(x, **numbers)
    op = main.global_block().ops[0]
    assert [len(op.attr(name)) for name in ("kernels", "strides", "paddings")] == [2, 2, 4]
    exe = fluid.Executor(fluid.CPUPlace())
    image = np.arange(40, dtype="float32").reshape(2, 1, 4, 5)
    found = exe.run(main, feed={"x": image}, fetch_list=[rows], return_numpy=False)[0]
    assert found.lod() == [[0, windows, 2 * windows]]


def test_windows_stop_where_images_do(main: Any):
    x, size = fluid.data("x", [-1, 1, 4, 4]), fluid.data("size", [-1, 2])
    rows = L.im2sequence(x, filter_size=2, stride=2, input_image_size=size, out_stride=2)
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {"x": np.zeros((2, 1, 4, 4), "float32"), "size": np.array([[8, 8], [4, 8]], "float32")}
    assert exe.run(main, feed=feed, fetch_list=[rows], return_numpy=False)[0].lod() == [[0, 4, 6]]


def test_a_unit_of_a_script_has_parameters_and_steps_of_its_own(main: Any):
    class WithContext(fluid.contrib.BasicGRUUnit):
        def _build_once(self, input: Any, pre_hidden: Any) -> None:
            super()._build_once(input, pre_hidden)
            self._candidate_weight = self.create_parameter([2, self._hiden_size])

        def forward(self, input: Any, pre_hidden: Any) -> Any:
            return self._activation(L.matmul(input, self._candidate_weight)) + pre_hidden

    x, hidden = fluid.data("x", [-1, 2]), fluid.data("h", [-1, 3])
    unit = WithContext("unit", 3)
    first, second = unit(x, hidden), unit(x, hidden)
    assert [op.type for op in first.block.ops] == 2 * ["matmul", "tanh", "elementwise_add"]
    assert len(main.all_parameters()) == 5
    assert (first.shape, second.shape) == ((-1, 3), (-1, 3))
    with pytest.raises(ValueError, match="the last dim of y must be known"):
        fluid.contrib.BasicGRUUnit("unit", 3)(fluid.data("y", [3, -1]), hidden)


def test_names_lie_where_scripts_look_for_them():
    from pstranspile.fluid.contrib import mixed_precision as decorator
    from pstranspile.fluid.proto import VarType

    assert decorator.decorate is fluid.contrib.mixed_precision.decorate
    assert "relu" in decorator.AutoMixedPrecisionLists(custom_black_list=["relu"]).black_list
    assert VarType.FP32 == fluid.core.VarDesc.VarType.FP32


def test_names_are_switched_with_a_pair_or_with_what_was_given():
    with fluid.unique_name.guard():
        assert fluid.unique_name.generate("fc") == "fc_0"
        generator, checker = before = fluid.unique_name.switch()
        assert fluid.unique_name.generate("fc") == "fc_0"
        fluid.unique_name.switch(generator, checker)
        assert fluid.unique_name.generate("fc") == "fc_1"
        fluid.unique_name.switch()
        fluid.unique_name.switch(before)
        assert fluid.unique_name.generate("fc") == "fc_2"


def test_a_set_of_variables_is_fetched(main: Any):
    x = fluid.data("x", [-1, 2])
    made = L.scale(x, 2.0)
    feed = {"x": np.ones((1, 2), "float32")}
    (value,) = fluid.Executor(fluid.CPUPlace()).run(main, feed=feed, fetch_list={made})
    assert value.tolist() == [[2.0, 2.0]]


def test_states_of_cells_have_a_row_for_each_of_whole_numbers(main: Any):
    states = L.GRUCell(hidden_size=3).get_initial_states(batch_ref=fluid.data("ids", [-1, 1], "int64"))
    assert states.shape == (-1, 3)


def test_a_model_is_saved_though_something_it_reads_is_not_to_be_fed(main: Any, tmp_path: Path):
    with fluid.initializer.init_on_cpu():
        x, y = fluid.data("x", [2]), fluid.data("y", [2])
        total = L.cond(fluid.data("z", [1], "bool"), lambda: x, lambda: y)
    executor = fluid.Executor()
    with pytest.warns(UserWarning, match="the targets depend on y, which is not to be fed; a run of this model will"):
        fluid.io.save_inference_model(str(tmp_path), ["x", "z"], [total], executor)
    loaded, feeds, targets = fluid.io.load_inference_model(str(tmp_path), executor)
    assert feeds == ["x", "z"]
    fed = {"x": np.zeros(2, "float32"), "y": np.ones(2, "float32"), "z": np.array([False])}
    assert executor.run(loaded, feed=fed, fetch_list=targets)[0].tolist() == [1.0, 1.0]


def test_a_clone_for_tests_counts_the_steps_of_learning_rates_until_there_are_gradients(main: Any):
    loss = L.mean(L.fc(fluid.data("x", [-1, 4]), 1))
    rate = L.exponential_decay(0.1, 10, 0.5)
    before = [op.type for op in main.clone(for_test=True).global_block().ops]
    fluid.optimizer.SGD(rate).minimize(loss)
    assert before == [op.type for op in main.global_block().ops][: len(before)]
    assert "increment" in before
    assert [op.type for op in main.clone(for_test=True).global_block().ops] == ["mul", "elementwise_add", "mean"]


def test_layers_are_where_fluid_1_5_had_them():
    assert L.nn.dynamic_gru is L.dynamic_gru
    assert L.nn.cross_entropy is L.cross_entropy
    assert L.nn.sequence_pool is L.sequence_pool
    with pytest.raises(AttributeError, match="has no attribute 'dynamic_grus'"):
        L.nn.dynamic_grus  # noqa: B018


def test_the_modes_of_fleet_have_a_module():
    from pstranspile.fluid.incubate.fleet.base import fleet_base, mode

    assert fleet_base.Mode is mode.Mode
    assert (mode.Mode.TRANSPILER, mode.Mode.PSLIB, mode.Mode.COLLECTIVE) == (1, 2, 3)
