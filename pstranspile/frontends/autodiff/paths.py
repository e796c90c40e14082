"""The ops that lead to a loss, and the variables without gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from pstranspile.frontends.layers.draft import Draft
from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op
from pstranspile.ir.model import Op, Program
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import DType
from pstranspile.ops import facts_of
from pstranspile.ops.gradient import SUFFIX, gradient_rule
from pstranspile.ops.gradients.versions import FLOATS


def ops_to(
    ops: Sequence[Op], targets: Collection[str], stopped: AbstractSet[str], *, differentiable: bool = True
) -> list[Op]:
    """The (differentiable) ops on paths to the targets, in order. Paths end at variables in `stopped`."""
    needed = set(targets)
    path: list[Op] = []
    for op in reversed(ops):
        if needed.isdisjoint(op.output_names) or (differentiable and gradient_rule(op.type) is None):
            continue
        path.append(op)
        needed.update(name for name in op.input_names if name not in stopped)
    path.reverse()
    return path


def ops_from(path: Iterable[Op], inputs: Iterable[str]) -> list[Op]:
    """The ops of a path that the inputs lead to."""
    reached, kept = set(inputs), list[Op]()
    for op in path:
        if not reached.isdisjoint(op.input_names):
            reached.update(op.output_names)
            kept.append(op)
    return kept


def unread_outputs(
    path: Iterable[Op],
    targets: Collection[str],
    stopped: AbstractSet[str],
    marked: AbstractSet[str],
) -> set[str]:
    """Outputs of the path's ops that nothing on it reads, so that they have no gradient. Ops with sub-blocks are
    excluded.
    """
    read = set(targets)
    names: set[str] = set()
    for op in reversed(list(path)):
        if not isinstance(op.attrs.get("sub_block"), BlockRef):
            inputs = set(op.input_names)
            names.update(
                name for name in op.output_names if name not in read and name not in inputs and name not in marked
            )
        read.update(name for name in op.input_names if name not in stopped)
    return names


def stopped_by_default(program: Program) -> set[str]:
    """Variables of a program that Fluid's layers would have marked as having no gradient.

    A ProgramDesc does not record the marks. They are variables that no op writes and that are not parameters (feeds,
    counters), constants, indices, booleans, and persistable variables that are not parameters. A variable that starts
    as a constant and is overwritten by another op does have a gradient.
    """
    written: set[str] = set()
    constant: set[str] = set()
    for block in program.blocks:
        for op in block.ops:
            (constant if facts_of(op.type).constant else written).update(op.output_names)
    names: set[str] = set()
    for index, block in enumerate(program.blocks):
        for var in block.vars.values():
            if var.parameter is not None or SUFFIX in var.name:
                continue
            untouched = index == 0 and var.name not in written
            fixed = var.name in constant and not (var.name in written and var.dtype in FLOATS)
            if untouched or var.persistable or var.dtype is DType.BOOL or fixed:
                names.add(var.name)
    return names


def unreached(draft: Draft, loss: str, parameters: AbstractSet[str]) -> tuple[Diagnostic, ...]:
    """Findings on ops without a gradient that are on every path from a parameter to the loss."""
    ops = draft.blocks[0].ops
    through: dict[str, Op] = {}
    reaches: set[str] = {loss}
    for op in reversed(ops):
        if op.role is None or not reaches.intersection(op.output_names):
            continue
        if op.role & (OpRole.BACKWARD | OpRole.OPTIMIZE | OpRole.LR_SCHED):
            continue
        stop = op if gradient_rule(op.type) is None else None
        for name in op.output_names:
            stop = stop or through.get(name)
        for name in op.input_names:
            reaches.add(name)
            if stop is not None:
                through.setdefault(name, stop)
    findings: list[Diagnostic] = []
    for param in sorted(parameters):
        stop = through.get(param)
        if stop is not None:
            message = f"has no gradient, and parameter %{param} reaches the loss %{loss} only through it"
            findings.append(at_op("not-differentiable", message, stop, severity=Severity.ERROR))
    return tuple(findings)
