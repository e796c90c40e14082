"""What a saved model is fed and fetches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstranspile.fluid.framework import program_guard
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import VarType
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


def prepend_feed_ops(
    inference_program: Program, feed_target_names: Sequence[str], feed_holder_name: str = "feed"
) -> None:
    """Puts ops in front that feed these variables, the first one last."""
    if not feed_target_names:
        return
    block = inference_program.global_block()
    holder = block.create_var(name=feed_holder_name, type=VarType.FEED_MINIBATCH, persistable=True)
    for column, name in enumerate(feed_target_names):
        block.prepend_op("feed", {"X": [holder]}, {"Out": [block.var(name)]}, {"col": column})


def append_fetch_ops(
    inference_program: Program, fetch_target_names: Sequence[str], fetch_holder_name: str = "fetch"
) -> None:
    """Puts ops behind that fetch these variables."""
    block = inference_program.global_block()
    holder = block.create_var(name=fetch_holder_name, type=VarType.FETCH_LIST, persistable=True)
    for column, name in enumerate(fetch_target_names):
        block.append_op("fetch", {"X": [name]}, {"Out": [holder]}, {"col": column})
