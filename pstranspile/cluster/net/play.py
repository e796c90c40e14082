"""Running a machine of a job in this process, for `start` and for actors of Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.net.outcome import write_server, write_trainer
from pstranspile.cluster.net.parts import Parts, are_needed
from pstranspile.cluster.net.process import Place, play_server, play_trainer
from pstranspile.cluster.net.status import StatusPipe, shown
from pstranspile.cluster.net.terms import Terms


def is_server(cluster: Cluster, role: str) -> bool:
    """Whether a role is that of a server."""
    return any(server.name == role for server in cluster.servers)


def play(
    cluster: Cluster,
    role: str,
    terms: Terms,
    place: Place,
    steps: int,
    report: StatusPipe,
    result: str | None = None,
    on_step: Callable[[Trainer], object] | None = None,
) -> None:
    """Runs a server until all trainers have left, or a trainer for so many steps.

    The outcome of the machine is written to the file `result`. `on_step` is called first after a trainer's steps, and
    may lower the trainer's `limit`. Raises DiagnosticError, Refused.
    """

    def save(write: Callable[[str, Any], None], machine: Any) -> None:
        if result:
            write(result, machine)

    if is_server(cluster, role):
        play_server(cluster, role, terms, place, report, lambda server: save(write_server, server))
        return
    parts = None if are_needed(cluster) else place.parts_of(report)
    for trainer in cluster.trainers:
        trainer.on_step = lambda trainer, step: _step_done(report, parts, on_step, trainer, step)
    play_trainer(cluster, role, terms, place, steps, report, lambda trainer: save(write_trainer, trainer))


def _step_done(
    report: StatusPipe, parts: Parts | None, on_step: Callable[[Trainer], object] | None, trainer: Trainer, step: int
) -> None:
    """A trainer has done a step."""
    if on_step is not None:
        on_step(trainer)
    report(step=step + 1, values={name: shown(value) for name, value in trainer.results[-1].values.items()})
    if parts is not None:
        parts.done(trainer, step + 1)
