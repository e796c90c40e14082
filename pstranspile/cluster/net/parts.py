"""Checkpoints of a run of processes: every machine writes its part of one, and begins with its part of another.

In synchronous training no machine waits for a consistent cut: it consists of the parts of trainers after a number of
steps, and of servers after as many updates. A machine only pauses while its values are copied. In other modes trainers
meet first (see `meetings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from pstranspile.cluster.machines.communicators.geo import GeoCommunicator
from pstranspile.cluster.machines.exchanges import Exchange
from pstranspile.cluster.machines.faults.snapshot_files import read_snapshot, write_snapshot
from pstranspile.cluster.machines.faults.snapshots import Snapshot, has_table, kept_copy, put_back
from pstranspile.cluster.machines.geo_server import GeoServer
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.trainer import Host, Trainer
from pstranspile.cluster.machines.waits import Action
from pstranspile.cluster.net.status import StatusPipe
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Program
from pstranspile.ir.types import VarKind
from pstranspile.runtime.kernels.context import Value


class Part(NamedTuple):
    """The variables that a machine keeps from step to step, and the number of its steps or updates.

    `memory` is its other state (geo-SGD: the values of the last exchange, the changed rows).
    """

    values: Mapping[str, Value]
    step: int
    memory: Mapping[str, Any] = {}


def values_of(machine: Server | Trainer) -> dict[str, Value]:
    """The variables that a machine keeps from step to step."""
    values = {name: value for name, value in machine.scope.values_here.items() if value is not None}
    if isinstance(machine, Server):
        return values
    declared = {name: var for name in values if (var := machine.role.variable(name)) is not None and var.persistable}
    return {name: values[name] for name, var in declared.items() if var.kind is not VarKind.READER}


def memory_of(machine: Server | Trainer) -> dict[str, Any]:
    """A copy of the other state that a machine keeps from step to step."""
    if isinstance(machine, GeoServer):
        return {table: {index: set(rows) for index, rows in seen.items()} for table, seen in machine.changed.items()}
    if isinstance(machine, Trainer) and isinstance(machine.communicator, GeoCommunicator):
        return machine.communicator.own_memory()
    return {}


def part_of(machine: Server | Trainer) -> Part:
    """A machine's part as it is now; its values are not copied."""
    step = machine.updates if isinstance(machine, Server) else machine.step
    return Part(values_of(machine), step, memory_of(machine))


def fill(machine: Server | Trainer, part: Part) -> None:
    """Gives a machine that will not run the state in its part."""
    machine.scope.values_here.clear()
    machine.scope.values_here.update(part.values)
    if isinstance(machine, Server):
        machine.updates = part.step
        if isinstance(machine, GeoServer):
            machine.changed = dict(part.memory)
        return
    machine.step = part.step
    if isinstance(machine.communicator, GeoCommunicator):
        machine.communicator.begin_with(part.memory)
        machine.communicator.started()


def write_part(path: Path, name: str, part: Part) -> None:
    """Writes a part. Raises DiagnosticError."""
    state = {"step": part.step, "memory": dict(part.memory)}
    write_snapshot(path, name, Snapshot(dict(part.values), state, {}, {}, {}))


def read_part(path: Path, name: str) -> Part:
    """Reads a part. Raises DiagnosticError."""
    kept = read_snapshot(path, name)
    return Part(kept.values, kept.state["step"], kept.state["memory"])


def part_file(folder: Path, role: str, step: int) -> Path:
    """The file of a machine's part until the checkpoint is put together."""
    return folder / f"{role}.{step}.part"


class Parts:
    """Writes a machine's parts into a folder and reports them: one after every `every` steps or updates, or one at each
    meeting.
    """

    def __init__(self, folder: str, every: int, report: StatusPipe):
        self.folder = Path(folder)
        self.every = every
        self.report = report
        self._writing: Thread | None = None

    def done(self, machine: Server | Trainer, step: int) -> None:
        """The machine has done so many steps, or updates."""
        if step % self.every == 0:
            self.save(machine, step)

    def save(self, machine: Server | Trainer, step: int) -> None:
        """Copies the machine's part after a step of the trainers, and writes the copy in a thread. A part with a large
        table is written at once.

        It waits until the part before is written: copies must not accumulate where the disk is too slow.
        """
        self.finish()
        part = part_of(machine)
        if has_table(part.values.values()):
            self._write(machine.name, step, part)  # while the machine waits: there may be no memory for a copy
            return
        part = part._replace(values={name: kept_copy(value) for name, value in part.values.items()})
        self._writing = Thread(target=self._write, args=(machine.name, step, part))
        self._writing.start()

    def finish(self) -> None:
        """Waits until the last part is written."""
        if self._writing is not None:
            self._writing.join()

    def _write(self, role: str, step: int, part: Part) -> None:
        try:
            write_part(part_file(self.folder, role, step), role, part)
        except DiagnosticError as problem:
            self.report(unsaved=str(problem))
            return
        self.report(saved=step)


def take_server(server: Server, part: Part) -> None:
    """A server whose start-up program has run goes on from its part."""
    put_back(server.scope, {**server.scope.values_here, **part.values})
    server.updates = part.step
    if isinstance(server, GeoServer):
        server.changed = dict(part.memory)
    server.forget_all_copies()


class _Resumed(Host):
    """The host of a trainer that begins with its part of a checkpoint."""

    def __init__(self, host: Host, part: Part):
        self.seed, self.folder, self.library = host.seed, host.folder, host.library
        self._host = host
        self._part = part

    def make_action(self, trainer: Trainer, exchange: Exchange, program: Program) -> Action:
        """The action of a trainer at an exchange with other machines. Raises DiagnosticError."""
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
    if isinstance(trainer.communicator, GeoCommunicator):
        trainer.communicator.begin_with(part.memory)
