"""Gets a module from a function in a user's Python file: the input `FILE.py:NAME`."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TextIO, TypeVar

from pstranspile.ir.diagnostics import DiagnosticError, Note, did_you_mean, error, name_list
from pstranspile.ir.model import Location, Module
from pstranspile.ir.reading import misspelt

_Result = TypeVar("_Result")

_PACKAGE = str(Path(__file__).parents[2])
"""The folder of this package. Its frames don't help the author of a Python file."""

_IMPORTING = (str(importlib.__path__[0]), "<frozen importlib")
"""The beginnings of file names of Python's import system."""


def module_of(file: str, name: str) -> Module:
    """The module that the function `name` of a Python file gives, called without arguments.

    The function may give a Module, or a model that `pstranspile.torch` has traced; `name` may also be one of these
    itself. The file is imported once, as Python imports a module of its name: its folder comes first on Python's path.
    What it prints goes to stderr, so that programs on stdout stay whole. Raises DiagnosticError (`input-python`) with
    the line of the file where it fails.
    """
    found = value_of(file, name)
    with redirect_stdout(sys.stderr):
        made: Any = calling(file, found) if callable(found) and not hasattr(found, "module") else found
    if hasattr(made, "found_at"):
        made.found_at(f"{file}:{name}")
    module = getattr(made, "module", made)
    if not isinstance(module, Module):
        _refuse(
            file,
            f"{name} gives a value of type {type(made).__name__}; what pstranspile.torch.trace gives is needed, or a "
            "pstranspile.Module",
        )
    return module


def value_of(file: str, name: str) -> Any:
    """The object `name` of a Python file. Raises DiagnosticError as `module_of` does."""
    place = os.path.realpath(file)
    if not os.path.isfile(place):
        problem = f"there is no such file{misspelt(file)}"
        if os.path.exists(place):
            what = "this is a folder" if os.path.isdir(place) else "it is a pipe, a socket or a device"
            problem = f"{what}, a file is needed"
        raise DiagnosticError([error("input-unreadable", problem, Location(file))])
    imported = imported_file(file)
    if not hasattr(imported, name):
        own = [
            known
            for known in _public(imported)
            if getattr(vars(imported)[known], "__module__", "") == imported.__name__
        ]
        there = did_you_mean(name, _public(imported)) or (f"; it has {name_list(own)}" if own else "")
        _refuse(file, f"it has no {name}{there}")
    return getattr(imported, name)


def imported_file(file: str) -> ModuleType:
    """The module of a Python file, imported once. Raises DiagnosticError as `module_of` does."""
    with redirect_stdout(sys.stderr):
        return calling(file, lambda: _import_file(file, os.path.realpath(file)), imports=True)


def function_of(file: str, name: str) -> Callable[..., Any]:
    """The function `name` of a Python file. Raises DiagnosticError, also for an object that can't be called."""
    found = value_of(file, name)
    if not callable(found):
        _refuse(file, f"{name} is a value of type {type(found).__name__}; a function is needed")
    return found


def _refuse(file: str, message: str) -> NoReturn:
    raise DiagnosticError([error("input-python", message, Location(file))])


def _public(imported: ModuleType) -> list[str]:
    return [name for name in vars(imported) if not name.startswith("_")]


def _import_file(file: str, place: str) -> ModuleType:
    """The module of a file, imported as `import` does it, with the folder of the file first on the path."""
    stem = Path(place).stem
    loaded_module = sys.modules.get(stem)
    if loaded_module is not None and os.path.realpath(getattr(loaded_module, "__file__", None) or "") == place:
        return loaded_module
    folder = str(Path(place).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loader = SourceFileLoader(stem, file)  # under the name that the user has given, by which messages name its lines
    spec = importlib.util.spec_from_loader(stem, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = place  # wherever the process works later
    if loaded_module is None:  # a module of Python's own with this name is not replaced
        sys.modules[stem] = module
    try:
        loader.exec_module(module)
    except BaseException:
        if loaded_module is None:
            del sys.modules[stem]
        raise
    return module


def calling(
    file: str, function: Callable[[], _Result], *, imports: bool = False, printing: TextIO | None = None
) -> _Result:
    """The result of a function in a user's file. `imports`: it imports the file. `printing` is where its prints go
    (None: to stdout). Raises DiagnosticError with the user's line for any exception of the function.
    """
    try:
        with redirect_stdout(printing) if printing is not None else nullcontext():
            return function()
    except (DiagnosticError, KeyboardInterrupt):
        raise
    except SystemExit as stop:
        if traceback.extract_tb(stop.__traceback__)[-1].filename.startswith(_PACKAGE):
            raise  # a signal has ended the process
        message = f"it ends the process (status {0 if stop.code is None else stop.code})"
        if imports:
            message += '; a file whose work stands under `if __name__ == "__main__":` can be imported'
        raise DiagnosticError([_finding(stop, file, message)]) from None
    except SyntaxError as problem:
        where = Location(_display_path(problem.filename or file, file), problem.lineno or 0, problem.offset or 0)
        raise DiagnosticError([error("input-python", f"SyntaxError: {problem.msg}", where)]) from problem
    except BaseException as problem:  # the user's code may raise anything
        raise DiagnosticError([_finding(problem, file)]) from problem


def _finding(problem: BaseException, file: str, message: str = "") -> Any:
    """The finding for an exception of the user's code, at its innermost line in the user's files; the calls that led
    there are notes. `message` is that of the finding (default: that of the exception).
    """
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if _is_of_user(frame.filename)]
    places = [_expression(frame, _display_path(frame.filename, file)) for frame in frames]
    kind = type(problem).__name__
    lines = [] if message else _exception_text(problem).splitlines()
    message = message or (f"{kind}: {lines[0]}" if lines else kind)
    notes = [Note("called from here", *place) for place in reversed(places[:-1])][:_MOST_CALLS]
    notes += [Note("\n".join(lines[1:]))] if any(line.strip() for line in lines[1:]) else []
    place, focus = places[-1] if places else (Location(file), "")
    return error("input-python", message, place, focus=focus, notes=notes)


def _exception_text(problem: BaseException) -> str:
    """The text of an exception; empty if the exception can't give it."""
    try:
        return str(problem)
    except Exception:
        return ""


def _expression(frame: traceback.FrameSummary, file: str) -> tuple[Location, str]:
    """The place of the expression that a frame evaluates, and its text; "" for one of several lines."""
    line = frame.lineno or 0
    first: int | None = getattr(frame, "colno", None)  # Python 3.10 has no columns
    last: int | None = getattr(frame, "end_colno", None)
    if first is None or last is None:
        return Location(file, line), ""
    text = linecache.getline(frame.filename, line).rstrip("\n").encode()  # Python counts bytes of UTF-8
    column = len(text[:first].decode(errors="replace")) + 1
    is_whole = getattr(frame, "end_lineno", 0) == line
    return Location(file, line, column), text[first:last].decode(errors="replace") if is_whole else ""


_MOST_CALLS = 5
"""The most calls that are shown as notes of a failure."""


def _is_of_user(file: str) -> bool:
    library = "site-packages" in file or "dist-packages" in file or file.startswith(os.path.dirname(os.__file__))
    return not (library or file.startswith((_PACKAGE, "<", *_IMPORTING)))


def _display_path(found: str, file: str) -> str:
    """The name of a file in messages: as the user gave it, if it is the user's file."""
    return file if os.path.realpath(found) == os.path.realpath(file) else found
