"""The point from which a job continues after a stop: the last cut, and the values that trainers have fetched until
then.

When the numbers of machines change, each machine keeps the elements that it has, and the others have to be sent. The
elements of a variable are counted through the whole of it, wherever slices begin and end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.checkpoint.layout import Layout, VariableLayout, layout_of
from pstranspile.cluster.checkpoint.layout import VariablePart as Held
from pstranspile.cluster.checkpoint.manifest import Settings
from pstranspile.cluster.checkpoint.runs import Source, Target
from pstranspile.cluster.net.checkpoints import Checkpoints
from pstranspile.cluster.net.parts import MachineState, part_file, read_part, write_part
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.step_feeds import RowSource

# The elements that have to be sent when the numbers of machines change: each machine keeps those that it has.


class ReusedRange(NamedTuple):
    """The elements `start` to `stop` (without it) of a new value are those from `old_start` on of the old `name`."""

    start: int
    stop: int
    name: str
    old_start: int


class PartialValue(NamedTuple):
    """A new value with dims `shape`, and the parts of it that its machine has; in order, without overlap."""

    shape: tuple[int, ...]
    own_parts: tuple[ReusedRange, ...]

    @property
    def lacking(self) -> Iterator[tuple[int, int]]:
        """The ranges of elements that the machine does not have."""
        at = 0
        for own in self.own_parts:
            if at < own.start:
                yield at, own.start
            at = own.stop
        if at < prod(self.shape):
            yield at, prod(self.shape)


def kept_elements(before: Layout, after: Layout) -> dict[str, dict[str, PartialValue]]:
    """The parts of its new values that each machine has, by name, if machines with the layout `before` change to
    `after`.

    Tables of sparse rows and variables without a fixed size are left out: they are sent whole.
    """
    result: dict[str, dict[str, PartialValue]] = {}
    for name, placed in after.variables.items():
        old = before.variables.get(name)
        if old is None or old.table or placed.table or (old.dtype, old.shape) != (placed.dtype, placed.shape):
            continue
        if min(placed.shape, default=0) < 0:
            continue
        had: dict[str, list[Held]] = {}
        for part in _exact(old):
            had.setdefault(part.machine, []).append(part)
        for part in _exact(placed):
            own = tuple(_own(part, sorted(had.get(part.machine, ()), key=lambda held: held.offset)))
            if own:
                result.setdefault(part.machine, {})[part.name] = PartialValue(part.shape, own)
    return result


def _exact(placed: VariableLayout) -> Iterator[Held]:
    """Yields the holders whose values a checkpoint restores exactly; further copies on servers are made anew."""
    yield from placed.parts
    yield from (part for part in placed.other_parts if part.machine.startswith("trainer"))


def _own(part: Held, had: Sequence[Held]) -> Iterator[ReusedRange]:
    at, end = part.offset, part.offset + prod(part.shape)
    for old in had:
        start, stop = max(at, old.offset), min(end, old.offset + prod(old.shape))
        if start < stop:
            yield ReusedRange(start - part.offset, stop - part.offset, old.name, start - old.offset)
            at = stop


def _array(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else None


def part_to_send(part: MachineState, has: Mapping[str, PartialValue]) -> tuple[MachineState, dict[str, PartialValue]]:
    """The part to send to a machine that has some elements of it, and the values that the machine assembles itself: of
    these, only the missing elements are sent, one after another.
    """
    values = dict(part.values)
    result: dict[str, PartialValue] = {}
    for name, one in has.items():
        value = _array(values.get(name))
        if value is not None and value.shape == one.shape:
            flat = value.reshape(-1)
            values[name] = np.concatenate([flat[:0], *(flat[start:stop] for start, stop in one.lacking)])
            result[name] = one
    return part._replace(values=values), result


def assemble_part(part: MachineState, has: Mapping[str, PartialValue], left: Mapping[str, Value]) -> MachineState:
    """A machine's part, assembled from the elements that it was sent and the values left on its host.

    Raises LookupError if one of these values is missing.
    """
    values = dict(part.values)
    for name, one in has.items():
        come = values[name]
        flat = np.empty(prod(one.shape), come.dtype)
        for own in one.own_parts:
            value = _array(left.get(own.name))
            if value is None or value.dtype != come.dtype:
                raise LookupError(own.name)
            flat[own.start : own.stop] = value.reshape(-1)[own.old_start : own.old_start + own.stop - own.start]
        at = 0
        for start, stop in one.lacking:
            flat[start:stop] = come[at : at + stop - start]
            at += stop - start
        values[name] = flat.reshape(one.shape)
    return part._replace(values=values)


# The last cut, and the values that trainers have fetched until then.


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
        self.first_step = 0 if origin is None else origin.step
        """The number of steps that were done before the job began."""
        self.source = None if origin is None else str(origin.place)
        """The path from which the job continues: a checkpoint, or a folder of them (the newest counts); None at the
        beginning.
        """
        self.target, self.every, self.work, self.at_end = target, every, work, at_end
        self.history: dict[str, dict[int, Any]] = {}
        """The values that each trainer has fetched, by step, for steps before the last cut."""
        self.kept_values: dict[str, dict[str, PartialValue]] = {}
        """For each machine, the values that it assembles itself, from elements that its host has and elements that it
        is sent.
        """
        self.moved_bytes = (0, 0)
        """The number of bytes that servers are sent, and the number with which they begin."""
        self._retained_layout: Layout | None = None
        """The layout of the state that hosts still have from their ended machines, if that is the last cut; else None.
        """
        self._results: dict[str, list[Any]] = {}
        self._findings_are_reported = False
        self._checkpoints: Checkpoints | None = None

    def begin(self, job: Compiled, seed: int | None, feeds: Any) -> tuple[dict[str, bytes], Any]:
        """Returns the machines' parts of the last cut (none at the very beginning), and the feeds from there on.

        Raises DiagnosticError.
        """
        self._results, self.kept_values = {}, {}
        source = Source(self.source) if self.source is not None else None
        self.close()
        checkpoints = self._checkpoints = Checkpoints(job, source, self.target, self.every, self.work, self._settings)
        if isinstance(feeds, RowSource):
            feeds = checkpoints.deal(feeds, job.plan.trainers)
        if self.source is None:
            return {}, feeds
        files = checkpoints.begin(seed)
        self._move(job, files)
        return {role: Path(file).read_bytes() for role, file in files.items()}, feeds

    def resume_findings(self, steps: int, mode: str, *, rows: bool) -> list[Diagnostic]:
        """Findings to report, once, about a job that continues from a checkpoint. Raises DiagnosticError if it has done
        more steps already.
        """
        if self._origin is None or self._findings_are_reported:
            return []
        self._findings_are_reported = True
        self._origin.require_steps(steps)
        return self._origin.resume_findings(steps, mode, rows=rows)

    def _move(self, job: Compiled, files: Mapping[str, Path]) -> None:
        """Removes from the parts in files the elements that the machines' hosts have."""
        if self._retained_layout is None:
            return
        servers = [file for role, file in files.items() if role.startswith("pserver")]
        before = sum(file.stat().st_size for file in servers)
        for role, has in kept_elements(self._retained_layout, layout_of(job)).items():
            part, self.kept_values[role] = part_to_send(read_part(files[role], role), has)
            write_part(files[role], role, part)
        self.moved_bytes = sum(file.stat().st_size for file in servers), before
        self._retained_layout = None

    def add_saved_part(self, seed: int | None, role: str, step: int, part: bytes, results: list[Any]) -> None:
        """Takes a machine's part of a step; the last part completes a cut. Raises DiagnosticError."""
        assert self._checkpoints is not None
        part_file(self.work, role, step).write_bytes(part)
        self._results.setdefault(role, []).extend(results)
        if self._checkpoints.part_saved(seed, role, step):
            self.source = str(self.target.folder)
            self._keep(step)

    def _keep(self, step: int) -> None:
        for role, results in self._results.items():
            history = self.history.setdefault(role, {})
            history.update((result.step, result) for result in results if result.step < step)
            self._results[role] = [result for result in results if result.step >= step]

    def end(self, seed: int | None, files: Mapping[str, str], step: int) -> None:
        """Makes a cut after the end of all machines, from the files that they have left. Raises DiagnosticError."""
        assert self._checkpoints is not None
        if self._checkpoints.end(seed, files, step):
            self._retained_layout = layout_of(self._checkpoints.job)
            self.source = str(self.target.folder)

    def close(self) -> None:
        """Unlocks the checkpoint from which the job began, so that it may be removed as outdated."""
        for held in (self._origin, self._checkpoints):
            if held is not None:
                held.close()

    def all_results(self, role: str, results: list[Any]) -> list[Any]:
        """All results of a trainer so far; `results` are those since it last began."""
        history = self.history.setdefault(role, {})
        history.update((result.step, result) for result in results)
        return [history[step] for step in sorted(history)]
