"""Checkpoints, the easy way: `save_checkpoint(cluster, job, folder)` and `load_checkpoint(cluster, job, folder)`.

`job` is a compiled job, or a module that one machine trains. What it runs in is a simulated cluster, the scopes of its
machines by role name, or, for one machine, its scope. (`pstranspile.cluster.checkpoint.running` also takes care of a
cluster's steps.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple, cast

from pstranspile.cluster.checkpoint.layout import MACHINE, Layout, layout_of
from pstranspile.cluster.checkpoint.manifest import Manifest
from pstranspile.cluster.checkpoint.runs import require_program
from pstranspile.cluster.checkpoint.state import Memory, Scopes, assign, gather, require_machines
from pstranspile.cluster.checkpoint.store import Format, Progress, read_checkpoint, read_manifest, write_checkpoint
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.expect import path_of, wrong_type
from pstranspile.ir.model import Module
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.run.step_feeds import Dealing


class Resumed(NamedTuple):
    """The point from which a loaded job goes on.

    `step` is the number of steps done; `steps` is the number that each machine has run, on which its random numbers
    depend, and `seed` the seed of the run (None: the program's own). `kept` names the variables that are not in the
    checkpoint and keep their values; only variables that the source program does not keep from step to step can be
    among them. `memory` is the state that machines hold outside of variables, by role name. `dealing` says how rows of
    data were dealt to trainers until then (None: none were).
    """

    step: int
    steps: dict[str, int]
    seed: int | None
    kept: tuple[str, ...]
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
    state = gather(layout, scopes_of(machines))
    state.memory = memory or {}
    return write_checkpoint(folder, layout, state, format, at)


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
    return Resumed(manifest.step, dict(manifest.steps), manifest.seed, assignment.kept, state.memory, manifest.dealing)


def _most(layout: Layout) -> int | None:
    """The bytes that a checkpoint of a job can hold, with room to spare; None where the dims of a variable vary."""
    total = 0
    for placed in layout.variables.values():
        if min(placed.shape, default=0) < 0:
            return None
        total += prod(placed.shape) * 8 * (2 + len(placed.holders))
    return 4 * total + (1 << 26)
