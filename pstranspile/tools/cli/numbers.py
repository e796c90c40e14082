"""Numbers as values of options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from pstranspile.ir.expect import MOST_STEPS


def number(least: int, most: int) -> Callable[[str], int]:
    """The type of options that take a whole number from `least` to `most`."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]+", text) or (text.strip("0") == "" and least > 0):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number of at least {least}")
        if len(text.lstrip("0")) > 18 or int(text) > most:
            raise argparse.ArgumentTypeError(f"{text[:40]} is more than {most:,}, the most that is taken")
        return int(text)

    return read


count = number(1, MOST_STEPS)
"""The type of options that take a number of things, at least one."""


def whole(text: str) -> int:
    """The type of options that take a whole number, such as a seed."""
    if not re.fullmatch("-?[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number (of 18 digits at most)")
    return int(text)


def above_zero(what: str) -> Callable[[str], float]:
    """The type of options that take a number above 0 of something."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {what} above 0")
        return value

    return read


seconds = above_zero("seconds")
"""The type of options that take a time."""

cpus = above_zero("CPUs")
"""The type of options that take an amount of CPUs, such as a half."""
