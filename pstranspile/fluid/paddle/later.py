"""Helpers of the modules with the names of the first 2.x versions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.layers.adapt import bound, signature_of
from pstranspile.fluid.missing import why_not
from pstranspile.ir.diagnostics import nearest


def not_there(name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name of 2.x that does not exist, with the nearest name that does."""
    why = why_not(name)
    if why:
        return AttributeError(f"{name} is not part of pstranspile.fluid: {why}")
    near = nearest(name.rpartition(".")[2], [key for key in known if not key.startswith("_")], 0.5)
    hint = f"; the nearest name that is there: {near}" if near else ""
    return AttributeError(f"{name} is not part of pstranspile.fluid{hint}")


def later(name: str, function: Callable[..., Any], arguments: str, renamed: str = "") -> Callable[..., Any]:
    """Fluid's `function` with the arguments of 2.x, followed by `name=None`.

    `renamed` has the arguments that have other names in Fluid (`"x=input axis=dim"`).
    """
    signature = signature_of(f"{arguments}, name=None")
    names = dict(item.split("=") for item in renamed.split())
    takes_name = "name" in inspect.signature(function).parameters

    def call(*args: Any, **options: Any) -> Any:
        given = bound(name, signature, args, options)
        if not takes_name:
            del given["name"]
        return function(**{names.get(key, key): value for key, value in given.items()})

    call.__name__, call.__doc__ = name, function.__doc__
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def from_tables(
    module: str, known: Iterable[str], table: Mapping[str, tuple[str, ...]], same: str = ""
) -> Callable[[str], Any]:
    """A module's `__getattr__` that returns layers of Fluid under later names.

    `table` has for each name Fluid's layer, its arguments in 2.x, and those with other names in Fluid; layers in `same`
    have the same name and arguments.
    """
    own_names = frozenset(same.split())

    def get(name: str) -> Any:
        if name in own_names:
            return getattr(layers, name)
        if name in table:
            fluid, *rest = table[name]
            return later(name, getattr(layers, fluid), *rest)
        raise not_there(f"{module}.{name}", [*known, *table, *own_names])

    return get
