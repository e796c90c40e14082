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
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from pstranspile.cluster.machines.blocks import Block
from pstranspile.cluster.machines.message import GET, Message, step_label
from pstranspile.cluster.machines.network import Waiting
from pstranspile.cluster.machines.rounds import Round, new_round
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.update_blocks import UpdateBlocks
from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.model import MAIN
from pstranspile.runtime.kernels.context import Value

Applied: TypeAlias = "Callable[[Server, list[tuple[str, int, Value]]], object]"
"""Called with the contributions to an update: variable, trainer and value."""


class SynchronousServer(Server):
    """A server with `distributed_mode` 0."""

    on_apply: Applied | None = None
    """Called right before an update."""

    STATE = (*Server.STATE, "sending", "round")

    def open(self, trainers: Mapping[int, str]) -> None:
        """Begins to serve variables: the trainers' start-up programs fetch the parameters."""
        super().open(trainers)
        self.update_blocks = UpdateBlocks(self)
        self._declared = self.main.main_block.vars
        self.sending = False
        """Whether the server takes gradients now; else it serves variables."""
        self.round: Round = new_round()
        self._again: deque[Message] = deque()
        """Messages that have waited, and are taken before later ones."""

    def receive(self, message: Message) -> None:
        """Takes one message, and messages that waited for its effect. Raises DiagnosticError."""
        self._take(deque((message,)))

    def receive_all(self) -> None:
        """Takes every message in the inbox, and messages that waited for their effect. Raises DiagnosticError."""
        self._take(self.inbox)

    def _take(self, messages: deque[Message]) -> None:
        """Takes messages, and before each of them the messages that have waited.

        A message waits if its trainer has reported its send barrier, if its trainer is not let in yet, or if it asks
        for a variable while the server takes gradients.
        """
        again, handlers = self._again, self._handlers
        while again or messages:
            message = again.popleft() if again else messages.popleft()
            kind, trainer = message.kind, message.trainer
            if trainer in self.round.reported or trainer not in self.live or (self.sending and kind == GET):
                self.round.waiting.append(message)
            else:
                handlers[kind](message)

    @property
    def takes(self) -> Iterable[str]:
        """The names of the variables that trainers may send: those that an update reads."""
        return self.update_blocks.names

    def on_send(self, message: Message) -> None:
        """Keeps the gradient for the update. Raises DiagnosticError for a variable the server does not have."""
        if message.variable not in self._declared:
            raise self.unknown(message, "is sent")
        self.round.take(message)

    def on_send_barrier(self, message: Message) -> None:
        """A trainer has sent all its gradients; the last one starts the update."""
        self.round.reported[message.trainer] = message.payload, message.step
        if len(self.round.reported) >= len(self.live):
            self._pass_barriers()

    def on_fetch_barrier(self, message: Message) -> None:
        """A trainer has received all parameters; the last one lets gradients in."""
        self.round.fetched.add(message.trainer)
        if len(self.round.fetched) >= len(self.live):
            self._pass_barriers()

    def on_complete(self, message: Message) -> None:
        """A trainer has left. Its gradients of a step that it did not finish do not count."""
        self.round.forget(message.trainer)
        super().on_complete(message)
        self._pass_barriers()

    def step_label(self) -> str:
        """The name of the next update, which is a step."""
        return step_label(self.updates)

    # trainers that come back

    def may_come(self, step: int) -> bool:
        """Whether variables are served before this step."""
        return not self.sending and step <= self.updates

    def admit(self) -> None:
        """Lets in announced trainers whose step comes next, and takes their messages. If no trainer is left for the
        steps before, they come in at once.
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
        """Announces a trainer that comes back."""
        super().announce(trainer, step)
        self._take(deque())

    def restored(self) -> None:
        """The server is back at a snapshot."""
        super().restored()
        self._take(deque())

    def _stop_waiting(self) -> None:
        """Has the waiting messages taken again, before later ones."""
        self._again.extendleft(reversed(self.round.waiting))
        self.round.waiting.clear()

    # updates

    def prepared(self) -> Iterable[Block]:
        """The blocks of the updates made so far."""
        return self.update_blocks.prepared

    def _pass_barriers(self) -> None:
        """Passes every barrier that has been met."""
        live = self.live
        if not live:
            return
        if not self.sending:
            if not live <= self.round.fetched:
                return
            self.round.fetched.clear()
            self.sending = True
        if live <= self.round.reported.keys():
            self._update()
            self.sending = False
            self.admit()
            self._stop_waiting()

    def _program(self) -> str:
        """The program that the trainers have run. Raises DiagnosticError if they have run different ones."""
        reported = self.round.reported
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
        if self.on_apply is not None:
            self.on_apply(self, self.round.contributions())
        received = self.round.merged()
        absent = self.update_blocks.absent(program, received)
        if absent and len(self.live) == len(self.trainer_names):
            raise self._not_sent(program, sorted(absent))
        update = self.update_blocks.update(program, absent)
        update.apply(received)
        self.round.clear()
        self.forget_copies(update.block.changes)
        self.updates += 1
        if self.on_update is not None:
            self.on_update(self, self.updates - 1)

    def _not_sent(self, program: str, absent: list[str]) -> DiagnosticError:
        ops = self.update_blocks.program.main_block.ops
        reader = next(op for op in ops if set(op.input_names) & set(absent))
        of = f" of @{program}" if any(label for label, _ in self.round.reported.values()) else ""
        message = f"{self.name} has the send barriers{of} of all trainers, but nobody sent {', '.join(absent)}"
        return DiagnosticError([at_op("cluster-not-sent", message, reader, focus=absent[0])])

    def waiting(self) -> Waiting | None:
        """The barrier that has not been met, and the trainers that have not come."""
        if self.ended:
            return None
        reported = self.round.reported
        if self.sending:
            runs = [f"{self.names_of([t])[0]} runs @{label}" for t, (label, _) in sorted(reported.items()) if label]
            step = f" of {self.step_label()}" + (f" ({', '.join(runs)})" if runs else "")
            return Waiting(self.name, self.op, "send barriers" + step, self.names_of(self.live - reported.keys()))
        what = "fetch barriers of " + (f"step {self.updates}" if self.updates else "the start-up programs")
        return Waiting(self.name, self.op, what, self.names_of(self.live - self.round.fetched))
