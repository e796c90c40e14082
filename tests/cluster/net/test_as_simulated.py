"""Jobs over the network and in the simulation: the same, to the bit.

CI plays a few programs; PSTRANSPILE_RECORDINGS may name a folder with more of them, `<case>/main.pb`, `startup.pb` and
`case.json`. Every machine is a thread here; of the last test it is a process.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.communicator import Settings
from pstranspile.cluster.machines.record import RecordedScheduler, read_record, replay
from pstranspile.cluster.machines.simulate import Simulated, simulate
from pstranspile.cluster.net.job import JobFolder
from pstranspile.proof.replays import Ledger
from pstranspile.proof.values import make_feeds
from tests.cluster.machines.recorded import files
from tests.cluster.net import forked
from tests.cluster.net.played import play

RECORDINGS = os.environ.get("PSTRANSPILE_RECORDINGS", "")
EXAMPLES = Path(__file__).parents[3] / "examples"
STEPS, PUSH_EVERY = 3, 2


@cache
def programs() -> list[str]:
    if RECORDINGS:
        return sorted(path.parent.name for path in Path(RECORDINGS).glob("*/main.pb"))
    return sorted({name.partition("/")[0] for name in files() if name.endswith("/case.json")})


def loaded(name: str, folder: Path) -> ps.Module:
    for part in ("main.pb", "startup.pb", "case.json"):
        data = Path(RECORDINGS, name, part).read_bytes() if RECORDINGS else files()[f"{name}/{part}"]
        (folder / part).write_bytes(data)
    return ps.load(folder / "main.pb", folder / "startup.pb", folder / "case.json")


def compiled(module: ps.Module, **options: object) -> JobFolder:
    result = ps.compile(module, ps.Job(pservers=2, trainers=2, **options))
    return JobFolder(dict(result.roles()), "job", PUSH_EVERY)


@pytest.mark.parametrize("name", programs())
def test_step_by_step(name: str, tmp_path: Path) -> None:
    module = loaded(name, tmp_path)
    try:
        job = compiled(module)
    except ps.DiagnosticError as refused:
        pytest.skip(f"it can't be compiled for servers: {refused.diagnostics[0].message}")
    feeds = make_feeds(module["main"], STEPS, 4, shares=2)
    options = {"fetch": [], "seed": 3, "folder": str(tmp_path)}
    require_same(play(job, feeds, STEPS, **options), simulate(job.roles, feeds, STEPS, **options))


@pytest.mark.parametrize("mode", ["async", "half-async", "geo"])
@pytest.mark.parametrize("name", programs())
def test_in_the_order_of_the_recorded_run(name: str, mode: str, tmp_path: Path) -> None:
    """Whatever order the network gave: the simulation's machines send and take the same, and end with the same. What
    was sent was taken once: gradients, and what a trainer of a geo job has learnt.
    """
    module = loaded(name, tmp_path)
    try:
        job = compiled(module, mode=mode)
    except ps.DiagnosticError as refused:
        pytest.skip(f"it can't be compiled for {mode}: {refused.diagnostics[0].message}")
    feeds = make_feeds(module["main"], STEPS, 4, shares=2)
    options = {"fetch": [], "seed": 3, "folder": str(tmp_path)}
    found = play(job, feeds, STEPS, record=tmp_path / "record", **options)
    record = read_record(str(tmp_path / "record"))
    assert set(record.turns) == set(job.roles)
    schedule, settings, books = RecordedScheduler(record), Settings(push_every=job.push_every), Ledger()

    def watched(cluster: Cluster, steps: int) -> None:
        cluster.network.observe(books)
        replay(cluster, steps)

    require_same(found, simulate(job.roles, feeds, STEPS, schedule=schedule, run=watched, settings=settings, **options))
    assert list(books.problems(restarts=False)) == []
    assert books.sent_messages


@pytest.mark.parametrize("name", programs() if RECORDINGS else programs()[::3])
def test_as_processes(name: str, tmp_path: Path) -> None:
    module = loaded(name, tmp_path)
    try:
        job = compiled(module)
    except ps.DiagnosticError as refused:
        pytest.skip(f"it can't be compiled for servers: {refused.diagnostics[0].message}")
    feeds = make_feeds(module["main"], STEPS, 4, shares=2)
    options = {"fetch": [], "seed": 3, "folder": str(tmp_path)}
    found = forked.play(job, feeds, STEPS, tmp_path, **options)
    require_same(found, simulate(job.roles, feeds, STEPS, **options))


def require_same(found: Simulated, expected: Simulated) -> None:
    ours, theirs = found.arrays(), expected.arrays()
    assert ours.keys() == theirs.keys()
    assert ours
    for key, value in theirs.items():
        np.testing.assert_array_equal(ours[key], value, err_msg=key)
