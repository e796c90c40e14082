"""Checks the rings of trainers: the same list of trainers everywhere, a rank for each, every ring made before it is
used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isclose
from typing import NamedTuple

from pstranspile.compiler.link.machines import Calls, Cluster, PositionedOp, Trainer, describe_type, finding, names_text
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import int_attr, strings_attr

SHARED = ("trainers", "nccl_comm_num", "use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks")
"""The attributes of gen_nccl_id that all trainers must have alike."""


def check_meeting(trainers: Sequence[Trainer]) -> Iterator[Diagnostic]:
    """Checks mode nccl2: one gen_nccl_id per trainer, alike except for the rank; the steps are the same ops."""
    model: tuple[Trainer, Op] | None = None
    taken: dict[int, str] = {}
    if not any(trainer.startup.of("gen_nccl_id") for trainer in trainers):
        return
    for trainer in trainers:
        role, result = trainer.role, trainer.startup.of("gen_nccl_id")
        op = result[0].op if result else Op("gen_nccl_id")
        if len(result) != 1:
            yield finding("link-ring", role, op, f"{len(result)} gen_nccl_id ops at start-up, must be 1")
            continue
        yield from _check_ids(trainer, op)
        rank = int_attr(op, "trainer_id", -1)
        if not 0 <= rank < len(trainers) or rank in taken:
            other = f", as {taken[rank]}" if rank in taken else ""
            yield finding(
                "link-ring", role, op, f"trainer_id is {rank} of {len(trainers)}{other}", op.output("NCCLID") or ""
            )
        taken.setdefault(rank, role.name)
        if len(strings_attr(op, "trainers")) != len(trainers):
            message = f"it meets {list(strings_attr(op, 'trainers'))}, there are {len(trainers)} trainers"
            yield finding("link-ring", role, op, message, op.output("NCCLID") or "")
        model = model or (trainer, op)
        for name in SHARED:
            if op.attrs.get(name) != model[1].attrs.get(name):
                here, there = op.attrs.get(name), model[1].attrs.get(name)
                message = f"{name} is {here!r}, in {model[0].role.name} it is {there!r}"
                yield finding("link-ring", role, op, message, op.output("NCCLID") or "")
        yield from _check_same_step(trainer, model[0])


def _check_ids(trainer: Trainer, op: Op) -> Iterator[Diagnostic]:
    """Checks that gen_nccl_id has a persistable RAW variable for the id of every communicator, also for both levels of
    a hierarchy, whose groups must divide the trainers.
    """
    count, inner = int_attr(op, "nccl_comm_num", 1), int_attr(op, "hierarchical_allreduce_inter_nranks", -1)
    names = ["NCCLID", *[f"NCCLID_{i}" for i in range(1, count)]]
    if op.attrs.get("use_hierarchical_allreduce") is True:
        ranks = len(strings_attr(op, "trainers"))
        if not 1 < inner < ranks or ranks % inner:
            message = f"groups of {inner} do not divide {ranks} trainers (hierarchical_allreduce_inter_nranks)"
            yield finding("link-ring", trainer.role, op, message, "NCCLID")
        for level in ("inter", "exter"):
            names += [f"Hierarchical_{level}_NCCLID_{i}" for i in range(count)]
    for name in names:
        var = trainer.startup.vars.get(name)
        if var is None or var.kind is not VarKind.RAW or not var.persistable:
            yield finding(
                "link-ring", trainer.role, op, f"%{name} is {describe_type(var)}, must be a RAW persistable", name
            )
    if op.outputs.get("NCCLID") != ("NCCLID",):
        yield finding("link-ring", trainer.role, op, "it does not make %NCCLID", "NCCLID")


def _check_same_step(trainer: Trainer, model: Trainer) -> Iterator[Diagnostic]:
    """Checks that each trainer's executor reduces the gradients of the same ops in the same order."""
    mine, theirs = trainer.main.program.main_block.ops, model.main.program.main_block.ops
    if mine is theirs or mine == theirs:
        return
    pairs = zip(mine, theirs, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(theirs)))
    op = mine[at] if at < len(mine) else Op("no op")
    message = f"op {at} of the step is another one than in {model.role.name}"
    yield finding("link-collective", trainer.role, op, message, next(op.output_names, ""))


def check_rings(cluster: Cluster) -> Iterator[Diagnostic]:
    """Checks the collective modes: every ring is joined once, by every trainer, under the same list of endpoints."""
    model: tuple[Trainer, dict[int, tuple[str, ...]]] | None = None
    ranks: dict[int, str] = {}
    for trainer in cluster.trainers:
        joined_rings: dict[int, tuple[str, ...]] = {}
        ranks_given: set[int] = set()
        yield from _join(trainer, len(cluster.trainers), joined_rings, ranks_given)
        if not ranks_given:
            if model is not None:
                yield finding(
                    "link-ring", trainer.role, Op("c_comm_init"), f"it joins no ring, {model[0].role.name} does"
                )
            continue
        rank = min(ranks_given)
        op = trainer.startup.of("c_comm_init")[0].op
        if len(ranks_given) > 1 or rank in ranks or not 0 <= rank < len(cluster.trainers):
            other = f", as {ranks[rank]}" if rank in ranks else ""
            message = f"it says it is rank {', '.join(map(str, sorted(ranks_given)))} of {len(cluster.trainers)}{other}"
            yield finding("link-ring", trainer.role, op, message, op.input("X") or "")
        ranks.setdefault(rank, trainer.role.name)
        model = model or (trainer, joined_rings)
        if joined_rings != model[1]:
            message = f"it joins the rings {_rings(joined_rings)}, {model[0].role.name} joins {_rings(model[1])}"
            yield finding("link-ring", trainer.role, op, message, op.input("X") or "")


def _rings(rings: dict[int, tuple[str, ...]]) -> str:
    return "; ".join([f"{ring} of {', '.join(members)}" for ring, members in sorted(rings.items())]) or "none"


def _join(
    trainer: Trainer, trainers: int, own: dict[int, tuple[str, ...]], ranks_given: set[int]
) -> Iterator[Diagnostic]:
    """Adds the rings that a trainer joins to `own`, each with all endpoints in the order of ranks, and its ranks to
    `ranks_given`; yields findings.
    """
    role, startup = trainer.role, trainer.startup
    made = {name: item for item in startup.of("c_gen_nccl_id") for name in item.op.output_names}
    for position, op in startup.of("c_comm_init"):
        ring, rank, name = int_attr(op, "ring_id"), int_attr(op, "rank", -1), op.input("X") or ""
        ranks_given.add(rank)
        source = made.get(name)
        if source is None or source.position > position:
            yield finding(
                "link-ring", role, op, f"ring {ring} is joined with %{name}, which no c_gen_nccl_id made before", name
            )
            continue
        others = list(strings_attr(source.op, "other_endpoints"))
        if int_attr(source.op, "rank", -1) != rank:
            yield finding("link-ring", role, op, f"rank {rank} of ring {ring} has the id %{name} of another rank", name)
        if int_attr(op, "nranks", -1) != trainers or len(others) + 1 != trainers or ring in own:
            message = (
                f"ring {ring} has {int_attr(op, 'nranks')} ranks, {len(others) + 1} endpoints, for {trainers} trainers"
            )
            yield finding("link-ring", role, op, message + (", and is joined twice" if ring in own else ""), name)
        place = min(max(rank, 0), len(others))
        own[ring] = (*others[:place], str(source.op.attrs.get("endpoint", "")), *others[place:])


# Collective operations: the same on every trainer, in the same order; what an optimizer uses is reduced once.


def _is_collective(kind: str) -> bool:
    """Whether all trainers of a ring take part in ops of a type. The older ops that name no ring are left out."""
    return kind.startswith("c_") and facts_of(kind).communicates == "collective"


def _reductions(calls: Calls) -> list[PositionedOp]:
    """The ops that combine the values of all trainers for all of them."""
    return [placed for kind, found in calls.ops.items() if facts_of(kind).all_reduce for placed in found]


class CollectiveStep(NamedTuple):
    """An operation that all trainers must do alike: op type, ring, root, variable and its type."""

    kind: str
    ring: int
    root: int
    name: str
    type: str


def check_collectives(trainers: Sequence[Trainer]) -> Iterator[Diagnostic]:
    """Checks all collective ops of all trainers, and the use of their results."""
    for startup in (True, False):
        model: tuple[Trainer, list[tuple[CollectiveStep, Op]]] | None = None
        for trainer in trainers:
            calls = trainer.startup if startup else trainer.main
            steps = _steps(calls)
            model = model or (trainer, steps)
            yield from _check_alike(trainer, steps, model)
    for trainer in trainers:
        if any(kind.startswith("c_") for calls in (trainer.startup, trainer.main) for kind in calls.ops):
            yield from _check_rings_used(trainer)
            yield from _check_streams(trainer)
            yield from _check_reduced(trainer, len(trainers))


def _steps(calls: Calls) -> list[tuple[CollectiveStep, Op]]:
    result = [item for kind in calls.ops if _is_collective(kind) for item in calls.ops[kind]]
    result.sort(key=lambda item: item.position)
    variables = calls.vars
    steps: list[tuple[CollectiveStep, Op]] = []
    for _, op in result:
        name = op.input("X") or ""
        step = CollectiveStep(
            op.type, int_attr(op, "ring_id"), int_attr(op, "root"), name, describe_type(variables.get(name))
        )
        steps.append((step, op))
    return steps


def _check_alike(
    trainer: Trainer, steps: list[tuple[CollectiveStep, Op]], model: tuple[Trainer, list[tuple[CollectiveStep, Op]]]
) -> Iterator[Diagnostic]:
    """Yields a finding for the first operation that differs from the model trainer's. From there on each trainer would
    wait for another operation, so later differences are not reported.
    """
    first, expected = model
    for position, ((own, op), (other, _)) in enumerate(zip(steps, expected, strict=False)):
        if own != other:
            message = f"collective operation {position} is {_text(own)}, in {first.role.name} {_text(other)}"
            yield finding("link-collective", trainer.role, op, message, own.name)
            return
    if len(steps) != len(expected):
        longer = (steps if len(steps) > len(expected) else expected)[min(len(steps), len(expected))]
        message = f"{len(steps)} collective operations, {len(expected)} in {first.role.name}: no {_text(longer[0])}"
        yield finding("link-collective", trainer.role, longer[1], message, longer[0].name)


def _text(step: CollectiveStep) -> str:
    root = f" from {step.root}" if step.kind == "c_broadcast" else ""
    return f"{step.kind}{root} of %{step.name} ({step.type}) on ring {step.ring}"


def _check_rings_used(trainer: Trainer) -> Iterator[Diagnostic]:
    """Checks that a ring is made at start-up before it is used, and that roots are ranks of it."""
    joined: dict[int, tuple[int, int]] = {}
    for kind in ("c_comm_init", "c_comm_init_all"):
        for position, op in trainer.startup.of(kind):
            joined[int_attr(op, "ring_id")] = (position, int_attr(op, "nranks", 1 << 30))
    for calls, later in ((trainer.startup, 0), (trainer.main, 1 << 30)):
        for kind, items in calls.ops.items():
            if not _is_collective(kind) and kind != "c_sync_comm_stream":
                continue
            for position, op in items:
                ring = int_attr(op, "ring_id")
                made, ranks = joined.get(ring, (1 << 31, 0))
                if made > position + later:
                    name = op.input("X") or ""
                    yield finding(
                        "link-ring", trainer.role, op, f"%{name} uses ring {ring}, which is not made before", name
                    )
                elif not 0 <= int_attr(op, "root") < ranks:
                    name = op.input("X") or ""
                    message = f"%{name} comes from rank {int_attr(op, 'root')} of {ranks}"
                    yield finding("link-ring", trainer.role, op, message, name)


def _check_streams(trainer: Trainer) -> Iterator[Diagnostic]:
    """Checks that a variable is computed before it is reduced, and reduced before it is used: the two streams must wait
    for each other.

    A c_sync_calc_stream waits for all computations before it, whatever variable it names.
    """
    for calls in (trainer.startup, trainer.main):
        computed: set[str] = set()
        pending: dict[str, tuple[int, Op]] = {}
        for op in calls.program.main_block.ops:
            kind = op.type
            if kind == "c_sync_calc_stream":
                computed.clear()
            elif kind == "c_sync_comm_stream":
                ring = int_attr(op, "ring_id")
                pending = {name: item for name, item in pending.items() if item[0] != ring}
            elif _is_collective(kind):
                if op.attrs.get("use_calc_stream") is True:
                    continue
                if op.inputs.get("X") != op.outputs.get("Out"):
                    name = op.input("X") or ""
                    message = f"%{name} is not put back, but into {names_text(op.outputs.get('Out', ()))}"
                    yield finding("link-collective", trainer.role, op, message, name)
                for name in op.inputs.get("X", ()):
                    if facts_of(kind).all_reduce and name in computed:
                        message = f"%{name} is reduced without waiting for its computation (c_sync_calc_stream)"
                        yield finding("link-order", trainer.role, op, message, name)
                    pending[name] = (int_attr(op, "ring_id"), op)
            else:
                for names in op.inputs.values() if pending else ():
                    for name in names:
                        if name in pending:
                            ring, source = pending.pop(name)
                            message = f"%{name} is used by {kind} before ring {ring} is waited for (c_sync_comm_stream)"
                            yield finding("link-order", trainer.role, source, message, name)
                for names in op.outputs.values():
                    computed.update(names)
        for name, (ring, source) in pending.items():
            message = f"nothing waits for ring {ring} after %{name} (c_sync_comm_stream)"
            yield finding("link-order", trainer.role, source, message, name)


def _check_reduced(trainer: Trainer, trainers: int) -> Iterator[Diagnostic]:
    """Checks that every update has its gradient, or the parameter itself (local SGD), summed over all trainers once,
    and divided.

    The gradient is the variable that the backward pass finishes for the parameter, each time it does; a clipped or
    decayed gradient is another variable. Parameters that are distributed over machines (`is_distributed`) are left out,
    as Fluid does.
    """
    role, ops = trainer.role, trainer.main.program.main_block.ops
    reduced: dict[str, int] = {}
    for _, op in _reductions(trainer.main):
        for name in op.inputs.get("X", ()):
            reduced[name] = reduced.get(name, 0) + 1
    sent = {name for _, op in trainer.startup.of("c_broadcast") for name in op.inputs.get("X", ())}
    dealt = {op.input("W") for op in ops if op.attrs.get("is_distributed") is True}
    dealt.update(v.name for v in trainer.main.program.parameters() if v.parameter and v.parameter.is_distributed)
    finished = _finished_gradients(ops)
    averaged = any(gradient in reduced for gradient, _ in finished.values())
    for op in ops:
        if "Param" not in op.inputs or "Grad" not in op.inputs:
            continue
        parameter = op.inputs["Param"][0]
        if parameter in dealt:
            continue
        gradient, times = finished.get(parameter, (op.inputs["Grad"][0], 1))
        wanted = 1 if parameter in reduced else times
        count = reduced.get(gradient, 0) + (reduced.get(parameter, 0) if parameter != gradient else 0)
        averaged = averaged or gradient in reduced
        if count != wanted:
            often = "once" if wanted == 1 else f"{wanted} times"
            message = f"%{gradient}, the gradient of %{parameter}, is reduced {count} times, must be {often}"
            yield finding("link-reduced", role, op, message, gradient)
        if trainer.startup.of("c_comm_init") and parameter not in sent:
            message = f"%{parameter} is not broadcast at start-up: the trainers begin with different values"
            yield finding("link-reduced", role, op, message, parameter)
    yield from _check_mean(trainer, trainers, averaged, reduced)


def _finished_gradients(ops: Iterable[Op]) -> dict[str, tuple[str, int]]:
    """The gradient of each parameter, and how many ops of the backward pass finish it, from their role variables."""
    lines: dict[str, tuple[str, int]] = {}
    for op in ops:
        if op.role_vars and op.role is not None and op.role & OpRole.BACKWARD:
            for parameter, gradient in op.role_pairs:
                lines[parameter] = (gradient, lines.get(parameter, ("", 0))[1] + 1)
    return lines


def _check_mean(trainer: Trainer, trainers: int, gradients: bool, reduced: dict[str, int]) -> Iterator[Diagnostic]:
    """Checks that a sum over n trainers becomes a mean: the gradient of the loss, each gradient if they are not linear
    in that, or each summed parameter, is divided by n.
    """
    ops = trainer.main.program.main_block.ops
    divided = {name for op in ops for name in op.input_names if _divides(op, name, trainers)}
    if gradients and not divided.isdisjoint(reduced):  # where a backward is not linear
        for _, op in _reductions(trainer.main):
            for name in op.inputs.get("X", ()):
                if name not in divided:
                    message = f"%{name}, which is summed over {trainers} trainers, is not divided by their number"
                    yield finding("link-reduced", trainer.role, op, message, name)
        return
    if gradients:
        for position, op in enumerate(ops):
            if op.role != OpRole.LOSS | OpRole.BACKWARD:
                continue
            name = next(op.output_names, "")
            following = ops[position + 1] if position + 1 < len(ops) else None
            if following is None or not _divides(following, name, trainers):
                message = f"%{name}, the gradient of the loss, is not divided by {trainers}"
                yield finding("link-reduced", trainer.role, op, message, name)
        return
    waiting = dict.fromkeys(reduced)
    last = max((item.position for item in _reductions(trainer.main)), default=-1)
    for op in ops[last + 1 :]:
        for name in op.input_names:
            if name in waiting and not op.type.startswith("c_"):
                del waiting[name]
                if not _divides(op, name, trainers):
                    message = f"%{name}, a sum over {trainers} trainers, is used without being divided"
                    yield finding("link-reduced", trainer.role, op, message, name)


def _divides(op: Op, name: str, trainers: int) -> bool:
    factor = op.attrs.get("scale")
    fits = isinstance(factor, float) and isclose(factor, 1.0 / trainers, rel_tol=1e-6)
    return op.type == "scale" and op.inputs.get("X") == (name,) and op.outputs.get("Out") == (name,) and fits
