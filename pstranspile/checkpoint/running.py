"""Simulated clusters that are saved as they go, and that go on from where another one was saved.

    cluster = Cluster(job.roles(), ...)
    run_with_checkpoints(cluster, job, 100, "checkpoints", every=10)

    again = Cluster(other_job.roles(), ...)          # of any number of servers
    resume(again, other_job, "checkpoints")
    again.run_to(100)

A cluster is saved between steps: every trainer has done as many, and no message is under way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pstranspile.checkpoint.api import (
    Resumed,
    forget_older,
    load_checkpoint,
    make_folder_of_checkpoints,
    newest,
    save_checkpoint,
    step_folder,
)
from pstranspile.checkpoint.manifest import Manifest
from pstranspile.checkpoint.store import Format, read_manifest
from pstranspile.compile import Compiled
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.row_source import Dealing


@runtime_checkable
class Remembers(Protocol):
    """A communicator that keeps values besides its trainer's variables (geo-SGD: the last exchanged ones)."""

    def memory(self) -> Mapping[str, Any]:
        """What it keeps, as arrays by name."""
        ...

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Takes it back."""
        ...


def save_cluster(
    cluster: Cluster,
    job: Compiled,
    folder: str | os.PathLike[str],
    *,
    format: Format = "files",
    dealing: Dealing | None = None,
) -> Manifest:
    """Writes a checkpoint of a cluster that stands between two steps. Raises DiagnosticError.

    `dealing` says how rows of data were dealt (default: as those that the cluster is fed).
    """
    step = max((trainer.step for trainer in cluster.trainers), default=0)
    memory = {
        name: communicator.memory()
        for name, communicator in cluster.communicators.items()
        if isinstance(communicator, Remembers)
    }
    steps = steps_of(cluster)
    if cluster.source is not None:
        dealing = dealing or cluster.source.dealing(len(cluster.trainers))
    return save_checkpoint(
        cluster, job, folder, format=format, step=step, steps=steps, seed=cluster.seed, memory=memory, dealing=dealing
    )


def steps_of(cluster: Cluster) -> dict[str, int]:
    """How many steps each trainer has done, and how many updates each server."""
    steps = {trainer.name: trainer.step for trainer in cluster.trainers}
    steps.update((server.name, server.updates) for server in cluster.servers)
    return steps


def resume(cluster: Cluster, job: Compiled, folder: str | os.PathLike[str], *, same_program: bool = True) -> Resumed:
    """Starts a cluster from a checkpoint, or from the newest of the numbered ones in `folder`.

    The start-up programs run first, unless they did. The next step is the one after those that were done, also for
    what is fed and for random numbers; rows are dealt anew to as many trainers as there are now.
    Raises DiagnosticError; the cluster has then started, and nothing was loaded.
    """
    if not cluster.started:
        cluster.start()
    place = newest(folder)
    if same_program:
        require_seed(cluster, place)
    resumed = load_checkpoint(cluster, job, place, same_program=same_program)
    if cluster.source is not None and resumed.dealing is not None:
        cluster.feed(cluster.source.continued(resumed.dealing, resumed.step, len(cluster.trainers)))
    for trainer in cluster.trainers:
        trainer.go_on_from(resumed.steps.get(trainer.name, resumed.step))
    for name, communicator in cluster.communicators.items():
        if isinstance(communicator, Remembers):
            communicator.recall(resumed.memory.get(name, {}))
    for server in cluster.servers:
        server.updates = resumed.steps.get(server.name, resumed.step)
        server.forget_all_copies()
    return resumed


def require_seed(cluster: Cluster, folder: Path) -> None:
    """Raises DiagnosticError if the run that was saved drew its random numbers from another seed than the cluster."""
    seed = read_manifest(folder).seed
    if seed != cluster.seed:
        which = "the programs' own seeds; give no other" if seed is None else f"the seed {seed}; give the same"
        message = f"it was run with {which}, so that the random numbers go on"
        raise DiagnosticError([error("checkpoint-model", message, Location(str(folder)))])


def run_with_checkpoints(
    cluster: Cluster,
    job: Compiled,
    steps: int,
    folder: str | os.PathLike[str],
    *,
    every: int = 1,
    keep: int = 2,
    format: Format = "files",
    on_saved: Callable[[Path], object] | None = None,
) -> None:
    """Goes on until all trainers have done `steps` steps, and saves the cluster after every so many, and at the end.

    Checkpoints are `<folder>/step_00000010`, ...; the `keep` latest stay. Raises DiagnosticError.
    """
    if not cluster.started:
        cluster.start()
    at = max((trainer.step for trainer in cluster.trainers), default=0)
    while at < steps:
        at = min(at - at % every + every, steps)
        cluster.run_to(at)
        place = step_folder(folder, at)
        save_cluster(cluster, job, place, format=format)
        forget_older(folder, keep)
        if on_saved is not None:
            on_saved(place)


class CheckpointedRun:
    """A run that begins from a checkpoint, or leaves checkpoints, or both: `run(cluster, steps)` instead of `run_to`.

    `first` is the first step, `seed` what the run that goes on drew its random numbers from (None: the programs' own
    seeds). Raises DiagnosticError when the checkpoint can't be read, or none can be written: before the run, not after.
    """

    def __init__(self, job: Compiled, source: str | None, target: str | None, every: int | None = None):
        self.job, self.source, self.target, self.every = job, source, target, every
        self.first, self.seed = 0, None
        if source is not None:
            manifest = read_manifest(newest(source))
            self.first, self.seed = manifest.step, manifest.seed
        if target is not None:
            make_folder_of_checkpoints(target)

    def run(self, cluster: Cluster, steps: int) -> None:
        """Goes on until all trainers have done `steps` steps, counted from the beginning. Raises DiagnosticError."""
        if self.source is not None:
            resume(cluster, self.job, self.source)
        if self.target is None:
            cluster.run_to(steps)
        else:
            run_with_checkpoints(cluster, self.job, steps, self.target, every=self.every or steps)
