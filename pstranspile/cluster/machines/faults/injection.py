"""Fault injection: carries out the faults of a scenario on a cluster (docs/reference/faults.md).

A machine that crashes takes and sends nothing any more; what it had sent still arrives. The others learn of it at the
end of what it sent, as of a broken connection: after the crash's `notice`, from a message COMPLETE on every link.

A server that is started again goes back to its kept state, and takes again all messages that came after. Its answers
bear the numbers that they had, so nobody takes one twice. A trainer that is started again runs its start-up program,
and takes part from a step that no server has come to yet.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pstranspile.cluster.machines.faults.scenario import Crash, Leave, Partition, Rejoin, Scenario, line_of
from pstranspile.cluster.machines.faults.servers import ServerFaults
from pstranspile.cluster.machines.faults.trainers import Machines, TrainerFaults
from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.network import RETRY_AFTER
from pstranspile.cluster.machines.report import listed
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.expect import expect
from pstranspile.runtime.run.feeds import near


class Injector:
    """Carries out a scenario on a cluster that has not started yet. `log` records what happened, in order.

    Raises DiagnosticError (`cluster-scenario`) for machines that the cluster does not have.
    """

    def __init__(self, cluster: Machines, scenario: Scenario):
        expect(scenario, Scenario, "faults")
        self.cluster = cluster
        self.scenario = scenario
        self.scheduler = cluster.network.scheduler
        self.network = cluster.network
        self._random = random.Random(scenario.seed)
        self.log: list[tuple[int, str]] = []
        """What happened: tick and sentence."""
        self._cut: dict[tuple[str, str], int] = {}
        """Pairs of machines that can't reach each other for good, and when it was found out."""
        self._chances: set[str] = set()
        """Which of `delay`, `drop` and `duplicate` have come to a message."""
        self._parting: set[int] = set()
        """Which partitions have come between machines that had something to say to each other."""
        self._require()
        self._partitions = [event for event in scenario.events if isinstance(event, Partition)]
        self.trainers = {trainer.name: TrainerFaults(self, trainer) for trainer in cluster.trainers}
        self.servers = {
            server.name: ServerFaults(server, scenario, cluster.machines, self.note) for server in cluster.servers
        }
        self._rejoins = [event for event in scenario.events if isinstance(event, Rejoin)]
        self.network.fail(self)

    def _require(self) -> None:
        """Raises DiagnosticError for machines that do not exist, or that can't do what the scenario demands."""
        trainers = [trainer.name for trainer in self.cluster.trainers]
        machines = [*trainers, *(server.name for server in self.cluster.servers)]
        result: list[str] = []
        for event in self.scenario.events:
            if isinstance(event, Partition):
                names, known = (*event.one, *event.other), machines
            else:
                names, known = (event.machine,), machines if isinstance(event, Crash) else trainers
            for name in names:
                if name not in known:
                    what = "trainer" if known is trainers else "machine"
                    result.append(f"the cluster has no {what} {name}{near(name, known)}; there are: {listed(known)}")
            if isinstance(event, Leave | Crash | Rejoin) and event.step < 1:
                result.append(f"there is no step {event.step}: steps are numbered from 1")
            if isinstance(event, Crash) and event.restart is not None and event.machine in trainers:
                result.append(f"{event.machine} is a trainer: use `rejoin`, not `restart`")
        if result:
            raise DiagnosticError([error("cluster-scenario", message) for message in dict.fromkeys(result)])

    # messages

    def __call__(self, message: Message, attempt: int, now: int) -> Sequence[int] | None:
        """What becomes of a message: delays of the copies that arrive, none to lose it, None if it never arrives."""
        source, target = process_of(message.source), process_of(message.target)
        if not attempt:
            server = self.servers.get(target)
            if server is not None:
                server.log(message)
        wait = 0
        for place, partition in enumerate(self._partitions):
            if now >= partition.since and _parted(partition, source, target):
                if partition.until is None or now < partition.until:
                    self._parting.add(place)
                if partition.until is None:
                    self._cut.setdefault((min(source, target), max(source, target)), now)
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
        """Keeps what happened now."""
        self.log.append((self.scheduler.now, text))

    def unresolved(self) -> list[str]:
        """What happened that the cluster can't get over, for the report of a cluster that is stuck."""
        result = [
            f"{one} and {other} can't reach each other (since tick {tick})" for (one, other), tick in self._cut.items()
        ]
        for faulty in (*self.trainers.values(), *self.servers.values()):
            result += faulty.unresolved()
        return result

    def missing(self) -> list[str]:
        """The machines that are down for good, and those that can't be reached, as far as anybody tried."""
        result = [name for name, faulty in (*self.trainers.items(), *self.servers.items()) if faulty.unresolved()]
        return [*result, *(name for pair in self._cut for name in pair)]

    def unreached(self) -> list[str]:
        """The lines of the scenario that nothing has come of by now: the run ended before, or it was never so."""
        scenario = self.scenario
        lines = [
            scenario.chance_line(name)
            for name in ("delay", "drop", "duplicate")
            if getattr(scenario, name) and name not in self._chances
        ]
        faulty = (*self.trainers.values(), *self.servers.values())
        waiting = [id(event) for one in faulty for event in one.unreached()]
        waiting += [id(event) for event in self._rejoins]
        waiting += [id(event) for place, event in enumerate(self._partitions) if place not in self._parting]
        return [*lines, *(line_of(event) for event in scenario.events if id(event) in waiting)]

    # coming back

    def begins(self, trainer: Trainer) -> None:
        """A trainer begins a step: those that are to rejoin by the next one are started again."""
        if self.cluster.finishing:
            return
        ahead = 1 if self.cluster.servers else 0
        for event in [e for e in self._rejoins if trainer.step + 1 + ahead >= e.step]:
            faulty = self.trainers[event.machine]
            again = (
                not self.cluster.servers and trainer.step < faulty.after()
            )  # what it has sent of this step may count
            if faulty.trainer.gone and faulty.trainer is not trainer and not again:
                self._rejoins.remove(event)
                faulty.rejoin(trainer)

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
        """The first step that no server has begun to serve. If no trainer runs, the first step that none has begun:
        messages of the last one may still be under way.
        """
        done = max(server.updates for server in self.cluster.servers)
        all_gone = all(trainer.gone for trainer in self.cluster.trainers)
        return max(done, *(faulty.after() for faulty in self.trainers.values())) if all_gone else done + 1


def process_of(machine: str) -> str:
    """The process that a machine of the simulation belongs to: a communicator is part of its trainer's."""
    return machine.partition("/")[0]


def _parted(partition: Partition, source: str, target: str) -> bool:
    one, other = partition.one, partition.other
    return (source in one and target in other) or (source in other and target in one)
