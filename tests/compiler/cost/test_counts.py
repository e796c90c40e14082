"""Counts of ids: as data have them, as files hold them, and what is wrong with a file."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile.compiler.cost.counts import RANGES, IdCounts, Range, RowCounts, counts_of, counts_text, read_counts


@given(st.dictionaries(st.integers(0, 500), st.integers(1, 50)))
def test_few_ids_are_counted_one_by_one(numbers: dict[int, int]):
    counts = counts_of(numbers)
    assert counts.total == sum(numbers.values())
    for row in range(502):
        assert counts.below(row) == pytest.approx(sum(count for id_, count in numbers.items() if id_ < row))


def test_many_ids_are_joined_and_frequent_ones_stay_alone():
    numbers = dict.fromkeys(range(0, 300000, 2), 1) | {8: 5000, 77: 900}
    counts = counts_of(numbers)
    assert len(counts.ranges) <= RANGES + 4
    assert Range(8, 9, 5000) in counts.ranges
    assert Range(77, 78, 900) in counts.ranges
    assert counts.total == sum(numbers.values())
    for row in (9, 78, 1000, 150_001, 299_000):
        exact = sum(count for id_, count in numbers.items() if id_ < row)
        assert counts.below(row) == pytest.approx(exact, abs=3 * counts.total / RANGES)


def test_a_file_of_counts_is_read_as_it_was_written(tmp_path: Path):
    counts = IdCounts(64, {"b": RowCounts([Range(0, 1, 7), Range(3, 90, 20)]), "a": RowCounts([])})
    (tmp_path / "ids.json").write_text(counts_text(counts))
    assert read_counts(str(tmp_path / "ids.json")) == counts


TABLE = {"table": "w", "ranges": [[0, 1, 3]]}


def counts_with(*ranges: object) -> dict[str, object]:
    return {"version": 1, "batch_rows": 1, "tables": [{**TABLE, "ranges": [*ranges]}]}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("[", "a value is expected"),
        ([], "holds no counts"),
        ({"version": 2, "batch_rows": 1, "tables": []}, "version is 2"),
        ({"version": 1, "batch_rows": 0, "tables": []}, "`batch_rows` must be a whole number above 0"),
        ({"version": 1, "batch_rows": True, "tables": []}, "`batch_rows` must be"),
        ({"version": 1, "batch_rows": 1, "tables": {}}, "`tables` a list"),
        ({"version": 1, "batch_rows": 1, "tables": [7]}, "table 0 has no name"),
        ({"version": 1, "batch_rows": 1, "tables": [TABLE, TABLE]}, "table w is there twice"),
        (counts_with([2, 1, 3]), r"a range of w is \[2, 1, 3\]"),
        (counts_with([0, 1, -3]), r"a range of w is \[0, 1, -3\]"),
        (counts_with([0, 2, 1], [1, 3, 1]), r"a range of w is \[1, 3, 1\]"),
        (counts_with([0, 1e400, 1]), "a range of w"),
        (counts_with("x"), "a range of w"),
        (counts_with([0, 2.0, 1]), r"a range of w is \[0, 2.0, 1\]"),
    ],
)
def test_what_is_wrong_with_a_file(held: object, said: str, tmp_path: Path):
    path = tmp_path / "ids.json"
    path.write_text(held if isinstance(held, str) else json.dumps(held))
    with pytest.raises(ps.DiagnosticError, match=said) as problem:
        read_counts(str(path))
    (found,) = problem.value.diagnostics
    assert found.code == "id-counts"
    assert found.location is not None
    assert found.location.file == str(path)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ps.DiagnosticError, match="No such file"):
        read_counts(str(tmp_path / "none.json"))
