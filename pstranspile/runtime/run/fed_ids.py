"""The ids in what is fed: which tables they are looked up in, and whether these have such rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.diagnostics import Diagnostic, at_op
from pstranspile.ir.model import Op, Program
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ir.types import VarKind
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.facts import Below
from pstranspile.runtime.kernels.numeric import all_ids
from pstranspile.runtime.run.feeds import written_names
from pstranspile.runtime.values import Array, LoDTensor


class Table(NamedTuple):
    """A table in which an op looks up ids: its name, its rows, the id that stands for no row (-1: none), the op, the
    variable that holds the ids, and whether one below 0 ends a row of them.
    """

    name: str
    rows: int
    padding: int
    op: Op
    ids: str
    ends: bool = False

    def outside(self, ids: Array) -> Array | None:
        """A mask of the ids that the table has no row for; None if there are none."""
        if all_ids(np.ascontiguousarray(ids), self.rows):
            return None
        wrong = (ids >= self.rows) if self.ends else (ids < 0) | (ids >= self.rows)
        if self.padding >= 0:
            wrong &= ids != self.padding
        return wrong if wrong.any() else None

    def describe(self, name: str, found: int) -> str:
        """A sentence about an id, of an input or a slot, that the table has no row for."""
        return f"{name} holds {found}, but the table {self.name} has ids from 0 to {self.rows - 1:,}"


def lookups_of(program: Program) -> Iterator[Table]:
    """Every lookup in a table whose rows are known, in the order of the ops. Tables with a row for every id are left
    out.
    """
    for number, block in enumerate(program.blocks):
        for op in block.ops:
            for slot, domain in facts_of(op.type).domains.items():
                if not isinstance(domain, Below) or domain.axis != 0:
                    continue
                var = program.find_var(op.input(domain.of) or "", number)
                if var is None or not var.persistable or var.kind is not VarKind.LOD_TENSOR or not var.shape:
                    continue
                if var.shape[0] > 0 and not takes_any_id(var.shape):
                    padding = int_attr(op, "padding_idx", -1)
                    yield from (
                        Table(var.name, var.shape[0], padding, op, ids, domain.ends) for ids in op.inputs.get(slot, ())
                    )


def tables_of(program: Program) -> dict[str, tuple[Table, ...]]:
    """The tables in which the numbers of each input are looked up, as they are fed: input -> tables.

    Ops that leave numbers as they are, such as a reshape, may come before the lookup.
    """
    source: dict[str, str] = {}
    written = written_names(program)
    for op in program.main_block.ops:
        names = dict.fromkeys(op.input_names)
        if facts_of(op.type).numbers == "in_order" and len(names) == 1:
            name = next(iter(names))
            source.update((made, source.get(name, name)) for made in op.output_names if made != name)
    result: dict[str, tuple[Table, ...]] = {}
    for table in lookups_of(program):
        name = source.get(table.ids, table.ids)
        if name in program.main_block.vars and name not in written:
            result[name] = (*result.get(name, ()), table)
    return result


def made_ids(program: Program) -> list[Table]:
    """The lookups of ids that no input holds as they are, but ops of the program make."""
    fed = {(table.ids, id(table.op)) for tables in tables_of(program).values() for table in tables}
    return [table for table in lookups_of(program) if (table.ids, id(table.op)) not in fed]


class Wrong(NamedTuple):
    """An id that a table has no row for: the row of the batch that holds it, counted from 0, the id, and the table."""

    input: str
    row: int
    id: int
    table: Table

    def told(self, place: str) -> Diagnostic:
        """The error; `place` says where the row is from, such as `step 3 of feed.npz`."""
        message = f"{self.table.describe('Ids', self.id)}: row {self.row + 1} of {self.input} in {place}"
        return at_op("run-feed-mismatch", message, self.table.op)


def wrong_ids(tables: Mapping[str, Sequence[Table]], feed: Mapping[str, Any]) -> Iterator[Wrong]:
    """The first id of each input of a step that a table has no row for."""
    for name, known in tables.items():
        value: Any = feed.get(name)
        ids: Any = value.data if isinstance(value, LoDTensor) else value
        if not isinstance(ids, np.ndarray) or ids.dtype.kind != "i" or not ids.ndim:
            continue
        for table in known:
            wrong = table.outside(ids)
            if wrong is not None:
                place: Any = np.argwhere(wrong)[0]
                yield Wrong(name, row_of(value, int(place[0])), int(ids[tuple(place)]), table)
                break


def row_of(value: Any, element: int) -> int:
    """The row of a value that holds an element of its first dim; of a ragged value, the sequence."""
    if isinstance(value, LoDTensor):
        for level in reversed(value.lod):
            element = int(np.searchsorted(level, element, side="right")) - 1
    return element
