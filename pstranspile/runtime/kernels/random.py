"""Random numbers and hashes with exactly defined bits: streams addressed by element, numbers of rows of a batch, and
hashes and generators of other libraries.
"""

from __future__ import annotations

import hashlib
from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.values import Array

# Random numbers that belong to rows of a batch: a row draws the same numbers on every machine and in every order.
#
# A number is addressed by the row's position in the whole batch and the element's position within the row. So a trainer
# with some rows of a batch draws for them the numbers that a single machine draws. Rows may differ in size. A sequence
# draws the same numbers whatever else is in the batch, and however far it is padded.
#
# Numbers are hashes of addresses. 64 bits for each row, made from the stream's key and the row's position, are mixed
# with the element's position by multiplications and shifts of 32-bit words (the mixing function of C. Wellons'
# `lowbias32`).


_MIXED_AT_ONCE = 1 << 15
"""Elements mixed at a time, so that intermediate values stay in the processor's cache."""

_GOLDEN64 = 0x9E3779B97F4A7C15
_GOLDEN32 = 0x9E3779B9


class Rows(NamedTuple):
    """The rows of the whole batch to which the elements of a tensor belong.

    `places` are the rows' positions. `sizes` is the number of elements of each row, or one number if all rows have the
    same. Elements are stored row after row, or, if `outer` is not 1, in that many blocks that hold a part of every row.
    `batch_layout` locates the rows on a machine with the whole batch: it is the number of rows if they have one size,
    else the offset of each row's first element. It is None if that is not known.
    """

    places: Array
    sizes: int | Array
    outer: int = 1
    batch_layout: int | Array | None = None

    @staticmethod
    def single_row(count: int) -> Rows:
        """The rows of a tensor that is independent of the batch: all its elements form one row."""
        return Rows(np.zeros(1, "int64"), count)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return self.sizes * len(self.places) if isinstance(self.sizes, int) else int(self.sizes.sum())

    def to_element_order(self, numbers: Array) -> Array:
        """Numbers that are given row after row, reordered to the order of the tensor's elements; flat."""
        if self.outer == 1:
            return numbers.reshape(-1)
        return numbers.reshape(len(self.places), self.outer, -1).swapaxes(0, 1).reshape(-1)

    def whole_elements(self) -> int:
        """The number of elements of the tensor of the whole batch, or of this tensor if that is not known."""
        if not isinstance(self.batch_layout, int) or not isinstance(self.sizes, int):
            return self.elements
        return self.batch_layout * self.sizes

    def positions(self) -> Array:
        """The position of each element in the tensor of the whole batch, or in this tensor if that is not known."""
        if not self.elements or self.batch_layout is None:
            return np.arange(self.elements)
        if isinstance(self.sizes, int) and isinstance(self.batch_layout, int):
            inner = self.sizes // self.outer
            blocks = self.places * inner + np.arange(self.outer)[:, None] * (self.batch_layout * inner)
            return (blocks[:, :, None] + np.arange(inner)).reshape(-1)
        starts = np.asarray(self.batch_layout)
        return np.repeat(starts, self.sizes) + _positions_in_rows(np.asarray(self.sizes))


def _positions_in_rows(sizes: Array) -> Array:
    """The position of each element within its row, for rows of these sizes."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


class RowStream(NamedTuple):
    """A stream of numbers for the elements of one tensor, whose rows belong to a batch. `key` is a key
    of `stream_key`.
    """

    key: int
    rows: Rows

    def words32(self) -> Array:
        """A 32-bit word for every element; flat."""
        low, high = _row_words(self.key, self.rows.places)
        sizes = self.rows.sizes
        if isinstance(sizes, int):
            return self.rows.to_element_order(_words_table(low, high, sizes))
        if len(sizes) and (sizes == sizes[0]).all():
            return _words_table(low, high, int(sizes[0])).reshape(-1)
        within = _positions_in_rows(sizes).astype("uint32") * np.uint32(_GOLDEN32)
        return _mixed_words(np.repeat(low, sizes), np.repeat(high, sizes), within)

    def words(self) -> Array:
        """A 64-bit word for every element; flat."""
        places, sizes = self.rows.places, self.rows.sizes
        if isinstance(sizes, int):
            out = np.empty((len(places), sizes), "uint64")
            if loops.row_words(places, self.key, out.view(np.int64)):
                return self.rows.to_element_order(out)
        high = self._replace(key=self.key ^ _GOLDEN64).words32().astype("uint64")
        return (high << np.uint64(32)) | self.words32()

    def reaches(self, rate: float) -> Array:
        """For every element, whether its number in [0, 1) is at least `rate`; flat."""
        bound, sizes = round(rate * 2**32), self.rows.sizes
        if bound >> 32:
            return np.zeros(self.rows.elements, bool)
        if isinstance(sizes, int):
            low, high = _row_words(self.key, self.rows.places)
            out = np.empty((len(low), sizes), bool)
            if loops.draw_mask(low.view(np.int32), high.view(np.int32), bound, out.view(np.uint8)):
                return self.rows.to_element_order(out)
        return self.words32() >= np.uint32(bound)


@cache
def _numbers(kind: str, *values: int) -> tuple[Array, ...]:
    """Integers as 0-d arrays, which numpy handles faster than Python numbers."""
    return tuple(np.array(value, kind) for value in values)


_SINGLY = 12
"""Up to this many rows, Python integers are faster than an array of them."""


def _row_words(key: int, places: Array) -> tuple[Array, Array]:
    """Two 32-bit words for every row."""
    if len(places) <= _SINGLY:
        mixed = [_mixed64(_mixed64(place ^ (key >> 64)) ^ (key & _ALL64)) for place in places.tolist()]
        word = np.array(mixed, "uint64")
    else:
        word = places.astype("uint64")
        word ^= np.uint64(key >> 64)
        _mix64(word)
        word ^= np.uint64(key & _ALL64)
        _mix64(word)
    low = word.astype("uint32")
    word >>= _numbers("uint64", 32)[0]
    return low, word.astype("uint32")


_ALL64 = 2**64 - 1


def _mixed64(x: int) -> int:
    """`_mix64` for one Python integer."""
    x = (x + _GOLDEN64) & _ALL64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _ALL64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _ALL64
    return x ^ (x >> 31)


def _mix64(x: Array) -> None:
    """The finalizer of SplitMix64, applied to every element in place."""
    golden, first, factor1, second, factor2, third = _numbers(
        "uint64", _GOLDEN64, 30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31
    )
    x += golden
    shifted = x >> first
    x ^= shifted
    x *= factor1
    np.right_shift(x, second, shifted)
    x ^= shifted
    x *= factor2
    np.right_shift(x, third, shifted)
    x ^= shifted


_FEW = 1 << 12


def _row_steps(size: int) -> Array:
    """The number that is mixed into the words of each element of a row: its index times an odd
    constant, uint32 [size].
    """
    return np.arange(size, dtype="uint32") * np.uint32(_GOLDEN32)


@cache
def _first_words() -> Array:
    """The result of `_row_steps` for the first `_FEW` elements of a row."""
    return _row_steps(_FEW)


def _words_table(low: Array, high: Array, size: int) -> Array:
    """Random words, uint32: a row of `size` words for each pair of key words (low, high)."""
    out = np.empty((len(low), size), "uint32")
    within = _first_words()[:size] if size <= _FEW else _row_steps(size)
    step = max(1, _MIXED_AT_ONCE // max(size, 1))
    for at in range(0, len(low), step):
        _mixed_words(low[at : at + step, None], high[at : at + step, None], within, out[at : at + step])
    return out


def _mixed_words(low: Array, high: Array, within: Array, out: Array | None = None) -> Array:
    half, factor1, shift, factor2 = _numbers("uint32", 16, 0x7FEB352D, 15, 0x846CA68B)
    x = np.bitwise_xor(low, within, out=out)
    shifted = x >> half
    x ^= shifted
    x *= factor1
    x += high
    np.right_shift(x, shift, out=shifted)
    x ^= shifted
    x *= factor2
    np.right_shift(x, half, out=shifted)
    x ^= shifted
    return x


# Random numbers addressed by element: a part of a tensor, drawn separately, equals that part of the whole.
#
# A stream is named by a key and holds one number for every element offset. `uniform(key, 100, 50)` is elements 100 to
# 149 of the stream `key`, bit for bit equal to `uniform(key, 0, 200)[100:150]`. So the slices of a parameter on several
# servers together equal the parameter on one machine.
#
# The bits are those of numpy's Philox (a counter-based generator whose output numpy keeps stable), one 64-bit word for
# each element. Distributions use only operations that IEEE 754 rounds exactly (sums, products, quotients, roots), so
# the numbers are the same on every machine.
#
# Fluid's own seeded generator, the minimal-standard congruential one, is here too (`fluid_uniform`), for ops whose seed
# promises the same numbers as in Fluid.


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

    `second` and `third`, uint64 [n], are the next words of the generator's counter. Other values of `second` and
    `third` give other streams of the same key.
    """
    out = np.empty((len(blocks), 4), np.uint64)
    signed = None if third is None else third.view(np.int64)
    if loops.philox(blocks.view(np.int64), second, signed, key, out.view(np.int64)):
        return out
    for start in range(0, len(blocks), _AT_ONCE):
        part = blocks[start : start + _AT_ONCE]
        # the generator counts before it draws
        a, b = part + np.uint64(1), np.full(len(part), second, np.uint64)
        b += a == 0
        c = np.zeros(len(part), np.uint64) if third is None else third[start : start + _AT_ONCE].copy()
        c += (a == 0) & (b == 0)
        d = ((a == 0) & (b == 0) & (c == 0)).astype(np.uint64)
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
"""An array of float64 numbers."""

Key: TypeAlias = "int | RowStream"
"""The name of a stream: a number, or a stream whose numbers belong to rows of a batch."""


class HasWords(Protocol):
    """A stream whose words are already known, in order."""

    def words(self) -> Array:
        """All words of the stream, uint64."""
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
    """The words of a stream, or of known words, from `offset` on, uint64 [count]."""
    if not isinstance(key, int):
        return key.words()[offset : offset + count]
    block, skipped = divmod(offset, 4)  # Philox makes four words from each value of its counter
    generator = _generator()
    generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": _in_words(block, 4), "key": _in_words(key, 2)},
        "buffer": _in_words(0, 4),
        "buffer_pos": 4,  # the generator's buffer holds no words
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
    if isinstance(key, ScatteredRows) and not offset and count == len(key.ids) * key.width and kind is np.float32:
        out = np.empty(count, np.float32)
        if loops.uniform_rows(key.ids, key.width, key.first, key.key, (low, high - low, last), out):
            return out
    return _in_chunks(key, offset, count, dtype, lambda u: np.minimum(low + (high - low) * u, last))


def normal(key: Source, offset: int, count: int, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32") -> Array:
    """Elements of the stream drawn from the normal distribution of this mean and standard deviation."""
    return _in_chunks(key, offset, count, dtype, lambda u: normal_quantile(u) * std + mean)


_BELOW_MINUS_TWO = 0.022750131948179209
"""The probability that a standard normal variable is below -2."""


def truncated_normal(
    key: Source, offset: int, count: int, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32"
) -> Array:
    """Numbers with the normal distribution of `normal`, conditioned on lying within two standard deviations of the
    mean.
    """

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
    """The numbers that Fluid draws for the tensor of the whole batch, at the elements that belong to these rows."""
    places = rows.positions()
    if not len(places):
        return np.zeros(0, "float32")
    first, last = int(places.min()), int(places.max())
    drawn = fluid_uniform(seed, first, last - first + 1)
    return drawn if len(places) == len(drawn) and _rises(places) else drawn[places - first]


def _rises(places: Array) -> bool:
    return bool((places[1:] > places[:-1]).all())


# Hashes and generators of other libraries, with the same bits: Bloom filters with MurmurHash3, xxHash, the Mersenne
# Twister.


# Filters of sets of words (B. Bloom), hashed with the 128-bit MurmurHash3 (A. Appleby), as Fluid reads them.
#
# A filter is a parameter whose bytes are four 64-bit numbers (a mark, how many bits, how many hashes, how many words)
# and the bits. Each hash gives two bits. A group of words is in the set if all its bits are set.

MARK = 17070416
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)


def _rotate_left(word: Array, bits: int) -> Array:
    return word << np.uint64(bits) | word >> np.uint64(64 - bits)


def _scramble_first(lane: Array) -> Array:
    return _rotate_left(lane * _C1, 31) * _C2


def _scramble_second(lane: Array) -> Array:
    return _rotate_left(lane * _C2, 33) * _C1


def _final_mix(state: Array) -> Array:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state = (state ^ state >> np.uint64(33)) * np.uint64(factor)
    return state ^ state >> np.uint64(33)


def murmur_hashes(rows: Array, seed: int) -> tuple[Array, Array]:
    """The two halves of MurmurHash3 of the bytes of every row, each uint64 [n]. Rows are uint32 [n, words]."""
    count, words = rows.shape
    padded = np.zeros((count, -(-words // 4) * 4), np.uint64)
    padded[:, :words] = rows
    lanes = padded[:, 0::2] | padded[:, 1::2] << np.uint64(32)
    one, two = (np.full(count, seed, np.uint64) for _ in range(2))
    for at in range(0, words // 4 * 2, 2):
        one = (_rotate_left(one ^ _scramble_first(lanes[:, at]), 27) + two) * np.uint64(5) + np.uint64(0x52DCE729)
        two = (_rotate_left(two ^ _scramble_second(lanes[:, at + 1]), 31) + one) * np.uint64(5) + np.uint64(0x38495AB5)
    if words % 4:
        one, two = one ^ _scramble_first(lanes[:, -2]), two ^ _scramble_second(lanes[:, -1])
    one, two = one ^ np.uint64(words * 4), two ^ np.uint64(words * 4)
    one = one + two
    two = two + one
    one, two = _final_mix(one), _final_mix(two)
    return one + two, two + one + two


def bloom_filter_mask(table: Array, rows: Array) -> Array:
    """A mask [n] of the rows, uint32 [n, words], that are in the set of the Bloom filter `table`. Raises ValueError if
    `table` is no filter.
    """
    held = np.ascontiguousarray(table).view(np.uint8).reshape(-1)
    header = held[:32].view("<u8")
    if len(held) < 32 or header[0] != MARK:
        raise ValueError("the parameter of a filter holds no filter: the mark at its beginning is missing")
    bits = held[32:]
    inside = np.ones(len(rows), bool)
    for seed in range(int(header[2])):
        for half in murmur_hashes(rows, seed):
            at = (half % header[1]).astype(np.int64)
            inside &= bits[at >> 3] >> (7 - (at & 7)).astype(np.uint8) & 1 != 0
    return inside


# The 64-bit xxHash (Y. Collet), which Fluid hashes rows of ids with, for many rows at once.

# the primes of xxHash64
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MASK = (1 << 64) - 1


def _xxhash_round(state: Array, lane: Array) -> Array:
    return _rotate_left(state + lane * np.uint64(_P2), 31) * np.uint64(_P1)


def row_hashes(rows: Array, seed: int) -> Array:
    """xxHash64 of the bytes of every row, as uint64 [n]. Rows are 32-bit words, uint32 [n, words]."""
    count, words = rows.shape
    lanes = rows[:, : words // 2 * 2].astype("uint64")
    lanes = lanes[:, 0::2] | lanes[:, 1::2] << np.uint64(32)  # little-endian, on any machine
    stripes = words // 8 * 4
    if stripes:
        starts = (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)
        states = [np.full(count, start & _MASK, "uint64") for start in starts]
        for at in range(stripes):
            states[at % 4] = _xxhash_round(states[at % 4], lanes[:, at])
        turned = [_rotate_left(state, bits) for state, bits in zip(states, (1, 7, 12, 18), strict=True)]
        result = turned[0] + turned[1] + turned[2] + turned[3]
        for state in states:
            result = (result ^ _xxhash_round(np.zeros_like(state), state)) * np.uint64(_P1) + np.uint64(_P4)
    else:
        result = np.full(count, (seed + _P5) & _MASK, "uint64")
    result += np.uint64(words * 4)
    for at in range(stripes, lanes.shape[1]):
        result ^= _xxhash_round(np.zeros_like(result), lanes[:, at])
        result = _rotate_left(result, 27) * np.uint64(_P1) + np.uint64(_P4)
    if words % 2:
        result ^= rows[:, -1].astype("uint64") * np.uint64(_P1)
        result = _rotate_left(result, 23) * np.uint64(_P2) + np.uint64(_P3)
    result = (result ^ result >> np.uint64(33)) * np.uint64(_P2)
    result = (result ^ result >> np.uint64(29)) * np.uint64(_P3)
    return result ^ result >> np.uint64(32)


def _turned_32(word: Array, bits: int) -> Array:
    return word << np.uint32(bits) | word >> np.uint32(32 - bits)


# the primes of xxHash32
_Q1, _Q2, _Q3, _Q4, _Q5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1


def row_hashes_32(rows: Array, seed: int) -> Array:
    """xxHash32 of the bytes of every row, as uint32 [n]. Rows are 32-bit words, uint32 [n, words]."""
    count, words = rows.shape
    stripes = words // 4 * 4
    if stripes:
        starts = (seed + _Q1 + _Q2, seed + _Q2, seed, seed - _Q1)
        states = [np.full(count, start & 0xFFFFFFFF, "uint32") for start in starts]
        for at in range(stripes):
            states[at % 4] = _turned_32(states[at % 4] + rows[:, at] * np.uint32(_Q2), 13) * np.uint32(_Q1)
        turned = [_turned_32(state, bits) for state, bits in zip(states, (1, 7, 12, 18), strict=True)]
        result = turned[0] + turned[1] + turned[2] + turned[3]
    else:
        result = np.full(count, (seed + _Q5) & 0xFFFFFFFF, "uint32")
    result += np.uint32(words * 4)
    for at in range(stripes, words):
        result = _turned_32(result + rows[:, at] * np.uint32(_Q3), 17) * np.uint32(_Q4)
    result = (result ^ result >> np.uint32(15)) * np.uint32(_Q2)
    result = (result ^ result >> np.uint32(13)) * np.uint32(_Q3)
    return result ^ result >> np.uint32(16)


# The 64-bit Mersenne Twister (M. Matsumoto, T. Nishimura, 2004), which Fluid's class samplers draw from.
#
# A sampler with a seed makes the same numbers in Fluid and here. The parameters are those of C++'s `mt19937_64`.

_SIZE = 312
_SHIFT = 156


def _start(seed: int) -> Array:
    state = [seed & _MASK]
    for at in range(1, _SIZE):
        state.append((6364136223846793005 * (state[-1] ^ state[-1] >> 62) + at) & _MASK)
    return np.array(state, "uint64")


def _twist(upper: Array, lower: Array) -> Array:
    word = upper & np.uint64(0xFFFFFFFF80000000) | lower & np.uint64(0x7FFFFFFF)
    return word >> np.uint64(1) ^ (word & np.uint64(1)) * np.uint64(0xB5026F5AA96619E9)


def _next(old: Array) -> Array:
    new = np.empty_like(old)
    new[:_SHIFT] = old[_SHIFT:] ^ _twist(old[:_SHIFT], old[1 : _SHIFT + 1])
    new[_SHIFT:-1] = new[: _SHIFT - 1] ^ _twist(old[_SHIFT:-1], old[_SHIFT + 1 :])
    new[-1:] = new[_SHIFT - 1 : _SHIFT] ^ _twist(old[-1:], new[:1])
    return new


@lru_cache(maxsize=16)
def mersenne_words(seed: int, count: int) -> Array:
    """The first `count` 64-bit words after seeding. The result is cached, so it must not be changed."""
    state, blocks = _start(seed), [np.empty(0, "uint64")]
    for _ in range(0, count, _SIZE):
        state = _next(state)
        blocks.append(state)
    word = np.concatenate(blocks)[:count]
    word ^= word >> np.uint64(29) & np.uint64(0x5555555555555555)
    word ^= word << np.uint64(17) & np.uint64(0x71D67FFFEDA60000)
    word ^= word << np.uint64(37) & np.uint64(0xFFF7EEE000000000)
    return word ^ word >> np.uint64(43)
