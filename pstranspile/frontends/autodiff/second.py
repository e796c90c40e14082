"""Second gradients: a search for gradient ops without a gradient."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op
from pstranspile.ir.model import Op
from pstranspile.ir.roles import OpRole
from pstranspile.ops.gradient import SUFFIX, gradient_rule

_LINEAR = frozenset(
    f"{forward}_grad"
    for forward in (
        *("mean", "concat", "stack", "pad", "gather", "dropout", "lookup_table", "lookup_table_v2", "transpose"),
        *("transpose2", "squeeze", "squeeze2", "unsqueeze", "unsqueeze2", "flatten", "flatten2"),
    )
)
"""Gradient ops that are linear in the gradients they read. They depend on their other inputs only by dims and indices.
"""


class NoSecondGradient(DiagnosticError, NotImplementedError):
    """Raised if a gradient op without a gradient is on the path."""


def require_second(
    ops: Iterable[Op], sources: AbstractSet[str], targets: Iterable[str], stopped: AbstractSet[str]
) -> None:
    """Raises NoSecondGradient if a path from the sources to the targets passes a gradient op without a gradient.

    No path passes the variables in `stopped`.
    """
    reached, crossed = set(sources) - stopped, list[tuple[Op, bool]]()
    for op in ops:
        differentiable = gradient_rule(op.type) is not None
        stops = not differentiable and op.role == OpRole.BACKWARD and op.type.endswith("_grad")
        if not (stops or differentiable):
            continue
        if reached.isdisjoint(_counting(op) if stops else op.input_names):
            continue
        reached.update(name for name in op.output_names if name not in stopped)
        crossed.append((op, stops))
    needed, findings = set(targets), list[Diagnostic]()
    for op, stops in reversed(crossed):
        if needed.isdisjoint(op.output_names):
            continue
        if stops:
            written = ", ".join(f"%{name}" for name in op.output_names if name in needed)
            message = f"the gradient of {op.type} is not part of this version, so that of {written} would count as zero"
            findings.append(at_op("not-differentiable", message, op))
        else:
            needed.update(op.input_names)
    if findings:
        raise NoSecondGradient(findings)


def _counting(op: Op) -> list[str]:
    """The inputs that the results of a gradient op depend on."""
    return [name for name in op.input_names if SUFFIX in name] if op.type in _LINEAR else list(op.input_names)
