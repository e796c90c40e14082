"""The files that the processes of a job write at their end, and the outcome of the job assembled from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.simulate import Simulated, results_of
from pstranspile.cluster.machines.snapshots import Snapshot, read_snapshot, write_snapshot
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.net.parts import Part, fill, memory_of, values_of
from pstranspile.runtime.run.step_feeds import stacked


def write_server(path: str, server: Server) -> None:
    """Writes the variables of a server. Raises DiagnosticError."""
    state = {"updates": server.updates, "memory": memory_of(server)}
    write_snapshot(Path(path), server.name, Snapshot(dict(server.scope.values_here), state, {}, {}, {}))


def write_trainer(path: str, trainer: Trainer) -> None:
    """Writes the persistent variables of a trainer and its fetched values. Raises DiagnosticError."""
    state = {"results": trainer.results, "step": trainer.step, "memory": memory_of(trainer)}
    write_snapshot(Path(path), trainer.name, Snapshot(values_of(trainer), state, {}, {}, {}))


def trainer_arrays(trainer: Trainer) -> dict[str, Any]:
    """The results of one trainer by name: `step/<name>` for fetched values (`<program>/step/<name>` where several
    programs take turns), and `param/<name>` for the parameters that it has whole. Raises DiagnosticError.
    """
    arrays: dict[str, Any] = {}
    for key, values in results_of(trainer).items():
        program, name = ("", key) if trainer.role.turns is None else key.split("/", 1)
        prefix = f"{program}/" if program else ""
        arrays.update((f"{prefix}{key}", array) for key, array in stacked(name, values).items())
    for program in trainer.role.programs.values():
        held = ((var.name, trainer.scope.get(var.name)) for var in program.parameters())
        arrays.update((f"param/{name}", value) for name, value in held if isinstance(value, np.ndarray))
    return arrays


def gather(cluster: Cluster, files: Mapping[str, str]) -> Simulated:
    """The outcome in the form that `simulate` returns, from the files of the processes by role. Raises
    DiagnosticError.
    """
    for machine in (*cluster.servers, *cluster.trainers):
        kept = read_snapshot(Path(files[machine.name]), machine.name)
        state: Any = kept.state
        fill(machine, Part(kept.values, state["step" if isinstance(machine, Trainer) else "updates"], state["memory"]))
        if isinstance(machine, Trainer):
            machine.take_results(state["results"])
    fetched = tuple(results_of(trainer) for trainer in cluster.trainers)
    return Simulated(fetched, cluster.parameters(), cluster)
