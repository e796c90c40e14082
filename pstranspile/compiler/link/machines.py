"""The machines of a compiled job as the checks see them: which op stands where, what servers hold and wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pstranspile.ir.model import Op, Program, Role, Var


class Placed(NamedTuple):
    """An op and its position in block 0."""

    position: int
    op: Op


NONE: list[Placed] = []


class Calls(NamedTuple):
    """Block 0 of one program of a trainer: its variables, and the ops of TALK by type."""

    program: Program
    vars: Mapping[str, Var]
    ops: dict[str, list[Placed]]

    def of(self, kind: str) -> list[Placed]:
        """The ops of one type, in order."""
        return self.ops.get(kind, NONE)

    def joins(self) -> list[Placed]:
        """The concat ops that join fetched slices. Those of the net itself may read parameters, but never slices."""
        concats = self.of("concat")
        if not concats:
            return concats
        slices: set[str] = set()
        for _, op in self.of("recv"):
            for name in op.outputs.get("Out", ()):
                var = self.vars.get(name)
                if var is None or not var.persistable:
                    slices.add(name)
        return [placed for placed in concats if not slices.isdisjoint(placed.op.inputs.get("X", ()))]


class Trainer(NamedTuple):
    """A machine without listen_and_serv, and one of the programs that it runs step by step.

    `number` counts the trainers in the order given, not as they say they are. `part` is the name of the program, ""
    for the main one. `layouts` and `startup_layouts` hold, for every variable fetched in that program and in the
    startup program, the names of its slices on the servers in the order of rows; the checks of receives fill them in.
    """

    role: Role
    number: int
    main: Calls
    startup: Calls
    layouts: dict[str, tuple[str, ...]]
    startup_layouts: dict[str, tuple[str, ...]]
    part: str = ""


class Merged(NamedTuple):
    """A `sum` of received variables on a server: their names, and the op that follows if it scales the sum in place.

    `factor` is what the sum is multiplied by, None if no op states a number.
    """

    op: Op
    names: tuple[str, ...]
    scale: Op | None
    factor: float | None


@dataclass
class Server:
    """A machine with listen_and_serv, and what the blocks that it runs read and write.

    * `blocks`: those of `optimize_blocks` that exist; `rates`: the learning-rate block, -1 for none
    * `misfits`: initialisers whose `shape` is not that of the variable they make
    * `outside`: what the blocks read that is neither initialised nor made: variable -> the first op that reads it
    * `awaited`: the variables that trainers may send: those outside, and the inputs of listen_and_serv
    * `feeds`: variable read from outside -> the one parameter (or slice) that its block updates
    * `parameters`: updated parameter or slice -> the op that updates it
    * `idle`: blocks that update nothing with what is received, and an op of each
    * `touched`: block -> what it reads from outside, and what it writes
    * `senders`: variable -> the trainers that send it in the part of the job that is checked, once per send
    * `fetched`: variable -> how many trainers fetch it, or rows of it (then in `looked_up`), in that part
    * `sent`, `fetched_ever`: the variables that are sent and fetched in any part
    * `notices`: step counter -> the trainers that send it; `fetched_at_startup`: variable -> how many fetch it
    """

    role: Role
    op: Op
    endpoint: str
    mode: int
    rates: int
    vars: Mapping[str, Var]
    blocks: tuple[int, ...]
    initialised: set[str]
    misfits: list[Op]
    outside: dict[str, tuple[int, Op]] = field(default_factory=dict[str, tuple[int, Op]])
    awaited: set[str] = field(default_factory=set[str])
    feeds: dict[str, str] = field(default_factory=dict[str, str])
    touched: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    parameters: dict[str, Op] = field(default_factory=dict[str, Op])
    idle: list[tuple[int, Op]] = field(default_factory=list[tuple[int, Op]])
    merges: list[Merged] = field(default_factory=list[Merged])
    senders: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    notices: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    fetched: dict[str, int] = field(default_factory=dict[str, int])
    fetched_at_startup: dict[str, int] = field(default_factory=dict[str, int])
    looked_up: set[str] = field(default_factory=set[str])
    sent: set[str] = field(default_factory=set[str])
    fetched_ever: set[str] = field(default_factory=set[str])

    def end_part(self) -> None:
        """Forgets the senders and receivers in one part of the job, but not the variables."""
        self.sent.update(self.senders)
        self.fetched_ever.update(self.fetched)
        self.senders, self.fetched = {}, {}


@dataclass
class Cluster:
    """All machines. `owners`: every variable that trainers fetch -> the servers that write it, each once.

    `trainers` run their main programs, and `parts` begins with them; each further part is the trainers with another of
    their programs, all under one name.
    """

    trainers: list[Trainer]
    parts: list[list[Trainer]]
    servers: dict[str, Server]
    doubles: list[Server]
    owners: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
