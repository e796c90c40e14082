"""Arrays by name in `.npz` files, and initial values of variables."""

from __future__ import annotations

import io
import lzma
import os
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import (
    MAX_FINDINGS,
    Diagnostic,
    DiagnosticError,
    error,
    first_findings,
    raise_errors,
    warning,
)
from pstranspile.ir.model import EMPTY, Location, Program, Var
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import ARRAYS, SAVED, beginning, kind_of, open_regular, reason_for, require_local
from pstranspile.ir.text.literals import declared_here
from pstranspile.runtime.run.feeds import declared_type, mismatch, near, numbers_of
from pstranspile.runtime.values import NUMPY_TYPES, SelectedRows


def _problem(file: str, message: str) -> Diagnostic:
    return error("run-file-unusable", message, Location(file))


def _refuse(file: str, message: str) -> DiagnosticError:
    return DiagnosticError([_problem(file, message)])


DAMAGE = (
    *(ValueError, TypeError, ArithmeticError, EOFError, LookupError, RuntimeError, SyntaxError, AttributeError),
    *(MemoryError, zipfile.BadZipFile, zlib.error, struct.error, lzma.LZMAError, tokenize.TokenError),
)
"""The exceptions that reading a damaged archive raises, among them RuntimeError for an archive that seems to be
encrypted or of a later version, and TokenError for the header of an array whose brackets never end.
"""


_ALWAYS = 1 << 30
"""The bytes that a compressed archive may always expand to."""

_TIMES = 64
"""The multiple of its size that a compressed archive may expand to, if that is more."""


class ArrayFile(dict[str, Any]):
    """Arrays by name, with the name of their file ("": none)."""

    def __init__(self, arrays: Mapping[str, Any], file: str):
        super().__init__(arrays)
        self.file = file


def place_of(given: object) -> Location | None:
    """The file that arrays come from, as the location of messages about them; None if they come from no file."""
    return Location(given.file) if isinstance(given, ArrayFile) and given.file else None


def read_arrays(
    path: str | os.PathLike[str], chosen: Callable[[Sequence[str]], Iterable[str]] | None = None
) -> ArrayFile:
    """The arrays of an `.npz` file by name: all, or only those whose names `chosen` selects. Raises DiagnosticError
    when it can't be read.

    It also raises, before anything is expanded, when a compressed archive expands to more than 1 GiB and more than 64
    times its size, or when an array is not as large as what the archive holds of it, or is there several times.
    """
    file = os.fspath(path)
    try:
        require_local(file)
        with open_regular(file) as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise _refuse(file, "a single array (.npy); several arrays by name (.npz) are needed")
            with loaded as archive:
                if kind_of(beginning(file), file) == SAVED:  # an archive, too, but with a pickle
                    raise _refuse(file, f"not an .npz file: {SAVED}")
                _require_sizes(file, archive.zip)
                names = archive.files if chosen is None else chosen(archive.files)
                return ArrayFile({name: _array(file, archive, name) for name in names}, file)
    except OSError as problem:
        raise _refuse(file, f"the file can't be read: {reason_for(problem, file)}") from None
    except DAMAGE as problem:
        # Numpy takes any file that is no archive for a pickle and explains how to load one. That would mislead.
        reason = "" if "pickle" in str(problem) else f": {_reason(problem)}"
        kind = kind_of(beginning(file), file)
        if kind is not None and kind != ARRAYS:
            raise _refuse(file, f"not an .npz file: {kind}") from None
        raise _refuse(file, f"not an .npz file, or a damaged one{reason}") from None


def names_in(path: str) -> list[str]:
    """The names of the arrays of an `.npz` file, in its order; none if it can't be read."""
    try:
        with open_regular(path) as stream, zipfile.ZipFile(stream) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except (OSError, *DAMAGE):
        return []


def odd_arrays(arrays: ArrayFile) -> list[Diagnostic]:
    """Warnings about each array of a feed that holds NaN or infinity, or that has no rows in a step, with the first
    step and row, counted from 1.
    """
    result: list[Diagnostic] = []
    empty: dict[str, list[int]] = {}
    place = Location(arrays.file)
    for name, array in arrays.items():
        whole = "|" not in name and f"{name}@LENS" not in arrays
        if whole and not name.endswith("@LENS") and array.ndim > 1 and len(array) and not array.shape[1]:
            empty[name] = [1]
        elif (match := _STEP_OF.match(name)) and array.ndim and not len(arrays.get(f"{name}|0", array)):
            empty.setdefault(name[match.end() :], []).append(int(match[1]))
        if array.dtype.kind != "f" or not array.size or (np.isfinite(array.min()) and np.isfinite(array.max())):
            continue
        rows = array.ndim > 2 and whole
        kinds: tuple[tuple[Code, str, Any], ...] = (
            ("data-nan", "NaN", np.isnan(array)),
            ("data-infinite", "infinite", np.isinf(array)),
        )
        for code, what, odd in kinds:
            places = np.argwhere(odd.reshape(*array.shape[: 2 if rows else 1], -1).any(axis=-1))
            if len(places):
                first = f"step {places[0][0] + 1}, row {places[0][1] + 1}" if rows else f"row {places[0][0] + 1}"
                more = f" (and in {len(places) - 1:,} more)" if len(places) > 1 else ""
                result.append(warning(code, f"the array {name} is {what} in {first}{more}", place))
    for name, steps in empty.items():
        where = "in any step" if name in arrays else f"in step {min(steps)}"
        more = f" (and in {len(steps) - 1:,} more)" if len(steps) > 1 else ""
        result.append(warning("data-empty", f"the array {name} has no rows {where}{more}, which trains nothing", place))
    return result


_STEP_OF = Pattern(r"([0-9]{1,9})\|(?!.*\|)")
"""The beginning of the name of an array that holds the value of one step."""


def not_finite(values: Mapping[str, Any], program: Program, file: str) -> list[Diagnostic]:
    """A warning for each variable of a program whose value holds NaN, and for each parameter that holds infinity.
    (Other variables may hold infinity on purpose, such as a mask that is added to scores.) `file` is the file of the
    values ("": they came with the program).
    """
    parameters = {var.name for var in program.parameters()}
    result: list[Diagnostic] = []
    for name, value in values.items():
        numbers = numbers_of(value)
        if numbers is None or numbers.dtype.kind != "f" or not numbers.size:
            continue
        with np.errstate(all="ignore"):
            if np.isfinite(numbers.sum()):  # the sum of finite numbers may be infinite, too
                continue
        counts = {"NaN": int(np.isnan(numbers).sum())}
        if name in parameters:
            counts["infinite"] = int(np.isinf(numbers).sum())
        if any(counts.values()):
            many = numbers.size > 1
            wrong = [f"{what} in {count:,}" if many else what for what, count in counts.items() if count]
            message = f"{name} is {' and '.join(wrong)}{f' of {numbers.size:,} numbers' if many else ''}"
            result.append(warning("values-not-finite", message, Location(file) if file else None))
    return result


def _is_combined(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like a tensor that Fluid saved: with version 0."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) == bytes(4)
    except OSError:
        return False


def array_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(dims, whether elements are stored column by column, element type) from the header of a `.npy` file.

    Raises one of `DAMAGE` if the header can't be read.
    """
    if np.lib.format.read_magic(stream) == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def _require_sizes(file: str, archive: zipfile.ZipFile) -> None:
    """Raises DiagnosticError for an archive whose arrays are too large according to its headers."""
    members = archive.infolist()
    times = Counter(member.filename.removesuffix(".npy") for member in members)
    if len(times) != len(members):
        raise _refuse(file, f"it holds {times.most_common(1)[0][0]} several times")
    total, size = sum(member.file_size for member in members), os.path.getsize(file)
    if total > max(_ALWAYS, _TIMES * size):
        message = f"it has {size} bytes, and would expand to {total}, more than {_TIMES} times as many"
        raise _refuse(file, f"{message}; an archive that is not compressed (np.savez) is read whatever its size")
    for member in members:
        with archive.open(member) as stream:
            try:
                shape, _, dtype = array_header(stream)
            except DAMAGE:
                continue  # the reader reports this
            held = member.file_size - stream.tell()
        claimed = prod(shape) * dtype.itemsize
        if claimed != held and not dtype.hasobject:
            name = member.filename.removesuffix(".npy")
            raise _refuse(file, f"the array {name} says that it has {claimed} bytes; the file holds {held}")


def fitting(arrays: Mapping[str, Any], path: str, program: Program, startup: Program | None = None) -> dict[str, Any]:
    """The values of persistable variables in a file, converted to the form in which they are set.

    A variable that `startup` declares with other dims (as Fluid does with counters of `auc`) may have these dims.
    Integers of fewer bits than declared, which ops of Fluid accept (the tree of `tdm_sampler`), are converted to the
    declared type. Raises DiagnosticError for every value that does not fit, or whose variable the program does not
    declare.
    """
    result = dict(arrays)
    startup_vars: Mapping[str, Var] = startup.main_block.vars if startup is not None else EMPTY
    variables = {name: var for name, var in program.main_block.vars.items() if var.persistable}
    findings: list[Diagnostic] = []
    for name, given in arrays.items():
        result[name] = array = _widen_integers(variables[name], given) if name in variables else given
        message, notes = "", ()
        if name not in variables:
            message = f"the program declares no persistable variable {name}{near(name, variables)}"
        elif problem := mismatch(variables[name], array):
            if name in startup_vars and startup_vars[name].persistable and not mismatch(startup_vars[name], array):
                continue
            reason = problem.replace("is fed", "the file holds")
            message = f"{name} is declared {declared_type(variables[name])}, but {reason}"
            notes = declared_here(variables[name])
        findings += [_problem(path, message)._replace(notes=notes)] if message else []
        if len(findings) == MAX_FINDINGS:
            break
    raise_errors(first_findings(findings))
    return result


def _widen_integers(var: Var, value: Any) -> Any:
    """Integers of fewer bits than a variable is declared to hold, converted to the declared type; other values
    unchanged.
    """
    if not isinstance(value, np.ndarray) or var.tensor is None:
        return value
    here, wanted = np.dtype(value.dtype), np.dtype(NUMPY_TYPES[var.tensor.dtype])
    return value.astype(wanted) if here.kind == wanted.kind == "i" and np.can_cast(here, wanted) else value


def read_initial(path: str | os.PathLike[str], program: Program) -> dict[str, Any]:
    """Initial values by variable: the arrays of an `.npz` file, or the files that `save_persistables` of Fluid wrote.

    Of results that `run --save` wrote, only the parameters are read; large tables are the rows that exist. In a folder
    of Fluid's, a file is named after its variable; a `/` in the name makes a folder. One combined file (its `filename`)
    holds the program's persistable variables in alphabetical order of their names, without the names. Raises
    DiagnosticError when something can't be read.
    """
    from pstranspile.runtime.values.encoding import read_combined, read_tensor

    if os.path.isfile(os.path.join(path, "plan.json")):
        raise _refuse(os.fspath(path), f"it is a folder of compiled programs, without values; {INITIAL} are taken")
    if not os.path.isdir(path):
        if not _is_combined(path):
            return _parameters(read_arrays(path, lambda names: _initial_names(names, program)), program)
        held = program.main_block.vars.values()
        return dict(read_combined(path, sorted(v.name for v in held if v.persistable and v.tensor is not None)))

    findings: list[Diagnostic] = []
    values: dict[str, Any] = {}
    wrong = ""
    found = False
    for file in _files_below(path):
        found = True
        if len(findings) >= _MOST_UNREAD:  # another folder, which may be of any size
            break
        try:
            values[os.path.relpath(file, path).replace(os.sep, "/")] = read_tensor(file)
        except DiagnosticError as problem:
            findings += problem.diagnostics
            kind = None if wrong or _is_combined(file) else kind_of(beginning(file), file)
            wrong = f"{os.path.relpath(file, path)} is {kind.description}" if kind is not None else wrong
    if not found:
        raise _refuse(os.fspath(path), "the folder is empty; it should hold a file for each variable")
    if wrong and not values:
        raise _refuse(os.fspath(path), f"it is no folder of values: {wrong}; {INITIAL} are taken")
    raise_errors(first_findings(findings))
    return values


_MOST_UNREAD = 20
"""The most files of a folder of values that are looked at after they could not be read."""


def _files_below(path: str | os.PathLike[str]) -> Iterator[str]:
    """The files in a folder and the folders in it, those of the outer folder first, as they are found."""
    for at, folders, names in os.walk(path):
        folders.sort()
        yield from (os.path.join(at, name) for name in sorted(names) if name not in PROGRAM_FILES)


INITIAL = "an .npz file of arrays by name, what --save wrote, a checkpoint and a folder of Fluid's save_persistables"
"""The kinds of files that may hold initial values, for messages."""


PROGRAM_FILES = ("__model__", "__model__.main_program")
"""The files in a folder of a model that hold its program rather than a variable."""

PARAMETER = "param/"
"""The prefix of the names of parameters among results."""

ROWS = "@ROWS"
"""The suffix of the name under which results hold the ids of a parameter's rows."""

_FETCHED = Pattern(r"([^/]+/)*step/.+", re.DOTALL)
"""Matches the names of fetched values in a file of results: `step/loss`, `trainer_0/step/3|loss`,
`generator/step/loss`.
"""


def _initial_names(names: Sequence[str], program: Program) -> list[str]:
    """The names of the arrays to start from: of a file of results, all except fetched values; of any
    other file, all.
    """
    variables = program.main_block.vars
    named = [name for name in names if name.startswith(PARAMETER)]
    if not named or any(name in variables for name in named):
        return [*names]
    return [n for n in names if n.startswith(PARAMETER) or n in variables or not _FETCHED.fullmatch(n)]


def _parameters(arrays: ArrayFile, program: Program) -> dict[str, Any]:
    """The parameters in a file of results, by variable; the arrays of any other file unchanged."""
    variables = program.main_block.vars
    named = {name: name.removeprefix(PARAMETER) for name in arrays if name.startswith(PARAMETER)}
    if not named or any(name in variables for name in named):
        return arrays
    result: dict[str, Any] = {}
    for name, value in arrays.items():
        own_name = named.get(name, name)
        if name in named and own_name.endswith(ROWS) and name.removesuffix(ROWS) in arrays:
            continue
        ids = arrays.get(f"{name}{ROWS}") if name in named else None
        if ids is not None:
            height = (
                variables[own_name].shape[0]
                if own_name in variables and variables[own_name].shape
                else int(ids.max(initial=0)) + 1
            )
            result[own_name] = SelectedRows(ids, value, height)
        else:
            result[own_name] = value
    return result


def _array(file: str, archive: Mapping[str, Any], name: str) -> Any:
    try:
        with warnings.catch_warnings():  # headers written by Python 2, which are read like others
            warnings.simplefilter("ignore", UserWarning)
            value = archive[name]
        if not isinstance(value, np.ndarray):  # the bytes of a file except for the first ones of an array
            raise _refuse(file, f"{name} is no array")
        return value
    except DAMAGE as problem:
        held = (
            "it holds Python objects, not numbers"
            if "Object arrays" in str(problem)
            else f"damaged: {_reason(problem)}"
        )
        raise _refuse(file, f"the array {name} can't be read, {held}") from None


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Writes an `.npz` file; the same arrays give the same bytes.

    Raises DiagnosticError when it can't be written, and for arrays of Python objects, which could not be read again.
    """
    from pstranspile.runtime.files.outputs import write_output

    write_output(path, arrays_as_bytes(arrays, os.fspath(path)))


def arrays_as_bytes(arrays: Mapping[str, Any], path: str) -> bytes:
    """The content of an `.npz` file, which error messages call `path`. Raises DiagnosticError for arrays of Python
    objects.
    """
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            message = f"{name} holds Python objects, which an .npz file can't: it holds numbers"
            raise DiagnosticError([error("run-save-impossible", message, Location(path))])
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


_MOST_SHOWN = 160
"""The characters of an error's text that a message repeats: texts of damaged files stand in it."""


def _reason(problem: Exception) -> str:
    """What numpy says of a damaged file: the first line, as further ones say how to read files that are not trusted."""
    line = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 3]}..."
