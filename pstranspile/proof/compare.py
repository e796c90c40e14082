"""Compares the variables of a cluster with those of a single machine, step by step.

If the results are not bitwise equal, the run is repeated in double precision. There both sides must agree within a tiny
fraction of the change, which distinguishes rounding from a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.proof.report import ADDS_UP, BITWISE, DIFFERENT, DOUBLE, ROUGH, ROUNDING, SINGLE, Learnt, Verdict
from pstranspile.proof.workload import Workload
from pstranspile.runtime.values import LoDTensor, SelectedRows

# Comparison of large arrays in chunks, without temporary arrays of the same size.

CHUNK = 1 << 20
"""The number of elements per chunk."""


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays have the same element type, dims and bits."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "O" or not a.flags.c_contiguous or not b.flags.c_contiguous:
        return a.tobytes() == b.tobytes()
    return all(np.array_equal(_bits(one), _bits(other)) for one, other in chunks(a, b))


def same_arrays(a: Any, b: Any) -> bool:
    """Whether two values are arrays with the same element type, dims and bits."""
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and same_bits(a, b)


def is_zero(array: Any) -> bool:
    """Whether all bits of an array are 0. Such an array can be copied as new zeros, which take no memory until written
    to.
    """
    return array.flags.c_contiguous and not any(part.any() for (part,) in chunks(_bits(array)))


def chunks(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Chunks of arrays of the same dims, flattened."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, max(flat[0].size, 1), CHUNK):
        yield tuple(array[start : start + CHUNK] for array in flat)


def _bits(array: Any) -> Any:
    """The elements as integers, so that a NaN equals itself and -0 is not 0."""
    return array.view(f"u{array.itemsize}") if array.itemsize in (1, 2, 4, 8) else array


OF_CHANGE = 1e-7
"""Tolerance in double precision, relative to the change of a variable, or to a loss."""

OF_VALUE = 1e-13
"""Tolerance in double precision, relative to the value of a variable. Rounding of the value itself is larger."""

OF_LARGEST = 1e-8
"""Tolerance relative to the largest change of any parameter: a smaller change may be rounding."""

OF_STATES = 1e-12
"""The tolerance in double precision relative to the largest change, for persistable variables that are not
parameters.
"""

SMALL = 1e-2
"""The smallest scale for relative differences of the elements of parameters."""

SUM = "sum"
"""The kind of variables in which trainers add up gradients over several steps."""

OF_SHARES = ("metric", SUM)
"""The kinds of variables whose values on each trainer come from its own shares."""

FETCHED = ("loss", "result")
"""The kinds of fetched variables; variables of all other kinds are persistable."""

Snapshot = Mapping[str, Any]
"""Values of variables after a step, by name."""


class StepValues(NamedTuple):
    """The values of both sides after a step, which counts from 1. Observers must not keep or modify them.

    `fetched` has pairs of losses and results, cluster first. `cluster` returns the cluster's value of a variable, None
    if it has none. `single` has the values of the single machine, and `counts` every trainer's values of the variables
    for metrics and sums of gradients.
    """

    step: int
    fetched: Mapping[str, tuple[Any, Any]]
    cluster: Callable[[str], Any]
    single: Mapping[str, Any]
    counts: Mapping[str, Sequence[Any]]


def plain(value: Any) -> Any:
    """Converts a value to an array: the data of a ragged tensor, or sparse rows as a dense array."""
    if isinstance(value, LoDTensor):
        return value.data
    if isinstance(value, SelectedRows):
        whole = np.zeros((value.height, *value.value.shape[1:]), value.value.dtype)
        np.add.at(whole, value.rows, value.value[: len(value.rows)])
        return whole
    return value if isinstance(value, np.ndarray) and value.dtype.kind != "O" else None


def differ(cluster: Any, single: Any, *, by_element: bool) -> tuple[bool, float]:
    """Whether two arrays are bitwise equal, and their largest relative difference.

    The difference is infinite if dims differ, or elements that are NaN or infinite. With `by_element` it is relative to
    each element, but at least to `SMALL`; otherwise to the largest element of the array.
    """
    if cluster is None or single is None or cluster.shape != single.shape:
        return False, float("inf")
    if same_bits(cluster, single):
        return True, 0.0
    largest = 0.0 if by_element else max(_largest(single), 1e-12)
    worst = 0.0
    for a, b in chunks(cluster, single):
        a, b = a.astype("float64"), b.astype("float64")
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            if not np.array_equal(a, b, equal_nan=True):
                return False, float("inf")
            continue
        scale = np.maximum(np.abs(b), SMALL) if by_element else largest
        worst = max(worst, float((np.abs(a - b) / scale).max(initial=0.0)))
    return False, worst


def _largest(value: Any) -> float:
    """The largest absolute value of an element."""
    return max(abs(float(value.max(initial=0))), abs(float(value.min(initial=0))))


def largest_difference(one: Any, other: Any) -> float:
    """The largest absolute difference of two elements in the same place; NaN if a difference is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is a NaN, which callers ask for
        found = [float(np.abs(a.astype("float64") - b).max(initial=0.0)) for a, b in chunks(one, other)]
    return float(np.max(found))  # unlike max(), NaN wherever it stands


def _has_nan(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and bool(np.isnan(value.max(initial=0.0)))


def largest_change(value: Any, start: Any) -> float:
    """The largest absolute change of an element since `start`; the largest absolute value if there was no start
    value.
    """
    if value is None or value.dtype.kind not in "fiu":
        return 0.0
    if value is start:
        return 0.0
    if start is None or start.shape != value.shape:
        most = _largest(value)
    else:
        most = largest_difference(value, start)
    return most if np.isfinite(most) else 0.0


def same_in_doubles(cluster: Any, single: Any, change: float, floor: float = 0.0) -> bool:
    """Whether two arrays in double precision are equal up to rounding.

    `change` is the largest change of the variable so far, `floor` an absolute tolerance.
    """
    return deviation_in_doubles(cluster, single, change, floor) <= OF_CHANGE


def deviation_in_doubles(cluster: Any, single: Any, change: float, floor: float = 0.0) -> float:
    """The largest difference between two arrays in double precision, scaled so that `OF_CHANGE` is the tolerance.

    The tolerance grows with the `change` of the variable, its value, and `floor`. The result is infinite if dims or
    element types differ, or elements that are NaN or infinite.
    """
    if cluster is None or single is None or cluster.shape != single.shape or cluster.dtype != single.dtype:
        return 0.0 if cluster is None and single is None else float("inf")
    if same_bits(cluster, single):
        return 0.0
    most = largest_difference(cluster, single)
    if not np.isfinite(most):
        return 0.0 if np.array_equal(cluster, single, equal_nan=cluster.dtype.kind == "f") else float("inf")
    return scale_difference(most, OF_CHANGE * change + OF_VALUE * _largest(single) + floor)


def scale_difference(difference: float, allowed: float) -> float:
    """A difference, scaled so that `OF_CHANGE` stands for the difference `allowed`."""
    if not difference:
        return 0.0
    return difference / allowed * OF_CHANGE if allowed else float("inf")


class _Line:
    """The verdict on one variable, step by step, with the tolerance `ROUGH`."""

    def __init__(self, name: str, kind: str):
        self.verdict = Verdict(name, kind, BITWISE, 0.0, 0, -1, 0.0)

    def add(self, step: int, cluster: Any, single: Any) -> None:
        result = self.verdict
        same, difference = differ(plain(cluster), plain(single), by_element=result.kind == "parameter")
        if difference > result.worst:
            result = result._replace(worst=difference, worst_step=step)
        if result.first < 0 and difference > ROUGH:
            result = result._replace(first=step)
        if not same:
            equality = ROUNDING if result.first < 0 else DIFFERENT
            result = result._replace(equality=equality, tolerance=ROUGH, deviation=result.worst, settled_by=SINGLE)
        self.verdict = result


class _Metric:
    """The verdict on a variable for metrics, or on a sum of gradients.

    The values are equal, or the trainers' changes add up to the single machine's. For gradients their mean must equal
    it, since each trainer has the gradients of a mean over its share.
    """

    def __init__(self, name: str, start: Any, kind: str = "metric"):
        self.equal_line, self.sum_line = _Line(name, kind), _Line(name, kind)
        self.means = kind == SUM
        self.start = plain(start)
        self.adds_up = True

    def add(self, step: int, cluster: Any, single: Any, parts: Sequence[Any]) -> None:
        self.equal_line.add(step, cluster, single)
        start, wanted = self.start, plain(single)
        if start is not None and wanted is not None and start.shape != wanted.shape:  # dims as declared, not as written
            start = self.start = None if start.any() else np.zeros_like(wanted)
        self.adds_up &= start is not None and all(part is not None for part in parts)
        if self.adds_up and start is not None:
            changes = sum(plain(part) - start for part in parts)
            self.sum_line.add(step, start + (changes / len(parts) if self.means else changes), single)

    @property
    def verdict(self) -> Verdict:
        if (
            self.equal_line.verdict.equality != DIFFERENT
            or not self.adds_up
            or self.sum_line.verdict.equality == DIFFERENT
        ):
            return self.equal_line.verdict
        return self.sum_line.verdict._replace(equality=ADDS_UP)


class Comparison:
    """The verdicts on losses, results and the variables of both sides. `start` has the initial values."""

    def __init__(self, workload: Workload, start: Snapshot):
        self.workload = workload
        self.start = start
        self.parameters = {var.name for var in workload.whole_program.parameters()}
        self.updated = {
            n for owner in workload.programs if workload.steps_of(owner) for n in workload.updated_parameters(owner)
        }
        self.fetched_lines = {
            label: _Line(label, "metric" if name in workload.metrics else workload.kind(owner))
            for owner, label, name in _fetched_variables(workload)
        }
        self.lines: dict[str, _Line] = {}
        self.metrics: dict[str, _Metric] = {}
        self.changed_rows: dict[str, Any] = {}
        """The rows that have changed in some step, by name of the updated parameter."""
        self.no_numbers: dict[str, None] = {}
        """The variables that contain NaN on the single machine: losses and results in any step, others after the last
        step.
        """

    def look(self, seen: StepValues) -> None:
        """Compares the values of both sides after a step."""
        for label, (cluster, single) in seen.fetched.items():
            self.fetched_lines[label].add(seen.step, cluster, single)
            if self.fetched_lines[label].verdict.kind != "metric" and _has_nan(single):
                self.no_numbers[label] = None
        known = self.lines.keys() | self.metrics.keys()
        for name in known or seen.single:
            cluster, single = seen.cluster(name), seen.single.get(name)
            if not known and cluster is None:
                continue
            if name in self.workload.metrics or name in self.workload.sums:
                kind = "metric" if name in self.workload.metrics else SUM
                line = self.metrics.get(name) or _Metric(name, self.start.get(name), kind)
                self.metrics[name] = line
                line.add(seen.step, cluster, single, seen.counts[name])
                continue
            kind = "parameter" if name in self.parameters else "state"
            self.lines.setdefault(name, _Line(name, kind)).add(seen.step, cluster, single)
            if seen.step == self.workload.steps and _has_nan(single):
                self.no_numbers[name] = None
        for name in self.updated & self.start.keys():
            start = self.start[name]
            rows = self.changed_rows.setdefault(name, np.zeros(start.shape[:1] or (1,), "bool"))
            now = seen.single[name]
            rows |= True if now.shape != start.shape else (now != start).reshape(len(rows), -1).any(1)

    def verdicts(self) -> list[Verdict]:
        """The verdicts on losses and results, then on other variables with parameters first; each group sorted
        by name.
        """
        lines = {**self.lines, **self.metrics}
        names = sorted(lines, key=lambda name: (name not in self.parameters, name))
        return [*(line.verdict for line in self.fetched_lines.values()), *(lines[name].verdict for name in names)]

    def learnt(self) -> tuple[Learnt, ...]:
        """The number of changed rows of each parameter that the steps update."""
        return tuple(Learnt(name, int(rows.sum()), len(rows)) for name, rows in sorted(self.changed_rows.items()))


class PreciseComparison:
    """A comparison in double precision, which decides which differences in `verdicts` are rounding."""

    def __init__(self, workload: Workload, start: Snapshot, verdicts: Sequence[Verdict]):
        self.workload = workload
        self.start = start
        self.verdicts = verdicts
        self.parameters = {var.name for var in workload.whole_program.parameters()}
        self.change: dict[str, float] = {}
        """The largest change of each variable."""
        self.bad: dict[Verdict, int] = {}
        """The first step after which a variable differed."""
        self.deviations: dict[Verdict, float] = {}
        """The largest deviation of each variable."""

    def look(self, seen: StepValues) -> None:
        """Compares the values of both sides after a step."""
        largest = {True: 0.0, False: 0.0}
        for name, value in seen.single.items():
            if name not in self.workload.metrics:
                change, mine = largest_change(value, self.start.get(name)), name in self.parameters
                largest[mine] = max(largest[mine], change)
                self.change[name] = max(self.change.get(name, 0.0), change)
        for item in self.verdicts:
            if item.kind in OF_SHARES or item.equality == BITWISE:
                continue
            if item.kind in FETCHED:
                cluster, single = seen.fetched.get(item.name, (None, None))
                found = deviation_in_doubles(cluster, single, largest_change(single, None), OF_STATES)
            else:
                mine = item.kind == "parameter"
                floor = (OF_LARGEST if mine else OF_STATES) * largest[mine]
                change = self.change.get(item.name, 0.0)
                found = deviation_in_doubles(seen.cluster(item.name), seen.single.get(item.name), change, floor)
            self.deviations[item] = max(self.deviations.get(item, 0.0), found)
            if found > OF_CHANGE:
                self.bad.setdefault(item, seen.step)

    def precise_verdicts(self) -> list[Verdict]:
        """The verdicts with the outcome in double precision."""
        return [
            item
            if item.kind in OF_SHARES or item.equality == BITWISE
            else item._replace(
                equality=DIFFERENT if item in self.bad else ROUNDING,
                first=self.bad.get(item, -1),
                tolerance=OF_CHANGE,
                deviation=self.deviations.get(item, 0.0),
                settled_by=DOUBLE,
            )
            for item in self.verdicts
        ]


def _fetched_variables(workload: Workload) -> list[tuple[str, str, str]]:
    """The fetched variables: program, name in reports, and name in the program."""
    return [
        (owner, workload.label(owner, name), name)
        for owner, names in workload.fetched_names.items()
        for name in (names if workload.steps_of(owner) else ())
    ]


def combine_fetched(parts: Sequence[Any], weights: Sequence[float], whole: Any) -> tuple[Any, Any]:
    """Combines the fetched values of trainers to one value, and returns it with the value to compare it with.

    Values of other dims than `whole` are concatenated along rows; others are averaged with `weights`. Both results are
    empty if no trainer had rows.
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
