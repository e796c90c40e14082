"""Collective operations: the same on every trainer, in the same order; what an optimizer uses is reduced once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isclose
from typing import NamedTuple

from pstranspile.compiler.link.base import described, finding, names_text
from pstranspile.compiler.link.machines import Calls, Trainer
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op
from pstranspile.ir.roles import OpRole
from pstranspile.ops.attributes import int_attr

REDUCES = ("c_allreduce_sum", "c_allreduce_max", "c_allreduce_min", "c_allreduce_prod")
LOCAL = frozenset({"c_gen_nccl_id", "c_comm_init", "c_comm_init_all", "c_sync_calc_stream", "c_sync_comm_stream"})
"""Ops with the prefix of collective ones for which no other trainer is needed (or only once, to meet)."""


class Step(NamedTuple):
    """What the trainers must do alike: op type, ring, root, variable and its type."""

    kind: str
    ring: int
    root: int
    name: str
    type: str


def check_collectives(trainers: Sequence[Trainer]) -> Iterator[Diagnostic]:
    """All collective ops of all trainers, and what they are for."""
    for startup in (True, False):
        model: tuple[Trainer, list[tuple[Step, Op]]] | None = None
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


def _steps(calls: Calls) -> list[tuple[Step, Op]]:
    result = [item for kind in calls.ops if kind.startswith("c_") and kind not in LOCAL for item in calls.ops[kind]]
    result.sort(key=lambda item: item.position)
    variables = calls.vars
    steps: list[tuple[Step, Op]] = []
    for _, op in result:
        name = op.input("X") or ""
        step = Step(op.type, int_attr(op, "ring_id"), int_attr(op, "root"), name, described(variables.get(name)))
        steps.append((step, op))
    return steps


def _check_alike(
    trainer: Trainer, steps: list[tuple[Step, Op]], model: tuple[Trainer, list[tuple[Step, Op]]]
) -> Iterator[Diagnostic]:
    """The first difference is the finding: from there on every trainer would wait for another operation."""
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


def _text(step: Step) -> str:
    root = f" from {step.root}" if step.kind == "c_broadcast" else ""
    return f"{step.kind}{root} of %{step.name} ({step.type}) on ring {step.ring}"


def _check_rings_used(trainer: Trainer) -> Iterator[Diagnostic]:
    """A ring is made at start-up before it is used; roots are ranks of it."""
    joined: dict[int, tuple[int, int]] = {}
    for kind in ("c_comm_init", "c_comm_init_all"):
        for position, op in trainer.startup.of(kind):
            joined[int_attr(op, "ring_id")] = (position, int_attr(op, "nranks", 1 << 30))
    for calls, later in ((trainer.startup, 0), (trainer.main, 1 << 30)):
        for kind, items in calls.ops.items():
            if not kind.startswith("c_") or kind in (
                "c_gen_nccl_id",
                "c_comm_init",
                "c_comm_init_all",
                "c_sync_calc_stream",
            ):
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
    """What is reduced is computed before, and there before it is used: the two streams wait for each other.

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
            elif kind.startswith("c_") and kind not in LOCAL:
                if op.attrs.get("use_calc_stream") is True:
                    continue
                if op.inputs.get("X") != op.outputs.get("Out"):
                    name = op.input("X") or ""
                    message = f"%{name} is not put back, but into {names_text(op.outputs.get('Out', ()))}"
                    yield finding("link-collective", trainer.role, op, message, name)
                for name in op.inputs.get("X", ()):
                    if kind in REDUCES and name in computed:
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
    """Every update has its gradient, or the parameter itself (local SGD), summed over all trainers once, and divided.

    The gradient is what the backward pass finishes for the parameter, each time it does: what is clipped or decayed
    afterwards is another variable. Parameters that are dealt out over machines (`is_distributed`) are left out, as
    Fluid does.
    """
    role, ops = trainer.role, trainer.main.program.main_block.ops
    reduced: dict[str, int] = {}
    for _, op in (item for kind in REDUCES for item in trainer.main.of(kind)):
        for name in op.inputs.get("X", ()):
            reduced[name] = reduced.get(name, 0) + 1
    sent = {name for _, op in trainer.startup.of("c_broadcast") for name in op.inputs.get("X", ())}
    dealt = {op.input("W") for op in ops if op.attrs.get("is_distributed") is True}
    dealt.update(v.name for v in trainer.main.program.parameters() if v.parameter and v.parameter.is_distributed)
    finished = _finished(ops)
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


def _finished(ops: Iterable[Op]) -> dict[str, tuple[str, int]]:
    """Parameter -> its gradient and how many ops of the backward pass finish it, by their role variables."""
    lines: dict[str, tuple[str, int]] = {}
    for op in ops:
        if op.role_vars and op.role is not None and op.role & OpRole.BACKWARD:
            for parameter, gradient in op.role_pairs:
                lines[parameter] = (gradient, lines.get(parameter, ("", 0))[1] + 1)
    return lines


def _check_mean(trainer: Trainer, trainers: int, gradients: bool, reduced: dict[str, int]) -> Iterator[Diagnostic]:
    """A sum over n trainers becomes a mean: the gradient of the loss, or each summed parameter, is divided by n."""
    ops = trainer.main.program.main_block.ops
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
    last = max((item.position for kind in REDUCES for item in trainer.main.of(kind)), default=-1)
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
