"""Sparse tables of a program: tables that stay on servers, the one that is distributed by id, and large tables, whose
rows begin to exist when they are trained.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from pstranspile.compiler.analysis.updates import Update
from pstranspile.compiler.analysis.uses import effects_of, op_graph, sub_blocks
from pstranspile.ir.attributes import Longs, float32
from pstranspile.ir.diagnostics import Diagnostic, Note, Severity, at_op, error, raise_errors
from pstranspile.ir.model import STARTUP, Block, FrozenMap, Module, Op, Program
from pstranspile.ir.table_rules import Rules, parse_table
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops import schema_of
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.build import make_op
from pstranspile.ops.schema import Slicing
from pstranspile.ops.tables.embedding import INITIALISERS, SERVED_RANK

# The distributed lookup table: a sparse table that is not cut but distributed by id, and grows as ids come.

LOOKUP = "lookup_table"
"""The op type for which `is_distributed` makes a table distributed; Fluid ignores the attribute on other types."""

_REMEDY = "; distributed_table=rows distributes it by ranges of rows instead"


class LookupTable(NamedTuple):
    """The table, its update and its lookups, by index in program order."""

    parameter: str
    gradient: str
    update: Update
    lookups: tuple[int, ...]


def find_lookup_table(
    program: Program, updates: Sequence[Update], moved: Container[int]
) -> tuple[LookupTable | None, list[Diagnostic]]:
    """The distributed lookup table of a program, if it has one that it trains, and findings.

    Findings are errors for programs that Fluid's rewrite can't handle: two tables, other readers of the table, ids that
    depend on an earlier lookup, updates joined with those of other parameters.
    """
    ops = program.main_block.ops
    lookups = [i for i, op in enumerate(ops) if i not in moved and _is_distributed(op)]
    by_parameter = {update.parameter: update for update in updates}
    tables = list(dict.fromkeys(name for i in lookups for name in ops[i].inputs["W"] if name in by_parameter))
    if not tables:
        return None, []
    if len(tables) > 1:
        second = next(i for i in lookups if tables[1] in ops[i].inputs["W"])
        message = f"%{tables[0]} and %{tables[1]} are both distributed; there can be one distributed lookup table"
        return None, [at_op("table-several", message + _REMEDY, ops[second], focus=f"%{tables[1]}")]
    name = tables[0]
    lookups = [i for i in lookups if name in ops[i].inputs["W"]]
    update = by_parameter[name]
    table = LookupTable(name, update.gradient, update, tuple(lookups))
    findings = [
        *_other_readers(program, table, moved),
        *_late_ids(program, table),
        *_joined_update_errors(program, table, updates),
    ]
    return table, findings


def lookups_in(ops: Sequence[Op], table: str, moved: Container[int]) -> list[int]:
    """The lookups in the distributed lookup table `table` that stay on a trainer."""
    return [i for i, op in enumerate(ops) if _is_distributed(op) and op.inputs["W"] == (table,) and i not in moved]


def _is_distributed(op: Op) -> bool:
    return op.type == LOOKUP and op.attrs.get("is_distributed") is True


def _other_readers(program: Program, table: LookupTable, moved: Container[int]) -> list[Diagnostic]:
    """Errors for ops on the trainer that read the table itself."""
    findings: list[Diagnostic] = []
    focus = f"%{table.parameter}"
    for index, op in enumerate(program.main_block.ops):
        if index in moved or index in table.lookups or table.parameter not in op.input_names:
            continue
        if op.type == f"{LOOKUP}_grad":
            continue  # this op needs only the height of the table
        message = f"{focus} is a distributed lookup table, which this op on the trainer can't read"
        findings.append(at_op("table-reader", message, op, focus=focus))
    return findings


def _late_ids(program: Program, table: LookupTable) -> list[Diagnostic]:
    """Errors for lookups whose ids are made after the first lookup, as all lookups take place there."""
    ops, first = program.main_block.ops, table.lookups[0]
    wanted = {ops[i].inputs["Ids"][0]: i for i in table.lookups[1:]}  # the last lookup of each ids
    findings: list[Diagnostic] = []
    for index in range(first, table.lookups[-1]):
        for name in ops[index].output_names:
            if index < wanted.get(name, -1):
                message = f"the ids %{name} are made after the first lookup in %{table.parameter}, too late for it"
                findings.append(at_op("table-order", message + _REMEDY, ops[wanted[name]], focus=f"%{name}"))
    return findings


def _joined_update_errors(program: Program, table: LookupTable, updates: Sequence[Update]) -> list[Diagnostic]:
    """Errors for optimize ops of other parameters that need results of the table's optimize ops, which are not run."""
    if len(table.update.ops) == 1:
        return []
    owner = {index: update.parameter for update in updates for index in update.ops}
    for a, b in op_graph(program, sorted(owner)).edges:
        if owner[a] != owner[b] and table.parameter in (owner[a], owner[b]):
            other = owner[b] if owner[a] == table.parameter else owner[a]
            message = f"the update of %{table.parameter}, a distributed lookup table, is joined with that of %{other}"
            op = program.main_block.ops[b]
            return [at_op("table-joined", message + _REMEDY, op, focus=f"%{table.parameter}")]
    return []


def table_warnings(program: Program, table: LookupTable, trainers: int) -> list[Diagnostic]:
    """Warnings about lookups and updates of the table that differ from the program's, as in Fluid."""
    return [*_padding(program, table), *_update(program, table, trainers)]


def _padding(program: Program, table: LookupTable) -> list[Diagnostic]:
    for index in table.lookups:
        op = program.main_block.ops[index]
        padding = op.attrs.get("padding_idx", -1)
        if isinstance(padding, int) and padding >= 0:
            message = f"row {padding} of the distributed lookup table %{table.parameter} is looked up like any other, "
            message += "instead of giving zeros as padding_idx says" + _REMEDY
            focus = f"%{table.parameter}"
            return [at_op("table-padding", message, op, focus=focus, severity=Severity.WARNING)]
    return []


def _update(program: Program, table: LookupTable, trainers: int) -> list[Diagnostic]:
    optimizer = program.main_block.ops[table.update.optimizer[0]]
    changes: list[str] = []
    if optimizer.type != "sgd":
        changes.append(f"by sgd, not {optimizer.type}")
    if len(table.update.ops) > len(table.update.optimizer):
        changes.append("without weight decay or clipping")
    if trainers > 1:
        changes.append("by the sum of the trainers' gradients, not their mean")
    if not changes:
        return []
    message = f"the distributed lookup table %{table.parameter} is updated {', '.join(changes)}" + _REMEDY
    return [at_op("table-update", message, optimizer, focus=f"%{table.parameter}", severity=Severity.WARNING)]


# Sparse tables: parameters that trainers need not have, because only lookups read them.
#
# A table whose gradient is sparse stays on the servers; its lookups fetch the rows they need (remote prefetch). All
# lookups of one table become one op, if there is a place after the last of their ids and before the first use of their
# results. Otherwise, and where they differ in kind or padding, they become as few ops as possible.


class MergedLookup(NamedTuple):
    """Lookups that become one op, by index in program order; it comes right after op `after_op` (-1: at the start)."""

    lookups: tuple[int, ...]
    after_op: int


class RemoteTable(NamedTuple):
    """A parameter that stays on the servers, and its lookups."""

    parameter: str
    lookups: tuple[MergedLookup, ...]


def is_sparse(program: Program, gradient: str) -> bool:
    """Whether a gradient is sparse: SelectedRows, the rows of a table that a step used."""
    var = program.main_block.vars.get(gradient)
    return var is not None and var.kind is VarKind.SELECTED_ROWS


class RemoteTables(NamedTuple):
    """The tables to leave on the servers, the sparse parameters that can't be left there, and warnings about the
    latter.
    """

    tables: tuple[RemoteTable, ...] = ()
    local: frozenset[str] = frozenset()
    warnings: tuple[Diagnostic, ...] = ()


def sparse_parameters(program: Program, updates: Sequence[Update]) -> list[str]:
    """The parameters whose gradients are sparse, in parameter order."""
    return [update.parameter for update in updates if is_sparse(program, update.gradient)]


def find_remote_tables(
    program: Program, sparse: Sequence[str], moved: Container[int], *, distributed: bool = False
) -> RemoteTables:
    """The sparse parameters whose rows are fetched from the servers.

    A parameter that another op reads too, or whose lookups Fluid can't fuse, is left out: the trainers have and receive
    it whole. If it has lookups marked for remote prefetch, a warning says so. `distributed`: lookups marked
    `is_distributed` are fetched like those marked for remote prefetch.
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
    """The op that prevents a table from staying on the servers, and the reason; None if the table can stay there."""
    variables = program.main_block.vars
    for index in readers:
        op = program.main_block.ops[index]
        schema = schema_of(op.type)
        forward = schema_of(schema.forward) if schema is not None and schema.forward else None
        if forward is not None and forward.table_lookup:
            continue  # the gradient of a lookup needs only the height of the table
        if not _is_marked_lookup(op, marks) or op.inputs.get("W") != (parameter,):
            return index, f"{op.type} reads it on the trainer"
        ids = variables.get(op.input("Ids") or "")
        if ids is None or ids.tensor is None or len(ids.tensor.shape) != SERVED_RANK:
            return index, f"a lookup on servers takes ids of rank {SERVED_RANK}"
    return None


class _LookupRange(NamedTuple):
    """A lookup and its possible positions: after op `after_op` (-1: from the start), before op `before_op`."""

    lookup: int
    after_op: int
    before_op: int


class _Places:
    """The possible positions of merged lookups, from the readers and writers of the ids and results of given
    lookups.
    """

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

    def _window(self, lookup: int) -> _LookupRange:
        """The possible positions of a lookup: after its ids are made, and before they are overwritten or its results
        are used.
        """
        ids, result = self.ops[lookup].inputs["Ids"][0], self.ops[lookup].outputs["Out"][0]
        others = [*self.writers[ids], *self.writers[result], *self.readers[result]]
        after = max((i for i in others if i < lookup), default=-1)
        return _LookupRange(lookup, after, min((i for i in others if i > lookup), default=len(self.ops)))

    def merge(self, lookups: Sequence[int]) -> tuple[MergedLookup, ...]:
        """Merges one table's lookups into as few as their kinds, paddings and order allow.

        As in the covering of intervals by points: a lookup joins the group whose first use is the last one before its
        own, if its ids exist by then.
        """
        alike: dict[tuple[object, ...], list[_LookupRange]] = {}
        for lookup in lookups:
            op = self.ops[lookup]
            alike.setdefault((op.type, op.attrs.get("padding_idx", -1)), []).append(self._window(lookup))
        merged: list[MergedLookup] = []
        for windows in alike.values():
            group: list[_LookupRange] = []
            for window in sorted(windows, key=lambda w: (w.before_op, w.after_op)):
                if group and window.after_op >= group[0].before_op:
                    merged.append(_merge_windows(group))
                    group = []
                group.append(window)
            merged.append(_merge_windows(group))
        return tuple(sorted(merged))


def _merge_windows(group: Sequence[_LookupRange]) -> MergedLookup:
    return MergedLookup(tuple(sorted(window.lookup for window in group)), max(window.after_op for window in group))


# Large tables: tables that the job names and that begin without rows.
#
# The initialiser of such a table becomes a `large_table` with the same numbers. The initialisers of its optimizer's
# state become `large_table_state`s next to it, and its lookups are marked to be made on the servers.

TABLE, STATE = "large_table", "large_table_state"


def with_large_tables(module: Module, tables: Sequence[str]) -> Module:
    """The module in which these tables are large (`NAME rule=value ...`). Raises DiagnosticError for a table that can't
    be large.
    """
    if not tables:
        return module
    rules = dict(parse_table(text) for text in tables)
    findings: list[Diagnostic] = []
    states: dict[str, dict[str, Op]] = {name: {} for name in rules}
    programs: dict[str, Program] = {}
    for key, program in module.programs.items():
        if key != STARTUP:
            findings += _find_states(program, states)
            programs[key] = _with_lookups_on_servers(program, states)
    for name in (name for name in rules if not states[name] and not findings):
        findings.append(error("table-large", f"large_tables names {name}, which no program updates"))
    if not findings:
        startup, findings = _with_tables(module[STARTUP], rules, states)
        programs[STARTUP] = startup
    raise_errors(findings)
    return module.with_programs({key: programs[key] for key in module.programs})


def whole_readers(ops: Iterable[Op], tables: Container[str]) -> list[Diagnostic]:
    """An error for each op that reads all rows of one of these large tables, of which most don't exist."""
    findings: list[Diagnostic] = []
    for op in ops:
        for name in op.input_names:
            if name in tables and not _is_lookup(op) and not (op.input("Param") == name and "ParamOut" in op.outputs):
                message = f"it reads all rows of %{name}, a large table, of which only those exist that were trained"
                decay = [Note("weight decay of a parameter reads all its rows", None)] if op.type == "scale" else []
                findings.append(at_op("table-large", message, op, focus=f"%{name}", notes=decay))
    return findings


def made_large(startup: Program) -> dict[str, Op]:
    """The large tables that a start-up program makes, each with the op that does."""
    return {name: op for op in startup.main_block.ops if op.type == TABLE for name in op.output_names}


def require_rows(module: Module) -> None:
    """Raises DiagnosticError for ops that read all rows of a large table."""
    made = made_large(module[STARTUP])
    if made:
        programs = (program for key, program in module.programs.items() if key != STARTUP)
        raise_errors(f for program in programs for block in program.blocks for f in whole_readers(block.ops, made))


def _find_states(program: Program, states: Mapping[str, dict[str, Op]]) -> list[Diagnostic]:
    """Extends `states`: for each large table, the table itself and the optimizer's state of its rows, each by name with
    the op that updates it. Returns errors.
    """
    findings: list[Diagnostic] = []
    for op in program.main_block.ops:
        name = op.input("Param")
        if name is None or name not in states or "ParamOut" not in op.outputs:
            continue
        schema = schema_of(op.type)
        reason = ""
        if schema is None or not schema.slicing:
            reason = f"{op.type} is no optimizer whose updates can be made row by row"
        elif schema.whole_norm:
            reason = f"{op.type} takes the norm of the whole table"
        elif not is_sparse(program, op.inputs["Grad"][0]):
            reason = f"its gradient %{op.inputs['Grad'][0]} is dense; a lookup with is_sparse=true makes it sparse"
        if reason:
            findings.append(at_op("table-large", f"%{name} can't be a large table: {reason}", op, focus=f"%{name}"))
            continue
        assert schema is not None
        whole = program.main_block.vars[name].shape
        for slot, names in op.inputs.items():
            if slot != "Grad" and schema.slicing.get(slot) is Slicing.FOLLOWS:
                kept = (n for n in names if program.main_block.vars[n].shape == whole)
                states[name].update(dict.fromkeys(kept, op))
    return findings


def _with_lookups_on_servers(program: Program, tables: Mapping[str, object]) -> Program:
    """The program in which all lookups in these tables are made on the servers."""
    blocks: list[Block] = []
    for block in program.blocks:
        ops = tuple([_on_servers(op) if _is_lookup(op) and op.input("W") in tables else op for op in block.ops])
        blocks.append(block._replace(ops=ops))
    return program._replace(blocks=tuple(blocks))


def _is_lookup(op: Op) -> bool:
    schema = schema_of(op.type)
    while schema is not None and schema.forward:
        schema = schema_of(schema.forward)
    return schema is not None and schema.table_lookup


def _on_servers(op: Op) -> Op:
    return op._replace(attrs=FrozenMap({**op.attrs, "remote_prefetch": True, "is_distributed": False}))


def _with_tables(
    startup: Program, rules: Mapping[str, Rules], states: Mapping[str, Mapping[str, Op]]
) -> tuple[Program, list[Diagnostic]]:
    makers: dict[str, list[Op]] = {}
    for op in startup.main_block.ops:
        for name in op.output_names:
            makers.setdefault(name, []).append(op)
    findings: list[Diagnostic] = []
    table_ops: dict[str, list[Op]] = {}
    gone = {name for kept in states.values() for name in kept}
    for name, rule in rules.items():
        for part in states[name]:
            reason = _unfit(makers.get(part, []), is_table=part == name)
            if reason:
                findings.append(at_op("table-large", f"%{name} can't be a large table: {reason}", states[name][part]))
        if not findings:
            (own,) = makers[name]
            table_ops[name] = [
                large_table(own, rule),
                *(table_state(makers[n][0], name) for n in states[name] if n != name),
            ]
    ops: list[Op] = []
    for op in startup.main_block.ops:
        names = [*op.output_names]
        if len(names) == 1 and names[0] in gone:
            ops += table_ops.get(names[0], ())
        else:
            ops.append(op)
    block = startup.main_block._replace(ops=tuple(ops))
    return startup._replace(blocks=(block, *startup.blocks[1:])), findings


def _unfit(makers: Sequence[Op], *, is_table: bool) -> str:
    """The reason why the rows of a table or a state can't be initialised like the whole by these ops; empty if they
    can.
    """
    kinds = (*INITIALISERS, TABLE) if is_table else ("fill_constant", STATE)
    op = next(iter(makers), None)
    if op is None or len(makers) > 1 or op.type not in kinds or (any(op.input_names) and op.type != STATE):
        types = ", ".join(maker.type for maker in makers) or "nothing"
        return f"{types} initialises {'it' if is_table else 'what is kept of it'}, not one of {', '.join(kinds)}"
    if op.attrs.get("diag_num") or op.attrs.get("str_value"):
        return f"{op.type} makes rows that differ by their place, or by text"
    return ""


def large_table(op: Op, rules: Rules) -> Op:
    """The op that makes a table without rows, from the initialiser that gives the rows their first values."""
    own = {key: op.attrs[key] for key in ("min", "max", "mean", "std", "value", "seed", "dtype") if key in op.attrs}
    chosen = {key: float32(value) if isinstance(value, float) else value for key, value in rules._asdict().items()}
    if op.type == TABLE:
        attrs = {**op.attrs, **chosen}
    else:
        attrs = {"shape": Longs(ints_attr(op, "shape")), "initializer": op.type, **own, **chosen}
    return make_op(TABLE, {}, {"Out": op.outputs["Out"]}, attrs, role=op.role or OpRole.FORWARD, origin=op.origin)


def table_state(op: Op, table: str) -> Op:
    """The op that makes the optimizer's state for each row of a table, from the op that makes the whole state."""
    own = {key: op.attrs[key] for key in ("value", "dtype") if key in op.attrs}
    attrs = {"shape": Longs(ints_attr(op, "shape")), **own}
    return make_op(
        STATE, {"Table": [table]}, {"Out": op.outputs["Out"]}, attrs, role=op.role or OpRole.FORWARD, origin=op.origin
    )
