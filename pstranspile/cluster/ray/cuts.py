"""The point from which a job continues after a stop: the last cut, and the values that trainers have fetched until
then.
"""

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
    """The consistent cuts of a job: parts of all machines after the same step, assembled in the folder `target`.

    `origin` is a checkpoint to begin with, None for none. `every`: the number of steps between cuts. `at_end` says
    whether the end is a cut as well. `settings` are those that decide the job's numbers.
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
        """The path from which the job continues: a checkpoint, or a folder of them (the newest counts); None at the
        beginning.
        """
        self.target, self.every, self.work, self.at_end = target, every, work, at_end
        self.history: dict[str, dict[int, Any]] = {}
        """The values that each trainer has fetched, by step, for steps before the last cut."""
        self.keeps: dict[str, dict[str, Kept]] = {}
        """For each machine, the values that it assembles itself, from elements that its host has and elements that it
        is sent.
        """
        self.moved = (0, 0)
        """The number of bytes that servers are sent, and the number with which they begin."""
        self._left: Layout | None = None
        """The layout of the state that hosts still have from their ended machines, if that is the last cut; else None.
        """
        self._fetched: dict[str, list[Any]] = {}
        self._told = False
        self._kept: Checkpoints | None = None

    def begin(self, job: Compiled, seed: int | None, feeds: Any) -> tuple[dict[str, bytes], Any]:
        """Returns the machines' parts of the last cut (none at the very beginning), and the feeds from there on.

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

    def told(self, steps: int, mode: str, *, rows: bool) -> list[Diagnostic]:
        """Findings to report, once, about a job that continues from a checkpoint. Raises DiagnosticError if it has done
        more steps already.
        """
        if self._origin is None or self._told:
            return []
        self._told = True
        self._origin.require_steps(steps)
        return self._origin.told(steps, mode, rows=rows)

    def _move(self, job: Compiled, files: Mapping[str, Path]) -> None:
        """Removes from the parts in files the elements that the machines' hosts have."""
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
        """Takes a machine's part of a step; the last part completes a cut. Raises DiagnosticError."""
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
        """Makes a cut after the end of all machines, from the files that they have left. Raises DiagnosticError."""
        assert self._kept is not None
        if self._kept.end(seed, files, step):
            self._left = layout_of(self._kept.job)
            self.source = str(self.target.folder)

    def close(self) -> None:
        """Unlocks the checkpoint from which the job began, so that it may be removed as outdated."""
        for held in (self._origin, self._kept):
            if held is not None:
                held.close()

    def fetched(self, role: str, results: list[Any]) -> list[Any]:
        """All results of a trainer so far; `results` are those since it last began."""
        history = self.history.setdefault(role, {})
        history.update((result.step, result) for result in results)
        return [history[step] for step in sorted(history)]
