"""How many rows the loss of a program is a mean of, in what a machine is fed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pstranspile.ir.model import Op, Program
from pstranspile.ir.roles import OpRole
from pstranspile.runtime.run.batch import rows_of
from pstranspile.runtime.run.batch_axis import UNKNOWN, BatchAxes
from pstranspile.runtime.values import LoDTensor

MEANS = ("mean", "reduce_mean")
"""Op types that average the losses of rows."""


def loss_op(program: Program) -> Op | None:
    """The op that makes the loss of a program, None if none is marked."""
    wanted = OpRole.FORWARD | OpRole.LOSS
    return next((op for op in program.main_block.ops if op.role == wanted), None)


def divided(program: Program, name: str) -> bool:
    """Whether an input is divided: its first dim is open. One with fixed dims is given whole to every trainer."""
    var = program.main_block.vars.get(name)
    return var is None or not var.shape or var.shape[0] < 0


class LossRows:
    """Counts the rows that a program's loss is a mean of.

    These are the sequences of a ragged input where the loss has one number for each, and the rows of the sequences
    where it has one for each of these. If neither can be determined, or there is no loss, they are the batch's rows.
    """

    def __init__(self, program: Program):
        self._program = program
        self._divided: dict[str, bool] = {}
        self._feed, self._inner = _averaged(program)

    def __call__(self, feed: Mapping[str, Any]) -> int | None:
        """The rows of what is fed; None if nothing that is fed has rows of the batch."""
        name = self._feed if self._feed in feed else next((name for name in feed if self._has_rows(name)), None)
        if name is None:
            return None
        value = feed[name]
        if self._inner and name == self._feed and isinstance(value, LoDTensor):
            return len(value.data)
        return rows_of(value)

    def _has_rows(self, name: str) -> bool:
        known = self._divided.get(name)
        if known is None:
            known = self._divided[name] = divided(self._program, name)
        return known


def _averaged(program: Program) -> tuple[str, bool]:
    """The input whose rows the loss is a mean of ("": any), and whether it is a mean of rows of sequences."""
    op = loss_op(program)
    if op is None or op.type not in MEANS:
        return "", False
    name = op.input("X") or ""
    axis, var = BatchAxes(program).of(name), program.main_block.vars.get(name)
    if axis is None or axis == UNKNOWN or not axis.feed:
        return "", False
    ragged = var is not None and var.tensor is not None and var.tensor.lod_level > 0
    return axis.feed, ragged
