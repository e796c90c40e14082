"""A synchronous server: one update in every step, of the gradients of all trainers.

The loop of Fluid: serve variables until all trainers have reported their fetch barrier (the first is that of their
start-up programs); then take gradients until all have reported their send barrier; update; and so on. Early messages
wait. Differences from Fluid:

* The server does not wait for a trainer that has left. The average is over the trainers whose gradients came.
* Rows of tables are looked up only between updates, as the asking trainer would see them.
* Values that several trainers send under one name are added up. In Fluid the last one replaces the others.
* A gradient that no trainer sent, while all take part, is an error. Fluid takes the one of the step before.
* Where trainers have several programs, an update is that of one program, which all trainers name with their send
  barrier: it omits the blocks of gradients that only other programs send. Fluid runs all blocks in every round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import nullcontext
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from pstranspile.cluster.machines.message import GET, LOOKUP, Message, step_label
from pstranspile.cluster.machines.network import WaitReason
from pstranspile.cluster.machines.placement import merge_gradients
from pstranspile.cluster.machines.server import (
    Block,
    Server,
    block_program,
    count_rounds,
    pairs,
    part_of,
    read_first,
    shared_counters,
    with_temporaries,
)
from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.model import MAIN, FrozenMap, Op, Program
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.large.table import threads_of_tables, updates_side_by_side

# The messages to a synchronous server since its last update.


class Round(NamedTuple):
    """The step in progress of a synchronous server."""

    gradients: dict[str, Value]
    """Gradients by name. If several trainers sent one, the gradient of one of them."""
    senders: dict[str, int]
    """The trainer of each gradient in `gradients`."""
    shared_values: dict[str, dict[int, Value]]
    """The values that several trainers sent under one name, by trainer."""
    reported_trainers: dict[int, tuple[str | None, int]]
    """The trainers whose send barrier has come, each with its program (None: there is only one) and its step. Their
    later messages wait for the update.
    """
    fetched_trainers: set[int]
    """The trainers whose fetch barrier has come."""
    waiting_messages: list[Message]
    """Messages that have to wait."""

    def take(self, message: Message) -> None:
        """Adds a gradient."""
        name, trainer = message.variable, message.trainer
        if name not in self.gradients or self.senders[name] == trainer:
            self.senders[name] = trainer
            self.gradients[name] = message.payload
        else:
            parts = self.shared_values.setdefault(name, {self.senders[name]: self.gradients[name]})
            parts[trainer] = message.payload

    def forget(self, trainer: int) -> None:
        """Drops the gradients and barriers of a trainer in the step under way."""
        self.reported_trainers.pop(trainer, None)
        self.fetched_trainers.discard(trainer)
        for name in [name for name, sender in self.senders.items() if sender == trainer and name in self.gradients]:
            del self.gradients[name]
        for name, parts in list(self.shared_values.items()):
            parts.pop(trainer, None)
            if not parts:
                del self.shared_values[name]
            elif name not in self.gradients:
                self.senders[name], self.gradients[name] = next(iter(parts.items()))

    def of(self, trainer: int) -> set[str]:
        """The names of the variables that a trainer has sent."""
        alone = {name for name, sender in self.senders.items() if sender == trainer and name in self.gradients}
        return alone | {name for name, parts in self.shared_values.items() if trainer in parts}

    def contributions(self) -> list[tuple[str, int, Value]]:
        """The contributions to an update: variable, trainer and value."""
        shared = self.shared_values
        single = [(name, self.senders[name], value) for name, value in self.gradients.items() if name not in shared]
        return single + [(name, trainer, value) for name, parts in shared.items() for trainer, value in parts.items()]

    def merged_gradients(self) -> dict[str, Value]:
        """The gradients by name. Values that several trainers sent under one name are added up; the value of a single
        one stays as it is.
        """
        for name, parts in self.shared_values.items():
            values = [parts[trainer] for trainer in sorted(parts)]
            self.gradients[name] = values[0] if len(values) == 1 else merge_gradients(values, adds=True)
        self.shared_values.clear()
        return self.gradients

    def clear(self) -> None:
        """Empties the round after the update."""
        self.gradients.clear()
        self.senders.clear()
        self.reported_trainers.clear()


def new_round() -> Round:
    """A round without messages."""
    return Round({}, {}, {}, {}, set(), [])


# The prepared updates of a synchronous server, by program of the trainers and by absent gradients.


class Update(NamedTuple):
    """An update: its block, and the names of the variables that it receives."""

    block: Block
    names: list[str]

    def apply(self, received: dict[str, Value]) -> None:
        """Runs the update. Raises DiagnosticError."""
        self.block.apply([received[name] for name in self.names])


class UpdateBlocks:
    """Prepares the updates of a server whose start-up program has run."""

    def __init__(self, server: Server):
        blocks: Any = server.op.attrs["optimize_blocks"]
        rates: Any = server.op.attrs.get("lr_decay_block_id", -1)
        numbers = [int(number) for number in blocks]
        source = block_program(server.main, numbers)
        self._scope, self._seed = server.scope, server.seed
        counters = shared_counters(source, server.scope) if int(rates) >= 0 else ()
        self._counters = {counter.place: frozenset(counter.trainer_counters) for counter in counters}
        """The step counters that each sum of counters adds up, by the index of the op that sums them."""
        self._spans = list(pairwise(accumulate((len(server.main.blocks[n].ops) for n in numbers), initial=0)))
        """The range of ops of each block of the update, as pairs (first, end)."""
        program = count_rounds(source, int(rates), server.scope)
        declared = server.main.main_block.vars
        listed = set(server.op.inputs.get("X", ()))
        self._input_names = [
            name
            for name in read_first(program.main_block.ops)
            if name in listed
            or (name in declared and (not declared[name].persistable or server.scope.get(name) is None))
        ]
        """The variables that the update needs from the trainers, in the order in which it reads them."""
        self.program: Program = with_temporaries(program, pairs(server.op, "grad_to_block_id"))
        all_names = frozenset[str]().union(*server.sent_by_program.values())
        self._idle_variables = {name: all_names - sent for name, sent in server.sent_by_program.items()}
        """For each program of the trainers, the variables that only other programs send."""
        self._input_names_by_program: dict[str, frozenset[str]] = {}
        self._updates: dict[tuple[str, frozenset[str]], Update] = {}

    @property
    def names(self) -> Iterable[str]:
        """The variables that the update needs from the trainers."""
        return self._input_names

    @property
    def prepared_blocks(self) -> Iterable[Block]:
        """The blocks made ready so far."""
        return (update.block for update in self._updates.values())

    def needed_variables(self, program: str) -> frozenset[str]:
        """The variables that the update of one program needs from the trainers."""
        names = self._input_names_by_program.get(program)
        if names is None:
            names = self._input_names_by_program[program] = frozenset(self._input_names) - self._idle_variables.get(
                program, frozenset[str]()
            )
        return names

    def absent(self, program: str, received: Iterable[str]) -> frozenset[str]:
        """The variables that the update of a program needs and that are not among `gradients`."""
        return self.needed_variables(program).difference(received)

    def update(self, program: str, absent: frozenset[str]) -> Update:
        """The update of one program without the absent variables."""
        made = self._updates.get((program, absent))
        if made is None:
            made = self._updates[program, absent] = self._make(program, absent)
        return made

    def _make(self, name: str, absent: frozenset[str]) -> Update:
        idle = self._idle_variables.get(name, frozenset[str]())
        program = self.program
        if idle:
            program = self._without_blocks(idle)
            program = without_gradients(
                program, idle.intersection(self._input_names, read_first(program.main_block.ops))
            )
        if absent:
            program = without_gradients(program, absent)
        read = set(read_first(program.main_block.ops))
        wanted = self.needed_variables(name) - absent
        names = [name for name in self._input_names if name in read and name in wanted]
        return Update(Block(program, self._scope, names, (), seed=self._seed), names)

    def _without_blocks(self, idle: frozenset[str]) -> Program:
        """The update's program without the blocks whose gradients are all `idle`, and without the sums of idle step
        counters. Blocks that read no gradient (learning-rate blocks) stay.
        """
        ops, kept = self.program.main_block.ops, list[Op]()
        for start, stop in self._spans:
            read = {*self._input_names}.intersection(read_first(ops[start:stop]))
            if not read or not read <= idle:
                counters = self._counters
                kept += (ops[at] for at in range(start, stop) if at not in counters or not counters[at] <= idle)
        return part_of(self.program, kept)


def without_gradients(program: Program, absent: frozenset[str]) -> Program:
    """The update's program without the absent gradients: averages are over those that came.

    A `sum` omits absent gradients, and the `scale` that makes its average is adapted. Ops without any gradient are
    removed, and so are the ops that read their outputs.
    """
    ops: list[Op] = []
    missing = set(absent)
    short: dict[str, float] = {}
    for op in program.main_block.ops:
        inputs = op.inputs.get("X", ())
        if op.type == "sum" and missing.intersection(inputs) and not missing.issuperset(inputs):
            kept = tuple(name for name in inputs if name not in missing)
            short.update(dict.fromkeys(op.output_names, len(inputs) / len(kept)))
            op = op._replace(inputs=FrozenMap({**op.inputs, "X": kept}))
        elif missing.intersection(op.input_names):
            missing.update(op.output_names)
            continue
        elif op.type == "scale" and inputs and inputs[0] in short:
            factor: Any = op.attrs["scale"]
            op = op._replace(attrs=FrozenMap({**op.attrs, "scale": factor * short.pop(inputs[0])}))
        missing.difference_update(op.output_names)
        ops.append(op)
    return part_of(program, ops)


class SynchronousServer(Server):
    """A server with `distributed_mode` 0."""

    STATE = (*Server.STATE, "sending", "round")

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._variables = self.main.main_block.vars
        self.sending = False
        """Whether the server takes gradients now; otherwise it serves variables."""
        self.round: Round = new_round()
        self._deferred_messages: deque[Message] = deque()
        """Messages that have waited, to be taken before later ones."""

    @cached_property
    def update_blocks(self) -> UpdateBlocks:
        """The updates of the server; made at the first call, after the start-up program."""
        return UpdateBlocks(self)

    def receive(self, message: Message) -> None:
        """Takes one message, and then the messages that waited for its effect. Raises DiagnosticError."""
        self._take(deque((message,)))

    def receive_all(self) -> None:
        """Takes every message in the inbox, and then the messages that waited for their effect. Raises
        DiagnosticError.
        """
        self._take(self.inbox)

    def _take(self, messages: deque[Message]) -> None:
        """Takes messages, and before each of them the messages that have waited.

        A message waits if its trainer has reported its send barrier, if its trainer is not admitted yet, or if it asks
        for a variable while the server takes gradients.
        """
        again, handlers = self._deferred_messages, self._handlers
        while again or messages:
            message = again.popleft() if again else messages.popleft()
            kind = message.kind
            if self._must_wait(message):
                self.round.waiting_messages.append(message)
            elif kind == LOOKUP and threads_of_tables() > 1 and handlers[kind] == self.look_up:
                lookups = [message]
                while (rest := again or messages) and rest[0].kind == LOOKUP and not self._must_wait(rest[0]):
                    lookups.append(rest.popleft())
                self.look_up_all(lookups)
            else:
                handlers[kind](message)

    def _must_wait(self, message: Message) -> bool:
        """Whether a message waits for the next update, or for the end of one."""
        trainer = message.trainer
        return (
            trainer in self.round.reported_trainers
            or trainer not in self.live
            or (self.sending and message.kind == GET)
        )

    @property
    def receivable_variables(self) -> Iterable[str]:
        """The names of the variables that trainers may send: those that an update reads."""
        return self.update_blocks.names

    def on_send(self, message: Message) -> None:
        """Stores a gradient for the update. Raises DiagnosticError for a variable that the server does not have."""
        if message.variable not in self._variables:
            raise self.unknown_variable_error(message, "is sent")
        self.round.take(message)

    def on_send_barrier(self, message: Message) -> None:
        """Handles the end of a trainer's gradients; the last trainer's starts the update."""
        self.round.reported_trainers[message.trainer] = message.payload, message.step
        if len(self.round.reported_trainers) >= len(self.live):
            self._pass_barriers()

    def on_fetch_barrier(self, message: Message) -> None:
        """Handles the end of a trainer's fetching; after the last trainer's, the server takes gradients."""
        self.round.fetched_trainers.add(message.trainer)
        if len(self.round.fetched_trainers) >= len(self.live):
            self._pass_barriers()

    def on_complete(self, message: Message) -> None:
        """Handles a trainer's leaving. Its gradients of an unfinished step do not count."""
        self.round.forget(message.trainer)
        super().on_complete(message)
        self._pass_barriers()

    def step_label(self) -> str:
        """The name of the next update, which is a step."""
        return step_label(self.updates)

    # trainers that rejoin

    def may_come(self, step: int) -> bool:
        """Whether the server serves variables before this step, so that a trainer may join."""
        return not self.sending and step <= self.updates

    def admit(self) -> None:
        """Admits announced trainers whose step comes next, and takes their messages. If no trainer is left for the
        steps before, they are admitted at once.
        """
        steps = [step for place, (_, step) in enumerate(self.announced) if place not in self.admitted]
        if not steps:
            return
        if not self.live:
            self.sending = False
            self.updates = max(self.updates, min(steps))
        before = len(self.admitted)
        super().admit()
        if len(self.admitted) > before:
            self._stop_waiting()

    def announce(self, trainer: int, step: int) -> None:
        """Announces a trainer that rejoins, and admits it if its step comes next."""
        super().announce(trainer, step)
        self._take(deque())

    def finish_restore(self) -> None:
        """Admits trainers and takes waiting messages, after the server was restored from a snapshot."""
        super().finish_restore()
        self._take(deque())

    def _stop_waiting(self) -> None:
        """Queues the waiting messages to be taken again, before later ones."""
        self._deferred_messages.extendleft(reversed(self.round.waiting_messages))
        self.round.waiting_messages.clear()

    # updates

    def prepared_blocks(self) -> Iterable[Block]:
        """The blocks of the updates made so far."""
        return self.update_blocks.prepared_blocks

    def _pass_barriers(self) -> None:
        """Passes every barrier that has been met."""
        live = self.live
        if not live:
            return
        if not self.sending:
            if not live <= self.round.fetched_trainers:
                return
            self.round.fetched_trainers.clear()
            self.sending = True
        if live <= self.round.reported_trainers.keys():
            self._update()
            self.sending = False
            self.admit()
            self._stop_waiting()

    def _program(self) -> str:
        """The program that the trainers have run. Raises DiagnosticError if they have run different ones."""
        reported = self.round.reported_trainers
        labels = {label for label, _ in reported.values()}
        if len(labels) == 1:
            return labels.pop() or MAIN
        runs = {trainer: (label or MAIN, step) for trainer, (label, step) in sorted(reported.items())}
        notes = [Note(f"{self.names_of([t])[0]}: @{name}, {step_label(step)}") for t, (name, step) in runs.items()]
        different = " and ".join(f"@{name}" for name in sorted({name for name, _ in runs.values()}))
        message = f"the trainers take part in update {self.updates + 1} of {self.name} with different programs, "
        raise DiagnosticError([at_op("cluster-programs", message + different, self.op, notes=notes)])

    def _update(self) -> None:
        program = self._program()
        for listener in self.listeners:
            listener.updating(self, self.round.contributions)
        received = self.round.merged_gradients()
        absent = self.update_blocks.absent(program, received)
        if absent and len(self.live) == len(self.trainer_names):
            raise self._not_sent(program, sorted(absent))
        update = self.update_blocks.update(program, absent)
        with updates_side_by_side() if update.block.tables_apart else nullcontext():
            update.apply(received)
        self.round.clear()
        self.forget_copies(update.block.changes)
        self.count_update()

    def _not_sent(self, program: str, absent: list[str]) -> DiagnosticError:
        ops = self.update_blocks.program.main_block.ops
        reader = next(op for op in ops if set(op.input_names) & set(absent))
        of = f" of @{program}" if any(label for label, _ in self.round.reported_trainers.values()) else ""
        message = f"{self.name} has the send barriers{of} of all trainers, but nobody sent {', '.join(absent)}"
        return DiagnosticError([at_op("cluster-not-sent", message, reader, focus=absent[0])])

    def waiting(self) -> WaitReason | None:
        """The barrier that has not been met, with the trainers whose messages are missing."""
        if self.ended:
            return None
        reported = self.round.reported_trainers
        if self.sending:
            runs = [f"{self.names_of([t])[0]} runs @{label}" for t, (label, _) in sorted(reported.items()) if label]
            step = f" of {self.step_label()}" + (f" ({', '.join(runs)})" if runs else "")
            return WaitReason(self.name, self.op, "send barriers" + step, self.names_of(self.live - reported.keys()))
        what = "fetch barriers of " + (f"step {self.updates}" if self.updates else "the start-up programs")
        return WaitReason(self.name, self.op, what, self.names_of(self.live - self.round.fetched_trainers))
