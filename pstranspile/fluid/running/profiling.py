"""What `fluid.profiler` measures: each op that ran, as a table by op types and as a file that Fluid's tools read."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.bound import BoundOp
from pstranspile.runtime.run.watchers import Cost, Profile

_ORDERS: dict[str, Callable[[Cost], float]] = {
    "calls": lambda cost: cost.calls,
    "total": lambda cost: cost.seconds,
    "max": lambda cost: cost.most,
    "min": lambda cost: cost.least,
    "ave": lambda cost: cost.seconds / cost.calls,
}
KEYS = ("default", *_ORDERS)
"""The orders of a table's rows."""


class Timed(NamedTuple):
    """An op that ran: its type, when it ended, in nanoseconds since 1970, and its nanoseconds."""

    op_type: str
    end: int
    duration: int


class Profiler(Profile):
    """Measures runs op by op. The time of an op with a block includes that of the ops in it, which count as well."""

    def __init__(self) -> None:
        super().__init__()
        self.start = time.time_ns()
        self.timed: list[Timed] = []

    def __call__(self, bound: BoundOp, made: list[tuple[str, Value]], seconds: float) -> None:
        """Keeps the time of one op, which has just ended."""
        super().__call__(bound, made, seconds)
        self.timed.append(Timed(bound.op.type, time.time_ns(), int(seconds * 1e9)))

    def report(self, key: str) -> str:
        """A table in Fluid's columns. The op types come in the order of their first ends, or the largest first."""
        elapsed = (time.time_ns() - self.start) / 1e6
        costs = list(self.costs.values())
        if key in _ORDERS:
            costs.sort(key=_ORDERS[key], reverse=True)
        total = sum(cost.seconds for cost in costs)
        width = max([len(cost.op_type) for cost in costs], default=2)
        order = key if key in _ORDERS else "first end"
        lines = [
            f"Profile of {elapsed:.3f} ms, {total * 1e3:.3f} ms of it in {len(self.timed)} ops; "
            f"times in ms, by {order}",
            f"{'Event':<{width}} {'Calls':>8} {'Total':>12} {'Min.':>10} {'Max.':>10} {'Ave.':>10} {'Ratio.':>8}",
        ]
        for cost in costs:
            times = (cost.least, cost.most, cost.seconds / cost.calls)
            lines.append(
                f"{cost.op_type:<{width}} {cost.calls:>8} {cost.seconds * 1e3:>12.4f} "
                f"{' '.join(f'{seconds * 1e3:>10.4f}' for seconds in times)} {cost.seconds / (total or 1.0):>8.4f}"
            )
        if not costs:
            lines.append("no op ran; the ops of a cluster's machines are measured by `launch --profile`")
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Writes the ops as Fluid's message `Profile`. Raises OSError."""
        from pstranspile.fluid.proto.profiler.profiler_pb2 import Profile  # protobuf is slow to import

        profile = Profile(start_ns=self.start, end_ns=time.time_ns())
        for op_type, end, duration in self.timed:
            profile.events.add(name=op_type, start_ns=end - duration, end_ns=end, device_id=-1, type=0)
        path.write_bytes(profile.SerializeToString())


active: list[Profiler] = []
"""The profilers that are at work: the script's, and that of a data set's training."""


@contextmanager
def profiled() -> Generator[None]:
    """Measures the ops that run in the block, and prints their times by types."""
    active.append(Profiler())
    try:
        yield
    finally:
        print(active.pop().report("total"))
