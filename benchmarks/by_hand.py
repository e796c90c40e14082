"""Training steps of some of the programs that `real.py` measures, written by hand with numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Step = Callable[[dict[str, Any]], float]

STEPS: dict[str, Callable[[dict[str, Any]], Step]] = {}
"""By the name of the program: from the persistable variables to a step, which takes feeds and gives the loss."""
