"""Prepares the values that a script feeds and fetches for runs: checks them, joins them over devices, and converts them
to the declared element types.

In repeated runs a feed that has the form of an earlier one is not checked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid.graph.block import Operator
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.values import Fetched, numpy_name, several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.lod_tensor import LoDTensor, from_core, to_core
from pstranspile.fluid.running.communicating import talks
from pstranspile.fluid.running.devices import RunFeed, merge_device_values
from pstranspile.fluid.running.watchers import tell_run, watchers
from pstranspile.fluid.scope import Scope
from pstranspile.ir.model import FrozenMap, Var
from pstranspile.ir.model import Program as FrozenProgram
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.user_warnings import warn
from pstranspile.runtime.kernels.programs.io import FEEDING
from pstranspile.runtime.run.batch import rows_of
from pstranspile.runtime.run.feeds import near
from pstranspile.runtime.run.prepared import latest_of
from pstranspile.runtime.values import LoDTensor as CoreLoDTensor

# Chooses the random numbers of a program's variables, where a script builds more than one program.
#
# Random numbers depend on the names of variables, and the counters that names contain go on from program to program. So
# that two programs that are built alike start alike, a variable draws the numbers that it would draw if its program
# were the first.

_COUNTED = Pattern(r"(.*?)_(\d+)(?=\.|\Z)", re.DOTALL)
"""Matches a name that contains the number of a counter: `fc_5.w_0` is the sixth `fc`."""


def drawn_as(program: Program, frozen: FrozenProgram) -> Mapping[str, tuple[str, int]]:
    """The variables that draw another variable's random numbers: name -> (name of the other variable, 0).

    A name whose counter had a number when the program was made draws as if the counter had been 0, unless the program
    also has names with lower numbers.
    """
    if not program.name_counters:
        return {}
    found: dict[str, list[tuple[str, int, str]]] = {}
    for block in frozen.blocks:
        for name in block.vars:
            match = _COUNTED.match(name)
            if match and match[1] in program.name_counters:
                found.setdefault(match[1], []).append((name, int(match[2]), name[match.end() :]))
    result: dict[str, tuple[str, int]] = {}
    for key, names in found.items():
        first = program.name_counters[key]
        if min(number for _, number, _ in names) >= first:
            result.update((name, (f"{key}_{number - first}{rest}", 0)) for name, number, rest in names)
    return result


class Facts(NamedTuple):
    """The facts of a program that every run needs."""

    program: FrozenProgram
    reads: frozenset[str]
    """Names of the variables that ops read, or that are fed."""
    persistable_names: frozenset[str]
    """Names of the variables that are kept from run to run."""
    drawn_names: Mapping[str, tuple[str, int]]
    """The variables that draw another variable's random numbers (see `drawn_as`)."""
    talks: bool
    """Whether ops that the script itself has written communicate with other machines."""


def facts_of(live: Program, program: FrozenProgram) -> Facts:
    """The facts of a program, from its frozen form and from `live`, the form that the script has."""
    ops = [op for block in program.blocks for op in block.ops]
    reads = (name for op in ops for name in (op.output_names if op.type in FEEDING else op.input_names))
    kept = (var.name for block in program.blocks for var in block.vars.values() if var.persistable)
    return Facts(program, frozenset(reads), frozenset(kept), drawn_as(live, program), talks(program))


def name_of(item: Any) -> str:
    """The name of a fed or fetched variable. Raises TypeError for a value that is neither a variable nor a name."""
    if isinstance(item, Variable):
        return item.name
    if isinstance(item, str):
        return item
    raise TypeError(f"fetch_list takes variables and their names, not a value of type {type(item).__name__}")


def split_fetch_list(fetch_list: Any) -> tuple[list[str], list[Operator]]:
    """The names of the variables in a `fetch_list`, and its ops that update: results of `minimize`, alone, in lists or
    in the pair that it returns.

    Raises TypeError for other values, and for ops that update nothing.
    """
    if fetch_list is None:
        return [], []
    items: list[Any] = [*fetch_list] if isinstance(fetch_list, list | tuple | set) else [fetch_list]  # pyright: ignore[reportUnknownVariableType]
    names: list[str] = []
    updates: list[Operator] = []
    for item in items:
        if item.__class__ is Variable:  # the usual case
            names.append(item.name)
            continue
        group: Any = item[0] if isinstance(item, tuple) else item  # pyright: ignore[reportUnknownVariableType]
        ones: list[Any] = [*group] if several(group) else [group]
        for one in ones:
            if not isinstance(one, Operator):
                names.append(name_of(one))
            elif one._is_optimize_op():  # pyright: ignore[reportPrivateUsage]
                updates.append(one)
            else:
                raise TypeError(f"an op of type {one.type} was given to fetch; only ops that update parameters can be")
    return names, updates


def normalize_feed(feed: Any, devices: int) -> RunFeed:
    """A feed for one device, or the feeds of several devices joined into one with their rows one after the other.

    Devices without a dict have no rows. Raises TypeError for other values, ValueError for an empty list and for more
    feeds than devices.
    """
    if several(feed):
        for part in feed:
            if not isinstance(part, Mapping):
                raise TypeError(f"what is fed is a dict by name, or a list of one for each device, not of {part!r:.60}")
        if not 0 < len(feed) <= devices:
            raise ValueError(f"{len(feed)} feeds for {devices} device{'s' * (devices > 1)}")
        return join_feeds(feed)
    if feed is None:
        return RunFeed({}, {})
    if not isinstance(feed, Mapping):
        raise TypeError(f"what is fed is a dict by name, not a {type(feed).__name__}")
    return RunFeed(dict(feed), {})  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def join_feeds(feeds: Sequence[Mapping[Any, Any]]) -> RunFeed:
    """The feeds of several devices joined into one."""
    names = list(dict.fromkeys(name for part in feeds for name in part))
    rows = {name: [rows_of(to_core(part[name])) for part in feeds] for name in names}
    if len(feeds) == 1:
        return RunFeed(dict(feeds[0]), rows)
    if any(len({_dims(part[name])[1:] for part in feeds if name in part}) > 1 for name in names):
        return RunFeed(dict(feeds[0]), rows, feeds)
    return RunFeed({name: rows_together([part[name] for part in feeds]) for name in names}, rows)


def _dims(value: Any) -> tuple[int, ...]:
    value = to_core(value)
    return np.shape(getattr(value, "data", value))


def fed_names(feed: Any) -> list[str]:
    """The names in a feed, which is for one device or for several."""
    parts: list[Any] = [*feed] if several(feed) else [feed or {}]
    return list(dict.fromkeys(name_of(name) for part in parts for name in part))


def rows_together(values: Sequence[Any]) -> Any:
    """The rows of several tensors in one LoDTensor, with their sequences."""
    data = np.concatenate([np.asarray(value) for value in values])
    if not all(isinstance(value, LoDTensor) and value.lod() for value in values):
        return LoDTensor(data)
    result = LoDTensor(data)
    lengths = [value.recursive_sequence_lengths() for value in values]
    result.set_recursive_sequence_lengths([list(chain(*levels)) for levels in zip(*lengths, strict=True)])
    return result


def convert_fed_value(value: Any, var: Any) -> Any:
    """A fed value in the form that runs take: lists become arrays of the declared element type, a number an array of
    one element.
    """
    value = to_core(value)
    if isinstance(value, CoreLoDTensor):
        return value if value.lod else value.data
    kind = numpy_name(var.dtype) if var is not None and var.dtype is not None else None
    if isinstance(value, int | float | np.generic):
        return np.array([value], kind)
    return np.asarray(value, kind) if several(value) else value


def fitting(facts: Facts, fed: Mapping[Any, Any], names: Sequence[str], devices: int) -> dict[str, Any]:
    """The values of a feed that a run uses, by name. Warns of names that the program does not declare, and of those
    that no op reads; both are left out.

    Raises ValueError for a value that does not fit a variable of `fluid.data`.
    """
    variables = facts.program.main_block.vars
    result: dict[str, Any] = {}
    for key, value in fed.items():
        name = name_of(key)
        var = variables.get(name)
        if var is None:
            warn(f"{name} is fed, and is no variable of the program{near(name, variables)}")
            continue
        made = convert_fed_value(value, var)
        if var.need_check_feed:
            check_feed_shape_type(var, to_core(value) if isinstance(value, LoDTensor) else made, devices)
        if name in facts.reads or name in names or var.persistable:
            result[name] = made
    return result


def check_feed_shape_type(var: Any, feed: Any, num_places: int = 1) -> bool:
    """True if a value fits a variable, of which each of several devices gets a share. Raises ValueError if not, with
    the text that scripts compare with.

    As in Fluid, a value with fewer dims than declared fits if its dims are the first ones.
    """
    tensor = getattr(var, "tensor", None) or var.var.tensor
    data = feed if isinstance(feed, np.ndarray) else np.asarray(getattr(feed, "data", feed))
    shape = list(data.shape)
    if num_places > 1 and shape:
        shape[0] = -(-shape[0] // num_places)
    if isinstance(feed, CoreLoDTensor) and feed.lod and shape:
        shape[0] = tensor.shape[0] if tensor.shape else shape[0]
    pairs = zip(tensor.shape, shape, strict=False)
    many = len(shape) > len(tensor.shape) or (not shape and tensor.shape)
    if many or any(-1 not in (wish, dim) and wish != dim for wish, dim in pairs):
        raise ValueError(
            f"The fed Variable {var.name!r} should have dimensions = {len(tensor.shape)!r}, "
            f"shape = {tuple(tensor.shape)!r}, but received fed shape {shape!r} on each device"
        )
    kind = numpy_name(tensor.dtype)
    if data.dtype != kind:
        raise ValueError(
            f"The data type of fed Variable {var.name!r} must be {kind!r}, but received {data.dtype.name!r}"
        )
    return True


def of_other_rows(program: FrozenProgram, fed: Mapping[str, Any], values: Mapping[str, Any], devices: int) -> list[str]:
    """The names of the variables fed with another number of rows than declared, because several devices share the rows
    or the value has sequences.
    """
    variables = program.main_block.vars
    result: list[str] = []
    for key, value in fed.items():
        name = name_of(key)
        var, made = variables.get(name), values.get(name)
        if var is None or made is None or not var.shape or var.shape[0] < 0:
            continue
        rows = _dims(made)[:1]
        if rows != var.shape[:1] and (devices > 1 or (isinstance(value, LoDTensor) and value.lod())):
            result.append(name)
    return result


def declare_any_rows(program: FrozenProgram, names: Iterable[str]) -> FrozenProgram:
    """The program with some variables declared for any number of rows."""
    block = program.main_block
    changed: dict[str, Var] = {}
    for name in names:
        var = block.vars[name]
        assert var.tensor is not None
        changed[name] = var._replace(tensor=var.tensor._replace(shape=(-1, *var.shape[1:])))
    wide = block._replace(vars=FrozenMap({**block.vars, **changed}))
    return program._replace(blocks=(wide, *program.blocks[1:]))


def given_by_devices(values: Sequence[Any], name: str, return_numpy: bool, return_merged: bool) -> Any:
    """The values of a variable from several devices in the form that scripts get: joined into one, or in a list."""
    if return_merged:
        return convert_fetched_value(merge_device_values(values), name, return_numpy)
    return [convert_fetched_value(value, name, return_numpy) for value in values]


def convert_fetched_value(value: Any, name: str, return_numpy: bool) -> Any:
    """A fetched value in the form that scripts get. Raises RuntimeError for a ragged value with `return_numpy`."""
    if not return_numpy:
        return from_core(value)
    if value.__class__ is np.ndarray:
        return value.view(Fetched)
    if isinstance(value, CoreLoDTensor):
        if value.lod:
            raise RuntimeError(f"{name} is ragged and can't be given as an array alone: pass return_numpy=False")
        return value.data.view(Fetched)
    if several(value):
        return [convert_fetched_value(item, name, True) for item in value]
    return value


def as_lodtensor(data: Any, place: Any, dtype: Any = None) -> LoDTensor:
    """A LoDTensor of an array, or of numbers that are converted to the element type `dtype`.

    Raises AssertionError for numbers without an element type, TypeError for values that are not numbers.
    """
    if not isinstance(data, np.ndarray):
        assert dtype is not None, "numbers become a tensor of a given element type only"
        if several(data):
            data = np.array(data)
        elif isinstance(data, int | float | np.generic):
            data = np.array([data])
        if not isinstance(data, np.ndarray) or data.dtype == object:
            raise TypeError(f"a tensor is made of an array, a number or lists of numbers, not of {data!r}")
        data = data.astype(numpy_name(dtype))
    result = LoDTensor()
    result.set(data, place)
    return result


# Repeated runs: a feed that has the form of an earlier one is not checked again.


class CheckedRun(NamedTuple):
    """The facts of a run that was checked, valid for all runs with the same program, fetched names and form of the
    feed.
    """

    program: FrozenProgram
    """The program as the executor has it. Kept alive here so that its `id` is not used for another program."""
    names: list[str]
    form: tuple[Any, ...]
    played: FrozenProgram
    """The program that is run, with its declarations adapted to the fed values."""
    used_names: frozenset[str]
    """The names of the fed values that the run uses."""

    def values(self, fed: Mapping[Any, Any]) -> dict[str, Any]:
        """The arrays and tensors of a feed that the run uses, by name."""
        return {
            name: value if value.__class__ is np.ndarray else value.core()
            for key, value in fed.items()
            if (name := key if key.__class__ is str else name_of(key)) in self.used_names
        }


def form_of(fed: Mapping[Any, Any]) -> tuple[Any, ...] | None:
    """The properties of a feed that checks depend on: the names, element types and dims of arrays, all dims but the
    number of rows of sequences.

    None if values other than arrays and tensors are fed, because these are converted.
    """
    result: list[Any] = []
    for key, value in fed.items():
        name = key if key.__class__ is str else name_of(key)
        if value.__class__ is np.ndarray:
            result += name, value.dtype, value.shape
        elif value.__class__ is LoDTensor and (lod := value.lod()):
            result += name, (data := value.data).dtype, len(lod), data.shape[1:]
        else:
            return None
    return tuple(result)


def of_any_rows(program: FrozenProgram, fed: Mapping[Any, Any]) -> bool:
    """Whether all fed names are declared, those fed with sequences for any number of rows."""
    variables = program.main_block.vars
    declared = ((variables.get(name_of(key)), value) for key, value in fed.items())
    return all(var is not None and (value.__class__ is np.ndarray or var.shape[:1] == (-1,)) for var, value in declared)


class RepeatedRun:
    """Repeats an earlier run on one device with `repeat_run`, as long as nothing but the fed values differs."""

    def __init__(
        self,
        program: Program,
        fetch_list: list[Any],
        scope: Scope,
        alike: CheckedRun,
        drawn_names: Mapping[str, tuple[str, int]],
    ):
        self.names = alike.names
        self._program, self._fetch_list = program, tuple(fetch_list)
        self._scope, self._checked_run, self._drawn_names = scope, alike, drawn_names
        self._fetches = tuple(alike.names)

    def repeat_run(self, program: Any, feed: Any, fetch_list: Any, scope: Scope) -> dict[str, Any] | None:
        """The fetched values, by name; None, without running anything, if something differs from the earlier run."""
        if (
            program is not self._program
            or scope is not self._scope
            or fetch_list.__class__ is not list
            or len(fetch_list) != len(self._fetch_list)
            or not all(map(is_, fetch_list, self._fetch_list))
            or feed.__class__ is not dict
            or form_of(feed) != self._checked_run.form
            or program.freeze() is not self._checked_run.program
            or program.readers
            or program.schedules
            or watchers()
        ):
            return None
        values = self._checked_run.values(feed)
        latest = latest_of(scope.core, self._checked_run.played, tuple(values), self._fetches)
        if latest is None:
            return None
        tell_run(program)
        execution, prepared = latest
        execution.adapt(self._drawn_names, (), None)
        return prepared.step(values)
