"""The messages that machines of a cluster send each other."""

from __future__ import annotations

from typing import Any, NamedTuple

from pstranspile.ir.diagnostics import visible

SEND = "send"
"""A gradient, or another value for a server."""
GET = "get"
"""Asks a server for a variable; gated by the step in synchronous training."""
GET_NOW = "get_now"
"""Asks a server for a variable as it is now (Fluid's GetNoBarrier)."""
GET_ROWS = "get_rows"
"""Asks a server for the rows of a table that changed since this trainer asked last (geo-SGD)."""
LOOKUP = "lookup"
"""Asks a server for rows of its part of a table."""
PREFETCH = "prefetch"
"""Asks a server to run the block registered for a variable."""
SEND_BARRIER = "send_barrier"
"""This trainer has sent all messages of this step."""
FETCH_BARRIER = "fetch_barrier"
"""This trainer has received all answers of this step."""
NOTIFY = "notify"
"""A step counter to be added to the server's."""
CHECKPOINT = "checkpoint"
"""Asks a server to save its part of a table."""
COMPLETE = "complete"
"""This trainer has left."""
COLLECTIVE = "collective"
"""A trainer's part of a collective operation, for the machine that exchanges it with the other trainers."""
PIECE = "piece"
"""The part of an operation, or a segment of it, sent to the trainer that sums it."""
TOTAL = "total"
"""The sum of a segment, from the trainer that has summed it."""
STATEMENT = "statement"
"""The sums that a trainer has, for the trainer that sums in place of another one."""
REPLY = "reply"
"""The answer to a request."""
SHRINK = "shrink"
"""Asks a server to remove rows from its part of a large table."""

NOUNS = {
    SEND: "values", GET: "variables", GET_NOW: "variables", GET_ROWS: "tables", LOOKUP: "tables", PREFETCH: "tables",
    SEND_BARRIER: "times", FETCH_BARRIER: "times", NOTIFY: "counters", CHECKPOINT: "tables", COMPLETE: "times",
    COLLECTIVE: "parts", REPLY: "values", PIECE: "parts", TOTAL: "sums", STATEMENT: "sums",
    SHRINK: "tables",
}  # fmt: skip
"""Every kind of message, with the noun for what several messages of the kind are about."""

KINDS = tuple(NOUNS)
"""Every kind of message. The place of a kind is its number on the wire."""

END = 1 << 62
"""The step that charts and traces give to the messages with which a trainer leaves; it is later than all others."""


def step_label(step: int) -> str:
    """The name of a trainer's step in messages to the user: numbered from 1, or `start-up`."""
    return f"step {step + 1}" if step >= 0 else "start-up"


class Message(NamedTuple):
    """One message. It never changes, and neither does what it carries.

    `trainer`, `step` (of the trainer, an index from 0; below 0 during start-up) and `sequence` (counted from 1 on each
    link from `source` to `target`) identify it, so that a retry or a duplicate is recognised. `slot` is the number of
    the trainer's outstanding request that a reply belongs to.
    """

    kind: str
    source: str
    target: str
    trainer: int
    step: int
    sequence: int
    variable: str
    payload: Any
    slot: int

    def __str__(self) -> str:
        """`send fc_0.w_0@GRAD from trainer_0 to pserver_1, step 3`; steps are numbered from 1."""
        what = f"{self.kind} {visible(self.variable)}" if self.variable else self.kind
        return f"{what} from {self.source} to {self.target}, {step_label(self.step)}"
