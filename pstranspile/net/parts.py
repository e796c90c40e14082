"""Checkpoints of a run of processes: every machine writes its part of one, and begins with its part of another.

In synchronous training the parts are a consistent cut without anybody waiting for it: those of trainers that have done
so many steps and of servers that have made so many updates. A machine is stopped no longer than its values are copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Program, Var
from pstranspile.ir.types import VarKind
from pstranspile.kernels.context import Value
from pstranspile.net.status import StatusPipe
from pstranspile.run.cluster.exchanges import Exchange
from pstranspile.run.cluster.faults.snapshot_files import read_snapshot, write_snapshot
from pstranspile.run.cluster.faults.snapshots import Snapshot
from pstranspile.run.cluster.server import Server
from pstranspile.run.cluster.trainer import Host, Trainer
from pstranspile.run.cluster.waits import Action
from pstranspile.run.scope import own_copy


class Part(NamedTuple):
    """What a machine keeps from step to step, and how many steps it has done, or updates."""

    values: Mapping[str, Value]
    step: int


def values_of(machine: Server | Trainer) -> dict[str, Value]:
    """The variables that a machine keeps from step to step: what has a form in a file."""
    values = {name: value for name, value in machine.scope.values_here.items() if value is not None}
    if isinstance(machine, Server):
        return values
    return {name: value for name, value in values.items() if _is_kept(machine.role.variable(name))}


def _is_kept(var: Var | None) -> bool:
    return var is not None and var.persistable and var.kind is not VarKind.READER


def write_part(path: Path, name: str, part: Part) -> None:
    """Writes a part. Raises DiagnosticError."""
    write_snapshot(path, name, Snapshot(dict(part.values), {"step": part.step}, {}, {}, {}))


def read_part(path: Path, name: str) -> Part:
    """Reads a part. Raises DiagnosticError."""
    kept = read_snapshot(path, name)
    return Part(kept.values, kept.state["step"])


def part_file(folder: Path, role: str, step: int) -> Path:
    """Where the part of a machine lies until the checkpoint is put together."""
    return folder / f"{role}.{step}.part"


class Parts:
    """Writes a machine's parts into a folder, after every so many steps or updates, and tells when one is there."""

    def __init__(self, folder: str, every: int, tell: StatusPipe):
        self.folder = Path(folder)
        self.every = every
        self.tell = tell

    def done(self, machine: Server | Trainer, step: int) -> None:
        """The machine has done so many steps, or updates."""
        if step % self.every == 0:
            part = Part({name: own_copy(value) for name, value in values_of(machine).items()}, step)
            Thread(target=self._write, args=(machine.name, part)).start()

    def _write(self, role: str, part: Part) -> None:
        try:
            write_part(part_file(self.folder, role, part.step), role, part)
        except DiagnosticError as problem:
            self.tell(unsaved=str(problem))
            return
        self.tell(saved=part.step)


def take_server(server: Server, part: Part) -> None:
    """A server whose start-up program has run goes on from its part."""
    for name, value in part.values.items():
        server.scope.put(name, value)
    server.updates = part.step
    server.forget_all_copies()


class _Resumed(Host):
    """What a trainer needs of its cluster, where it begins with its part."""

    def __init__(self, host: Host, part: Part):
        self.seed, self.folder, self.library = host.seed, host.folder, host.library
        self._host = host
        self._part = part

    def make_action(self, trainer: Trainer, exchange: Exchange, program: Program) -> Action:
        """What a trainer does at an op that talks to other machines. Raises DiagnosticError."""
        return self._host.make_action(trainer, exchange, program)

    def initialise(self, trainer: Trainer) -> None:
        """The start-up program has run for the first time."""
        self._host.initialise(trainer)
        for name, value in self._part.values.items():
            trainer.scope.put(name, value)


def take_trainer(trainer: Trainer, part: Part) -> None:
    """A trainer that has not begun will go on from its part, once its start-up program has run."""
    trainer.host = _Resumed(trainer.host, part)
    trainer.restart(part.step, 0)
