"""What a scenario does to a server, and what it takes to start it again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pstranspile.cluster.machines.faults.scenario import Crash, Event, Scenario
from pstranspile.cluster.machines.faults.snapshot_files import read_snapshot, write_snapshot
from pstranspile.cluster.machines.faults.snapshots import Snapshot, lose_state, restore, take_snapshot
from pstranspile.cluster.machines.message import COMPLETE, Message
from pstranspile.cluster.machines.network import Link, Machine
from pstranspile.cluster.machines.server import Server


class ServerFaults:
    """What the scenario does to a server, and what it needs to be started again.

    `machines` are all of the cluster, by name; `note` records what happens.
    """

    def __init__(
        self, server: Server, scenario: Scenario, machines: Mapping[str, Machine], note: Callable[[str], object]
    ):
        self.server = server
        self._scenario = scenario
        self._machines = machines
        self._note = note
        self._crashes = [e for e in scenario.events if isinstance(e, Crash) and e.machine == server.name]
        self._restarts = any(event.restart is not None for event in self._crashes)
        self._messages: dict[str, deque[Message]] = {}
        """By source: messages that the snapshot does not contain."""
        self._taken: dict[str, int] = {}
        self._snapshot: Snapshot | None = None
        """The last one, if it is kept in memory."""
        self._began = False
        """Whether there is a snapshot."""
        self._in_step = -1
        self._count = 0
        self._ended = ""
        self._waiting: list[Crash] = []
        """The crashes after which the server has not been started again yet."""
        server.turn = self._turn

    def log(self, message: Message) -> None:
        """A message is on its way to the server."""
        if self._restarts:
            self._messages.setdefault(message.source, deque()).append(message)

    def _turn(self) -> None:
        server, inbox = self.server, self.server.inbox
        if server.down:
            inbox.clear()
            return
        if self._restarts and not self._began:
            self._keep()
        while inbox:
            message = inbox.popleft()
            server.network.notify("deliver", message)
            self._taken[message.source] = message.sequence
            before, members = server.updates, len(server.live)
            server.receive(message)
            done = server.updates
            if self._restarts and (
                len(server.live) != members or done // self._scenario.keep > before // self._scenario.keep
            ):
                self._keep()
            if self._crashes and message.kind != COMPLETE and self._due():
                self._crash()
                return

    def _due(self) -> bool:
        server, first = self.server, self._crashes[0]
        if server.updates != self._in_step:
            self._in_step, self._count = server.updates, 0
        self._count += 1
        step = server.updates + 1
        return step > first.step or (step == first.step and self._count >= first.after)

    @property
    def _file(self) -> Path | None:
        """The file that the state is kept in; None if it is kept in memory."""
        folder = self._scenario.folder
        return Path(folder, f"{self.server.name}.kept") if folder else None

    def _keep(self) -> None:
        """Keeps the state, and forgets the messages that it contains. Raises DiagnosticError if it can't be written."""
        snapshot = take_snapshot(self.server, self._taken, tables=self._file is None)
        if self._file is None:
            self._snapshot = snapshot
        else:
            write_snapshot(self._file, self.server.name, snapshot)
        self._began = True
        for source, messages in self._messages.items():
            last = self._taken.get(source, 0)
            while messages and messages[0].sequence <= last:
                messages.popleft()

    def _crash(self) -> None:
        event, server = self._crashes.pop(0), self.server
        server.crash()
        if self._file is not None:
            lose_state(server)
        cause = f"{server.name} crashed in {server.step_label()}"
        self._note(cause)
        if event.restart is None:
            self._ended = f"{cause}, and is not started again"
        else:
            self._waiting.append(event)
            self.server.network.scheduler.later(event.restart, self._restart)

    def _links(self) -> Iterable[Link]:
        """The links that end at the server."""
        for machine in self._machines.values():
            link = machine.links.get(self.server.name)
            if link is not None:
                yield link

    def _restart(self) -> None:
        """Goes back to the snapshot; whoever sent messages since then sends them again.

        Raises DiagnosticError if the state's file can't be read.
        """
        server, network = self.server, self.server.network
        snapshot = self._snapshot if self._file is None else read_snapshot(self._file, self.server.name)
        assert snapshot is not None
        restore(server, snapshot)
        server.down = False
        self._taken = dict(snapshot.taken)
        self._in_step = -1
        server.inbox.clear()
        for link in self._links():
            self.server.network.scheduler.forget(link)
            link.expected = snapshot.taken.get(link.source.name, 0) + 1
            link.held = None
        self._note(f"{server.name} is started again, in {server.step_label()}")
        self._waiting.clear()
        server.restored()
        for link in self._links():
            for message in list(self._messages.get(link.source.name, ())):
                network.carry(link, message, attempt=1)

    def unreached(self) -> list[Event]:
        """What has not happened to the server."""
        return [*self._crashes, *self._waiting]

    def unresolved(self) -> list[str]:
        """Why the server will never come."""
        return [self._ended] if self._ended else []
