"""Running a program, `run(program, feed=..., fetch=[...], scope=scope)`: prepared once and stepped many times."""

from __future__ import annotations

import ctypes
import linecache
import os
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from pstranspile.ir.argument_checks import check_arguments, expect, expect_number, expect_program, names_of
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Op, Program
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.bound_ops import BoundOp, arguments_of, fail, slot_of
from pstranspile.runtime.run.feeds import changed_names, check_feeds, fetched_value, mismatch, missing, offsets_fit
from pstranspile.runtime.run.frame import Execution, Frame, Slices, Watcher, interpret
from pstranspile.runtime.run.scope import Scope, ScopeWriter, own_copy
from pstranspile.runtime.run.source import GuardFailed, MissingValue, Source, ValueKind, in_frame, reads_of
from pstranspile.runtime.run.watchers import FiniteCheck
from pstranspile.runtime.values import LoDTensor

# A sub-block as the source of a Python function of its frame, like the function that `pstranspile.runtime.run.source`
# makes of block 0.
#
# The values that the block computes stay in its frame, where the ops around it and the gradient block look for them;
# the function saves looking up the values that the block's own ops read.


class BlockSource(Source):
    """Writes the function of a sub-block."""

    def __init__(self, program: Program, block: int, reads: frozenset[str]):
        super().__init__(program, (), (), frozenset(), block=block, reads=reads)

    def _write(self) -> None:
        self.lines.append("def step(frame, find, local, written):")
        for index, bound in enumerate(self.bound):
            self._op(index, bound)
        self._add("return")

    def _op(self, index: int, bound: BoundOp) -> None:
        for name in () if bound.looks else bound.reads:
            if name not in self.kinds:
                self._add(f"{self._local(name)} = find({name!r})", index)
                self._written(name, ValueKind.ANYTHING, sure=False)
        super()._op(index, bound)

    def _persistable(self, name: str) -> bool:
        """True: all variables of a sub-block are stored outside of the function, in frames."""
        return True

    def _target(self, name: str) -> str:
        var = self.block.vars.get(name)
        home = "written" if var is None or var.persistable else "local"
        return f"{self._local(name)} = {home}[{name!r}]"

    def _store(self, index: int, name: str, value: str, kind: ValueKind) -> None:
        """Sets a variable to its new value, unless the value is None."""
        known = name in self.kinds and name not in self.optional_names
        self._add(f"if {value} is not None: {self._target(name)} = {value}", index)
        if name not in self.kinds:
            self._add(f"else: {self._local(name)} = find({name!r})", index)
        self._written(name, min(kind, self.kinds.get(name, kind)), sure=known)

    def _call_in_frame(self, index: int, bound: BoundOp) -> None:
        """Calls a kernel that may access variables itself; variables that it may have written are looked up again."""
        self.names[f"c{index}"] = in_frame(bound)
        self._add(f"c{index}(frame)", index)
        for name in self.variables_by_op[index]:
            self.kinds.pop(name, None)
            self.optional_names.discard(name)


class _FrameWriter:
    """A frame as a mapping for assignments: `written[name] = value` calls `frame.write(name, value)`."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame):
        self.frame = frame

    def __setitem__(self, name: str, value: Value) -> None:
        self.frame.write(name, value)


class BlockCode:
    """The functions of a program's sub-blocks, each generated when the block is first run."""

    def __init__(self, program: Program):
        self._program = program
        self._functions: dict[int, tuple[BlockSource, FunctionType]] = {}

    @cached_property
    def _reads(self) -> frozenset[str]:
        return reads_of(self._program)

    def run(self, frame: Frame) -> None:
        """Runs the ops of a frame's block. Raises DiagnosticError."""
        known = self._functions.get(frame.index)
        if known is None:
            source = BlockSource(self._program, frame.index, self._reads)
            known = self._functions[frame.index] = (
                source,
                source.compile_function(f"<block {frame.index} of {id(self):x}>"),
            )
        source, step = known
        try:
            step(frame, frame.find, frame.local, _FrameWriter(frame))
        except DiagnosticError:
            raise
        except Exception as problem:
            index, values = source.locate_failure(step, problem)
            if index >= 0:
                bound = source.bound[index]
                if isinstance(problem, MissingValue):
                    raise frame.missing(bound.op, slot_of(bound, problem.name), problem.name) from None
                fail(bound, arguments_of(bound, values), problem)
            raise


class Prepared:
    """A program prepared for known feeds and fetches, in an execution (scope, seeds, slices).

    `step(feed)` gives bitwise the same results as `interpret`. The scope may be read and changed between steps.
    """

    def __init__(self, execution: Execution, feeds: Sequence[str], fetches: Sequence[str]):
        self.execution = execution
        self.program: Program = execution.program
        self.feeds = tuple(feeds)
        self.fetches = tuple(fetches)
        self.source: Source | None = None
        variables = self._vars = self.program.main_block.vars
        self._last: dict[str, Any] = dict.fromkeys(self.feeds)  # the result of `_form` for the last value of each feed
        self._any_rows = frozenset(name for name, var in variables.items() if var.shape[:1] == (-1,))
        changed = changed_names(self.program)
        self._copied = frozenset(
            name for name in self.feeds if name in changed or (name in variables and variables[name].persistable)
        )
        self._step: FunctionType | None = None
        self._blocks = BlockCode(self.program)

    def step(self, feed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs block 0 once and returns the fetched values by name. Raises DiagnosticError."""
        values = self._values(feed or {})
        with np.errstate(all="ignore"):
            result = self._run(values, feed or {})
        self.execution.end()
        return {
            name: fetched_value(self.program, name, value) for name, value in zip(self.fetches, result, strict=True)
        }

    def _values(self, feed: Mapping[str, Any]) -> list[Value]:
        """The fed values in order, checked. A value of the same form as in the previous step is not checked again."""
        if feed.keys() != self._last.keys():
            other = sorted(self._last.keys() ^ feed.keys())
            message = f"the program was prepared for the feeds {', '.join(self.feeds) or '(none)'}; {other[0]} differs"
            raise DiagnosticError([error("run-feed-mismatch", message)])
        values: list[Value] = []
        for name, last in self._last.items():
            value = feed[name]
            form = _form(value, name in self._any_rows)
            if form is None or form != last or (value.__class__ is LoDTensor and not offsets_fit(value)):
                var = self._vars.get(name)
                if form is None or var is None or mismatch(var, value):
                    value = check_feeds(self.program, {name: value})[name]
                    form = _form(value, name in self._any_rows)
                self._last[name] = form
            values.append(own_copy(value) if name in self._copied else value)
        return values

    def _run(self, values: list[Value], feed: Mapping[str, Any]) -> Sequence[Value]:
        execution = self.execution
        execution.begin(feed, self._blocks)
        frame = Frame(execution)
        scope = execution.scope
        top_level = scope.parent is None
        find, held = (scope.values_here.get, scope.values_here) if top_level else (scope.get, ScopeWriter(scope))
        if self._step is None:
            self._compile(self._not_plain())
        step: Any = self._step
        try:
            return step(frame, find, held, values)
        except GuardFailed:
            self._compile(self._not_plain())
            return self._run(values, feed)
        except DiagnosticError:
            raise
        except Exception as problem:
            self._explain(frame, problem)
            raise

    def reported_op(self, index: int, name: str) -> Op:
        """The op to name in an error about op `index` reading the variable `name`."""
        assert self.source is not None
        return self.source.bound[index].op

    def _not_plain(self) -> frozenset[str]:
        """The variables of the scope that don't hold plain arrays. The generated code depends on them."""
        scope = self.execution.scope
        mentioned = {name for op in self.program.main_block.ops for name in op.input_names}
        return frozenset(name for name in mentioned if not isinstance(scope.get(name), np.ndarray))

    def _compile(self, not_plain: frozenset[str]) -> None:
        keep_freed_memory()
        source = self.source = Source(self.program, self.feeds, self.fetches, not_plain, self.execution.groups)
        name = f"<prepared program {id(self):x}>"
        self._step = source.compile_function(name)
        if name not in linecache.cache:
            weakref.finalize(self, linecache.cache.pop, name, None).atexit = False
        text = [f"{line}\n" for line in source.lines]
        linecache.cache[name] = (sum(map(len, text)), None, text, name)

    def _explain(self, frame: Frame, problem: Exception) -> None:
        """Raises the DiagnosticError for an exception, if it was raised in an op."""
        assert self.source is not None
        assert self._step is not None
        index, values = self.source.locate_failure(self._step, problem)
        if index < 0:
            return
        bound = self.source.bound[index]
        if isinstance(problem, MissingValue):

            def find_value(name: str) -> Value | None:  # values, also fed ones, are removed after their last use
                value = True if name in self.feeds else values.get(name)
                return frame.find(name) if value is None else value

            op = self.reported_op(index, problem.name)
            raise missing(self.execution.program, op, slot_of(bound, problem.name), problem.name, find_value) from None
        fail(bound, arguments_of(bound, values), problem)


_KEPT_BYTES = (32 << 20) - (64 << 10)
"""Just below the largest block size up to which glibc's allocator raises its threshold for keeping freed memory."""


def keep_freed_memory() -> None:
    """Makes the C library keep the memory of freed arrays, so that steps don't fetch it from the system each time.

    glibc gives large blocks back to the system when they are freed, and a step would pay for every page of every large
    intermediate value again. It stops doing so for blocks up to the size of the largest one it has seen freed;
    this frees one, whose pages were never touched. Elsewhere it has no effect.
    """
    np.empty(_KEPT_BYTES, "uint8")


def give_back_freed_memory() -> None:
    """Makes the C library return the pages of freed arrays to the system, for a process whose data leave little memory
    for a step. Without glibc it has no effect.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _form(value: Any, any_rows: bool) -> tuple[Any, ...] | None:
    """(element type, dims, number of LoD levels) of a fed tensor, None for any other value.

    With `any_rows` the number of rows is left out.
    """
    if value.__class__ is np.ndarray:
        return value.dtype, value.shape
    if value.__class__ is LoDTensor and value.data.__class__ is np.ndarray and value.lod.__class__ is list:
        data, lod = value
        return data.dtype, data.shape[1:] if any_rows else data.shape, len(lod)
    return None


def prepare(
    program: Program, feeds: Sequence[str] = (), fetches: Sequence[str] = (), scope: Scope | None = None, **options: Any
) -> Prepared:
    """Prepares a program for many steps in a scope; the options are those of `Execution`. Raises DiagnosticError."""
    unknown = [name for name in feeds if name not in program.main_block.vars]
    if unknown:
        check_feeds(program, dict.fromkeys(unknown))
    return Prepared(Execution(program, Scope() if scope is None else scope, **options), feeds, fetches)


_MOST_PROGRAMS = 16
"""The number of programs whose preparations a scope keeps; beyond it, the one used longest ago is removed."""


class _PreparedState:
    """The state that a scope keeps for a program that has run in it."""

    def __init__(self, execution: Execution):
        self.execution = execution
        self.prepared: dict[tuple[tuple[str, ...], tuple[str, ...]], Prepared | None] = {}


@check_arguments
def run(
    program: Program,
    feed: Mapping[str, Any] | None = None,
    fetch: Sequence[str] = (),
    scope: Scope | None = None,
    *,
    seed: int | None = None,
    slices: Slices | None = None,
    stream: int = 0,
    step: int | None = None,
    folder: str | Path = ".",
    check_nan: bool = False,
    watchers: Sequence[Watcher] = (),
) -> dict[str, Any]:
    """Runs block 0 of a program once and returns the fetched values by name: arrays, LoDTensors or SelectedRows.

    Persistable variables live in `scope` (default: a new one, gone after the run). `seed` takes the place of the
    program's `random_seed`; if both are 0 and an op has no seed of its own, its random numbers differ from run to run.
    `slices` maps variables that are slices to (name of the whole, first element), so that their initialisers draw that
    part of the whole. Random numbers go by `step`, the number of the run (default: how many runs of the program in this
    scope there were before). `stream` tells apart machines that run the same program. They draw the same numbers, but
    for rows of the batch: these go by the rows' places in the whole batch, which a `Batch` has. Fed with anything else,
    each machine has numbers of its own. Files that ops name lie in `folder`. `check_nan` stops at the first op that
    makes NaN or infinity; `watchers` are called after every op. Raises DiagnosticError.

    A program that is run again in the same scope with the same feeds and fetches is prepared, and then runs faster.
    """
    if program.__class__ is not Program:
        expect_program(program, "run")
    scope = Scope() if scope is None else scope
    if scope.__class__ is not Scope:
        expect(scope, Scope, "run")
    if feed is not None and feed.__class__ is not dict:
        expect(feed, Mapping, "run", "a mapping of what is fed, by name")
    if seed.__class__ is not int and seed is not None:
        expect_number(seed, "run", "a whole number as seed")
        seed = int(seed)
    if stream.__class__ is not int or stream < 0:
        expect_number(stream, "run", "a whole number as stream", least=0)
        stream = int(stream)
    if step is not None and (step.__class__ is not int or step < 0):
        expect_number(step, "run", "a whole number as step", least=0)
        step = int(step)
    known = _program_state(scope, program, (seed, stream, str(folder)))
    execution = known.execution
    execution.adapt(slices or {}, (*watchers, FiniteCheck()) if check_nan else tuple(watchers), step)
    names = tuple(feed or ()), names_of(fetch, "run")
    if execution.watchers or names not in known.prepared:
        known.prepared.setdefault(names, None)
        return interpret(execution, feed, names[1])
    prepared = known.prepared[names]
    if prepared is None:
        prepared = known.prepared[names] = Prepared(execution, *names)
    return prepared.step(feed)


def latest_of(
    scope: Scope, program: Program, feeds: tuple[str, ...], fetches: tuple[str, ...]
) -> tuple[Execution, Prepared] | None:
    """The execution and the prepared program that `run` would step with these feeds and fetches and no other options.

    None unless this program was the last one to run in the scope, and is prepared. Stepping it is then the same as
    `run`.
    """
    key, known = next(reversed(scope.prepared.items()), (None, None))
    if key != (id(program), (None, 0, ".")) or not isinstance(known, _PreparedState):
        return None
    prepared = known.prepared.get((feeds, fetches))
    return None if prepared is None else (known.execution, prepared)


def _program_state(scope: Scope, program: Program, options: tuple[object, ...]) -> _PreparedState:
    key = (id(program), options)
    result = scope.prepared.pop(key, None)
    if not isinstance(result, _PreparedState):  # keeps the program alive, so that no other object gets its id
        seed, stream, folder = options
        assert isinstance(stream, int)
        execution = Execution(
            program, scope, seed=seed if isinstance(seed, int) else None, stream=stream, folder=str(folder)
        )
        result = _PreparedState(execution)
    scope.prepared[key] = result
    while len(scope.prepared) > _MOST_PROGRAMS:
        del scope.prepared[next(iter(scope.prepared))]
    return result
