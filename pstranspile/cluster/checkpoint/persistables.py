"""Fluid's own layout: the files of `save_persistables` and `load_persistables`, without a manifest."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Container, Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.cluster.checkpoint.api import scopes_of
from pstranspile.cluster.checkpoint.layout import Layout, VariableLayout, VariablePart, layout_of, trainer_variables
from pstranspile.cluster.checkpoint.manifest import TABLES, require_names, table_file
from pstranspile.cluster.checkpoint.state import State, assign, gather, require_machines
from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.job.modes import settings_of
from pstranspile.ir.attributes import AttrValue, Long, Longs, Strings
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors
from pstranspile.ir.model import Block, FrozenMap, Location, Module, Op, Program, TensorType, Var
from pstranspile.ir.types import VarKind
from pstranspile.ops.build import make_op
from pstranspile.runtime.files.outputs import write_variables
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.values.encoding import (
    decode_tensor,
    encode,
    end,
    most_bytes,
    open_reader,
    read_combined,
    read_selected_rows,
    require_encodable,
)

# Programs that save and load the variables of a cluster, made of the ops that Fluid uses for this.
#
# A trainer runs the one that saves: `save` for what it holds, `recv_save` for what it fetches from the servers, slice
# by slice into one file, `checkpoint_notify` for tables, which each server writes itself. A server runs the one that
# loads, before it serves.


def save_program(
    job: Compiled, folder: str, trainer: int = 0, names: Container[str] | None = None, *, served: bool | None = None
) -> Program:
    """What a trainer runs to save the variables of the source program into `folder`, all or those of some names.

    Every trainer may save the variables that it holds; trainer 0, or one that is called with `served`, also saves those
    that the servers hold. A variable of which several servers have a copy is fetched from the first (Fluid's file
    repeats it), and learning rates and counters that only servers have are saved too (Fluid loses them). Parameters
    come from the trainer in sync modes, as in Fluid, and from the servers in others, where the trainer's own may be
    old.
    """
    layout = layout_of(job)
    role = job.trainer(trainer)
    trainer_vars = trainer_variables(role)
    sync = settings_of(job.plan.mode).flags["sync_mode"]
    parameters = {p.name for p in job.plan.parameters} if sync else frozenset[str]()
    variables: dict[str, Var] = {}
    saves: list[Op] = []
    remote: list[Op] = []
    wanted = [placed for placed in _required_variables(layout) if names is None or placed.name in names]
    for placed in wanted:
        on_servers = not placed.table and placed.parts[0].machine.startswith("pserver")
        held = (role.name, placed.name) in {part[:2] for part in placed.holders}
        if on_servers and not (held and placed.name in parameters):
            remote.append(_recv_save(job, placed, folder))
        elif not placed.table:
            variables[placed.name] = trainer_vars[placed.name]._replace(parameter=None, location=None)
            path = posixpath.join(folder, placed.name)
            saves.append(make_op("save", {"X": [placed.name]}, {}, {"file_path": path}))
    if served or (served is None and trainer == 0):
        saves += remote
        saves += (_notify(job, placed, folder) for placed in wanted if placed.table)
    return _program(variables, saves)


def _required_variables(layout: Layout) -> Iterator[VariableLayout]:
    return (placed for placed in layout.variables.values() if not placed.optional)


def _recv_save(job: Compiled, placed: VariableLayout, folder: str) -> Op:
    attrs = {
        "trainer_id": 0,
        "dtype": placed.dtype.value,
        "shape": Longs(placed.shape),
        "slice_shapes": Strings(",".join(map(str, part.shape)) for part in placed.parts),
        "slice_varnames": Strings(f"{part.name}.slice.{k}" for k, part in enumerate(placed.parts)),
        "remote_varnames": Strings(part.name for part in placed.parts),
        "endpoints": Strings(_endpoint(job, part) for part in placed.parts),
        "file_path": posixpath.join(folder, placed.name),
    }
    return make_op("recv_save", {}, {}, attrs)


def _endpoint(job: Compiled, part: VariablePart) -> str:
    servers = {f"pserver_{number}": endpoint for number, endpoint in enumerate(job.plan.pservers)}
    return servers[part.machine]


def _notify(job: Compiled, table: VariableLayout, folder: str) -> Op:
    attrs = {
        "epmap": Strings(_endpoint(job, part) for part in table.parts),
        "dir": posixpath.join(folder, TABLES),
        "lookup_table": table.name,
    }
    return make_op("checkpoint_notify", {}, {}, attrs)


def load_program(job: Compiled, machine: str, folder: str, names: Collection[str] | None = None) -> Program:
    """What the server at an endpoint runs to load its variables from `folder`, or those of `names`.

    `seek` and `shape` of a `load` are the slice's place in the whole variable, in elements. Parts of tables are
    loaded too (Fluid leaves them out), by as many servers as saved them. `machine` may also be a role's name: a
    trainer loads what it keeps for itself, which in Fluid nobody does. Raises KeyError for an unknown machine.
    """
    layout = layout_of(job)
    role = job.pserver(machine) if machine in job.plan.pservers else job.roles()[machine]
    declared = trainer_variables(role)
    variables: dict[str, Var] = {}
    ops: list[Op] = []
    for placed in _required_variables(layout):
        if names is not None and placed.name not in names:
            continue
        for part in placed.holders:
            if part.machine != role.name:
                continue
            var = declared[part.name]
            attrs: dict[str, AttrValue] = {"file_path": posixpath.join(folder, placed.name)}
            if placed.table:
                number = [p.machine for p in placed.parts].index(part.machine)
                attrs = {"file_path": posixpath.join(folder, table_file(placed.name, number))}
                var = var._replace(kind=VarKind.SELECTED_ROWS)
            elif part.shape != placed.shape:
                attrs |= {"seek": Long(part.offset), "shape": Longs(part.shape)}
                var = var._replace(tensor=TensorType(placed.dtype, part.shape))
            variables[part.name] = var._replace(persistable=True, parameter=None, location=None)
            ops.append(make_op("load", {}, {"Out": [part.name]}, attrs))
    return _program(variables, ops)


def _program(variables: dict[str, Var], ops: list[Op]) -> Program:
    return Program((Block(FrozenMap(variables), tuple(ops)),))


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


def _read_whole(file: Path, placed: VariableLayout) -> Value:
    with open_reader(file) as reader:
        if min(placed.shape, default=0) >= 0:
            reader.begin(max_field_bytes=most_bytes(prod(placed.shape) * 8))
        value: Any = decode_tensor(reader)
        again: bytes = value.tobytes() if isinstance(value, np.ndarray) else b""
        for _ in placed.holders[1:]:
            if reader.bytes_left >= len(again) > 0:
                at = reader.position
                if reader.take(len(again), "the value, once more") != again:
                    reader.go_back(at)
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
