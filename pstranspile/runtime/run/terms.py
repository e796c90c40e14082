"""Terms of gradients that no op makes."""

from __future__ import annotations

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program
from pstranspile.ir.roles import OpRole
from pstranspile.runtime.run.feeds import written_names

TERM = "@GRAD@RENAME@"
"""In the names of the terms that Fluid sums up to a gradient."""


def without_unmade_terms(program: Program) -> Program:
    """The program with terms left out of sums of gradients if no op writes them; the same object if there are none.

    Fluid's backward pass names a term for every use of a variable, also for uses that let no gradient through (the
    labels of a loss); its `sum` skips what has no value.
    """
    suspects = [op for block in program.blocks for op in block.ops if _has_terms(op)]
    if not suspects:
        return program
    written = written_names(program)
    if all(name in written for op in suspects for name in op.inputs["X"]):
        return program
    blocks = [
        block._replace(ops=tuple(_shortened(op, written) if _has_terms(op) else op for op in block.ops))
        for block in program.blocks
    ]
    return program._replace(blocks=tuple(blocks))


def _has_terms(op: Op) -> bool:
    return op.type == "sum" and op.role == OpRole.BACKWARD and any(TERM in name for name in op.inputs.get("X", ()))


def _shortened(op: Op, written: frozenset[str]) -> Op:
    """The sum of the terms that are made; as it was if none is."""
    kept = tuple(name for name in op.inputs["X"] if TERM not in name or name in written)
    return op._replace(inputs=FrozenMap({**op.inputs, "X": kept})) if kept else op
