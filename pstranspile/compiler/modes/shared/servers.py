"""The common parts of the modes whose servers store and update the parameters: facts, plan, and the emitter of all
programs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.compiler.analysis import Facts
from pstranspile.compiler.analysis.tables import table_warnings
from pstranspile.compiler.analysis.updates import find_roles, self_updates
from pstranspile.compiler.emit.rules import (
    COMMUNICATOR_BARRIER,
    SEND_COUNTER,
    SHARE_COUNTER,
    START_COUNTER,
    Timing,
    derived_origin,
)
from pstranspile.compiler.emit.servers import (
    Parts,
    ProgramShare,
    ServerJob,
    combine_facts,
    find_parts,
    problems_of,
    separate,
    training_names,
)
from pstranspile.compiler.job import Job
from pstranspile.compiler.modes import PreparedJob
from pstranspile.compiler.plan.make import (
    Piece,
    norm_warnings,
    plan_pieces,
    reserved_names,
    share_of,
    slice_variables,
)
from pstranspile.compiler.plan.plan import (
    CONTROL,
    NameMint,
    Plan,
    PlannedParameter,
    SharedCounter,
    trainer_suffix,
)
from pstranspile.ir.attributes import Longs, Strings
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op, raise_errors
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module, Op, Origin, Program
from pstranspile.ir.passes import Steps
from pstranspile.ir.types import OpRole
from pstranspile.ops.build import make_op

if TYPE_CHECKING:
    from pstranspile.compiler.plan.plan_file import PlanFile


# Step counters of learning-rate schedules, in modes whose servers get no barriers.
#
# Every trainer keeps a counter of its own, sends it to all servers each step, and the schedule on a server runs on the
# sum of the received counters.


def share_step_counters(module: Module, trainers: int) -> tuple[Module, tuple[SharedCounter, ...]]:
    """The module with each schedule's `increment` replaced by the sum of one counter per trainer.

    The shared counter starts at minus the number of trainers and each trainer's own at 1, as Fluid sets them; the
    counters are listed in program order. A module without such a schedule is returned unchanged.
    """
    block = module.main.main_block
    counters: list[SharedCounter] = []
    ops = list(block.ops)
    mint = NameMint(name for b in module.main.blocks for name in b.vars)
    for index in find_roles(block).learning_rate:
        op, name = ops[index], ops[index].output("Out")
        if op.type != "increment" or name is None or name not in block.vars:
            continue
        own = tuple(mint.mint(name + trainer_suffix(i)) for i in range(trainers))
        counters.append(SharedCounter(name, own, mint.mint(CONTROL + name), op.origin))
        origin = derived_origin(op.origin, SHARE_COUNTER)
        ops[index] = make_op("sum", {"X": own}, {"Out": [name]}, role=OpRole.LR_SCHED, origin=origin)
    if not counters:
        return module, ()
    main = _declare(module.main, module.main, counters, ops)
    startup = _declare(module[STARTUP], module.main, counters, _initialise_counters(module, counters))
    return module.with_programs({MAIN: main, STARTUP: startup}), tuple(counters)


def _declare(program: Program, main: Program, counters: Sequence[SharedCounter], ops: Sequence[Op]) -> Program:
    """The program with these ops in block 0 and every trainer's counters declared."""
    block = program.main_block
    variables = dict(block.vars)
    for counter in counters:
        shared = main.main_block.vars[counter.name]
        variables.update((name, shared._replace(name=name, location=None)) for name in counter.trainer_counters)
    return program.with_main_block(block._replace(vars=FrozenMap(variables), ops=tuple(ops)))


def _initialise_counters(module: Module, counters: Sequence[SharedCounter]) -> list[Op]:
    """The start-up ops: own counters set to 1 first, the shared ones to minus the number of trainers."""
    shared = {counter.name: counter for counter in counters}
    ops: list[Op] = []
    for counter in counters:
        tensor = module.main.main_block.vars[counter.name].tensor
        assert tensor is not None
        attrs = {"shape": Longs(tensor.shape), "dtype": tensor.dtype.value, "value": 1.0}
        origin = derived_origin(counter.origin, START_COUNTER)
        own = (
            make_op("fill_constant", {}, {"Out": [name]}, attrs, origin=origin)
            for name in reversed(counter.trainer_counters)
        )
        ops = [*(op._replace(inputs=FrozenMap()) for op in own), *ops]
    for op in module[STARTUP].main_block.ops:
        counter = shared.get(op.output("Out") or "")
        if counter is not None and op.type == "fill_constant":
            attrs = FrozenMap({**op.attrs, "value": -float(len(counter.trainer_counters))})
            op = op._replace(attrs=attrs, origin=derived_origin(op.origin, START_COUNTER))
        ops.append(op)
    return ops


# The common parts of modes with asynchronous trainer programs: step counters, and the communicator's barrier.


class CommunicatorTiming:
    """The timing of a mode that leaves waiting to the trainers' communicators."""

    def after_sends(self, plan: Plan, trainer: int, origin: Origin | None) -> Sequence[Op]:
        """The ops that send the trainer's step counters, and the barrier of the communicator if it has one."""
        return [*_send_counters(plan, trainer, origin), *_communicator_barrier(plan, trainer, origin)]

    def recv_after(self, plan: Plan, parameter: PlannedParameter) -> str:
        """The control variable of the parameter's own send, for which alone a recv waits."""
        del plan
        return parameter.send_control

    def after_recvs(self, plan: Plan, trainer: int, received: Sequence[str], origin: Origin | None) -> Sequence[Op]:
        """Returns an empty list: the communicator waits in place of the trainer's program."""
        del plan, trainer, received, origin
        return []


def _communicator_barrier(plan: Plan, trainer: int, origin: Origin | None) -> Sequence[Op]:
    """An op that waits until the trainer's communicator has sent everything it was given, if the job has such a
    barrier.
    """
    if not plan.communicator_barrier:
        return []
    controls = [*plan.send_controls, *(counter.control for counter in plan.counters)]
    attrs = {"endpoints": Strings(plan.pservers), "trainer_id": trainer, "half_async": True}
    barrier = make_op(
        "send_barrier",
        {"X": controls},
        {"Out": [plan.barrier_control]},
        attrs,
        role=OpRole.RPC,
        origin=derived_origin(origin, COMMUNICATOR_BARRIER),
    )
    return [barrier]


def _send_counters(plan: Plan, trainer: int, origin: Origin | None) -> Sequence[Op]:
    """Ops that send the trainer's own step counters to every server."""
    sends: list[Op] = []
    for counter in plan.counters:
        counter_name = counter.trainer_counters[trainer]
        attrs = {"epmap": Strings(plan.pservers), "merge_add": True, "use_send_handler": False}
        if plan.runtime_split:
            attrs["send_varnames"] = Strings([counter_name])
        sends.append(
            make_op(
                "send",
                {"X": [counter_name]},
                {"Out": [counter.control]},
                attrs,
                role=OpRole.RPC,
                role_vars=(counter_name, counter_name),
                origin=derived_origin(counter.origin or origin, SEND_COUNTER),
            )
        )
    return sends


# Clipping by the norm of all gradients, where no server has all of them at the same time.

CLIP_SCOPE = "gradient_clip"
"""The name scope of clips that were given to an optimizer."""


def clip_on_trainers(module: Module) -> Module:
    """The module with clips that join several parameters made part of the backward pass, so that they stay on trainers.

    Each trainer then clips its own gradients before it sends them, which is what such a clip means when every gradient
    is applied on its own. Clips of single gradients move to the servers unchanged; a module without the others is
    returned unchanged.
    """
    block = module.main.main_block
    clips = {i: op for i, op in enumerate(block.ops) if op.role == OpRole.OPTIMIZE and _is_clip(op)}
    if not _joins(clips):
        return module
    ops = tuple(op._replace(role=OpRole.BACKWARD) if i in clips else op for i, op in enumerate(block.ops))
    main = module.main.with_main_block(block._replace(ops=ops))
    return module.with_programs({MAIN: main})


def _is_clip(op: Op) -> bool:
    scope = op.attrs.get("op_namescope")
    return isinstance(scope, str) and CLIP_SCOPE in scope


def _joins(clips: dict[int, Op]) -> bool:
    """Whether one of the clips reads a result of the clip for another parameter."""
    made: dict[str, str] = {}
    for op in clips.values():
        owner = op.role_vars[0] if op.role_vars else ""
        if any(made.get(name, owner) != owner for name in op.input_names):
            return True
        made.update((name, owner) for name in op.output_names)
    return False


class ServerFacts(NamedTuple):
    """The facts of a module whose parameters are on servers.

    `module` is `source` as the mode has rewritten it, `counters` are the step counters of each training program,
    `parts` all programs, `combined_facts` the facts of all training programs together.
    """

    source: Module
    module: Module
    counters: Mapping[str, tuple[SharedCounter, ...]]
    parts: Parts
    combined_facts: Facts
    warnings: tuple[Diagnostic, ...]


class ServerMode(Timing, ABC):
    """A mode whose servers store and update the parameters."""

    compensates = False
    """Whether gradients are applied one by one, so that their delay can be compensated (DC-ASGD)."""

    @abstractmethod
    def rewrite(self, module: Module, job: Job) -> tuple[Module, tuple[SharedCounter, ...]]:
        """The source rewritten for this mode, and the step counters that trainers send. Raises DiagnosticError."""

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
        whole = combine_facts(training)
        warnings = [warning for facts in training for warning in facts.findings]
        if whole.lookup_table is not None:
            owner = next(facts for facts in training if facts.lookup_table is not None)
            warnings += table_warnings(owner.program, whole.lookup_table, job.trainers)
        return ServerFacts(module, rewritten, counters, parts, whole, tuple(warnings))

    def prepare(self, facts: ServerFacts, job: Job, given: Plan | PlanFile | None, steps: Steps) -> PreparedJob:
        """The plan of a job with parameter servers, and its emitter. Raises DiagnosticError."""
        module, training = facts.module, facts.parts.training
        plan, warnings = self._plan(facts, job, given, steps)
        for own in training.values():
            raise_errors(reserved_names(own.program, module[STARTUP], plan))
        parts = tuple(
            ProgramShare(name, own, share_of(plan, own, facts.counters[name])) for name, own in training.items()
        )
        for part in parts:
            self.check(part.plan)
            warnings += _uncompensated_warnings(part.facts, part.plan)
            raise_errors(_needed_from_servers(part.facts))
        emitter = ServerJob(module, facts.combined_facts, plan, parts, facts.parts.reading, self, steps)
        return PreparedJob(plan, emitter, (*facts.warnings, *warnings), module)

    def _plan(
        self, facts: ServerFacts, job: Job, given: Plan | PlanFile | None, steps: Steps
    ) -> tuple[Plan, list[Diagnostic]]:
        """The given plan or a new one, with the mode's fields, and warnings."""
        plan, warnings = given, list[Diagnostic]()
        if not isinstance(plan, Plan):
            pieces, warnings = _pieces(facts.parts.training.values(), facts.module, job, steps)
            if plan is None:
                plan = plan_pieces(facts.combined_facts, job, pieces, self.per_trainer(job), steps)
            else:
                from pstranspile.compiler.plan.plan_file import apply_plan

                plan = apply_plan(plan, facts.combined_facts, job, pieces, self.per_trainer(job))
        plan = replace(
            plan,
            counters=tuple(counter for rows in facts.counters.values() for counter in rows),
            runtime_split=job.runtime_split_send_recv,
            communicator_barrier=job.runtime_split_send_recv and job.half_async,
            dc_asgd=job.enable_dc_asgd and self.compensates,
            made_for=facts.source,
        )
        for own in facts.parts.training.values():
            warnings += norm_warnings(own, plan)
        return plan, warnings


def _rewritten(module: Module, job: Job, mode: ServerMode) -> tuple[Module, dict[str, tuple[SharedCounter, ...]]]:
    """The module rewritten for the mode, and the step counters of each training program."""
    counters: dict[str, tuple[SharedCounter, ...]] = {}
    for name in training_names(module):
        pair = Module(FrozenMap({MAIN: module[name], STARTUP: module[STARTUP]}), module.source)
        made, counters[name] = mode.rewrite(pair, job)
        if made is not pair:
            module = module.with_programs({name: made.main, STARTUP: made[STARTUP]})
    return module, counters


def _pieces(parts: Iterable[Facts], module: Module, job: Job, steps: Steps) -> tuple[list[Piece], list[Diagnostic]]:
    """The parameters of all training programs, cut, or whole if one of the programs needs them whole; and findings."""
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
            if not piece.divisible:
                name = piece.update.parameter
                pieces[name] = pieces[name]._replace(divisible=False)
    return list(pieces.values()), warnings


def _needed_from_servers(facts: Facts) -> list[Diagnostic]:
    """Errors for ops that stay on the trainer but read variables that only ops on the servers write."""
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


def _uncompensated_warnings(facts: Facts, plan: Plan) -> list[Diagnostic]:
    """Warnings for sparse gradients, which delay compensation does not change (Fluid refuses them)."""
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
