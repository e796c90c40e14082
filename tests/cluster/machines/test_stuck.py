"""What is said of a cluster that can't go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.ir.diagnostics import DiagnosticError
from tests.cluster.machines.faulty import MODES, WITH_SERVERS, cluster, ended


def report_of(found: Cluster) -> list[str]:
    with pytest.raises(DiagnosticError) as caught:
        ended(found)
    (finding,) = caught.value.diagnostics
    assert finding.code == "cluster-stuck"
    return [note.message for note in finding.notes]


@pytest.mark.parametrize("schedule", [None, 1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_crash_that_nobody_notices_is_named(mode: str, schedule: int | None):
    found = cluster(mode, "crash trainer_1 step 3 unnoticed", schedule)
    told = report_of(found)
    assert told[0] == "trainer_1 crashed in step 3, and nobody noticed"
    waiting = [line for line in told if "; not come: trainer_1" in line]
    if mode in ("grad-allreduce", "local-sgd", "nccl2"):
        assert any(line.startswith("trainer_0 waits at ") for line in waiting)
        waiting = [line for line in waiting if line.startswith("trainer_0/ring_0 waits at ")]
    assert waiting
    what = {
        "sync": "send barriers of step 3",
        "fleet-sync": "send barriers of step 3",
        "grad-allreduce": "the parts of all trainers in c_allreduce_sum",
        "local-sgd": "the parts of all trainers in c_allreduce_sum",
        "nccl2": "the parts of all trainers in average",
    }.get(mode, "the end of all trainers")
    assert all(f"for {what}; " in line for line in waiting), waiting


@pytest.mark.parametrize("schedule", [None, 1, 2])
@pytest.mark.parametrize("mode", WITH_SERVERS)
def test_a_server_that_does_not_come_back_is_named(mode: str, schedule: int | None):
    told = report_of(cluster(mode, "crash pserver_1 step 2 after 1", schedule))
    what = "step" if mode in ("sync", "fleet-sync") else "update"
    assert told[0] == f"pserver_1 crashed in {what} 2, and is not started again"
    assert any(line.startswith("trainer") and "pserver_1" in line.partition("not come: ")[2] for line in told), told


@pytest.mark.parametrize("mode", WITH_SERVERS)
def test_a_partition_that_does_not_end_is_named(mode: str):
    told = report_of(cluster(mode, "partition trainer_1 | pserver_0 from 0"))
    assert "pserver_0 and trainer_1 can't reach each other (since tick" in told[0]
    assert any(line.startswith("trainer_1") and "pserver_0" in line.partition("not come: ")[2] for line in told), told


WAITS: dict[str, Callable[[], Cluster]] = {
    "answers to recv": lambda: cluster("sync", "crash pserver_0 step 1 after 1"),
    "answers to distributed_lookup_table": lambda: cluster("sync", "crash pserver_0 step 2 after 3", kind="embedding"),
    "answers to c_allreduce_sum": lambda: cluster("grad-allreduce", "crash trainer_0 step 2 unnoticed"),
    "fetch barriers of the start-up programs": lambda: cluster("sync", "partition trainer_0 | pserver_1 from 0"),
    "room in the queue of its communicator": lambda: cluster(
        "async-communicator", "partition trainer_0 | pserver_1 from 20"
    ),
    "its communicator to begin the next exchange": lambda: cluster("geo", "partition trainer_0 | pserver_1 from 20"),
    "answers of servers": lambda: cluster("geo", "partition trainer_0 | pserver_1 from 20"),
}


@pytest.mark.parametrize("what", WAITS)
def test_every_kind_of_wait_is_told_with_its_op(what: str):
    found = WAITS[what]()
    with pytest.raises(DiagnosticError) as caught:
        ended(found)
    (finding,) = caught.value.diagnostics
    (line, *_) = [note.message for note in finding.notes if f"for {what}" in note.message]
    assert " waits at " in line
