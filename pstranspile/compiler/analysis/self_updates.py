"""Ops that update parameters by themselves, without an optimizer: the hashed embeddings of Fluid's PyramidDNN."""

from __future__ import annotations

from pstranspile.ir.diagnostics import Diagnostic, at_op
from pstranspile.ir.model import STARTUP, Module, Op

ATTRIBUTE = "distribute_update_vars"
"""Names the parameters that such an op updates, with commas between them."""


def updated_by_itself(op: Op) -> list[str]:
    """The parameters that an op updates without an optimizer."""
    return [name for name in str(op.attrs.get(ATTRIBUTE) or "").split(",") if name]


def self_updates(module: Module) -> list[Diagnostic]:
    """Errors for such ops: their parameters have no gradient that could be sent, so trainers would drift apart.

    Mode geo sends no gradients, but what changed; there they are fine.
    """
    findings: list[Diagnostic] = []
    for name, program in module.programs.items():
        for op in program.main_block.ops if name != STARTUP else ():
            updated = updated_by_itself(op)
            if updated:
                names = ", ".join(f"%{name}" for name in updated)
                message = f"it updates {names} by itself, and there is no gradient to send to a server"
                findings.append(at_op("updates-itself", message, op))
    return findings
