"""Watchers of a run, op by op: they find numbers that are not finite, measure the time, or trace what is computed."""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO, TypeAlias

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, at_op, error, installing
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.bound_ops import BoundOp
from pstranspile.runtime.run.feeds import describe_values, is_number, numbers_of, size_in_bytes

# Curves of fetched numbers over the steps, as a picture.

FORMATS = ("png", "svg")
"""The kinds of picture, which are also the endings of their files."""

Curve: TypeAlias = "tuple[Sequence[int], Sequence[Any]]"
"""(steps, numbered from 1; the value that was fetched in each of them)."""


def _drawing() -> tuple[Any, Any]:
    """The modules of matplotlib that draw. Raises DiagnosticError if matplotlib is not installed."""
    try:
        return importlib.import_module("matplotlib"), importlib.import_module("matplotlib.figure")
    except ImportError:
        message = f"drawing needs matplotlib: {installing('plot')}"
        raise DiagnosticError([error("run-plot-impossible", message)]) from None


def require_plot(fetches: Sequence[str]) -> None:
    """Raises DiagnosticError if no plot can be drawn (matplotlib is not installed, or nothing is fetched), so that a
    long run fails at its start.
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
        figure.savefig(buffer, format=kind, metadata=_MADE_BY[kind])
    return buffer.getvalue()


_MADE_BY: Mapping[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Title": "pstranspile"},
    "png": {"Software": "pstranspile"},
}
"""Metadata of pictures made here, by format. A later plot overwrites only files that carry it."""


def _plain(name: str) -> str:
    """The name, with escapes for characters that matplotlib would read as mathematics."""
    return name.replace("$", r"\$")


class FiniteCheck:
    """Raises DiagnosticError at the first op that computes NaN or infinity."""

    def __call__(self, bound: BoundOp, outputs: list[tuple[str, Value]], seconds: float) -> None:
        """Examines the outputs of one op."""
        for name, value in outputs:
            data = numbers_of(value)
            if data is not None and data.dtype.kind == "f" and not np.isfinite(data).all():
                wrong = int(data.size - np.count_nonzero(np.isfinite(data)))
                what = "NaN" if np.isnan(data).any() else "infinite"
                message = f"{name} is not finite: {wrong} of {data.size} numbers, {what} among them"
                raise DiagnosticError([at_op("run-not-finite", message, bound.op, focus=name)])


class Cost(NamedTuple):
    """The cost of the ops of one type: how often they ran, their total seconds, the bytes of their outputs, and the
    seconds of the fastest and the slowest run.
    """

    op_type: str
    calls: int = 0
    seconds: float = 0.0
    bytes: int = 0
    fastest_seconds: float = math.inf
    slowest_seconds: float = 0.0


class Profile:
    """Adds up the costs of ops by type."""

    def __init__(self) -> None:
        self.costs: dict[str, Cost] = {}

    def __call__(self, bound: BoundOp, outputs: list[tuple[str, Value]], seconds: float) -> None:
        """Adds one op. The time of an op with a sub-block includes that of the ops in it."""
        kind = bound.op.type
        old = self.costs.get(kind, Cost(kind))
        size = sum(size_in_bytes(value) for _, value in outputs)
        least, most = min(old.fastest_seconds, seconds), max(old.slowest_seconds, seconds)
        self.costs[kind] = Cost(kind, old.calls + 1, old.seconds + seconds, old.bytes + size, least, most)

    def table(self) -> str:
        """The costs as a table, the most expensive type first."""
        costs = sorted(self.costs.values(), key=lambda cost: (-cost.seconds, cost.op_type))
        total = sum(cost.seconds for cost in costs) or 1.0
        width = max((len(cost.op_type) for cost in costs), default=2)
        lines = [f"{'op':<{width}}  {'calls':>8}  {'seconds':>10}  {'share':>6}  {'us/call':>10}  {'MB written':>11}"]
        for cost in costs:
            share, mean = 100 * cost.seconds / total, 1e6 * cost.seconds / cost.calls
            lines.append(
                f"{cost.op_type:<{width}}  {cost.calls:>8}  {cost.seconds:>10.6f}  {share:>5.1f}%  {mean:>10.1f}  "
                f"{cost.bytes / 1e6:>11.3f}"
            )
        return "\n".join(lines)


class Trace:
    """Writes one line for every op: its number in the run, its type, its outputs."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.count = 0

    def __call__(self, bound: BoundOp, outputs: list[tuple[str, Value]], seconds: float) -> None:
        """Writes the line of one op."""
        print(f"{self.count:>6} {bound.op.type} -> {describe_values(outputs) or '(nothing)'}", file=self.stream)
        self.count += 1
