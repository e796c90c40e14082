"""Positions of ops in a compiled job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pstranspile.ir.model import Op, Program


class Place(NamedTuple):
    """The position of an op: machine, program, block, and index within the block."""

    machine: str
    program: str
    block: int
    number: int

    def __str__(self) -> str:
        """`trainer_0 @main^0#17`."""
        return f"{self.machine} @{self.program}^{self.block}#{self.number}"


def rule_of(op: Op) -> str:
    """The rule that made an op; empty for an op of the source."""
    return op.origin.rule if op.origin else ""


def ops_of(machine: str, programs: Mapping[str, Program]) -> Iterator[tuple[Place, Op]]:
    """Every op of a machine with its place, program by program."""
    for name, program in programs.items():
        for index, block in enumerate(program.blocks):
            for number, op in enumerate(block.ops):
                yield Place(machine, name, index, number), op
