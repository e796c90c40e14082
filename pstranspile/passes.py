"""The named steps of a compile, in order, and the hook that lets others time and print them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class PassInfo(NamedTuple):
    """Name of a pass and, in a sentence, what it does."""

    name: str
    doc: str


PASSES: tuple[PassInfo, ...] = (
    PassInfo("find-roles", "optimize-op discovery: updates, learning-rate ops, clips that stay on the trainer"),
    PassInfo("find-uses", "def-use of the main block: who writes and reads each variable"),
    PassInfo("find-updates", "parameter/gradient pairs; weight decay and clips attributed to their parameter"),
    PassInfo("find-lookup-table", "the distributed lookup table, dealt out by id"),
    PassInfo("group-updates", "union-find over the op graph of the updates: what must stay together"),
    PassInfo("find-tables", "sparse tables whose lookups are fetched from the servers, and where merged lookups go"),
    PassInfo("slice-variables", "cut parameters and gradients into row slices"),
    PassInfo("order-sends", "the order in which gradients are dealt out"),
    PassInfo("place-slices", "choose the server of every slice"),
    PassInfo("mint-names", "names of slices, sent gradients and control variables: the Plan"),
    PassInfo(
        "place-collectives", "modes without servers: what is summed over the trainers, after which op, on which ring"
    ),
    PassInfo("emit-trainers", "trainer programs: updates out, split, send, barriers, recv, concat in"),
    PassInfo("emit-trainer-startups", "trainer start-up programs: fetch every parameter from its servers"),
    PassInfo("emit-pservers", "server programs: listen_and_serv, learning-rate block, a block per update"),
    PassInfo("emit-pserver-startups", "server start-up programs: initialise what each server holds"),
    PassInfo("link", "check that all emitted programs fit together"),
)
"""Every pass of a compile, in order."""

NAMES = tuple(info.name for info in PASSES)


class Observer(Protocol):
    """Told of every pass that has run: its name, what it gave, and how many seconds it took."""

    def __call__(self, name: str, result: object, seconds: float) -> None:
        """Called when a pass has ended."""
        ...


class Steps:
    """Runs passes by name and tells an observer."""

    def __init__(self, observer: Observer | None = None):
        self._observer = observer

    def run(self, name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`function(*args)`, as the pass called `name`. Raises KeyError for a name that is not in PASSES."""
        if name not in NAMES:
            raise KeyError(name)
        if self._observer is None:
            return function(*args, **kwargs)
        start = time.perf_counter()
        result = function(*args, **kwargs)
        self._observer(name, result, time.perf_counter() - start)
        return result
