"""What every family of modes gives a compile: the plan, and an emitter that makes any machine's programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import Module, Program
from pstranspile.job import Job
from pstranspile.passes import Steps
from pstranspile.plan.plan import DistributedVar, Plan

if TYPE_CHECKING:
    from pstranspile.plan.edited import PlanFile


class Programs(NamedTuple):
    """Main and start-up program of one machine; on trainers, the other programs of the job by name."""

    main: Program
    startup: Program
    others: FrozenMap[str, Program] = EMPTY


class Emitter(Protocol):
    """Makes the programs of one job's machines, each on its own and in any order."""

    def trainer(self, index: int) -> Programs:
        """The programs of trainer `index`."""
        ...

    def pserver(self, endpoint: str) -> Programs:
        """The programs of the server at `endpoint`; never called in modes without servers."""
        ...

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Every variable on the servers (A1.23)."""
        ...


class Prepared(NamedTuple):
    """A job planned for a module, before any program is made."""

    plan: Plan
    emitter: Emitter
    warnings: tuple[Diagnostic, ...] = ()


class Prepare(Protocol):
    """Plans a job for a module that has @main and @startup."""

    def __call__(self, module: Module, job: Job, plan: Plan | PlanFile | None, steps: Steps) -> Prepared:
        """The job, planned; a plan that is given is used instead of a new one. Raises DiagnosticError."""
        ...
