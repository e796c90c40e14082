"""Helpers that tell apart the values that scripts pass: several things or one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np


def several(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


class Fetched(np.ndarray):
    """An array that a run returns. With a single element it can be used as a number, whatever its dims."""

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))  # printed as in Fluid, for scripts and for comparisons of logs

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return self.item().__index__()

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if form and self.size == 1 else str(self)
