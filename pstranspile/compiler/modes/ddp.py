"""Mode ddp: the mean of all trainers' gradients, as PyTorch's DistributedDataParallel takes it."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.compiler.analysis.reductions import Reduction, find_reductions, is_linear_backward
from pstranspile.compiler.modes.grad_allreduce import GradAllreduce, sum_gradients
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Module, Program


class DataParallel(GradAllreduce):
    """Every trainer applies the mean of all trainers' gradients of a loss. Sparse gradients are summed row by row."""

    settings = GradAllreduce.settings._replace(
        doc="no servers: gradients are averaged over all trainers, as PyTorch's DistributedDataParallel does it",
        cause="mode = ddp",
    )

    def find(self, module: Module, rings: int) -> tuple[tuple[Reduction, ...], list[Diagnostic]]:
        """The dense and the sparse gradients, as PyTorch's transports gather the rows of sparse ones; and findings."""
        reductions, findings = find_reductions(module.main, rings)
        return reductions, [finding for finding in findings if finding.code != "collective-sparse"]

    def emit_main(self, program: Program, reductions: Sequence[Reduction], trainers: int, rings: int) -> Program:
        """The source's main program with sums of gradients, each of which is divided where a backward is not linear in
        the gradient of the loss.
        """
        return sum_gradients(program, reductions, trainers, rings, of_loss=is_linear_backward(program))


MODE = DataParallel()
