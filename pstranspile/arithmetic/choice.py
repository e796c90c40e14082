"""Which arithmetic holds: numpy's, or Fluid's while it is asked for.

It is asked at every call, so it may be chosen around any run, also of what was prepared before.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter, Signature
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

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

    The array is the first argument. The function is written out with the parameters of `plain`, because passing on any
    arguments takes longer than what a word does for a small array.
    """
    name, signature = plain.__name__, inspect.signature(plain)
    bare = [parameter.replace(annotation=Parameter.empty) for parameter in signature.parameters.values()]
    names = ", ".join(signature.parameters)
    text = f"""
def {name}{Signature(bare)}:
    fluid = chosen()
    if fluid is not None and {bare[0].name}.dtype == float32:
        return fluid.{name}({names})
    return plain({names})
"""
    known: dict[str, Any] = {"chosen": _FLUID.get, "float32": np.float32, "plain": plain}
    exec(compile(text, f"<word {name}>", "exec"), known)
    return cast("Callable[P, T]", wraps(plain)(known[name]))
