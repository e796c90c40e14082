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
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pstranspile.cluster.checkpoint.api import Resumed, load_checkpoint, save_checkpoint
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.manifest import Manifest
from pstranspile.cluster.checkpoint.runs import KEPT, Identity, Source, Standing, Target, require_seed
from pstranspile.cluster.checkpoint.settings import Settings, of_cluster
from pstranspile.cluster.checkpoint.store import Format
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.compiler.compile import Compiled
from pstranspile.runtime.run.step_feeds import Dealing


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
    settings: Settings | None = None,
) -> Manifest:
    """Writes a checkpoint of a cluster that stands between two steps. Raises DiagnosticError.

    `dealing` says how rows of data were dealt (default: as those that the cluster is fed); `settings` are others that
    decide the run's numbers (default: what is known of the cluster).
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
        cluster,
        job,
        folder,
        format=format,
        step=step,
        steps=steps,
        seed=cluster.seed,
        memory=memory,
        dealing=dealing,
        settings=of_cluster(cluster) if settings is None else settings,
    )


def steps_of(cluster: Cluster) -> dict[str, int]:
    """How many steps each trainer has done, and how many updates each server."""
    steps = {trainer.name: trainer.step for trainer in cluster.trainers}
    steps.update((server.name, server.updates) for server in cluster.servers)
    return steps


def resume(
    cluster: Cluster,
    job: Compiled,
    folder: str | os.PathLike[str],
    *,
    same_program: bool = True,
    settings: Settings | None = None,
) -> Resumed:
    """Starts a cluster from a checkpoint, or from the newest of the numbered ones in `folder`.

    The start-up programs run first, unless they did. The next step is the one after those that were done, also for
    what is fed and for random numbers; rows are dealt anew to as many trainers as there are now. With `same_program`
    the seed and the settings that decide the numbers are to be those of the run that was saved (`settings`; default:
    what is known of the cluster).
    Raises DiagnosticError; the cluster has then started, and nothing was loaded.
    """
    if not cluster.started:
        cluster.start()
    with closing(Source(folder)) as source:
        if same_program:
            require_seed(source.manifest, cluster.seed, source.place)
            source.require_settings(of_cluster(cluster) if settings is None else settings)
        resumed = load_checkpoint(cluster, job, source.place, same_program=same_program)
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


def run_with_checkpoints(
    cluster: Cluster,
    job: Compiled,
    steps: int,
    folder: str | os.PathLike[str],
    *,
    every: int = 1,
    keep: int = KEPT,
    format: Format = "files",
    on_saved: Callable[[Path], object] | None = None,
) -> None:
    """Goes on until all trainers have done `steps` steps, and saves the cluster after every so many, and at the end.

    Checkpoints are `<folder>/step_00000010`, ...; the `keep` latest stay. The folder is the run's own: if there are
    checkpoints in it, the cluster must have gone on from the latest one. Raises DiagnosticError.
    """
    if not cluster.started:
        cluster.start()
    layout, at = layout_of(job), _step_of(cluster)
    standing = Standing(Identity(layout.fingerprint, cluster.seed), at) if at else None
    with closing(Target(folder, layout, standing, as_files=format == "files")) as target:
        _save_until(cluster, job, steps, target, every, keep, format, on_saved)


def _step_of(cluster: Cluster) -> int:
    return max((trainer.step for trainer in cluster.trainers), default=0)


def _save_until(
    cluster: Cluster,
    job: Compiled,
    steps: int,
    target: Target,
    every: int,
    keep: int = KEPT,
    format: Format = "files",
    on_saved: Callable[[Path], object] | None = None,
    settings: Settings | None = None,
) -> None:
    at = _step_of(cluster)
    while at < steps:
        at = min(at - at % every + every, steps)
        cluster.run_to(at)
        place = target.place(at)
        target.saved(save_cluster(cluster, job, place, format=format, settings=settings), keep)
        if on_saved is not None:
            on_saved(place)


class CheckpointedRun:
    """A run that begins from a checkpoint, or leaves checkpoints, or both: `run(cluster, steps)` instead of `run_to`.

    `first` is the first step. `seed` is what the run draws its random numbers from (None: the programs' own seeds):
    that of the run that goes on, else the one given. `settings` are others that decide its numbers (None: what is known
    of the cluster). Raises DiagnosticError when the checkpoint can't be read, or is of a run with another seed or other
    settings than those given, or none can be written: before the run, not after.
    """

    def __init__(
        self,
        job: Compiled,
        source: str | None,
        target: str | None,
        every: int | None = None,
        seed: int | None = None,
        settings: Settings | None = None,
    ):
        self.job, self.every, self._settings = job, every, settings
        self.source = Source(source) if source is not None else None
        self.first, self.seed = 0, seed
        if self.source is not None:
            self.source.require_settings(settings or {})
            self.source.require_program(job.fingerprint)
            self.source.require_seed(seed)
            self.first, self.seed = self.source.step, self.source.manifest.seed
        standing = None if self.source is None else self.source.standing
        self.target = None if target is None else Target(target, layout_of(job), standing)

    def run(self, cluster: Cluster, steps: int) -> None:
        """Goes on until all trainers have done `steps` steps, counted from the beginning. Raises DiagnosticError."""
        try:
            if not cluster.started:
                cluster.start()
            if self.source is not None:
                self.source.require_steps(steps)
                resume(cluster, self.job, self.source.place, settings=self._settings)
                self.source.close()
            if self.target is None:
                cluster.run_to(steps)
            else:
                every = self.every or steps
                _save_until(cluster, self.job, steps, self.target, every, settings=self._settings)
        finally:
            self.close()

    def close(self) -> None:
        """Lets other runs save in the folder, and have the checkpoint removed that this run has gone on from."""
        for held in (self.source, self.target):
            if held is not None:
                held.close()
