"""Hooks around the turns of machines, and what listeners are told, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.network import Machine, TurnHook
from pstranspile.cluster.machines.script import Wait, WaitForRelease
from pstranspile.cluster.machines.server import Contributions, OnUpdate, Server, ServerListener
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.cluster.machines.trainer import OnStep, Trainer, TrainerListener
from tests.conftest import ROOT

STEPS = 3


@pytest.fixture
def cluster() -> Cluster:
    module = ps.load(ROOT / "examples" / "linear_regression.ir")
    made = cluster_of(ps.compile(module, ps.Job(pservers=1, trainers=2)), seed=1)
    random = np.random.RandomState(0)
    dims = {"x": 13, "y": 1}
    made.feed({name: random.rand(STEPS, 4, size).astype("float32") for name, size in dims.items()})
    return made


class Noted(TurnHook):
    """Notes the begins and ends of turns; may let one pass."""

    def __init__(self, name: str, notes: list[str], passes: int = -1):
        self.name, self.notes, self.passes = name, notes, passes

    def take(self, machine: Machine, turn: Callable[[], object]) -> None:
        self.notes.append(f"{self.name} {machine.name} begins")
        if self.passes == 0:
            machine.network.scheduler.wake(machine)
        else:
            turn()
        self.passes -= 1
        self.notes.append(f"{self.name} {machine.name} ends")


def test_a_later_hook_goes_around_the_earlier_ones(cluster: Cluster) -> None:
    notes: list[str] = []
    machine = cluster.trainers[0]
    machine.hook(TurnHook())
    machine.hook(Noted("first", notes))
    machine.hook(Noted("second", notes))
    cluster.run_to(1)
    assert notes[:4] == [
        f"{which} {machine.name} {what}"
        for which, what in (("second", "begins"), ("first", "begins"), ("first", "ends"), ("second", "ends"))
    ]
    assert not any(cluster.trainers[1].name in note for note in notes)


def test_a_hook_may_put_a_turn_off(cluster: Cluster) -> None:
    notes: list[str] = []
    cluster.servers[0].hook(Noted("late", notes, passes=0))
    cluster.run_to(STEPS)
    cluster.finish()
    assert [trainer.step for trainer in cluster.trainers] == [STEPS, STEPS]
    assert [note for note in notes if note.endswith("begins")]


def test_listeners_are_told_in_order(cluster: Cluster) -> None:
    notes: list[Any] = []
    for trainer in cluster.trainers:
        trainer.listen(OnStep(lambda trainer, step: notes.append(("first", trainer.name, step))))
        trainer.listen(OnStep(lambda trainer, step: notes.append(("second", trainer.name, step))))
    cluster.servers[0].listen(OnUpdate(lambda server, update: notes.append(("update", server.name, update))))
    cluster.run_to(STEPS)
    steps = [note for note in notes if note[0] != "update"]
    assert steps[::2] == [("first", *note[1:]) for note in steps[1::2]]
    assert len(steps) == 2 * 2 * STEPS
    assert [note[2] for note in notes if note[0] == "update"] == list(range(STEPS))


class Held(TrainerListener):
    """Holds a trainer up before its second step."""

    wait: WaitForRelease | None = None

    def before_step(self, trainer: Trainer, step: int) -> Wait | None:
        if step != 1 or self.wait is not None:
            return None
        self.wait = WaitForRelease(trainer, "a test", [trainer.name])
        return self.wait


def test_the_first_listener_that_holds_a_trainer_up_is_not_asked_again_when_it_lets_go(cluster: Cluster) -> None:
    held, notes = Held(), list[int]()
    one = cluster.trainers[0]
    one.listen(held)
    one.listen(OnStep(lambda trainer, step: notes.append(step)))
    with pytest.raises(ps.DiagnosticError, match="a test"):
        cluster.run_to(STEPS)
    assert notes == [0]
    assert held.wait is not None
    held.wait.release()
    cluster.run_to(STEPS)
    assert notes == [0, 1, 2]


def test_an_update_is_announced_with_what_it_is_made_of(cluster: Cluster) -> None:
    class Seen(ServerListener):
        def __init__(self) -> None:
            self.trainers: list[set[int]] = []

        def updating(self, server: Server, contributions: Callable[[], Contributions]) -> None:
            self.trainers.append({trainer for _, trainer, _ in contributions()})

    seen = Seen()
    cluster.servers[0].listen(seen)
    cluster.servers[0].listen(ServerListener())
    cluster.run_to(STEPS)
    assert seen.trainers == [{0, 1}] * STEPS


def test_a_server_whose_variables_are_there_runs_no_start_up_program(cluster: Cluster) -> None:
    server = cluster.servers[0]
    for name in server.startup.main_block.vars:
        server.scope[name] = np.full(server.startup.main_block.vars[name].shape, 7, "float32")
    server.skip_startup()
    cluster.start()
    assert all(np.all(value == 7) for value in cluster.parameters().values())
