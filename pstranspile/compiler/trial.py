"""What is found in a module before there is a job: by the verifier, and by a trial for one synchronous server."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.compiler.verify import verify
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Severity, weighed
from pstranspile.ir.model import MAIN, Module
from pstranspile.ops import facts_of, is_optimizer

_SERVER = "127.0.0.1:6174"
"""The endpoint of the server of the trial, where nothing listens."""


def well_formed(module: Module, *, strict: bool = False, allow: Collection[str] = ()) -> tuple[Diagnostic, ...]:
    """The findings of the verifier about a module that is looked at, not run: what @startup leaves without a value is
    an error. `strict` and `allow` as for `verify`.
    """
    return verify(module, strict=strict, allow=allow, initialised_here=True)


class Trial(NamedTuple):
    """The result of a compile for servers beside the findings of `well_formed`: whether it refuses the module, and what
    it tells beyond them, as warnings, or as errors where `strict`.

    It may refuse as an error what was a warning before: there is nothing beyond it then.
    """

    refused: bool = False
    beyond: tuple[Diagnostic, ...] = ()


def trial(
    module: Module, findings: Iterable[Diagnostic], *, strict: bool = False, allow: Collection[str] = ()
) -> Trial:
    """Compiles a module with these findings of `well_formed` for servers. One with errors is not compiled."""
    before = tuple(findings)
    if any(finding.severity is Severity.ERROR for finding in before):
        return Trial()
    level = Severity.ERROR if strict else Severity.WARNING
    known = {(d.code, d.message, d.location) for d in before}
    refused = refused_by_compile(module)
    more = [d for d in refused if (d.code, d.message, d.location) not in known]
    refuses = any(finding.code not in allow for finding in refused)
    return Trial(refuses, tuple(weighed((d._replace(severity=level) for d in more), allow=allow)))


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
