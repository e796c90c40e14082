"""The feeds of a program in each step, from arrays by name (`step_arrays`) or from a mapping for each step."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import count, cycle
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np

from pstranspile.ir.argument_checks import check_arguments, expect, path_of, require_programs, wrong_type
from pstranspile.ir.diagnostics import (
    MAX_FINDINGS,
    Diagnostic,
    DiagnosticError,
    Note,
    error,
    file_of,
    first_findings,
    name_list,
    quantity,
    raise_errors,
    warning,
)
from pstranspile.ir.model import MAIN, STARTUP, Location, Module, Program, Role, Var
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import shown_path
from pstranspile.ir.types import VarKind
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.kernels.programs.io import FEEDING
from pstranspile.runtime.run.batch import Dealt, concat_shares, rows_of
from pstranspile.runtime.run.feeds import (
    as_value,
    computed_hint,
    declared_type,
    describe,
    fits_dims,
    mismatch,
    mismatch_of_array,
    near,
    not_fed,
    overwritten_inputs,
    written_names,
)
from pstranspile.runtime.run.files import ArrayFile, place_of, write_arrays
from pstranspile.runtime.run.seeds import is_divided, without_unmade_terms
from pstranspile.runtime.values import LoDTensor, SelectedRows

# The interface of data that come in rows and are dealt to trainers, from whatever source.

FeedOf: TypeAlias = "Callable[[int], Mapping[str, Any] | None]"
"""A function from the number of a step to a trainer's feed in this step; None when the trainer has no more data."""

ENDLESS = 1 << 60
"""The number of steps of rows whose number is unknown."""


class Dealing(NamedTuple):
    """How rows were dealt so far, for a run that is continued: `data` identifies the data and its steps, `dealt` holds
    pairs (first step, number of trainers from there on): `((0, 2), (500, 4))`.

    `settings` are what `data` was made of, for messages: options and files as a user knows them, in order. A checkpoint
    of an earlier version has none.
    """

    data: str
    dealt: tuple[tuple[int, int], ...]
    settings: tuple[str, ...] = ()


_MOST_NAMED = 8
"""The most inputs of a program that an error names."""


class LeftOut(NamedTuple):
    """A row that can't be fed: its number in the file, counted from 1, and the reason.

    `line` and `column` are 0 if they are unknown.
    """

    file: str
    number: int
    reason: str
    line: int = 0
    column: int = 0


@runtime_checkable
class RowSource(Protocol):
    """A source of rows that programs are fed, such as files."""

    def feeds(self, programs: Sequence[Program]) -> tuple[list[FeedOf], int]:
        """(the feeds of the trainers with these main programs, the most steps). Raises DiagnosticError."""
        ...

    def dealing(self, trainers: int) -> Dealing:
        """How the rows are dealt among this many trainers."""
        ...

    def continued(self, before: Dealing, step: int, trainers: int) -> RowSource:
        """The same rows dealt among this many trainers from a step on; `before` describes how they were dealt until
        then.

        Raises DiagnosticError if `before` belongs to other data.
        """
        ...

    def warnings(self) -> list[Diagnostic]:
        """Warnings about rows that could not be fed."""
        ...


@runtime_checkable
class IdsAsRead(Protocol):
    """A source that looks at the ids of rows as it reads them."""

    def require_known_ids(self) -> None:
        """From now on rows are bad that hold ids for which a table of the program has no row."""
        ...


def looking_up(source: RowSource) -> RowSource:
    """The source for programs that are run, which look up the ids of its rows."""
    if isinstance(source, IdsAsRead):
        source.require_known_ids()
    return source


def refuse_turns(turns: object) -> None:
    """Raises DiagnosticError if several programs take turns, to which rows can't be fed."""
    if turns is not None:
        raise DiagnosticError([error("run-file-unusable", "rows are fed to one program; several take turns here")])


class RowFeeds:
    """The feed of a single machine."""

    def __init__(self, program: Program, source: RowSource):
        given, self.steps = source.feeds([program])
        self._feed, self._source = given[0], source
        self._step_count = 0
        """How many steps are asked for; 0 if it is not known."""

    def step(self, number: int) -> dict[str, Value]:
        """The feed of a step, counted from 0. Raises DiagnosticError, which names the step for a row that can't be
        fed.
        """
        try:
            step_feed = self._feed(number)
        except DiagnosticError as problem:
            at_step = Note(f"in step {number + 1}")
            raise DiagnosticError(
                one._replace(notes=(*one.notes, at_step)) if one.code == "data-row" else one
                for one in problem.diagnostics
            ) from None
        if step_feed is None:
            require_steps(number, max(number + 1, self._step_count), self._source)
        return dict(step_feed or {})

    def require(self, steps: int) -> None:
        """Raises DiagnosticError if there are data for fewer steps, as far as it is known before they are fed."""
        self._step_count = steps
        require_steps(self.steps, steps, self._source)


def bad_rows(feeds: Mapping[int, FeedOf], step: int) -> list[Diagnostic]:
    """What trainers, by number, say of the rows of a step that can't be fed, each finding with its trainer and step."""
    found: list[Diagnostic] = []
    for trainer, feed in feeds.items():
        try:
            feed(step)
        except DiagnosticError as problem:
            note = Note(f"on trainer_{trainer}, step {step + 1}")
            rows = [one for one in problem.diagnostics if one.code == "data-row"]
            found += [one._replace(notes=(*one.notes, note)) for one in rows]
    return found


def batches_of_rows(source: RowSource, program: Program, trainers: int, steps: int | None, most: int) -> list[Dealt]:
    """The feeds of this many trainers together in each step: their shares concatenated, and dealt out to them again so.

    `steps` is the number of steps (default: all that there are, at most `most`). Raises DiagnosticError.
    """
    feeds, there = looking_up(source).feeds([program] * trainers)
    require_steps(there, steps or 0, source)
    result: list[Dealt] = []
    for step in range(steps or min(there, most)):
        try:
            dealt = [feed(step) for feed in feeds]
        except DiagnosticError:
            raise_errors(bad_rows(dict(enumerate(feeds)), step))
            raise
        shares = [share for share in dealt if share is not None]
        if not shares:
            require_steps(step, steps or 0, source)
            break
        names = [name for name in shares[0] if is_divided(program, name)]
        _require_alike(shares, names, program, step)
        rows = {name: [None if share is None else rows_of(share[name]) for share in dealt] for name in names}
        result.append(Dealt(dict(concat_shares(shares, names)), rows))
    return result


def _require_alike(shares: Sequence[Mapping[str, Any]], divided: Container[str], program: Program, step: int) -> None:
    """Raises DiagnosticError if trainers are fed different values of an input that is not divided among them, of which
    one machine can be given only one.
    """
    for name in shares[0]:
        held = [share[name] for share in shares if name in share]
        if name not in divided and any(not _is_same(value, held[0]) for value in held[1:]):
            message = f"step {step + 1}: trainers are given different values of %{name}, which declares how many rows "
            message += "it has; one machine, which is given all rows of a batch, can't be given these together"
            note = Note(f"with -1 as its first dim, the rows of all trainers' %{name} are put one after another")
            raise DiagnosticError(
                [error("run-feed-mismatch", message, program.main_block.vars[name].location, notes=(note,))]
            )


def _is_same(one: Any, other: Any) -> bool:
    lods = [value.lod if isinstance(value, LoDTensor) else None for value in (one, other)]
    arrays = [np.asarray(value.data if isinstance(value, LoDTensor) else value) for value in (one, other)]
    return lods[0] == lods[1] and np.array_equal(*arrays, equal_nan=arrays[0].dtype.kind == arrays[1].dtype.kind == "f")


def require_steps(there: int, wanted: int, source: RowSource | None = None) -> None:
    """Raises DiagnosticError if there are data for fewer steps than `wanted` (`ENDLESS`: as many as there are).

    `source` is where they come from.
    """
    if there >= wanted or wanted >= ENDLESS:
        return
    place, at = getattr(source, "place", ""), None
    if place:
        message = f"{place} gives batches for {quantity(there, 'step')}; {wanted} are asked for"
    else:
        files: Sequence[str] = getattr(source, "files", ())
        rows = f"the rows of it and of {quantity(len(files) - 1, 'more file')}" if len(files) > 1 else "the rows"
        message = (
            f"{rows} are enough for {quantity(there, 'step')}, {wanted} are asked for; --epochs has them fed again"
        )
        at = Location(shown_path(files[0])) if files else None
    raise DiagnosticError([error("run-file-unusable", message, at)])


# The values of a variable in several steps as arrays by name, which is the content of files of feeds and of results.
#
# If all steps have the same shape, `x` is [steps, ...]. A ragged `x` is the concatenated rows of all steps, and
# `x@LENS` holds the lengths of its sequences, [steps, batch].
#
# If shapes change, or sequences consist of sequences, each step has arrays of its own. `3|x` is x in step 3; steps
# count from 1. For a ragged x, `3|x|0` holds the lengths of the outermost sequences, [batch]; `3|x|1` those of the
# sequences inside these, and so on; the last ones count rows. A step in which x had no value has no arrays.

LENGTHS = "@LENS"
"""The end of the name of the array that holds the lengths of a ragged input's sequences in all steps."""

_OF_STEP = Pattern(r"([0-9]{1,9})\|(.+)", re.DOTALL)


class StepKey(NamedTuple):
    """The parts of the name of an array of one step: the step, counted from 1, the variable, and the level of the
    lengths that the array holds, counted from 0 (-1: it holds the value).
    """

    step: int
    name: str
    level: int


def step_key(key: str, names: Container[str]) -> StepKey | None:
    """The parts of an array's name if the array is of one step, else None; `names` are the names of variables."""
    match = None if key in names else _OF_STEP.fullmatch(key)
    if match is None:
        return None
    step, name = int(match[1]), match[2]
    rest, bar, level = name.rpartition("|")
    if name not in names and bar and level.isdecimal() and len(level) < 10:
        return StepKey(step, rest, int(level))
    return StepKey(step, name, -1)


def variable_of(key: str, names: Container[str]) -> str:
    """The variable to which an array belongs."""
    if key in names:
        return key
    result = step_key(key, names)
    return result.name if result is not None else key.removesuffix(LENGTHS)


def arrays_of(name: str, values: Sequence[Value]) -> dict[str, Any]:
    """The arrays for the values of a variable in each step. A value may be None, which leaves out the step.

    Raises DiagnosticError for values that no array can hold.
    """
    for value in values:
        if value is not None and not isinstance(value, np.ndarray | LoDTensor):
            what = "sparse rows" if isinstance(value, SelectedRows) else describe(value)
            raise DiagnosticError([error("run-save-impossible", f"{name} holds {what}, which an .npz file can't")])
    if not values:
        return {name: np.zeros((0,), "float32")}
    if all(value is None for value in values):
        return {}
    if len({_form(value) for value in values}) > 1 or (isinstance(values[0], LoDTensor) and len(values[0].lod) != 1):
        return _by_step(name, values)
    if isinstance(values[0], LoDTensor):
        lengths = np.stack([np.diff(value.lod[0]) for value in values])
        return {name: np.concatenate([value.data for value in values]), f"{name}{LENGTHS}": lengths}
    return {name: np.stack(values)}


def _form(value: Value) -> object:
    """A key that is equal for values that fit into one array."""
    if isinstance(value, LoDTensor):
        return value.data.dtype, value.data.shape[1:], tuple(len(level) for level in value.lod[:1])
    return None if value is None else (value.dtype, value.shape)


def _by_step(name: str, values: Sequence[Value]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for step, value in enumerate(values, 1):
        if isinstance(value, LoDTensor):
            result[f"{step}|{name}"] = value.data
            result.update((f"{step}|{name}|{place}", np.diff(level)) for place, level in enumerate(value.lod))
        elif value is not None:
            result[f"{step}|{name}"] = value
    return result


def step_arrays(name: str, values: Sequence[Value]) -> dict[str, Any]:
    """The values of a variable in every step, as arrays of a file of results: the names of `arrays_of` after `step/`.

    Raises DiagnosticError for values that no array can hold.
    """
    return {f"step/{key}": array for key, array in arrays_of(name, values).items()}


def feed_arrays(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The arrays of a feed file, by name, for the feeds of each step.

    Raises DiagnosticError for values that no array can hold.
    """
    names = dict.fromkeys(name for batch in batches for name in batch)
    result: dict[str, Any] = {}
    for name in names:
        values = [batch.get(name) for batch in batches]
        if any(value is None for value in values):
            step = next(step for step, value in enumerate(values, 1) if value is None)
            raise DiagnosticError([error("run-save-impossible", f"{name} is fed, but not in step {step}")])
        result |= arrays_of(name, [_as_array(name, v) for v in values])
    return result


def _as_array(name: str, value: Any) -> Any:
    """A fed value as an array, unless it is a LoDTensor or SelectedRows. Raises DiagnosticError for uneven rows."""
    if isinstance(value, LoDTensor | SelectedRows):
        return value
    try:
        return np.asarray(value)
    except ValueError:
        message = f"{name} holds rows of different lengths, which make no array; LoDTensor(rows, lod=...) holds such"
        raise DiagnosticError([error("run-save-impossible", message)]) from None


@check_arguments
def save_feeds(path: str | os.PathLike[str], batches: Sequence[Mapping[str, Any]]) -> None:
    """Writes a feed file (`.npz`) for the feeds of each step, by name: arrays or LoDTensors of any shapes.

    Raises DiagnosticError for values that no file can hold, and when it can't be written; TypeError for other
    arguments.
    """
    if not batches:
        raise ValueError("save_feeds takes a list of mappings, one for each step, at least one")
    name = path_of(path, "save_feeds")
    expect(batches, Sequence, "save_feeds", "a list of mappings, one for each step")
    for batch in batches:
        expect(batch, Mapping, "save_feeds", "a list of mappings, one for each step")
        _require_names(cast("Mapping[object, Any]", batch), "save_feeds", "values by name, a mapping for each step")
    write_arrays(name, feed_arrays(batches))


GivenFeeds: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any]]"
"""Arrays by name (`step_arrays`), or the feeds of each step by name."""

WANTED = "what is fed as arrays by name, or a list of mappings (one for each step)"


def batches_of(given: Any, who: str, wanted: str = WANTED) -> list[Mapping[str, Any]] | None:
    """The feeds of each step, None if arrays are given. Raises TypeError for other values and for other names."""
    if isinstance(given, Mapping):
        _require_names(cast("Mapping[object, Any]", given), who, wanted)
        return None
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise wrong_type(who, wanted, given)
    for batch in cast("Sequence[Any]", given):
        expect(batch, Mapping, who, wanted)
        _require_names(batch, who, wanted)
    return list(cast("Sequence[Mapping[str, Any]]", given))


def _require_names(batch: Mapping[object, Any], who: str, wanted: str) -> None:
    other = next((name for name in batch if not isinstance(name, str)), "")
    if not isinstance(other, str):
        raise TypeError(f"{who} takes {wanted}; one name is of type {type(other).__name__}")


def _first_step(array: Any) -> Any:
    """The value of the first step; a number as an array without dims."""
    return np.asarray(array[0]) if isinstance(array, np.ndarray) else array[0]


class Feeds:
    """The feeds of all steps. `steps` is their number, None if nothing is fed.

    Raises DiagnosticError for every array that doesn't fit. Feeds that are given step by step are checked in their
    step.
    """

    def __init__(self, program: Program, given: GivenFeeds):
        self._place = place_of(given)
        self._variables = program.main_block.vars
        self._overwritten = overwritten_inputs(program)
        self._arrays: dict[str, Any] = {}
        self._ragged: dict[str, tuple[Any, list[tuple[int, int, list[int]]]]] = {}
        self._values: dict[str, list[Value]] = {}
        """The values of each step, for inputs with arrays for each step."""
        self._unstepped: list[str] = []
        """The arrays that have the dims of one step."""
        self._without = ""
        """What shows that arrays hold no step; "" where they do."""
        self._batches = batches_of(given, "Feeds")
        self.steps = len(self._batches) if self._batches is not None else None
        if isinstance(given, Mapping):
            self._read(given)

    def _read(self, arrays: Mapping[str, Any]) -> None:
        counts: dict[str, int] = {}
        findings: list[Diagnostic] = []
        by_step: dict[str, dict[StepKey, str]] = {}
        for key, array in arrays.items():
            of_step = step_key(key, self._variables)
            if of_step is not None:
                by_step.setdefault(of_step.name, {})[of_step] = key
            else:
                findings += self._of_all_steps(key, array, arrays, counts)
            if len(findings) >= MAX_FINDINGS:
                raise_errors(first_findings(findings))
        for name, keys in by_step.items():
            if len(findings) >= MAX_FINDINGS:
                raise_errors(first_findings(findings))
            if name in counts:
                key = next(iter(keys.values()))
                findings.append(self._problem(f"{name} has an array for all steps, and {key} besides"))
            elif name not in self._variables:
                findings.append(self._undeclared_error(name))
            else:
                findings += self._add_by_step(self._variables[name], keys, arrays, counts)
        if len(set(counts.values())) > 1:
            steps = ", ".join(f"{name} {count}" for name, count in counts.items())
            findings.append(self._problem(f"the inputs have different numbers of steps: {steps}"))
        raise_errors(self._with_axis(self._with_inputs(findings)))
        self.steps = next(iter(counts.values()), None)
        if self.steps == 0:
            name = next(iter(counts))
            key = name if name in self._arrays else f"{name}{LENGTHS}"
            self._without = f"{key} is {describe(arrays[key])}, and its first dim counts them"

    def _problem(self, message: str) -> Diagnostic:
        return error("run-file-unusable", message, self._place)

    def _undeclared_error(self, name: str) -> Diagnostic:
        return self._problem(f"the program declares no variable {name}{near(name, self._variables)}")

    def _with_inputs(self, findings: list[Diagnostic]) -> list[Diagnostic]:
        """The findings; if the last one is about a variable that the program does not declare, it names the program's
        inputs.
        """
        inputs = [f"%{var.name}" for var in self._variables.values() if var.need_check_feed]
        last = max((at for at, one in enumerate(findings) if "declares no variable" in one.message), default=-1)
        if inputs and last >= 0:
            note = Note(f"the inputs of the program are {name_list(inputs, _MOST_NAMED)}")
            findings[last] = findings[last]._replace(notes=(*findings[last].notes, note))
        return findings

    def _with_axis(self, findings: list[Diagnostic]) -> list[Diagnostic]:
        """The findings; the last one says how an axis of steps is added, where arrays lack it."""
        if self._unstepped:
            name = self._unstepped[0]
            batch, *dims = self._variables[name].shape
            hint = f"{name}[None] is one step"
            if batch < 0 <= min(dims, default=0):
                hint += f", {name}.reshape({', '.join(map(str, ['STEPS', -1, *dims]))}) divides its rows into steps"
            lacking = name_list(self._unstepped, _MOST_NAMED)
            note = Note(f"the first dim of an array counts steps, which is not there in {lacking}: {hint}")
            findings[-1] = findings[-1]._replace(notes=(*findings[-1].notes, note))
        return findings

    # one array for all steps

    def _of_all_steps(
        self, key: str, array: Any, arrays: Mapping[str, Any], counts: dict[str, int]
    ) -> Iterable[Diagnostic]:
        whole = key.removesuffix(LENGTHS)
        if whole != key and whole in arrays:
            return
        if whole != key and whole in self._variables:
            yield self._problem(f"{key} holds lengths of sequences, but there is no {whole}")
        elif key not in self._variables:
            yield self._undeclared_error(key)
        elif f"{key}{LENGTHS}" in arrays:
            yield from self._add_ragged(self._variables[key], array, arrays[f"{key}{LENGTHS}"], counts)
        else:
            yield from self._add(self._variables[key], array, counts)

    def _add(self, var: Var, given: Any, counts: dict[str, int]) -> Iterable[Diagnostic]:
        array = as_value(var, given)
        if not hasattr(array, "ndim"):
            what = mismatch(var, array, any_dims=True) or f"is fed {describe(array)}"
            said = f"{var.name} is declared {declared_type(var)}, but {what}"
            yield self._problem(f"{said}; an array has a value for each step")
            return
        if not array.ndim:
            yield self._problem(f"{var.name} has no leading step axis: it is {describe(array)}")
            return
        levels = var.tensor.lod_level if var.kind is VarKind.LOD_TENSOR and var.tensor is not None else 0
        if levels == 1:
            needed = f"{var.name}{LENGTHS}, the lengths of its sequences: [steps, batch]"
            yield self._problem(f"{var.name} is declared {declared_type(var)}, and comes without {needed}")
        elif levels:
            needed = (
                f"1|{var.name} for its rows in step 1, and {_array_names(StepKey(1, var.name, -1), levels)} for lengths"
            )
            yield self._problem(f"{var.name} is declared {declared_type(var)}; it needs arrays for each step: {needed}")
        else:
            counts[var.name] = len(array)
            self._arrays[var.name] = array
            if len(array) and (problem := mismatch(var, _first_step(array), any_dims=var.name in self._overwritten)):
                if fits_dims(var, array.shape):
                    self._unstepped.append(var.name)
                yield self._problem(f"{var.name} is declared {declared_type(var)}, but in each step {problem}")

    def _add_ragged(self, var: Var, rows: Any, lengths: Any, counts: dict[str, int]) -> Iterable[Diagnostic]:
        if var.tensor is None or var.tensor.lod_level != 1:
            yield self._problem(f"{var.name} is declared {declared_type(var)}, it can't have {var.name}{LENGTHS}")
        elif lengths.ndim != 2 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
            yield self._problem(f"{var.name}{LENGTHS} must hold lengths: whole numbers [steps, batch], none below 0")
        elif not rows.ndim or int(lengths.sum()) != len(rows):
            yield self._problem(f"{var.name} is {describe(rows)}, but its lengths add up to {lengths.sum()}")
        elif problem := mismatch_of_array(var, rows, any_dims=var.name in self._overwritten):
            yield self._problem(f"{var.name} is declared {declared_type(var)}, but {problem}")
        else:
            counts[var.name] = len(lengths)
            ends = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))])
            offsets = np.concatenate([np.zeros((len(lengths), 1), "int64"), np.cumsum(lengths, axis=1)], axis=1)
            spans = zip(ends[:-1], ends[1:], offsets, strict=True)
            self._ragged[var.name] = (rows, [(int(a), int(b), row.tolist()) for a, b, row in spans])

    # an array for each step

    def _add_by_step(
        self, var: Var, keys: Mapping[StepKey, str], arrays: Mapping[str, Any], counts: dict[str, int]
    ) -> Iterable[Diagnostic]:
        steps = {key.step for key in keys}
        missing = next(step for step in range(len(steps) + 1) if step + 1 not in steps) + 1
        if missing <= len(steps):
            other = keys[max(keys)]
            counting = "; steps count from 1" if 0 in steps else ""
            yield self._problem(f"there is {other}, but no {missing}|{var.name} for step {missing}{counting}")
            return
        levels = var.tensor.lod_level if var.tensor is not None else 0
        by_step: dict[int, dict[int, Any]] = {step: {} for step in sorted(steps)}
        for key, spelled in keys.items():
            by_step[key.step][key.level] = arrays[spelled]
        counts[var.name] = len(steps)
        values = self._values[var.name] = []
        for step, result in by_step.items():
            key = StepKey(step, var.name, -1)
            if result.keys() != {-1, *range(levels)}:
                yield self._wrong_set(var, key, result, levels)
                return
            rows, lengths = result[-1], [result[level] for level in range(levels)]
            problem = _length_problem(key, rows, lengths)
            values.append(rows if problem or not lengths else LoDTensor(rows, [_offsets(level) for level in lengths]))
            problem = problem or mismatch(var, values[-1], any_dims=var.name in self._overwritten)
            if problem:
                yield self._problem(f"step {step}: {var.name} is declared {declared_type(var)}, but {problem}")
                return

    def _wrong_set(self, var: Var, key: StepKey, result: Mapping[int, Any], levels: int) -> Diagnostic:
        """The error for a step with an array too few or too many."""
        head = f"step {key.step}: {var.name} is declared {declared_type(var)}"
        for level in (-1, *range(levels)):
            if level not in result:
                what = "its rows" if level < 0 else "the lengths of its sequences"
                return self._problem(f"{head}, but {what} are missing: an array {_array_name(key, level)}")
        extra = _array_name(key, max(result))
        return self._problem(f"{head}, it can't have {extra}")

    # feeds of a step

    def step(self, number: int) -> dict[str, Value]:
        """The feed of a step, counted from 0."""
        if self._batches is not None:
            return dict(self._batches[number])
        feed: dict[str, Value] = {name: array[number] for name, array in self._arrays.items()}
        for name, (rows, spans) in self._ragged.items():
            start, stop, offsets = spans[number]
            feed[name] = LoDTensor(rows[start:stop], [offsets])
        feed.update((name, values[number]) for name, values in self._values.items())
        return feed

    def require(self, steps: int) -> None:
        """Raises DiagnosticError if there are fewer steps."""
        if self._without and steps:
            raise DiagnosticError([self._problem(f"it holds no step: {self._without}")])
        if self.steps is not None and self.steps < steps:
            raise DiagnosticError([self._problem(f"{self.steps} steps are fed, {steps} are asked for")])


def _array_name(key: StepKey, level: int) -> str:
    return f"{key.step}|{key.name}" + (f"|{level}" if level >= 0 else "")


def _array_names(key: StepKey, levels: int) -> str:
    return " and ".join(_array_name(key, level) for level in range(levels))


def _offsets(lengths: Any) -> list[int]:
    return [0, *np.cumsum(lengths, dtype="int64").tolist()]


def _length_problem(key: StepKey, rows: Any, lengths: Sequence[Any]) -> str:
    """What is wrong with the lengths of the sequences of one step, "" if nothing."""
    for level, array in enumerate(lengths):
        spelled = _array_name(key, level)
        if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
            return f"{spelled} must hold lengths: whole numbers [sequences], none below 0"
        within = lengths[level + 1] if level + 1 < len(lengths) else rows
        count, total = len(within) if within.ndim else 0, int(array.sum(dtype="int64"))
        if count != total or (array > count).any():
            what = (
                f"{_array_name(key, level + 1)} holds {count}" if within is not rows else f"it is fed {describe(rows)}"
            )
            return f"the lengths in {spelled} add up to {total}, and {what}"
    return ""


# The schedule of the programs of a module: `main*5,generator,evaluation/10`.
#
# A step is one run of one program. The items of a cycle take turns repeatedly: `NAME`, or `NAME*COUNT` for several
# steps in a row. An item `NAME/EVERY` is not in the cycle: its program is run in an extra step after every so many
# steps of the cycle. A name may be written with the `@` of the text.


# Feeds of several programs: `x` is for every program that has this input, `generator/x` for one program.
#
# The steps of an array are the runs of the program that it is fed to. Feeds that are given for each step, without
# arrays of several steps, belong to the steps of the whole run.

_TRAINER = Pattern(r"trainer_\d+/")


def arrays_by_program(
    arrays: Mapping[str, Any], programs: Mapping[str, Program], run: Iterable[str]
) -> dict[str, ArrayFile]:
    """The arrays of each program in `run`, by their names in this program (a prefix `trainer_<i>/` stays).

    `programs` are all programs of the module; arrays for one that is not run are left out. Raises DiagnosticError for
    an array that belongs to no program.
    """
    place = place_of(arrays)
    result = {name: ArrayFile({}, place.file if place else "") for name in run}
    special: set[tuple[str, str]] = set()
    inputs = {name: inputs_of(program) for name, program in programs.items()}
    for key in sorted(arrays, key=lambda key: not _owner(key, programs)):  # arrays for one program take precedence
        match = _TRAINER.match(key)
        prefix = match[0] if match else ""
        name = key[len(prefix) :]
        owner = _owner(key, programs)
        if owner:
            name = name[len(owner) + 1 :]
            special.add((owner, variable_of(name, inputs[owner])))
        of = {other: variable_of(name, known) for other, known in inputs.items()}
        places = [owner] if owner else [other for other, known in inputs.items() if of[other] in known]
        if not places:
            known = [other for program in programs.values() for other in program.main_block.vars]
            message = f"no program has an input {name}{near(name, known)}"
            raise DiagnosticError([error("run-file-unusable", message, place)])
        for other in places:
            if other in result and (owner or (other, of[other]) not in special):
                result[other][prefix + name] = arrays[key]
    return result


def _owner(key: str, programs: Mapping[str, Program]) -> str:
    """The program whose name an array's name begins with, "" if there is none."""
    match = _TRAINER.match(key)
    name, slash, _ = key[match.end() if match else 0 :].partition("/")
    return name if slash and name in programs else ""


def inputs_of(program: Program) -> set[str]:
    """The inputs of a program: variables that are not persistable and that no op writes, or that an op `feed` of a
    saved program takes from what is fed.
    """
    fed = {name for op in program.main_block.ops if op.type == "feed" for name in op.output_names}
    written = written_names(program) - fed
    return {name for name, var in program.main_block.vars.items() if not var.persistable and name not in written}


def unfed_inputs(main: Program, startup: Program | None, fed: Collection[str]) -> dict[str, Diagnostic]:
    """Errors, by name, for the inputs that block 0 of a main program reads and that are not fed.

    They are known before the run, because no op writes these variables, and they are not persistable.
    """
    program = without_unmade_terms(main)
    variables, known = program.main_block.vars, {*written_names(program), *fed}
    known |= written_names(startup) if startup is not None else frozenset[str]()
    result: dict[str, Diagnostic] = {}
    for op in program.main_block.ops:
        for name in op.input_names:
            var = variables.get(name)
            if var is not None and not var.persistable and var.kind is VarKind.LOD_TENSOR and name not in known:
                result.setdefault(name, not_fed(op, var))
    return result


def require_inputs(roles: Sequence[Role], given: GivenFeeds | None, source: Module | None) -> None:
    """Raises DiagnosticError if trainers read inputs that are not among the arrays, or if nothing is given.

    If the source program of the roles is known, the errors point at its lines.
    """
    if given is not None and not isinstance(given, Mapping):
        return
    for number, role in enumerate(roles):
        own = {_TRAINER.sub("", key) for key in given or () if key.startswith(f"trainer_{number}/")}
        own |= {key for key in given or () if not _TRAINER.match(key)}
        fed = {variable_of(key, role.main.main_block.vars) for key in own}
        absent = unfed_inputs(role.main, role.startup, fed)
        of_source = unfed_inputs(source.main, source.startup, fed) if absent and source is not None else {}
        raise_errors(of_source.get(name, problem) for name, problem in absent.items())


def declared_arrays(arrays: ArrayFile, programs: Mapping[str, Program]) -> tuple[ArrayFile, list[Diagnostic]]:
    """The arrays of a file for variables that one of the programs declares, and a warning that names
    the other arrays.
    """
    left: dict[str, None] = {}
    fed: set[str] = set()
    result = ArrayFile({}, arrays.file)
    for key, array in arrays.items():
        match, owner = _TRAINER.match(key), _owner(key, programs)
        name = key[match.end() if match else 0 :]
        own = [programs[owner]] if owner else programs.values()
        name = name[len(owner) + 1 :] if owner else name
        variables = [variable_of(name, program.main_block.vars) for program in own]
        if any(variable in program.main_block.vars for variable, program in zip(variables, own, strict=True)):
            result[key] = array
            fed.update(variables)
        else:
            left[variables[0]] = None
    return result, left_out_of_feed(left, programs.values(), fed, place_of(arrays))


def left_out_of_feed(
    names: Collection[str], programs: Iterable[Program], fed: Collection[str], place: Location | None
) -> list[Diagnostic]:
    """A list with the warning about data that no input of a program takes; empty without `names`.

    A name that is similar to that of an unfed input has a note.
    """
    if not names:
        return []
    known = [*programs]
    inputs = {name for program in known for name in inputs_of(program)}
    inputs |= {n for one in known for op in one.main_block.ops if op.type in FEEDING for n in op.output_names}
    unfed = sorted(inputs - {*fed})
    hints = ((name, near(name, unfed)) for name in names)
    notes = tuple(Note(f"{name}{hint}") for name, hint in hints if hint)[:_MOST_NAMED]
    message = f"no input of the program takes {name_list(names, _MOST_NAMED)}: left out"
    return [warning("run-feed-unknown", message, place)._replace(notes=notes)]


def of_everybody(arrays: Mapping[str, Any]) -> ArrayFile:
    """The arrays that belong to all trainers."""
    place = place_of(arrays)
    return ArrayFile({k: array for k, array in arrays.items() if not _TRAINER.match(k)}, place.file if place else "")


class ProgramFeeds:
    """The feeds of all steps of several programs that take turns. `steps` is the number of possible steps, None if it
    is unlimited.

    Raises DiagnosticError.
    """

    def __init__(self, programs: Mapping[str, Program], turns: Turns, given: GivenFeeds):
        self._turns = turns
        self._place = place_of(given)
        self._batches = batches_of(given, "Feeds")
        self.by_program: dict[str, Feeds] = {}
        self.steps = len(self._batches) if self._batches is not None else None
        if isinstance(given, Mapping):
            by_program = arrays_by_program(given, programs, turns.names)
            self.by_program = {name: Feeds(programs[name], by_program[name]) for name in turns.names}
            self.steps = turns.steps_within({name: feeds.steps for name, feeds in self.by_program.items()})

    def step(self, number: int) -> dict[str, Value]:
        """The feed of a step, counted from 0."""
        if self._batches is not None:
            return dict(self._batches[number])
        return self.by_program[self._turns.program(number)].step(self._turns.runs_before(number))

    def require(self, steps: int) -> None:
        """Raises DiagnosticError if the feeds of a program suffice for fewer steps."""
        if self.steps is None or self.steps >= steps:
            return
        if self._batches is not None:
            message = f"{self.steps} steps are fed, {steps} are asked for"
        else:
            name = self._turns.program(self.steps)
            enough = f"which is enough for {self.steps} steps; {steps} are asked for"
            message = f"@{name} is fed {self.by_program[name].steps} times, {enough}"
        raise DiagnosticError([error("run-file-unusable", message, self._place)])


_ITEM = Pattern(r"@?(?P<name>[^*/,@\s]+)(?:(?P<how>[*/])(?P<number>[1-9][0-9]{0,5}))?")


class Turns:
    """The program of every step, counted from 0. `names` are the programs that may be run, `text`
    describes the turns.
    """

    def __init__(self, order: Iterable[str], names: Iterable[str], text: str = ""):
        self.names = tuple(names)
        self.text = text
        self._order: Iterator[str] = iter(order)
        self._turns_by_step: list[tuple[str, int]] = []
        self._runs: dict[str, int] = {}

    def _at(self, step: int) -> tuple[str, int]:
        while len(self._turns_by_step) <= step:
            name = next(self._order)
            runs = self._runs.get(name, 0)
            self._runs[name] = runs + 1
            self._turns_by_step.append((name, runs))
        return self._turns_by_step[step]

    def program(self, step: int) -> str:
        """The name of the program that is run in a step."""
        return self._at(step)[0]

    def runs_before(self, step: int) -> int:
        """How often the program of a step was run in earlier steps, which is the index of its batch in this step."""
        return self._at(step)[1]

    def steps_within(self, batches: Mapping[str, int | None]) -> int | None:
        """The number of steps until a program has no batch left; None if it is unlimited.

        `batches` maps each program to the number of its batches, None if nothing is fed to it.
        """
        if not self.text or all(batches.get(name) is None for name in self.names):
            return None
        for step in count():
            most = batches.get(self.program(step))
            if most is not None and self.runs_before(step) >= most:
                return step
        return None


GivenTurns: TypeAlias = "str | Turns | Callable[[int, int], str]"
"""A text that describes turns, Turns, or a function of trainer and step that returns the name of a program."""


def parse_turns(text: str, programs: Iterable[str]) -> Turns:
    """The turns that a text describes; `programs` are the possible names. Raises DiagnosticError (`program-turns`)."""
    known = [name for name in programs if name != STARTUP]
    repeated: list[str] = []
    between: list[tuple[str, int]] = []
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise _turns_error(f"{item.strip() or text!r} is no program: NAME, NAME*COUNT or NAME/EVERY is needed")
        name, number = match["name"], int(match["number"] or 1)
        if name not in known:
            others = " and ".join(f"@{other}" for other in known)
            why = "the start-up program is run once, before all steps" if name == STARTUP else f"there is {others}"
            raise _turns_error(f"@{name} can't be run in steps: {why}{near(name, known)}")
        if match["how"] == "/":
            between.append((name, number))
        else:
            repeated += [name] * number
    if not repeated:
        raise _turns_error(f"{text}: nothing is run in between; a program without /EVERY is needed")
    return Turns(_program_order(repeated, between), dict.fromkeys([*repeated, *(name for name, _ in between)]), text)


def _turns_error(message: str) -> DiagnosticError:
    return DiagnosticError([error("program-turns", message)])


def _program_order(repeated: Sequence[str], between: Sequence[tuple[str, int]]) -> Iterator[str]:
    for done, name in enumerate(cycle(repeated), start=1):
        yield name
        yield from (other for other, every in between if done % every == 0)


def turns_of(given: GivenTurns, programs: Iterable[str], trainer: int = 0) -> Turns:
    """Turns of any form, for one trainer. Raises DiagnosticError for a text that can't be read."""
    if isinstance(given, Turns):
        return given
    if isinstance(given, str):
        return parse_turns(given, programs)
    chosen = given
    if not callable(chosen):  # pyright: ignore[reportUnnecessaryComparison]
        raise wrong_type("programs", "a text such as main*5,generator, or a function of trainer and step", given)
    names = [name for name in programs if name != STARTUP]
    return Turns((_one_of(chosen(trainer, step), names) for step in count()), names)


def _one_of(name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise _turns_error(f"@{name} is to be run, but there is no such program{near(name, names)}")
    return name


def step_programs(module: Module) -> dict[str, Program]:
    """The programs of a module that can be run in steps, @main first. Raises DiagnosticError if it has no @main."""
    require_programs(module, (MAIN,))
    others = {name: program for name, program in module.programs.items() if name not in (MAIN, STARTUP)}
    return {MAIN: module.main, **others}


def union_of(programs: Iterable[Program]) -> Program:
    """One program with the declarations and ops of all programs, for analysis, not to be run.

    A variable that is persistable in one of them is persistable in it.
    """
    first, *others = programs
    if not others:
        return first
    variables = dict(first.main_block.vars)
    for program in others:
        for name, var in program.main_block.vars.items():
            if name not in variables or (var.persistable and not variables[name].persistable):
                variables[name] = var
    ops = tuple(op for program in (first, *others) for op in program.main_block.ops)
    block = first.main_block._replace(vars=type(first.main_block.vars)(variables), ops=ops)
    return first._replace(blocks=(block, *first.blocks[1:]))


def fetches_by_program(
    asked: Sequence[str], programs: Mapping[str, Program], default: Callable[[Program], Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """The fetched variables of each program. `asked` are variables (`NAME`: of every program that declares it) and
    variables of one program (`PROGRAM/NAME`); if it is empty, `default` returns the variables for a program.

    Raises DiagnosticError for a variable that no program declares.
    """
    if not asked:
        return {name: tuple(default(program)) for name, program in programs.items()}
    result: dict[str, dict[str, None]] = {name: {} for name in programs}
    for item in asked:
        owner, slash, rest = item.partition("/")
        if slash and owner in programs:
            places, name = ([owner] if rest in programs[owner].main_block.vars else []), rest
        else:
            places, name = [p for p, program in programs.items() if item in program.main_block.vars], item
        if not places:
            names = [n for program in programs.values() for n in program.main_block.vars]
            ran = programs[owner] if slash and owner in programs else next(iter(programs.values()))
            hint = near(name, names) or computed_hint(ran)
            message = f"{item} is fetched, but no program that is run declares {name}{hint}"
            raise DiagnosticError([error("run-fetch-unknown", message, file_of(ran.main_block.ops))])
        for place in places:
            result[place][name] = None
    return {name: tuple(names) for name, names in result.items()}
