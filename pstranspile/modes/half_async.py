"""Half-asynchronous training: as asynchronous, and a trainer's communicator averages the gradients of its threads."""

from __future__ import annotations

from pstranspile.modes.asynchronous import Async


class HalfAsync(Async):
    """A trainer waits for its own communicator; nobody waits for another trainer."""
