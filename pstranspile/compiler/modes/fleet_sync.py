"""Synchronous training through communicators: the Sync strategy of Fluid's Fleet."""

from __future__ import annotations

from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import UPDATING, ModeSettings
from pstranspile.compiler.modes.shared.servers import CommunicatorTiming, share_step_counters
from pstranspile.compiler.modes.sync import Sync
from pstranspile.compiler.plan.plan import SharedCounter
from pstranspile.ir.model import Module


class FleetSync(CommunicatorTiming, Sync):
    """Servers work as in sync mode; waiting is left to the trainers' communicators."""

    settings = ModeSettings(
        "as half-async, and the communicators wait for each other: the Sync strategy of Fluid's Fleet",
        "completely_not_async = true",
        {
            "sync_mode": False,
            "completely_not_async": True,
            "runtime_split_send_recv": True,
            "half_async": True,  # without it nothing makes a trainer wait for its communicator
            "geo_sgd_mode": False,
        },
        options=UPDATING,
    )

    orders_table_send = False

    def rewrite(self, module: Module, job: Job) -> tuple[Module, tuple[SharedCounter, ...]]:
        """The source with learning-rate schedules on counters that the trainers send."""
        return share_step_counters(module, job.trainers)


MODE = FleetSync()
