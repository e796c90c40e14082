"""Feeds of several programs: `x` is for every program that has such an input, `generator/x` for one.

The steps of an array are the runs of the program that it is fed to. What is given for each step, without arrays of
several, goes by the steps of the run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors
from pstranspile.ir.model import Module, Program, Role
from pstranspile.ir.types import VarKind
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.feeds import near, not_fed, written_names
from pstranspile.runtime.run.files import ArrayFile, place_of
from pstranspile.runtime.run.step_feeds import Feeds, GivenFeeds, batches_of, variable_of
from pstranspile.runtime.run.terms import without_unmade_terms
from pstranspile.runtime.run.turns import Turns

_TRAINER = re.compile(r"trainer_\d+/")


def arrays_by_program(
    arrays: Mapping[str, Any], programs: Mapping[str, Program], run: Iterable[str]
) -> dict[str, ArrayFile]:
    """The arrays of each program in `run`, under the names they have there (a `trainer_<i>/` stays in front).

    `programs` are all that there are; what is for one that is not run is left out. Raises DiagnosticError for an array
    that is for none.
    """
    place = place_of(arrays)
    result = {name: ArrayFile({}, place.file if place else "") for name in run}
    special: set[tuple[str, str]] = set()
    inputs = {name: inputs_of(program) for name, program in programs.items()}
    for key in sorted(arrays, key=lambda key: not _owner(key, programs)):  # those for one program come first
        match = _TRAINER.match(key)
        prefix = match[0] if match else ""
        name = key[len(prefix) :]
        owner = _owner(key, programs)
        if owner:
            name = name[len(owner) + 1 :]
            special.add((owner, variable_of(name, inputs[owner])))
        of = {other: variable_of(name, known) for other, known in inputs.items()}
        places = [owner] if owner else [other for other, known in inputs.items() if of[other] in known]
        if not places:
            known = [other for program in programs.values() for other in program.main_block.vars]
            message = f"no program has an input {name}{near(name, known)}"
            raise DiagnosticError([error("run-file-unusable", message, place)])
        for other in places:
            if other in result and (owner or (other, of[other]) not in special):
                result[other][prefix + name] = arrays[key]
    return result


def _owner(key: str, programs: Mapping[str, Program]) -> str:
    """The program that an array's name begins with, "" if none."""
    match = _TRAINER.match(key)
    name, slash, _ = key[match.end() if match else 0 :].partition("/")
    return name if slash and name in programs else ""


def inputs_of(program: Program) -> set[str]:
    """What can be fed to a program: what no op of it writes, and it does not keep."""
    written = written_names(program)
    return {name for name, var in program.main_block.vars.items() if not var.persistable and name not in written}


def unfed_inputs(main: Program, startup: Program | None, fed: Collection[str]) -> dict[str, Diagnostic]:
    """Errors, by name, for the inputs that block 0 of a main program reads and that are not fed.

    They are known before anything runs: no op writes such a variable, and it is not kept.
    """
    program = without_unmade_terms(main)
    variables, known = program.main_block.vars, {*written_names(program), *fed}
    known |= written_names(startup) if startup is not None else frozenset[str]()
    result: dict[str, Diagnostic] = {}
    for op in program.main_block.ops:
        for name in op.input_names:
            var = variables.get(name)
            if var is not None and not var.persistable and var.kind is VarKind.LOD_TENSOR and name not in known:
                result.setdefault(name, not_fed(op, var))
    return result


def require_inputs(roles: Sequence[Role], given: GivenFeeds | None, source: Module | None) -> None:
    """Raises DiagnosticError if trainers read inputs that are not among arrays, or nothing is given.

    Where the program that the roles were compiled from is known, the errors are about its lines.
    """
    if given is not None and not isinstance(given, Mapping):
        return
    for number, role in enumerate(roles):
        own = {_TRAINER.sub("", key) for key in given or () if key.startswith(f"trainer_{number}/")}
        own |= {key for key in given or () if not _TRAINER.match(key)}
        fed = {variable_of(key, role.main.main_block.vars) for key in own}
        absent = unfed_inputs(role.main, role.startup, fed)
        of_source = unfed_inputs(source.main, source.startup, fed) if absent and source is not None else {}
        raise_errors(of_source.get(name, problem) for name, problem in absent.items())


def of_everybody(arrays: Mapping[str, Any]) -> ArrayFile:
    """The arrays that are for all trainers."""
    place = place_of(arrays)
    return ArrayFile({k: array for k, array in arrays.items() if not _TRAINER.match(k)}, place.file if place else "")


class ProgramFeeds:
    """The feeds of all steps of several programs that take turns. `steps` is how many can be made, None if any number.

    Raises DiagnosticError.
    """

    def __init__(self, programs: Mapping[str, Program], turns: Turns, given: GivenFeeds):
        self._turns = turns
        self._place = place_of(given)
        self._batches = batches_of(given, "Feeds")
        self.of: dict[str, Feeds] = {}
        self.steps = len(self._batches) if self._batches is not None else None
        if isinstance(given, Mapping):
            by_program = arrays_by_program(given, programs, turns.names)
            self.of = {name: Feeds(programs[name], by_program[name]) for name in turns.names}
            self.steps = turns.steps_within({name: feeds.steps for name, feeds in self.of.items()})

    def step(self, number: int) -> dict[str, Value]:
        """The feed of a step, counted from 0."""
        if self._batches is not None:
            return dict(self._batches[number])
        return self.of[self._turns.program(number)].step(self._turns.runs_before(number))

    def require(self, steps: int) -> None:
        """Raises DiagnosticError if some program is fed for fewer steps."""
        if self.steps is None or self.steps >= steps:
            return
        if self._batches is not None:
            message = f"{self.steps} steps are fed, {steps} are asked for"
        else:
            name = self._turns.program(self.steps)
            enough = f"which is enough for {self.steps} steps; {steps} are asked for"
            message = f"@{name} is fed {self.of[name].steps} times, {enough}"
        raise DiagnosticError([error("run-file-unusable", message, self._place)])
