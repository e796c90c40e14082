"""Which items of two sequences belong together, in time that does not explode for long ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

MAX_CELLS = 400_000
"""Ranges with more pairs than this, and with nothing unique in both, are not aligned item by item."""

MAX_DEPTH = 40
"""How often a range is cut at unique items before it is aligned as it is."""


def align(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """For every item of `a`, the position of its partner in `b`, or -1. Partners are equal and in order.

    A patience diff: the ends that are equal, then items that occur once on each side, then the ranges between
    these in the same way; small ranges without such items by their longest common blocks.
    """
    partner = [-1] * len(a)
    todo = [(0, len(a), 0, len(b), 0)]
    while todo:
        alo, ahi, blo, bhi, depth = todo.pop()
        while alo < ahi and blo < bhi and a[alo] == b[blo]:
            partner[alo] = blo
            alo, blo = alo + 1, blo + 1
        while alo < ahi and blo < bhi and a[ahi - 1] == b[bhi - 1]:
            ahi, bhi = ahi - 1, bhi - 1
            partner[ahi] = bhi
        if alo == ahi or blo == bhi:
            continue
        anchors = _anchors(a, alo, ahi, b, blo, bhi) if depth < MAX_DEPTH else []
        if anchors:
            for i, j in [*anchors, (ahi, bhi)]:
                todo.append((alo, i, blo, j, depth + 1))
                if i < ahi:
                    partner[i] = j
                alo, blo = i + 1, j + 1
        elif (ahi - alo) * (bhi - blo) <= MAX_CELLS:
            for i, j in _blocks(a[alo:ahi], b[blo:bhi]):
                partner[alo + i] = blo + j
    return partner


def _once(items: Sequence[int], low: int, high: int) -> dict[int, int]:
    """Item -> position, for the items that occur once in a range."""
    indices: dict[int, int] = {}
    for position in range(low, high):
        item = items[position]
        indices[item] = -1 if item in indices else position
    return {item: position for item, position in indices.items() if position >= 0}


def _anchors(a: Sequence[int], alo: int, ahi: int, b: Sequence[int], blo: int, bhi: int) -> list[tuple[int, int]]:
    """The longest series of items, in order on both sides, that occur once on each."""
    in_b = _once(b, blo, bhi)
    pairs = [(i, in_b[item]) for item, i in _once(a, alo, ahi).items() if item in in_b]
    pairs.sort()
    ends: list[int] = []  # smallest end in b of a series of each length
    at: list[int] = []  # index in `pairs` of that end
    before: list[int] = []
    for index, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        before.append(at[length - 1] if length else -1)
        if length == len(ends):
            ends.append(j)
            at.append(index)
        else:
            ends[length], at[length] = j, index
    series: list[tuple[int, int]] = []
    index = at[-1] if at else -1
    while index >= 0:
        series.append(pairs[index])
        index = before[index]
    return series[::-1]


def _blocks(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[int, int]]:
    from difflib import SequenceMatcher

    for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        yield from ((block.a + k, block.b + k) for k in range(block.size))
