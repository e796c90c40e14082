"""Data sets: what a generator writes is what a program is trained on."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
import pstranspile.fluid.paddle as paddle
from pstranspile.fluid.incubate.data_generator import MultiSlotDataGenerator
from tests.fluid.running import fresh


class Doubled(MultiSlotDataGenerator):
    """Each number as an id, and twice itself."""

    def generate_sample(self, line):
        def samples():
            number = int(line)
            yield [("ids", list(range(1 + number % 3))), ("x", [float(number), 2.0 * number])]

        return samples


def data_set(kind: str, folder: Path, command: str = "cat"):
    for part in range(2):
        (folder / f"part_{part}").write_text("".join(f"2 {n} {n} 2 {n}.5 1\n" for n in range(part * 3, part * 3 + 3)))
    made = fluid.DatasetFactory().create_dataset(kind)
    made.set_filelist([str(folder / "part_0"), str(folder / "part_1")])
    made.set_pipe_command(command)
    made.set_batch_size(4)
    made.set_use_var(
        [
            fluid.layers.data("ids", [1], dtype="int64", lod_level=1),
            fluid.layers.data("x", [2], dtype="float32"),
        ]
    )
    return made


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_a_program_is_trained_on_all_batches(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fresh():
        made = data_set(kind, tmp_path)
        if kind == "InMemoryDataset":
            made.load_into_memory()
            made.local_shuffle()
            assert made.get_memory_data_size() == 6
        block = fluid.default_main_program().global_block()
        pooled = fluid.layers.sequence_pool(fluid.layers.cast(block.var("ids"), "float32"), "sum")
        total = fluid.layers.create_global_var([1], 0.0, "float32", persistable=True, name="total")
        part = fluid.layers.reduce_sum(pooled) + fluid.layers.reduce_sum(block.var("x"))
        fluid.layers.assign(fluid.layers.elementwise_add(total, part), total)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        exe.train_from_dataset(dataset=made, fetch_list=[total], fetch_info=["total"], print_period=2)
        wanted = sum(2 * n + n + 0.5 + 1 for n in range(6))
        assert np.array(fluid.global_scope().find_var("total").get_tensor())[0] == wanted
        lines = ["total\ttotal\t\tlod: {}", "\tdim: 1", "\tlayout: NCHW", "\tdtype: float", "\tdata: [54]", "\t", ""]
        assert capsys.readouterr().out == "\n".join(lines)
        exe.train_from_dataset(dataset=made, debug=True)
    assert re.search(r"^reduce_sum +4 ", capsys.readouterr().out, re.MULTILINE)


def test_the_op_print_and_tensors_have_the_form_of_fluid(capsys: pytest.CaptureFixture[str]) -> None:
    with fresh():
        x = fluid.data("x", [None, 3], "float32", lod_level=2)
        fluid.layers.Print(x, message="rows", summarize=2)
        fluid.layers.Print(fluid.layers.fill_constant([2], "int64", 7), print_tensor_name=False)
        flag = fluid.layers.fill_constant([1], "bool", 1)
        fluid.layers.Print(flag, print_tensor_type=False, print_tensor_shape=False, print_tensor_lod=False)
        fed = fluid.create_lod_tensor(np.full((3, 3), 1e-9, "float32"), [[1, 1], [1, 2]], fluid.CPUPlace())
        fluid.Executor(fluid.CPUPlace()).run(feed={"x": fed})
    shown = re.sub(r"^\d{10,}\t", "SECONDS\t", capsys.readouterr().out, flags=re.MULTILINE)
    assert shown == (
        "SECONDS\trows\tThe place is:CPUPlace\nTensor[x]\n\tshape: [3,3,]\n\tdtype: f\n"
        "\tLoD: [[ 0,1,2, ][ 0,1,3, ]]\n\tdata: 1e-09,1e-09,\n"
        "SECONDS\t\tThe place is:CPUPlace\n\tshape: [2,]\n\tdtype: l\n\tdata: 7,7,\n"
        f"SECONDS\t\tThe place is:CPUPlace\nTensor[{flag.name}]\n\tdata: 1,\n"
    )
    lines = ["lod: {{0, 1, 2}{0, 1, 3}}", "dim: 3, 3", "layout: NCHW", "dtype: float", f"data: [{'1e-09 ' * 8}1e-09]"]
    assert str(fed) == "".join(f"\t{line}\n" for line in lines)


def test_prints_of_later_scripts_have_the_form_of_2_6(capsys: pytest.CaptureFixture[str]) -> None:
    static: Any = paddle.static
    with fresh():
        x = static.data("x", [None, 3], "float32", lod_level=1)
        static.Print(x, message="rows", summarize=4)
        flag = fluid.layers.fill_constant([2], "bool", 1)
        static.Print(flag, print_tensor_lod=False, print_tensor_layout=False)
        bare = {f"print_tensor_{fact}": False for fact in ("name", "type", "shape", "layout", "lod")}
        static.Print(fluid.layers.fill_constant([1], "float64", 1 / 3), **bare)
        fed = fluid.create_lod_tensor(np.full((3, 3), 1e-9, "float32"), [[1, 2]], fluid.CPUPlace())
        static.Executor(fluid.CPUPlace()).run(feed={"x": fed})
    assert capsys.readouterr().out == (
        "Variable: x\n  - message: rows\n  - lod: {{0, 1, 3}}\n  - place: Place(cpu)\n  - shape: [3, 3]\n"
        "  - layout: NCHW\n  - dtype: float32\n  - data: [1e-09 1e-09 1e-09 1e-09]\n"
        f"Variable: {flag.name}\n  - place: Place(cpu)\n  - shape: [2]\n  - dtype: bool\n  - data: [1 1]\n"
        "  - place: Place(cpu)\n  - data: [0.333333]\n"
    )


def test_mistakes_in_files_and_commands_are_told_with_their_place(tmp_path: Path) -> None:
    with fresh():
        with pytest.raises(RuntimeError, match="has ended with status 3"):
            list(data_set("QueueDataset", tmp_path, "cat; exit 3").feed_dicts())
        with pytest.raises(ValueError, match="part_0:1: x needs a number of values"):
            list(data_set("QueueDataset", tmp_path, "cut -d ' ' -f 1-4").feed_dicts())
        with pytest.warns(UserWarning, match="part_[01]:1: words are left after the last variable") as told:
            (fed, _) = data_set("QueueDataset", tmp_path, "sed 's/$/ 7 #/'").feed_dicts()
        assert len({str(one.message) for one in told if "words are left" in str(one.message)}) == 2
        assert np.array(fed["x"]).shape == (4, 2)
        with pytest.raises(NotImplementedError, match="take an InMemoryDataset"):
            data_set("QueueDataset", tmp_path).local_shuffle()


def test_the_values_of_a_sample_make_as_many_rows_as_they_fill(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("2 1 2\n4 3 4 5 6\n")
    with fresh():
        made = fluid.DatasetFactory().create_dataset("InMemoryDataset")
        made.set_filelist([str(tmp_path / "file")])
        made.set_batch_size(2)
        made.set_use_var([fluid.layers.data("x", [2])])
        made.load_into_memory()
        made.set_generate_unique_feasigns(True, 15)
        made.generate_local_tables_unlock(0, 11, 1, 25, 15)
        (fed,) = made.feed_dicts()
        assert np.array_equal(np.array(fed["x"]), [[1, 2], [3, 4], [5, 6]])
        made.set_use_var([fluid.layers.data("y", [4])])
        with pytest.raises(ValueError, match=r"file:1: y: a sample has 2 values, and a row of \[-1, 4\] has 4"):
            made.load_into_memory()
        with pytest.raises(RuntimeError, match="dataset is need and should be initialized"):
            fluid.Executor().train_from_dataset()


ZEROS = "3 0 5 7 6 1e-6 1.1e-6 -0.0 -1e-6 1.0000001e-6 3 2 0 1\n1 0 2 0 1.5 2 0 0\n2 4 0 1 0.0 2 3 4\n"
"""Rows with zeros in ids, floats and a dense slot."""


@pytest.mark.parametrize(
    ("kind", "ids", "floats"),
    [
        ("QueueDataset", [[0, 5, 7], [0], [4, 0]], [[1e-6, 1.1e-6, 0, -1e-6, 1.0000001e-6, 3], [0, 1.5], [0]]),
        ("InMemoryDataset", [[5, 7], [0], [4]], [[1.1e-6, 1.0000001e-6, 3], [1.5], [0]]),
    ],
)
def test_zeros_of_ragged_slots_are_kept_in_queues_and_dropped_in_memory(
    kind: str, ids: list[list[int]], floats: list[list[float]], tmp_path: Path
) -> None:
    fed = read(kind, ZEROS, tmp_path)
    assert np.array(fed["ids"]).ravel().tolist() == [value for row in ids for value in row]
    assert fed["ids"].recursive_sequence_lengths() == [[len(row) for row in ids]]
    assert np.array_equal(np.array(fed["x"]).ravel(), np.float32([value for row in floats for value in row]))
    assert np.array(fed["dense"]).tolist() == [[0, 1], [0, 0], [3, 4]]


def read(kind: str, text: str, folder: Path):
    """The batch of a file with ids, floats, and a dense slot of two ids."""
    (folder / "file").write_bytes(text.encode())
    with fresh():
        made = fluid.DatasetFactory().create_dataset(kind)
        made.set_filelist([str(folder / "file")])
        ragged = [fluid.data(name, [None, 1], kind, lod_level=1) for name, kind in (("ids", "int64"), ("x", "float32"))]
        made.set_use_var([*ragged, fluid.data("dense", [None, 2], "int64")])
        if kind == "InMemoryDataset":
            made.load_into_memory()
        (fed,) = made.feed_dicts()
    return fed


def test_what_memory_drops_stays_dropped_when_samples_are_merged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1 a 1 0\n1 a 1 3\n1 b 1 0\n1 b 1 0\n")
    with fresh():
        made = fluid.DatasetFactory().create_dataset("InMemoryDataset")
        made.set_use_var([fluid.data("ids", [None, 1], "int64", lod_level=1)])
        made.set_filelist([str(tmp_path / "file")])
        made.set_merge_by_lineid(2)
        made.load_into_memory()
        made.merge_by_lineid()
        (fed,) = made.feed_dicts()
    assert np.array(fed["ids"]).ravel().tolist() == [3, 0]


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_words_are_read_as_in_fluid(kind: str, tmp_path: Path) -> None:
    text = "+1  -5\t2 nan -inf \v 2 +5 9\r\n2 9223372036854775808 18446744073709551615 1 1e400 2 1\r 2\n"
    fed = read(kind, text, tmp_path)
    assert np.array(fed["ids"]).ravel().tolist() == [-5, -(1 << 63), -1]
    assert np.array_equal(np.array(fed["x"]).ravel(), [np.nan, -np.inf, np.inf], equal_nan=True)
    assert np.array(fed["dense"]).tolist() == [[5, 9], [1, 2]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1 5.0 1 1 2 1 1", "ids holds '5.0', which is no id of 64 bits"),
        ("2 1 18446744073709551616 1 1 2 1 1", "ids holds '18446744073709551616', which is no id of 64 bits"),
        ("1 -9223372036854775809 1 1 2 1 1", "ids holds '-9223372036854775809', which is no id"),
        ("1 1_0 1 1 2 1 1", "ids holds '1_0'"),
        ("1 \u0661 1 1 2 1 1", "ids holds '\\\\xd9\\\\xa1'"),
        (f"1 {'9' * 5000} 1 1 2 1 1", f"ids holds '{'9' * 40}...'"),
        ("1 5 2 1 0x10 2 1 1", "x holds '0x10', which is no number"),
        ("1 5 1 1 2 1 x", "dense holds 'x', which is no id"),
        ("1 5 1 1 3 1 2 3", "dense: a sample has 3 values, and a row of [-1, 2] has 2"),
        ("0 1 1 2 1 1", "ids needs a number of values"),
        ("-1 5 1 1 2 1 1", "ids needs a number of values"),
        (f"{'9' * 5000} 1 1 2 1 1", "ids needs a number of values"),
        ("\ufeff1 5 1 1 2 1 1", "ids needs a number of values"),
        ("1 5", "x needs a number of values"),
        ("1 5 3 1 2", "x needs a number of values"),
        ("", "ids needs a number of values"),
    ],
)
def test_a_malformed_line_is_told_with_its_place(line: str, said: str, tmp_path: Path) -> None:
    for kind in ("QueueDataset", "InMemoryDataset"):
        with pytest.raises(ValueError, match=f"file:2: {re.escape(said)}"):
            read(kind, f"1 5 1 1 2 1 1\n{line}\n1 5 1 1 2 1 1\n", tmp_path)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([("x", [1.0]), ("ids", [1])], "a sample has the variables ['x', 'ids'], and the first had ['ids', 'x']"),
        ([("ids", [1]), ("y", [1.0])], "a sample has the variables ['ids', 'y']"),
        ([("ids", [1])], "a sample has the variables ['ids']"),
        ([("ids", [1]), ("x", [1.0]), ("x", [1.0])], "a sample has the variables ['ids', 'x', 'x']"),
        ([("ids", (1,)), ("x", [1.0])], "the values of ids are a tuple, not a list"),
        ([("ids", ["1"]), ("x", [1.0])], "ids holds '1', which is no int or float"),
        ([("ids", [True]), ("x", [1.0])], "ids holds True, which is no int or float"),
        ([("ids", []), ("x", [1.0])], "ids has no values"),
        ([(3, [1]), ("x", [1.0])], "the name of a variable is a text, not 3"),
        ("ids", "a sample is a list of names and values"),
    ],
)
def test_samples_of_a_generator_have_the_variables_of_its_first(
    second, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Given(MultiSlotDataGenerator):
        def generate_sample(self, line):
            return lambda: [[("ids", [1, 2]), ("x", [1.0, 2])], zip(["ids", "x"], [[3], [4]], strict=True), second]

    generator = Given()
    generator.set_batch(1)
    with pytest.raises(ValueError, match=re.escape(said)):
        generator.run_from_memory()
    assert capsys.readouterr().out == "2 1 2 2 1.0 2\n1 3 1 4\n"


def test_generators_write_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", iter(["4\n", "5\n"]))
    generator = Doubled()
    generator.set_batch(1)
    generator.run_from_stdin()
    assert capsys.readouterr().out == "2 0 1 2 4.0 8.0\n3 0 1 2 2 5.0 10.0\n"


def test_samples_have_ids_and_come_by_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afs:part").write_text("1 a 1 text 1 1 2 3 3\n1 b 1 text 1 2 1 4\n")
    with fresh():
        slots = [fluid.layers.data(name, [1], dtype="int64", lod_level=1) for name in ("one", "two")]
        dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
        dataset.set_use_var(slots)
        dataset.set_batch_size(2)
        dataset.set_filelist(["afs:part"])
        dataset.set_download_cmd("cat")
        dataset.set_parse_ins_id(True)
        dataset.set_parse_content(True)
        dataset.load_into_memory()
        dataset.set_fea_eval(10, True)
        dataset.slots_shuffle(["two"])
        (batch,) = dataset.feed_dicts()
        assert batch["one"].data.ravel().tolist() == [1, 2]
        assert sorted(batch["two"].data.ravel().tolist()) == [3, 3, 4]
        dataset.set_download_cmd("false")
        with pytest.raises(RuntimeError, match="status 1 for afs:part"):
            dataset.load_into_memory()


def test_models_are_saved_to_bytes_and_loaded_from_them(tmp_path: Path) -> None:
    with fresh():
        x = fluid.data("x", [None, 2])
        out = fluid.layers.fc(x, 1)
        executor = fluid.Executor()
        executor.run(fluid.default_startup_program())
        params = fluid.io.save_persistables(executor, None)
        folder = str(tmp_path / "model")
        files = {"model_filename": "m", "params_filename": "p"}
        fetched = fluid.io.save_inference_model(folder, ["x"], [out], executor, **files)
        assert fetched == ["save_infer_model/scale_0.tmp_0"]  # of the program itself, as in Fluid
        op = fluid.default_main_program().global_block().ops[-1]
        assert (op.type, op.input_arg_names, op.output_arg_names) == ("scale", [out.name], fetched)
        model = (tmp_path / "model" / "m").read_bytes()
        rows = np.ones((3, 2), "float32")
        wanted = executor.run(feed={"x": rows}, fetch_list=[out])[0]
        with fluid.scope_guard(fluid.Scope()):
            program, feeds, targets = fluid.io.load_inference_model(None, executor, model, params)
            assert [target.name for target in targets] == ["save_infer_model/scale_0.tmp_0"]
            assert np.array_equal(executor.run(program, {feeds[0]: rows}, targets)[0], wanted)
        for place in [(None, executor, model), (folder, executor, model, params), (str(tmp_path / "none"), executor)]:
            with pytest.raises(ValueError, match=r"folder"):
                fluid.io.load_inference_model(*place)
        plain = fluid.layers.scale(x, 2.0)
        with pytest.warns(UserWarning, match="no variable in your model"):
            fluid.io.save_inference_model(str(tmp_path / "plain"), ["x"], [plain], executor)


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_loaders_of_data_sets_give_every_device_its_own_batches(kind: str, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"part_{number}").write_text("".join(f"1 {10 * number + row}\n" for row in range(3)))
    with fresh():
        x = fluid.layers.data("x", [1], dtype="int64")
        dataset = fluid.DatasetFactory().create_dataset(kind)
        dataset.set_use_var([x])
        dataset.set_batch_size(2)
        dataset.set_filelist([str(tmp_path / f"part_{number}") for number in (1, 2)])
        if kind == "InMemoryDataset":
            dataset.load_into_memory()
        for drop_last, sizes in [(False, [[2, 2], [1, 1]]), (True, [[2, 2]])]:
            loader = fluid.io.DataLoader.from_dataset(dataset, fluid.cpu_places(2), drop_last)
            assert [[len(feed["x"]) for feed in feeds] for feeds in loader()] == sizes
            assert [len(feeds) for feeds in loader] == [2] * len(sizes)


@pytest.mark.parametrize(
    ("size", "level", "wanted"),
    [(2, 1, {"a": [1, 3], "b": [2, 4]}), (0, 1, {"a": [1, 3], "b": [2, 4], "c": [5]}), (0, 0, {"c": [5]})],
)
def test_lines_of_one_id_become_one_sample(
    size: int, level: int, wanted: dict[str, list[float]], tmp_path: Path
) -> None:
    with fresh():
        made = fluid.DatasetFactory().create_dataset("InMemoryDataset")
        (tmp_path / "lines").write_text("".join(f"1 {name} 1 {at}\n" for at, name in enumerate("ababc", start=1)))
        made.set_filelist([str(tmp_path / "lines")])
        made.set_use_var([fluid.layers.data("x", [1], dtype="float32", lod_level=level)])
        made.set_batch_size(9)
        made.set_merge_by_lineid(size)
        made.load_into_memory()
        made.dataset.merge_by_lineid()
        assert made.get_memory_data_size() == len(wanted)
        (batch,) = made.feed_dicts()
        assert np.array(batch["x"]).ravel().tolist() == [value for name in sorted(wanted) for value in wanted[name]]
        assert batch["x"].recursive_sequence_lengths() == [[len(values) for values in wanted.values()]] * level


def test_lines_without_ids_are_not_merged(tmp_path: Path) -> None:
    with fresh():
        made = data_set("InMemoryDataset", tmp_path)
        made.set_merge_by_lineid(2)
        made.set_parse_ins_id(False)
        made.load_into_memory()
        made.global_shuffle()
        assert made.get_memory_data_size() == 6


def test_files_of_hadoop_are_printed_by_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "bin" / "hadoop"
    client.parent.mkdir()
    client.write_text('#!/bin/sh\necho "$@" >> asked.txt\necho 1 5\n')
    client.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    with fresh():
        dataset = fluid.DatasetFactory().create_dataset()
        dataset.set_use_var([fluid.layers.data("x", [1], dtype="int64", lod_level=1)])
        dataset.set_filelist(["hdfs:/part", "hdfs:/part.gz"])
        dataset.set_hdfs_config("hdfs://host:9000", "user,secret")
        dataset.set_batch_size(1)
        values = [batch["x"].data.tolist() for batch in dataset.feed_dicts()]
    assert values == [[[5]], [[5]]]
    options = "fs -Dfs.default.name=hdfs://host:9000 -Dhadoop.job.ugi=user,secret"
    asked = [f"{options} -cat hdfs:/part", f"{options} -text hdfs:/part.gz"]
    assert (tmp_path / "asked.txt").read_text().splitlines() == asked


def test_files_of_hadoop_need_no_settings_and_packed_files_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tmp_path / "hadoop"
    client.write_text('#!/bin/sh\ntest "$*" = "fs -cat hdfs:/part" && echo 1 5\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "part.gz").write_bytes(gzip.compress(b"2 6 7\n"))
    with fresh():
        dataset = fluid.DatasetFactory().create_dataset()
        dataset.set_use_var([fluid.layers.data("x", [1], dtype="int64", lod_level=1)])
        dataset.set_filelist(["hdfs:/part", str(tmp_path / "part.gz")])
        dataset.set_batch_size(2)
        (batch,) = dataset.feed_dicts()
    assert batch["x"].data.ravel().tolist() == [5, 6, 7]


def test_rows_of_a_loaded_model_are_looked_up_on_the_servers_that_a_script_names(tmp_path: Path) -> None:
    with fresh():
        ids, rows = fluid.data("ids", [2, 1], "int64"), fluid.data("rows", [2, 3])
        block = fluid.default_main_program().global_block()
        attrs = {"epmap": ["old:1"]}
        block.append_op(type="prefetch", inputs={"X": [ids]}, outputs={"Out": [rows]}, attrs=attrs)
        executor = fluid.Executor()
        fluid.io.save_inference_model(str(tmp_path), ["ids"], [fluid.layers.scale(rows, 2.0)], executor)
        program, _, _ = fluid.io.load_inference_model(str(tmp_path), executor, pserver_endpoints=["a:1", "b:2"])
    assert [op.attr("epmap") for op in program.global_block().ops if op.type == "prefetch"] == [["a:1", "b:2"]]


def test_data_sets_tell_what_they_were_told() -> None:
    made = fluid.core.Dataset("MultiSlotDataset")
    made.set_thread_num(12)
    made.set_trainer_num(4)
    made.set_filelist(["hdfs:a", "b"])
    made.set_hdfs_config("name", "user")
    assert (made.get_thread_num(), made.get_trainer_num(), made.get_filelist()) == (12, 4, ["hdfs:a", "b"])
    assert made.get_hdfs_config() == ("name", "user")
    made.set_download_cmd("print it")
    assert made.get_download_cmd() == "print it"
    with pytest.raises(ValueError, match="not Another"):
        fluid.core.Dataset("Another")


def test_page_views_are_refused_by_name() -> None:
    made = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    made.set_parse_logkey(False)
    made.set_enable_pv_merge(False)
    made.set_merge_by_sid(True)
    for name, value in (
        ("set_rank_offset", "rank"),
        ("set_pv_batch_size", 2),
        ("set_parse_logkey", True),
        ("set_enable_pv_merge", True),
    ):
        with pytest.raises(NotImplementedError, match=f"{name}.*one by one"):
            getattr(made, name)(value)


@pytest.mark.parametrize("count", ["9" * 5000, "\u00b2", "+", "1_0"])
def test_counts_that_no_line_has(count: str, tmp_path: Path):
    (tmp_path / "part").write_text(f"1 5\n{count} 1 2\n", encoding="utf-8")
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    held = fluid.DatasetFactory().create_dataset("QueueDataset")
    held.set_use_var([ids])
    held.set_filelist([str(tmp_path / "part")])
    with pytest.raises(ValueError, match=r"part:2: ids needs a number of values"):
        list(held.samples())


def test_a_count_may_have_zeros_before_it(tmp_path: Path):
    (tmp_path / "part").write_text(f"{'0' * 5000}2 5 6\n")
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    held = fluid.DatasetFactory().create_dataset("QueueDataset")
    held.set_use_var([ids])
    held.set_filelist([str(tmp_path / "part")])
    assert list(held.samples()) == [[[5, 6]]]
