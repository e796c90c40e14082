"""The modes of distribution, a file for each: what it requires of jobs, finds in a program, plans and emits.

Every file here is a mode, under its own name, and ends with `MODE = ...`, which has the methods of `Mode`: what it
looks for in a program, what it plans, and which programs it makes. What several share is in `shared`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import ModeSettings, mode_module
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


def mode_of(name: str) -> Mode[Any]:
    """The mode of this name. A compile imports that of its own mode only. Raises KeyError."""
    return mode_module(name).MODE
