"""How large a frame of a trainer may be: the programs say which variables it sends, and most of them say their dims."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.script import exchanges_messages, values_of
from pstranspile.cluster.net.frames import MOST_BODY
from pstranspile.cluster.net.terms import MORE_HELD, MOST_HELD
from pstranspile.ir.model import Program, Var
from pstranspile.ir.types import VarKind
from pstranspile.runtime.values import NUMPY_TYPES

JOINED = 1 << 24
"""Bytes of messages that are sent in one frame, unless a single one has more."""


def most_sent(cluster: Cluster) -> int:
    """Bytes of the largest frame that a trainer of a job sends.

    Of a variable of known dims it sends as many bytes as it has; what it says of sums in another trainer's place may
    hold all of them. Rows of tables and variables of open dims have any number, up to those that a server keeps of
    messages that wait.
    """
    known: dict[str, int] = {}
    unknown = False
    for name, var in _sent(cluster):
        size = None if var is None else _size(var)
        if size is None:
            unknown = True
        else:
            known[name] = max(size, known.get(name, 0))
    total = sum(known.values())
    most = 2 * (JOINED + total) + (MOST_HELD + MORE_HELD * total if unknown else 0)
    return min(most, MOST_BODY)


def _sent(cluster: Cluster) -> Iterator[tuple[str, Var | None]]:
    """The variables that trainers exchange with others, as their programs and those of the servers declare them."""
    for trainer in cluster.trainers:
        for program in trainer.role.all:
            yield from _exchanged(program)
    for ring in cluster.rings.values():
        for name, known in ring.known.items():
            yield name, known.declared if known.fixed else None
    for server in cluster.servers:
        yield from server.main.main_block.vars.items()


def _exchanged(program: Program) -> Iterator[tuple[str, Var | None]]:
    for block in program.blocks:
        for op in block.ops:
            if exchanges_messages(op.type):
                for name in (name for names in values_of(op) for name in names):
                    yield name, block.vars.get(name, program.main_block.vars.get(name))


def _size(var: Var) -> int | None:
    """Bytes of a variable; None where its declaration leaves them open, as that of rows does."""
    if var.dtype is None or var.kind is not VarKind.LOD_TENSOR or min(var.shape, default=0) < 0:
        return None
    size = prod(var.shape) * np.dtype(NUMPY_TYPES[var.dtype]).itemsize
    return size if size <= MOST_BODY else None
