"""What a trainer runs of a program in a step: all of it, all with weighted seeds, or the part that needs no rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pstranspile.cluster.machines.exchanges import COLLECTIVES
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import Program
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.batch import Batch
from pstranspile.runtime.run.seeds import fed_seeds, scaled, without_rows

SENDING = COLLECTIVES | {"send"}
"""Op types that send values for which other machines may wait."""


class Form(NamedTuple):
    """A program to run, its feed, and `extra` inputs that are no part of the batch. `fetches`: whether to fetch."""

    program: Program
    feed: Mapping[str, Any]
    extra: Mapping[str, Value] = EMPTY
    fetches: bool = True


class Forms:
    """The forms of a trainer's programs. `waited_for`: whether other machines wait for the trainer in every step."""

    def __init__(self, *, waited_for: bool = True):
        self._waited_for = waited_for
        self._made: dict[tuple[int, bool], tuple[Program, Program, dict[str, Value]]] = {}
        """By a program's id and whether the feed is empty: the program (so that its id stays its own), and its form."""

    def of(self, program: Program, feed: Mapping[str, Any]) -> Form | None:
        """What to run of a program with what is fed; None for a step that is left out. Raises DiagnosticError."""
        if not isinstance(feed, Batch) or (feed.rows != 0 and feed.weight == 1.0):
            return Form(program, feed)
        if feed.rows == 0 and not self._waited_for:
            return None
        key = id(program), feed.rows == 0
        known = self._made.get(key)
        if known is None:
            form = without_rows(program, feed, SENDING) if feed.rows == 0 else fed_seeds(program)
            known = self._made[key] = program, *form
        _, form, extra = known
        return (
            Form(form, EMPTY, extra, fetches=False) if feed.rows == 0 else Form(form, feed, scaled(extra, feed.weight))
        )
