"""Small jobs, and clusters of them whose machines can be stopped and filled again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

import pstranspile as ps
from pstranspile.compiler.compile import Compiled
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import (
    SGD,
    Adagrad,
    Adam,
    Exponential,
    Ftrl,
    Momentum,
    RMSProp,
    minimize,
)
from pstranspile.ir.diagnostics import DiagnosticError
from tests.trained_clusters import Cluster

OPTIMIZERS = {
    "sgd": lambda: SGD(0.1),
    "momentum": lambda: Momentum(0.05, 0.9),
    "adam": lambda: Adam(0.01),
    "adagrad": lambda: Adagrad(0.05),
    "rmsprop": lambda: RMSProp(0.01, momentum=0.9, centered=True),
    "ftrl": lambda: Ftrl(0.1),
    "adam with decay": lambda: Adam(Exponential(0.02, 3, 0.5, staircase=True)),
}
BATCH = 8


@cache
def model(optimizer: str = "adam") -> ps.Module:
    """Two layers with batch normalisation between them, whose statistics differ from trainer to trainer."""
    draft = L.Draft(seed=3)
    x, y = L.data(draft, "x", [-1, 6]), L.data(draft, "y", [-1, 1])
    hidden = L.batch_norm(L.fc(x, 10, act="tanh"))
    minimize(L.mean(L.square_error_cost(L.fc(hidden, 1), y)), OPTIMIZERS[optimizer]())
    return draft.module()


def job(
    servers: int = 2, trainers: int = 2, optimizer: str = "adam", *, min_block_size: int = 4, **options: Any
) -> Compiled:
    endpoints = [f"ps{number}:6174" for number in range(servers)]
    return ps.compile(model(optimizer), ps.Job(endpoints, trainers, min_block_size=min_block_size, **options))


def feed(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    x = random.normal(size=(BATCH, 6)).astype("float32")
    return {"x": x, "y": np.sin(x.sum(1, keepdims=True)).astype("float32")}


def feeds(start: int, stop: int) -> list[dict[str, np.ndarray]]:
    return [feed(step) for step in range(start, stop)]


def machines(cluster: Cluster) -> dict[str, ps.Scope]:
    return {m.role.name: m.scope for m in (*cluster.servers.values(), *cluster.trainers)}


def started(compiled: Compiled, steps: int = 0) -> Cluster:
    cluster = Cluster(compiled)
    for one in feeds(0, steps):
        cluster.step(one)
    return cluster


def everything(scopes: dict[str, ps.Scope]) -> dict[tuple[str, str], bytes]:
    """All that the machines hold, to see whether anything changed."""
    return {
        (machine, name): b"".join(np.ascontiguousarray(part).tobytes() for part in _arrays(scope[name]))
        for machine, scope in scopes.items()
        for name in scope
    }


def _arrays(value: Any) -> Sequence[Any]:
    if isinstance(value, ps.SelectedRows):
        return [value.rows, value.value, np.array(value.height)]
    return [value.data] if isinstance(value, ps.LoDTensor) else [np.asarray(value)]


def spoil(scopes: dict[str, ps.Scope], layout: Any) -> None:
    """Fills everything that a checkpoint sets with other numbers."""
    for placed in layout.variables.values():
        for part in placed.holders:
            value = scopes[part.machine].get(part.name)
            if isinstance(value, np.ndarray):
                scopes[part.machine][part.name] = np.full_like(value, 77)


def codes(problem: DiagnosticError) -> set[str]:
    return {d.code for d in problem.diagnostics}


def files(problem: DiagnosticError) -> set[str]:
    return {d.location.file if d.location else "" for d in problem.diagnostics}
