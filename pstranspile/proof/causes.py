"""The ops that cause a cluster to train differently from one machine: those whose results on the shares of a batch do
not combine to the result on the whole batch.

One step is computed from the same values on the whole batch and, op by op, on each trainer's share. An output of an op
fits if, up to rounding, the value on the whole batch is the concatenation of the values on the shares, their mean, or
equal to each of them. Gradients of rows are larger on a share by the number of shares, because the cluster takes the
mean over the shares. An op is a suspect if its inputs fit and one of its outputs does not. The computation on the
shares then continues with parts of the output on the whole batch, which removes the difference that this op makes. The
op is a cause if this also removes a difference of gradients, losses or states.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import FrozenMap, Op, Program
from pstranspile.ir.types import OpRole
from pstranspile.ops import schema_of
from pstranspile.proof.compare import (
    OF_CHANGE,
    OF_STATES,
    Snapshot,
    chunks,
    combine_fetched,
    largest_difference,
    plain,
    scale_difference,
)
from pstranspile.proof.explanations import (
    TRAINERS,
    ComputedValues,
    Machines,
    Meaning,
    compares_rows,
    meaning_of,
    of_integers,
)
from pstranspile.proof.halves import Evaluation, Halves, halves_of, kept_of
from pstranspile.proof.report import BITWISE, DIFFERENT, GRADIENTS, OWN_NORM, ROUNDING, Cause, Verdict
from pstranspile.proof.training import ClusterValues, start_cluster
from pstranspile.proof.workload import CheckInput, in_doubles, metrics_of, micro_batches, sums_of, values_in_doubles
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.batch import Batch
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import LoDTensor, SelectedRows

# Comparison of a value on the whole batch with its values on the shares of the batch.

CLOSE = 1e-3
"""The relative difference up to which two values are taken to differ by rounding alone."""

CLOSE_IN_DOUBLES = 1e-8
"""`CLOSE` for computations in double precision."""


def fits(
    whole: Any,
    shares: Sequence[Any],
    weights: Sequence[float],
    *,
    state: bool = False,
    everywhere: bool = False,
    gradient: bool = False,
    floor: float = 0.0,
    close: float = CLOSE,
) -> bool:
    """Whether a value on the whole batch equals the combination of its values on the shares.

    Differences up to `floor`, or up to the fraction `close` of the largest element, count as rounding. `gradient` says
    that the value is the gradient of a loss. The shares may combine to a mean in two ways: with equal weights, as
    gradients do, which are weighted already, or with `weights`. Integers are positions, masks and the like, and are
    compared only if they are a `state` that is kept from step to step. With `everywhere`, each share must have the same
    value as the whole batch.
    """
    if isinstance(whole, SelectedRows) and all(isinstance(share, SelectedRows) for share in shares):
        rows = np.unique(np.concatenate([value.rows for value in (whole, *shares)]))
        parts = [_values_of_rows(share, rows) for share in shares]
        return _close(_values_of_rows(whole, rows), sum(parts[1:], parts[0]) / len(parts), floor, close)
    value, parts = plain(whole), [plain(share) for share in shares]
    if value is None or any(part is None for part in parts) or not value.size:
        return True  # lists and shapes are judged by what is made of them
    if value.dtype.kind != "f" and not state:
        return True
    if all(part.shape == value.shape for part in parts):
        weighings: set[tuple[float, ...]] = {
            (1 / len(parts),) * len(parts),
            tuple(weight / sum(weights) for weight in weights),
        }
        if all(_close(value, part, floor, close) for part in parts):
            return True
        means = (_mean_fits(value, parts, weights, floor, close) for weights in sorted(weighings))
        return not everywhere and any(means)
    axis = _axis(value, parts)
    if axis is None:
        return False
    joined = np.concatenate(parts, axis)
    return _close(value, joined / len(parts) if gradient else joined, floor, close)


def _values_of_rows(value: SelectedRows, rows: Any) -> Any:
    """The values of sparse rows at these row numbers, an array with one row for each; rows that occur several times are
    added up.
    """
    result = np.zeros((len(rows), *value.value.shape[1:]), value.value.dtype)
    np.add.at(result, np.searchsorted(rows, value.rows), value.value[: len(value.rows)])
    return result


def _mean_fits(value: Any, parts: Sequence[Any], shares: Sequence[float], floor: float, close: float) -> bool:
    """Whether a value is the weighted mean of other values; the weights add up to 1."""
    means = (
        (one.astype("float64"), sum(part.astype("float64") * share for part, share in zip(others, shares, strict=True)))
        for one, *others in chunks(value, *parts)
    )
    return _values_alike(means, floor, close)


def _axis(value: Any, parts: Sequence[Any]) -> int | None:
    """The axis along which the parts concatenate to the dims of the whole; None if there is none."""
    if any(part.ndim != value.ndim for part in parts):
        return None
    for axis in range(value.ndim):
        rest = value.shape[:axis] + value.shape[axis + 1 :]
        if all(part.shape[:axis] + part.shape[axis + 1 :] == rest for part in parts):
            return axis if sum(part.shape[axis] for part in parts) == value.shape[axis] else None
    return None


def same_rows(whole: Any, shares: Sequence[Any], *, gradient: bool) -> bool:
    """Whether a value on the whole batch has the rows of the shares in another order, and differs in layout alone."""
    value, parts = plain(whole), [plain(share) for share in shares]
    if value is None or any(part is None for part in parts) or (axis := _axis(value, parts)) is None:
        return False
    both = (np.moveaxis(array, axis, 0) for array in (value, np.concatenate(parts, axis)))
    rows = [np.sort(array.reshape(len(array), -1).sum(1)) for array in both]
    return _close(rows[0], rows[1] / len(parts) if gradient else rows[1])


def _order_of_rows(whole: Value, shares: Sequence[Value]) -> Any:
    """The order in which the rows of a value on the whole batch are those of the shares, one share after the other.

    None if the rows do not lie along the first dim, are not the same, or are in this order already.
    """
    value, parts = plain(whole), [plain(share) for share in shares]
    if value is None or any(part is None for part in parts) or _axis(value, parts) != 0:
        return None
    rows, joined = (array.reshape(len(array), -1) for array in (value, np.concatenate(parts)))
    result = np.zeros(len(rows), "int64")
    result[np.lexsort(joined.T)] = np.lexsort(rows.T)
    reordered = not np.array_equal(result, np.arange(len(rows)))
    return result if reordered and _close(rows[result], joined) else None


def forced_parts(whole: Any, shares: Sequence[Any], *, gradient: bool) -> list[Value] | None:
    """The parts of a value on the whole batch that take the place of the values on the shares; None if the value can't
    be divided that way.
    """
    if isinstance(whole, SelectedRows):
        return [whole for _ in shares]
    value, parts = plain(whole), [plain(share) for share in shares]
    if value is None or any(part is None for part in parts):
        return None
    if all(part.shape == value.shape for part in parts):
        return [_like(share, value) for share in shares]
    axis = _axis(value, parts)
    if axis is None:
        return None
    ends = np.cumsum([part.shape[axis] for part in parts])[:-1]
    scaled = value * value.dtype.type(len(parts)) if gradient else value
    return [_like(share, part) for share, part in zip(shares, np.split(scaled, ends, axis), strict=True)]


def _like(share: Any, data: Any) -> Value:
    return LoDTensor(data, share.lod) if isinstance(share, LoDTensor) else data


def sum_of(value: Any) -> float:
    """The sum of the absolute values of a tensor's elements; 0 if there is no tensor, or if the sum is not finite."""
    data = value.value if isinstance(value, SelectedRows) else plain(value)
    total = 0.0 if data is None else sum(float(np.abs(part).sum(dtype="float64")) for (part,) in chunks(data))
    return total if np.isfinite(total) else 0.0


def _close(a: Any, b: Any, floor: float = 0.0, close: float = CLOSE) -> bool:
    pairs = ((one.astype("float64"), other) for one, other in chunks(a, b))
    return a.shape == b.shape and _values_alike(pairs, floor, close)


def _values_alike(pairs: Iterable[tuple[Any, Any]], floor: float, close: float) -> bool:
    """Whether two arrays, given as pairs of chunks, differ by at most the fraction `close` of the largest element, or
    by at most `floor`.
    """
    size = apart = 0.0
    for a, b in pairs:
        if not np.isfinite(a).all():
            if not np.array_equal(np.isfinite(a), np.isfinite(b)):
                return False
            a, b = (np.where(np.isfinite(array), array, 0) for array in (a, b))
        size = max(size, float(np.abs(a).max(initial=0.0)))
        apart = float(np.maximum(apart, np.abs(a - b).max(initial=0.0)))  # which NaN stays in
    return apart <= max(close * max(size, 1e-12), floor)


# Comparison of the gradients of a whole batch with the means of the gradients of its shares, in double precision, step
# by step.
#
# Where the two sides can't be trained in double precision, the values at the end of a run don't tell rounding from a
# real difference: an optimizer that divides by the size of gradients, such as Adam, turns a gradient that is zero but
# for rounding into a full step. A proof in two parts does not depend on that. First, every step of every machine is
# compared with the source program. Second, the part of a step before the optimizer is computed on the whole batch and
# on the shares, from the values that the cluster had at that step. If both hold in every step, the two sides train
# alike, whatever differences rounding has led to. Only the variables that these ops read are copied in double
# precision; the states of optimizers are not among them.


class DifferingVariables(NamedTuple):
    """The parameters (compared by their gradients), losses and states whose values on the shares do not combine to the
    value on the whole batch: by name, the first step, counted from 1, in which they don't.

    `refusal` is the reason why a step could not be computed in double precision; "" if all were.
    """

    first_steps: Mapping[str, int]
    refusal: str = ""
    deviations: Mapping[str, float] = FrozenMap()
    """The largest deviation, by name, of the shares from the whole batch in any step, of everything compared."""

    def settle(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The verdicts of a comparison in single precision, in which differences that double precision shows to be
        rounding count as rounding.
        """
        begin = min(self.first_steps.values(), default=0)
        result: list[Verdict] = []
        for verdict in verdicts:
            own = self.first_steps.get(verdict.name)
            if verdict.kind == "metric" or verdict.equality == BITWISE:
                result.append(verdict)
            elif own is not None:
                result.append(
                    self._settle_by_gradients(verdict, self.deviations[verdict.name])._replace(
                        equality=DIFFERENT, first=own
                    )
                )
            elif verdict.equality == DIFFERENT and begin:
                result.append(verdict._replace(first=max(verdict.first, begin)))
            elif verdict.equality == DIFFERENT:
                most = max(self.deviations.values(), default=0.0)
                found = self._settle_by_gradients(verdict, self.deviations.get(verdict.name, most))
                result.append(found._replace(equality=ROUNDING, first=-1))
            else:
                result.append(verdict)
        return result

    def _settle_by_gradients(self, verdict: Verdict, deviation: float) -> Verdict:
        return verdict._replace(deviation=deviation, tolerance=OF_CHANGE, settled_by=GRADIENTS)


def differing_gradients(check_input: CheckInput, start: Snapshot) -> DifferingVariables:
    """Trains the cluster again, and compares whole batch and shares before every step. `start` holds the values with
    which the single machine starts.
    """
    workload, trainers = check_input.workload, check_input.compiled.plan.trainers
    halves = {
        name: half._replace(program=in_doubles(half.program, trainers))
        for name, half in halves_of(check_input.compiled, workload).items()
    }
    cluster, first, deviations = start_cluster(check_input, watch=False), dict[str, int](), dict[str, float]()
    held, feeds = ClusterValues(check_input.compiled, cluster, start), workload.feeds(check_input.feeds)
    cluster.start()
    try:
        for step in workload.steps_of_run("gradients in double precision: step"):
            owner = workload.turns.program(step)
            fed = [trainer.feed(step) for trainer in cluster.trainers]
            one = _ComparedStep(check_input, halves[owner], owner, step, held)
            for name, deviation in one.deviations(feeds.step(step), fed).items():
                deviations[name] = max(deviations.get(name, 0.0), deviation)
                if deviation > OF_CHANGE:
                    first.setdefault(name, step + 1)
            cluster.run_to(step + 1)
    except DiagnosticError as problem:
        return DifferingVariables(first, problem.diagnostics[0].message, deviations)
    cluster.finish()
    return DifferingVariables(first, "", deviations)


class _ComparedStep:
    """The ops of a step before the optimizer, computed on the whole batch and on the shares."""

    def __init__(self, check_input: CheckInput, half: Halves, owner: str, step: int, held: ClusterValues):
        self.check_input, self.half, self.step = check_input, half, step
        kept = {name: held.value(name) for name in sorted(kept_of(half, half.first))}
        self.values = values_in_doubles({name: value for name, value in kept.items() if value is not None})
        block, metrics = half.program.main_block, check_input.workload.metrics
        written = dict.fromkeys(name for index in half.first for name in block.ops[index].output_names)
        self.states = [n for n in written if n in block.vars and block.vars[n].persistable and n not in metrics]
        loss = check_input.workload.losses[owner]
        self.losses = {} if loss is None or loss in metrics else {loss: check_input.workload.label(owner, loss)}
        self.gradients = dict.fromkeys(half.sent_gradients.values())

    def deviations(self, feed: Mapping[str, Any], shares: Sequence[Mapping[str, Any] | None]) -> dict[str, float]:
        """The deviations of the shares from the whole batch, by the names of parameters, states and losses."""
        whole, _ = self._compute_gradients(feed, 0)
        sums, counted, parts = _Sums(), list[float](), dict[str, list[Any]]()
        for trainer, share in enumerate(shares):
            made, run = self._compute_gradients(share or {}, trainer)
            if run.has_no_rows:
                continue
            counted.append(run.weight)
            for name, value in made.items():
                if name in self.gradients:
                    sums.add(name, value)
                else:
                    parts.setdefault(name, []).append(value)
        means = {name: sums.mean(name, len(shares)) for name in self.gradients}
        floor = OF_STATES * max((_size(_data(whole.get(name))) for name in self.gradients), default=0.0)
        unlike = {name: _deviation_of_rows(whole.get(name), means[name], floor) for name in self.gradients}
        result = {parameter: unlike[gradient] for parameter, gradient in self.half.sent_gradients.items()}
        for name, label in self.losses.items():
            mean, wanted = combine_fetched(parts.get(name, []), counted, whole.get(name))
            result[label] = _deviation(plain(wanted), mean, OF_STATES * _size(mean))
        for name in self.states:
            wanted = plain(whole.get(name))
            floor = OF_STATES * _size(wanted)
            result[name] = max((_deviation(wanted, plain(part), floor) for part in parts.get(name, ())), default=0.0)
        return result

    def _compute_gradients(self, feed: Mapping[str, Any], stream: int) -> tuple[dict[str, Value], Evaluation]:
        """The gradients, losses and states that the ops before the optimizer compute from a feed."""
        names = [*self.gradients, *self.losses, *self.states]
        run = Evaluation(
            self.half.program, self.values, _wide(feed), seed=self.check_input.seed, stream=stream, step=self.step
        )
        if run.has_no_rows:
            return {}, run.run_without_rows(self.half.first)
        run.go(self.half.first, keep=names)
        return {name: value for name in names if (value := run.take(name)) is not None}, run


class _Sums:
    """The sums of gradients over the shares, by name."""

    def __init__(self):
        self.sums: dict[str, Any] = {}
        self.rows: dict[str, list[SelectedRows]] = {}

    def add(self, name: str, value: Value) -> None:
        """Adds the gradient of one share."""
        if isinstance(value, SelectedRows):
            self.rows.setdefault(name, []).append(value)
        elif name in self.sums:
            self.sums[name] += plain(value)
        else:
            self.sums[name] = own_copy(plain(value))

    def mean(self, name: str, count: int) -> Value:
        """The mean of a gradient over `count` shares; None if no share has the gradient."""
        if name in self.rows:
            parts = self.rows[name]
            data = np.concatenate([part.value[: len(part.rows)] for part in parts]) / count
            return SelectedRows(np.concatenate([part.rows for part in parts]), data, parts[0].height)
        value = self.sums.get(name)
        return None if value is None else value / count


def _data(value: Value) -> Any:
    """A value as an array: of sparse rows, the values without the row numbers."""
    return value.value[: len(value.rows)] if isinstance(value, SelectedRows) else plain(value)


def _deviation_of_rows(whole: Value, mean: Value, floor: float) -> float:
    """The deviation of two gradients. Of sparse gradients only the rows that at least one of them has are compared."""
    if not isinstance(whole, SelectedRows) or not isinstance(mean, SelectedRows):
        return _deviation(plain(whole), plain(mean), floor)
    rows = np.unique(np.concatenate([whole.rows, mean.rows]))
    return _deviation(_values_of_rows(whole, rows), _values_of_rows(mean, rows), floor)


def _deviation(whole: Any, other: Any, floor: float) -> float:
    """The deviation of two arrays in double precision, relative to their size. Up to `OF_CHANGE` it is rounding;
    `floor` is an absolute difference that is allowed in addition.
    """
    if whole is None or other is None or whole.shape != other.shape:
        return 0.0 if whole is None and other is None else float("inf")
    if whole.dtype.kind != "f":
        return 0.0 if np.array_equal(whole, other) else float("inf")
    most = largest_difference(whole, other)
    return scale_difference(most, OF_CHANGE * _size(whole) + floor) if np.isfinite(most) else float("inf")


def _size(value: Any) -> float:
    """The largest absolute value of an array; 0 if there is none."""
    if value is None or value.dtype.kind != "f" or not value.size:
        return 0.0
    return max(abs(float(value.max())), abs(float(value.min())))


NOISE = 1e-6
"""The fraction of the sum of an op's incoming gradients by which its outputs may differ: terms may cancel out, and
leave rounding errors of the size of the terms.
"""

NOISE_IN_DOUBLES = 1e-12
"""`NOISE` for computations in double precision."""

MOST = 3
"""The largest number of causes in a report."""

TRIED = 12
"""The largest number of op types whose suspects are tried."""


class _StoppedError(Exception):
    """An op that fails: its number, the ops whose results on the shares were replaced before, and the problem."""

    def __init__(self, at: int, replaced: Sequence[int], problem: DiagnosticError):
        super().__init__(str(problem))
        self.op_number, self.replaced_ops, self.problem = at, tuple(replaced), problem


class Suspicion:
    """A search for the causes of a difference in one step of a training program.

    `half` tells which ops the trainers run, `start_values` has the values with which the step starts, `feed` is the
    whole batch and `shares` are the trainers' parts of it; shares without rows are ignored. With `doubles`, everything
    is computed in double precision, so that small differences are seen; ops that don't support it raise
    DiagnosticError. `buffers` is the option of the same name of the Workload. `step`, counted from 0, and the names of
    the `machines` appear in the descriptions of the causes.
    """

    def __init__(
        self,
        half: Halves,
        held: Mapping[str, Any],
        feed: Mapping[str, Any],
        shares: Sequence[Mapping[str, Any]],
        seed: int,
        *,
        step: int = 0,
        machines: Machines = TRAINERS,
        doubles: bool = False,
        buffers: bool = False,
    ):
        if doubles:
            half = half._replace(program=in_doubles(half.program, len(shares)))
            held, feed = values_in_doubles(held), _wide(feed)
            shares = [_wide(share) for share in shares]
        main = half.program
        self.close = CLOSE_IN_DOUBLES if doubles else CLOSE
        self.noise = NOISE_IN_DOUBLES if doubles else NOISE
        numbered = [(number, share) for number, share in enumerate(shares) if not _is_empty(share)]
        shares = [share for _, share in numbered]
        self.numbers = [number for number, _ in numbered]
        self.step = step
        self.machines = machines
        self.half = half
        self.weights = [share.weight if isinstance(share, Batch) else 1.0 for share in shares]
        self.start_values = {name: value for name, value in held.items() if name in main.main_block.vars}
        self.feeds = [feed, *shares]
        self.rows = [_rows_of(given) for given in self.feeds]
        """The number of rows of the whole batch and of each share."""
        self.seed = seed
        self.given_names = {*held, *feed}
        losses = {name for op in main.main_block.ops for name in op.output_names if _is_loss(op)}
        metrics = frozenset[str]() if buffers else metrics_of(main)
        states = {name for name in held if _is_persistable(main, name)} - metrics
        self.everywhere = states - sums_of(main)
        """The states that must be equal on every trainer and on the single machine."""
        self.reordered_ops = set[int]()
        """The numbers of the ops found so far whose results have the rows of the shares in another order."""
        self.blocked_ops = set[int]()
        """The numbers of the ops found so far whose results on the shares can't be replaced by parts of the result on
        the whole batch; a product of all rows with all rows, for example, has no such parts.
        """
        self.reordering = False
        """Whether rows that an op puts in another order are put in that of the shares, where the whole batch has them:
        a loss of two sets of rows, one after the other, is the same in any order.
        """
        self.whole_values: dict[str, Value] = {}
        """What the whole batch made of the variables in `ends` when it was computed last."""
        self.crossed = set[str]()
        """The variables found so far that have a value for each pair of rows."""
        self.ends = {*half.sent_gradients.values(), *losses, *states}
        """The variables whose values on the shares must combine to the value on the whole batch: gradients, losses, and
        states that trainers keep, without the counters of metrics.
        """

    def misfits(self, left: Collection[int]) -> tuple[set[str], list[int]]:
        """(the names in `ends` that do not fit once the differences of all suspects but those in `left` are removed,
        the numbers of all suspects).

        The integer outputs of a suspect are replaced together with its other outputs, because its gradient op reads
        both. Positions in the whole batch may lie outside of a share, which makes an op fail; the step is then computed
        again with the shares' own integers, and without the replacements of which positions are computed.
        """
        with_integers = True
        while True:
            try:
                return self._misfits(left, with_integers)
            except _StoppedError as stopped:
                if not with_integers:
                    of = [index for index in stopped.replaced_ops if self._depends(stopped.op_number, index)]
                    if not of:
                        raise stopped.problem from None
                    self.blocked_ops.add(of[-1])
                with_integers = False

    def _depends(self, index: int, other: int) -> bool:
        """Whether an op of the step computes with what the `other` one makes."""
        ops = self.half.program.main_block.ops
        reached = {name for name in ops[other].output_names if name}
        for at in self.half.first[self.half.first.index(other) + 1 :]:
            if not reached.isdisjoint(ops[at].input_names):
                if at == index:
                    return True
                reached.update(name for name in ops[at].output_names if name)
        return False

    def _misfits(self, left: Collection[int], with_integers: bool) -> tuple[set[str], list[int]]:
        runs = [
            Evaluation(self.half.program, self.start_values, feed, seed=self.seed, stream=max(place - 1, 0))
            for place, feed in enumerate(self.feeds)
        ]
        known_names, suspects, wrong = set(self.given_names), list[int](), set[str]()
        ops = self.half.program.main_block.ops
        last = runs[0].last_uses(self.half.first, ())
        replaced: list[int] = []
        orders: dict[str, Any] = {}
        for index in self.half.first:
            for name in [n for n in ops[index].input_names if n.removesuffix("@GRAD") in orders and "@GRAD" in n]:
                gradient = plain(runs[0][name])  # of what was put in another order, by the op that made it
                runs[0].lend(name, gradient[np.argsort(orders[name.removesuffix("@GRAD")])])
            names = [name for name in dict.fromkeys(ops[index].output_names) if name]
            for run in runs:
                try:
                    run.go((index,))
                except DiagnosticError as problem:
                    raise _StoppedError(index, replaced, problem) from problem
            results, unfit = self._unfit(ops[index], names, runs)
            passed_on = any(name not in known_names for name in ops[index].input_names if name and name not in names)
            if unfit and not passed_on:
                gradients = _is_backward(ops[index])
                forced = {
                    name: forced_parts(*results[name], gradient=gradients)
                    for name in names
                    if with_integers or name in unfit or not _integers(results[name][0])
                }
                if index in self.blocked_ops:
                    pass  # what is computed of its result on the whole batch fails on a share
                elif not any(same_rows(*results[name], gradient=gradients) for name in unfit) and all(
                    forced[name] for name in unfit
                ):
                    suspect = not self._only_enlarges(index, names, runs)
                    if suspect:
                        suspects.append(index)
                    if index not in left or not suspect:
                        for name, parts in forced.items():  # whoever changes them gets copies
                            for run, part in zip(runs, (runs[0][name], *(parts or ())), strict=False):
                                run.lend(name, part)
                        replaced.append(index)
                        unfit = []
                elif not any(same_rows(*results[name], gradient=gradients) for name in unfit):
                    self.blocked_ops.add(index)
                elif (
                    self.reordering
                    and not gradients
                    and (order := _order_of_rows(*results[unfit[0]])) is not None
                    and len(unfit) == 1
                ):
                    orders[unfit[0]] = order
                    runs[0].lend(unfit[0], plain(runs[0][unfit[0]])[order])
                    unfit = []
                else:
                    self.reordered_ops.add(index)
            # flags and positions are judged by what is made of them, but those of a difference pass it on
            passing = [n for n in names if passed_on and not _same_integers(*results[n])]
            known_names.update(name for name in names if name not in unfit)
            known_names.difference_update(unfit, passing)
            wrong.difference_update(names)
            wrong.update(name for name in unfit if name in self.ends)
            self.whole_values.update((name, runs[0][name]) for name in names if name in self.ends)
            for run in runs:
                run.forget(last.get(index, ()))
        return wrong, suspects

    def _unfit(
        self, op: Op, names: Sequence[str], runs: Sequence[Evaluation]
    ) -> tuple[dict[str, tuple[Value, list[Value]]], list[str]]:
        """(by name, the output of an op on the whole batch and those on the shares; the names that do not fit)."""
        results = {name: (runs[0][name], [run[name] for run in runs[1:]]) for name in names}
        self.crossed.update(name for name, (whole, parts) in results.items() if self._has_pairs(whole, parts))
        gradients = _is_backward(op)
        floor = self.noise * max((sum_of(runs[0][name]) for name in op.input_names if "@GRAD" in name), default=0)
        unfit = [
            n
            for n, (whole, parts) in results.items()
            if not fits(
                whole,
                parts,
                self.weights,
                state=n in self.start_values,
                everywhere=n in self.everywhere,
                gradient=gradients,
                floor=floor,
                close=self.close,
            )
        ]
        return results, unfit

    def _has_pairs(self, whole: Value, parts: Sequence[Value]) -> bool:
        """Whether two or more dims of a value are in proportion to the rows of the batch."""
        value, own = plain(whole), [plain(part) for part in parts]
        if value is None or value.ndim < 2 or any(one is None or one.ndim != value.ndim for one in own):
            return False
        rows, *shares = self.rows
        dims = zip(value.shape, *(one.shape for one in own), strict=True)
        of_rows = [
            any(dim != size for dim in others)
            and all(dim * rows == size * share for dim, share in zip(others, shares, strict=True))
            for size, *others in dims
        ]
        return sum(of_rows) > 1

    def _only_enlarges(self, index: int, names: Sequence[str], runs: Sequence[Evaluation]) -> bool:
        """Whether an op merely enlarges a difference of its inputs that was taken for rounding: its outputs fit once
        its inputs on the shares are exactly parts of its inputs on the whole batch. False for an op that writes to one
        of its inputs, for which this can't be tried.

        Integer inputs stay those of the share: positions in the whole batch may lie outside of it.
        """
        op = self.half.program.main_block.ops[index]
        inputs = [name for name in dict.fromkeys(op.input_names) if name]
        if not inputs or not set(inputs).isdisjoint(names):
            return False
        values_of_inputs: list[list[Value]] = []
        for name in inputs:
            own = [run[name] for run in runs[1:]]
            if _integers(runs[0][name]):
                values_of_inputs.append(own)
                continue
            parts = forced_parts(runs[0][name], own, gradient="@GRAD" in name)
            if parts is None or not self._same_as_parts(own, parts):
                return False
            values_of_inputs.append(parts)
        for place, run in enumerate(runs[1:]):
            run.go(
                (index,), {index: {name: parts[place] for name, parts in zip(inputs, values_of_inputs, strict=True)}}
            )
        return not self._unfit(op, names, runs)[1]

    def _same_as_parts(self, own: Sequence[Value], parts: Sequence[Value]) -> bool:
        """Whether the values on the shares equal the parts of the value on the whole batch, up to rounding. They don't
        where the value on the whole batch is their mean.
        """
        pairs = [(plain(one), plain(part)) for one, part in zip(own, parts, strict=True)]
        return all(a is None or b is None or _close(a, b, close=self.close) for a, b in pairs)

    def causes(self) -> list[Cause]:
        """The ops that cause differences, in the order of the program: of each op type and its gradient op the first.

        The suspects of one type are tried together: a quotient of two sums may fit although neither sum does. A cast
        passes on what another op has made, such as a count that can't be taken for a part of the whole count, so it is
        a cause only where nothing else is found.

        Where rows are dealt to micro-batches, each of one machine has other rows than that of a rank, so that none of
        their values fit. The search is therefore made with the rows of the whole batch in the order in which the
        micro-batches of the machine have those of the ranks, and in their own order only if that shows no cause.
        """
        count, given = micro_batches(self.half.program), self.feeds[0]
        if count > 1 and all(rows % count == 0 for rows in self.rows[1:]):
            self.feeds[0] = self._dealt_alike(count)
            made, certain = self._find_causes()
            if certain:
                return made
            self.feeds[0] = given
            self.reordered_ops.clear()
            self.blocked_ops.clear()
        made, _ = self._find_causes()
        return made

    def _dealt_alike(self, count: int) -> Mapping[str, Any]:
        """The whole batch, its rows in the order of the first of the `count` parts of each share, the second, and so
        on.
        """
        starts = np.cumsum([0, *self.rows[1:-1]])
        parts = [np.split(start + np.arange(rows), count) for start, rows in zip(starts, self.rows[1:], strict=True)]
        order = np.concatenate([part for dealt in zip(*parts, strict=True) for part in dealt])
        whole, arrays = self.feeds[0], {name: plain(value) for name, value in self.feeds[0].items()}
        return {
            name: whole[name] if array is None or not array.ndim or len(array) != len(order) else array[order]
            for name, array in arrays.items()
        }

    def _find_causes(self) -> tuple[list[Cause], bool]:
        """(the causes for the rows as they are, whether one of them surely is a cause)."""
        ops = self.half.program.main_block.ops
        wrong, first = self.misfits(range(len(ops)))
        if not wrong:
            return [], False
        if self.reordered_ops and not self.reordering:
            wrong, first = self._misfits_of_reordered(wrong, first)
        remaining, suspects = self.misfits(())
        alike = self._alike_types(suspects)
        result, others = list[Cause](), list[Cause]()
        found, certain = 0, False
        passing = alike.pop("cast", [])
        for group in [*alike.values(), passing][:TRIED]:
            if found == MOST or (group is passing and result):
                break
            by_all = self.misfits(group)[0] - remaining
            made, sure, vague = self._describe_first_cause(
                group if by_all else (),
                lambda index, group=group, by_all=by_all: (
                    by_all if len(group) == 1 else self.misfits((index,))[0] - remaining
                ),
            )
            (others if vague and not sure else result).extend(made)
            found += bool(made)
            certain |= sure
        result = result or others or self._decisive(wrong, first)
        if not certain and (index := self._unseen()) is not None:
            op = ops[index]
            names = [name for name in op.output_names if name]
            result = [*self._cause(op, names[0])[0], *result]
        placed = [cause for cause in result if cause.location]
        kept = list(dict.fromkeys(placed or result))  # what stands in no file has been added to the user's step
        return kept, certain

    def _misfits_of_reordered(self, wrong: set[str], first: list[int]) -> tuple[set[str], list[int]]:
        """What `misfits` finds with `reordering`, which stays set if the whole batch makes the same of its rows in that
        order; else what was found without.
        """
        before, self.whole_values, moved = self.whole_values, {}, {*self.reordered_ops}
        self.reordering = True
        self.reordered_ops.clear()
        found = self.misfits(range(len(self.half.program.main_block.ops)))
        floor = self.noise * max(map(sum_of, before.values()), default=0.0)  # for gradients that are zero in theory
        if before.keys() == self.whole_values.keys() and all(
            fits(before[name], [self.whole_values[name]], [1.0], state=True, floor=floor, close=self.close)
            for name in before
        ):
            return found
        self.reordering = False
        self.reordered_ops = moved
        return wrong, first

    def _alike_types(self, suspects: Iterable[int]) -> dict[str, list[int]]:
        """The numbers of suspects by the type of the op, an op and its gradient op together."""
        ops = self.half.program.main_block.ops
        result: dict[str, list[int]] = {}
        for index in suspects:
            result.setdefault(ops[index].type.removesuffix("_grad"), []).append(index)
        return result

    def _describe_first_cause(
        self, group: Iterable[int], differing: Callable[[int], set[str]]
    ) -> tuple[list[Cause], bool, bool]:
        """(what is said of the first op of a group that is a cause, whether it surely is, whether nothing can be said
        of it). `differing` gives the variables that an op makes differ.
        """
        ops = self.half.program.main_block.ops
        doubtful, vague = list[Cause](), False
        for index in group:
            if names := differing(index):
                made, meaning = self._cause(ops[index], self._first_unfit(ops[index], names))
                if not meaning.doubtful:
                    return made, True, False
                if vague or not doubtful:
                    doubtful, vague = made, meaning.vague
        return doubtful, False, vague

    def _decisive(self, wrong: set[str], suspects: Sequence[int]) -> list[Cause]:
        """The causes among the `suspects` that are found while no difference is removed: those of one type without
        whose differences some of what is `wrong` fits.

        A function of a mean, such as the exponential of a loss, is seen only so: once the sum and the count of the mean
        are replaced by those of the whole batch, the function of them does not differ either.
        """
        ops = range(len(self.half.program.main_block.ops))
        result = list[Cause]()
        for group in [*self._alike_types(suspects).values()][:TRIED]:
            fitting = wrong - self.misfits([index for index in ops if index not in group])[0]
            made, sure, _ = self._describe_first_cause(group if fitting else (), lambda _, fitting=fitting: fitting)
            if sure:
                return made
            result = result or made
        return result

    def _unseen(self) -> int | None:
        """The number of the op that is the likely cause where no suspect could be tried, because values on the shares
        are not parts of the value on the whole batch, or have their rows in another order. It is the first op that
        compares rows with rows, else the first of those that could not be tried; None if there are none.
        """
        ops = self.half.program.main_block.ops
        if self.reordered_ops or self.blocked_ops:
            among = (index for index in self.half.first if compares_rows(ops[index], self.crossed, self.half.program))
            return next(among, min(self.reordered_ops or self.blocked_ops))
        return None

    def _cause(self, op: Op, variable: str) -> tuple[list[Cause], Meaning]:
        """(the causes that an op is described by: its own, and those of related ops at other lines; what is said of the
        op).
        """
        program = self.half.program

        def on_shares(name: str) -> Mapping[int, Any]:
            runs = {
                number: Evaluation(program, self.start_values, feed, seed=self.seed, stream=number)
                for number, feed in zip(self.numbers, self.feeds[1:], strict=True)
            }
            return {number: run.go(self.half.first, keep=[name]).take(name) for number, run in runs.items()}

        def on_whole(name: str) -> Any:
            run = Evaluation(program, self.start_values, self.feeds[0], seed=self.seed, stream=0)
            return run.go(self.half.first, keep=[name]).take(name)

        computed = ComputedValues(on_shares, on_whole, micro_batches(program))
        made: Meaning = meaning_of(op, program, self.machines, computed, self.crossed, self.step)
        if made.vague and (origin := self._differing_integers(op)) is not None:
            found = meaning_of(origin, program, self.machines, computed, self.crossed, self.step)
            if not found.vague:
                op, variable, made = origin, next(iter(origin.output_names)), found
        first = Cause(op.type, variable, _location(op), made.why, made.instead)
        parts = (Cause(one.type, next(iter(one.output_names)), _location(one), what) for one, what in made.parts)
        return [first, *parts], made

    def _differing_integers(self, op: Op) -> Op | None:
        """The first of the ops that compute flags and whole numbers which an op reads, such as positions, whose results
        on the shares are not those on the whole batch though what it reads is; None if there is none. Numbers of rows
        that it reads differ in every case.
        """
        program, ops = self.half.program, self.half.program.main_block.ops
        sizes = self._sizes()
        wanted, integer_ops = {*op.input_names}, list[Op]()
        for index in reversed(self.half.first):
            if of_integers(ops[index], program) and not wanted.isdisjoint(ops[index].output_names):
                integer_ops.append(ops[index])
                wanted.update(ops[index].input_names)
        names = dict.fromkeys(name for one in integer_ops for name in (*one.input_names, *one.output_names) if name)
        runs = [
            Evaluation(program, self.start_values, feed, seed=self.seed, stream=max(place - 1, 0))
            for place, feed in enumerate(self.feeds)
        ]
        whole, *own = (run.go(self.half.first, keep=[*names]) for run in runs)
        alike = {name: _same_integers(whole[name], [run[name] for run in own]) for name in names}
        found = (
            one
            for one in reversed(integer_ops)
            if all(alike[name] or name in sizes for name in one.input_names if name)
            and not all(alike[name] or name in sizes for name in one.output_names if name)
        )
        return next(found, None)

    def _sizes(self) -> set[str]:
        """The variables that are computed of nothing but the dims of others."""
        ops, result = self.half.program.main_block.ops, set[str]()
        for index in self.half.first:
            if ops[index].type == "shape" or result.issuperset(name for name in ops[index].input_names if name):
                result.update(ops[index].output_names)
        return result

    def _first_unfit(self, op: Op, differing: set[str]) -> str:
        """The variable that a report names as different: an output of the op, else a value that depends on one."""
        own = [name for name in op.output_names if name]
        return next((name for name in own if name in differing), own[0] if own else min(differing))


def _rows_of(feed: Mapping[str, Any]) -> int:
    """The number of rows that a feed has, which is that of its longest array."""
    arrays = (plain(value) for value in feed.values())
    return max((len(array) for array in arrays if array is not None and array.ndim), default=0)


def _is_empty(share: Mapping[str, Any]) -> bool:
    return isinstance(share, Batch) and share.rows == 0


def _wide(feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """A feed with its values in double precision; a `Batch` keeps its rows and weight."""
    wide = values_in_doubles(feed)
    return Batch(wide, feed.parts, rows=feed.rows, weight=feed.weight) if isinstance(feed, Batch) else wide


def _integers(value: Value) -> bool:
    data = plain(value)
    return data is not None and data.dtype.kind in "iu"


def _same_integers(whole: Value, parts: Sequence[Value]) -> bool:
    """Whether flags or whole numbers of the whole batch are those of each share, or theirs one after the other. True
    for other values.
    """
    value, own = plain(whole), [plain(part) for part in parts]
    if value is None or value.dtype.kind not in "iub" or any(part is None for part in own):
        return True
    if all(np.array_equal(value, part) for part in own):
        return True
    axis = _axis(value, own)
    return axis is not None and np.array_equal(value, np.concatenate(own, axis))


def _is_loss(op: Op) -> bool:
    return op.role == OpRole.FORWARD | OpRole.LOSS


def _is_persistable(main: Program, name: str) -> bool:
    var = main.main_block.vars.get(name)
    return var is not None and var.persistable


def _is_backward(op: Op) -> bool:
    return bool((op.role or OpRole.FORWARD) & OpRole.BACKWARD)


def _location(op: Op) -> str:
    where = op.location
    return str(where) if where is not None else ""


def server_causes(main: Program, shown: Mapping[str, str], different: Iterable[str]) -> list[Cause]:
    """The updates that differ from the single machine's because servers run them. `shown` has the reasons, by the name
    of the parameter or counter.

    Each cause names the first of the `different` variables that the update writes; an update that writes none of them
    is left out.
    """
    result: list[Cause] = []
    names = list(different)
    for op in main.main_block.ops:
        schema = schema_of(op.type)
        about = op.input("Param") if schema is not None and schema.is_optimizer else op.output("Out")
        variable = next((name for name in names if name in op.output_names), None)
        if variable is not None and about in shown and (op.type == "increment" or op.input("Param")):
            why = shown[about or ""]
            made_by = _norm_of(main, about or "", op) if why == OWN_NORM else op
            result.append(Cause(made_by.type, variable, _location(made_by), why))
    return result


def _norm_of(main: Program, parameter: str, update: Op) -> Op:
    """The op that computes the norm for a parameter's update: the update itself, or an op that clips the gradient."""
    ops = [op for op in main.main_block.ops if any(name == parameter for name, _ in op.role_pairs)]
    norms = [op for op in (update, *ops) if (schema := schema_of(op.type)) is not None and schema.whole_norm]
    return next(iter(norms), update)
