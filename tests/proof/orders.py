"""Whether servers without barriers might have taken messages in the order in which they did.

What comes of a step is fixed by the order in which each slice meets the messages that concern it. Messages of one
trainer that concern one slice come in the order in which it sends them, and those of a step before those of the next.
Within a step, what a trainer looks up and sends keeps its order; but it asks for a parameter as soon as that
parameter's own gradient is sent: by the control variables that it reads, `recv` waits for no more. All else may happen.
So an order may be taken if, together with this, it goes round in no circle.
"""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, TypeAlias

from pstranspile.cluster.machines.message import GET, GET_NOW, GET_ROWS, LOOKUP, NOTIFY, SEND, Message
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.model import Module
from pstranspile.proof.replays import replay_of
from pstranspile.proof.training import start_cluster
from pstranspile.proof.values import make_feeds
from pstranspile.proof.workload import CheckInput, Workload

ASKING = (GET, GET_NOW, GET_ROWS)
CONCERNING = (SEND, *ASKING, LOOKUP, NOTIFY)

Taken: TypeAlias = "tuple[int, str, str, str, int]"
"""A message by its trainer, kind, server and variable, and how many like it that trainer has sent before."""


Sent: TypeAlias = "dict[tuple[int, int], list[tuple[Taken, Any]]]"
"""The messages of each trainer and step, in the order in which they are sent, each with the slice that it concerns."""


def _messages(module: Module, made: Compiled, workload: Workload, feeds: Any) -> tuple[dict[Any, list[Taken]], Sent]:
    """The messages that concern each slice in the order in which they are taken, and as they were sent."""
    given = CheckInput(module, made, workload, feeds, {}, 5)
    cluster = start_cluster(given)
    replay: Any = replay_of(given, cluster)
    slices = {place: (o.server, o.slice.name) for place, (_, o) in replay.sent_slices.items()}
    taken: dict[Any, list[Taken]] = {}
    sent: Sent = {}
    counts: Counter[tuple[str, Any]] = Counter()

    def watch(event: str, message: Message) -> None:
        if message.kind in CONCERNING and event in ("post", "deliver"):
            key = message.trainer, message.kind, message.target, message.variable
            number = counts[event, key]
            counts[event, key] += 1
            place = message.target, message.variable
            about = message.target if message.kind == NOTIFY else slices.get(place, place)
            if event == "post":
                sent.setdefault((message.trainer, message.step), []).append(((*key, number), about))
            else:
                taken.setdefault(about, []).append((*key, number))

    cluster.network.observe(watch)
    cluster.start()
    cluster.run_to(workload.steps)
    cluster.finish()
    return taken, sent


def may_be_taken(made: Compiled, changed: Compiled, module: Module, turns: str | None, steps: int) -> bool:
    """Whether the servers of a compile might take the messages that those of a changed one take, in that order."""
    workload = Workload(module, turns, steps)
    given = {
        name: make_feeds(program, len(workload.steps_of(name)), 3 * made.plan.trainers, 77)
        for name, program in workload.programs.items()
    }
    _, sent = _messages(module, made, workload, workload.merge_feeds(given))
    taken, others = _messages(module, changed, workload, workload.merge_feeds(given))
    if {t: Counter(messages) for t, messages in sent.items()} != {t: Counter(m) for t, m in others.items()}:
        return False
    graph: TopologicalSorter[Any] = TopologicalSorter()
    for order in taken.values():
        _one_after_the_other(graph, order)
    for (trainer, step), messages in sent.items():
        _one_after_the_other(graph, [m for m, _ in messages if m[1] not in ASKING])
        for about in {about for _, about in messages}:
            _one_after_the_other(graph, [m for m, other in messages if other == about])
        for message, _ in messages:
            graph.add(message, (trainer, step))
            graph.add((trainer, step + 1), message)
    try:
        graph.prepare()
    except CycleError:
        return False
    return True


def _one_after_the_other(graph: TopologicalSorter[Any], order: list[Taken]) -> None:
    for first, second in pairwise(order):
        graph.add(second, first)
