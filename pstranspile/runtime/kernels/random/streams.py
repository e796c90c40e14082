"""Random numbers addressed by element: a part of a tensor, drawn separately, equals that part of the whole.

A stream is named by a key and holds one number for every element offset. `uniform(key, 100, 50)` is elements 100 to 149
of the stream `key`, bit for bit equal to `uniform(key, 0, 200)[100:150]`. So the slices of a parameter on several
servers together equal the parameter on one machine.

The bits are those of numpy's Philox (a counter-based generator whose output numpy keeps stable), one 64-bit word for
each element. Distributions use only operations that IEEE 754 rounds exactly (sums, products, quotients, roots), so the
numbers are the same on every machine.

Fluid's own seeded generator, the minimal-standard congruential one, is here too (`fluid_uniform`), for ops whose seed
promises the same numbers as in Fluid.
"""

from __future__ import annotations

import hashlib
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from pstranspile.runtime.kernels.random.row_numbers import Rows, RowStream
from pstranspile.runtime.values import Array

# Numbers of a stream for scattered rows, such as those of tables whose rows are created on first use.
#
# `uniform(ScatteredRows(key, first, ids, width), 0, len(ids) * width)` gives for each id the numbers of the elements
# from `first + id * width` on, bit for bit as `streams` gives them for the whole tensor. numpy's generator needs one
# call for each run of numbers. Here the same generator (Philox, 4 words of 64 bits) is computed for all rows at once.

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_FOUR = np.uint64(4)
_TWO, _THREE, _SIXTY_TWO = np.uint64(2), np.uint64(3), np.uint64(62)
_AT_ONCE = 1 << 13
"""Blocks calculated at a time, so that intermediate values stay in the processor's cache."""


def _product(factor: int, numbers: Array) -> tuple[Array, Array]:
    """The upper and the lower 64 bits of the products of a factor and numbers of 64 bits."""
    upper, lower = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    high, low = numbers >> _HALF, numbers & _LOW
    lows, cross, other = low * lower, high * lower, low * upper
    middle = (lows >> _HALF) + (cross & _LOW) + other
    return high * upper + (cross >> _HALF) + (middle >> _HALF), numbers * np.uint64(factor)


def block_words(key: int, blocks: Array, second: int = 0, third: Array | None = None) -> Array:
    """The four words of each of these blocks of a stream, uint64 [n, 4]; `blocks` is uint64 [n].

    `second` and `third`, uint64 [n], are the next words of the generator's counter. Other values of them give other
    streams of the same key.
    """
    out = np.empty((len(blocks), 4), np.uint64)
    for start in range(0, len(blocks), _AT_ONCE):
        part = blocks[start : start + _AT_ONCE]
        # the generator counts before it draws
        a, b = part + np.uint64(1), np.full(len(part), second, np.uint64)
        b += a == 0
        c = np.zeros(len(part), np.uint64) if third is None else third[start : start + _AT_ONCE]
        d = np.zeros(len(part), np.uint64)
        first, other = key & 0xFFFFFFFFFFFFFFFF, key >> 64
        for _ in range(_ROUNDS):
            high0, low0 = _product(_FACTORS[0], a)
            high1, low1 = _product(_FACTORS[1], c)
            a, b, c, d = high1 ^ b ^ np.uint64(first), low1, high0 ^ d ^ np.uint64(other), low0
            first, other = (first + _STEPS[0]) & 0xFFFFFFFFFFFFFFFF, (other + _STEPS[1]) & 0xFFFFFFFFFFFFFFFF
        out[start : start + len(part)] = np.stack([a, b, c, d], axis=1)
    return out


class ScatteredRows(NamedTuple):
    """A source of numbers for rows of `width` elements of a stream; the row of id i begins at `first + i * width`.

    `ids` is int64 [n], with the bits of uint64. Rows that begin beyond 64 bits have numbers of their own, too.
    """

    key: int
    first: int
    ids: Array
    width: int

    def words(self) -> Array:
        """The words of all rows one after another, uint64 [n * width]."""
        width, ids = self.width, self.ids.astype(np.uint64)
        upper, starts = _product(width, ids)
        if upper.any():
            return self._far(upper, starts)
        starts += np.uint64(self.first)
        skipped = (starts % _FOUR).astype(np.int64)
        count = (width + 3 + int(skipped.max(initial=0))) // 4
        blocks = (starts // _FOUR)[:, None] + np.arange(count, dtype=np.uint64)
        drawn = block_words(self.key, blocks.reshape(-1)).reshape(len(self.ids), count * 4)
        if skipped.any():
            drawn = np.take_along_axis(drawn, skipped[:, None] + np.arange(width), axis=1)
        return drawn[:, :width].reshape(-1)

    def _far(self, upper: Array, starts: Array) -> Array:
        """The words of all rows, some of which begin beyond 64 bits, where `upper` are the bits from the 65th on."""
        out = np.empty((len(starts), self.width), np.uint64)
        far = upper > 0
        out[~far] = self._replace(ids=self.ids[~far]).words().reshape(-1, self.width)
        first = starts[far] + np.uint64(self.first)
        upper = upper[far] + (first < starts[far])
        column = np.arange(self.width, dtype=np.uint64)
        places = first[:, None] + column
        above = upper[:, None] + (places < column)
        blocks, third = (places >> _TWO) | (above << _SIXTY_TWO), above >> _TWO
        words = block_words(self.key, blocks.reshape(-1), third=third.reshape(-1)).reshape(*places.shape, 4)
        out[far] = np.take_along_axis(words, (places & _THREE).astype(np.int64)[..., None], axis=2)[..., 0]
        return out.reshape(-1)


def chances(key: int, ids: Array, turn: int) -> Floats:
    """A number inside (0, 1) for each id, float64 [n]; other numbers for every `turn`."""
    return fractions(block_words(key, ids.astype(np.uint64), turn)[:, 0])


Floats: TypeAlias = Array
"""A float64 array."""

Key: TypeAlias = "int | RowStream"
"""The name of a stream: a number, or a stream whose numbers belong to rows of a batch."""


class HasWords(Protocol):
    """A stream whose words are already known, in order."""

    def words(self) -> Array:
        """All of them, uint64."""
        ...


Source: TypeAlias = int | HasWords
"""A source of random words: the key of a stream, or known words."""

_CHUNK = 1 << 15
"""Elements computed at a time, so that intermediate values stay in the processor's cache."""


def stream_key(*parts: int | str) -> int:
    """The key (128 bits) of the stream named by seeds and names, in order: `stream_key(program_seed, seed, "w")`."""
    text = "".join(f"{type(part).__name__}:{part}\0" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest(), "little")


def words(key: Source, offset: int, count: int) -> Array:
    """All words, uint64."""
    if not isinstance(key, int):
        return key.words()[offset : offset + count]
    block, skipped = divmod(offset, 4)  # Philox makes four words from each value of its counter
    generator = _generator()
    generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": _in_words(block, 4), "key": _in_words(key, 2)},
        "buffer": _in_words(0, 4),
        "buffer_pos": 4,  # nothing is left in it
        "has_uint32": 0,
        "uinteger": 0,
    }
    return generator.random_raw(skipped + count)[skipped:]


_OF_THREADS: dict[int, Any] = {}


def _generator() -> Any:
    """The thread's generator. Callers set its state before use, because making a generator costs as much as 1,000
    numbers.
    """
    result = _OF_THREADS.get(get_ident())
    if result is None:
        result = _OF_THREADS[get_ident()] = np.random.Philox(key=0)
    return result


def _in_words(number: int, count: int) -> Array:
    """A number as `count` 64-bit words, the lowest first."""
    return np.frombuffer(number.to_bytes(8 * count, "little"), "<u8")


def fractions(drawn: Array) -> Floats:
    """Words as float64 numbers inside (0, 1), evenly spread and symmetric about 1/2."""
    result = (drawn >> np.uint64(12)).astype(np.float64)
    result += 0.5
    result *= 2.0**-52
    return result


def _in_chunks(key: Source, offset: int, count: int, dtype: Any, made_of: Callable[[Floats], Floats]) -> Array:
    out = np.empty(count, dtype)
    known = words(key, offset, count) if not isinstance(key, int) else None
    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        drawn = words(key, offset + start, size) if known is None else known[start : start + size]
        out[start : start + size] = made_of(fractions(drawn))
    return out


def uniform(key: Source, offset: int, count: int, low: float = 0.0, high: float = 1.0, dtype: Any = "float32") -> Array:
    """Elements `offset` to `offset + count` of the stream, evenly drawn from [low, high), in `dtype`."""
    kind = np.dtype(dtype).type
    last = max(float(np.nextafter(kind(high), kind(low))), low)  # rounding to `dtype` must not reach `high`
    return _in_chunks(key, offset, count, dtype, lambda u: np.minimum(low + (high - low) * u, last))


def normal(key: Source, offset: int, count: int, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32") -> Array:
    """Elements of the stream drawn from the normal distribution of this mean and standard deviation."""
    return _in_chunks(key, offset, count, dtype, lambda u: normal_quantile(u) * std + mean)


_BELOW_MINUS_TWO = 0.022750131948179209
"""The probability that a standard normal variable is below -2."""


def truncated_normal(
    key: Source, offset: int, count: int, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32"
) -> Array:
    """Numbers as of `normal`, conditioned on lying within two standard deviations of the mean."""

    def draw(u: Floats) -> Floats:
        inside = _BELOW_MINUS_TWO + u * (1.0 - 2.0 * _BELOW_MINUS_TWO)
        return np.minimum(np.maximum(normal_quantile(inside), -2.0), 2.0) * std + mean

    return _in_chunks(key, offset, count, dtype, draw)


def integers(key: Source, offset: int, count: int, low: int, high: int, dtype: Any = "int64") -> Array:
    """Elements of the stream evenly drawn from the integers of [low, high), a range of at most 2**32."""
    scaled = (words(key, offset, count) >> np.uint64(32)) * np.uint64(high - low)
    return ((scaled >> np.uint64(32)).astype(np.int64) + low).astype(dtype)


# The quantile function of the normal distribution (M. J. Wichura, Algorithm AS 241, Applied Statistics 37, 1988).
# Coefficients from the highest power down; relative error about 1e-16.

_CENTRAL = (
    (
        2509.0809287301226727,
        33430.575583588128105,
        67265.770927008700853,
        45921.953931549871457,
        13731.693765509461125,
        1971.5909503065514427,
        133.14166789178437745,
        3.387132872796366608,
    ),
    (
        5226.495278852854561,
        28729.085735721942674,
        39307.89580009271061,
        21213.794301586595867,
        5394.1960214247511077,
        687.1870074920579083,
        42.313330701600911252,
        1.0,
    ),
)
_TAIL = (
    (
        7.7454501427834140764e-4,
        0.0227238449892691845833,
        0.24178072517745061177,
        1.27045825245236838258,
        3.64784832476320460504,
        5.7694972214606914055,
        4.6303378461565452959,
        1.42343711074968357734,
    ),
    (
        1.05075007164441684324e-9,
        5.475938084995344946e-4,
        0.0151986665636164571966,
        0.14810397642748007459,
        0.68976733498510000455,
        1.6763848301838038494,
        2.05319162663775882187,
        1.0,
    ),
)
_FAR_TAIL = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        0.0012426609473880784386,
        0.026532189526576123093,
        0.29656057182850489123,
        1.7848265399172913358,
        5.4637849111641143699,
        6.6579046435011037772,
    ),
    (
        2.04426310338993978564e-15,
        1.4215117583164458887e-7,
        1.8463183175100546818e-5,
        7.868691311456132591e-4,
        0.0148753612908506148525,
        0.13692988092273580531,
        0.59983220655588793769,
        1.0,
    ),
)


def _polynomial(coefficients: Sequence[float], x: Floats) -> Floats:
    value = coefficients[0] * x
    for coefficient in coefficients[1:-1]:
        value += coefficient
        value *= x
    value += coefficients[-1]
    return value


def _ratio(fraction: tuple[Sequence[float], Sequence[float]], x: Floats) -> Floats:
    return _polynomial(fraction[0], x) / _polynomial(fraction[1], x)


def normal_quantile(p: Floats) -> Floats:
    """The x below which a standard normal variable lies with probability p, for p inside (0, 1)."""
    away = p - 0.5
    out = away * _ratio(_CENTRAL, 0.180625 - away * away)
    outside = np.flatnonzero(np.abs(away) > 0.425)
    tail = p[outside]
    depth = np.sqrt(-logarithm(np.minimum(tail, 1.0 - tail)))
    size = np.where(depth <= 5.0, _ratio(_TAIL, depth - 1.6), _ratio(_FAR_TAIL, depth - 5.0))
    out[outside] = np.copysign(size, tail - 0.5)
    return out


_LN2 = 0.6931471805599453
_ARTANH = tuple(2.0 / power for power in range(21, 0, -2))


def logarithm(x: Floats) -> Floats:
    """The natural logarithm of positive numbers, computed from exactly rounded operations only.

    numpy's own logarithm may differ in the last bit from machine to machine.
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < 0.7071067811865476
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return (exponent - small) * _LN2 + s * _polynomial(_ARTANH, s * s)


# Fluid's generator

_MODULUS = 2**31 - 1
_MULTIPLIER = 48271


def fluid_states(seed: int, offset: int, count: int) -> Array:
    """States of the minimal-standard generator s' = 48271 s mod (2^31 - 1) after draw `offset` + 1, + 2, ..."""
    start = seed % _MODULUS or 1  # as the C++ standard library seeds it
    states = np.empty(count, np.int64)
    if count:
        states[0] = start * pow(_MULTIPLIER, offset + 1, _MODULUS) % _MODULUS
    known = 1
    while known < count:
        more = min(known, count - known)
        states[known : known + more] = states[:more] * pow(_MULTIPLIER, known, _MODULUS) % _MODULUS
        known += more
    return states


def fluid_uniform(seed: int, offset: int, count: int, dtype: Any = "float32") -> Array:
    """The numbers in [0, 1) that Fluid draws on a CPU after seeding with `seed`, from number `offset` on.

    A float64 takes two draws of the generator, a float32 one.
    """
    if dtype == "float64":
        low, high = fluid_states(seed, 2 * offset, 2 * count).reshape(-1, 2).T - 1.0
        return np.minimum((low + high * (_MODULUS - 1)) / (_MODULUS - 1.0) ** 2, np.nextafter(1.0, 0.0))
    drawn = (fluid_states(seed, offset, count) - 1).astype("float32") / np.float32(_MODULUS - 1)
    return np.minimum(drawn, np.nextafter(np.float32(1), np.float32(0)), dtype="float32")


def fluid_uniform_of(seed: int, rows: Rows) -> Array:
    """The numbers that Fluid draws for a tensor of the whole batch, at the elements that belong to some rows of it."""
    places = rows.positions()
    if not len(places):
        return np.zeros(0, "float32")
    first, last = int(places.min()), int(places.max())
    drawn = fluid_uniform(seed, first, last - first + 1)
    return drawn if len(places) == len(drawn) and _rises(places) else drawn[places - first]


def _rises(places: Array) -> bool:
    return bool((places[1:] > places[:-1]).all())
