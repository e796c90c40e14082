"""The check that a module has the required programs."""

from __future__ import annotations

from collections.abc import Iterable

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error
from pstranspile.ir.model import MAIN, STARTUP, Location, Module

_START = (
    f"@{STARTUP} gives parameters and state their first values; in a text it is a program of its own, and that of a "
    "serialized main program is given with --startup FILE"
)
"""What a module without a start-up program lacks."""


def require_programs(module: Module, names: Iterable[str] = (MAIN, STARTUP)) -> None:
    """Raises DiagnosticError unless the module has all these programs, each with a block."""
    location = Location(module.source.file) if module.source else None
    missing = [name for name in names if name not in module.programs]
    findings: list[Diagnostic] = []
    if missing:
        text = " and ".join(f"@{name}" for name in missing)
        notes = [Note(_START)] if missing == [STARTUP] else []
        findings.append(error("no-program", f"the module has no program {text}", location, notes=notes))
    for name in names:
        if name in module.programs and not module[name].blocks:
            findings.append(error("no-block", f"the program @{name} has no block", location))
    if findings:
        raise DiagnosticError(findings)
