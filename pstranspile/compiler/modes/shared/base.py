"""What a mode of distribution is: what it looks for in a program, what it plans, and which programs it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import ModeSettings
from pstranspile.compiler.plan.plan import DistributedVar, Plan
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Module, Role
from pstranspile.ir.passes import Steps

if TYPE_CHECKING:
    from pstranspile.compiler.plan.edited import PlanFile

F = TypeVar("F")


class Emitter(Protocol):
    """Makes the programs of one job's machines, each on its own and in any order."""

    def trainer(self, index: int) -> Role:
        """The programs of trainer `index`."""
        ...

    def pserver(self, endpoint: str) -> Role:
        """The programs of the server at `endpoint`. Raises KeyError in modes without servers."""
        ...

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Every variable on the servers."""
        ...


class Prepared(NamedTuple):
    """A job planned for a module, before any program is made."""

    plan: Plan
    emitter: Emitter
    warnings: tuple[Diagnostic, ...] = ()


class Mode(Protocol[F]):
    """A mode of distribution; `F` are the facts that it needs to know of a module.

    One file per mode implements this. `settings` say what jobs in this mode have, and which ones ask for it.
    """

    settings: ModeSettings

    def analyze(self, module: Module, job: Job, steps: Steps) -> F:
        """The facts of a module that has @main and @startup. Raises DiagnosticError."""
        ...

    def prepare(self, facts: F, job: Job, given: Plan | PlanFile | None, steps: Steps) -> Prepared:
        """The job, planned; a plan that is given is used instead of a new one. Raises DiagnosticError."""
        ...
