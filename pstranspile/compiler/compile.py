"""One compile: a module and a job in, the programs of every machine out.

Emitted main programs carry their part in the cluster, as Fluid keeps it on its programs.

What is found in a module before there is a job is found by the verifier, and by a trial: a compile for one synchronous
server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.compiler.job import Job
from pstranspile.compiler.link import LinkError
from pstranspile.compiler.modes import Emitter
from pstranspile.compiler.pipeline import PASSES, distribute, link_roles
from pstranspile.compiler.plan.make import placed_parameters
from pstranspile.compiler.plan.plan import DistributedVar, Plan
from pstranspile.ir.argument_checks import check_arguments, expect, expect_module, expect_number
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, Severity, adjust_severities, raise_errors
from pstranspile.ir.model import MAIN, Distribution, Module, Role, collector_paused
from pstranspile.ir.passes import Observer, Steps
from pstranspile.ops import facts_of, is_optimizer

if TYPE_CHECKING:
    from pstranspile.compiler.plan.plan_file import PlanFile

__all__ = ["PASSES", "Compiled", "compile", "prepare"]


class Distributions:
    """The distributions of one job's programs; `variables` gives all variables on its servers.

    Fluid gives every program the whole list. Here a trainer's program has the variables that trainers fetch, a server's
    those on that server; the plan has all.
    """

    def __init__(self, plan: Plan, variables: Callable[[], Iterable[DistributedVar]]):
        self.plan = plan
        self._variables = variables

    @cached_property
    def fetched_variables(self) -> tuple[DistributedVar, ...]:
        """The variables that trainers fetch: the parameters."""
        return tuple(placed_parameters(self.plan))

    @cached_property
    def variables_by_server(self) -> dict[str, list[DistributedVar]]:
        """The variables on each server: parameters, and the state of their optimizers."""
        result: dict[str, list[DistributedVar]] = {endpoint: [] for endpoint in self.plan.pservers}
        for variable in self._variables():
            result[variable.endpoint].append(variable)
        return result

    def of_trainer(self, index: int) -> Distribution | None:
        """The distribution for the main program of a trainer; None in the collective modes, where Fluid writes
        nothing.
        """
        plan = self.plan
        if plan.pservers:
            return self._of(plan.pservers[0], index == 0, self.fetched_variables)
        if plan.mode != "nccl2" or plan.collective is None:
            return None
        settings = plan.collective
        return Distribution(
            trainers_endpoints=plan.trainer_endpoints,
            nccl_comm_num=settings.nccl_comm_num,
            use_hierarchical_allreduce=settings.use_hierarchical_allreduce,
            hierarchical_allreduce_inter_nranks=(
                settings.hierarchical_allreduce_inter_nranks if settings.use_hierarchical_allreduce else 0
            ),
        )

    def of_server(self, endpoint: str) -> Distribution:
        """The distribution for the main program of a server. As in Fluid, `is_chief` is true, as for trainer 0."""
        return self._of(endpoint, True, self.variables_by_server[endpoint])

    def _of(self, endpoint: str, is_chief: bool, variables: Sequence[DistributedVar]) -> Distribution:
        return Distribution(
            is_distributed=True,
            is_chief=is_chief,
            endpoints=self.plan.pservers,
            ps_endpoint=endpoint,
            distributed_lookup_table=self.plan.distributed_lookup_table,
            variables=tuple(variables),
        )


def with_distribution(role: Role, distribution: Distribution | None) -> Role:
    """The programs of a machine with the distribution added to the main program."""
    if distribution is None:
        return role
    return role._replace(main=role.main._replace(distribution=distribution))


_UNEXPLAINED = Note(
    "the programs of the cluster would not fit together because of what this op names; if Fluid distributes the "
    "program, this is a fault of pstranspile: please report it"
)
"""The note on programs that don't link, if neither the verifier nor the search for causes has found a mistake."""


@contextmanager
def _mistakes_told(module: Module) -> Generator[None]:
    """Raises DiagnosticError in place of a failure of the block whose cause is a mistake in the module.

    Compiling assumes that the module is correct; only after a failure is it searched for mistakes.
    """
    try:
        yield
    except Exception as problem:
        if isinstance(problem, DiagnosticError) and not isinstance(problem, LinkError):
            raise
        from pstranspile.compiler.analysis.causes import causes
        from pstranspile.compiler.verify import verify

        raise_errors(verify(module, strict=True))  # a module that Fluid runs may still not compile
        raise_errors(causes(module))
        if not isinstance(problem, LinkError):
            raise
        findings = [finding._replace(notes=(*finding.notes, _UNEXPLAINED)) for finding in problem.diagnostics]
        raise DiagnosticError(findings) from None


@check_arguments
@dataclass(frozen=True)
class Compiled:
    """The result of a compile: the plan, and every machine's programs, made when first asked for.

    `source` is the module that was given, with one element type for what its programs share. The programs do not depend
    on the order in which they are asked for. Where `prepare` made this of a module with mistakes, asking for programs
    raises DiagnosticError. `rewritten` is the source with the state that the mode adds to it; None: it adds none.
    """

    source: Module
    plan: Plan
    emitter: Emitter
    warnings: tuple[Diagnostic, ...] = ()
    steps: Steps = field(default_factory=Steps, repr=False, compare=False)
    job: Job | None = None
    rewritten: Module | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """A summary of the compiled programs and the plan, in one line."""
        return f"<Compiled {self.source!r} for {self.plan!r}>"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the source, which a plan file contains so that it is not used for another module."""
        return self.plan.source

    @cached_property
    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Every variable on the servers: Fluid's overview."""
        return self.emitter.distributed_vars()

    @cached_property
    def _distributions(self) -> Distributions:
        return Distributions(self.plan, self.emitter.distributed_vars)  # not through self: that would be a cycle

    @cached_property
    def _role_cache(self) -> dict[str, Role]:
        return {}

    @check_arguments
    def trainer(self, index: int) -> Role:
        """The programs of trainer `index`. Raises IndexError if there is no such trainer."""
        expect_number(index, "trainer", "the number of a trainer")
        if not 0 <= index < self.plan.trainers:
            raise IndexError(f"there is no trainer {index}; the job has {self.plan.trainers}, numbered from 0")
        name = f"trainer_{index}"
        if name in self._role_cache:
            return self._role_cache[name]
        with collector_paused(), _mistakes_told(self.source):
            distribution = self._distributions.of_trainer(index)
            return self._role_cache.setdefault(name, with_distribution(self.emitter.trainer(index), distribution))

    @check_arguments
    def pserver(self, endpoint: str) -> Role:
        """The programs of the server at `endpoint`. Raises KeyError if the job has no such server."""
        expect(endpoint, str, "pserver", "the endpoint of a server")
        if endpoint not in self.plan.pservers:
            raise KeyError(
                f"there is no server at {endpoint!r}; the servers are {', '.join(self.plan.pservers) or 'none'}"
            )
        name = f"pserver_{self.plan.pservers.index(endpoint)}"
        if name in self._role_cache:
            return self._role_cache[name]
        with collector_paused(), _mistakes_told(self.source):
            distribution = self._distributions.of_server(endpoint)
            return self._role_cache.setdefault(name, with_distribution(self.emitter.pserver(endpoint), distribution))

    @check_arguments
    def with_roles(self, roles: Mapping[str, Role]) -> Compiled:
        """A copy with other programs for some machines, by role name. Raises TypeError for anything but Roles."""
        for name, role in roles.items():
            expect(role, Role, "with_roles", f"a Role for each name, such as {name!r}")
        other = replace(self, steps=self.steps)
        other._role_cache.update(roles)
        return other

    def roles(self) -> dict[str, Role]:
        """Every machine's programs by role name: the trainers, then the servers."""
        roles = [self.trainer(i) for i in range(self.plan.trainers)]
        roles += [self.pserver(endpoint) for endpoint in self.plan.pservers]
        return {role.name: role for role in roles}


@check_arguments
def prepare(
    module: Module, job: Job, *, plan: Plan | PlanFile | None = None, on_pass: Observer | None = None
) -> Compiled:
    """Finds the facts and makes the plan of a compile; programs are made when they are asked for, and not linked.

    `plan` (of another compile, of `make_plan`, or read by `load_plan` or `parse_plan`) is used instead of one made from
    the job. Raises DiagnosticError when the module can't be compiled for the job, or the plan is not for both.
    """
    expect_module(module, "compile")
    expect(job, Job, "compile")
    if plan is not None and not isinstance(plan, Plan):
        from pstranspile.compiler.plan.plan_file import PlanFile

        expect(plan, PlanFile, "compile", "a plan")
    with collector_paused(), _mistakes_told(module):
        steps = Steps(on_pass)
        module, prepared = distribute(module, job, plan, steps)
        warnings = tuple(adjust_severities(prepared.warnings, allow=job.allow))
        return Compiled(module, prepared.plan, prepared.emitter, warnings, steps, job, prepared.rewritten)


@check_arguments
def compile(
    module: Module, job: Job, *, plan: Plan | PlanFile | None = None, on_pass: Observer | None = None
) -> Compiled:
    """All programs of a job, linked. The module is not touched.

    `plan` is used as by `prepare`. `on_pass` is called after every pass. Raises DiagnosticError when the module can't
    be compiled for the job, or the plan is not for both; its codes begin with `link-` when the emitted programs do not
    fit together, and no mistake in the module was found.
    """
    with collector_paused():
        compiled = prepare(module, job, plan=plan, on_pass=on_pass)
        roles = compiled.roles().values()
        with _mistakes_told(module):
            link_roles(roles, compiled.steps)
    return compiled


# What is found in a module before there is a job: by the verifier, and by a trial for one synchronous server.


_SERVER = "127.0.0.1:6174"
"""The endpoint of the server of the trial, where nothing listens."""


def well_formed(module: Module, *, strict: bool = False, allow: Collection[str] = ()) -> tuple[Diagnostic, ...]:
    """The findings of the verifier about a module that is looked at, not run: what @startup leaves without a value is
    an error. `strict` and `allow` as for `verify`.
    """
    from pstranspile.compiler.verify import verify

    return verify(module, strict=strict, allow=allow, initialised_here=True)


class Trial(NamedTuple):
    """The result of a compile for servers beside the findings of `well_formed`: whether it refuses the module, and what
    it tells beyond them, as warnings, or as errors where `strict`.

    It may refuse as an error what was a warning before: there is nothing beyond it then.
    """

    refused: bool = False
    further_findings: tuple[Diagnostic, ...] = ()


def trial(
    module: Module, findings: Iterable[Diagnostic], *, strict: bool = False, allow: Collection[str] = ()
) -> Trial:
    """Compiles a module with these findings of `well_formed` for servers. One with errors is not compiled."""
    before = tuple(findings)
    if any(finding.severity is Severity.ERROR for finding in before):
        return Trial()
    level = Severity.ERROR if strict else Severity.WARNING
    known = {(d.code, d.message, d.location) for d in before}
    refused = refused_by_compile(module)
    more = [d for d in refused if (d.code, d.message, d.location) not in known]
    refuses = any(finding.code not in allow for finding in refused)
    return Trial(refuses, tuple(adjust_severities((d._replace(severity=level) for d in more), allow=allow)))


def refused_by_compile(module: Module) -> tuple[Diagnostic, ...]:
    """The errors of a compile for one synchronous server. One machine may run what it refuses.

    None for a module that trains nothing, and for one whose machines talk to servers already.
    """
    main = module.programs.get(MAIN)
    ops = [op for block in main.blocks for op in block.ops] if main is not None else []
    if not any(is_optimizer(op) for op in ops):
        return ()
    if any(facts_of(kind).communicates in ("request", "server") for kind in {op.type for op in ops}):
        return ()
    try:
        compile(module, Job(pservers=(_SERVER,), trainers=1))
    except DiagnosticError as problem:
        return tuple(finding for finding in problem.diagnostics if finding.severity is Severity.ERROR)
    return ()
