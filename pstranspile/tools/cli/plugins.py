"""Passes of third parties, found through entry points.

A package offers a pass in the group `pstranspile.passes`: a function from Module to Module, which may raise
DiagnosticError. It runs on the source, before the compiler's own passes, when it is asked for by name.
(Op types come in the group `pstranspile.ops`: see `pstranspile.ops`.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import EntryPoint
from typing import cast

from pstranspile.compiler.pipeline import NAMES
from pstranspile.ir.diagnostics import DiagnosticError, Note, did_you_mean, error
from pstranspile.ir.model import Module
from pstranspile.ops.offered import guarded, load, offers, package_of

SourcePass = Callable[[Module], Module]
"""A pass of a third party: the module as it is to be compiled."""

GROUP = "pstranspile.passes"


@cache
def _points() -> Mapping[str, tuple[EntryPoint, ...]]:
    """The entry points of third parties by name, in alphabetical order."""
    points: dict[str, tuple[EntryPoint, ...]] = {}
    for point in offers(GROUP, "pass"):
        points[point.name] = (*points.get(point.name, ()), point)
    return points


def offered() -> Mapping[str, EntryPoint]:
    """The installed passes of third parties by name, in alphabetical order; of two with one name, the first by value.

    Raises DiagnosticError (`pass`) if the entry points of a package can't be read.
    """
    return {name: points[0] for name, points in _points().items()}


def load_pass(name: str) -> SourcePass:
    """The pass called `name`. Raises DiagnosticError: `pass-unknown` if it is not offered, `pass` if not loadable."""
    point = offered().get(name)
    if point is None:
        if name in NAMES:
            message = f"{name} is a pass of the compiler itself, which always runs"
        else:
            known = ", ".join(offered()) or "none is installed"
            hint = did_you_mean(name, offered())
            message = f"no installed package offers the pass {name!r} (offered: {known}){hint}"
        raise DiagnosticError([error("pass-unknown", message)])
    same = _points()[name]
    if len(same) > 1:
        whose = " and ".join(f"{package_of(each)} ({each.value})" for each in same)
        raise DiagnosticError([error("pass", f"the pass {name!r} is offered by {whose}: only one may be installed")])
    function = load(point, "the pass", "pass")
    if not callable(function):
        message = f"the pass {name!r} ({point.value}) is not a function"
        raise DiagnosticError([error("pass", message, notes=(Note(f"it is of {package_of(point)}"),))])
    return cast("SourcePass", function)


def run_passes(module: Module, names: Sequence[str]) -> Module:
    """The module after these passes of third parties, in order.

    Raises DiagnosticError: the pass's own, `pass` if it fails in another way or gives something else, `pass-unknown`.
    """
    for name in names:
        function = load_pass(name)
        notes = (Note(f"it is of {package_of(offered()[name])}"),)
        made = guarded(partial(function, module), f"the pass {name!r}", "failed", "pass", notes)
        if not isinstance(made, Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            message = f"the pass {name!r} gave {type(made).__name__}, not a Module"
            raise DiagnosticError([error("pass", message, notes=notes)])
        module = made
    return module
