"""A program of a machine as a coroutine: it stops where it must wait for other machines, and goes on with the answer.

Block 0 becomes one generator function, as `pstranspile.runtime.run.source` makes an ordinary function of programs
without exchanges. At an exchange it calls an action with the values to send. Unless the action gives None, the
coroutine yields that with the number of the exchange, and is sent the values received. Machines whose programs differ
only in names and in the machines they exchange messages with share the function.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from pstranspile.cluster.machines.exchanges import EXCHANGE, Exchange, find_exchanges
from pstranspile.cluster.machines.waits import Action, Wait
from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.model import Op, Program
from pstranspile.ir.types import VarKind
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.kernels.kernel import Run
from pstranspile.runtime.run.bound import EMPTY_NAME, Argument, BoundOp
from pstranspile.runtime.run.describe import describe
from pstranspile.runtime.run.frame import Execution, Frame
from pstranspile.runtime.run.prepared import Prepared, keep_freed_memory
from pstranspile.runtime.run.scope import Home
from pstranspile.runtime.run.source import GuardFailed, Missing, Source, ValueKind
from pstranspile.runtime.values import SelectedRows

Stop: TypeAlias = "tuple[int, Sequence[Value] | Wait]"
"""Where a program stopped: the number of an exchange, and the result of its action."""

Coroutine: TypeAlias = "Generator[Stop, Sequence[Value] | None, Sequence[Value]]"
"""A program under way: yields where it stops, is sent the values received, returns the fetched values."""

REFUSALS = (ValueError, TypeError, IndexError, OverflowError)
"""The exceptions of actions and joins for values that they can't take."""


def refused(op: Op, values: Sequence[Value], problem: Exception) -> DiagnosticError:
    """The error for an exchange whose action can't take the values."""
    notes = [Note(f"it is given {', '.join(map(describe, values))}")]
    return DiagnosticError([at_op("run-op-failed", str(problem), op, notes=notes)])


def _never(*_values: Value) -> Value:
    raise TypeError("an exchange is carried out by its machine")


class ScriptSource(Source):
    """Writes the generator function."""

    PARAMETERS: ClassVar = "frame, find, held, feeds, actions"
    _exchanges = 0

    def __init__(
        self,
        program: Program,
        feeds: Sequence[str],
        fetches: Sequence[str],
        not_plain: frozenset[str],
        rows: frozenset[str],
    ):
        self._rows = rows
        super().__init__(program, feeds, fetches, not_plain)

    def _load_from_scope(self) -> None:
        """Loads variables as for any program, with a guard that values declared as sparse rows have no LoD."""
        super()._load_from_scope()
        for name in sorted(self._rows):
            if self.kinds.get(name) is ValueKind.ANYTHING:
                self._add(f"if {self._local(name)}.__class__ is LoDTensor: raise GuardFailed")
                self.kinds[name] = ValueKind.NO_LOD

    def bind(self, op: Op) -> BoundOp:
        """The op with its kernel; an exchange has none."""
        if op.type != EXCHANGE:
            return super().bind(op)
        run: Run = _never
        arguments = (Argument("X", op.inputs["X"], True),)
        return BoundOp(op, run, arguments, (Argument("Out", op.outputs["Out"], True),), "own", run)

    def _op(self, index: int, bound: BoundOp) -> None:
        if bound.op.type != EXCHANGE:
            super()._op(index, bound)
            return
        for name in dict.fromkeys(bound.op.input_names):
            if name in self.unsure:
                self._add(f"if {self._local(name)} is None: raise Missing({name!r})", index)
                self.unsure.discard(name)
        for name in dict.fromkeys(bound.op.input_names):
            self._join(index, name)
        number = self._exchanges
        self._exchanges += 1
        values = "".join(f"{self._local(name)}, " for name in bound.op.input_names)
        outputs = [name for name in bound.op.output_names if name != EMPTY_NAME]
        self._add(f"r = actions[{number}](({values}))", index)
        self._add(f"if r is not None: r = yield {number}, r", index)
        ragged = any(self.kinds[name] < ValueKind.NO_LOD for name in bound.op.input_names)
        for place, name in enumerate(outputs):
            self._store(index, name, f"r[{place}]", ValueKind.ANYTHING if ragged else self._received(name))

    def _received(self, name: str) -> ValueKind:
        """The kind of a received variable's value, which `rpc.checked` guarantees."""
        return ValueKind.ARRAY if is_plain(self.program, name) else ValueKind.ANYTHING


def is_plain(program: Program, name: str) -> bool:
    """Whether a variable is declared to hold a plain array."""
    var = program.main_block.vars.get(name)
    return var is not None and var.kind is VarKind.LOD_TENSOR and var.tensor is not None and not var.tensor.lod_level


def _is_array(value: Value) -> bool:
    return value.__class__ is np.ndarray


@dataclass(frozen=True)
class Code:
    """A generator function, and its source for error messages."""

    source: Source
    function: Any


class Library:
    """The functions made so far, for machines whose programs are the same up to names."""

    def __init__(self) -> None:
        self._known: dict[object, list[tuple[Program, Code]]] = {}

    def find(self, script: Script, not_plain: frozenset[str], rows: frozenset[str]) -> Code:
        """A function for the script: one made for a program that is the same up to names, or a new one."""
        key = (shape_of(script.rewritten), script.feeds, script.fetches, not_plain, rows)
        known = self._known.setdefault(key, [])
        for program, code in known:
            if _same_in_context(program, script.rewritten, code.source.bound):
                return code
        code = script.write(not_plain, rows)
        known.append((script.rewritten, code))
        return code


def _same_in_context(one: Program, other: Program, bound: Sequence[BoundOp]) -> bool:
    """Whether ops that use the names themselves (for random numbers, declarations) name the same variables."""
    pairs = zip(bound, one.main_block.ops, other.main_block.ops, strict=True)
    return all(
        a is b or (a.inputs == b.inputs and a.outputs == b.outputs)
        for bound_op, a, b in pairs
        if any(argument.is_frame for argument in bound_op.arguments)
    )


def shape_of(program: Program) -> object:
    """A value that two programs share if they are the same up to the names of variables that are not persistable."""
    variables = program.main_block.vars
    numbers: dict[str, object] = {}

    def spelled(name: str) -> object:
        known = numbers.get(name)
        if known is None:
            var = variables.get(name)
            if var is None or var.persistable:
                known = name
            else:
                known = (len(numbers), var.kind, var.tensor.lod_level if var.tensor else -1)
            numbers[name] = known
        return known

    def slots(names_by_slot: Mapping[str, Sequence[str]]) -> object:
        return tuple([(slot, *map(spelled, names)) for slot, names in names_by_slot.items()])

    ops = [(op.type, slots(op.inputs), slots(op.outputs), op.attrs) for op in program.main_block.ops]
    return tuple(ops), id(program.blocks[1]) if len(program.blocks) > 1 else 0


class Script(Prepared):
    """A program with its feeds and fetches known, on one machine. `begin` gives it as a coroutine."""

    def __init__(self, execution: Execution, feeds: Sequence[str], fetches: Sequence[str], library: Library):
        super().__init__(execution, feeds, fetches)
        self.rewritten, self.exchanges = find_exchanges(execution.program)
        self._library = library
        self.frame: Frame | None = None

    def begin(
        self, feed: Mapping[str, Any], extra: Mapping[str, Any], actions: Sequence[Action]
    ) -> tuple[Coroutine, Stop | None]:
        """The program under way, and where it first stops; None if it has ended. Raises DiagnosticError.

        `extra` inputs are no part of the batch. `actions` are those of the exchanges. A program that has ended leaves
        the fetched values in `ended`.
        """
        values = self._values({**feed, **extra} if extra else feed)
        execution, scope = self.execution, self.execution.scope
        execution.begin(feed)
        frame = self.frame = Frame(execution)
        top_level = scope.parent is None
        find, held = (scope.values_here.get, scope.values_here) if top_level else (scope.get, Home(scope))
        if self._step is None:
            self._compile(self._not_plain())
        while True:
            step: Any = self._step
            coroutine: Coroutine = step(frame, find, held, values, actions)
            try:
                return coroutine, next(coroutine)
            except StopIteration as end:
                self.ended: Sequence[Value] = end.value
                return coroutine, None
            except GuardFailed:
                self._compile(self._not_plain())
            except Exception as problem:
                self.explain(problem)
                raise

    def explain(self, problem: Exception) -> None:
        """Raises the DiagnosticError for what went wrong in an op of the coroutine, if it was in one."""
        if isinstance(problem, DiagnosticError):
            raise problem
        assert self.frame is not None
        assert self.source is not None
        assert self._step is not None
        index, values = self.source.failed(self._step, problem)
        if index >= 0 and self.source.bound[index].op.type == EXCHANGE and not isinstance(problem, Missing):
            if isinstance(problem, REFUSALS):
                given = [values[name] for name in self.source.bound[index].op.input_names]
                raise refused(self._exchange_of(index).op, given, problem) from problem
            return
        self._explain(self.frame, problem)

    def reported_op(self, index: int, name: str) -> Op:
        """The op that an error names: of an exchange, the original op."""
        op = super().reported_op(index, name)
        if op.type != EXCHANGE:
            return op
        exchange = self._exchange_of(index)
        return next((original for original in exchange.ops if name in original.input_names), exchange.op)

    def _exchange_of(self, index: int) -> Exchange:
        """The exchange that an op of the rewritten program stands for."""
        assert self.source is not None
        return self.exchanges[sum(bound.op.type == EXCHANGE for bound in self.source.bound[:index])]

    def _not_plain(self) -> frozenset[str]:
        """The variables that are read from the scope and hold no plain array there."""
        scope, written = self.execution.scope, set(self.feeds)
        not_plain: set[str] = set()
        for op in self.rewritten.main_block.ops:
            not_plain.update(name for name in op.input_names if name not in written and not _is_array(scope.get(name)))
            written.update(op.output_names)
        # an op may give no value to what it names as its output
        not_plain.update(name for name in (self.source.loaded if self.source else ()) if not _is_array(scope.get(name)))
        return frozenset(not_plain)

    def _compile(self, not_plain: frozenset[str]) -> None:
        rows = frozenset(name for name in not_plain if isinstance(self.execution.scope.get(name), SelectedRows))
        code = self._library.find(self, not_plain, rows)
        self.source, self._step = code.source, code.function

    def write(self, not_plain: frozenset[str], rows: frozenset[str]) -> Code:
        """A new function for this script. `not_plain` holds no plain arrays, `rows` of them hold sparse rows."""
        keep_freed_memory()
        source = ScriptSource(self.rewritten, self.feeds, self.fetches, not_plain, rows)
        if not any(op.type == EXCHANGE for op in self.rewritten.main_block.ops):
            source.lines.append("    yield")  # never reached: the function is a generator all the same
        return Code(source, source.compiled(f"<script {id(source):x}>"))
