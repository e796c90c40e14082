"""Step counters of learning-rate schedules on servers.

In the modes without barriers every trainer sends a counter of its own in each step, and a schedule begins with the sum
of these: `sum(counter.trainer_0, counter.trainer_1, ...) -> counter`. The start-up program sets the shared counter to
minus the number of trainers and every other one to 1. Fluid overwrites the former, so that its schedules are ahead of
the steps by the number of trainers (and stand still where communicators don't send counters). Here the value at the
start counts: the first steps of all trainers are step 0, as on one machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.cluster.machines.server import part_of
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.scope import Scope

AT_START = "@AT_START"
"""Ends the name of the variable that keeps what a shared counter was at the start."""


class SharedCounter(NamedTuple):
    """The op that adds up the trainers' counters, its place, and the names."""

    place: int
    op: Op
    shared: str
    own: tuple[str, ...]


def shared_counters(program: Program, scope: Scope) -> list[SharedCounter]:
    """The sums of trainers' counters among the ops of block 0: of persistable whole numbers that no op writes."""
    ops, variables = program.main_block.ops, program.main_block.vars
    written = {name for op in ops for name in op.output_names}
    result: list[SharedCounter] = []
    for place, op in enumerate(ops):
        own, shared = op.inputs.get("X", ()), op.output("Out")
        if op.type != "sum" or shared is None or shared in own or not own:
            continue
        names = (*own, shared)
        if any(name in written for name in own) or not all(_is_counter(scope.get(name)) for name in names):
            continue
        if all(name in variables and variables[name].persistable for name in names):
            result.append(SharedCounter(place, op, shared, tuple(own)))
    return result


def _is_counter(value: Value) -> bool:
    return value.__class__ is np.ndarray and value.size == 1 and value.dtype.kind == "i"


def count_notices(program: Program, scope: Scope) -> Program:
    """The program whose shared counters are what they were at the start plus what trainers have sent."""
    ops = list(program.main_block.ops)
    for place, op, shared, own in shared_counters(program, scope):
        start = shared + AT_START
        scope[start] = scope[shared]
        ops[place] = op._replace(inputs=FrozenMap({**op.inputs, "X": (start, *own)}))
    return part_of(program, ops)


def count_rounds(program: Program, rates: int, scope: Scope) -> Program:
    """The program of a synchronous server whose shared counters count updates.

    `rates`: the block of the learning rate, -1 if there is none.
    """
    if rates < 0:
        return program
    ops = list(program.main_block.ops)
    for place, op, shared, own in shared_counters(program, scope):
        first = scope[shared] + sum(scope[name] for name in own)
        scope[shared] = first - 1
        ops[place] = Op(
            "increment", FrozenMap({"X": (shared,)}), FrozenMap({"Out": (shared,)}), FrozenMap({"step": 1.0}),
            role=op.role, origin=op.origin,
        )  # fmt: skip
    return part_of(program, ops)
