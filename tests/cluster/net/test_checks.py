"""What servers of all kinds do not take: a message that does not fit changes nothing, and its trainer is named."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.net.checks import Checks
from pstranspile.ir.table_rules import most_rows
from pstranspile.runtime.large.table import LargeTable
from pstranspile.runtime.values import SelectedRows

ROOT = Path(__file__).parents[3]
LARGE, DECAY, CTR = "golden/large_table.ir", "golden/exponential_decay.ir", "examples/ctr_dnn.ir"


@cache
def compiled(program: str, mode: str) -> Any:
    options = {"large_tables": ["words enter_after=2"]} if program == LARGE else {}
    return ps.compile(ps.load(ROOT / program), ps.Job(pservers=1, trainers=2, mode=mode, **options))


class Served:
    """The server of a job that listens, and whom it has refused."""

    def __init__(self, program: str, mode: str):
        result = compiled(program, mode)
        self.cluster = Cluster(dict(result.roles()), seed=1, distributed_vars=result.distributed_vars)
        self.cluster.begin(self.cluster.servers, [])
        self.server: Server = self.cluster.servers[0]
        self.refused: list[tuple[int, str]] = []
        Checks(self.server, self.cluster.trainers, lambda _: False, lambda *about: self.refused.append(about))

    def say(self, kind: str, variable: str = "", payload: Any = None, trainer: int = 1) -> None:
        link = self.cluster.network.link(self.cluster.trainers[trainer], self.server, trainer)
        link.post(kind, 0, variable, payload, 0)
        self.cluster.scheduler._ready_machines.clear()  # pyright: ignore[reportPrivateUsage]
        self.server.is_scheduled = False
        self.server.receive_all()

    def held(self) -> dict[str, Any]:
        return {name: np.array(value) for name, value in self.server.scope.items() if isinstance(value, np.ndarray)}


def rows(count: int, width: int, height: int, first: int = 0) -> SelectedRows:
    return SelectedRows(np.arange(first, first + count), np.ones((count, width), "float32"), height)


Said = Callable[[Served], tuple[str, str, Any]]
"""What is said of a server: a kind, a variable and a payload."""


def first(served: Served, kind: type) -> tuple[str, Any]:
    return next((n, v) for n, v in sorted(served.server.scope.items()) if isinstance(v, kind))


def gradient(served: Served, change: Callable[[Any], Any]) -> tuple[str, str, Any]:
    """A gradient of this trainer's, changed."""
    server = served.server
    names = [
        name
        for name in sorted(server.receivable_variables)
        if not name.endswith(".trainer_0") and "LR_DECAY" not in name
    ]
    var = server.main.main_block.vars[names[0]]
    if var.kind.name == "SELECTED_ROWS":
        return kinds.SEND, names[0], change(rows(2, var.shape[1], var.shape[0]))
    return kinds.SEND, names[0], change(np.ones(var.shape, "float32"))


def scaled(value: Any, dtype: str) -> Any:
    if isinstance(value, SelectedRows):
        return value._replace(value=value.value.astype(dtype))
    return value.astype(dtype)


def any_ids(value: Any) -> Any:
    """The gradient as that of a table that has a row for every id."""
    if not isinstance(value, SelectedRows):
        return SelectedRows(np.array([-1]), np.ones((1, 4), "float32"), most_rows(4))
    return value._replace(rows=-1 - value.rows, height=most_rows(value.value.shape[1]))


SAID: dict[str, Said] = {
    "a counter of float": lambda _: (kinds.NOTIFY, "@LR_DECAY_COUNTER@.trainer_1", np.array([1.0])),
    "a counter of int32": lambda _: (kinds.NOTIFY, "@LR_DECAY_COUNTER@.trainer_1", np.array([1], "int32")),
    "two counters": lambda _: (kinds.NOTIFY, "@LR_DECAY_COUNTER@.trainer_1", np.array([1, 1])),
    "a counter backwards": lambda _: (kinds.NOTIFY, "@LR_DECAY_COUNTER@.trainer_1", np.array([-1])),
    "a counter too far": lambda _: (kinds.NOTIFY, "@LR_DECAY_COUNTER@.trainer_1", np.array([1 << 40])),
    "no counter at all": lambda _: (kinds.NOTIFY, "@LR_DECAY_COUNTER@.trainer_1", None),
    "an unknown counter": lambda _: (kinds.NOTIFY, "@NO_COUNTER@", np.array([1])),
    "a gradient of float64": lambda served: gradient(served, lambda value: scaled(value, "float64")),
    "a gradient as text": lambda served: gradient(served, lambda value: "ones"),
    "a gradient as nothing": lambda served: gradient(served, lambda value: None),
    "a gradient of any id": lambda served: gradient(served, any_ids),
    "an unknown gradient": lambda served: (kinds.SEND, "no@GRAD", gradient(served, lambda value: value)[2]),
    "an unknown variable": lambda _: (kinds.GET, "nothing", None),
    "changed rows of nothing": lambda _: (kinds.GET_ROWS, "nothing", None),
    "a table that is none": lambda _: (kinds.LOOKUP, "nothing", np.array([0])),
    "an unknown prefetch": lambda _: (kinds.PREFETCH, "ids", np.array([[0]])),
    "a save": lambda _: (kinds.CHECKPOINT, "table", 7),
    "a shrink": lambda _: (kinds.SHRINK, "nothing", 1),
    "a barrier with a program": lambda _: (kinds.SEND_BARRIER, "", "other"),
    "a reply": lambda _: (kinds.REPLY, "w", np.ones(1)),
}


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize(
    ("program", "mode"),
    [(DECAY, "async"), (CTR, "sync"), (CTR, "async"), (CTR, "geo"), (LARGE, "sync"), (LARGE, "async")],
)
def test_nothing_changes_and_the_trainer_is_named(program: str, mode: str, name: str) -> None:
    served = Served(program, mode)
    before = served.held()
    served.say(*SAID[name](served))
    assert [trainer for trainer, _ in served.refused] == [1]
    after = served.held()
    assert before.keys() == after.keys()
    for variable, value in before.items():
        np.testing.assert_array_equal(value, after[variable], err_msg=variable)
    served.say(kinds.GET, first(served, np.ndarray)[0], trainer=0)  # the other one is served
    assert [trainer for trainer, _ in served.refused] == [1]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ids_and_requests_of_large_tables(mode: str) -> None:
    served = Served(LARGE, mode)
    name, table = first(served, LargeTable)
    for kind, payload in (
        (kinds.LOOKUP, np.array([-1])), (kinds.LOOKUP, np.array([table.height])), (kinds.LOOKUP, np.array([0.5])),
        (kinds.SHRINK, 0), (kinds.SHRINK, -1), (kinds.SHRINK, True), (kinds.SHRINK, "all"), (kinds.SHRINK, 1 << 40),
    ):  # fmt: skip
        one = Served(LARGE, mode)
        one.say(kind, name, payload)
        assert [trainer for trainer, _ in one.refused] == [1], (kind, payload)
    served.say(kinds.LOOKUP, name, np.array([0, table.height - 1]))
    assert not served.refused


def test_messages_after_a_refused_one_are_dropped_until_the_trainer_is_gone() -> None:
    served = Served(DECAY, "async")
    name = "@LR_DECAY_COUNTER@.trainer_1"
    before = int(served.server.scope[name][0])
    served.say(kinds.NOTIFY, name, "one")
    served.say(kinds.NOTIFY, name, np.array([1]))
    assert int(served.server.scope[name][0]) == before
    served.say(kinds.COMPLETE)
    assert served.server.live == {0}
    assert len(served.refused) == 1
