"""The trainer's start-up program: local initialisers, then every parameter as the servers hold it."""

from __future__ import annotations

from collections.abc import Container, Mapping

from pstranspile.compiler.emit.rules import NO_MEMORY, RECEIVE_FIRST, START_BARRIER, made, made_of_program
from pstranspile.compiler.emit.trainer import join_slices, receiver, without
from pstranspile.compiler.plan.plan import Plan, PlannedParameter
from pstranspile.ir.attributes import Longs, Strings
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import STARTUP, Block, Op, Origin, Program, Slots, TensorType, Var
from pstranspile.ir.roles import OpRole
from pstranspile.ops.build import make_op

_AT_ONCE: Slots = FrozenMap({"X": ()})
"""The inputs of a recv that waits for nothing."""


class StartupTemplate:
    """The common part of the start-up programs of all trainers of a job: all but the recvs and the closing barrier.

    `kept` are the source's ops that stay, `last` those after the barrier, `variables` all that is declared.
    `received` has, for each parameter that is fetched, the servers, the outputs and the origin of its recv.
    """

    def __init__(self, plan: Plan, dropped: frozenset[str], declared: Mapping[str, Var], startup: Program):
        """`dropped` are the variables that left with the updates, `declared` those of the main program."""
        block = startup.main_block
        self.plan = plan
        self.startup = startup
        tables = {parameter.name: parameter.shape for parameter in plan.parameters if parameter.prefetched}
        if plan.table is not None:
            tables[plan.table.name] = plan.table.tensor.shape
        gone = dropped.union(tables) if tables else dropped
        self.kept, makers = _kept(block, gone, {**dict.fromkeys([p.name for p in plan.parameters]), **tables})
        variables = without(block.vars, dropped)
        fetched = [parameter for parameter in plan.parameters if not parameter.prefetched]
        self.received: list[tuple[tuple[str, ...], Slots, Origin]] = []
        for parameter in fetched:
            _declare_slices(parameter, declared, variables)
            outputs: Slots = FrozenMap({"Out": tuple([s.name for s in parameter.slices])})
            origin = made(makers.get(parameter.name), RECEIVE_FIRST)
            self.received.append((tuple([s.endpoint for s in parameter.slices]), outputs, origin))
        variables[plan.startup_control] = Var(plan.startup_control)
        self.last: list[Op] = []
        for parameter in fetched:
            if parameter.is_cut:
                variables.setdefault(parameter.name, declared[parameter.name])
                self.last.append(join_slices(parameter, OpRole.FORWARD, makers.get(parameter.name)))
        self.last += (_without_memory(name, shape, made(makers.get(name), NO_MEMORY)) for name, shape in tables.items())
        self.variables = FrozenMap(variables)


def emit_trainer_startup(template: StartupTemplate, trainer: int) -> Program:
    """The start-up program of one trainer.

    Initialisers of what left with the updates are dropped; those of parameters stay and are overwritten by what
    is received. Tables that stay on the servers get their dims only. The closing fetch_barrier is the first one the
    synchronous servers wait for.
    """
    startup, plan = template.startup, template.plan
    ops = list(template.kept)
    for endpoints, outputs, origin in template.received:
        ops.append(receiver(endpoints, trainer)(_AT_ONCE, outputs, origin=origin))
    barrier = make_op(
        "fetch_barrier",
        {"X": []},
        {"Out": [plan.startup_control]},
        {"endpoints": Strings(plan.pservers), "trainer_id": trainer},
        role=OpRole.RPC,
        origin=made_of_program(startup, START_BARRIER, STARTUP),
    )
    ops.append(barrier)
    ops += template.last
    main = startup.main_block._replace(vars=template.variables, ops=tuple(ops))
    return startup.with_main_block(main)


def _declare_slices(parameter: PlannedParameter, declared: Mapping[str, Var], variables: dict[str, Var]) -> None:
    """Declares what is received of a parameter, if the start-up program does not."""
    for s in parameter.slices:
        if s.name not in variables:
            if parameter.is_cut:
                variables[s.name] = Var(s.name, tensor=TensorType(parameter.dtype, s.shape))
            else:
                variables[s.name] = declared[parameter.name]._replace(location=None)


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
    """Gives a table that stays on the servers its dims, and no memory."""
    return make_op("fake_init", {}, {"Out": [table]}, {"shape": Longs(shape)}, origin=origin)
