"""What was probably meant by a name that is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like the given one; None if none is near. `cutoff` is from 0 (anything) to 1."""
    from difflib import get_close_matches  # which takes as long to import as a small program to read

    return next(iter(get_close_matches(given, list(known), 1, cutoff)), None)


def did_you_mean(given: str, known: Iterable[str], show: Callable[[str], str] = str) -> str:
    """`; did you mean x?` when a known name, as `show` writes it, is near the given one; else nothing."""
    near = nearest(given, known)
    return "" if near is None else f"; did you mean {show(near)}?"
