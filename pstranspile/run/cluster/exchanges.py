"""The ops of a program that talk to other machines, and what they exchange."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program

SILENT = frozenset(
    {"gen_nccl_id", "c_gen_nccl_id", "c_comm_init", "c_comm_init_all", "c_sync_calc_stream", "c_sync_comm_stream"}
)
"""Ops that set up or order what a simulated cluster need not: they compute and send nothing."""

COLLECTIVES = frozenset(
    {
        "c_allreduce_sum", "c_allreduce_max", "c_allreduce_min", "c_allreduce_prod", "c_broadcast", "c_allgather",
        "c_reducescatter", "allreduce", "broadcast", "average",
    }
)  # fmt: skip
"""Op types in which all trainers of a ring take part. (`average` is what the runtime puts in where Fluid's executor
does it.)
"""

TALKING = COLLECTIVES | {
    "send", "recv", "send_barrier", "fetch_barrier", "prefetch", "distributed_lookup_table", "checkpoint_notify",
    "recv_save",
}  # fmt: skip
"""Ops that talk to other machines."""

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

    Several `recv` or lookups in a row are one exchange: all are asked for before any answer is waited for. So are
    collective ops, which are put off until an op needs what they give.
    """
    found = _Exchanges()
    for op in program.main_block.ops:
        found.add(op)
    found.end()
    block = program.main_block._replace(ops=tuple(found.ops))
    return program._replace(blocks=(block, *program.blocks[1:])), tuple(found.exchanges)


class _Exchanges:
    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.ops: list[Op] = []
        self._put_off: list[Op] = []
        self._touched: set[str] = set()
        """What is read or written by the collective ops that are put off."""

    def add(self, op: Op) -> None:
        """The next op."""
        if op.type in SILENT:
            if op.input("X") != op.output("Out") and op.output("Out") and op.type.startswith("c_sync"):
                self.add(Op("assign", op.inputs, op.outputs, role=op.role, origin=op.origin))
            return
        if self._put_off and self._needed_by(op):
            self.end()
        if op.type in COLLECTIVES:
            self._put_off.append(op)
            self._touched.update(op.input_names, op.output_names)
        elif op.type not in TALKING:
            self.ops.append(op)
        else:
            self._talk(op)

    def _needed_by(self, op: Op) -> bool:
        """Whether an op must not come before those that are put off: it may name what they do, in blocks of its own."""
        if op.type in TALKING and op.type not in COLLECTIVES:
            return True
        if any(isinstance(value, BlockRef | BlockRefs) for value in op.attrs.values()):
            return True
        return not self._touched.isdisjoint((*op.input_names, *op.output_names))

    def end(self) -> None:
        """The collective ops that are put off come here."""
        ops, self._put_off, self._touched = tuple(self._put_off), [], set()
        if ops:
            inputs, outputs = zip(*[(*op.inputs["X"], *op.outputs["Out"]) for op in ops], strict=True)
            self._append(Exchange(ops[0].type, ops, inputs, outputs))

    def _talk(self, op: Op) -> None:
        inputs, outputs = values_of(op)
        last = self.exchanges[-1] if self.ops and self.ops[-1].type == EXCHANGE else None
        if last is not None and last.kind == op.type in TOGETHER and not {*inputs} & {*last.outputs}:
            self.exchanges.pop()
            self.ops.pop()
            self._append(Exchange(op.type, (*last.ops, op), (*last.inputs, *inputs), (*last.outputs, *outputs)))
            return
        self._append(Exchange(op.type, (op,), inputs, outputs))

    def _append(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        slots = FrozenMap({"X": exchange.inputs}), FrozenMap({"Out": exchange.outputs})
        self.ops.append(Op(EXCHANGE, *slots, origin=exchange.op.origin))


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
