"""A job of 40 steps to which something happens at a random time: nothing hangs, and every update is made once.

CI makes a few runs; PSTRANSPILE_KILLS, PSTRANSPILE_PAUSES and PSTRANSPILE_CUTS say how many.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import numpy as np
import pytest

from pstranspile.cluster.machines.simulate import Simulated
from pstranspile.cluster.net.terms import Terms
from tests.cluster.net.campaign import STEPS, Campaign, Job, runs
from tests.cluster.net.cutting import Cuttable
from tests.cluster.net.played import compiled, play

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")


TRAINERS = ("trainer_0", "trainer_1")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("campaign") / "job"
    return Job.of(folder, compiled(folder, PROGRAM, "--pservers", "2", "--trainers", "2"))


class Strike:
    """Something that happens to a random process, at a random time: after a step of trainer_0, or in the beginning."""

    def __init__(self, seed: int):
        draw = random.Random(seed)
        self.victim = draw.choice(["pserver_0", "pserver_1", *TRAINERS])
        self.step = draw.randrange(-1, STEPS - 1)
        self.seconds = draw.uniform(0.0, 1.5) if self.step < 0 else draw.expovariate(1 / 0.003)
        self.draw = draw
        self.due: float | None = None

    def now(self, run: Campaign) -> bool:
        """Whether it is time."""
        if self.due is None:
            if run.step >= self.step:
                self.due = run.seconds + self.seconds
            else:
                return False
        return run.seconds >= self.due


def require_same(one: Simulated, other: Simulated) -> None:
    ours, theirs = one.arrays(), other.arrays()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def require_sound(run: Campaign, seed: int, victim: str) -> None:
    """Every gradient was applied once, and whoever was not the victim has done all steps. A trainer may come back too
    late to take part; the servers are done without it then.
    """
    assert run.problems() == [], (seed, victim)
    if victim in TRAINERS and run.left_out == [victim]:
        return
    assert run.done, (seed, victim, run.told())
    found = run.outcome()
    for trainer in found.cluster.trainers:
        did = [result.step for result in trainer.results]
        first = did[0] if did else STEPS
        assert did == list(range(first, STEPS)), (seed, victim)
        assert not first or trainer.name == victim, (seed, victim)
    if run.members[victim].starts == 1 or victim.startswith("pserver"):
        require_same(found, run.job.expected)


@pytest.mark.parametrize("seed", range(runs("PSTRANSPILE_KILLS", 3)))
def test_a_process_is_killed(seed: int, job: Job, tmp_path: Path) -> None:
    strike, killed = Strike(seed), False

    def look(run: Campaign) -> None:
        nonlocal killed
        killed = killed or (strike.now(run) and run.signal(strike.victim, signal.SIGKILL))

    run = Campaign(job, tmp_path, look)
    require_sound(run, seed, strike.victim)


@pytest.mark.parametrize("seed", range(runs("PSTRANSPILE_PAUSES", 1)))
def test_a_process_is_stopped_for_a_while(seed: int, job: Job, tmp_path: Path) -> None:
    """A trainer that is not heard for the time of the lease is given up, and takes part again when it is back."""
    strike, begun, over = Strike(seed), 0.0, False
    pause = runs("PSTRANSPILE_PAUSE_SECONDS", 2)

    def look(run: Campaign) -> None:
        nonlocal begun, over
        if not begun and strike.now(run) and run.signal(strike.victim, signal.SIGSTOP):
            begun = run.seconds
        if begun and not over and run.seconds > begun + pause:
            over = run.signal(strike.victim, signal.SIGCONT)

    run = Campaign(job, tmp_path, look, lease=strike.draw.choice([pause / 2, 30.0]), pace=pause / 20)
    require_sound(run, seed, strike.victim)


@pytest.mark.parametrize("seed", range(runs("PSTRANSPILE_CUTS", 2)))
def test_a_connection_is_cut(seed: int, job: Job) -> None:
    draw = random.Random(seed)
    ports: list[Cuttable] = []

    def through(_trainer: str, address: str) -> str:
        silent = draw.random() < 0.3  # noticed after half a lease: once is within the promise
        after = [draw.randrange(draw.choice([1000, 6_000_000])) for _ in range(1 if silent else draw.randrange(1, 4))]
        ports.append(Cuttable(address, after, silent=silent))
        return ports[-1].address

    with np.load(job.feeds) as feeds:
        options = {"fetch": ["loss"], "seed": None, "terms": Terms("job", "token", 3.0)}
        found = play(job.job, dict(feeds), STEPS, through=through, **options)
    for port in ports:
        port.close()
    require_same(found, job.expected)


def test_a_greeting_that_is_lost_is_repeated(job: Job) -> None:
    ports: list[Cuttable] = []

    def through(_trainer: str, address: str) -> str:
        ports.append(Cuttable(address, [300], silent=True))
        return ports[-1].address

    with np.load(job.feeds) as feeds:
        options = {"fetch": ["loss"], "seed": None, "terms": Terms("job", "token", 2.0)}
        found = play(job.job, dict(feeds), STEPS, through=through, **options)
    assert [port.cuts for port in ports] == [1] * len(ports)
    require_same(found, job.expected)
