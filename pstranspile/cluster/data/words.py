"""Numbers of text, many at once: where they stand in a block, and what they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.runtime.values import Array

_SPACE, _DOT, _MINUS, _PLUS, _ZERO = 32, 46, 45, 43, 48

_LONGEST = 21
"""Characters of a word that may be a number of 19 digits: these, a sign, a dot."""

_BYTES, _WORDS = 1 << 17, 1 << 15
"""How much is looked at together, so that intermediate values stay in the processor's cache."""


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
    found: list[Array] = []
    for at in range(0, len(array), _BYTES):
        inside = np.empty(min(_BYTES, len(array) - at) + 1, bool)
        inside[0] = at > 0 and array[at - 1] > _SPACE
        np.greater(array[at : at + _BYTES], _SPACE, out=inside[1:])
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        edges += at
        found.append(edges)
    if len(array) and array[-1] > _SPACE:
        found.append(np.array([len(array)]))
    edges = np.concatenate([np.empty(0, "int64"), *found])
    return Words(array, edges[::2], edges[1::2])


def numbers_of(words: Words) -> Numbers:
    """What the words are as numbers."""
    made = [
        _numbers(Words(words.data, words.starts[at : at + _WORDS], words.stops[at : at + _WORDS]))
        for at in range(0, max(len(words.starts), 1), _WORDS)
    ]
    return made[0] if len(made) == 1 else Numbers(*map(np.concatenate, zip(*made, strict=True)))


def _numbers(words: Words) -> Numbers:
    sizes = words.stops - words.starts
    count, longest = len(sizes), min(int(sizes.max(initial=0)), _LONGEST)
    # short words first, so that those that have a character more are the rest, wherever they stand
    order = np.minimum(sizes, _LONGEST + 1).astype("uint16").argsort(kind="stable")
    starts, sizes = words.starts[order], sizes[order]
    begins = sizes.searchsorted(np.arange(longest), side="right").tolist()
    digits, scale = np.zeros(count, "uint64"), np.zeros(count, "int8")
    odd, dotted = np.zeros(count, bool), np.zeros(count, bool)
    first = words.data[starts] if count else np.zeros(0, "uint8")
    negative = first == _MINUS
    signed = negative | (first == _PLUS)
    for column, begin in enumerate(begins):
        here = words.data[starts[begin:] + column]
        digit = here - np.uint8(_ZERO)
        plain = digit < 10
        total, after = digits[begin:], dotted[begin:]
        if plain.all():
            total *= np.uint64(10)
            total += digit
            scale[begin:] += after
            continue
        dot = (here == _DOT) & ~after
        odd[begin:] |= ~(plain | dot | signed[begin:] if column == 0 else plain | dot)
        scale[begin:] += after & plain
        np.multiply(total, np.uint64(10), out=total, where=plain)
        np.add(total, digit, out=total, where=plain)
        after |= dot
    odd |= dotted & (scale == 0)  # the dot comes last: a float
    odd |= (sizes - signed - dotted < 1) | (sizes - signed - dotted > 19) | (sizes > _LONGEST)
    back = np.empty(count, "int64")
    back[order] = np.arange(count)
    return Numbers(digits[back], scale[back], negative[back], odd[back])


def integers(words: Words, numbers: Numbers, chosen: Array) -> tuple[Array, Array]:
    """The chosen words as int64, and which of them are no whole numbers. Ids of 64 bits keep their bits."""
    values = numbers.digits[chosen]
    wrong = numbers.odd[chosen] | numbers.scale[chosen].astype(bool)
    result = values.view("int64").copy()
    minus = numbers.negative[chosen]
    wrong |= (minus & (values > 1 << 63)) | (~minus & False)
    result[minus] = -result[minus]
    for index in np.flatnonzero(numbers.odd[chosen]).tolist():  # too long to be surely within 64 bits, or no number
        number = whole_number(words.text(int(chosen[index])))
        if number is not None:
            result[index] = number - (1 << 64) * (number >= 1 << 63)
            wrong[index] = False
    return result, wrong


def whole_number(text: str) -> int | None:
    """The whole number that a word is, None if it is none or 64 bits don't hold it."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text.removeprefix("+"))
    short = digits.lstrip("0") or digits[:1]  # Python refuses to convert thousands of digits
    if not (digits.isascii() and digits.isdecimal()) or len(short) > 20:
        return None
    number = int(sign + short)
    return number if -(1 << 63) <= number < 1 << 64 else None


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
