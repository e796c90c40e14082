"""Fluid's own layout: the files of `save_persistables` and `load_persistables`, without a manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.cluster.checkpoint.api import scopes_of
from pstranspile.cluster.checkpoint.layout import Layout, Placed, layout_of
from pstranspile.cluster.checkpoint.manifest import TABLES, require_names, table_file
from pstranspile.cluster.checkpoint.state import State, assign, gather, require_machines
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors
from pstranspile.ir.model import Location, Module
from pstranspile.runtime.files.outputs import write_variables
from pstranspile.runtime.files.tensor_files import read_combined, read_selected_rows
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.values.encoding import decode_tensor, encode, end, most_bytes, opened, require_encodable


def save_persistables(
    machines: Any, job: Compiled | Module, folder: str | os.PathLike[str], filename: str | None = None
) -> None:
    """Writes the persistable variables of a job's source program whole, as Fluid reads them.

    One file for each, or with `filename` one file of all in the order of names. Tables lie in parts under
    `__lookup_table__`, one for each server. Variables that the servers alone keep (learning rate, counters, moments)
    are there too. Files that are there are replaced, none before all are written. Raises DiagnosticError.
    """
    layout = layout_of(job)
    state = gather(layout, scopes_of(machines))
    values = {name: value for name, value in state.values.items() if not layout.variables[name].optional}
    parts = {table_file(name, n): part for name, held in state.tables.items() for n, part in enumerate(held)}
    files: dict[str, list[str]] = {name: [name] for name in values} if filename is None else {filename: sorted(values)}
    require_names([*files, *parts], files if filename is None else (), str(folder))
    for name, value in {**values, **parts}.items():
        require_encodable(value, name, str(folder))
    pieces = {file: [p for name in names for p in encode(values[name])] for file, names in files.items()}
    write_variables(folder, {**pieces, **{file: list(encode(part)) for file, part in parts.items()}})


def load_persistables(
    machines: Any, job: Compiled | Module, folder: str | os.PathLike[str], filename: str | None = None
) -> None:
    """Sets the persistable variables of a job's machines from files in Fluid's layout, cut for its servers.

    Nothing is set before all is read and fits. A file of `recv_save` that repeats a value which every server has
    (a fault of Fluid's) is read as that value. Raises DiagnosticError.
    """
    layout, scopes = layout_of(job), scopes_of(machines)
    require_machines(layout, scopes)
    assign(layout, _read(layout, Path(folder), filename), scopes).carry_out(scopes)


def _read(layout: Layout, folder: Path, filename: str | None) -> State:
    wanted = [placed for placed in layout.variables.values() if not placed.optional]
    names = [placed.name for placed in wanted if not placed.table]
    state = State(place=str(folder))
    if filename is not None:
        state.values.update(read_combined(folder / filename, names))
    else:
        require_names(names, names, str(folder))
        state.files.update((name, str(folder / name)) for name in names)
        findings: list[Diagnostic] = []
        for name in names:
            try:
                state.values[name] = _read_whole(folder / name, layout.variables[name])
            except DiagnosticError as problem:
                findings += problem.diagnostics
        raise_errors(findings)
    for placed in wanted:
        if placed.table:
            state.tables[placed.name] = [read_selected_rows(file) for file in _table_files(folder, placed.name)]
    return state


def _read_whole(file: Path, placed: Placed) -> Value:
    with opened(file) as reader:
        if min(placed.shape, default=0) >= 0:
            reader.most = most_bytes(prod(placed.shape) * 8)
        value: Any = decode_tensor(reader)
        again: bytes = value.tobytes() if isinstance(value, np.ndarray) else b""
        for _ in placed.holders[1:]:
            if reader.left >= len(again) > 0:
                at = reader.at
                if reader.take(len(again), "the value, once more") != again:
                    reader.at = at
                    break
        end(reader)
    return value


def _table_files(folder: Path, table: str) -> Iterable[Path]:
    """The files of a table's parts, in order. Raises DiagnosticError unless there are some, without a gap."""
    name = re.compile(re.escape(table) + "_(0|[1-9][0-9]*)")
    place = folder / TABLES
    try:
        numbers = sorted(int(match[1]) for entry in os.listdir(place) if (match := name.fullmatch(entry)))
    except OSError as problem:
        message = f"can't be read: {problem.strerror}"
        raise DiagnosticError([error("checkpoint-table", message, Location(str(place)))]) from None
    if not numbers or numbers != list(range(len(numbers))):
        present = f"parts {', '.join(map(str, numbers))} only" if numbers else "no part"
        raise DiagnosticError([error("checkpoint-table", f"there is {present} of {table}", Location(str(place)))])
    return [folder / table_file(table, number) for number in numbers]
