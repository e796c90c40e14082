"""What looks at the runs of programs: the check for numbers that are not finite, and the profiler."""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol

from pstranspile.compiler.compile import Compiled
from pstranspile.fluid.running.flags import FLAGS
from pstranspile.fluid.running.profiling import Profiler, active
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.roles import OpRole
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.bound import BoundOp
from pstranspile.runtime.run.watchers import NotFinite

# What is told of compiles and of runs, while a script runs.


class Watcher(Protocol):
    """Is told what a script does."""

    def transpiled(self, compiled: Compiled, turns: str | None = None) -> None:
        """A program was compiled for a cluster. `turns` says which program each step runs, if not the main one."""
        ...

    def running(self, program: Any) -> None:
        """A program of `graph` is about to be run on one machine."""
        ...


WATCHERS: list[Watcher] = []
ASSUMED: dict[str, str] = {}
"""The cluster that role makers take where the environment names none, as variables that launchers set; empty: none."""


def assume(told: str) -> bool:
    """Puts the assumed cluster into the environment where that has no variable `told`, and says so; whether the
    environment has the variable now.
    """
    if not os.environ.get(told) and told in ASSUMED:
        for name, value in ASSUMED.items():
            os.environ.setdefault(name, value)
        servers = ASSUMED["PADDLE_PSERVERS_IP_PORT_LIST"] if told == "PADDLE_PSERVERS_IP_PORT_LIST" else ""
        cluster = f"servers at {servers}, " if servers else ""
        trainers = f"{os.environ['PADDLE_TRAINERS_NUM']} trainers"
        at = "" if servers else f" at {os.environ['PADDLE_TRAINER_ENDPOINTS']}"
        text = f"the environment has no {told}: the cluster is taken to have {cluster}{trainers}{at}"
        print(f"{text} (--pservers and --trainers give another)", file=sys.stderr)
    return bool(os.environ.get(told))


def tell_transpiled(compiled: Compiled, turns: str | None = None) -> None:
    """Tells all watchers of a compile, and which program each step runs if it is not the main one."""
    for watcher in WATCHERS:
        watcher.transpiled(compiled, turns)


def trains(program: Any) -> bool:
    """Whether ops of a program of `graph` update parameters."""
    return any("Param" in op.inputs for draft in program.drafts for op in draft.ops)


def tell_run(program: Any) -> None:
    """Tells all watchers of a run."""
    for watcher in WATCHERS:
        watcher.running(program)


# `FLAGS_check_nan_inf`: runs that stop at the first op which makes NaN or infinity.

_ROLES = {
    "backward": OpRole.BACKWARD,
    "optimize": OpRole.OPTIMIZE,
    "rpc": OpRole.RPC,
    "dist": OpRole.DIST,
    "lrsched": OpRole.LR_SCHED,
    "loss": OpRole.LOSS,
}


def _listed(name: str) -> list[str]:
    return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]


class Finite(NotFinite):
    """Stops the run, but for the ops, roles and variables that `PADDLE_INF_NAN_SKIP_...` of the environment name."""

    def __init__(self) -> None:
        self._types = frozenset(_listed("PADDLE_INF_NAN_SKIP_OP"))
        self._variables = frozenset(_listed("PADDLE_INF_NAN_SKIP_VAR"))
        roles = _listed("PADDLE_INF_NAN_SKIP_ROLE")
        self._forward = "forward" in roles
        self._roles = OpRole(sum(_ROLES.get(role, OpRole.FORWARD) for role in dict.fromkeys(roles)))

    def __call__(self, bound: BoundOp, made: list[tuple[str, Value]], seconds: float) -> None:
        """Looks at the outputs of one op. Raises DiagnosticError."""
        op = bound.op
        role = op.role or OpRole.FORWARD
        if op.type in self._types or role & self._roles or (self._forward and not role):
            return
        try:
            super().__call__(bound, [item for item in made if f"{op.type}:{item[0]}" not in self._variables], seconds)
        except DiagnosticError:
            print(f"{op.type}: find nan or inf", file=sys.stderr)  # scripts look for these words
            raise


def watchers() -> tuple[NotFinite | Profiler, ...]:
    """The watchers of a run, as flags and the script say now."""
    return (*active, Finite()) if FLAGS["FLAGS_check_nan_inf"] else tuple(active)
