"""The step counter of a learning-rate schedule in modes whose servers get no barriers.

Every trainer keeps a counter of its own, sends it to all servers each step, and the schedule on a server runs on
the sum of what came in.
"""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.compiler.analysis.roles import find_roles
from pstranspile.compiler.emit.rules import SHARE_COUNTER, START_COUNTER, made
from pstranspile.compiler.plan.names import CONTROL, NameMint, trainer_suffix
from pstranspile.compiler.plan.plan import SharedCounter
from pstranspile.ir.attributes import Longs
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Module, Op, Program
from pstranspile.ir.roles import OpRole
from pstranspile.ops.build import make_op


def share_step_counters(module: Module, trainers: int) -> tuple[Module, tuple[SharedCounter, ...]]:
    """The module with each schedule's `increment` replaced by the sum of one counter per trainer.

    The shared counter starts at minus the number of trainers and each trainer's own at 1, as Fluid sets them; the
    counters are listed in program order. A module without such a schedule comes back as it is.
    """
    block = module.main.main_block
    counters: list[SharedCounter] = []
    ops = list(block.ops)
    mint = NameMint(name for b in module.main.blocks for name in b.vars)
    for index in find_roles(block).learning_rate:
        op, name = ops[index], ops[index].output("Out")
        if op.type != "increment" or name is None or name not in block.vars:
            continue
        own = tuple(mint.mint(name + trainer_suffix(i)) for i in range(trainers))
        counters.append(SharedCounter(name, own, mint.mint(CONTROL + name), op.origin))
        origin = made(op.origin, SHARE_COUNTER)
        ops[index] = make_op("sum", {"X": own}, {"Out": [name]}, role=OpRole.LR_SCHED, origin=origin)
    if not counters:
        return module, ()
    main = _declare(module.main, module.main, counters, ops)
    startup = _declare(module[STARTUP], module.main, counters, _initialised(module, counters))
    return module.with_programs({MAIN: main, STARTUP: startup}), tuple(counters)


def _declare(program: Program, main: Program, counters: Sequence[SharedCounter], ops: Sequence[Op]) -> Program:
    """The program with these ops in block 0 and every trainer's counters declared."""
    block = program.main_block
    variables = dict(block.vars)
    for counter in counters:
        shared = main.main_block.vars[counter.name]
        variables.update((name, shared._replace(name=name, location=None)) for name in counter.own)
    return program.with_main_block(block._replace(vars=FrozenMap(variables), ops=tuple(ops)))


def _initialised(module: Module, counters: Sequence[SharedCounter]) -> list[Op]:
    """The start-up ops: own counters set to 1 first, the shared ones to minus the number of trainers."""
    shared = {counter.name: counter for counter in counters}
    ops: list[Op] = []
    for counter in counters:
        tensor = module.main.main_block.vars[counter.name].tensor
        assert tensor is not None
        attrs = {"shape": Longs(tensor.shape), "dtype": tensor.dtype.value, "value": 1.0}
        origin = made(counter.origin, START_COUNTER)
        own = (make_op("fill_constant", {}, {"Out": [name]}, attrs, origin=origin) for name in reversed(counter.own))
        ops = [*(op._replace(inputs=FrozenMap()) for op in own), *ops]
    for op in module[STARTUP].main_block.ops:
        counter = shared.get(op.output("Out") or "")
        if counter is not None and op.type == "fill_constant":
            attrs = FrozenMap({**op.attrs, "value": -float(len(counter.own))})
            op = op._replace(attrs=attrs, origin=made(op.origin, START_COUNTER))
        ops.append(op)
    return ops
