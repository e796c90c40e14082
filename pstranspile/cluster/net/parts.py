"""Parts of a run that its processes write: of checkpoints while it runs, and of its outcome at the end.

Every machine writes its part of a checkpoint, and may begin with its part of an earlier one. In synchronous training no
machine waits for a consistent cut: the parts of trainers after a number of steps and of servers after as many updates
make one. A machine only pauses while its values are copied. In other modes trainers meet first (see `meetings`).

At their end processes write files, from which the outcome of the job is assembled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.machines.asynchronous import GeoServer
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.communicator import GeoCommunicator
from pstranspile.cluster.machines.script import Wait, WaitForRelease
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.simulate import Simulated, results_of
from pstranspile.cluster.machines.snapshots import (
    Snapshot,
    has_table,
    kept_copy,
    put_back,
    read_snapshot,
    write_snapshot,
)
from pstranspile.cluster.machines.trainer import Trainer, TrainerListener
from pstranspile.cluster.net.peer import Connection, Peer
from pstranspile.cluster.net.site import Site, SiteListener
from pstranspile.cluster.net.status import StatusPipe
from pstranspile.cluster.net.terms import PeerRefused, step_of
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.types import VarKind
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.step_feeds import step_arrays


class MachineState(NamedTuple):
    """The persistent variables of a machine, and the number of its steps or updates.

    `memory` is its other state (geo-SGD: the values of the last exchange, the changed rows).
    """

    values: Mapping[str, Value]
    step: int
    memory: Mapping[str, Any] = {}


def values_of(machine: Server | Trainer) -> dict[str, Value]:
    """The persistent variables of a machine, by name."""
    values = {name: value for name, value in machine.scope.values_here.items() if value is not None}
    if isinstance(machine, Server):
        return values
    declared = {name: var for name in values if (var := machine.role.variable(name)) is not None and var.persistable}
    return {name: values[name] for name, var in declared.items() if var.kind is not VarKind.READER}


def memory_of(machine: Server | Trainer) -> dict[str, Any]:
    """A copy of the other persistent state of a machine."""
    if isinstance(machine, GeoServer):
        return {table: {index: set(rows) for index, rows in seen.items()} for table, seen in machine.changed.items()}
    if isinstance(machine, Trainer) and isinstance(machine.communicator, GeoCommunicator):
        return machine.communicator.own_memory()
    return {}


def part_of(machine: Server | Trainer) -> MachineState:
    """The present state of a machine as its part; the values are not copied."""
    step = machine.updates if isinstance(machine, Server) else machine.step
    return MachineState(values_of(machine), step, memory_of(machine))


def fill(machine: Server | Trainer, part: MachineState) -> None:
    """Sets the state of a machine that will not run from its part."""
    machine.scope.values_here.clear()
    machine.scope.values_here.update(part.values)
    machine.go_on_from(part.step, part.memory) if isinstance(machine, Server) else machine.go_on_from(part.step)
    if isinstance(machine, Trainer) and isinstance(machine.communicator, GeoCommunicator):
        machine.communicator.begin_with(part.memory)
        machine.communicator.begin_training()


def write_part(path: Path, name: str, part: MachineState) -> None:
    """Writes a part. Raises DiagnosticError."""
    state = {"step": part.step, "memory": dict(part.memory)}
    write_snapshot(path, name, Snapshot(dict(part.values), state, {}, {}, {}))


def read_part(path: Path, name: str) -> MachineState:
    """Reads a part. Raises DiagnosticError."""
    kept = read_snapshot(path, name)
    return MachineState(kept.values, kept.state["step"], kept.state["memory"])


def part_file(folder: Path, role: str, step: int) -> Path:
    """The file of a machine's part until the checkpoint is assembled."""
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

    def save_if_due(self, machine: Server | Trainer, step: int) -> None:
        """Writes the part of a machine that has done `step` steps or updates, if one is due."""
        if step % self.every == 0:
            self.save(machine, step)

    def save(self, machine: Server | Trainer, step: int) -> None:
        """Copies the machine's part after a step of the trainers, and writes the copy in a thread. A part with a large
        table is written at once.

        It first waits until the part before is written, so that copies do not accumulate if the disk is too slow.
        """
        self.finish()
        part = part_of(machine)
        if has_table(part.values.values()):
            self._write(machine.name, step, part)  # the machine waits meanwhile, as there may be no memory for a copy
            return
        part = part._replace(values={name: kept_copy(value) for name, value in part.values.items()})
        self._writing = Thread(target=self._write, args=(machine.name, step, part))
        self._writing.start()

    def finish(self) -> None:
        """Waits until the last part is written."""
        if self._writing is not None:
            self._writing.join()

    def _write(self, role: str, step: int, part: MachineState) -> None:
        try:
            write_part(part_file(self.folder, role, step), role, part)
        except DiagnosticError as problem:
            self.report(unsaved=str(problem))
            return
        self.report(saved=step)


def take_server(server: Server, part: MachineState) -> None:
    """Makes a server continue from its part, after its start-up program has run."""
    put_back(server.scope, {**server.scope.values_here, **part.values})
    server.go_on_from(part.step, part.memory)


def take_trainer(trainer: Trainer, part: MachineState) -> None:
    """Makes a trainer that has not begun continue from its part, once its start-up program has run."""
    trainer.begin_with(part.values, part.step)
    if isinstance(trainer.communicator, GeoCommunicator):
        trainer.communicator.begin_with(part.memory)


# Meetings: barriers for checkpoints of jobs whose trainers do not wait for each other.
#
# A server of such a job applies gradients as they come: those of one trainer's step 12 may come before those of another
# one's step 8. So at no moment all trainers have done 10 steps, unless the fast ones wait for the slow ones. A trainer
# that has done the steps sends what its communicator has left, and then reports to every server that it waits; its
# earlier messages have come before. When all trainers have reported, a server copies its part and answers. When all
# servers have answered, a trainer copies its own part, and goes on.

AT = "at"
"""The field of a trainer's message with the step before which it waits."""

MET = "met"
"""The field of a server's message with the step before which all trainers met last."""

SAVED = "saved"
"""The field of a server's message that says whether it saved its part at that meeting, which this trainer attended."""


def are_needed(cluster: Cluster) -> bool:
    """Whether the trainers of a job need meetings to reach a common step."""
    return any(server.mode for server in cluster.servers)


class ServerMeetings(SiteListener):
    """A server's side of meetings: its part is saved when all live trainers wait before the same step, and none is
    further.
    """

    def __init__(self, site: Site, server: Server, parts: Parts):
        self._site, self._server, self._parts = site, server, parts
        self._waiting_steps: dict[str, int] = {}
        """The step before which each trainer waits, or last waited, by incarnation."""
        self._last_meeting = -1
        self._saved_with: set[str] = set()
        """The trainers of the last meeting, if the server's part was saved."""

    def answer(self, peer: Peer, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The answer to a trainer that waits: the state of the meetings; None for other questions."""
        step = step_of(question, AT)
        if step is None or peer.index < 0:
            return None
        self._waiting_steps[peer.incarnation] = step
        self.turns_done()
        return self._state_for(peer)

    def _state_for(self, peer: Peer) -> dict[str, Any]:
        return {MET: self._last_meeting, SAVED: peer.incarnation in self._saved_with}

    def turns_done(self) -> None:
        """Ends the meeting if all live trainers have come. Called whenever a trainer may have come or left."""
        live = [peer for peer in self._site.peers.values() if peer.index in self._server.live]
        at = {peer.incarnation: self._waiting_steps.get(peer.incarnation, -1) for peer in live}
        step = min((place for place in at.values() if place > self._last_meeting), default=-1)
        there = {incarnation for incarnation, place in at.items() if place == step}
        further = {one.incarnation for one in live if at[one.incarnation] > step or one.last_step >= step}
        if step < 0 or len(there | further) < len(live):
            return
        self._last_meeting, self._saved_with = step, set() if further else there
        if not further:
            self._parts.save(self._server, step)
        for peer in live:
            peer.send_answer({"number": 0, **self._state_for(peer)})  # numbered 0, as the answer to an earlier question


class TrainerMeetings(SiteListener, TrainerListener):
    """A trainer's side of meetings: it waits after every so many steps, and once more after the last one. `first` is
    its first step.
    """

    def __init__(self, site: Site, trainer: Trainer, parts: Parts, first: int):
        self._site, self._trainer, self._parts = site, trainer, parts
        self._servers = [peer for peer in site.peers.values() if peer.index < 0]
        self._last_meeting = first
        """The step of the last meeting, or the first step of this process, before which there is no meeting."""
        self._pause: WaitForRelease | None = None
        self._step = -1
        self._asked_on: dict[str, Connection] = {}
        """The connection on which each server was sent the report that the trainer waits."""

    def end(self) -> None:
        """Meets the other trainers after the last step, unless they have met there."""
        step = self._trainer.step
        if step > self._last_meeting and not self._trainer.gone:
            self._wait(step)
            self._site.run(lambda: self._pause is None)

    def before_step(self, trainer: Trainer, step: int) -> Wait | None:
        """The wait for the others, if they meet before this step; else None."""
        if step <= self._last_meeting or step % self._parts.every:
            return None
        return self._wait(step)

    def _wait(self, step: int) -> WaitForRelease:
        silent = [peer.role for peer in self._servers]
        self._pause = WaitForRelease(self._trainer, f"the others, to be saved with them after step {step}", silent)
        self._step = step
        self._asked_on.clear()
        for peer in self._servers:
            self._site.answers.pop(peer.role, None)
        return self._pause

    def turns_done(self) -> None:
        """Reports to the servers that this trainer waits, once none of its messages is under way; ends the wait when
        all servers have answered.
        """
        communicator = self._trainer.communicator
        if self._pause is None or (communicator is not None and not communicator.quiet):
            return
        for peer in self._servers:
            if peer.connection is not None and self._asked_on.get(peer.role) is not peer.connection:
                self._asked_on[peer.role] = peer.connection
                peer.ask({AT: self._step})
        answers = [self._site.answers.get(peer.role, {}) for peer in self._servers]
        met = [_meeting_step(peer, answer) for peer, answer in zip(self._servers, answers, strict=True)]
        if all(step >= self._step for step in met):
            if set(met) <= {self._step} and all(answer.get(SAVED) is True for answer in answers):
                self._parts.save(self._trainer, self._step)
            pause, self._pause, self._last_meeting = self._pause, None, self._step
            pause.release()
            self._site.run_machines()


def _meeting_step(server: Peer, answer: Mapping[str, Any]) -> int:
    """Returns the step before which all trainers last met, from a server's answer; -1 if there was no meeting. Raises
    Refused if the answer has no valid step.
    """
    step = answer.get(MET, -1)
    if type(step) is not int:
        raise PeerRefused(f"{server.role} answers what it was not asked: {MET} is no number of a step")
    return step


# The files that the processes of a job write at their end, and the outcome of the job assembled from them.


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
        arrays.update((f"{prefix}{key}", array) for key, array in step_arrays(name, values).items())
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
        fill(
            machine,
            MachineState(kept.values, state["step" if isinstance(machine, Trainer) else "updates"], state["memory"]),
        )
        if isinstance(machine, Trainer):
            machine.take_results(state["results"])
    fetched = tuple(results_of(trainer) for trainer in cluster.trainers)
    return Simulated(fetched, cluster.parameters(), cluster, ran="Launched")
