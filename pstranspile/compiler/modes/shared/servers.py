"""What the modes share whose servers hold and update the parameters: facts, plan, and the emitter of all programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.compiler.analysis.facts import Facts
from pstranspile.compiler.analysis.lookup_table import table_warnings
from pstranspile.compiler.analysis.self_updates import self_updates
from pstranspile.compiler.emit.servers import Part, ServerJob
from pstranspile.compiler.emit.several import Parts, find_parts, problems_of, separate, together, training_names
from pstranspile.compiler.emit.timing import Timing
from pstranspile.compiler.job import Job
from pstranspile.compiler.modes.shared.base import Prepared
from pstranspile.compiler.plan.make import Piece, plan_pieces, slice_variables
from pstranspile.compiler.plan.plan import Plan, SharedCounter, fingerprint
from pstranspile.compiler.plan.reserved import reserved_names
from pstranspile.compiler.plan.share import share_of
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op, raise_errors
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Module
from pstranspile.ir.passes import Steps

if TYPE_CHECKING:
    from pstranspile.compiler.plan.edited import PlanFile


class ServerFacts(NamedTuple):
    """What is known of a module whose parameters servers hold.

    `module` is what the mode made of `source`, `counters` are the step counters of each training program, `parts` all
    programs, `whole` the facts that the training programs have together.
    """

    source: Module
    module: Module
    counters: Mapping[str, tuple[SharedCounter, ...]]
    parts: Parts
    whole: Facts
    warnings: tuple[Diagnostic, ...]


class ServerMode(Timing, ABC):
    """A mode whose servers hold and update the parameters."""

    compensates = False
    """Whether gradients are applied one by one, so that their delay can be compensated (DC-ASGD)."""

    @abstractmethod
    def rewrite(self, module: Module, job: Job) -> tuple[Module, tuple[SharedCounter, ...]]:
        """The source as this mode needs it, and the step counters that trainers send. Raises DiagnosticError."""

    def check(self, plan: Plan) -> None:
        """Raises DiagnosticError when the plan can't be carried out in this mode."""

    @abstractmethod
    def per_trainer(self, job: Job) -> bool:
        """Whether every trainer sends its gradients under names of its own."""

    def analyze(self, module: Module, job: Job, steps: Steps) -> ServerFacts:
        """The facts of all programs. Raises DiagnosticError."""
        raise_errors(self_updates(module))
        rewritten, counters = _rewritten(separate(module), job, self)
        parts = find_parts(rewritten, job, steps)
        raise_errors(problems_of(parts, job, counters))
        training = list(parts.training.values())
        whole = together(training)
        warnings = [warning for facts in training for warning in facts.findings]
        if whole.lookup_table is not None:
            owner = next(facts for facts in training if facts.lookup_table is not None)
            warnings += table_warnings(owner.program, whole.lookup_table, job.trainers)
        return ServerFacts(module, rewritten, counters, parts, whole, tuple(warnings))

    def prepare(self, facts: ServerFacts, job: Job, given: Plan | PlanFile | None, steps: Steps) -> Prepared:
        """The plan of a job with parameter servers, and its emitter. Raises DiagnosticError."""
        module, training = facts.module, facts.parts.training
        plan, warnings = self._plan(facts, job, given, steps)
        for own in training.values():
            raise_errors(reserved_names(own.program, module[STARTUP], plan))
        parts = tuple(Part(name, own, share_of(plan, own, facts.counters[name])) for name, own in training.items())
        for part in parts:
            self.check(part.plan)
            warnings += _uncompensated(part.facts, part.plan)
            raise_errors(_needed_from_servers(part.facts))
        emitter = ServerJob(module, facts.whole, plan, parts, facts.parts.reading, self, steps)
        return Prepared(plan, emitter, (*facts.warnings, *warnings))

    def _plan(
        self, facts: ServerFacts, job: Job, given: Plan | PlanFile | None, steps: Steps
    ) -> tuple[Plan, list[Diagnostic]]:
        """The given plan or a new one, with the mode's fields, and warnings."""
        plan, warnings = given, list[Diagnostic]()
        if not isinstance(plan, Plan):
            pieces, warnings = _pieces(facts.parts.training.values(), facts.module, job, steps)
            if plan is None:
                plan = plan_pieces(facts.whole, job, pieces, self.per_trainer(job), steps)
            else:
                from pstranspile.compiler.plan.edited import apply_plan

                plan = apply_plan(plan, fingerprint(facts.source), facts.whole, job, pieces, self.per_trainer(job))
        plan = replace(
            plan,
            counters=tuple(counter for rows in facts.counters.values() for counter in rows),
            runtime_split=job.runtime_split_send_recv,
            communicator_barrier=job.runtime_split_send_recv and job.half_async,
            dc_asgd=job.enable_dc_asgd and self.compensates,
        )
        return plan, warnings


def _rewritten(module: Module, job: Job, mode: ServerMode) -> tuple[Module, dict[str, tuple[SharedCounter, ...]]]:
    """The module as the mode needs it, and the step counters of each training program."""
    counters: dict[str, tuple[SharedCounter, ...]] = {}
    for name in training_names(module):
        pair = Module(FrozenMap({MAIN: module[name], STARTUP: module[STARTUP]}), module.source)
        made, counters[name] = mode.rewrite(pair, job)
        if made is not pair:
            module = module.with_programs({name: made.main, STARTUP: made[STARTUP]})
    return module, counters


def _pieces(parts: Iterable[Facts], module: Module, job: Job, steps: Steps) -> tuple[list[Piece], list[Diagnostic]]:
    """The parameters of all training programs, cut; whole if one of the programs needs them whole."""
    pieces: dict[str, Piece] = {}
    warnings: list[Diagnostic] = []
    for facts in parts:
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
    findings: list[Diagnostic] = []
    for index in sorted(facts.moved):
        pair = ops[index].role_vars or ()
        for name in ops[index].output_names:
            if name not in pair and name in readers and name not in writers and name not in parameters:
                message = f"%{name} is computed on the servers (by {ops[index].type}), but this op stays on the trainer"
                findings.append(at_op("needs-server-value", message, ops[readers[name]], focus=f"%{name}"))
    return findings


def _uncompensated(facts: Facts, plan: Plan) -> list[Diagnostic]:
    """Warnings for sparse gradients, which delay compensation leaves as they are (Fluid refuses them)."""
    ops = facts.program.main_block.ops
    findings: list[Diagnostic] = []
    for update in facts.updates if plan.dc_asgd else ():
        if plan.by_name[update.parameter].sparse:
            message = f"the sparse gradient of %{update.parameter} is applied without delay compensation"
            focus = f"%{update.parameter}"
            findings.append(
                at_op("dc-asgd-sparse", message, ops[update.optimizer[0]], focus=focus, severity=Severity.WARNING)
            )
    return findings
