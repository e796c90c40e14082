"""A program prepared once and then stepped many times."""

from __future__ import annotations

import ctypes
import linecache
import os
import weakref
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Op, Program
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.block_source import BlockCode
from pstranspile.runtime.run.bound import arguments_of, fail, slot_of
from pstranspile.runtime.run.feeds import changed_names, check_feeds, fetched, mismatch, missing, offsets_fit
from pstranspile.runtime.run.frame import Execution, Frame
from pstranspile.runtime.run.scope import Home, Scope, own_copy
from pstranspile.runtime.run.source import GuardFailed, Missing, Source
from pstranspile.runtime.values import LoDTensor


class Prepared:
    """A program with its feeds and fetches known, in an execution (scope, seeds, slices).

    `step(feed)` gives bitwise what `interpret` gives. The scope may be read and changed between steps.
    """

    def __init__(self, execution: Execution, feeds: Sequence[str], fetches: Sequence[str]):
        self.execution = execution
        self.program: Program = execution.program
        self.feeds = tuple(feeds)
        self.fetches = tuple(fetches)
        self.source: Source | None = None
        variables = self._vars = self.program.main_block.vars
        self._last: dict[str, Any] = dict.fromkeys(self.feeds)  # what `_form` gave for the last value of each feed
        self._any_rows = frozenset(name for name, var in variables.items() if var.shape[:1] == (-1,))
        changed = changed_names(self.program)
        self._copied = frozenset(
            name for name in self.feeds if name in changed or (name in variables and variables[name].persistable)
        )
        self._step: FunctionType | None = None
        self._blocks = BlockCode(self.program)

    def step(self, feed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs block 0 once and gives the fetched values by name. Raises DiagnosticError."""
        values = self._values(feed or {})
        with np.errstate(all="ignore"):
            result = self._run(values, feed or {})
        self.execution.step += 1
        return {name: fetched(self.program, name, value) for name, value in zip(self.fetches, result, strict=True)}

    def _values(self, feed: Mapping[str, Any]) -> list[Value]:
        """The fed values in order, checked; one like that of the step before needs no second look."""
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
        execution.begin(feed)
        execution.blocks = self._blocks
        frame = Frame(execution)
        scope = execution.scope
        top_level = scope.parent is None
        find, held = (scope.values_here.get, scope.values_here) if top_level else (scope.get, Home(scope))
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
        """The op that an error names, where the op that has run reads a variable."""
        assert self.source is not None
        return self.source.bound[index].op

    def _not_plain(self) -> frozenset[str]:
        """The variables of the scope that don't hold plain arrays, as code made for them must know."""
        scope = self.execution.scope
        mentioned = {name for op in self.program.main_block.ops for name in op.input_names}
        return frozenset(name for name in mentioned if not isinstance(scope.get(name), np.ndarray))

    def _compile(self, not_plain: frozenset[str]) -> None:
        keep_freed_memory()
        source = self.source = Source(self.program, self.feeds, self.fetches, not_plain, self.execution.groups)
        name = f"<prepared program {id(self):x}>"
        self._step = source.compiled(name)
        if name not in linecache.cache:
            weakref.finalize(self, linecache.cache.pop, name, None).atexit = False
        text = [f"{line}\n" for line in source.lines]
        linecache.cache[name] = (sum(map(len, text)), None, text, name)

    def _explain(self, frame: Frame, problem: Exception) -> None:
        """Raises the DiagnosticError for what went wrong in an op, if it was in one."""
        assert self.source is not None
        assert self._step is not None
        index, values = self.source.failed(self._step, problem)
        if index < 0:
            return
        bound = self.source.bound[index]
        if isinstance(problem, Missing):

            def given(name: str) -> Value | None:  # values are forgotten after their last use, also those that are fed
                value = True if name in self.feeds else values.get(name)
                return frame.find(name) if value is None else value

            op = self.reported_op(index, problem.name)
            raise missing(self.execution.program, op, slot_of(bound, problem.name), problem.name, given) from None
        fail(bound, arguments_of(bound, values), problem)


_KEPT_BYTES = (32 << 20) - (64 << 10)
"""Just under the largest size that glibc's allocator learns from."""


def keep_freed_memory() -> None:
    """Makes the C library keep the memory of freed arrays, so that steps don't fetch it from the system each time.

    glibc gives large blocks back to the system when they are freed, and a step would pay for every page of every large
    intermediate value again. It stops doing so for blocks up to the size of the largest one it has seen freed;
    this frees one, whose pages were never touched. Elsewhere it has no effect.
    """
    np.empty(_KEPT_BYTES, "uint8")


def give_back_freed_memory() -> None:
    """Has the C library return the pages of freed arrays to the system, for a process whose data leaves little memory
    for a step. Without glibc it has no effect.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _form(value: Any, any_rows: bool) -> tuple[Any, ...] | None:
    """Element type, dims and number of LoD levels of a fed tensor, None of anything else.

    With `any_rows` the rows of a ragged tensor are left out.
    """
    if value.__class__ is np.ndarray:
        return value.dtype, value.shape
    if value.__class__ is LoDTensor and value.data.__class__ is np.ndarray:
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
