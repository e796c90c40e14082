"""The modes in which trainers without servers reach each other by collective operators (FEATURES 3b)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pstranspile.analysis import collective_codes as codes
from pstranspile.analysis.collective import Reduction, find_averages, find_reductions, is_left_out
from pstranspile.emit.family import Prepared, Programs
from pstranspile.emit.grad_allreduce import sum_gradients, wait_for_rings
from pstranspile.emit.local_sgd import average_parameters, snapshot_name, take_snapshot
from pstranspile.emit.rules import (
    BROADCAST,
    FIRST_SNAPSHOT,
    JOIN_DEVICES,
    JOIN_RING,
    WAIT_BROADCASTS,
    made,
    made_of_program,
)
from pstranspile.ir.attributes import Strings
from pstranspile.ir.diagnostics import Diagnostic, error, raise_errors
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import STARTUP, Module, Op, Origin, Program, Var
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import VarKind
from pstranspile.job import Job
from pstranspile.ops.build import make_op
from pstranspile.passes import Steps
from pstranspile.plan.names import NameMint
from pstranspile.plan.plan import DistributedVar, Plan
from pstranspile.plan.rings import Collective, Summed
from pstranspile.plan.without_servers import plan_without_servers

if TYPE_CHECKING:
    from pstranspile.plan.edited import PlanFile

LOCAL, ONE_PROCESS = "local-sgd", "single-process-multi-thread"


@dataclass(frozen=True)
class CollectiveJob:
    """The emitter of the collective modes. All trainers run one main program; start-up programs differ by rank."""

    module: Module
    plan: Plan
    reductions: tuple[Reduction, ...]
    steps: Steps

    @property
    def _rings(self) -> int:
        return self.plan.collective.nccl_comm_num if self.plan.collective else 1

    @cached_property
    def _main(self) -> Program:
        return self.steps.run("emit-trainers", self._emit_main)

    def _emit_main(self) -> Program:
        rewrite = average_parameters if self.plan.mode == LOCAL else sum_gradients
        return rewrite(self.module.main, self.reductions, self.plan.trainers, self._rings)

    @cached_property
    def _startup(self) -> StartupTemplate:
        main, source = self.module.main, self.module[STARTUP]
        known = {var.name for var in main.parameters()}.union(r.parameter for r in self.reductions)
        left_out = {v.name for p in (source, main) for v in p.parameters() if is_left_out(p, v.name)}
        left_out -= {
            v.name for v in main.parameters() if not is_left_out(main, v.name)
        }  # where they differ, @main says
        return StartupTemplate(source, self._rings, self.plan.mode, known, left_out)

    def trainer(self, index: int) -> Programs:
        """The programs of trainer `index`."""
        endpoints = self.plan.trainer_endpoints
        startup = self.steps.run("emit-trainer-startups", self._startup.of_trainer, index, endpoints)
        return Programs(self._main, startup)

    def pserver(self, endpoint: str) -> Programs:
        """There are no servers. Raises KeyError."""
        raise KeyError(endpoint)

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Nothing: there are no servers."""
        return ()


class StartupTemplate:
    """The start-up program of all trainers of a job but for what depends on the rank, worked out once."""

    def __init__(self, source: Program, rings: int, mode: str, known: Collection[str], left_out: Collection[str]):
        """`known` are parameters even where the start-up program declares them otherwise; `left_out` stay apart."""
        block = source.main_block
        variables = dict(block.vars)
        parameters = [var for var in variables.values() if var.parameter is not None or var.name in known]
        self.ids: tuple[str, ...] = ()
        if mode != ONE_PROCESS:
            mint = NameMint(name for block in source.blocks for name in block.vars)
            self.ids = tuple(mint.mint(f"nccl_id_{ring}") for ring in range(rings))
            variables.update((name, Var(name, VarKind.RAW, persistable=True)) for name in self.ids)
        shared = [var.name for var in parameters if var.name not in left_out]
        last = parameters[-1].name if parameters else None
        whole = made_of_program(source, "", STARTUP)
        makers = {name: op.origin for op in block.ops for name in op.output_names}
        self.closing: tuple[Op, ...] = ()
        if mode != ONE_PROCESS:
            self.closing = (*(_broadcast(name, i % rings, makers.get(name, whole)) for i, name in enumerate(shared)),)
            if last is not None:  # Fluid waits by the name its loop over the parameters ended on
                waits = wait_for_rings(last, rings, OpRole.FORWARD, made(whole, WAIT_BROADCASTS))
                self.closing += tuple(waits)
        if mode == LOCAL:
            for name in shared:
                var, snapshot = variables[name], snapshot_name(name)
                variables[snapshot] = Var(snapshot, var.kind, var.tensor, persistable=True)
            self.closing += tuple(
                take_snapshot(name, OpRole.FORWARD, made(makers.get(name, whole), FIRST_SNAPSHOT)) for name in shared
            )
        self.source = source
        self.whole = whole
        self.variables = FrozenMap(variables)

    def of_trainer(self, rank: int, endpoints: tuple[str, ...]) -> Program:
        """The start-up program of trainer `rank`: initialisers, rings, rank 0's parameters (A3.11, A3.12, A3.16)."""
        block = self.source.main_block
        if self.ids:
            rings = _join_rings(self.ids, rank, endpoints, made(self.whole, JOIN_RING))
        else:
            rings = (make_op("c_comm_init_all", {}, {}, origin=made(self.whole, JOIN_DEVICES)),)
        block = block._replace(vars=self.variables, ops=(*block.ops, *rings, *self.closing))
        return self.source._replace(blocks=(block, *self.source.blocks[1:]))


def _join_rings(ids: tuple[str, ...], rank: int, endpoints: tuple[str, ...], origin: Origin) -> tuple[Op, ...]:
    others = Strings(endpoints[:rank] + endpoints[rank + 1 :])
    ops: list[Op] = []
    for ring, name in enumerate(ids):
        attrs = {"rank": rank, "endpoint": endpoints[rank], "other_endpoints": others}
        ops.append(make_op("c_gen_nccl_id", {}, {"Out": [name]}, attrs, origin=origin))
        attrs = {"nranks": len(endpoints), "rank": rank, "ring_id": ring}
        ops.append(make_op("c_comm_init", {"X": [name]}, {}, attrs, origin=origin))
    return tuple(ops)


def _broadcast(parameter: str, ring: int, origin: Origin | None) -> Op:
    attrs = {"ring_id": ring, "root": 0}
    return make_op("c_broadcast", {"X": [parameter]}, {"Out": [parameter]}, attrs, origin=made(origin, BROADCAST))


def prepare_collective(module: Module, job: Job, plan: Plan | PlanFile | None, steps: Steps) -> Prepared:
    """The plan of a job in a collective mode: what is summed on which ring. Raises DiagnosticError."""
    rings = 1 if job.mode == ONE_PROCESS else job.nccl_comm_num
    find = find_averages if job.mode == LOCAL else find_reductions
    reductions, findings = steps.run("place-collectives", find, module.main, rings)
    if job.mode == LOCAL:
        findings += _name_problems(module, reductions)
    raise_errors(findings)
    collective = Collective(rings, summed=tuple(Summed(r.parameter, r.variable, r.ring) for r in reductions))
    plan = plan_without_servers(module, job, plan, collective)
    return Prepared(plan, CollectiveJob(module, plan, reductions, steps), tuple(findings))


def _name_problems(module: Module, averages: tuple[Reduction, ...]) -> list[Diagnostic]:
    """Errors for variables of the program that have the name of a snapshot."""
    named = [average.parameter for average in averages]
    known = {var.name for program in (module.main, module[STARTUP]) for var in program.parameters()}
    named += [name for name in module[STARTUP].main_block.vars if name in known]
    taken = {name for program in module.programs.values() for block in program.blocks for name in block.vars}
    return [
        error(
            codes.NAME,
            f"%{snapshot_name(name)} is the name of the snapshot of %{name} in mode local-sgd; "
            "the program uses it for something else: rename it",
            focus=f"%{snapshot_name(name)}",
        )
        for name in dict.fromkeys(named)
        if snapshot_name(name) in taken
    ]
