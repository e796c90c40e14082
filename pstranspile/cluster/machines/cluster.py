"""The machines of a job in one process, stepped together.

cluster = Cluster({"trainer_0": role, ..., "pserver_0": role, ...}, fetch=["loss"])
cluster.feed({"x": x, "y": y})
cluster.start()                  # start-up programs
cluster.run_to(5)                # every trainer has done 5 steps
cluster.trainers[0].scope, cluster.servers[1].scope
cluster.run_to(8)
cluster.finish()                 # trainers leave, servers end

Before a run, programs that can't work in a cluster are refused, and so are barriers that can never be met.

Where trainers have several programs, the cluster says which of them each step runs, and which gradients servers may
expect of each.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np

from pstranspile.cluster.machines.asynchronous import AsynchronousServer, GeoServer
from pstranspile.cluster.machines.communicator import Settings, make_communicator
from pstranspile.cluster.machines.feeding import ClusterFeeds, Meeting, Shares, Weighing, feeds_of
from pstranspile.cluster.machines.injection import Injector
from pstranspile.cluster.machines.network import Machine, Network, Schedule, scheduler_of, stuck
from pstranspile.cluster.machines.placement import InitialValues, Placement, fill_tables, find_tables, infer_placement
from pstranspile.cluster.machines.rings import (
    Ring,
    kind_of,
    known_operations,
    make_collective,
    make_rings,
    ring_of,
    trainer_role,
)
from pstranspile.cluster.machines.rpc import counts_steps, make_rpc
from pstranspile.cluster.machines.script import Action, Exchange, Library, exchanges_messages, is_collective
from pstranspile.cluster.machines.server import Server, listening_op, mode_of
from pstranspile.cluster.machines.synchronous import SynchronousServer
from pstranspile.cluster.machines.trainer import Forms, Trainer, link_to, number_list, sends_values, text_list
from pstranspile.ir.argument_checks import check_arguments, expect, expect_number, expect_word, wrong_type
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op, cluster_of, error, name_list, raise_errors
from pstranspile.ir.model import EMPTY, MAIN, DistributedVar, Op, Program, Role
from pstranspile.ir.patterns import Pattern
from pstranspile.ops import facts_of
from pstranspile.runtime.run.frame import DRAWN, DRAWN_FOR_NONE
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.run.seeds import sends_of_rows
from pstranspile.runtime.run.step_feeds import (
    GivenTurns,
    RowSource,
    fetches_by_program,
    inputs_of,
    require_steps,
    turns_of,
    union_of,
)

if TYPE_CHECKING:
    from pstranspile.cluster.machines.scenario import Scenario


# Trainers with several programs: the program that each step runs, and the gradients that servers may expect of each.


def give_turns(trainers: Sequence[Trainer], given: GivenTurns | None, fetch: Sequence[str]) -> None:
    """Sets the program that each step of each trainer runs, and the variables fetched of it. Raises DiagnosticError."""
    names = list(dict.fromkeys(name for trainer in trainers for name in trainer.role.programs))
    turns = turns_of(given, names) if isinstance(given, str) else given
    for trainer in trainers:
        role = trainer.role
        if turns is None:
            role.fetch(dict.fromkeys(role.programs, tuple(fetch)))
            continue
        role.take_turns(turns_of(turns, names, trainer.index))
        missing = [name for name in role.names if name not in role.programs]
        if missing:
            known = name_list([f"@{name}" for name in role.programs])
            message = (
                f"{trainer.name} has no program @{missing[0]}, just {known}: the collective modes compile no other "
                "program than @main"
            )
            raise DiagnosticError([error("cluster-no-program", message)])
        run = {name: role.programs[name] for name in role.names}
        role.fetch(fetches_by_program(fetch, run, lambda program: ()))


def sent_by_program(trainers: Sequence[Trainer], endpoint: str) -> dict[str, frozenset[str]]:
    """The names under which each program, on any trainer, sends gradients and step counters to a server."""
    sent: dict[str, set[str]] = {}
    for trainer in trainers:
        for name, program in trainer.role.programs.items():
            sent.setdefault(name, set()).update(names_sent_to(program, endpoint))
    return {name: frozenset(names) for name, names in sent.items()}


def names_sent_to(program: Program, endpoint: str) -> Iterator[str]:
    """The names under which a program sends gradients and step counters to a server."""
    for op in program.main_block.ops:
        if op.type == "send":
            names, endpoints = op.inputs.get("X", ()), text_list(op, "epmap")
            if counts_steps(op):
                yield from names if endpoint in endpoints else ()
            else:
                pairs = zip(text_list(op, "send_varnames") or names, endpoints, strict=False)
                yield from (name for name, place in pairs if place == endpoint)


def require_rounds(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError for programs of steps in which the synchronous servers make no update.

    Scenarios of faults use one number for a step of the trainers and an update of the servers.
    """
    synchronous = next((server for server in servers if server.mode == 0), None)
    if synchronous is None:
        return
    findings: list[Diagnostic] = []
    for name in dict.fromkeys(name for trainer in trainers for name in trainer.role.names):
        programs = [trainer.role.programs[name] for trainer in trainers if name in trainer.role.programs]
        if not any(op.type == "send_barrier" for program in programs for op in program.main_block.ops):
            message = (
                f"@{name} updates nothing, so its steps are none to the servers, and a scenario of faults could not "
                "say in which step something happens; leave it out"
            )
            findings.append(at_op("cluster-scenario", message, synchronous.op))
    raise_errors(findings)


# Checks before the run for barriers that can never be met.


def require_barriers(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError for every barrier of a synchronous server that some trainer's programs never send.

    It also raises DiagnosticError for servers that expect another number of trainers (`Fanin`) than there are: servers
    of Fluid would wait for ever, or continue too early.
    """
    raise_errors([*_numbers(trainers, servers), *_barriers(trainers, servers)])


def _numbers(trainers: Sequence[Trainer], servers: Sequence[Server]) -> Iterator[Diagnostic]:
    for server in servers:
        count = server.op.attrs.get("Fanin", len(trainers))
        if server.mode == 0 and count != len(trainers):
            there = f"there {'is' if len(trainers) == 1 else 'are'} {len(trainers)}"
            message = f"{server.name} waits for {count} {'trainer' if count == 1 else 'trainers'}, but {there}"
            yield at_op("cluster-barrier", message, server.op)


def _barriers(trainers: Sequence[Trainer], servers: Sequence[Server]) -> Iterator[Diagnostic]:
    """Yields one finding for all servers that miss the same barrier of the same trainers."""
    synchronous = [server for server in servers if server.mode == 0]
    sent = {
        (trainer.name, part): _barrier_endpoints(program)
        for trainer in trainers
        for part, program in {"start-up": trainer.role.startup, **trainer.role.programs}.items()
    }
    others = [name for name in dict.fromkeys(name for t in trainers for name in t.role.names) if name != MAIN]
    updating = [name for name in others if any(any(sent.get((t.name, name), {}).values()) for t in trainers)]
    parts = [(kind, name) for name in (MAIN, *updating) for kind in ("send_barrier", "fetch_barrier")]
    for kind, part in (("fetch_barrier", "start-up"), *parts):
        missed: dict[tuple[str, ...], list[Server]] = {}
        for server in synchronous:
            endpoint = server.endpoint
            without = tuple(t.name for t in trainers if endpoint not in sent[t.name, part][kind])
            if without:
                missed.setdefault(without, []).append(server)
        for names, waiting in missed.items():
            who = "no trainer sends" if len(names) == len(trainers) else f"{name_list(names)} never sends"
            names_of_servers = name_list([server.name for server in waiting])
            message = f"{names_of_servers} will wait for a {kind} which {who} in its {part} program"
            yield at_op("cluster-barrier", message, waiting[0].op)


def require_servers(trainers: Sequence[Trainer], servers: Mapping[str, Server]) -> None:
    """Raises DiagnosticError for every endpoint that a trainer's programs name and no server listens at.

    With geo-SGD a `send` goes to the trainer's own communicator, whatever endpoint it names.
    """
    geo = any(server.mode == 3 for server in servers.values())
    missing: dict[str, Op] = {}
    for trainer in trainers:
        for program in trainer.role.all_programs:
            for op in program.main_block.ops:
                talking = exchanges_messages(op.type) and not (geo and op.type == "send")
                named = [*text_list(op, "epmap"), *text_list(op, "endpoints")] if talking else ()
                for endpoint in named:
                    if endpoint not in servers:
                        missing.setdefault(endpoint, op)
    known = name_list(list(servers)) or "none"
    raise_errors(
        at_op("cluster-no-server", f"no server listens at {endpoint}; the servers of this cluster: {known}", op)
        for endpoint, op in missing.items()
    )


def require_collectives(trainers: Sequence[Trainer]) -> None:
    """Raises DiagnosticError where trainers of a ring do not name the same collective operations in the same order.

    They would wait for each other for ever, or take each other's values. Ops that set up rings are compared in the same
    way.
    """
    raise_errors(
        finding
        for part in ("start-up", *dict.fromkeys(name for trainer in trainers for name in trainer.role.names))
        for finding in _orders({t.name: _collectives(t, part) for t in trainers})
    )


Operations: TypeAlias = dict[str, list[tuple[str, Op]]]
"""A trainer's collective operations by ring, in order, as (kind, op); set-up ops have a key of their own."""


def _collectives(trainer: Trainer, part: str) -> Operations:
    program = trainer.role.startup if part == "start-up" else trainer.role.programs[part]
    result: Operations = {}
    for op in program.main_block.ops:
        if is_collective(op.type):
            result.setdefault(ring_of(op), []).append((kind_of(op), op))
        elif facts_of(op.type).communicates == "set-up":  # a real cluster waits for ever for a trainer without the op
            ring = f" for {ring_of(op)}" if "ring_id" in op.attrs else ""
            result.setdefault("the set-up", []).append((op.type + ring, op))
    return result


def _orders(operations: Mapping[str, Operations]) -> Iterator[Diagnostic]:
    """Yields, for every ring, the first operation in which a trainer differs from the first trainer."""
    (first, wanted), *others = operations.items()
    rings = dict.fromkeys(ring for of in operations.values() for ring in of)
    for ring in rings:
        for name, of in others:
            pairs = zip_longest(wanted.get(ring, []), of.get(ring, []))
            for place, (a, b) in enumerate(pairs, start=1):
                if (a and a[0]) != (b and b[0]):
                    difference = f"{first} has {_operation(a)}, {name} has {_operation(b)}"
                    message = f"operation {place} of {ring} is not the same for all trainers: {difference}"
                    yield at_op("cluster-collective-order", message, (a or b)[1])  # pyright: ignore[reportOptionalSubscript]
                    break
            else:
                continue
            break


def _operation(names: tuple[str, Op] | None) -> str:
    if names is None:
        return "nothing more"
    return f"{names[0]} of {', '.join(names[1].input_names)}" if is_collective(names[1].type) else names[0]


def _barrier_endpoints(program: Program) -> dict[str, set[str]]:
    """The endpoints to which a program sends each kind of barrier. A communicator's barrier is both kinds."""
    lines: dict[str, set[str]] = {"send_barrier": set(), "fetch_barrier": set()}
    for op in program.main_block.ops:
        if op.type in lines:
            lines[op.type].update(text_list(op, "endpoints"))
            if op.attrs.get("half_async", False):
                lines["fetch_barrier"].update(text_list(op, "endpoints"))
    return lines


# Checks before the run for programs that can't work in a cluster: lists of ops that don't match, servers of different
# modes, and ops of trainers at a point where a synchronous server can't take their messages.

_NUMBER = Pattern(r"(\d+)$")


def _by_number(name: str) -> tuple[int, str]:
    match = _NUMBER.search(name)
    return (int(match[1]) if match else 0), name


def by_kind(roles: Mapping[str, Role]) -> tuple[dict[str, Role], dict[str, Role]]:
    """The roles of servers and those of trainers, each by the numbers that end their names.

    Raises DiagnosticError if there is no trainer, or if the role of a trainer is named as one of a server.
    """
    for name, role in roles.items():
        if not hasattr(role, "main") or not hasattr(role, "startup"):
            expect(role, Role, "roles", "a Role for each name, as compiled.roles() gives")
        expect(name, str, "roles", "names of machines, such as trainer_0")
    ordered = {name: roles[name] for name in sorted(roles, key=_by_number)}
    serving = {name: role for name, role in ordered.items() if listening_op(role.main) is not None}
    training = {name: role for name, role in ordered.items() if name not in serving}
    if not training:
        raise DiagnosticError([error("cluster-roles", "there is no trainer among the roles")])
    raise_errors(
        error("cluster-roles", f"{name} has no listen_and_serv in its main program, so it is no server")
        for name in training
        if name.startswith("pserver")
    )
    return serving, training


def require_one_mode(servers: Sequence[Server]) -> None:
    """Raises DiagnosticError unless all servers wait for all trainers or none does, and all or none are in mode geo."""
    if not servers:
        return
    kinds = {server.name: _KINDS.get(server.mode, "asynchronous") for server in servers}
    first = servers[0]
    for server in servers[1:]:
        if kinds[server.name] != kinds[first.name]:
            message = (
                f"{first.name} is {kinds[first.name]} (distributed_mode {first.mode}), "
                f"but {server.name} is {kinds[server.name]} (distributed_mode {server.mode})"
            )
            raise DiagnosticError([at_op("cluster-modes", message, server.op)])


_KINDS = {0: "synchronous", 3: "for geo-SGD"}


# Lists of ops


def require_lists(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError for every op that exchanges messages with servers and whose lists don't fit together.

    With geo-SGD the lists of a `send` are not used.
    """
    geo = any(server.mode == 3 for server in servers)
    findings: dict[int, Diagnostic] = {}
    for program in {id(p): p for trainer in trainers for p in trainer.role.all_programs}.values():
        for op in program.main_block.ops:
            if op.type in _LISTS and not (geo and op.type == "send"):
                unequal = next((counts for counts in _LISTS[op.type](op) if len(set(counts.values())) > 1), None)
                if unequal is not None:
                    counted = ", but ".join(f"{count} {what}" for what, count in unequal.items())
                    findings[id(op)] = at_op("cluster-op", f"has {counted}", op)
    raise_errors(findings.values())


Counts = dict[str, int]
"""The lengths of an op's lists by name. All must be equal."""


def _send(op: Op) -> Iterator[Counts]:
    if not op.attrs.get("use_send_handler", True):
        return
    inputs, names, endpoints = op.inputs.get("X", ()), text_list(op, "send_varnames"), text_list(op, "epmap")
    if names and len(inputs) == 1:
        sections = number_list(op, "sections")
        yield {"send_varnames": len(names), "epmap": len(endpoints), "sections": len(sections)}
    elif names:
        yield {"inputs": len(inputs), "send_varnames": len(names), "epmap": len(endpoints)}
    else:
        yield {"inputs": len(inputs), "epmap": len(endpoints)}


def _recv(op: Op) -> Iterator[Counts]:
    outputs, slices, names = op.outputs.get("Out", ()), text_list(op, "recv_varnames"), text_list(op, "varnames")
    endpoints = text_list(op, "epmap")
    if slices:
        yield {"recv_varnames": len(slices), "epmap": len(endpoints)}
        yield {"outputs": len(outputs), "variable to be made of recv_varnames": 1}
    elif names:
        yield {"outputs": len(outputs), "varnames": len(names), "epmap": len(endpoints)}
    else:
        yield {"outputs": len(outputs), "epmap": len(endpoints)}


def _lookup(op: Op) -> Iterator[Counts]:
    yield {
        name: len(op.attrs.get(name, ()))  # pyright: ignore[reportArgumentType]
        for name in ("endpoints", "table_names", "height_sections")
    }
    yield {"Ids": len(op.inputs.get("Ids", ())), "Outputs": len(op.outputs.get("Outputs", ()))}


def _prefetch(op: Op) -> Iterator[Counts]:
    yield {
        "inputs": len(op.inputs.get("X", ())),
        "outputs": len(op.outputs.get("Out", ())),
        "epmap": len(text_list(op, "epmap")),
    }


_LISTS = {"send": _send, "recv": _recv, "distributed_lookup_table": _lookup, "prefetch": _prefetch}


# Order


def require_order(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError where a trainer's program has a message to a synchronous server in the wrong place.

    A step is: gradients, `send_barrier`, parameters, `fetch_barrier`. The start-up program begins with parameters. A
    `recv` in another place may wait for an update that waits for this trainer; a `send` after the barrier counts for
    the next step. Programs without barriers may fetch anywhere.
    """
    endpoints = {server.endpoint: server.name for server in servers if server.mode == 0}
    findings: dict[int, Diagnostic] = {}
    for program, starting in {id(p): (p, p is t.role.startup) for t in trainers for p in t.role.all_programs}.values():
        misplaced: dict[int, tuple[Op, str, list[str]]] = {}
        for endpoint, ops in _places(program).items():
            for op, reason in _misplaced_ops(ops, starting) if endpoint in endpoints else ():
                misplaced.setdefault(id(op), (op, reason, []))[2].append(endpoints[endpoint])
        for key, (op, reason, names) in misplaced.items():
            findings[key] = at_op("cluster-order", reason.format(name_list(names)), op)
    raise_errors(findings.values())


def _places(program: Program) -> dict[str, list[Op]]:
    """The ops of a program that exchange messages with a server in the order of a step, by endpoint."""
    result: dict[str, list[Op]] = {}
    for op in program.main_block.ops:
        endpoints: Sequence[str] = ()
        if op.type in ("send_barrier", "fetch_barrier"):
            endpoints = text_list(op, "endpoints")
        elif (op.type == "send" and op.attrs.get("use_send_handler", True)) or (
            op.type == "recv" and op.attrs.get("with_barrier", True)
        ):
            endpoints = text_list(op, "epmap")
        for endpoint in dict.fromkeys(endpoints):
            result.setdefault(endpoint, []).append(op)
    return result


def _misplaced_ops(ops: Sequence[Op], starting: bool) -> Iterator[tuple[Op, str]]:
    """The misplaced ops, each with the consequence as a message about the servers `{}`."""
    kinds = [op.type for op in ops]
    sent = kinds.index("send_barrier") if "send_barrier" in kinds else -1
    fetched = kinds.index("fetch_barrier") if "fetch_barrier" in kinds else len(ops)
    if sent < 0 and not starting:
        return
    for index, (op, kind) in enumerate(zip(ops, kinds, strict=True)):
        if kind == "recv" and not starting and index < sent:
            yield op, "stands before the send_barrier to {}: it may wait for an update that waits for this trainer"
        elif kind == "recv" and index > fetched:
            yield op, "stands after the fetch_barrier to {}: it may wait for an update that waits for this trainer"
        elif kind == "send" and not starting and index > sent:
            yield op, "stands after the send_barrier to {}: what it sends would count for the step after"
        elif kind == "fetch_barrier" and not starting and index < sent:
            yield op, "stands before the send_barrier to {}: it may wait for an update that waits for this trainer"


# The machines of a job in one process, stepped together.


@check_arguments
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
        self.seed = shared_seed(roles, seed, lambda: secrets.randbits(63))
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
            for program in trainer.role.all_programs:
                for op in program.main_block.ops:
                    if is_collective(op.type):
                        members.setdefault(ring_of(op), {})[trainer.index] = trainer
                        ops.setdefault(ring_of(op), {}).setdefault(op.inputs["X"][0], op)
        known = known_operations(program for trainer in self.trainers for program in trainer.role.all_programs)
        made = [
            ring
            for name in sorted(members)
            for ring in make_rings(name, self.network, members[name], ops[name], known.get(name, {}))
        ]
        return {ring.name: ring for ring in made}

    # steps

    @check_arguments
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
        """The meeting of the trainers in every step."""
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
        ops = [op for program in trainer.role.all_programs for op in program.main_block.ops]
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

    @check_arguments
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

    @check_arguments
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
            raise stuck(waiting, self.scheduler.now, self.injector.unrecoverable_faults() if self.injector else ())

    # values

    def parameters(self) -> dict[str, Any]:
        """All whole parameters by name: from the servers, or from trainer 0 if no server has the parameter."""
        scopes = {server.endpoint: server.scope for server in self.servers}
        result = {name: self.placement.copy_of(name, scopes) for name in self.placement.origins()}
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


# The seed of random numbers that all machines of a job share.


def shared_seed(roles: Mapping[str, Role], given: int | None, draw: Callable[[], int]) -> int | None:
    """The seed with which every machine of a job runs its programs; None if the programs' own seeds do.

    It is the given one. Without it, and in place of a given 0, `draw` gives up to 63 random bits if there are programs
    without a seed. They hold only for ops that have no seed of their own, so that a cluster draws for all others what
    one machine draws.
    """
    if given == 0:
        return DRAWN_FOR_NONE | draw()
    if given is not None or not _has_unseeded(roles.values()):
        return given
    return DRAWN | draw()


def _has_unseeded(roles: Iterable[Role]) -> bool:
    """Whether a program without a seed may draw random numbers. Start-up programs are taken to draw."""
    startups = [role.startup for role in roles]
    if not any(startup.random_seed for startup in startups):
        return True
    others: list[Program] = []
    for role in roles:
        more: Mapping[str, Program] = getattr(role, "others", EMPTY)  # roles of other origin may have none
        others += (role.main, *more.values())
    return any(not program.random_seed and _draws(program) for program in (*startups, *others))


def _draws(program: Program) -> bool:
    return any(facts_of(op.type).draws for block in program.blocks for op in block.ops)
