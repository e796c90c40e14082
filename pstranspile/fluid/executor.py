"""Fluid's `executor`: runs programs in scopes."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from pstranspile.fluid.communicator import warn_unused
from pstranspile.fluid.framework import Place, default_main_program
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.values import dtype_of, several
from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.communicating import Talker
from pstranspile.fluid.running.devices import (
    Devices,
    Replicas,
    RunFeed,
    adds_up_rows,
    has_own_control,
    require_for_all,
    shares,
    values_by_device,
)
from pstranspile.fluid.running.feeding import (
    CheckedRun,
    Facts,
    RepeatedRun,
    as_lodtensor,
    convert_fetched_value,
    declare_any_rows,
    facts_of,
    fed_names,
    fitting,
    form_of,
    given_by_devices,
    join_feeds,
    name_of,
    normalize_feed,
    of_any_rows,
    of_other_rows,
    split_fetch_list,
)
from pstranspile.fluid.running.feeding import check_feed_shape_type as check_feed_shape_type
from pstranspile.fluid.running.large_tables import require_rows_here
from pstranspile.fluid.running.rates import set_rate
from pstranspile.fluid.running.unchecked_feeds import Cache, declared_as_fed
from pstranspile.fluid.running.watchers import Monitor, profile_ops, tell_run, trains, watchers
from pstranspile.fluid.scope import Scope
from pstranspile.ir.model import Program as FrozenProgram
from pstranspile.ir.user_warnings import warn
from pstranspile.runtime.kernels.programs.io import PRINTING, PrintCounts, Printing
from pstranspile.runtime.run import run

_SCOPES = [Scope()]
_MOST_PROGRAMS = 16
"""The number of programs whose facts (`facts_of`) an executor keeps; beyond it, it drops the oldest."""


def global_scope() -> Scope:
    """The scope in use, in which programs run by default."""
    return _SCOPES[0]


@contextmanager
def scope_guard(scope: Scope) -> Generator[None]:
    """A context manager that makes another scope the one in use, so that programs of its block run there."""
    before, _SCOPES[0] = _SCOPES[0], scope
    try:
        yield
    finally:
        _SCOPES[0] = before


def _seconds() -> int:
    """Seconds since 1970, which ops `print` show at the beginning of a line."""
    return int(time.time())


class FetchHandler:
    """Receives values of variables while a program is trained on a dataset; `var_dict` maps the handler's names for the
    variables to these.
    """

    def __init__(self, var_dict: Mapping[str, Any] | None = None, period_secs: float = 60):
        if var_dict is None:
            raise AssertionError("a FetchHandler needs a var_dict: variables by name")
        self.var_dict, self.period_secs = var_dict, period_secs

    def handler(self, res_dict: Mapping[str, Any]) -> None:
        """Prints the first row of every array in `res_dict`; a script's subclass does what it wants with the arrays."""
        print("".join(f"{key}[0]: {value[0]} " for key, value in res_dict.items() if isinstance(value, np.ndarray)))

    @staticmethod
    def help() -> None:
        """Prints an example of how to write a handler."""
        print("class Mine(FetchHandler):\n    def handler(self, res_dict):\n        print(res_dict['loss'])")


class Executor:
    """Runs programs on the CPU; `place` is the device that the script asks for."""

    def __init__(self, place: Place | None = None):
        self.place = place
        self._closed = False
        self._machines: list[Any] = []
        self._talker = Talker()
        self._facts: dict[int, Facts] = {}
        self._as_fed: Cache = {}
        self._checked_runs: dict[int, CheckedRun] = {}
        self._repeated_run: RepeatedRun | None = None
        self._wide: dict[object, tuple[FrozenProgram, FrozenProgram]] = {}
        self._pruned: dict[object, tuple[Any, ...]] = {}
        self._dataset_prints: PrintCounts | None = None
        """The counts of ops `print` in the training on a dataset that is under way; None outside of one."""
        self._prints: dict[object, tuple[Any, PrintCounts]] = {}
        """The counts of ops `print` in every program that is kept prepared from run to run."""
        self._devices = Devices()
        self._replicas = Replicas()

    @property
    def _default_executor(self) -> Executor:
        """The executor itself, because scripts call functions of Fluid's C++ core on this attribute."""
        return self

    def close(self) -> None:
        """Tells the servers of a cluster that this trainer ends. After that, the executor can't run programs."""
        self._closed = True
        for machine in self._machines:
            machine.leave()
        self._machines.clear()
        self._talker.leave()

    def run(
        self,
        program: Any = None,
        feed: Any = None,
        fetch_list: Any = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> Any:
        """Runs a program once (default: the main program in use) and returns the fetched values, in the order of
        `fetch_list`.

        The values are arrays, or LoDTensors without `return_numpy`. With `use_prune`, or where `fetch_list` contains
        ops that update, only the ops are run that these and the fetched variables need; no op is run where the program
        is compiled for dry runs. For a program on several devices the parts of all devices are joined into one value,
        or returned as lists without `return_merged`.

        Raises DiagnosticError for a program that can't be run, EOFException when a reader of the program has no more
        data, ValueError and TypeError for a feed that does not fit, RuntimeError after `close`.
        """
        if self._closed:
            raise RuntimeError("the executor was closed")
        printing = PRINTING.set(Printing(_seconds, self._counted_prints(program, fetch_list, use_program_cache)))
        try:
            return self._run(program, feed, fetch_list, scope or global_scope(), return_numpy, return_merged, use_prune)
        finally:
            PRINTING.reset(printing)

    def _run(
        self,
        program: Any,
        feed: Any,
        fetch_list: Any,
        scope: Scope,
        return_numpy: bool,
        return_merged: bool,
        use_prune: bool,
    ) -> Any:
        if self._repeated_run is not None and not use_prune:
            repeated = self._repeated_run.repeat_run(program, feed, fetch_list, scope)
            if repeated is not None:
                return [convert_fetched_value(repeated[name], name, return_numpy) for name in self._repeated_run.names]
        if getattr(program, "predictor", None) is not None:
            return program.predictor.run(feed)
        names, updates = split_fetch_list(fetch_list)
        devices: int = getattr(program, "device_count", 1)
        chosen: Any = default_main_program() if program is None else program
        if use_prune or updates:
            chosen = self._pruned_program(chosen, feed, names, updates)
        plain = plain_program(chosen)
        if not plain.drafts[0].ops and not plain.drafts[0].front:
            warn("the program that is run has no ops")
        if hasattr(chosen, "_compile"):
            chosen._compile(scope, self.place)  # pyright: ignore[reportPrivateUsage]
        if getattr(chosen, "is_dry", False):
            return []
        fed = self._feed_with_readers(plain, feed, devices)
        if several(feed):
            devices = len(feed)
        made, of_devices = self._values(plain, fed, names, scope, devices)
        ran = id(plain.freeze())
        alike, facts = self._checked_runs.get(ran), self._facts.get(ran)
        if alike and facts and program is plain and fetch_list.__class__ is list and alike.names == names:
            self._repeated_run = RepeatedRun(plain, fetch_list, scope, alike, facts.drawn_names)
        if getattr(program, "device_count", 1) == 1:
            return [convert_fetched_value(made[name], name, return_numpy) for name in names]
        parts = of_devices or {name: [made[name]] for name in names}
        return [given_by_devices(parts[name], name, return_numpy, return_merged) for name in names]

    def _pruned_program(self, program: Any, feed: Any, names: list[str], updates: list[Any]) -> Any:
        fed = tuple(fed_names(feed))
        frozen = plain_program(program).freeze()
        key = (id(program), id(frozen), fed, tuple(names), tuple(map(id, updates)))
        if key not in self._pruned:
            self._pruned[key] = self._prune_program(program, feed, names, updates), program, frozen, updates
        return self._pruned[key][0]

    def _prune_program(self, program: Any, feed: Any = None, fetch_list: Any = None, optimize_ops: Any = None) -> Any:
        """The part of a program that computes the fetched variables from the fed ones, and all that the ops in
        `optimize_ops` need (default: every op that updates).
        """
        whole = plain_program(program)
        updates = optimize_ops or [
            op
            for block in whole.blocks
            for op in block.ops
            if op._is_optimize_op()  # pyright: ignore[reportPrivateUsage]
        ]
        return whole._prune_with_input(fed_names(feed), [*(fetch_list or []), *updates])  # pyright: ignore[reportPrivateUsage]

    def _feed_with_readers(self, program: Program, feed: Any, devices: int) -> RunFeed:
        fed = normalize_feed(feed, devices)
        for reader in program.readers:
            if reader.started and not {name_of(name) for name in fed.values}.issuperset(reader.names):
                more = join_feeds(reader.next(devices))
                fed = RunFeed({**fed.values, **more.values}, {**fed.rows, **more.rows}, more.parts)
        if devices > 1 and trains(program):
            require_for_all(fed, devices, program.drafts[0].vars)
        return fed

    def _values(
        self, program: Program, fed: RunFeed, names: list[str], scope: Scope, devices: int
    ) -> tuple[Mapping[str, Any], Mapping[str, list[Any]]]:
        """Two mappings by name: the fetched values, and for those that differ from device to device, the list of each
        device's value.
        """
        frozen = program.freeze()
        facts = self._facts.get(id(frozen))
        if facts is None:
            if len(self._facts) >= _MOST_PROGRAMS:
                del self._facts[next(iter(self._facts))]
            facts = self._facts[id(frozen)] = facts_of(program, frozen)
        scope.declare(facts.persistable_names)
        for name, scheduler in program.schedules.items():
            set_rate(scheduler, name, scope.core)
        form = form_of(fed.values) if devices == 1 else None
        alike = self._checked_runs.get(id(frozen))
        if alike is not None and alike.form == form and alike.names == names:
            tell_run(program)
            fed_values = alike.values(fed.values)
            return run(alike.played, fed_values, names, scope.core, slices=facts.drawn_names, watchers=watchers()), {}
        values = fitting(facts, fed.values, names, devices)
        wide = tuple(of_other_rows(frozen, fed.values, values, devices))
        alone = devices > 1 and (bool(wide) or bool(fed.parts) or has_own_control(frozen) or adds_up_rows(frozen))
        if wide and not alone:
            key = id(frozen), wide
            if key not in self._wide:
                self._wide[key] = frozen, declare_any_rows(frozen, wide)
            frozen = self._wide[key][1]
        if program.machine is not None or facts.talks:
            frozen = declared_as_fed(frozen, values, self._as_fed, any_dims=True)
        if program.machine is not None:
            if program.machine not in self._machines:
                self._machines.append(program.machine)
            return program.machine.run(frozen, program.part, values, names, scope.core), {}
        if facts.talks:
            return self._talker.run(frozen, values, names, scope.core), {}
        if self._machines:
            require_rows_here(frozen, scope.core)
        tell_run(program)
        rows = {name_of(key): counts for key, counts in fed.rows.items()}
        if alone:
            each = [fitting(facts, {**fed.values, **part}, names, 1) for part in fed.parts]
            parts = each or shares(values, rows, devices)
            of_devices = self._replicas.run(frozen, names, parts, scope.core, facts.drawn_names)
            return {name: made[0] for name, made in of_devices.items()}, of_devices
        played = declared_as_fed(frozen, values, self._as_fed)
        if form is not None and not wide and of_any_rows(frozen, fed.values):
            self._checked_runs = dict([*self._checked_runs.items()][1 - _MOST_PROGRAMS :])
            self._checked_runs[id(frozen)] = CheckedRun(frozen, names, form, played, frozenset(values))
        if devices == 1 or not names:
            return run(played, values, names, scope.core, slices=facts.drawn_names, watchers=watchers()), {}
        parts = shares(values, rows, devices)
        of_devices = self._devices.values(played, names, parts, scope.core, facts.drawn_names)
        made = run(played, values, names, scope.core, slices=facts.drawn_names, watchers=watchers())
        return made, {
            name: of_devices.get(name) or values_by_device(made[name], played.find_var(name), parts) for name in names
        }

    def train_from_dataset(
        self,
        program: Any = None,
        dataset: Any = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Any = None,
        fetch_info: Any = None,
        print_period: int = 100,
        fetch_handler: Any = None,
    ) -> None:
        """Runs a program once for every batch of a dataset; prints what is fetched every `print_period` steps.

        For each fetched variable it prints the text of `fetch_info` (default: the variable's name), its name, and the
        tensor; with a dataset of Paddle 2.x it prints one line of the time, the batch, and each text with the elements.
        A `fetch_handler` receives its variables every `period_secs` seconds, in a thread of its own, as they are after
        a batch.

        A single thread runs the program, whatever `thread` is. With `debug` the times of ops are printed at the end.
        Raises RuntimeError without a dataset, whose message scripts compare with.
        """
        if dataset is None:
            raise RuntimeError("dataset is need and should be initialized")
        names = [name_of(item) for item in fetch_list or ()]
        labels = list(fetch_info or names)
        assert len(labels) == len(names), (
            f"fetch_info has {len(labels)} texts for the {len(names)} variables of fetch_list"
        )
        options: Mapping[str, Any] = plain_program(program)._fleet_opt or {}  # pyright: ignore[reportPrivateUsage]
        for key in (key for key in options if key.startswith("dump_") and options[key]):
            warn_unused(f"_fleet_opt[{key!r}]", options[key], "nothing is written while a program trains; fetch it")
        asked = self._var_dict_names(fetch_handler)
        block = plain_program(program).freeze().main_block
        made_here = {name for op in block.ops for name in op.output_names}
        told_of = [n for n in asked.values() if n in made_here and n in block.vars and not block.vars[n].persistable]
        last: dict[str, Any] = {}

        def look() -> dict[Any, Any]:
            held = scope or global_scope()
            return {key: np.array(last[n]) if n in last else _array_in_scope(held, n) for key, n in asked.items()}

        monitored: Any = nullcontext()
        if fetch_handler is not None:
            monitored = Monitor(fetch_handler.handler, fetch_handler.period_secs, look)
        with self._one_count_of_prints(), profile_ops() if debug else nullcontext(), monitored as monitor:
            for number, fed in enumerate(dataset.feed_dicts()):
                shown = names if names and (number + 1) % print_period == 0 else []
                fetched = [*shown, *told_of]
                made = self.run(program, fed, fetched, scope=scope, return_numpy=False)
                values = [value.core() if isinstance(value, LoDTensor) else value for value in made[: len(shown)]]
                for text in dataset.fetched_texts(number + 1, list(map(str, labels)), shown, values) if shown else ():
                    print(text, flush=True)
                if monitor is not None:
                    last.update(zip(told_of, made[len(shown) :], strict=True))
                    monitor.pass_variables()

    @contextmanager
    def _one_count_of_prints(self) -> Generator[None]:
        """A context manager in which ops `print` count over all runs, instead of anew in each."""
        self._dataset_prints = {}
        try:
            yield
        finally:
            self._dataset_prints = None

    def _counted_prints(self, program: Any, fetch_list: Any, cached: bool) -> PrintCounts:
        """The counts of ops `print` up to now: empty, unless Fluid keeps the program prepared from run to run."""
        if self._dataset_prints is not None:
            return self._dataset_prints
        compiled = hasattr(program, "inner_program")
        if not (cached or compiled):
            return {}
        key = id(program), () if compiled else tuple(map(name_of, fetch_list or ()))
        return self._prints.setdefault(key, (program, {}))[1]

    @staticmethod
    def _var_dict_names(fetch_handler: Any) -> dict[Any, str]:
        """The names of the variables in the `var_dict` of a handler, by the handler's own names for them."""
        asked: Any = getattr(fetch_handler, "var_dict", {})
        if not isinstance(asked, Mapping):
            warn("the var_dict of a fetch_handler is no dict of variables: it is told nothing")
            return {}
        return {key: name_of(var) for key, var in asked.items()}  # pyright: ignore[reportUnknownVariableType]

    infer_from_dataset = train_from_dataset


def _array_in_scope(scope: Scope, name: str) -> Any:
    """The array that a variable has in a scope, or None."""
    known = scope.find_var(name)
    tensor = None if known is None else known.get_tensor()
    return np.array(tensor) if tensor is not None and tensor._is_initialized() else None  # pyright: ignore[reportPrivateUsage]


def plain_program(program: Any) -> Program:
    """The program behind a value: the main program in use for None, the inner one of a compiled program, a new one made
    of a frozen program. Raises TypeError for other values.
    """
    if program is None:
        return default_main_program()
    inner = getattr(program, "inner_program", program)
    if isinstance(inner, FrozenProgram):
        return Program.of(inner)
    if not isinstance(inner, Program):
        raise TypeError(f"an executor runs Programs, not a value of type {type(program).__name__}")
    return inner


def has_feed_operators(block: Any, feed_targets: Any, feed_holder_name: str) -> bool:
    """Whether a block begins with ops `feed`.

    Raises ValueError where they feed other variables than `feed_targets`, AssertionError where they read another
    variable than `feed_holder_name`.
    """
    front: list[str] = [op.type for op in block.ops]
    count = next((at for at, kind in enumerate(front) if kind != "feed"), len(front))
    ops = block.ops[:count]
    assert all(op.input("X") == [feed_holder_name] for op in ops), f"ops feed take from {feed_holder_name}"
    return _same_targets("feed", [op.output("Out")[0] for op in ops], list(feed_targets))


def has_fetch_operators(block: Any, fetch_targets: Any, fetch_holder_name: str) -> bool:
    """Whether a block has ops `fetch`.

    Raises ValueError where they fetch other variables than `fetch_targets`, AssertionError where they write another
    variable than `fetch_holder_name`.
    """
    ops = [op for op in block.ops if op.type == "fetch"]
    assert all(op.output("Out") == [fetch_holder_name] for op in ops), f"ops fetch give to {fetch_holder_name}"
    return _same_targets("fetch", [op.input("X")[0] for op in ops], [var.name for var in fetch_targets])


def _same_targets(kind: str, found: list[str], asked: list[str]) -> bool:
    if found and sorted(found) != sorted(asked):
        raise ValueError(f"ops {kind} are of {', '.join(found)}, but {kind}_targets of {', '.join(asked) or 'none'}")
    return bool(found)


def dimension_is_compatible_with(first: Any, second: Any) -> bool:
    """Whether two shapes may be those of one tensor; a dim that is None or below 0 fits any."""
    return len(first) == len(second) and all(
        any(dim is None or dim < 0 for dim in pair) or pair[0] == pair[1] for pair in zip(first, second, strict=True)
    )


def dtype_is_compatible_with(first: Any, second: Any) -> bool:
    """Whether two element types are the same."""
    return dtype_of(first) == dtype_of(second)


def as_numpy(tensor: Any) -> Any:
    """A tensor as an array, a list of tensors as a list of arrays. Raises RuntimeError for a ragged tensor."""
    if several(tensor):
        return [as_numpy(item) for item in tensor]
    if isinstance(tensor, LoDTensor) and tensor.lod():
        raise RuntimeError("a ragged tensor can't be given as an array alone: take the LoDTensor itself")
    return np.array(tensor)


def _fetch_var(name: str, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """The value of a variable of a scope: an array, or a LoDTensor without `return_numpy`. Raises ValueError if the
    scope has no such variable.
    """
    var = (scope or global_scope()).find_var(name)
    if var is None:
        raise ValueError(f"the scope has no variable {name}: a run keeps persistable ones only")
    tensor: LoDTensor = var.get_tensor()
    return np.array(tensor) if return_numpy else tensor


fetch_var, _as_lodtensor = _fetch_var, as_lodtensor


__getattr__ = names_of_fluid(__name__, globals())
