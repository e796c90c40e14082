"""What a saved model fetches."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.framework import program_guard
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layers.nn import scale


def scaled_targets(program: Any, given: Any) -> list[str]:
    """Makes a variable of the program for each target, the target times 1, as Fluid does; gives their names.

    Targets are variables or their names. A target that the program does not have, or that is given twice, stays as it
    is, for the one who cuts the program to refuse.
    """
    names = [item.name if isinstance(item, Variable) else str(item) for item in (given if several(given) else [given])]
    block = program.global_block()
    if len(set(names)) < len(names) or not all(block.has_var(name) for name in names):
        return names
    with program_guard(program):
        return [scale(block.var(name), name=f"save_infer_model/scale_{at}").name for at, name in enumerate(names)]
