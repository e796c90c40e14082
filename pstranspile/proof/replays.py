"""The replay of each mode, and a run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.faults.scenario import Scenario
from pstranspile.compiler.job.modes import Promise, settings_of
from pstranspile.proof.compare import PreciseComparison
from pstranspile.proof.given import Given
from pstranspile.proof.replay import Replay
from pstranspile.proof.replay_async import AsyncReplay
from pstranspile.proof.replay_geo import GeoReplay
from pstranspile.proof.replay_sync import SyncReplay
from pstranspile.proof.report import Verdict
from pstranspile.proof.training import ClusterValues, SingleMachine, start_cluster, train_both


def replay_of(given: Given, cluster: Cluster) -> Replay:
    """The replay for a job's mode. It must be made before the cluster starts."""
    plan = given.made.plan
    if plan.geo is not None:
        return GeoReplay(given, cluster)
    singly = settings_of(plan.mode).promise is Promise.SINGLE_TRAINER
    return (AsyncReplay if singly else SyncReplay)(given, cluster)


class ReplayResult(NamedTuple):
    """The result of a replay: `problems` in words, and the differences by design that were `shown`. The `verdicts` are
    those of this precision.
    """

    problems: Sequence[str]
    shown: Mapping[str, str]
    verdicts: Sequence[Verdict] = ()


def held_to_source(given: Given, verdicts: Sequence[Verdict] | None, faults: Scenario | None = None) -> ReplayResult:
    """Replays every step of a cluster against the source, and settles `verdicts` on both sides, if there are any."""
    single, cluster = SingleMachine(given), start_cluster(given, faults=faults)
    replay, precise = replay_of(given, cluster), PreciseComparison(given.workload, single.start, verdicts or ())
    values = ClusterValues(given.made, cluster, single.start)
    train_both(single, values, None if verdicts is None else precise.look, replay)
    cluster.finish()
    replay.end()
    return ReplayResult(replay.problems, replay.shown, precise.settled())
