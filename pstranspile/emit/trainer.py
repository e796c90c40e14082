"""The trainer's main program: the source without its updates, with sends, barriers and recvs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.analysis.facts import Facts
from pstranspile.analysis.uses import Uses, deep_blocks, effects_of
from pstranspile.emit.rename import rename_vars
from pstranspile.ir.attributes import Ints, Strings
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Op, Origin, Program, TensorType, Var
from pstranspile.ir.roles import OpRole
from pstranspile.modes.base import Mode
from pstranspile.ops.build import make_op
from pstranspile.plan.plan import Plan, PlannedParameter


class TrainerTemplate:
    """What all trainers of a job share, worked out once: which ops and variables stay, and where sends go."""

    def __init__(self, facts: Facts, plan: Plan, mode: Mode):
        self.facts = facts
        self.plan = plan
        self.mode = mode
        self.moved = frozenset((*facts.roles.optimize, *facts.roles.learning_rate, *facts.after_updates))
        self.kept = kept_ops(facts, self.moved)
        self.dropped_vars = dropped_vars(facts, plan, self.moved)
        self.emptied_blocks = frozenset(
            index
            for op_index in facts.after_updates
            for index in deep_blocks(facts.program, facts.program.main_block.ops[op_index])
        )
        self.send_points = _send_points(facts, plan)
        whole = [p.gradient for p in plan.parameters if not p.is_cut]
        self.mentions = _mentions(self.kept, facts.uses, dict.fromkeys(whole))
        block = facts.program.main_block
        self.base_vars = {name: var for name, var in block.vars.items() if name not in self.dropped_vars}


def kept_ops(facts: Facts, moved: frozenset[int]) -> dict[int, Op]:
    """Index -> op of the source that stays on the trainer; clips that stay become part of the backward pass (A2.16)."""
    kept = {index: op for index, op in enumerate(facts.program.main_block.ops) if index not in moved}
    for index in facts.roles.trainer_clips:
        kept[index] = kept[index]._replace(role=OpRole.BACKWARD)
    return kept


def dropped_vars(facts: Facts, plan: Plan, moved: frozenset[int]) -> frozenset[str]:
    """Variables that leave the trainer with the updates (A2.62).

    Those are the inputs of optimize ops other than parameters and gradients, and all that only ops which follow
    an update mention; none that an op on the trainer still uses.
    """
    ops = facts.program.main_block.ops
    inputs = {name for index in facts.roles.optimize for name in ops[index].input_names}
    inputs -= {name for index in facts.roles.optimize for name in ops[index].role_vars or ()}
    for index in facts.after_updates:
        effects = effects_of(facts.program, ops[index])
        inputs.update(effects.reads, effects.writes)
    inputs -= {p.name for p in plan.parameters} | {p.gradient for p in plan.parameters}
    uses = facts.uses
    mentioned = (uses.readers, uses.writers)
    return frozenset(n for n in inputs if all(i in moved for where in mentioned for i in where.get(n, ())))


def _mentions(kept: Mapping[int, Op], uses: Uses, gradients: Mapping[str, None]) -> dict[str, list[int]]:
    """Gradient -> kept ops that use it or name it in their role variables."""
    found: dict[str, list[int]] = {}
    for name in gradients:
        users = (*uses.writers.get(name, ()), *uses.readers.get(name, ()))
        found[name] = [index for index in users if index in kept]
    for index, op in kept.items():
        for name in op.role_vars or ():
            if name in gradients:
                found[name].append(index)
    return found


def _send_points(facts: Facts, plan: Plan) -> dict[int, list[PlannedParameter]]:
    """Op index -> parameters whose gradient is sent right after it: its last writer (A2.49).

    Fluid inserts at the writer in send order, so of several gradients with one writer the last dealt out comes
    first.
    """
    points: dict[int, list[PlannedParameter]] = {}
    for index in plan.send_order:
        parameter = plan.parameters[index]
        points.setdefault(facts.uses.writers[parameter.gradient][-1], []).insert(0, parameter)
    return points


def emit_trainer(template: TrainerTemplate, trainer: int) -> Program:
    """The main program of one trainer."""
    facts, plan, mode = template.facts, template.plan, template.mode
    renames = own_gradient_names(plan, trainer)
    ops = dict(template.kept)
    for index in {index for name in renames for index in template.mentions.get(name, ())}:
        ops[index] = rename_vars(ops[index], renames)
    ordered: list[Op] = []
    for index, source in enumerate(facts.program.main_block.ops):
        op = ops.get(index)
        if op is not None:
            ordered.append(op)
        for parameter in template.send_points.get(index, ()):
            ordered += send_gradient(plan, parameter, trainer, source.origin)
    ordered += mode.after_sends(plan, trainer)
    received: list[str] = []
    for parameter in plan.parameters:
        ordered.append(receive_parameter(plan, mode, parameter, trainer, renames))
        received += (s.name for s in parameter.slices)
    ordered += mode.after_recvs(plan, trainer, received)
    ordered += (join_slices(parameter, OpRole.DIST) for parameter in plan.parameters if parameter.is_cut)
    variables = trainer_vars(template, trainer, renames)
    main = facts.program.main_block._replace(vars=FrozenMap(variables), ops=tuple(ordered))
    return facts.program._replace(blocks=(main, *_other_blocks(template)))


def _other_blocks(template: TrainerTemplate) -> Sequence[Block]:
    """The sub-blocks under their old numbers; those of ops that moved with an update are emptied."""
    blocks = template.facts.program.blocks
    return [
        block._replace(vars=FrozenMap(), ops=()) if index in template.emptied_blocks else block
        for index, block in enumerate(blocks)
        if index > 0
    ]


def own_gradient_names(plan: Plan, trainer: int) -> dict[str, str]:
    """Gradients that are sent whole under a trainer's own name, and that name (A2.38)."""
    if not plan.per_trainer:
        return {}
    return {p.gradient: plan.sent_name(p.slices[0], trainer) for p in plan.parameters if not p.is_cut}


def send_gradient(plan: Plan, parameter: PlannedParameter, trainer: int, origin: Origin | None) -> list[Op]:
    """Splits a gradient if its parameter is cut, and sends it (A2.50, A2.51)."""
    sent = [plan.sent_name(s, trainer) for s in parameter.slices]
    ops: list[Op] = []
    if parameter.is_cut:
        sections = Ints(s.stop - s.start for s in parameter.slices)
        split = make_op(
            "split_byref",
            {"X": [parameter.gradient]},
            {"Out": sent},
            {"sections": sections},
            role=OpRole.DIST,
            origin=_made(origin, "split-gradient"),
        )
        ops.append(split)
    send = make_op(
        "send",
        {"X": sent},
        {"Out": [parameter.send_control]},
        {"epmap": Strings(s.endpoint for s in parameter.slices)},
        role=OpRole.RPC,
        role_vars=(parameter.name, parameter.gradient if parameter.is_cut else sent[0]),
        origin=_made(origin, "send-gradient"),
    )
    return [*ops, send]


def receive_parameter(
    plan: Plan, mode: Mode, parameter: PlannedParameter, trainer: int, renames: Mapping[str, str]
) -> Op:
    """Fetches every slice of a parameter from its server (A2.55)."""
    return make_op(
        "recv",
        {"X": [mode.recv_after(plan, parameter)]},
        {"Out": [s.name for s in parameter.slices]},
        {"epmap": Strings(s.endpoint for s in parameter.slices), "trainer_id": trainer},
        role=OpRole.RPC,
        role_vars=(parameter.name, renames.get(parameter.gradient, parameter.gradient)),
    )


def join_slices(parameter: PlannedParameter, role: OpRole) -> Op:
    """Puts the received slices of a parameter together along dim 0 (A2.58)."""
    slices = [s.name for s in parameter.slices]
    return make_op("concat", {"X": slices}, {"Out": [parameter.name]}, {"axis": 0}, role=role)


def trainer_vars(template: TrainerTemplate, trainer: int, renames: Mapping[str, str]) -> dict[str, Var]:
    """Variables of block 0: what stays of the source, slices of cut parameters and gradients, control variables."""
    plan = template.plan
    if renames:
        variables = {
            renames.get(name, name): var._replace(name=renames[name]) if name in renames else var
            for name, var in template.base_vars.items()
        }
    else:
        variables = dict(template.base_vars)
    for parameter in plan.parameters:
        if parameter.is_cut:
            gradient = template.facts.program.main_block.vars[parameter.gradient]
            for s in parameter.slices:
                variables[s.name] = Var(s.name, tensor=TensorType(parameter.dtype, s.shape))
                sent = plan.sent_name(s, trainer)
                dtype = gradient.dtype or parameter.dtype
                variables[sent] = Var(sent, gradient.kind, TensorType(dtype, s.shape))
        variables[parameter.send_control] = Var(parameter.send_control)
    variables.update((counter.control, Var(counter.control)) for counter in plan.counters)
    variables[plan.barrier_control] = Var(plan.barrier_control)
    return variables


def _made(origin: Origin | None, rule: str) -> Origin | None:
    return origin._replace(rule=rule) if origin else None
