"""How many cases tests draw, and which."""

from __future__ import annotations

import os


def cases(usual: int) -> int:
    """The number in the environment variable PSTRANSPILE_CASES, or `usual` (CONTRIBUTING.md)."""
    return int(os.environ.get("PSTRANSPILE_CASES", "0")) or usual


def first() -> int:
    """The number in the environment variable PSTRANSPILE_FIRST, or 0: what the first case is drawn from."""
    return int(os.environ.get("PSTRANSPILE_FIRST", "0"))
