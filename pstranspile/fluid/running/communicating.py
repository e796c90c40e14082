"""Runs programs whose ops communicate with other machines and were written by the script itself, not by a transpile.

Such a program has addresses and names, but not the programs of the other machines. So its ops make the calls of Fluid's
gRPC service, and its `listen_and_serv` answers them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pstranspile.cluster.machines.message import COMPLETE, REPLY, Message
from pstranspile.cluster.machines.network import Machine, Network, Scheduler
from pstranspile.cluster.machines.rpc import make_rpc
from pstranspile.cluster.machines.script import Action, Exchange, Library, exchanges_messages
from pstranspile.cluster.machines.server import listening_op
from pstranspile.cluster.machines.trainer import Trainer, TrainerRole, number_list, text_list
from pstranspile.cluster.net.process import ProcessPlace
from pstranspile.cluster.net.terms import Terms
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import fingerprint
from pstranspile.fluid.machines import ServerMachine, require_callable
from pstranspile.fluid.running.failures import naming_wait
from pstranspile.ir.attributes import Ints, Longs
from pstranspile.ir.model import MAIN, DistributedVar, FrozenMap, Op, Program, Role, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.ops import facts_of
from pstranspile.ops.build import make_op
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.scope import Scope

if TYPE_CHECKING:
    from pstranspile.fluid.net.system import Requests


# A server whose program was written by the script itself. It does not know its trainers, only their number.

NAME = "pserver_0"


@dataclass(frozen=True)
class _WrittenJob:
    """A job of which only the server's program is known."""

    server: Role
    job: Job | None = None
    distributed_vars: tuple[DistributedVar, ...] = ()

    def roles(self) -> dict[str, Role]:
        """The roles by name: the server, and the trainers that it waits for, with empty programs because theirs are
        unknown.
        """
        op = listening_op(self.server.main)
        assert op is not None
        count: Any = op.attrs.get("Fanin", 1)
        names = [f"trainer_{number}" for number in range(int(count))]
        return {**{name: Role(name, Program(), Program()) for name in names}, NAME: self.server}


class WrittenServer(ServerMachine):
    """A server that runs a given program in the scope of the script."""

    def __init__(self, program: Program):
        role = Role(NAME, _keeping(program), Program())
        super().__init__(_WrittenJob(role), role)
        self._remember(program, role.main)

    def terms(self, **edited: Program) -> tuple[Terms, ProcessPlace]:
        """The terms that the processes agree on, and the place of this one. Raises DiagnosticError."""
        op = listening_op(self.role.main)
        assert op is not None
        require_callable({NAME: str(op.attrs["endpoint"])})
        return super().terms(**edited)

    @property
    def hash(self) -> str:
        """A hash of the server's program."""
        return fingerprint(self.role.module).partition(":")[2]


def _keeping(program: Program) -> Program:
    """The program with the variables that the blocks of its server write made persistable, so that trainers can ask for
    them.
    """
    main = program.main_block
    written = {name for block in program.blocks[1:] for op in block.ops for name in op.output_names}
    kept = {name: var._replace(persistable=var.persistable or name in written) for name, var in main.vars.items()}
    return program._replace(blocks=(main._replace(vars=FrozenMap(kept)), *program.blocks[1:]))


_MOST_PROGRAMS = 16
"""The number of programs that are kept ready to be run again."""


def talks(program: Program) -> bool:
    """Whether ops of block 0 call servers, or serve."""
    return any(_asks_or_serves(op) or _looks_up(op) for op in program.main_block.ops)


def _asks_or_serves(op: Op) -> bool:
    return facts_of(op.type).communicates in ("request", "command", "server")


def _looks_up(op: Op) -> bool:
    """Whether an op looks the rows of its table up on servers."""
    return bool(facts_of(op.type).looks_up and op.attrs.get("remote_prefetch")) and bool(text_list(op, "epmap"))


def with_lookups(program: Program) -> Program:
    """The program with `distributed_lookup_table` where ops look rows up on servers.

    A loss that samples classes gets the whole table, because the op itself draws the classes.
    """
    ops: list[Op] = []
    variables = dict(program.main_block.vars)
    for op in program.main_block.ops:
        if not _looks_up(op):
            ops.append(op)
            continue
        (table,) = op.inputs[facts_of(op.type).looks_up]
        attrs = {name: op.attrs[name] for name in ("table_names", "height_sections", "trainer_id") if name in op.attrs}
        attrs["endpoints"] = op.attrs["epmap"]
        if "Ids" in op.inputs:
            attrs |= {"lookup_table_version": op.type, "padding_idx": op.attrs.get("padding_idx", -1)}
            slots = {"Ids": op.inputs["Ids"], "W": (table,)}, {"Outputs": op.outputs["Out"]}
            ops.append(make_op("distributed_lookup_table", *slots, attrs, origin=op.origin))
            continue
        ids, rows = f"{table}@IDS", sum(number_list(op, "height_sections"))
        variables[ids] = Var(ids, tensor=TensorType(DType.INT64, (rows, 1)))
        numbers = {"shape": Ints((rows, 1)), "dtype": DType.INT64.value, "int64_values": Longs(range(rows))}
        ops.append(make_op("assign_value", {}, {"Out": (ids,)}, numbers, origin=op.origin))
        slots = {"Ids": (ids,), "W": (table,)}, {"Outputs": (table,)}
        ops += (make_op("distributed_lookup_table", *slots, attrs, origin=op.origin), op)
    block = program.main_block._replace(ops=tuple(ops), vars=FrozenMap(variables))
    return program._replace(blocks=(block, *program.blocks[1:]))


@cache
def _channel_to(endpoint: str, _process: int) -> Any:
    """The channel on which all programs of a process call a server, which tells trainers apart by their channels."""
    from pstranspile.fluid.net.system import channel_to

    return channel_to(endpoint)


class _RemoteServer(Machine):
    """A server in another process. A message posted to it becomes a call, whose answer is there when
    the call returns.
    """

    def __init__(self, endpoint: str, network: Network, requests: Requests):
        super().__init__(endpoint, network)
        self.requests = requests
        self.asking: dict[str, Trainer] = {}

    def receive(self, message: Message) -> None:
        """Makes the call that a message stands for. Raises Refused."""
        with naming_wait(
            lambda: f"{message.source} waits for {self.name} to answer ({message.kind.replace('_', ' ')})"
        ):
            value = self.requests.make(message)
        if message.slot >= 0:
            link = self.network.link(self, self.asking[message.source], message.trainer)
            link.post(REPLY, message.step, message.variable, value, message.slot)

    def leave(self) -> None:
        """Tells the server, if it is still there, that the trainer ends. Raises Refused."""
        from pstranspile.cluster.net.transport import answers

        if answers(self.name):
            with naming_wait(lambda: f"this process waits for {self.name} to take its leave"):
                self.requests.make(Message(COMPLETE, "", self.name, 0, 0, 0, "", None, -1))

    def waiting(self) -> None:
        """Does nothing, because each call blocks until it is answered."""


class _Client:
    """A trainer that runs one program, and the servers that the program's ops name."""

    seed: int | None = None
    folder: str = "."

    def __init__(self, program: Program):
        self.library = Library()
        self._network = Network(Scheduler())
        self._program = with_lookups(program)
        ops = [op for op in self._program.main_block.ops if exchanges_messages(op.type)]
        number: Any = next((op.attrs["trainer_id"] for op in ops if "trainer_id" in op.attrs), 0)
        role = TrainerRole(Program(), self._program)
        self._trainer = Trainer(f"trainer_{number}", int(number), self._network, role, self)
        self.remotes = {endpoint: self._remote(endpoint, ops) for op in ops for endpoint in endpoints_of(op)}

    def _remote(self, endpoint: str, ops: Sequence[Op]) -> _RemoteServer:
        from pstranspile.fluid.machines import require_callable
        from pstranspile.fluid.net.system import Requests

        require_callable({"the server": endpoint})
        declared = self._program.main_block.vars
        variables, rows = dict(declared), dict[str, str]()
        for op in ops:
            if op.type == "prefetch":
                rows |= zip(op.inputs["X"], op.outputs["Out"], strict=True)
            variables |= {name: var for at, name, var in _tables(op, declared) if at == endpoint}
        channel = _channel_to(endpoint, os.getpid())
        requests = Requests(endpoint, "the server", self._trainer.index, variables, rows, channel)
        remote = _RemoteServer(endpoint, self._network, requests)
        remote.asking[self._trainer.name] = self._trainer
        return remote

    def make_action(self, trainer: Trainer, exchange: Exchange, program: Program) -> Action:
        """The action of the trainer at an op that communicates. Raises DiagnosticError."""
        return make_rpc(trainer, exchange, program, self.remotes)

    def initialise(self, trainer: Trainer) -> None:
        """Does nothing, because the scope is the script's."""

    def run(self, feed: Mapping[str, Any], fetch: Sequence[str], scope: Scope) -> Mapping[str, Value]:
        """Runs the program once. Raises DiagnosticError, Refused."""
        trainer = self._trainer
        if trainer.scope is not scope:
            trainer.go_on_from(max(trainer.step, 0), scope)
        trainer.role.fetches[MAIN] = tuple(fetch)
        trainer.feed_from(lambda _step: feed)
        trainer.limit_to(max(trainer.step, 0) + 1)
        self._network.scheduler.wake(trainer)
        self._network.scheduler.run()
        return trainer.results.pop().values


def endpoints_of(op: Op) -> Sequence[str]:
    """The endpoints of the servers that an op names."""
    return [*text_list(op, "epmap"), *text_list(op, "endpoints")]


def _tables(op: Op, declared: Mapping[str, Var]) -> Iterator[tuple[str, str, Var]]:
    """The parts of the table that a lookup reads: endpoint, name, and declaration of each."""
    if op.type != "distributed_lookup_table":
        return
    table = declared[op.inputs["W"][0]]
    assert table.tensor is not None
    parts = zip(
        text_list(op, "endpoints"), text_list(op, "table_names"), number_list(op, "height_sections"), strict=True
    )
    for endpoint, name, height in parts:
        dims = (height, *table.shape[1:])
        yield endpoint, name, table._replace(name=name, tensor=table.tensor._replace(shape=dims))


class Talker:
    """Runs the programs of a process that communicate with other machines."""

    def __init__(self) -> None:
        self._clients: dict[int, tuple[Program, _Client]] = {}

    def run(self, program: Program, feed: Mapping[str, Any], fetch: Sequence[str], scope: Scope) -> Mapping[str, Value]:
        """Runs a program once; a program that serves runs until all its trainers have left.

        Raises DiagnosticError, and RuntimeError where a server does not answer.
        """
        if listening_op(program) is not None:
            return WrittenServer(program).run(program, MAIN, feed, fetch, scope)
        known = self._clients.get(id(program))
        if known is None:
            if len(self._clients) >= _MOST_PROGRAMS:
                del self._clients[next(iter(self._clients))]
            known = self._clients[id(program)] = program, _Client(program)
        from pstranspile.cluster.net.terms import PeerRefused

        try:
            return known[1].run(feed, fetch, scope)
        except PeerRefused as problem:
            raise RuntimeError(str(problem)) from None

    def leave(self) -> None:
        """Tells the servers that programs have called, and that are still running, that the trainer ends."""
        remotes = {name: remote for _, client in self._clients.values() for name, remote in client.remotes.items()}
        self._clients.clear()
        for remote in remotes.values():
            remote.leave()
