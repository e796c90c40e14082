"""Checkpoints, the easy way: `save_checkpoint(cluster, job, folder)` and `load_checkpoint(cluster, job, folder)`.

`job` is a compiled job, or a module that one machine trains. What it runs in is a simulated cluster, the scopes of its
machines by role name, or, for one machine, its scope. (`pstranspile.cluster.checkpoint.api` also takes care of a
cluster's steps.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from pstranspile.cluster.checkpoint.layout import MACHINE, Layout, layout_of
from pstranspile.cluster.checkpoint.manifest import Manifest, Settings, of_cluster
from pstranspile.cluster.checkpoint.runs import (
    KEPT,
    Identity,
    RunProgress,
    Source,
    Target,
    require_program,
    require_seed,
)
from pstranspile.cluster.checkpoint.state import Memory, Scopes, assign, gather, require_machines
from pstranspile.cluster.checkpoint.store import Format, Progress, read_checkpoint, read_manifest, write_checkpoint
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.argument_checks import check_arguments, path_of, wrong_type
from pstranspile.ir.model import Module
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.run.step_feeds import Dealing

# Simulated clusters that are saved as they go, and that go on from where another one was saved.
#
#     cluster = Cluster(job.roles(), ...)
#     run_with_checkpoints(cluster, job, 100, "checkpoints", every=10)
#
#     again = Cluster(other_job.roles(), ...)          # of any number of servers
#     resume(again, other_job, "checkpoints")
#     again.run_to(100)
#
# A cluster is saved between steps: every trainer has done as many, and no message is under way.


@runtime_checkable
class StatefulCommunicator(Protocol):
    """A communicator that keeps values besides its trainer's variables (geo-SGD: the last exchanged ones)."""

    def memory(self) -> Mapping[str, Any]:
        """Returns the values that it keeps besides, as arrays by name."""
        ...

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Sets the values that `memory` once returned, as arrays by name."""
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
    """Writes a checkpoint of a cluster that is between two steps. Raises DiagnosticError.

    `dealing` says how rows of data were dealt (default: as those that the cluster is fed); `settings` are others that
    decide the run's numbers (default: what is known of the cluster).
    """
    step = max((trainer.step for trainer in cluster.trainers), default=0)
    memory = {
        name: communicator.memory()
        for name, communicator in cluster.communicators.items()
        if isinstance(communicator, StatefulCommunicator)
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
        if isinstance(communicator, StatefulCommunicator):
            communicator.recall(resumed.memory.get(name, {}))
    for server in cluster.servers:
        server.go_on_from(resumed.steps.get(server.name, resumed.step))
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
    standing = RunProgress(Identity(layout.fingerprint, cluster.seed), at) if at else None
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
        target.record_checkpoint(save_cluster(cluster, job, place, format=format, settings=settings), keep)
        if on_saved is not None:
            on_saved(place)


class CheckpointedRun:
    """A run that begins from a checkpoint, or leaves checkpoints, or both: `run(cluster, steps)` instead of `run_to`.

    `first_step` is the first step. `seed` is what the run draws its random numbers from (None: the programs' own
    seeds): that of the run that goes on, else the one given. `settings` are others that decide its numbers (None: what
    is known of the cluster). Raises DiagnosticError when the checkpoint can't be read, or is of a run with another seed
    or other settings than those given, or none can be written: before the run, not after.
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
        self.first_step, self.seed = 0, seed
        if self.source is not None:
            self.source.require_settings(settings or {})
            self.source.require_program(job.fingerprint)
            self.source.require_seed(seed)
            self.first_step, self.seed = self.source.step, self.source.manifest.seed
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
        """Unlocks the folder for other runs, and permits the removal of the checkpoint that this run began from."""
        for held in (self.source, self.target):
            if held is not None:
                held.close()


class Resumed(NamedTuple):
    """The point from which a loaded job goes on.

    `step` is the number of steps done; `steps` is the number that each machine has run, on which its random numbers
    depend, and `seed` the seed of the run (None: the program's own). `retained_variables` names the variables
    that are not in the checkpoint and keep their values; only variables that the source program does not keep from step
    to step can be among them. `memory` is the state that machines hold outside of variables, by role name. `dealing`
    says how rows of data were dealt to trainers until then (None: none were).
    """

    step: int
    steps: dict[str, int]
    seed: int | None
    retained_variables: tuple[str, ...]
    memory: Memory
    dealing: Dealing | None = None


def scopes_of(machines: Any) -> Scopes:
    """The scopes of the machines by role name."""
    if isinstance(machines, Scope):
        return {MACHINE: machines}
    if isinstance(machines, Mapping):
        return cast("Scopes", machines)
    if not hasattr(machines, "servers"):
        raise wrong_type("a checkpoint", "the Scope of a machine, scopes by role name, or a Cluster", machines)
    return {machine.name: machine.scope for machine in (*machines.servers, *machines.trainers)}


def _layout_of(job: Compiled | Module, caller: str) -> Layout:
    if not isinstance(job, Compiled | Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong_type(caller, "what a compile gives, or a Module", job, "Compiled")
    return layout_of(job)


@check_arguments
def save_checkpoint(
    machines: Any,
    job: Compiled | Module,
    folder: str | os.PathLike[str],
    *,
    format: Format = "files",
    step: int = 0,
    steps: Mapping[str, int] | None = None,
    seed: int | None = None,
    memory: Memory | None = None,
    dealing: Dealing | None = None,
    settings: Mapping[str, str] | None = None,
) -> Manifest:
    """Writes all that a job keeps from step to step to a folder, which appears whole or not at all.

    Variables cut over the servers are written whole, so that any number of servers can load them. An earlier
    checkpoint in the folder is replaced. `step`, `steps` (by machine; default: `step` for all), `seed`, `memory`
    and `dealing` (how rows of data were dealt to trainers) are given back by `load_checkpoint`; `settings`, which are
    recorded, are others that decide the run's numbers, by name. Raises DiagnosticError when a variable has no value or
    the folder can't be written; ValueError for an unknown format.
    """
    path_of(folder, "save_checkpoint")
    layout = _layout_of(job, "save_checkpoint")
    at = Progress(step, dict.fromkeys(layout.machines, step) if steps is None else steps, seed, dealing, settings or {})
    state = gather(layout, scopes_of(machines), memory)
    return write_checkpoint(folder, layout, state, format, at)


@check_arguments
def load_checkpoint(
    machines: Any, job: Compiled | Module, folder: str | os.PathLike[str], *, same_program: bool = True
) -> Resumed:
    """Sets the variables of a job's machines from a checkpoint, whatever machines it was saved from.

    The machines' start-up programs should have run. Nothing is set before all is read and checked. With
    `same_program=False` the checkpoint may be of another program that has at least this one's variables.
    Raises DiagnosticError.
    """
    path_of(folder, "load_checkpoint")
    layout, scopes = _layout_of(job, "load_checkpoint"), scopes_of(machines)
    require_machines(layout, scopes)
    if same_program:
        require_program(read_manifest(folder), layout.fingerprint, str(folder))
    manifest, state = read_checkpoint(folder, _most(layout) if same_program else None)
    assignment = assign(layout, state, scopes)
    assignment.carry_out(scopes)
    return Resumed(
        manifest.step,
        dict(manifest.steps),
        manifest.seed,
        assignment.retained_variables,
        state.memory,
        manifest.dealing,
    )


def _most(layout: Layout) -> int | None:
    """The largest number of bytes that a checkpoint of a job can have, with room to spare; None where dims of a
    variable vary.
    """
    total = 0
    for placed in layout.variables.values():
        if min(placed.shape, default=0) < 0:
            return None
        total += prod(placed.shape) * 8 * (2 + len(placed.holders))
    return 4 * total + (1 << 26)
