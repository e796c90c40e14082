"""Feeds of several programs: `x` is for every program that has such an input, `generator/x` for one.

The leading axis of an array counts the runs of the program that it is fed to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location, Program
from pstranspile.ops.context import Value
from pstranspile.run import codes
from pstranspile.run.feeds import near, written_names
from pstranspile.run.files import LENGTHS, Feeds
from pstranspile.run.turns import Turns

_TRAINER = re.compile(r"trainer_\d+/")


def arrays_by_program(
    arrays: Mapping[str, Any], programs: Mapping[str, Program], run: Iterable[str], file: str = ""
) -> dict[str, dict[str, Any]]:
    """The arrays of each program in `run`, under the names they have there (a `trainer_<i>/` stays in front).

    `programs` are all that there are; what is for one that is not run is left out. Raises DiagnosticError for an array
    that is for none.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in run}
    special: set[tuple[str, str]] = set()
    inputs = {name: _inputs(program) for name, program in programs.items()}
    for key in sorted(arrays, key=lambda key: not _owner(key, programs)):  # those for one program come first
        match = _TRAINER.match(key)
        prefix = match[0] if match else ""
        name = key[len(prefix) :]
        owner = _owner(key, programs)
        if owner:
            name = name[len(owner) + 1 :]
            special.add((owner, _base(name)))
        places = [owner] if owner else [place for place, known in inputs.items() if _base(name) in known]
        if not places:
            _refuse(name, programs, file)
        for place in places:
            if place in found and (owner or (place, _base(name)) not in special):
                found[place][prefix + name] = arrays[key]
    return found


def _base(name: str) -> str:
    """The input that an array is for; lengths are for that of the rows."""
    return name.removesuffix(LENGTHS)


def _owner(key: str, programs: Mapping[str, Program]) -> str:
    """The program that an array's name begins with, "" if none."""
    match = _TRAINER.match(key)
    name, slash, _ = key[match.end() if match else 0 :].partition("/")
    return name if slash and name in programs else ""


def _inputs(program: Program) -> set[str]:
    """What can be fed to a program: what no op of it writes, and it does not keep."""
    written = written_names(program)
    return {name for name, var in program.main_block.vars.items() if not var.persistable and name not in written}


def _refuse(name: str, programs: Mapping[str, Program], file: str) -> None:
    known = [other for program in programs.values() for other in program.main_block.vars]
    message = f"no program has an input {name}{near(name, known)}"
    raise DiagnosticError([error(codes.FILE_UNUSABLE, message, Location(file) if file else None)])


def arrays_of_trainers(arrays: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arrays for all trainers, then for each trainer that has arrays of its own all that it gets."""
    common = {key: array for key, array in arrays.items() if not _TRAINER.match(key)}
    prefixes = dict.fromkeys(match[0] for key in arrays if (match := _TRAINER.match(key)))
    own = [{key[len(p) :]: array for key, array in arrays.items() if key.startswith(p)} for p in prefixes]
    return [common, *({**common, **mine} for mine in own)]


class ProgramFeeds:
    """The feeds of all steps of several programs that take turns. `steps` is how many can be made, None if any number.

    Raises DiagnosticError.
    """

    def __init__(self, programs: Mapping[str, Program], turns: Turns, arrays: Mapping[str, Any], file: str):
        by_program = arrays_by_program(arrays, programs, turns.names, file)
        self._turns = turns
        self._file = file
        self.of = {name: Feeds(programs[name], by_program[name], file) for name in turns.names}
        self.steps = turns.steps_within({name: feeds.steps for name, feeds in self.of.items()})

    def step(self, number: int) -> dict[str, Value]:
        """The feed of a step, counted from 0."""
        return self.of[self._turns.program(number)].step(self._turns.runs_before(number))

    def require(self, steps: int) -> None:
        """Raises DiagnosticError if some program is fed for fewer steps."""
        if self.steps is None or self.steps >= steps:
            return
        name = self._turns.program(self.steps)
        message = (
            f"the file feeds @{name} {self.of[name].steps} times, which is enough for {self.steps} steps; "
            f"{steps} are asked for"
        )
        raise DiagnosticError([error(codes.FILE_UNUSABLE, message, Location(self._file) if self._file else None)])
