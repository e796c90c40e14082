"""Small jobs for fuzz tests of clusters, and how many cases are drawn."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pstranspile as ps
from pstranspile.compiler.compile import Compiled
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adam, Momentum, minimize
from pstranspile.ir.model import Module
from pstranspile.proof.values import make_feeds

NIGHTLY = os.environ.get("PSTRANSPILE_NIGHTLY", "") not in ("", "0")
"""Whether as many cases are drawn as a night allows (CONTRIBUTING.md)."""


def cases(usual: int, nightly: int) -> int:
    return nightly if NIGHTLY else usual


@cache
def model(kind: str) -> Module:
    draft = L.Draft(seed=3)
    if kind == "sparse":
        words = L.embedding(L.data(draft, "ids", [-1, 1], "i64", lod_level=1), (30, 4), is_sparse=True)
        hidden, optimizer = L.sequence_pool(words, "sum"), SGD(0.1)
    elif kind == "distributed":
        words = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (30, 4), is_sparse=True, is_distributed=True)
        hidden, optimizer = words, SGD(0.1)
    elif kind == "embedding":
        hidden, optimizer = (
            L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (30, 4), is_sparse=True),
            Momentum(0.1, 0.9),
        )
    else:
        hidden = L.fc(L.data(draft, "x", [-1, 6]), 8, act="tanh")
        optimizer = Adam(0.01) if kind == "adam" else SGD(0.1)
    minimize(L.mean(L.square_error_cost(L.fc(hidden, 1), L.data(draft, "y", [-1, 1]))), optimizer)
    return draft.module()


@cache
def compiled(kind: str, trainers: int, servers: int, mode: str = "sync", **settings: Any) -> Compiled:
    if mode in ("grad-allreduce", "local-sgd", "nccl2"):
        job = ps.Job(trainer_endpoints=tuple(f"t{i}:1" for i in range(trainers)), mode=mode)
    else:
        job = ps.Job(pservers=servers, trainers=trainers, mode=mode, min_block_size=4, **settings)
    return ps.compile(model(kind), job)


@cache
def feeds(kind: str, trainers: int, steps: int) -> dict[str, Any]:
    return make_feeds(model(kind).main, steps, 2 * trainers, 1)
