"""Files of rows that are damaged, or made to do harm, are refused, and bring nothing else down."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.data import tables
from pstranspile.cluster.data import text_files as lines
from pstranspile.cluster.data.columns import Input, map_columns
from pstranspile.cluster.data.files import FileReader, ReadRequest
from pstranspile.cluster.data.source import open_rows
from pstranspile.cluster.data.tables import batches, columns_of
from pstranspile.cluster.data.text_files import floats, numbers_of, words_of
from pstranspile.ir.diagnostics import DiagnosticError
from tests.cluster.data.tables import FORMATS, clicks, data, rows, write
from tests.hostile.counts import cases, first
from tests.hostile.mutate import changed_bytes

pytest.importorskip("pyarrow", reason="files of columns are read by pyarrow")

ROW = {"csv": b"5,1 2,0,0\n", "jsonl": b'{"click": 5, "ids": [1, 2], "a": 0, "b": 0}\n'}


def reader(path: str) -> FileReader:
    """What reads the rows of a file as `tables` writes it."""
    wanted = [Input("ids", (1,), "int64", 1), Input("dense", (2,), "float32", 0), Input("click", (1,), "float32", 0)]
    names = ("click", "ids", "dense") if path.endswith("multislot") else ()
    return open_rows(path, ReadRequest(wanted, {} if names else {"dense": ["a", "b"]}, names))


def read(path: str) -> int:
    """Reads all rows of a file, and every value of them. Raises DiagnosticError."""
    source, count = reader(path), 0
    for unit in source.units():
        columns, _, _ = source.read(unit).take(range(unit.rows))
        count += sum(len(column.values.copy()) for column in columns.values())
    return count


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_are_refused(kind: str, tmp_path: Path):
    """Arrow takes lists for true that end outside of the file, and breaks down over some JSON."""
    path = tmp_path / f"x.{kind}"
    whole = Path(write(path, rows(12))).read_bytes()
    ends = {"read": 0, "refused": 0}
    for case in range(first(), first() + cases(200)):
        draw = random.Random(case)
        path.write_bytes(changed_bytes(whole, draw) or b"\n")
        try:
            read(str(path))
            ends["read"] += 1
        except ps.DiagnosticError:
            ends["refused"] += 1
    assert all(ends.values()) or kind == "multislot"


def test_an_arrow_file_whose_lists_end_outside_of_it(tmp_path: Path):
    import pyarrow

    path = tmp_path / "x.arrow"
    offsets = pyarrow.py_buffer(np.array([0, 1 << 24, 3], "int32").tobytes())
    values = pyarrow.array([1, 2, 3])
    ids = pyarrow.Array.from_buffers(pyarrow.list_(pyarrow.int64()), 2, [None, offsets], children=[values])
    table = pyarrow.table({"ids": ids, "a": [0.0, 0.0], "b": [0.0, 0.0], "click": [0.0, 0.0]})
    with pyarrow.OSFile(str(path), "wb") as out, pyarrow.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ps.DiagnosticError, match=r"data-source.*can't be read"):
        read(str(path))


@pytest.mark.parametrize("bad", ["null", "  null", "null null", '{"click": 1} null', 'null"click": 1}'])
def test_a_null_is_no_row(bad: str, tmp_path: Path):
    path = tmp_path / "x.jsonl"
    good = '{"click": 5, "ids": [1], "a": 0, "b": 0, "said": "} null", "none": null}\n'
    path.write_text(f"{good}{bad}\n{good}")
    source = data(str(path), bad_rows="skip")
    clicks(source)
    assert [(row.line, row.reason) for row in source.bad] == [(2, "it is no JSON object")]


@pytest.mark.parametrize("kind", ROW)
def test_a_byte_order_mark_is_one_only_where_the_file_begins(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / f"x.{kind}"
    head = b"click,ids,a,b\n" if kind == "csv" else b""
    path.write_bytes(b"\xef\xbb\xbf" + head + ROW[kind] * 2 + b"\xef\xbb\xbf" + ROW[kind] * 2)
    for size in (1 << 20, 1):  # in one block, and a block for each line
        monkeypatch.setattr(lines, "BLOCK", size)
        source = data(str(path), bad_rows="skip", batch=1)
        assert clicks(source) == [[[5.0]], [[5.0]], [[]], [[5.0]]]
        line = 3 + bool(head)
        assert [(row.line, row.reason) for row in source.bad] == [(line, "it begins with a byte order mark")]


@pytest.mark.parametrize("kind", FORMATS)
def test_pipes_are_refused(kind: str, tmp_path: Path):
    """Opened, one waits for ever for who writes to it."""
    pipe = tmp_path / f"x.{kind}"
    os.mkfifo(pipe)
    for place in (pipe, *([] if kind == "multislot" else [tmp_path])):  # which has other names
        with pytest.raises(ps.DiagnosticError, match="pipe or a device"):
            clicks(data(str(place)))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "multislot"])
def test_a_line_without_end_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "LONGEST", 1 << 20)
    monkeypatch.setattr(lines, "BLOCK", 1 << 16)
    path = Path(write(tmp_path / f"x.{kind}", rows(3)))
    for whole in (path.read_bytes(), b""):
        path.write_bytes(whole)
        os.truncate(path, 1 << 34)  # a hole, which takes no place on the disk
        with pytest.raises(ps.DiagnosticError, match="a line of more than 1 MiB"):
            read(str(path))


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_names_of_columns_are_utf8(encoding: str, tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_bytes("click,ids,a,b,grün\n1,2,3,4,5\n".encode(encoding))
    with pytest.raises(ps.DiagnosticError, match="not UTF-8"):
        read(str(path))


def test_words_of_any_length():
    texts = ["0." + "9" * 400, "9" * 200 + "." + "9" * 200, "1" * 1_000_000, "." * 300, "1." + "0" * 300 + "x"]
    words = words_of(" ".join(texts).encode())
    values, wrong = floats(words, numbers_of(words), np.arange(len(texts)))
    assert wrong.tolist() == [False, False, False, True, True]
    assert values[:3].tolist() == [1.0, float(texts[1]), float("inf")]


class _Counted(str):
    """A name that counts how often it is compared."""

    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("size", [100, 200, 400])
def test_columns_are_found_in_linear_time(size: int):
    _Counted.compared = 0
    there = [_Counted(f"f{number}") for number in range(size)]
    map_columns([Input("x", (size,), "float32", 0)], {"x": ["f*"]}, there, "x.csv")
    assert _Counted.compared <= 4 * size


@pytest.mark.parametrize("kind", ROW)
def test_lines_of_bad_rows_are_known_without_reading_the_file_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lines, "BLOCK", 64)
    path = Path(write(tmp_path / f"x.{kind}", rows(40)))
    path.write_bytes(path.read_bytes() + b"\n\nx\n" * 20)
    source = reader(str(path))
    units = source.units()
    taken = _bytes_read(monkeypatch)
    found = [row.line for unit in units for row in source.read(unit).take(range(unit.rows))[1]]
    begin = path.read_bytes().index(b"\n\nx")
    line = path.read_bytes().count(b"\n", 0, begin) + 3
    assert found == [line + 3 * number for number in range(20)]
    assert taken() <= path.stat().st_size


def _bytes_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """What says how many bytes of units were read since."""
    taken: list[int] = []

    class Counted:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.stream.close()

        def seek(self, place):
            self.stream.seek(place)

        def read(self, size):
            part = self.stream.read(size)
            taken.append(len(part))
            return part

    whole = lines.open_file
    monkeypatch.setattr(lines, "open_file", lambda file: Counted(whole(file)))
    return lambda: sum(taken)


WORDS = ["1", "+5", "007", " 1 ", "  ", "", "1.", "1.5", "1e3", "-1", "0x10", "-0x10", "0xffffffffffffffff", "1_0", "٣"]
WORDS += ["9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551616", "true", "1\x00"]
WORDS += ["0" * 25 + "1", "NaN", "1e400", "--1", "x"]
LINES = {"csv": "{},{}\n", "jsonl": '{{"f": {}, "i": {}}}\n', "multislot": "1 {} 1 {}\n"}


def numbers_in(path: Path, lines: list[str]) -> list[tuple[float, int] | None]:
    """What a file of these lines has in each row, a float and an id; None where it is bad."""
    wanted = [Input("f", (1,), "float64", 0), Input("i", (1,), "int64", 0)]
    path.write_text("".join(lines))
    source, found = open_rows(str(path), ReadRequest(wanted, {}, ["f", "i"] if path.suffix != ".jsonl" else ())), []
    for unit in source.units():
        columns, _, kept = source.read(unit).take(range(unit.rows))
        made = iter(zip(columns["f"].values.ravel().tolist(), columns["i"].values.ravel().tolist(), strict=True))
        found += [next(made) if kept is None or kept[row] else None for row in range(unit.rows)]
    return found


@pytest.mark.parametrize("kind", LINES)
def test_what_a_row_holds_does_not_depend_on_others(kind: str, tmp_path: Path):
    """Ids beyond int64 have a whole block read in another way."""
    path, first_line = tmp_path / f"x.{kind}", LINES[kind].format(1, 2)
    alone: dict[str, tuple[float, int] | None] = {}
    for word in WORDS:
        for line in (LINES[kind].format(word, 2), LINES[kind].format(1, word)):
            alone[line] = numbers_in(path, [first_line, line])[1]
    draw = random.Random(3)
    for _ in range(100):
        lines = [first_line, *draw.sample(list(alone), 5)]
        found = numbers_in(path, lines)[1:]
        assert repr(found) == repr([alone[line] for line in lines[1:]]), lines


def test_words_that_are_ids(tmp_path: Path):
    found = {
        kind: [
            word for word in WORDS if numbers_in(tmp_path / f"x.{kind}", [line.format(1, 2), line.format(1, word)])[1]
        ]
        for kind, line in LINES.items()
    }
    both = ["1", "007", " 1 ", "-1", "9223372036854775807", "9223372036854775808", "0" * 25 + "1"]
    assert found["csv"] == sorted({*both, "0x10", "0xffffffffffffffff"}, key=WORDS.index)
    assert found["multislot"] == sorted({*both, "+5"}, key=WORDS.index)
    assert found["jsonl"] == [word for word in both if not word.startswith("00")]


def table_of(kind: str, path: Path, columns: dict[str, object], **options: object) -> str:
    """A file with one row group, or one batch of records, compressed."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(columns)
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=table.num_rows, compression="zstd")
    else:
        write_options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
        with (
            pyarrow.OSFile(str(path), "wb") as file,
            pyarrow.ipc.new_file(file, table.schema, options=write_options) as writer,
        ):
            writer.write_table(table)
    return str(path)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("name", ["x", "ids"])
def test_what_expands_is_refused_before_it_does(kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Zeros are next to nothing in a file. What is not fed does not count."""
    import pyarrow

    monkeypatch.setattr(tables, "FREE_BYTES", 1 << 16)
    monkeypatch.setattr(tables, "TIMES", 8)
    if name == "x":
        columns: dict[str, object] = {"x": np.zeros(1 << 17, "float32")}
    else:
        lists = pyarrow.array([[0] * (1 << 17), []], pyarrow.list_(pyarrow.int64()))
        columns = {"ids": lists, "x": np.zeros(2, "float32")}
    path = table_of(kind, tmp_path / f"t.{kind}", columns)
    inputs = {"x": Input("x", (1,), "float32", 0), "ids": Input("ids", (1,), "int64", 1)}
    opened = open_rows(path, ReadRequest([inputs[name]], {}))
    (unit,) = opened.units()
    told = r"takes 1,048,\d+ bytes once it is read, more than 0 MiB and more than 8 times the \d+"
    with pytest.raises(DiagnosticError, match=told):
        opened.read(unit)
    if name == "ids":
        opened = open_rows(path, ReadRequest([inputs["x"]], {}))
        assert opened.read(*opened.units()).rows == 2


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_without_numbers_are_not_read(kind: str, tmp_path: Path):
    """Rows of nothing, of one value that is repeated, of a long text that is repeated."""
    import pyarrow

    texts = pyarrow.DictionaryArray.from_arrays(np.zeros(100, "int32"), ["x" * (1 << 16)])
    made = {"texts": texts, "nothing": pyarrow.nulls(100), "lists": pyarrow.array([["a"]] * 100)}
    if kind == "arrow":
        made["ends"] = pyarrow.RunEndEncodedArray.from_arrays([100], [1.0])
    path = table_of(kind, tmp_path / f"t.{kind}", made)
    for name in made:
        with pytest.raises(DiagnosticError, match=f"x is float32, the column {name} is "):
            open_rows(path, ReadRequest([Input("x", (1,), "float32", 0)], {"x": [name]}))


def test_metadata_of_batches_are_those_of_arrow(tmp_path: Path):
    """Of files with several batches, nested columns, and none at all; cut ones are refused."""
    import pyarrow

    nested = pyarrow.array([[{"a": [1], "b": "x"}], []] * 5)
    table = pyarrow.table({"x": np.arange(10.0), "nested": nested, "none": pyarrow.nulls(10)})
    for count in (3, 10, 0):
        path = tmp_path / "t.arrow"
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table.slice(0, count), max_chunksize=4)
        data = path.read_bytes()
        opened = pyarrow.ipc.open_file(str(path))
        found = batches(lambda at, size, data=data: data[at : at + size], len(data))
        assert [batch.rows for batch in found] == [
            opened.get_batch(number).num_rows for number in range(opened.num_record_batches)
        ]
        assert all(columns_of(batch.values, [1, 5, 1])[0] == batch.rows for batch in found)
        assert all(columns_of(batch.buffers, [2, 10, 0])[0] >= 8 * batch.rows for batch in found)
    with pytest.raises(ValueError, match="footer"):
        batches(lambda at, size: data[:-1][at : at + size], len(data) - 1)


def test_buffers_and_dictionaries_that_expand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of few rows, as the metadata say: what is expanded is what the buffers say."""
    import pyarrow

    monkeypatch.setattr(tables, "FREE_BYTES", 1 << 16)
    monkeypatch.setattr(tables, "TIMES", 8)
    wanted = ReadRequest([Input("x", (1,), "float32", 0)], {})
    zeros = np.zeros(1 << 17, "float32")
    path = table_of("arrow", tmp_path / "buffers.arrow", {"x": zeros})
    data = Path(path).read_bytes()
    count = struct.pack("<q", len(zeros))
    Path(path).write_bytes(data.replace(count, struct.pack("<q", 8)))
    opened = open_rows(path, wanted)
    (unit,) = opened.units()
    assert unit.rows == 8
    with pytest.raises(DiagnosticError, match=r"batch 1 takes 524,288 bytes once it is read"):
        opened.read(unit)
    Path(path).write_bytes(data.replace(count, struct.pack("<q", -8)))
    with pytest.raises(DiagnosticError, match="a batch has fewer than no values"):
        open_rows(path, wanted)
    numbers = pyarrow.DictionaryArray.from_arrays(np.zeros(4, "int32"), zeros)
    path = table_of("arrow", tmp_path / "dictionary.arrow", {"x": numbers})
    with pytest.raises(DiagnosticError, match=r"what the dictionaries of columns hold takes 524,288 bytes"):
        open_rows(path, wanted)


def test_buffers_of_all_types_are_counted(tmp_path: Path):
    """A column of each, none of which is fed but the last."""
    import pyarrow

    rows = [{"a": 1}, None]
    columns: dict[str, object] = {
        "text": ["a", None],
        "binary": pyarrow.array([b"a", None], pyarrow.large_binary()),
        "struct": rows,
        "map": pyarrow.array([[("a", 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int8())),
        "pair": pyarrow.array([[1, 2], None], pyarrow.list_(pyarrow.int8(), 2)),
        "day": pyarrow.array([1, None], pyarrow.date32()),
        "flag": [True, None],
        "decimal": pyarrow.array([None, None], pyarrow.decimal128(5, 2)),
        "none": pyarrow.nulls(2),
        "word": pyarrow.array(["a", None]).dictionary_encode(),
        "ends": pyarrow.RunEndEncodedArray.from_arrays([2], [1.0]),
        "dense": pyarrow.UnionArray.from_dense(
            pyarrow.array([0, 0], pyarrow.int8()), pyarrow.array([0, 1], pyarrow.int32()), [pyarrow.array([1, 2])]
        ),
        "sparse": pyarrow.UnionArray.from_sparse(pyarrow.array([0, 0], pyarrow.int8()), [pyarrow.array([1, 2])]),
        "x": np.array([5, 6], "float32"),
    }
    path = table_of("arrow", tmp_path / "all.arrow", columns)
    opened = open_rows(path, ReadRequest([Input("x", (1,), "float32", 0)], {}))
    assert opened.read(*opened.units()).rows == 2
    view = {"view": pyarrow.array(["a", "b"], pyarrow.string_view()), "x": columns["x"]}
    opened = open_rows(
        table_of("arrow", tmp_path / "view.arrow", view), ReadRequest([Input("x", (1,), "float32", 0)], {})
    )
    assert opened.read(*opened.units()).rows == 2
