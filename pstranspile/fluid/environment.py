"""Numbers that the environment gives, as launchers and users set them."""

from __future__ import annotations

import os


def whole(name: str, default: int | None = None) -> int:
    """The whole number that a variable of the environment holds.

    Raises ValueError, which names the variable and what it holds, for another text, and for a variable that is not set
    where there is no `default`.
    """
    text = os.environ.get(name, "").strip()
    if not text and default is not None:
        return default
    try:
        return int(text if "_" not in text and text.isascii() else "")
    except ValueError:
        held = f"holds {os.environ[name]!r}, which is no whole number" if name in os.environ else "is not set"
        raise ValueError(f"the variable {name} of the environment {held}") from None


def seconds(name: str, default: float) -> float:
    """The seconds that a variable of the environment holds. Raises ValueError as `whole`, also for a number below 0."""
    text = os.environ.get(name, "").strip()
    try:
        value = float(text) if text else default
        if value >= 0:
            return value
    except ValueError:
        pass
    raise ValueError(f"the variable {name} of the environment holds {text!r}, which is no number of seconds")
