"""What is told of compiles and of runs, while a script runs."""

from __future__ import annotations

from typing import Any, Protocol

from pstranspile.compile import Compiled


class Watcher(Protocol):
    """Is told what a script does."""

    def transpiled(self, compiled: Compiled) -> None:
        """A program was compiled for a cluster."""
        ...

    def running(self, program: Any) -> None:
        """A program of `graph` is about to be run on one machine."""
        ...


WATCHERS: list[Watcher] = []


def tell_transpiled(compiled: Compiled) -> None:
    """Tells all watchers of a compile."""
    for watcher in WATCHERS:
        watcher.transpiled(compiled)


def trains(program: Any) -> bool:
    """Whether ops of a program of `graph` update parameters."""
    return any("Param" in op.inputs for draft in program.drafts for op in draft.ops)


def tell_run(program: Any) -> None:
    """Tells all watchers of a run."""
    for watcher in WATCHERS:
        watcher.running(program)
