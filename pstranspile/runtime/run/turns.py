"""The schedule of the programs of a module: `main*5,generator,evaluation/10`.

A step is one run of one program. The items of a cycle take turns, over and over: `NAME`, or `NAME*COUNT` for several
steps in a row. An item `NAME/EVERY` is not in the cycle: its program is run in an extra step after every so many steps
of the cycle. A name may be written with the `@` of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, cycle
from typing import Any, TypeAlias

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors
from pstranspile.ir.model import MAIN, STARTUP, Module, Program, Role
from pstranspile.ir.required import require_programs
from pstranspile.ir.types import VarKind
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.feeds import near, not_fed, written_names
from pstranspile.runtime.run.files import ArrayFile, place_of
from pstranspile.runtime.run.seeds import without_unmade_terms
from pstranspile.runtime.run.step_feeds import Feeds, GivenFeeds, batches_of, variable_of

# Feeds of several programs: `x` is for every program that has such an input, `generator/x` for one.
#
# The steps of an array are the runs of the program that it is fed to. What is given for each step, without arrays of
# several, goes by the steps of the run.

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


_ITEM = re.compile(r"@?(?P<name>[^*/,@\s]+)(?:(?P<how>[*/])(?P<number>[1-9][0-9]{0,5}))?")


class Turns:
    """The program of every step, counted from 0. `names` are the possible ones, `text` describes the turns."""

    def __init__(self, order: Iterable[str], names: Iterable[str], text: str = ""):
        self.names = tuple(names)
        self.text = text
        self._order: Iterator[str] = iter(order)
        self._known: list[tuple[str, int]] = []
        self._runs: dict[str, int] = {}

    def _at(self, step: int) -> tuple[str, int]:
        while len(self._known) <= step:
            name = next(self._order)
            runs = self._runs.get(name, 0)
            self._runs[name] = runs + 1
            self._known.append((name, runs))
        return self._known[step]

    def program(self, step: int) -> str:
        """The name of the program that is run in a step."""
        return self._at(step)[0]

    def runs_before(self, step: int) -> int:
        """How often the program of a step was run in earlier steps: which of its batches the step takes."""
        return self._at(step)[1]

    def steps_within(self, batches: Mapping[str, int | None]) -> int | None:
        """How many steps can be made until a program has no batch left; None: any number.

        `batches`: how many each program has, None if nothing is fed to it.
        """
        if not self.text or all(batches.get(name) is None for name in self.names):
            return None
        for step in count():
            most = batches.get(self.program(step))
            if most is not None and self.runs_before(step) >= most:
                return step
        return None


GivenTurns: TypeAlias = "str | Turns | Callable[[int, int], str]"
"""A text, or a function of trainer and step that names a program."""


def parse_turns(text: str, programs: Iterable[str]) -> Turns:
    """The turns that a text describes, with programs of these names. Raises DiagnosticError (`program-turns`)."""
    known = [name for name in programs if name != STARTUP]
    repeated: list[str] = []
    between: list[tuple[str, int]] = []
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise _refused(f"{item.strip() or text!r} is no program: NAME, NAME*COUNT or NAME/EVERY is needed")
        name, number = match["name"], int(match["number"] or 1)
        if name not in known:
            others = " and ".join(f"@{other}" for other in known)
            why = "the start-up program is run once, before all steps" if name == STARTUP else f"there is {others}"
            raise _refused(f"@{name} can't be run in steps: {why}{near(name, known)}")
        if match["how"] == "/":
            between.append((name, number))
        else:
            repeated += [name] * number
    if not repeated:
        raise _refused(f"{text}: nothing is run in between; a program without /EVERY is needed")
    return Turns(_ordered(repeated, between), dict.fromkeys([*repeated, *(name for name, _ in between)]), text)


def _refused(message: str) -> DiagnosticError:
    return DiagnosticError([error("program-turns", message)])


def _ordered(repeated: Sequence[str], between: Sequence[tuple[str, int]]) -> Iterator[str]:
    for done, name in enumerate(cycle(repeated), start=1):
        yield name
        yield from (other for other, every in between if done % every == 0)


def turns_of(given: GivenTurns, programs: Iterable[str], trainer: int = 0) -> Turns:
    """Turns of any form, for one trainer. Raises DiagnosticError for a text that can't be read."""
    if isinstance(given, Turns):
        return given
    if isinstance(given, str):
        return parse_turns(given, programs)
    chosen = given
    names = [name for name in programs if name != STARTUP]
    return Turns((_one_of(chosen(trainer, step), names) for step in count()), names)


def _one_of(name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise _refused(f"@{name} is to be run, but there is no such program{near(name, names)}")
    return name


def step_programs(module: Module) -> dict[str, Program]:
    """The programs of a module that can be run in steps, @main first. Raises DiagnosticError if it has no @main."""
    require_programs(module, (MAIN,))
    others = {name: program for name, program in module.programs.items() if name not in (MAIN, STARTUP)}
    return {MAIN: module.main, **others}


def union_of(programs: Iterable[Program]) -> Program:
    """One program that declares what all of them declare, and has the ops of all; to look at, not to run.

    What one of them keeps from step to step is declared so.
    """
    first, *others = programs
    if not others:
        return first
    variables = dict(first.main_block.vars)
    for program in others:
        for name, var in program.main_block.vars.items():
            if name not in variables or (var.persistable and not variables[name].persistable):
                variables[name] = var
    ops = tuple(op for program in (first, *others) for op in program.main_block.ops)
    block = first.main_block._replace(vars=type(first.main_block.vars)(variables), ops=ops)
    return first._replace(blocks=(block, *first.blocks[1:]))


def fetches_by_program(
    asked: Sequence[str], programs: Mapping[str, Program], default: Callable[[Program], Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """What is fetched of each program. `asked` are variables (`NAME`: of every program that declares it) and variables
    of one program (`PROGRAM/NAME`); if nothing is asked for, what `default` gives of a program.

    Raises DiagnosticError for a variable that no program declares.
    """
    if not asked:
        return {name: tuple(default(program)) for name, program in programs.items()}
    result: dict[str, dict[str, None]] = {name: {} for name in programs}
    for item in asked:
        owner, slash, rest = item.partition("/")
        if slash and owner in programs:
            places, name = ([owner] if rest in programs[owner].main_block.vars else []), rest
        else:
            places, name = [p for p, program in programs.items() if item in program.main_block.vars], item
        if not places:
            names = [n for program in programs.values() for n in program.main_block.vars]
            message = f"{item} is fetched, but no program that is run declares {name}{near(name, names)}"
            raise DiagnosticError([error("run-fetch-unknown", message)])
        for place in places:
            result[place][name] = None
    return {name: tuple(names) for name, names in result.items()}
