"""Distributed lookup tables: row i lies on server i modulo the number of servers.

A server's start-up program makes room for so many rows; Fluid gives them to ids in the order in which these come, so
what a row starts with depends on who asks first. Here every row starts with what it has on one machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pstranspile.cluster.machines.addresses import text_list
from pstranspile.cluster.machines.server import Server, pairs
from pstranspile.ir.attributes import Longs
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program, TensorType
from pstranspile.ir.types import VarKind
from pstranspile.runtime.kernels.rows import in_use
from pstranspile.runtime.run.frame import Execution, interpret
from pstranspile.runtime.run.scope import Scope
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
    """The table that a server's block looks ids up in which come under this name."""
    index = pairs(server.op, "prefetch_var_name_to_block_id").get(variable)
    if index is None:
        return None
    ops = server.main.blocks[int(index)].ops
    return next((op.input("W") for op in ops if op.type == "lookup_sparse_table"), None)


def initial_table(table: Table) -> Array | None:
    """What the whole table starts with: its initialiser, asked for all rows. None if no op initialises it."""
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
    """Gives every table that has no rows yet its first values, on these servers."""
    for table in tables:
        parts = [server.scope.get(table.name) for server in table.servers if server in servers]
        if parts and all(isinstance(part, SelectedRows) and not len(part.rows) for part in parts):
            whole = initial_table(table)
            if whole is not None:
                table.fill(whole, servers)
