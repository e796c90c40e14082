"""Type checks of arguments of public functions: a TypeError says what to pass instead."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, cast

from pstranspile.ir.diagnostics import did_you_mean
from pstranspile.ir.model import Module, Program

_INSTEAD = {
    ("Module", "Program"): "Module(FrozenMap(main=program)) makes one of it",
    ("Module", "path"): "load gives that of a file",
    ("Program", "Module"): "module.main is its main program, module.startup its start-up program",
    ("Program", "Role"): "role.main is its main program, role.startup its start-up program",
    ("Program", "Compiled"): "compiled.trainer(0).main is one of its programs",
    ("Program", "path"): "load(path).main is that of a file",
    ("Job", "dict"): "Job(**settings) makes one",
    ("Job", "path"): "load_job gives that of a file",
    ("PlanFile", "path"): "load_plan gives that of a file, parse_plan that of a text",
    ("PlanFile", "Compiled"): "compiled.plan is its plan",
    ("Compiled", "Job"): "compile(module, job) gives one",
    ("Compiled", "Module"): "compile(module, job) gives one",
    ("Facts", "Program"): "analyze(program) gives them",
    ("Facts", "Module"): "analyze(module.main) gives them",
    ("Scope", "dict"): "scope = Scope() makes one, scope.update(values) fills it",
    ("Scenario", "path"): "parse_scenario(text) gives one",
    ("Roles", "Compiled"): "compiled.roles() gives them",
}
"""The advice for a pair of the required and the given type."""


def wrong_type(caller: str, wanted: str, value: object, kind: str = "") -> TypeError:
    """The TypeError for a value passed to the function `caller`, which takes `wanted` of the type `kind`."""
    given = type(value).__name__
    instead = _INSTEAD.get((kind, "path" if isinstance(value, str | os.PathLike) else given), "")
    return TypeError(f"{caller} takes {wanted}, not a value of type {given}" + (f"; {instead}" if instead else ""))


def expect(value: object, kind: type[Any], caller: str, wanted: str = "") -> None:
    """Raises TypeError unless `value` is of the type; `wanted` describes it in the message."""
    if not isinstance(value, kind):
        raise wrong_type(caller, wanted or f"a {kind.__name__}", value, kind.__name__)


def expect_module(value: object, caller: str) -> None:
    """Raises TypeError unless `value` is a Module."""
    expect(value, Module, caller)


def expect_program(value: object, caller: str) -> None:
    """Raises TypeError unless `value` is a Program."""
    expect(value, Program, caller)


def path_of(value: str | os.PathLike[str], caller: str) -> str:
    """The path of a file or folder as text. Raises TypeError for a value that is no path."""
    if not isinstance(value, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong_type(caller, "the path of a file or folder", value)
    return os.fspath(value)


MOST_STEPS = 10**9
"""The largest number of steps of a run, because the fetched values of each step are kept."""

MOST_CHECKED = 10**6
"""The largest number of steps of a check, of rows of its batches, and of orders of its events."""


def expect_number(value: object, caller: str, wanted: str, most: int | None = None, least: int | None = None) -> None:
    """Raises TypeError unless `value` is an integer of any package; `wanted` describes it.

    Raises ValueError if it exceeds `most`, or is below `least`.
    """
    if not isinstance(value, SupportsIndex):
        raise wrong_type(caller, wanted, value)
    if most is not None and int(value) > most:
        raise ValueError(f"{caller} takes {wanted}, {most:,} at most")
    if least is not None and int(value) < least:
        raise ValueError(f"{caller} takes {wanted}, {least} at least, not {int(value)}")


def expect_word(value: object, caller: str, wanted: str, words: Sequence[str]) -> None:
    """Raises ValueError unless `value` is one of the words that the argument `wanted` takes."""
    if value not in words:
        hint = did_you_mean(str(value), words)
        raise ValueError(f"{caller} takes {' or '.join(map(repr, words))} as {wanted}, not {value!r}{hint}")


def names_of(value: Iterable[str], caller: str) -> tuple[str, ...]:
    """The names in a list of variables. Raises TypeError for anything else, above all a single name without a list."""
    wanted = "a list of names of variables"
    if isinstance(value, str):
        raise TypeError(f"{caller} takes {wanted}, not one name; write [{value!r}]")
    if not isinstance(value, Iterable) or isinstance(value, Module | Program):  # pyright: ignore
        raise wrong_type(caller, wanted, value)
    names = tuple(value)
    for name in cast("tuple[object, ...]", names):
        if not isinstance(name, str):
            raise TypeError(f"{caller} takes {wanted}; one is of type {type(name).__name__}")
    return names
