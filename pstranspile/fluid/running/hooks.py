"""What is told of compiles and of runs, while a script runs."""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol

from pstranspile.compiler.compile import Compiled


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
