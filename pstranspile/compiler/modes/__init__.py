"""The modes of distribution, a file for each: what it requires of jobs, finds in a program, plans and emits.

Every file here is a mode, under its own name, and ends with `MODE = ...`. What several share is in `shared`.
"""

from __future__ import annotations

from typing import Any

from pstranspile.compiler.job.modes import mode_module
from pstranspile.compiler.modes.shared.base import Mode


def mode_of(name: str) -> Mode[Any]:
    """The mode of this name. A compile imports that of its own mode only. Raises KeyError."""
    return mode_module(name).MODE
