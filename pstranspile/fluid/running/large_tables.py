"""Tables of scripts with a row for every id, of which only the trained rows exist.

`entry_attr` of 2.x are rules by which rows are added to a table of `sparse_embedding`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.compiler.analysis.tables import STATE, TABLE, large_table, made_large, table_state, whole_readers
from pstranspile.fluid.communicator import warn_unused
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.ir.attributes import AttrValue, Long, Longs, Strings
from pstranspile.ir.diagnostics import DiagnosticError, at_op, error, raise_errors
from pstranspile.ir.model import Block, FrozenMap, Module, Op, Program, Var
from pstranspile.ir.table_rules import Rules, most_rows, takes_any_id
from pstranspile.ops import schema_of
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.build import make_op
from pstranspile.ops.tables.embedding import INITIALISERS
from pstranspile.runtime.large.forms import table_from_parts
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows
from pstranspile.runtime.values.encoding import decode_selected_rows, open_reader, read_tensor


class EntryAttr:
    """The base class of rules by which rows are added to a table."""

    rules = Rules()

    def to_attr(self) -> str:
        """The rule as text."""
        raise NotImplementedError(f"{type(self).__name__} has no rule")

    def _to_attr(self) -> str:
        return self.to_attr()


class CountFilterEntry(EntryAttr):
    """A rule that adds a row when it has had `count_filter` gradients. Raises ValueError unless that is a whole number
    of at least 0.
    """

    def __init__(self, count_filter: int):
        if not isinstance(count_filter, int) or count_filter < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"count_filter is a whole number from 0 on, not {count_filter!r}")
        self.rules = Rules(enter_after=max(count_filter, 1))
        self._count = count_filter

    def to_attr(self) -> str:
        """The rule as text."""
        return f"count_filter_entry:{self._count}"


class ProbabilityEntry(EntryAttr):
    """A rule that adds a row with a probability, at each of its gradients. Raises ValueError unless the probability is
    between 0 and 1.
    """

    def __init__(self, probability: float):
        if not isinstance(probability, float) or not 0 < probability < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"probability is a float between 0 and 1, not {probability!r}")
        self.rules = Rules(enter_chance=probability)

    def to_attr(self) -> str:
        """The rule as text."""
        return f"probability_entry:{self.rules.enter_chance}"


class ShowClickEntry(EntryAttr):
    """A rule with the names of the variables that count how often each sample was shown and clicked; rows are added
    with their first gradient.

    In 2.x these counts decide which rows are saved and which are removed. Here a row is removed according to its last
    gradient, which is reported on stderr. Raises ValueError if the names are not texts.
    """

    def __init__(self, show_name: str, click_name: str):
        if not (isinstance(show_name, str) and isinstance(click_name, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"show_name and click_name are names of variables, not {show_name!r} and {click_name!r}")
        self._names = show_name, click_name
        reason = "rows leave by when they had a gradient last, and all are saved"
        warn_unused("ShowClickEntry(show_name, click_name)", ", ".join(self._names), reason)

    def to_attr(self) -> str:
        """The rule as text."""
        return ":".join(("show_click_entry", *self._names))


def make_large(table: Any, rules: Rules) -> None:
    """Makes a parameter, which the start-up program in use initialises, a table with a row for every id.

    The declared height is kept in the attribute `declared_rows`. Raises DiagnosticError for an initialiser that is not
    the same for all rows.
    """
    startup: Any = table.block.program.live().startup_program
    first, dims = startup.drafts[0], (most_rows(table.shape[1]), table.shape[1])

    def make_large_op(op: Any) -> Any:
        if table.name not in op.output_names or op.type == TABLE:
            return op
        if op.type not in INITIALISERS:
            message = f"%{table.name}: {op.type} does not begin all rows alike; take one of {', '.join(INITIALISERS)}"
            raise DiagnosticError([error("table-large", message)])
        high = large_table(op, rules)
        return high._replace(
            attrs=FrozenMap({**high.attrs, "shape": Longs(dims), "declared_rows": Long(table.shape[0])})
        )

    for ops in (first.front, first.ops):
        ops[:] = map(make_large_op, ops)
    for draft in (first, table.block.draft):
        var = draft.vars[table.name]
        draft.vars[table.name] = var._replace(tensor=var.tensor._replace(shape=dims))


def _looks_up(op: Any) -> bool:
    schema = schema_of(op.type)
    return schema is not None and schema.table_lookup


def make_looked_up_large(program: Any) -> None:
    """Makes parameters that only sparse lookups read into tables with a row for every id, looked up on servers.

    Paddle 2.x does so in a job with servers. A parameter that other ops read too, or whose initialiser differs by row,
    keeps its declared height.
    """
    ops = [op for draft in program.drafts for op in draft.all_ops()]
    readers: dict[str, list[Op]] = {}
    for op in ops:
        for name in op.input_names:
            readers.setdefault(name, []).append(op)
    startup = program.live().startup_program.drafts[0]
    makers = {name: op.type for op in startup.all_ops() for name in op.output_names}
    for table in program.all_parameters():
        read = readers.get(table.name, [])
        kinds = {_looks_up(op) and op.attrs.get("remote_prefetch") is True for op in read}
        if (
            kinds == {True}
            and len(table.shape) == 2
            and table.regularizer is None
            and makers.get(table.name) in INITIALISERS
        ):
            make_large(table, Rules())


def open_tables(startup: Program) -> dict[str, tuple[int, int]]:
    """The tables with a row for every id that a start-up program makes, in the order of their names: the declared
    height (0: none), and the width of a row.
    """
    made = made_large(startup)
    shapes = {name: ints_attr(op, "shape") for name, op in sorted(made.items())}
    return {
        name: (int_attr(made[name], "declared_rows"), shape[1]) for name, shape in shapes.items() if takes_any_id(shape)
    }


def with_dims(module: Module, dims: Mapping[tuple[int, ...], tuple[int, ...]]) -> Module:
    """A module with other dims for its large tables and every variable of the same dims: `dims` maps the present dims
    to the new ones.
    """

    def op_with_dims(op: Op) -> Op:
        if op.type not in (TABLE, STATE):
            return op
        shape = ints_attr(op, "shape")
        return op._replace(attrs=FrozenMap({**op.attrs, "shape": Longs(dims.get(shape, shape))}))

    def with_shape(var: Var) -> Var:
        if var.tensor is None or var.tensor.shape not in dims:
            return var
        return var._replace(tensor=var.tensor._replace(shape=dims[var.tensor.shape]))

    programs: dict[str, Program] = {}
    for name, program in module.programs.items():
        blocks = (
            block._replace(
                vars=FrozenMap({key: with_shape(var) for key, var in block.vars.items()}),
                ops=tuple(map(op_with_dims, block.ops)),
            )
            for block in program.blocks
        )
        programs[name] = program._replace(blocks=tuple(blocks))
    return module.with_programs(programs)


def make_states_large(startup: Any, states: Mapping[str, Iterable[str]]) -> None:
    """Makes the optimizer's states for tables with a row for every id start without rows.

    `states` has the names of each parameter's states.
    """
    first = startup.drafts[0]
    made = _made_large(first)
    high = {
        name: table
        for table in states
        if table in made
        for name in states[table]
        if first.vars[name].shape == first.vars[table].shape
    }
    if not high:
        return
    kept = [(op, high[name]) for op in first.all_ops() for name in op.output_names if name in high]
    gone = {id(op) for op, _ in kept}
    for ops in (first.front, first.ops):
        ops[:] = [op for op in ops if id(op) not in gone]
    first.ops += [table_state(op, table) for op, table in kept]  # after the tables


def _made_large(first: Any) -> set[str]:
    return {name for op in first.all_ops() if op.type == TABLE for name in op.output_names}


def require_rows_alone(program: Any, startup: Any) -> None:
    """Raises DiagnosticError for ops of a program that read all rows of a table with a row for every id."""
    made = _made_large(startup.drafts[0])
    if made:
        raise_errors(found for draft in program.drafts for found in whole_readers(draft.all_ops(), made))


def require_rows_here(program: Program, scope: Mapping[str, Any]) -> None:
    """Raises DiagnosticError where a program looks rows up in a local table although its rows are on servers."""
    for block in program.blocks:
        for op in block.ops:
            table = scope.get(op.inputs["W"][0]) if _looks_up(op) else None
            if isinstance(table, SelectedRows) and not len(table.rows):
                message = (
                    "servers hold the rows of its table, and this program does not ask them; clone it after minimize"
                )
                raise DiagnosticError([at_op("table-large", message, op, focus=f"%{op.inputs['W'][0]}")])


def shrink_program(machine: Any, unseen: int) -> Program:
    """A trainer's program that makes servers remove rows from their tables with a row for every id.

    It removes rows that had no gradient since the call `unseen` - 1 calls before this one.
    """
    roles, endpoints = machine.compiled.roles(), machine.compiled.plan.pservers
    ops: list[Op] = []
    for placed in layout_of(machine.compiled).variables.values():
        for part in placed.parts:
            starting = roles[part.machine].startup.main_block.ops
            if any(op.type == TABLE and part.name in op.output_names for op in starting):
                endpoint = endpoints[int(part.machine.rpartition("_")[2])]
                attrs: dict[str, AttrValue] = {"epmap": Strings([endpoint]), "table": part.name, "unseen": unseen}
                ops.append(make_op("shrink_table", {}, {}, attrs))
    return Program((Block(ops=tuple(ops)),))


def shrink_tables(scope: Scope, unseen: int) -> None:
    """Removes rows that had no gradient since the call `unseen` - 1 calls before this one from the tables of a machine
    that trains alone.
    """
    for table in scope.values_here.values():
        if isinstance(table, LargeTable):
            table.shrink_after(unseen)


def say_beyond(name: str, ids: Array, rows: int) -> None:
    """Reports on stderr how many rows of a table with these `ids` are not in a model of `rows` rows, if any."""
    count = int(np.count_nonzero((ids < 0) | (ids >= rows)))
    if count:
        print(
            f"{name}: the {count} rows of ids from {rows} on, the height of its declaration, are not in the model",
            file=sys.stderr,
        )


def whole_values(scope: Scope, names: Iterable[str], heights: Mapping[str, tuple[int, int]]) -> dict[str, Array]:
    """The values of all rows of the large tables and of their states among the variables, by name, each [rows, width].

    `heights` has the number of rows and the width of each table with a row for every id.
    """
    values: dict[str, Array] = {}
    for name in names:
        value = scope.get(name)
        owner, table = (value.table, scope.get(value.table)) if isinstance(value, TableState) else (name, value)
        if not isinstance(table, LargeTable):
            continue
        ids = np.arange(heights[owner][0] if owner in heights else table.height)
        if isinstance(value, TableState):
            places = table.find(ids)
            values[name] = np.full((len(ids), table.width), value.value, table.dtype)
            values[name][places >= 0] = table.take(places[places >= 0])[:, value.number]
        else:
            values[name] = table.look_up(ids)
            say_beyond(name, table.index.ids_by_place, len(ids))
    return values


def set_whole_values(scope: Scope, values: Mapping[str, Array]) -> set[str]:
    """Sets the first rows of the large tables and of their states among the variables; returns the names of the
    variables set.

    The tables then have no other rows; a state that is not in `values` gets its first value in every row. Raises
    ValueError for other dims than [rows, width], and for states without their table.
    """
    held = {name: scope.get(name) for name in values}
    tables = {name: value for name, value in held.items() if isinstance(value, LargeTable)}
    states = {name: value for name, value in held.items() if isinstance(value, TableState) and value.table in tables}
    for name, value in held.items():
        if isinstance(value, TableState) and name not in states:
            raise ValueError(f"{name} is what rows of {value.table} keep, which is not set with it")
    for name, whole in values.items():
        table = tables[states[name].table] if name in states else tables.get(name)
        count = len(whole) if whole.ndim and table is not None and table.any_id else table.height if table else 0
        if table is not None and whole.shape != (count, table.width):
            raise ValueError(f"{name} has the dims {[count, table.width]}, the file {list(whole.shape)}")
    for name, table in tables.items():
        ids = np.arange(len(values[name]))
        rows = np.empty((len(ids), *table.without_rows().dims), table.dtype)
        rows[:] = np.array([0.0, *table.states])[:, None]
        rows[:, 0] = values[name]
        for key, state in states.items():
            if state.table == name:
                count = min(len(ids), len(values[key]))
                rows[:count, state.number] = values[key][:count]
        made = table.like()
        made.set_rows(ids, rows)
        scope.put(name, made)
    return {*tables, *states}


def load_tables(scope: Scope, files: Mapping[str, tuple[Path, int]]) -> set[str]:
    """Loads the large tables and their states among the variables; returns their names.

    `files` has for each variable its file, and the index of the first element in that file of the part that is loaded.
    Raises DiagnosticError for a file that can't be read, or does not fit.
    """
    values = {name: scope.get(name) for name in files}
    tables = {name: value for name, value in values.items() if isinstance(value, LargeTable)}
    states = {name: value for name, value in values.items() if isinstance(value, TableState) and value.table in tables}
    for name, table in tables.items():
        own = sorted((value.number, key) for key, value in states.items() if value.table == name)
        path, first = files[name]
        try:
            parts = [rows_of(files[key][0]) for key in (name, *(key for _, key in own))]
            scope.put(name, table_from_parts(table, parts, first // table.width))
        except ValueError as problem:
            raise DiagnosticError([error("values-shape", f"{path}: {problem}")]) from None
    return {*tables, *states}


def rows_of(path: Path) -> SelectedRows:
    """The rows in a file of selected rows, or in a file of a whole table that a machine training alone has written."""
    try:
        with open_reader(path) as reader:
            return decode_selected_rows(reader)
    except DiagnosticError as problem:
        try:
            whole = read_tensor(path)
        except DiagnosticError:
            raise problem from None
        if isinstance(whole, LoDTensor) or whole.ndim != 2:
            raise
        return SelectedRows(np.arange(len(whole)), whole, len(whole))


__getattr__ = names_of_fluid(__name__, globals())
