"""Lookups in tables that are cut over servers by rows (`distributed_lookup_table`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby, islice, pairwise
from typing import Any

import numpy as np

from pstranspile.cluster.machines.addresses import Servers, link_to, number_list, text_list
from pstranspile.cluster.machines.cutting import route_ids
from pstranspile.cluster.machines.exchanges import Exchange
from pstranspile.cluster.machines.message import LOOKUP
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.machines.waits import Action, Join, Replies
from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import Op, Program
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.values import LoDTensor


class _Lookups:
    """Rows of tables that are cut alike, for all `Ids` at once: every server is asked once for each table."""

    def __init__(self, trainer: Trainer, ops: Sequence[Op], program: Program, servers: Servers):
        self.ops = ops
        self.trainer = trainer
        self.inputs = [*accumulate((len(op.inputs.get("Ids", ())) for op in ops), initial=0)]
        """Where the inputs of each op begin and end among all."""
        endpoints = text_list(ops[0], "endpoints")
        links = [link_to(trainer, servers, endpoint, ops[0]) for endpoint in endpoints]
        self.posts = [link.post for link in links]
        self.asked = [link for link in links for _ in ops]
        self.tables = list(zip(*(text_list(op, "table_names") for op in ops), strict=True))
        """For every server the names of its parts of the tables."""
        self.ends = np.cumsum((0, *number_list(ops[0], "height_sections")))
        table = program.main_block.vars.get(ops[0].inputs["W"][0])
        self.width = table.shape[1] if table is not None and len(table.shape) == 2 else 0
        self.padding = _padding(ops[0])
        self.last_dim = _drops_last_dim(ops[0])
        self.answers = len(ops) * len(endpoints)

    def ask(self, values: Sequence[Value], slot: int) -> Join:
        """Asks for the rows, in slots from `slot` on; gives what makes the outputs of the answers."""
        padding, step = self.padding, self.trainer.step
        data = [value.data if value.__class__ is LoDTensor else value for value in values]
        flat = data[0].reshape(-1) if len(data) == 1 else np.concatenate([ids.reshape(-1) for ids in data])
        known = flat if padding < 0 else np.where(flat == padding, 0, flat)
        try:
            parts, order = route_ids(known, self.ends, self.width)
        except ValueError as problem:
            raise DiagnosticError([at_op("cluster-unknown-variable", str(problem), self.ops[0])]) from None
        sizes = [*accumulate((ids.size for ids in data), initial=0)]
        bounds = [sizes[place] for place in self.inputs]
        begin, asked = 0, list[int]()
        for post, tables, ids in zip(self.posts, self.tables, parts, strict=True):
            cuts = order[begin : begin + len(ids)].searchsorted(bounds).tolist()  # in a section, places ascend
            begin += len(ids)
            for table, (start, stop) in zip(tables, pairwise(cuts), strict=True):
                post(LOOKUP, step, table, ids[start:stop], slot)
                asked.append(stop - start)
                slot += 1

        def finish(answers: list[Value]) -> list[Value]:
            counts = [len(rows) if rows.__class__ is np.ndarray and rows.ndim else -1 for rows in answers]
            if counts != asked:
                message = "a server does not answer with a row for each id"
                raise DiagnosticError([at_op("cluster-unknown-variable", message, self.ops[0])])
            places = np.empty(len(flat), "int64")
            places[order] = np.arange(len(flat))
            rows = (answers[0] if len(answers) == 1 else np.concatenate(answers)).take(places, axis=0)
            if padding >= 0:
                rows[flat == padding] = 0
            return _shared_out(rows, values, data, self.last_dim)

        return finish


def _padding(op: Op) -> int:
    value: Any = op.attrs.get("padding_idx", -1)
    return int(value)


def _drops_last_dim(op: Op) -> bool:
    return op.attrs.get("lookup_table_version", "lookup_table") == "lookup_table"


def _cut_alike(op: Op, program: Program) -> object:
    """A value that lookups share whose tables are cut alike and have rows of one kind."""
    table = program.main_block.vars.get(op.inputs["W"][0])
    kind = (table.dtype, table.shape[1:]) if table is not None else op.inputs["W"]
    return kind, text_list(op, "endpoints"), number_list(op, "height_sections"), _padding(op), _drops_last_dim(op)


def make_lookup(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    """The action of lookups in tables that are cut over servers."""
    alike = groupby(exchange.ops, key=lambda op: _cut_alike(op, program))
    lookups = [_Lookups(trainer, tuple(ops), program, servers) for _, ops in alike]
    count = sum(lookup.answers for lookup in lookups)
    asked = [link for lookup in lookups for link in lookup.asked]

    def run(values: Sequence[Value]) -> Replies:
        joins: list[tuple[int, Join]] = []
        place = slot = 0
        for lookup in lookups:
            joins.append((lookup.answers, lookup.ask(values[place : place + lookup.inputs[-1]], slot)))
            place += lookup.inputs[-1]
            slot += lookup.answers

        def join(answers: list[Value]) -> list[Value]:
            rest = iter(answers)
            return [row for size, part in joins for row in part([*islice(rest, size)])]

        return Replies(trainer.step, count, join, asked)

    return run


def _shared_out(rows: Value, values: Sequence[Value], data: Sequence[Value], last_dim: bool) -> list[Value]:
    """The rows looked up for all ids, dealt out to the outputs, with the dims and the LoD of the ids."""
    out: list[Value] = []
    start = 0
    for value, ids in zip(values, data, strict=True):
        leading = ids.shape[:-1] if last_dim else ids.shape
        part = rows[start : start + ids.size].reshape(*leading, *rows.shape[1:])
        start += ids.size
        out.append(LoDTensor(part, value.lod) if value.__class__ is LoDTensor else part)
    return out
