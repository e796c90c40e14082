"""The trainer's start-up program: local initialisers, then every parameter as the servers hold it."""

from __future__ import annotations

from collections.abc import Container, Mapping

from pstranspile.emit.trainer import join_slices, receiver, without
from pstranspile.ir.attributes import Longs, Strings
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import STARTUP, Block, Op, Origin, Program, Slots, TensorType, Var
from pstranspile.ir.roles import OpRole
from pstranspile.ops.build import make_op
from pstranspile.plan.plan import Plan
from pstranspile.rules import NO_MEMORY, RECEIVE_FIRST, START_BARRIER, made, made_of_program

_AT_ONCE: Slots = FrozenMap({"X": ()})
"""The inputs of a recv that waits for nothing."""


def emit_trainer_startup(
    plan: Plan, dropped: frozenset[str], declared: Mapping[str, Var], startup: Program, trainer: int
) -> Program:
    """The start-up program of one trainer (A2.83 to A2.86).

    Initialisers of what left with the updates are dropped; those of parameters stay and are overwritten by what
    is received. Tables that stay on the servers get their dims only. The closing fetch_barrier is the first one the
    synchronous servers wait for (A2.85). `dropped` are the variables that left, `declared` those of the main program.
    """
    block = startup.main_block
    tables = {parameter.name: parameter.shape for parameter in plan.parameters if parameter.prefetched}
    if plan.table is not None:
        tables[plan.table.name] = plan.table.tensor.shape
    gone = dropped.union(tables) if tables else dropped
    ops, makers = _kept(block, gone, {**dict.fromkeys([p.name for p in plan.parameters]), **tables})
    variables = without(block.vars, dropped)
    fetched = [parameter for parameter in plan.parameters if not parameter.prefetched]
    for parameter in fetched:
        for s in parameter.slices:
            if s.name not in variables:
                source = declared[parameter.name]
                whole = source._replace(location=None)
                variables[s.name] = (
                    Var(s.name, tensor=TensorType(parameter.dtype, s.shape)) if parameter.is_cut else whole
                )
        receive = receiver(tuple([s.endpoint for s in parameter.slices]), trainer)
        names = tuple([s.name for s in parameter.slices])
        ops.append(receive(_AT_ONCE, {"Out": names}, origin=made(makers.get(parameter.name), RECEIVE_FIRST)))
    variables[plan.startup_control] = Var(plan.startup_control)
    barrier = make_op(
        "fetch_barrier",
        {"X": []},
        {"Out": [plan.startup_control]},
        {"endpoints": Strings(plan.pservers), "trainer_id": trainer},
        role=OpRole.RPC,
        origin=made_of_program(startup, START_BARRIER, STARTUP),
    )
    ops.append(barrier)
    for parameter in fetched:
        if parameter.is_cut:
            if parameter.name not in variables:
                variables[parameter.name] = declared[parameter.name]
            ops.append(join_slices(parameter, OpRole.FORWARD, makers.get(parameter.name)))
    ops += (_without_memory(name, shape, made(makers.get(name), NO_MEMORY)) for name, shape in tables.items())
    return startup._replace(blocks=(block._replace(vars=FrozenMap(variables), ops=tuple(ops)), *startup.blocks[1:]))


def _kept(block: Block, gone: Container[str], received: Container[str]) -> tuple[list[Op], dict[str, Origin | None]]:
    """The ops that make none of the variables in `gone`; and by variable in `received`, where its maker comes from."""
    kept: list[Op] = []
    origin_of: dict[str, Origin | None] = {}
    for op in block.ops:
        lost = False
        for names in op.outputs.values():
            for name in names:
                if name in received:
                    origin_of[name] = op.origin
                if name in gone:
                    lost = True
        if not lost:
            kept.append(op)
    return kept, origin_of


def _without_memory(table: str, shape: tuple[int, ...], origin: Origin) -> Op:
    """Gives a table that stays on the servers its dims, and no memory (A2.62, A2.87)."""
    return make_op("fake_init", {}, {"Out": [table]}, {"shape": Longs(shape)}, origin=origin)
