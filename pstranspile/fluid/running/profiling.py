"""What `fluid.profiler` measures: each op that ran, as a table by op types and as a file that Fluid's tools read."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from pstranspile.kernels.context import Value
from pstranspile.run.bound import BoundOp

KEYS = ("default", "calls", "total", "max", "min", "ave")


class Timed(NamedTuple):
    """An op that ran: its type, when it ended, in nanoseconds since 1970, and its nanoseconds."""

    op_type: str
    end: int
    duration: int


class _Row(NamedTuple):
    """The ops of one type; times are in milliseconds."""

    op_type: str
    calls: int
    total: float
    min: float
    max: float
    ave: float


class Profiler:
    """Measures runs op by op. The time of an op with a block includes that of the ops in it, which count as well."""

    def __init__(self) -> None:
        self.start = time.time_ns()
        self.timed: list[Timed] = []

    def __call__(self, bound: BoundOp, made: list[tuple[str, Value]], seconds: float) -> None:
        """Keeps the time of one op, which has just ended."""
        self.timed.append(Timed(bound.op.type, time.time_ns(), int(seconds * 1e9)))

    def table(self, key: str) -> str:
        """What was measured until now. The op types come in the order of their first ends, or the largest first."""
        elapsed = (time.time_ns() - self.start) / 1e6
        rows = self._rows()
        if key != "default":
            rows.sort(key=attrgetter(key), reverse=True)
        total = sum(row.total for row in rows)
        width = max([len(row.op_type) for row in rows], default=2)
        order = "first end" if key == "default" else key
        lines = [
            f"Profile of {elapsed:.3f} ms, {total:.3f} ms of it in {len(self.timed)} ops; times in ms, by {order}",
            f"{'Event':<{width}} {'Calls':>8} {'Total':>12} {'Min.':>10} {'Max.':>10} {'Ave.':>10} {'Ratio.':>8}",
        ]
        lines += [
            f"{row.op_type:<{width}} {row.calls:>8} {row.total:>12.4f} {row.min:>10.4f} {row.max:>10.4f} "
            f"{row.ave:>10.4f} {row.total / (total or 1.0):>8.4f}"
            for row in rows
        ]
        if not rows:
            lines.append("no op ran; the ops of a cluster's machines are measured by `launch --profile`")
        return "\n".join(lines)

    def _rows(self) -> list[_Row]:
        first = {op_type: place for place, (op_type, _, _) in reversed([*enumerate(self.timed)])}
        rows: list[_Row] = []
        for op_type, ops in groupby(sorted(self.timed, key=lambda op: first[op.op_type]), key=attrgetter("op_type")):
            times = [op.duration / 1e6 for op in ops]
            rows.append(_Row(op_type, len(times), sum(times), min(times), max(times), sum(times) / len(times)))
        return rows

    def write(self, path: Path) -> None:
        """Writes the ops as Fluid's message `Profile`. Raises OSError."""
        from pstranspile.fluid.proto.profiler.profiler_pb2 import Profile  # protobuf is slow to import

        profile = Profile(start_ns=self.start, end_ns=time.time_ns())
        for op_type, end, duration in self.timed:
            profile.events.add(name=op_type, start_ns=end - duration, end_ns=end, device_id=-1, type=0)
        path.write_bytes(profile.SerializeToString())


active: list[Profiler] = []
"""The profiler that is at work, if there is one."""


@contextmanager
def profiled() -> Generator[None]:
    """Measures the ops that run in the block, and prints their times by types."""
    active.append(Profiler())
    try:
        yield
    finally:
        print(active.pop().table("total"))
