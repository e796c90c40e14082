"""What one text has that an older one has not, in whole statements."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from pstranspile.tools.lsp.outline import Outline

MOST_CHANGED = 40
"""The most statements that may have changed; with more, the whole text is read anew."""

_ALIKE = 3
"""So many statements that are alike in both texts end a change."""


class Change(NamedTuple):
    """Lines `first` up to `last` of the new text stand where lines `old_first` up to `old_last` of the older one stood.

    Both begin and end between statements. Either may be empty.
    """

    first: int
    last: int
    old_first: int
    old_last: int

    @property
    def moves(self) -> int:
        """The number of lines by which what follows it stands further down."""
        return self.last - self.old_last


def changes(new: Outline, old: Outline) -> list[Change] | None:
    """The changes from an older text to a new one, from top to bottom; None where they are too many to separate.

    Statements outside of them are the same in both texts, one by one. Takes time in proportion to the texts.
    """
    window = _window(new, old)
    texts, old_texts = _statements(new, *window[:2]), _statements(old, *window[2:])
    result: list[Change] = []
    at, old_at, count = 0, 0, 0
    ends = (len(texts), len(old_texts))
    while (at, old_at) != ends:
        if at < ends[0] and old_at < ends[1] and texts[at][1] == old_texts[old_at][1]:
            at, old_at = at + 1, old_at + 1
            continue
        until, old_until = _next_alike(texts, old_texts, at, old_at)
        count += max(until - at, old_until - old_at)
        if count > MOST_CHANGED:
            return None
        first, last = _line(texts, at, window[1]), _line(texts, until, window[1])
        result.append(Change(first, last, _line(old_texts, old_at, window[3]), _line(old_texts, old_until, window[3])))
        at, old_at = until, old_until
    return result


def _window(new: Outline, old: Outline) -> Change:
    """One change that holds all: the lines between those that both texts begin with, and those that both end with."""
    shorter = min(len(new.lines), len(old.lines))
    pairs = enumerate(zip(new.lines, old.lines, strict=False))
    first = next((at for at, (one, other) in pairs if one != other), shorter)
    while first in new.further or first in old.further:
        first -= 1
    ends = enumerate(zip(reversed(new.lines), reversed(old.lines), strict=False))
    same = next((at for at, (one, other) in ends if one != other), shorter)
    same = min(same, shorter - first)
    last, old_last = len(new.lines) - same, len(old.lines) - same
    while last in new.further or old_last in old.further:
        last, old_last = last + 1, old_last + 1
    return Change(first, last, first, old_last)


def _statements(outline: Outline, first: int, last: int) -> list[tuple[int, str]]:
    """The statements that begin on lines `first` up to `last`, each with its first line and its text."""
    lines, further = outline.lines, outline.further
    bounds = [*[at for at in range(first, last) if at not in further], last]
    return [(at, lines[at] if end == at + 1 else "\n".join(lines[at:end])) for at, end in pairwise(bounds)]


def _line(statements: list[tuple[int, str]], at: int, end: int) -> int:
    return statements[at][0] if at < len(statements) else end


def _next_alike(
    texts: list[tuple[int, str]], old_texts: list[tuple[int, str]], at: int, old_at: int
) -> tuple[int, int]:
    """The places from which both go on alike, with as few statements left out as possible; their ends if that is too
    far.
    """
    ends = (len(texts), len(old_texts))
    for left_out in range(1, 2 * MOST_CHANGED + 1):
        for count in range(left_out + 1):
            here, there = at + count, old_at + left_out - count
            if here > ends[0] or there > ends[1]:
                continue
            if (here, there) == ends:
                return ends
            alike, old_alike = texts[here : here + _ALIKE], old_texts[there : there + _ALIKE]
            if alike and [text for _, text in alike] == [text for _, text in old_alike]:
                return here, there
    return ends
