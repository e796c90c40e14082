"""Reports of a process to a parent that watches it: messages sent, and the machines that it has waited for."""

from __future__ import annotations

from collections.abc import Iterable

from pstranspile.cluster.machines.network import Machine, Waiting
from pstranspile.cluster.net.site import Site
from pstranspile.cluster.net.status import StatusPipe

EVERY = 0.25
"""Seconds between two reports at least."""


def messages_sent(machines: Iterable[Machine]) -> int:
    """How many messages the machines have sent, to all others."""
    return sum(link.sequence for machine in machines for link in machine.links.values())


class Watching:
    """Reports a few times a second how many messages were sent, what was waited for last, and the share of the time
    since the last report in which each machine was waited for.
    """

    def __init__(self, site: Site, report: StatusPipe):
        self._site = site
        self._report = report
        self._last_sent = self._paused = site.now()
        self._waiting: Waiting | None = None
        self._last: Waiting | None = None
        self._waited: dict[str, float] = {}
        site.on_pause, site.on_look = self._pause, self._look

    def _pause(self) -> None:
        """The machines have gone as far as they can."""
        self._paused = self._site.now()
        self._waiting = next(iter(self._site.waiting()), None)

    def _look(self) -> None:
        """Something has come, or nothing has for a while."""
        now = self._site.now()
        if self._waiting is not None:
            self._last = self._waiting
            for name in self._waiting.missing:
                self._waited[name] = self._waited.get(name, 0.0) + now - self._paused
        if now - self._last_sent < EVERY:
            return
        past = now - self._last_sent
        shares = {name: round(seconds / past, 2) for name, seconds in self._waited.items() if seconds > past / 20}
        waits = {"what": self._last.what, "missing": shares} if self._last is not None and shares else {}
        machines = [self._site.cluster.machines[name] for name in sorted(self._site.own)]
        self._report(messages=messages_sent(machines), waits=waits)
        self._last_sent, self._last, self._waited = now, None, {}
