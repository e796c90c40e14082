"""Type checks of arguments of public functions: a TypeError says what to pass instead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from types import UnionType
from typing import Any, SupportsIndex, TypeVar, cast

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
"""The advice in the message, by the required type and the given type."""


def wrong_type(caller: str, wanted: str, value: object, kind: str = "") -> TypeError:
    """The TypeError for a `value` passed to the function `caller`, which requires `wanted` (words) of
    the type `kind`.
    """
    given = type(value).__name__
    instead = _INSTEAD.get((kind, "path" if isinstance(value, str | os.PathLike) else given), "")
    return TypeError(f"{caller} takes {wanted}, not a value of type {given}" + (f"; {instead}" if instead else ""))


def expect(value: object, kind: type[Any] | UnionType, caller: str, wanted: str = "") -> None:
    """Raises TypeError unless `value` is of the type, or of one of the types; `wanted` describes it in the message."""
    if not isinstance(value, kind):
        name = "" if isinstance(kind, UnionType) else kind.__name__
        raise wrong_type(caller, wanted or f"a {name}", value, name)


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
    """Raises TypeError unless `value` is an integer (of Python, numpy or another package); `wanted` describes it in the
    message.

    Raises ValueError if it exceeds `most`, or is below `least`.
    """
    if not isinstance(value, SupportsIndex):
        raise wrong_type(caller, wanted, value)
    if most is not None and int(value) > most:
        raise ValueError(f"{caller} takes {wanted}, {most:,} at most")
    if least is not None and int(value) < least:
        raise ValueError(f"{caller} takes {wanted}, {least} at least, not {int(value)}")


def expect_word(value: object, caller: str, wanted: str, words: Sequence[str]) -> None:
    """Raises ValueError unless `value` is one of `words`; `wanted` is the name of the argument in the message."""
    if value not in words:
        hint = did_you_mean(str(value), words)
        raise ValueError(f"{caller} takes {' or '.join(map(repr, words))} as {wanted}, not {value!r}{hint}")


def names_of(value: Iterable[str], caller: str) -> tuple[str, ...]:
    """A list of variable names as a tuple. Raises TypeError for other values, in particular for a single name without a
    list.
    """
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


def is_separator(sign: str) -> bool:
    """Whether a text can separate the fields of a row: a single character that occurs in no number and no name."""
    return (
        len(sign) == 1
        and sign.isascii()
        and (sign == "\t" or sign.isprintable())
        and sign not in "\"'+-._ "
        and (not sign.isalnum())
    )


# Errors for misspelt names in Python, with suggestions.


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that a module does not have; it suggests the most similar name of the module."""
    hint = "" if name.startswith("_") else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name, obj=None)


def require_arguments(called: str, named: Iterable[str], known: Sequence[str]) -> None:
    """Raises TypeError if one of the arguments that are named is not among the known ones."""
    wrong = next((name for name in named if name not in known), None)
    if wrong is not None:
        hint = did_you_mean(wrong, known) or f"; it takes {', '.join(known)}"
        raise TypeError(f"{called} has no argument {wrong!r}{hint}") from None


_Called = TypeVar("_Called", bound=Callable[..., Any])


def suggesting(called: _Called) -> _Called:
    """Wraps a function or class: when called with an unknown argument, its TypeError suggests the most similar known
    one.
    """
    made: Any = called.__init__ if isinstance(called, type) else called

    @wraps(made)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return made(*given, **named)
        except TypeError:
            from inspect import signature

            known = [*signature(called).parameters.values()]
            names = [one.name for one in known if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
            if any(one.kind is one.VAR_KEYWORD for one in known):
                raise
            require_arguments(called.__name__, named, names)
            raise

    if isinstance(called, type):
        setattr(called, "__init__", call)  # noqa: B010 (pyright takes no assignment to a method)
        return cast("_Called", called)
    return cast("_Called", call)
