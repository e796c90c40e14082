"""What the modules share whose names are those of the first 2.x versions."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def not_there(name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name of 2.x that is not there, with the nearest one that is."""
    near = get_close_matches(name.rpartition(".")[2], [key for key in known if not key.startswith("_")], 1, 0.5)
    hint = f"; the nearest name that is there: {near[0]}" if near else ""
    return AttributeError(f"{name} is not part of pstranspile.fluid{hint}")
