"""The machines of a compiled job as the checks need them: ops by type and position, and the variables that servers have
and wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from pstranspile.ir.attributes import BlockRefs
from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op
from pstranspile.ir.model import Block, Op, Program, Role, Var
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import int_attr, strings_attr

# The common parts of the link check: the programs of a machine, findings, comparison of types.


class LinkError(DiagnosticError):
    """The programs of a job do not fit together."""


def finding(code: Code, role: Role, op: Op, message: str, name: str = "") -> Diagnostic:
    """A finding about `op` in the programs of `role`; `name` is the variable concerned, if there is one."""
    return at_op(code, f"in {role.name}: {message}", op, focus=f"%{name}" if name else "")


def same_type(a: Var | None, b: Var | None) -> bool:
    """Whether both variables are declared, with the same kind, element type and dims (LoD levels may differ)."""
    if a is None or b is None or a.kind is not b.kind:
        return False
    return a.tensor == b.tensor or (a.dtype is b.dtype and a.shape == b.shape)


def is_slice_type(part: Var, rows: int, whole: Var) -> bool:
    """Whether `part` is declared as these rows of `whole`: with the same kind and element type, and the same dims but
    the first.
    """
    return part.kind is whole.kind and part.dtype is whole.dtype and part.shape == (rows, *whole.shape[1:])


def describe_type(var: Var | None) -> str:
    """The type of a variable in a message."""
    if var is None:
        return "not declared"
    if var.tensor is None:
        return var.kind.name
    return f"{var.kind.name} {var.tensor.dtype.text}{list(var.tensor.shape)}"


def names_text(names: Sequence[str]) -> str:
    """Names in a message, `%a, %b`; `nothing` for none."""
    return ", ".join([f"%{name}" for name in names]) or "nothing"


class PositionedOp(NamedTuple):
    """An op and its position in block 0."""

    position: int
    op: Op


NONE: list[PositionedOp] = []


class Calls(NamedTuple):
    """Block 0 of one program of a trainer: its variables, and the ops that the checks need, by type."""

    program: Program
    vars: Mapping[str, Var]
    ops: dict[str, list[PositionedOp]]

    def of(self, kind: str) -> list[PositionedOp]:
        """The ops of one type, in order."""
        return self.ops.get(kind, NONE)

    def lookups(self) -> list[PositionedOp]:
        """The ops that look rows up. They do it on servers if they name slices in `table_names`."""
        return [placed for kind, found in self.ops.items() if facts_of(kind).looks_up for placed in found]

    def joins(self) -> list[PositionedOp]:
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

    `number` counts the trainers in the order given; their own numbers are checked separately. `part` is the name of the
    program, "" for the main one. `layouts` and `startup_layouts` hold, for every variable fetched in that program and
    in the startup program, the names of its slices on the servers in the order of rows; the checks of receives fill
    them in.
    """

    role: Role
    number: int
    main: Calls
    startup: Calls
    layouts: dict[str, tuple[str, ...]]
    startup_layouts: dict[str, tuple[str, ...]]
    part: str = ""


class ReceivedSum(NamedTuple):
    """A `sum` of received variables on a server: their names, and the op that follows if it scales the sum in place.

    `factor` is the factor of that scaling; None if no op states a number.
    """

    op: Op
    names: tuple[str, ...]
    scale: Op | None
    factor: float | None


@dataclass
class Server:
    """A machine with listen_and_serv, and the variables that its blocks read and write.

    * `blocks`: those of `optimize_blocks` that exist; `rates`: the learning-rate block, -1 for none
    * `misfits`: initialisers whose `shape` is not that of the variable they make
    * `outside_reads`: what the blocks read that is neither initialised nor made: variable -> the first op that reads it
    * `receivable_variables`: the variables that trainers may send: those outside, and the inputs of listen_and_serv
    * `feeds`: variable read from outside -> the one parameter (or slice) that its block updates
    * `parameters`: updated parameter or slice -> the op that updates it
    * `idle_blocks`: blocks that update nothing with what is received, and an op of each
    * `block_variables`: block -> what it reads from outside, and what it writes
    * `senders`: variable -> the trainers that send it in the part of the job that is checked, once per send
    * `fetch_counts`: variable -> how many trainers fetch it, or rows of it (then in `looked_up`), in that part
    * `sent_variables`, `fetched_variables`: the variables that are sent and fetched in any part
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
    outside_reads: dict[str, tuple[int, Op]] = field(default_factory=dict[str, tuple[int, Op]])
    receivable_variables: set[str] = field(default_factory=set[str])
    feeds: dict[str, str] = field(default_factory=dict[str, str])
    block_variables: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    parameters: dict[str, Op] = field(default_factory=dict[str, Op])
    idle_blocks: list[tuple[int, Op]] = field(default_factory=list[tuple[int, Op]])
    merges: list[ReceivedSum] = field(default_factory=list[ReceivedSum])
    senders: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    notices: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    fetch_counts: dict[str, int] = field(default_factory=dict[str, int])
    fetched_at_startup: dict[str, int] = field(default_factory=dict[str, int])
    looked_up: set[str] = field(default_factory=set[str])
    sent_variables: set[str] = field(default_factory=set[str])
    fetched_variables: set[str] = field(default_factory=set[str])

    def end_part(self) -> None:
        """Clears the senders and receivers of one part of the job, but not the variables."""
        self.sent_variables.update(self.senders)
        self.fetched_variables.update(self.fetch_counts)
        self.senders, self.fetch_counts = {}, {}


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


# Reading of the programs: the messages of each trainer, and the variables that each server waits for and updates.
#
# Every op is read once. The checks then need only tables by name, so that their cost is that of the messages between
# the machines.

SEEN = ("concat", "merge_ids", "fake_init", "lookup_table_grad", "lookup_table_v2_grad")
"""The op types that the checks need, besides those that communicate, cut variables up, or look rows up."""

MADE_BEFORE = ("send", "recv", "split_byref", "split_selected_rows")
"""Op types whose inputs must have been made by an op before them."""

KEEPS = ("recv", "concat", "fetch_barrier", "data_norm_grad")
"""Op types, besides lookups, that write variables of servers, or have as an output a parameter that they do not change.

`data_norm_grad` changes its statistics only with `sync_stats`; otherwise they are updated from their gradients.
"""


def calls(program: Program) -> Calls:
    """The messages of one program of a trainer."""
    block = program.blocks[0]
    result: dict[str, list[PositionedOp]] = {}
    silent: set[str] = set()  # op types that the checks do not need
    for position, op in enumerate(block.ops):
        kind = op.type
        if kind not in silent:
            if _is_seen(kind):
                result.setdefault(kind, []).append(PositionedOp(position, op))
            else:
                silent.add(kind)
    return Calls(program, block.vars, result)


def _is_seen(kind: str) -> bool:
    facts = facts_of(kind)
    return kind in SEEN or bool(facts.communicates or facts.cuts or facts.looks_up)


def unmade(calls: Calls) -> list[tuple[Op, str]]:
    """The variables that are sent, cut up or waited for although no earlier op makes them, each with the op that uses
    it.
    """
    ops, variables, result = calls.program.blocks[0].ops, calls.vars, calls.ops
    first: dict[str, int] | None = None
    missing: list[tuple[Op, str]] = []
    controls = {
        name: position
        for kind in ("send", "send_barrier")
        for position, op in result.get(kind, NONE)
        for name in op.outputs.get("Out", ())
    }
    for kind in MADE_BEFORE:
        for position, op in result.get(kind, NONE):
            names = op.inputs.get("X", ())
            if position and names in ops[position - 1].outputs.values():
                continue
            for name in names:
                if controls.get(name, position) < position:
                    continue
                if first is None:
                    first = _first_made(ops)
                var = variables.get(name)
                if first.get(name, position) >= position and (var is None or not var.persistable):
                    missing.append((op, name))
    return missing


def _first_made(ops: tuple[Op, ...]) -> dict[str, int]:
    """Every variable that ops write -> the first op that does."""
    first: dict[str, int] = {}
    for position, op in enumerate(ops):
        for names in op.outputs.values():
            for name in names:
                first.setdefault(name, position)
    return first


def remade(calls: Calls) -> list[tuple[Op, str]]:
    """The variables that are fetched or joined although other ops write them too, each with the op that writes it."""
    ops = calls.program.blocks[0].ops
    fetches = (*calls.of("recv"), *calls.joins())
    arrivals = [(op, name) for _, op in fetches for name in op.outputs.get("Out", ())]
    if not arrivals:
        return []
    kept = {kind for kind in {op.type for op in ops} if kind in KEEPS or facts_of(kind).looks_up}
    changing = (op for op in ops if op.type not in kept or op.attrs.get("sync_stats") is True)
    local = [names for op in changing for names in op.outputs.values()]
    written = {name for _, name in arrivals}.intersection(chain.from_iterable(local))
    return [(op, name) for op, name in arrivals if name in written]


def collect(roles: Iterable[Role]) -> Cluster:
    """Reads all programs once."""
    trainers: list[Trainer] = []
    servers: dict[str, Server] = {}
    doubles: list[Server] = []
    for role in roles:
        main = calls(role.main)
        listens = main.of("listen_and_serv")
        if not listens:
            trainers.append(Trainer(role, len(trainers), main, calls(role.startup), {}, {}))
            continue
        server = _server(role, listens[0].op)
        if server.endpoint in servers:
            doubles.append(server)
        servers.setdefault(server.endpoint, server)
    cluster = Cluster(trainers, _parts(trainers), servers, doubles)
    fetched: set[str] = set()
    for trainer in (trainer for part in cluster.parts for trainer in part):
        _add_fetched(trainer, fetched)
    for server in servers.values():
        _read_blocks(server, fetched, cluster.owners)
    return cluster


def _parts(trainers: list[Trainer]) -> list[list[Trainer]]:
    """The trainers with each of their programs in turn."""
    parts = [trainers]
    for name in dict.fromkeys(name for trainer in trainers for name in trainer.role.others):
        part: list[Trainer] = []
        for trainer in trainers:
            program = trainer.role.others.get(name)
            if program is not None:
                role = trainer.role._replace(name=f"{trainer.role.name} @{name}", main=program)
                part.append(Trainer(role, trainer.number, calls(program), trainer.startup, {}, {}, name))
        parts.append(part)
    return parts


def _server(role: Role, op: Op) -> Server:
    program, listed = role.main, op.attrs.get("optimize_blocks")
    variables = program.blocks[0].vars
    blocks = tuple(listed) if isinstance(listed, BlockRefs) else ()
    initialised_names: list[tuple[str, ...]] = []
    misfits: list[Op] = []
    for initialiser in role.startup.blocks[0].ops:
        outputs = initialiser.outputs
        initialised_names += outputs.values()
        dims = initialiser.attrs.get("shape")
        if dims is not None and outputs.get("Out"):
            var = variables.get(outputs["Out"][0])
            if var is not None and var.tensor is not None and var.tensor.shape != dims:
                misfits.append(initialiser)
    return Server(
        role,
        op,
        endpoint=str(op.attrs.get("endpoint", "")),
        mode=int_attr(op, "distributed_mode"),
        rates=int_attr(op, "lr_decay_block_id", -1),
        vars=variables,
        misfits=misfits,
        blocks=tuple(index for index in blocks if 0 < index < len(program.blocks)),
        initialised=set(chain.from_iterable(initialised_names)),
        receivable_variables=set(op.inputs.get("X", ())),
    )


def _add_fetched(trainer: Trainer, fetched: set[str]) -> None:
    """Adds the names of the variables that a trainer fetches from servers, in both programs."""
    for program in (trainer.main, trainer.startup):
        for _, op in program.of("recv"):
            fetched.update(strings_attr(op, "recv_varnames") or op.outputs.get("Out", ()))
    for _, op in trainer.main.lookups():
        fetched.update(strings_attr(op, "table_names"))


def _read_blocks(server: Server, fetched: set[str], owners: dict[str, list[str]]) -> None:
    """Reads the blocks that the server runs; the other blocks see the results of the learning-rate block."""
    program, known = server.role.main, server.initialised
    for index in server.blocks:
        made = _read_block(server, index, program.blocks[index], known)
        for name in made & fetched:
            result = owners.setdefault(name, [])
            if server.endpoint not in result:
                result.append(server.endpoint)
        if index == server.rates:
            known = known | made
    server.receivable_variables.update(server.outside_reads)


def _read_block(server: Server, index: int, block: Block, known: set[str]) -> set[str]:
    """Reads one block: the variables it reads from outside, its merges and updates. Returns the variables that it
    writes.
    """
    written_names: set[str] = set()
    read: list[str] = []
    updated: list[str] = []
    for position, op in enumerate(block.ops):
        inputs = op.inputs
        before = len(read)
        for names in inputs.values():
            for name in names:
                if name not in written_names and name not in known:
                    read.append(name)
                    server.outside_reads.setdefault(name, (index, op))
        if inputs.get("Param"):
            updated += inputs["Param"]
            server.parameters[inputs["Param"][0]] = op
            gradient = inputs.get("Grad")
            fed = gradient and (gradient[0] in written_names or gradient[0] in read)
            if not fed or op.outputs.get("ParamOut") != inputs["Param"]:
                server.idle_blocks.append((index, op))
        elif op.type == "sum" and len(read) > before:
            if len(read) == before + len(inputs["X"]):
                server.merges.append(_read_merge(op, block, position))
            else:  # a parameter and its change, as in geo
                kept = [name for name in inputs["X"] if name in known and name in op.outputs.get("Out", ())]
                updated += kept
                server.parameters.update(dict.fromkeys(kept, op))
        written_names.update(*op.outputs.values())
    if len(updated) == 1:
        server.feeds.update(dict.fromkeys(read, updated[0]))
    if not updated and block.ops and index != server.rates:
        server.idle_blocks.append((index, block.ops[-1]))
    server.block_variables[index] = written_names.union(read)
    return written_names


def _read_merge(op: Op, block: Block, position: int) -> ReceivedSum:
    following = block.ops[position + 1] if position + 1 < len(block.ops) else None
    if (
        following is None
        or following.type != "scale"
        or not (following.inputs.get("X") == following.outputs.get("Out") == op.outputs.get("Out"))
    ):
        return ReceivedSum(op, op.inputs["X"], None, 1.0)
    factor = following.attrs.get("scale")
    return ReceivedSum(op, op.inputs["X"], following, factor if isinstance(factor, float) else None)
