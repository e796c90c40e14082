"""Synchronous training through communicators: the Sync strategy of Fluid's Fleet."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.ir.model import Module, Op, Origin
from pstranspile.job import Job
from pstranspile.modes.communicator import communicator_barrier, send_counters
from pstranspile.modes.step_counter import share_step_counters
from pstranspile.modes.sync import Sync
from pstranspile.plan.plan import Plan, PlannedParameter, SharedCounter


class FleetSync(Sync):
    """Servers work as in sync mode; the trainers' programs leave the waiting to their communicators."""

    orders_table_send = False

    def rewrite(self, module: Module, job: Job) -> tuple[Module, tuple[SharedCounter, ...]]:
        """Learning-rate schedules run on counters that the trainers send."""
        return share_step_counters(module, job.trainers)

    def after_sends(self, plan: Plan, trainer: int, origin: Origin | None) -> Sequence[Op]:
        """The trainer's step counters, and the barrier of the communicator if it has one."""
        return [*send_counters(plan, trainer, origin), *communicator_barrier(plan, trainer, origin)]

    def recv_after(self, plan: Plan, parameter: PlannedParameter) -> str:
        """A recv waits for the parameter's own send."""
        del plan
        return parameter.send_control

    def after_recvs(self, plan: Plan, trainer: int, received: Sequence[str], origin: Origin | None) -> Sequence[Op]:
        """Nothing: the communicator waits."""
        del plan, trainer, received, origin
        return []
