"""Random faults in synchronous jobs: no update is lost or made twice, and what is stuck says who is missing."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.ledger import UpdateLedger
from pstranspile.run.cluster.scenario import Crash, Leave, parse_scenario, random_scenario
from pstranspile.run.cluster.simulate import cluster_of
from pstranspile.run.cluster.trainer import Trainer
from tests.run.cluster.fuzz import cases, compiled, feeds

STEPS = 5
KINDS = ("dense", "adam", "sparse", "embedding")


def sound(kind: str, trainers: int, servers: int, mode: str, known: dict[Any, Any] = {}) -> dict[str, Any]:  # noqa: B006
    """The parameters without faults."""
    key = kind, trainers, servers, mode
    if key not in known:
        cluster = cluster_of(compiled(kind, trainers, servers, mode))
        cluster.feed(feeds(kind, trainers, STEPS))
        cluster.run_to(STEPS)
        cluster.finish()
        known[key] = cluster.parameters()
    return known[key]


def same_start(cluster: Cluster) -> None:
    """From now on all trainers must begin a step with the same parameters, bit for bit."""
    names = [var.name for var in cluster.trainers[0].main.parameters() if var.name.startswith("fc")]
    first: dict[int, dict[str, Any]] = {}

    def looking(trainer: Trainer) -> Any:
        feed = trainer.feed

        def look(step: int) -> Any:
            values = {name: np.array(trainer.scope[name]) for name in names}
            for name, value in first.setdefault(step, values).items():
                assert value.tobytes() == values[name].tobytes(), f"{trainer.name} begins step {step} with other {name}"
            return feed(step)

        return look

    for trainer in cluster.trainers:
        trainer.feed = looking(trainer)


def one_case(number: int) -> str:
    """Runs a scenario; gives how it ended."""
    draw = random.Random(number)
    kind, trainers, servers = draw.choice(KINDS), draw.randint(1, 4), draw.randint(1, 3)
    mode = "fleet-sync" if draw.random() < 0.2 else "sync"
    names = [f"trainer_{i}" for i in range(trainers)], [f"pserver_{i}" for i in range(servers)]
    fatal = draw.random() < 0.3
    scenario = random_scenario(number, *names, STEPS, fatal=fatal)
    assert parse_scenario(str(scenario)) == scenario
    schedule = draw.choice((None, number))
    cluster = cluster_of(compiled(kind, trainers, servers, mode), schedule=schedule, faults=scenario)
    cluster.feed(feeds(kind, trainers, STEPS))
    ledger = UpdateLedger(cluster)
    same_start(cluster)
    injector = cluster.injector
    assert injector is not None
    try:
        cluster.run_to(STEPS)
        cluster.finish()
    except DiagnosticError as problem:
        (finding,) = problem.diagnostics
        assert finding.code == "cluster-stuck", finding
        assert (found := ledger.problems(ended=False)) == [], found[:4]
        missing = injector.missing()
        assert missing, f"stuck without a reason: {finding}"
        told = [note.message for note in finding.notes]
        for name in injector.missing():
            assert any(name in line for line in told), (name, told)
        named = {name for line in told for name in line.partition("not come: ")[2].split(", ") if name}
        assert named & set(missing), (missing, told)
        return "stuck"
    assert (found := ledger.problems()) == [], found[:4]
    assert all(server.ended for server in cluster.servers)
    if not any(
        isinstance(event, Leave) or (isinstance(event, Crash) and "trainer" in event.machine)
        for event in scenario.events
    ):
        for name, value in cluster.parameters().items():
            np.testing.assert_array_equal(value, sound(kind, trainers, servers, mode)[name])
        return "as without faults"
    assert all(np.isfinite(value).all() for value in cluster.parameters().values())
    return "with other trainers"


def test_random_faults():
    count = cases(60, 1000)
    ends = Counter(one_case(number) for number in range(count))
    print(f"\n{count} scenarios: {dict(sorted(ends.items()))}")
    assert len(ends) == 3
