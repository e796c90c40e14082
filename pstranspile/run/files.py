"""Feeds, initial values and results as `.npz` files.

Feeds hold an array per input with a leading step axis. A ragged input is the concatenated rows of all steps, and beside
it `<feed>@LENS`, the lengths of the sequences: [steps, batch].
"""

from __future__ import annotations

import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import Location, Program, Var
from pstranspile.ir.types import VarKind
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Value
from pstranspile.ops.values import LoDTensor, SelectedRows
from pstranspile.run import codes
from pstranspile.run.describe import describe
from pstranspile.run.feeds import declared, mismatch, mismatch_of_array, near

np = lazy_import("numpy")

LENGTHS = "@LENS"
"""Ends the name of the array that holds the lengths of a ragged input's sequences."""


def _problem(file: str, message: str) -> Diagnostic:
    return error(codes.FILE_UNUSABLE, message, Location(file))


def _refuse(file: str, message: str) -> DiagnosticError:
    return DiagnosticError([_problem(file, message)])


_DAMAGE = (
    *(ValueError, TypeError, ArithmeticError, EOFError, LookupError, RuntimeError, SyntaxError, AttributeError),
    *(MemoryError, zipfile.BadZipFile, zlib.error, struct.error, lzma.LZMAError),
)
"""What reading a damaged archive raises: RuntimeError, too, for what is taken as encrypted or as of a later version."""


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of an `.npz` file by name. Raises DiagnosticError when it can't be read."""
    file = os.fspath(path)
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise _refuse(file, "a single array (.npy); several arrays by name (.npz) are needed")
        with loaded as archive:
            return {name: _array(file, archive, name) for name in archive.files}
    except OSError as problem:
        raise _refuse(file, f"the file can't be read: {problem.strerror or problem}") from None
    except _DAMAGE as problem:
        # what is no archive numpy takes for a pickle, and tells how to load it: not a thing to tell here
        reason = "" if "pickle" in str(problem) else f": {problem}"
        raise _refuse(file, f"not an .npz file, or a damaged one{reason}") from None


def read_initial(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Values to start from, by variable: the arrays of an `.npz` file, or the files of a folder that Fluid saved.

    In such a folder, as `save_persistables` makes it, a file is called like its variable; a `/` in the name is a
    folder. Raises DiagnosticError when something can't be read.
    """
    if not os.path.isdir(path):
        return read_arrays(path)
    from pstranspile.interop.tensor_files import read_tensor

    files = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names]
    if not files:
        raise _refuse(os.fspath(path), "the folder is empty; it should hold a file for each variable")
    found: list[Diagnostic] = []
    values: dict[str, Any] = {}
    for file in sorted(files):
        try:
            values[os.path.relpath(file, path).replace(os.sep, "/")] = read_tensor(file)
        except DiagnosticError as problem:
            found += problem.diagnostics
    if found:
        raise DiagnosticError(found)
    return values


def _array(file: str, archive: Mapping[str, Any], name: str) -> Any:
    try:
        return archive[name]
    except _DAMAGE as problem:
        held = "it holds Python objects, not numbers" if "Object arrays" in str(problem) else f"damaged: {problem}"
        raise _refuse(file, f"the array {name} can't be read, {held}") from None


class Feeds:
    """The feeds of all steps. `steps` is how many there are, None if nothing is fed."""

    def __init__(self, program: Program, arrays: Mapping[str, Any], file: str):
        self._file = file
        self._arrays: dict[str, Any] = {}
        self._ragged: dict[str, tuple[Any, Any]] = {}
        variables = program.main_block.vars
        found: list[Diagnostic] = []
        counts: dict[str, int] = {}
        for name, array in arrays.items():
            if name.endswith(LENGTHS) and name[: -len(LENGTHS)] in arrays:
                continue
            whole = name.removesuffix(LENGTHS)
            if whole != name and whole in variables:
                found.append(_problem(file, f"{name} holds lengths of sequences, but the file has no {whole}"))
            elif name not in variables:
                found.append(_problem(file, f"the program declares no variable {name}{near(name, variables)}"))
            elif f"{name}{LENGTHS}" in arrays:
                found += self._add_ragged(variables[name], array, arrays[f"{name}{LENGTHS}"], counts)
            else:
                found += self._add(variables[name], array, counts)
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{name} {count}" for name, count in counts.items())
            found.append(_problem(file, f"the arrays have different numbers of steps: {told}"))
        if found:
            raise DiagnosticError(found)
        self.steps = next(iter(counts.values()), None)

    def _add(self, var: Var, array: Any, counts: dict[str, int]) -> Iterable[Diagnostic]:
        if not array.ndim:
            yield _problem(self._file, f"{var.name} has no leading step axis")
            return
        if var.kind is VarKind.LOD_TENSOR and var.tensor is not None and var.tensor.lod_level:
            wanted = (
                f"the file needs {var.name}{LENGTHS}, the lengths of its sequences: [steps, batch]"
                if var.tensor.lod_level == 1
                else "an .npz file can't hold sequences of sequences; only a run from Python can be fed with them"
            )
            yield _problem(self._file, f"{var.name} is declared {declared(var)}: {wanted}")
            return
        counts[var.name] = len(array)
        self._arrays[var.name] = array
        if len(array):
            problem = mismatch(var, array[0])
            if problem:
                yield _problem(self._file, f"{var.name} is declared {declared(var)}, but in each step {problem}")

    def _add_ragged(self, var: Var, rows: Any, lengths: Any, counts: dict[str, int]) -> Iterable[Diagnostic]:
        if var.tensor is None or var.tensor.lod_level != 1:
            yield _problem(self._file, f"{var.name} is declared {declared(var)}, it can't have {var.name}{LENGTHS}")
        elif lengths.ndim != 2 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
            yield _problem(
                self._file, f"{var.name}{LENGTHS} must hold lengths: whole numbers [steps, batch], none below 0"
            )
        elif not rows.ndim or int(lengths.sum()) != len(rows):
            yield _problem(self._file, f"{var.name} is {describe(rows)}, but its lengths add up to {lengths.sum()}")
        elif problem := mismatch_of_array(var, rows):
            yield _problem(self._file, f"{var.name} is declared {declared(var)}, but {problem}")
        else:
            counts[var.name] = len(lengths)
            ends = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))])
            offsets = np.concatenate([np.zeros((len(lengths), 1), "int64"), np.cumsum(lengths, axis=1)], axis=1)
            self._ragged[var.name] = (rows, [(int(a), int(b), row.tolist()) for a, b, row in _spans(ends, offsets)])

    def step(self, number: int) -> dict[str, Value]:
        """The feed of a step, counted from 0."""
        feed: dict[str, Value] = {name: array[number] for name, array in self._arrays.items()}
        for name, (rows, spans) in self._ragged.items():
            start, stop, offsets = spans[number]
            feed[name] = LoDTensor(rows[start:stop], [offsets])
        return feed

    def require(self, steps: int) -> None:
        """Raises DiagnosticError if there are fewer steps."""
        if self.steps is not None and self.steps < steps:
            raise _refuse(self._file, f"the file feeds {self.steps} steps, {steps} are asked for")


def _spans(ends: Any, offsets: Any) -> Iterable[tuple[Any, Any, Any]]:
    return zip(ends[:-1], ends[1:], offsets, strict=True)


def initial_values(
    program: Program, arrays: Mapping[str, Any], file: str, startup: Program | None = None
) -> dict[str, Any]:
    """The arrays for persistable variables. Raises DiagnosticError for every one that doesn't fit.

    One that `startup` declares with other dims (as Fluid does with counters of `auc`) may have those.
    """
    made: Mapping[str, Var] = startup.main_block.vars if startup is not None else EMPTY
    variables = {name: var for name, var in program.main_block.vars.items() if var.persistable}
    found: list[Diagnostic] = []
    for name, array in arrays.items():
        if name not in variables:
            found.append(_problem(file, f"the program declares no persistable variable {name}{near(name, variables)}"))
        elif problem := mismatch(variables[name], array):
            if name in made and made[name].persistable and not mismatch(made[name], array):
                continue
            told = problem.replace("is fed", "the file holds")
            found.append(_problem(file, f"{name} is declared {declared(variables[name])}, but {told}"))
    if found:
        raise DiagnosticError(found)
    return dict(arrays)


def stacked(name: str, values: Sequence[Value]) -> dict[str, Any]:
    """The values a variable had in every step as arrays for a file: `step/<name>`, steps first.

    Ragged ones are the concatenated rows, with `step/<name>@LENS`. Raises DiagnosticError for what has no such form.
    """
    key = f"step/{name}"
    if values and all(isinstance(value, LoDTensor) for value in values):
        if any(len(value.lod) != 1 for value in values) or len({len(value.lod[0]) for value in values}) != 1:
            raise DiagnosticError(
                [error(codes.SAVE_IMPOSSIBLE, f"{name} has other numbers of sequences in some steps")]
            )
        lengths = np.stack([np.diff(value.lod[0]) for value in values])
        return {key: np.concatenate([value.data for value in values]), f"{key}{LENGTHS}": lengths}
    for value in values:
        if not isinstance(value, np.ndarray):
            what = "sparse rows" if isinstance(value, SelectedRows) else describe(value)
            raise DiagnosticError([error(codes.SAVE_IMPOSSIBLE, f"{name} holds {what}, which an .npz file can't")])
    if len({value.shape for value in values}) > 1:
        told = ", ".join(dict.fromkeys(describe(value) for value in values))
        raise DiagnosticError([error(codes.SAVE_IMPOSSIBLE, f"{name} has other dims in some steps: {told}")])
    return {key: np.stack(values) if values else np.zeros((0,), "float32")}


def npz_bytes(arrays: Mapping[str, Any]) -> bytes:
    """An `.npz` file with these arrays; the same arrays give the same bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()
