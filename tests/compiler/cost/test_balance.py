"""Placement by cost: no server moves much more than the mean, or than must be; parts cover their parameter once."""

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.compiler.cost.balance import Item, Moved, NoRoom, PlacedRows, balance_items
from pstranspile.compiler.cost.counts import Range, RowCounts


def loads_of(items: Sequence[Item], parts: Sequence[Sequence[PlacedRows]], servers: int) -> list[float]:
    """What each server moves; every row lies on one server."""
    loads = [0.0] * servers
    for item, cut in zip(items, parts, strict=True):
        assert [part.start for part in cut] == [0, *(part.stop for part in cut[:-1])]
        assert cut[-1].stop == item.moved.rows
        assert all(part.stop - part.start >= min(item.least, item.moved.rows) for part in cut)
        assert item.divisible or len(cut) == 1
        for part in cut:
            loads[part.server] += item.moved.below(part.stop) - item.moved.below(part.start)
    return loads


def zipf(rows: int, exponent: float) -> RowCounts:
    """Row r is looked up in proportion to (r + 1) ** -exponent; told in ranges that grow by a twentieth."""
    ranges: list[Range] = []
    start = 0
    while start < rows:
        stop = min(rows, max(start + 1, start * 21 // 20))
        each = [(row + 1) ** -exponent for row in (range(start, stop) if stop - start < 40 else (start, stop - 1))]
        ranges.append(Range(start, stop, sum(each) / len(each) * (stop - start)))
        start = stop
    return RowCounts(ranges)


def of_mean(items: Sequence[Item], servers: int) -> float:
    loads = loads_of(items, balance_items(items, servers), servers)
    return max(loads) / (sum(loads) / servers)


@pytest.mark.parametrize("seed", range(4))
def test_skewed_tables_of_all_sizes(seed: int):
    draw = random.Random(seed)
    items = [
        Item(str(number), Moved(rows, 0.0, 1e6, zipf(rows, draw.uniform(1.05, 1.4))), 64.0, True)
        for number, rows in enumerate(int(10 ** draw.uniform(3, 7)) for _ in range(26))
    ]
    items += [Item(f"fc_{number}", Moved(400, 1600.0), 4.0, number % 2 == 0, 20) for number in range(7)]
    assert of_mean(items, 8) <= 1.05


def test_a_row_that_is_heavier_than_the_mean_lies_alone():
    hot = Item("hot", Moved(1000, 0.0, 100.0, RowCounts([Range(0, 1, 90), Range(1, 1000, 10)])), 4.0, True)
    others = [Item(str(number), Moved(10, 1.0), 4.0, True) for number in range(3)]
    items = [hot, *others]
    parts = balance_items(items, 4)
    loads = loads_of(items, parts, 4)
    assert max(loads) == pytest.approx(90)
    assert parts[0][0] == PlacedRows(0, 1, parts[0][0].server)


@pytest.mark.parametrize("seed", range(50))
def test_what_cannot_be_cut_is_placed_nearly_as_well_as_can_be(seed: int):
    draw = random.Random(seed)
    servers, count = draw.choice([2, 3]), draw.randint(4, 9)
    weights = [draw.choice([draw.randint(1, 100), int(10 ** draw.uniform(0, 4))]) for _ in range(count)]
    items = [Item(str(number), Moved(1, float(weight)), 1.0, False) for number, weight in enumerate(weights)]
    best = min(
        max(sum(w for w, at in zip(weights, places, strict=True) if at == server) for server in range(servers))
        for places in itertools.product(range(servers), repeat=count)
    )
    assert max(loads_of(items, balance_items(items, servers), servers)) <= 1.02 * best


def _least_part(item: Item, servers: int) -> int:
    """The rows of the largest part of an item that is cut into as many parts as it can have."""
    parts = item.moved.rows // item.least
    return item.least if parts >= servers or not parts else -(-item.moved.rows // parts)


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(0, 50), st.booleans(), st.integers(1, 9)), min_size=1, max_size=9
    ),
    st.integers(1, 6),
)
def test_any_items_are_covered_and_no_server_is_needlessly_busy(
    given_items: list[tuple[int, int, bool, int]], servers: int
):
    items = [
        Item(str(number), Moved(rows, float(weight)), 4.0, cut and rows >= 2 * least, least)
        for number, (rows, weight, cut, least) in enumerate(given_items)
    ]
    loads = loads_of(items, balance_items(items, servers), servers)
    largest = max((item.moved.total for item in items if not item.divisible), default=0.0)
    slack = sum(
        item.moved.each * _least_part(item, servers) for item in items
    )  # where no more rows fit up to the level
    assert max(loads) <= max(2 * largest, largest + sum(loads) / servers) + slack + 1e-9


@pytest.mark.parametrize("room", [90, 100, 200])
def test_no_server_has_more_than_it_has_memory_for(room: int):
    items = [Item(str(number), Moved(10, float(number)), 3.0, True) for number in range(9)]
    parts = balance_items(items, 3, room)
    held = [sum(3 * (p.stop - p.start) for cut in parts for p in cut if p.server == server) for server in range(3)]
    assert max(held) <= room


def test_parts_that_can_not_be_many_are_alike():
    """22 rows in parts of 8 or more are two parts, whatever the number of servers."""
    (parts,) = balance_items([Item("0", Moved(22, 1.0), 4.0, True, 8)], 4)
    assert [part.stop - part.start for part in parts] == [11, 11]


def test_what_finds_no_room_is_named():
    items = [Item("small", Moved(10, 9.0), 1.0, True), Item("large", Moved(10, 1.0), 100.0, True)]
    with pytest.raises(NoRoom, match="large") as problem:
        balance_items(items, 3, 300)
    assert problem.value.memory <= 1000


def test_the_same_items_are_placed_the_same():
    items = [Item(str(number), Moved(7, 1.0), 1.0, number % 2 == 0) for number in range(40)]
    assert balance_items(items, 7) == balance_items(items, 7)
