"""From where a job goes on when it was stopped: the last cut, and what trainers have fetched until then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pstranspile.cluster.checkpoint.layout import Layout, layout_of
from pstranspile.cluster.checkpoint.manifest import Settings
from pstranspile.cluster.checkpoint.runs import Source, Target
from pstranspile.cluster.net.checkpoints import Checkpoints
from pstranspile.cluster.net.parts import part_file, read_part, write_part
from pstranspile.cluster.ray.moves import Kept, kept, sent
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.runtime.run.step_feeds import RowSource


class Cuts:
    """The consistent cuts of a job: parts of all machines after the same step, put together in the folder `target`.

    `origin` is a checkpoint to begin with, None for none. `every`: after how many steps a cut is taken. `at_end` says
    whether the end is one as well. `settings` are those that decide the job's numbers.
    """

    def __init__(
        self,
        origin: Source | None,
        target: Target,
        every: int | None,
        work: Path,
        settings: Settings,
        *,
        at_end: bool,
    ):
        self._origin, self._settings = origin, settings
        self.source = None if origin is None else str(origin.place)
        """Path from which the job goes on: a checkpoint, or a folder of them (the newest counts); None: no path."""
        self.target, self.every, self.work, self.at_end = target, every, work, at_end
        self.history: dict[str, dict[int, Any]] = {}
        """What each trainer has fetched, by step: of steps that no cut goes back before."""
        self.keeps: dict[str, dict[str, Kept]] = {}
        """What each machine puts together of what its host has and of what it is sent, since the last begin."""
        self.moved = (0, 0)
        """How many bytes servers are sent then, of how many that they begin with."""
        self._left: Layout | None = None
        """What hosts have since their machines have ended, where that is the last cut."""
        self._fetched: dict[str, list[Any]] = {}
        self._told = False
        self._kept: Checkpoints | None = None

    def begin(self, job: Compiled, seed: int | None, feeds: Any) -> tuple[dict[str, bytes], Any]:
        """The machines' parts of the last cut (none at the very beginning), and what is fed from there on.

        Raises DiagnosticError.
        """
        self._fetched, self.keeps = {}, {}
        source = Source(self.source) if self.source is not None else None
        self.close()
        checkpoints = self._kept = Checkpoints(job, source, self.target, self.every, self.work, self._settings)
        if isinstance(feeds, RowSource):
            feeds = checkpoints.deal(feeds, job.plan.trainers)
        if self.source is None:
            return {}, feeds
        files = checkpoints.begin(seed)
        self._move(job, files)
        return {role: Path(file).read_bytes() for role, file in files.items()}, feeds

    def told(self, steps: int, mode: str) -> list[Diagnostic]:
        """What is to be told, once, of a job that goes on from a checkpoint. Raises DiagnosticError if it can't go on
        to so many steps.
        """
        if self._origin is None or self._told:
            return []
        self._told = True
        self._origin.require_steps(steps)
        return self._origin.told(steps, mode)

    def _move(self, job: Compiled, files: Mapping[str, Path]) -> None:
        """Leaves out of the parts in files what the machines have."""
        if self._left is None:
            return
        servers = [file for role, file in files.items() if role.startswith("pserver")]
        before = sum(file.stat().st_size for file in servers)
        for role, has in kept(self._left, layout_of(job)).items():
            part, self.keeps[role] = sent(read_part(files[role], role), has)
            write_part(files[role], role, part)
        self.moved = sum(file.stat().st_size for file in servers), before
        self._left = None

    def saved(self, seed: int | None, role: str, step: int, part: bytes, results: list[Any]) -> None:
        """Takes a machine's part of a step; the last part makes a cut. Raises DiagnosticError."""
        assert self._kept is not None
        part_file(self.work, role, step).write_bytes(part)
        self._fetched.setdefault(role, []).extend(results)
        if self._kept.part_saved(seed, role, step):
            self.source = str(self.target.folder)
            self._keep(step)

    def _keep(self, step: int) -> None:
        for role, results in self._fetched.items():
            history = self.history.setdefault(role, {})
            history.update((result.step, result) for result in results if result.step < step)
            self._fetched[role] = [result for result in results if result.step >= step]

    def end(self, seed: int | None, files: Mapping[str, str], step: int) -> None:
        """All machines have ended after a step, and left these files. Raises DiagnosticError."""
        assert self._kept is not None
        if self._kept.end(seed, files, step):
            self._left = layout_of(self._kept.job)
            self.source = str(self.target.folder)

    def close(self) -> None:
        """Lets the checkpoint that the job has gone on from be removed where it is an older one."""
        for held in (self._origin, self._kept):
            if held is not None:
                held.close()

    def fetched(self, role: str, results: list[Any]) -> list[Any]:
        """All that a trainer has fetched; `results` are what it has fetched since it began last."""
        history = self.history.setdefault(role, {})
        history.update((result.step, result) for result in results)
        return [history[step] for step in sorted(history)]
