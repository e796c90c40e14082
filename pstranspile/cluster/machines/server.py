"""A server: its start-up program, then `listen_and_serv` until all trainers have left.

This module has the parts that all kinds of servers share. `synchronous` and `asynchronous` define the effect of a
gradient.

Servers also keep the step counters of learning-rate schedules. In the modes without barriers every trainer sends a
counter of its own in each step, and a schedule begins with the sum of these: `sum(counter.trainer_0, counter.trainer_1,
...) -> counter`. The start-up program sets the shared counter to minus the number of trainers and every other one to 1.
Fluid overwrites the former, so that its schedules are ahead of the steps by the number of trainers (and stand still
where communicators don't send counters). Here the value at the start counts: the first steps of all trainers are step
0, as on one machine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.message import PREFETCH, REPLY, Message
from pstranspile.cluster.machines.network import Link, Machine, Network, WaitReason
from pstranspile.cluster.machines.script import changed_in_place
from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op, visible
from pstranspile.ir.model import EMPTY, FrozenMap, Op, Program, Var
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.kernels.training.optimizer import REPLACING
from pstranspile.runtime.large.forms import rows_alone
from pstranspile.runtime.large.table import LargeTable, TableState, look_up_side_by_side
from pstranspile.runtime.run.feeds import near
from pstranspile.runtime.run.frame import Execution, Slices, interpret
from pstranspile.runtime.run.fused_updates import LARGEST
from pstranspile.runtime.run.prepared import Prepared
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.values import SelectedRows

# A server's blocks, prepared to run on received variables.


def part_of(program: Program, ops: Iterable[Op], blocks: Iterable[int] = ()) -> Program:
    """The program with these ops in block 0, which also declares what the given blocks declare."""
    main = program.main_block
    variables: dict[str, Var] = {}
    for index in blocks:
        variables.update(program.blocks[index].vars)
    variables.update(main.vars)
    block = main._replace(ops=tuple(ops), vars=FrozenMap(variables))
    return program._replace(blocks=(block, *program.blocks[1:]))


def block_program(program: Program, blocks: Sequence[int]) -> Program:
    """The program with the ops of these blocks, one after the other, in block 0."""
    return part_of(program, [op for index in blocks for op in program.blocks[index].ops], blocks)


def block_alone(program: Program, index: int) -> Program:
    """The program with the ops of this block in block 0. Unless they run blocks, no other block is included: a server
    has a block for each variable, and preparing one should not cost as much as preparing all.
    """
    own = program.blocks[index]
    if any(isinstance(value, BlockRef | BlockRefs) for op in own.ops for value in op.attrs.values()):
        return block_program(program, [index])
    main, names = program.main_block, dict.fromkeys(n for op in own.ops for n in (*op.input_names, *op.output_names))
    known = {name: main.vars.get(name) or own.vars.get(name) for name in names}
    variables = {name: var for name, var in known.items() if var is not None}
    return program._replace(blocks=(main._replace(ops=own.ops, vars=FrozenMap(variables)),))


def with_temporaries(program: Program, names: Collection[str]) -> Program:
    """The program with these variables no longer persistable, so that they are dropped after a run."""
    main = program.main_block
    kept = {n: var._replace(persistable=False) if n in names else var for n, var in main.vars.items()}
    return program._replace(blocks=(main._replace(vars=FrozenMap(kept)), *program.blocks[1:]))


def read_first(ops: Iterable[Op]) -> list[str]:
    """The variables that ops read before any of them has written them, in order."""
    written: set[str] = set()
    result: dict[str, None] = {}
    for op in ops:
        result.update(dict.fromkeys(name for name in op.input_names if name not in written))
        written.update(op.output_names)
    return list(result)


class Block(Prepared):
    """A block of a server, as a function of the received variables `feeds` that returns the values of `fetches`."""

    def __init__(self, program: Program, scope: Scope, feeds: Sequence[str], fetches: Sequence[str], **options: Any):
        super().__init__(Execution(program, scope, **options), feeds, fetches)
        ops = program.main_block.ops
        persistable = program.main_block.vars
        self.changes = frozenset(
            name for op in ops for name in op.output_names if name in persistable and persistable[name].persistable
        )
        """The persistable variables that the block writes."""
        changed = changed_in_place(program)
        self._changed_feeds = [place for place, name in enumerate(feeds) if name in changed]
        self._scope, self._ops = scope, ops

    @cached_property
    def tables_apart(self) -> bool:
        """Whether each large table, and each state of one, is used by one op alone, so that updates of different tables
        may be put off to the end of the block.
        """
        if any(isinstance(value, BlockRef | BlockRefs) for op in self._ops for value in op.attrs.values()):
            return False
        uses = Counter(name for op in self._ops for name in {*op.input_names, *op.output_names})
        return all(
            count == 1 for name, count in uses.items() if isinstance(self._scope.get(name), LargeTable | TableState)
        )

    def apply(self, received: list[Value]) -> Sequence[Value]:
        """Runs the block once. Values that it changes in place are copied first. Raises DiagnosticError."""
        for place in self._changed_feeds:
            received[place] = own_copy(received[place])
        result = self._run(received, {})
        self.execution.end()
        return result


def listening_op(program: Program) -> Op | None:
    """The `listen_and_serv` of a server's main program, None if it has none."""
    return next((op for op in program.main_block.ops if op.type == "listen_and_serv"), None)


def mode_of(op: Op) -> int:
    """The mode of a server: 0 for synchronous, 1 and 2 for asynchronous, 3 for geo-SGD."""
    mode: Any = op.attrs.get("distributed_mode", 0)
    return int(mode)


def pairs(op: Op, name: str) -> dict[str, str]:
    """An attribute of texts `a:b` as a mapping. A variable's name may contain colons itself."""
    texts: Any = op.attrs.get(name, ())
    return {a: b for a, _, b in (text.rpartition(":") for text in texts)}


Contributions: TypeAlias = "list[tuple[str, int, Value]]"
"""The contributions to an update: variable, trainer and value."""


class ServerListener:
    """Notified of a server's updates; both methods may be overridden."""

    def updating(self, server: Server, contributions: Callable[[], Contributions]) -> None:
        """Called when a synchronous server begins an update; `contributions` returns the values that it merges."""

    def updated(self, server: Server, update: int) -> None:
        """Called after the server has made an update, the `update`-th counted from 0."""


class OnUpdate(ServerListener):
    """Calls a function after every update of a server."""

    def __init__(self, callback: Callable[[Server, int], object]):
        self._callback = callback

    def updated(self, server: Server, update: int) -> None:
        """Calls the function with the update's number."""
        self._callback(server, update)


class Server(Machine):
    """A parameter server, `startup` and `main` being its programs."""

    STATE: ClassVar[tuple[str, ...]] = ("live", "updates", "admitted")
    """The attributes that a snapshot must contain besides the variables."""

    def __init__(
        self,
        name: str,
        network: Network,
        startup: Program,
        main: Program,
        *,
        seed: int | None = None,
        scope: Scope | None = None,
        folder: str = ".",
    ):
        super().__init__(name, network, scope)
        self._is_initialised = False
        self.startup = startup
        self.main = main
        self.seed = seed
        self.folder = folder
        op = listening_op(main)
        assert op is not None
        self.op = op
        self.endpoint = str(op.attrs["endpoint"])
        self.mode = mode_of(op)
        self.live: set[int] = set()
        """The trainers that have not left."""
        self.trainer_names: dict[int, str] = {}
        self.listeners: list[ServerListener] = []
        self.updates = 0
        self.announced: list[tuple[int, int]] = []
        """The trainers that come back, each with the first step in which it takes part."""
        self.admitted: set[int] = set()
        """The indices in `announced` of the trainers that have been admitted."""
        self._placed: Callable[[str], AbstractContextManager[str]] = nullcontext
        self.sent_by_program: Mapping[str, frozenset[str]] = {}
        """The names under which each program of the trainers sends; empty if they have only one program."""
        self._asking: Mapping[str, Machine] = {}
        """The machines that may send requests, by name."""
        self._copies: dict[str, Value] = {}
        self._handlers: dict[str, Callable[[Message], object]] = {
            kinds.SEND: self.on_send,
            kinds.GET: self.answer,
            kinds.GET_NOW: self.answer,
            kinds.LOOKUP: self.look_up,
            kinds.PREFETCH: self.look_up,
            kinds.SEND_BARRIER: self.on_send_barrier,
            kinds.FETCH_BARRIER: self.on_fetch_barrier,
            kinds.NOTIFY: self.on_notify,
            kinds.CHECKPOINT: self.on_checkpoint,
            kinds.SHRINK: self.on_shrink,
            kinds.COMPLETE: self.on_complete,
        }

    # life

    def skip_startup(self) -> None:
        """Marks the start-up program as done: the scope already has its variables."""
        self._is_initialised = True

    def initialise(self, slices: Slices) -> None:
        """Runs the start-up program, unless it is to be skipped.

        `slices` maps variables to the whole variables of which they are parts.
        """
        if self._is_initialised:
            return
        interpret(Execution(self.startup, self.scope, seed=self.seed, slices=slices, folder=self.folder))

    def open(
        self,
        trainers: Mapping[int, str],
        asking: Mapping[str, Machine],
        sent_by_program: Mapping[str, frozenset[str]] = EMPTY,
    ) -> None:
        """Prepares the blocks and begins to listen to these trainers. The start-up program has run.

        `asking`: the machines that may send requests, by name. `sent_by_program`: the names under which each program of
        the trainers sends, where they have several.
        """
        self.live = set(trainers)
        self.trainer_names = dict(trainers)
        self._asking = asking
        self.sent_by_program = sent_by_program
        self.prepared_blocks()

    def go_on_from(self, updates: int, memory: Mapping[str, Any] | None = None) -> None:
        """Continues after this number of updates, with changed variables. `memory`: other state to restore, if any."""
        self.updates = updates
        self.forget_all_copies()

    def take_state(self, state: Mapping[str, Any], runs: Mapping[int, int] | None = None) -> None:
        """Sets attributes of the server from `state`, whose values become the server's own. Its variables have been
        changed before.

        `runs`: how often each block has run, by its index among `prepared`; None: the counts stay.
        """
        for name, value in state.items():
            setattr(self, name, value)
        if runs is not None:
            for place, block in enumerate(self.prepared_blocks()):
                block.execution.count_from(runs.get(place, 0))
        self.forget_all_copies()

    def listen(self, listener: ServerListener) -> None:
        """Adds a listener for updates; it is called after earlier ones."""
        self.listeners.append(listener)

    def place_files(self, placed: Callable[[str], AbstractContextManager[str]]) -> None:
        """Sets the context manager that gives the place of each saved file, as other processes choose the path in a
        real cluster.
        """
        self._placed = placed

    def count_update(self) -> None:
        """Counts an update that was made, and notifies the listeners."""
        self.updates += 1
        for listener in self.listeners:
            listener.updated(self, self.updates - 1)

    @property
    def ended(self) -> bool:
        """Whether all trainers have left."""
        return not self.live

    def step_label(self) -> str:
        """The name of the server's next update in messages to the user, numbered from 1."""
        return f"update {self.updates + 1}"

    def watch(self, take: Callable[[Callable[[Message], object] | None, Message], object]) -> None:
        """Hands each message to `take` from now on, together with its handler (None: the server has none)."""
        taken = {kind: self._handlers.get(kind) for kind in kinds.KINDS}
        self._handlers = {kind: partial(take, handler) for kind, handler in taken.items()}

    @property
    def receivable_variables(self) -> Iterable[str]:
        """The names of the variables that trainers may send."""
        return pairs(self.op, "grad_to_block_id")

    def receive(self, message: Message) -> None:
        """Takes one message. Raises DiagnosticError."""
        self._handlers[message.kind](message)

    # effects of messages

    @abstractmethod
    def on_send(self, message: Message) -> None:
        """Handles a gradient."""

    def on_send_barrier(self, message: Message) -> None:
        """Handles the end of a trainer's gradients in its step."""

    def on_fetch_barrier(self, message: Message) -> None:
        """Handles the end of a trainer's fetching in its step."""

    def on_notify(self, message: Message) -> None:
        """Handles a step counter."""

    def on_complete(self, message: Message) -> None:
        """Handles the message that a trainer has left."""
        self.live.discard(message.trainer)
        self.admit()

    def waiting_for_end(self) -> WaitReason:
        """The wait of a server whose remaining trainers have not left yet."""
        if self.down:
            return WaitReason(self.name, self.op, "being started again", (self.name,))
        return WaitReason(self.name, self.op, "the end of all trainers", self.names_of(self.live))

    # trainers that rejoin

    def announce(self, trainer: int, step: int) -> None:
        """Announces a trainer that rejoins, from a step that no server has begun to serve."""
        self.announced.append((trainer, step))
        self.admit()

    def withdraw(self, trainer: int) -> bool:
        """Withdraws the announcement of a trainer; returns whether it had not been admitted yet."""
        pending = {p for p, (who, _) in enumerate(self.announced) if who == trainer and p not in self.admitted}
        self.admitted |= pending
        return bool(pending)

    def admit(self) -> None:
        """Admits announced trainers, once they have left and their step may begin."""
        for place, (trainer, step) in enumerate(self.announced):
            if place not in self.admitted and trainer not in self.live and self.may_come(step):
                self.admitted.add(place)
                self.live.add(trainer)

    def finish_restore(self) -> None:
        """Admits the announced trainers that may join, after the server was restored from a snapshot."""
        self.admit()

    def may_come(self, step: int) -> bool:
        """Whether a trainer that takes part from this step may join now."""
        return True

    def prepared_blocks(self) -> Iterable[Block]:
        """The blocks made ready so far, always in the same order."""
        return ()

    # answers

    def answer(self, message: Message) -> None:
        """Sends the current value of a variable."""
        name = message.variable
        value = self._copies.get(name)
        if value is None:
            value = self.copy_of(name, message)
        link = self.links.get(message.source) or self._link_to(message)
        link.post(REPLY, message.step, name, value, message.slot)

    def reply(self, message: Message, value: Value) -> None:
        """Sends the answer to a request."""
        link = self.links.get(message.source) or self._link_to(message)
        link.post(REPLY, message.step, message.variable, value, message.slot)

    def _link_to(self, message: Message) -> Link:
        """The link to the sender of a message."""
        return self.network.link(self, self._asking[message.source], message.trainer)

    def copy_of(self, name: str, message: Message) -> Value:
        """The current value of a variable, which later updates do not change: one copy serves all requests before the
        next change. An array that the next update replaces is not copied but made read-only.

        Raises DiagnosticError if the server has no such variable.
        """
        value = self._copies.get(name)
        if value is None:
            value = self.scope.get(name)
            if value is None:
                raise self.unknown_variable_error(message, "is asked for")
            if value.__class__ is np.ndarray:
                if value.size <= LARGEST or name not in self._replaced_variables:
                    value = value.copy()
                value.setflags(write=False)
            else:
                value = own_copy(rows_alone(value, self.scope))
            self._copies[name] = value
        return value

    @cached_property
    def _replaced_variables(self) -> frozenset[str]:
        """The variables that only optimizer ops write, and that these replace instead of changing them in place. (Small
        ones are parts of one array, which is changed in place.)
        """
        writers = [(name, op.type) for block in self.main.blocks for op in block.ops for name in op.output_names]
        changed = {name for name, kind in writers if kind not in REPLACING}
        return frozenset(name for name, _ in writers) - changed

    def forget_all_copies(self) -> None:
        """Drops the copies of all variables, as any of them may have changed."""
        self._copies.clear()

    def forget_copies(self, changed: Set[str]) -> None:
        """Drops the copies of variables that have changed."""
        for name in self._copies.keys() & changed:
            del self._copies[name]

    def look_up(self, message: Message) -> None:
        """Answers with rows of one of the server's tables, or of the block that is registered for the variable."""
        if message.kind == PREFETCH:
            block = self.prefetch_blocks.get(message.variable)
            if block is None:
                raise self.unknown_variable_error(message, "has no prefetch block, but is sent ids for it under")
            (rows,) = block.apply([message.payload])
            self.forget_copies(block.changes)
            self.reply(message, rows)
            return
        table = self.scope.values_here.get(message.variable)
        if table is None:
            raise self.unknown_variable_error(message, "is asked for rows of")
        if table.__class__ is LargeTable:
            self.reply(message, table.look_up(message.payload))
            return
        held = table.value if table.__class__ is SelectedRows else table
        self.reply(message, held.take(message.payload, axis=0))  # several times as fast as held[payload]

    def look_up_all(self, messages: Sequence[Message]) -> None:
        """Answers several requests for rows, in order, those of large tables side by side."""
        tables = [self.scope.values_here.get(message.variable) for message in messages]
        large = [(table, m.payload) for table, m in zip(tables, messages, strict=True) if isinstance(table, LargeTable)]
        rows = iter(look_up_side_by_side(large))
        for table, message in zip(tables, messages, strict=True):
            if isinstance(table, LargeTable):
                self.reply(message, next(rows))
            else:
                self.look_up(message)

    @cached_property
    def prefetch_blocks(self) -> dict[str, Block]:
        """The blocks that look up ids, by the name of the variable with the ids."""
        blocks: dict[str, Block] = {}
        for name, index in pairs(self.op, "prefetch_var_name_to_block_id").items():
            program = block_alone(self.main, int(index))
            (output,) = program.main_block.ops[-1].output_names
            blocks[name] = Block(program, self.scope, [name], [output], seed=self.seed)
        return blocks

    def on_checkpoint(self, message: Message) -> None:
        """Runs the save block with the path in the message."""
        if self.save_block < 0:
            raise self.unknown_variable_error(message, "has no block that saves, but is told to save")
        self.save_to(str(message.payload))
        self.reply(message, True)

    def on_shrink(self, message: Message) -> None:
        """Removes the rows from a large table that have had no gradient for the number of requests in the message."""
        table = self.scope.values_here.get(message.variable)
        if not isinstance(table, LargeTable):
            raise self.unknown_variable_error(message, "is asked to shrink, and has no large table,")
        self.reply(message, table.shrink_after(int(message.payload)))

    @property
    def save_block(self) -> int:
        """The number of the block that saves; negative if there is none."""
        return int(self.op.attrs.get("checkpint_block_id", -1))  # pyright: ignore[reportArgumentType]

    def save_to(self, path: str) -> None:
        """Runs the save block with a path for its files. Raises DiagnosticError where they can't be written."""
        program = block_program(self.main, [self.save_block])
        with self._placed(path) as file:
            ops = [
                op._replace(attrs=type(op.attrs)({**op.attrs, "file_path": file})) if op.type == "save" else op
                for op in program.main_block.ops
            ]
            saving = program._replace(blocks=(program.main_block._replace(ops=tuple(ops)), *program.blocks[1:]))
            Block(saving, self.scope, [], [], folder=self.folder).apply([])

    # errors

    def unknown_variable_error(self, message: Message, what: str) -> DiagnosticError:
        """The error for a message about a variable that the server does not have."""
        declared = self.main.main_block.vars
        known = message.variable in declared or message.variable in self.scope
        hint = "" if known else near(message.variable, [*self.scope, *declared])
        if known and "asked" in what and self.scope.get(message.variable) is None:
            hint = ", which its program declares, but never gives a value"
        text = f"{self.name} ({self.endpoint}) {what} {visible(message.variable)}{hint}"
        notes = [Note(f"the message: {message}")]
        return DiagnosticError([at_op("cluster-unknown-variable", text, self.op, notes=notes)])

    def names_of(self, trainers: Iterable[int]) -> tuple[str, ...]:
        """The names of trainers, in order."""
        return tuple(self.trainer_names.get(number, f"trainer_{number}") for number in sorted(trainers))


AT_START = "@AT_START"
"""The ending of the name of the variable with the initial value of a shared counter."""


class SharedCounter(NamedTuple):
    """The op that adds up the trainers' counters, its index, and the names of the counters."""

    place: int
    op: Op
    name: str
    trainer_counters: tuple[str, ...]


def shared_counters(program: Program, scope: Scope) -> list[SharedCounter]:
    """The sums of trainers' counters among the ops of block 0: of persistable whole numbers that no op writes."""
    ops, variables = program.main_block.ops, program.main_block.vars
    written = {name for op in ops for name in op.output_names}
    result: list[SharedCounter] = []
    for place, op in enumerate(ops):
        own, shared = op.inputs.get("X", ()), op.output("Out")
        if op.type != "sum" or shared is None or shared in own or not own:
            continue
        names = (*own, shared)
        if any(name in written for name in own) or not all(_is_counter(scope.get(name)) for name in names):
            continue
        if all(name in variables and variables[name].persistable for name in names):
            result.append(SharedCounter(place, op, shared, tuple(own)))
    return result


def _is_counter(value: Value) -> bool:
    return value.__class__ is np.ndarray and value.size == 1 and value.dtype.kind == "i"


def count_notices(program: Program, scope: Scope) -> Program:
    """The program whose shared counters are their initial values plus the steps that trainers have sent."""
    ops = list(program.main_block.ops)
    for place, op, shared, own in shared_counters(program, scope):
        start = shared + AT_START
        scope[start] = scope[shared]
        ops[place] = op._replace(inputs=FrozenMap({**op.inputs, "X": (start, *own)}))
    return part_of(program, ops)


def count_rounds(program: Program, rates: int, scope: Scope) -> Program:
    """The program of a synchronous server whose shared counters count updates.

    `rates`: the block of the learning rate, -1 if there is none.
    """
    if rates < 0:
        return program
    ops = list(program.main_block.ops)
    for place, op, shared, own in shared_counters(program, scope):
        first = scope[shared] + sum(scope[name] for name in own)
        scope[shared] = first - 1
        ops[place] = Op(
            "increment", FrozenMap({"X": (shared,)}), FrozenMap({"Out": (shared,)}), FrozenMap({"step": 1.0}),
            role=op.role, origin=op.origin,
        )  # fmt: skip
    return part_of(program, ops)
