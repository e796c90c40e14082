"""A server that applies every gradient as it comes.

Differences from Fluid: messages are taken one after the other, so that updates of one parameter never interleave; and a
schedule of the learning rate counts steps as `counters` describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from pstranspile.cluster.machines.message import GET, GET_ROWS, Message
from pstranspile.cluster.machines.network import Machine, WaitReason
from pstranspile.cluster.machines.server import (
    Block,
    Server,
    block_alone,
    block_program,
    count_notices,
    pairs,
    read_first,
    with_temporaries,
)
from pstranspile.ir.model import EMPTY, Op, Program
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import SelectedRows

TRAINER_ID = "@TRAINER_ID@"
"""The variable with the number of the trainer whose gradient is being applied (DC-ASGD)."""


class AsynchronousServer(Server):
    """A server with `distributed_mode` 1 or 2."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._block_numbers = {name: int(index) for name, index in pairs(self.op, "grad_to_block_id").items()}
        """The number of the block of each gradient."""

    def open(
        self,
        trainers: Mapping[int, str],
        asking: Mapping[str, Machine],
        sent_by_program: Mapping[str, frozenset[str]] = EMPTY,
    ) -> None:
        """Begins to listen, and runs the learning-rate block, if there is one."""
        super().open(trainers, asking, sent_by_program)
        if self._rates is not None:
            self._rates.apply([])

    @cached_property
    def blocks(self) -> dict[str, Block]:
        """The block of each gradient, by the gradient's name. They are made at the first call, after the start-up
        program.
        """
        made: dict[int, Block] = {}
        for name, index in self._block_numbers.items():
            if index not in made:
                made[index] = self._block(block_alone(self.main, index), name)
        return {name: made[index] for name, index in self._block_numbers.items()}

    @cached_property
    def backups(self) -> dict[str, tuple[str, ...]]:
        """The variables with each trainer's last copy of a parameter (DC-ASGD), by parameter."""
        return backups_of(self.main, self._block_numbers.values())

    @cached_property
    def _rates(self) -> Block | None:
        """The learning-rate block; None if there is none. It is made at the first call, after the start-up program."""
        rates: Any = self.op.attrs.get("lr_decay_block_id", -1)
        if int(rates) < 0:
            return None
        program = count_notices(block_program(self.main, [int(rates)]), self.scope)
        return Block(program, self.scope, [], (), seed=self.seed)

    def prepared_blocks(self) -> Iterable[Block]:
        """The blocks of the gradients and the learning-rate block."""
        blocks = dict.fromkeys(self.blocks.values())
        return blocks if self._rates is None else (*blocks, self._rates)

    def _block(self, program: Program, gradient: str) -> Block:
        feeds = [name for name in read_first(program.main_block.ops) if name == gradient]
        return Block(with_temporaries(program, [gradient]), self.scope, feeds, (), seed=self.seed)

    def on_send(self, message: Message) -> None:
        """Applies a gradient. Raises DiagnosticError if no block has a gradient of this name."""
        block = self.blocks.get(message.variable)
        if block is None:
            raise self.unknown_variable_error(message, "has no block for a gradient, but is sent")
        if self.backups:
            self.scope.put(TRAINER_ID, np.array([message.trainer], "int64"))
        block.apply([message.payload] if block.feeds else [])
        self.forget_copies(block.changes)
        self.after_send(message, block)
        self.count_update()

    def after_send(self, message: Message, block: Block) -> None:
        """Called after a block has applied a gradient."""

    def answer(self, message: Message) -> None:
        """Sends the current value of a variable. With DC-ASGD the server keeps a copy for the trainer."""
        backups = self.backups.get(message.variable)
        if backups is not None and message.kind == GET:
            self.scope.put(backups[message.trainer], own_copy(self.scope.get(message.variable)))
        super().answer(message)

    def on_notify(self, message: Message) -> None:
        """Adds the value to the server's step counter, and runs the learning-rate block again."""
        value = self.scope.get(message.variable)
        if value is None:
            raise self.unknown_variable_error(message, "is sent the step counter")
        self.scope.put(message.variable, value + message.payload)
        if self._rates is not None:
            self._rates.apply([])
            self.forget_copies({message.variable, *self._rates.changes})

    def waiting(self) -> WaitReason | None:
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


# The servers of geo-SGD (see `communicator.py`).


class GeoServer(AsynchronousServer):
    """A server with `distributed_mode` 3: adds differences, and records the changed rows for every trainer."""

    STATE = (*AsynchronousServer.STATE, "changed")

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._handlers[GET_ROWS] = self.on_get_rows
        self.changed: dict[str, dict[int, set[int]]] = {}
        """The rows of each table that have changed since each trainer's last request."""

    def open(
        self,
        trainers: Mapping[int, str],
        asking: Mapping[str, Machine],
        sent_by_program: Mapping[str, frozenset[str]] = EMPTY,
    ) -> None:
        """Begins to listen, with no changed rows."""
        super().open(trainers, asking, sent_by_program)
        tables = dict.fromkeys(pairs(self.op, "sparse_grad_to_param").values())
        self.changed = {table: {index: set() for index in trainers} for table in tables}

    def go_on_from(self, updates: int, memory: Mapping[str, Any] | None = None) -> None:
        """Continues after this number of updates; `memory` has the changed rows."""
        super().go_on_from(updates, memory)
        if memory is not None:
            self.changed = dict(memory)

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
            raise self.unknown_variable_error(message, "is asked for the changed rows of")
        seen = self.changed[message.variable][message.trainer]
        rows = np.array(sorted(seen), "int64")
        seen.clear()
        self.reply(message, SelectedRows(rows, table[rows], len(table)))
