"""What a trainer runs of a program in a step: all of it, with weighted seeds, or what is left of it without rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import Program
from pstranspile.kernels.context import Value
from pstranspile.run.batch import Batch
from pstranspile.run.seeds import fed_seeds, scaled, without_rows

SENDING = frozenset(
    {
        *("send", "c_allreduce_sum", "c_allreduce_max", "c_allreduce_min", "c_allreduce_prod", "c_broadcast"),
        *("c_allgather", "c_reducescatter", "allreduce", "broadcast", "average"),
    }
)
"""Ops that give other machines what they may wait for."""


class Form(NamedTuple):
    """A program to run, what is fed to it, and what is given beside the feed. `fetches`: whether it makes values."""

    program: Program
    feed: Mapping[str, Any]
    beside: Mapping[str, Value] = EMPTY
    fetches: bool = True


class Forms:
    """The forms of a trainer's programs. `waited_for`: whether other machines wait for the trainer in every step."""

    def __init__(self, *, waited_for: bool = True):
        self._waited_for = waited_for
        self._weighted: dict[int, tuple[Program, Program, dict[str, Value]]] = {}
        self._empty: dict[int, tuple[Program, Program, dict[str, Value]]] = {}

    def of(self, program: Program, feed: Mapping[str, Any]) -> Form | None:
        """What to run of a program with what is fed; None for a step that is left out. Raises DiagnosticError."""
        if not isinstance(feed, Batch) or (feed.rows != 0 and feed.weight == 1.0):
            return Form(program, feed)
        if feed.rows == 0:
            if not self._waited_for:
                return None
            known = self._empty.get(id(program))
            if known is None:  # holds the program, so that its id stays its own
                known = self._empty[id(program)] = program, *without_rows(program, feed, SENDING)
            return Form(known[1], EMPTY, known[2], fetches=False)
        known = self._weighted.get(id(program))
        if known is None:
            known = self._weighted[id(program)] = program, *fed_seeds(program)
        return Form(known[1], feed, scaled(known[2], feed.weight))
