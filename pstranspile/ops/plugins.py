"""What other installed packages offer through entry points, and whose an op type is.

A package may do anything as its modules are imported: it may fail, end the process or print. Here this becomes a
finding that names the package; what it prints goes to stderr, since stdout may be the text of a program.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, at_op, error, in_one_line
from pstranspile.ir.model import Op
from pstranspile.ops.schema import op_schemas, undeclare

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
"""How the files of this package begin; with the separator, since another one may be called `pstranspile_ops`."""

_IMPORTING = (importlib.__path__[0], "<frozen importlib")
"""How the files of Python's import system begin, whose frames say nothing to the author of a package."""

_Result = TypeVar("_Result")
_packages: dict[str, str] = {}
"""The package that declares each op type of other packages that was loaded through an entry point."""


def offers(group: str, code: Code) -> list[EntryPoint]:
    """The entry points of a group in the order of names. Raises DiagnosticError if those of a package can't be read."""
    from importlib.metadata import distributions, entry_points

    try:
        points = list(entry_points(group=group))
    except Exception:  # whatever a damaged file of a package makes Python's library raise
        points: list[EntryPoint] = []
        problems: list[Diagnostic] = []
        for each in distributions():
            try:
                points += each.entry_points.select(group=group)
            except Exception as reason:  # the same
                name = "an installed package"
                with suppress(Exception):
                    name = f"the package {each.metadata['Name']} {each.version}"
                message = f"the entry points of {name} can't be read: {type(reason).__name__}: {reason}"
                problems.append(error(code, message))
        if problems:
            raise DiagnosticError(problems) from None
    return sorted(points, key=lambda point: (point.name, point.value))


def package_of(point: EntryPoint) -> str:
    """The name and the version of the package that an entry point is of."""
    if point.dist is not None:
        with suppress(Exception):  # a package whose METADATA is damaged
            return f"the package {point.dist.metadata['Name']} {point.dist.version}"
    return "an installed package"


def call_foreign(
    function: Callable[[], _Result], what: str, fails: str, code: Code, notes: tuple[Note, ...]
) -> _Result:
    """The result of a function of another package; what the function prints goes to stderr.

    Raises DiagnosticError with `what fails: reason` if it fails or ends the process.
    """
    try:
        with redirect_stdout(sys.stderr):
            return function()
    except DiagnosticError:
        raise
    except (Exception, SystemExit) as reason:
        if told_to_end(reason):
            raise
        message = f"{what} {fails}: {told_as(reason)}"
        raise DiagnosticError([error(code, message, notes=(*frames_of(reason), *notes))]) from reason


def told_to_end(reason: BaseException) -> bool:
    """Whether an exception is a signal's, which ends the process."""
    if not isinstance(reason, SystemExit):
        return False
    import traceback

    frames = traceback.extract_tb(reason.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_PACKAGE)


def told_as(reason: BaseException) -> str:
    """An exception of another package as messages name it."""
    if isinstance(reason, SystemExit):
        return f"it ends the process (status {0 if reason.code is None else reason.code})"
    return f"{type(reason).__name__}: {reason}"


def frames_of(reason: BaseException) -> tuple[Note, ...]:
    """A note with the traceback of what another package raised, from its first frame on."""
    import traceback

    frames = traceback.extract_tb(reason.__traceback__)
    own = [at for at, frame in enumerate(frames) if not frame.filename.startswith((_PACKAGE, *_IMPORTING))]
    shown = "".join(traceback.format_list(frames[own[0] :] if own else frames)).rstrip()
    return (Note(f"this is where:\n{shown}"),) if own else ()


def load(point: EntryPoint, what: str, code: Code) -> Any:
    """The object that an entry point names. Raises DiagnosticError if it can't be loaded.

    `what` is what messages call it: "the pass".
    """
    name = f"{what} {point.name!r} ({point.value})"
    notes = (Note(f"it is of {package_of(point)}"),)
    module, _, attribute = point.value.partition("[")[0].strip().partition(":")
    words = [*module.strip().split("."), *(attribute.strip().split(".") if attribute else ())]
    if not all(word.isidentifier() for word in words):
        message = f"{name} can't be loaded: its entry point must be `module` or `module:name`"
        raise DiagnosticError([error(code, message, notes=notes)])
    with _told_if_slow(f"{name} of {package_of(point)} is still being imported"):
        return call_foreign(point.load, name, "can't be loaded", code, notes)


PATIENCE = 5.0
"""Seconds after which is said that a package is still being imported."""


@contextmanager
def _told_if_slow(text: str) -> Generator[None]:
    """Says on stderr, once, what goes on in the block when that has taken a while."""
    from threading import Timer

    timer = Timer(PATIENCE, _print_to_stderr, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print_to_stderr(text: str) -> None:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        print(in_one_line(text), file=sys.stderr, flush=True)


def load_family(point: EntryPoint, code: Code) -> None:
    """Imports a module that declares op types; if it fails, none of them is declared. Raises DiagnosticError."""
    before = frozenset(op_schemas())
    done = False
    try:
        load(point, "the op family", code)
        done = True
    finally:
        made = op_schemas().keys() - before
        if done:
            _packages.update(dict.fromkeys(made, f"{package_of(point)} ({point.value})"))
        else:
            undeclare(made)


def package_note(op_type: str) -> tuple[Note, ...]:
    """A note on whose an op type is, empty for those of this package and for undeclared ones."""
    schema = op_schemas().get(op_type)
    if schema is None or schema.is_built_in:
        return ()
    return (Note(f"the op type is of {_packages.get(op_type, f'the module {schema.module}')}"),)


def rule_error(op: Op, rule: str, what: str) -> DiagnosticError:
    """The error about a rule of another package for an op: `its shape rule gives str, not a dict`."""
    return DiagnosticError([at_op("op-family", f"its {rule} {what}", op, notes=package_note(op.type))])


def failed_rule(op: Op, rule: str, reason: BaseException) -> DiagnosticError:
    """The error about a rule of another package that raises `reason`, which is raised itself if it is a signal's."""
    if told_to_end(reason):
        raise reason
    notes = (*frames_of(reason), *package_note(op.type))
    return DiagnosticError([at_op("op-family", f"its {rule} fails: {told_as(reason)}", op, notes=notes)])
