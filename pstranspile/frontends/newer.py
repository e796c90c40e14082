"""What Fluid 1.8.5 would not compute as the program says: attributes that only Paddle 2.x has a meaning for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Severity, at_op
from pstranspile.ir.model import Program
from pstranspile.ops import schema_of


def newer_ops(programs: Iterable[Program]) -> list[Diagnostic]:
    """A warning for each type of op and attribute of these programs that Fluid 1.8.5 does not know."""
    found: dict[tuple[str, str], Diagnostic] = {}
    for program in programs:
        for op in (op for block in program.blocks for op in block.ops):
            schema = schema_of(op.type)
            for name, spec in schema.attrs.items() if schema is not None else ():
                if spec.later and op.attrs.get(name) and (op.type, name) not in found:
                    message = f"{name} is a formula of Paddle 2.x; Fluid 1.8.5 does not know it, and computes its own"
                    found[op.type, name] = at_op("desc-newer", message, op, focus=name, severity=Severity.WARNING)
    return list(found.values())


def warn_of_newer_ops(programs: Iterable[Program]) -> None:
    """Tells the same through Python's `warnings`."""
    for finding in newer_ops(programs):
        warnings.warn(str(DiagnosticError([finding])), stacklevel=3)
