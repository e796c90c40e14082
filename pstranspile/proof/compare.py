"""Comparing the variables of a cluster with those of a single machine, step by step.

Rounding is told from a difference by taking it away: what is not bitwise equal is trained again in double precision,
where the two must be equal but for a tiny part of what was learnt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pstranspile.ir.frozen import EMPTY
from pstranspile.lazy import lazy_import
from pstranspile.ops.values import LoDTensor, SelectedRows
from pstranspile.proof.course import Course
from pstranspile.proof.keeping import Patched, chunks, same_bits
from pstranspile.proof.report import ADDS_UP, BITWISE, DIFFERENT, ROUGH, ROUNDING, Learnt, Verdict

np = lazy_import("numpy")

OF_CHANGE = 1e-7
"""In double precision: the part of what a variable has changed by that it may differ by, or of a loss."""

OF_VALUE = 1e-13
"""In double precision: the part of its value that a variable may differ by. Rounding of the value itself is more."""

OF_LARGEST = 1e-8
"""A parameter that is moved by less than this part of the one that is moved most may be moved by rounding alone."""

OF_STATES = 1e-12
"""The same for what else is kept."""

SMALL = 1e-2
"""Elements of parameters smaller than this are held against this instead of against themselves."""

Snapshot = Mapping[str, Any]
"""Values of variables after a step, by name."""


class Side(NamedTuple):
    """One side of a check: values after each step, what was fetched, and what the first step began with.

    `fetched` holds for every loss or result a value for each run of its program: the parts of all trainers. `counts`
    holds, after each step of a cluster, what every trainer keeps for metrics, by name; `weights` how much what each of
    them has fetched counts.
    """

    snapshots: list[Snapshot]
    fetched: dict[str, list[list[Any]]]
    start: Snapshot
    counts: Sequence[Mapping[str, Sequence[Any]]] = ()
    weights: Mapping[str, list[list[float]]] = EMPTY


class Sides(NamedTuple):
    """Both sides of a check, in the same precision."""

    ours: Side
    theirs: Side


def plain(value: Any) -> Any:
    """A value as an array: data of a ragged one, sparse rows in place."""
    if isinstance(value, Patched):
        return value.whole()
    if isinstance(value, LoDTensor):
        return value.data
    if isinstance(value, SelectedRows):
        whole = np.zeros((value.height, *value.value.shape[1:]), value.value.dtype)
        np.add.at(whole, value.rows, value.value[: len(value.rows)])
        return whole
    return value if isinstance(value, np.ndarray) and value.dtype.kind != "O" else None


def differ(ours: Any, theirs: Any, *, by_element: bool) -> tuple[bool, float]:
    """Whether two arrays are bitwise equal, and their largest relative difference (infinite for other dims or NaN).

    `by_element`: relative to each element (but to no less than `SMALL`); otherwise to the largest of the array.
    """
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return False, float("inf")
    if same_bits(ours, theirs):
        return True, 0.0
    largest = 0.0 if by_element else max(_largest(theirs), 1e-12)
    worst = 0.0
    for a, b in chunks(ours, theirs):
        a, b = a.astype("float64"), b.astype("float64")
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            if not np.array_equal(a, b, equal_nan=True):
                return False, float("inf")
            continue
        scale = np.maximum(np.abs(b), SMALL) if by_element else largest
        worst = max(worst, float((np.abs(a - b) / scale).max(initial=0.0)))
    return False, worst


def _largest(value: Any) -> float:
    """The largest element, without its sign."""
    return max(abs(float(value.max(initial=0))), abs(float(value.min(initial=0))))


def moved(value: Any, start: Any) -> float:
    """By how much an element of a variable has changed at most; the largest element where there was no value."""
    if value is None or value.dtype.kind not in "fiu":
        return 0.0
    if value is start:
        return 0.0
    if start is None or start.shape != value.shape:
        most = _largest(value)
    else:
        pairs = chunks(value, start)
        most = max(float(np.abs(a.astype("float64") - b).max(initial=0.0)) for a, b in pairs)
    return most if np.isfinite(most) else 0.0


def same_in_doubles(ours: Any, theirs: Any, change: float, floor: float = 0.0) -> bool:
    """Whether two arrays in double precision are what the same mathematics gives.

    `change` is by how much the variable has changed so far, `floor` what may be rounding alone.
    """
    if ours is None or theirs is None or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return ours is None and theirs is None
    if same_bits(ours, theirs):
        return True
    allowed = OF_CHANGE * change + OF_VALUE * _largest(theirs) + floor
    return all(bool((np.abs(a.astype("float64") - b) <= allowed).all()) for a, b in chunks(ours, theirs)) or bool(
        np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f")
    )


def verdict(name: str, kind: str, ours: Sequence[Any], theirs: Sequence[Any], steps: Sequence[int] = ()) -> Verdict:
    """The verdict on one variable from its values on the cluster and on the single machine after some steps
    (default: after each one), with `ROUGH` for a bound.
    """
    bitwise, worst, worst_step, first = True, 0.0, 0, -1
    for step, a, b in zip(steps or range(1, len(ours) + 1), ours, theirs, strict=True):
        same, difference = differ(plain(a), plain(b), by_element=kind == "parameter")
        bitwise &= same
        if difference > worst:
            worst, worst_step = difference, step
        if first < 0 and difference > ROUGH:
            first = step
    equality = BITWISE if bitwise else ROUNDING if first < 0 else DIFFERENT
    return Verdict(name, kind, equality, worst, worst_step, first, ROUGH)


def verdicts(course: Course, sides: Sides) -> list[Verdict]:
    """The verdicts on losses and results, then those on the variables that both sides have, parameters first, each
    group by name.
    """
    found: list[Verdict] = []
    for owner, label, name in _watched(course):
        kind = "metric" if name in course.metrics else course.kind(owner)
        pairs = fetched_pairs(sides, label)
        found.append(verdict(label, kind, *zip(*pairs, strict=True), steps=course.steps_of(owner)))
    ours, theirs = sides
    parameters = {var.name for var in course.whole.parameters()}
    names = [name for name in ours.snapshots[0] if name in theirs.snapshots[0]] if ours.snapshots else []
    for name in sorted(names, key=lambda name: (name not in parameters, name)):
        mine, wanted = ([snapshot.get(name) for snapshot in side.snapshots] for side in sides)
        if name in course.metrics:
            parts = [values[name] for values in ours.counts]
            found.append(metric_verdict(name, parts, mine, wanted, theirs.start.get(name)))
        else:
            found.append(verdict(name, "parameter" if name in parameters else "state", mine, wanted))
    return found


def settled(course: Course, found: Sequence[Verdict], precise: Sides) -> list[Verdict]:
    """The verdicts, where training in double precision says which differences are none of rounding."""
    parameters = {var.name for var in course.whole.parameters()}
    floors = _floors(course, precise, parameters)
    labels = {label: course.steps_of(owner) for owner, label, _ in _watched(course)}
    result: list[Verdict] = []
    for item in found:
        if item.kind != "metric" and item.equality != BITWISE:
            if item.name in labels and item.kind != "parameter":
                pairs = fetched_pairs(precise, item.name)
                bad = [
                    step
                    for step, (a, b) in zip(labels[item.name], pairs, strict=True)
                    if not same_in_doubles(a, b, moved(b, None), OF_STATES)
                ]
            else:
                bad = _bad_steps(item.name, precise, floors[item.name in parameters])
            item = item._replace(
                equality=DIFFERENT if bad else ROUNDING, first=bad[0] if bad else -1, tolerance=OF_CHANGE
            )
        result.append(item)
    return result


def _bad_steps(name: str, precise: Sides, floors: Sequence[float]) -> list[int]:
    """The steps after which a variable is another one."""
    bad: list[int] = []
    change, start = 0.0, plain(precise.theirs.start.get(name))
    pairs = zip(precise.ours.snapshots, precise.theirs.snapshots, floors, strict=True)
    for step, (ours, theirs, floor) in enumerate(pairs, 1):
        a, b = plain(ours.get(name)), plain(theirs.get(name))
        change = max(change, moved(b, start))
        if not same_in_doubles(a, b, change, floor):
            bad.append(step)
    return bad


def _floors(course: Course, precise: Sides, parameters: set[str]) -> dict[bool, list[float]]:
    """After each step, what rounding alone may have moved parameters (True) and other variables by."""
    start = precise.theirs.start
    floors: dict[bool, list[float]] = {True: [], False: []}
    for snapshot in precise.theirs.snapshots:
        largest = {True: 0.0, False: 0.0}
        for name, value in snapshot.items():
            if name not in course.metrics:
                mine = name in parameters
                largest[mine] = max(largest[mine], moved(plain(value), plain(start.get(name))))
        for mine, part in ((True, OF_LARGEST), (False, OF_STATES)):
            floors[mine].append(part * largest[mine])
    return floors


def learnt(course: Course, alone: Side) -> tuple[Learnt, ...]:
    """What the steps have changed of every parameter that they update, at some time."""
    updated = {name for owner in course.programs if course.steps_of(owner) for name in course.updated(owner)}
    found: list[Learnt] = []
    for name in sorted(updated & alone.start.keys()):
        start = plain(alone.start[name])
        rows = np.zeros(start.shape[:1] or (1,), "bool")
        for snapshot in alone.snapshots:
            rows |= (plain(snapshot[name]) != start).reshape(len(rows), -1).any(1)
        found.append(Learnt(name, int(rows.sum()), len(rows)))
    return tuple(found)


def metric_verdict(
    name: str, parts: Sequence[Sequence[Any]], ours: Sequence[Any], wanted: Sequence[Any], start: Any
) -> Verdict:
    """The verdict on what is kept for a metric: equal, or, as each trainer counts its share, equal in the sum.

    `parts` are the values of all trainers after each step.
    """
    alike = verdict(name, "metric", ours, wanted)
    if alike.equality != DIFFERENT or start is None or any(value is None for values in parts for value in values):
        return alike
    start = plain(start)
    if start is not None and start.shape != plain(wanted[0]).shape:  # other dims than those that the op gives it
        start = None if start.any() else np.zeros_like(plain(wanted[0]))
    if start is None:
        return alike
    sums = [start + sum(plain(value) - start for value in values) for values in parts]
    added = verdict(name, "metric", sums, wanted)
    return alike if added.equality == DIFFERENT else added._replace(equality=ADDS_UP)


def _watched(course: Course) -> list[tuple[str, str, str]]:
    """What is fetched: its program, what it is called, its name there."""
    return [
        (owner, course.label(owner, name), name)
        for owner, names in course.watched.items()
        for name in (names if course.steps_of(owner) else ())
    ]


def fetched_pairs(sides: Sides, label: str) -> list[tuple[Any, Any]]:
    """What the cluster and the single machine have fetched in each run of a program."""
    ours = sides.ours.fetched[label]
    weights = sides.ours.weights.get(label) or [[1.0] * len(parts) for parts in ours]
    pairs = zip(ours, weights, sides.theirs.fetched[label], strict=True)
    return [_together(parts, weight, whole) for parts, weight, (whole,) in pairs]


def _together(parts: Sequence[Any], weights: Sequence[float], whole: Any) -> tuple[Any, Any]:
    """What trainers have fetched, as one value: their rows one after the other, or the mean of their values; and what
    it is held against. Where nobody had rows there is nothing.
    """
    values, wanted = [plain(part) for part in parts if part is not None], plain(whole)
    if not values:
        return np.zeros(0), np.zeros(0)
    if len(parts) == 1 or any(value is None for value in (*values, wanted)):
        return values[0], wanted
    if any(value.shape != wanted.shape for value in values):
        rows = wanted.ndim and all(value.shape[1:] == wanted.shape[1:] for value in values)
        return np.concatenate(values) if rows else None, wanted
    counting = [weight for weight, part in zip(weights, parts, strict=True) if part is not None]
    return np.average([value.astype("float64") for value in values], axis=0, weights=counting).astype(
        wanted.dtype
    ), wanted
