"""A trainer's program as it runs: from one exchange with other machines to the next, until it has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pstranspile.cluster.machines.script import REFUSALS, Coroutine, Script, refused
from pstranspile.cluster.machines.waits import Action, Wait
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import Op
from pstranspile.runtime.kernels.context import Value


class Ended(NamedTuple):
    """A program has ended with these fetched values."""

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

    def begin(self, feed: Mapping[str, Any], extra: Mapping[str, Any] = EMPTY) -> Ended | Wait:
        """Runs the program until it has ended or must wait. Raises DiagnosticError."""
        self._coroutine, stop = self.script.begin(feed, extra, self._actions)
        return Ended(self.script.ended) if stop is None else self._go_on(*stop)

    def resume(self, wait: Wait) -> Ended | Wait:
        """Goes on with what the program has waited for. Raises DiagnosticError."""
        return self._go_on(self._place, wait)

    def _go_on(self, place: int, received: Sequence[Value] | Wait | None) -> Ended | Wait:
        """Goes on from an exchange with the result of its action, until the program must wait or has ended."""
        coroutine = self._coroutine
        assert coroutine is not None
        while True:
            self._place = place
            while isinstance(received, Wait):
                if received.missing:
                    return received
                received = self._join(received)
            try:
                place, received = coroutine.send(received)
            except StopIteration as end:
                return Ended(end.value)
            except Exception as problem:
                self.script.explain(problem)
                raise

    def _join(self, wait: Wait) -> Sequence[Value] | Wait | None:
        try:
            return wait.join(wait.values)
        except REFUSALS as problem:
            raise refused(self.op, wait.values, problem) from problem

    @property
    def op(self) -> Op:
        """The op of the exchange at which the program stands."""
        return self.script.exchanges[self._place].op

    def awaited(self) -> str:
        """A phrase for what the program waits for at its exchange."""
        exchange = self.script.exchanges[self._place]
        return f"answers to {exchange.kind}: {', '.join(exchange.outputs) or exchange.kind}"
