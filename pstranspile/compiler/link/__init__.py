"""Do all programs of a job together fit? The link check reads the emitted programs as a linker reads object files.

Every program is read once, then what machines say to each other is held together. The cost is that of reading all
ops, plus one step for every variable that travels between two machines. The check knows nothing of how the programs
were made. A finding is a fault of the compiler, so it ends in LinkError (exit code 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pstranspile.compiler.link.barriers import (
    GEO,
    check_alike,
    check_barriers,
    check_fan_in,
    check_identities,
    check_splits,
)
from pstranspile.compiler.link.machines import Cluster, LinkError, collect
from pstranspile.compiler.link.messages import (
    check_awaited,
    check_backups,
    check_counters,
    check_fetched,
    check_geo,
    check_lookups,
    check_merges,
    check_never_fetched,
    check_notices,
    check_prefetches,
    check_receives,
    check_senders,
    check_sends,
    check_server,
    check_table_blocks,
)
from pstranspile.compiler.link.rings import check_collectives, check_meeting, check_rings
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Role

__all__ = ["LinkError", "link"]


def link(roles: Iterable[Role]) -> None:
    """Checks all emitted programs of a job together. Raises LinkError with every finding."""
    findings = list(_findings(collect(roles)))
    if findings:
        raise LinkError(findings)


def _findings(cluster: Cluster) -> Iterator[Diagnostic]:
    yield from check_identities(cluster)
    if any(server.mode == GEO for server in cluster.servers.values()):
        yield from _geo(cluster)
    elif cluster.servers:
        yield from _served(cluster)
    else:
        yield from check_rings(cluster)
        for part in cluster.parts:
            yield from check_meeting(part)
            yield from check_collectives(part)


def _served(cluster: Cluster) -> Iterator[Diagnostic]:
    """Jobs whose servers update the parameters."""
    trainers = len(cluster.trainers)
    for part in cluster.parts:
        for trainer in part:
            yield from check_receives(trainer, cluster)
            yield from check_lookups(trainer, cluster)
            yield from check_prefetches(trainer, cluster)
            yield from check_splits(trainer)
            yield from check_sends(trainer, cluster)
            yield from check_notices(trainer, cluster)
            yield from check_barriers(trainer, cluster.servers)
        yield from check_alike(part)
        for server in cluster.servers.values():
            yield from check_senders(server, trainers)
            yield from check_merges(server, trainers)
            yield from check_fetched(server, part)
            server.end_part()
    for server in cluster.servers.values():
        yield from check_fan_in(server, trainers)
        yield from check_awaited(server, trainers)
        yield from check_never_fetched(server)
        yield from check_server(server)
        yield from check_counters(server, trainers)
        yield from check_table_blocks(server)
        yield from check_backups(server, trainers)


def _geo(cluster: Cluster) -> Iterator[Diagnostic]:
    """Jobs whose trainers update the parameters and push what changed."""
    for trainer in cluster.trainers:
        yield from check_receives(trainer, cluster)
        yield from check_barriers(trainer, cluster.servers)
    yield from check_geo(cluster)
    for server in cluster.servers.values():
        yield from check_fan_in(server, len(cluster.trainers))
        server.sent.update(server.outside)
        yield from check_server(server)
