"""How much went where: messages and bytes by server and variable, and how stale gradients were."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.cluster.machines.message import REPLY, SEND
from pstranspile.cluster.machines.pictures.recorder import DELIVER, LOST, POST, Event, Recorder


class Traffic(NamedTuple):
    """The messages between a server and the trainers about one variable ("" for messages that are about none).

    `stalest` is the largest number of updates of a variable that the server made between two moments: when a trainer
    was last answered by this server, and when the server took the trainer's next gradient. 0 where servers wait for all
    trainers before an update. -1 where the variable is no gradient.
    """

    server: str
    variable: str
    to_server: int
    bytes_to_server: int
    from_server: int
    bytes_from_server: int
    lost: int
    stalest: int


class _Row:
    def __init__(self) -> None:
        self.inward = [0, 0]
        self.outward = [0, 0]
        self.lost = 0
        self.stalest = -1


def traffic_of(recorder: Recorder, servers: tuple[str, ...]) -> list[Traffic]:
    """The traffic of a run, by server and variable, the largest first."""
    rows: dict[tuple[str, str], _Row] = {}
    taken: dict[tuple[str, str], int] = {}
    base: dict[tuple[str, str, int], int] = {}
    for event in recorder.events:
        server = next((name for name in (event.target, event.source) if name in servers), "")
        if not server:
            continue
        row = rows.setdefault((server, event.variable), _Row())
        if event.what == LOST:
            row.lost += 1
        if event.what == POST:
            counts = row.inward if event.target == server else row.outward
            counts[0] += 1
            counts[1] += event.bytes
        if event.what == (POST if event.kind == REPLY else DELIVER):
            _note_staleness(event, server, row, taken, base, together=recorder.together)
    result = [
        Traffic(server, name, row.inward[0], row.inward[1], row.outward[0], row.outward[1], row.lost, row.stalest)
        for (server, name), row in rows.items()
    ]
    return sorted(result, key=lambda item: (item.server, -item.bytes_to_server - item.bytes_from_server, item.variable))


def _note_staleness(
    event: Event,
    server: str,
    row: _Row,
    taken: dict[tuple[str, str], int],
    base: dict[tuple[str, str, int], int],
    *,
    together: bool,
) -> None:
    """Counts the updates of a server between answering a trainer and taking that trainer's next gradient: one for each
    gradient that it took, or, where those of all trainers go `together` into one update, for each step.
    """
    if event.kind == SEND and event.target == server:
        name = event.variable.removesuffix(f".trainer_{event.trainer}")
        count = event.step if together else taken.get((server, name), 0)
        row.stalest = max(row.stalest, count - base.get((server, name, event.trainer), count if together else 0), 0)
        taken[server, name] = count + 1
        base[server, name, event.trainer] = count + 1
    elif event.kind == REPLY and event.source == server:
        for (place, name), count in taken.items():
            if place == server:
                base[server, name, event.trainer] = count


def traffic_table(rows: list[Traffic]) -> str:
    """The traffic as a table."""
    width = max((len(row.variable or "(barriers and the like)") for row in rows), default=8)
    lines: list[str] = []
    server = None
    for row in rows:
        if row.server != server:
            server = row.server
            lines.append(
                f"{server:<{width + 2}}{'sent':>9}{'bytes':>12}{'answered':>10}{'bytes':>12}{'lost':>6}{'stale':>7}"
            )
        name = row.variable or "(barriers and the like)"
        stale = "" if row.stalest < 0 else str(row.stalest)
        lines.append(
            f"  {name:<{width}}{row.to_server:>9}{row.bytes_to_server:>12}{row.from_server:>10}"
            f"{row.bytes_from_server:>12}{row.lost:>6}{stale:>7}".rstrip()
        )
    return "\n".join(lines) + "\n"
