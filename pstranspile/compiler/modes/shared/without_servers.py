"""The modes without servers, in which trainers communicate by collective operators.

In reading order: the plan of a job, which is the trainers and the addresses at which they meet; the start-up programs
that make the rings; and the base of the modes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.compiler.analysis.reductions import Reduction, is_left_out
from pstranspile.compiler.emit.rules import (
    BROADCAST,
    JOIN_DEVICES,
    JOIN_RING,
    WAIT_BROADCASTS,
    derived_origin,
    made_of_program,
)
from pstranspile.compiler.job import Job
from pstranspile.compiler.modes import PreparedJob
from pstranspile.compiler.plan.plan import Collective, DistributedVar, NameMint, Plan, SummedVariable
from pstranspile.ir.attributes import Strings, float32
from pstranspile.ir.diagnostics import Diagnostic, raise_errors
from pstranspile.ir.model import STARTUP, FrozenMap, Module, Op, Origin, Program, Role, Var
from pstranspile.ir.passes import Steps
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops.build import make_op

if TYPE_CHECKING:
    from pstranspile.compiler.plan.plan_file import PlanFile


def plan_without_servers(module: Module, job: Job, given: Plan | PlanFile | None, collective: Collective) -> Plan:
    """The plan of a job in a mode without servers; no parameter is placed, so the plan follows from the program and the
    job.

    A plan file that places parameters is refused. Raises DiagnosticError (`plan-invalid`).
    """
    if given is not None and not isinstance(given, Plan):
        from pstranspile.compiler.plan.plan_file import require_nothing_placed

        require_nothing_placed(given, job)
    return Plan(
        mode=job.mode,
        pservers=(),
        trainers=job.trainers,
        parameters=(),
        send_order=(),
        groups=(),
        per_trainer=False,
        barrier_control="",
        startup_control="",
        trainer_endpoints=job.trainer_endpoints,
        collective=collective,
        made_for=module,
    )


class StartupTemplate:
    """The common part of the start-up programs of all trainers of a job, computed once; only the part that depends on
    the rank is left out.
    """

    def __init__(
        self,
        source: Program,
        rings: int,
        known: Collection[str],
        left_out: Collection[str],
        *,
        in_one_process: bool,
        snapshot: Callable[[Var, Origin | None], tuple[Var, Op] | None],
    ):
        """`known` are parameters, whatever the start-up program declares; `left_out` do not take part in collective
        operations.

        `in_one_process`: the rings join devices of one process. `snapshot` gives the variable that keeps a copy of a
        parameter, and the op that fills it, if there is one.
        """
        block = source.main_block
        variables = dict(block.vars)
        parameters = [var for var in variables.values() if var.parameter is not None or var.name in known]
        self.ids: tuple[str, ...] = ()
        if not in_one_process:
            mint = NameMint(name for block in source.blocks for name in block.vars)
            self.ids = tuple(mint.mint(f"nccl_id_{ring}") for ring in range(rings))
            variables.update((name, Var(name, VarKind.RAW, persistable=True)) for name in self.ids)
        shared = [var.name for var in parameters if var.name not in left_out]
        last = parameters[-1].name if parameters else None
        whole = made_of_program(source, "", STARTUP)
        makers = {name: op.origin for op in block.ops for name in op.output_names}
        self.closing: tuple[Op, ...] = ()
        if not in_one_process:
            self.closing = (*(_broadcast(name, i % rings, makers.get(name, whole)) for i, name in enumerate(shared)),)
            if last is not None:  # Fluid waits with the name of the last parameter of its loop
                waits = wait_for_rings(last, rings, OpRole.FORWARD, derived_origin(whole, WAIT_BROADCASTS))
                self.closing += tuple(waits)
        for name in shared:
            kept = snapshot(variables[name], makers.get(name, whole))
            if kept is not None:
                variables[kept[0].name] = kept[0]
                self.closing += (kept[1],)
        self.source = source
        self.program_origin = whole
        self.variables = FrozenMap(variables)

    def of_trainer(self, rank: int, endpoints: tuple[str, ...]) -> Program:
        """The start-up program of trainer `rank`: initialisers, rings, rank 0's parameters."""
        block = self.source.main_block
        if self.ids:
            rings = _join_rings(self.ids, rank, endpoints, derived_origin(self.program_origin, JOIN_RING))
        else:
            rings = (make_op("c_comm_init_all", {}, {}, origin=derived_origin(self.program_origin, JOIN_DEVICES)),)
        block = block._replace(vars=self.variables, ops=(*block.ops, *rings, *self.closing))
        return self.source.with_main_block(block)


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
    return make_op(
        "c_broadcast", {"X": [parameter]}, {"Out": [parameter]}, attrs, origin=derived_origin(origin, BROADCAST)
    )


def scale(name: str, trainers: int, role: OpRole, origin: Origin | None) -> Op:
    """An op that divides a variable, in place, by the number of trainers."""
    return make_op(
        "scale", {"X": [name]}, {"Out": [name]}, {"scale": float32(1.0 / trainers)}, role=role, origin=origin
    )


def wait_for_computing(name: str, role: OpRole, origin: Origin | None = None) -> Op:
    """An op that makes communication wait for all computations before it."""
    return make_op("c_sync_calc_stream", {"X": [name]}, {"Out": [name]}, role=role, origin=origin)


def sum_over_ring(reduction: Reduction, role: OpRole, origin: Origin | None = None) -> Op:
    """An op that sums a variable, in place, over all trainers of its ring."""
    names = [reduction.variable]
    return make_op(
        "c_allreduce_sum", {"X": names}, {"Out": names}, {"ring_id": reduction.ring}, role=role, origin=origin
    )


def wait_for_rings(name: str, rings: int, role: OpRole, origin: Origin | None = None) -> Iterator[Op]:
    """Ops that make computation wait for all communication on every ring; `name` only carries the order."""
    for ring in range(rings):
        attrs = {"ring_id": ring}
        yield make_op("c_sync_comm_stream", {"X": [name]}, {"Out": [name]}, attrs, role=role, origin=origin)


class CollectiveFacts(NamedTuple):
    """The variables of a module that are summed over the trainers, and the number of rings; `findings` are warnings."""

    module: Module
    rings: int
    reductions: tuple[Reduction, ...]
    findings: tuple[Diagnostic, ...]


class CollectiveMode(ABC):
    """Trainers without servers that sum variables over rings."""

    in_one_process = False
    """Whether the rings join the devices of one process."""

    def snapshot(self, var: Var, origin: Origin | None) -> tuple[Var, Op] | None:
        """The variable with a copy of a parameter from the start on, and the op that fills it; None if there is
        none.
        """
        del var, origin
        return None

    @abstractmethod
    def find(self, module: Module, rings: int) -> tuple[tuple[Reduction, ...], list[Diagnostic]]:
        """The variables to sum, and findings."""

    @abstractmethod
    def emit_main(self, program: Program, reductions: tuple[Reduction, ...], trainers: int, rings: int) -> Program:
        """The main program of every trainer."""

    def analyze(self, module: Module, job: Job, steps: Steps) -> CollectiveFacts:
        """The variables to sum, with their rings. Raises DiagnosticError."""
        rings = 1 if self.in_one_process else job.nccl_comm_num
        reductions, findings = steps.run("place-collectives", self.find, module, rings)
        raise_errors(findings)
        return CollectiveFacts(module, rings, reductions, tuple(findings))

    def prepare(self, facts: CollectiveFacts, job: Job, given: Plan | PlanFile | None, steps: Steps) -> PreparedJob:
        """The plan of the job, and its emitter. Raises DiagnosticError."""
        module, rings, reductions, findings = facts
        collective = Collective(
            rings, summed=tuple(SummedVariable(r.parameter, r.variable, r.ring) for r in reductions)
        )
        plan = plan_without_servers(module, job, given, collective)
        return PreparedJob(plan, CollectiveJob(module, plan, self, reductions, steps), findings)


@dataclass(frozen=True)
class CollectiveJob:
    """The emitter of the collective modes. All trainers run one main program; start-up programs differ by rank."""

    module: Module
    plan: Plan
    mode: CollectiveMode
    reductions: tuple[Reduction, ...]
    steps: Steps

    @property
    def _rings(self) -> int:
        return self.plan.collective.nccl_comm_num if self.plan.collective else 1

    @cached_property
    def _main(self) -> Program:
        return self.steps.run("emit-trainers", self._emit_main)

    def _emit_main(self) -> Program:
        return self.mode.emit_main(self.module.main, self.reductions, self.plan.trainers, self._rings)

    @cached_property
    def _startup(self) -> StartupTemplate:
        main, source = self.module.main, self.module[STARTUP]
        known = {var.name for var in main.parameters()}.union(r.parameter for r in self.reductions)
        left_out = {v.name for p in (source, main) for v in p.parameters() if is_left_out(p, v.name)}
        left_out -= {
            v.name for v in main.parameters() if not is_left_out(main, v.name)
        }  # if declarations differ, @main's is used
        return StartupTemplate(
            source,
            self._rings,
            known,
            left_out,
            in_one_process=self.mode.in_one_process,
            snapshot=self.mode.snapshot,
        )

    def trainer(self, index: int) -> Role:
        """The programs of trainer `index`."""
        main, endpoints = self._main, self.plan.trainer_endpoints
        startup = self.steps.run("emit-trainer-startups", self._startup.of_trainer, index, endpoints)
        return Role(f"trainer_{index}", main, startup)

    def pserver(self, endpoint: str) -> Role:
        """Raises KeyError, as there are no servers."""
        raise KeyError(endpoint)

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Returns an empty tuple, as there are no servers."""
        return ()
