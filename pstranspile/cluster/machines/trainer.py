"""A trainer: its start-up program once, then a program step by step, then it leaves.

A trainer may have several programs: its role says which of them each step runs, and how much of it. It has links to the
servers that ops name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from pstranspile.cluster.machines.message import COMPLETE, Message, step_label
from pstranspile.cluster.machines.network import Link, Machine, Network, WaitReason
from pstranspile.cluster.machines.script import (
    Action,
    Exchange,
    Library,
    ProgramEnd,
    Replies,
    Runner,
    Script,
    Wait,
    changed_in_place,
    is_collective,
)
from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.model import EMPTY, MAIN, Op, Program, Var
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.batch import Batch
from pstranspile.runtime.run.feeds import fetched_value
from pstranspile.runtime.run.frame import Execution
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.run.seeds import fed_seeds, scale_seeds, without_rows
from pstranspile.runtime.run.step_feeds import Turns

Feed: TypeAlias = "Mapping[str, Any] | None"


def no_more(_step: int) -> None:
    """The feed of a trainer whose data have ended: None for every step."""


_MOST_READY = 64
"""How many prepared programs a trainer keeps, as a script that edits its program before every step makes ever new ones.
"""


class StepResult(NamedTuple):
    """The result of a step: its index from 0, the program it ran, and the fetched values (None: there were no rows)."""

    step: int
    program: str
    values: dict[str, Value]


class Host(Protocol):
    """The parts of a cluster that a trainer needs."""

    seed: int | None
    folder: str
    """The folder of files that ops name."""
    library: Library

    def make_action(self, trainer: Trainer, exchange: Exchange, program: Program) -> Action:
        """The action of a trainer at an exchange with other machines. Raises DiagnosticError."""
        ...

    def initialise(self, trainer: Trainer) -> object:
        """Called after the first run of a trainer's start-up program."""
        ...


class TrainerListener:
    """Notified of a trainer's steps, which it may delay; both methods may be overridden."""

    def before_step(self, trainer: Trainer, step: int) -> Wait | None:
        """Called before a step, and again after each wait; returns what the trainer must wait for, or None."""
        return None

    def step_done(self, trainer: Trainer, step: int) -> None:
        """Called after the trainer has done a step."""


class OnStep(TrainerListener):
    """Calls a function after every step of a trainer."""

    def __init__(self, callback: Callable[[Trainer, int], object]):
        self._callback = callback

    def step_done(self, trainer: Trainer, step: int) -> None:
        """Calls the function with the step."""
        self._callback(trainer, step)


class Communicator(ABC):
    """Sends a trainer's gradients to the servers in place of the trainer's ops."""

    @abstractmethod
    def action(self, exchange: Exchange, program: Program) -> Action | None:
        """The trainer's action at an exchange; None for the action of a trainer without a communicator."""

    def begin_training(self) -> Wait | None:
        """Called when all initial values are set; returns what the trainer must wait for before its first step."""
        return None

    @property
    def quiet(self) -> bool:
        """Whether no message is under way or due."""
        return True

    def may_leave(self) -> bool:
        """Whether the trainer may leave now; if not, it is woken later."""
        return True


class Trainer(Machine):
    """A trainer of a cluster.

    `feed(step)` gives what is fed in a step, None when the trainer has run out of data and leaves. It may call
    `run_once` to run another program first, and is called again after that. The trainer pauses when it has done `limit`
    steps.
    """

    def __init__(
        self, name: str, index: int, network: Network, role: TrainerRole, host: Host, *, forms: Forms | None = None
    ):
        super().__init__(name, network)
        self.index = index
        self.role = role
        self.host = host
        self.communicator: Communicator | None = None
        self.servers: list[Link] = []
        """Links to the servers and rings that receive COMPLETE when the trainer leaves."""
        self.feed: Callable[[int], Feed] = lambda step: {}
        self._listeners: list[TrainerListener] = []
        self.forms = Forms() if forms is None else forms
        """The form of a program for a feed."""
        self.step = -1
        """The current or next step, an index from 0 as in the feed; negative during start-up."""
        self.limit = 0
        self.has_left = False
        self.results: list[StepResult] = []
        self.first_step = 0
        """The first step after the start-up program."""
        self._lives = 0
        """How often the trainer was restarted."""
        self._due_programs: deque[Program] = deque([role.startup])
        """Programs to be run before the next step."""
        self._prepared_runners: dict[tuple[str, int, Sequence[str]], Runner] = {}
        """The programs that steps have run, by name, identity (a runner holds its program) and what is fetched."""
        self._runner: Runner | None = None
        """The program under way."""
        self._wait: Wait | None = None
        self._begin_with: Mapping[str, Value] = {}
        """The variables to set after the first run of the start-up program."""

    def equip(self, communicator: Communicator | None) -> None:
        """Sets the communicator that sends the trainer's gradients; None: the trainer's ops send them."""
        self.communicator = communicator

    def connect(self, links: Sequence[Link]) -> None:
        """Sets the links on which COMPLETE is sent when the trainer leaves."""
        self.servers = list(links)

    def listen(self, listener: TrainerListener) -> None:
        """Adds a listener for steps; it is called after earlier ones."""
        self._listeners.append(listener)

    # between steps

    def go_on_from(self, step: int, scope: Scope | None = None) -> None:
        """Makes `step` the next step, for the feed and for random numbers; the trainer pauses before it.

        `scope`: the new scope of its variables; None: the scope stays.
        """
        if scope is not None:
            self.scope = scope
        self.step = self.limit = step
        self._prepared_runners.clear()

    def limit_to(self, steps: int) -> None:
        """Makes the trainer pause after this number of steps."""
        self.limit = steps

    def feed_from(self, feed: Callable[[int], Feed]) -> Callable[[int], Feed]:
        """Replaces the trainer's feed; returns the former one."""
        before, self.feed = self.feed, feed
        return before

    def run_once(self, program: Program) -> None:
        """Runs another program (such as one that saves) before the next step. It does not count as a step."""
        self._due_programs.append(program)
        self.network.scheduler.wake(self)

    def end_feed(self) -> None:
        """Ends the trainer's data: instead of another step it leaves."""
        self.feed = no_more
        self.limit = max(self.limit, self.step + 1)

    @property
    def between_steps(self) -> bool:
        """Whether the trainer is about to run its start-up program or a step, or to leave."""
        return self._runner is None and self._wait is None

    @property
    def awaited_replies(self) -> Replies | None:
        """The answers that the trainer waits for; None if it waits for none."""
        return self._wait if isinstance(self._wait, Replies) else None

    @property
    def waits_for_listener(self) -> bool:
        """Whether the trainer waits before a step for a condition of a listener."""
        return self._runner is None and self._wait is not None

    # leaving and rejoining

    @property
    def gone(self) -> bool:
        """Whether the trainer has left or crashed."""
        return self.has_left or self.down

    @property
    def coming_back(self) -> bool:
        """Whether the trainer was restarted, and has not come to its first step yet."""
        return self._lives > 0 and self.step < 0

    def restart(self, step: int, lives: int | None = None) -> None:
        """Starts again with the start-up program, and continues with this step. Its step number during start-up is
        unique, so that answers to an earlier life are ignored. `lives`: how often the trainer was restarted, if that
        was in other processes.
        """
        self._lives = self._lives + 1 if lives is None else lives
        self.down = self.has_left = False
        self.step, self.first_step = -1 - self._lives, step
        self._due_programs = deque([self.role.startup])
        self._prepared_runners.clear()
        self._runner = self._wait = None

    def begin_with(self, values: Mapping[str, Value], step: int) -> None:
        """Starts again: continues from this step with these variables, once its start-up program has run."""
        self._begin_with = values
        self.restart(step, 0)

    def take_results(self, results: Sequence[StepResult]) -> None:
        """Sets the results of the trainer's steps so far, which other processes have computed."""
        self.results = list(results)

    def take_over(self, other: Trainer) -> None:
        """Copies the persistable variables of another trainer, which is between steps, in place of running the start-up
        program, and begins at `first_step`.
        """
        for name, value in other.scope.items():
            var = self.role.variable(name)
            if var is not None and var.persistable:
                self.scope[name] = value
        self._due_programs.clear()
        self.step = self.first_step

    # the machine

    def receive(self, message: Message) -> None:
        """Takes a reply. A trainer receives no other messages."""
        if self._wait is not None:
            self._wait.take((message,))

    def receive_all(self) -> None:
        """Takes every reply in the inbox."""
        if self._wait is not None:
            self._wait.take(self.inbox)
        self.inbox.clear()

    def advance(self) -> None:
        """Continues the current program, or begins the next one, unless the trainer waits."""
        wait, runner = self._wait, self._runner
        if self.has_left or (wait is not None and wait.missing_count):
            return
        self._wait = None
        try:
            outcome = self._begin_next() if runner is None or wait is None else runner.resume(wait)
        except DiagnosticError as problem:
            raise self._with_step_note(problem) from problem.__cause__
        if isinstance(outcome, ProgramEnd):
            self._finish(outcome.fetched)
        else:
            self._wait = outcome

    def _begin_next(self) -> ProgramEnd | Wait | None:
        """Begins a program that is due or the next step, or leaves; None if there is nothing to run."""
        if self._due_programs:
            return self._begin_due()
        if self.step >= self.limit:
            return None
        for listener in self._listeners:
            if (first := listener.before_step(self, self.step)) is not None:
                return first
        feed = self.feed(self.step)
        if self._due_programs:
            return self._begin_due()
        if feed is None:
            self.leave()
            return None
        name = self.role.program_of(self.step)
        program = self.role.programs[name]
        form = self.forms.of(program, feed)
        if form is None:
            self._end_step(name, {})
            return None
        feeds = (*form.feed, *form.extra_inputs)
        fetches = self.role.fetches.get(name, ()) if form.fetches else ()
        key = name, id(form.program), fetches
        runner = self._prepared_runners.get(key)
        if runner is None or runner.script.feeds != feeds:
            if len(self._prepared_runners) >= _MOST_READY:
                del self._prepared_runners[next(iter(self._prepared_runners))]
            runner = self._prepared_runners[key] = self._prepare(program, name, feeds, fetches, form.program)
        runner.script.execution.count_from(self.step)
        self._runner = runner
        return runner.begin(form.feed, form.extra_inputs)

    def _begin_due(self) -> ProgramEnd | Wait:
        """Begins a program that is no step."""
        self._runner = self._prepare(self._due_programs.popleft(), None)
        return self._runner.begin({})

    def _prepare(
        self,
        program: Program,
        name: str | None,
        feeds: Sequence[str] = (),
        fetches: Sequence[str] = (),
        form: Program | None = None,
    ) -> Runner:
        """A program prepared to run, in the given form if there is one."""
        host = self.host
        options: dict[str, Any] = {"stream": self.index, "folder": host.folder, "step": max(self.step, 0)}
        execution = Execution(form or program, self.scope, seed=host.seed, **options)
        script = Script(execution, feeds, fetches, host.library)
        return Runner(script, name, [host.make_action(self, exchange, program) for exchange in script.exchanges])

    def _finish(self, values: Sequence[Value]) -> None:
        """Records the end of the start-up program, a step, or another program."""
        runner, self._runner = self._runner, None
        assert runner is not None
        script = runner.script
        script.execution.end()
        if runner.name is not None:
            program = script.execution.program
            pairs = zip(script.fetches, values, strict=True)
            self._end_step(runner.name, {name: fetched_value(program, name, value) for name, value in pairs})
            return
        if self.step < 0:
            self.step = self.first_step
            if not self._lives:
                self.host.initialise(self)
                for name, value in self._begin_with.items():
                    self.scope.put(name, value)
            if self.communicator is not None:
                self._wait = self.communicator.begin_training()
        self.network.scheduler.wake(self)

    def _end_step(self, program: str, values: dict[str, Value]) -> None:
        fetches = self.role.fetches.get(program, ())
        self.results.append(StepResult(self.step, program, {**dict.fromkeys(fetches), **values}))
        self.step += 1
        for listener in self._listeners:
            listener.step_done(self, self.step - 1)
        self.network.scheduler.wake(self)

    def leave(self) -> None:
        """Sends COMPLETE to all servers, once no message of the trainer is under way."""
        if self.has_left or (self.communicator is not None and not self.communicator.may_leave()):
            return
        self.has_left = True
        for link in self.servers:
            link.post(COMPLETE, self.step)

    # reports

    @property
    def op(self) -> Op | None:
        """The op at which the trainer waits; None between steps."""
        return None if self._runner is None else self._runner.op

    def waiting(self) -> WaitReason | None:
        """What the trainer waits for."""
        wait = self._wait
        if wait is None or not wait.missing_count:
            return None
        what = self._runner.describe_wait() if isinstance(wait, Replies) and self._runner is not None else str(wait)
        return WaitReason(self.name, self.op, what, wait.silent())

    def _with_step_note(self, problem: DiagnosticError) -> DiagnosticError:
        """The error with a note that names the machine and the step."""
        where = f"on {self.name}, " + (step_label(self.step) if self.step >= 0 else "during start-up")
        if self.role.turns is not None and self._runner is not None and self._runner.name is not None:
            where += f" of @{self._runner.name}"
        note = Note(where)
        return DiagnosticError(d._replace(notes=(*d.notes, note)) for d in problem.diagnostics)


# The servers that ops name, and links to them.


Servers: TypeAlias = "Mapping[str, Machine]"
"""The servers by endpoint."""


def link_to(trainer: Trainer, servers: Servers, endpoint: str, op: Op) -> Link:
    """The trainer's link to a server. Raises DiagnosticError if there is none at the endpoint."""
    server = servers.get(endpoint)
    if server is None:
        known = ", ".join(servers) or "none"
        message = f"no server listens at {endpoint}; the servers of this cluster: {known}"
        raise DiagnosticError([at_op("cluster-no-server", message, op)])
    return trainer.network.link(trainer, server, trainer.index)


def text_list(op: Op, name: str) -> Sequence[str]:
    """An attribute that is a list of texts, empty if the op does not carry it."""
    value: Any = op.attrs.get(name, ())
    return tuple(value)


def number_list(op: Op, name: str) -> Sequence[int]:
    """An attribute that is a list of whole numbers, empty if the op does not carry it."""
    value: Any = op.attrs.get(name, ())
    return tuple(map(int, value))


# The programs of a trainer, and the one that each of its steps runs.


class TrainerRole:
    """The start-up program of a trainer and, by name, those that its steps may run."""

    def __init__(self, startup: Program, main: Program, others: Mapping[str, Program] = EMPTY):
        self.startup = startup
        self.programs: dict[str, Program] = {MAIN: main, **others}
        self.turns: Turns | None = None
        """The choice of the program that each step runs; None: always the main one."""
        self.fetches: dict[str, tuple[str, ...]] = {}
        """The variables fetched of each program."""
        self.changed_variables = frozenset[str]().union(*map(changed_in_place, self.all_programs))
        """The variables that the programs may change in place, so that the trainer needs its own copies."""

    def take_turns(self, turns: Turns) -> None:
        """Sets the turns, which choose the program of each step."""
        self.turns = turns

    def fetch(self, fetches: Mapping[str, tuple[str, ...]]) -> None:
        """Sets the variables to fetch of each program."""
        self.fetches = dict(fetches)

    def replace_main(self, program: Program) -> None:
        """Replaces the main program for the next steps."""
        self.programs[MAIN] = program
        self.changed_variables |= changed_in_place(program)

    @property
    def main(self) -> Program:
        """The program that steps run by default."""
        return self.programs[MAIN]

    @property
    def all_programs(self) -> tuple[Program, ...]:
        """The start-up program and those that steps may run."""
        return (self.startup, *self.programs.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the programs that steps run."""
        return (MAIN,) if self.turns is None else self.turns.names

    def program_of(self, step: int) -> str:
        """The name of the program that a step runs."""
        return MAIN if self.turns is None else self.turns.program(step)

    def name_of(self, program: Program) -> str | None:
        """The name of a program that steps may run, None for any other."""
        return next((name for name, known in self.programs.items() if known is program), None)

    def label(self, program: Program) -> str | None:
        """The name of a program where several take turns, None where there is only one."""
        return None if self.turns is None else self.name_of(program)

    def variable(self, name: str) -> Var | None:
        """The declaration of a variable in the programs: a persistable one, if any is."""
        declared = [p.main_block.vars[name] for p in self.programs.values() if name in p.main_block.vars]
        return next((var for var in declared if var.persistable), declared[0] if declared else None)


# The forms in which a step runs a program: completely, completely with weighted seeds, or the part that needs no rows.


def sends_values(op_type: str) -> bool:
    """Whether ops of a type send values for which other machines may wait."""
    return op_type == "send" or is_collective(op_type)


class Form(NamedTuple):
    """A program to run, its feed, and `extra_inputs` that are no part of the batch. `fetches`: whether to fetch."""

    program: Program
    feed: Mapping[str, Any]
    extra_inputs: Mapping[str, Value] = EMPTY
    fetches: bool = True


class Forms:
    """The forms of a trainer's programs. `waited_for`: whether other machines wait for the trainer in every step."""

    def __init__(self, *, waited_for: bool = True):
        self._waited_for = waited_for
        self._forms: dict[tuple[int, bool], tuple[Program, Program, dict[str, Value]]] = {}
        """Cache of forms by program id and whether the feed is empty: the program itself (so that its id stays in use),
        the program to run in its place, and that program's extra inputs.
        """

    def of(self, program: Program, feed: Mapping[str, Any]) -> Form | None:
        """The form of a program for this feed; None for a step that is left out. Raises DiagnosticError."""
        if not isinstance(feed, Batch) or (feed.rows != 0 and feed.weight == 1.0):
            return Form(program, feed)
        if feed.rows == 0 and not self._waited_for:
            return None
        key = id(program), feed.rows == 0
        known = self._forms.get(key)
        if known is None:
            form = without_rows(program, feed, sends_values) if feed.rows == 0 else fed_seeds(program)
            known = self._forms[key] = program, *form
        _, form, extra = known
        return (
            Form(form, EMPTY, extra, fetches=False)
            if feed.rows == 0
            else Form(form, feed, scale_seeds(extra, feed.weight))
        )
