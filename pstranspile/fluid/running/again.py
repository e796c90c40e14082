"""A run like the one before it, which needs no second look at what the script gives."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any

from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.running.alike import Alike, form_of
from pstranspile.fluid.running.watching import tell_run, watchers
from pstranspile.fluid.scope import Scope
from pstranspile.runtime.run.prepared import latest_of


class Again:
    """A run on one device, found to be alike an earlier one; `made` repeats it."""

    def __init__(
        self,
        program: Program,
        fetch_list: list[Any],
        scope: Scope,
        alike: Alike,
        drawn: Mapping[str, tuple[str, int]],
    ):
        self.names = alike.names
        self._program, self._fetch_list = program, tuple(fetch_list)
        self._scope, self._alike, self._drawn = scope, alike, drawn
        self._fetches = tuple(alike.names)

    def made(self, program: Any, feed: Any, fetch_list: Any, scope: Scope) -> dict[str, Any] | None:
        """What is fetched, by name; None if something differs from the earlier run, and nothing was run."""
        if (
            program is not self._program
            or scope is not self._scope
            or fetch_list.__class__ is not list
            or len(fetch_list) != len(self._fetch_list)
            or not all(map(is_, fetch_list, self._fetch_list))
            or feed.__class__ is not dict
            or form_of(feed) != self._alike.form
            or program.freeze() is not self._alike.program
            or program.readers
            or program.schedules
            or watchers()
        ):
            return None
        values = self._alike.values(feed)
        latest = latest_of(scope.core, self._alike.played, tuple(values), self._fetches)
        if latest is None:
            return None
        tell_run(program)
        execution, prepared = latest
        execution.adapt(self._drawn, (), None)
        return prepared.step(values)
