"""Mode grad-allreduce: gradients are averaged over all trainers before they are applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstranspile.compiler.analysis.reductions import (
    Reduction,
    find_reductions,
    finished_gradients,
    has_role,
    is_loss_gradient,
    reads_of,
)
from pstranspile.compiler.emit.rules import AVERAGE, SUM_GRADIENT, WAIT_SUMS, derived_origin, made_of_program
from pstranspile.compiler.job.modes import COLLECTIVE, ModeSettings
from pstranspile.compiler.modes.shared.without_servers import (
    CollectiveMode,
    scale,
    sum_over_ring,
    wait_for_computing,
    wait_for_rings,
)
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Module, Op, Origin, Program
from pstranspile.ir.types import OpRole


class GradAllreduce(CollectiveMode):
    """Every trainer applies the sum of all trainers' gradients of a loss divided by their number."""

    settings = ModeSettings(
        "no servers: gradients are summed over all trainers by collective operators",
        "collective_mode = grad_allreduce",
        COLLECTIVE,
        options=("nccl_comm_num",),
        servers=False,
    )

    def find(self, module: Module, rings: int) -> tuple[tuple[Reduction, ...], list[Diagnostic]]:
        """The gradients to sum, and findings."""
        return find_reductions(module.main, rings)

    def emit_main(self, program: Program, reductions: Sequence[Reduction], trainers: int, rings: int) -> Program:
        """The source's main program with sums of gradients."""
        return sum_gradients(program, reductions, trainers, rings)


def sum_gradients(
    program: Program, reductions: Sequence[Reduction], trainers: int, rings: int, *, of_loss: bool = True
) -> Program:
    """The main program of every trainer.

    The gradient of the loss is divided by `trainers`, or, without `of_loss`, each gradient in `reductions`. Each of
    these is summed right after the op that finishes it. The streams of all rings are waited for before anything reads a
    sum, before the first update, and at the end of a program that does neither.
    """
    block = program.main_block
    ops = tuple(_with_sums(program, reductions, trainers, rings, of_loss))
    return program.with_main_block(block._replace(ops=ops))


def _with_sums(
    program: Program, reductions: Sequence[Reduction], trainers: int, rings: int, of_loss: bool
) -> Iterator[Op]:
    after: dict[int, list[Reduction]] = {}
    for reduction in reductions:
        after.setdefault(reduction.after_op, []).append(reduction)
    waiting: set[str] = set()
    named = ""
    for index, op in enumerate(program.main_block.ops):
        if named and (has_role(op, OpRole.OPTIMIZE) or (waiting and not waiting.isdisjoint(reads_of(program, op)))):
            yield from wait_for_rings(named, rings, OpRole.BACKWARD, derived_origin(op.origin, WAIT_SUMS))
            waiting.clear()
            named = ""
        yield op
        if is_loss_gradient(op) and of_loss:
            yield _divide(next(iter(op.output_names)), trainers, op.origin)
        pairs = finished_gradients(op)
        if pairs and not named:
            named = pairs[-1][1]  # as in Fluid: the last gradient of the first op that finishes gradients
        sums = after.get(index, ())
        if sums:
            for reduction in () if of_loss else sums:
                yield _divide(reduction.variable, trainers, op.origin)
            waiting.update(reduction.variable for reduction in sums)
            origin = derived_origin(op.origin, SUM_GRADIENT)
            yield wait_for_computing(sums[0].variable, OpRole.BACKWARD, origin)
            for reduction in reversed(sums):  # Fluid inserts each at the same place, so the last one comes first
                yield sum_over_ring(reduction, OpRole.BACKWARD, origin)
    if waiting:  # no op uses these sums, but the next step must start after them
        yield from wait_for_rings(named, rings, OpRole.BACKWARD, made_of_program(program, WAIT_SUMS))


def _divide(name: str, trainers: int, origin: Origin | None) -> Op:
    return scale(name, trainers, OpRole.BACKWARD, derived_origin(origin, AVERAGE))


MODE = GradAllreduce()
