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
from pstranspile.run.codes import KERNEL_FAILED
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
        return self.resume(self._carry_out(self._actions[self._place], values))

    def resume(self, received: Sequence[Value] | Wait | None) -> Ended | Wait:
        """Hands the program what it has waited for, and goes on likewise. Raises DiagnosticError."""
        coroutine, actions, carry_out = self._coroutine, self._actions, self._carry_out
        assert coroutine is not None
        given: Any = received
        while True:
            if isinstance(given, Wait):
                if given.missing:
                    return given
                given = carry_out(given.join, given.values)
            try:
                self._place, values = coroutine.send(given)
            except StopIteration as end:
                return Ended(end.value)
            except Exception as problem:
                self.script.explain(problem)
                raise
            given = carry_out(actions[self._place], values)

    def _carry_out(self, action: Callable[[Any], Any], values: Sequence[Value]) -> Any:
        """Gives what an action, or the end of one, makes of values. Raises DiagnosticError for those it can't take."""
        try:
            return action(values)
        except (ValueError, TypeError, IndexError, OverflowError) as problem:
            notes = [Note(f"it is given {', '.join(map(describe, values))}")]
            raise DiagnosticError([at_op(KERNEL_FAILED, str(problem), self.op, notes=notes)]) from problem

    @property
    def op(self) -> Op:
        """The op of the exchange at which the program stands."""
        return self.script.exchanges[self._place].op

    def awaited(self) -> str:
        """What the exchange at which the program stands asks for, told to a person."""
        exchange = self.script.exchanges[self._place]
        return f"answers to {exchange.kind}: {', '.join(exchange.outputs) or exchange.kind}"
