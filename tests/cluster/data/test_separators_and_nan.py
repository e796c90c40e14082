"""CSV with other signs between its fields, and NaN in rows and arrays: told, with the place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.data.source import MOST_COUNTED
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main

pytest.importorskip("pyarrow")

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "linear_regression.ir")
NAMES = [*(f"f{number}" for number in range(13)), "y"]
COLUMNS = ["--columns", "x=f*"]


def numbers(nan: tuple[tuple[int, int], ...] = (), rows: int = 8) -> Any:
    values = np.random.RandomState(0).rand(rows, 14).astype("float32").round(3)
    for row, column in nan:
        values[row, column] = np.nan
    return values


def table(values: Any, separator: str = ",", names: bool = True) -> str:
    lines = [[f"{number:.3f}" for number in row] for row in values]
    return "\n".join(separator.join(line) for line in [*([NAMES] if names else []), *lines]) + "\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.chdir(tmp_path)


def ran(*options: str, capsys: pytest.CaptureFixture[str], status: int = 0, verb: str = "run") -> tuple[str, str]:
    assert main([verb, EXAMPLE, *options]) == status
    out, err = capsys.readouterr()
    return out, err


@pytest.mark.parametrize(
    ("sign", "given", "said", "python"),
    [(";", ";", "';'", "';'"), ("\t", "tab", "tabs", r"'\t'"), ("|", "|", "'|'", "'|'")],
)
def test_another_sign_between_fields(sign: str, given: str, said: str, python: str, capsys: pytest.CaptureFixture[str]):
    Path("d.csv").write_text(table(numbers(), sign))
    Path("e.csv").write_text(table(numbers()))
    feed = ["--feed", "d.csv", "--batch", "4", *COLUMNS]
    _, err = ran(*feed, capsys=capsys, status=1)
    option = given if given == "tab" else f"'{given}'"
    told = f"the fields of its first line stand between {said}, which --separator {option} says"
    assert err.splitlines()[-1] == f"note: {told} (in Python: separator={python})"
    assert "is taken for names" not in err
    same, _ = ran("--feed", "e.csv", *feed[2:], capsys=capsys)
    assert ran(*feed, "--separator", given, capsys=capsys) == (same, "")
    job = ["--pservers", "1", "--trainers", "2"]
    simulated, _ = ran(*feed, *job, "--separator", given, capsys=capsys)
    assert ran(*feed, *job, "--separator", given, capsys=capsys, verb="launch") == (simulated, "")
    Path("d.csv").write_text(table(numbers(), sign, names=False))
    _, err = ran(*feed, "--names", ",".join(NAMES), capsys=capsys, status=1)
    assert err.startswith(f"d.csv: error[data-source]: its rows have one field each, not 14: {told}")


def test_signs_that_separate_nothing(capsys: pytest.CaptureFixture[str]):
    Path("d.csv").write_text(table(numbers()))
    Path("d.jsonl").write_text("{}\n")
    for sign in ("", "ab", "x", "1", ".", "-", "'", "\n", "é"):
        _, err = ran("--feed", "d.csv", "--batch", "4", f"--separator={sign}", capsys=capsys, status=2)
        assert "is no sign between fields, such as ';' or tab" in err
        if sign:
            with pytest.raises(ValueError, match=r"separator is .*; it must be a sign between fields"):
                ps.Data("d.csv", batch=4, separator=sign)
    _, err = ran("--feed", "d.jsonl", "--batch", "4", "--separator", ";", capsys=capsys, status=1)
    assert "it has no sign between fields; one (--separator) is for csv and tsv" in err
    _, err = ran("--separator", ";", capsys=capsys, status=2)
    assert "--separator is about rows, and --feed names none" in err


def written(kind: str, values: Any) -> str:
    """A file of rows."""
    import pyarrow
    from pyarrow import parquet

    if kind == "csv":
        Path("d.csv").write_text(table(values))
    elif kind == "parquet":
        columns = {name: pyarrow.array(values[:, number]) for number, name in enumerate(NAMES)}
        parquet.write_table(pyarrow.table(columns), "d.parquet", row_group_size=3)
    else:
        lines = (json.dumps(dict(zip(NAMES, map(float, row), strict=True))) for row in values)
        Path("d.jsonl").write_text("\n".join(lines))
    return f"d.{kind}"


def places(file: str) -> Callable[[int], str]:
    """The place of a row in messages: its line, where rows are lines."""
    if file.endswith(".parquet"):
        return lambda _: file
    return lambda row: f"{file}:{row + file.endswith('.csv')}:1"


def findings(err: str) -> list[str]:
    """The findings that are told; below those of a line stand the line and its mark, and nothing else."""
    lines = err.splitlines()
    told = [at for at, line in enumerate(lines) if not line.startswith("  ")]
    for at in told:
        quoted = 2 * bool(re.search(r":[0-9]+:1: ", lines[at]))
        assert [*told, len(lines)][told.index(at) + 1] == at + 1 + quoted
    return [lines[at] for at in told]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_nan_in_rows_is_told_once_for_each_column(kind: str, capsys: pytest.CaptureFixture[str]):
    file = written(kind, numbers(((1, 2), (5, 2), (7, 2), (4, 13))))
    at = places(file)
    told = [
        f"{at(2)}: warning[data-nan]: the column f2 is NaN in row 2 (and in 2 more)",
        f"{at(5)}: warning[data-nan]: the column y is NaN in row 5",
    ]
    feed = ["--feed", file, "--batch", "4", *COLUMNS]
    job = ["--pservers", "1", "--trainers", "2"]
    assert findings(ran(*feed, "--epochs", "2", "--shuffle", "1", capsys=capsys)[1]) == told
    assert findings(ran(*feed, *job, capsys=capsys)[1]) == told
    _, err = ran(*feed, *job, capsys=capsys, verb="launch")
    assert [line.removeprefix(f"{Path.cwd()}/") for line in findings(err)] == told
    one_step = ran(*feed, "--steps", "1", capsys=capsys)[1]  # what is not fed is not told
    assert findings(one_step) == [f"{at(2)}: warning[data-nan]: the column f2 is NaN in row 2"]


def test_rows_without_nan_and_rows_left_out_tell_nothing_of_nan(capsys: pytest.CaptureFixture[str]):
    values = numbers(((1, 2), (5, 2)))
    values[6, 3] = np.inf
    lines = table(values).splitlines()
    lines[2] += ",1"  # the row with NaN has a field too many
    Path("d.csv").write_text("\n".join(lines))
    _, err = ran("--feed", "d.csv", "--batch", "4", *COLUMNS, "--bad-rows", "skip", capsys=capsys)
    assert "the column f2 is NaN in row 6\n" in err
    assert err.count("warning[data-nan]") == 1


def test_many_rows_with_nan_are_counted_up_to_a_bound(capsys: pytest.CaptureFixture[str]):
    rows = MOST_COUNTED + 500
    Path("d.csv").write_text(table(numbers(tuple((row, 0) for row in range(rows)), rows)))
    _, err = ran("--feed", "d.csv", "--batch", "500", *COLUMNS, capsys=capsys)
    assert findings(err) == ["d.csv:2:1: warning[data-nan]: the column f0 is NaN in row 1 (and in 999 or more)"]


def test_nan_in_ragged_rows_and_in_one_column_of_lists():
    import pyarrow
    from pyarrow import parquet

    from pstranspile.cluster.data.columns import Column, rows_with_nan

    ragged = Column(np.array([[1.0], [np.nan], [2.0], [np.nan]], "float32"), (np.array([0, 1, 1, 3, 4]),))
    assert {name: rows.tolist() for name, rows in rows_with_nan(ragged, ["a"]).items()} == {"a": [2, 3]}
    values = numbers(((3, 0), (6, 1)))
    kind = pyarrow.list_(pyarrow.float32(), 13)
    x = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values[:, :13].ravel()), 13).cast(kind)
    parquet.write_table(pyarrow.table({"x": x, "y": pyarrow.array(values[:, 13])}), "d.parquet")
    module = ps.load(EXAMPLE)
    done = ps.simulate(ps.compile(module, ps.Job(pservers=1)), ps.Data("d.parquet", batch=4))
    assert [finding.message for finding in done.warnings] == ["the column x is NaN in row 4 (and in 1 more)"]


def test_numbers_of_lists_of_one_size_that_do_not_fit_are_told_with_their_row():
    """By the row of the list, not the number of the element."""
    import pyarrow
    from pyarrow import parquet

    text = "ir 1\nprogram @main {\n  block ^0 {\n    temp %x : i32[-1, 3] feed\n    temp %o : i32[-1, 3]\n"
    module = ps.loads(f"{text}    scale(X=%x) -> Out=%o\n  }}\n}}\n")
    big = [1] * 9
    big[7] = 1 << 40
    x = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(big, "int64"), 3)
    parquet.write_table(pyarrow.table({"x": x}), "d.parquet")
    data = ps.Data("d.parquet", batch=3)
    (feed,), _ = data.feeds([module.main])
    with pytest.raises(DiagnosticError, match=r"row 3 can't be fed: x holds a number that int32 can't"):
        feed(0)


@pytest.mark.parametrize("verb", ["run", "check", "launch"])
def test_nan_in_arrays_of_a_feed(verb: str, capsys: pytest.CaptureFixture[str]):
    x = np.ones((3, 4, 13), "float32")
    x[1, 2, 0] = x[1, 2, 1] = x[2, 0, 0] = np.nan
    np.savez("d.npz", x=x, y=np.ones((3, 4, 1), "float32"))
    job = [] if verb == "run" else ["--pservers", "1", "--trainers", "2"]
    main([verb, EXAMPLE, "--feed", "d.npz", *job])
    told = [line for line in capsys.readouterr().err.splitlines() if "data-nan" in line]
    assert told == ["d.npz: warning[data-nan]: the array x is NaN in step 2, row 3 (and in 1 more)"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_infinity_in_rows_is_told_as_nan_is(kind: str, capsys: pytest.CaptureFixture[str]):
    values = numbers(((1, 2),))
    values[2, 2], values[6, 2], values[4, 13] = np.inf, -np.inf, np.inf
    file = written(kind, values)
    at = places(file)
    told = [
        f"{at(2)}: warning[data-nan]: the column f2 is NaN in row 2",
        f"{at(3)}: warning[data-infinite]: the column f2 is infinite in row 3 (and in 1 more)",
        f"{at(5)}: warning[data-infinite]: the column y is infinite in row 5",
    ]
    feed = ["--feed", file, "--batch", "4", *COLUMNS]
    job = ["--pservers", "1", "--trainers", "2"]
    assert findings(ran(*feed, capsys=capsys)[1]) == told
    _, err = ran(*feed, *job, capsys=capsys, verb="launch")
    assert [line.removeprefix(f"{Path.cwd()}/") for line in findings(err)] == told


@pytest.mark.parametrize("verb", ["run", "check", "launch"])
def test_infinity_in_arrays_of_a_feed_and_steps_without_rows(verb: str, capsys: pytest.CaptureFixture[str]):
    x = np.ones((3, 4, 13), "float32")
    x[1, 2, 0] = x[2, 0, 0] = np.inf
    np.savez("d.npz", x=x, y=np.ones((3, 4, 1), "float32"))
    job = [] if verb == "run" else ["--pservers", "1", "--trainers", "2"]
    main([verb, EXAMPLE, "--feed", "d.npz", *job])
    told = [line for line in capsys.readouterr().err.splitlines() if "data-" in line]
    assert told == ["d.npz: warning[data-infinite]: the array x is infinite in step 2, row 3 (and in 1 more)"]
    np.savez("d.npz", x=np.ones((3, 0, 13), "float32"), y=np.ones((3, 0, 1), "float32"))
    main([verb, EXAMPLE, "--feed", "d.npz", *job])
    told = [line for line in capsys.readouterr().err.splitlines() if "data-" in line]
    assert told == [
        f"d.npz: warning[data-empty]: the array {name} has no rows in any step, which trains nothing" for name in "xy"
    ]


def test_single_steps_without_rows_are_told_with_the_first(capsys: pytest.CaptureFixture[str]):
    x, y = np.ones((4, 13), "float32"), np.ones((4, 1), "float32")
    arrays: dict[str, Any] = {}
    for step in range(1, 5):
        rows = 0 if step in (2, 4) else 4
        arrays |= {f"{step}|x": x[:rows], f"{step}|y": y[:rows]}
    np.savez("d.npz", **arrays)  # pyright: ignore[reportArgumentType]
    told = [line for line in ran("--feed", "d.npz", capsys=capsys)[1].splitlines() if "data-" in line]
    assert told == [
        f"d.npz: warning[data-empty]: the array {name} has no rows in step 2 (and in 1 more), which trains nothing"
        for name in "xy"
    ]
