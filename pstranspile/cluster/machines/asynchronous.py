"""A server that applies every gradient as it comes.

Differences from Fluid: messages are taken one after the other, so that updates of one parameter never interleave; and a
schedule of the learning rate counts steps as `counters` describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pstranspile.cluster.machines.counters import count_notices
from pstranspile.cluster.machines.message import GET, GET_ROWS, Message
from pstranspile.cluster.machines.network import Waiting
from pstranspile.cluster.machines.server import (
    Block,
    Server,
    block_alone,
    block_program,
    pairs,
    read_first,
    with_temporaries,
)
from pstranspile.ir.model import Op, Program
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import SelectedRows

TRAINER_ID = "@TRAINER_ID@"
"""The variable with the number of the trainer whose gradient is being applied (DC-ASGD)."""


class AsynchronousServer(Server):
    """A server with `distributed_mode` 1 or 2."""

    def open(self, trainers: Mapping[int, str]) -> None:
        """Runs the block of the learning rate, if there is one."""
        super().open(trainers)
        self.blocks: dict[str, Block] = {}
        """The block of each gradient."""
        made: dict[int, Block] = {}
        served = {name: int(index) for name, index in pairs(self.op, "grad_to_block_id").items()}
        for name, index in served.items():
            if index not in made:
                made[index] = self._block(block_alone(self.main, index), name)
            self.blocks[name] = made[index]
        self.backups = backups_of(self.main, served.values())
        rates: Any = self.op.attrs.get("lr_decay_block_id", -1)
        self._rates: Block | None = None
        if int(rates) >= 0:
            program = count_notices(block_program(self.main, [int(rates)]), self.scope)
            self._rates = Block(program, self.scope, [], (), seed=self.seed)
            self._rates.apply([])

    def prepared(self) -> Iterable[Block]:
        """The blocks of the gradients and of the learning rate."""
        blocks = dict.fromkeys(self.blocks.values())
        return blocks if self._rates is None else (*blocks, self._rates)

    def _block(self, program: Program, gradient: str) -> Block:
        feeds = [name for name in read_first(program.main_block.ops) if name == gradient]
        return Block(with_temporaries(program, [gradient]), self.scope, feeds, (), seed=self.seed)

    def on_send(self, message: Message) -> None:
        """Applies the gradient. Raises DiagnosticError for one that no block takes."""
        block = self.blocks.get(message.variable)
        if block is None:
            raise self.unknown(message, "has no block for a gradient, but is sent")
        if self.backups:
            self.scope.put(TRAINER_ID, np.array([message.trainer], "int64"))
        block.apply([message.payload] if block.feeds else [])
        self.forget_copies(block.changes)
        self.after_send(message, block)
        self.updates += 1
        if self.on_update is not None:
            self.on_update(self, self.updates - 1)

    def after_send(self, message: Message, block: Block) -> None:
        """A gradient has been applied by a block."""

    def answer(self, message: Message) -> None:
        """Sends a variable as it is now. With DC-ASGD the server keeps a copy for the trainer."""
        backups = self.backups.get(message.variable)
        if backups is not None and message.kind == GET:
            self.scope.put(backups[message.trainer], own_copy(self.scope.get(message.variable)))
        super().answer(message)

    def on_notify(self, message: Message) -> None:
        """Adds the value to the server's step counter, and computes the learning rate again."""
        value = self.scope.get(message.variable)
        if value is None:
            raise self.unknown(message, "is sent the step counter")
        self.scope.put(message.variable, value + message.payload)
        if self._rates is not None:
            self._rates.apply([])
            self.forget_copies({message.variable, *self._rates.changes})

    def waiting(self) -> Waiting | None:
        """Always None: an asynchronous server takes every message at once."""
        return None


def backups_of(program: Program, blocks: Iterable[int]) -> dict[str, tuple[str, ...]]:
    """Parameter -> the variables with each trainer's last copy of it (DC-ASGD), by trainer, from the ops that use them.

    `ref_by_trainer_id(X = copies) -> copy`, then `elementwise_sub(X = parameter, Y = copy)`.
    """
    names: dict[str, tuple[str, ...]] = {}
    for index in sorted(set(blocks)):
        chosen: dict[str, Op] = {}
        for op in program.blocks[index].ops:
            if op.type == "ref_by_trainer_id":
                chosen.update(dict.fromkeys(op.output_names, op))
            elif op.type == "elementwise_sub" and op.input("Y") in chosen:
                names[op.inputs["X"][0]] = chosen[op.inputs["Y"][0]].inputs["X"]
    return names


# The servers of geo-SGD (see `communicators/geo.py`).


class GeoServer(AsynchronousServer):
    """A server with `distributed_mode` 3: adds differences, and records the changed rows for every trainer."""

    STATE = (*AsynchronousServer.STATE, "changed")

    def open(self, trainers: Mapping[int, str]) -> None:
        """Begins to listen, with no changed rows."""
        super().open(trainers)
        self._handlers[GET_ROWS] = self.on_get_rows
        tables = dict.fromkeys(pairs(self.op, "sparse_grad_to_param").values())
        self.changed: dict[str, dict[int, set[int]]] = {table: {index: set() for index in trainers} for table in tables}

    def after_send(self, message: Message, block: Block) -> None:
        """Records changed rows for all trainers, including the sender."""
        if message.payload.__class__ is not SelectedRows:
            return
        rows = message.payload.rows.tolist()
        for name in block.changes:
            for seen in self.changed.get(name, {}).values():
                seen.update(rows)

    def on_get_rows(self, message: Message) -> None:
        """Answers with the rows that have changed since the trainer's last request."""
        table = self.scope.get(message.variable)
        if table is None or message.variable not in self.changed:
            raise self.unknown(message, "is asked for the changed rows of")
        seen = self.changed[message.variable][message.trainer]
        rows = np.array(sorted(seen), "int64")
        seen.clear()
        self.reply(message, SelectedRows(rows, table[rows], len(table)))
