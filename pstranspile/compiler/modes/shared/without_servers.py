"""The base of the modes in which trainers without servers reach each other by collective operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.compiler.analysis.reductions import Reduction, is_left_out
from pstranspile.compiler.emit.ring_startup import StartupTemplate
from pstranspile.compiler.job import Job
from pstranspile.compiler.modes.shared.base import Prepared
from pstranspile.compiler.plan.plan import DistributedVar, Plan
from pstranspile.compiler.plan.rings import Collective, Summed
from pstranspile.compiler.plan.without_servers import plan_without_servers
from pstranspile.ir.diagnostics import Diagnostic, raise_errors
from pstranspile.ir.model import STARTUP, Module, Op, Origin, Program, Role, Var
from pstranspile.ir.passes import Steps

if TYPE_CHECKING:
    from pstranspile.compiler.plan.edited import PlanFile


class CollectiveFacts(NamedTuple):
    """What is summed over the trainers of a module, and on how many rings; `findings` are warnings."""

    module: Module
    rings: int
    reductions: tuple[Reduction, ...]
    findings: tuple[Diagnostic, ...]


class CollectiveMode(ABC):
    """Trainers without servers that sum variables over rings."""

    in_one_process = False
    """Whether the rings join the devices of one process."""

    def snapshot(self, var: Var, origin: Origin | None) -> tuple[Var, Op] | None:
        """The variable that keeps a copy of a parameter from the start on, and the op that fills it; None for none."""
        del var, origin
        return None

    @abstractmethod
    def find(self, module: Module, rings: int) -> tuple[tuple[Reduction, ...], list[Diagnostic]]:
        """What is summed, and what is wrong with it."""

    @abstractmethod
    def emit_main(self, program: Program, reductions: tuple[Reduction, ...], trainers: int, rings: int) -> Program:
        """The main program of every trainer."""

    def analyze(self, module: Module, job: Job, steps: Steps) -> CollectiveFacts:
        """What is summed on which ring. Raises DiagnosticError."""
        rings = 1 if self.in_one_process else job.nccl_comm_num
        reductions, findings = steps.run("place-collectives", self.find, module, rings)
        raise_errors(findings)
        return CollectiveFacts(module, rings, reductions, tuple(findings))

    def prepare(self, facts: CollectiveFacts, job: Job, given: Plan | PlanFile | None, steps: Steps) -> Prepared:
        """The plan of the job, and its emitter. Raises DiagnosticError."""
        module, rings, reductions, findings = facts
        collective = Collective(rings, summed=tuple(Summed(r.parameter, r.variable, r.ring) for r in reductions))
        plan = plan_without_servers(module, job, given, collective)
        return Prepared(plan, CollectiveJob(module, plan, self, reductions, steps), findings)


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
        }  # where they differ, @main counts
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
        """There are no servers. Raises KeyError."""
        raise KeyError(endpoint)

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """An empty tuple: there are no servers."""
        return ()
