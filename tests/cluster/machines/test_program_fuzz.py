"""Programs that take turns under random faults, and random turns against one machine."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import numpy as np

import pstranspile as ps
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.scenario import Crash, Departure, random_scenario
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.compiler.compile import Compiled
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Momentum, minimize
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Module
from pstranspile.proof import check
from pstranspile.proof.faults import UpdateLedger
from pstranspile.proof.report import report_text
from tests.cluster.machines.fuzz import cases
from tests.cluster.machines.test_fault_fuzz import names_the_missing
from tests.compiler.emit.several import joined

STEPS = 6
TURNS = ("main,second", "main*2,second", "second*3,main")


@cache
def module() -> Module:
    """Two tasks over one encoder, each with a part of its own, and a program that looks at the first."""

    def encoded(draft: L.Draft) -> L.Value:
        return L.fc(L.data(draft, "x", [-1, 6]), 8, act="tanh", param_attr="encoder_w", bias_attr="encoder_b")

    drafts = {name: L.Draft(seed=3) for name in ("main", "second", "look")}
    for name, optimizer in (("main", Momentum(0.1, 0.9)), ("second", SGD(0.1))):
        draft = drafts[name]
        out = L.fc(encoded(draft), 1, param_attr=f"{name}_w", bias_attr=f"{name}_b")
        minimize(L.mean(L.square_error_cost(out, L.data(draft, "y", [-1, 1]))), optimizer)
    L.mean(L.fc(encoded(drafts["look"]), 1, param_attr="main_w", bias_attr="main_b"))
    return joined(**{name: draft.module() for name, draft in drafts.items()})


@cache
def compiled(trainers: int, servers: int, mode: str) -> Compiled:
    return ps.compile(module(), ps.Job(pservers=servers, trainers=trainers, mode=mode, min_block_size=16))


def cluster(job: tuple[int, int, str], turns: str, **options: Any) -> Cluster:
    made = cluster_of(compiled(*job), programs=turns, **options)
    rows = np.random.RandomState(0).uniform(-1, 1, (STEPS, 2 * job[0], 6)).astype("float32")
    made.feed({"x": rows, "y": rows[:, :, :1]})
    return made


def finished(made: Cluster) -> Cluster:
    made.run_to(STEPS)
    made.finish()
    return made


@cache
def sound(job: tuple[int, int, str], turns: str) -> dict[str, Any]:
    return finished(cluster(job, turns)).parameters()


def one_case(number: int) -> str:
    draw = random.Random(f"programs {number}")
    mode = draw.choice(("sync", "sync", "fleet-sync", "async", "half-async", "geo"))
    job, turns = (draw.randint(1, 4), draw.randint(1, 3), mode), draw.choice(TURNS)
    names = [f"trainer_{i}" for i in range(job[0])], [f"pserver_{i}" for i in range(job[1])]
    scenario = random_scenario(number, *names, STEPS, fatal=draw.random() < 0.25)
    made = cluster(job, turns, schedule=draw.choice((None, number)), faults=scenario)
    synchronous = mode in ("sync", "fleet-sync")
    ledger = UpdateLedger(made) if synchronous else None
    try:
        finished(made)
    except DiagnosticError as problem:
        names_the_missing(problem, made)
        assert ledger is None or ledger.problems(ended=False) == []
        return "stuck"
    assert ledger is None or ledger.problems() == []
    found = made.parameters()
    if synchronous and not any(
        isinstance(event, Departure) or (isinstance(event, Crash) and "trainer" in event.machine)
        for event in scenario.events
    ):
        for name, value in found.items():
            np.testing.assert_array_equal(value, sound(job, turns)[name])
        return "as without faults"
    assert all(np.isfinite(value).all() for value in found.values())
    return "otherwise"


def test_random_faults():
    ends = Counter(one_case(number) for number in range(cases(60, 1000)))
    print(f"\n{dict(sorted(ends.items()))}")
    assert len(ends) == 3


def test_random_turns():
    """On any job the programs end as on one machine; with one trainer bit for bit, which the check sees to."""
    for number in range(cases(25, 300)):
        draw = random.Random(f"turns {number}")
        names = ["main", "second", "look"]
        items = [f"{draw.choice(names)}*{draw.randint(1, 3)}" for _ in range(draw.randint(1, 4))]
        items += [f"look/{draw.randint(1, 4)}"] if draw.random() < 0.5 else []
        turns, mode = ",".join(items), draw.choice(("sync", "fleet-sync", "async", "half-async"))
        trainers = draw.randint(1, 4) if mode in ("sync", "fleet-sync") else 1
        job = ps.Job(pservers=draw.randint(1, 3), trainers=trainers, mode=mode, min_block_size=16)
        report = check(module(), job, steps=draw.randint(1, 9), programs=turns, schedules=2, seed=number + 1)
        assert report.holds, (number, turns, job, report_text(report))
