"""Batches divided over trainers, in order and as evenly as can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from pstranspile.compiler.job.modes import Promise, settings_of
from pstranspile.ir.argument_checks import wrong_type
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, name_list, warning
from pstranspile.ir.model import MAIN, Program
from pstranspile.ir.reading import shown_path
from pstranspile.runtime.run.batch import (
    Batch,
    Dealt,
    Part,
    has_rows,
    rows_of,
    select_range,
    unchecked_batch,
)
from pstranspile.runtime.run.feeds import FedInputs, near
from pstranspile.runtime.run.files import ArrayFile, place_of
from pstranspile.runtime.run.seeds import LossRows, is_divided
from pstranspile.runtime.run.step_feeds import (
    FeedOf,
    Feeds,
    ProgramFeeds,
    RowSource,
    Turns,
    arrays_by_program,
    bad_rows,
    batches_of,
    looking_up,
    of_everybody,
    refuse_turns,
    require_steps,
    variable_of,
)
from pstranspile.runtime.values import LoDTensor

# The weights of the trainers' shares of a batch.
#
# The programs say that every trainer counts the same: servers, and sums over rings, take the mean of the trainers'
# gradients. Each of them is of a mean over the rows of a share. So where shares have different numbers of rows, a row
# on one trainer counts more than on another, and the cluster does not train as one machine does. Weighted shares begin
# their gradients with rows times trainers by all rows instead of 1, and then it does.

Weighing: TypeAlias = Literal["equal", "weighted"]
"""Whether all shares have equal weights, as in the programs, or weights proportional to their rows."""

WEIGHTED_INSTEAD = " (--shares weighted is)"
"""What the sentence about uneven shares ends in, of commands that can have them weighted."""


class UnevenShares(NamedTuple):
    """The first step, counted from 1, whose shares have different numbers of rows, these numbers (None: the trainer has
    left), and how many such steps there were.
    """

    step: int
    rows: tuple[int | None, ...]
    steps: int

    def describe(self, weighing: Weighing) -> str:
        """A sentence about the uneven shares and their consequence under this weighing."""
        rows = ", ".join("left" if count is None else str(count) for count in self.rows)
        more = f" (and in {self.steps - 1} more)" if self.steps > 1 else ""
        shares = f"in step {self.step}{more} the trainers' losses are means over different numbers of rows: {rows}"
        if weighing == "weighted":
            return f"{shares}; they are weighted by these, which trainers of Fluid don't do"
        return f"{shares}; each counts the same, as in Fluid, so this is no mean over all rows{WEIGHTED_INSTEAD}"


Meeting: TypeAlias = Literal["", "servers", "ranks"]
"""Where the trainers meet in every step: nowhere, at servers that take the mean of their gradients, or as ranks of
collective operations.
"""


def meeting_of(mode: str) -> Meeting:
    """Where the trainers of a job in this mode meet in every step. Raises KeyError for an unknown mode."""
    settings = settings_of(mode)
    if not settings.servers:
        return "ranks"
    return "servers" if settings.promise is Promise.ALWAYS else ""


class EndOfBatches(NamedTuple):
    """The first step, counted from 1, in which some trainers have no batch and others have one, and the former."""

    step: int
    trainers: tuple[int, ...]

    def describe(self, meeting: Meeting, *, ddp: bool = False) -> str:
        """A sentence about the trainers without a batch, and what follows from it; of ranks of `ddp` in their words."""
        one = len(self.trainers) == 1
        names = name_list(map(str, self.trainers))
        what = f"{'rank' if ddp else 'trainer'}{'' if one else 's'} {names} {'has' if one else 'have'}"
        what += f" no batch in step {self.step}, "
        what += "which the others have"
        if meeting == "ranks":
            waits = "DDP" if ddp else "a collective operation of all ranks"
            waits += f" waits there for {'it' if one else 'them'} without end"
            return f"{what}: {waits} (here a cluster goes on without)"
        if meeting == "servers":
            return f"{what}: from there on the servers take the mean of those that have a batch"
        return f"{what}, and which go on without {'it' if one else 'them'}"


class Shares:
    """Gives the trainers their feeds, and records the numbers of rows.

    `feeds` are those of the trainers, `together` says whether the cluster takes the mean of their gradients, and
    `meeting` where the trainers meet in every step. Raises DiagnosticError for weighted shares where it takes no mean.
    """

    def __init__(
        self,
        feeds: Sequence[FeedOf],
        trainers: Sequence[Runs],
        weighing: Weighing,
        *,
        together: bool,
        meeting: Meeting = "",
    ):
        self.weighing: Weighing = weighing
        self.meeting: Meeting = meeting
        self._ends: dict[int, int] = {}
        """The trainers whose batches have ended, each with the number of its batches."""
        self._reached_steps = 0
        """The steps for which some trainer has had a batch."""
        self._on_end: Callable[[int], object] | None = None
        self._refused_feed: tuple[int, int] | None = None
        """The trainer and the step for which there was no feed but an error."""
        self._feeds = feeds
        self._trainers = trainers
        self._together = together and len(trainers) > 1
        self._counters: dict[str, list[LossRows]] = {}
        self._rows: dict[int, dict[int, int | None]] = {}
        """The rows of the trainers by step, without those of even steps."""
        self._uneven_steps: dict[int, dict[int, int | None]] = {}
        if weighing == "weighted" and not together:
            message = (
                "shares can be weighted where the mean of all trainers' gradients is taken in each step; here it isn't"
            )
            raise DiagnosticError([error("feed-shares", message)])

    def other_bad_rows(self) -> list[Diagnostic]:
        """The rows of the other trainers that can't be fed, in the step for which a trainer got an error."""
        if self._refused_feed is None:
            return []
        trainer, step = self._refused_feed
        return bad_rows({other: feed for other, feed in enumerate(self._feeds) if other != trainer}, step)

    def of(self, trainer: int) -> FeedOf:
        """The feed of a trainer: a function of the step that gives its share with the number of rows and the weight."""

        def feed(step: int) -> Mapping[str, Any] | None:
            try:
                given = self._feeds[trainer](step)
            except DiagnosticError:
                self._refused_feed = (trainer, step)
                raise
            if given is None:
                self._end(trainer, step)
                return None
            self._reached_steps = max(self._reached_steps, step + 1)
            rows = self._count(trainer, step, given)
            return _batch(given, trainer, rows, self._weight(trainer, step, rows))

        return feed

    def _end(self, trainer: int, step: int) -> None:
        if step < self._ends.get(trainer, step + 1):
            self._ends[trainer] = step
            if self._on_end is not None:
                self._on_end(step)

    def tell_of_end(self, on_end: Callable[[int], object]) -> None:
        """From now on `on_end` is called when a trainer's batches have ended, with their number."""
        self._on_end = on_end

    def all_ended(self) -> int | None:
        """The steps for which any trainer had a batch, once the batches of all have ended; None before."""
        return _most(self._ends, len(self._feeds))

    def end(self) -> EndOfBatches | None:
        """The trainers whose batches ended before those of others; None if there are none."""
        return _end_of(self._ends, self._reached_steps)

    def _count(self, trainer: int, step: int, given: Mapping[str, Any]) -> int | None:
        machine = self._trainers[trainer]
        name = machine.turns.program(step) if machine.turns is not None else MAIN
        known = self._counters.get(name)
        if known is None:
            known = self._counters[name] = [LossRows(machine.programs[name]) for machine in self._trainers]
        return known[trainer](given)

    def _weight(self, trainer: int, step: int, rows: int | None) -> float:
        """The weight of a share, relative to its weight in the programs; records steps with uneven shares."""
        if not self._together or rows is None:
            return 1.0
        known, weighted = self._rows.setdefault(step, {}), self.weighing == "weighted"
        if weighted and not known:
            known.update((other, self._rows_of(other, step)) for other in range(len(self._trainers)))
        known[trainer] = rows
        there = [count for count in known.values() if count is not None] if weighted else [rows]
        if len({*there}) > 1 if weighted else rows != next(iter(known.values())):
            self._uneven_steps[step] = known
        elif len(known) == len(self._trainers) and step not in self._uneven_steps:
            del self._rows[step]
        total = sum(there)
        return rows * len(there) / total if weighted and total else 1.0

    def _rows_of(self, trainer: int, step: int) -> int | None:
        given = self._feeds[trainer](step)
        return None if given is None else self._count(trainer, step, given)

    def uneven(self) -> UnevenShares | None:
        """The steps whose shares had different numbers of rows; None if there were none."""
        if not self._uneven_steps:
            return None
        step = min(self._uneven_steps)
        rows = tuple(self._uneven_steps[step].get(trainer) for trainer in range(len(self._trainers)))
        return UnevenShares(step + 1, rows, len(self._uneven_steps))

    def warnings(self) -> list[Diagnostic]:
        """Warnings about the steps so far."""
        return [
            *([] if self.weighing == "weighted" else _uneven_warnings(self.uneven())),
            *_end_warnings(self.end(), self.meeting),
        ]

    def take_rows(self, trainer: int, step: int) -> int | None:
        """The number of rows of a trainer's share in a step, which is forgotten afterwards; None where shares have no
        common weight.

        Used where the other trainers run in other processes.
        """
        self._uneven_steps.pop(step, None)
        return self._rows.pop(step, {}).get(trainer)


class ReportedShares:
    """The rows of shares as the trainers' processes report them: at each step in which they change. `meeting` is where
    the trainers meet in every step.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._meeting: Meeting = meeting
        self._batches: dict[int, int] = {}
        """The trainers whose batches have ended, each with the number of its batches."""
        self._changes: dict[int, dict[int, int]] = {}
        """Trainer -> the rows of its share from a step on."""
        self._ends: dict[int, int] = {}
        """Trainer -> the steps that it has done."""

    def take(self, role: str, fields: Mapping[str, Any]) -> None:
        """Records a report of a machine: a trainer reports its steps, counted from 1, and the number of rows of its
        share where that differs from the step before, and the number of its batches when they have ended.
        """
        name, _, number = role.rpartition("_")
        if name != "trainer" or not number.isdecimal():
            return
        if "batches" in fields:
            self._batches[int(number)] = fields["batches"]
        if "step" in fields:
            self._add(int(number), fields["step"] - 1, fields.get("rows"))

    def all_ended(self, trainers: int) -> int | None:
        """The steps for which any of so many trainers had a batch, once the batches of all have ended; None before."""
        return _most(self._batches, trainers)

    def _add(self, trainer: int, step: int, rows: int | None) -> None:
        changes = self._changes.setdefault(trainer, {})
        if step < self._ends.get(trainer, 0):  # the trainer resumes from an earlier step
            changes = self._changes[trainer] = {at: count for at, count in changes.items() if at < step}
        self._ends[trainer] = step + 1
        if rows is not None:
            changes[step] = rows

    def warnings(self) -> list[Diagnostic]:
        """Warnings about the steps so far."""
        trainers = max(self._ends, default=-1) + 1
        changing = {step for changes in self._changes.values() for step in changes} | {*self._ends.values()}
        now: list[int | None] = [None] * trainers
        first, counts, steps = -1, tuple(now), 0
        for step, after in pairwise(sorted(changing)):
            for trainer, changes in self._changes.items():
                now[trainer] = None if step >= self._ends[trainer] else changes.get(step, now[trainer])
            if len({*now} - {None}) > 1:
                first, counts = (step, tuple(now)) if first < 0 else (first, counts)
                steps += after - step
        end = _end_of(self._batches, max(self._ends.values(), default=0))
        return [
            *_uneven_warnings(UnevenShares(first + 1, counts, steps) if steps else None),
            *_end_warnings(end, self._meeting),
        ]


def _most(ends: Mapping[int, int], trainers: int) -> int | None:
    return max(ends.values()) if len(ends) == trainers else None


def _end_of(ends: Mapping[int, int], reached: int) -> EndOfBatches | None:
    """The trainers whose batches end first, of those that end before step `reached`. `ends` has the batches of each."""
    first = min(ends.values(), default=reached)
    return EndOfBatches(first + 1, tuple(sorted(t for t in ends if ends[t] == first))) if first < reached else None


def _end_warnings(end: EndOfBatches | None, meeting: Meeting) -> list[Diagnostic]:
    return [] if end is None else [warning("feed-shares", end.describe(meeting))]


def _uneven_warnings(uneven: UnevenShares | None) -> list[Diagnostic]:
    return [] if uneven is None else [warning("feed-shares", uneven.describe("equal"))]


def _batch(given: Mapping[str, Any], trainer: int, rows: int | None, weight: float) -> Batch:
    """A feed as a batch with the rows and the weight of a share. On one of several machines it is a part of the whole
    batch.
    """
    parts = given.parts if isinstance(given, Batch) else dict.fromkeys(given) if trainer else {}
    return unchecked_batch(given, parts, rows=rows, weight=weight)


ClusterFeeds: TypeAlias = (
    "Mapping[str, Any] | Sequence[Mapping[str, Any]] | Callable[[int, int], Mapping[str, Any] | None] | RowSource"
)
"""Arrays with a leading step axis (as in a feed file), a mapping per step, a function of trainer and step, or rows."""


class Runs(Protocol):
    """The programs of a trainer by name, and the choice of the program that each step runs (None: always the main
    one).
    """

    programs: dict[str, Program]
    turns: Turns | None


class PlannedRuns(NamedTuple):
    """What a trainer will run, as far as it is known before there is a cluster."""

    programs: dict[str, Program]
    turns: Turns | None


def share(size: int, trainer: int, trainers: int) -> tuple[int, int]:
    """The range (start, stop) of the `size` rows that a trainer gets: `[i*B/n, (i+1)*B/n)`."""
    return trainer * size // trainers, (trainer + 1) * size // trainers


def share_of(feed: Mapping[str, Any], program: Program, trainer: int, trainers: int) -> Batch:
    """A trainer's share of the feed of a step: rows of arrays, sequences of LoDTensors.

    Every trainer gets the whole of an input with fixed dims. Rows that are dealt already stay where they are.
    """
    parts: dict[str, Part | None] = {}
    values: dict[str, Any] = {}
    of_rows: dict[tuple[int, int, int], Part] = {}
    """The parts of a batch that inputs without sequences hold; mostly one, as all inputs have as many rows."""
    for name, value in feed.items():
        values[name] = value
        if is_divided(program, name) and has_rows(value):
            size = rows_of(value)
            dealt = feed.share(name, size, trainer, trainers) if isinstance(feed, Dealt) else None
            start, stop = dealt or share(size, trainer, trainers)
            if isinstance(value, LoDTensor):
                values[name], parts[name] = select_range(value, start, stop)
                continue
            part = of_rows.get((size, start, stop))
            if part is None:
                part = of_rows[size, start, stop] = Part(np.arange(start, stop), size)
            values[name], parts[name] = np.asarray(value)[start:stop], part
    return unchecked_batch(values, parts)


WANTED = "what is fed as arrays by name, a list of mappings (one for each step), or a function of trainer and step"


def feeds_of(feeds: ClusterFeeds | None, trainers: Sequence[Runs | PlannedRuns]) -> tuple[list[FeedOf], int | None]:
    """The feed of each trainer, and the largest number of steps (None: not limited). Raises DiagnosticError."""
    if feeds is None:
        return [_nothing for _ in trainers], None
    if isinstance(feeds, RowSource):
        refuse_turns(next((trainer.turns for trainer in trainers if trainer.turns is not None), None))
        return looking_up(feeds).feeds([trainer.programs[MAIN] for trainer in trainers])
    if callable(feeds):
        feed_function = feeds
        return [_bind(feed_function, trainer) for trainer in range(len(trainers))], None
    batches = batches_of(feeds, "feed", WANTED)
    if isinstance(feeds, Mapping):
        if any(trainer.turns is not None for trainer in trainers):
            return _by_program(feeds, trainers)
        mains = [trainer.programs[MAIN] for trainer in trainers]
        made, steps = _of_arrays(feeds, mains)
        if steps == 0:  # the error is that of one machine, with the dims of an array
            Feeds(mains[0], of_everybody(feeds)).require(1)
        return made, steps
    assert batches is not None
    count = len(trainers)
    fed_inputs: dict[str, FedInputs] = {}

    def of(trainer: int, machine: Runs | PlannedRuns) -> FeedOf:
        def feed(step: int) -> Mapping[str, Any] | None:
            if step >= len(batches):
                return None
            given = batches[step]
            if isinstance(given, Dealt) and given.is_without(trainer, count):
                return None
            name = machine.turns.program(step) if machine.turns is not None else MAIN
            program = machine.programs[name]
            if name not in fed_inputs:
                fed_inputs[name] = FedInputs(program)
            fed_inputs[name].require(given, f"step {step + 1}")
            return share_of(given, program, trainer, count)

        return feed

    return [of(index, trainer) for index, trainer in enumerate(trainers)], len(batches)


def require_fed(
    feeds: ClusterFeeds | None, trainers: Sequence[Runs | PlannedRuns], there: int | None, steps: int
) -> None:
    """Raises DiagnosticError if the feed has fewer steps than needed; `there` is the result of `feeds_of`."""
    if isinstance(feeds, RowSource):
        require_steps(there or 0, steps, feeds)
        return
    if isinstance(feeds, Mapping):
        programs, turns = trainers[0].programs, trainers[0].turns
        common = of_everybody(cast("Mapping[str, Any]", feeds))
        given = Feeds(programs[MAIN], common) if turns is None else ProgramFeeds(programs, turns, common)
        given.require(steps)
    if there is not None and there < steps:
        message = f"{there} steps are fed, {steps} are asked for"
        raise DiagnosticError([error("run-file-unusable", message, place_of(cast("object", feeds)))])


def _by_program(arrays: Mapping[str, Any], trainers: Sequence[Runs | PlannedRuns]) -> tuple[list[FeedOf], int | None]:
    """The feeds of several programs from arrays: each program has its own batches, one for every step that runs it."""
    first = trainers[0]
    scheduled = {
        name for trainer in trainers for name in (trainer.turns.names if trainer.turns is not None else (MAIN,))
    }
    names = [name for name in first.programs if name in scheduled]
    split = arrays_by_program(arrays, first.programs, names)
    feeds_of_programs = {name: _of_arrays(split[name], [t.programs[name] for t in trainers]) for name in names}

    def bound(index: int, trainer: Runs | PlannedRuns) -> FeedOf:
        turns = trainer.turns
        if turns is None:
            return feeds_of_programs[MAIN][0][index]
        return lambda step: feeds_of_programs[turns.program(step)][0][index](turns.runs_before(step))

    limits = [
        t.turns.steps_within({name: steps for name, (_, steps) in feeds_of_programs.items()})
        for t in trainers
        if t.turns
    ]
    known = [limit for limit in limits if limit is not None]
    return [bound(index, trainer) for index, trainer in enumerate(trainers)], max(known) if known else None


def _nothing(_step: int) -> Mapping[str, Any]:
    return {}


def _bind(given: Callable[[int, int], Mapping[str, Any] | None], trainer: int) -> FeedOf:
    def feed(step: int) -> Mapping[str, Any] | None:
        result = given(trainer, step)
        if result is not None and not isinstance(result, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise wrong_type("feeds", "a function that gives a mapping, or None where the rows have ended", result)
        return result

    return feed


def _of_arrays(arrays: Mapping[str, Any], mains: Sequence[Program]) -> tuple[list[FeedOf], int | None]:
    count, place = len(mains), place_of(arrays)
    file, known_names = place.file if place else "", mains[0].main_block.vars
    for name in arrays:
        owner, slash, rest = name.partition("/")
        known = [f"trainer_{i}/{rest}" for i in range(count)]
        if slash and name not in known and variable_of(name, known_names) not in known_names:
            message = f"{name} is for {owner}, which is none of {count} trainers{near(name, known)}"
            raise DiagnosticError([error("cluster-feeds", message, place)])
    prefixes = [f"trainer_{trainer}/" for trainer in range(count)]
    arrays_of_trainers = [
        {name[len(p) :]: array for name, array in arrays.items() if name.startswith(p)} for p in prefixes
    ]
    special = frozenset(variable_of(name, known_names) for mine in arrays_of_trainers for name in mine)
    common = {
        name: array
        for name, array in arrays.items()
        if variable_of(name, known_names) not in special and not (name.startswith("trainer_") and "/" in name)
    }
    whole = Feeds(mains[0], ArrayFile(common, file))
    feeds = [
        Feeds(main, ArrayFile({**common, **mine}, file)) if mine else whole
        for main, mine in zip(mains, arrays_of_trainers, strict=True)
    ]
    steps = [feed.steps for feed in feeds if feed.steps is not None]

    def of(trainer: int) -> FeedOf:
        mine, main = feeds[trainer], mains[trainer]
        last, checked = mine.steps, FedInputs(main)
        of_file = f" of {shown_path(file)}" if file else ""

        def feed(step: int) -> Mapping[str, Any] | None:
            if last is not None and step >= last:
                return None
            result = mine.step(step)
            if not special:
                checked.require(result, f"step {step + 1}{of_file}")
                return share_of(result, main, trainer, count)
            shared = share_of({n: v for n, v in result.items() if n not in special}, main, trainer, count)
            given = {name: value for name, value in result.items() if name in special}
            parts = {name: _own_part(feeds, name, trainer, step) for name in given}
            whole = Batch({**shared, **given}, {**shared.parts, **parts})
            checked.require(whole, f"step {step + 1}{of_file}")
            return whole

        return feed

    return [of(trainer) for trainer in range(count)], max(steps) if steps else None


def _own_part(feeds: Sequence[Feeds], name: str, trainer: int, step: int) -> Part | None:
    """The range of rows of the whole batch that are a trainer's own feed, trainers in order; None if a trainer has
    none.
    """
    rows: list[int] = []
    for feed in feeds:
        value = feed.step(step).get(name) if feed.steps is None or step < feed.steps else None
        if value is None:
            return None
        rows.append(rows_of(value))
    first = sum(rows[:trainer])
    return Part(np.arange(first, first + rows[trainer]), sum(rows))
