"""Copies of large arrays that cost what has changed: blocks that are as before are shared with an older copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Value
from pstranspile.run.scope import own_copy

np = lazy_import("numpy")

BLOCK = 1024
"""Elements that are kept or shared together."""

CHUNK = 1 << 20
"""Elements that are worked on at a time, so that no work takes a large array of its own."""

WORTH = 0.5
"""The part of its blocks that an array may have changed, to be kept as blocks."""


class Patched(NamedTuple):
    """An array that is `base`, which nobody changes, but for the blocks that begin at `starts` in it, flat."""

    base: Any
    starts: Any
    blocks: Any

    def whole(self) -> Any:
        """The array itself, made anew."""
        made = self.base.copy()
        flat = made.reshape(-1)
        for start, block in zip(self.starts.tolist(), self.blocks, strict=True):
            flat[start : start + len(block)] = block
        return made


def kept(value: Value, like: Value = None) -> Value:
    """A copy of a value, which shares with `like`, an array or what this gave before, as much as is the same.

    Whoever has it changes nothing in it.
    """
    base = like.base if isinstance(like, Patched) else like
    if not isinstance(value, np.ndarray) or not isinstance(base, np.ndarray):
        return own_copy(value)
    if value.dtype != base.dtype or value.shape != base.shape or value.dtype.kind == "O":
        return own_copy(value)
    if value.size < 2 * BLOCK:
        return base if same_bits(value, base) else own_copy(value)
    flat, old = np.ascontiguousarray(value).reshape(-1), base.reshape(-1)
    changed: list[int] = []
    for start in range(0, flat.size, CHUNK):
        differing = np.flatnonzero(_bits(flat[start : start + CHUNK]) != _bits(old[start : start + CHUNK]))
        changed += np.unique(differing // BLOCK * BLOCK + start).tolist()
        if len(changed) * BLOCK > WORTH * flat.size:
            return own_copy(value)
    if not changed:
        return base
    starts = np.minimum(np.array(changed), flat.size - BLOCK)
    return Patched(base, starts, np.stack([flat[start : start + BLOCK] for start in starts.tolist()]))


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays have the same element type, dims and bits."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "O" or not a.flags.c_contiguous or not b.flags.c_contiguous:
        return a.tobytes() == b.tobytes()
    return all(np.array_equal(_bits(one), _bits(other)) for one, other in chunks(a, b))


def chunks(a: Any, b: Any) -> Iterator[tuple[Any, Any]]:
    """Two arrays of the same dims, flat, a part at a time."""
    one, other = a.reshape(-1), b.reshape(-1)
    for start in range(0, max(one.size, 1), CHUNK):
        yield one[start : start + CHUNK], other[start : start + CHUNK]


def _bits(array: Any) -> Any:
    """The elements as integers, so that a NaN equals itself and -0 is not 0."""
    return array.view(f"u{array.itemsize}") if array.itemsize in (1, 2, 4, 8) else array
