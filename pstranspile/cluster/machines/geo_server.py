"""The servers of geo-SGD (see `communicators/geo.py`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pstranspile.cluster.machines.asynchronous import AsynchronousServer
from pstranspile.cluster.machines.blocks import Block
from pstranspile.cluster.machines.message import GET_ROWS, Message
from pstranspile.cluster.machines.server import pairs
from pstranspile.runtime.values import SelectedRows


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
