"""Synchronous training: in every step all gradients, one barrier, one update, all parameters, one barrier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from pstranspile.compiler.emit.rules import FETCH_BARRIER, MERGE, SEND_BARRIER, derived_origin
from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import UPDATING, ModeSettings, off
from pstranspile.compiler.modes.shared.servers import ServerMode
from pstranspile.compiler.plan.plan import Plan, PlannedParameter, SharedCounter, Slice
from pstranspile.ir.attributes import AttrValue, Strings, float32
from pstranspile.ir.model import Module, Op, Origin
from pstranspile.ir.types import OpRole
from pstranspile.ops.build import OpMaker, make_op


@lru_cache(maxsize=16)
def _mean_of(trainers: int) -> tuple[OpMaker, OpMaker]:
    """Functions that make the ops that add up the trainers' values, and divide the sum by their number."""
    return OpMaker("sum"), OpMaker("scale", {"scale": float32(1.0 / trainers)})


class Sync(ServerMode):
    """Servers average the trainers' gradients of each step."""

    settings = ModeSettings(
        "every step, servers wait for the gradients of all trainers, average them and update once",
        "sync_mode = true",
        {"sync_mode": True, **off("runtime_split_send_recv", "half_async", "geo_sgd_mode")},
        off("completely_not_async"),
        options=UPDATING,
    )

    orders_table_send = True

    def rewrite(self, module: Module, job: Job) -> tuple[Module, tuple[SharedCounter, ...]]:
        """Returns the source unchanged: barriers mark the steps."""
        del job
        return module, ()

    def per_trainer(self, job: Job) -> bool:
        """Whether there are several trainers; a single one sends under the plain name.

        (Fluid's server expects `.trainer_0` even of a single trainer, which never sends it.)
        """
        return job.trainers > 1

    def after_sends(self, plan: Plan, trainer: int, origin: Origin | None) -> Sequence[Op]:
        """An op that sends one send_barrier to every server, after all sends."""
        controls = plan.send_controls
        barrier = make_op(
            "send_barrier",
            {"X": controls},
            {"Out": [plan.barrier_control]},
            {"endpoints": Strings(plan.pservers), "trainer_id": trainer},
            role=OpRole.RPC,
            origin=derived_origin(origin, SEND_BARRIER),
        )
        return [barrier]

    def recv_after(self, plan: Plan, parameter: PlannedParameter) -> str:
        """The send_barrier's variable: every recv waits for the barrier."""
        del parameter
        return plan.barrier_control

    def after_recvs(self, plan: Plan, trainer: int, received: Sequence[str], origin: Origin | None) -> Sequence[Op]:
        """One fetch_barrier that lists all received variables as its outputs, so that readers come after it."""
        barrier = make_op(
            "fetch_barrier",
            {"X": [plan.barrier_control]},
            {"Out": received},
            {"endpoints": Strings(plan.pservers), "trainer_id": trainer},
            role=OpRole.RPC,
            origin=derived_origin(origin, FETCH_BARRIER),
        )
        return [barrier]

    def server_inputs(self, plan: Plan, slice_: Slice) -> Sequence[str]:
        """One name per trainer, or the merged name itself with a single trainer."""
        if not plan.per_trainer:
            return [slice_.gradient]
        return [plan.sent_name(slice_, trainer) for trainer in range(plan.trainers)]

    def merge(self, plan: Plan, slice_: Slice, origin: Origin | None) -> Sequence[Op]:
        """Ops that compute the sum of the trainers' gradients, times 1/trainers; none with a single trainer."""
        if not plan.per_trainer:
            return []
        merged, origin = (slice_.gradient,), derived_origin(origin, MERGE)
        add_up, average = _mean_of(plan.trainers)
        total = add_up({"X": tuple(self.server_inputs(plan, slice_))}, {"Out": merged}, origin=origin)
        return [total, average({"X": merged}, {"Out": merged}, origin=origin)]

    def server_attrs(self, plan: Plan) -> Mapping[str, AttrValue]:
        """The synchronous server loop (`distributed_mode` 0)."""
        return {"distributed_mode": 0, "Fanin": plan.trainers}


MODE = Sync()
