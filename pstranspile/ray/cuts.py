"""From where a job goes on when it was stopped: the last cut, and what trainers have fetched until then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pstranspile.compile import Compiled
from pstranspile.net.checkpoints import Checkpoints
from pstranspile.net.parts import part_file
from pstranspile.run.row_source import RowSource


class Cuts:
    """The consistent cuts of a job: parts of all machines after the same step, put together in the folder `target`.

    `source` is a checkpoint to begin with, None for none. `every`: after how many steps a cut is taken. `at_end` says
    whether the end is one as well.
    """

    def __init__(self, source: str | None, target: str, every: int | None, work: Path, *, at_end: bool):
        self.source = source
        self.target, self.every, self.work, self.at_end = target, every, work, at_end
        self.history: dict[str, dict[int, Any]] = {}
        """What each trainer has fetched, by step: of steps that no cut goes back before."""
        self._fetched: dict[str, list[Any]] = {}
        self._kept: Checkpoints | None = None

    def begin(self, job: Compiled, seed: int | None, feeds: Any) -> tuple[dict[str, bytes], Any]:
        """The machines' parts of the last cut (none at the very beginning), and what is fed from there on.

        Raises DiagnosticError.
        """
        self._fetched = {}
        kept = self._kept = Checkpoints(job, self.source, self.target, self.every, self.work)
        if isinstance(feeds, RowSource):
            feeds = kept.deal(feeds, job.plan.trainers)
        if self.source is None:
            return {}, feeds
        return {role: Path(file).read_bytes() for role, file in kept.begin(seed).items()}, feeds

    def saved(self, seed: int | None, role: str, step: int, part: bytes, results: list[Any]) -> None:
        """A machine has handed over its part of a step; the last one makes it a cut. Raises DiagnosticError."""
        assert self._kept is not None
        part_file(self.work, role, step).write_bytes(part)
        self._fetched.setdefault(role, []).extend(results)
        if self._kept.told(seed, role, step):
            self.source = self.target
            self._keep(step)

    def _keep(self, step: int) -> None:
        for role, results in self._fetched.items():
            kept = self.history.setdefault(role, {})
            kept.update((result.step, result) for result in results if result.step < step)
            self._fetched[role] = [result for result in results if result.step >= step]

    def end(self, seed: int | None, files: Mapping[str, str], step: int) -> None:
        """All machines have ended after a step, and left these files. Raises DiagnosticError."""
        assert self._kept is not None
        self._kept.end(seed, files, step)
        self.source = self.target

    def fetched(self, role: str, results: list[Any]) -> list[Any]:
        """All that a trainer has fetched; `results` are what it has fetched since it began last."""
        kept = self.history.setdefault(role, {})
        kept.update((result.step, result) for result in results)
        return [kept[step] for step in sorted(kept)]
