"""Passes of third parties, found through entry points.

A package offers a pass in the group `pstranspile.passes`: a function from Module to Module, which may raise
DiagnosticError. It runs on the source, before the compiler's own passes, when it is asked for by name.
(Op types come in the group `pstranspile.ops`: see `pstranspile.ops`.)
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from pstranspile.compiler.pipeline import NAMES
from pstranspile.ir.diagnostics import DiagnosticError, Note, did_you_mean, error
from pstranspile.ir.model import Module

SourcePass = Callable[[Module], Module]
"""A pass of a third party: the module as it is to be compiled."""

GROUP = "pstranspile.passes"
_IMPORTING = (importlib.__path__[0], "<frozen importlib")
"""How the files of Python's import system begin, whose frames say nothing to the author of a pass."""


@cache
def offered() -> Mapping[str, EntryPoint]:
    """The installed passes of third parties by name, in alphabetical order; of two with one name, the first found."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        points.setdefault(point.name, point)
    return {name: points[name] for name in sorted(points)}


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
    try:
        function = point.load()
    except Exception as reason:  # whatever the other package does as it is imported
        message = f"the pass {name!r} ({point.value}) can't be loaded: {type(reason).__name__}: {reason}"
        raise DiagnosticError([error("pass", message, notes=_traceback(reason))]) from reason
    if not callable(function):
        raise DiagnosticError([error("pass", f"the pass {name!r} ({point.value}) is not a function")])
    return cast("SourcePass", function)


def _traceback(reason: Exception) -> tuple[Note, ...]:
    """A note with the traceback of what the other package raised, from its first frame on."""
    frames = traceback.extract_tb(reason.__traceback__)
    own = [at for at, frame in enumerate(frames) if not frame.filename.startswith((__file__, *_IMPORTING))]
    shown = "".join(traceback.format_list(frames[own[0] :] if own else frames)).rstrip()
    return (Note(f"this is where:\n{shown}"),) if shown else ()


def run_passes(module: Module, names: Sequence[str]) -> Module:
    """The module after these passes of third parties, in order.

    Raises DiagnosticError: the pass's own, `pass` if it fails in another way or gives something else, `pass-unknown`.
    """
    for name in names:
        function = load_pass(name)
        try:
            made = function(module)
        except DiagnosticError:
            raise
        except Exception as reason:  # a fault of the other package
            message = f"the pass {name!r} failed: {type(reason).__name__}: {reason}"
            raise DiagnosticError([error("pass", message, notes=_traceback(reason))]) from reason
        if not isinstance(made, Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DiagnosticError([error("pass", f"the pass {name!r} gave {type(made).__name__}, not a Module")])
        module = made
    return module
