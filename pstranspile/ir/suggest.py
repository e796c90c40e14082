"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most similar to the given one; None if none is similar. `cutoff` is from 0 (anything) to 1."""
    from difflib import get_close_matches  # importing it takes as long as reading a small program

    return next(iter(get_close_matches(given, list(known), 1, cutoff)), None)


def did_you_mean(given: str, known: Iterable[str], show: Callable[[str], str] = str) -> str:
    """`; did you mean x?` if a known name, written by `show`, is similar to the given one; else nothing."""
    near = nearest(given, known)
    return "" if near is None else f"; did you mean {show(near)}?"
