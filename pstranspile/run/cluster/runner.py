"""A trainer's program as it runs: from one exchange with other machines to the next, until it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import Op
from pstranspile.kernels.context import Value
from pstranspile.run.cluster.script import Coroutine, Script
from pstranspile.run.cluster.waits import Wait
from pstranspile.run.describe import describe

Action: TypeAlias = "Callable[[tuple[Value, ...]], Sequence[Value] | Wait | None]"
"""Carries out an exchange: gets the values to send, and gives what is received, None if that is nothing. If others must
answer first, it gives what the trainer must wait for.
"""


class Ended(NamedTuple):
    """A program has ended, and gave these values."""

    fetched: Sequence[Value]


class Runner:
    """A program ready to run. `name`: of a program that steps run, None of any other; `actions`: of its exchanges."""

    def __init__(self, script: Script, name: str | None, actions: Sequence[Action]):
        self.script = script
        self.name = name
        self._actions = actions
        self._coroutine: Coroutine | None = None
        self._place = -1
        """The number of the exchange at which the program stands."""

    def begin(self, feed: Mapping[str, Any], beside: Mapping[str, Any] = EMPTY) -> Ended | Wait:
        """Runs the program until it has ended or must wait. Raises DiagnosticError."""
        self._coroutine, first = self.script.begin(feed, beside)
        if first is None:
            return Ended(self.script.ended)
        self._place, values = first
        return self._go_on(self._actions[self._place], values)

    def resume(self, wait: Wait) -> Ended | Wait:
        """Goes on with what the program has waited for. Raises DiagnosticError."""
        return self._go_on(wait.join, wait.values)

    def _go_on(self, action: Callable[[Any], Any], values: Any) -> Ended | Wait:
        """Carries out one action after the other, until one must wait or the program has ended."""
        coroutine, actions = self._coroutine, self._actions
        assert coroutine is not None
        while True:
            try:
                received = action(values)
            except (ValueError, TypeError, IndexError, OverflowError) as problem:
                notes = [Note(f"it is given {', '.join(map(describe, values))}")]
                raise DiagnosticError([at_op("run-op-failed", str(problem), self.op, notes=notes)]) from problem
            if received is not None and isinstance(received, Wait):
                if received.missing:
                    return received
                action, values = received.join, received.values
                continue
            try:
                self._place, values = coroutine.send(received)
            except StopIteration as end:
                return Ended(end.value)
            except Exception as problem:
                self.script.explain(problem)
                raise
            action = actions[self._place]

    @property
    def op(self) -> Op:
        """The op of the exchange at which the program stands."""
        return self.script.exchanges[self._place].op

    def awaited(self) -> str:
        """What the exchange at which the program stands asks for, told to a person."""
        exchange = self.script.exchanges[self._place]
        return f"answers to {exchange.kind}: {', '.join(exchange.outputs) or exchange.kind}"
