"""The choice of the arithmetic: numpy's, or Fluid's within a context.

It is looked up at every call, so it also holds for programs that were prepared before.
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
"""The module with Fluid's functions if they are chosen."""


@contextmanager
def fluid_arithmetic(chosen: bool = True) -> Generator[None]:
    """Rounds f32 values as Fluid 1.8.5 does on a CPU, for what this thread runs within the context.

    docs/reference/kernels.md, "Two arithmetics", lists the ops that depend on it. `fluid_arithmetic(False)` returns to
    numpy's arithmetic.
    """
    # Imported here: building its tables is slow, and most runs don't need them
    token = _FLUID.set(importlib.import_module("pstranspile.fluid.arithmetic") if chosen else None)
    try:
        yield
    finally:
        _FLUID.reset(token)


def same_everywhere() -> bool:
    """Whether the result of an element does not depend on its position in the array.

    Fluid computes elements eight at a time, and the last few of an array in another way.
    """
    return _FLUID.get() is None


def either(plain: Callable[P, T], in_fluid: Callable[P, T]) -> Callable[P, T]:
    """A function that is `plain`, but `in_fluid` in Fluid's arithmetic."""

    @wraps(plain)
    def chosen(*arguments: P.args, **options: P.kwargs) -> T:
        return (plain if _FLUID.get() is None else in_fluid)(*arguments, **options)

    return chosen


def word(plain: Callable[P, T]) -> Callable[P, T]:
    """A function that is `plain`, but for f32 arrays in Fluid's arithmetic the function of the same name there.

    The array is the first argument. The function is generated with the parameters of `plain`, because passing on
    arbitrary arguments takes longer than the calculation itself for a small array.
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
