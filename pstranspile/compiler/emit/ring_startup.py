"""What the modes share in which trainers without servers reach each other by collective operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from pstranspile.compiler.analysis.reductions import Reduction
from pstranspile.compiler.emit.rules import BROADCAST, JOIN_DEVICES, JOIN_RING, WAIT_BROADCASTS, made, made_of_program
from pstranspile.compiler.plan.plan import NameMint
from pstranspile.ir.attributes import Strings, float32
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import STARTUP, Op, Origin, Program, Var
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops.build import make_op


class StartupTemplate:
    """The start-up program of all trainers of a job but for what depends on the rank, worked out once."""

    def __init__(
        self,
        source: Program,
        rings: int,
        known: Collection[str],
        left_out: Collection[str],
        *,
        in_one_process: bool,
        snapshot: Callable[[Var, Origin | None], tuple[Var, Op] | None],
    ):
        """`known` are parameters even where the start-up program declares them otherwise; `left_out` stay apart.

        `in_one_process`: the rings join devices of one process. `snapshot` gives the variable that keeps a copy of a
        parameter, and the op that fills it, if there is one.
        """
        block = source.main_block
        variables = dict(block.vars)
        parameters = [var for var in variables.values() if var.parameter is not None or var.name in known]
        self.ids: tuple[str, ...] = ()
        if not in_one_process:
            mint = NameMint(name for block in source.blocks for name in block.vars)
            self.ids = tuple(mint.mint(f"nccl_id_{ring}") for ring in range(rings))
            variables.update((name, Var(name, VarKind.RAW, persistable=True)) for name in self.ids)
        shared = [var.name for var in parameters if var.name not in left_out]
        last = parameters[-1].name if parameters else None
        whole = made_of_program(source, "", STARTUP)
        makers = {name: op.origin for op in block.ops for name in op.output_names}
        self.closing: tuple[Op, ...] = ()
        if not in_one_process:
            self.closing = (*(_broadcast(name, i % rings, makers.get(name, whole)) for i, name in enumerate(shared)),)
            if last is not None:  # Fluid waits by the name its loop over the parameters ended on
                waits = wait_for_rings(last, rings, OpRole.FORWARD, made(whole, WAIT_BROADCASTS))
                self.closing += tuple(waits)
        for name in shared:
            kept = snapshot(variables[name], makers.get(name, whole))
            if kept is not None:
                variables[kept[0].name] = kept[0]
                self.closing += (kept[1],)
        self.source = source
        self.whole = whole
        self.variables = FrozenMap(variables)

    def of_trainer(self, rank: int, endpoints: tuple[str, ...]) -> Program:
        """The start-up program of trainer `rank`: initialisers, rings, rank 0's parameters."""
        block = self.source.main_block
        if self.ids:
            rings = _join_rings(self.ids, rank, endpoints, made(self.whole, JOIN_RING))
        else:
            rings = (make_op("c_comm_init_all", {}, {}, origin=made(self.whole, JOIN_DEVICES)),)
        block = block._replace(vars=self.variables, ops=(*block.ops, *rings, *self.closing))
        return self.source.with_main_block(block)


def _join_rings(ids: tuple[str, ...], rank: int, endpoints: tuple[str, ...], origin: Origin) -> tuple[Op, ...]:
    others = Strings(endpoints[:rank] + endpoints[rank + 1 :])
    ops: list[Op] = []
    for ring, name in enumerate(ids):
        attrs = {"rank": rank, "endpoint": endpoints[rank], "other_endpoints": others}
        ops.append(make_op("c_gen_nccl_id", {}, {"Out": [name]}, attrs, origin=origin))
        attrs = {"nranks": len(endpoints), "rank": rank, "ring_id": ring}
        ops.append(make_op("c_comm_init", {"X": [name]}, {}, attrs, origin=origin))
    return tuple(ops)


def _broadcast(parameter: str, ring: int, origin: Origin | None) -> Op:
    attrs = {"ring_id": ring, "root": 0}
    return make_op("c_broadcast", {"X": [parameter]}, {"Out": [parameter]}, attrs, origin=made(origin, BROADCAST))


def scale(name: str, trainers: int, role: OpRole, origin: Origin | None) -> Op:
    """Divides a variable, in place, by the number of trainers."""
    return make_op(
        "scale", {"X": [name]}, {"Out": [name]}, {"scale": float32(1.0 / trainers)}, role=role, origin=origin
    )


def wait_for_computing(name: str, role: OpRole, origin: Origin | None = None) -> Op:
    """Lets communication start after all computations before this."""
    return make_op("c_sync_calc_stream", {"X": [name]}, {"Out": [name]}, role=role, origin=origin)


def sum_over_ring(reduction: Reduction, role: OpRole, origin: Origin | None = None) -> Op:
    """Sums a variable, in place, over all trainers of its ring."""
    names = [reduction.variable]
    return make_op(
        "c_allreduce_sum", {"X": names}, {"Out": names}, {"ring_id": reduction.ring}, role=role, origin=origin
    )


def wait_for_rings(name: str, rings: int, role: OpRole, origin: Origin | None = None) -> Iterator[Op]:
    """Lets computation go on after all communications of every ring; `name` only carries the order."""
    for ring in range(rings):
        attrs = {"ring_id": ring}
        yield make_op("c_sync_comm_stream", {"X": [name]}, {"Out": [name]}, attrs, role=role, origin=origin)
