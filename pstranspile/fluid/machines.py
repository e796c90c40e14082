"""The machine of a cluster that this process is: it runs the programs that were transpiled for it, on behalf of an
Executor.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from queue import Empty, Queue
from threading import Thread, current_thread, main_thread
from typing import Any

from pstranspile.cluster.machines.cluster import Cluster, shared_seed
from pstranspile.cluster.machines.communicator import AsyncCommunicator
from pstranspile.cluster.machines.script import find_exchanges
from pstranspile.cluster.machines.server import Server, listening_op
from pstranspile.cluster.machines.trainer import Trainer, TrainerListener
from pstranspile.cluster.net.process import ProcessPlace, play_server, play_trainer
from pstranspile.cluster.net.server_checkpoints import VARIABLE
from pstranspile.cluster.net.status import SERVING, StatusPipe
from pstranspile.cluster.net.terms import TOKEN, PeerRefused, Terms, token_of_environment
from pstranspile.cluster.net.tls import read_credentials, require_guarded
from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.plan.plan import plan_json
from pstranspile.fluid.communicator import communicator_settings, is_launched, note_serving, trainers_ended
from pstranspile.fluid.graph.program import TEST
from pstranspile.fluid.net.system import FluidSystem
from pstranspile.fluid.running.failures import end_as_interrupted, interrupt_message, naming_wait
from pstranspile.fluid.running.pacing import Between, Pace, SurroundingOps, held_in, quiet
from pstranspile.ir.diagnostics import DiagnosticError, error, lasting
from pstranspile.ir.json_text import json_text
from pstranspile.ir.model import MAIN, STARTUP, Program, Role
from pstranspile.runtime.run import run
from pstranspile.runtime.run.scope import Scope

_MOST_PROGRAMS = 16
"""The greatest number of programs for which a machine keeps facts."""

LONG = 10.0
"""Seconds after which a machine reports what it waits for."""

AFTER_INTERRUPT = 0.5
"""Seconds that a trainer has to leave the servers in order, if its script was interrupted while it waited."""

FOREVER = 1 << 62
"""A number of steps that no script reaches."""


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    return float(text) if text else default


def require_open(addresses: Mapping[str, str]) -> None:
    """Raises DiagnosticError where machines would communicate without encryption beyond this host, unless
    `PSTRANSPILE_INSECURE` allows it.
    """
    if not os.environ.get("PSTRANSPILE_INSECURE"):
        require_guarded(addresses, addresses)


def require_callable(addresses: Mapping[str, str]) -> None:
    """Raises DiagnosticError if the environment asks for tokens or certificates, which Fluid's calls do not have."""
    token_of_environment(os.environ)
    wanted = [name for name in (TOKEN, "PSTRANSPILE_TLS") if os.environ.get(name)]
    if wanted:
        what = "machines whose ops a script wrote itself make Fluid's calls, which bring no token and no certificate"
        raise DiagnosticError([error("start-tls", f"{wanted[0]} is set, but {what}; unset it")])
    require_open(addresses)


class Machine:
    """The base class of the machines that scripts run: it has the compiled job, this machine's role, and the terms of
    communication.

    The environment sets what scripts can't: `PSTRANSPILE_TOKEN` (the token of every process of the job),
    `PSTRANSPILE_TLS` (a folder with certificates), `PSTRANSPILE_INSECURE` (allow communication without encryption
    beyond this host), `PSTRANSPILE_SAVES` (a folder below which a server saves when trainers ask for it),
    `PSTRANSPILE_LEASE` and `PSTRANSPILE_PATIENCE` (seconds: a trainer that is silent for longer is given up; a trainer
    waits so long for a server).
    """

    def __init__(self, compiled: Any, role: Role):
        self.compiled: Any = compiled
        """The compiled job; for a server whose program a script wrote, an object that takes its place."""
        self.role = role
        self._programs_by_id: dict[int, tuple[Program, Program]] = {}
        """Programs that the script has run, by `id`, each with the program that is run for it."""
        self.flags: Mapping[str, Any] = {}
        """The communicator's settings from the script, by Fluid's names."""

    def as_compiled(self, program: Program, part: str) -> Program:
        """The program to run for one of the script's: the compiled one, if the script has not edited it.

        So facts that are kept under the compiled program's `id` apply to the script's program too.
        """
        known = self._programs_by_id.get(id(program))
        if known is None:
            compiled = self.role.main if part == MAIN else self.role.startup
            known = self._remember(program, compiled if program == compiled else program)
        return known[1]

    def _remember(self, program: Program, played: Program) -> tuple[Program, Program]:
        if len(self._programs_by_id) >= _MOST_PROGRAMS:
            del self._programs_by_id[next(iter(self._programs_by_id))]
        known = self._programs_by_id[id(program)] = program, played
        return known

    def cluster(self, scope: Scope, **edited: Program) -> Cluster:
        """The machines of the job. This one works in `scope`, with the programs in `edited` (`main`, `startup`) instead
        of the compiled ones.
        """
        job = self.compiled.job
        roles = {**self.compiled.roles(), self.role.name: self.role._replace(**edited)}
        cluster = Cluster(
            roles,
            seed=shared_seed(roles, None, lambda: int(self.hash[:15], 16)),
            distributed_vars=self.compiled.distributed_vars,
            settings=communicator_settings(self.flags, job),
        )
        for machine in (*cluster.trainers, *cluster.servers):
            if machine.name == self.role.name:
                machine.scope.share(scope)
        return cluster

    @property
    def hash(self) -> str:
        """A hash that identifies the job: how its parameters are cut and placed.

        The state of optimizers is left out, because only servers update, so scripts may give trainers another
        optimizer.
        """
        parameters = [row for row in self.compiled.distributed_vars if row.vtype != "Optimizer"]
        plan = plan_json(self.compiled.plan, "", parameters)
        return sha256(json_text(plan).encode()).hexdigest()

    def terms(self, **edited: Program) -> tuple[Terms, ProcessPlace]:
        """The terms that the processes agree on, and the place of this one. Raises DiagnosticError."""
        roles = {**self.compiled.roles(), self.role.name: self.role._replace(**edited)}
        serving = {name: listening_op(role.main) for name, role in roles.items()}
        addresses = {name: str(op.attrs["endpoint"]) for name, op in serving.items() if op is not None}
        job = self.compiled.job
        if not addresses and job is not None:
            addresses = {f"trainer_{index}": endpoint for index, endpoint in enumerate(job.trainer_endpoints)}
        folder, token = os.environ.get("PSTRANSPILE_TLS", ""), token_of_environment(os.environ)
        if not folder:
            require_open(addresses)
        credentials = read_credentials(folder) if folder else None
        patience = _number("PSTRANSPILE_PATIENCE", 120.0)
        saves = os.environ.get(VARIABLE, "")
        place = ProcessPlace(
            addresses,
            patience=patience,
            foreign_system=None if token or folder else FluidSystem(),
            credentials=credentials,
            saves=saves,
            trainers_ended=trainers_ended,
        )
        return Terms(self.hash, token, _number("PSTRANSPILE_LEASE", 60.0)), place


class WaitReport(StatusPipe):
    """Reports on stderr what the machine waits for, when it has done so for `LONG` seconds; each wait is reported only
    once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._named: set[str] = set()

    def __call__(self, **fields: Any) -> None:
        """Reports the machine's status."""
        super().__call__(**fields)
        waits: list[str] = fields.get("waiting", [])
        who = str(fields.get("waits_for") or waits)
        if waits and fields["idle"] >= LONG and who not in self._named:
            self._named.add(who)
            print(
                "\n".join(f"{line} (for {lasting(fields['idle'])} now)" for line in waits), file=sys.stderr, flush=True
            )


class PortFile(WaitReport):
    """Writes the port of a server to a file once it serves, because scripts wait for this file of Fluid's servers."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path("/tmp", f"paddle.{os.getpid()}.port")  # where Fluid writes it

    def __call__(self, **fields: Any) -> None:
        """Reports the machine's status, and writes the file when the server serves."""
        super().__call__(**fields)
        if fields.get("state") == SERVING:
            written = self.path.with_suffix(".part")
            try:  # another user of this host may have put a link there
                written.unlink(missing_ok=True)
                with written.open("x") as file:
                    file.write(f"{fields['port']}\n")
                written.replace(self.path)
            except OSError as problem:
                print(f"{self.path}: the port is not written there: {problem.strerror}", file=sys.stderr, flush=True)


@contextmanager
def ended_by_signals() -> Generator[None]:
    """A context manager in which SIGINT and SIGTERM end the process in order, even if SIGINT was ignored, as it is in
    the background of a shell.
    """
    if current_thread() is not main_thread():
        yield
        return

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ServerMachine(Machine):
    """A server: its start-up program runs in the scope of the script, its main program serves until all trainers have
    left.
    """

    def run(
        self, program: Program, part: str, feed: Mapping[str, Any], fetch: Sequence[str], scope: Scope
    ) -> dict[str, Any]:
        """Runs the start-up program, or the main one: the ops before its `listen_and_serv`, then this op, which serves,
        then the ops after it. Raises DiagnosticError.
        """
        program = self.as_compiled(program, part)
        if part == STARTUP:
            cluster = self.cluster(scope, startup=program)
            self._server(cluster).initialise(cluster.placement.slices(self._server(cluster).endpoint))
            return held_in(scope, program, fetch)
        listening = listening_op(program)
        if listening is None:
            return run(program, feed, fetch, scope)
        around = SurroundingOps(program, listening, scope)
        around.begin(feed)
        self._serve(program, scope)
        return around.end(fetch)

    def _server(self, cluster: Cluster) -> Server:
        return next(server for server in cluster.servers if server.name == self.role.name)

    def _serve(self, program: Program, scope: Scope) -> None:
        cluster = self.cluster(scope, main=program)
        server = self._server(cluster)
        if any(scope.get(name) is not None for name in self.role.startup.main_block.vars):
            server.skip_startup()
        terms, place = self.terms(main=program)
        note_serving()
        flag = PortFile()
        try:
            with ended_by_signals():
                play_server(cluster, self.role.name, terms, place, flag, lambda _server: None)
        except SystemExit as stop:
            if stop.code == 128 + signal.SIGINT or not is_launched():  # a launcher reports which processes it ends
                print(": ".join(filter(None, ("interrupted", "; ".join(flag.waits())))), file=sys.stderr)
            raise
        finally:
            flag.path.unlink(missing_ok=True)

    def leave(self) -> None:
        """Does nothing, because a server ends when the trainers have left."""


def require_trainer(number: int, trainers: int) -> None:
    """Raises DiagnosticError unless the number is that of a trainer."""
    if number >= trainers:
        message = f"trainer_id is {number}; trainers is {trainers}, numbered from 0: only a server may have this number"
        raise DiagnosticError([error("job-value", message, focus="trainer_id")])


class NoTrainer(Machine):
    """Takes the place of the trainer in the process of a server, whose number no trainer has."""

    def __init__(self, compiled: Compiled, role: Role, number: int):
        super().__init__(compiled, role)
        self._number = number

    def run(
        self, program: Program, part: str, feed: Mapping[str, Any], fetch: Sequence[str], scope: Scope
    ) -> Mapping[str, Any]:
        """Raises DiagnosticError, because no trainer has this number."""
        require_trainer(self._number, self.compiled.plan.trainers)
        return {}

    def leave(self) -> None:
        """Does nothing, because this machine has never joined the job."""


class TrainerMachine(Machine, TrainerListener):
    """A trainer. From its start-up program on it has a thread, which communicates with the servers
    while a step is run.
    """

    def __init__(self, compiled: Compiled, role: Role):
        super().__init__(compiled, role)
        self._trainer: Trainer | None = None
        self._steps: Queue[Mapping[str, Any] | Program | None] = Queue()
        self._answers: Queue[tuple[int, Mapping[str, Any] | BaseException]] = Queue()
        """Numbered answers to the script. A late answer, to a request whose wait was interrupted, is recognised by its
        number and dropped.
        """
        self._request_count = self._answer_count = 0
        self._waits: Callable[[], Sequence[str]] = tuple
        """Returns the descriptions of what the thread waits for."""
        self._interrupted = False
        """Whether the script was interrupted while it waited; then leaving does not wait long for other machines."""
        self._thread: Thread | None = None
        self._started_with: Program | None = None
        """The start-up program of the last run."""
        self._leaving = False
        self._besides = False
        """Whether a program outside of the steps is running, such as the start-up program."""
        self._pace: tuple[Pace, Between] | None = None
        self._steps_run = 0
        self._between: dict[int, tuple[Program, Program]] = {}
        """Programs by `id`, each with the program that runs instead in steps without an exchange."""

    def run(
        self, program: Program, part: str, feed: Mapping[str, Any], fetch: Sequence[str], scope: Scope
    ) -> Mapping[str, Any]:
        """Runs the start-up program, or a step, in the form to which the script has edited the program.

        A second run of the start-up program does nothing, because the values were already fetched from the servers,
        unless the program has changed. Raises DiagnosticError, and RuntimeError where other machines can't be reached.
        """
        if part == TEST:
            return self._test(program, feed, fetch, scope)
        program = self.as_compiled(program, part)
        if part != MAIN:
            if self._thread is None:
                self._begin(scope, program)
                self._answer()
            elif program != self._started_with:
                self.run_besides(program)
            self._started_with = program
            return held_in(scope, program, fetch)
        return self._step(self._next_program(program), feed, fetch)

    def set_pace(self, pace: Pace, between: Between) -> None:
        """Sets the pace at which steps exchange; `between` derives the program of the other steps."""
        self._pace = pace, between

    def _next_program(self, program: Program) -> Program:
        """The program that the next step runs for the main program, according to the pace."""
        self._steps_run += 1
        if self._pace is None or self._pace[0].exchanges(self._steps_run):
            return program
        known = self._between.get(id(program))
        if known is None:
            if len(self._between) >= _MOST_PROGRAMS:
                del self._between[next(iter(self._between))]
            known = self._between[id(program)] = program, self._pace[1](program)
        return known[1]

    def _step(self, program: Program, feed: Mapping[str, Any], fetch: Sequence[str]) -> dict[str, Any]:
        if self._trainer is None:
            raise RuntimeError("run the start-up program of a trainer before its main program")
        if program is not self._trainer.role.main:
            self._trainer.role.replace_main(program)
        self._trainer.role.fetches[MAIN] = tuple(fetch)
        return self._ask(feed)

    def _test(self, program: Program, feed: Mapping[str, Any], fetch: Sequence[str], scope: Scope) -> Mapping[str, Any]:
        """Runs a copy for tests. It sends no gradients, because it computes none; it looks up rows that are on the
        servers.
        """
        known = self._programs_by_id.get(id(program))
        if known is None:
            known = self._remember(program, quiet(program, self.role.main))
        if not find_exchanges(known[1])[1]:
            return run(known[1], feed, fetch, scope)
        return self._step(known[1], feed, fetch)

    def configure(self, flags: Mapping[str, Any]) -> None:
        """Changes the communicator's settings, also after the start-up program has run. Raises ValueError, NotHere."""
        self.flags = flags
        settings = communicator_settings(flags, self.compiled.job)
        if self._trainer is not None and isinstance(self._trainer.communicator, AsyncCommunicator):
            self._trainer.communicator.configure(settings)

    def _begin(self, scope: Scope, startup: Program) -> None:
        cluster = self.cluster(scope, startup=startup)
        trainer = next(trainer for trainer in cluster.trainers if trainer.name == self.role.name)
        trainer.feed_from(self._feed)
        trainer.listen(self)
        self._trainer, self._besides = trainer, True
        terms, place = self.terms()
        report = WaitReport()
        self._waits = report.waits

        def play() -> None:
            try:
                play_trainer(cluster, self.role.name, terms, place, FOREVER, report, lambda _trainer: None)
                self._give({})
            except BaseException as problem:
                self._give(RuntimeError(str(problem)) if isinstance(problem, PeerRefused) else problem)

        self._thread = Thread(target=play, daemon=True)
        self._thread.start()
        atexit.register(self._leave_at_exit)

    def _feed(self, step: int) -> Mapping[str, Any] | None:
        """The feed of the next step, once the script runs one, None when the trainer leaves; a call after a start-up or
        other program also reports that this has ended.
        """
        if self._leaving:  # a repeated call, while the trainer is still leaving
            return None
        if self._besides:
            self._give({})
        fed = self._steps.get()
        self._leaving, self._besides = fed is None, isinstance(fed, Program)
        if isinstance(fed, Program):
            assert self._trainer is not None
            self._trainer.run_once(fed)
            return None
        return fed

    @property
    def index(self) -> int:
        """The number of the trainer."""
        return int(self.role.name.rpartition("_")[2])

    @property
    def trains(self) -> bool:
        """Whether the trainer takes part: its start-up program was run, and it has not left."""
        return self._trainer is not None

    def run_besides(self, program: Program) -> None:
        """Runs a program outside of the steps, for example one that saves. Raises DiagnosticError."""
        self._ask(program)

    def run_for(self, program: Program, name: str) -> Any:
        """Runs a program outside of the steps; removes a variable that it has written from the scope, and returns its
        value. Raises DiagnosticError.
        """
        self.run_besides(program)
        assert self._trainer is not None
        return self._trainer.scope.values_here.pop(name)

    def step_done(self, trainer: Trainer, step: int) -> None:
        """Called when the trainer has done a step; passes the results to the script."""
        self._give(trainer.results.pop().values)

    def _give(self, answer: Mapping[str, Any] | BaseException) -> None:
        """Passes a result or an exception to the script, from the thread of the trainer."""
        self._answer_count += 1
        self._answers.put((self._answer_count, answer))

    def _ask(self, what: Mapping[str, Any] | Program | None, patience: float | None = None) -> dict[str, Any]:
        """Makes the thread of the trainer do something, and returns its result. Raises the exception of the thread, and
        Empty if it takes longer than `patience` seconds.
        """
        self._steps.put(what)
        return self._answer(patience)

    def _answer(self, patience: float | None = None) -> dict[str, Any]:
        self._request_count += 1
        try:
            with naming_wait(lambda: "; ".join(self._waits())):
                while True:
                    number, made = self._answers.get(timeout=patience)
                    if isinstance(made, BaseException):
                        self._thread = self._trainer = None
                        raise made
                    if number >= self._request_count:
                        return {**made}
        except KeyboardInterrupt:
            self._interrupted = True
            raise

    def leave(self) -> None:
        """Tells the servers that the trainer has left; returns when the thread has ended.

        If the script was interrupted while it waited, no wait takes longer than `AFTER_INTERRUPT` seconds.
        """
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            patience = AFTER_INTERRUPT if self._interrupted else None
            with suppress(Empty):
                self._ask(None, patience)
                thread.join(patience)
        self._trainer = None

    def _leave_at_exit(self) -> None:
        """Leaves when the script has ended; an interrupt ends the wait, and the wait is reported."""
        before = self._interrupted
        try:
            self.leave()
        except KeyboardInterrupt as stop:
            if not before:  # the runner has reported the interrupt
                print(interrupt_message(stop), file=sys.stderr)
            end_as_interrupted()
        except RuntimeError as problem:  # other machines can't be reached
            if not self._interrupted:
                print(f"{self.role.name} could not leave in order: {problem}", file=sys.stderr)
