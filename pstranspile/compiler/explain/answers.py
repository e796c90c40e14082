"""What `explain` answers, as values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from pstranspile.ir.attributes import AttrValue, BlockRef, BlockRefs
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import Op, Program
from pstranspile.ops import schema_of

# What the attributes of emitted ops say.

_WHO = "the number of the trainer that says it"
_RING = "the ring of trainers it works on; rings take turns"
_THREADS = "threads of this pool of the server; Fluid's default"

MEANINGS: dict[tuple[str, str], str] = {
    ("send", "epmap"): "the server that each value goes to, in the order of X (or of send_varnames)",
    ("send", "sections"): "the rows of each part into which the communicator cuts the gradient",
    ("send", "send_varnames"): "the name under which each part travels",
    ("send", "merge_add"): "the communicator adds up what waits to be sent, it does not average it",
    ("send", "use_send_handler"): "false: the server is told of a count, it gets no gradient",
    ("send", "trainer_id"): _WHO,
    ("recv", "epmap"): "the server that each value comes from, in the order of Out (or of recv_varnames)",
    ("recv", "recv_varnames"): "the slices that the communicator fetches and joins",
    ("recv", "trainer_id"): _WHO,
    ("recv", "do_not_run"): "true: the communicator fetches by itself, the op only describes what",
    ("send_barrier", "endpoints"): "the servers that are told: all of them, also those that own nothing",
    ("send_barrier", "trainer_id"): _WHO,
    ("send_barrier", "half_async"): "true: it waits for the trainer's own communicator and tells no server",
    ("fetch_barrier", "endpoints"): "the servers that are told: all of them, also those that own nothing",
    ("fetch_barrier", "trainer_id"): _WHO,
    ("split_byref", "sections"): "the rows of each part: those of the parameter's slices",
    ("split_selected_rows", "height_sections"): "the rows of each part: those of the parameter's slices",
    ("concat", "axis"): "slices are whole rows, so they are joined along dim 0",
    ("distributed_lookup_table", "table_names"): "the slices of the table, in the order of rows",
    ("distributed_lookup_table", "height_sections"): "the rows of each slice, by which ids find their server",
    ("distributed_lookup_table", "endpoints"): "the server of each slice",
    ("distributed_lookup_table", "padding_idx"): "the id whose row is all zero, -1 for none",
    ("distributed_lookup_table", "lookup_table_version"): "the type of the lookups that it replaces",
    ("distributed_lookup_table", "trainer_id"): _WHO,
    ("prefetch", "epmap"): "the server that each list of ids goes to: id modulo servers",
    ("listen_and_serv", "endpoint"): "where this server listens",
    ("listen_and_serv", "pserver_id"): "its number in the job's list of servers",
    ("listen_and_serv", "Fanin"): "how many trainers must have come to a barrier: all of the job",
    ("listen_and_serv", "optimize_blocks"): "the blocks it runs: the learning rate first, then one per slice or group",
    ("listen_and_serv", "lr_decay_block_id"): "the block with the learning-rate schedule, -1 for none",
    ("listen_and_serv", "grad_to_block_id"): "which block a gradient is meant for",
    ("listen_and_serv", "sparse_grad_to_param"): "sparse gradients, and what they update",
    ("listen_and_serv", "distributed_mode"): "the server's loop: 0 waits for all trainers, 1 and 2 don't wait (2: "
    "half-asynchronous), 3 is geo",
    ("listen_and_serv", "dc_asgd"): "whether gradients are compensated for their delay",
    ("listen_and_serv", "prefetch_var_name_to_block_id"): "which block answers a list of ids",
    ("listen_and_serv", "checkpint_block_id"): "the block that saves the table; Fluid spells it so",
    ("listen_and_serv", "rpc_get_thread_num"): _THREADS,
    ("listen_and_serv", "rpc_send_thread_num"): _THREADS,
    ("listen_and_serv", "rpc_prefetch_thread_num"): _THREADS,
    ("lookup_sparse_table", "padding_idx"): "the id whose row is all zero, -1 for none",
    ("scale", "scale"): "one divided by the number of trainers",
    ("fake_init", "shape"): "the dims of the whole table",
    ("gen_nccl_id", "trainers"): "all trainers, in the order of their ranks",
    ("gen_nccl_id", "trainer_id"): "the rank of this trainer",
    ("gen_nccl_id", "nccl_comm_num"): "how many communicators are made; sums take turns over them",
    ("gen_nccl_id", "use_hierarchical_allreduce"): "whether sums are made within groups first",
    ("gen_nccl_id", "hierarchical_allreduce_inter_nranks"): "the trainers of a group",
    ("c_gen_nccl_id", "rank"): "the rank of this trainer",
    ("c_gen_nccl_id", "endpoint"): "where this trainer is reached",
    ("c_gen_nccl_id", "other_endpoints"): "where the others are reached, in the order of their ranks",
    ("c_comm_init", "nranks"): "how many trainers the ring has",
    ("c_comm_init", "rank"): "the rank of this trainer",
    ("c_comm_init", "ring_id"): "the ring that is joined",
    ("c_broadcast", "ring_id"): _RING,
    ("c_broadcast", "root"): "the rank whose value all take",
    ("c_allreduce_sum", "ring_id"): _RING,
    ("c_sync_comm_stream", "ring_id"): "the ring that is waited for",
}
"""(op type, attribute) -> its meaning, for ops that rules make."""

BY_RULE: dict[tuple[str, str], str] = {
    ("initialise-slice", "shape"): "the dims of the slice instead of the whole variable",
    ("initialise-slice", "seek"): "where the slice begins in the file, in elements",
    ("tell-rows", "send_varnames"): "the tables that the ids are of, in the order of X",
    ("tell-step", "send_varnames"): "a name, without which the op does nothing",
    ("begin-exchange", "send_varnames"): "the name by which Fluid's communicator knows that it is time",
    ("look-up-locally", "remote_prefetch"): "false: the trainer has the whole table",
    ("start-step-counter", "value"): "1 for a trainer's own count, minus the number of trainers for the shared one",
}
"""(rule, attribute) -> its meaning, for source ops that a rule changes."""


def notes_of(op: Op) -> tuple[Noted, ...]:
    """The attributes of an op that a rule made, with what they say, in order of their names."""
    rule = rule_of(op)
    if not rule:
        return ()
    notes: list[Noted] = []
    schema = schema_of(op.type)
    defaults = schema.defaults if schema else EMPTY
    for name in sorted(op.attrs):
        meaning = BY_RULE.get((rule, name)) or MEANINGS.get((op.type, name))
        if meaning is not None:
            value = op.attrs[name]
            notes.append(Noted(name, value_text(value), meaning, name in defaults and defaults[name] == value))
    if op.role_vars:
        pairs = ", ".join(f"%{name}" for name in op.role_vars)
        notes.append(Noted("op_role_var", f"({pairs})", "the parameter and the gradient that the op is about"))
    return tuple(notes)


def value_text(value: AttrValue) -> str:
    """An attribute's value for a reader."""
    if isinstance(value, BlockRefs):
        return f"[{', '.join(f'^{int(block)}' for block in value)}]"
    if isinstance(value, BlockRef):
        return f"^{int(value)}"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


# Positions of ops in a compiled job.


class Place(NamedTuple):
    """The position of an op: machine, program, block, and index within the block."""

    machine: str
    program: str
    block: int
    number: int

    def __str__(self) -> str:
        """`trainer_0 @main^0#17`."""
        return f"{self.machine} @{self.program}^{self.block}#{self.number}"


def rule_of(op: Op) -> str:
    """The rule that made an op; empty for an op of the source."""
    return op.origin.rule if op.origin else ""


def ops_of(machine: str, programs: Mapping[str, Program]) -> Iterator[tuple[Place, Op]]:
    """Every op of a machine with its place, program by program."""
    for name, program in programs.items():
        for index, block in enumerate(program.blocks):
            for number, op in enumerate(block.ops):
                yield Place(machine, name, index, number), op


class Source(NamedTuple):
    """The source op behind an op: its name (`@main^0#17`), file and line (0: none), and text, where known.

    `script` is the line of the Python script that made it (`train.py:20`), empty where the program does not state it.
    """

    op: str
    file: str
    line: int
    text: str | None
    script: str = ""


class Link(NamedTuple):
    """An op that has to do with another op or with a variable: how, where it is, and its text.

    Of a variable it is one that `reads` or `writes` it.
    """

    relation: str
    place: Place
    text: str


class Noted(NamedTuple):
    """An attribute of an op: its value as the text has it, its meaning, and whether it is the op's default."""

    name: str
    value: str
    meaning: str
    is_default: bool = False


class OpAnswer(NamedTuple):
    """The origin of an op. `rule` is empty for an op of the source itself; `reason` explains its place."""

    place: Place
    text: str
    rule: str
    reason: str
    source: Source | None
    links: tuple[Link, ...]
    attributes: tuple[Noted, ...]


class HeldPart(NamedTuple):
    """A part of a variable on a server: rows `start` to `stop` (elements at rank 1), of `shape`, from element `offset`.

    `why` says why this server has it.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    offset: int
    endpoint: str
    machine: str
    vtype: str
    why: str


class VariableAnswer(NamedTuple):
    """A variable: its declaration, its places, and its users.

    `about` are sentences; `whole` is the source variable that `parts` are parts of, `why_cut` the formula with its
    numbers.
    """

    name: str
    about: tuple[str, ...]
    whole: str
    parts: tuple[HeldPart, ...]
    why_cut: str
    declared: tuple[tuple[str, str], ...]
    uses: tuple[Link, ...]


class Listed(NamedTuple):
    """An op in a list: where, by which rule (empty: the source's own), from which source line, and its text."""

    place: Place
    rule: str
    source: Source | None
    text: str


class Overview(NamedTuple):
    """The ops of a job by machine and rule: (machine, what it is, ((program, rule, count), ...)).

    `listed` holds the ops of one machine that rules made, if one was asked for.
    """

    mode: str
    trainers: int
    pservers: tuple[str, ...]
    machines: tuple[tuple[str, str, tuple[tuple[str, str, int], ...]], ...]
    listed: tuple[Listed, ...] = ()


Answer: TypeAlias = OpAnswer | VariableAnswer | Overview
