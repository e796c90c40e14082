"""A cluster of Ray's on this host, as lean as it can be."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

STORE = 80 << 20

FEW_PROCESSES = {
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables that keep Ray from starting processes that nobody asked for."""

FEW_REPORTS = {
    "REPORTER_UPDATE_INTERVAL_MS": "3600000",
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
}
"""Variables that have the processes of a node say seldom or not at all how the host is used, which no test reads: they
look at every process of the host for it, as often as every 2.5 seconds.
"""


def node(cpus: int) -> dict[str, Any]:
    """The options of a node. Where its ports are given, it is ready before the processes that report on it are: Ray
    gives a node up whose reporters take more than 15 seconds, as they do on a host at work.
    """
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = {name: made.getsockname()[1] for name, made in zip(names, sockets, strict=True)}
    for made in sockets:
        made.close()
    return {"num_cpus": cpus, "object_store_memory": STORE, "include_log_monitor": False, **ports}


def persistently(begin: Callable[[], T]) -> T:
    """Starts something of Ray's, up to three times: another cluster may take a port that was found free, or a busy
    host be too slow for Ray. Raises what Ray raises at the last time.
    """
    for _ in range(2):
        with suppress(Exception):
            return begin()
    return begin()


def start() -> Any:
    """Three nodes with two CPUs each, and a head without; this process is connected to them. Raises what Ray does."""
    return persistently(_start)


def _start() -> Any:
    import ray
    from ray.cluster_utils import Cluster

    os.environ.update(FEW_PROCESSES | FEW_REPORTS)
    cluster = Cluster(initialize_head=True, head_node_args={**node(0), "include_dashboard": False})
    try:
        for _ in range(3):
            cluster.add_node(**node(2))
        ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    except BaseException:
        ray.shutdown()
        cluster.shutdown()
        raise
    return cluster
