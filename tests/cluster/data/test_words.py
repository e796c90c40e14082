"""Numbers in text are what Python reads in them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.cluster.data.text_files import floats, integers, numbers_of, words_of


def parsed(text: str, make) -> tuple[list, list[bool]]:
    words = words_of(text.encode())
    values, wrong = make(words, numbers_of(words), np.arange(len(words.starts)))
    return values.tolist(), wrong.tolist()


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_integers(numbers):
    assert parsed(" ".join(map(str, numbers)), integers) == (numbers, [False] * len(numbers))


@given(st.lists(st.floats(allow_nan=False) | st.decimals(allow_nan=False, allow_infinity=False).map(str)))
def test_floats(numbers):
    assert parsed("\n ".join(map(str, numbers)), floats) == (list(map(float, numbers)), [False] * len(numbers))


def test_ids_of_64_bits_keep_their_bits():
    assert parsed("18446744073709551615 9223372036854775808", integers)[0] == [-1, -(1 << 63)]


def test_words_that_are_no_numbers():
    text = "1.5 x - . 1-2 18446744073709551616 1_0 -9223372036854775809 +3 ١"
    assert parsed(text, integers)[1] == [True] * 8 + [False, True]
    assert parsed("x - . 1-2 1_0 1.2.3 nan 1e400 .5 5.", floats)[1] == [True] * 6 + [False] * 4


def test_words_of_thousands_of_digits():
    zeros = "0" * 5000
    assert parsed(f"{'9' * 5000} -{'9' * 5000} {zeros}7 -{zeros}7 +{zeros} --{zeros}", integers)[1] == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    assert parsed(f"{zeros}7 -{zeros}7", integers)[0] == [7, -7]
    assert (
        parsed(f"{zeros}7 -{zeros}7 {zeros} {'9' * 5000} -{'9' * 5000} +-5 -", integers)[1] == [False] * 3 + [True] * 4
    )
    assert parsed(f"{zeros}7 -{zeros}7 {zeros}", integers)[0] == [7, -7, 0]
