"""One small compiled job per mode, as the link check gets it, for tests that damage it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.compiler.link import LinkError, link
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adam, Exponential, minimize
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module, Role
from tests.compiler.link.damage import Damage
from tests.compiler.link.recorded import recorded

SERVERS = ["a:1", "b:2"]
MEETING = ["h:1", "h:2", "h:3", "h:4"]


def dense() -> Module:
    """Two layers with Adam; with `min_block_size=500` the weights of the first are cut in two."""
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, 20], "f32"), L.data(model, "y", [-1, 1], "f32")
    hidden = L.fc(x, 50, act="relu", param_attr="w", bias_attr="b")
    loss = L.mean(L.square_error_cost(L.fc(hidden, 1, param_attr="v", bias_attr="c"), y))
    minimize(loss, Adam(0.01))
    return model.module()


def decaying() -> Module:
    """One layer with SGD, whose rate decays with the steps."""
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, 1000], "f32"), L.data(model, "y", [-1, 1], "f32")
    loss = L.mean(L.square_error_cost(L.fc(x, 1, param_attr="w", bias_attr="b"), y))
    minimize(loss, SGD(Exponential(0.1, 10, 0.5)))
    return model.module()


def several() -> Module:
    """Two training programs that share the first layer, and one that only reads it."""
    training, second, reading = shared(1, train=True), shared(2, train=True), shared(1, train=False)
    startup, added = training[STARTUP], second[STARTUP].main_block
    first = startup.main_block
    made = {name for op in first.ops for name in op.output_names}
    ops = (*first.ops, *(op for op in added.ops if made.isdisjoint(op.output_names)))
    block = first._replace(vars=FrozenMap({**added.vars, **first.vars}), ops=ops)
    programs = {MAIN: training.main, STARTUP: startup._replace(blocks=(block,)), "second": second.main}
    return Module(FrozenMap({**programs, "reading": reading.main}))


def shared(number: int, *, train: bool) -> Module:
    """Two layers, of which the second has the number in its parameters' names."""
    model = L.Draft(seed=1)
    ids, y = L.data(model, "ids", [-1, 1], "i64"), L.data(model, "y", [-1, 1], "f32")
    rows = L.embedding(ids, (200, 8), is_sparse=True, param_attr="table")
    hidden = L.fc(rows, 20, act="relu", param_attr="w", bias_attr="b")
    loss = L.mean(L.square_error_cost(L.fc(hidden, 1, param_attr=f"v{number}", bias_attr=f"c{number}"), y))
    if train:
        minimize(loss, SGD(0.1))
    return model.module()


def lookups(*, is_distributed: bool = False) -> Module:
    """Two lookups of one sparse table."""
    model = L.Draft(seed=1)
    first, second = L.data(model, "first", [-1, 1], "i64"), L.data(model, "second", [-1, 1], "i64")
    y = L.data(model, "y", [-1, 1], "f32")
    rows = [
        L.embedding(ids, (200, 8), is_sparse=True, is_distributed=is_distributed, param_attr="table")
        for ids in (first, second)
    ]
    loss = L.mean(L.square_error_cost(L.fc(L.concat(rows, axis=1), 1, param_attr="w", bias_attr="b"), y))
    minimize(loss, SGD(0.1))
    return model.module()


def _served(module: Callable[[], Module], **settings: object) -> Callable[[], tuple[Module, Job]]:
    return lambda: (module(), Job(SERVERS, 2, min_block_size=500, **settings))  # pyright: ignore[reportArgumentType]


def _meeting(trainers: int, **settings: object) -> Callable[[], tuple[Module, Job]]:
    return lambda: (dense(), Job(trainers=MEETING[:trainers], **settings))  # pyright: ignore[reportArgumentType]


JOBS: dict[str, Callable[[], tuple[Module, Job]]] = {
    "sync": _served(dense),
    "async": _served(decaying, mode="async"),
    "run-time split": _served(decaying, mode="async", runtime_split_send_recv=True),
    "half-async": _served(dense, mode="half-async", runtime_split_send_recv=True),
    "fleet sync": _served(
        dense, sync_mode=False, runtime_split_send_recv=True, half_async=True, completely_not_async=True
    ),
    "sparse": _served(lookups),
    "sparse, run-time split": _served(lookups, mode="async", runtime_split_send_recv=True),
    "table by id": _served(lambda: lookups(is_distributed=True)),
    "table by id, async": _served(lambda: lookups(is_distributed=True), mode="async"),
    "dc-asgd": _served(dense, mode="async", enable_dc_asgd=True),
    "several programs": _served(several),
    "several programs, async": _served(several, mode="async"),
    "nccl2": _meeting(
        4, mode="nccl2", nccl_comm_num=2, use_hierarchical_allreduce=True, hierarchical_allreduce_inter_nranks=2
    ),
    "grad-allreduce": _meeting(3, mode="grad-allreduce", nccl_comm_num=2),
    "local-sgd": _meeting(2, mode="local-sgd"),
}
"""What to compile, by a name for the mode."""


@cache
def roles(name: str) -> dict[str, Role]:
    """The programs of a job, by role: one of JOBS, or a recorded one."""
    if name not in JOBS:
        return recorded(name)
    module, job = JOBS[name]()
    return compile(module, job).roles()


class Case(NamedTuple):
    """A damage to one machine of a job, and the finding: its code, the machine it names, op and variable."""

    job: str
    role: str
    damage: Damage
    code: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.job}, {self.role}: {self.code} {self.text}"


def assert_found(case: Case) -> None:
    """The damage is found, under its code, and the finding names the machine, the op and the variable."""
    machines = dict(roles(case.job))
    machines[case.role] = case.damage(machines[case.role])
    with pytest.raises(LinkError) as found:
        link(machines.values())
    said = [(finding.code, finding.message) for finding in found.value.diagnostics]
    assert [text for code, text in said if code == case.code and f"in {case.place}:" in text and case.text in text], (
        said
    )
