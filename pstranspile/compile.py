"""One compile: a module and a job in, the programs of every machine out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.analysis.facts import Facts, analyze
from pstranspile.emit.pserver import ServerTemplate, emit_pserver
from pstranspile.emit.pserver_startup import Initialisers, emit_pserver_startup
from pstranspile.emit.trainer import TrainerTemplate, emit_trainer
from pstranspile.emit.trainer_startup import emit_trainer_startup
from pstranspile.ir.codes import declare
from pstranspile.ir.collector import collector_paused
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op, error, raise_errors
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Location, Module, Program
from pstranspile.job import Job
from pstranspile.link import Linked, link
from pstranspile.modes import mode_of
from pstranspile.modes.base import Mode
from pstranspile.passes import PASSES, Observer, Steps
from pstranspile.plan.make import make_plan, overview, slice_variables
from pstranspile.plan.plan import DistributedVar, Plan

if TYPE_CHECKING:
    from pstranspile.plan.edited import PlanFile

__all__ = ["PASSES", "Compiled", "Role", "compile", "prepare"]

NO_PROGRAM = declare("no-program", "The module lacks a program that compiling needs: @main or @startup.")
SERVER_VALUE = declare(
    "needs-server-value", "An op that stays on the trainer reads what only ops that move to the servers compute."
)


class Role(NamedTuple):
    """The two programs of one machine, `trainer_<i>` or `pserver_<j>`."""

    name: str
    main: Program
    startup: Program

    @property
    def module(self) -> Module:
        """The programs as a module, as it is written to `<role>.ir`."""
        return Module(FrozenMap({MAIN: self.main, STARTUP: self.startup}))


@dataclass(frozen=True)
class Compiled:
    """The result of a compile: the plan, and every machine's programs, made when first asked for.

    `source` is the module that was given, `module` what the mode made of it before anything else (the same, in
    most modes). The programs do not depend on the order in which they are asked for.
    """

    source: Module
    module: Module
    facts: Facts
    plan: Plan
    mode: Mode
    warnings: tuple[Diagnostic, ...] = ()
    steps: Steps = field(default_factory=Steps, repr=False, compare=False)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the source, which a plan file carries so that it is used for no other."""
        from pstranspile.plan.text import fingerprint

        return fingerprint(self.source)

    @cached_property
    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Every variable on the servers: Fluid's overview (A1.23)."""
        return overview(self.facts, self.plan)

    @cached_property
    def _trainer_template(self) -> TrainerTemplate:
        return TrainerTemplate(self.facts, self.plan, self.mode)

    @cached_property
    def _server_template(self) -> ServerTemplate:
        return ServerTemplate(self.facts, self.plan, self.mode)

    @cached_property
    def _initialisers(self) -> Initialisers:
        return Initialisers(self.module[STARTUP])

    @cached_property
    def _made(self) -> dict[str, Role]:
        return {}

    def trainer(self, index: int) -> Role:
        """The programs of trainer `index`. Raises IndexError if there is no such trainer."""
        if not 0 <= index < self.plan.trainers:
            raise IndexError(f"trainer {index} of {self.plan.trainers}")
        name = f"trainer_{index}"
        if name not in self._made:
            with collector_paused():
                template, source = self._trainer_template, self.module[STARTUP]
                main = self.steps.run("emit-trainers", emit_trainer, template, index)
                startup = self.steps.run("emit-trainer-startups", emit_trainer_startup, template, source, index)
            self._made[name] = Role(name, main, startup)
        return self._made[name]

    def pserver(self, endpoint: str) -> Role:
        """The programs of the server at `endpoint`. Raises KeyError if the job has no such server."""
        if endpoint not in self.plan.pservers:
            raise KeyError(endpoint)
        name = f"pserver_{self.plan.pservers.index(endpoint)}"
        if name not in self._made:
            with collector_paused():
                server = self.steps.run("emit-pservers", emit_pserver, self._server_template, endpoint)
                startup = self.steps.run("emit-pserver-startups", emit_pserver_startup, server, self._initialisers)
            self._made[name] = Role(name, server.program, startup)
        return self._made[name]

    def roles(self) -> dict[str, Role]:
        """Every machine's programs by role name: the trainers, then the servers."""
        roles = [self.trainer(i) for i in range(self.plan.trainers)]
        roles += [self.pserver(endpoint) for endpoint in self.plan.pservers]
        return {role.name: role for role in roles}


def prepare(
    module: Module, job: Job, *, plan: Plan | PlanFile | None = None, on_pass: Observer | None = None
) -> Compiled:
    """Facts and plan of a compile; programs are made when asked for, and not linked.

    `plan` (made by `make_plan` for the same module, or read from a file) is used instead of one made from the job.
    Raises DiagnosticError when the module can't be compiled for
    the job.
    """
    with collector_paused():
        return _prepare(module, job, plan, on_pass)


def _prepare(module: Module, job: Job, plan: Plan | PlanFile | None, on_pass: Observer | None) -> Compiled:
    missing = [name for name in (MAIN, STARTUP) if name not in module.programs]
    if missing:
        location = Location(module.source.file) if module.source else None
        names = " and ".join(f"@{name}" for name in missing)
        raise DiagnosticError([error(NO_PROGRAM, f"the module has no program {names}", location)])
    mode = mode_of(job)
    steps = Steps(on_pass)
    source = module
    module, counters = mode.rewrite(source, job)
    facts = analyze(module.main, steps)
    warnings = list(facts.findings)
    if plan is not None and not isinstance(plan, Plan):
        from pstranspile.plan.edited import apply_plan
        from pstranspile.plan.text import fingerprint

        pieces, findings = slice_variables(facts, module.startup, job)
        raise_errors(findings)
        plan = apply_plan(plan, fingerprint(source), facts, job, pieces, mode.per_trainer(job))
    elif plan is None:
        plan, findings = make_plan(facts, module.startup, job, per_trainer=mode.per_trainer(job), steps=steps)
        warnings += findings
    plan = replace(plan, counters=counters)
    mode.check(plan)
    raise_errors(_needed_from_servers(facts))
    return Compiled(source, module, facts, plan, mode, tuple(warnings), steps)


def compile(
    module: Module, job: Job, *, plan: Plan | PlanFile | None = None, on_pass: Observer | None = None
) -> Compiled:
    """All programs of a job, linked. The module is not touched.

    `on_pass` is told of every pass as it ends. Raises DiagnosticError when the module can't be compiled for the
    job, LinkError (a fault of the compiler) when the emitted programs do not fit together.
    """
    with collector_paused():
        compiled = prepare(module, job, plan=plan, on_pass=on_pass)
        roles = [Linked(*role) for role in compiled.roles().values()]
        compiled.steps.run("link", link, roles)
    return compiled


def _needed_from_servers(facts: Facts) -> list[Diagnostic]:
    """Errors for ops that stay on the trainer but read what only ops that move to the servers write."""
    ops = facts.program.main_block.ops
    parameters = {update.parameter for update in facts.updates}
    readers, writers = facts.uses.kept_reader, facts.uses.kept_writer
    found: list[Diagnostic] = []
    for index in sorted(facts.moved):
        pair = ops[index].role_vars or ()
        for name in ops[index].output_names:
            if name not in pair and name in readers and name not in writers and name not in parameters:
                message = f"%{name} is computed on the servers (by {ops[index].type}), but this op stays on the trainer"
                found.append(at_op(SERVER_VALUE, message, ops[readers[name]], focus=f"%{name}"))
    return found
