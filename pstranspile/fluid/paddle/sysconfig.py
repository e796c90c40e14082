"""Paddle's `sysconfig`: where headers and libraries lie, for scripts that build ops in C++."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def get_include() -> str:
    """The folder of C++ headers. There are none here."""
    return str(_FOLDER / "include")


def get_lib() -> str:
    """The folder of libraries. There are none here."""
    return str(_FOLDER / "libs")
