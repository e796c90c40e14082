"""Parameter/gradient pairs and update groups: the ops that update each parameter, and the parameters that must stay
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pstranspile.compiler.analysis.uses import OpGraph, ReadersAndWriters, effects_of, op_graph
from pstranspile.ir.diagnostics import Diagnostic, at_op, warning
from pstranspile.ir.model import STARTUP, Block, Module, Op, Program
from pstranspile.ir.types import LR_ROLES, OpRole
from pstranspile.ops import is_optimizer, schema_of
from pstranspile.ops.schema import OpSchema, Slicing

# Optimize-op discovery: which ops of a training program update parameters, set rates, or clip gradients.

TRAINER_CLIP_SCOPE = "@CLIP"
"""The name scope of gradient clips set with `set_gradient_clip`, which stay on the trainer."""


class Roles(NamedTuple):
    """Indices of ops in block 0, each list in program order.

    `optimize`: role exactly OPTIMIZE (updates, weight decay, clips through the optimizer's argument, averages).
    `learning_rate`: role LR_SCHED or LR_SCHED|OPTIMIZE. `trainer_clips`: clips that stay with the trainer.
    """

    optimize: tuple[int, ...]
    learning_rate: tuple[int, ...]
    trainer_clips: tuple[int, ...]

    @property
    def moved_by_role(self) -> frozenset[int]:
        """The indices of the ops that leave the trainer because of their role."""
        return frozenset((*self.optimize, *self.learning_rate))


def find_roles(block: Block) -> Roles:
    """Sorts a block's ops by role."""
    optimize: list[int] = []
    rates: list[int] = []
    clips: list[int] = []
    for index, op in enumerate(block.ops):
        scope = op.attrs.get("op_namescope", "")
        if isinstance(scope, str) and TRAINER_CLIP_SCOPE in scope:
            clips.append(index)
        elif op.role == OpRole.OPTIMIZE:
            optimize.append(index)
        elif op.role in LR_ROLES:
            rates.append(index)
    return Roles(tuple(optimize), tuple(rates), tuple(clips))


class Update(NamedTuple):
    """The update of one parameter.

    `gradient` is the variable that is sent: the last value a trainer computes for it. `ops` are the indices of the
    optimize-role ops attributed to the parameter, in program order; `optimizer` those of them that are optimizers.
    `uncut_reason` is the reason why the parameter can't be cut (empty: it can).
    """

    parameter: str
    gradient: str
    ops: tuple[int, ...]
    optimizer: tuple[int, ...]
    uncut_reason: str = ""


class UpdateGroup(NamedTuple):
    """Parameters whose updates are connected, so that they must be on one server and uncut.

    `after` are ops of other roles that change the parameters after their updates (Lookahead), with the ops they need;
    they follow the updates on the server.
    """

    parameters: tuple[str, ...]
    after: tuple[int, ...] = ()


def attribute(program: Program, roles: Roles) -> tuple[dict[str, list[int]], dict[str, str], list[Diagnostic]]:
    """Attributes optimize ops to parameters. Returns parameter -> indices of its optimize ops, parameter -> gradient
    named first, and findings.

    An op without role variables is attributed to the parameter whose optimize op reads what it writes, or writes what
    it reads.
    """
    ops = program.main_block.ops
    owner: dict[int, str] = {}
    gradients: dict[str, str] = {}
    pending: list[int] = []
    for index in roles.optimize:
        pairs = ops[index].role_pairs
        if pairs:
            owner[index] = pairs[0][0]
            gradients.setdefault(*pairs[0])
        elif is_optimizer(ops[index]) and (param := ops[index].input("Param")):
            owner[index] = param
            gradients.setdefault(param, ops[index].input("Grad") or "")
        else:
            pending.append(index)
    if pending:
        pending = _attribute_by_connection(program, roles, owner, pending)
    by_parameter: dict[str, list[int]] = {parameter: [] for parameter in gradients}
    for index in roles.optimize:
        if index in owner:
            by_parameter.setdefault(owner[index], []).append(index)
    findings = [
        at_op("optimize-op-unattributed", "the op has role optimize but belongs to no parameter", ops[index])
        for index in pending
    ]
    return by_parameter, gradients, findings


def _attribute_by_connection(program: Program, roles: Roles, owner: dict[int, str], pending: list[int]) -> list[int]:
    """Attributes ops without role variables to the parameter of an op they are connected to; returns those left
    over.
    """
    graph = op_graph(program, roles.optimize)
    while pending:
        left: list[int] = []
        for index in pending:
            near = (*graph.predecessors(index), *graph.successors(index))
            result = next((owner[n] for n in near if n in owner), None)
            if result is None:
                left.append(index)
            else:
                owner[index] = result
        if len(left) == len(pending):
            break
        pending = left
    return pending


def gradients_finished(program: Program, roles: Roles) -> dict[str, str]:
    """Parameter -> gradient, by the role variables of the ops that stay on the trainer (the last one counts).

    With clips given to the optimizer the gradient that an optimize op names first is the clip's output,
    which the server computes; what a trainer can send is the gradient that its own ops finish.
    """
    moved = roles.moved_by_role
    result: dict[str, str] = {}
    for index, op in enumerate(program.main_block.ops):
        if op.role_vars and index not in moved:
            result.update(op.role_pairs)
    return result


def follows_parameter(schema: OpSchema | None, slot: str) -> bool:
    """Whether the variable in a slot of an op is cut like the parameter, if it has the parameter's shape.

    This holds for the slots of an optimizer that follow the parameter, and for every slot of an op that works row by
    row.
    """
    if schema is None:
        return False
    if schema.slicing:
        return schema.slicing.get(slot) is Slicing.FOLLOWS
    return schema.row_wise


def why_whole(program: Program, op_indices: Iterable[int]) -> str:
    """The reason why these ops need a parameter whole: one of them needs all of it. Empty if none does."""
    ops = program.main_block.ops
    for index in op_indices:
        op = ops[index]
        schema = schema_of(op.type)
        if schema is None:
            return f"{op.type} has no schema, so it is not known to work slice by slice"
        if not schema.slicing and not schema.row_wise and op.inputs and any(op.input_names):
            return f"{op.type} needs the whole value"
        if schema.never_cut:
            return f"{op.type} needs the whole parameter"
    return ""


def is_frozen(program: Program, parameter: str) -> bool:
    """Whether a parameter is marked as not trainable."""
    var = program.main_block.vars.get(parameter)
    return var is not None and var.parameter is not None and not var.parameter.trainable


def find_updates(
    program: Program, roles: Roles, uses: ReadersAndWriters
) -> tuple[tuple[Update, ...], list[Diagnostic]]:
    """The update of every optimised parameter, in the order of their first optimize op, and findings.

    Parameters marked not trainable are left out.
    """
    ops = program.main_block.ops
    by_parameter, gradients, findings = attribute(program, roles)
    on_trainer = uses.kept_writer
    if not all(named in on_trainer for named in gradients.values()):
        finished = gradients_finished(program, roles)
        gradients = {p: named if named in on_trainer else finished.get(p, named) for p, named in gradients.items()}
    updates: list[Update] = []
    for parameter, gradient in gradients.items():
        if is_frozen(program, parameter):
            continue
        indices = by_parameter[parameter]
        optimizers = tuple(i for i in indices if is_optimizer(ops[i]))
        if not optimizers:
            writer = next((i for i in indices if parameter in ops[i].output_names), indices[0])
            findings.append(
                at_op(
                    "optimizer-unknown",
                    f"not known as an optimizer of %{parameter}",
                    ops[writer],
                    focus=f"%{parameter}",
                )
            )
        elif gradient not in on_trainer:
            message = f"the gradient %{gradient} of %{parameter} is computed by no op that stays on the trainer"
            findings.append(at_op("gradient-not-produced", message, ops[indices[0]], focus=f"%{gradient}"))
        else:
            updates.append(Update(parameter, gradient, tuple(indices), optimizers, why_whole(program, indices)))
    if not updates and not findings:
        findings.append(no_updates(program))
    return tuple(updates), findings


NO_UPDATES = "the main program has no optimizer op; `pstranspile grad` makes a training program of a forward one"
"""The message about a program without an update of parameters."""


def no_updates(program: Program) -> Diagnostic:
    """The warning about a program without an update: as in Fluid, trainers evaluate and servers have no parameters."""
    ops = program.main_block.ops
    location = ops[0].origin.location if ops and ops[0].origin else None
    return warning("no-optimizer", NO_UPDATES, location)


def find_groups(
    program: Program, updates: tuple[Update, ...], roles: Roles
) -> tuple[tuple[UpdateGroup, ...], list[Diagnostic]]:
    """The groups of parameters that must stay together, and findings.

    Union-find over the updates: parameters are joined when an op of one uses a result of an op of the other. Learning
    rates do not join (every server computes them). Only groups of two or more parameters, or with ops that follow the
    update, are returned.
    """
    joins = _joined_by_helpers(program, updates)
    after, after_joins, findings = _ops_after_updates(program, updates, roles)
    if not joins and not after:
        return (), findings
    from networkx.utils import UnionFind

    union: UnionFind[str] = UnionFind(update.parameter for update in updates)
    for names in (*joins, *after_joins):
        union.union(*names)
    members: dict[str, list[str]] = {}
    for update in updates:
        members.setdefault(union[update.parameter], []).append(update.parameter)
    following: dict[str, set[int]] = {}
    for index, parameter in after:
        following.setdefault(union[parameter], set()).add(index)
    groups = [
        UpdateGroup(tuple(names), tuple(sorted(following.get(root, ()))))
        for root, names in members.items()
        if len(names) > 1 or root in following
    ]
    return tuple(groups), findings


def _joined_by_helpers(program: Program, updates: tuple[Update, ...]) -> list[tuple[str, ...]]:
    """Pairs of parameters such that an optimize op of one uses a result of an optimize op of the other."""
    with_helpers = [update for update in updates if len(update.ops) > 1]
    if not with_helpers:
        return []  # a lone optimizer writes only its own parameter and state
    owner = {index: update.parameter for update in updates for index in update.ops}
    graph = op_graph(program, sorted(owner))
    return [(owner[a], owner[b]) for a, b in graph.edges if owner[a] != owner[b]]


def _ops_after_updates(
    program: Program, updates: tuple[Update, ...], roles: Roles
) -> tuple[list[tuple[int, str]], list[tuple[str, ...]], list[Diagnostic]]:
    """The ops of other roles that write an optimised parameter after its optimizer, with all ops they need and all that
    use their results.

    Returns (op index, parameter) rows, joins of parameters, and findings: these ops must not depend on values that only
    a trainer has.
    """
    last = {update.parameter: update.ops[-1] for update in updates}
    ops = program.main_block.ops
    special = {*roles.optimize, *roles.learning_rate, *roles.trainer_clips}
    joins: list[tuple[str, ...]] = []
    findings: list[Diagnostic] = []
    late = [i for i in range(min(last.values(), default=len(ops)) + 1, len(ops)) if i not in special]
    changes = {i: effects_of(program, ops[i]) for i in late}
    changers = [i for i in late if any(last.get(name, i) < i for name in changes[i].writes)]
    if not changers:
        return [], joins, findings
    graph = op_graph(program, (i for i in range(len(ops)) if i not in special))
    moved: dict[int, str] = {}
    todo = list(changers)
    while todo:
        index = todo.pop(0)
        if index in moved:
            continue
        effects = effects_of(program, ops[index])
        touched = tuple(n for n in dict.fromkeys((*effects.writes, *effects.reads)) if n in last)
        needed = _through_all_but(graph, index, last, upwards=True)
        outside = (name for i in (*needed, index) for name in graph.nodes[i]["inputs"] if name not in last)
        missing = next((n for n in outside if not _is_state(program, n)), "")
        if missing:
            message = "the op has to follow the update of a parameter on its server, but needs "
            findings.append(
                at_op(
                    "after-update-needs-trainer", f"{message}%{missing} of the trainer", ops[index], focus=f"%{missing}"
                )
            )
            break
        home = touched[0] if touched else next(moved[i] for i in needed if i in moved)
        moved.update((i, home) for i in (*needed, index))
        if len(touched) > 1:
            joins.append(touched)
        todo += (i for node in (*needed, index) for i in _through_all_but(graph, node, last, upwards=False))
    return list(moved.items()), joins, findings


def _through_all_but(graph: OpGraph, index: int, parameters: Mapping[str, int], *, upwards: bool) -> list[int]:
    """The ancestors (or descendants) of an op through any variables but parameters, which the server has."""
    indices: set[int] = set()
    todo = [index]
    while todo:
        node = todo.pop()
        for near in graph.predecessors(node) if upwards else graph.successors(node):
            edge = (near, node) if upwards else (node, near)
            if graph.edges[edge]["var"] not in parameters and near not in indices:
                indices.add(near)
                todo.append(near)
    return sorted(indices)


def _is_state(program: Program, name: str) -> bool:
    var = program.main_block.vars.get(name)
    return var is not None and (var.persistable or var.tensor is None)


# Ops that update parameters themselves, without an optimizer: the hashed embeddings of Fluid's PyramidDNN.

ATTRIBUTE = "distribute_update_vars"
"""The attribute with the names of the parameters that such an op updates, separated by commas."""


def updated_by_itself(op: Op) -> list[str]:
    """The parameters that an op updates without an optimizer."""
    return [name for name in str(op.attrs.get(ATTRIBUTE) or "").split(",") if name]


def self_updates(module: Module) -> list[Diagnostic]:
    """Errors for ops that update parameters themselves: their parameters have no gradient to send, so trainers would
    drift apart.

    In mode geo such ops are valid, as trainers send the changes of parameters instead of gradients.
    """
    findings: list[Diagnostic] = []
    for name, program in module.programs.items():
        for op in program.main_block.ops if name != STARTUP else ():
            updated = updated_by_itself(op)
            if updated:
                names = ", ".join(f"%{name}" for name in updated)
                message = f"it updates {names} by itself, and there is no gradient to send to a server"
                findings.append(at_op("updates-itself", message, op))
    return findings
