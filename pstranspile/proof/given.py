"""What a check is given, and the same in double precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pstranspile.compile import Compiled
from pstranspile.ir.model import Module
from pstranspile.proof.doubles import compiled_in_doubles, module_in_doubles, values_in_doubles
from pstranspile.proof.workload import Workload
from pstranspile.run.step_feeds import GivenFeeds


class Given(NamedTuple):
    """A module, what was compiled of it, the steps, the data, what to start from, and the seed."""

    module: Module
    made: Compiled
    workload: Workload
    feeds: GivenFeeds
    init: Mapping[str, Any]
    seed: int

    def in_doubles(self) -> Given:
        """The same in double precision. Raises DiagnosticError where an op does not take it."""
        module = module_in_doubles(self.module)
        made = compiled_in_doubles(self.made, module)
        workload = Workload(module, self.workload.text or None, self.workload.steps, self.workload.tell)
        workload.shares = self.workload.shares
        given = self.feeds
        feeds = values_in_doubles(given) if isinstance(given, Mapping) else [values_in_doubles(each) for each in given]
        return Given(module, made, workload, feeds, values_in_doubles(self.init), self.seed)
