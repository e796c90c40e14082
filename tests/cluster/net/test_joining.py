"""Trainers that come back, and servers that do: sites in one thread, joined by lines that carry frames at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.net.job import JobFolder, load_job_folder
from pstranspile.cluster.net.loop import CLOSED, FRAME, Event
from pstranspile.cluster.net.peer import Connection, Peer
from pstranspile.cluster.net.process import Readmission, rejoin
from pstranspile.cluster.net.site import Site, SiteListener
from pstranspile.cluster.net.terms import PeerRefused, Terms
from pstranspile.cluster.net.wire import Header, frame
from pstranspile.tools.cli import main

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
STEPS, SERVER = 6, "pserver_0"


class End:
    """One end of a line: what it is handed comes to the other end's process."""

    def __init__(self, site: Site):
        self.site = site
        self.address = site.role
        self.other: End | None = self
        self.is_admitted = self.guarded = False
        self.received_bytes = 0

    def let_in(self, most: int = 0, on_long: object = None) -> None:
        self.is_admitted = True

    def send(self, header: Header, body: bytes, own: object = None) -> None:
        if self.other is not None:
            self.other.site.events.put(Event(FRAME, self.other, b"".join(frame(header, body))))

    def close(self) -> None:
        other, self.other = self.other, None
        if other is not None and other is not self:
            other.other = None
            other.site.events.put(Event(CLOSED, other))


class World:
    """A job of one server and two trainers, each a site of its own."""

    def __init__(self, job: JobFolder):
        self.job = job
        self.sites: dict[str, Site] = {}
        self.open_server()

    def open_server(self) -> None:
        """A process that knows nothing plays the server."""
        site = self.make(SERVER)
        self.server = site.cluster.servers[0]
        self.door = Readmission(site, self.server)
        site.listen(self.door)
        site.cluster.begin([self.server], [])
        site.listen(Durable(site))

    def make(self, role: str) -> Site:
        cluster = self.job.cluster(fetch=["loss"])
        rows = np.random.RandomState(0).rand(STEPS, 8, 1000).astype("float32")
        cluster.feed({"x": rows, "y": rows[:, :, :20].copy()})
        site = Site(cluster, role, Terms("job", "token"), ways={SERVER: lambda: self.dial(site, self.sites[SERVER])})
        self.sites[role] = site
        return site

    def dial(self, site: Site, target: Site) -> Connection:
        mine, theirs = End(site), End(target)
        mine.other, theirs.other = theirs, mine
        return mine

    def trainer(self, index: int) -> Site:
        """A process that plays a trainer, and was let in."""
        site = self.make(f"trainer_{index}")
        site.listen(Durable(site))
        site.go_to(SERVER)
        self.pump()
        return site

    def begin(self, site: Site, index: int, limit: int) -> None:
        trainer = site.cluster.trainers[index]
        site.cluster.begin([], [trainer])
        trainer.limit_to(limit)

    def comes_back(self, index: int, ask_again: bool = False) -> tuple[Site, int]:
        """Another process plays the trainer, and is let in at a step; perhaps at a later one after all."""
        site = self.trainer(index)
        others = Others(self, site)
        site.listen(others)
        step = rejoin(site, [SERVER], 5.0)
        others.go_on = False
        if ask_again:
            peer = self.sites[SERVER].peers[site.role]
            step += 1
            assert self.door.answer(peer, {"rejoin": step}) == {"joined": True}
        self.begin(site, index, STEPS)
        trainer = site.cluster.trainers[index]
        trainer.restart(step, 1)
        return site, step

    def dies(self, index: int) -> None:
        site = self.sites.pop(f"trainer_{index}")
        for peer in site.peers.values():
            if peer.connection is not None:
                peer.connection.close()
        self.pump()

    def pump(self, but: Site | None = None) -> None:
        """Everybody goes on until nothing is under way."""
        others = [site for site in self.sites.values() if site is not but]
        for site in others:
            site.run_machines()
        while any(not site.events.empty() for site in others):
            for site in others:
                site.run(site.events.empty)


class Durable(SiteListener):
    """What has come need not be sent again."""

    def __init__(self, site: Site):
        self.site = site

    def turns_done(self) -> None:
        for peer in self.site.peers.values():
            peer.make_durable(peer.received)


class Others(SiteListener):
    """Has all other sites go on whenever one's machines have gone as far as they can."""

    def __init__(self, world: World, site: Site):
        self.world, self.site, self.go_on = world, site, True

    def turns_done(self) -> None:
        if self.go_on:
            self.world.pump(but=self.site)


@pytest.fixture
def world(tmp_path: Path) -> World:
    options = ["--pservers", "1", "--trainers", "2", "-o", str(tmp_path / "job")]
    assert main(["compile", PROGRAM, *options]) == 0
    return World(load_job_folder(tmp_path / "job"))


def go_on(*sites: Site) -> None:
    """The trainers, in order, do all steps."""
    for index, site in enumerate(sites):
        trainer = site.cluster.trainers[index]
        trainer.limit_to(STEPS)
        site.cluster.scheduler.wake(trainer)


def did(site: Site, index: int) -> list[int]:
    return [result.step for result in site.cluster.trainers[index].results]


@pytest.mark.parametrize("ask_again", [False, True])
@pytest.mark.parametrize("steps", [2, 3])
def test_a_trainer_that_died_after_its_send_barrier_takes_part_again(world: World, steps: int, ask_again: bool) -> None:
    """What it sent counts, and its end waits for that update; neither is taken for the new process's."""
    first, second = world.trainer(0), world.trainer(1)
    world.begin(first, 0, 2)
    world.begin(second, 1, steps)  # with 3, the gradients of a step are sent that the first trainer has not begun
    world.pump()
    world.dies(1)
    again, step = world.comes_back(1, ask_again)
    go_on(first, again)
    world.pump()
    assert did(first, 0) == list(range(STEPS))
    assert did(again, 1) == list(range(step, STEPS))
    assert world.server.updates == STEPS


def test_a_trainer_that_is_to_come_back_does_not_take_part_before(world: World) -> None:
    """What it asks for waits until its step: it is not counted in the one before, and gets no older variables."""
    first, second = world.trainer(0), world.trainer(1)
    world.begin(second, 1, 0)
    world.pump()
    world.dies(1)
    again, step = world.comes_back(1)
    world.pump()
    trainer = again.cluster.trainers[1]
    assert (world.server.updates, step, world.server.live, trainer.step < 0) == (0, 1, {0}, True)
    world.begin(first, 0, 0)
    world.pump()
    go_on(first, again)
    world.pump()
    assert did(first, 0) == list(range(STEPS))
    assert did(again, 1) == list(range(step, STEPS))


def test_a_server_that_forgot_a_trainer_lets_it_in_again(world: World) -> None:
    """Its state may be from before the trainer asked."""
    first, second = world.trainer(0), world.trainer(1)
    world.begin(first, 0, 2)
    world.begin(second, 1, 2)
    world.pump()
    world.dies(1)
    again, step = world.comes_back(1)
    site = world.sites[SERVER]
    peer = site.peers["trainer_1"]
    world.server.withdraw(1)
    world.server.live.discard(1)
    peer.announced = False  # as in that state
    peer.life = 1
    assert peer.connection is not None
    peer.connection.close()
    again.go_to(SERVER)
    go_on(first, again)
    world.pump()
    assert did(first, 0) == list(range(STEPS))
    assert did(again, 1) == list(range(step, STEPS))


def test_a_server_without_its_state_is_not_taken_for_the_one_before(world: World) -> None:
    first = world.trainer(0)
    world.begin(first, 0, 1)
    world.pump()
    ends: list[Any] = [peer.connection for peer in first.peers.values() if peer.connection is not None]
    world.sites[SERVER].peers["trainer_0"].sign_of_life(0.0)
    world.pump()
    world.open_server()
    ends[0].close()
    first.go_to(SERVER)
    with pytest.raises(PeerRefused, match="pserver_0 at trainer_0 was started again without what it had taken"):
        world.pump()


def test_a_process_whose_place_was_taken_is_refused(world: World) -> None:
    """Stopped for a while, say."""
    old = world.trainer(1)
    world.dies(1)
    world.trainer(1)
    old.go_to(SERVER)
    world.sites["old"] = old
    with pytest.raises(PeerRefused, match="another process has taken the place of this trainer_1"):
        world.pump()


def test_a_trainer_that_has_left_may_come_to_hear_that_it_was_heard(world: World) -> None:
    first = world.trainer(0)
    world.begin(first, 0, 0)
    world.pump()
    first.cluster.trainers[0].leave()
    first.cluster.scheduler.run()
    world.pump()
    peer = world.sites[SERVER].peers["trainer_0"]
    assert peer.left
    assert peer.connection is not None
    peer.connection.close()
    first.go_to(SERVER)
    world.pump()
    assert peer.connection is not None


class Answers(SiteListener):
    """Answers every question alike, or none."""

    def __init__(self, fields: dict[str, Any] | None):
        self.fields, self.asked = fields, 0

    def answer(self, peer: Peer, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        self.asked += 1
        return self.fields


def test_a_question_goes_to_one_listener_after_the_other_until_one_answers(world: World) -> None:
    server = world.make(SERVER)
    answering = [Answers(None), Answers({"which": "second"}), Answers({"which": "third"})]
    for listener in answering:
        server.listen(listener)
    site = world.trainer(0)
    site.listen(Others(world, site))
    assert site.ask(SERVER, {}, 5.0)["which"] == "second"
    assert [listener.asked for listener in answering] == [1, 1, 0]


def test_a_question_that_no_listener_answers_has_an_empty_answer(world: World) -> None:
    world.make(SERVER)
    site = world.trainer(0)
    site.listen(Others(world, site))
    assert site.ask(SERVER, {}, 5.0).keys() == {"number"}
