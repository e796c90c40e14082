"""Small jobs in every mode, compiled from text, so that every op of the source has a line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.explain import ExplainedJob, of_compiled
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.make import Dispatcher
from pstranspile.ops.textual import parse, print_module
from tests.compiler.link import jobs

GOLDEN = Path(__file__).parents[3] / "golden"
TWO = ["a:6174", "b:6174"]
PROGRAMS = {path.stem: path for path in sorted(GOLDEN.glob("*.ir"))}
ONE_PROCESS = Job(trainers=["h:1"], mode="single-process-multi-thread")
GEO = Job(TWO, 2, mode="geo", min_block_size=500)
JOBS = {
    **jobs.JOBS,
    "one process": lambda: (jobs.dense(), ONE_PROCESS),
    "geo": lambda: (jobs.dense(), GEO),
    "geo, sparse": lambda: (jobs.lookups(), GEO),
}
"""What to compile: the jobs of the link check, and those of modes that it does not have."""

ALL = [*JOBS, *PROGRAMS]
"""The names that `compiled` takes."""


@cache
def compiled(name: str) -> Compiled:
    """A compiled job: one of JOBS by its mode, or a golden program on two servers with two trainers."""
    if name in JOBS:
        module, job = JOBS[name]()
        text = print_module(module)
    else:
        text, job = PROGRAMS[name].read_text(), Job(TWO, 2)
    return compile(parse(text, "net.ir"), job)


@cache
def explained(name: str) -> ExplainedJob:
    """The same, as explanations read it."""
    return of_compiled(compiled(name))


class Last(Dispatcher):
    """A dispatcher that puts everything on the last server."""

    def dispatch(self, varlist: Sequence[object]) -> list[str]:
        """The last endpoint for each slice."""
        return [self.endpoints[-1] for _ in varlist]
