"""How many cases the tests of this folder draw."""

from __future__ import annotations

import os


def cases(usual: int) -> int:
    """The number in the environment variable PSTRANSPILE_CASES, or `usual` (CONTRIBUTING.md)."""
    return int(os.environ.get("PSTRANSPILE_CASES", "0")) or usual
