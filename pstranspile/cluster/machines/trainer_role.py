"""The programs of a trainer, and which of them each of its steps runs."""

from __future__ import annotations

from collections.abc import Mapping

from pstranspile.cluster.machines.exchanges import changed_in_place
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import MAIN, Program, Var
from pstranspile.runtime.run.turns import Turns


class TrainerRole:
    """The start-up program of a trainer and, by name, those that its steps may run."""

    def __init__(self, startup: Program, main: Program, others: Mapping[str, Program] = EMPTY):
        self.startup = startup
        self.programs: dict[str, Program] = {MAIN: main, **others}
        self.turns: Turns | None = None
        """Which program each step runs; None: always the main one."""
        self.fetches: dict[str, tuple[str, ...]] = {}
        """What is fetched of each program."""
        self.changed = frozenset[str]().union(*map(changed_in_place, self.all))
        """The variables that the programs may change in place, so that a trainer must have them to itself."""

    def replace_main(self, program: Program) -> None:
        """Makes this the program that the next steps run."""
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
        """How the programs declare a variable: kept from step to step, if one of them does so."""
        declared = [p.main_block.vars[name] for p in self.programs.values() if name in p.main_block.vars]
        return next((var for var in declared if var.persistable), declared[0] if declared else None)
