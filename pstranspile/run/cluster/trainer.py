"""A trainer: its start-up program once, then its main program step by step, then it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import MAIN, Op, Program, Var
from pstranspile.kernels.context import Value
from pstranspile.run.cluster.forms import Forms
from pstranspile.run.cluster.message import COMPLETE, Message, step_told
from pstranspile.run.cluster.network import Link, Machine, Network, Waiting
from pstranspile.run.cluster.script import Coroutine, Exchange, Library, Script, changed_in_place
from pstranspile.run.codes import KERNEL_FAILED
from pstranspile.run.describe import describe
from pstranspile.run.feeds import fetched
from pstranspile.run.frame import Execution
from pstranspile.run.scope import Scope
from pstranspile.run.turns import Turns

Feed: TypeAlias = "Mapping[str, Any] | None"
Action: TypeAlias = "Callable[[tuple[Value, ...]], Sequence[Value] | None]"
"""Carries out an exchange: gets the values to send; gives what is received, `WAIT` if that is to come, None if nothing.
"""

WAIT: Sequence[Value] = ("wait",)
"""An action's answer when the trainer must wait for replies."""


Actions: TypeAlias = "Callable[[Trainer, Exchange, Program], Action]"
"""Makes the actions of a trainer's exchanges. Raises DiagnosticError."""


class Trainer(Machine):
    """A trainer of a cluster.

    `feed(step)` gives what is fed in a step, None when the trainer has run out of data and leaves. The trainer pauses
    when it has done `limit` steps. `results` holds what was fetched, a mapping per step.
    """

    def __init__(
        self,
        name: str,
        index: int,
        network: Network,
        startup: Program,
        main: Program,
        library: Library,
        *,
        seed: int | None = None,
        scope: Scope | None = None,
        others: Mapping[str, Program] = EMPTY,
    ):
        super().__init__(name, network, scope)
        self.index = index
        self.startup = startup
        self.main = main
        self.programs: dict[str, Program] = {MAIN: main, **others}
        """The programs that a step may run, by name."""
        self.turns: Turns | None = None
        """Which of them each step runs; None: always the main one."""
        self.seed = seed
        self.step = -1
        """The step under way or next, an index from 0 as that of what is fed; below 0 during start-up."""
        self.limit = 0
        self.left = False
        self.results: list[dict[str, Value]] = []
        self.ran: list[str] = []
        """Which program each of the results is of."""
        self.did: list[int] = []
        """Which step each of the results is of, an index from 0."""
        self.fetches: dict[str, tuple[str, ...]] = {}
        """What is fetched of each program."""
        self.feed: Callable[[int], Feed] = lambda step: {}
        self.on_step: Callable[[Trainer, int], object] | None = None
        self.on_started: Callable[[Trainer], object] | None = None
        self.before_steps: Callable[[], object] | None = None
        """Called when the start-up is over and all initial values are set."""
        self.on_leaving: Callable[[Trainer], bool] | None = None
        """Called when the trainer would leave; False if it must wait (and be woken) first."""
        self.servers: list[Link] = []
        """Links to the servers, which are told when the trainer leaves."""
        self.make_action: Actions | None = None
        self.folder = "."
        """Where files that ops name lie."""
        self._asked: Program | None = None
        self._extra: Script | None = None
        self.changes = changed_in_place(startup).union(*map(changed_in_place, self.programs.values()))
        """The variables that the trainer's programs may change in place, so that it must have them to itself."""
        self._library = library
        self._script: Script | None = None
        self._scripts: dict[tuple[str, str], Script] = {}
        """The programs made ready to run, by name and form."""
        self.forms = Forms()
        """What is run of a program, by what is fed."""
        self._running = MAIN
        self._actions: dict[int, list[Action]] = {}
        self._coroutine: Coroutine | None = None
        self._exchange = -1
        self._answers: list[Value] = []
        self._open = 0
        self._join: Callable[[list[Value]], Sequence[Value]] | None = None
        self._after: Callable[[], object] | None = None
        self._asked_of: Sequence[Link] = ()
        self._blocked = ""
        self._begun = False
        self._lives = 0
        """How often the trainer was started again."""
        self._first = 0
        """The step to begin with."""

    # its programs

    @property
    def named(self) -> bool:
        """Whether steps may run other programs than the main one."""
        return self.turns is not None

    @property
    def scheduled(self) -> tuple[str, ...]:
        """The names of the programs that steps may run."""
        return (MAIN,) if self.turns is None else self.turns.names

    @property
    def everything(self) -> tuple[Program, ...]:
        """The start-up program and those that steps may run."""
        return (self.startup, *self.programs.values())

    def program_of(self, step: int) -> str:
        """The name of the program that a step runs."""
        return MAIN if self.turns is None else self.turns.program(step)

    def name_of(self, program: Program) -> str | None:
        """The name of a program that steps may run, None for any other."""
        return next((name for name, known in self.programs.items() if known is program), None)

    def declares(self, name: str) -> Var | None:
        """How a program of the trainer declares a variable: kept from step to step, if one of them does so."""
        found = [p.main_block.vars[name] for p in self.programs.values() if name in p.main_block.vars]
        return next((var for var in found if var.persistable), found[0] if found else None)

    # what actions use

    def expect(
        self, count: int, then: Callable[[list[Value]], Sequence[Value]] | None = None, asked: Sequence[Link] = ()
    ) -> Sequence[Value]:
        """Waits for so many replies, in slots from 0 up; `then` makes what is received of them. Gives `WAIT`.

        `asked`: whom, slot by slot, for a report if nothing comes.
        """
        if not count:
            return () if then is None else then([])
        self._answers = [None] * count
        self._open = count
        self._join = then
        self._asked_of = asked
        return WAIT

    def after_answers(self, then: Callable[[], object]) -> None:
        """Does something once the replies that are waited for have come; at once if there are none."""
        if self._open:
            self._after = then
        else:
            then()

    def block(self, what: str) -> Sequence[Value]:
        """Waits until `release` is called; `what` tells a person for what. Gives `WAIT`."""
        self._blocked = what
        return WAIT

    def release(self) -> None:
        """Ends a wait of `block`."""
        self._blocked = ""
        self.network.scheduler.wake(self)

    # between steps

    def go_on_from(self, step: int) -> None:
        """Makes `step` the next step, for what is fed and for random numbers; the trainer pauses before it."""
        self.step = self.limit = step
        self._scripts.clear()

    def run_once(self, program: Program) -> None:
        """Runs a program besides (one that saves), before the next step and without counting it as one."""
        self._asked = program
        self.network.scheduler.wake(self)

    # stopping and coming back

    @property
    def between_steps(self) -> bool:
        """Whether the trainer stands before its start-up program, a step, or its end."""
        return self._coroutine is None and not self._open and not self._blocked and self._asked is None

    @property
    def gone(self) -> bool:
        """Whether the trainer has left or crashed."""
        return self.left or self.down

    @property
    def coming_back(self) -> bool:
        """Whether the trainer was started again, and has not come to its first step yet."""
        return self._lives > 0 and self.step < 0

    def crash(self) -> None:
        """Nothing comes in or goes out any more."""
        self.down = True
        self.inbox.clear()

    def lives_before(self, lives: int) -> None:
        """How often the trainer was started before, in other processes."""
        self._lives = lives

    def restart(self, step: int) -> None:
        """Begins anew with the start-up program, and goes on with this step. Its number during start-up is like no
        other, so that answers to an earlier life are told apart.
        """
        self._lives += 1
        self.down = self.left = self._begun = False
        self.step, self._first = -1 - self._lives, step
        self.on_started = None
        self._asked = self._extra = self._script = self._coroutine = self._join = self._after = None
        self._scripts.clear()
        self._exchange, self._open, self._blocked = -1, 0, ""
        self._answers = []

    def take_over(self, other: Trainer) -> None:
        """Instead of the start-up program: begins with the variables of another trainer, which is between steps."""
        for name, value in other.scope.items():
            var = self.declares(name)
            if var is not None and var.persistable:
                self.scope[name] = value
        self._begun, self.step = True, self._first

    def receive_carefully(self) -> None:
        """From now on takes only answers that belong to the step under way."""
        self.receive = self._receive_of_step

    def _receive_of_step(self, message: Message) -> None:
        if self._open and message.step == self.step:
            self._answers[message.slot] = message.payload
            self._open -= 1

    # the machine

    def run(self) -> None:
        """Takes replies, and goes on unless more must come."""
        super().run()
        if self._open or self._blocked or self.left:
            return
        if self._coroutine is None:
            self._next()
        else:
            self._resume()

    def receive(self, message: Message) -> None:
        """A reply fills its slot."""
        if self._open:
            self._answers[message.slot] = message.payload
            self._open -= 1

    def _next(self) -> None:
        """Begins what comes next: the start-up program, a step, or leaving."""
        if not self._begun:
            self._begun = True
            self._begin(self._prepared(self.startup), {})
            return
        if self._asked is not None:
            program, self._asked = self._asked, None
            self._extra = self._prepared(program)
            self._begin(self._extra, {})
            return
        if self.step >= self.limit:
            return
        feed = self.feed(self.step)
        if feed is None:
            self.leave()
            return
        name = self._running = MAIN if self.turns is None else self.turns.program(self.step)
        form = self.forms.of(self.programs[name], feed)
        if form is None:
            self._did({})
            return
        script, feeds = self._scripts.get((name, form.kind)), (*form.feed, *form.beside)
        if script is None or script.feeds != feeds:
            fetches = self.fetches.get(name, ()) if form.fetches else ()
            script = self._prepared(self.programs[name], feeds, fetches, form.program)
            self._scripts[name, form.kind] = script
        script.execution.step = self.step
        self._begin(script, form.feed, form.beside)

    def _prepared(
        self, program: Program, feeds: Sequence[str] = (), fetches: Sequence[str] = (), form: Program | None = None
    ) -> Script:
        """A program ready to run, in another form of it if there is one."""
        execution = Execution(form or program, self.scope, seed=self.seed, stream=self.index, folder=self.folder)
        execution.step = max(self.step, 0)
        script = Script(execution, feeds, fetches, self._library)
        assert self.make_action is not None
        self._actions[id(script)] = [self.make_action(self, exchange, program) for exchange in script.exchanges]
        self._script = script
        return script

    def _begin(self, script: Script, feed: Mapping[str, Any], beside: Mapping[str, Any] = EMPTY) -> None:
        self._script = script
        try:
            coroutine, first = script.begin(feed, beside)
        except DiagnosticError as problem:
            raise self._told(problem) from None
        if first is None:
            self._finish(script.ended)
            return
        self._coroutine = coroutine
        self._exchange, values = first
        self._go_on(self._carry_out(self._actions[id(script)][self._exchange], values))

    def _resume(self) -> None:
        received: Sequence[Value] | None = self._answers
        if self._join is not None:
            received, self._join = self._carry_out(self._join, self._answers), None
        self._answers = []
        if self._after is not None:
            then, self._after = self._after, None
            then()
        self._go_on(received)

    def _go_on(self, received: Sequence[Value] | None) -> None:
        """Hands the coroutine what was received, and carries out exchanges until one must be waited for."""
        coroutine, script = self._coroutine, self._script
        assert coroutine is not None
        assert script is not None
        actions = self._actions[id(script)]
        while received is not WAIT:
            try:
                self._exchange, values = coroutine.send(received)
            except StopIteration as end:
                self._coroutine = None
                self._finish(end.value)
                return
            except Exception as problem:
                self._explain(script, problem)
                raise
            received = self._carry_out(actions[self._exchange], values)

    def _carry_out(self, action: Callable[[Any], Sequence[Value] | None], given: Sequence[Value]) -> Any:
        """Gives what an action, or the end of one, makes of values. Raises DiagnosticError for those it can't take."""
        try:
            return action(given)
        except (ValueError, TypeError, IndexError, OverflowError) as problem:
            assert self.op is not None
            notes = [Note(f"it is given {', '.join(map(describe, given))}")]
            raise self._told(DiagnosticError([at_op(KERNEL_FAILED, str(problem), self.op, notes=notes)])) from problem

    def _explain(self, script: Script, problem: Exception) -> None:
        try:
            script.explain(problem)
        except DiagnosticError as told:
            raise self._told(told) from problem

    def _finish(self, found: Sequence[Value]) -> None:
        """The start-up program or a step has ended."""
        script = self._script
        assert script is not None
        script.execution.step += 1
        self._exchange = -1
        if script is self._extra:
            self._extra = None
            self.network.scheduler.wake(self)
            return
        if self.step >= 0:
            values = zip(script.fetches, found, strict=True)
            self._did({name: fetched(script.execution.program, name, value) for name, value in values})
            return
        self.step = self._first
        if self.on_started is not None:
            self.on_started(self)
        if self.before_steps is not None:
            self.before_steps()
        self.network.scheduler.wake(self)

    def _did(self, found: dict[str, Value]) -> None:
        """A step has ended, and gave these values; None where there were no rows."""
        self.results.append({**dict.fromkeys(self.fetches.get(self._running, ())), **found})
        self.ran.append(self._running)
        self.did.append(self.step)
        self.step += 1
        if self.on_step is not None:
            self.on_step(self, self.step - 1)
        self.network.scheduler.wake(self)

    def leave(self) -> None:
        """Tells all servers that the trainer has left, once nothing of it is under way."""
        if self.left or (self.on_leaving is not None and not self.on_leaving(self)):
            return
        self.left = True
        for link in self.servers:
            link.post(COMPLETE, self.step)

    @property
    def op(self) -> Op | None:
        """The op at which the trainer stands, None between steps."""
        if self._script is None or self._exchange < 0:
            return None
        return self._script.exchanges[self._exchange].op

    def waiting(self) -> Waiting | None:
        """What the trainer waits for."""
        if self._blocked:
            return Waiting(self.name, self.op, self._blocked, (f"{self.name}/communicator",))
        if not self._open or self._script is None:
            return None
        exchange = self._script.exchanges[self._exchange]
        told = ", ".join(exchange.outputs) or exchange.kind
        missing = dict.fromkeys(
            link.target.name for link, answer in zip(self._asked_of, self._answers, strict=False) if answer is None
        )
        return Waiting(self.name, exchange.op, f"answers to {exchange.kind}: {told}", tuple(missing))

    def _told(self, problem: DiagnosticError) -> DiagnosticError:
        """The error with a note that says on which machine, and in which step."""
        program = f" of @{self._running}" if self.turns is not None else ""
        where = f"on {self.name}, " + (step_told(self.step) + program if self.step >= 0 else "during start-up")
        return DiagnosticError(d._replace(notes=(*d.notes, Note(where))) for d in problem.diagnostics)
