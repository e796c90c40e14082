"""A program of a machine as a coroutine: it stops where it must wait for other machines, and goes on with the answer.

Block 0 becomes one generator function, as `pstranspile.runtime.run.source` makes an ordinary function of programs
without exchanges. At an exchange it calls an action with the values to send. Unless the action returns None, the
coroutine yields the result with the number of the exchange, and is sent the values received. Machines whose programs
differ only in names and in the machines they exchange messages with share the function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.network import Link, Machine
from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.model import EMPTY, FrozenMap, Op, Program
from pstranspile.ir.types import VarKind
from pstranspile.ops import facts_of
from pstranspile.runtime.kernels.kernel import Run, Value
from pstranspile.runtime.run.bound_ops import EMPTY_NAME, Argument, BoundOp, in_words, is_stated
from pstranspile.runtime.run.feeds import describe
from pstranspile.runtime.run.frame import Execution, Frame
from pstranspile.runtime.run.prepared import Prepared, keep_freed_memory
from pstranspile.runtime.run.scope import ScopeWriter
from pstranspile.runtime.run.source import GuardFailed, MissingValue, Source, ValueKind
from pstranspile.runtime.values import SelectedRows

# The ops of a program that exchange messages with other machines, and the values that they exchange.

AVERAGE = "average"
"""The op type of the averages that the runtime inserts where Fluid's executor averages."""


def is_collective(op_type: str) -> bool:
    """Whether ops of a type are collective: all trainers of a ring take part in them."""
    return op_type == AVERAGE or facts_of(op_type).communicates == "collective"


def exchanges_messages(op_type: str) -> bool:
    """Whether ops of a type exchange messages with other machines."""
    return op_type == AVERAGE or facts_of(op_type).communicates in ("collective", "request", "command")


def is_silent(op_type: str) -> bool:
    """Whether a cluster in one process may omit ops of a type, because they compute and send nothing."""
    return facts_of(op_type).communicates in ("set-up", "stream")


TOGETHER = ("recv", "distributed_lookup_table")
"""Op types whose requests go out together with those of ops of the same type right before them."""

PARAM_INIT = "param_init"
"""The input of a `send` in a geo-SGD trainer's start-up program: no variable, but a sign for its communicator."""

EXCHANGE = "exchange"
"""The op type that stands for an exchange in a rewritten program."""


class Exchange(NamedTuple):
    """An op that exchanges messages, or several in a row whose requests go out together, with its variables."""

    kind: str
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def op(self) -> Op:
        """The first of the ops."""
        return self.ops[0]


def values_of(op: Op) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The variables whose values an op sends and receives, without variables that only order ops."""
    if op.type == AVERAGE:
        return op.inputs.get("X", ()), op.outputs.get("Out", ())
    facts = facts_of(op.type)
    sent = op.inputs.get(facts.sends, ())
    return () if sent == (PARAM_INIT,) else sent, op.outputs.get(facts.receives, ())


def find_exchanges(program: Program) -> tuple[Program, tuple[Exchange, ...]]:
    """The program with an op `exchange` in place of each exchange of block 0, and the exchanges in order.

    Several `recv` or lookups in a row are one exchange: all requests are sent before the first answer is awaited. A
    lookup also joins earlier ones if other ops stand between them, and those that make its ids then come before the
    exchange. Collective ops are deferred until an op needs their results; those deferred together are one exchange,
    too.
    """
    finder = _Exchanges()
    for op in program.main_block.ops:
        finder.add(op)
    finder.end()
    exchanges = tuple(each.exchange() for each in finder.exchanges)
    in_order = iter(exchanges)
    ops = tuple(each if isinstance(each, Op) else _op_of(next(in_order)) for each in finder.ops)
    block = program.main_block._replace(ops=ops)
    return program._replace(blocks=(block, *program.blocks[1:])), exchanges


def _op_of(exchange: Exchange) -> Op:
    """The op that stands for an exchange."""
    slots = FrozenMap({"X": exchange.inputs}), FrozenMap({"Out": exchange.outputs})
    return Op(EXCHANGE, *slots, origin=exchange.op.origin)


class _OpenExchange:
    """An exchange to which ops are added; `passed_names` are the variables that ops read or write which stand after it,
    and `written_names` those that these ops write.
    """

    def __init__(self, op: Op, inputs: Iterable[str], outputs: Iterable[str]):
        self.kind = op.type
        self.ops = [op]
        self.inputs, self.outputs = [*inputs], [*outputs]
        self.passed_names, self.written_names = {*self.inputs, *self.outputs}, {*self.outputs}

    def add(self, op: Op, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Adds an op, and the variables that it sends and receives."""
        self.ops.append(op)
        self.inputs += inputs
        self.outputs += outputs
        self.passed_names.update(inputs, outputs)
        self.written_names.update(outputs)

    def exchange(self) -> Exchange:
        """The exchange of all ops."""
        return Exchange(self.kind, tuple(self.ops), tuple(self.inputs), tuple(self.outputs))


class _Exchanges:
    def __init__(self) -> None:
        self.exchanges: list[_OpenExchange] = []
        self.ops: list[Op | _OpenExchange] = []
        self._deferred_ops: list[Op] = []
        self._touched_names: set[str] = set()
        """The variables that the deferred collective ops read or write."""
        self._last_place = 0
        """The index of the last exchange among the ops."""
        self._newest_ops: list[Op] = []
        """The last ops, over which no lookup of the last exchange has passed."""

    def add(self, op: Op) -> None:
        """Adds the next op."""
        if is_silent(op.type):
            if op.input("X") != op.output("Out") and op.output("Out") and op.type.startswith("c_sync"):
                self.add(Op("assign", op.inputs, op.outputs, role=op.role, origin=op.origin))
            return
        if self._deferred_ops and self._needed_by(op):
            self.end()
        if is_collective(op.type):
            self._deferred_ops.append(op)
            self._touched_names.update(op.input_names, op.output_names)
        elif not exchanges_messages(op.type):
            self.ops.append(op)
            self._newest_ops.append(op)
        else:
            self._add_exchange(op, *values_of(op))

    def _needed_by(self, op: Op) -> bool:
        """Whether an op must come after the deferred ones, because it, or a block of it, uses their variables."""
        if exchanges_messages(op.type) and not is_collective(op.type):
            return True
        if _has_blocks(op):
            return True
        return not self._touched_names.isdisjoint((*op.input_names, *op.output_names))

    def end(self) -> None:
        """Adds the deferred collective ops at this point."""
        ops, self._deferred_ops, self._touched_names = self._deferred_ops, [], set()
        for number, op in enumerate(ops):
            values = (op.inputs["X"], op.outputs["Out"])
            self.exchanges[-1].add(op, *values) if number else self._begin(op, *values)

    def _add_exchange(self, op: Op, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        last = self.exchanges[-1] if self.exchanges and self.exchanges[-1].kind == op.type in TOGETHER else None
        if last is None or not (self._follows(last, inputs) or self._joins(last, op, inputs, outputs)):
            self._begin(op, inputs, outputs)
        else:
            last.add(op, inputs, outputs)

    def _begin(self, op: Op, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.exchanges.append(_OpenExchange(op, inputs, outputs))
        self._last_place = len(self.ops)
        self.ops.append(self.exchanges[-1])
        self._newest_ops = []

    def _follows(self, last: _OpenExchange, inputs: tuple[str, ...]) -> bool:
        """Whether the last exchange stands right before the next op, which does not need its results."""
        return self.ops[-1] is last and last.written_names.isdisjoint(inputs)

    def _joins(self, last: _OpenExchange, op: Op, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> bool:
        """Whether a lookup can join the last exchange although ops stand between them.

        Those that make its ids are moved before the exchange. They must not depend on its results, nor on ops that stay
        after it.
        """
        if not facts_of(op.type).looks_up:
            return False
        needed, moved = {*inputs}, set[int]()
        for index in reversed(range(len(self._newest_ops))):
            if not needed.isdisjoint(self._newest_ops[index].output_names):
                moved.add(index)
                needed.update(self._newest_ops[index].input_names)
        for index, between in enumerate(self._newest_ops):
            if _has_blocks(between) or (
                index in moved and not _may_move(between, last.passed_names, last.written_names)
            ):
                return False
            if index not in moved:
                last.passed_names.update(between.input_names, between.output_names)
                last.written_names.update(between.output_names)
        if not last.passed_names.isdisjoint(outputs) or not last.written_names.isdisjoint(inputs):
            return False
        begin = len(self.ops) - len(self._newest_ops)
        self.ops[begin:] = [each for index, each in enumerate(self._newest_ops) if index not in moved]
        self.ops[self._last_place : self._last_place] = [self._newest_ops[index] for index in sorted(moved)]
        self._last_place += len(moved)
        self._newest_ops = []
        return True


def _has_blocks(op: Op) -> bool:
    return any(isinstance(value, BlockRef | BlockRefs) for value in op.attrs.values())


def _may_move(op: Op, passed: AbstractSet[str], written: AbstractSet[str]) -> bool:
    """Whether an op may come before others, which use the variables `passed` and write those of `written`."""
    facts = facts_of(op.type)
    if facts.opaque or facts.reader or facts.communicates or not {*op.input_names}.isdisjoint(op.output_names):
        return False
    return passed.isdisjoint(op.output_names) and written.isdisjoint(op.input_names)


def changed_in_place(program: Program) -> frozenset[str]:
    """The variables that ops of the program may change in place: those an op both reads and writes.

    A part that `split_byref` cuts off shares memory with its whole; so the parts of such variables are among them.
    """
    ops = [op for b in program.blocks for op in b.ops if not (exchanges_messages(op.type) or is_silent(op.type))]
    changed = {name for op in ops for name in {*op.input_names} & {*op.output_names}}
    for op in program.main_block.ops:
        if op.type == "split_byref" and changed.intersection(op.input_names):
            changed.update(op.output_names)
    return frozenset(changed)


# Waits of a trainer within a program.

Join: TypeAlias = "Callable[[list[Value]], Sequence[Value]]"
"""Makes the values that an op receives from the replies."""


class Wait(ABC):
    """A wait of a machine. `missing_count` is the number of values that have not come."""

    __slots__ = ("missing_count", "values")
    missing_count: int
    values: list[Value]
    """The values that have come so far."""

    @abstractmethod
    def take(self, messages: Iterable[Message]) -> None:
        """Takes replies that have come."""

    @abstractmethod
    def join(self, values: list[Value]) -> Sequence[Value] | None:
        """The values with which the machine continues when nothing is missing, made from those that have come."""

    @abstractmethod
    def silent(self) -> tuple[str, ...]:
        """The machines whose messages have not come."""


Action: TypeAlias = "Callable[[tuple[Value, ...]], Sequence[Value] | Wait | None]"
"""Carries out an exchange: takes the values to send, and gives the values received (None: there are none), or a Wait if
other machines must answer first.
"""


class Replies(Wait):
    """Replies that a machine waits for, one in each slot.

    Replies to requests of another step are ignored. `request_links` has the link of each slot's request,
    for reports.
    """

    __slots__ = ("_continuation", "_join", "_request_links", "step")

    def __init__(self, step: int, count: int, join: Join | None = None, request_links: Sequence[Link] = ()):
        self.missing_count = count
        self.step = step
        self._join = join
        self._request_links = request_links
        self._continuation: Callable[[], object] | None = None
        self.values = [None] * count

    def take(self, messages: Iterable[Message]) -> None:
        """Every reply fills its slot."""
        values, step, missing = self.values, self.step, self.missing_count
        for message in messages:
            if missing and message.step == step:
                values[message.slot] = message.payload
                missing -= 1
        self.missing_count = missing

    def awaits(self, message: Message) -> bool:
        """Whether a message is an awaited answer: its slot is empty, and it comes from the machine that was asked."""
        slot, asked = message.slot, self._request_links
        if not 0 <= slot < len(self.values) or self.values[slot] is not None or message.payload is None:
            return False
        return slot >= len(asked) or asked[slot].target.name == message.source

    def then(self, action: Callable[[], object]) -> Replies:
        """Sets an action to run once all replies have come; returns the replies themselves."""
        self._continuation = action
        return self

    def join(self, values: list[Value]) -> Sequence[Value]:
        """The values that the op receives."""
        received = values if self._join is None else self._join(values)
        if self._continuation is not None:
            self._continuation()
        return received

    def silent(self) -> tuple[str, ...]:
        """The machines that were asked and have not answered."""
        pairs = zip(self._request_links, self.values, strict=False)
        return tuple(dict.fromkeys(link.target.name for link, value in pairs if value is None))


class WaitForRelease(Wait):
    """A wait of a machine until it is released. Reports show the `awaited_event`, and `silent`: the machines that are
    to release it (default: its communicator).
    """

    __slots__ = ("_awaited_event", "_machine", "_silent")

    def __init__(self, machine: Machine, awaited_event: str, silent: Sequence[str] | None = None):
        self.missing_count, self.values = 1, []
        self._awaited_event = awaited_event
        self._machine = machine
        self._silent = (f"{machine.name}/communicator",) if silent is None else tuple(silent)

    def release(self) -> None:
        """Lets the machine continue."""
        self.missing_count = 0
        self._machine.network.scheduler.wake(self._machine)

    def take(self, messages: Iterable[Message]) -> None:
        """Ignores replies to earlier requests."""

    def join(self, values: list[Value]) -> None:
        """Returns None, as the machine has received no values."""

    def silent(self) -> tuple[str, ...]:
        """The names of the machines that are to release this one."""
        return self._silent

    def __str__(self) -> str:
        """The event that the machine waits for, as part of a sentence of a report."""
        return self._awaited_event


Stop: TypeAlias = "tuple[int, Sequence[Value] | Wait]"
"""The point at which a program stopped: the number of an exchange, and the result of its action."""

Coroutine: TypeAlias = "Generator[Stop, Sequence[Value] | None, Sequence[Value]]"
"""A program under way: yields where it stops, is sent the values received, returns the fetched values."""

REFUSALS = (ValueError, TypeError, IndexError, OverflowError)
"""The exceptions that actions and joins raise for values that they do not accept."""


def exchange_error(op: Op, values: Sequence[Value], problem: Exception) -> DiagnosticError:
    """The error for an exchange whose action does not accept the values."""
    notes = [Note(f"it is given {', '.join(map(describe, values))}")]
    reason = str(problem) if is_stated(op, problem) else in_words(problem, [("", value) for value in values])
    return DiagnosticError([at_op("run-op-failed", reason, op, notes=notes)])


def _never(*_values: Value) -> Value:
    raise TypeError("an exchange is carried out by its machine")


class ScriptSource(Source):
    """Writes the generator function of a program."""

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
            if name in self.optional_names:
                self._add(f"if {self._local(name)} is None: raise MissingValue({name!r})", index)
                self.optional_names.discard(name)
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
            self._store(index, name, f"r[{place}]", ValueKind.ANYTHING if ragged else self._received_kind(name))

    def _received_kind(self, name: str) -> ValueKind:
        """The kind of a received variable's value, as `rpc.checked_join` guarantees it."""
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
        self._codes: dict[object, list[tuple[Program, Code]]] = {}

    def find(self, script: Script, not_plain: frozenset[str], rows: frozenset[str]) -> Code:
        """The function for the script: that of a program which is the same up to names, or a new one."""
        key = (shape_of(script.rewritten), script.feeds, script.fetches, not_plain, rows)
        known = self._codes.setdefault(key, [])
        for program, code in known:
            if _same_in_context(program, script.rewritten, code.source.bound):
                return code
        code = script.write(not_plain, rows)
        known.append((script.rewritten, code))
        return code


def _same_in_context(one: Program, other: Program, bound: Sequence[BoundOp]) -> bool:
    """Whether ops that depend on names themselves (for random numbers or declarations) have the same names in both
    programs.
    """
    pairs = zip(bound, one.main_block.ops, other.main_block.ops, strict=True)
    return all(
        a is b or (a.inputs == b.inputs and a.outputs == b.outputs)
        for bound_op, a, b in pairs
        if any(argument.is_frame for argument in bound_op.arguments)
    )


def shape_of(program: Program) -> object:
    """A key that two programs share if they are the same up to the names of variables that are not persistable."""
    variables = program.main_block.vars
    numbers: dict[str, object] = {}

    def name_key(name: str) -> object:
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
        return tuple([(slot, *map(name_key, names)) for slot, names in names_by_slot.items()])

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
        """Starts the program; returns its coroutine and its first stop, which is None if it has ended. Raises
        DiagnosticError.

        `extra` inputs are no part of the batch. `actions` are those of the exchanges. A program that has ended leaves
        the fetched values in `ended`.
        """
        values = self._values({**feed, **extra} if extra else feed)
        execution, scope = self.execution, self.execution.scope
        execution.begin(feed)
        frame = self.frame = Frame(execution)
        top_level = scope.parent is None
        find, held = (scope.values_here.get, scope.values_here) if top_level else (scope.get, ScopeWriter(scope))
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
        """Raises the DiagnosticError for an exception in an op of the coroutine, if it came from one."""
        if isinstance(problem, DiagnosticError):
            raise problem
        assert self.frame is not None
        assert self.source is not None
        assert self._step is not None
        index, values = self.source.locate_failure(self._step, problem)
        if index >= 0 and self.source.bound[index].op.type == EXCHANGE and not isinstance(problem, MissingValue):
            if isinstance(problem, REFUSALS):
                given = [values[name] for name in self.source.bound[index].op.input_names]
                raise exchange_error(self._exchange_of(index).op, given, problem) from problem
            return
        self._explain(self.frame, problem)

    def reported_op(self, index: int, name: str) -> Op:
        """The op that an error names; for an exchange, the original op."""
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
        not_plain.update(
            name for name in (self.source.loaded_names if self.source else ()) if not _is_array(scope.get(name))
        )
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
        return Code(source, source.compile_function(f"<script {id(source):x}>"))


# A trainer's program in execution, from one exchange with other machines to the next, until it has ended.


class ProgramEnd(NamedTuple):
    """A program has ended with these fetched values."""

    fetched: Sequence[Value]


class Runner:
    """A program ready to run. `name` is the name of a program that steps run, else None; `actions` are those of its
    exchanges.
    """

    def __init__(self, script: Script, name: str | None, actions: Sequence[Action]):
        self.script = script
        self.name = name
        self._actions = actions
        self._coroutine: Coroutine | None = None
        self._place = -1
        """The number of the exchange at which the program has stopped."""

    def begin(self, feed: Mapping[str, Any], extra: Mapping[str, Any] = EMPTY) -> ProgramEnd | Wait:
        """Runs the program until it has ended or must wait. Raises DiagnosticError."""
        self._coroutine, stop = self.script.begin(feed, extra, self._actions)
        return ProgramEnd(self.script.ended) if stop is None else self._go_on(*stop)

    def resume(self, wait: Wait) -> ProgramEnd | Wait:
        """Continues with the values for which the program has waited. Raises DiagnosticError."""
        return self._go_on(self._place, wait)

    def _go_on(self, place: int, received: Sequence[Value] | Wait | None) -> ProgramEnd | Wait:
        """Continues from an exchange with the result of its action, until the program must wait or has ended."""
        coroutine = self._coroutine
        assert coroutine is not None
        while True:
            self._place = place
            while isinstance(received, Wait):
                if received.missing_count:
                    return received
                received = self._join(received)
            try:
                place, received = coroutine.send(received)
            except StopIteration as end:
                return ProgramEnd(end.value)
            except Exception as problem:
                self.script.explain(problem)
                raise

    def _join(self, wait: Wait) -> Sequence[Value] | Wait | None:
        try:
            return wait.join(wait.values)
        except REFUSALS as problem:
            raise exchange_error(self.op, wait.values, problem) from problem

    @property
    def op(self) -> Op:
        """The op of the exchange at which the program has stopped."""
        return self.script.exchanges[self._place].op

    def describe_wait(self) -> str:
        """A phrase for what the program waits for at its exchange."""
        exchange = self.script.exchanges[self._place]
        return f"answers to {exchange.kind}: {', '.join(exchange.outputs) or exchange.kind}"
