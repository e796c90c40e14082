"""Sparse tables: which parameters trainers need not hold, because all that reads them is lookups.

A table whose gradient is sparse stays on the servers; its lookups fetch the rows they need (remote prefetch). All
lookups of one table become one op, if there is a place after the last of their ids and before the first use of their
results. Otherwise, and where they differ in kind or padding, they become as few ops as possible.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import NamedTuple

from pstranspile.compiler.analysis.updates import Update
from pstranspile.compiler.analysis.uses import effects_of, sub_blocks
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op
from pstranspile.ir.model import Op, Program
from pstranspile.ir.types import VarKind
from pstranspile.ops import schema_of

IDS_RANK = 2
"""Fluid's fused lookup takes ids of this rank only."""


class MergedLookup(NamedTuple):
    """Lookups that become one, by index in program order; it stands right after op `after` (-1: at the start)."""

    lookups: tuple[int, ...]
    after: int


class RemoteTable(NamedTuple):
    """A parameter that stays on the servers, and its lookups."""

    parameter: str
    lookups: tuple[MergedLookup, ...]


def is_sparse(program: Program, gradient: str) -> bool:
    """Whether a gradient is sparse: SelectedRows, the rows of a table that a step used."""
    var = program.main_block.vars.get(gradient)
    return var is not None and var.kind is VarKind.SELECTED_ROWS


class RemoteTables(NamedTuple):
    """The tables to leave on the servers, the sparse parameters that can't be left there, and warnings about these."""

    tables: tuple[RemoteTable, ...] = ()
    local: frozenset[str] = frozenset()
    warnings: tuple[Diagnostic, ...] = ()


def sparse_parameters(program: Program, updates: Sequence[Update]) -> list[str]:
    """The parameters whose gradients are sparse, in parameter order."""
    return [update.parameter for update in updates if is_sparse(program, update.gradient)]


def find_remote_tables(
    program: Program, sparse: Sequence[str], moved: Container[int], *, distributed: bool = False
) -> RemoteTables:
    """Those of the sparse parameters whose lookups are fetched from the servers.

    A parameter that another op reads too, or whose lookups Fluid can't fuse, is no such table: the trainers hold and
    receive it whole. If it has lookups marked for remote prefetch, a warning says so.
    `distributed`: lookups marked `is_distributed` are fetched like those marked for remote prefetch.
    """
    if not sparse:
        return RemoteTables()
    readers = _readers(program, sparse, moved)
    marks = ("remote_prefetch", "is_distributed") if distributed else ("remote_prefetch",)
    result: dict[str, list[int]] = {}
    local: set[str] = set()
    warnings: list[Diagnostic] = []
    for parameter in sparse:
        lookups = [i for i in readers[parameter] if _is_marked_lookup(program.main_block.ops[i], marks)]
        problem = _why_local(program, parameter, readers[parameter], marks)
        if problem:
            local.add(parameter)
        if problem and lookups:
            op = program.main_block.ops[problem[0]]
            message = f"%{parameter} is received whole by every trainer: {problem[1]}"
            focus = f"%{parameter}"
            warnings.append(at_op("table-not-remote", message, op, focus=focus, severity=Severity.WARNING))
        elif lookups:
            result[parameter] = lookups
    places = _Places(program, {i for lookups in result.values() for i in lookups})
    tables = tuple(RemoteTable(name, places.merge(lookups)) for name, lookups in result.items())
    return RemoteTables(tables, frozenset(local), tuple(warnings))


def _is_marked_lookup(op: Op, marks: Sequence[str]) -> bool:
    schema = schema_of(op.type)
    return schema is not None and schema.table_lookup and any(op.attrs.get(mark) is True for mark in marks)


def _readers(program: Program, tables: Collection[str], moved: Container[int]) -> dict[str, list[int]]:
    """Table -> the ops of the main block that stay on a trainer and read it, their sub-blocks included."""
    readers: dict[str, list[int]] = {name: [] for name in tables}
    for index, op in enumerate(program.main_block.ops):
        if index in moved:
            continue
        names = effects_of(program, op).reads if sub_blocks(op) else op.input_names
        for name in {name for name in names if name in readers}:
            readers[name].append(index)
    return readers


def _why_local(
    program: Program, parameter: str, readers: Sequence[int], marks: Sequence[str]
) -> tuple[int, str] | None:
    """An op that keeps a table from being left on the servers, and why."""
    variables = program.main_block.vars
    for index in readers:
        op = program.main_block.ops[index]
        schema = schema_of(op.type)
        forward = schema_of(schema.forward) if schema is not None and schema.forward else None
        if forward is not None and forward.table_lookup:
            continue  # the gradient of a lookup reads no more of the table than its height
        if not _is_marked_lookup(op, marks) or op.inputs.get("W") != (parameter,):
            return index, f"{op.type} reads it on the trainer"
        ids = variables.get(op.input("Ids") or "")
        if ids is None or ids.tensor is None or len(ids.tensor.shape) != IDS_RANK:
            return index, f"a lookup on servers takes ids of rank {IDS_RANK}"
    return None


class _Window(NamedTuple):
    """A lookup, and where it may stand: after op `after` (-1: from the start), before op `before`."""

    lookup: int
    after: int
    before: int


class _Places:
    """Where merged lookups may stand: readers and writers of the ids and results of a set of lookups."""

    def __init__(self, program: Program, lookups: Collection[int]):
        self.ops = program.main_block.ops
        self.writers: dict[str, list[int]] = {}
        self.readers: dict[str, list[int]] = {}
        for i in lookups:
            ids, result = self.ops[i].inputs["Ids"][0], self.ops[i].outputs["Out"][0]
            self.writers.update({ids: [], result: []})
            self.readers[result] = []
        for index, op in enumerate(self.ops if lookups else ()):
            for names in op.outputs.values():
                for name in names:
                    if name in self.writers:
                        self.writers[name].append(index)
            names = effects_of(program, op).reads if sub_blocks(op) else op.input_names
            for name in names:
                if name in self.readers:
                    self.readers[name].append(index)

    def _window(self, lookup: int) -> _Window:
        """After its ids are made, before they are made anew and before what it finds is used."""
        ids, result = self.ops[lookup].inputs["Ids"][0], self.ops[lookup].outputs["Out"][0]
        others = [*self.writers[ids], *self.writers[result], *self.readers[result]]
        after = max((i for i in others if i < lookup), default=-1)
        return _Window(lookup, after, min((i for i in others if i > lookup), default=len(self.ops)))

    def merge(self, lookups: Sequence[int]) -> tuple[MergedLookup, ...]:
        """One table's lookups, as few as their kinds, their paddings and their order allow.

        As in the covering of intervals by points: a lookup joins the group whose first use is the last one before its
        own, if its ids exist by then.
        """
        alike: dict[tuple[object, ...], list[_Window]] = {}
        for lookup in lookups:
            op = self.ops[lookup]
            alike.setdefault((op.type, op.attrs.get("padding_idx", -1)), []).append(self._window(lookup))
        merged: list[MergedLookup] = []
        for windows in alike.values():
            group: list[_Window] = []
            for window in sorted(windows, key=lambda w: (w.before, w.after)):
                if group and window.after >= group[0].before:
                    merged.append(_merged(group))
                    group = []
                group.append(window)
            merged.append(_merged(group))
        return tuple(sorted(merged))


def _merged(group: Sequence[_Window]) -> MergedLookup:
    return MergedLookup(tuple(sorted(window.lookup for window in group)), max(window.after for window in group))
