"""The choice of the arithmetic: numpy's, or within a context that of a module, as of `pstranspile.fluid.arithmetic`.

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

_CHOSEN: ContextVar[ModuleType | None] = ContextVar("arithmetic", default=None)
"""The module whose functions are chosen; None: numpy's."""


@contextmanager
def arithmetic(module: str = "") -> Generator[None]:
    """Rounds f32 values by the functions of a module for what this thread runs within the context.

    `module` is the import path of a module that has the functions of `pstranspile.runtime.arithmetic` under their
    names; "" returns to numpy's arithmetic. docs/reference/kernels.md, "Two arithmetics", lists the ops that depend on
    it.
    """
    # Imported here: building tables is slow, and most runs don't need them
    token = _CHOSEN.set(importlib.import_module(module) if module else None)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def arithmetic_name(module: str | None = None) -> str:
    """The name of an arithmetic, as options and checkpoints write it: `numpy`, or the `NAME` of a module.

    `module` is an import path as `arithmetic` takes it; None stands for what is chosen in this context.
    """
    if module is None:
        chosen = _CHOSEN.get()
    else:
        chosen = importlib.import_module(module) if module else None
    return "numpy" if chosen is None else str(chosen.NAME)


def same_everywhere() -> bool:
    """Whether the result of an element does not depend on its position in the array.

    An arithmetic may compute elements several at a time, and the last few of an array in another way, as Fluid's does.
    """
    return _CHOSEN.get() is None


def either(plain: Callable[P, T], otherwise: Callable[P, T]) -> Callable[P, T]:
    """A function that is `plain` in numpy's arithmetic, and another one in a chosen arithmetic."""

    @wraps(plain)
    def chosen(*arguments: P.args, **options: P.kwargs) -> T:
        return (plain if _CHOSEN.get() is None else otherwise)(*arguments, **options)

    return chosen


def word(plain: Callable[P, T]) -> Callable[P, T]:
    """A function that is `plain`, but for f32 arrays in a chosen arithmetic the function of the same name there.

    The array is the first argument. The function is generated with the parameters of `plain`, because passing on
    arbitrary arguments takes longer than the calculation itself for a small array.
    """
    name, signature = plain.__name__, inspect.signature(plain)
    bare = [parameter.replace(annotation=Parameter.empty) for parameter in signature.parameters.values()]
    names = ", ".join(signature.parameters)
    text = f"""
def {name}{Signature(bare)}:
    arithmetic = chosen()
    if arithmetic is not None and {bare[0].name}.dtype == float32:
        return arithmetic.{name}({names})
    return plain({names})
"""
    known: dict[str, Any] = {"chosen": _CHOSEN.get, "float32": np.float32, "plain": plain}
    exec(compile(text, f"<word {name}>", "exec"), known)
    return cast("Callable[P, T]", wraps(plain)(known[name]))
