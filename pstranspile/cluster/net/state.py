"""The saved state of a server, from which a process that replaces the server's process continues.

The state is copied between two turns of the machines: every received frame has then been taken completely, and every
posted message is among the sent frames. The state also contains the position of each connection, and the frames that
other processes may not have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.snapshots import (
    Snapshot,
    has_table,
    read_snapshot,
    restore,
    take_snapshot,
    write_snapshot,
)
from pstranspile.cluster.net.http2 import CallRefused
from pstranspile.cluster.net.loop import CALL, Event
from pstranspile.cluster.net.other_systems import ForeignTrainers
from pstranspile.cluster.net.site import Site, SiteListener
from pstranspile.cluster.net.status import print_machine_message
from pstranspile.cluster.net.wire import WireError
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.runtime.files.outputs import FileLock

_JOB = "@job"
"""The key of a saved state with the hash of the job that the server takes part in."""

_RUN = "@run"
"""The key of a saved state with what tells the run from others of the same job: a hash of its token."""

_PEERS = "@peers"
"""The key of a saved state with the processes that the server talks to."""

_IN = "@in"
"""The key of a saved state with the links to the server."""

_OUT = "@out"
"""The key of a saved state with the links from the server."""

_ANNOUNCED = "@announced"
"""The key of a saved state with the trainers that are to rejoin."""

_CALLS = "@calls"
"""The key of a saved state with the calls of trainers of another system, and the number of the file with later calls.
"""

MOST_BYTES = 1 << 26
"""Bytes of messages after which the state is saved early, as the senders have to keep the messages until then."""

RETRY = 5.0
"""Seconds after which saving is tried again if the state could not be written."""


class StateKeeper(SiteListener):
    """Saves the state of a server in `folder`, after every `every` updates and when trainers join or leave.

    `on_failure` is called with the reason if the state can't be written, once until it can be written again.
    """

    def __init__(
        self,
        site: Site,
        server: Server,
        folder: str,
        every: int,
        foreign: ForeignTrainers | None = None,
        on_failure: Callable[[str], object] = lambda reason: None,
    ):
        self.site = site
        self.server = server
        self.foreign_trainers = foreign
        self.journal = foreign.journal if foreign is not None else None
        self.file = Path(folder, f"{server.name}.kept")
        self._run = site.terms.run_hash()
        self.every = every
        self._last_saved_progress = (0, -1)
        """The numbers of updates and of live trainers when the state was last saved."""
        self._writing: dict[str, int] | None = None
        """The last received frame of each peer in the state that is being written; None if none is."""
        self._failure_time: float | None = None
        """The time at which the state could not be written; None if the last attempt succeeded."""
        self._number = 0
        """The number of the journal file that follows the state that is being written."""
        self.went_back = False
        """Whether the server has continued from a saved state."""
        self._on_failure = on_failure
        self._lock: FileLock | None = None
        """What keeps other processes from keeping a state in the same file, as long as this one lives."""

    def _take(self) -> None:
        """Locks the file. Raises DiagnosticError if another process has: a server would go on with the parameters of
        another job.
        """
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.file.with_name(f"{self.file.name}.lock"))
        except OSError:
            return  # the state can't be written either, which is told
        if lock.held_by_another:
            told = "another process keeps its state there; give each job a folder of its own"
            raise DiagnosticError([error("cluster-kept", told, Location(str(self.file)))])
        self._lock = lock

    def let_go(self) -> None:
        """Lets other processes keep their state there."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def begin(self) -> None:
        """Restores the saved state, if there is one. Raises DiagnosticError if it can't be read.

        Where trainers of another system take part, a state is saved at the beginning.
        """
        self._take()
        if self.file.exists():
            self._go_back()
        elif self.journal is not None:
            self.journal.forget(self.journal.begin_file() + 1)
            write_snapshot(self.file, self.server.name, self._state(self.journal.begin_file()))

    def _go_back(self) -> None:
        snapshot = read_snapshot(self.file, self.server.name)
        try:
            self._take_back(snapshot)
        except (LookupError, TypeError, ValueError, AttributeError, WireError, CallRefused) as problem:
            told = f"does not fit the job, or was changed: {type(problem).__name__}: {problem}"
            raise DiagnosticError([error("cluster-kept", told, Location(str(self.file)))]) from None
        told = f"{self.server.name}: goes on from its kept state, after update {self.server.updates}"
        print(told, file=sys.stderr, flush=True)

    def _take_back(self, snapshot: Snapshot) -> None:
        state = dict(snapshot.state)
        job, own_job = str(state.pop(_JOB)), self.site.terms.job
        if job != own_job:
            told = f"is of another job: {job[:12]}, not {own_job[:12]}; give this one another folder"
            raise DiagnosticError([error("cluster-kept", told, Location(str(self.file)))])
        if state.pop(_RUN, self._run) != self._run:  # states of earlier versions do not say
            told = "is of another run of this job, which had another token; give this one another folder, or that token"
            raise DiagnosticError([error("cluster-kept", told, Location(str(self.file)))])
        peers: Mapping[str, Mapping[str, Any]] = state.pop(_PEERS)
        links_in, links_out = state.pop(_IN), state.pop(_OUT)
        calls, number = state.pop(_CALLS, ({}, 0))
        announced = list(state.pop(_ANNOUNCED))
        restore(self.server, snapshot._replace(state={**state, "announced": announced}))
        for role, fields in peers.items():
            self.site.peers[role].restore(fields, self.site.now())
        machines, network = self.site.cluster.machines, self.site.cluster.network
        for source, (expected, trainer) in links_in.items():
            network.link(machines[source], self.server, trainer).expect(expected)
        for target, (sequence, trainer) in links_out.items():
            network.link(self.server, machines[target], trainer).number_after(sequence)
        self.server.finish_restore()
        self._last_saved_progress = self._current_progress()
        self.went_back = True
        if self.foreign_trainers is not None and self.journal is not None:
            if not calls:
                raise DiagnosticError([error("cluster-kept", "was kept without --fluid", Location(str(self.file)))])
            self.foreign_trainers.restore(calls, self.journal.read(number))
            self.journal.begin_file()

    def _current_progress(self) -> tuple[int, int]:
        return self.server.updates, len(self.server.live)

    def turns_done(self) -> None:
        """Saves the state if it is due and none is being written."""
        if self._writing is not None:
            return
        updates, members = self._current_progress()
        if not self._is_awaited or (self._failure_time is not None and self.site.now() - self._failure_time < RETRY):
            return
        unwritten = self.journal is not None and bool(self.journal.problem)
        due = unwritten or self._failure_time is not None or self.site.bytes_since_kept > MOST_BYTES or self._is_over
        if due or members != self._last_saved_progress[1] or updates - self._last_saved_progress[0] >= self.every:
            self._keep()

    @property
    def _is_awaited(self) -> bool:
        """Whether other processes still have to keep messages that the server has taken."""
        return bool(self.journal and self.journal.call_bytes) or any(
            peer.received > peer.durable_number for peer in self.site.peers.values()
        )

    @property
    def _is_over(self) -> bool:
        """Whether all trainers have left."""
        return self.server.ended and all(peer.left for peer in self.site.peers.values() if peer.index >= 0)

    def _keep(self) -> None:
        number = self.journal.begin_file() if self.journal is not None else 0
        snapshot = self._state(number)
        self._last_saved_progress = self._current_progress()
        self.site.begin_to_keep()
        self._writing = {role: peer.received for role, peer in self.site.peers.items()}
        if has_table(snapshot.values.values()):
            self._write(snapshot)  # the server waits meanwhile, as there may be no memory for a copy
        else:
            Thread(target=self._write, args=(snapshot,), daemon=True).start()

    def _write(self, snapshot: Snapshot) -> None:
        reason = ""
        try:
            write_snapshot(self.file, self.server.name, snapshot)
        except Exception as problem:
            reason = str(problem)
        self.site.events.put(Event(CALL, None, action=lambda: self._written(reason)))

    def _written(self, reason: str) -> None:
        """Handles the end of writing: the messages in the state need not be sent again. A failure is reported once."""
        assert self._writing is not None
        if not reason:
            for role, received in self._writing.items():
                self.site.peers[role].make_durable(received)
            self._failure_time = None
            if self.journal is not None:
                self.journal.forget(self._number)
        else:
            if self._failure_time is None:
                print_machine_message(self.server.name, f"its state is not kept: {reason}")
                self._on_failure(reason)
            self._failure_time = self.site.now()
        self._writing = None

    def finish(self) -> None:
        """Saves the state after all trainers have left. If that fails, the job ends all the same."""
        self.site.run(lambda: self._writing is None and (not self._is_awaited or self._failure_time is not None))

    def end(self) -> None:
        """Removes the saved state at the end of the job, or tells why it stays."""
        try:
            self.file.unlink(missing_ok=True)
        except OSError as problem:
            print_machine_message(
                self.server.name, f"its state {self.file} is needed no more, but can't be removed: {problem.strerror}"
            )
        if self.journal is not None:
            self.journal.end()
        self.let_go()

    def _state(self, number: int) -> Snapshot:
        """The present state; later calls are in the journal file with this number."""
        self._number = number
        machines = self.site.cluster.machines
        peers = {role: peer.state() for role, peer in self.site.peers.items()}
        name = self.server.name
        links_in = {
            source: (machine.links[name].expected, machine.links[name].trainer)
            for source, machine in machines.items()
            if name in machine.links
        }
        links_out = {target: (link.sequence, link.trainer) for target, link in self.server.links.items()}
        snapshot = take_snapshot(self.server, {}, tables=False)
        further_state: dict[str, Any] = {
            _JOB: self.site.terms.job,
            _RUN: self._run,
            _PEERS: peers,
            _IN: links_in,
            _OUT: links_out,
            _ANNOUNCED: list(self.server.announced),
        }
        if self.foreign_trainers is not None:
            further_state[_CALLS] = self.foreign_trainers.state(), number
        return snapshot._replace(state={**snapshot.state, **further_state})
