"""Entries for the skeletons of lines: lines without their names and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pstranspile.ir.model import Op

OP, DECLARATION, CLOSE, BLANK, VERSION = range(5)
"""What a line is. (Numbers: every line is compared with them.)"""


class Entry(NamedTuple):
    """The entry of a skeleton. `values` maps texts between the braces (None: no braces) to their values."""

    kind: int
    fill: Callable[..., Op] | None
    values: dict[str | None, Any]
    column: int
    op_type: str
