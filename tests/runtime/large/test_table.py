"""Rows of large tables: when they enter, what they begin with, when they leave, and what is kept of them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.cluster.machines.snapshots import Snapshot, read_snapshot, write_snapshot
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.table_rules import Rules, parse_table
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.kernels.random import (
    ScatteredRows,
    chances,
    normal,
    stream_key,
    truncated_normal,
    uniform,
)
from pstranspile.runtime.large import table as tables
from pstranspile.runtime.large.forms import (
    TablePart,
    arrays_of,
    concat_tables,
    part_of_rows,
    rows_from,
    streams_of,
    table_from_parts,
    table_with,
    written,
)
from pstranspile.runtime.large.table import DrawnValues, LargeTable, TableState
from pstranspile.runtime.values import SelectedRows
from pstranspile.runtime.values.encoding import encode

KEY = stream_key(7, "table")


def table(rules: str = "", height: int = 1000, width: int = 3) -> LargeTable:
    def initial(ids: Any) -> Any:
        drawn = uniform(ScatteredRows(KEY, 0, ids, width), 0, len(ids) * width, -1.0, 1.0)
        return drawn.reshape(len(ids), width)

    made = LargeTable(
        height,
        width,
        initial,
        chances=lambda ids, turn: chances(KEY, ids, turn),
        rules=parse_table(f"t {rules}")[1],
    )
    made.add_state(0.5)
    return made


def update(held: LargeTable, *ids: int) -> list[int]:
    """An update that adds 1 to the numbers of these rows; gives the ids that have a row."""
    asked = np.array(sorted(ids), np.int64)
    places, kept = held.enter(asked)
    held.put(places, held.take(places) + 1)
    held.end_update()
    return asked[kept].tolist()


@given(
    st.lists(st.integers(0, (1 << 63) - 1) | st.integers(0, 50), min_size=1, max_size=20),
    st.integers(1, 40),
    st.integers(0, 1 << 40),
    st.tuples(st.floats(-4, 4), st.floats(-4, 4)).map(sorted),
)
def test_even_numbers_are_drawn_as_without_compiled_loops(ids: list[int], width: int, first: int, limits: list[float]):
    rows = ScatteredRows(KEY, first, np.array(ids), width)
    found = uniform(rows, 0, len(ids) * width, *limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "COMPILED", False)
        assert found.tobytes() == uniform(rows, 0, len(ids) * width, *limits).tobytes()


def test_rows_that_were_looked_up_are_not_drawn_again():
    asked: list[list[int]] = []

    def draw(ids: Any) -> Any:
        asked.append(ids.tolist())
        return np.stack([ids, ids], axis=1).astype(np.float32)

    drawn = DrawnValues(draw)
    for ids in ([1, 5, 9], [2, 5, 7], [100]):
        drawn.look_up(np.array(ids))
    assert drawn.take(np.array([1, 2, 3, 9])).tolist() == [[1, 1], [2, 2], [3, 3], [9, 9]]
    assert drawn.take(np.array([100])).tolist() == [[100, 100]]
    assert asked == [[1, 5, 9], [2, 5, 7], [100], [3]]
    assert drawn.take(np.array([5])).tolist() == [[5, 5]]
    assert asked[4:] == [[5]]


def test_few_rows_are_remembered():
    counts: list[int] = []

    def draw(ids: Any) -> Any:
        counts.append(len(ids))
        return np.zeros((len(ids), 1), np.float32)

    drawn = DrawnValues(draw)
    for start in range(0, 60_000, 3000):
        drawn.look_up(np.arange(start, start + 3000))
    assert len(drawn.take(np.arange(60_000))) == 60_000
    assert counts[-1] >= 60_000 - (1 << 14)


@pytest.mark.parametrize("draw", [uniform, normal, truncated_normal])
@pytest.mark.parametrize(("width", "first"), [(16, 0), (7, 0), (3, 9), (1, 5)])
def test_rows_begin_as_those_of_the_whole(draw: Any, width: int, first: int):
    whole = draw(KEY, first, 500 * width).reshape(500, width)
    ids = np.array([0, 499, 7, 8, 7, 250])
    drawn = draw(ScatteredRows(KEY, first, ids, width), 0, ids.size * width)
    np.testing.assert_array_equal(drawn.reshape(len(ids), width), whole[ids])


def test_rows_far_out_begin_with_numbers_of_their_own():
    far = (1 << 58) - 3
    drawn = uniform(ScatteredRows(KEY, 0, np.array([far]), 16), 0, 16)
    np.testing.assert_array_equal(drawn, uniform(KEY, far * 16, 16))


def test_lookups_change_nothing():
    held = table()
    before = held.look_up(np.array([5, 3, 5]))
    assert len(held) == 0
    assert (before[0] == before[2]).all()
    update(held, 5)
    np.testing.assert_array_equal(held.look_up(np.array([3, 5])), [before[1], before[0] + 1])
    assert held.take(np.array([0])).tolist()[0][1] == [1.5, 1.5, 1.5]
    with pytest.raises(ValueError, match="Ids holds 1000, but the table has ids from 0 to 999"):
        held.look_up(np.array([1000]))


def test_a_row_enters_with_its_kth_gradient():
    held = table("enter_after=3")
    assert update(held, 1, 2) == []
    assert update(held, 1) == []
    assert held.look_up(np.array([1])).tolist() == [[0, 0, 0]]
    assert update(held, 1, 2) == [1]
    assert update(held, 2) == [2]
    assert (held.look_up(np.array([1])) != 0).all()
    assert len(held) == 2


def test_rows_enter_with_the_probability_that_is_given():
    for chance in (0.1, 0.9):
        held, other = table(f"enter_chance={chance}", height=20_000), table(f"enter_chance={chance}", height=20_000)
        ids = np.arange(20_000)
        places, kept = held.enter(ids)
        assert abs(kept.mean() - chance) < 0.01
        held.put(places, held.take(places))
        held.end_update()
        _, again = other.enter(ids)
        np.testing.assert_array_equal(kept, again)
        _, later = held.enter(ids)  # drawn anew
        assert abs(later.mean() - (1 - (1 - chance) ** 2)) < 0.01


def test_rows_that_are_not_seen_leave():
    held = table("shrink_every=4 drop_unseen=2")
    update(held, 1, 2)
    update(held, 2)
    update(held, 3)
    assert len(held) == 3
    update(held, 4)
    assert held.rows().ids.tolist() == [2, 3, 4]
    assert held.dropped_ids().tolist() == [1]
    assert update(held, 1) == [1]
    assert held.dropped_ids().tolist() == []


def test_rows_of_a_low_score_leave():
    held = table("shrink_every=3 drop_below=0.9 score_decay=0.5")
    update(held, 1, 2)
    update(held, 1)
    update(held, 3)
    assert held.rows().ids.tolist() == [1]  # 2 of 2 and 1 of 1, halved
    assert held.rows().scores.tolist() == [1.0]


def test_ids_that_wait_leave_as_well():
    held = table("enter_after=2 shrink_every=3 drop_unseen=1")
    update(held, 1)
    update(held, 2)
    update(held, 3)
    assert held.rows().waiting.tolist() == [2, 3]
    assert update(held, 1, 3) == [3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("t enter_after=0", "enter_after is 0"),
        ("t enter_chance=0", "enter_chance is 0.0; it must be above 0"),
        ("t drop_unseen=3", "need shrink_every"),
        ("t shrink_every=3", "shrink_every needs"),
        ("t enter_after=1.5", "enter_after takes a whole number, not '1.5'"),
        ("t after=2", "after=2 is none of its rules, which are enter_after, "),
    ],
)
def test_rules_that_can_not_be(text: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        parse_table(text)


def busy() -> LargeTable:
    held = table("enter_after=2 shrink_every=5 drop_unseen=3 drop_below=0.1")
    random = np.random.default_rng(1)
    for _ in range(23):
        update(held, *np.unique(random.integers(0, 60, 12) * 16).tolist())
    return held


def require_same(one: LargeTable, other: LargeTable) -> None:
    for name, value in one.rows()._asdict().items():
        np.testing.assert_array_equal(value, getattr(other.rows(), name), err_msg=name)


def test_what_is_kept_makes_the_table_again_whatever_the_parts():
    held = busy()
    rows = rows_from(arrays_of(held.rows()))
    require_same(table_with(rows, held), held)
    like = LargeTable(500, 3, held.initial, chances=held.chances, rules=held.rules)
    like.add_state(0.5)
    parts = [table_with(part_of_rows(rows, start, start + 500), like) for start in (0, 500)]
    assert all(len(part) for part in parts)
    require_same(table_with(concat_tables(parts[::-1], [500, 0]), held), held)
    again = held.copy()
    update(again, 3, 48)
    update(held, 3, 48)
    require_same(again, held)


def test_tables_are_written_in_pieces_as_in_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pstranspile.runtime.large.forms.AT_ONCE", 7)
    held = busy()
    whole = arrays_of(concat_tables([held, held.rows()], [0, 1000]))
    streams = streams_of([TablePart(1000, held.rows()), TablePart(0, held)])
    assert streams.keys() == whole.keys()
    for name, value in whole.items():
        assert b"".join(written(streams[name])) == b"".join(encode(value)), name


def test_the_kept_state_of_a_server_has_its_tables(tmp_path: Path):
    held, file = busy(), tmp_path / "kept"
    values = {"table": held, "moment": TableState("table", 1, 0.5), "lr": np.ones(1, "float32")}
    write_snapshot(file, "pserver_0", Snapshot(values, {}, {}, {}, {}))
    kept = read_snapshot(file, "pserver_0").values
    require_same(table_with(kept["table"], held), held)
    assert kept["moment"] == values["moment"]
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DiagnosticError, match="is damaged"):
        read_snapshot(file, "pserver_0")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DiagnosticError, match=r"output-foreign.*is a link, a pipe or a folder"):
        write_snapshot(tmp_path / "folder", "pserver_0", Snapshot(values, {}, {}, {}, {}))


def test_changed_rows_and_those_that_left_are_known_until_they_are_saved():
    held = table("shrink_every=100 drop_unseen=100")
    update(held, 1, 2, 3)
    held.mark_saved()
    update(held, 2, 9)
    held.shrink(unseen=0, below=0)
    assert held.index.ids[held.changed_places()].tolist() == [2, 9]
    held.shrink(unseen=1)
    update(held, 4)
    held.shrink(unseen=1)
    assert held.dropped_ids().tolist() == [1, 3]
    held.mark_saved()
    assert not len(held.changed_places())
    assert not len(held.dropped_ids())


def test_rows_leave_that_had_no_gradient_for_some_calls():
    held = table()
    update(held, 1, 2, 3)
    assert held.shrink_after(3) == held.shrink_after(3) == 0
    update(held, 2)
    assert held.shrink_after(3) == 2
    update(held, 5)
    assert held.index.ids_by_place.tolist() == [2, 5]
    assert held.shrink_after(2) == 1
    assert held.index.ids_by_place.tolist() == [5]
    assert held.shrink_after(1) == 1
    assert not len(held)


def test_all_rows_can_be_given():
    held = table(height=10)
    given = np.arange(30, dtype="float32").reshape(10, 3)
    held.fill(given)
    update(held, 4)
    given[4] += 1
    np.testing.assert_array_equal(held.whole(), given)
    assert held.whole(1)[:5, 0].tolist() == [0.5, 0.5, 0.5, 0.5, 1.5]
    with pytest.raises(ValueError, match=r"it has dims \[9, 3\], the table \[10, 3\]"):
        held.fill(given[1:])


def test_a_part_of_a_table_is_made_of_the_values_of_its_rows():
    held = table(height=10)
    ids = np.array([3, 12, 17], np.int64)
    values = [np.full((3, 3), number, np.float32) + ids[:, None] for number in (0, 1)]
    parts = [SelectedRows(ids, value, 20) for value in values]
    rows = table_from_parts(held, parts, 10).rows()
    assert rows.ids.tolist() == [2, 7]
    assert rows.numbers[:, :, 0].tolist() == [[12.0, 13.0], [17.0, 18.0]]
    with pytest.raises(ValueError, match="hold different rows"):
        table_from_parts(held, [parts[0], SelectedRows(ids + 1, values[1], 20)], 10)


def test_rules_have_defaults_that_change_nothing():
    assert Rules().at_once
    assert parse_table("words") == ("words", Rules())


def test_a_state_is_kept_and_read_without_the_tables_numbers_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pstranspile.runtime.large.forms.AT_ONCE", 1 << 10)
    held, file = table(height=1 << 20, width=64), tmp_path / "kept"
    update(held, *range(30_000))  # 15 MB of numbers
    tracemalloc.start()
    try:
        write_snapshot(file, "pserver_0", Snapshot({"table": held}, {}, {}, {}, {}))
        kept = read_snapshot(file, "pserver_0").values["table"]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 5e6
    require_same(table_with(kept, held), held)


def test_rows_are_the_same_while_ids_move_to_a_larger_hash_table(monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(2)
    sets = [random.integers(0, 3000, 200) for _ in range(60)]

    def trained(moved: int) -> list[Any]:
        monkeypatch.setattr(tables, "_MOVED_AT_ONCE", moved)
        held, found = table(height=3000), list[Any]()
        for ids in sets:
            found.append(held.look_up(ids))
            update(held, *{*ids.tolist()})
        return [*found, held.look_up(np.arange(3000))]

    assert all((one == other).all() for one, other in zip(trained(0), trained(1 << 17), strict=True))
