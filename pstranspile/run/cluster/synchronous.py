"""A synchronous server: every step one update, made of what all trainers sent.

The loop of Fluid: serve variables until all trainers have reported their fetch barrier (the first is that of their
start-up programs); then take gradients until all have reported their send barrier; update; and so on. What comes early
waits. Other than in Fluid:

* A trainer that has left is not waited for, and the average is over the trainers whose gradients came.
* Rows of tables are looked up between updates only, as the trainer that asks would see them.
* What several trainers send under one name is added up; the last one does not hide the others.
* A gradient that no trainer sent, while all are there, is an error and not the one of the step before.
* Where trainers have several programs, an update is that of one program, which all trainers name with their send
  barrier: the blocks of gradients that just other programs send are left out. Fluid runs all blocks in every round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, Op, Program
from pstranspile.kernels.context import Value
from pstranspile.run.cluster import codes
from pstranspile.run.cluster.blocks import Block, Parts, block_program, part_of, read_first, with_temporaries
from pstranspile.run.cluster.counters import count_rounds, shared_counters
from pstranspile.run.cluster.cutting import merged
from pstranspile.run.cluster.message import Message, step_told
from pstranspile.run.cluster.network import Waiting
from pstranspile.run.cluster.server import Server, pairs

Applied: TypeAlias = "Callable[[Server, list[tuple[str, int, Value]]], object]"
"""Is told of what an update is made of."""


class SynchronousServer(Server):
    """A server with `distributed_mode` 0."""

    on_apply: Applied | None = None
    """Told right before an update of what it is made of: variable, trainer and value."""

    KEPT = (*Server.KEPT, "sending", "received", "_senders", "_shared", "_sent", "_steps", "_fetched", "_parked")

    def open(self, trainers: Any) -> None:
        """Begins with serving: the trainers' start-up programs fetch the parameters."""
        super().open(trainers)
        blocks: Any = self.op.attrs["optimize_blocks"]
        rates: Any = self.op.attrs.get("lr_decay_block_id", -1)
        numbers = [int(number) for number in blocks]
        source = block_program(self.main, numbers)
        self._parts = Parts(self.main, numbers, shared_counters(source, self.scope) if int(rates) >= 0 else ())
        self.program: Program = count_rounds(source, int(rates), self.scope)
        declared = self.main.main_block.vars
        listed = set(self.op.inputs.get("X", ()))
        self.wanted: list[str] = [
            name
            for name in read_first(self.program.main_block.ops)
            if name in listed or (name in declared and (not declared[name].persistable or self.scope.get(name) is None))
        ]
        """What the update needs of the trainers, in the order in which it is read."""
        self.program = with_temporaries(self.program, pairs(self.op, "grad_to_block_id"))
        everything = frozenset[str]().union(*self.said.values())
        self._idle: dict[str, frozenset[str]] = {name: everything - said for name, said in self.said.items()}
        """By program of the trainers, what just other programs send."""
        self.sending = False
        """Whether gradients are taken now; else variables are served."""
        self.received: dict[str, Value] = {}
        self._senders: dict[str, int] = {}
        self._shared: dict[str, dict[int, Value]] = {}
        """What several trainers sent under one name, by trainer."""
        self._sent: set[int] = set()
        """The trainers whose send barrier has come before its update; whatever else they send waits for that."""
        self._steps: dict[int, tuple[str, int]] = {}
        """What the trainers whose send barrier has come say they have run: program and step."""
        self._fetched: set[int] = set()
        self._parked: list[Message] = []
        self._again: deque[Message] = deque()
        self._updates: dict[tuple[str, frozenset[str]], tuple[Block, list[str]]] = {}
        """The updates made ready so far, by program and by what did not come."""
        self._wanted_by_program: dict[str, list[str]] = {}

    def run(self) -> None:
        """Takes every message that has come."""
        if self.network.direct is None:
            super().run()
            return
        inbox, sent, parked, again, handlers = self.inbox, self._sent, self._parked, self._again, self._handlers
        live = self.live
        while inbox:
            message = inbox.popleft()
            if message.trainer in sent or message.trainer not in live:
                parked.append(message)
            else:
                handlers[message.kind](message)
                if again:
                    self._take_again()

    def receive(self, message: Message) -> None:
        """Takes one message, and those that waited for what it brought about. Raises DiagnosticError."""
        if message.trainer in self._sent or message.trainer not in self.live:
            self._parked.append(message)
        else:
            self._handlers[message.kind](message)
            self._take_again()

    def _take_again(self) -> None:
        while self._again:
            message = self._again.popleft()
            if message.trainer in self._sent or message.trainer not in self.live:
                self._parked.append(message)
            else:
                self._handlers[message.kind](message)

    def on_send(self, message: Message) -> None:
        """Keeps the gradient for the update. Raises DiagnosticError for a variable the server does not have."""
        name, trainer, senders = message.variable, message.trainer, self._senders
        sender = senders.get(name)
        if sender is None and name not in self.main.main_block.vars:
            raise self.unknown(message, "is sent")
        if sender == trainer or name not in self.received:
            senders[name] = trainer
            self.received[name] = message.payload
        else:
            parts = self._shared.setdefault(name, {senders[name]: self.received[name]})
            parts[trainer] = message.payload

    def on_get(self, message: Message) -> None:
        """Answers while variables are served, else after the update."""
        if self.sending:
            self._parked.append(message)
            return
        name = message.variable
        value = self._copies.get(name)
        if value is None:
            value = self.copy_of(name, message)
        self.reply(message, value)

    def on_lookup(self, message: Message) -> None:
        """Answers: the trainer has sent nothing yet that the table lacks."""
        self.look_up(message)

    def on_send_barrier(self, message: Message) -> None:
        """One more trainer has sent everything; the last one starts the update."""
        self._sent.add(message.trainer)
        if message.payload is not None:
            self._steps[message.trainer] = message.payload, message.step
        if self.sending and len(self._sent) >= len(self.live):
            self._go_on()

    def on_fetch_barrier(self, message: Message) -> None:
        """One more trainer has received everything; the last one lets gradients in."""
        self._fetched.add(message.trainer)
        if not self.sending and len(self._fetched) >= len(self.live):
            self._go_on()

    def on_complete(self, message: Message) -> None:
        """Nobody waits for a trainer that has left. What it sent of a step that it did not finish does not count."""
        trainer = message.trainer
        self._sent.discard(trainer)
        self._steps.pop(trainer, None)
        self._fetched.discard(trainer)
        if self.received:
            self._forget(trainer)
        super().on_complete(message)
        self._go_on()

    def _forget(self, trainer: int) -> None:
        """Drops what a trainer has sent of the step under way."""
        for name in [name for name, sender in self._senders.items() if sender == trainer and name in self.received]:
            del self.received[name]
        for name, parts in list(self._shared.items()):
            parts.pop(trainer, None)
            if not parts:
                del self._shared[name]
            elif name not in self.received:
                self._senders[name], self.received[name] = next(iter(parts.items()))

    def step_told(self) -> str:
        """Each step is one update."""
        return step_told(self.updates)

    def may_come(self, step: int) -> bool:
        """While variables are served before this step."""
        return not self.sending and step <= self.updates

    def admit(self) -> None:
        """Lets in the trainers that were announced, and takes what they have sent meanwhile; if nobody is there to make
        the steps before, at once.
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
            self._take_parked()

    def _take_parked(self) -> None:
        """What waited is taken again, before what came later."""
        self._again.extendleft(reversed(self._parked))
        self._parked.clear()

    def announce(self, trainer: int, step: int) -> None:
        """A trainer that was here comes back."""
        super().announce(trainer, step)
        self._take_again()

    def go_on_again(self) -> None:
        """The server is back at a state that it kept."""
        super().go_on_again()
        self._take_again()

    def prepared(self) -> Iterable[Block]:
        """The updates made ready so far."""
        return (block for block, _ in self._updates.values())

    def _go_on(self) -> None:
        """Passes every barrier that has been met."""
        if not self.live:
            return
        if not self.sending:
            if not self.live <= self._fetched:
                return
            self._fetched.clear()
            self.sending = True
        if self.live <= self._sent:
            self._update()
            self._sent.clear()
            self._steps.clear()
            self.sending = False
            self.admit()
            self._take_parked()

    def contributions(self) -> list[tuple[str, int, Value]]:
        """What has been received for the next update: variable, trainer and value."""
        shared = self._shared
        alone = [(name, self._senders[name], value) for name, value in self.received.items() if name not in shared]
        return alone + [(name, trainer, value) for name, parts in shared.items() for trainer, value in parts.items()]

    def _program_now(self) -> str:
        """The program that the trainers have run. Raises DiagnosticError if it is not one."""
        told = {trainer: self._steps.get(trainer, (MAIN, -1)) for trainer in sorted(self._sent)}
        names = {name for name, _ in told.values()}
        if len(names) > 1:
            notes = [Note(f"{self.names_of([t])[0]}: @{name}, {step_told(step)}") for t, (name, step) in told.items()]
            different = " and ".join(f"@{name}" for name in sorted(names))
            message = f"the trainers take part in update {self.updates + 1} of {self.name} with different programs, "
            raise DiagnosticError([at_op(codes.PROGRAMS, message + different, self.op, notes=notes)])
        return next(iter(names))

    def _wanted_of(self, program: str) -> list[str]:
        """What the update of one program needs."""
        found = self._wanted_by_program.get(program)
        if found is None:
            idle = self._idle.get(program, frozenset[str]())
            found = self._wanted_by_program[program] = [name for name in self.wanted if name not in idle]
        return found

    def _update(self) -> None:
        program = self._program_now() if self._steps else MAIN
        if self.on_apply is not None:
            self.on_apply(self, self.contributions())
        for name, parts in self._shared.items():
            self.received[name] = merged([parts[trainer] for trainer in sorted(parts)], adds=True)
        self._shared.clear()
        wanted = self._wanted_of(program) if self.said else self.wanted
        absent = frozenset(name for name in wanted if name not in self.received)
        known = self._updates.get((program, absent))
        if known is None:
            known = self._updates[program, absent] = self._make_update(program, wanted, absent)
        block, names = known
        received = self.received
        block.apply([received[name] for name in names])
        received.clear()
        self.forget_copies(block.changes)
        self.updates += 1
        if self.on_update is not None:
            self.on_update(self, self.updates - 1)

    def _make_update(self, name: str, wanted: list[str], absent: frozenset[str]) -> tuple[Block, list[str]]:
        idle = self._idle.get(name, frozenset[str]())
        program = self._parts.of(self.program, idle, frozenset(self.wanted))
        if idle:
            program = without(program, idle.intersection(self.wanted, read_first(program.main_block.ops)))
        if absent:
            if len(self.live) == len(self.trainer_names):
                raise self._not_sent(sorted(absent))
            program = without(program, absent)
        names = [name for name in wanted if name not in absent]
        read = set(read_first(program.main_block.ops))
        names = [name for name in names if name in read]
        return Block(program, self.scope, names, (), seed=self.seed), names

    def _not_sent(self, absent: list[str]) -> DiagnosticError:
        reader = next(op for op in self.program.main_block.ops if set(op.input_names) & set(absent))
        of = f" of @{self._program_now()}" if self._steps else ""
        message = f"{self.name} has the send barriers{of} of all trainers, but nobody sent {', '.join(absent)}"
        return DiagnosticError([at_op(codes.NOT_SENT, message, reader, focus=absent[0])])

    def waiting(self) -> Waiting | None:
        """Which barrier has not been met, and who has not come."""
        if self.ended:
            return None
        if self.sending:
            step = f" of {self.step_told()}"
            come = [f"{self.names_of([t])[0]} runs @{name}" for t, (name, _) in sorted(self._steps.items())]
            step += f" ({', '.join(come)})" if come else ""
            return Waiting(self.name, self.op, "send barriers" + step, self.names_of(self.live - self._sent))
        what = "fetch barriers of " + (f"step {self.updates}" if self.updates else "the start-up programs")
        return Waiting(self.name, self.op, what, self.names_of(self.live - self._fetched))


def without(program: Program, absent: frozenset[str]) -> Program:
    """The update without gradients that did not come: averages are over those that came.

    A `sum` leaves the absent ones out; the `scale` that makes its average is adapted. Ops that are left without any
    gradient are left out, and so are those that read what they would have made.
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
