"""The ops of a program that exchange messages with other machines, and the values that they exchange."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program

SILENT = frozenset(
    {"gen_nccl_id", "c_gen_nccl_id", "c_comm_init", "c_comm_init_all", "c_sync_calc_stream", "c_sync_comm_stream"}
)
"""Ops that a cluster in one process does not need: they compute and send nothing."""

COLLECTIVES = frozenset(
    {
        "c_allreduce_sum", "c_allreduce_max", "c_allreduce_min", "c_allreduce_prod", "c_broadcast", "c_allgather",
        "c_reducescatter", "allreduce", "broadcast", "average",
    }
)  # fmt: skip
"""Op types in which all trainers of a ring take part. (The runtime inserts `average` where Fluid's executor averages.)
"""

COMMUNICATING = COLLECTIVES | {
    "send", "recv", "send_barrier", "fetch_barrier", "prefetch", "distributed_lookup_table", "checkpoint_notify",
    "recv_save", "shrink_table",
}  # fmt: skip
"""Op types that exchange messages with other machines."""

TOGETHER = ("recv", "distributed_lookup_table")
"""Op types whose requests go out together with those of ops of the same type right before them."""

PARAM_INIT = "param_init"
"""The input of a `send` in a geo-SGD trainer's start-up program: no variable, but a sign for its communicator."""

EXCHANGE = "exchange"
"""The op type that stands for an exchange in a rewritten program."""


class Exchange(NamedTuple):
    """An op that exchanges messages, or several in a row whose requests go out together, with its variables."""

    kind: str
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def op(self) -> Op:
        """The first of the ops."""
        return self.ops[0]


def values_of(op: Op) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The variables whose values an op sends and receives, without variables that only order ops."""
    if op.type == "send":
        names = op.inputs.get("X", ())
        return () if names == (PARAM_INIT,) else names, ()
    if op.type == "recv":
        return (), op.outputs.get("Out", ())
    if op.type == "distributed_lookup_table":
        return op.inputs.get("Ids", ()), op.outputs.get("Outputs", ())
    if op.type in ("send_barrier", "fetch_barrier", "checkpoint_notify", "recv_save", "shrink_table"):
        return (), ()
    return op.inputs.get("X", ()), op.outputs.get("Out", ())


def find_exchanges(program: Program) -> tuple[Program, tuple[Exchange, ...]]:
    """The program with an op `exchange` in place of each exchange of block 0, and the exchanges in order.

    Several `recv` or lookups in a row are one exchange: all requests are sent before the first answer is awaited.
    Collective ops are deferred until an op needs their results, and are then one exchange, too.
    """
    finder = _Exchanges()
    for op in program.main_block.ops:
        finder.add(op)
    finder.end()
    block = program.main_block._replace(ops=tuple(finder.ops))
    return program._replace(blocks=(block, *program.blocks[1:])), tuple(finder.exchanges)


class _Exchanges:
    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.ops: list[Op] = []
        self._deferred: list[Op] = []
        self._touched: set[str] = set()
        """The variables that the deferred collective ops read or write."""

    def add(self, op: Op) -> None:
        """The next op."""
        if op.type in SILENT:
            if op.input("X") != op.output("Out") and op.output("Out") and op.type.startswith("c_sync"):
                self.add(Op("assign", op.inputs, op.outputs, role=op.role, origin=op.origin))
            return
        if self._deferred and self._needed_by(op):
            self.end()
        if op.type in COLLECTIVES:
            self._deferred.append(op)
            self._touched.update(op.input_names, op.output_names)
        elif op.type not in COMMUNICATING:
            self.ops.append(op)
        else:
            self._add_exchange(op)

    def _needed_by(self, op: Op) -> bool:
        """Whether an op must come after the deferred ones. Its own blocks may name their variables, too."""
        if op.type in COMMUNICATING and op.type not in COLLECTIVES:
            return True
        if any(isinstance(value, BlockRef | BlockRefs) for value in op.attrs.values()):
            return True
        return not self._touched.isdisjoint((*op.input_names, *op.output_names))

    def end(self) -> None:
        """Adds the deferred collective ops here."""
        ops, self._deferred, self._touched = tuple(self._deferred), [], set()
        if ops:
            inputs, outputs = zip(*[(*op.inputs["X"], *op.outputs["Out"]) for op in ops], strict=True)
            self._append(Exchange(ops[0].type, ops, inputs, outputs))

    def _add_exchange(self, op: Op) -> None:
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
    ops = [op for block in program.blocks for op in block.ops if op.type not in COMMUNICATING and op.type not in SILENT]
    changed = {name for op in ops for name in {*op.input_names} & {*op.output_names}}
    for op in program.main_block.ops:
        if op.type == "split_byref" and changed.intersection(op.input_names):
            changed.update(op.output_names)
    return frozenset(changed)
