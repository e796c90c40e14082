"""Ids and their places, beside a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.runtime.large.table import IdIndex

IDS = st.lists(st.integers(0, 1 << 62) | st.integers(0, 50), unique=True, max_size=80)


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
    assert index.held.tolist() == kept
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
