"""Fluid's `wrapped_decorator` and `annotations`: decorators of functions.

They keep the signature of the decorated function, or mark it as deprecated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import wraps
from typing import Any

from pstranspile.fluid.missing import names_of_fluid


def wrap_decorator(decorator_func: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that calls the result of `decorator_func` for a function, and keeps the function's name and
    signature.
    """

    def decorate(function: Any) -> Any:
        decorated = decorator_func(function)

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            return decorated(*args, **options)

        return call

    return decorate


signature_safe_contextmanager = wrap_decorator(contextmanager)
"""The decorator `contextlib.contextmanager`, with the signature of the function kept."""


def deprecated(since: str, instead: str, extra_message: str = "") -> Callable[[Any], Any]:
    """A decorator for functions that print on stderr, at every call, what to call instead."""

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


__getattr__ = names_of_fluid(__name__, globals())
