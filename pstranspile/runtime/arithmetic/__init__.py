"""The functions that kernels calculate with: products, elementwise functions and sums, in numpy's rounding or another.

A kernel calls `dot`, `exp`, `root`, `sum_over`, ... and does not depend on how these are rounded. `numpy` has numpy's
versions; within `arithmetic(module)` the functions of another module are used, such as `pstranspile.fluid.arithmetic`.
The choice is looked up at every call, so it also holds for programs that were prepared before.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter, Signature
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from pstranspile.runtime.arithmetic import numpy as plain
from pstranspile.runtime.arithmetic.numpy import is_small as is_small
from pstranspile.runtime.arithmetic.numpy import product as product
from pstranspile.runtime.arithmetic.numpy import product_of as product_of
from pstranspile.runtime.arithmetic.numpy import sum_of_rows as sum_of_rows

P = ParamSpec("P")
T = TypeVar("T")

_CHOSEN: ContextVar[ModuleType | None] = ContextVar("arithmetic", default=None)
"""The module whose functions are used; None: numpy's functions."""


@contextmanager
def arithmetic(module: str = "") -> Generator[None]:
    """Makes kernels that this thread runs within the context compute f32 values with the functions of a module.

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
    """The name of an arithmetic in options and checkpoints: `numpy`, or the `NAME` of a module.

    `module` is an import path, as for `arithmetic`; None stands for the arithmetic of this context.
    """
    if module is None:
        chosen = _CHOSEN.get()
    else:
        chosen = importlib.import_module(module) if module else None
    return "numpy" if chosen is None else str(chosen.NAME)


def same_everywhere() -> bool:
    """Whether the result for an element does not depend on its position in the array.

    An arithmetic may compute several elements at a time, and the last few of an array differently, as Fluid's does.
    """
    return _CHOSEN.get() is None


def either(plain: Callable[P, T], otherwise: Callable[P, T]) -> Callable[P, T]:
    """A function that calls `plain` in numpy's arithmetic, and `otherwise` in another one."""

    @wraps(plain)
    def dispatch(*arguments: P.args, **options: P.kwargs) -> T:
        return (plain if _CHOSEN.get() is None else otherwise)(*arguments, **options)

    return dispatch


def word(plain: Callable[P, T]) -> Callable[P, T]:
    """A function that calls `plain`, but for f32 arrays in another arithmetic the function with the same name there."""
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


number_of = word(plain.number_of)

dot = word(plain.dot)
matmul = word(plain.matmul)
sum_of_products = word(plain.sum_of_products)

exp = word(plain.exp)
exp_of_each = word(plain.exp_of_each)
log = word(plain.log)
log_of_each = word(plain.log_of_each)
log1p_of_each = word(plain.log1p_of_each)
softplus = word(plain.softplus)
softplus_slope = word(plain.softplus_slope)
sigmoid = word(plain.sigmoid)
tanh = word(plain.tanh)
cos = word(plain.cos)
sin = word(plain.sin)
power = word(plain.power)
root = word(plain.root)
inverse_root = word(plain.inverse_root)
over_root = word(plain.over_root)

total = word(plain.total)
norm = word(plain.norm)
sum_over = word(plain.sum_over)
sum_of_row = word(plain.sum_of_row)
sum_runs = word(plain.sum_runs)
sum_of_channels = word(plain.sum_of_channels)
norm_mean = word(plain.norm_mean)
norm_grad_mean = word(plain.norm_grad_mean)

shares_of_exp = word(plain.shares_of_exp)
minus_log_of_shares = word(plain.minus_log_of_shares)
shares_of_runs = word(plain.shares_of_runs)

FUNCTIONS = {
    function.__name__: function
    for function in (
        *(cos, exp, log, root, sigmoid, sin, softplus, softplus_slope, tanh, total),
        *(plain.relu_grad, plain.sigmoid_grad, plain.tanh_grad),
    )
}
"""The functions that the expressions of kernels may call, in addition to numpy."""

NUMBERS = {"inf": math.inf, "nan": math.nan}
"""The names in the expressions of kernels of FLOATs that are not finite, as `repr` writes them."""
