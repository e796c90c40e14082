"""Why a row can't be fed is said in our words, at its line and column, and so is what is wrong with other inputs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.ir.json_text import describe_json_error
from pstranspile.tools.cli import main

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draft = L.Draft(seed=7)
    x, n = L.data(draft, "x", [-1, 2]), L.data(draft, "n", [-1, 1], "i64")
    loss = L.mean(L.fc([x, L.cast(n, "f32")], 1))
    minimize(loss, SGD(0.1))
    Path("net.ir").write_text(ps.dumps(draft.module()))


def refusal(name: str, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    Path(name).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["run", "net.ir", "--feed", name, "--batch", "1"]) == 1
    return capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nope", "1: it is no JSON: a value is expected, `nope` is there"),
        ('{"x": [1, 2], ', "15: it is no JSON: a key in double quotes is expected, the text ends"),
        ('{"x": [1, 2]} more', "15: it is no JSON: nothing more is expected after the value, `more` is there"),
        ('{"x" [1, 2]}', "6: it is no JSON: a colon is expected after a key, `[1,` is there"),
        ('{"x": [1 2], "n": 1}', "10: it is no JSON: a comma or a closing bracket is expected, `2],` is there"),
        ('{"x": "a', "7: it is no JSON: a string begins that does not end"),
        ('{"x": "\\q"}', "8: it is no JSON: no such escape may follow a backslash in a string"),
        ("[1, 2]", "1: a JSON object is expected, [1, 2] is there"),
        ('{"x": [1, 2], "n": NaN}', "20: n: NaN is no whole number"),
        ('{"x": [1, "b"], "n": 1}', "11: x: 'b' is no number"),
        ('{"x": [1, true], "n": 1}', "11: x: true is no number"),
        ('{"x": 1, "n": 1}', "2: x: numbers are expected in lists as deep as in the first line, 1 is there"),
        ('{"x": [1, 2], "n": 1.5}', "20: n: 1.5 is no whole number"),
        ('{"x": [1, 2], "n": 99999999999999999999}', "20: n: 99999999999999999999 is no id of 64 bits"),
        ('{"x": [1, 2], "x": [1, 2], "n": 1}', "15: x stands twice"),
        ('{"x": "\udcff", "n": 1}', "1: it is no JSON: byte 7 is not UTF-8"),
        ('{"x": [1, 1e999], "n": 1}', "11: 1e999 is larger than a number of 64 bits can be"),
        ('{"x": [1, 2], "n": 1, "z": -1e999}', "28: -1e999 is larger than a number of 64 bits can be"),
        (
            '{"x": [1, 2], "n": 1, "z": "\\uD800"}',
            "29: \\ud800 is half of a character, and stands without the other half",
        ),
    ],
)
def test_lines_of_json(line: str, told: str, capsys: pytest.CaptureFixture[str]):
    column, _, reason = told.partition(": ")
    said = refusal("rows.jsonl", f'{{"x": [1, 2], "n": 1}}\n{line}\n', capsys)
    assert said == f"rows.jsonl:2:{column}: error[data-row]: the row can't be fed: {reason}"


def test_the_first_line_of_json(capsys: pytest.CaptureFixture[str]):
    told = "rows.jsonl:3:6: error[data-source]: its first line is no JSON: a value is expected, `}` is there"
    assert refusal("rows.jsonl", '\n\n{"x":}\n', capsys) == told
    told = "rows.jsonl: error[data-source]: its first line is no JSON object, but [1]"
    assert refusal("rows.jsonl", "[1]\n", capsys) == told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("1,b,3", "3: b: 'b' is no number"),
        ("1,2,x3", "5: n: 'x3' is no whole number of 64 bits"),
        ("1,2,3.5", "5: n: '3.5' is no whole number of 64 bits"),
        ("1,2", "1: it has 2 cells, and the file has 3 columns"),
        ("1", "1: it has 1 cell, and the file has 3 columns"),
        ("1,2,3,4", "1: it has 4 cells, and the file has 3 columns"),
        ('1,"2,3', "1: it has 2 cells, and the file has 3 columns; a quote in it is not closed"),
    ],
)
def test_lines_of_csv(line: str, told: str, capsys: pytest.CaptureFixture[str]):
    Path("rows.csv").write_text(f"a,b,n\n1,2,3\n{line}\n")
    assert main(["run", "net.ir", "--feed", "rows.csv", "--batch", "1", "--columns", "x=a,b"]) == 1
    column, _, reason = told.partition(": ")
    said = capsys.readouterr().err.splitlines()[0]
    assert said == f"rows.csv:3:{column}: error[data-row]: the row can't be fed: {reason}"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "job.json",
            '{"trainers": 2,}',
            "job.json:1:16: error[job-file]: not valid JSON: a key in double quotes is ",
        ),
        (
            "job.json",
            "trainers = 2",
            "job.json:1:1: error[job-file]: not valid JSON: a value is expected, `trainers` ",
        ),
        ("job.toml", '{"trainers": 2}', "job.toml:1:1: error[job-file]: not valid TOML: `key = value` is expected"),
        (
            "job.toml",
            "trainers = two",
            "job.toml:1:12: error[job-file]: not valid TOML: a value is expected: a num",
        ),
    ],
)
def test_job_files(name: str, text: str, told: str, capsys: pytest.CaptureFixture[str]):
    Path(name).write_text(text)
    assert main(["plan", "net.ir", "--config", name]) == 2
    assert capsys.readouterr().err.startswith(told)


def test_metadata_and_plans(capsys: pytest.CaptureFixture[str]):
    assert main(["export", "net.ir", "--to", "pb", "-o", "pb"]) == 0
    Path("pb/meta.json").write_text('{"random_seed": }')
    capsys.readouterr()
    assert main(["import", "pb/main.pb", "--meta", "pb/meta.json"]) == 1
    told = "pb/meta.json:1:17: error[meta-json]: not JSON: a value is expected, `}` is there"
    assert capsys.readouterr().err.splitlines()[0] == told
    assert main(["compile", "net.ir", "--pservers", "1", "-o", "out"]) == 0
    Path("out/plan.json").write_text("{'version': 1}")
    capsys.readouterr()
    assert main(["explain", "out"]) == 1
    assert "not JSON: line 1, column 2: a key in double quotes is expected, `'version':` is there" in (
        capsys.readouterr().err
    )


TEXTS = ["", "{", "[1,", '{"a"', '{"a":1', '"', "tru", "1 2", "[" * 100_000, "9" * 5000, "\\", '"\\u12"']


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:5])
def test_nothing_of_the_library_is_passed_on(text: str):
    with pytest.raises((ValueError, RecursionError)) as raised:
        json.loads(text)
    said = describe_json_error(raised.value)
    assert "Expecting" not in said
    assert "char " not in said
    assert "sys." not in said


def test_a_list_that_lacks_a_number_is_not_called_a_row_without_a_value(capsys: pytest.CaptureFixture[str]):
    told = refusal("d.jsonl", '{"x": [1, null], "n": 1}\n', capsys)
    assert told.endswith("the row can't be fed: a value in the list of x is missing")


def test_truth_values_are_numbers_in_json_as_in_parquet(capsys: pytest.CaptureFixture[str]):
    Path("d.jsonl").write_text('{"x": [1, 2], "n": true}\n{"x": [3, 4], "n": false}\n')
    Path("e.jsonl").write_text('{"x": [1, 2], "n": 1}\n{"x": [3, 4], "n": 0}\n')
    printed: list[str] = []
    for name in ("d.jsonl", "e.jsonl"):
        assert main(["run", "net.ir", "--feed", name, "--batch", "1"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_a_number_among_truth_values(capsys: pytest.CaptureFixture[str]):
    told = refusal("d.jsonl", '{"x": [1, 2], "n": true}\n{"x": [3, 4], "n": 0}\n', capsys)
    assert "n: 0 is not true or false, which the first line has there" in told


def test_lists_of_lists_are_told_with_all_their_levels(capsys: pytest.CaptureFixture[str]):
    told = refusal("d.jsonl", '{"x": [[1, 2], [3, 4]], "n": 1}\n', capsys)
    kinds = "x is float32, the column x is list<item: list<item: float>>"
    assert told == f"d.jsonl: error[data-column]: {kinds}: its lists are nested deeper than those of x"


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_compressed_text_is_told_as_such(format: str, capsys: pytest.CaptureFixture[str]):
    Path("d.gz").write_bytes(gzip.compress(b'{"x": [1, 2], "n": 1}\n'))
    assert main(["run", "net.ir", "--feed", "d.gz", "--batch", "1", "--format", format]) == 1
    told = capsys.readouterr().err
    assert told == "d.gz: error[data-source]: this is a file compressed with gzip; decompress it first\n"


@pytest.mark.parametrize("more", [[], ["--batch", "5"]])
def test_a_python_file_without_the_name_of_a_function(more: list[str], capsys: pytest.CaptureFixture[str]):
    Path("slow.py").write_text("def rows():\n    yield {}\n")
    assert main(["run", "net.ir", "--feed", "slow.py", *more]) == 2
    told = capsys.readouterr().err.splitlines()[0]
    assert told == ("pstranspile run: error: slow.py is a Python script; --feed slow.py:NAME names a function of it")
