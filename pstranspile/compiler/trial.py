"""What a compile would refuse of a module that verifies: a trial for one synchronous server."""

from __future__ import annotations

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Severity
from pstranspile.ir.model import MAIN, Module
from pstranspile.ops import facts_of, is_optimizer

_SERVER = "127.0.0.1:6174"
"""The endpoint of the server of the trial, where nothing listens."""


def refused_by_compile(module: Module) -> tuple[Diagnostic, ...]:
    """The errors of a compile for one synchronous server. One machine may run what it refuses.

    None for a module that trains nothing, and for one whose machines talk to servers already.
    """
    main = module.programs.get(MAIN)
    ops = [op for block in main.blocks for op in block.ops] if main is not None else []
    if not any(is_optimizer(op) for op in ops):
        return ()
    if any(facts_of(kind).communicates in ("request", "server") for kind in {op.type for op in ops}):
        return ()
    try:
        compile(module, Job(pservers=(_SERVER,), trainers=1))
    except DiagnosticError as problem:
        return tuple(finding for finding in problem.diagnostics if finding.severity is Severity.ERROR)
    return ()
