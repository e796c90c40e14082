"""Copies that share what has not changed are, bit for bit, what was copied."""

from __future__ import annotations

import numpy as np
import pytest

from pstranspile.proof.compare import differ, plain
from pstranspile.proof.keeping import BLOCK, CHUNK, Patched, kept, same_bits


@pytest.mark.parametrize("size", [3, BLOCK, 5 * BLOCK + 7, CHUNK + 3 * BLOCK + 1])
@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_what_is_kept_is_what_was_there(size: int, kind: str):
    start = np.arange(size).astype(kind)
    before, value = kept(start), start.copy()
    assert before is not start
    for place in (0, size // 2, size - 1):
        value[place] += 1
        before = kept(value, before)
        assert same_bits(plain(before), value)
    assert same_bits(start, np.arange(size).astype(kind))


def test_what_has_not_changed_is_shared():
    start = kept(np.zeros((50 * BLOCK, 2), "float32"))
    value = start.copy()
    assert kept(value, start) is start
    value[7] = 1
    found = kept(value, start)
    assert isinstance(found, Patched)
    assert found.base is start
    assert found.blocks.size == BLOCK
    value[:] = 2
    assert not isinstance(kept(value, found), Patched)


def test_bits_tell_what_numbers_do_not():
    zeros = np.zeros(3 * BLOCK)
    assert not same_bits(zeros, -zeros)
    assert same_bits(zeros * np.nan, zeros * np.nan)
    assert same_bits(kept(-zeros, zeros), -zeros)


def test_differences_are_found_in_every_part():
    a = np.ones(CHUNK + 5, "float32")
    b = a.copy()
    b[-1] = 2
    assert differ(b, a, by_element=True) == (False, 1.0)
    assert differ(b, a, by_element=False) == (False, 1.0)
    b[-1] = np.nan
    assert differ(b, a, by_element=True) == (False, float("inf"))
