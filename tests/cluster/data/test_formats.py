"""The same rows come out of every format; columns are what inputs take, or are refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.data import text_files as lines
from pstranspile.cluster.data.columns import Chunk, inputs
from pstranspile.cluster.data.files import ReadRequest
from pstranspile.frontends import layers as L
from tests.cluster.data.tables import FORMATS, clicks, data, module, rows, write

pytest.importorskip("pyarrow", reason="files of columns are read by pyarrow")
import pyarrow
from pyarrow import parquet


def first(source: ps.Data) -> dict[str, Any]:
    feeds, _ = source.feeds([module().main])
    return dict(feeds[0](0) or {})


def refusal(path: Path | str, **options: Any) -> str:
    with pytest.raises(ps.DiagnosticError) as caught:
        clicks(data(path, **options))
    return str(caught.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_format(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "BLOCK", 300)
    given = rows(61)
    path = write(tmp_path / f"x.{kind}", given)
    fed = first(data(path, batch=61))
    assert np.asarray(fed["click"]).tolist() == [[row["click"]] for row in given]
    assert fed["dense"].tolist() == [[row["a"], row["b"]] for row in given]
    assert fed["dense"].dtype == fed["click"].dtype == np.float32
    assert fed["ids"].data.ravel().tolist() == [number for row in given for number in row["ids"]]
    assert fed["ids"].lod == [[0, *np.cumsum([len(row["ids"]) for row in given]).tolist()]]
    dealt = clicks(data(path, shuffle=5, epochs=2), trainers=3)
    for epoch in (dealt[:8], dealt[8:]):
        assert sorted(row for step in epoch for share in step for row in share) == [row["click"] for row in given]
    assert dealt[:8] != dealt[8:]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_trainers_of_one_process_read_side_by_side(kind: str, tmp_path: Path):
    path = write(tmp_path / f"x.{kind}", rows(400), units=50)
    (reader,) = data(path).readers(ReadRequest(inputs(module().main), {"dense": ["a", "b"]})).values()
    units = reader.units()
    expected = [clicks_of(reader.read(unit)) for unit in units]

    def read(seed: int) -> None:
        places = np.random.default_rng(seed).integers(0, len(units), 300).tolist()
        chunks = [reader.read(units[place]) for place in places]
        assert [clicks_of(chunk) for chunk in chunks] == [expected[place] for place in places]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


def clicks_of(chunk: Chunk) -> list[Any]:
    columns, bad, _ = chunk.take(np.arange(chunk.rows))
    assert not bad
    return columns["click"].value().tolist()


def test_folders_and_patterns(tmp_path: Path):
    for number in range(3):
        write(tmp_path / f"{number}.csv", rows(5, first=5 * number))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").touch()
    everything = [[[float(number) for number in range(15)]]]
    assert clicks(data(tmp_path, batch=15)) == clicks(data(str(tmp_path / "*.csv"), batch=15)) == everything
    assert clicks(data([tmp_path / "2.csv", tmp_path / "0.csv"], batch=5)) == [
        [[10, 11, 12, 13, 14]],
        [[0, 1, 2, 3, 4]],
    ]
    assert clicks(data(f"file://{tmp_path}", batch=15)) == everything


def table(path: Path, **columns: Any) -> Path:
    count = len(next(iter(columns.values())))
    given = {"click": [1.0] * count, "a": [0.0] * count, "b": [0.0] * count, "ids": [[1]] * count}
    parquet.write_table(pyarrow.table({**given, **columns}), path)
    return path


def test_an_empty_file_among_others_has_no_rows(tmp_path: Path):
    write(tmp_path / "a.jsonl", rows(8))
    (tmp_path / "b.jsonl").touch()
    assert len(first(data(tmp_path))["click"]) == 8


def test_columns_side_by_side_in_the_order_of_the_file(tmp_path: Path):
    path = table(tmp_path / "x.parquet", f1=[1.0, 2.0], f0=[3, 4])
    assert first(data(path, columns={"dense": "f*"}))["dense"].tolist() == [[1, 3], [2, 4]]


def test_a_list_of_one_size_is_dense(tmp_path: Path):
    lists = pyarrow.array([[1, 2], [3, 4]], pyarrow.list_(pyarrow.int16(), 2))
    for column in (lists, [[1.0, 2.0], [3.0, 4.0]]):
        assert first(data(table(tmp_path / "x.parquet", d=column), columns={"dense": "d"}))["dense"].tolist() == [
            [1, 2],
            [3, 4],
        ]


def test_ids_without_lists_are_sequences_of_one(tmp_path: Path):
    fed = first(data(table(tmp_path / "x.parquet", ids=pyarrow.array([5, (1 << 64) - 1], pyarrow.uint64()))))
    assert fed["ids"].lod == [[0, 1, 2]]
    assert fed["ids"].data.tolist() == [[5], [-1]]


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ({"ids": [0.5]}, {}, "error[data-column]: ids is int64, the column ids is double"),
        ({"ids": ["x"]}, {}, "error[data-column]: ids is int64, the column ids is string"),
        ({"a": [1.0]}, {"columns": {"dense": "a"}}, "dense takes 2 numbers, its columns have 1"),
        ({"a": [1.0]}, {"columns": {"dense": ["a", "bb"]}}, "dense takes the column bb, which is not among"),
        (
            {"a": [1.0]},
            {"columns": {"dens": "a"}},
            "columns are given for dens, which is no input; did you mean dense?",
        ),
        ({"a": [1.0]}, {"columns": {"price": "a"}}, "columns are given for price, which is no input; inputs are "),
        (
            {"a": [1.0]},
            {"columns": {"dense": ["a", "ids=a"]}},
            "each input has an option of its own: --columns ids=a",
        ),
        (
            {"a": [1.0]},
            {"columns": {"dense": ["a", "id=a"]}},
            "each input has an option of its own: --columns id=a",
        ),
        ({"ids": [[[1]]]}, {}, "ids is int64, the column ids is list"),
        ({"a": [1.0]}, {"names": ["click", "ids"]}, "its columns have names; others (--names) are for csv, tsv"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, columns: Any, options: Any, told: str):
    assert told in refusal(table(tmp_path / "x.parquet", **columns), **options)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.parquet", b"PAR1", "error[data-source]: it can't be read"),
        ("x.arrow", b"", "error[data-source]: it can't be read"),
        ("x.jsonl", b"[1]\n", "its first line is no JSON object"),
        ("x.jsonl", b"\n", "there are no rows in it"),
        ("x.csv", b"", "it has no first line"),
        ("x.csv", b"click,ids,a,b,a\n", "dense takes the column a, which is there several times"),
        ("x.csv", b"label,ids,a,b\n", "note: another column is named with --columns click=COLUMN"),
        ("x.csv", b"click,ids,a,b\n", "there are no rows in it"),
        ("x.dat", b"", "its name does not say its format"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, content: bytes, told: str):
    (tmp_path / name).write_bytes(content)
    assert told in refusal(tmp_path / name)


def test_what_is_not_there(tmp_path: Path):
    assert "no files of rows are there" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "x.csv")


def test_wrong_arguments(tmp_path: Path):
    with pytest.raises(ValueError, match="no format 'xls'"):
        ps.Data(tmp_path, batch=1, format="xls")
    with pytest.raises(ValueError, match="must be 'refuse' or 'skip'"):
        ps.Data(tmp_path, batch=1, bad_rows="drop")  # pyright: ignore[reportArgumentType]


HUGE = [[5, (1 << 64) - 1], [1 << 63], [-1, 1 << 63], [7]]
"""Ids of 64 bits, in one row beside a negative one."""


@pytest.mark.parametrize("kind", ["csv", "jsonl", "multislot"])
@pytest.mark.parametrize("ids", [HUGE, HUGE[:2], HUGE[2:]], ids=["mixed", "unsigned", "one row"])
def test_ids_of_64_bits_keep_their_bits(kind: str, ids: list[list[int]], tmp_path: Path):
    given = [{**row, "ids": chosen} for row, chosen in zip(rows(len(ids)), ids, strict=True)]
    path = write(tmp_path / f"x.{kind}", given)
    (feed,), _ = data(path).feeds([module().main])
    fed = feed(0)["ids"]
    assert [number % (1 << 64) for number in fed.data.ravel().tolist()] == [n % (1 << 64) for row in ids for n in row]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "multislot"])
@pytest.mark.parametrize("bad", ["18446744073709551616", "9" * 5000, "-9223372036854775809", "9223372036854775808.0"])
def test_ids_of_more_than_64_bits_are_bad_rows(kind: str, bad: str, tmp_path: Path):
    given = [{**row, "ids": [(1 << 64) - 1]} for row in rows(5)]
    given[4]["ids"] = [-1, (1 << 64) - 1]
    path = Path(write(tmp_path / f"x.{kind}", given))
    lines = path.read_text().splitlines(keepends=True)
    number = 3 if kind == "csv" else 2
    lines[number] = lines[number].replace(str((1 << 64) - 1), bad)
    path.write_text("".join(lines))
    source = data(path, bad_rows="skip")
    assert clicks(source) == [[[0, 1, 3, 4]]]
    assert [row.line for row in source.bad] == [number + 1]


@pytest.mark.parametrize("cell", ["", " ", '""'])
def test_an_empty_cell_of_csv_is_an_empty_list(cell: str, tmp_path: Path):
    (tmp_path / "x.csv").write_text(f"click,ids,a,b\n0,{cell},1,2\n1,3 4,1,2\n2,{cell},1,2\n3, 5 ,1,2\n")
    (feed,), _ = data(tmp_path / "x.csv").feeds([module().main])
    fed = feed(0)["ids"]
    assert fed.data.ravel().tolist() == [3, 4, 5]
    assert [list(level) for level in fed.lod] == [[0, 0, 2, 2, 3]]


def test_a_file_of_csv_may_have_no_numbers_at_all(tmp_path: Path):
    (tmp_path / "x.csv").write_text("click,ids,a,b\n0,,1,2\n1,,1,2\n")
    (feed,), _ = data(tmp_path / "x.csv").feeds([module().main])
    assert feed(0)["ids"].data.size == 0


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_dense_ids_of_64_bits_keep_their_bits(kind: str, tmp_path: Path):
    model = L.Draft(seed=4)
    L.mean(L.cast(L.data(model, "a", [-1, 1], "i64"), "f32"))
    given = [{**row, "a": number} for row, number in zip(rows(4), [-7, 1 << 63, (1 << 64) - 1, 5], strict=True)]
    source = ps.Data(write(tmp_path / f"x.{kind}", given), batch=4)
    (feed,), _ = source.feeds([model.module().main])
    assert np.asarray(feed(0)["a"]).ravel().tolist() == [-7, -(1 << 63), -1, 5]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_all_columns_of_a_file_can_be_seen_where_one_is_missing(ending: str, tmp_path: Path):
    names = [f"f{number}" for number in range(30)]
    path = tmp_path / f"it's.{ending}"
    columns = pyarrow.table({name: [1.5] for name in names})
    if ending == "parquet":
        parquet.write_table(columns, path)
    elif ending == "arrow":
        with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_file(sink, columns.schema) as writer:
            writer.write_table(columns)
    else:
        between = "," if ending == "csv" else "\t"
        lines = [json.dumps(dict.fromkeys(names, 1.5))] if ending == "jsonl" else [between.join(names)]
        path.write_text("\n".join([*lines, between.join(["1.5"] * 30)] if ending != "jsonl" else lines) + "\n")
    told = refusal(path, columns={"dense": ["f7", "x7"]})
    assert f"which is not among {', '.join(names[:12])} and 18 more" in told
    assert told.count("all 30 columns are shown by: ") == 1
    command = told.partition("all 30 columns are shown by: ")[2].splitlines()[0]
    done = subprocess.run(command.replace("python ", f"{sys.executable} "), shell=True, capture_output=True, text=True)
    assert all(name in done.stdout for name in names)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            "0.5,1,2\n0.5,1,2\n",
            "which holds numbers, is taken for names; if it is a row, name the 3 columns with --names",
        ),
        (
            "red,1\nblue,2\n",
            "which holds numbers, is taken for names; if it is a row, name the 2 columns with --names a,b",
        ),
        ("red,big\nblue,small\n", "is taken for the names of its columns; if it is a row, --names names them"),
    ],
)
def test_a_file_without_a_line_of_names_is_pointed_to_the_option(lines: str, told: str, tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text(lines)
    shown = refusal(path, columns={"dense": "d"})
    assert shown.count(told) == 1
    assert "if it is a row" not in refusal(path, columns={"dense": "d"}, names=list("abc"[: lines.count(",") // 2 + 1]))
