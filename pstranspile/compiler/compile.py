"""One compile: a module and a job in, the programs of every machine out."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pstranspile.compiler.emit.distribution import Distributions, with_distribution
from pstranspile.compiler.job import Job
from pstranspile.compiler.link import LinkError
from pstranspile.compiler.modes.shared.base import Emitter
from pstranspile.compiler.pipeline import PASSES, distribute, link_roles
from pstranspile.compiler.plan.plan import DistributedVar, Plan, fingerprint
from pstranspile.ir.collector import collector_paused
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, raise_errors, weighed
from pstranspile.ir.expect import expect, expect_module, expect_number, suggesting
from pstranspile.ir.model import Module, Role
from pstranspile.ir.passes import Observer, Steps

if TYPE_CHECKING:
    from pstranspile.compiler.plan.edited import PlanFile

__all__ = ["PASSES", "Compiled", "compile", "prepare"]


_UNEXPLAINED = Note(
    "the programs of the cluster would not fit together because of what this op names; if Fluid distributes the "
    "program, this is a fault of pstranspile: please report it"
)
"""Said of programs that don't link, where neither the verifier nor the search for causes has found a mistake."""


@contextmanager
def _mistakes_told(module: Module) -> Generator[None]:
    """Raises DiagnosticError in place of a failure of the block whose cause is a mistake in the module.

    Compiling takes what it is given for sound; only when it fails does it pay to look for what isn't.
    """
    try:
        yield
    except Exception as problem:
        if isinstance(problem, DiagnosticError) and not isinstance(problem, LinkError):
            raise
        from pstranspile.compiler.analysis.causes import causes
        from pstranspile.compiler.verify import verify

        raise_errors(verify(module, strict=True))  # also what Fluid runs, alone, may keep it from being compiled
        raise_errors(causes(module))
        if not isinstance(problem, LinkError):
            raise
        findings = [finding._replace(notes=(*finding.notes, _UNEXPLAINED)) for finding in problem.diagnostics]
        raise DiagnosticError(findings) from None


@dataclass(frozen=True)
class Compiled:
    """The result of a compile: the plan, and every machine's programs, made when first asked for.

    `source` is the module that was given, with one element type for what its programs share. The programs do not depend
    on the order in which they are asked for. Where `prepare` made this of a module with mistakes, asking for programs
    raises DiagnosticError.
    """

    source: Module
    plan: Plan
    emitter: Emitter
    warnings: tuple[Diagnostic, ...] = ()
    steps: Steps = field(default_factory=Steps, repr=False, compare=False)
    job: Job | None = None

    def __repr__(self) -> str:
        """What was compiled, and for which plan, in one line."""
        return f"<Compiled {self.source!r} for {self.plan!r}>"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the source, which a plan file carries so that it is used for no other."""
        return fingerprint(self.source)

    @cached_property
    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Every variable on the servers: Fluid's overview."""
        return self.emitter.distributed_vars()

    @cached_property
    def _distributions(self) -> Distributions:
        return Distributions(self.plan, self.emitter.distributed_vars)  # not through self: that would be a cycle

    @cached_property
    def _made(self) -> dict[str, Role]:
        return {}

    def trainer(self, index: int) -> Role:
        """The programs of trainer `index`. Raises IndexError if there is no such trainer."""
        expect_number(index, "trainer", "the number of a trainer")
        if not 0 <= index < self.plan.trainers:
            raise IndexError(f"there is no trainer {index}; the job has {self.plan.trainers}, numbered from 0")
        name = f"trainer_{index}"
        if name in self._made:
            return self._made[name]
        with collector_paused(), _mistakes_told(self.source):
            distribution = self._distributions.of_trainer(index)
            return self._made.setdefault(name, with_distribution(self.emitter.trainer(index), distribution))

    def pserver(self, endpoint: str) -> Role:
        """The programs of the server at `endpoint`. Raises KeyError if the job has no such server."""
        expect(endpoint, str, "pserver", "the endpoint of a server")
        if endpoint not in self.plan.pservers:
            raise KeyError(
                f"there is no server at {endpoint!r}; the servers are {', '.join(self.plan.pservers) or 'none'}"
            )
        name = f"pserver_{self.plan.pservers.index(endpoint)}"
        if name in self._made:
            return self._made[name]
        with collector_paused(), _mistakes_told(self.source):
            distribution = self._distributions.of_server(endpoint)
            return self._made.setdefault(name, with_distribution(self.emitter.pserver(endpoint), distribution))

    def with_roles(self, roles: Mapping[str, Role]) -> Compiled:
        """The same with other programs for some machines, by role name."""
        other = replace(self, steps=self.steps)
        other._made.update(roles)
        return other

    def roles(self) -> dict[str, Role]:
        """Every machine's programs by role name: the trainers, then the servers."""
        roles = [self.trainer(i) for i in range(self.plan.trainers)]
        roles += [self.pserver(endpoint) for endpoint in self.plan.pservers]
        return {role.name: role for role in roles}


@suggesting
def prepare(
    module: Module, job: Job, *, plan: Plan | PlanFile | None = None, on_pass: Observer | None = None
) -> Compiled:
    """Facts and plan of a compile; programs are made when asked for, and not linked.

    `plan` (made by `make_plan` for the same module, or read from a file) is used instead of one made from the job.
    Raises DiagnosticError when the module can't be compiled for the job.
    """
    expect_module(module, "compile")
    expect(job, Job, "compile")
    with collector_paused(), _mistakes_told(module):
        steps = Steps(on_pass)
        module, prepared = distribute(module, job, plan, steps)
        warnings = tuple(weighed(prepared.warnings, allow=job.allow))
        return Compiled(module, prepared.plan, prepared.emitter, warnings, steps, job)


@suggesting
def compile(
    module: Module, job: Job, *, plan: Plan | PlanFile | None = None, on_pass: Observer | None = None
) -> Compiled:
    """All programs of a job, linked. The module is not touched.

    `on_pass` is told of every pass as it ends. Raises DiagnosticError when the module can't be compiled for the job;
    its codes begin with `link-` when the emitted programs do not fit together, and no mistake in the module was found.
    """
    with collector_paused():
        compiled = prepare(module, job, plan=plan, on_pass=on_pass)
        roles = compiled.roles().values()
        with _mistakes_told(module):
            link_roles(roles, compiled.steps)
    return compiled
