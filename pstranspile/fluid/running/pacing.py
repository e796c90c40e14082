"""Steps of trainers in which nothing is exchanged: which these are, and what is run in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from pstranspile.cluster.machines.blocks import part_of
from pstranspile.compiler.emit.rules import AVERAGE_PARAMETERS, SUM_DIFFERENCES, WAIT_SUMS
from pstranspile.ir.model import Program

_AVERAGING = frozenset({AVERAGE_PARAMETERS, SUM_DIFFERENCES, WAIT_SUMS})


class Pace(NamedTuple):
    """How often trainers exchange: in each step up to `begin_step`, and then in every `k_steps`-th one after it."""

    k_steps: int
    begin_step: int = 0

    def exchanges(self, step: int) -> bool:
        """Whether trainers exchange in a step, counted from 1."""
        return step <= self.begin_step or (step - self.begin_step) % self.k_steps == 0


Between: TypeAlias = Callable[[Program], Program]
"""Gives what a trainer runs in a step without an exchange, of the program that it runs in the others."""


class Turned(NamedTuple):
    """A job whose trainers run another program than the main one in most steps."""

    besides: Mapping[str, Program]
    """Such programs of the source, by name."""
    text: str
    """Which program each step of the source runs, as `check` takes it."""
    pace: Pace
    between: Between


def without_averages(program: Program) -> Program:
    """The program of a trainer that averages parameters, without what averages them: it updates its own."""
    ops = program.main_block.ops
    return part_of(program, [op for op in ops if op.origin is None or op.origin.rule not in _AVERAGING])
