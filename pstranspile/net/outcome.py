"""What a process of a job leaves when it has ended, and the outcome of the job put together of that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.keeping import Kept
from pstranspile.run.cluster.kept_files import read_kept, write_kept
from pstranspile.run.cluster.server import Server
from pstranspile.run.cluster.simulate import Simulated, results_of
from pstranspile.run.cluster.trainer import Trainer


def write_server(path: str, server: Server) -> None:
    """Writes the variables of a server. Raises DiagnosticError."""
    write_kept(Path(path), server.name, Kept(dict(server.scope.values_here), {"updates": server.updates}, {}, {}, {}))


def write_trainer(path: str, trainer: Trainer) -> None:
    """Writes what a trainer keeps from step to step, and what it fetched. Raises DiagnosticError."""
    values = {
        name: value
        for name, value in trainer.scope.values_here.items()
        if (var := trainer.declares(name)) is not None and var.persistable and value is not None
    }
    state = {"results": trainer.results, "ran": trainer.ran, "did": trainer.did}
    write_kept(Path(path), trainer.name, Kept(values, state, {}, {}, {}))


def gather(cluster: Cluster, files: Mapping[str, str]) -> Simulated:
    """The outcome as `simulate` gives it, of what the processes wrote; `files` are by role. Raises DiagnosticError."""
    for machine in (*cluster.servers, *cluster.trainers):
        kept = read_kept(Path(files[machine.name]), machine.name)
        machine.scope.values_here.update(kept.values)
        state: Any = kept.state
        if isinstance(machine, Trainer):
            machine.results, machine.ran, machine.did = state["results"], state["ran"], state["did"]
        else:
            machine.updates = state["updates"]
    fetched = tuple(results_of(trainer) for trainer in cluster.trainers)
    return Simulated(fetched, cluster.parameters(), cluster)
