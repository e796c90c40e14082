"""Fault injection: carries out the faults of a scenario on a cluster (docs/reference/faults.md)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pstranspile.cluster.machines.communicator import Companion
from pstranspile.cluster.machines.message import COMPLETE, Message, step_label
from pstranspile.cluster.machines.network import RETRY_AFTER, Link, Machine, Network, TurnHook
from pstranspile.cluster.machines.rings import GONE, Ring
from pstranspile.cluster.machines.scenario import (
    Crash,
    Departure,
    Event,
    LateStart,
    Partition,
    Rejoin,
    Scenario,
    Slowdown,
    line_of,
    require_sayable,
)
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.snapshots import (
    Snapshot,
    lose_state,
    read_snapshot,
    restore,
    take_snapshot,
    write_snapshot,
)
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.ir.argument_checks import expect
from pstranspile.ir.diagnostics import DiagnosticError, error, name_list
from pstranspile.runtime.run.feeds import near

# The faults of a server, and its restart.


class ServerFaults(TurnHook):
    """The faults of a server, and the messages and state that its restart needs.

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
        """Messages that the snapshot does not contain, by source machine."""
        self._last_sequences: dict[str, int] = {}
        self._snapshot: Snapshot | None = None
        """The last snapshot, if it is kept in memory."""
        self._began = False
        """Whether there is a snapshot."""
        self._in_step = -1
        self._count = 0
        self._end_reason = ""
        self._pending_restarts: list[Crash] = []
        """The crashes after which the server has not been restarted yet."""
        server.hook(self)

    def log(self, message: Message) -> None:
        """Records a message that is on its way to the server."""
        if self._restarts:
            self._messages.setdefault(message.source, deque()).append(message)

    def take(self, machine: Machine, turn: Callable[[], object]) -> None:
        """Makes the server take its messages one by one in place of a turn, as it may crash after each."""
        server, inbox = self.server, self.server.inbox
        if server.down:
            inbox.clear()
            return
        if self._restarts and not self._began:
            self._keep()
        while inbox:
            message = inbox.popleft()
            server.network.notify("deliver", message)
            self._last_sequences[message.source] = message.sequence
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
        """The file of the saved state; None if the state is kept in memory."""
        folder = self._scenario.folder
        return Path(folder, f"{self.server.name}.kept") if folder else None

    def _keep(self) -> None:
        """Saves the state, and drops the recorded messages that it contains. Raises DiagnosticError if it can't be
        written.
        """
        snapshot = take_snapshot(self.server, self._last_sequences, tables=self._file is None)
        if self._file is None:
            self._snapshot = snapshot
        else:
            write_snapshot(self._file, self.server.name, snapshot)
        self._began = True
        for source, messages in self._messages.items():
            last = self._last_sequences.get(source, 0)
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
            self._end_reason = f"{cause}, and is not started again"
        else:
            self._pending_restarts.append(event)
            self.server.network.scheduler.later(event.restart, self._restart)

    def _links(self) -> Iterable[Link]:
        """The links that end at the server."""
        for machine in self._machines.values():
            link = machine.links.get(self.server.name)
            if link is not None:
                yield link

    def _restart(self) -> None:
        """Restores the last snapshot; the messages that the server took after it are sent again.

        Raises DiagnosticError if the state's file can't be read.
        """
        server, network = self.server, self.server.network
        snapshot = self._snapshot if self._file is None else read_snapshot(self._file, self.server.name)
        assert snapshot is not None
        restore(server, snapshot)
        server.start_again()
        self._last_sequences = dict(snapshot.received_numbers)
        self._in_step = -1
        for link in self._links():
            self.server.network.scheduler.forget(link)
            link.expect(snapshot.received_numbers.get(link.source.name, 0) + 1)
        self._note(f"{server.name} is started again, in {server.step_label()}")
        self._pending_restarts.clear()
        server.finish_restore()
        for link in self._links():
            for message in list(self._messages.get(link.source.name, ())):
                network.carry(link, message, attempt=1)

    def unreached_faults(self) -> list[Event]:
        """The faults of the server that have not happened."""
        return [*self._crashes, *self._pending_restarts]

    def unrecoverable_faults(self) -> list[str]:
        """Reasons why the server will never respond."""
        return [self._end_reason] if self._end_reason else []


# What a scenario does to a trainer.


class Machines(Protocol):
    """The parts of a cluster that faults need; `finishing`: all trainers are to leave."""

    network: Network
    machines: dict[str, Machine]
    trainers: list[Trainer]
    servers: list[Server]
    rings: dict[str, Ring]
    finishing: bool


class Scene(Protocol):
    """What the faults of one trainer need to know of the whole cluster and its faults."""

    cluster: Machines
    scenario: Scenario

    def note(self, text: str) -> None:
        """Records that something has happened at this tick."""
        ...

    def step_begun(self, trainer: Trainer) -> None:
        """Called when a trainer begins a step."""
        ...

    def trainer_gone(self) -> None:
        """Called when a trainer has left or crashed."""
        ...

    def next_step(self) -> int:
        """The first step that no server has begun to serve."""
        ...


class TrainerFaults(TurnHook):
    """The faults of a trainer, carried out around its turns."""

    def __init__(self, scene: Scene, trainer: Trainer):
        self._scene = scene
        self._network = scene.cluster.network
        self.trainer = trainer
        events = [e for e in scene.scenario.events if not isinstance(e, Partition) and e.machine == trainer.name]
        self._late_ticks = sum(event.ticks for event in events if isinstance(event, LateStart))
        self._slow_ticks = sum(event.ticks for event in events if isinstance(event, Slowdown))
        self._crashes = [event for event in events if isinstance(event, Crash)]
        self._leave_events = [event for event in events if isinstance(event, Departure)]
        self._pending_delays = {
            -1: [e for e in events if isinstance(e, LateStart)],
            0: [e for e in events if isinstance(e, Slowdown)],
        }
        """The delays of the trainer that have not happened yet: those before its first step (-1), and
        those before any step (0).
        """
        self._in_vain: list[Event] = []
        """Crashes of a trainer that had left."""
        self._paused_steps: set[int] = set()
        self._in_step = -1
        self._count = 0
        self._unnoticed_report = ""
        self._stopped_in = -1
        self._open_links: list[Link] | None = None
        self._feed: Any = None
        """The feed of the trainer before it left."""
        self._results = 0
        self._companion = trainer.communicator if isinstance(trainer.communicator, Companion) else None
        """The communicator's machine, which is part of the trainer's process."""
        self._rings = [side for side in scene.cluster.rings.values() if side.index == trainer.index]
        """The trainer's sides of rings, which are part of its process, too."""
        trainer.hook(self)

    # the life of the trainer

    def take(self, machine: Machine, turn: Callable[[], object]) -> None:
        """Makes the trainer take its turn, unless it is late or crashes first."""
        trainer = self.trainer
        if not trainer.down and trainer.between_steps and not self._may_begin():
            return
        turn()
        if trainer.has_left:
            self._scene.trainer_gone()
        if trainer.down:  # the rest of the turn in which it crashed
            del trainer.results[self._results :]

    def _may_begin(self) -> bool:
        """Whether the trainer may begin its next step or program now."""
        trainer, step = self.trainer, self.trainer.step
        pause = self._late_ticks if step == -1 else self._slow_ticks if 0 <= step < trainer.limit else 0
        if pause and step not in self._paused_steps:
            self._paused_steps.add(step)
            self._pending_delays.pop(min(step, 0), None)
            scheduler = self._network.scheduler
            scheduler.later(pause, lambda: scheduler.wake(trainer))
            return False
        if 0 <= step < trainer.limit:
            if self._due(0):
                self._crash()
                return False
            if self._leave_events and step >= self._leave_events[0].step - 1 and not self._scene.cluster.finishing:
                self._leave_events.pop(0)
                self._feed = trainer.feed_from(_no_more)
                self._scene.note(f"{trainer.name} leaves before {step_label(step)}")
            elif not trainer.has_left and trainer.feed is not _no_more:
                self._scene.step_begun(trainer)
        return True

    def _due(self, sent: int) -> bool:
        """Whether the next crash is due when the trainer has sent `sent` messages of the step."""
        if not self._crashes or self._scene.cluster.finishing:  # no step follows the last one, so no crash is due
            return False
        first, step = self._crashes[0], self.trainer.step + 1
        return step > first.step or (step == first.step and sent >= first.after)

    def count(self) -> None:
        """Counts a message that the trainer has sent, and crashes the trainer if a crash is due."""
        trainer = self.trainer
        if trainer.down or trainer.step < 0:
            return
        if trainer.step != self._in_step:
            self._in_step, self._count = trainer.step, 0
        self._count += 1
        if self._due(self._count):
            self._crash()

    def _crash(self) -> None:
        trainer, event = self.trainer, self._crashes.pop(0)
        if trainer.has_left:
            self._in_vain.append(event)
            return
        self._stopped_in, self._results = trainer.step, len(trainer.results)
        for machine in self._machines():
            machine.crash()
            self._network.crashed_machines.add(machine.name)
        report = f"{trainer.name} crashed in {step_label(trainer.step)}"
        self._scene.note(report)
        self._open_links = self._links()
        if event.notice is None:
            self._unnoticed_report = f"{report}, and nobody noticed"
        else:
            self._network.scheduler.later(event.notice, self._notice)

    def _machines(self) -> list[Machine]:
        """The machines of the trainer's process."""
        companions = [] if self._companion is None else [self._companion]
        return [self.trainer, *companions, *self._rings]

    def _links(self) -> list[Link]:
        """The links on which servers learn that the trainer has ended: those of its last messages."""
        if self._companion is None:
            return [link for link in self.trainer.servers if link.target not in self._rings]
        return [self._companion.link(link.target) for link in self.trainer.servers]

    def _notice(self) -> None:
        """Notifies the other machines of the crash."""
        self._send_complete()
        self._scene.trainer_gone()

    def _send_complete(self) -> None:
        links, self._open_links = self._open_links, None
        for link in links or ():
            link.post(COMPLETE, self.trainer.step)
        for side in self._rings if links is not None else ():
            side.send_complete(self.trainer.step, GONE)
        self._unnoticed_report = ""

    def rejoin(self, other: Trainer | None) -> None:
        """Restarts the trainer. `other` is a trainer that has just come to the step before the one in which this
        trainer rejoins; None if there is no other trainer.
        """
        scene, trainer, cluster = self._scene, self.trainer, self._scene.cluster
        self._send_complete()
        if self._feed is not None:
            trainer.feed_from(self._feed)
            self._feed = None
        self._network.crashed_machines.difference_update(machine.name for machine in self._machines())
        if self._companion is not None:
            self._companion.restart()
        for side in self._rings:
            if side.down:
                side.come_back()
        if any(server.mode == 0 for server in cluster.servers):
            step = scene.next_step()
        elif cluster.servers:
            step = self.first_unbegun_step()
        else:
            assert other is not None
            step = other.step
        trainer.restart(step)
        if other is not None and not cluster.servers:
            trainer.take_over(other)
        for machine in (*cluster.servers, *cluster.rings.values()):
            machine.announce(trainer.index, step)
        scene.note(f"{trainer.name} rejoins, from {step_label(step)}")
        self._network.scheduler.wake(trainer)

    def first_unbegun_step(self) -> int:
        """The first step that the trainer has not begun."""
        return self._stopped_in + 1 if self.trainer.down else self.trainer.step

    def unreached_faults(self) -> list[Event]:
        """The faults of the trainer that have not happened."""
        waits = (event for events in self._pending_delays.values() for event in events)
        return [*self._crashes, *self._in_vain, *self._leave_events, *waits]

    def unrecoverable_faults(self) -> list[str]:
        """Reasons why the trainer will never respond."""
        return [self._unnoticed_report] if self._unnoticed_report else []


def _no_more(_step: int) -> None:
    return None


# Fault injection: carries out the faults of a scenario on a cluster (docs/reference/faults.md).
#
# A machine that crashes takes and sends nothing any more; what it had sent still arrives. The others learn of it at the
# end of what it sent, as of a broken connection: after the crash's `notice`, from a message COMPLETE on every link.
#
# A restarted server goes back to its saved state, and takes all messages that came later again. Its answers have their
# original numbers, so that nobody takes one twice. A restarted trainer runs its start-up program, and takes part from a
# step that no server has begun.


class Injector:
    """Carries out a scenario on a cluster that has not started yet. `log` records what happened, in order.

    Raises DiagnosticError (`cluster-scenario`) for machines that the cluster does not have.
    """

    def __init__(self, cluster: Machines, scenario: Scenario):
        expect(scenario, Scenario, "faults")
        require_sayable(scenario)
        self.cluster = cluster
        self.scenario = scenario
        self.scheduler = cluster.network.scheduler
        self.network = cluster.network
        self._random = random.Random(scenario.seed)
        self.log: list[tuple[int, str]] = []
        """The events so far, each as tick and sentence."""
        self._separated_pairs: dict[tuple[str, str], int] = {}
        """Pairs of machines that are separated for ever, with the tick at which a message first failed."""
        self._chances: set[str] = set()
        """The random faults among `delay`, `drop` and `duplicate` that have affected a message so far."""
        self._effective_partitions: set[int] = set()
        """Indices of the partitions that have delayed at least one message."""
        self._require()
        self._partitions = [event for event in scenario.events if isinstance(event, Partition)]
        self.trainers = {trainer.name: TrainerFaults(self, trainer) for trainer in cluster.trainers}
        self.servers = {
            server.name: ServerFaults(server, scenario, cluster.machines, self.note) for server in cluster.servers
        }
        self._rejoin_events = [event for event in scenario.events if isinstance(event, Rejoin)]
        self.network.fail(self)

    def _require(self) -> None:
        """Raises DiagnosticError for faults of machines that do not exist, or that can't have these faults."""
        trainers = [trainer.name for trainer in self.cluster.trainers]
        machines = [*trainers, *(server.name for server in self.cluster.servers)]
        result: list[str] = []
        for event in self.scenario.events:
            if isinstance(event, Partition):
                names, known = (*event.one_side, *event.other_side), machines
            else:
                names, known = (event.machine,), machines if isinstance(event, Crash) else trainers
            for name in names:
                if name not in known:
                    what = "trainer" if known is trainers else "machine"
                    result.append(f"the cluster has no {what} {name}{near(name, known)}; there are: {name_list(known)}")
            if isinstance(event, Departure | Crash | Rejoin) and event.step < 1:
                result.append(f"there is no step {event.step}: steps are numbered from 1")
            if isinstance(event, Crash) and event.restart is not None and event.machine in trainers:
                result.append(f"{event.machine} is a trainer: use `rejoin`, not `restart`")
        if result:
            raise DiagnosticError([error("cluster-scenario", message) for message in dict.fromkeys(result)])

    # messages

    def __call__(self, message: Message, attempt: int, now: int) -> Sequence[int] | None:
        """The delays of the copies of a message that arrive; an empty list to lose it, None if it never arrives."""
        source, target = process_of(message.source), process_of(message.target)
        if not attempt:
            server = self.servers.get(target)
            if server is not None:
                server.log(message)
        wait = 0
        for place, partition in enumerate(self._partitions):
            if now >= partition.since and _separates(partition, source, target):
                if partition.until is None or now < partition.until:
                    self._effective_partitions.add(place)
                if partition.until is None:
                    self._separated_pairs.setdefault((min(source, target), max(source, target)), now)
                    return None
                wait = max(wait, partition.until - now)
        if not attempt and source in self.trainers:
            self.trainers[source].count()
        scenario, draw = self.scenario, self._random.random
        if scenario.drop and draw() < scenario.drop:
            self._chances.add("drop")
            return () if not wait else (wait + RETRY_AFTER,)
        if scenario.delay and draw() < scenario.delay:
            self._chances.add("delay")
            wait += self._random.randint(*scenario.ticks)
        if scenario.duplicate and draw() < scenario.duplicate:
            self._chances.add("duplicate")
            return wait, wait + self._random.randint(1, RETRY_AFTER)
        return (wait,)

    def note(self, text: str) -> None:
        """Records that something has happened at this tick."""
        self.log.append((self.scheduler.now, text))

    def unrecoverable_faults(self) -> list[str]:
        """Sentences about faults from which the cluster can't recover, for the report of a cluster that is stuck."""
        result = [
            f"{one} and {other} can't reach each other (since tick {tick})"
            for (one, other), tick in self._separated_pairs.items()
        ]
        for faulty in (*self.trainers.values(), *self.servers.values()):
            result += faulty.unrecoverable_faults()
        return result

    def missing(self) -> list[str]:
        """The machines that are down for good, and those that a message has failed to reach."""
        result = [
            name for name, faulty in (*self.trainers.items(), *self.servers.items()) if faulty.unrecoverable_faults()
        ]
        return [*result, *(name for pair in self._separated_pairs for name in pair)]

    def unreached_lines(self) -> list[str]:
        """The lines of the scenario that have had no effect so far."""
        scenario = self.scenario
        lines = [
            scenario.chance_line(name)
            for name in ("delay", "drop", "duplicate")
            if getattr(scenario, name) and name not in self._chances
        ]
        faulty = (*self.trainers.values(), *self.servers.values())
        waiting = [id(event) for one in faulty for event in one.unreached_faults()]
        waiting += [id(event) for event in self._rejoin_events]
        waiting += [
            id(event) for place, event in enumerate(self._partitions) if place not in self._effective_partitions
        ]
        return [*lines, *(line_of(event) for event in scenario.events if id(event) in waiting)]

    # rejoining

    def step_begun(self, trainer: Trainer) -> None:
        """Called when a trainer begins a step: restarts the trainers that are to rejoin by the next step."""
        if self.cluster.finishing:
            return
        ahead = 1 if self.cluster.servers else 0
        for event in [e for e in self._rejoin_events if trainer.step + 1 + ahead >= e.step]:
            faulty = self.trainers[event.machine]
            again = (
                not self.cluster.servers and trainer.step < faulty.first_unbegun_step()
            )  # its messages of this step may count
            if faulty.trainer.gone and faulty.trainer is not trainer and not again:
                self._rejoin_events.remove(event)
                faulty.rejoin(trainer)

    def trainer_gone(self) -> None:
        """Called when a trainer has left or crashed: if it was the last one, restarts the first trainer that is to
        rejoin.

        Without servers no other trainer is left then whose parameters it could take over.
        """
        cluster = self.cluster
        if cluster.finishing or not cluster.servers or not all(trainer.gone for trainer in cluster.trainers):
            return
        for event in self._rejoin_events:
            self._rejoin_events.remove(event)
            self.trainers[event.machine].rejoin(None)
            return

    def next_step(self) -> int:
        """The first step that no server has begun to serve. If no trainer runs, the first step that no trainer has
        begun, as messages of the last one may still be under way.
        """
        done = max(server.updates for server in self.cluster.servers)
        all_gone = all(trainer.gone for trainer in self.cluster.trainers)
        return max(done, *(faulty.first_unbegun_step() for faulty in self.trainers.values())) if all_gone else done + 1


def process_of(machine: str) -> str:
    """The process that a machine of the simulation belongs to: a communicator is part of its trainer's."""
    return machine.partition("/")[0]


def _separates(partition: Partition, source: str, target: str) -> bool:
    one, other = partition.one_side, partition.other_side
    return (source in one and target in other) or (source in other and target in one)
