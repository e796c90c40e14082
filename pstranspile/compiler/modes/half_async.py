"""Half-asynchronous training: as asynchronous, and a trainer's communicator averages the gradients of its threads."""

from __future__ import annotations

from pstranspile.compiler.job.modes import off
from pstranspile.compiler.modes.async_ import Async


class HalfAsync(Async):
    """A trainer waits for its own communicator, but not for other trainers."""

    settings = Async.settings._replace(
        doc="a communicator in every trainer averages the gradients of its threads before it sends them",
        cause="half_async = true",
        flags={"sync_mode": False, "half_async": True, **off("completely_not_async", "geo_sgd_mode")},
        free={"runtime_split_send_recv": True},
    )


MODE = HalfAsync()
