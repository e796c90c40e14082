"""Scenarios that seeds give."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from pstranspile.cluster.machines.faults.scenario import (
    NOTICE,
    Crash,
    Event,
    Late,
    Leave,
    Partition,
    Rejoin,
    Scenario,
    Slow,
)


def random_scenario(
    seed: int, trainers: Sequence[str], servers: Sequence[str], steps: int, *, fatal: bool = False
) -> Scenario:
    """A scenario that a seed gives: faults of messages, and a few of machines.

    With `fatal`, one of its events can't be got over: a crash that nobody notices, a server that is not started again,
    or a partition that does not end.
    """
    draw = random.Random(f"scenario {seed}")
    events = list(_random_events(draw, trainers, servers, steps))
    if fatal:
        events.append(_fatal_event(draw, trainers, servers, steps))
    return Scenario(
        seed=seed,
        delay=draw.choice((0.0, 0.1, 0.4)),
        ticks=(1, draw.choice((4, 20, 80))),
        drop=draw.choice((0.0, 0.05, 0.3)),
        duplicate=draw.choice((0.0, 0.05, 0.3)),
        keep=draw.choice((1, 1, 2, 3)),
        events=tuple(events),
    )


def _random_events(draw: random.Random, trainers: Sequence[str], servers: Sequence[str], steps: int) -> Iterator[Event]:
    departing = draw.sample(trainers, draw.randint(0, len(trainers))) if draw.random() < 0.6 else []
    for name in trainers:
        if draw.random() < 0.15:
            yield Late(name, draw.randint(1, 200))
        if draw.random() < 0.15:
            yield Slow(name, draw.randint(1, 40))
        if name not in departing:
            continue
        step = draw.randint(1, steps)
        if draw.random() < 0.3:
            yield Leave(name, step)
        else:
            yield Crash(name, step, draw.randrange(8), draw.choice((1, NOTICE, 300)))
        if draw.random() < 0.6:
            yield Rejoin(name, draw.randint(step + 1, steps + 1))
    for name in servers:
        if draw.random() < 0.25:
            yield Crash(name, draw.randint(1, steps), draw.randrange(12), restart=draw.choice((1, 30, 200)))
    machines = [*trainers, *servers]
    if draw.random() < 0.2 and len(machines) > 1:
        one = draw.sample(machines, draw.randrange(1, len(machines)))
        since = draw.randrange(200)
        other = tuple(name for name in machines if name not in one)
        yield Partition(tuple(sorted(one)), other, since, since + draw.randint(1, 400))


def _fatal_event(draw: random.Random, trainers: Sequence[str], servers: Sequence[str], steps: int) -> Event:
    kind = draw.choice(("trainer", "server", "partition")) if servers else "trainer"
    step = draw.randint(1, steps - 1)
    if kind == "trainer":
        return Crash(draw.choice(trainers), step, draw.randrange(6), notice=None)
    if kind == "server":
        return Crash(draw.choice(servers), step, draw.randrange(6), notice=None)
    return Partition((draw.choice(trainers),), (draw.choice(servers),), draw.randrange(20))
