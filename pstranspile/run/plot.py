"""Curves of fetched numbers over the steps, as a picture."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.run import codes

FORMATS = ("png", "svg")
"""The kinds of picture, which are also the endings of their files."""


def plot_bytes(curves: Mapping[str, Sequence[float]], kind: str) -> bytes:
    """A picture (`png` or `svg`) with one curve per name, steps counted from 1.

    Raises DiagnosticError if there is nothing to draw, or matplotlib is not installed.
    """
    if not curves:
        raise DiagnosticError([error(codes.PLOT_IMPOSSIBLE, "nothing to draw: no fetched variable holds one number")])
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError:
        message = "drawing needs matplotlib: pip install 'pstranspile[plot]'"
        raise DiagnosticError([error(codes.PLOT_IMPOSSIBLE, message)]) from None
    with matplotlib.rc_context({"svg.hashsalt": "pstranspile"}):
        figure = figures.Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        for name, values in curves.items():
            axes.plot(range(1, len(values) + 1), values, label=name)
        axes.set_xlabel("step")
        axes.legend()
        axes.grid(alpha=0.3)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()
