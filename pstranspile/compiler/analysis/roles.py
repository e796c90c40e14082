"""Optimize-op discovery: which ops of a training program update parameters, set rates, or clip gradients."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.ir.model import Block
from pstranspile.ir.roles import LR_ROLES, OpRole

TRAINER_CLIP_SCOPE = "@CLIP"
"""Name-scope marker of gradient clips set with `set_gradient_clip`, which stay on the trainer."""


class Roles(NamedTuple):
    """Indices of ops in block 0, each list in program order.

    `optimize`: role exactly OPTIMIZE (updates, weight decay, clips through the optimizer's argument, averages).
    `learning_rate`: role LR_SCHED or LR_SCHED|OPTIMIZE. `trainer_clips`: clips that stay with the trainer.
    """

    optimize: tuple[int, ...]
    learning_rate: tuple[int, ...]
    trainer_clips: tuple[int, ...]

    @property
    def moved(self) -> frozenset[int]:
        """The ops that leave the trainer by their role."""
        return frozenset((*self.optimize, *self.learning_rate))


def find_roles(block: Block) -> Roles:
    """Sorts a block's ops by their role."""
    optimize: list[int] = []
    rates: list[int] = []
    clips: list[int] = []
    for index, op in enumerate(block.ops):
        scope = op.attrs.get("op_namescope", "")
        if isinstance(scope, str) and TRAINER_CLIP_SCOPE in scope:
            clips.append(index)
        elif op.role == OpRole.OPTIMIZE:
            optimize.append(index)
        elif op.role in LR_ROLES:
            rates.append(index)
    return Roles(tuple(optimize), tuple(rates), tuple(clips))
