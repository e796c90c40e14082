"""The ops of a program that talk to other machines, and what they exchange."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program

SILENT = frozenset(
    {"gen_nccl_id", "c_gen_nccl_id", "c_comm_init", "c_comm_init_all", "c_sync_calc_stream", "c_sync_comm_stream"}
)
"""Ops that set up or order what a simulated cluster need not: they compute and send nothing."""

TALKING = frozenset(
    {
        "send", "recv", "send_barrier", "fetch_barrier", "prefetch", "distributed_lookup_table", "checkpoint_notify",
        "recv_save", "c_allreduce_sum", "c_allreduce_max", "c_allreduce_min", "c_allreduce_prod", "c_broadcast",
        "c_allgather", "c_reducescatter", "allreduce", "broadcast", "average",
    }
)  # fmt: skip
"""Ops that talk to other machines. (`average` is what the runtime puts in where Fluid's executor does it.)"""

TOGETHER = ("recv", "distributed_lookup_table")
"""Ops that may ask together with others of their type right before them."""

PARAM_INIT = "param_init"
"""What a geo-SGD trainer's start-up program sends: no variable, but a sign for its communicator."""

EXCHANGE = "exchange"
"""The op type that stands for an exchange in a rewritten program."""


class Exchange(NamedTuple):
    """An op that talks (or several in a row that ask together): what it reads, and what it gives."""

    kind: str
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def op(self) -> Op:
        """The first of the ops."""
        return self.ops[0]


def values_of(op: Op) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The variables whose values a talking op sends and receives; those that only order ops are left out."""
    if op.type == "send":
        names = op.inputs.get("X", ())
        return () if names == (PARAM_INIT,) else names, ()
    if op.type == "recv":
        return (), op.outputs.get("Out", ())
    if op.type == "distributed_lookup_table":
        return op.inputs.get("Ids", ()), op.outputs.get("Outputs", ())
    if op.type in ("send_barrier", "fetch_barrier", "checkpoint_notify", "recv_save"):
        return (), ()
    return op.inputs.get("X", ()), op.outputs.get("Out", ())


def find_exchanges(program: Program) -> tuple[Program, tuple[Exchange, ...]]:
    """The program with an op `exchange` wherever block 0 talks, and what these stand for, in order.

    Several `recv` or lookups in a row are one exchange: all are asked for before any answer is waited for.
    """
    exchanges: list[Exchange] = []
    ops: list[Op] = []
    for op in program.main_block.ops:
        if op.type in SILENT:
            if op.input("X") != op.output("Out") and op.output("Out") and op.type.startswith("c_sync"):
                ops.append(Op("assign", op.inputs, op.outputs, role=op.role, origin=op.origin))
            continue
        if op.type not in TALKING:
            ops.append(op)
            continue
        inputs, outputs = values_of(op)
        last = exchanges[-1] if ops and ops[-1].type == EXCHANGE else None
        if last is not None and last.kind == op.type in TOGETHER and not {*inputs} & {*last.outputs}:
            last = Exchange(op.type, (*last.ops, op), (*last.inputs, *inputs), (*last.outputs, *outputs))
            exchanges[-1] = last
            slots = FrozenMap({"X": last.inputs}), FrozenMap({"Out": last.outputs})
            ops[-1] = Op(EXCHANGE, *slots, origin=ops[-1].origin)
            continue
        exchanges.append(Exchange(op.type, (op,), inputs, outputs))
        ops.append(Op(EXCHANGE, FrozenMap({"X": inputs}), FrozenMap({"Out": outputs}), origin=op.origin))
    block = program.main_block._replace(ops=tuple(ops))
    return program._replace(blocks=(block, *program.blocks[1:])), tuple(exchanges)


def changed_in_place(program: Program) -> frozenset[str]:
    """The variables that ops of the program may change in place: those an op both reads and writes.

    A part that `split_byref` cuts off shares memory with its whole; so the parts of such variables are among them.
    """
    ops = [op for block in program.blocks for op in block.ops if op.type not in TALKING and op.type not in SILENT]
    changed = {name for op in ops for name in {*op.input_names} & {*op.output_names}}
    for op in program.main_block.ops:
        if op.type == "split_byref" and changed.intersection(op.input_names):
            changed.update(op.output_names)
    return frozenset(changed)
