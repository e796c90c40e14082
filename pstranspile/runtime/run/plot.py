"""Curves of fetched numbers over the steps, as a picture."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.runtime.run.describe import is_number

FORMATS = ("png", "svg")
"""The kinds of picture, which are also the endings of their files."""

Curve: TypeAlias = "tuple[Sequence[int], Sequence[Any]]"
"""Steps, numbered from 1, and the value that was fetched in each of them."""


def _drawing() -> tuple[Any, Any]:
    """What draws. Raises DiagnosticError if matplotlib is not installed."""
    try:
        return importlib.import_module("matplotlib"), importlib.import_module("matplotlib.figure")
    except ImportError:
        message = "drawing needs matplotlib: pip install 'pstranspile[plot]'"
        raise DiagnosticError([error("run-plot-impossible", message)]) from None


def require_plot(fetches: Sequence[str]) -> None:
    """Raises DiagnosticError if a plot can't be drawn, so that a long run fails at its start: no library draws it, or
    nothing is fetched.
    """
    _drawing()
    if not fetches:
        message = "nothing to draw: the program has no loss, and nothing is fetched (--fetch)"
        raise DiagnosticError([error("run-plot-impossible", message)])


def plot_bytes(curves: Mapping[str, Curve], kind: str, title: str = "") -> bytes:
    """A picture (`png` or `svg`) with one curve for each name that held one number whenever it was fetched.

    Raises DiagnosticError if there is none, or matplotlib is not installed.
    """
    numbers = {name: curve for name, curve in curves.items() if curve[1] and all(map(is_number, curve[1]))}
    if not numbers:
        raise DiagnosticError([error("run-plot-impossible", "nothing to draw: no fetched variable holds one number")])
    matplotlib, figures = _drawing()
    with matplotlib.rc_context({"svg.hashsalt": "pstranspile"}):
        figure = figures.Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for name, (steps, values) in numbers.items():
            few = {"marker": "."} if len(steps) <= 30 else {}
            axes.plot(steps, [float(value.ravel()[0]) for value in values], label=_plain(name), linewidth=1.2, **few)
        axes.set_title(_plain(title), fontsize="medium")
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(numbers) == 1:
            axes.set_ylabel(_plain(next(iter(numbers))))
        else:
            figure.legend(loc="outside right upper", fontsize="small")
        axes.grid(alpha=0.3)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def _plain(name: str) -> str:
    """The name without what matplotlib would take for mathematics."""
    return name.replace("$", r"\$")
