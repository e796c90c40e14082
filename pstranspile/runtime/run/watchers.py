"""Watching a run op by op: where numbers stop being finite, where the time goes, what is computed."""

from __future__ import annotations

import math
from typing import NamedTuple, TextIO

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.bound import BoundOp
from pstranspile.runtime.run.describe import described, numbers_of, size_in_bytes


class NotFinite:
    """Stops the run at the first op that makes NaN or infinity. Raises DiagnosticError."""

    def __call__(self, bound: BoundOp, made: list[tuple[str, Value]], seconds: float) -> None:
        """Looks at the outputs of one op."""
        for name, value in made:
            data = numbers_of(value)
            if data is not None and data.dtype.kind == "f" and not np.isfinite(data).all():
                wrong = int(data.size - np.count_nonzero(np.isfinite(data)))
                what = "NaN" if np.isnan(data).any() else "infinite"
                message = f"{name} is not finite: {wrong} of {data.size} numbers, {what} among them"
                raise DiagnosticError([at_op("run-not-finite", message, bound.op, focus=name)])


class Cost(NamedTuple):
    """What the ops of one type have cost: how often they ran, their seconds, the bytes of their outputs, and the
    seconds of the fastest and the slowest.
    """

    op_type: str
    calls: int = 0
    seconds: float = 0.0
    bytes: int = 0
    least: float = math.inf
    most: float = 0.0


class Profile:
    """Adds up what the ops cost, by type."""

    def __init__(self) -> None:
        self.costs: dict[str, Cost] = {}

    def __call__(self, bound: BoundOp, made: list[tuple[str, Value]], seconds: float) -> None:
        """Adds one op. The time of an op with a sub-block includes that of the ops in it."""
        kind = bound.op.type
        old = self.costs.get(kind, Cost(kind))
        size = sum(size_in_bytes(value) for _, value in made)
        least, most = min(old.least, seconds), max(old.most, seconds)
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

    def __call__(self, bound: BoundOp, made: list[tuple[str, Value]], seconds: float) -> None:
        """Writes the line of one op."""
        print(f"{self.count:>6} {bound.op.type} -> {described(made) or '(nothing)'}", file=self.stream)
        self.count += 1
