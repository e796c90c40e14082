"""Things that go wrong: makes happen to a cluster what a scenario says (docs/reference/faults.md).

A machine that crashes takes and sends nothing any more; what it had sent still arrives. The others learn of it at the
end of what it sent, as of a broken connection: after the crash's `notice`, from a message COMPLETE on every link.

A server that is started again goes back to its kept state, and takes again all messages that came after. Its answers
bear the numbers that they had, so nobody takes one twice. A trainer that is started again runs its start-up program,
and takes part from a step that no server has come to yet.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.expect import expect
from pstranspile.run.cluster import codes
from pstranspile.run.cluster.collective import Ring
from pstranspile.run.cluster.message import COMPLETE, Message, step_told
from pstranspile.run.cluster.network import RETRY_AFTER, Link, Machine, Network
from pstranspile.run.cluster.report import listed
from pstranspile.run.cluster.scenario import Crash, Late, Leave, Partition, Rejoin, Scenario, Slow
from pstranspile.run.cluster.server import Server
from pstranspile.run.cluster.server_faults import ServerFaults
from pstranspile.run.cluster.trainer import Trainer
from pstranspile.run.feeds import near


class Machines(Protocol):
    """What faults need of a cluster; `finishing` says that all trainers have been told to leave."""

    network: Network
    machines: dict[str, Machine]
    trainers: list[Trainer]
    servers: list[Server]
    rings: dict[str, Ring]
    finishing: bool


class Injector:
    """Carries a scenario out on a cluster that has not started yet. `told` says what happened, in order.

    Raises DiagnosticError (`cluster-scenario`) for machines that the cluster does not have.
    """

    def __init__(self, cluster: Machines, scenario: Scenario):
        expect(scenario, Scenario, "faults")
        self.cluster = cluster
        self.scenario = scenario
        self.scheduler = cluster.network.scheduler
        self.network = cluster.network
        self._random = random.Random(scenario.seed)
        self.told: list[tuple[int, str]] = []
        """What happened: tick and sentence."""
        self._cut: dict[tuple[str, str], int] = {}
        """Pairs of machines that can't reach each other for good, and when it was found out."""
        self._require()
        self._partitions = [event for event in scenario.events if isinstance(event, Partition)]
        self.trainers = {trainer.name: _TrainerFaults(self, trainer) for trainer in cluster.trainers}
        self.servers = {
            server.name: ServerFaults(server, scenario, cluster.machines, self.note) for server in cluster.servers
        }
        self._rejoins = [event for event in scenario.events if isinstance(event, Rejoin)]
        self.network.faults = self

    def _require(self) -> None:
        """Raises DiagnosticError for machines that there are not, or that can't do what the scenario says."""
        trainers = [trainer.name for trainer in self.cluster.trainers]
        machines = [*trainers, *(server.name for server in self.cluster.servers)]
        found: list[str] = []
        for event in self.scenario.events:
            if isinstance(event, Partition):
                names, known = (*event.one, *event.other), machines
            else:
                names, known = (event.machine,), machines if isinstance(event, Crash) else trainers
            for name in names:
                if name not in known:
                    what = "trainer" if known is trainers else "machine"
                    found.append(f"the cluster has no {what} {name}{near(name, known)}; there are: {listed(known)}")
            if isinstance(event, Leave | Crash | Rejoin) and event.step < 1:
                found.append(f"there is no step {event.step}: steps are numbered from 1")
            if isinstance(event, Crash) and event.restart is not None and event.machine in trainers:
                found.append(f"{event.machine} is a trainer: use `rejoin`, not `restart`")
        if found:
            raise DiagnosticError([error(codes.SCENARIO, message) for message in dict.fromkeys(found)])

    # messages

    def __call__(self, message: Message, attempt: int, now: int) -> Sequence[int] | None:
        """What becomes of a message: delays of the copies that arrive, none to lose it, None if it never arrives."""
        source, target = process_of(message.source), process_of(message.target)
        if not attempt:
            server = self.servers.get(target)
            if server is not None:
                server.log(message)
        wait = 0
        for partition in self._partitions:
            if now >= partition.since and _parted(partition, source, target):
                if partition.until is None:
                    self._cut.setdefault((min(source, target), max(source, target)), now)
                    return None
                wait = max(wait, partition.until - now)
        if not attempt and source in self.trainers:
            self.trainers[source].count()
        scenario, draw = self.scenario, self._random.random
        if scenario.drop and draw() < scenario.drop:
            return () if not wait else (wait + RETRY_AFTER,)
        if scenario.delay and draw() < scenario.delay:
            wait += self._random.randint(*scenario.ticks)
        if scenario.duplicate and draw() < scenario.duplicate:
            return wait, wait + self._random.randint(1, RETRY_AFTER)
        return (wait,)

    def note(self, text: str) -> None:
        """Keeps what happened now."""
        self.told.append((self.scheduler.now, text))

    def unresolved(self) -> list[str]:
        """What happened that the cluster can't get over, for the report of a cluster that is stuck."""
        found = [
            f"{one} and {other} can't reach each other (since tick {tick})" for (one, other), tick in self._cut.items()
        ]
        for fate in (*self.trainers.values(), *self.servers.values()):
            found += fate.unresolved()
        return found

    def missing(self) -> list[str]:
        """The machines that are down for good, and those that can't be reached, as far as anybody tried."""
        found = [name for name, fate in (*self.trainers.items(), *self.servers.items()) if fate.unresolved()]
        return [*found, *(name for pair in self._cut for name in pair)]

    # coming back

    def begins(self, trainer: Trainer) -> None:
        """A trainer begins a step: those that are to rejoin by the next one are started again."""
        if self.cluster.finishing:
            return
        ahead = 1 if self.cluster.servers else 0
        for event in [e for e in self._rejoins if trainer.step + 1 + ahead >= e.step]:
            fate = self.trainers[event.machine]
            if fate.trainer.gone and fate.trainer is not trainer:
                self._rejoins.remove(event)
                fate.rejoin(trainer)

    def ends(self) -> None:
        """A trainer has gone: if it was the last one, the first that is to rejoin is started again now.

        Without servers there is nobody then whose parameters it could take over.
        """
        cluster = self.cluster
        if cluster.finishing or not cluster.servers or not all(trainer.gone for trainer in cluster.trainers):
            return
        for event in self._rejoins:
            self._rejoins.remove(event)
            self.trainers[event.machine].rejoin(None)
            return

    def next_step(self) -> int:
        """The first step that no server has begun to serve. If no trainer is there, the first that none has begun:
        what they sent last may still be under way.
        """
        done = max(server.updates for server in self.cluster.servers)
        alone = all(trainer.gone for trainer in self.cluster.trainers)
        return max(done, *(fate.after() for fate in self.trainers.values())) if alone else done + 1


def process_of(machine: str) -> str:
    """The process that a machine of the simulation belongs to: a communicator is part of its trainer's."""
    return machine.partition("/")[0]


def _parted(partition: Partition, source: str, target: str) -> bool:
    one, other = partition.one, partition.other
    return (source in one and target in other) or (source in other and target in one)


class _TrainerFaults:
    """What the scenario does to a trainer."""

    def __init__(self, injector: Injector, trainer: Trainer):
        self.injector = injector
        self.trainer = trainer
        events = [e for e in injector.scenario.events if not isinstance(e, Partition) and e.machine == trainer.name]
        self._late = sum(event.ticks for event in events if isinstance(event, Late))
        self._slow = sum(event.ticks for event in events if isinstance(event, Slow))
        self._crashes = [event for event in events if isinstance(event, Crash)]
        self._leaves = [event.step - 1 for event in events if isinstance(event, Leave)]
        self._paused: set[int] = set()
        self._in_step = -1
        self._count = 0
        self._unnoticed = ""
        self._stopped_in = -1
        self._to_tell: list[Link] | None = None
        self._feed: Any = None
        """What the trainer was fed before it left."""
        self._results = 0
        self._beside = injector.cluster.machines.get(f"{trainer.name}/communicator")
        """The machine beside the trainer, which is part of its process."""
        self._go_on = trainer.run
        trainer.run = self._run
        trainer.receive_carefully()
        beside: Any = self._beside
        if beside is not None:
            go_on = beside.run
            beside.run = lambda: None if beside.down else go_on()
            beside.receive_carefully()

    # the life of the trainer

    def _run(self) -> None:
        trainer = self.trainer
        if trainer.down:
            trainer.inbox.clear()
            return
        if trainer.between_steps and not self._may_begin():
            return
        self._go_on()
        if trainer.left:
            self.injector.ends()
        if trainer.down:  # what it had not finished when it crashed
            for kept in (trainer.results, trainer.ran, trainer.did):
                del kept[self._results :]

    def _may_begin(self) -> bool:
        """Whether the trainer goes on now with what comes next."""
        trainer, step = self.trainer, self.trainer.step
        pause = self._late if step == -1 else self._slow if 0 <= step < trainer.limit else 0
        if pause and step not in self._paused:
            self._paused.add(step)
            scheduler = self.injector.scheduler
            scheduler.later(pause, lambda: scheduler.wake(trainer))
            return False
        if 0 <= step < trainer.limit:
            if self._due(0):
                self._crash()
                return False
            if self._leaves and step >= self._leaves[0] and not self.injector.cluster.finishing:
                self._leaves.pop(0)
                self._feed = trainer.feed
                trainer.feed = _no_more
                self.injector.note(f"{trainer.name} leaves before {step_told(step)}")
            elif not trainer.left and trainer.feed is not _no_more:
                self.injector.begins(trainer)
        return True

    def _due(self, sent: int) -> bool:
        """Whether the next crash is to happen when so many messages of the step have been sent."""
        if not self._crashes:
            return False
        first, step = self._crashes[0], self.trainer.step + 1
        return step > first.step or (step == first.step and sent >= first.after)

    def count(self) -> None:
        """The trainer has sent one more message."""
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
        if trainer.left:
            return
        injector = self.injector
        trainer.crash()
        self._stopped_in, self._results = trainer.step, len(trainer.results)
        names = [trainer.name]
        if self._beside is not None:
            self._beside.down = True
            self._beside.inbox.clear()
            names.append(self._beside.name)
        injector.network.dead.update(names)
        told = f"{trainer.name} crashed in {step_told(trainer.step)}"
        injector.note(told)
        self._to_tell = self._links()
        if event.notice is None:
            self._unnoticed = f"{told}, and nobody noticed"
        else:
            injector.scheduler.later(event.notice, self._notice)

    def _links(self) -> list[Link]:
        """The links on which the others learn of the end: those that the last messages came on."""
        if self._beside is None:
            return list(self.trainer.servers)
        beside = self._beside
        network = self.injector.network
        return [network.link(beside, link.target, self.trainer.index) for link in self.trainer.servers]

    def _notice(self) -> None:
        """The others learn of the crash."""
        self._tell()
        self.injector.ends()

    def _tell(self) -> None:
        links, self._to_tell = self._to_tell, None
        for link in links or ():
            link.post(COMPLETE, self.trainer.step)
        self._unnoticed = ""

    def rejoin(self, other: Trainer | None) -> None:
        """Starts the trainer again; `other` has just come to the step before the one to take part in, None if there is
        no other trainer.
        """
        injector, trainer = self.injector, self.trainer
        cluster = injector.cluster
        self._tell()
        if self._feed is not None:
            trainer.feed, self._feed = self._feed, None
        injector.network.dead.discard(trainer.name)
        beside: Any = self._beside
        if beside is not None:
            injector.network.dead.discard(beside.name)
            beside.down = False
            beside.restart()
        if any(server.mode == 0 for server in cluster.servers):
            step = injector.next_step()
        elif cluster.servers:
            step = self.after()
        else:
            assert other is not None
            step = other.step
        trainer.restart(step)
        if other is not None and not cluster.servers:
            trainer.take_over(other)
        for machine in (*cluster.servers, *cluster.rings.values()):
            machine.announce(trainer.index, step)
        injector.note(f"{trainer.name} rejoins, from {step_told(step)}")
        injector.scheduler.wake(trainer)

    def after(self) -> int:
        """The first step that the trainer has not begun."""
        return self._stopped_in + 1 if self.trainer.down else self.trainer.step

    def unresolved(self) -> list[str]:
        """Why the trainer will never come."""
        return [self._unnoticed] if self._unnoticed else []


def _no_more(_step: int) -> None:
    return None
