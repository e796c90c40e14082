"""Trainers without servers: how they reach each other, and what they sum."""

from __future__ import annotations

from typing import NamedTuple


class Summed(NamedTuple):
    """A variable that all trainers sum over one ring, and the parameter it is a gradient, or the new value, of."""

    parameter: str
    variable: str
    ring: int


class Collective(NamedTuple):
    """How trainers without servers reach each other: Fluid's settings, and what is summed on which ring, in order."""

    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    summed: tuple[Summed, ...] = ()
