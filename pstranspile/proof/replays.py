"""Which replay a mode needs."""

from __future__ import annotations

from pstranspile.compile import Compiled
from pstranspile.job.modes import Promise, settings_of
from pstranspile.proof.replay import Replay
from pstranspile.proof.replay_async import AsyncReplay
from pstranspile.proof.replay_geo import GeoReplay
from pstranspile.proof.replay_sync import SyncReplay
from pstranspile.proof.workload import Workload
from pstranspile.run.cluster.cluster import Cluster


def replay_of(made: Compiled, cluster: Cluster, workload: Workload, seed: int) -> Replay:
    """What holds the steps of a job's machines to the source; to be made before the cluster starts."""
    if made.plan.geo is not None:
        return GeoReplay(made, cluster, workload, seed)
    singly = settings_of(made.plan.mode).promise is Promise.SINGLE_TRAINER
    return (AsyncReplay if singly else SyncReplay)(made, cluster, workload, seed)
