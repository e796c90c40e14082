"""Numbers of text, many at once: where they stand in a block, and what they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.values import Array

_SPACE, _DOT, _MINUS, _PLUS, _ZERO = 32, 46, 45, 43, 48


class Words(NamedTuple):
    """The words of a text, which white space divides: where each starts and stops."""

    data: Array
    starts: Array
    stops: Array

    def text(self, word: int) -> str:
        """A word."""
        return self.data[int(self.starts[word]) : int(self.stops[word])].tobytes().decode("ascii", "replace")


class Numbers(NamedTuple):
    """The numbers that words are: `digits` over ten to the power of `scale`, below 0 where `negative`.

    `odd` marks words that are no such number, or one of more digits than 64 bits hold.
    """

    digits: Array
    scale: Array
    negative: Array
    odd: Array


def words_of(data: bytes) -> Words:
    """The words of a text."""
    array = np.frombuffer(data, "uint8")
    edges = np.flatnonzero(np.diff((array > _SPACE).view("int8"), prepend=0, append=0))
    return Words(array, edges[::2], edges[1::2])


def numbers_of(words: Words) -> Numbers:
    """What the words are as numbers."""
    count, sizes = len(words.starts), words.stops - words.starts
    digits, scale = np.zeros(count, "uint64"), np.zeros(count, "int8")
    odd, dotted = np.zeros(count, bool), np.zeros(count, bool)
    first = words.data[words.starts] if count else np.zeros(0, "uint8")
    negative = first == _MINUS
    signed = negative | (first == _PLUS)
    at, place, left = words.starts, np.arange(count), sizes
    everything = True
    for column in range(int(sizes.max(initial=0))):
        if column:
            keep = left > column
            at, place, left, everything = at[keep], place[keep], left[keep], everything and bool(keep.all())
        here = words.data[at + column]
        digit = here - np.uint8(_ZERO)
        plain = digit < 10
        if plain.all():
            target: Array = slice(None) if everything else place
            digits[target] = digits[target] * np.uint64(10) + digit
            if dotted.any():
                scale[target] += dotted[target]
            continue
        sign = signed[place] if column == 0 else np.zeros(len(place), bool)
        dot = (here == _DOT) & ~dotted[place]
        odd[place[~(plain | dot | sign)]] = True
        some = place[plain]
        digits[some] = digits[some] * np.uint64(10) + digit[plain]
        scale[some] += dotted[some]
        dotted[place[dot]] = True
    odd |= (sizes - signed - dotted < 1) | (sizes - signed - dotted > 19)
    return Numbers(digits, scale, negative, odd)


def integers(words: Words, numbers: Numbers, chosen: Array) -> tuple[Array, Array]:
    """The chosen words as int64, and which of them are no whole numbers. Ids of 64 bits keep their bits."""
    values = numbers.digits[chosen]
    wrong = numbers.odd[chosen] | numbers.scale[chosen].astype(bool)
    result = values.view("int64").copy()
    minus = numbers.negative[chosen]
    wrong |= (minus & (values > 1 << 63)) | (~minus & False)
    result[minus] = -result[minus]
    for index in np.flatnonzero(numbers.odd[chosen]).tolist():  # too long to be surely within 64 bits, or no number
        text = words.text(int(chosen[index]))
        if text.lstrip("+-").isdecimal() and -(1 << 63) <= int(text) < 1 << 64:
            result[index] = int(text) - (1 << 64) * (int(text) >= 1 << 63)
            wrong[index] = False
    return result, wrong


def floats(words: Words, numbers: Numbers, chosen: Array) -> tuple[Array, Array]:
    """The chosen words as float64, correctly rounded, and which of them are no numbers."""
    digits, scale = numbers.digits[chosen], numbers.scale[chosen]
    result = digits.astype("float64") / _POWERS[np.minimum(scale, len(_POWERS) - 1)]
    result[numbers.negative[chosen]] *= -1
    hard = numbers.odd[chosen] | (digits > 1 << 53) | (scale >= len(_POWERS))
    wrong = np.zeros(len(chosen), bool)
    for index in np.flatnonzero(hard).tolist():
        try:
            result[index] = float(words.text(int(chosen[index])).replace("_", "x"))
        except ValueError:
            wrong[index] = True
    return result, wrong


_POWERS = 10.0 ** np.arange(23)
"""The powers of ten that a float64 holds exactly."""
