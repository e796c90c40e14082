"""Large arrays are compared in parts, bit for bit."""

from __future__ import annotations

import numpy as np

from pstranspile.proof.arrays import CHUNK, same_bits
from pstranspile.proof.compare import differ


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
