"""How a variable is cut into slices of whole rows."""

from __future__ import annotations

from math import prod
from typing import NamedTuple


class Cut(NamedTuple):
    """One slice of a variable along dim 0: rows `start` to `stop` (elements, for a rank-1 variable)."""

    start: int
    stop: int


def cut_rows(shape: tuple[int, ...], servers: int, min_block_size: int) -> tuple[Cut, ...]:
    """The slices of a variable of this shape over so many servers, in order.

    Fluid's formula: parts = min(servers, max(1, numel // min_block_size)); a slice has ceil(numel / parts)
    elements, from rank 2 on rounded up to whole rows; then as many slices as that takes, the last one shorter.
    Rounding can make them fewer than the servers. A variable without elements is one slice.
    """
    numel = prod(shape)
    rows = shape[0] if shape else 1
    if numel == 0:
        return (Cut(0, rows),)
    parts = min(servers, max(1, numel // min_block_size))
    size = -(-numel // parts)
    width = prod(shape[1:])
    height = -(-size // width)
    return tuple(Cut(start, min(start + height, rows)) for start in range(0, rows, height))
