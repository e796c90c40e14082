"""Batches divided over trainers, in order and as evenly as can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import MAIN, Location, Program
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Value
from pstranspile.ops.values import LoDTensor
from pstranspile.run.cluster import codes
from pstranspile.run.feeds import near
from pstranspile.run.files import LENGTHS, Feeds
from pstranspile.run.program_feeds import arrays_by_program

if TYPE_CHECKING:
    from pstranspile.run.cluster.trainer import Trainer

np = lazy_import("numpy")

FeedOf: TypeAlias = "Callable[[int], Mapping[str, Any] | None]"
"""What a trainer is fed in a step; None when it has no more data."""

ClusterFeeds: TypeAlias = (
    "Mapping[str, Any] | Sequence[Mapping[str, Any]] | Callable[[int, int], Mapping[str, Any] | None]"
)
"""Arrays with a leading step axis (as in a feed file), a mapping per step, or a function of trainer and step."""


def share(size: int, trainer: int, trainers: int) -> tuple[int, int]:
    """The part of `size` rows that a trainer gets: `[i*B/n, (i+1)*B/n)`."""
    return trainer * size // trainers, (trainer + 1) * size // trainers


def part_of_batch(value: Any, trainer: int, trainers: int) -> Value:
    """A trainer's share of a batch: rows of an array, sequences of a LoDTensor."""
    if isinstance(value, LoDTensor):
        starts = value.lod[0]
        first, last = share(len(starts) - 1, trainer, trainers)
        lod = [[offset - starts[first] for offset in starts[first : last + 1]]]
        low, high = starts[first], starts[last]
        for level in value.lod[1:]:
            lod.append([offset - level[low] for offset in level[low : high + 1]])
            low, high = level[low], level[high]
        return LoDTensor(value.data[low:high], lod)
    array = np.asarray(value)
    first, last = share(len(array), trainer, trainers)
    return array[first:last]


def divided(program: Program, name: str) -> bool:
    """Whether an input is divided: its first dim is open. One with fixed dims is given whole to every trainer."""
    var = program.main_block.vars.get(name)
    return var is None or not var.shape or var.shape[0] < 0


def feeds_of(
    feeds: ClusterFeeds | None, trainers: Sequence[Trainer], file: str = ""
) -> tuple[list[FeedOf], int | None]:
    """What each trainer is fed, and of how many steps at most (None: of any number). Raises DiagnosticError."""
    if feeds is None:
        return [_nothing for _ in trainers], None
    if callable(feeds):
        given = feeds
        return [_bind(given, trainer) for trainer in range(len(trainers))], None
    if isinstance(feeds, Mapping):
        if any(trainer.named for trainer in trainers):
            return _by_program(feeds, trainers, file)
        return _of_arrays(feeds, [trainer.main for trainer in trainers], file)
    count = len(trainers)
    batches = list(feeds)

    def of(trainer: int, machine: Trainer) -> FeedOf:
        def feed(step: int) -> Mapping[str, Any] | None:
            if step >= len(batches):
                return None
            program = machine.programs[machine.program_of(step)]
            return {
                name: part_of_batch(value, trainer, count) if divided(program, name) else value
                for name, value in batches[step].items()
            }

        return feed

    return [of(index, trainer) for index, trainer in enumerate(trainers)], len(batches)


def _by_program(arrays: Mapping[str, Any], trainers: Sequence[Trainer], file: str) -> tuple[list[FeedOf], int | None]:
    """Arrays of several programs: each has batches of its own, one for every step that runs it."""
    first = trainers[0]
    names = [name for name in first.programs if any(name in trainer.scheduled for trainer in trainers)]
    split = arrays_by_program(arrays, first.programs, names, file)
    of = {name: _of_arrays(split[name], [t.programs[name] for t in trainers], file) for name in names}

    def bound(index: int, trainer: Trainer) -> FeedOf:
        turns = trainer.turns
        if turns is None:
            return of[MAIN][0][index]
        return lambda step: of[turns.program(step)][0][index](turns.runs_before(step))

    limits = [t.turns.steps_within({name: steps for name, (_, steps) in of.items()}) for t in trainers if t.turns]
    known = [limit for limit in limits if limit is not None]
    return [bound(index, trainer) for index, trainer in enumerate(trainers)], max(known) if known else None


def _nothing(_step: int) -> Mapping[str, Any]:
    return {}


def _bind(given: Callable[[int, int], Mapping[str, Any] | None], trainer: int) -> FeedOf:
    return lambda step: given(trainer, step)


def _of_arrays(arrays: Mapping[str, Any], mains: Sequence[Program], file: str) -> tuple[list[FeedOf], int | None]:
    count = len(mains)
    for name in arrays:
        owner, slash, rest = name.partition("/")
        known = [f"trainer_{i}/{rest}" for i in range(count)]
        if slash and name not in known and name not in mains[0].main_block.vars:
            where = Location(file) if file else None
            message = f"{name} is for {owner}, which is none of {count} trainers{near(name, known)}"
            raise DiagnosticError([error(codes.FEEDS, message, where)])
    feeds = [Feeds(main, _arrays_of(arrays, trainer, count, main), file) for trainer, main in enumerate(mains)]
    steps = [feed.steps for feed in feeds if feed.steps is not None]

    def of(feed: Feeds) -> FeedOf:
        last = feed.steps
        return lambda step: feed.step(step) if last is None or step < last else None

    return [of(feed) for feed in feeds], max(steps) if steps else None


def _arrays_of(arrays: Mapping[str, Any], trainer: int, trainers: int, program: Program) -> dict[str, Any]:
    """The arrays for one trainer: those given under its name, and its part of those given for all."""
    mine = f"trainer_{trainer}/"
    found = {name[len(mine) :]: array for name, array in arrays.items() if name.startswith(mine)}
    given = {name.partition("/")[2] for name in arrays if name.startswith("trainer_") and "/" in name}
    for name, array in arrays.items():
        if name in found or name in given or "/" in name or name.endswith(LENGTHS):
            continue
        lengths = arrays.get(name + LENGTHS)
        if lengths is not None:
            found[name], found[name + LENGTHS] = _ragged_part(array, lengths, trainer, trainers)
        elif array.ndim > 1 and divided(program, name):
            first, last = share(array.shape[1], trainer, trainers)
            found[name] = array[:, first:last]
        else:
            found[name] = array
    return found


def _ragged_part(rows: Any, lengths: Any, trainer: int, trainers: int) -> tuple[Any, Any]:
    """A trainer's sequences of every step: their rows, and their lengths [steps, share]."""
    if lengths.ndim != 2 or int(lengths.sum()) != len(rows):
        return rows, lengths  # which Feeds refuses
    first, last = share(lengths.shape[1], trainer, trainers)
    ends = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    batch = lengths.shape[1]
    spans = [(ends[step * batch + first], ends[step * batch + last]) for step in range(len(lengths))]
    return np.concatenate([rows[a:b] for a, b in spans]) if spans else rows, lengths[:, first:last]
