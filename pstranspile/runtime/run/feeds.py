"""Checks of fed values against the declarations of a program and against what it does with them, and of fetched values.

Inputs whose rows an op takes side by side must have as many in a step. Ids are looked up in tables, which must have
such rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.ir.diagnostics import (
    Diagnostic,
    DiagnosticError,
    Note,
    at_op,
    did_you_mean,
    error,
    file_of,
    name_list,
    quantity,
    raise_errors,
)
from pstranspile.ir.model import Op, Program, TensorType, Var
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ir.types import VarKind
from pstranspile.ops import facts_of, schema_of
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.facts import Below
from pstranspile.ops.gradient import SUFFIX
from pstranspile.ops.shapes import ShapeError, TypeOf, Types, fits, infer_types
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.kernels.numeric import all_ids
from pstranspile.runtime.kernels.programs.io import FEEDING
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor, SelectedRows

# Descriptions of values for messages.

_TEXT = {name: dtype.text for dtype, name in NUMPY_TYPES.items()}


def describe(value: Value) -> str:
    """A description of a value: `f32[8, 13]`, `f32[20, 4] in 3 sequences`, `3 rows of 100, f32[3, 16]`, ..."""
    if value is None:
        return "nothing"
    if isinstance(value, LoDTensor):
        levels = " of ".join(str(len(level) - 1) for level in value.lod)
        return f"{describe(value.data)} in {levels} sequences"
    if isinstance(value, SelectedRows):
        return f"{len(value.rows)} rows of {value.height}, {describe(value.value)}"
    if isinstance(value, LargeTable):
        return f"{len(value)} rows of the {value.height} x {value.width} of a large table"
    if isinstance(value, TableState):
        return "a state of the rows of a large table"
    if isinstance(value, np.ndarray):
        name = str(value.dtype)
        return f"{_TEXT.get(name, name)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, list):
        return f"an array of {len(value)} tensors"  # pyright: ignore[reportUnknownArgumentType]
    return type(value).__name__


def numbers_of(value: Value) -> Array | None:
    """The numbers of a value as one array; None for a value without numbers."""
    if isinstance(value, LoDTensor):
        return value.data
    if isinstance(value, SelectedRows):
        return value.value
    return value if isinstance(value, np.ndarray) else None


def describe_values(values: Iterable[tuple[str, Value]]) -> str:
    """A description of several variables: `x f32[8, 13], w f32[13, 1]`."""
    return ", ".join(f"{name} {describe(value)}" for name, value in values)


def is_number(value: object) -> bool:
    """Whether a value is a single number."""
    return getattr(value, "size", 0) == 1 and hasattr(value, "ravel")


def size_in_bytes(value: Value) -> int:
    """The memory of a value's numbers."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, LoDTensor):
        return int(value.data.nbytes)
    if isinstance(value, SelectedRows):
        return int(value.rows.nbytes + value.value.nbytes)
    if isinstance(value, LargeTable):
        return value.nbytes
    if isinstance(value, list):
        return sum(size_in_bytes(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
    return 0


def near(name: str, names: Iterable[str]) -> str:
    """The hint `; did you mean x?` if one of the names is similar to `name`, otherwise ""."""
    return did_you_mean(name, names)


def written_names(program: Program) -> frozenset[str]:
    """The variables that ops of the program write."""
    return frozenset(name for block in program.blocks for op in block.ops for name in op.output_names)


def changed_names(program: Program) -> frozenset[str]:
    """The variables that ops of the program write, except for those that readers write, whose value is the fed one."""
    ops = (op for block in program.blocks for op in block.ops if op.type not in FEEDING)
    return frozenset(name for op in ops for name in op.output_names)


def overwritten_inputs(program: Program) -> frozenset[str]:
    """The variables that ops overwrite, so that their declared dims may not be those of a fed value.

    Variables marked `feed` are not among them.
    """
    variables = program.main_block.vars
    return frozenset(
        name for name in changed_names(program) if name in variables and not variables[name].need_check_feed
    )


def check_feeds(program: Program, feed: Mapping[str, Any]) -> dict[str, Value]:
    """The fed values in the form that the program takes. Raises DiagnosticError for every value that doesn't fit.

    Lists and numbers become arrays of the declared element type; an array must have this type already.
    """
    findings: list[Diagnostic] = []
    taken: dict[str, Value] = {}
    variables = program.main_block.vars
    for name, value in feed.items():
        var = variables.get(name)
        if var is None:
            message = f"{name} is fed, but the program declares no such variable{near(name, variables)}"
            findings.append(error("run-feed-unknown", message, file_of(program.main_block.ops)))
            continue
        made = as_value(var, value)
        problem = mismatch(var, made) and mismatch(var, made, any_dims=name in overwritten_inputs(program))
        if problem:
            findings.append(
                error("run-feed-mismatch", f"{name} is declared {declared_type(var)}, but {problem}", var.location)
            )
        taken[name] = made
    if findings:
        raise DiagnosticError(findings)
    return taken


def as_value(var: Var, value: Any) -> Value:
    """Plain Python numbers and lists as an array of the declared element type, numpy's numbers as arrays without dims;
    other values as they are.
    """
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, int | float | list | tuple) and not isinstance(value, LoDTensor | SelectedRows):
        try:
            return np.array(value, dtype=NUMPY_TYPES[var.dtype] if var.dtype else None)
        except (ValueError, TypeError, OverflowError):  # no numbers, or rows of different lengths
            return cast("Value", value)
    return value


def declared_type(var: Var) -> str:
    """The declared type of a variable: `f32[-1, 13]`, with its LoD level if it has one."""
    if var.tensor is None:
        return var.kind.name
    dims = ", ".join(map(str, var.shape))
    level = f" with {var.tensor.lod_level} LoD level{'s' * (var.tensor.lod_level > 1)}" if var.tensor.lod_level else ""
    return f"{var.tensor.dtype.text}[{dims}]{level}"


def mismatch(var: Var, value: Value, *, any_dims: bool = False) -> str:
    """The reason why a value doesn't fit a variable, "" if it fits. With `any_dims` its dims are not checked."""
    if var.kind is not VarKind.LOD_TENSOR or var.tensor is None:
        return ""
    if isinstance(value, LoDTensor):
        return _lod_problem(var, value) or mismatch_of_array(var, value.data, any_dims=any_dims)
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return f"is fed a {kind} that makes no array: it holds other than numbers, or uneven rows"
    if not isinstance(value, np.ndarray):
        return f"is fed {describe(value)}"
    if var.tensor.lod_level:
        return f"is fed {describe(value)} without LoD; feed LoDTensor(data, lod=[[0, ...]])"
    return mismatch_of_array(var, value, any_dims=any_dims)


def mismatch_of_array(var: Var, data: Any, *, any_dims: bool = False) -> str:
    """The reason why the element type or dims of an array don't fit a variable, "" if they fit."""
    assert var.tensor is not None
    wanted = NUMPY_TYPES[var.tensor.dtype]
    if data.dtype != wanted:
        return f"is fed {describe(data)}; convert it with .astype('{wanted}')"
    return "" if any_dims or fits_dims(var, data.shape) else f"is fed {describe(data)}"


def fits_dims(var: Var, shape: Sequence[int]) -> bool:
    """Whether an array of these dims fits the declared ones of a variable."""
    return len(shape) == len(var.shape) and all(d in (-1, n) for d, n in zip(var.shape, shape, strict=True))


def _lod_problem(var: Var, value: LoDTensor) -> str:
    assert var.tensor is not None
    levels: Any = value.lod
    if levels.__class__ not in (list, tuple) or not all(hasattr(level, "__len__") for level in levels):
        return "is fed a LoDTensor whose lod is no list of lists of offsets"
    if len(value.lod) != var.tensor.lod_level:
        return f"is fed {len(value.lod)} LoD levels"
    if offsets_fit(value):
        return ""
    counts = [*(len(level) - 1 for level in value.lod[1:]), len(value.data)]
    for level, count in zip(value.lod, counts, strict=True):
        rises = list(level) == sorted(level)
        if not level or level[0] != 0 or level[-1] != count or not rises:
            return f"is fed with the offsets {level}, which must rise from 0 to {count}"
    return ""


def offsets_fit(value: LoDTensor) -> bool:
    """Whether the offsets of every level ascend from 0 to the number of sequences or rows below; False also for offsets
    that are no lists.
    """
    count = len(value.data)
    for level in reversed(value.lod):
        if level.__class__ is not list or not level or level[0] != 0 or level[-1] != count or sorted(level) != level:
            return False
        count = len(level) - 1
    return True


def missing(program: Program, op: Op, slot: str, name: str, find: Callable[[str], Value | None]) -> DiagnosticError:
    """The error for an op that reads a variable without a value. If the variable is an input, the error names all
    inputs that are not fed.
    """
    var = program.find_var(name)
    if var is not None and var.persistable:
        hint = ": no start-up program has given it one, and no initial value was given"
        return DiagnosticError([at_op("run-uninitialised", f"{name} ({slot}) has no value{hint}", op, focus=name)])
    written = written_names(program)
    if name in written or var is None:
        message = f"{name} ({slot}) has no value yet: no op before this one has given it one"
        return DiagnosticError([at_op("run-uninitialised", message, op, focus=name)])
    absent: dict[str, Diagnostic] = {}
    for reader in program.main_block.ops:
        for other in reader.input_names:
            needed = program.main_block.vars.get(other)
            if needed is None or needed.persistable or other in written or other in absent:
                continue
            if find(other) is None:
                absent[other] = not_fed(reader, needed)
    return DiagnosticError(absent.values() or [at_op("run-feed-missing", f"{name} is not fed", op, focus=name)])


def not_fed(op: Op, var: Var) -> Diagnostic:
    """The error for an op that reads an input which is not fed."""
    message = f"{var.name} is an input of the program, declared {declared_type(var)}, and is not fed"
    return at_op("run-feed-missing", message, op, focus=var.name)


def computed_hint(program: Program) -> str:
    """`; it computes x, y and 3 more`: the variables that a program computes, but not its gradients."""
    written = dict.fromkeys(name for op in program.main_block.ops for name in op.output_names)
    names = [name for name in written if name and SUFFIX not in name]
    return f"; it computes {name_list(names)}" if names else ""


def fetch_problem(program: Program, name: str) -> Diagnostic:
    """The error for a fetched variable that has no value."""
    variables = program.main_block.vars
    if name not in variables:
        hint = near(name, variables) or computed_hint(program)
        message = f"{name} is fetched, but the program declares no such variable{hint}"
    else:
        message = f"{name} is fetched, but has no value after the run"
    return error("run-fetch-unknown", message, file_of(program.main_block.ops))


def fetched_value(program: Program, name: str, value: Value | None) -> Value:
    """A copy of a fetched value, which later steps don't change. Raises DiagnosticError if there is none."""
    if value is None:
        raise DiagnosticError([fetch_problem(program, name)])
    return own_copy(value)


# The ids in what is fed: which tables they are looked up in, and whether these have such rows.


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

    def missing_ids_mask(self, ids: Array) -> Array | None:
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


class UnknownId(NamedTuple):
    """An id that a table has no row for: the row of the batch that holds it, counted from 0, the id, and the table."""

    input: str
    row: int
    id: int
    table: Table

    def to_diagnostic(self, place: str) -> Diagnostic:
        """The error; `place` says where the row is from, such as `step 3 of feed.npz`."""
        message = f"{self.table.describe('Ids', self.id)}: row {self.row + 1} of {self.input} in {place}"
        return at_op("run-feed-mismatch", message, self.table.op)


def wrong_ids(tables: Mapping[str, Sequence[Table]], feed: Mapping[str, Any]) -> Iterator[UnknownId]:
    """The first id of each input of a step that a table has no row for."""
    for name, known in tables.items():
        value: Any = feed.get(name)
        ids: Any = value.data if isinstance(value, LoDTensor) else value
        if not isinstance(ids, np.ndarray) or ids.dtype.kind != "i" or not ids.ndim:
            continue
        for table in known:
            wrong = table.missing_ids_mask(ids)
            if wrong is not None:
                place: Any = np.argwhere(wrong)[0]
                yield UnknownId(name, row_of(value, int(place[0])), int(ids[tuple(place)]), table)
                break


def row_of(value: Any, element: int) -> int:
    """The row of a value that holds an element of its first dim; of a ragged value, the sequence."""
    if isinstance(value, LoDTensor):
        for level in reversed(value.lod):
            element = int(np.searchsorted(level, element, side="right")) - 1
    return element


# What is fed in one step, compared with what the program does with it.


class UnequalRows(NamedTuple):
    """Two inputs with different numbers of rows, and the op that brings their rows together."""

    inputs: tuple[str, str]
    rows: tuple[int, int]
    op: Op

    def to_diagnostic(self, place: str) -> Diagnostic:
        """The error; `place` says where the rows are from, such as `step 3 of feed.npz`."""
        (one, other), (first, second) = self.inputs, self.rows
        message = (
            f"{one} has {quantity(first, 'row')} and {other} has {second:,} in {place}, which it takes side by side"
        )
        single = one if first == 1 else other
        declaring = f"{single} is declared with -1 rows; a single row for all others is declared with 1"
        notes = [Note(declaring)] if 1 in self.rows else []
        return at_op("run-feed-mismatch", message, self.op, notes=notes)


class FedRows:
    """Compares the rows of a program's inputs in each step.

    Compared are arrays whose input is declared with the first dim -1 and no LoD. Inputs may have different numbers of
    rows where no op takes a row of one beside the same row of the other.
    """

    def __init__(self, program: Program):
        self._program = program
        self._open_inputs: dict[str, Var] = {
            name: var
            for name, var in program.main_block.vars.items()
            if not var.persistable and var.tensor is not None and var.shape[:1] == (-1,) and not var.tensor.lod_level
        }
        self._differences: dict[tuple[tuple[str, tuple[int, ...]], ...], UnequalRows | None] = {}
        """What was found for the dims of the arrays of a step."""

    def row_mismatch(self, feed: Mapping[str, Any]) -> UnequalRows | None:
        """The first two inputs of a step that have different numbers of rows although an op takes them side by side."""
        given = {
            name: value.shape for name, value in feed.items() if name in self._open_inputs and self._fits(name, value)
        }
        if len({shape[:1] for shape in given.values()}) < 2:
            return None
        key = tuple(given.items())
        if key not in self._differences:
            self._differences[key] = self._search(given)
        return self._differences[key]

    def _fits(self, name: str, value: Any) -> bool:
        """Whether a value is an array with the declared dims, whatever its rows."""
        dims = self._open_inputs[name].shape
        return isinstance(value, np.ndarray) and len(value.shape) == len(dims) and fits(value.shape[1:], dims[1:])

    def _search(self, shapes: Mapping[str, tuple[int, ...]]) -> UnequalRows | None:
        types: dict[str, TensorType] = {}
        origins = {name: frozenset([name]) for name in shapes}
        for name, shape in shapes.items():
            tensor = self._open_inputs[name].tensor
            assert tensor is not None
            types[name] = tensor._replace(shape=shape)

        def declared_tensor(name: str) -> TensorType | None:
            var = self._program.find_var(name)
            return None if var is None else var.tensor

        def known_tensor(name: str) -> TensorType | None:
            return types.get(name) or declared_tensor(name)

        for op in self._program.main_block.ops:
            input_origins = frozenset[str]().union(*(origins.get(name, frozenset()) for name in op.input_names))
            if not input_origins:
                continue
            result_types: Types = {}
            try:
                result_types = infer_types(op, known_tensor)
                meet = _side_by_side(op, types, origins)
            except ShapeError:
                meet = (
                    [*input_origins]
                    if _fits(op, declared_tensor) and _fits_with_equal_rows(op, known_tensor, origins)
                    else []
                )
            for one, other in combinations([name for name in shapes if name in meet], 2):
                if shapes[one][0] != shapes[other][0]:
                    return UnequalRows((one, other), (shapes[one][0], shapes[other][0]), op)
            for slot, names in op.outputs.items():
                for name, tensor in zip(names, result_types.get(slot, (None,) * len(names)), strict=False):
                    types.pop(name, None)
                    origins[name] = input_origins
                    if tensor is not None and tensor.shape:
                        types[name] = tensor
        return None


class FedInputs:
    """Checks what a program is fed in each step; with `any_id` ids may be such that no table has a row for them."""

    def __init__(self, program: Program, *, any_id: bool = False):
        self._rows = FedRows(program)
        self._tables = {} if any_id else tables_of(program)

    def require(self, feed: Mapping[str, Any], place: str) -> None:
        """Raises DiagnosticError for inputs whose rows don't fit together, and for ids that a table has no row for;
        `place` says where they are from.
        """
        apart = self._rows.row_mismatch(feed)
        if apart is not None:
            raise DiagnosticError([apart.to_diagnostic(place)])
        raise_errors(wrong.to_diagnostic(place) for wrong in wrong_ids(self._tables, feed))


def _side_by_side(op: Op, types: Mapping[str, TensorType], origins: Mapping[str, frozenset[str]]) -> list[str]:
    """The inputs of the program whose rows an op takes side by side, though they are not as many; else none."""
    schema = schema_of(op.type)
    names = [name for name in dict.fromkeys(op.input_names) if origins.get(name) and name in types]
    if schema is None or not schema.row_wise or len(names) < 2 or op.attrs.get("axis", -1) not in (-1, 0):
        return []
    alike = {len(types[name].shape) for name in names}
    rows = {types[name].shape[0] for name in names if types[name].shape}
    if len(rows) < 2 or min(rows) < 0 or (len(alike) > 1 and op.attrs.get("axis", -1) != 0):
        return []
    return [origin for name in names for origin in origins[name]]


def _fits(op: Op, declared: Any) -> bool:
    """Whether the declared dims of an op's inputs fit together, so that only the rows of a step do not."""
    try:
        infer_types(op, declared)
    except ShapeError:
        return False
    return True


def _fits_with_equal_rows(op: Op, known: Any, origins: Mapping[str, frozenset[str]]) -> bool:
    """Whether what an op is given in a step would fit together if its inputs had as many rows as one of them."""
    given = {name: known(name) for name in op.input_names}
    open_rows = {name for name, tensor in given.items() if origins.get(name) and tensor is not None and tensor.shape}
    rows = {given[name].shape[0] for name in open_rows}

    def with_row_count(count: int) -> TypeOf:
        return lambda name: (
            given[name]._replace(shape=(count, *given[name].shape[1:])) if name in open_rows else known(name)
        )

    return any(_fits(op, with_row_count(count)) for count in rows)
