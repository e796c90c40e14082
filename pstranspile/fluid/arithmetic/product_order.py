"""Sums and matrix products whose terms are added in the order of Fluid's CPU library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import TypeAlias

import numpy as np

from pstranspile.runtime.values import Array

# Sums over the elements of each channel, in the order of Fluid's batch_norm on a CPU.
#
# For each image, Eigen sums the elements of a channel: two groups of eight lanes take turns, are added to each other
# and folded by halves. Then it adds the elements before the first aligned eight, if the terms are in memory as they
# are, and the elements after the last aligned eight. The sums of the images are added one after the other.

_LANES = 8


def sum_of_channels(x: Array, in_memory: bool) -> Array:
    """The sums of an f32 array [images, channels, elements] over images and elements: [channels].

    `in_memory` says whether the terms are an array in Fluid (whose beginning is aligned), instead of the result of an
    expression.
    """
    images, channels, elements = x.shape
    if not elements:
        return np.zeros(channels, np.float32)
    rows = x.reshape(images * channels, elements)
    before = -np.arange(len(rows)) * elements % _LANES if in_memory else np.zeros(len(rows), np.int64)
    sums = np.empty(len(rows), np.float32)
    for first in sorted(set(before.tolist())):
        at = np.flatnonzero(before == first)
        sums[at] = _sums(rows[at], min(first, elements))
    result = np.zeros(channels, np.float32)
    for image in sums.reshape(images, channels):
        result += image
    return result


def _sums(x: Array, first: int) -> Array:
    """The sum of each row of [rows, n], whose first aligned element has the index `first`."""
    eights = (x.shape[1] - first) // _LANES
    if not eights:
        return _in_order(x)
    stop = first + eights * _LANES
    lanes = np.ascontiguousarray(np.moveaxis(x[:, first:stop].reshape(len(x), eights, _LANES), 1, 0))
    pairs = eights - eights % 2
    result = np.add.reduce(lanes[:pairs:2], axis=0) + np.add.reduce(lanes[1:pairs:2], axis=0) if pairs else lanes[0]
    if pairs and pairs < eights:
        result = result + lanes[-1]
    fours = result[:, :4] + result[:, 4:]
    sums = (fours[:, 0] + fours[:, 2]) + (fours[:, 1] + fours[:, 3])
    for place in (*range(first), *range(stop, x.shape[1])):
        sums = sums + x[:, place]
    return sums


def _in_order(x: Array) -> Array:
    result = x[:, 0].copy()
    for place in range(1, x.shape[1]):
        result += x[:, place]
    return result


# Matrix products whose terms are added one after the other, even where numpy's own products add in another order.

_BLAS_TERMS = 384
"""The number of terms that OpenBLAS takes at a time, in its kernels without fused multiply-add."""

_NARROW = 8
"""The number of columns below which all terms are computed at once."""

_MOST_VALUES = 1 << 20
"""The greatest number of terms that are kept at once."""


def in_sequence(a: Array, b: Array) -> Array:
    """a @ b, with every term rounded and added to the sum of the previous ones."""
    if a.shape[-1] <= _BLAS_TERMS and _blas_is_in_sequence():
        return _product_with_duplicates(np.matmul, a, b)
    narrow = a.shape[-2] == 1 or b.shape[-1] < _NARROW
    if narrow and a.ndim == b.ndim == 2 and a.size * b.shape[1] <= _MOST_VALUES:
        return _by_terms(a, b)
    return _product_with_duplicates(_by_rows if _einsum_is_in_sequence() else _by_terms, a, b)


def _product_with_duplicates(product: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """The product, computed with a single row or column duplicated, because products with vectors are summed in other
    orders.
    """
    rows, columns = a.shape[-2], b.shape[-1]
    if rows > 1 and columns > 1:
        return product(a, b)
    wide_a = np.repeat(a, 2, axis=-2) if rows == 1 else a
    wide_b = np.repeat(b, 2, axis=-1) if columns == 1 else b
    return product(wide_a, wide_b)[..., :rows, :columns]


def _by_rows(a: Array, b: Array) -> Array:
    return np.einsum("...ik,...kj->...ij", a, np.ascontiguousarray(b))


def _by_terms(a: Array, b: Array) -> Array:
    """The product by computing all terms at once, [k, ..., m, n], and adding them along the first axis; many rows are
    done in parts.
    """
    rank, rows = max(a.ndim, b.ndim), a.shape[-2]
    some = max(1, _MOST_VALUES // (b.size if b.ndim > 2 else max(b.size, a.size // rows * b.shape[-1])))
    if rows > some:
        parts = [_by_terms(a[..., start : start + some, :], b) for start in range(0, rows, some)]
        return np.concatenate(parts, axis=-2)
    a, b = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    left, right = np.moveaxis(a, -1, 0)[..., None], np.moveaxis(b, -2, 0)[..., None, :]
    terms = np.multiply(left, right, order="C")
    if terms[0].size == 1:  # numpy sums a vector pairwise
        return np.cumsum(terms.reshape(-1), dtype=terms.dtype)[-1:].reshape(terms.shape[1:])
    return np.add.reduce(terms, axis=0)


@cache
def _blas_is_in_sequence() -> bool:
    """Whether numpy's matrix products add terms in sequence, like those of OpenBLAS's kernels for older CPUs."""
    return _is_in_sequence(np.matmul)


@cache
def _einsum_is_in_sequence() -> bool:
    return _is_in_sequence(_by_rows)


def _is_in_sequence(product: Callable[[Array, Array], Array]) -> bool:
    """Whether a product adds terms in sequence, tested on matrices whose sums differ in other orders."""
    for rows, terms, columns in ((2, 20, 3), (7, 112, 17), (16, 64, 132), (2, 384, 8)):
        a, b = _numbers(rows, terms, 3), _numbers(terms, columns, 7)
        for left in (a, np.ascontiguousarray(a.T).T):
            for right in (b, np.ascontiguousarray(b.T).T):
                if not np.array_equal(product(left, right), _by_terms(a, b)):
                    return False
    return True


def _numbers(rows: int, columns: int, salt: int) -> Array:
    """Numbers between -1 and 1 whose products and sums are rounded."""
    counted = np.arange(salt, rows * columns + salt, dtype=np.uint32) * np.uint32(2654435761)
    return ((counted >> 8).astype(np.float32) / np.float32(1 << 23) - 1).reshape(rows, columns)


BLOCK = 112
"""The number of terms that the core takes at a time."""

_ROWS = 4
"""The number of which the rows of a core are a multiple."""

_COLUMNS = 8
"""The number of which the columns of a core are a multiple."""

_LEAST = 8
"""The least number of rows, of columns and of terms for which a product has a core."""

_FOUR = 4
"""The number of f32 elements in 16 bytes, to which memory is aligned."""


def product_in_order(a: Array, b: Array, transpose_a: bool, transpose_b: bool, factor: float = 1.0) -> Array:
    """factor * a @ b for f32 matrices [..., m, k] and [..., k, n], which the caller has already transposed.

    The flags say which of them Fluid passes to the library to transpose. Returns an f32 array [..., m, n].
    """
    rows, columns, terms = a.shape[-2], b.shape[-1], a.shape[-1]
    dims = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if not (rows and columns and terms):
        return np.matmul(a, b)
    offsets = _offsets(a.shape[:-2], dims, rows * terms, rows * columns)
    if offsets is None:
        return _product(a, b, transpose_a, transpose_b, factor, (0, 0))
    result = np.empty((len(offsets), rows, columns), np.float32)
    every_a = np.broadcast_to(a, (*dims, rows, terms)).reshape(-1, rows, terms)
    every_b = np.broadcast_to(b, (*dims, terms, columns)).reshape(-1, terms, columns)
    for offset in sorted(set(offsets)):
        at = [place for place, other in enumerate(offsets) if other == offset]
        result[at] = _product(every_a[at], every_b[at], transpose_a, transpose_b, factor, offset)
    return result.reshape(*dims, rows, columns)


Offset: TypeAlias = tuple[int, int]
"""The number of elements, 0 to 3, by which the beginnings of a matrix A and of its product lie after an aligned
element.
"""


def _offsets(of_a: tuple[int, ...], dims: tuple[int, ...], a_size: int, size: int) -> list[Offset] | None:
    """The offsets of every matrix in a stack with these dims; None if all beginnings are aligned."""
    if not dims or (a_size % _FOUR == 0 == size % _FOUR):
        return None
    places = np.broadcast_to(np.arange(prod(of_a)).reshape(of_a), dims).reshape(-1)
    return [(a * a_size % _FOUR, at * size % _FOUR) for at, a in enumerate(places.tolist())]


def sum_of_products_in_order(a: Array, b: Array) -> Array:
    """The sum of a[i] @ b[i] over i, for f32 stacks [count, ..., m, k] and [count, ..., k, n].

    Fluid passes B to the library to transpose. Each product is added to the previous sum block by block.
    """
    rows, columns, terms = a.shape[-2], b.shape[-1], a.shape[-1]
    if terms <= BLOCK:
        return np.add.reduce(product_in_order(a, b, False, True), axis=0)
    dims = a.shape[1:-2]
    groups = prod(dims)
    every_a, every_b = a.reshape(len(a), groups, rows, terms), b.reshape(len(a), groups, terms, columns)
    result = np.zeros((groups, rows, columns), np.float32)
    if not result.size:
        return result.reshape(*dims, rows, columns)
    for group in range(groups):
        for count in range(len(a)):
            offset = (count * groups + group) * rows * terms % _FOUR
            left, right = every_a[count, group], every_b[count, group]
            result[group] = _product(left, right, False, True, 1.0, (offset, 0), result[group])
    return result.reshape(*dims, rows, columns)


def _product(
    a: Array,
    b: Array,
    transpose_a: bool,
    transpose_b: bool,
    factor: float,
    offset: Offset,
    start: Array | None = None,
) -> Array:
    """The product of matrices, or of stacks of matrices whose beginnings all have the same offset.

    If B is transposed, the product may be added to `start`.
    """
    rows, columns = a.shape[-2], b.shape[-1]
    scaled_b = b if factor == 1 else b * np.float32(factor)
    after = factor if transpose_b else 1.0
    scaled_a = a if factor == after else a * np.float32(factor)
    if min(rows, columns, a.shape[-1]) < _LEAST:
        return _sum_with_start(start, _times(_one_block(scaled_a, b, transpose_a, transpose_b, 0, offset), after))
    core, below = columns - columns % _COLUMNS, rows - rows % _ROWS
    if core == columns and below == rows:
        return _blocks(a, scaled_b, in_sequence, start)
    dims = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = np.empty((*dims, rows, columns), np.float32) if start is None else start.copy()
    before = None if start is None else start[..., :below, :]
    result[..., :below, :core] = _blocks(a[..., :below, :], scaled_b[..., :core], in_sequence, _cells(before, 0, core))
    if core < columns:
        result[..., :below, core:] = _right_of_core(
            scaled_a[..., :below, :], b, core, transpose_a, transpose_b, after, offset, before
        )
    if below < rows:
        one_block = _times(_one_block(scaled_a[..., below:, :], b, transpose_a, transpose_b, below, offset), after)
        result[..., below:, :] = _sum_with_start(None if start is None else start[..., below:, :], one_block)
    return result


def _cells(start: Array | None, first: int, stop: int) -> Array | None:
    """The columns `first` up to `stop` of the array that a product is added to; None if there is none."""
    return None if start is None else start[..., first:stop]


def _sum_with_start(start: Array | None, product: Array) -> Array:
    return product if start is None else start + product


def _times(product: Array, factor: float) -> Array:
    if factor != 1:
        product *= np.float32(factor)
    return product


def _right_of_core(
    a: Array,
    b: Array,
    core: int,
    transpose_a: bool,
    transpose_b: bool,
    after: float,
    offset: Offset,
    start: Array | None,
) -> Array:
    """The columns to the right of the core; the sum of each block is multiplied by `after`, and added to `start`."""
    columns, terms = b.shape[-1], a.shape[-1]
    right = b[..., core:]
    if transpose_a and transpose_b:
        return _blocks(a, right, lambda p, q: _times(in_sequence(p, q), after), _cells(start, core, columns))
    if transpose_b:

        def by_lanes(first: int, stop: int, lanes: int) -> Array:
            def product(p: Array, q: Array) -> Array:
                return _times(_aligned_lanes(p, q, lanes, terms, offset), after)

            return _blocks(a, b[..., first:stop], product, _cells(start, first, stop))

        return _by_lanes(core, columns, by_lanes)
    blocks = _block_ends(terms)
    order = np.concatenate([np.arange(first, stop) for first, stop in blocks])
    result = in_sequence(a[..., order], right[..., order, :])
    _correct_unaligned_cells(result, a, right, core + offset[1], columns, blocks)
    return result


def _one_block(a: Array, b: Array, transpose_a: bool, transpose_b: bool, below: int, offset: Offset) -> Array:
    """The product of few rows or columns, whose terms are one block. `below` is the number of rows above them in the
    core, 0 if there is no core.
    """
    rows, columns, terms = a.shape[-2], b.shape[-1], a.shape[-1]
    if columns == 1:
        return in_sequence(a, b) if transpose_a else _with_vector(a, b)
    if rows == 1 or (below and transpose_b):
        if not transpose_b:
            return in_sequence(a, b)
        turned = b.swapaxes(-1, -2)
        products = [_with_vector(turned, a[..., row, :, None]).swapaxes(-1, -2) for row in range(rows)]
        return products[0] if rows == 1 else np.concatenate(products, axis=-2)
    if transpose_b and not transpose_a:
        return _by_lanes(
            0, columns, lambda first, stop, lanes: _aligned_lanes(a, b[..., first:stop], lanes, terms, offset)
        )
    result = in_sequence(a, b)
    if not transpose_b and not (below and transpose_a):
        _correct_unaligned_cells(result, a, b, offset[1], columns, [(0, terms)])
    return result


def _by_lanes(first: int, stop: int, product: Callable[[int, int, int], Array]) -> Array:
    """The columns `first` up to `stop`: whole fours are sums of 4 lanes, the remaining columns sums of 8."""
    fours = stop - (stop - first) % _FOUR
    spans = ((first, fours, 4), (fours, stop, 8))
    parts = [product(start, end, lanes) for start, end, lanes in spans if start < end]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


Ends: TypeAlias = list[tuple[int, int]]
"""The start and the end of each block of terms, in the order in which blocks are added."""


def _block_ends(terms: int) -> Ends:
    ends = [(start, min(start + BLOCK, terms)) for start in range(0, terms, BLOCK)]
    return [ends[-1], *ends[:-1]]


def _blocks(a: Array, b: Array, product: Callable[[Array, Array], Array], start: Array | None = None) -> Array:
    """The sum of the products of all blocks, the last block first, added to `start`."""
    terms = a.shape[-1]
    if terms <= BLOCK:
        return _sum_with_start(start, product(a, b))
    result = None if start is None else start.copy()
    for first, stop in _block_ends(terms):
        part = product(a[..., first:stop], b[..., first:stop, :])
        result = part if result is None else np.add(result, part, out=result)
    assert result is not None
    return result


def _aligned_lanes(a: Array, b: Array, lanes: int, length: int, offset: Offset) -> Array:
    """Products by lanes that start where a row of A is aligned to four terms; rows are `length` terms
    apart in memory.
    """
    if length % _FOUR == 0 == offset[0]:
        return _lanes(a, b, 0, lanes)
    rows = np.arange(a.shape[-2])
    dims = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = np.empty((*dims, a.shape[-2], b.shape[-1]), np.float32)
    for before in range(_FOUR):
        at = rows[-(rows * length + offset[0]) % _FOUR == before]
        if len(at):
            result[..., at, :] = _lanes(a[..., at, :], b, min(before, a.shape[-1]), lanes)
    return result


def _lanes(a: Array, b: Array, before: int, lanes: int, at_once: int = 0) -> Array:
    """Products by lanes; the first `before` terms are in lane 0, the terms after the last full round are added at the
    end.

    A round takes `at_once` terms, by default one for each lane.
    """
    terms, at_once = a.shape[-1], at_once or lanes
    full = before + (terms - before) // at_once * at_once
    if full == before:
        return in_sequence(a, b)
    parts: list[Array] = []
    for lane in range(lanes):
        at = np.arange(before + lane, full, lanes)
        if lane == 0:
            at = np.concatenate([np.arange(before), at])
        parts.append(in_sequence(a[..., at], b[..., at, :]))
    if lanes == 8:
        parts = [parts[lane] + parts[lane + 4] for lane in range(4)]
    result = (parts[0] + parts[2]) + (parts[1] + parts[3])
    for term in range(full, terms):
        result += a[..., term : term + 1] * b[..., term : term + 1, :]
    return result


def _with_vector(a: Array, b: Array) -> Array:
    """A [..., m, k] times a vector [..., k, 1], if the terms of a row are adjacent in memory."""
    rows, terms = a.shape[-2], a.shape[-1]
    result = _lanes(a, b, (terms - 1) % _FOUR + 1, 4)
    for row, lanes in {2: ((-2, 8), (-1, 4)), 1: ((-1, 8),), 3: ((-3, 8), (-2, 4), (-1, 8))}.get(rows % _FOUR, ()):
        one = a[..., rows + row : rows + row + 1, :]
        result[..., rows + row : rows + row + 1, :] = _lanes(one, b, min(_FOUR, terms), lanes, at_once=8)
    return result


def _correct_unaligned_cells(result: Array, a: Array, b: Array, first: int, columns: int, blocks: Ends) -> None:
    """Corrects the cells before the first aligned four of each row of `result`, which begins `first` elements after an
    aligned one, and whose rows are `columns` elements apart.
    """
    if columns % _FOUR == 0 == first % _FOUR:
        return
    rows = np.arange(a.shape[-2])
    for before in range(1, _FOUR):
        at = rows[-(rows * columns + first) % _FOUR == before]
        if len(at) and b.shape[-1] - before >= _FOUR:
            result[..., at, :before] = _by_fours(a[..., at, :], b[..., :before], blocks)


def _by_fours(a: Array, b: Array, blocks: Ends) -> Array:
    """Products in order, except that the second four of every eight terms in a block are added up separately first."""
    result: Array | None = None
    for start, stop in blocks:
        for term, width in _fours(start, stop):
            part = a[..., term : term + 1] * b[..., term : term + 1, :]
            for more in range(term + 1, term + width):
                part += a[..., more : more + 1] * b[..., more : more + 1, :]
            result = part if result is None else np.add(result, part, out=result)
    assert result is not None
    return result


def _fours(start: int, stop: int) -> Iterator[tuple[int, int]]:
    full = start + (stop - start) // 8 * 8
    for eight in range(start, full, 8):
        yield from ((eight + at, 1) for at in range(4))
        yield eight + 4, 4
    yield from ((term, 1) for term in range(full, stop))
