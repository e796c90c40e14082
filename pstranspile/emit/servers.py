"""The modes with parameter servers that hold and update the parameters: from facts and plan to programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.analysis.facts import Facts
from pstranspile.analysis.lookup_table import table_warnings
from pstranspile.analysis.tables import RemoteTable
from pstranspile.analysis.uses import names_in
from pstranspile.emit.family import Prepared, Programs
from pstranspile.emit.pserver import ServerTemplate, emit_pserver
from pstranspile.emit.pserver_startup import Initialisers, emit_pserver_startup
from pstranspile.emit.reader import emit_reader, variables_used
from pstranspile.emit.several import find_parts, problems_of, separate, together, training_names
from pstranspile.emit.trainer import TrainerTemplate, emit_trainer
from pstranspile.emit.trainer_startup import StartupTemplate, emit_trainer_startup
from pstranspile.ir.codes import declare
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op, raise_errors
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Module, Program
from pstranspile.job import Job
from pstranspile.modes import mode_of
from pstranspile.modes.base import Mode
from pstranspile.passes import Steps
from pstranspile.plan.make import Piece, overview, plan_pieces, slice_variables
from pstranspile.plan.plan import DistributedVar, Plan, SharedCounter
from pstranspile.plan.reserved import reserved_names
from pstranspile.plan.share import share_of

if TYPE_CHECKING:
    from pstranspile.plan.edited import PlanFile

SERVER_VALUE = declare(
    "needs-server-value", "An op that stays on the trainer reads what only ops that move to the servers compute."
)
UNCOMPENSATED = declare(
    "dc-asgd-sparse", "Delay compensation was asked for, and a gradient is sparse, which it leaves as it is."
)


class Part(NamedTuple):
    """One training program of a job: its name, its facts, and its share of the plan."""

    name: str
    facts: Facts
    plan: Plan


@dataclass(frozen=True)
class ServerJob:
    """The emitter of the modes with servers: `module` is what the mode made of the source.

    `parts` are the training programs, main first, `reading` the others; `facts` what all parts have together.
    """

    module: Module
    facts: Facts
    plan: Plan
    parts: tuple[Part, ...]
    reading: Mapping[str, tuple[Program, tuple[RemoteTable, ...]]]
    mode: Mode
    steps: Steps

    @cached_property
    def _trainer_templates(self) -> list[TrainerTemplate]:
        return [TrainerTemplate(part.facts, part.plan, self.mode, self.plan) for part in self.parts]

    @cached_property
    def _startup_template(self) -> StartupTemplate:
        return StartupTemplate(self.plan, self._dropped, self.facts.program.main_block.vars, self.module[STARTUP])

    @cached_property
    def _server_templates(self) -> list[ServerTemplate]:
        return [ServerTemplate(part.facts, part.plan, self.mode) for part in self.parts]

    @cached_property
    def _initialisers(self) -> Initialisers:
        return Initialisers(self.module[STARTUP], self.facts.program.main_block.vars)

    @cached_property
    def _dropped(self) -> frozenset[str]:
        """Variables that have left the trainers: dropped by one program, and used by no other."""
        templates = self._trainer_templates
        dropped = templates[0].dropped_vars.union(*(template.dropped_vars for template in templates[1:]))
        if len(templates) == 1 and not self.reading:
            return dropped
        kept: set[str] = set()
        for template in templates:
            block, moved = template.facts.program.main_block, template.facts.moved
            kept |= names_in(block, (i for i in range(len(block.ops)) if i not in moved))
        kept.update(name for program, _ in self.reading.values() for name in variables_used(program))
        return dropped - kept

    def trainer(self, index: int) -> Programs:
        """The programs of trainer `index`."""
        main, *others = [self.steps.run("emit-trainers", emit_trainer, t, index) for t in self._trainer_templates]
        named = dict(zip((part.name for part in self.parts[1:]), others, strict=True))
        for name, (program, tables) in self.reading.items():
            named[name] = self.steps.run("emit-trainers", emit_reader, program, tables, self.plan, index)
        startup = self.steps.run("emit-trainer-startups", lambda: emit_trainer_startup(self._startup_template, index))
        return Programs(main, startup, FrozenMap(named) if named else EMPTY)

    def pserver(self, endpoint: str) -> Programs:
        """The programs of the server at `endpoint`."""
        templates, source = self._server_templates, self.facts.program
        server = self.steps.run("emit-pservers", emit_pserver, templates, self.plan, source, endpoint)
        startup = self.steps.run("emit-pserver-startups", emit_pserver_startup, server, self._initialisers)
        return Programs(server.program, startup)

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Every variable on the servers: parameters, then the state of their optimizers (A1.23)."""
        return overview(self.plan, [part.facts for part in self.parts])


def prepare_servers(module: Module, job: Job, plan: Plan | PlanFile | None, steps: Steps) -> Prepared:
    """Facts and plan of a job with parameter servers. Raises DiagnosticError."""
    mode = mode_of(job)
    source = module
    module, counters = _rewritten(separate(module), job, mode)
    found = find_parts(module, job, steps)
    raise_errors(problems_of(found, job, counters))
    each = list(found.training.values())
    facts = together(each)
    warnings = [warning for part in each for warning in part.findings]
    if facts.lookup_table is not None:
        owner = next(part for part in each if part.lookup_table is not None)
        warnings += table_warnings(owner.program, facts.lookup_table, job.trainers)
    if plan is None or not isinstance(plan, Plan):
        pieces, findings = _pieces(each, module, job, steps)
        warnings += findings
        if plan is None:
            plan = plan_pieces(facts, job, pieces, mode.per_trainer(job), steps)
        else:
            from pstranspile.plan.edited import apply_plan
            from pstranspile.plan.text import fingerprint

            plan = apply_plan(plan, fingerprint(source), facts, job, pieces, mode.per_trainer(job))
    plan = replace(
        plan,
        counters=tuple(counter for rows in counters.values() for counter in rows),
        runtime_split=job.runtime_split_send_recv,
        communicator_barrier=job.runtime_split_send_recv and job.half_async,
        dc_asgd=job.enable_dc_asgd and mode.compensates,
    )
    for facts_of_part in each:
        raise_errors(reserved_names(facts_of_part.program, module[STARTUP], plan))
    parts = tuple(Part(name, own, share_of(plan, own, counters[name])) for name, own in found.training.items())
    for part in parts:
        mode.check(part.plan)
        warnings += _uncompensated(part.facts, part.plan)
        raise_errors(_needed_from_servers(part.facts))
    return Prepared(plan, ServerJob(module, facts, plan, parts, found.reading, mode, steps), tuple(warnings))


def _rewritten(module: Module, job: Job, mode: Mode) -> tuple[Module, dict[str, tuple[SharedCounter, ...]]]:
    """The module as the mode needs it, and the step counters of each training program."""
    counters: dict[str, tuple[SharedCounter, ...]] = {}
    for name in training_names(module):
        pair = Module(FrozenMap({MAIN: module[name], STARTUP: module[STARTUP]}), module.source)
        made, counters[name] = mode.rewrite(pair, job)
        if made is not pair:
            programs = {**module.programs, name: made.main, STARTUP: made[STARTUP]}
            module = Module(FrozenMap(programs), module.source)
    return module, counters


def _pieces(each: Sequence[Facts], module: Module, job: Job, steps: Steps) -> tuple[list[Piece], list[Diagnostic]]:
    """The parameters of all training programs, cut; whole if one of the programs needs them whole."""
    pieces: dict[str, Piece] = {}
    warnings: list[Diagnostic] = []
    for facts in each:
        cut, findings = steps.run("slice-variables", slice_variables, facts, module.startup, job)
        raise_errors(findings)
        warnings += findings
        for piece in cut:
            other = pieces.setdefault(piece.update.parameter, piece)
            if len(piece.cuts) < len(other.cuts):
                pieces[piece.update.parameter] = other._replace(cuts=piece.cuts)
    return list(pieces.values()), warnings


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
