"""Draws curves of costs, in a notebook or to a file."""

from __future__ import annotations

import os
from typing import Any


class PlotData:
    """The points of a curve."""

    def __init__(self) -> None:
        self.step: list[Any] = []
        self.value: list[Any] = []

    def append(self, step: Any, value: Any) -> None:
        """Appends a point."""
        self.step.append(step)
        self.value.append(value)

    def reset(self) -> None:
        """Removes all points."""
        self.step, self.value = [], []


class Ploter:
    """Draws curves with these titles. With `DISABLE_PLOT=True` in the environment it draws nothing.

    Drawing needs matplotlib, and IPython if it is not to a file; a missing one raises ImportError.
    """

    def __init__(self, *titles: str):
        self._curves = {title: PlotData() for title in titles}
        self._quiet = os.environ.get("DISABLE_PLOT") == "True"

    def append(self, title: str, step: Any, value: Any) -> None:
        """Appends a point to a curve. Raises KeyError for an unknown title."""
        self._curves[title].append(step, value)

    def plot(self, path: str | None = None) -> None:
        """Draws the curves to a file, or below a notebook's cell."""
        if self._quiet:
            return
        from importlib import import_module

        if path is not None:
            import_module("matplotlib").use("Agg")
        pyplot: Any = import_module("matplotlib.pyplot")
        drawn = [title for title, curve in self._curves.items() if curve.step]
        for title in drawn:
            pyplot.plot(self._curves[title].step, self._curves[title].value)
        pyplot.legend(drawn, loc="upper left")
        if path is None:
            display: Any = import_module("IPython.display")
            display.clear_output(wait=True)
            display.display(pyplot.gcf())
        else:
            pyplot.savefig(path)
        pyplot.gcf().clear()

    def reset(self) -> None:
        """Removes the points of all curves."""
        for curve in self._curves.values():
            curve.reset()
