"""The modes of distribution, a file for each: what it finds in a program, plans and emits."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from pstranspile.job.modes import MODES
from pstranspile.modes.base import Mode


@cache
def mode_of(name: str) -> Mode[Any]:
    """The mode of this name. A compile imports that of its own mode only. Raises KeyError."""
    module, _, cls = MODES[name].implementation.partition(":")
    return getattr(import_module(f"pstranspile.modes.{module}"), cls)()
