"""Fluid's `wrapped_decorator`: decorators that keep the signature of what they decorate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import wraps
from typing import Any

from pstranspile.fluid.missing import names_of_fluid


def wrap_decorator(decorator_func: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The decorator that calls what `decorator_func` makes of a function, under the function's name and signature."""

    def decorate(function: Any) -> Any:
        decorated = decorator_func(function)

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            return decorated(*args, **options)

        return call

    return decorate


signature_safe_contextmanager = wrap_decorator(contextmanager)
"""The decorator `contextlib.contextmanager`, which keeps the signature."""

__getattr__ = names_of_fluid(__name__, globals())
