"""Comparing the variables of a cluster with those of a single machine, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from pstranspile.ir.model import Program
from pstranspile.lazy import lazy_import
from pstranspile.ops import schema_of
from pstranspile.ops.values import LoDTensor, SelectedRows
from pstranspile.proof.course import Course
from pstranspile.proof.report import ADDS_UP, BITWISE, DIFFERENT, ROUNDING, Verdict

np = lazy_import("numpy")

LOSS_TOLERANCE = 1e-6
"""The relative difference of losses that rounding explains."""

LINEAR_TOLERANCE = 1e-6
"""The same of parameters whose update is linear in the gradient."""

AMPLIFIED_TOLERANCE = 1e-4
"""The same of other parameters and of the state of optimizers, where nearly zero gradients amplify rounding."""

NOISE_ALLOWED = 30.0
"""How many times the difference is allowed that another order of the rows makes on the single machine."""

MOST_EXCUSED = 0.1
"""What noise may excuse at most: this part of the thing itself, and of how far it has come since the start."""

ORDER_MATTERS = 1e-5
"""If the order of rows changes the first loss by more than this, it is not rounding that changes it."""

LATER_ORDER_MATTERS = 1e-3
"""The same of later losses. Without it a run that is chaotic would excuse every difference."""

SMALL = 1e-2
"""Elements of parameters smaller than this are held against this instead of against themselves."""

Snapshot = Mapping[str, Any]
"""Values of variables after a step, by name."""


class Side(NamedTuple):
    """One side of a check: values after each step, what was fetched, and what the first step began with.

    `fetched` holds for every loss or result a value for each run of its program: the parts of all trainers; `sizes` the
    largest number that each is a sum or difference of, which its rounding goes by (0 if it is neither). `counts` holds,
    after each step of a cluster, what every trainer keeps for metrics, by name.
    """

    snapshots: list[Snapshot]
    fetched: dict[str, list[list[Any]]]
    start: Snapshot
    sizes: dict[str, list[float]]
    counts: Sequence[Mapping[str, Sequence[Any]]] = ()


def plain(value: Any) -> Any:
    """A value as an array: data of a ragged one, sparse rows in place."""
    if isinstance(value, LoDTensor):
        return value.data
    if isinstance(value, SelectedRows):
        whole = np.zeros((value.height, *value.value.shape[1:]), value.value.dtype)
        np.add.at(whole, value.rows, value.value[: len(value.rows)])
        return whole
    return value if isinstance(value, np.ndarray) and value.dtype.kind != "O" else None


def differ(ours: Any, theirs: Any, *, by_element: bool, size: float = 0.0) -> tuple[bool, float]:
    """Whether two arrays are bitwise equal, and their largest relative difference (infinite for other dims or NaN).

    `by_element`: relative to each element (but to no less than `SMALL`); otherwise to the largest of the array, or to
    `size` if that is larger.
    """
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return False, float("inf")
    if ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes():
        return True, 0.0
    a, b = ours.astype("float64"), theirs.astype("float64")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False, float("inf")
    scale = np.maximum(np.abs(b), SMALL) if by_element else max(float(np.abs(b).max(initial=0.0)), size, 1e-12)
    return False, float((np.abs(a - b) / scale).max(initial=0.0))


def excused(ours: Any, theirs: Any, start: Any) -> bool:
    """Whether a difference is small enough for noise to explain it: a tenth of the largest element, and of the largest
    change since the start. A larger one says nothing of whether the two do the same.
    """
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return False
    a, b = ours.astype("float64"), theirs.astype("float64")
    most = np.abs(b).max(initial=0.0)
    if start is not None and start.shape == b.shape:
        most = min(most, np.abs(b - start).max(initial=0.0))
    return bool(np.abs(a - b).max(initial=0.0) <= MOST_EXCUSED * most)


class Allowed(NamedTuple):
    """How much two values may differ: by `least`, or by `noise` where that is small beside the value and its change."""

    least: float
    noise: float = 0.0

    @property
    def most(self) -> float:
        """The larger of both, as far as noise may excuse anything."""
        return max(self.least, min(self.noise, MOST_EXCUSED))

    def covers(self, difference: float, ours: Any, theirs: Any, start: Any) -> bool:
        """Whether a difference of two values is allowed; `start` is what they began with, None if that is nothing."""
        return difference <= self.least or (difference <= self.noise and excused(ours, theirs, start))


def verdict(
    name: str,
    kind: str,
    allowed: Allowed,
    ours: Sequence[Any],
    theirs: Sequence[Any],
    steps: Sequence[int] | None = None,
    sizes: Sequence[float] = (),
    start: Any = None,
) -> Verdict:
    """The verdict on one variable from its values on the cluster and on the single machine after some steps
    (default: after each one); `sizes` as in `Side`, `start` is the value before the first step, if there is one.
    """
    bitwise, worst, worst_step, first = True, 0.0, 0, -1
    given = zip(steps or range(1, len(ours) + 1), ours, theirs, sizes or repeat(0.0, len(ours)), strict=True)
    for step, a, b, size in given:
        a, b = plain(a), plain(b)
        same, difference = differ(a, b, by_element=kind == "parameter", size=size)
        bitwise &= same
        if difference > worst:
            worst, worst_step = difference, step
        if first < 0 and not allowed.covers(difference, a, b, plain(start)):
            first = step
    equality = BITWISE if bitwise else ROUNDING if first < 0 else DIFFERENT
    return Verdict(name, kind, equality, worst, worst_step, first, allowed.most)


def verdicts(course: Course, ours: Side, theirs: Side, noise: Mapping[str, float] | None = None) -> list[Verdict]:
    """Verdicts on every variable that both sides have, parameters first, each group by name.

    `noise` is by how much rounding alone changes variables; thirty times that is allowed, within bounds (`excused`).
    """
    noise = noise or {}
    main = course.whole
    parameters = {var.name for var in main.parameters()}
    linear = linear_parameters(main)
    snapshots = ours.snapshots, theirs.snapshots
    names = [name for name in snapshots[0][0] if name in snapshots[1][0]] if ours.snapshots else []
    found: list[Verdict] = []
    for name in sorted(names, key=lambda name: (name not in parameters, name)):
        mine, wanted = ([snapshot.get(name) for snapshot in side] for side in snapshots)
        start = theirs.start.get(name)
        if name in course.metrics:
            found.append(metric_verdict(name, [parts[name] for parts in ours.counts], mine, wanted, start))
            continue
        kind = "parameter" if name in parameters else "state"
        least = LINEAR_TOLERANCE if name in linear else AMPLIFIED_TOLERANCE
        allowed = Allowed(least, NOISE_ALLOWED * noise.get(name, 0.0))
        found.append(verdict(name, kind, allowed, mine, wanted, start=start))
    return found


def metric_verdict(
    name: str,
    parts: Sequence[Sequence[Any]],
    ours: Sequence[Any],
    wanted: Sequence[Any],
    start: Any,
) -> Verdict:
    """The verdict on what is kept for a metric: equal, or, as each trainer counts its share, equal in the sum.

    `parts` are the values of all trainers after each step.
    """
    alike = verdict(name, "metric", Allowed(LINEAR_TOLERANCE), ours, wanted)
    if alike.equality != DIFFERENT or start is None or any(value is None for values in parts for value in values):
        return alike
    sums = [start + sum(plain(value) - start for value in values) for values in parts]
    added = verdict(name, "metric", Allowed(LINEAR_TOLERANCE), sums, wanted)
    return alike if added.equality == DIFFERENT else added._replace(equality=ADDS_UP)


def linear_parameters(main: Program) -> set[str]:
    """The parameters whose every update is linear in their gradient."""
    found: dict[str, bool] = {}
    for op in main.main_block.ops:
        schema = schema_of(op.type)
        name = op.input("Param")
        if schema is not None and schema.is_optimizer and name is not None:
            found[name] = found.get(name, True) and schema.linear
    return {name for name, linear in found.items() if linear}


def all_verdicts(course: Course, ours: Side, theirs: Side, noise: Mapping[str, float] | None = None) -> list[Verdict]:
    """The verdicts on losses and results, and those on the variables; `noise` as in `verdicts`."""
    noise = noise or {}
    found: list[Verdict] = []
    for owner, names in course.watched.items():
        kind, steps = course.kind(owner), course.steps_of(owner)
        for name in names if steps else ():
            label = course.label(owner, name)
            allowed = Allowed(LOSS_TOLERANCE, NOISE_ALLOWED * noise.get(label, 0.0))
            if kind == "result":  # of parameters that are equal within rounding only
                allowed = Allowed(AMPLIFIED_TOLERANCE, NOISE_ALLOWED * max(noise.values(), default=0.0))
            pairs = zip(ours.fetched[label], theirs.fetched[label], strict=True)
            values = [_together(parts, whole) for parts, (whole,) in pairs]
            wanted = [_single(whole) for (whole,) in theirs.fetched[label]]
            of = "metric" if name in course.metrics else kind
            found.append(verdict(label, of, allowed, values, wanted, steps, theirs.sizes[label]))
    return found + verdicts(course, ours, theirs, noise)


def _together(parts: Sequence[Any], whole: Any) -> Any:
    """What trainers have fetched, as one value: their rows one after the other, or the mean of their values."""
    values, wanted = [plain(part) for part in parts], plain(whole)
    if len(values) == 1 or any(value is None for value in (*values, wanted)):
        return _single(values[0])
    if any(value.shape != wanted.shape for value in values):
        rows = wanted.ndim and all(value.shape[1:] == wanted.shape[1:] for value in values)
        return _single(np.concatenate(values)) if rows else None
    return _single(np.mean([value.astype("float64") for value in values], axis=0))


def _single(value: Any) -> Any:
    """A value in one precision: those of a cluster are means over its trainers."""
    found = plain(value)
    return None if found is None else found.astype("float64").astype("float32")


def order_matters(course: Course, alone: Side, other: Side) -> bool:
    """Whether the order of rows means something to a program, so that what another way to train changes is no rounding.

    The first loss tells most, as no update has had a part in it; later ones also show what updates make of rounding.
    """
    labels = [
        course.label(owner, name)
        for owner, names in course.watched.items()
        if course.kind(owner) == "loss" and course.steps_of(owner)
        for name in names
    ]
    for label in labels:
        ours, theirs = other.fetched[label], alone.fetched[label]
        sizes = alone.sizes[label] or repeat(0.0, len(theirs))
        for run, ((a,), (b,), size) in enumerate(zip(ours, theirs, sizes, strict=True)):
            change = differ(_single(a), _single(b), by_element=False, size=size)[1]
            if change > (LATER_ORDER_MATTERS if run else ORDER_MATTERS):
                return True
    return False


def noise_of(course: Course, alone: Side, others: Sequence[Side]) -> dict[str, float]:
    """By how much rounding alone changes each variable: the single machine against itself with rows in other orders.

    Empty if the order of rows means something to a program, or if a program trains on a loss that is not known, so that
    it can't be said.
    """
    noise: dict[str, float] = {}
    if any(course.trains(owner) and not course.losses[owner] for owner in course.programs):
        return {}
    for other in others:
        if order_matters(course, alone, other):
            return {}
        for item in all_verdicts(course, other, alone):
            if item.kind not in ("result", "metric") and item.worst < float("inf"):
                noise[item.name] = max(noise.get(item.name, 0.0), item.worst)
    return noise
