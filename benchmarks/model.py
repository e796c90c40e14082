"""What `steps.py` measures: a model, a batch for it, and a step of it written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pstranspile.ir.model import Module

Step = Callable[[], float]


class Model(NamedTuple):
    """A model, a batch for it, and the hand-written step that starts from the same parameters."""

    module: Module
    loss: str
    feed: dict[str, Any]
    by_hand: Callable[[dict[str, Any], dict[str, Any]], Step]
    goal: float
