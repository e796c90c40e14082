"""What is known of the skeleton of a line: the line without its names and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pstranspile.ir.model import Op

OP, DECLARATION, CLOSE, BLANK, VERSION = range(5)
"""What a line is. (Numbers: every line is compared with them.)"""


class Entry(NamedTuple):
    """What is known of a skeleton. `values`: what the text between the braces (None: no braces) stands for."""

    kind: int
    fill: Callable[..., Op] | None
    values: dict[str | None, Any]
    column: int
    op_type: str
