"""Checkpoints of modes in which trainers do not wait for each other: they meet, are saved, and go on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import resume
from pstranspile.cluster.checkpoint.runs import Target
from pstranspile.cluster.machines.communicator import Settings
from pstranspile.cluster.machines.record import RecordedScheduler, read_record, replay
from pstranspile.cluster.machines.simulate import cluster_of, simulate
from pstranspile.cluster.net.checkpoints import Checkpoints
from pstranspile.cluster.net.job import JobFolder
from pstranspile.cluster.net.parts import AT, MET, SAVED, ServerMeetings, part_of, take_trainer
from pstranspile.proof.values import make_feeds
from tests.cluster.net.played import play

GOLDEN = Path(__file__).parents[3] / "golden"
STEPS, EVERY, PUSH_EVERY = 7, 3, 2


@pytest.mark.parametrize(
    ("mode", "program"),
    [
        ("async", "mlp_adam"),
        ("async", "sparse_sync"),
        ("half-async", "mlp_adam"),
        ("geo", "mlp_adam"),
        ("geo", "geo_sparse_table"),
    ],
)
@pytest.mark.parametrize("trainers", [1, 2])
def test_a_cut_is_what_the_run_goes_on_from(mode: str, program: str, trainers: int, tmp_path: Path) -> None:
    """The simulation has the recorded run again, and goes on from its cuts to the same end."""
    module = ps.load(GOLDEN / f"{program}.ir")
    options = {"geo_sgd_need_push_nums": PUSH_EVERY} if mode == "geo" else {}
    compiled = ps.compile(module, ps.Job(pservers=2, trainers=trainers, mode=mode, **options))
    job = JobFolder(dict(compiled.roles()), "job", PUSH_EVERY)
    feeds = make_feeds(module.main, STEPS, 4, shares=trainers)
    kept = Checkpoints(compiled, None, Target(tmp_path / "kept", None, None), EVERY, tmp_path)
    saved: list[int] = []

    def told(role: str, **fields: Any) -> None:
        if "saved" in fields and kept.part_saved(3, role, fields["saved"]):
            saved.append(fields["saved"])

    given: dict[str, Any] = {"fetch": [], "seed": 3}
    found = play(job, feeds, STEPS, record=tmp_path / "record", parts=(tmp_path, EVERY), told=told, **given)
    assert sorted(saved) == [3, 6, 7]

    record = RecordedScheduler(read_record(str(tmp_path / "record")))
    settings = Settings(push_every=PUSH_EVERY)
    again = simulate(job.roles, feeds, STEPS, schedule=record, run=replay, settings=settings, **given)
    for step in (6, 7):
        cluster = cluster_of(compiled, seed=3)
        cluster.feed(feeds)
        resume(cluster, compiled, tmp_path / "kept" / f"step_{step:08d}")
        cluster.run_to(STEPS)
        cluster.finish()
        for name, value in found.parameters.items():
            np.testing.assert_array_equal(again.parameters[name], value, err_msg=name)
            if trainers == 1:
                np.testing.assert_array_equal(cluster.parameters()[name], value, err_msg=name)
            elif step == STEPS:  # what is left is added in another order
                np.testing.assert_allclose(cluster.parameters()[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


class _Parts:
    def __init__(self) -> None:
        self.saved: list[int] = []

    def save(self, machine: Any, step: int) -> None:
        self.saved.append(step)


class _Server:
    """A server's meetings, with trainers that say what a test has them say."""

    def __init__(self, trainers: int):
        self.peers = [
            SimpleNamespace(
                role=f"trainer_{i}",
                index=i,
                incarnation=f"first of {i}",
                last_step=-1,
                send_answer=lambda _: None,
            )
            for i in range(trainers)
        ]
        self.machine = SimpleNamespace(live=set(range(trainers)))
        self.site: Any = SimpleNamespace(peers={peer.role: peer for peer in self.peers})
        self.parts = _Parts()
        self.open()

    def open(self) -> None:
        """A process that knows of no meeting plays the server."""
        server: Any = self.machine
        parts: Any = self.parts
        self.meetings = ServerMeetings(self.site, server, parts)

    def says(self, trainer: int, step: int) -> dict[str, Any]:
        peer: Any = self.peers[trainer]
        answer = self.meetings.answer(peer, {AT: step})
        assert answer is not None
        return dict(answer)


def test_all_who_are_there_are_waited_for() -> None:
    server = _Server(3)
    assert server.says(0, 4)[MET] == -1
    assert server.says(1, 4)[MET] == -1
    server.machine.live.discard(2)  # it has left, or was given up
    server.meetings.turns_done()
    assert server.says(0, 4) == {MET: 4, SAVED: True}
    assert server.parts.saved == [4]
    peer: Any = server.peers[0]
    assert server.meetings.answer(peer, {"rejoin": None}) is None  # others are asked


def test_one_that_comes_late_is_not_saved_with_the_others() -> None:
    """It was away when the others met. What it would save is of another moment."""
    server = _Server(2)
    server.machine.live.discard(1)
    assert server.says(0, 4) == {MET: 4, SAVED: True}
    server.machine.live.add(1)
    assert server.says(1, 4) == {MET: 4, SAVED: False}
    assert server.parts.saved == [4]


def test_what_a_process_said_is_not_what_the_next_one_in_its_role_has_done() -> None:
    server = _Server(2)
    assert server.says(1, 4)[MET] == -1
    server.peers[1].incarnation = "second of 1"
    assert server.says(0, 4)[MET] == -1
    assert server.says(1, 4) == {MET: 4, SAVED: True}


def test_a_server_that_was_started_again_saves_nothing_once_somebody_is_further() -> None:
    """It has forgotten the meeting; one trainer was told of it by the process before, the other was not."""
    server = _Server(2)
    server.open()
    assert server.says(0, 4)[MET] == -1
    server.peers[1].last_step = 4
    server.meetings.turns_done()
    assert server.says(0, 4) == {MET: 4, SAVED: False}
    assert server.parts.saved == []


def test_a_trainer_that_is_started_again_fetches_what_the_servers_have(tmp_path: Path) -> None:
    """What its communicator had at the checkpoint is of long ago."""
    module = ps.load(GOLDEN / "mlp_adam.ir")
    compiled = ps.compile(module, ps.Job(pservers=1, trainers=1, mode="geo"))
    cluster = cluster_of(compiled, seed=3)
    cluster.feed(make_feeds(module.main, 1, 4, shares=1))
    cluster.run_to(1)
    part = part_of(cluster.trainers[0])
    other = cluster_of(compiled, seed=3)
    take_trainer(other.trainers[0], part)
    other.trainers[0].restart(5, 1)
    communicator: Any = other.trainers[0].communicator
    communicator.restart()
    other.start()
    assert communicator.own_memory()["since"] == [0]
    name = module.main.parameters()[0].name
    np.testing.assert_array_equal(other.trainers[0].scope[name], other.parameters()[name])
    assert not np.array_equal(other.trainers[0].scope[name], part.values[name])
