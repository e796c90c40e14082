"""The state of a job: collected from its machines, whose parts are merged into whole variables, and cut again for
others.

Of distributed lookup tables, the rows that servers hold by id modulo their number are merged into whole tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from pstranspile.cluster.checkpoint.layout import Layout, VariableLayout, VariablePart
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors
from pstranspile.ir.model import Location
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ir.text.literals import var_text
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.large.forms import (
    TablePart,
    combine_parts,
    is_table,
    part_of_rows,
    rows_beside,
    table_with,
    whole_in,
)
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor, SelectedRows


def merge_table_parts(name: str, parts: Sequence[SelectedRows]) -> SelectedRows:
    """All rows of a table, in the order of ids; the height is the sum of the parts' heights.

    Raises DiagnosticError (`checkpoint-table`) if an id is on two servers, or on one that it does not belong to.
    """
    for number, part in enumerate(parts):
        strange = part.rows[part.rows % len(parts) != number]
        if len(strange):
            message = f"{name}: id {int(strange[0])} is in part {number} of {len(parts)}, where it does not belong"
            raise DiagnosticError([error("checkpoint-table", message)])
    rows = np.concatenate([part.rows for part in parts])
    values = np.concatenate([part.value[: len(part.rows)] for part in parts])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    twice = rows[1:][rows[1:] == rows[:-1]]
    if len(twice):
        raise DiagnosticError([error("checkpoint-table", f"{name}: id {int(twice[0])} is there twice")])
    return SelectedRows(rows, values[order], sum(part.height for part in parts))


def shared_out(table: SelectedRows, servers: int) -> Iterator[SelectedRows]:
    """Yields the part of each server; heights differ by one at most, the first servers having the larger ones."""
    for number in range(servers):
        mine = table.rows % servers == number
        height = table.height // servers + (number < table.height % servers)
        yield SelectedRows(table.rows[mine], table.value[mine], height)


def with_room(part: SelectedRows, room: SelectedRows) -> SelectedRows:
    """A part with the height of `room`, capacity for as many rows, and the initial values that `room` has for further
    rows.

    A table that grows takes the next of these values for an id that it meets for the first time.
    """
    count = len(part.rows)
    return SelectedRows(part.rows, np.concatenate([part.value[:count], room.value[count:]]), int(room.height))


def dense(table: SelectedRows, height: int) -> Array:
    """All rows of a table from id 0 on; zeros for ids that were never looked up, as when testing."""
    whole = np.zeros((height, *table.value.shape[1:]), table.value.dtype)
    known = table.rows < height
    whole[table.rows[known]] = table.value[: len(table.rows)][known]
    return whole


Scopes: TypeAlias = Mapping[str, MutableMapping[str, Value]]
"""The variables of each machine by role name (`pserver_0`, `trainer_1`)."""


Memory: TypeAlias = Mapping[str, Mapping[str, Array]]
"""The state of machines besides their variables: arrays by name, by role name."""


class Copy(NamedTuple):
    """A machine's own value of a variable, where it differs from the whole variable."""

    part: VariablePart
    origin: str
    value: Value


@dataclass
class State:
    """The whole state of a job: whole variables, values of single machines that differ from them, parts of tables,
    contents of large tables, and the state of machines besides variables.

    `servers` says whose servers the copies belong to (`Layout.servers`); `files` has the file that each variable was
    read from, for messages, and `place` the checkpoint.
    """

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    copies: list[Copy] = field(default_factory=list[Copy])
    tables: dict[str, list[SelectedRows]] = field(default_factory=dict[str, list[SelectedRows]])
    large: dict[str, list[TablePart]] = field(default_factory=dict[str, list[TablePart]])
    memory: Memory = field(default_factory=dict[str, Mapping[str, Array]])
    servers: str = ""
    files: dict[str, str] = field(default_factory=dict[str, str])
    place: str = ""

    def location(self, name: str) -> Location | None:
        """The file that a variable was read from."""
        place = self.files.get(name, self.place)
        return Location(place) if place else None


# Collecting the state from the machines


def gather(layout: Layout, scopes: Scopes, memory: Memory | None = None) -> State:
    """The state of a running job, whose machines have `memory` besides.

    Raises DiagnosticError for every variable whose value is missing or does not fit. The values are copies, except
    large tables, which are shared with the scopes.
    """
    require_machines(layout, scopes)
    state = State(servers=layout.servers, memory=memory or {})
    findings: list[Diagnostic] = []
    for placed in layout.variables.values():
        values_by_part = _held_values(placed, scopes)
        if values_by_part and all(map(is_table, values_by_part.values())):
            width = max(placed.shape[-1], 1)
            width = 0 if takes_any_id(placed.shape) else width
            starts = {part: part.offset // width if width else 0 for part in values_by_part}
            state.large[placed.name] = [TablePart(starts[part], value) for part, value in values_by_part.items()]
            continue
        if values_by_part and all(isinstance(value, TableState) for value in values_by_part.values()):
            continue  # the large table contains it
        if any(part not in values_by_part for part in placed.parts):
            continue
        problems = [problem for part, value in values_by_part.items() if (problem := _misfit(placed, part, value))]
        findings += problems
        if not problems:
            _take(state, placed, values_by_part)
    raise_errors(findings)
    return state


def values_held(placed: VariableLayout, scopes: Scopes) -> dict[VariablePart, Value]:
    """The values of a variable by its holders, not copied; of large tables all rows.

    Raises DiagnosticError as `gather` does.
    """
    held = {part: whole_in(value, scopes[part.machine]) for part, value in _held_values(placed, scopes).items()}
    raise_errors(problem for part, value in held.items() if (problem := _misfit(placed, part, value)))
    return held


def whole_of(placed: VariableLayout, held: Mapping[VariablePart, Value]) -> Value:
    """The whole value of a variable other than a table: its parts joined, or else its first holder's value; None if
    there is none.

    It is not a copy if it is a single machine's value.
    """
    if any(part not in held for part in placed.parts):
        return None
    if len(placed.parts) < 2:
        return next((held[part] for part in placed.parts or held), None)
    whole = np.empty(prod(placed.shape), np.asarray(held[placed.parts[0]]).dtype)
    for part in placed.parts:
        whole[part.offset : part.offset + prod(part.shape)] = np.asarray(held[part]).reshape(-1)
    return whole.reshape(placed.shape)


def _held_values(placed: VariableLayout, scopes: Scopes) -> dict[VariablePart, Value]:
    """The values of a variable by its holders, without optional ones that have none."""
    held = {part: scopes[part.machine].get(part.name) for part in placed.holders}
    return {part: value for part, value in held.items() if value is not None} if placed.optional else held


def require_machines(layout: Layout, scopes: Scopes) -> None:
    """Raises DiagnosticError unless `scopes` has exactly the machines of the job."""
    missing = [name for name in layout.machines if name not in scopes]
    more = [name for name in scopes if name not in layout.machines]
    if missing or more:
        text = "there is no machine " + ", ".join(missing) if missing else "the job has no machine " + ", ".join(more)
        raise DiagnosticError([error("checkpoint-place", text)])


def _take(state: State, placed: VariableLayout, held: Mapping[VariablePart, Value]) -> None:
    if placed.table:
        state.tables[placed.name] = [own_copy(value) for value in held.values()]
        return
    whole: Value = None
    if placed.parts:
        whole = whole_of(placed, held)
        whole = state.values[placed.name] = own_copy(whole) if len(placed.parts) == 1 else whole
    for part in placed.other_parts:
        value = held.get(part)
        if value is not None and not (placed.parts and bitwise_equal(value, part_of(placed, part, whole))):
            state.copies.append(Copy(part, placed.name, own_copy(value)))


def _misfit(placed: VariableLayout, part: VariablePart, value: Value) -> Diagnostic | None:
    where = f"{part.name} on {part.machine}"
    reason = "has no value yet" if value is None else misfit(placed, part, value)
    if not reason:
        return None
    return error("checkpoint-state", f"{where} {reason}", placed.declaration, focus=var_text(placed.name))


def misfit(placed: VariableLayout, part: VariablePart, value: Value) -> str:
    """The reason why a value can't be that of a part; empty if it can."""
    if placed.table:
        if not isinstance(value, SelectedRows):
            return "does not hold the sparse rows of a table"
        data, dims = value.value, placed.shape[1:]
        fits = tuple(data.shape[1:]) == dims and len(data) >= len(value.rows)
    else:
        data = value.data if isinstance(value, LoDTensor) else value
        if not isinstance(data, np.ndarray):
            return "holds no tensor"
        whole = part.shape == placed.shape
        fits = len(data.shape) == len(part.shape) and all(
            want in (-1, have) for have, want in zip(data.shape, part.shape, strict=True)
        )
        fits = fits or (whole and data.shape == placed.startup_shape)
        dims = part.shape
    # what a mode adds to a program (the snapshots of local SGD) may be declared carelessly, as in Fluid
    if fits and (placed.optional or data.dtype.name == NUMPY_TYPES[placed.dtype]):
        return ""
    return f"is {data.dtype.name}{list(data.shape)}, declared {placed.dtype.text}{list(dims)}"


def bitwise_equal(one: Value, other: Value) -> bool:
    """Whether two values are the same, bit for bit."""
    if isinstance(one, LoDTensor) or isinstance(other, LoDTensor):
        both = isinstance(one, LoDTensor) and isinstance(other, LoDTensor)
        return both and one.lod == other.lod and bitwise_equal(one.data, other.data)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def part_of(placed: VariableLayout, part: VariablePart, whole: Value) -> Value:
    """The part of a whole value that one machine holds."""
    if isinstance(whole, LoDTensor) or (part.offset == 0 and part.shape == placed.shape):
        return whole
    flat: Array = np.ascontiguousarray(whole).reshape(-1)
    return flat[part.offset : part.offset + prod(part.shape)].reshape(part.shape)


# Setting the machines from a state


class Assignment(NamedTuple):
    """The variables to set on each machine, and the optional variables that keep their values."""

    values: dict[str, dict[str, Value]]
    retained_variables: tuple[str, ...]

    def carry_out(self, scopes: Scopes) -> None:
        """Sets the variables. All values are checked and copied before, so nothing can fail half-way."""
        for machine, values in self.values.items():
            scope = scopes[machine]
            if isinstance(scope, Scope):
                for name, value in values.items():
                    scope.put(name, value)  # without another copy
            else:
                scope.update(values)


def assign(layout: Layout, state: State, scopes: Scopes) -> Assignment:
    """Returns the values that each machine of a job takes from a state, whatever the machines from which the state was
    collected.

    A machine's own value goes to the machine of the same name if that has the variable at the same place of the whole;
    a server's own value only if the placement on all servers is unchanged. A table that is divided anew takes initial
    values for further rows from `scopes`, which are not changed. Raises DiagnosticError for missing variables, and for
    other element types or dims.
    """
    same_servers = state.servers == layout.servers
    copies_by_part = {
        copy.part: copy for copy in state.copies if same_servers or not copy.part.machine.startswith("pserver")
    }
    values: dict[str, dict[str, Value]] = {machine: {} for machine in layout.machines}
    findings: list[Diagnostic] = []
    kept_names: list[str] = []
    for placed in layout.variables.values():
        known = [scopes[part.machine].get(part.name) for part in placed.holders]
        reason = _problem(placed, state, known)
        if reason:
            findings.append(error("checkpoint-variable", reason, state.location(placed.name)))
            continue
        if placed.table:
            _assign_table(values, placed, state, scopes)
            continue
        if _is_large(known):
            _assign_rows(values, placed, state, known)
            continue
        for part in placed.holders:
            copy = copies_by_part.get(part)
            if copy is not None and copy.origin == placed.name and not misfit(placed, part, copy.value):
                values[part.machine][part.name] = own_copy(copy.value)
            elif placed.name in state.values and placed.parts:
                values[part.machine][part.name] = own_copy(part_of(placed, part, state.values[placed.name]))
            else:
                kept_names.append(f"{part.name} on {part.machine}")
    raise_errors(findings)
    return Assignment(values, tuple(kept_names))


def _is_large(known: Sequence[Value]) -> bool:
    """Whether machines hold a variable as a large table, or as the state of each row of one."""
    return bool(known) and all(isinstance(value, LargeTable | TableState) for value in known)


def _problem(placed: VariableLayout, state: State, known: Sequence[Value]) -> str:
    """The reason why a state can't give the value of a variable of the job; empty if it can. `known` are its holders'
    values now.
    """
    name = placed.name
    if _is_large(known):
        if any(isinstance(value, TableState) for value in known):
            return ""
        if name not in state.large:
            return f"{name} is a large table in the job, but not in the checkpoint"
        want, have = known[0].dims, state.large[name][0].rows.dims
        return "" if have == want else f"a row of {name} has {list(have)} numbers, in the job {list(want)}"
    if name in state.large:
        return f"{name} is a large table in the checkpoint, but not in the job"
    if placed.table:
        if name not in state.tables:
            return f"the checkpoint has no parts of the table {name}"
        reasons = (misfit(placed, placed.parts[0], value) for value in state.tables[name])
        return next((f"the table {name} {reason}" for reason in reasons if reason), "")
    value = state.values.get(name)
    if value is None or not placed.parts:
        return "" if placed.optional else f"the checkpoint has no variable {name}"
    reason = misfit(placed, VariablePart("", name, 0, placed.shape), value)
    return f"{name} {reason}" if reason else ""


def _assign_rows(
    values: dict[str, dict[str, Value]], placed: VariableLayout, state: State, known: Sequence[Value]
) -> None:
    """Gives every holder the rows of a large table that belong to its part."""
    if placed.name not in state.large:
        return  # the state of each row comes with the table
    width, whole = max(placed.shape[-1], 1), combine_parts(state.large[placed.name])
    for part, table in zip(placed.holders, known, strict=True):
        if isinstance(table, LargeTable):
            start = part.offset // width
            if table.any_id:
                rows = rows_beside(whole, width, start, table.height)
            else:
                rows = part_of_rows(whole, start, start + table.height)
            values[part.machine][part.name] = table_with(rows, table)


def _assign_table(values: dict[str, dict[str, Value]], placed: VariableLayout, state: State, scopes: Scopes) -> None:
    parts = state.tables[placed.name]
    table = merge_table_parts(placed.name, parts)
    if len(parts) != len(placed.parts):
        rooms = [scopes[part.machine].get(part.name) for part in placed.parts]
        parts = [
            with_room(part, room) if isinstance(room, SelectedRows) else part
            for part, room in zip(shared_out(table, len(placed.parts)), rooms, strict=True)
        ]
    for part, value in zip(placed.parts, parts, strict=True):
        values[part.machine][part.name] = own_copy(value)
