"""Functions that are told of a session's machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pstranspile.cluster.ray.session import SessionListener


class Heard(SessionListener):
    """Calls `start` with the roles of machines that start, `report` with a role and what its machine reports."""

    def __init__(
        self,
        start: Callable[[Sequence[str]], object] = lambda roles: None,
        reported: Callable[[str, Mapping[str, Any]], object] = lambda role, fields: None,
    ):
        self._start, self._report = start, reported

    def machines_started(self, roles: Sequence[str]) -> None:
        self._start(roles)

    def machine_reported(self, role: str, fields: Mapping[str, Any]) -> None:
        self._report(role, fields)
