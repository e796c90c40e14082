"""Ids and their places, beside a dict."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.kernels.random import block_words
from pstranspile.runtime.large import table as tables
from pstranspile.runtime.large.table import IdIndex, distinct, distinct_of_each

IDS = st.lists(st.integers(0, 1 << 62) | st.integers(0, 50), unique=True, max_size=80)


@pytest.fixture(scope="module", params=["compiled", "plain"], autouse=True)
def _with_and_without_loops(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setattr(loops, "COMPILED", False)
        yield


@given(st.lists(IDS, max_size=4), st.integers(1, 4))
def test_ids_are_found_where_they_were_put(batches: list[list[int]], every: int):
    index, known = IdIndex(), dict[int, int]()
    for batch in batches:
        new = [identity for identity in batch if identity not in known]
        index.add(np.array(new, np.int64))
        known.update({identity: len(known) + place for place, identity in enumerate(new)})
        asked = np.array([*known, 51, 52, *batch], np.int64)
        assert index.find(asked).tolist() == [known.get(identity, -1) for identity in asked.tolist()]
    kept = [identity for identity, place in known.items() if place % every == 0]
    index.keep(np.arange(0, len(known), every))
    assert index.ids_by_place.tolist() == kept
    assert index.find(np.array([*known], np.int64)).tolist() == [
        place // every if place % every == 0 else -1 for place in known.values()
    ]


def test_a_large_index_takes_few_bytes_for_each_id():
    index = IdIndex()
    ids = np.random.default_rng(0).permutation(200_000) * 977
    for start in range(0, len(ids), 1000):
        index.add(ids[start : start + 1000])
    assert (index.find(ids[::-1]) == np.arange(len(ids))[::-1]).all()
    assert index.nbytes < 22 * len(ids)


SIGNED = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3)


@given(st.lists(SIGNED, max_size=60))
def test_ids_are_grouped(ids: list[int]):
    found, back = distinct(np.array(ids, np.int64))
    assert found.tolist() == sorted({*ids})
    assert found[back].tolist() == ids


@given(st.lists(st.lists(SIGNED, max_size=40), max_size=6))
def test_ids_are_grouped_in_each_section(sections: list[list[int]]):
    bounds = [0]
    for section in sections:
        bounds.append(bounds[-1] + len(section))
    ids = np.array([identity for section in sections for identity in section], np.int64)
    found, back, ends = distinct_of_each(ids, bounds)
    assert [found[start:stop].tolist() for start, stop in pairwise(ends)] == [sorted({*each}) for each in sections]
    assert found[back].tolist() == ids.tolist()
    for section, (start, stop) in enumerate(pairwise(bounds)):
        assert all(ends[section] <= place < ends[section + 1] for place in back[start:stop])


WORD = st.integers(0, (1 << 64) - 1)


@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=9), st.integers(0, (1 << 128) - 1), WORD, st.booleans())
@example([((1 << 64) - 1, 0)], 0, (1 << 64) - 1, False)
@example([((1 << 64) - 1, (1 << 64) - 1)], 0, (1 << 64) - 1, True)
def test_words_of_blocks_are_those_of_the_generator(drawn: list[tuple[int, int]], key: int, second: int, far: bool):
    blocks, third = (np.array(numbers, np.uint64) for numbers in zip(*drawn, strict=True))
    made = block_words(key, blocks, second, third if far else None)
    for row, block, above in zip(made, blocks.tolist(), third.tolist(), strict=True):
        generator = np.random.Philox(counter=block + (second << 64) + ((above if far else 0) << 128), key=key)
        assert row.tolist() == generator.random_raw(4).tolist()


def test_ids_are_found_while_they_move_to_a_larger_hash_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "_MOVED_AT_ONCE", 0)
    monkeypatch.setattr(tables, "_PREPARED", 4096)
    ids = np.random.default_rng(1).permutation(40_000) * 977 - 5_000_000
    index, moving = IdIndex(), 0
    for start in range(0, len(ids), 100):
        index.add(ids[start : start + 100])
        moving += index.whole is None
        asked = np.concatenate([ids[: start + 100 : 7], [3, 4]])
        assert index.find(asked).tolist() == [*range(0, start + 100, 7), -1, -1]
        if start == 12_300:
            assert index.whole is None
            index.exchange(np.array([0, 5]), np.array([9000, 4]))
            index.exchange(np.array([0, 5]), np.array([9000, 4]))
    assert moving > 50


def test_a_larger_hash_table_takes_all_ids_at_once_where_many_come(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "_MOVED_AT_ONCE", 0)
    index, ids = IdIndex(), np.arange(100_000) * 7
    for start, stop in pairwise([0, 600, 700, 5000, 100_000]):
        index.add(ids[start:stop])
    assert (index.find(ids) == np.arange(len(ids))).all()
    index.keep(np.arange(0, len(ids), 2))
    assert (index.find(ids[::2]) == np.arange(len(ids) // 2)).all()


def test_rows_that_are_seen_elsewhere_stay_where_more_room_is_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "_LARGE", 1)
    rows = tables.MemoryRows((2, 3), np.dtype("float32"))
    rows.require(10)
    rows.array[:10] = np.arange(60).reshape(10, 2, 3)
    seen = rows.array[:10]
    rows.require(200_000)
    assert (rows.array[:10] == seen).all()
    del seen
    rows.require(400_000)
    rows.truncate(9)
    assert (rows.array[:9].reshape(-1) == np.arange(54)).all()
    rows.require(11)
    rows.truncate(0)
    assert not len(rows.array[:0])
