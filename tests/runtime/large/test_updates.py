"""Updates of large tables with more rows than are updated at once."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pstranspile.ir.table_rules import Rules
from pstranspile.ops.build import make_op
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.large.table import (
    LargeTable,
    TableState,
    look_up_side_by_side,
    tables_on_threads,
    updates_side_by_side,
)
from pstranspile.runtime.run.bound_ops import bind
from pstranspile.runtime.values import SelectedRows

ROWS, WIDTH = 40_000, 4
SCORES = Rules(shrink_every=3, drop_below=0.5)
STATES = {
    "sgd": (),
    "momentum": ("Velocity",),
    "adagrad": ("Moment",),
    "adam": ("Moment1", "Moment2"),
    "ftrl": ("SquaredAccumulator", "LinearAccumulator"),
    "rmsprop": ("Moment", "MeanSquare"),
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "momentum": {"mu": 0.9},
    "adagrad": {"epsilon": 1e-6},
    "adam": {"lazy_mode": True},
    "ftrl": {"l1": 0.1, "l2": 0.1},
    "rmsprop": {"momentum": 0.9},
}
OUTPUTS = {"SquaredAccumulator": "SquaredAccumOut", "LinearAccumulator": "LinearAccumOut"}


def output(slot: str) -> str:
    """The output slot in which an op gives the new value of an input slot."""
    return OUTPUTS.get(slot, f"{slot}Out")


def update(kind: str, param: Any, states: list[Any], gradient: SelectedRows) -> dict[str, Any]:
    """One update; its results by slot."""
    more = ("Beta1Pow", "Beta2Pow") if kind == "adam" else ()
    values = {"Param": param, "Grad": gradient, "LearningRate": np.array([0.1], "float32")}
    values.update(zip(STATES[kind], states, strict=True))
    values.update({slot: np.array([0.9 - 0.1 * at], "float32") for at, slot in enumerate(more)})
    inputs = {slot: [slot] for slot in values}
    outputs = {output(slot): [slot] for slot in ("Param", *STATES[kind], *more)}
    op = bind(make_op(kind, inputs, outputs, ATTRIBUTES.get(kind, {})))
    made = op.run(*(values.get(argument.slot) for argument in op.arguments))
    slots = [result.slot for result in op.results]
    assert {*outputs} <= {*slots}
    return dict(zip(slots, [made] if len(slots) == 1 else made, strict=True))


@pytest.mark.parametrize("way", ["compiled", "plain", "on disk"])
@pytest.mark.parametrize("kind", list(STATES))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_updated_as_in_a_whole_table(
    kind: str, way: str, dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if way == "plain":
        monkeypatch.setattr(loops, "COMPILED", False)
    random = np.random.default_rng(1)
    ids = random.integers(0, ROWS, 2 * ROWS)
    gradient = SelectedRows(ids, random.normal(size=(len(ids), WIDTH)).astype(dtype), ROWS)
    whole = random.normal(size=(ROWS, WIDTH)).astype(dtype)
    folder = str(tmp_path) if way == "on disk" else None
    table = LargeTable(ROWS, WIDTH, lambda rows: whole[rows], folder=folder, dtype=dtype)
    states = [TableState("Param", table.add_state(0.0), 0.0) for _ in STATES[kind]]
    large = update(kind, table, states, gradient)
    dense = update(kind, whole.copy(), [np.zeros_like(whole) for _ in states], gradient)
    rows = np.unique(ids)
    assert table.whole()[rows].tobytes() == dense["ParamOut"][rows].tobytes()
    others = np.delete(np.arange(ROWS), rows)
    assert len(others)
    assert table.whole()[others].tobytes() == whole[others].tobytes()
    for state, slot in zip(states, STATES[kind], strict=True):
        assert table.whole(state.number)[rows].tobytes() == dense[output(slot)][rows].tobytes()
    for slot in large.keys() & {"Beta1PowOut", "Beta2PowOut"}:
        np.testing.assert_array_equal(large[slot], dense[slot])


def test_an_update_of_many_rows_takes_little_memory():
    count, width = 200_000, 16
    table = LargeTable(count, width, lambda rows: np.zeros((len(rows), width), "float32"))
    states = [TableState("Param", table.add_state(0.0), 0.0)]
    table.fill(np.zeros((count, width), "float32"))
    gradient = SelectedRows(np.arange(count), np.ones((count, width), "float32"), count)
    tracemalloc.start()
    update("adagrad", table, states, gradient)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1.5 * gradient.value.nbytes


FREED = """
import numpy as np
from pathlib import Path
from pstranspile.runtime.large.table import return_freed_arrays


def memory():
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) / 1e3


return_freed_arrays()
before = memory()
for _ in range(2):
    arrays, kept = [np.ones(8 << 20, "uint8") for _ in range(8)], np.ones(1 << 16, "uint8")
    del arrays
print(memory() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_freed_arrays_are_returned_to_the_system():
    command = [sys.executable, "-c", FREED]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert float(done.stdout) < 8


def trained_tables(kind: str, rules: Rules, drawn: Any, dtype: str, threads: int) -> list[bytes]:
    """What three tables hold after updates by the same gradients, side by side if there are several threads."""
    tables = [LargeTable(1 << 40, 3, lambda ids: (ids % 7)[:, None] - np.ones(3), rules=rules, dtype=dtype)]
    tables += [tables[0].like() for _ in range(2)]
    held = [[TableState("Param", table.add_state(0.0), 0.0) for _ in STATES[kind]] for table in tables]
    numbers: list[bytes] = []
    with tables_on_threads(threads):
        for ids, value in drawn:
            with updates_side_by_side():
                made = [
                    update(kind, table, states, SelectedRows(ids * (at + 1), value.astype(dtype), 1 << 40))
                    for at, (table, states) in enumerate(zip(tables, held, strict=True))
                ]
            numbers += [made[0][slot].tobytes() for slot in sorted(made[0]) if "Pow" in slot]
    for table in tables:
        rows = table.rows()
        rows = rows._replace(numbers=np.where(np.isnan(rows.numbers), np.nan, rows.numbers))
        numbers += [np.asarray(field).tobytes() for field in rows]
    return numbers


@st.composite
def gradients(draw: st.DrawFn) -> list[tuple[Any, Any]]:
    """Gradients of a few ids, which repeat, with NaN, -0 and denormal numbers."""
    elements = st.floats(width=32) | st.sampled_from([0.5, -0.0, 1e-40])
    return [
        (
            draw(arrays(np.int64, count, elements=st.integers(0, 9))),
            draw(arrays(np.float32, (count, 3), elements=elements)),
        )
        for count in draw(st.lists(st.integers(0, 12), min_size=1, max_size=5))
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", list(STATES))
@settings(max_examples=25)
@given(gradients(), st.sampled_from([Rules(), Rules(enter_after=2, shrink_every=2, drop_unseen=2), SCORES]))
def test_rows_are_found_and_updated_in_one_pass(kind: str, dtype: str, drawn: Any, rules: Rules) -> None:
    with np.errstate(all="ignore"):
        one = trained_tables(kind, rules, drawn, dtype, 1)
        assert trained_tables(kind, rules, drawn, dtype, 2) == one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LargeTable, "held_update", lambda *_: None)
            assert trained_tables(kind, rules, drawn, dtype, 1) == one
            patch.setattr(loops, "COMPILED", False)
            assert trained_tables(kind, rules, drawn, dtype, 2) == one


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("ids", "width", "message"), [([1, 1 << 41], 3, "Ids holds"), ([1, 2], 2, "reshape")])
def test_a_gradient_that_does_not_fit_changes_no_row(ids: list[int], width: int, message: str, threads: int) -> None:
    table = LargeTable(1 << 40, 3, lambda ids: np.zeros((len(ids), 3), "float32"))
    table.enter(np.array([1, 2]))
    gradient = SelectedRows(np.array(ids), np.ones((2, width), "float32"), 1 << 40)
    with tables_on_threads(threads), updates_side_by_side(), pytest.raises(ValueError, match=message):
        update("sgd", table, [], gradient)
    assert not table.rows().numbers.any()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_of_tables_are_looked_up_side_by_side(threads: int) -> None:
    tables = [LargeTable(1 << 40, 3, lambda ids: (ids % 5)[:, None] * np.ones(3, "float32")) for _ in range(3)]
    for at, table in enumerate(tables):
        table.enter(np.arange(0, 40, at + 1))
    asked = [(table, np.arange(60)[::-1].copy()) for table in tables]
    with tables_on_threads(threads):
        found = look_up_side_by_side(asked)
    for (table, ids), rows in zip(asked, found, strict=True):
        np.testing.assert_array_equal(rows, table.look_up(ids))
    assert look_up_side_by_side([]) == []


@pytest.mark.parametrize("kind", list(STATES))
def test_ranges_of_rows_are_updated_side_by_side_to_the_same_bits(kind: str) -> None:
    random = np.random.default_rng(3)
    drawn = []
    for count in (20_000, 50_000, 30_000):
        ids = random.zipf(1.1, count) % 7_000  # an id in ten is the first one, whose occurrences no thread shares
        drawn.append((ids, random.normal(size=(count, 3)).astype("float32")))
    one = trained_tables(kind, Rules(), drawn, "float32", 1)
    for threads in (2, 5):
        assert trained_tables(kind, Rules(), drawn, "float32", threads) == one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LargeTable, "held_update", lambda *_: None)
        assert trained_tables(kind, Rules(), drawn, "float32", 1) == one


@pytest.mark.parametrize("threads", [2, 5])
def test_ranges_of_ids_are_looked_up_side_by_side(threads: int) -> None:
    table = LargeTable(1 << 40, 3, lambda ids: (ids % 5)[:, None] * np.ones(3, "float32"))
    table.enter(np.arange(0, 30_000, 2))
    ids = np.random.default_rng(4).integers(0, 40_000, 50_000)
    one = table.look_up(ids)
    with tables_on_threads(threads):
        assert table.look_up(ids).tobytes() == one.tobytes()
        rows, few = look_up_side_by_side([(table, ids), (table, ids[:10])])
    assert rows.tobytes() == one.tobytes()
    assert few.tobytes() == one[:10].tobytes()


@settings(max_examples=60)
@given(
    known=st.sets(st.integers(-(2**63), 2**63 - 1), max_size=40),
    new=st.lists(st.integers(-3, 50) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60),
)
def test_ids_without_a_row_are_found_in_order(known: set[int], new: list[int]) -> None:
    table = LargeTable(100, 2, lambda ids: np.zeros((len(ids), 2)), any_id=True)
    table.enter(np.array(sorted(known), "int64"))
    assert table.create_rows(np.array([*new, *list(known)[:3]], "int64")) is loops.COMPILED
    if loops.COMPILED:
        assert table.index.ids[: len(table)].tolist() == [*sorted(known), *sorted({*new} - known)]


@pytest.mark.parametrize("wrong", [-1, 10, 1 << 40])
def test_an_update_of_an_id_outside_creates_no_row(wrong: int) -> None:
    table = LargeTable(10, 2, lambda ids: np.zeros((len(ids), 2), "float32"))
    states = [TableState("Param", table.add_state(0.0), 0.0)]
    update("adagrad", table, states, SelectedRows(np.array([3]), np.ones((1, 2), "float32"), 10))
    before = table.rows()
    with pytest.raises(ValueError, match=f"Ids holds {wrong}, but the table has ids from 0 to 9"):
        update("adagrad", table, states, SelectedRows(np.array([4, wrong, 5]), np.ones((3, 2), "float32"), 10))
    assert table.rows().ids.tolist() == [3]
    assert table.rows().numbers.tobytes() == before.numbers.tobytes()
