"""One execution of one block: its variables, and the straightforward way of running its ops one by one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, error, raise_errors
from pstranspile.ir.model import Block, Op, Program, Var
from pstranspile.ops.gradients.audit import wrong_gradients
from pstranspile.ops.gradients.needs import KEPT, with_loop_terms
from pstranspile.ops.gradients.versions import can_be_followed, is_copy, with_old_values
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.kernels.random import Key, Rows, RowStream, stream_key
from pstranspile.runtime.run.batch import Batch, BatchAxes, find_rows, unchecked_batch
from pstranspile.runtime.run.bound_ops import BoundOp, bind, call, gather, present
from pstranspile.runtime.run.feeds import changed_names, check_feeds, fetched_value, missing
from pstranspile.runtime.run.fused_updates import Group
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.run.seeds import without_unmade_terms

Watcher: TypeAlias = Callable[[BoundOp, "list[tuple[str, Value]]", float], object]
"""A function that is called after every op, with the op, its outputs as (name, value), and the seconds it took."""

DRAWN = 1 << 63
"""The first seed of those that a run without seeds draws: they hold where neither the program nor the op has a seed."""

DRAWN_FOR_NONE = 1 << 64
"""The first seed of those that are drawn in place of a given seed of 0, which stands in for the programs' seeds."""

Slices: TypeAlias = Mapping[str, tuple[str, int]]
"""A mapping from a variable to (the variable it is a slice of, its first element in this variable)."""


class RunsBlocks(Protocol):
    """An object that runs the block of a frame, with the results of running its ops one by one."""

    def run(self, frame: Frame) -> None:
        """Runs the ops. Raises DiagnosticError."""
        ...


class Execution:
    """The state that the blocks of one run of a program share. `seed`: see `run.run`; `stream` numbers the machine."""

    def __init__(
        self,
        program: Program,
        scope: Scope,
        *,
        seed: int | None = None,
        stream: int = 0,
        slices: Slices | None = None,
        watchers: tuple[Watcher, ...] = (),
        folder: str | Path = ".",
        step: int = 0,
    ):
        if not program.blocks:
            raise DiagnosticError([error("no-block", "the program has no block")])
        self.program = program
        if can_be_followed(program):
            self.program = with_old_values(with_loop_terms(without_unmade_terms(program)))
            raise_errors(wrong_gradients(self.program))
        self.scope = scope
        self.base_seed = program.random_seed if seed is None or DRAWN <= seed < DRAWN_FOR_NONE else seed
        self._drawn_seed = 0 if seed is None or seed < DRAWN else seed
        if self.base_seed >= DRAWN_FOR_NONE:
            self.base_seed = 0
        self.machine = stream
        self.step = step
        """The number of the next run, or of the current one. Random numbers depend on it."""
        self.slices: Slices = slices or {}
        self.watchers = watchers
        self.folder = Path(folder)
        self.groups: dict[tuple[str, ...], Group] = {}
        """Optimizer ops that run together, by the variables they update."""
        self.blocks: RunsBlocks | None = None
        """The object that runs sub-blocks in this run; None: their ops run one by one."""
        self.feed: Mapping[str, Value] = {}
        """The feed of this run. A `Batch` states which rows of the whole batch it holds."""
        self._fresh = 0
        self._draws: dict[str, int] = {}
        self._bound: dict[int, list[BoundOp]] = {}

    def ops_of(self, block: int) -> list[BoundOp]:
        """The ops of a block, bound to their kernels at the first use."""
        result = self._bound.get(block)
        if result is None:
            result = self._bound[block] = [
                bind(present(op, self.program, block)) for op in self.program.blocks[block].ops
            ]
        return result

    def ops_with_copies(self) -> list[list[BoundOp]]:
        """The ops of block 0, each with the ops that copy or add up values for it."""
        groups: list[list[BoundOp]] = []
        waiting: list[BoundOp] = []
        for bound in self.ops_of(0):
            if any(name.endswith(KEPT) for name in bound.op.output_names):
                waiting.append(bound)
            elif is_copy(bound.op) or any(name.endswith(KEPT) for name in bound.op.input_names):
                (groups[-1] if groups else waiting).append(bound)
            else:
                groups.append([*waiting, bound])
                waiting = []
        return groups

    def adapt(self, slices: Slices, watchers: tuple[Watcher, ...], step: int | None) -> None:
        """Sets the slices and watchers of the next runs, and the number of the next run unless `step` is None."""
        self.slices, self.watchers = slices, watchers
        if step is not None:
            self.step = step

    def count_from(self, step: int) -> None:
        """Sets the number of the next run."""
        self.step = step

    def end(self) -> None:
        """Ends a run and increases the number of the next one."""
        self.step += 1

    def begin(self, feed: Mapping[str, Value] | None = None, blocks: RunsBlocks | None = None) -> None:
        """Starts a run. Random numbers without any seed differ from those of the previous run.

        `blocks` runs sub-blocks; without it their ops run one by one.
        """
        self.blocks = blocks
        self._fresh = 0
        self._draws.clear()
        feed = feed or {}
        known = not self.machine or isinstance(feed, Batch)  # one of several machines has only a part of the batch
        self.feed = feed if known else unchecked_batch(feed, dict.fromkeys(feed))

    @cached_property
    def axes(self) -> BatchAxes:
        """The axes of the batch's rows in the program's variables."""
        return BatchAxes(self.program)

    def draw_number(self, name: str) -> int:
        """How often numbers were drawn for a variable earlier in this run. Every step of a loop draws
        its own numbers.
        """
        number = self._draws[name] = self._draws.get(name, -1) + 1
        return number

    def seed(self, own: int) -> int:
        """The program's seed; if both the program's and the op's own seed are 0, the one that was drawn for the whole
        job, or a new random one for this run.
        """
        if self.base_seed or own:
            return self.base_seed
        if self._drawn_seed:
            return self._drawn_seed
        self._fresh = self._fresh or secrets.randbits(63) | 1
        return self._fresh


_NO_OP = Op("")


class Frame:
    """One execution of one block, over the frame of the block around it (an ExecutionContext for kernels).

    Persistable variables live in the scope of the run, all others in the frame of the block that declares them.
    """

    __slots__ = ("block", "execution", "index", "local", "op", "parent")

    def __init__(self, execution: Execution, block: int = 0, parent: Frame | None = None):
        self.execution = execution
        self.index = block
        self.block: Block = execution.program.blocks[block]
        self.parent = parent
        self.local: dict[str, Value] = {}
        self.op: Op = _NO_OP
        """The op that is running."""

    def find(self, name: str) -> Value | None:
        """The value of a variable here or in an enclosing frame, None if it has none yet."""
        value = self.local.get(name)
        frame = self.parent
        while value is None and frame is not None:
            value = frame.local.get(name)
            frame = frame.parent
        return self.execution.scope.get(name) if value is None else value

    def missing(self, op: Op, slot: str, name: str) -> DiagnosticError:
        """The error for an op that reads a variable without a value."""
        return missing(self.execution.program, op, slot, name, self.find)

    def write(self, name: str, value: Value) -> None:
        """Sets a variable, in the block that declares or holds it (in this one if none does)."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.local:
                frame.local[name] = value
                return
            var = frame.block.vars.get(name)
            if var is not None:
                if var.persistable:
                    self.execution.scope.put(name, value)
                else:
                    frame.local[name] = value
                return
            frame = frame.parent
        self.local[name] = value

    def forget(self, name: str) -> None:
        """Removes a variable's value, wherever it is."""
        frame: Frame | None = self
        while frame is not None:
            if frame.local.pop(name, None) is not None:
                return
            frame = frame.parent
        self.execution.scope.values_here.pop(name, None)

    def declaration(self, name: str) -> Var | None:
        """The declaration to which a variable's name resolves in this block, None if there is none."""
        return self.execution.program.find_var(name, self.index)

    def stream(
        self, name: str, seed: int, of: str = "", dims: Sequence[int] = (), lod: list[list[int]] | None = None
    ) -> tuple[Key, int]:
        """Key and offset of the random numbers of a variable (see ExecutionContext)."""
        execution, var = self.execution, self.declaration(name)
        origin, offset = execution.slices.get(name, (name, 0))
        parts: list[int | str] = [execution.seed(seed), seed, origin]
        kept = var is not None and var.persistable
        if not seed and not kept:
            number = execution.draw_number(name)
            parts += [execution.step, *([number] if number else [])]
        if not of or kept or execution.axes.of(of, self.index) is None:
            return stream_key(*parts), offset
        rows = self.rows(of, dims, lod)
        if rows is None:  # each machine draws its own numbers
            return RowStream(stream_key(*parts, "machine", execution.machine), Rows.single_row(prod(dims))), 0
        return RowStream(stream_key(*parts), rows), 0

    def rows(self, name: str, dims: Sequence[int], lod: list[list[int]] | None = None) -> Rows | None:
        """The rows of the whole batch that a value holds (see ExecutionContext)."""
        axis = self.execution.axes.of(name, self.index)
        return find_rows(axis, tuple(dims), lod, self.execution.feed, self.find)

    def path(self, file_path: str) -> Path:
        """The path of a file; relative paths start at the run's folder."""
        return self.execution.folder / file_path

    def own(self, name: str) -> Value | None:
        """The value of a variable that belongs to this execution of the block."""
        return self.local.get(name)

    def keep(self, name: str, value: Value) -> None:
        """Sets a variable that belongs to this execution of the block."""
        self.local[name] = value

    def enter(self, block: int) -> Frame:
        """A new execution of another block, which sees the variables of this one."""
        return Frame(self.execution, block, self)

    def ops(self) -> tuple[Op, ...]:
        """The ops of the block."""
        return self.block.ops

    def execute(self) -> None:
        """Runs the ops of the block. Raises DiagnosticError."""
        blocks = self.execution.blocks
        if blocks is not None:
            blocks.run(self)
            return
        watchers = self.execution.watchers
        for bound in self.execution.ops_of(self.index):
            if watchers:
                self._run_watched(bound)
            else:
                for name, value in self.run_op(bound):
                    self.write(name, value)

    def run_op(self, bound: BoundOp) -> Iterator[tuple[str, Value]]:
        """Runs one op and yields its outputs as (name, value), which the caller writes."""
        self.op = bound.op
        return call(bound, gather(bound, self))

    def _run_watched(self, bound: BoundOp) -> None:
        start = perf_counter()
        made = list(self.run_op(bound))
        seconds = perf_counter() - start
        for name, value in made:
            self.write(name, value)
        for watch in self.execution.watchers:
            watch(bound, made, seconds)


# The straightforward interpreter: a program op by op. It defines what the prepared form must give.


def interpret(execution: Execution, feed: Mapping[str, Any] | None = None, fetch: Sequence[str] = ()) -> dict[str, Any]:
    """Runs block 0 of a program once, op by op, and returns the fetched values by name.

    Raises DiagnosticError if a value to be fed, read or fetched is missing or doesn't fit, or if an op can't be run.
    """
    program = execution.program
    execution.begin(feed)
    frame = Frame(execution)
    changed = changed_names(program)
    for name, value in check_feeds(program, feed or {}).items():
        if program.main_block.vars[name].persistable:
            execution.scope.put(name, own_copy(value))
        else:
            frame.local[name] = own_copy(value) if name in changed else value
    with np.errstate(all="ignore"):  # like the ops of Fluid; `check_nan` examines the results
        frame.execute()
    execution.end()
    return {name: fetched_value(program, name, frame.find(name)) for name in fetch}
