"""The displays of `run`, `check` and `launch` with `--live`, which report the machines to a board."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pstranspile.cluster.machines.network import messages_sent
from pstranspile.cluster.machines.server import Server, ServerListener
from pstranspile.cluster.machines.trainer import Trainer, TrainerListener
from pstranspile.cluster.net.status import DisplayedValue, displayed_value
from pstranspile.tools.cli.launch_view import MachineStatus
from pstranspile.tools.cli.live_board import Board, Screen, values_of

if TYPE_CHECKING:
    from pstranspile.cluster.machines.cluster import Cluster
    from pstranspile.cluster.machines.message import Message


class LiveSingle:
    """One machine in this process."""

    def __init__(self, steps: int):
        self._board = Board(steps)
        self._screen = Screen(self._board)

    def step(self, number: int, fetched: Mapping[str, Mapping[str, DisplayedValue]]) -> None:
        """Step `number`, counted from 1, has given these values."""
        for values in fetched.values():
            self._board.update("this machine", {"step": number, "values": values_of(values)})
        self._screen.look()

    def end(self) -> None:
        """The last step is done, or the run has stopped."""
        self._screen.end()


class LiveCluster(ServerListener, TrainerListener):
    """All machines in this process, of one cluster after the other."""

    def __init__(self, steps: int):
        self._board = Board(steps)
        self._screen = Screen(self._board)
        self._cluster: Cluster | None = None

    def watch(self, cluster: Cluster) -> None:
        """From now on the machines of this cluster are shown."""
        self._cluster = cluster
        self._board.begin([machine.name for machine in (*cluster.trainers, *cluster.servers)])
        for server in cluster.servers:
            server.listen(self)
        for trainer in cluster.trainers:
            trainer.listen(self)
        cluster.network.observe(self._message)

    def doing(self, what: str, done_count: int, of: int) -> None:
        """So much of what a command does is done."""
        self._board.set_activity(f"{what} {done_count}/{of}")
        self._look()

    def updated(self, server: Server, update: int) -> None:
        """A server has made an update."""
        self._board.update(server.name, {"step": update + 1})

    def step_done(self, trainer: Trainer, step: int) -> None:
        """A trainer has done a step."""
        results = {name: displayed_value(value) for name, value in trainer.results[-1].values.items()}
        self._board.update(trainer.name, {"step": step + 1, "values": values_of(results)})
        self._look()

    def _message(self, _what: str, _message: Message) -> None:
        self._look()

    def _look(self, *, at_once: bool = False) -> None:
        if not (at_once or self._screen.due()):
            return
        if self._cluster is not None:
            for machine in (*self._cluster.trainers, *self._cluster.servers):
                waiting = machine.waiting()
                missing = dict.fromkeys(waiting.missing_machines, 1.0) if waiting else {}
                waits = {"what": waiting.awaited_event, "missing": missing} if waiting else {}
                self._board.update(machine.name, {"messages": messages_sent([machine]), "waits": waits})
        self._screen.look(at_once=True)

    def end(self) -> None:
        """The command is done, or has stopped."""
        self._look(at_once=True)
        self._screen.end()


class LiveView:
    """The machines of a job as processes that send reports."""

    def __init__(self, members: Mapping[str, MachineStatus], steps: int):
        self._board = Board(steps)
        self._screen = Screen(self._board)
        self.begin(members, steps)

    def begin(self, members: Mapping[str, MachineStatus], steps: int) -> None:
        """The job begins, or begins again, with these machines, and does so many steps in all."""
        self._members = members
        self._board.begin(sorted(members, key=lambda name: (name.startswith("pserver"), len(name), name)), steps)

    def update(self, member: MachineStatus, fields: Mapping[str, Any]) -> None:
        """Takes a report of a machine."""
        self._board.update(member.role, fields)

    def clear(self) -> None:
        """Does nothing: what is printed goes above the board."""

    def look(self) -> None:
        """Draws the board."""
        for member in self._members.values():
            self._board.update(
                member.role, {"state": _state(member), **({"waits": {}} if member.exit_status == 0 else {})}
            )
        self._screen.look()

    def end(self) -> None:
        """The job is over."""
        self.look()
        self._screen.end()


def _state(member: MachineStatus) -> str:
    if member.exit_status is not None:
        return "failed" if member.exit_status else "ended"
    again = f", started {member.starts} times" if member.starts > 1 else ""
    return f"{member.last_reports.get('state', 'starting')}{again}"
