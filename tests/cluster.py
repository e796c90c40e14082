"""A synchronous cluster in one process, as plain as can be: what the emitted programs are run with in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.compile import Compiled, Role
from pstranspile.ir.model import Module, Op, Program
from pstranspile.run.api import run
from pstranspile.run.scope import Scope

SEED = 7
RPC = frozenset({"send", "send_barrier", "recv", "fetch_barrier"})
Feed = Mapping[str, Any]


class Machine(NamedTuple):
    role: Role
    scope: Scope


def only(program: Program, keep: Callable[[Op], bool]) -> Program:
    """The program with just these ops of block 0."""
    block = program.main_block
    ops = tuple(op for op in block.ops if keep(op))
    return program._replace(blocks=(block._replace(ops=ops), *program.blocks[1:]))


def train_alone(module: Module, feeds: Sequence[Feed]) -> Scope:
    """One machine, one step per feed; gives its variables."""
    scope = Scope()
    startup = module.startup
    assert startup is not None
    run(startup, scope=scope, seed=SEED)
    for feed in feeds:
        run(module.main, feed=feed, scope=scope, seed=SEED)
    return scope


class Cluster:
    """The machines of a synchronous job, stepped in turn: all trainers, all servers, all fetches."""

    def __init__(self, compiled: Compiled):
        self.plan = compiled.plan
        self.servers = {endpoint: Machine(compiled.pserver(endpoint), Scope()) for endpoint in self.plan.pservers}
        for endpoint, server in self.servers.items():
            held = [v for v in compiled.distributed_vars if v.endpoint == endpoint and v.is_slice]
            slices = {v.slice: (v.origin, v.offset) for v in held}
            run(server.role.startup, scope=server.scope, seed=SEED, slices=slices)
        self.trainers = [Machine(compiled.trainer(i), Scope()) for i in range(self.plan.trainers)]
        for trainer in self.trainers:
            local = only(trainer.role.startup, lambda op: op.type not in RPC and op.type != "concat")
            run(local, scope=trainer.scope, seed=SEED)
            self.fetch(trainer, trainer.role.startup)

    def fetch(self, trainer: Machine, program: Program) -> None:
        """Carries out the recvs of a program, and joins the slices received."""
        received: set[str] = set()
        for op in program.main_block.ops:
            if op.type == "recv":
                for name, endpoint in zip(op.outputs["Out"], op.attrs["epmap"], strict=True):
                    trainer.scope[name] = self.servers[endpoint].scope[name]
                    received.add(name)
        run(only(program, lambda op: op.type == "concat" and set(op.input_names) <= received), scope=trainer.scope)

    def step(self, feed: Feed) -> None:
        """One step: the batch is divided evenly over the trainers in order."""
        for number, trainer in enumerate(self.trainers):
            self._compute(trainer, {name: self._part(rows, number) for name, rows in feed.items()})
        for server in self.servers.values():
            self._update(server)
        for trainer in self.trainers:
            self.fetch(trainer, trainer.role.main)

    def _part(self, rows: Any, number: int) -> Any:
        size = len(rows) // self.plan.trainers
        return rows[number * size : (number + 1) * size]

    def _compute(self, trainer: Machine, feed: Feed) -> None:
        main = trainer.role.main
        received = {n for op in main.main_block.ops if op.type == "recv" for n in op.output_names}
        sends = [
            (name, endpoint)
            for op in main.main_block.ops
            if op.type == "send"
            for name, endpoint in zip(op.inputs["X"], op.attrs["epmap"], strict=True)
        ]

        def is_local(op: Op) -> bool:
            joins = op.type == "concat" and bool(set(op.input_names) & received)
            return op.type not in RPC and not joins

        values = run(only(main, is_local), feed=feed, fetch=[n for n, _ in sends], scope=trainer.scope, seed=SEED)
        for name, endpoint in sends:
            self.servers[endpoint].scope[name] = values[name]

    def _update(self, server: Machine) -> None:
        main = server.role.main
        (listen,) = main.main_block.ops
        for index in listen.attrs["optimize_blocks"]:
            ops = main.blocks[index].ops
            block = main._replace(blocks=(main.main_block._replace(ops=ops), *main.blocks[1:]))
            read = {name for op in ops for name in op.input_names}
            received = {name: server.scope[name] for name in listen.inputs["X"] if name in read}
            run(block, feed=received, scope=server.scope, seed=SEED)

    def parameters(self) -> dict[str, Any]:
        """Every parameter as trainer 0 holds it."""
        return {p.name: np.asarray(self.trainers[0].scope[p.name]) for p in self.plan.parameters}
