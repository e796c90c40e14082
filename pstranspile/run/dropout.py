"""Programs that drop nothing, to look at what training does without chance."""

from __future__ import annotations

from dataclasses import replace

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Module, Op

_RATE = "dropout_prob"


def without_dropout(module: Module) -> Module:
    """The module with the rate 0 in every op that drops elements at random, and in its gradient: all are kept."""
    programs = {
        name: program._replace(blocks=tuple(map(_kept_all, program.blocks)))
        for name, program in module.programs.items()
    }
    return replace(module, programs=FrozenMap(programs))


def _kept_all(block: Block) -> Block:
    ops = tuple(_rate_zero(op) if _RATE in op.attrs or op.type == "dropout" else op for op in block.ops)
    return block._replace(ops=ops)


def _rate_zero(op: Op) -> Op:
    return op._replace(attrs=FrozenMap({**op.attrs, _RATE: 0.0}))
