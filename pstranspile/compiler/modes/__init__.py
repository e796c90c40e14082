"""The modes of distribution, one file each: a mode's requirements on jobs, its analysis of programs, its plans and its
programs.

Every file here is a mode, under its own name, and ends with `MODE = ...`, an object with the methods of `Mode`. Parts
that several modes share are in `shared`.
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
    from pstranspile.compiler.plan.plan_file import PlanFile

F = TypeVar("F")


class Emitter(Protocol):
    """Makes the programs of one job's machines, each independently and in any order."""

    def trainer(self, index: int) -> Role:
        """The programs of trainer `index`."""
        ...

    def pserver(self, endpoint: str) -> Role:
        """The programs of the server at `endpoint`. Raises KeyError in modes without servers."""
        ...

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Every variable on the servers."""
        ...


class PreparedJob(NamedTuple):
    """The plan of a job for a module, and the emitter of its programs, none of which is made yet.

    `rewritten` is the module as the mode has rewritten it, with the state that it adds; None if it stays as it is.
    """

    plan: Plan
    emitter: Emitter
    warnings: tuple[Diagnostic, ...] = ()
    rewritten: Module | None = None


class Mode(Protocol[F]):
    """A mode of distribution; `F` is the type of the facts that it needs of a module.

    One file per mode implements this. `settings` describe jobs in this mode, and say how a job asks for it.
    """

    settings: ModeSettings

    def analyze(self, module: Module, job: Job, steps: Steps) -> F:
        """The facts of a module that has @main and @startup. Raises DiagnosticError."""
        ...

    def prepare(self, facts: F, job: Job, given: Plan | PlanFile | None, steps: Steps) -> PreparedJob:
        """The plan of a job, and its emitter; a plan that is given is used instead of a new one. Raises
        DiagnosticError.
        """
        ...


def mode_of(name: str) -> Mode[Any]:
    """The mode of this name. A compile imports only its own mode. Raises KeyError."""
    return mode_module(name).MODE
