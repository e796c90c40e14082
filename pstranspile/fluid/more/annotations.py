"""Fluid's `annotations`: functions that another one has taken the place of."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


def deprecated(since: str, instead: str, extra_message: str = "") -> Callable[[Any], Any]:
    """A decorator of functions that say on stderr at every call what to call instead."""

    def decorate(function: Any) -> Any:
        notice = f"API {function.__name__} is deprecated since {since}. Please use {instead} instead."
        notice += f"\n{extra_message}" if extra_message else ""

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            print(notice, file=sys.stderr)
            return function(*args, **options)

        call.__doc__ = f"{function.__doc__ or ''}\n    {notice}"
        return call

    return decorate
