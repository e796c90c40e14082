"""Warnings of Python that point at the user's line, however many frames lie between it and the call that warns."""

from __future__ import annotations

import os
import sys
import sysconfig
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep


def _is_of_user(file: str) -> bool:
    is_of_python = file.startswith((_LIBRARY, "<frozen ")) and "site-packages" not in file
    return not (file.startswith(_PACKAGE) or is_of_python)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns as `warnings.warn` does, at the innermost frame that is neither of this package nor of Python's library.

    If there is none, as in a thread of this package, the warning points at the outermost frame.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while not _is_of_user(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    known = frame.f_globals.setdefault("__warningregistry__", {})
    name = frame.f_globals.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, name, known)


def warn_at(message: str, file: str, line: int) -> None:
    """Warns of what stands at a line of the user's file, such as a loss that is traced."""
    warnings.warn_explicit(message, UserWarning, file, line)
