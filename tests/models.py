"""Small training programs for tests, with any layers and optimizer ops."""

from __future__ import annotations

import sys
from pathlib import Path

from pstranspile.ir.model import MAIN, STARTUP, Block, FrozenMap, Module, Op, Program

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from programs import Training, embeddings, mlp

__all__ = ["Training", "embeddings", "mlp", "with_ops"]


def with_ops(module: Module, *extra: Op, drop: str = "") -> Module:
    """The module with ops added at the end of @main, and ops of type `drop` left out."""
    block = module.main.main_block
    ops = (*(op for op in block.ops if op.type != drop), *extra)
    main = Program((Block(block.vars, ops),), module.main.random_seed)
    return Module(FrozenMap({MAIN: main, STARTUP: module[STARTUP]}))
