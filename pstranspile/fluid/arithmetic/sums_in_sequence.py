"""Matrix products whose terms are added one after the other, whatever numpy's own do on this machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from pstranspile.runtime.values import Array

_BLAS_TERMS = 384
"""Terms that OpenBLAS takes at a time, in its kernels without fused multiply-add."""

_NARROW = 8
"""Columns below which all terms are made at once."""

_MOST_VALUES = 1 << 20
"""Products that are kept at once."""


def in_sequence(a: Array, b: Array) -> Array:
    """a @ b, every product rounded and added to the sum of those before it."""
    if a.shape[-1] <= _BLAS_TERMS and _blas_is_in_sequence():
        return _widened(np.matmul, a, b)
    narrow = a.shape[-2] == 1 or b.shape[-1] < _NARROW
    if narrow and a.ndim == b.ndim == 2 and a.size * b.shape[1] <= _MOST_VALUES:
        return _by_terms(a, b)
    return _widened(_by_rows if _einsum_is_in_sequence() else _by_terms, a, b)


def _widened(product: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """The product with a single row or column duplicated, because vector products are summed in other orders."""
    rows, columns = a.shape[-2], b.shape[-1]
    if rows > 1 and columns > 1:
        return product(a, b)
    wide_a = np.repeat(a, 2, axis=-2) if rows == 1 else a
    wide_b = np.repeat(b, 2, axis=-1) if columns == 1 else b
    return product(wide_a, wide_b)[..., :rows, :columns]


def _by_rows(a: Array, b: Array) -> Array:
    return np.einsum("...ik,...kj->...ij", a, np.ascontiguousarray(b))


def _by_terms(a: Array, b: Array) -> Array:
    """All products at once, [k, ..., m, n], then summed over the first axis; some rows at a time, if they are many."""
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
    """Whether numpy's matrix products are sums in sequence, as those of OpenBLAS's kernels for older CPUs are."""
    return _is_in_sequence(np.matmul)


@cache
def _einsum_is_in_sequence() -> bool:
    return _is_in_sequence(_by_rows)


def _is_in_sequence(product: Callable[[Array, Array], Array]) -> bool:
    """Tests it on matrices whose sums differ in other orders."""
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
