"""What a scenario does to a trainer."""

from __future__ import annotations

from typing import Any, Protocol

from pstranspile.cluster.machines.collectives.ring import GONE, Ring
from pstranspile.cluster.machines.communicators.companion import Companion
from pstranspile.cluster.machines.faults.scenario import Crash, Event, Late, Leave, Partition, Scenario, Slow
from pstranspile.cluster.machines.message import COMPLETE, step_label
from pstranspile.cluster.machines.network import Link, Machine, Network
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.trainer import Trainer


class Machines(Protocol):
    """What faults need of a cluster; `finishing`: all trainers are to leave."""

    network: Network
    machines: dict[str, Machine]
    trainers: list[Trainer]
    servers: list[Server]
    rings: dict[str, Ring]
    finishing: bool


class Scene(Protocol):
    """What the faults of a trainer need of those of the whole cluster."""

    cluster: Machines
    scenario: Scenario

    def note(self, text: str) -> None:
        """Keeps what happened now."""
        ...

    def begins(self, trainer: Trainer) -> None:
        """A trainer begins a step."""
        ...

    def ends(self) -> None:
        """A trainer has gone."""
        ...

    def next_step(self) -> int:
        """The first step that no server has begun to serve."""
        ...


class TrainerFaults:
    """What the scenario does to a trainer."""

    def __init__(self, scene: Scene, trainer: Trainer):
        self._scene = scene
        self._network = scene.cluster.network
        self.trainer = trainer
        events = [e for e in scene.scenario.events if not isinstance(e, Partition) and e.machine == trainer.name]
        self._late = sum(event.ticks for event in events if isinstance(event, Late))
        self._slow = sum(event.ticks for event in events if isinstance(event, Slow))
        self._crashes = [event for event in events if isinstance(event, Crash)]
        self._leaves = [event for event in events if isinstance(event, Leave)]
        self._waits = {-1: [e for e in events if isinstance(e, Late)], 0: [e for e in events if isinstance(e, Slow)]}
        """What has not made the trainer wait yet: before its first step, and before any."""
        self._in_vain: list[Event] = []
        """Crashes of a trainer that had left."""
        self._paused: set[int] = set()
        self._in_step = -1
        self._count = 0
        self._unnoticed = ""
        self._stopped_in = -1
        self._open_links: list[Link] | None = None
        self._feed: Any = None
        """What the trainer was fed before it left."""
        self._results = 0
        self._companion = trainer.communicator if isinstance(trainer.communicator, Companion) else None
        """The communicator's machine, which is part of the trainer's process."""
        self._rings = [side for side in scene.cluster.rings.values() if side.index == trainer.index]
        """Its sides of rings, which are part of its process, too."""
        trainer.turn = self._turn

    # the life of the trainer

    def _turn(self) -> None:
        trainer = self.trainer
        if not trainer.down and trainer.between_steps and not self._may_begin():
            return
        trainer.run()
        if trainer.left:
            self._scene.ends()
        if trainer.down:  # what it had not finished when it crashed
            del trainer.results[self._results :]

    def _may_begin(self) -> bool:
        """Whether the trainer goes on now with what comes next."""
        trainer, step = self.trainer, self.trainer.step
        pause = self._late if step == -1 else self._slow if 0 <= step < trainer.limit else 0
        if pause and step not in self._paused:
            self._paused.add(step)
            self._waits.pop(min(step, 0), None)
            scheduler = self._network.scheduler
            scheduler.later(pause, lambda: scheduler.wake(trainer))
            return False
        if 0 <= step < trainer.limit:
            if self._due(0):
                self._crash()
                return False
            if self._leaves and step >= self._leaves[0].step - 1 and not self._scene.cluster.finishing:
                self._leaves.pop(0)
                self._feed = trainer.feed
                trainer.feed = _no_more
                self._scene.note(f"{trainer.name} leaves before {step_label(step)}")
            elif not trainer.left and trainer.feed is not _no_more:
                self._scene.begins(trainer)
        return True

    def _due(self, sent: int) -> bool:
        """Whether the next crash is to happen when so many messages of the step have been sent."""
        if not self._crashes or self._scene.cluster.finishing:  # after the last step there is none to crash in
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
            self._in_vain.append(event)
            return
        self._stopped_in, self._results = trainer.step, len(trainer.results)
        for machine in self._machines():
            machine.crash()
            self._network.dead.add(machine.name)
        report = f"{trainer.name} crashed in {step_label(trainer.step)}"
        self._scene.note(report)
        self._open_links = self._links()
        if event.notice is None:
            self._unnoticed = f"{report}, and nobody noticed"
        else:
            self._network.scheduler.later(event.notice, self._notice)

    def _machines(self) -> list[Machine]:
        """The machines of the trainer's process."""
        companions = [] if self._companion is None else [self._companion]
        return [self.trainer, *companions, *self._rings]

    def _links(self) -> list[Link]:
        """The links on which servers learn of the end: those that the last messages came on."""
        if self._companion is None:
            return [link for link in self.trainer.servers if link.target not in self._rings]
        return [self._companion.link(link.target) for link in self.trainer.servers]

    def _notice(self) -> None:
        """The others learn of the crash."""
        self._send_complete()
        self._scene.ends()

    def _send_complete(self) -> None:
        links, self._open_links = self._open_links, None
        for link in links or ():
            link.post(COMPLETE, self.trainer.step)
        for side in self._rings if links is not None else ():
            side.send_complete(self.trainer.step, GONE)
        self._unnoticed = ""

    def rejoin(self, other: Trainer | None) -> None:
        """Starts the trainer again; `other` has just come to the step before the one to take part in, None if there is
        no other trainer.
        """
        scene, trainer, cluster = self._scene, self.trainer, self._scene.cluster
        self._send_complete()
        if self._feed is not None:
            trainer.feed, self._feed = self._feed, None
        self._network.dead.difference_update(machine.name for machine in self._machines())
        if self._companion is not None:
            self._companion.restart()
        for side in self._rings:
            if side.down:
                side.come_back()
        if any(server.mode == 0 for server in cluster.servers):
            step = scene.next_step()
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
        scene.note(f"{trainer.name} rejoins, from {step_label(step)}")
        self._network.scheduler.wake(trainer)

    def after(self) -> int:
        """The first step that the trainer has not begun."""
        return self._stopped_in + 1 if self.trainer.down else self.trainer.step

    def unreached(self) -> list[Event]:
        """What has not happened to the trainer."""
        waits = (event for events in self._waits.values() for event in events)
        return [*self._crashes, *self._in_vain, *self._leaves, *waits]

    def unresolved(self) -> list[str]:
        """Why the trainer will never come."""
        return [self._unnoticed] if self._unnoticed else []


def _no_more(_step: int) -> None:
    return None
