"""The variables that trainers without servers sum over rings: the gradients of a step, or the changes of parameters in
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from pstranspile.compiler.analysis.tables import is_sparse
from pstranspile.compiler.analysis.uses import deep_blocks, effects_of, sub_blocks
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op, error, warning
from pstranspile.ir.model import Op, Program
from pstranspile.ir.types import OpRole
from pstranspile.ops import facts_of, is_optimizer
from pstranspile.ops.gradient import SUFFIX


class Reduction(NamedTuple):
    """A variable that all trainers sum over ring `ring`, right after op `after_op` of block 0, on behalf of
    `parameter`.
    """

    after_op: int
    parameter: str
    variable: str
    ring: int


def has_role(op: Op, role: OpRole) -> bool:
    """Whether an op's role has all the bits of `role`; the collective modes test bits."""
    return op.role is not None and op.role & role == role


def is_loss_gradient(op: Op) -> bool:
    """Whether the op starts the backward pass: it makes the gradient of the loss."""
    return has_role(op, OpRole.BACKWARD | OpRole.LOSS)


def is_left_out(program: Program, parameter: str) -> bool:
    """Whether a parameter is marked as distributed, so that it takes part in no collective operation."""
    var = program.main_block.vars.get(parameter)
    return var is not None and var.parameter is not None and var.parameter.is_distributed


def finished_gradients(op: Op) -> tuple[tuple[str, str], ...]:
    """The (parameter, gradient) pairs that an op of the backward pass finishes; empty for other ops."""
    return op.role_pairs if op.role_vars and has_role(op, OpRole.BACKWARD) else ()


def is_linear_backward(program: Program) -> bool:
    """Whether all gradients are linear in the gradient of the loss, so that they are divided where that is.

    Gradients that rules derive are. A backward of the user's own may be not: then it is taken for linear only where
    that follows from the types of its ops.
    """
    reached: set[str] = set()
    for op in program.main_block.ops:
        if not has_role(op, OpRole.BACKWARD):
            continue
        if is_loss_gradient(op):
            reached.update(op.output_names)
        elif not reached.isdisjoint(op.input_names):
            if not _is_linear(op, reached):
                return False
            reached.update(op.output_names)
            reached.difference_update(gradient for _, gradient in finished_gradients(op))
    return True


def _is_linear(op: Op, reached: AbstractSet[str]) -> bool:
    """Whether the results of an op of the backward pass are linear in the variables that are `reached`.

    Those of gradient ops are, in the gradients that they read. Where it does not follow from the facts of the op, they
    count as not linear.
    """
    facts = facts_of(op.type)
    slots = [slot for slot, names in op.inputs.items() if not reached.isdisjoint(names)]
    if any(slot.endswith(SUFFIX) for slot in op.inputs) or facts.communicates or facts.constant:
        return True
    if op.type == "scale":
        return op.attrs.get("bias", 0.0) == 0.0
    if op.type == "where":
        return "Condition" not in slots
    if op.type == "elementwise_div":
        return slots == ["X"]
    if facts.numbers == "combined" and op.type not in ("sum", "elementwise_add", "elementwise_sub"):
        return len(slots) == 1
    return facts.numbers in ("combined", "moved", "in_order") or op.type in ("assign", "cast", "sum", "fill_zeros_like")


def find_reductions(program: Program, rings: int) -> tuple[tuple[Reduction, ...], list[Diagnostic]]:
    """The gradients to sum, the last one first, assigned to the rings in this order, and findings.

    An undeclared gradient is an error. Sparse gradients, parameters left out, a loss gradient that can't be found and a
    program without gradients are warnings.
    """
    block = program.main_block
    findings: list[Diagnostic] = []
    reductions: list[Reduction] = []
    for index in range(len(block.ops) - 1, -1, -1):
        op = block.ops[index]
        for parameter, gradient in finished_gradients(op):
            if is_left_out(program, parameter):
                findings.append(_left_out(parameter, op))
                continue
            if gradient not in block.vars:
                message = f"it names %{gradient} as the gradient of %{parameter}, but block 0 does not declare it"
                findings.append(at_op("collective-undeclared", message, op, focus=f"%{gradient}"))
            elif is_sparse(program, gradient):
                message = (
                    f"%{gradient} is sparse: Fluid's c_allreduce_sum takes dense tensors only; build the lookups of "
                    f"%{parameter} with is_sparse=False, or use mode local-sgd"
                )
                findings.append(
                    at_op("collective-sparse", message, op, focus=f"%{gradient}", severity=Severity.WARNING)
                )
            reductions.append(Reduction(index, parameter, gradient, len(reductions) % rings))
    findings.reverse()
    findings += _never_summed(program)
    if reductions and not any(is_loss_gradient(op) for op in block.ops):
        message = (
            "no op has the role backward|loss, so no gradient of a loss is divided by the number of trainers: "
            "gradients are summed, not averaged"
        )
        findings.append(warning("collective-not-scaled", message))
    if not reductions:
        findings.append(
            warning("collective-nothing", "no gradient is summed: every trainer trains by itself", focus="mode")
        )
    return tuple(reductions), findings


def _never_summed(program: Program) -> Iterator[Diagnostic]:
    """Errors for updates of parameters whose gradient no op of the backward pass finishes, so that it is not summed."""
    ops = program.main_block.ops
    finished = {parameter for op in ops for parameter, _ in finished_gradients(op)}
    for op in ops:
        for parameter in _updated_parameters(program, op):
            if parameter not in finished and not is_left_out(program, parameter):
                message = (
                    f"%{parameter} is updated, but no op with role backward has it in its role variables, so its "
                    "gradient would not be summed; `pstranspile grad` and Fluid's minimize write them: "
                    f"backward(%{parameter}, %...)"
                )
                yield at_op("collective-unsummed", message, op, focus=f"%{parameter}")


def find_averages(program: Program, rings: int) -> tuple[tuple[Reduction, ...], list[Diagnostic]]:
    """The parameters to average after their updates, the last one first, assigned to the rings in this order; and
    findings.

    Each is averaged after the last op that updates or uses it in the step. A program that updates no parameter is an
    error; parameters left out are warnings.
    """
    ops = program.main_block.ops
    findings: list[Diagnostic] = []
    place: dict[str, int] = {}
    for index, op in enumerate(ops):
        for parameter in _updated_parameters(program, op):
            if is_left_out(program, parameter):
                findings.append(_left_out(parameter, op))
            else:
                place.pop(parameter, None)
                place[parameter] = index
    if not place and not findings:
        message = (
            "mode local-sgd averages parameters after their updates, but no op of the program updates one; "
            "`pstranspile grad` adds an optimizer"
        )
        return (), [error("collective-nothing", message, focus="mode")]
    order = {parameter: number for number, parameter in enumerate(place)}
    first = min(place.values(), default=len(ops))
    for index in range(first, len(ops)):
        for name in _accessed_variables(program, ops[index]):
            if index > place.get(name, index):
                place[name] = index
    last_first = sorted(place, key=lambda name: (place[name], order[name]), reverse=True)
    return tuple(Reduction(place[p], p, p, number % rings) for number, p in enumerate(last_first)), findings


def first_updated(program: Program) -> str | None:
    """The parameter that the program updates first, None if it updates none."""
    return next((name for op in program.main_block.ops for name in _updated_parameters(program, op)), None)


def _updated_parameters(program: Program, op: Op) -> Iterator[str]:
    """The parameters that an op updates, including those updated in its sub-blocks."""
    if "Param" in op.inputs and "Grad" in op.inputs and ("LearningRate" in op.inputs or is_optimizer(op)):
        yield from op.inputs["Param"][:1]
    if sub_blocks(op):
        for index in deep_blocks(program, op):
            for inner in program.blocks[index].ops:
                if not sub_blocks(inner):
                    yield from _updated_parameters(program, inner)


def _accessed_variables(program: Program, op: Op) -> Iterator[str]:
    """Variables of block 0 that an op reads or writes."""
    if sub_blocks(op):
        effects = effects_of(program, op)
        yield from effects.reads
        yield from effects.writes
        return
    for slots in (op.inputs, op.outputs):
        for names in slots.values():
            yield from names


def reads_of(program: Program, op: Op) -> Iterator[str]:
    """The variables of block 0 that an op reads, including those read in its sub-blocks."""
    if sub_blocks(op):
        yield from effects_of(program, op).reads
        return
    for names in op.inputs.values():
        yield from names


def _left_out(parameter: str, op: Op) -> Diagnostic:
    message = (
        f"%{parameter} is marked as distributed, and modes without servers leave such parameters out: every trainer "
        "trains its own, from its own initial values"
    )
    return at_op("collective-left-out", message, op, focus=f"%{parameter}", severity=Severity.WARNING)
