"""Executors take what Fluid's take: fetched updates, feeds of numbers and of several devices, readers in programs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.ir.diagnostics import DiagnosticError
from tests.fluid.running import fresh

ROWS = np.arange(12, dtype="float32").reshape(4, 3)
LABELS = np.ones((4, 1), "int64")


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def two_losses() -> tuple[Any, Any]:
    """Two losses over one parameter `w`, whose rate has a factor, so that an op computes it."""
    x = fluid.layers.data("x", [3])
    label = fluid.layers.data("label", [1], dtype="int64")
    attr = fluid.ParamAttr("w", fluid.initializer.Constant(1.0), learning_rate=0.5)
    y = fluid.layers.fc(x, 2, act="softmax", param_attr=attr)
    losses = [fluid.layers.mean(fluid.layers.cross_entropy(y, label)) for _ in range(2)]
    for loss in losses:
        loss.persistable = True
    return losses[0], losses[1]


def started() -> Any:
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    return executor


def weight() -> Any:
    return np.array(fluid.global_scope().find_var("w").get_tensor())  # type: ignore[union-attr]


def test_with_use_prune_only_what_is_fetched_and_what_updates_is_run() -> None:
    first, second = two_losses()
    executor, feed = started(), {"x": ROWS, "label": LABELS}
    executor.run(feed=feed, fetch_list=[first], use_prune=True)
    assert fluid.global_scope().find_var(second.name) is None
    before = weight()
    fluid.optimizer.SGD(0.5).minimize(first)
    executor = started()
    executor.run(feed=feed, fetch_list=[first], use_prune=True)
    assert fluid.global_scope().find_var(second.name) is None
    assert not np.array_equal(before, weight())


def test_what_is_fetched_is_printed_as_an_array() -> None:
    one, _ = two_losses()
    result = started().run(feed={"x": ROWS, "label": LABELS}, fetch_list=[one])
    assert str(result) == f"[{np.asarray(result[0])!r}]" == "[array([0.6931472], dtype=float32)]"


def test_fetched_updates_are_all_that_is_updated() -> None:
    first, second = two_losses()
    update, _ = fluid.optimizer.SGD(0.5).minimize(first)
    alone = fluid.default_main_program().clone()
    whole = fluid.optimizer.SGD(0.5).minimize(second)
    feed = {"x": ROWS, "label": LABELS}
    weights: list[Any] = []
    for program, fetched in [(None, [first, update]), (alone, [first]), (None, [second, whole])]:
        with fluid.scope_guard(fluid.Scope()):
            assert len(started().run(program, feed, fetched)) == 1
            weights.append(weight())
    assert np.array_equal(weights[0], weights[1])
    with pytest.raises(TypeError, match="of type mul was given to fetch"):
        started().run(feed=feed, fetch_list=[fluid.default_main_program().global_block().ops[0]])


def test_a_program_is_pruned_to_variables_and_ops_of_what_is_fed() -> None:
    first, _ = two_losses()
    program = fluid.default_main_program()
    hidden = next(op for op in program.global_block().ops if op.type == "softmax").output("Out")[0]
    left = program._prune_with_input([hidden, "label"], [first])
    assert [op.type for op in left.global_block().ops] == ["cross_entropy2", "mean"]
    assert left.global_block().var("label").is_data
    for feeds, targets in [([2], [first]), ([], [None]), ([], ["nothing"])]:
        with pytest.raises(ValueError, match=r"given by name|can only be|no op gives"):
            program._prune_with_input(feeds, targets)


def test_numbers_are_fed_and_what_no_op_reads_is_left_out() -> None:
    rate = fluid.data("rate", [1])
    doubled = fluid.layers.scale(rate, 2.0)
    fluid.data("other", [None, 7])
    executor = fluid.Executor()
    assert executor.run(feed={"rate": 3, "other": np.ones((2, 7), "float32")}, fetch_list=[doubled])[0].tolist() == [6]
    with pytest.warns(UserWarning, match="ratte is fed, and is no variable of the program; did you mean rate"):
        executor.run(feed={"rate": 0.5, "ratte": 1}, fetch_list=doubled)
    with pytest.raises(ValueError, match=r"shape = \(1,\), but received fed shape \[2\]"):
        executor.run(feed={"rate": np.ones(2, "float32")})
    with pytest.raises(ValueError, match="must be 'float32', but received 'float64'"):
        executor.run(feed={"rate": np.ones(1)})
    with pytest.warns(UserWarning, match="has no ops"):
        executor.run(fluid.Program())


def test_feeds_of_several_devices_are_one_batch() -> None:
    x = fluid.data("x", [2, 3])
    total = fluid.layers.reduce_sum(x)
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=[fluid.CPUPlace()] * 2)
    assert len(program._places) == 2
    got = fluid.Executor().run(program, [{"x": ROWS[:2]}, {"x": ROWS[2:]}], [total, x])
    assert np.array_equal(got[0], [ROWS[:2].sum(), ROWS[2:].sum()])
    assert np.array_equal(got[1], ROWS)
    assert fluid.Executor().run(program, [{"x": ROWS[:2]}], [total])[0].item() == ROWS[:2].sum()
    (alone,) = fluid.Executor().run(program, [{"x": ROWS[:2]}], [x], return_merged=False)
    assert [value.shape for value in alone] == [(2, 3)]
    with pytest.raises(TypeError, match=r"a list of one for each device, not of array\("):
        fluid.Executor().run(program, [ROWS])
    with pytest.raises(ValueError, match="3 feeds for 2 devices"):
        fluid.Executor().run(program, [{"x": ROWS[:2]}] * 3)
    with pytest.raises(ValueError, match="compiled for another scope"):
        fluid.Executor().run(program, {"x": ROWS}, scope=fluid.Scope())


@pytest.mark.parametrize("together", [True, False])
def test_every_device_gives_its_own_value_of_what_is_fetched(together: bool) -> None:
    """As in Fluid: five rows are three and two; what no rows make is there once for each device."""
    x = fluid.data("x", [None, 3])
    hidden = fluid.layers.fc(x, 2, param_attr=fluid.ParamAttr("w", fluid.initializer.Constant(0.5)))
    loss = fluid.layers.mean(fluid.layers.square(hidden))
    array = fluid.layers.array_write(hidden, fluid.layers.zeros([1], "int64"))
    fluid.optimizer.SGD(0.1).minimize(loss)
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=loss.name, places=fluid.cpu_places(2)
    )
    rows = np.arange(15, dtype="float32").reshape(5, 3)
    names = [loss, hidden, x, hidden.name + "@GRAD", "w", array]
    got = started().run(program, {"x": rows}, names, return_merged=together)
    shapes = [(1,), (3, 2), (3, 3), (3, 2), (3, 2)], [(1,), (2, 2), (2, 3), (2, 2), (3, 2)]
    if together:
        assert [value.shape for value in got[:-1]] == [(2,), (5, 2), (5, 3), (5, 2), (6, 2)]
        assert got[0].tolist() == [49.5, 302.625]
        assert np.array_equal(got[-1][0], got[1])
    else:
        assert [[value.shape for value in values] for values in zip(*got[:-1], strict=True)] == [*map(list, shapes)]
        assert [[item.shape for item in items] for items in got[-1]] == [[(3, 2)], [(2, 2)]]


def test_rows_beside_another_dim_are_those_of_a_device() -> None:
    x, y = fluid.data("x", [None, 2, 3]), fluid.data("y", [None, 1])
    added = fluid.layers.elementwise_add(x, y)
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=[fluid.CPUPlace()] * 2)
    feed = [{"x": np.zeros((1, 2, 3), "float32"), "y": np.full((1, 1), n, "float32")} for n in (1, 2)]
    (got,) = fluid.Executor().run(program, feed, [added])
    np.testing.assert_array_equal(got, np.repeat([1.0, 2.0], 6).reshape(2, 2, 3))


def test_a_program_that_trains_is_fed_for_every_device() -> None:
    loss, _ = two_losses()
    fluid.optimizer.SGD(0.5).minimize(loss)
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=[fluid.CPUPlace()] * 2)
    executor = started()
    with pytest.raises(DiagnosticError, match="x is fed for 1 of 2 devices"):
        executor.run(program, [{"x": ROWS, "label": LABELS}])
    with pytest.raises(fluid.core_avx.EnforceNotMet, match="x is fed for 1 of 2 devices"):
        executor.run(program, {"x": ROWS[:1], "label": LABELS[:1]})
    rate = fluid.default_main_program().global_block().var("learning_rate_0")
    executor.run(program, {"x": ROWS, "label": LABELS, rate: np.full(1, 0.25, "float32")})
    assert fluid.executor._fetch_var("learning_rate_0") == 0.25


def test_sequences_are_fed_to_a_variable_of_fluid_data() -> None:
    x = fluid.data("x", [-1, 3])
    tensor = fluid.LoDTensor()
    tensor.set(ROWS, fluid.CPUPlace())
    tensor.set_recursive_sequence_lengths([[1, 3]])
    (got,) = started().run(feed={"x": tensor}, fetch_list=[fluid.layers.scale(x, 2.0)], return_numpy=False)
    assert np.array_equal(np.array(got), 2 * ROWS)
    assert got.recursive_sequence_lengths() == [[1, 3]]


def test_a_parallel_executor_has_as_many_devices_as_cpu_num(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", "2")
    loss, _ = two_losses()
    tested = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(0.5).minimize(loss)
    started()
    training = fluid.ParallelExecutor(False, loss.name)
    testing = fluid.ParallelExecutor(False, main_program=tested, share_vars_from=training)
    assert training._need_create_local_exe_scopes()
    feed = {"x": ROWS, "label": LABELS}
    (got,) = training.run([loss.name], feed)
    assert got.shape == (2,)
    assert testing.run([loss.name], feed)[0].mean() < got.mean()
    assert (training.device_count, training._need_create_local_exe_scopes()) == (2, False)
    training.drop_local_exe_scopes()
    assert training._need_create_local_exe_scopes()
    with pytest.warns(UserWarning, match="trainer 1 of 3 trains alone"):
        fluid.ParallelExecutor(False, main_program=tested, num_trainers=3, trainer_id=1)


def test_embeddings_and_one_hot_rows_are_those_of_ids() -> None:
    with pytest.raises(TypeError):
        fluid.embedding(input=np.zeros((4, 6), "int64"), size=(10, 64))
    with pytest.raises(TypeError):
        fluid.embedding(input=fluid.data("f", [4, 6]), size=(10, 64))
    ids = fluid.data("ids", [4, 6], "int64")
    with pytest.raises(TypeError):
        fluid.embedding(input=ids, size=(10, 64), dtype="int64")
    assert fluid.embedding(ids, (10, 64)).shape == (4, 6, 64)
    assert fluid.one_hot(ids, 5).shape == (4, 6, 5)


def test_dry_runs_compute_nothing() -> None:
    loss, _ = two_losses()
    settings = fluid.ExecutionStrategy()
    setattr(settings, "_dry_run", True)  # noqa: B010
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=loss.name, exec_strategy=settings
    )
    assert started().run(program) == []


def test_programs_built_alike_begin_alike_under_one_seed() -> None:
    """Counters of names go on from program to program; the numbers that are drawn must not depend on them."""

    def losses() -> list[float]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
            hidden = fluid.layers.fc(fluid.layers.fc(fluid.data("x", [None, 3]), 3), 3)
            loss = fluid.layers.mean(fluid.layers.dropout(hidden, 0.5))
            fluid.optimizer.Adam(0.1).minimize(loss)
            executor = fluid.Executor(fluid.CPUPlace())
            executor.run(startup)
            first, _, second, _ = (fluid.executor._fetch_var(var.name) for var in main.all_parameters())
            assert not np.array_equal(first, second)
            return [float(executor.run(main, {"x": ROWS}, [loss])[0]) for _ in range(3)]

    assert losses() == losses()


def read(executor: Any, fetched: Any, program: Any = None) -> list[Any]:
    """What runs give until the reader has no more."""
    given: list[Any] = []
    while True:
        try:
            given.append(executor.run(program, fetch_list=[fetched])[0])
        except fluid.core.EOFException:
            return given


def test_a_py_reader_is_read_by_ops_as_in_fluid() -> None:
    reader = fluid.layers.py_reader(4, [[-1, 3], [-1, 1]], ["float32", "int64"], lod_levels=[0, 0])
    x, _ = fluid.layers.read_file(reader)
    kinds = [op.type for op in fluid.default_main_program().global_block().ops]
    assert kinds == ["create_double_buffer_reader", "read"]
    made = fluid.default_startup_program().global_block().ops[0]
    assert (made.type, made.attr("shape_concat"), made.attr("ranks")) == ("create_py_reader", [-1, 3, -1, 1], [2, 2])
    reader.decorate_tensor_provider(lambda: iter([(ROWS, LABELS)] * 3))
    executor = started()
    for _ in range(2):
        reader.start()
        assert len(read(executor, x)) == 3
        reader.reset()


def test_batches_are_pushed_to_the_queue_of_a_py_reader() -> None:
    reader = fluid.layers.py_reader(2, [[-1, 3]], ["float32"])
    x = fluid.layers.read_file(reader)
    queue = reader.queue

    def push() -> None:
        for number in range(5):
            batch = fluid.LoDTensorArray()
            batch.append(fluid.executor._as_lodtensor(ROWS + number, fluid.CPUPlace()))
            queue.push(batch)
        queue.close()

    pushing = threading.Thread(target=push)
    pushing.start()
    assert [value[0, 0] for value in read(started(), x)] == [0, 1, 2, 3, 4]
    pushing.join()


def test_iterable_loaders_give_a_feed_for_each_place() -> None:
    x = fluid.data("x", [None, 3])
    loader = fluid.io.DataLoader.from_generator([x], 4)
    places = fluid.cpu_places(2)
    loader.set_batch_generator(lambda: iter([(ROWS + number,) for number in range(5)]), places)
    pairs = list(loader())
    assert [[feed["x"].data[0, 0] for feed in pair] for pair in pairs] == [[0, 1], [2, 3]]
    assert pairs[0][0]["x"]._place()._equals(places[0])
    with pytest.raises(AssertionError, match="needs the places"):
        fluid.io.PyReader([x], 4).decorate_batch_generator(iter)

    def fails() -> Iterator[Any]:
        raise KeyError("gone")

    loader.set_batch_generator(fails, places)
    with pytest.raises(DiagnosticError, match="the reader of x has failed: KeyError"):
        next(iter(loader))


def test_loaders_of_a_program_are_read_by_its_ops() -> None:
    x = fluid.data("x", [None, 3])
    loader = fluid.io.DataLoader.from_generator([x], 4, iterable=False)
    loader.set_batch_generator(lambda: iter([(ROWS,)] * 3))
    assert [op.type for op in fluid.default_main_program().global_block().ops] == [
        "create_py_reader",
        "create_double_buffer_reader",
        "read",
    ]
    executor = started()
    loader.start()
    assert len(read(executor, x)) == 3
    loader.thread.join()
    assert not loader.thread.is_alive()


def test_readers_whose_order_is_free_are_created_at_the_start() -> None:
    x = fluid.data("x", [None, 3])
    fluid.reader.keep_data_loader_order(False)
    try:
        assert fluid.reader.keep_data_loader_order() is False
        fluid.io.DataLoader.from_generator([x], 4, iterable=False)
    finally:
        fluid.reader.keep_data_loader_order(True)
    programs = fluid.default_startup_program(), fluid.default_main_program()
    kinds = [[op.type for op in program.global_block().ops] for program in programs]
    assert kinds == [["create_py_reader"], ["create_double_buffer_reader", "read"]]


def test_what_is_fed_beside_a_loader_is_fed_too() -> None:
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 3])
    loader = fluid.io.DataLoader.from_generator([x], 4, iterable=False)
    loader.set_batch_generator(lambda: iter([(ROWS,)] * 2))
    both = fluid.layers.elementwise_add(x, y)
    loader.start()
    for number in range(2):
        (got,) = started().run(feed={"y": ROWS + number}, fetch_list=[both])
        assert np.array_equal(got, 2 * ROWS + number)
    with pytest.raises(fluid.core.EOFException):
        started().run(feed={"y": ROWS}, fetch_list=[both])


def test_the_last_devices_have_no_batch_without_drop_last() -> None:
    x = fluid.data("x", [None, 3])
    total = fluid.layers.reduce_sum(x)
    places = fluid.cpu_places(2)
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=places)
    for drop_last in (True, False):
        loader = fluid.io.DataLoader.from_generator([x], 4, iterable=False, drop_last=drop_last)
        loader.set_batch_generator(lambda: iter([(ROWS,)] * 3))
        loader.start()
        sums = [value.tolist() for value in read(fluid.Executor(), total, program)]
        assert sums == [[ROWS.sum()] * 2, *([] if drop_last else [[ROWS.sum()]])]
        fluid.default_main_program().readers.clear()


class Numbers(fluid.reader.Dataset):  # type: ignore[name-defined]
    def __getitem__(self, idx: int) -> Any:
        return np.full(3, idx, "float32"), np.array([idx])

    def __len__(self) -> int:
        return 10


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_with_numbers_are_put_together_to_batches(workers: int) -> None:
    feeds = [fluid.data("x", [None, 3]), fluid.data("y", [None, 1], "int64")]
    options = {"batch_size": 4, "drop_last": True, "num_workers": workers}
    loader = fluid.io.DataLoader(Numbers(), feeds, fluid.cpu_places(1), **options)
    assert len(loader) == 2
    assert [feed["y"].data.ravel().tolist() for (feed,) in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    sampler = fluid.io.BatchSampler(Numbers(), batch_size=2)
    with pytest.raises(AssertionError, match="those of the batch_sampler"):
        fluid.io.DataLoader(Numbers(), feeds, fluid.CPUPlace(), batch_sampler=sampler, shuffle=True)


def test_counters_of_auc_without_steps_are_declared_as_the_op_leaves_them() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x, label = fluid.data("x", [None, 2]), fluid.data("label", [None, 1], "int64")
        fluid.layers.auc(x, label, num_thresholds=15, slide_steps=0)
    assert {var.shape for var in main.list_vars() if var.persistable} == {(1, 16)}
    assert sorted(var.shape for var in startup.list_vars()) == [(1, 16), (1, 16), (17,), (17,)]  # as in Fluid


def test_counters_are_read_with_other_dims_than_declared_and_parameters_are_not(tmp_path: Path):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x, label = fluid.data("x", [None, 2]), fluid.data("label", [None, 1], "int64")
        fluid.layers.auc(fluid.layers.fc(x, 2, act="softmax", param_attr="w"), label, num_thresholds=15, slide_steps=0)
    executor, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    feed = {"x": np.ones((3, 2), "float32"), "label": np.int64([[0], [1], [1]])}
    with fluid.scope_guard(scope):
        executor.run(startup)
        executor.run(main, feed=feed, fetch_list=[])
        fluid.io.save_persistables(executor, str(tmp_path), main)
    counted = {var.name: np.array(scope.find_var(var.name).get_tensor()) for var in main.list_vars() if var.persistable}
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        fluid.io.load_persistables(executor, str(tmp_path), main)
        read = {name: np.array(fluid.global_scope().find_var(name).get_tensor()) for name in counted}
    assert {name: value.tolist() for name, value in read.items()} == {n: v.tolist() for n, v in counted.items()}
    assert (1, 16) in {value.shape for value in read.values()}
    main.global_block().vars["w"].desc.set_shape([3, 2])
    with pytest.raises(DiagnosticError, match="w is float32"):
        fluid.io.load_persistables(executor, str(tmp_path), main)


@pytest.mark.parametrize("chosen", [None, "2"])
def test_products_use_one_thread_unless_the_environment_asks_for_more(chosen: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if chosen:
        environment["OMP_NUM_THREADS"] = chosen
    code = (
        "import pstranspile.fluid, numpy, threadpoolctl\n"
        "print(*{p['num_threads'] for p in threadpoolctl.threadpool_info()})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [str(min(int(chosen or 1), os.cpu_count() or 1))]


def test_a_feed_like_one_before_is_still_looked_at_where_it_differs() -> None:
    """Feeds of one form are checked once; another form, another fetch, a changed program are looked at again."""
    x = fluid.data("x", [None, 3])
    ids = fluid.data("ids", [None, 1], dtype="int64", lod_level=1)
    total = fluid.layers.reduce_sum(x)
    rows = fluid.layers.sequence_pool(fluid.layers.cast(ids, "float32"), "sum")
    executor = fluid.Executor(fluid.CPUPlace())

    def run(count: int, lengths: list[int], *fetched: Any, width: int = 3, **more: Any) -> list[Any]:
        sequences = fluid.create_lod_tensor(np.ones((sum(lengths), 1), "int64"), [lengths], fluid.CPUPlace())
        feed = {"x": np.ones((count, width), "float32"), "ids": sequences, **more}
        return executor.run(feed=feed, fetch_list=[*fetched])

    for count, lengths in ((2, [1, 2]), (2, [2, 2, 1]), (2, [3]), (4, [1])):
        made, sums = run(count, lengths, total, rows)
        assert float(made) == 3 * count
        assert sums.ravel().tolist() == lengths
    with pytest.raises(ValueError, match="fed shape"):
        run(4, [1], total, rows, width=2)
    assert [value.shape for value in run(4, [1], rows)] == [(1, 1)]
    for _ in range(2):
        with pytest.warns(UserWarning, match="z is fed"):
            run(4, [1], total, rows, z=np.ones(1, "float32"))
    twice = fluid.layers.scale(total, 2.0)
    assert float(run(4, [1], twice)[0]) == 24
    bad = fluid.LoDTensor(np.ones((2, 1), "int64"), [[0, 3]])
    with pytest.raises(DiagnosticError, match="offsets"):
        executor.run(feed={"x": np.ones((4, 3), "float32"), "ids": bad}, fetch_list=[twice])


def test_a_flag_stops_runs_at_what_is_not_finite(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    made = fluid.layers.log(fluid.data("x", [None, 3]))
    executor, feed = fluid.Executor(), {"x": np.zeros((1, 3), "float32")}
    assert np.isinf(executor.run(feed=feed, fetch_list=[made])[0]).all()
    fluid.set_flags({"FLAGS_check_nan_inf": True})
    try:
        with pytest.raises(DiagnosticError, match="is not finite: 3 of 3 numbers"):
            executor.run(feed=feed, fetch_list=[made])
        assert "log: find nan or inf" in capsys.readouterr().err
        for kind, skipped in (("OP", "log"), ("ROLE", "loss,forward"), ("VAR", f"mul:x,log:{made.name}")):
            with monkeypatch.context() as patched:
                patched.setenv(f"PADDLE_INF_NAN_SKIP_{kind}", skipped)
                executor.run(feed=feed, fetch_list=[made])
    finally:
        fluid.set_flags({"FLAGS_check_nan_inf": False})


def test_optimizers_in_branches_have_one_device() -> None:
    loss, _ = two_losses()
    chosen, rates = fluid.layers.fill_constant([1], "bool", True), [fluid.optimizer.SGD(rate) for rate in (0.5, 0.1)]
    fluid.layers.cond(chosen, *[lambda rate=rate: rate.minimize(loss) and None for rate in rates])
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=[fluid.CPUPlace()] * 2)
    with pytest.raises(NotImplementedError, match="minimize in a branch, on several devices"):
        started().run(program, {"x": ROWS, "label": LABELS})


def test_what_does_not_fit_is_a_finding_at_its_line() -> None:
    label = fluid.data("label", [1], "int64")
    with pytest.raises(fluid.core.EnforceNotMet, match=r"one_hot: X is i64\[1\]: its last dim must be 1") as found:
        fluid.layers.one_hot(label, 100)
    assert isinstance(found.value, ValueError)
    (diagnostic,) = found.value.diagnostics
    assert (diagnostic.code, diagnostic.location.file) == ("type-mismatch", __file__)


def test_devices_may_be_fed_rows_of_other_widths() -> None:
    x = fluid.data("x", [None, None])
    total = fluid.layers.reduce_sum(x)
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=[fluid.CPUPlace()] * 2)
    feeds = [{"x": np.ones((2, 3), "float32")}, {"x": np.ones((1, 4), "float32")}]
    assert started().run(program, feeds, [total])[0].tolist() == [6, 4]
