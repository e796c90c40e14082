"""Second gradients: where a gradient op stands on the way that has no gradient itself."""

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
"""Gradient ops that are linear in the gradients they read. Of their other inputs just dims and places count."""


class NoSecondGradient(DiagnosticError, NotImplementedError):
    """Raised where a gradient op that has no gradient itself stands on the way."""


def require_second(
    ops: Iterable[Op], sources: AbstractSet[str], targets: Iterable[str], stopped: AbstractSet[str]
) -> None:
    """Raises NoSecondGradient if the sources reach the targets through gradient ops that have no gradient.

    No gradient goes through the variables in `stopped`.
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
