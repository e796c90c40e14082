"""The modes with parameter servers that hold and update the parameters: from facts and plan to programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pstranspile.analysis.facts import Facts, analyze
from pstranspile.analysis.lookup_table import table_warnings
from pstranspile.emit.family import Prepared, Programs
from pstranspile.emit.pserver import ServerTemplate, emit_pserver
from pstranspile.emit.pserver_startup import Initialisers, emit_pserver_startup
from pstranspile.emit.trainer import TrainerTemplate, emit_trainer
from pstranspile.emit.trainer_startup import emit_trainer_startup
from pstranspile.ir.codes import declare
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op, raise_errors
from pstranspile.ir.model import STARTUP, Module
from pstranspile.job import Job
from pstranspile.modes import mode_of
from pstranspile.modes.base import Mode
from pstranspile.passes import Steps
from pstranspile.plan.make import make_plan, overview, slice_variables
from pstranspile.plan.plan import DistributedVar, Plan

if TYPE_CHECKING:
    from pstranspile.plan.edited import PlanFile

SERVER_VALUE = declare(
    "needs-server-value", "An op that stays on the trainer reads what only ops that move to the servers compute."
)
UNCOMPENSATED = declare(
    "dc-asgd-sparse", "Delay compensation was asked for, and a gradient is sparse, which it leaves as it is."
)


@dataclass(frozen=True)
class ServerJob:
    """The emitter of the modes with servers: `module` is what the mode made of the source."""

    module: Module
    facts: Facts
    plan: Plan
    mode: Mode
    steps: Steps

    @cached_property
    def _trainer_template(self) -> TrainerTemplate:
        return TrainerTemplate(self.facts, self.plan, self.mode)

    @cached_property
    def _server_template(self) -> ServerTemplate:
        return ServerTemplate(self.facts, self.plan, self.mode)

    @cached_property
    def _initialisers(self) -> Initialisers:
        return Initialisers(self.module[STARTUP])

    def trainer(self, index: int) -> Programs:
        """The programs of trainer `index`."""
        template, source = self._trainer_template, self.module[STARTUP]
        main = self.steps.run("emit-trainers", emit_trainer, template, index)
        return Programs(main, self.steps.run("emit-trainer-startups", emit_trainer_startup, template, source, index))

    def pserver(self, endpoint: str) -> Programs:
        """The programs of the server at `endpoint`."""
        server = self.steps.run("emit-pservers", emit_pserver, self._server_template, endpoint)
        startup = self.steps.run("emit-pserver-startups", emit_pserver_startup, server, self._initialisers)
        return Programs(server.program, startup)

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Every variable on the servers: parameters, then the state of their optimizers (A1.23)."""
        return overview(self.facts, self.plan)


def prepare_servers(module: Module, job: Job, plan: Plan | PlanFile | None, steps: Steps) -> Prepared:
    """Facts and plan of a job with parameter servers. Raises DiagnosticError."""
    mode = mode_of(job)
    source = module
    module, counters = mode.rewrite(source, job)
    facts = analyze(module.main, steps, tables_by_rows=job.distributed_table == "rows")
    warnings = list(facts.findings)
    if facts.lookup_table is not None:
        warnings += table_warnings(facts.program, facts.lookup_table, job.trainers)
    if plan is not None and not isinstance(plan, Plan):
        from pstranspile.plan.edited import apply_plan
        from pstranspile.plan.text import fingerprint

        pieces, findings = slice_variables(facts, module.startup, job)
        raise_errors(findings)
        plan = apply_plan(plan, fingerprint(source), facts, job, pieces, mode.per_trainer(job))
    elif plan is None:
        plan, findings = make_plan(facts, module.startup, job, per_trainer=mode.per_trainer(job), steps=steps)
        warnings += findings
    plan = replace(
        plan,
        counters=counters,
        runtime_split=job.runtime_split_send_recv,
        communicator_barrier=job.runtime_split_send_recv and job.half_async,
        dc_asgd=job.enable_dc_asgd and mode.compensates,
    )
    mode.check(plan)
    warnings += _uncompensated(facts, plan)
    raise_errors(_needed_from_servers(facts))
    return Prepared(plan, ServerJob(module, facts, plan, mode, steps), tuple(warnings))


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


def _uncompensated(facts: Facts, plan: Plan) -> list[Diagnostic]:
    """Warnings for sparse gradients, which delay compensation leaves as they are (Fluid refuses them)."""
    ops = facts.program.main_block.ops
    found: list[Diagnostic] = []
    for update in facts.updates if plan.dc_asgd else ():
        if plan.by_name[update.parameter].sparse:
            message = f"the sparse gradient of %{update.parameter} is applied without delay compensation"
            focus = f"%{update.parameter}"
            found.append(
                at_op(UNCOMPENSATED, message, ops[update.optimizer[0]], focus=focus, severity=Severity.WARNING)
            )
    return found
