"""Programs that drop nothing, to look at what training does without chance."""

from __future__ import annotations

from dataclasses import replace

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Module

_RATE = "dropout_prob"


def without_dropout(module: Module) -> Module:
    """The module with the rate 0 in every op that drops elements at random, and in its gradient: all are kept."""
    programs = {
        name: program._replace(blocks=tuple(map(_kept_all, program.blocks)))
        for name, program in module.programs.items()
    }
    return replace(module, programs=FrozenMap(programs))


def _kept_all(block: Block) -> Block:
    return block._replace(
        ops=tuple(
            op._replace(attrs=FrozenMap({**op.attrs, _RATE: 0.0})) if _RATE in op.attrs or op.type == "dropout" else op
            for op in block.ops
        )
    )
