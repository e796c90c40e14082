"""Watchers of the runs of programs: the check for numbers that are not finite, and the profiler."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from pstranspile.compiler.compile import Compiled
from pstranspile.fluid.running.flags import FLAGS
from pstranspile.ir.diagnostics import DiagnosticError, cluster_of
from pstranspile.ir.types import OpRole
from pstranspile.ir.user_warnings import warn
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.bound_ops import BoundOp
from pstranspile.runtime.run.watchers import Cost, FiniteCheck, Profile

# Handlers that receive variables at regular intervals while a program is trained on a data set.


class Monitor:
    """Calls a handler with the variables that `look` returns, in a thread of its own, once in every period of whole
    seconds.

    The variables have their values after a batch: `pass_variables` is called after each. As a context manager, it stops
    the thread at the end of its block, and raises what the handler has raised.
    """

    wait: Callable[[Event, float], bool] = staticmethod(Event.wait)
    """Waits for an event up to a number of seconds; returns whether it was set."""

    def __init__(self, handler: Callable[[Mapping[Any, Any]], object], seconds: float, look: Callable[[], Any]):
        self._handler, self._seconds, self._look = handler, ceil(seconds), look
        self._stop_event = Event()
        self.request = Event()
        """An event that is set while the handler's thread waits for variables."""
        self._passed_variables: Queue[Any] = Queue()
        self._problem: BaseException | None = None
        self._thread = Thread(target=self._call_handler, daemon=True)

    def _call_handler(self) -> None:
        try:
            while not self.wait(self._stop_event, self._seconds):
                self.request.set()
                held = self._passed_variables.get()
                if held is None:
                    return
                self._handler(held)
        except BaseException as problem:
            self._problem = problem

    def pass_variables(self) -> None:
        """Gives the handler's thread the present variables, if it waits for them. Raises what the
        handler has raised.
        """
        if self._problem is not None:
            raise self._problem
        if self.request.is_set():
            self.request.clear()
            self._passed_variables.put(self._look())

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _problem: object, _trace: TracebackType | None) -> None:
        self._stop_event.set()
        self._passed_variables.put(None)
        self._thread.join()
        if kind is None and self._problem is not None:
            raise self._problem


# The measurements of `fluid.profiler`: each op that ran, as a table by op types and as a file that Fluid's tools read.

_ORDERS: dict[str, Callable[[Cost], float]] = {
    "calls": lambda cost: cost.calls,
    "total": lambda cost: cost.seconds,
    "max": lambda cost: cost.slowest_seconds,
    "min": lambda cost: cost.fastest_seconds,
    "ave": lambda cost: cost.seconds / cost.calls,
}
KEYS = ("default", *_ORDERS)
"""The keys by which the rows of a table can be sorted."""


class TimedOp(NamedTuple):
    """An op that ran: its type, its end in nanoseconds since 1970, and its duration in nanoseconds."""

    op_type: str
    end: int
    duration: int


class Profiler(Profile):
    """Measures runs op by op. The time of an op with a block includes the ops in the block, which are also counted
    separately.
    """

    def __init__(self) -> None:
        super().__init__()
        self.start = time.time_ns()
        self.timed_ops: list[TimedOp] = []

    def __call__(self, bound: BoundOp, outputs: list[tuple[str, Value]], seconds: float) -> None:
        """Records the duration of an op that has just ended."""
        super().__call__(bound, outputs, seconds)
        self.timed_ops.append(TimedOp(bound.op.type, time.time_ns(), int(seconds * 1e9)))

    def report(self, key: str) -> str:
        """A table in Fluid's columns, with the op types sorted by `key`, the largest first, or else in the order of
        their first ends.
        """
        elapsed = (time.time_ns() - self.start) / 1e6
        costs = list(self.costs.values())
        if key in _ORDERS:
            costs.sort(key=_ORDERS[key], reverse=True)
        total = sum(cost.seconds for cost in costs)
        width = max([len(cost.op_type) for cost in costs], default=2)
        order = key if key in _ORDERS else "first end"
        lines = [
            f"Profile of {elapsed:.3f} ms, {total * 1e3:.3f} ms of it in {len(self.timed_ops)} ops; "
            f"times in ms, by {order}",
            f"{'Event':<{width}} {'Calls':>8} {'Total':>12} {'Min.':>10} {'Max.':>10} {'Ave.':>10} {'Ratio.':>8}",
        ]
        for cost in costs:
            times = (cost.fastest_seconds, cost.slowest_seconds, cost.seconds / cost.calls)
            lines.append(
                f"{cost.op_type:<{width}} {cost.calls:>8} {cost.seconds * 1e3:>12.4f} "
                f"{' '.join(f'{seconds * 1e3:>10.4f}' for seconds in times)} {cost.seconds / (total or 1.0):>8.4f}"
            )
        if not costs:
            lines.append("no op ran; the ops of a cluster's machines are measured by `launch --profile`")
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Writes the ops as Fluid's message `Profile`. Raises OSError."""
        from pstranspile.fluid.proto import Profile  # protobuf is slow to import

        profile = Profile(start_ns=self.start, end_ns=time.time_ns())
        for op_type, end, duration in self.timed_ops:
            profile.events.add(name=op_type, start_ns=end - duration, end_ns=end, device_id=-1, type=0)
        path.write_bytes(profile.SerializeToString())


active: list[Profiler] = []
"""The profilers that are measuring: the script's, and the one of a training on a data set."""


@contextmanager
def profile_ops() -> Generator[None]:
    """A context manager that measures the ops run in its block, and then prints their times by type."""
    active.append(Profiler())
    try:
        yield
    finally:
        print(active.pop().report("total"))


# Watchers of the compiles and runs of a script.


class Watcher(Protocol):
    """An object that is called when a script compiles or runs a program."""

    def program_transpiled(self, compiled: Compiled, turns: str | None = None) -> None:
        """Called when a program was compiled for a cluster. `turns` says which program each step runs, if it is not the
        main one.
        """
        ...

    def running(self, program: Any) -> None:
        """Called when a program of `graph` is about to be run on one machine."""
        ...


WATCHERS: list[Watcher] = []
ASSUMED: dict[str, str] = {}
"""The cluster that role makers assume where the environment names none, as the variables that launchers set; empty for
none.
"""


def assume(variable: str) -> bool:
    """Sets the variables of the assumed cluster if the environment does not have `variable`, and reports this on
    stderr; returns whether the environment has `variable` now.
    """
    if not os.environ.get(variable) and variable in ASSUMED:
        for name, value in ASSUMED.items():
            os.environ.setdefault(name, value)
        servers = ASSUMED["PADDLE_PSERVERS_IP_PORT_LIST"] if variable == "PADDLE_PSERVERS_IP_PORT_LIST" else ""
        cluster = f"servers at {servers}, " if servers else ""
        trainers = f"{os.environ['PADDLE_TRAINERS_NUM']} trainers"
        at = "" if servers else f" at {os.environ['PADDLE_TRAINER_ENDPOINTS']}"
        text = f"the environment has no {variable}: the cluster is taken to have {cluster}{trainers}{at}"
        options = "--pservers and --trainers give" if servers else "--trainers gives"
        print(f"{text} ({options} another)", file=sys.stderr)
    return bool(os.environ.get(variable))


def tell_transpiled(compiled: Compiled, turns: str | None = None) -> None:
    """Calls all watchers after a compile; `turns` says which program each step runs, if it is not the main one."""
    for watcher in WATCHERS:
        watcher.program_transpiled(compiled, turns)


def trains(program: Any) -> bool:
    """Whether ops of a program of `graph` update parameters."""
    return any("Param" in op.inputs for draft in program.drafts for op in draft.ops)


def tell_run(program: Any) -> None:
    """Calls all watchers before a run. Warns once if the run trains on this machine alone although the
    job has others.
    """
    for watcher in WATCHERS:
        watcher.running(program)
    _ALONE.running(program)


class _LoneProcessWatcher:
    """The watcher that warns when the processes of a job train without each other."""

    def __init__(self) -> None:
        self._looked = False

    def running(self, program: Any) -> None:
        """Called before a run on one machine; checks, on trainer 0, the first program that trains."""
        if self._looked or not trains(program):
            return
        self._looked = True
        trainers, servers = os.environ.get("PADDLE_TRAINERS_NUM", ""), _environment_list("PADDLE_PSERVERS_IP_PORT_LIST")
        count = (int(trainers) if trainers.isdecimal() else 1) + len(servers)
        is_first = os.environ.get("TRAINING_ROLE", "TRAINER").upper() == "TRAINER"
        if count > 1 and is_first and os.environ.get("PADDLE_TRAINER_ID", "0") == "0":
            cluster = cluster_of(count - len(servers), len(servers), " and ")
            warn(
                f"the environment names {cluster}, but this program was made for one machine: each process trains "
                "alone, on all that it is fed; fleet's optimizer or DistributeTranspiler makes it one for the cluster"
            )


_ALONE = _LoneProcessWatcher()


# `FLAGS_check_nan_inf`: runs stop at the first op that writes NaN or infinity.

_ROLES = {
    "backward": OpRole.BACKWARD,
    "optimize": OpRole.OPTIMIZE,
    "rpc": OpRole.RPC,
    "dist": OpRole.DIST,
    "lrsched": OpRole.LR_SCHED,
    "loss": OpRole.LOSS,
}


def _environment_list(name: str) -> list[str]:
    return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]


class FluidFiniteCheck(FiniteCheck):
    """Stops a run at NaN or infinity, except in the ops, roles and variables that `PADDLE_INF_NAN_SKIP_...` of the
    environment name.
    """

    def __init__(self) -> None:
        self._types = frozenset(_environment_list("PADDLE_INF_NAN_SKIP_OP"))
        self._variables = frozenset(_environment_list("PADDLE_INF_NAN_SKIP_VAR"))
        roles = _environment_list("PADDLE_INF_NAN_SKIP_ROLE")
        self._forward = "forward" in roles
        self._roles = OpRole(sum(_ROLES.get(role, OpRole.FORWARD) for role in dict.fromkeys(roles)))

    def __call__(self, bound: BoundOp, outputs: list[tuple[str, Value]], seconds: float) -> None:
        """Checks the outputs of one op. Raises DiagnosticError."""
        op = bound.op
        role = op.role or OpRole.FORWARD
        if op.type in self._types or role & self._roles or (self._forward and not role):
            return
        try:
            super().__call__(
                bound, [item for item in outputs if f"{op.type}:{item[0]}" not in self._variables], seconds
            )
        except DiagnosticError:
            print(f"{op.type}: find nan or inf", file=sys.stderr)  # scripts look for these words
            raise


def watchers() -> tuple[FiniteCheck | Profiler, ...]:
    """The watchers of a run, according to the present flags and the script's profilers."""
    return (*active, FluidFiniteCheck()) if FLAGS["FLAGS_check_nan_inf"] else tuple(active)
