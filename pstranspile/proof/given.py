"""What a check is given, and the same in double precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from pstranspile.compiler.compile import Compiled
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Module
from pstranspile.proof.doubles import compiled_in_doubles, module_in_doubles, values_in_doubles
from pstranspile.proof.workload import Workload
from pstranspile.runtime.run.step_feeds import GivenFeeds

T = TypeVar("T")


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
        module = module_in_doubles(self.module, self.made.plan.trainers)
        made = compiled_in_doubles(self.made, module)
        of = self.workload
        workload = Workload(module, of.text or None, of.steps, of.progress, of.shares)
        given = self.feeds
        feeds = values_in_doubles(given) if isinstance(given, Mapping) else [values_in_doubles(step) for step in given]
        return Given(module, made, workload, feeds, values_in_doubles(self.init), self.seed)


def precisely(given: Given, work: Callable[[Given], T]) -> tuple[T, str]:
    """What some work gives in double precision; where that can't be had, in single precision, and why."""
    try:
        return work(given.in_doubles()), ""
    except DiagnosticError as problem:
        refused = problem.diagnostics[0].message
    return work(given), refused
