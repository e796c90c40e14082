"""The machines of a job in one process, stepped together.

cluster = Cluster({"trainer_0": role, ..., "pserver_0": role, ...}, fetch=["loss"])
cluster.feed({"x": x, "y": y})
cluster.start()                  # start-up programs
cluster.run_to(5)                # every trainer has done 5 steps
cluster.trainers[0].scope, cluster.servers[1].scope
cluster.run_to(8)
cluster.finish()                 # trainers leave, servers end
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from pstranspile.cluster.machines.asynchronous import AsynchronousServer, GeoServer
from pstranspile.cluster.machines.checks import (
    by_kind,
    require_barriers,
    require_collectives,
    require_lists,
    require_one_mode,
    require_order,
    require_servers,
)
from pstranspile.cluster.machines.communicator import Settings, make_communicator
from pstranspile.cluster.machines.feeding import ClusterFeeds, Meeting, Shares, Weighing, feeds_of
from pstranspile.cluster.machines.injection import Injector
from pstranspile.cluster.machines.network import Machine, Network, Schedule, scheduler_of, stuck
from pstranspile.cluster.machines.placement import InitialValues, Placement, fill_tables, find_tables, infer_placement
from pstranspile.cluster.machines.programs import give_turns, require_rounds, sent_by_program
from pstranspile.cluster.machines.rings import (
    Ring,
    known_operations,
    make_collective,
    make_rings,
    ring_of,
    trainer_role,
)
from pstranspile.cluster.machines.rpc import make_rpc
from pstranspile.cluster.machines.script import Action, Exchange, Library, is_collective
from pstranspile.cluster.machines.server import Server, listening_op, mode_of
from pstranspile.cluster.machines.synchronous import SynchronousServer
from pstranspile.cluster.machines.trainer import Forms, Trainer, link_to, sends_values, text_list
from pstranspile.ir.diagnostics import cluster_of
from pstranspile.ir.expect import checked, expect_number, expect_word, wrong_type
from pstranspile.ir.model import EMPTY, DistributedVar, Op, Program, Role
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.run.seeds import sends_of_rows
from pstranspile.runtime.run.step_feeds import GivenTurns, RowSource, inputs_of, require_steps, union_of

if TYPE_CHECKING:
    from pstranspile.cluster.machines.scenario import Scenario


@checked
class Cluster:
    """A job's machines under one scheduler. `roles` maps names (`trainer_0`, `pserver_1`) to programs.

    A role whose main program has a `listen_and_serv` is a server; the others are trainers, in the order of the
    numbers that end their names. `schedule` sets the order of events: a seed or a scheduler; None: machines in turn.
    `seed` replaces the seeds of the programs. `distributed_vars` is the table of variables on servers that a compile
    makes; without it, it is inferred. `init` has whole variables, set after the servers' start-up programs.
    `settings` are those of the trainers' communicators. `faults` is a scenario of faults. `programs` selects the
    program of each step where trainers have several (`main*5,generator`, or a function of trainer and step;
    default: always @main); `fetch` then names variables of all programs, or of one as `PROGRAM/NAME`. Raises
    DiagnosticError.
    """

    def __init__(
        self,
        roles: Mapping[str, Role],
        *,
        fetch: Sequence[str] = (),
        init: Mapping[str, Any] | None = None,
        schedule: Schedule = None,
        seed: int | None = None,
        distributed_vars: Iterable[DistributedVar] | None = None,
        settings: Settings | None = None,
        folder: str | os.PathLike[str] = ".",
        faults: Scenario | None = None,
        programs: GivenTurns | None = None,
        shares: Weighing = "equal",
    ):
        if not isinstance(roles, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise wrong_type("Cluster", "programs by role name", roles, "Roles")
        expect_word(shares, "Cluster", "shares", get_args(Weighing))
        self.settings = settings or Settings()
        self.scheduler = scheduler_of(schedule)
        self.network = Network(self.scheduler)
        self.library = Library()
        serving, training = by_kind(roles)
        self.seed = seed
        if seed is None and not any(role.startup.random_seed for role in roles.values()):
            self.seed = secrets.randbits(63) | 1  # the same seed for all machines
        self.folder = folder = os.fspath(folder)
        self.servers: list[Server] = [_server(name, self.network, serving[name], self.seed, folder) for name in serving]
        self.trainers: list[Trainer] = [
            Trainer(name, index, self.network, trainer_role(training[name]), self, forms=self._forms())
            for index, name in enumerate(training)
        ]
        give_turns(self.trainers, programs, fetch)
        self.weighing: Weighing = shares
        self.shares: Shares | None = None
        """The weights of the trainers' shares of a batch, once something is fed."""
        self.by_endpoint: dict[str, Server] = {server.endpoint: server for server in self.servers}
        rows = self._written() if distributed_vars is None else list(distributed_vars)
        self.placement = Placement(rows)
        self.tables = find_tables(union_of(self._programs), self.by_endpoint)
        self.initial = InitialValues(dict(init or {}), self.placement, self.tables)
        self.rings = self._rings()
        self._equip_trainers()
        self.communicators = {t.name: t.communicator for t in self.trainers if t.communicator is not None}
        communicating = [machine for machine in self.communicators.values() if isinstance(machine, Machine)]
        machines: list[Machine] = [*self.trainers, *communicating, *self.servers, *self.rings.values()]
        self.machines: dict[str, Machine] = {machine.name: machine for machine in machines}
        self.steps: int | None = None
        """The number of steps that are fed; None if it is not limited."""
        self.started = False
        self.source: RowSource | None = None
        """The source of rows, if rows are fed."""
        self.finishing = False
        """Whether all trainers are to leave instead of doing another step."""
        self.injector: Injector | None = None
        """Carries out the scenario of faults, if there is one."""
        if faults is not None:
            require_rounds(self.trainers, self.servers)
            self.injector = Injector(self, faults)

    def __repr__(self) -> str:
        """`<Cluster of 2 trainers, 2 servers>`."""
        return f"<Cluster of {cluster_of(len(self.trainers), len(self.servers))}>"

    def _equip_trainers(self) -> None:
        """Gives each trainer the communicator that its programs need, if any."""
        for trainer in self.trainers:
            trainer.equip(
                make_communicator(trainer, self.by_endpoint, self.placement, self.settings, len(self.trainers))
            )

    def _forms(self) -> Forms:
        """The forms of a trainer's programs. Other machines wait for the trainer unless servers apply gradients as they
        come.
        """
        return Forms(waited_for=all(server.mode in (0, 3) for server in self.servers))

    @property
    def _programs(self) -> Collection[Program]:
        """The programs that steps of any trainer may run."""
        return self.trainers[0].role.programs.values()

    def _written(self) -> list[DistributedVar]:
        """The table of variables on servers that the programs carry, or else one inferred from names."""
        servers = {server.endpoint: server.main for server in self.servers}
        carried = [program.distribution.variables for program in servers.values() if program.distribution is not None]
        if servers and len(carried) == len(servers) and any(carried):
            return list(dict.fromkeys(row for rows in carried for row in rows))
        return infer_placement(servers, list(self._programs))

    def make_action(self, trainer: Trainer, exchange: Exchange, program: Program) -> Action:
        """The action of a trainer at an exchange with other machines."""
        if is_collective(exchange.kind):
            return make_collective(trainer, exchange, self.rings)
        own = None if trainer.communicator is None else trainer.communicator.action(exchange, program)
        return own or make_rpc(trainer, exchange, program, self.by_endpoint)

    def _rings(self) -> dict[str, Ring]:
        """The machines of the trainers in the rings that their programs name."""
        members: dict[str, dict[int, Machine]] = {}
        ops: dict[str, dict[str, Op]] = {}
        for trainer in self.trainers:
            for program in trainer.role.all:
                for op in program.main_block.ops:
                    if is_collective(op.type):
                        members.setdefault(ring_of(op), {})[trainer.index] = trainer
                        ops.setdefault(ring_of(op), {}).setdefault(op.inputs["X"][0], op)
        known = known_operations(program for trainer in self.trainers for program in trainer.role.all)
        made = [
            ring
            for name in sorted(members)
            for ring in make_rings(name, self.network, members[name], ops[name], known.get(name, {}))
        ]
        return {ring.name: ring for ring in made}

    # steps

    @checked
    def feed(self, feeds: ClusterFeeds | None) -> None:
        """Sets the feed: arrays with a step axis, a mapping per step, a function of trainer and step, or rows."""
        trainer_roles = [trainer.role for trainer in self.trainers]
        self.source = feeds if isinstance(feeds, RowSource) else None
        given, self.steps = feeds_of(feeds, trainer_roles)
        together = self._averages_gradients()
        self.shares = Shares(given, trainer_roles, self.weighing, together=together, meeting=self.meeting)
        for trainer in self.trainers:
            trainer.feed_from(self.shares.of(trainer.index))

    @property
    def meeting(self) -> Meeting:
        """Where the trainers meet in every step."""
        if self.rings:
            return "ranks"
        return "servers" if self.servers and self._averages_gradients() else ""

    def _averages_gradients(self) -> bool:
        """Whether the trainers' gradients are averaged in every step."""
        if self.servers:
            return all(server.mode == 0 for server in self.servers)
        main = self.trainers[0].role.main
        return sends_of_rows(main, inputs_of(main), sends_values)

    def start(self) -> None:
        """Runs the start-up programs: the servers', then the trainers', which fetch the parameters."""
        self.require_sound()
        self.begin(self.servers, self.trainers)
        self._go_on()

    def require_sound(self) -> None:
        """Raises DiagnosticError if the programs can't work together, or `init` names what no machine has."""
        require_lists(self.trainers, self.servers)
        require_one_mode(self.servers)
        require_servers(self.trainers, self.by_endpoint)
        require_barriers(self.trainers, self.servers)
        require_order(self.trainers, self.servers)
        require_collectives(self.trainers)
        self.initial.require_known(self._programs, self.servers)

    def begin(self, servers: Sequence[Server], trainers: Sequence[Trainer]) -> None:
        """Runs the servers' start-up programs, makes the servers listen, and wakes the trainers."""
        with np.errstate(all="ignore"):  # as the ops of Fluid
            self._begin(servers, trainers)

    def _begin(self, servers: Sequence[Server], trainers: Sequence[Trainer]) -> None:
        for server in servers:
            server.initialise(self.placement.slices(server.endpoint))
            self.placement.require_dims(server.endpoint, server.startup, server.scope)
        fill_tables(self.tables, servers)
        self.initial.set_on_servers(servers)
        names = {trainer.index: trainer.name for trainer in self.trainers}
        several = any(len(trainer.role.programs) > 1 for trainer in self.trainers)
        for server in servers:
            sent = sent_by_program(self.trainers, server.endpoint) if several else EMPTY
            server.open(names, self.machines, sent)
        for trainer in trainers:
            self._connect(trainer)
            self.scheduler.wake(trainer)
        self.started = True

    def _connect(self, trainer: Trainer) -> None:
        """Links the trainer to every server that its programs name. The message that it leaves is sent on these
        links.
        """
        ops = [op for program in trainer.role.all for op in program.main_block.ops]
        names = {e: op for op in ops for key in ("epmap", "endpoints") for e in text_list(op, key)}
        servers = [
            link_to(trainer, self.by_endpoint, endpoint, op)
            for endpoint, op in names.items()
            if endpoint in self.by_endpoint
        ]
        rings = dict.fromkeys(ring_of(op) for op in ops if is_collective(op.type))
        members = [self.rings[f"{trainer.name}/{name}"] for name in rings]
        trainer.connect([*servers, *(self.network.link(trainer, member, trainer.index) for member in members)])

    def initialise(self, trainer: Trainer) -> None:
        """Sets the initial values of a trainer after the first run of its start-up program."""
        self.initial.set_on_trainer(trainer)

    @checked
    def run_to(self, step: int) -> None:
        """Runs the cluster until every trainer has done `step` steps or has left.

        Raises DiagnosticError, also if the rows of a source are fewer than these steps need.
        """
        expect_number(step, "run_to", "a number of steps", least=0)
        if not self.started:
            self.start()
        for trainer in self.trainers:
            trainer.limit_to(max(trainer.limit, step))
            self.scheduler.wake(trainer)
        self._go_on()
        there = None if self.source is None or self.shares is None else self.shares.all_ended()
        if there is not None and self.source is not None:
            require_steps(there, step, self.source)

    @checked
    def run_once(self, trainer: int, program: Program) -> None:
        """Makes a trainer run another program between steps, such as one that saves. Raises DiagnosticError."""
        if not 0 <= trainer < len(self.trainers):
            raise IndexError(f"there is no trainer {trainer}; the cluster has {len(self.trainers)}, numbered from 0")
        self.trainers[trainer].run_once(program)
        self._go_on()

    def finish(self) -> None:
        """Runs the cluster until all trainers have left and the servers have ended. Raises DiagnosticError."""
        self.finishing = True
        for trainer in self.trainers:
            trainer.end_feed()
            self.scheduler.wake(trainer)
        self._go_on()

    def _go_on(self) -> None:
        with np.errstate(all="ignore"):  # as the ops of Fluid
            self.scheduler.run()
        halted = any(
            not trainer.gone and trainer.step < trainer.limit and (self.finishing or not trainer.coming_back)
            for trainer in self.trainers
        )
        over = all(trainer.gone for trainer in self.trainers)
        if not halted and not over:
            return
        up = [machine for machine in self.machines.values() if not machine.down]
        waiting = [result for machine in up if (result := machine.waiting()) is not None]
        if over:
            reported = {result.machine for result in waiting}
            waiting += [s.waiting_for_end() for s in self.servers if s.down or (not s.ended and s.name not in reported)]
        if halted or waiting:
            raise stuck(waiting, self.scheduler.now, self.injector.unresolved() if self.injector else ())

    # values

    def parameters(self) -> dict[str, Any]:
        """All whole parameters by name: from the servers, or from trainer 0 if no server has the parameter."""
        scopes = {server.endpoint: server.scope for server in self.servers}
        result = {name: own_copy(self.placement.whole(name, scopes)) for name in self.placement.origins()}
        result.update((t.name, whole) for t in self.tables if (whole := t.whole()) is not None)
        first = self.trainers[0]
        for var in union_of(self._programs).parameters():
            value = first.scope.get(var.name)
            if var.name not in result and isinstance(value, np.ndarray):
                result[var.name] = own_copy(value)
        return result


def _server(name: str, network: Network, role: Role, seed: int | None, folder: str) -> Server:
    op = listening_op(role.main)
    assert op is not None
    kind = {0: SynchronousServer, 3: GeoServer}.get(mode_of(op), AsynchronousServer)
    return kind(name, network, role.startup, role.main, seed=seed, scope=Scope(), folder=folder)
