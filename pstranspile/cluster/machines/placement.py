"""The placement of variables on servers: setting their parts from whole values, and joining parts to wholes.

Of distributed lookup tables, row i lies on server i modulo the number of servers. A server's start-up program makes
room for so many rows; Fluid gives them to ids in the order in which these come, so what a row starts with depends on
who asks first. Here every row starts with what it has on one machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.machines.server import Server, pairs
from pstranspile.cluster.machines.trainer import Trainer, text_list
from pstranspile.ir.attributes import Longs
from pstranspile.ir.diagnostics import DiagnosticError, at_op, error
from pstranspile.ir.model import DistributedVar, FrozenMap, Op, Program, TensorType
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ir.types import VarKind
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.kernels.rows import cut_any_ids, in_sections, in_use, merge_repeats, merge_rows
from pstranspile.runtime.large.forms import concat_values, is_table
from pstranspile.runtime.large.table import LargeTable, TableState, beside
from pstranspile.runtime.run.feeds import describe, near
from pstranspile.runtime.run.frame import Execution, Slices, interpret
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.values import Array, SelectedRows


class Table(NamedTuple):
    """A distributed table: its dims, and the servers in the order of their shares."""

    name: str
    shape: tuple[int, ...]
    servers: tuple[Server, ...]

    def fill(self, whole: Array, servers: Collection[Server]) -> None:
        """Gives each of these servers its rows of the whole."""
        for number, server in enumerate(self.servers):
            if server not in servers:
                continue
            rows = np.arange(number, len(whole), len(self.servers), dtype="int64")
            server.scope.put(self.name, SelectedRows(rows, np.array(whole[rows]), len(whole)))

    def whole(self) -> Array | None:
        """The table put together; None if a server does not hold its share."""
        parts = [server.scope.get(self.name) for server in self.servers]
        result = [part for part in parts if isinstance(part, SelectedRows)]
        if len(result) < len(parts):
            return None
        total = np.zeros(self.shape, result[0].value.dtype)
        for part in result:
            total[part.rows] = in_use(part)
        return total


def find_tables(main: Program, servers: Mapping[str, Server]) -> list[Table]:
    """The tables that a trainer looks rows up in by `prefetch`, where its program declares their dims."""
    result: dict[str, Table] = {}
    for op in main.main_block.ops:
        if op.type != "prefetch":
            continue
        endpoints = text_list(op, "epmap")
        names = [
            _table_of(servers[endpoint], variable)
            for endpoint, variable in zip(endpoints, op.inputs.get("X", ()), strict=True)
            if endpoint in servers
        ]
        name = names[0] if names else None
        var = main.main_block.vars.get(name or "")
        if name is None or set(names) != {name} or len(names) != len(endpoints) or var is None or len(var.shape) < 2:
            continue
        result[name] = Table(name, var.shape, tuple(servers[endpoint] for endpoint in endpoints))
    return list(result.values())


def _table_of(server: Server, variable: str) -> str | None:
    """The name of the table in which a server's block looks up the ids of a variable; None if the server has no such
    block.
    """
    index = pairs(server.op, "prefetch_var_name_to_block_id").get(variable)
    if index is None:
        return None
    ops = server.main.blocks[int(index)].ops
    return next((op.input("W") for op in ops if op.type == "lookup_sparse_table"), None)


def initial_table(table: Table) -> Array | None:
    """The initial value of a whole table, from its initialiser run for all rows; None if no op initialises it."""
    first = table.servers[0]
    block = first.startup.main_block
    op = next((op for op in block.ops if table.name in op.output_names and not any(op.input_names)), None)
    var = block.vars.get(table.name)
    if op is None or var is None or var.tensor is None or "shape" not in op.attrs:
        return None
    tensor = TensorType(var.tensor.dtype, table.shape)
    dense = var._replace(kind=VarKind.LOD_TENSOR, tensor=tensor)
    whole: Op = op._replace(attrs=FrozenMap({**op.attrs, "shape": Longs(table.shape)}))
    single = block._replace(ops=(whole,), vars=FrozenMap({table.name: dense}))
    scope = Scope()
    interpret(Execution(first.startup._replace(blocks=(single,)), scope, seed=first.seed))
    return scope.get(table.name)


def fill_tables(tables: Sequence[Table], servers: Collection[Server]) -> None:
    """Sets the rows of every table that has none yet to their initial values, on these servers."""
    for table in tables:
        parts = [server.scope.get(table.name) for server in table.servers if server in servers]
        if parts and all(isinstance(part, SelectedRows) and not len(part.rows) for part in parts):
            whole = initial_table(table)
            if whole is not None:
                table.fill(whole, servers)


# Values cut for servers and put together again, by rows along dim 0.


def split_rows(value: Value, sections: Sequence[int]) -> list[Value]:
    """The value in sections of so many rows each: views of an array, rows counted from the section's start.

    Raises ValueError if the sections are not those of the value.
    """
    if len(sections) == 1:
        return [value]
    ends, spans_of_rows = _spans(tuple(sections))
    if isinstance(value, SelectedRows):
        if takes_any_id((int(ends[-1]), *value.value.shape[1:])):
            return [*cut_any_ids(value, ends)]
        if len(value.rows) and int(value.rows.max()) >= ends[-1]:
            raise ValueError(f"there is no row {int(value.rows.max())} in sections of {list(sections)} rows")
        order, starts = in_sections(value.rows, ends)
        rows, held = value.rows[order], in_use(value).take(order, axis=0)
        spans = zip(pairwise(starts), ends.tolist(), sections, strict=False)
        return [SelectedRows(rows[a:b] - first, held[a:b], height) for (a, b), first, height in spans]
    if ends[-1] != len(value):
        raise ValueError(f"{len(value)} rows can't be cut into {list(sections)}")
    return [value[span] for span in spans_of_rows]


@lru_cache(256)
def _spans(sections: tuple[int, ...]) -> tuple[Array, tuple[slice, ...]]:
    """The boundaries of sections with these numbers of rows, beginning with 0, and the sections as slices."""
    ends = np.cumsum((0, *sections))
    return ends, tuple(slice(start, end) for start, end in pairwise(ends.tolist()))


def join(parts: Sequence[Value]) -> Value:
    """The concatenation of sections along dim 0."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def route_ids(ids: Array, ends: Array, width: int = 0) -> tuple[list[Array], Array]:
    """The ids of a table for each of its sections, which end at `ends` (after a 0), counted from the section's start.

    The second value has the positions in `ids` of all these ids, section after section. A table that has a row for
    every id, of `width` elements, keeps the numbers of ids. Raises ValueError for an id that the table does not have.
    """
    if width and takes_any_id((int(ends[-1]), width)):
        order, starts = in_sections(beside(ids, width), ends)
        chosen = ids[order]
        return [chosen[a:b] for a, b in pairwise(starts)], order
    # as unsigned numbers, negative ids are too large as well, so one comparison finds both
    if ids.size and ids.view(f"u{ids.itemsize}").max() >= ends[-1]:
        wrong = ids[(ids < 0) | (ids >= ends[-1])]
        raise ValueError(f"Ids holds {int(wrong[0])}, but the table has {int(ends[-1])} rows")
    order, starts = in_sections(ids, ends)
    chosen = ids[order]
    return [chosen[a:b] - first for (a, b), first in zip(pairwise(starts), ends.tolist(), strict=False)], order


def with_each_row_once(value: Value) -> Value:
    """A sparse gradient in which rows with the same number are added; any other value as it is."""
    return merge_repeats(value) if isinstance(value, SelectedRows) else value


def merge_gradients(values: Sequence[Value], *, adds: bool) -> Value:
    """Merges gradients of one variable into their sum or their average; rows with the same number are added."""
    if len(values) == 1:
        return with_each_row_once(values[0])
    if isinstance(values[0], SelectedRows):
        total = merge_rows(values)
        return total if adds else total._replace(value=total.value / total.value.dtype.type(len(values)))
    total = values[0] + values[1]
    for value in values[2:]:
        total += value
    if not adds:
        total /= total.dtype.type(len(values))
    return total


_SLICE = Pattern(r"^(.+)\.block(\d+)$")


def infer_placement(servers: Mapping[str, Program], known: Iterable[Program]) -> list[DistributedVar]:
    """The table for programs that come without one: by names `P.block<k>`, where P is declared by a trainer.

    `servers` are the main programs by endpoint, `known` those of the trainers. A variable that is not cut is placed
    under its own name. Slices that do not add up to the whole are left out, and so are the variables that trainers send
    (gradients, whatever their names).
    """
    wholes = {
        name: var.shape for program in known for name, var in program.main_block.vars.items() if var.tensor is not None
    }
    parts: dict[str, list[tuple[int, str, tuple[int, ...], str]]] = {}
    rows: list[DistributedVar] = []
    for endpoint, program in servers.items():
        sent = _sent_to(program)
        for name, var in program.main_block.vars.items():
            if not var.persistable or var.tensor is None or "@GRAD" in name or name in sent:
                continue
            match = _SLICE.match(name)
            whole = wholes.get(match[1]) if match else None
            if match and whole is not None and whole[1:] == var.shape[1:]:
                parts.setdefault(match[1], []).append((int(match[2]), name, var.shape, endpoint))
            elif wholes.get(name) == var.shape:
                rows.append(DistributedVar(name, var.shape, name, var.shape, False, 0, 0, endpoint, "Param"))
    for origin, result in parts.items():
        offset = 0
        sliced: list[DistributedVar] = []
        for number, name, shape, endpoint in sorted(result):
            whole = wholes[origin]
            sliced.append(DistributedVar(origin, whole, name, shape, True, number, offset, endpoint, "Param"))
            offset += prod(shape)
        if offset == prod(wholes[origin]):
            rows += sliced
    return rows


def _sent_to(program: Program) -> set[str]:
    """The names under which a server takes gradients, from its `listen_and_serv`; with those of single trainers."""
    names: set[str] = set()
    for op in program.main_block.ops:
        if op.type == "listen_and_serv":
            texts: Any = op.attrs.get("grad_to_block_id", ())
            names.update(op.inputs.get("X", ()), (text.rpartition(":")[0] for text in texts))
    return names


class Placement:
    """The table of variables on servers, looked up by endpoint and by whole variable."""

    def __init__(self, rows: Sequence[DistributedVar]):
        self.rows = tuple(rows)
        self.by_endpoint: dict[str, list[DistributedVar]] = {}
        self.by_origin: dict[str, list[DistributedVar]] = {}
        for row in rows:
            self.by_endpoint.setdefault(row.endpoint, []).append(row)
            self.by_origin.setdefault(row.origin, []).append(row)

    def slices(self, endpoint: str) -> Slices:
        """For each variable of a server, the whole variable and the first element, as initialisers need them."""
        return {row.slice: (row.origin, row.offset) for row in self.by_endpoint.get(endpoint, ()) if row.is_slice}

    def require_dims(self, endpoint: str, startup: Program, scope: Scope) -> None:
        """Raises DiagnosticError unless the variables made by a server's start-up program have the dims of their
        slices.
        """
        for row in self.by_endpoint.get(endpoint, ()):
            value = scope.get(row.slice)
            if not isinstance(value, np.ndarray) or value.shape == row.slice_shape:
                continue
            message = f"it makes {row.slice} on {endpoint}, {describe(value)}, but its dims are {list(row.slice_shape)}"
            maker = next((op for op in reversed(startup.main_block.ops) if row.slice in op.output_names), None)
            result = at_op("cluster-placement", message, maker) if maker else error("cluster-placement", message)
            raise DiagnosticError([result])

    def origins(self) -> list[str]:
        """The names of the whole parameters on servers, in order."""
        return list(dict.fromkeys(row.origin for row in self.rows if row.vtype != "Optimizer"))

    def set_whole(self, name: str, value: Array, scopes: Mapping[str, Scope]) -> bool:
        """Sets a variable on each of the servers of `scopes` that holds (a part of) it; False if no server does.

        Raises DiagnosticError if the value has not as many elements as the whole.
        """
        rows = self.by_origin.get(name, ())
        for row in rows:
            size = prod(row.slice_shape)
            flat = _numbers(name, value).reshape(-1)
            if len(flat) != prod(row.origin_shape):
                message = f"{name} has dims {list(row.origin_shape)}, but is given {describe(_numbers(name, value))}"
                raise DiagnosticError([error("cluster-placement", message)])
            if row.endpoint in scopes:
                _set(scopes[row.endpoint], row, flat[row.offset : row.offset + size].reshape(row.slice_shape))
        return bool(rows)

    def copy_of(self, name: str, scopes: Mapping[str, Scope]) -> Value:
        """What `whole` gives, in memory that it shares with no server."""
        (first, *_) = self.by_origin[name]
        value = self.whole(name, scopes)
        joined = first.is_slice or is_table(scopes[first.endpoint].get(first.slice))
        return value if joined else own_copy(value)

    def whole(self, name: str, scopes: Mapping[str, Scope]) -> Value:
        """A variable put together from its parts; of a large table, the rows that exist, as SelectedRows.

        Raises DiagnosticError if one is missing.
        """
        rows = self.by_origin[name]
        values = [scopes[row.endpoint].get(row.slice) for row in rows]
        if values and all(map(is_table, values)):
            height, width = rows[0].origin_shape
            starts = [0 if takes_any_id((height, width)) else row.offset // width for row in rows]
            return concat_values(values, starts, height)
        if not rows[0].is_slice:
            return _part(scopes, rows[0])
        parts = {row.offset: _part(scopes, row).reshape(-1) for row in rows}
        flat = np.concatenate([parts[offset] for offset in sorted(parts)])
        shape = rows[0].origin_shape
        if len(flat) != prod(shape):
            message = f"the parts of {name} on the servers have {len(flat)} elements, the whole has {prod(shape)}"
            raise DiagnosticError([error("cluster-placement", message)])
        return flat.reshape(shape)


def _numbers(name: str, value: Any) -> Array:
    """A value as an array. Raises DiagnosticError for rows of different lengths."""
    try:
        return np.asarray(value)
    except ValueError:
        message = f"{name} is given rows of different lengths, which make no array"
        raise DiagnosticError([error("cluster-placement", message)]) from None


def _set(scope: Scope, row: DistributedVar, value: Array) -> None:
    """Sets a part of a variable; of a large table all rows. Raises DiagnosticError for the state of a large table's
    rows.
    """
    held = scope.get(row.slice)
    if isinstance(held, LargeTable):
        held.fill(value)
    elif isinstance(held, TableState):
        message = f"{row.origin} is kept for each row of the large table {held.table}, it can't be set by itself"
        raise DiagnosticError([error("cluster-placement", message)])
    else:
        scope[row.slice] = value


def _part(scopes: Mapping[str, Scope], row: DistributedVar) -> Value:
    value = scopes[row.endpoint].get(row.slice)
    if value is None:
        message = f"{row.slice}, a part of {row.origin}, has no value on the server {row.endpoint}"
        raise DiagnosticError([error("cluster-placement", message)])
    return value


# Whole variables that replace the values from the start-up programs.


class InitialValues(NamedTuple):
    """Initial values by name of the whole variable, with the placement of variables on servers, and the tables that
    servers share.
    """

    values: Mapping[str, Any]
    placement: Placement
    tables: Sequence[Table]

    def require_known(self, programs: Iterable[Program], servers: Iterable[Server]) -> None:
        """Raises DiagnosticError for a variable that no machine keeps. `programs` are those of the trainers."""
        declared = {name for program in programs for name, v in program.main_block.vars.items() if v.persistable}
        known = {*declared, *self.placement.by_origin, *(n for s in servers for n in s.main.main_block.vars)}
        for name in self.values:
            if name not in known:
                message = f"no machine of the cluster has a persistable variable {name}{near(name, known)}"
                raise DiagnosticError([error("cluster-placement", message)])

    def set_on_servers(self, servers: Sequence[Server]) -> None:
        """Sets the initial values of the parts on servers whose start-up programs have run."""
        scopes = {server.endpoint: server.scope for server in servers}
        tables = {table.name: table for table in self.tables}
        for name, value in self.values.items():
            if name in tables:
                tables[name].fill(value, servers)
            elif not self.placement.set_whole(name, value, scopes):
                for scope in scopes.values():
                    if name in scope:
                        scope[name] = value

    def set_on_trainer(self, trainer: Trainer) -> None:
        """Sets the initial values of the variables that a trainer keeps itself, or has whole."""
        moved = {*self.placement.by_origin, *(table.name for table in self.tables)}
        for name, value in self.values.items():
            var, held = trainer.role.variable(name), trainer.scope.get(name)
            if var is None or not var.persistable:
                continue
            if name not in moved or (isinstance(held, np.ndarray) and held.shape == np.shape(value)):
                trainer.scope[name] = value
