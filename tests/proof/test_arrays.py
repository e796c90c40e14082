"""Large arrays are compared in parts, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from pstranspile.proof.causes import fits
from pstranspile.proof.compare import CHUNK, deviation_in_doubles, differ, largest_change, same_bits
from pstranspile.runtime.values import SelectedRows


def test_bits_tell_what_numbers_do_not():
    zeros = np.zeros(CHUNK + 3)
    assert not same_bits(zeros, -zeros)
    assert same_bits(zeros * np.nan, zeros * np.nan)


def test_differences_are_found_in_every_part():
    a = np.ones(CHUNK + 5, "float32")
    b = a.copy()
    b[-1] = 2
    assert differ(b, a, by_element=True) == (False, 1.0)
    assert differ(b, a, by_element=False) == (False, 1.0)
    b[-1] = np.nan
    assert differ(b, a, by_element=True) == (False, float("inf"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("place", [0, CHUNK + 4])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_not_finite_counts_in_every_part(place: int, odd: float):
    a, b = np.ones(CHUNK + 5), np.ones(CHUNK + 5)
    b[place] = odd
    assert deviation_in_doubles(b, a, 1.0) == float("inf")
    assert deviation_in_doubles(b, b + 0, 1.0) == 0.0
    assert largest_change(b, a) == largest_change(b, b + 0) == 0.0
    a[place] = -odd
    assert deviation_in_doubles(b, a, 1.0) == (0.0 if np.isnan(odd) else float("inf"))


@pytest.mark.parametrize("place", [0, CHUNK + 4])
def test_a_mean_is_held_against_every_part_of_the_whole(place: int):
    shares = [np.ones(CHUNK + 5, "float32"), np.full(CHUNK + 5, 3, "float32")]
    whole = np.full(CHUNK + 5, 2, "float32")
    assert fits(whole, shares, [1.0, 1.0])
    assert fits(whole * 0 + 2.5, shares, [1.0, 3.0])
    for wrong in (2.5, np.nan):
        whole[place] = wrong
        assert not fits(whole, shares, [1.0, 1.0])


def test_sparse_rows_are_held_against_rows_of_a_table_of_any_height():
    def rows(*numbers: int) -> SelectedRows:
        return SelectedRows(np.array(numbers), np.ones((len(numbers), 2), "float32"), 1 << 60)

    assert not fits(rows(7, 1 << 50), [rows(7, 7), rows(7, 7, 1 << 50, 1 << 50)], [1.0, 1.0])
    assert fits(rows(7, 1 << 50), [rows(7, 7), rows(1 << 50, 1 << 50)], [1.0, 1.0])
