"""Trainers with wrong first values of what they are to be given at the start, which shows whether they are given it."""

from __future__ import annotations

from collections.abc import Set

from pstranspile.cluster.machines.ring_operations import plays_executor
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.attributes import AttrValue
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program, Role
from pstranspile.proof.halves import halves_of
from pstranspile.proof.workload import Workload

TAKING_OVER = frozenset({"recv", "concat", "c_broadcast"})
"""Op types by which a start-up program takes over what another machine started with."""


def with_wrong_starts(made: Compiled, workload: Workload) -> Compiled:
    """The job with trainers that initialise trained parameters with values of their own.

    In one process every machine draws the same initial values, on a real cluster without a seed each draws others.
    There trainers take over those of the servers, or of the first trainer, which keeps its own.
    """
    sound = made.with_roles({})
    trained = {name for half in halves_of(made, workload).values() for name in half.sent}
    roles: dict[str, Role] = {}
    for number in range(0 if made.plan.pservers else 1, made.plan.trainers):
        role, startup = made.trainer(number), sound.trainer(number).startup
        taken = {name for op in startup.main_block.ops if op.type in TAKING_OVER for name in op.output_names}
        given = trained if plays_executor(startup) else trained & taken
        roles[role.name] = role._replace(startup=_wrong(role.startup, given))
    return made.with_roles({**made.roles(), **roles})


def _wrong(startup: Program, names: Set[str]) -> Program:
    """The start-up program with other values of these variables by the time that values are taken over.

    What is made of them before is made of the first ones.
    """
    ops, made, taking = list[Op](), set[str](), False
    for op in startup.main_block.ops:
        if not taking and op.type in TAKING_OVER:
            ops += map(_other_value, sorted(made))
            taking = True
        ops.append(op)
        fresh = set(op.output_names) - set(op.input_names) if op.type not in TAKING_OVER else set[str]()
        made |= names & fresh
        ops += map(_other_value, sorted(names & fresh)) if taking else ()
    ops += () if taking else map(_other_value, sorted(made))
    block = startup.main_block._replace(ops=tuple(ops))
    return startup.with_main_block(block)


def _other_value(name: str) -> Op:
    attrs: dict[str, AttrValue] = {"scale": -0.5, "bias": 1.0, "bias_after_scale": True}
    return Op("scale", FrozenMap({"X": (name,)}), FrozenMap({"Out": (name,)}), FrozenMap(attrs))
