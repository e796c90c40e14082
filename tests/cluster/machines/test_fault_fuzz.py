"""Random faults: synchronous jobs lose and double no update; in every mode what is stuck says who is missing."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.scenario import Crash, Departure, parse_scenario, random_scenario
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.proof.faults import UpdateLedger
from tests.cluster.machines.fuzz import cases, compiled, feeds

STEPS = 5
KINDS = ("dense", "adam", "sparse", "embedding", "distributed")


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
    names = [var.name for var in cluster.trainers[0].role.main.parameters() if var.name.startswith("fc")]
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


def names_the_missing(problem: DiagnosticError, cluster: Cluster) -> None:
    """The report says what can't be got over, and some machine waits for one that is concerned."""
    (finding,) = problem.diagnostics
    assert finding.code == "cluster-stuck", finding
    assert cluster.injector is not None
    missing = cluster.injector.missing()
    assert missing, f"stuck without a reason: {finding}"
    told = [note.message for note in finding.notes]
    for name in missing:
        assert any(name in line for line in told), (name, told)
    named = {name for line in told for name in line.partition("not come: ")[2].split(", ") if name}
    assert named & set(missing), (missing, told)


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
        assert (found := ledger.problems(ended=False)) == [], found[:4]
        names_the_missing(problem, cluster)
        return "stuck"
    assert (found := ledger.problems()) == [], found[:4]
    assert all(server.ended for server in cluster.servers)
    if not any(
        isinstance(event, Departure) or (isinstance(event, Crash) and "trainer" in event.machine)
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


MODES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("async", {}),
    ("async", {"runtime_split_send_recv": True}),
    ("async", {"enable_dc_asgd": True}),
    ("half-async", {}),
    ("geo", {"geo_sgd_need_push_nums": 2}),
    ("grad-allreduce", {}),
    ("local-sgd", {}),
    ("nccl2", {}),
)


def case_of_any_mode(number: int) -> str:
    """Runs a scenario in one of the other modes; gives how it ended."""
    draw = random.Random(f"modes {number}")
    mode, settings = MODES[number % len(MODES)]
    has_servers = mode in ("async", "half-async", "geo")
    trainers, servers = draw.randint(2, 4), draw.randint(1, 3) if has_servers else 0
    kind = draw.choice(KINDS) if has_servers and "enable_dc_asgd" not in settings else "dense"
    names = [f"trainer_{i}" for i in range(trainers)], [f"pserver_{i}" for i in range(servers)]
    scenario = random_scenario(number, *names, STEPS, fatal=draw.random() < 0.25)
    job = compiled(kind, trainers, servers, mode, **settings)
    cluster = cluster_of(job, schedule=draw.choice((None, number)), faults=scenario)
    cluster.feed(feeds(kind, trainers, STEPS))
    try:
        cluster.run_to(STEPS)
        cluster.finish()
    except DiagnosticError as problem:
        names_the_missing(problem, cluster)
        return "stuck"
    assert all(server.ended for server in cluster.servers)
    assert all(np.isfinite(value).all() for value in cluster.parameters().values())
    return "ended"


def test_random_faults_in_every_mode():
    count = cases(48, 2000)
    ends = Counter(case_of_any_mode(number) for number in range(count))
    print(f"\n{count} scenarios: {dict(sorted(ends.items()))}")
    assert len(ends) == 2
