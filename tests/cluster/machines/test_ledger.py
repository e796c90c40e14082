"""The books of updates find what is lost, doubled, late or changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.proof.faults import UpdateLedger
from tests.cluster.machines.fuzz import compiled, feeds


def started() -> tuple[Cluster, UpdateLedger, Any]:
    cluster = cluster_of(compiled("dense", 2, 1))
    cluster.feed(feeds("dense", 2, 3))
    ledger = UpdateLedger(cluster)
    cluster.start()
    return cluster, ledger, cluster.servers[0]


def ended(cluster: Cluster) -> None:
    cluster.run_to(3)
    cluster.finish()


def test_sound_books():
    cluster, ledger, server = started()
    ended(cluster)
    assert ledger.problems() == []
    assert len(ledger.sent) == 3 * 2 * len(server.update_blocks.needed_variables("main")) / 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda values: values[1:], "was lost"),
        (lambda values: [*values, values[0]], "was applied 2 times"),
        (lambda values: [(*values[0][:2], np.ones(1)), *values[1:]], "was applied with another value than was sent"),
        (lambda values: [("w@GRAD", 0, np.ones(1)), *values], "was applied, but never sent in this step"),
    ],
)
def test_what_is_wrong_is_found(change: Any, told: str):
    cluster, ledger, _server = started()
    note = ledger.updating
    ledger.updating = lambda server, contributions: note(server, lambda: change(contributions()))
    ended(cluster)
    problems = ledger.problems()
    assert len(problems) == 3
    assert all(problem.endswith(told) for problem in problems)


def test_a_gradient_without_report_must_not_be_applied():
    cluster, ledger, _server = started()
    ended(cluster)
    ledger.send_barriers.discard(("pserver_0", 1, 1))
    problems = ledger.problems()
    assert problems
    assert all(
        "trainer 1, step 2" in problem and problem.endswith("its trainer did not report") for problem in problems
    )
