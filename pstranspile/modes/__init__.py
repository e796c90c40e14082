"""When data moves: one file per mode of distribution."""

from __future__ import annotations

from pstranspile.job import Job
from pstranspile.modes.asynchronous import Async
from pstranspile.modes.base import Mode
from pstranspile.modes.fleet_sync import FleetSync
from pstranspile.modes.half_async import HalfAsync
from pstranspile.modes.sync import Sync

MODES: dict[str, Mode] = {mode.name: mode for mode in (Sync(), Async(), HalfAsync(), FleetSync())}
"""The modes whose servers hold and update the parameters, by name."""


def mode_of(job: Job) -> Mode:
    """The mode that a job asks for. Raises KeyError for a mode of another family."""
    return MODES[job.mode]
