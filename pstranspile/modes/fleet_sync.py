"""Synchronous training through communicators: the Sync strategy of Fluid's Fleet."""

from __future__ import annotations

from pstranspile.ir.model import Module
from pstranspile.job import Job
from pstranspile.modes.communicator import WithCommunicator
from pstranspile.modes.step_counter import share_step_counters
from pstranspile.modes.sync import Sync
from pstranspile.plan.plan import SharedCounter


class FleetSync(WithCommunicator, Sync):
    """Servers work as in sync mode; the trainers' programs leave the waiting to their communicators."""

    orders_table_send = False

    def rewrite(self, module: Module, job: Job) -> tuple[Module, tuple[SharedCounter, ...]]:
        """Learning-rate schedules run on counters that the trainers send."""
        return share_step_counters(module, job.trainers)
