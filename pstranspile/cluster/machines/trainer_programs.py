"""The programs of a trainer: the program that each step runs, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pstranspile.cluster.machines.script import changed_in_place, is_collective
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import MAIN, Program, Var
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.batch import Batch
from pstranspile.runtime.run.seeds import fed_seeds, scaled, without_rows
from pstranspile.runtime.run.step_feeds import Turns

# The programs of a trainer, and the one that each of its steps runs.


class TrainerRole:
    """The start-up program of a trainer and, by name, those that its steps may run."""

    def __init__(self, startup: Program, main: Program, others: Mapping[str, Program] = EMPTY):
        self.startup = startup
        self.programs: dict[str, Program] = {MAIN: main, **others}
        self.turns: Turns | None = None
        """The choice of the program that each step runs; None: always the main one."""
        self.fetches: dict[str, tuple[str, ...]] = {}
        """The variables fetched of each program."""
        self.changed = frozenset[str]().union(*map(changed_in_place, self.all))
        """The variables that the programs may change in place, so that the trainer needs its own copies."""

    def take_turns(self, turns: Turns) -> None:
        """Sets the turns, which choose the program of each step."""
        self.turns = turns

    def fetch(self, fetches: Mapping[str, tuple[str, ...]]) -> None:
        """Sets the variables to fetch of each program."""
        self.fetches = dict(fetches)

    def replace_main(self, program: Program) -> None:
        """Replaces the main program for the next steps."""
        self.programs[MAIN] = program
        self.changed |= changed_in_place(program)

    @property
    def main(self) -> Program:
        """The program that steps run by default."""
        return self.programs[MAIN]

    @property
    def all(self) -> tuple[Program, ...]:
        """The start-up program and those that steps may run."""
        return (self.startup, *self.programs.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the programs that steps run."""
        return (MAIN,) if self.turns is None else self.turns.names

    def program_of(self, step: int) -> str:
        """The name of the program that a step runs."""
        return MAIN if self.turns is None else self.turns.program(step)

    def name_of(self, program: Program) -> str | None:
        """The name of a program that steps may run, None for any other."""
        return next((name for name, known in self.programs.items() if known is program), None)

    def label(self, program: Program) -> str | None:
        """The name of a program where several take turns, None where there is only one."""
        return None if self.turns is None else self.name_of(program)

    def variable(self, name: str) -> Var | None:
        """The declaration of a variable in the programs: a persistable one, if any is."""
        declared = [p.main_block.vars[name] for p in self.programs.values() if name in p.main_block.vars]
        return next((var for var in declared if var.persistable), declared[0] if declared else None)


# The forms in which a step runs a program: completely, completely with weighted seeds, or the part that needs no rows.


def sends_values(op_type: str) -> bool:
    """Whether ops of a type send values for which other machines may wait."""
    return op_type == "send" or is_collective(op_type)


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
        """Cache of forms by program id and whether the feed is empty: the program itself (so that its id stays in use),
        the program to run in its place, and that program's extra inputs.
        """

    def of(self, program: Program, feed: Mapping[str, Any]) -> Form | None:
        """The form of a program for this feed; None for a step that is left out. Raises DiagnosticError."""
        if not isinstance(feed, Batch) or (feed.rows != 0 and feed.weight == 1.0):
            return Form(program, feed)
        if feed.rows == 0 and not self._waited_for:
            return None
        key = id(program), feed.rows == 0
        known = self._made.get(key)
        if known is None:
            form = without_rows(program, feed, sends_values) if feed.rows == 0 else fed_seeds(program)
            known = self._made[key] = program, *form
        _, form, extra = known
        return (
            Form(form, EMPTY, extra, fetches=False) if feed.rows == 0 else Form(form, feed, scaled(extra, feed.weight))
        )
