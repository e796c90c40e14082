"""Modules of Fluid that few scripts import, and what few ask of the core."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid import core, executor
from pstranspile.fluid.missing import NotHere
from tests.fluid.running import fresh, known_as_paddle


def test_their_names_are_those_of_fluid() -> None:
    with known_as_paddle():
        from paddle.fluid.annotations import deprecated  # type: ignore[import-not-found]
        from paddle.fluid.trainer_factory import TrainerFactory  # type: ignore[import-not-found]
        from paddle.incubate.hapi.distributed import DistributedBatchSampler  # type: ignore[import-not-found]
    assert fluid.annotations.deprecated is deprecated
    assert fluid.trainer_factory.TrainerFactory is TrainerFactory
    assert DistributedBatchSampler.__module__.endswith("paddle.io")


def test_functions_with_the_name_of_their_module_are_taken_from_it() -> None:
    with known_as_paddle():
        import paddle.batch  # type: ignore[import-not-found]
        import paddle.fluid.data  # type: ignore[import-not-found]
        from paddle.batch import batch  # type: ignore[import-not-found]
        from paddle.fluid.data import data  # type: ignore[import-not-found]

        assert data is paddle.fluid.data is fluid.data
        assert (
            list(batch(lambda: iter(range(3)), 2)()) == list(paddle.batch(lambda: iter(range(3)), 2)()) == [[0, 1], [2]]
        )
        with pytest.raises(ModuleNotFoundError):
            import paddle.fluid.Program  # type: ignore[import-not-found]


def test_descriptions_of_ops_and_variables_are_made_alone() -> None:
    from pstranspile.fluid.contrib.mixed_precision import find_op_index

    with fresh():
        fluid.layers.relu(fluid.data("x", [1]))
        block = fluid.default_main_program().global_block()
        assert find_op_index(block.desc, block.ops[0].desc) == 0
        assert find_op_index(block.desc, core.OpDesc()) == -1
        var = core.VarDesc("y")
        var.set_shape([2, 3])
        assert (var.name(), var.shape(), block.has_var("y")) == ("y", [2, 3], False)


def test_small_names_of_fluid_are_found() -> None:
    from pstranspile.fluid import contrib, framework
    from pstranspile.fluid.transpiler import distribute_transpiler, geo_sgd_transpiler

    assert fluid.dataloader.dataset.Dataset is fluid.io.Dataset
    assert contrib.decorate is contrib.mixed_precision.decorate
    assert distribute_transpiler.UnionFind(["a"]).find("a") == 0
    assert geo_sgd_transpiler.RPC_OP_ROLE_ATTR_VALUE == 4
    assert [framework.dtype_is_floating(name) for name in ("float16", "int64")] == [True, False]
    assert not executor.dtype_is_compatible_with("float32", "int64")


def test_a_deprecated_function_says_what_to_call(capsys: pytest.CaptureFixture[str]) -> None:
    @fluid.annotations.deprecated("1.5", "g", extra_message="soon gone")
    def f(value: int) -> int:
        return value + 1

    assert f(1) == 2
    assert capsys.readouterr().err == "API f is deprecated since 1.5. Please use g instead.\nsoon gone\n"


def test_a_training_is_described_as_in_fluid() -> None:
    with fresh():
        described = fluid.trainer_factory.TrainerFactory()._create_trainer()
        described._set_program(fluid.default_main_program())
        described._set_infer(True)
        described._gen_trainer_desc()
        described._set_thread(2)
        described._set_fetch_var_and_info([fluid.data("x", [1])], ["x is"], 3)
        described._set_dump_fields(["a", "b"])
        described._set_copy_table_config({"src_var_list": ["a"], "dest_var_list": "b", "dependency_map": {1: 2}})
        described._set_adjust_ins_weight({"need_adjust": True})
    text = str(described).split()
    assert text[:6] == ["class_name:", '"MultiTrainer"', "device_worker_name:", '"HogwildWorker"', "thread_num:", "2"]
    assert " ".join(text).endswith('ins_weight_slot: "" } hogwild_param { skip_ops: "feed" }')
    assert "table_denpendency_map { key: 1 values: 2 }" in " ".join(text)
    assert described.proto_desc.mpi_rank == -1
    assert type(described.proto_desc).FromString(described._desc()) == described.proto_desc
    with pytest.raises(ValueError, match=r"1 vs 0"):
        described._set_copy_table_config({"src_dense_tables": [1]})
    with pytest.raises(NotHere, match="DownpourSGD"):
        fluid.trainer_factory.TrainerFactory()._create_trainer(
            {"trainer": "MultiTrainer", "device_worker": "DownpourSGD"}
        )


def test_samples_are_described_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "data.proto"
    path.write_text('name: "MultiSlotDataFeed" multi_slot_desc { slots { name: "words" type: "uint64" } }')
    feed = fluid.DataFeedDesc(str(path))
    feed.set_batch_size(128)
    feed.set_dense_slots(["words"])
    feed.set_use_slots(["words"])
    assert feed.desc().split()[:4] == ["name:", '"MultiSlotDataFeed"', "batch_size:", "128"]
    assert feed.desc().count("true") == 2
    path.write_text('name: "Other"')
    with pytest.raises(ValueError, match="Other"):
        fluid.DataFeedDesc(str(path)).set_use_slots(["words"])


def test_a_data_set_says_what_it_is_and_has_batches_of_32() -> None:
    with fresh():
        dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
        dataset.set_use_var([fluid.data("ids", [-1, 1], "int64", lod_level=1), fluid.data("y", [-1, 3])])
        lines = [" ".join(line.split()) for line in dataset.desc().splitlines()]
        assert lines[:2] == ['name: "MultiSlotInMemoryDataFeed"', "multi_slot_desc {"]
        assert lines[10:14] == ["is_dense: true", "is_used: true", "shape: -1", "shape: 3"]
        assert (dataset.proto_desc.batch_size, dataset.batch_size) == (32, 32)
        dataset.set_batch_size(2)
        assert "batch_size: 2" in dataset.desc()


def test_the_distributed_table_of_a_program_is_found() -> None:
    tables = fluid.distribute_lookup_table
    with fresh():
        ids = fluid.layers.data("ids", [1], dtype="int64")
        program = fluid.default_main_program()
        assert tables.find_distributed_lookup_table(program) is None
        rows = fluid.layers.embedding(ids, [10, 2], is_distributed=True, param_attr="table")
        assert tables.find_distributed_lookup_table(program) == "table"
        assert [var.name for var in tables.find_distributed_lookup_table_inputs(program, "table")] == ["ids"]
        assert [var.name for var in tables.find_distributed_lookup_table_outputs(program, "table")] == [rows.name]
        fluid.layers.embedding(ids, [10, 2], is_distributed=True, param_attr="other")
        with pytest.raises(RuntimeError, match="table and other"):
            tables.find_distributed_lookup_table(program)


def test_the_executor_of_the_core_takes_what_it_reads_from_the_scope() -> None:
    with fresh():
        x = fluid.data("x", [2, 1])
        tripled = fluid.layers.scale(fluid.layers.fc(x, 1), 3.0)
        fluid.Executor().run(fluid.default_startup_program())
        scope = fluid.global_scope()
        scope.var("x").get_tensor().set(np.ones((2, 1), "float32"), fluid.CPUPlace())
        core.Executor(fluid.CPUPlace()).run(fluid.default_main_program().desc, scope, 0, False, True, [tripled.name])
        weight = np.array(scope.find_var("fc_0.w_0").get_tensor())
        np.testing.assert_allclose(np.array(scope.find_var(tripled.name).get_tensor()), 3 * weight.repeat(2, 0))
        held = [name for name in ("x", "fc_0.tmp_0") if scope.find_var(name).get_tensor()._is_initialized()]
        assert held == []


def test_blocks_are_printed_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with fresh():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [2, 3]), 2))
        fluid.optimizer.SGD(0.1).minimize(loss)
        program = fluid.default_main_program()
        text = fluid.debugger.pprint_program_codes(program)
        assert text.startswith("// block-0  parent--1\n// variables\nx: ")
        assert text.splitlines()[-1] == "{Out=['mean_0.tmp_0']} = mean(X=['fc_0.tmp_1'])"
        assert "mul_grad" in fluid.debugger.pprint_block_codes(program.global_block(), show_backward=True)
        fluid.debugger.draw_block_graphviz(program.global_block(), ["mean$"], str(tmp_path / "net.dot"))
    drawn = (tmp_path / "net.dot").read_text()
    assert drawn.count("orange") == 1
    assert 'label="mean" shape=box style=filled' in drawn


def test_ops_that_feed_and_fetch_are_looked_for() -> None:
    with fresh():
        block, x = fluid.default_main_program().global_block(), fluid.data("x", [1])
        assert not executor.has_feed_operators(block, ["x"], "feed")
        block.append_op(type="feed", inputs={"X": "feed"}, outputs={"Out": x}, attrs={"col": 0})
        block.append_op(type="fetch", inputs={"X": x}, outputs={"Out": "fetch"}, attrs={"col": 0})
        assert executor.has_feed_operators(block, {"x": None}, "feed")
        assert executor.has_fetch_operators(block, [x], "fetch")
        with pytest.raises(ValueError, match="feed_targets of y"):
            executor.has_feed_operators(block, ["y"], "feed")
        with pytest.raises(AssertionError, match="other"):
            executor.has_fetch_operators(block, [x], "other")
    assert executor.dimension_is_compatible_with([-1, 3], (None, 3))
    assert not executor.dimension_is_compatible_with([2], [3])


def test_queries_and_their_documents_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pstranspile.fluid.paddle.dataset import common, mq2007

    monkeypatch.setattr(common, "DATA_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="extract"):
        next(mq2007.train())
    path = tmp_path / "MQ2007/MQ2007/MQ2007/Fold1/train.txt"
    path.parent.mkdir(parents=True)
    scores = [(10, 0), (10, 2), (10, 1), (11, 0), (12, 1)]
    features = " ".join(f"{at}:0.5" for at in range(2, 47))
    lines = [f"{score} qid:{query} 1:0.{at} {features} # d{at}\n" for at, (query, score) in enumerate(scores)]
    path.write_text("".join(lines))
    pairs = [(label.tolist(), left[0], right[0]) for label, left, right in mq2007.train()]
    assert pairs == [([1], 0.1, 0.2), ([1], 0.1, 0.0), ([1], 0.2, 0.0)]
    assert [score for score, _ in mq2007.train(format="pointwise")] == [2, 1]
    assert [(labels.ravel().tolist(), rows.shape) for labels, rows in mq2007.train(format="listwise")] == [
        ([2, 1, 0], (3, 46)),
        ([1], (1, 46)),
    ]


def test_images_are_cut_mirrored_and_centred() -> None:
    from pstranspile.fluid.paddle.utils import image_util

    image = np.arange(48.0).reshape(3, 4, 4)
    np.testing.assert_array_equal(image_util.crop_img(image, 2)[0], [[5, 6], [9, 10]])
    np.testing.assert_array_equal(image_util.crop_img(image[0], 6, color=False)[0], np.zeros(6))
    assert image_util.preprocess_img(image, 5.0, 2, is_train=False).tolist()[:2] == [0, 1]
    ten = image_util.oversample([image.transpose(1, 2, 0)], (2, 2))
    assert [cut[0, 0, 0] for cut in ten] == [0, 2, 8, 10, 5, 1, 3, 9, 11, 6]
    shown = image_util.ImageTransformer(transpose=(2, 0, 1), channel_swap=(2, 1, 0), mean=np.array([1.0, 2.0, 3.0]))
    assert shown.transformer(image.transpose(1, 2, 0))[:, 0, 0].tolist() == [31, 14, -3]


def test_the_core_tells_what_ops_read_no_elements_of() -> None:
    slots = {"X": ["x"], "Y": ["y"], "Out@GRAD": ["g"]}
    assert core.infer_no_need_buffer_slots("elementwise_add_grad", slots, {}, {}) == {"X", "Y"}
    assert core.infer_no_need_buffer_slots("elementwise_mul_grad", slots, {}, {}) == set()
    with pytest.raises(ValueError, match="nothing_grad"):
        core.infer_no_need_buffer_slots("nothing_grad", slots, {}, {})
    with pytest.raises(core.EnforceNotMet, match="test exception"):
        getattr(core, "__unittest_throw_exception__")()  # noqa: B009


def test_blocks_ops_and_variables_are_printed_as_in_fluid(capsys: pytest.CaptureFixture[str]) -> None:
    from pstranspile.fluid.transpiler import details

    with fresh():
        fluid.layers.fc(fluid.data("x", [None, 3]), 2)
        block = fluid.default_main_program().global_block()
        details.block_to_code(block, 0, skip_op_callstack=True)
        assert details.find_op_by_output_arg(block, "fc_0.tmp_1") == 1
        assert details.find_op_by_input_arg(block, "x") == 0
    lines = capsys.readouterr().out.splitlines()
    # recorded from Fluid 1.8.5
    assert lines[0] == "{ // block 0"
    assert (
        lines[1] == "    persist trainable parameter fc_0.b_0 : fluid.VarType.LOD_TENSOR.shape(2,).astype(VarType.FP32)"
    )
    assert lines[-2] == (
        "    {Out=['fc_0.tmp_1']} = elementwise_add(inputs={X=['fc_0.tmp_0'], Y=['fc_0.b_0']}, axis = 1, op_device = , "
        "op_namescope = /, op_role = 0, op_role_var = [], use_mkldnn = False, x_data_format = , y_data_format = )"
    )
