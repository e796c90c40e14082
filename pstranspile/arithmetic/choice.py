"""Which arithmetic holds: numpy's, or Fluid's while it is asked for.

It is asked at every call, so it may be chosen around any run, also of what was prepared before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")

_FLUID: ContextVar[ModuleType | None] = ContextVar("fluid_arithmetic", default=None)
"""The module with Fluid's functions where they are chosen."""


@contextmanager
def fluid_arithmetic(chosen: bool = True) -> Generator[None]:
    """Has f32 values rounded as Fluid 1.8.5 rounds them on a CPU, for what this thread runs while it holds.

    docs/reference/kernels.md, "Two arithmetics", lists the ops that go by it. `fluid_arithmetic(False)` returns to
    numpy's.
    """
    # Imported here: its tables take longer than all else, and most runs don't need them
    token = _FLUID.set(importlib.import_module("pstranspile.arithmetic.fluid") if chosen else None)
    try:
        yield
    finally:
        _FLUID.reset(token)


def same_everywhere() -> bool:
    """Whether what a function gives for an element does not depend on where in the array the element lies.

    Fluid takes elements eight at a time, and the last few of an array in another way.
    """
    return _FLUID.get() is None


def either(plain: Callable[P, T], in_fluid: Callable[P, T]) -> Callable[P, T]:
    """A function that is `plain`, but `in_fluid` in Fluid's arithmetic."""

    @wraps(plain)
    def chosen(*arguments: P.args, **options: P.kwargs) -> T:
        return (plain if _FLUID.get() is None else in_fluid)(*arguments, **options)

    return chosen


def word(plain: Callable[P, T]) -> Callable[P, T]:
    """A function that is `plain`, but that of Fluid's arithmetic of the same name where that holds for an f32 array.

    The array is the first argument.
    """
    name = plain.__name__

    @wraps(plain)
    def chosen(*arguments: P.args, **options: P.kwargs) -> T:
        fluid = _FLUID.get()
        if fluid is not None:
            first: Any = arguments[0]
            if first.dtype == np.float32:
                return getattr(fluid, name)(*arguments, **options)
        return plain(*arguments, **options)

    return chosen
