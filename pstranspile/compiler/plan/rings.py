"""Trainers without servers: how they reach each other, and what they sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


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

    @property
    def averaged(self) -> tuple[str, ...]:
        """The parameters whose own values trainers average, instead of their gradients."""
        return tuple(summed.parameter for summed in self.summed if summed.variable == summed.parameter)


def collective_json(collective: Collective | None, endpoints: Sequence[str]) -> dict[str, Any]:
    """The part of `plan.json` on trainers without servers: their endpoints, how they meet, what they sum. Else {}."""
    if collective is None:
        return {}
    settings = {**collective._asdict(), "summed": [summed._asdict() for summed in collective.summed]}
    return {"trainer_endpoints": list(endpoints), "collective": settings}


def collective_lines(collective: Collective | None, endpoints: Sequence[str]) -> list[str]:
    """Lines of a plan for the reader: the trainers, and what they sum on which ring, in the order of the sums.

    None of them can be edited: the job states the trainers, and the program the sums.
    """
    if collective is None:
        return []
    from pstranspile.ir.text.literals import name

    lines = [f"# trainer {number}: {endpoint}" for number, endpoint in enumerate(endpoints)]
    for ring in range(collective.nccl_comm_num):
        names = [f"%{name(summed.variable)}" for summed in reversed(collective.summed) if summed.ring == ring]
        lines += [f"# ring {ring} sums {' '.join(names)}"] if names else []
    return lines
