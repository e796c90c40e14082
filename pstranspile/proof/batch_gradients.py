"""Whether gradients of a whole batch are the means of those of its shares: in double precision, step by step.

Where both sides can't be trained in double precision, the end of a run doesn't tell rounding from a real difference: an
optimizer that divides by the size of gradients, such as Adam, makes a whole step of a gradient that cancels out but for
rounding. A proof in two parts does not depend on that. Every step of every machine is held to the source; and here the
part of a step that precedes the optimizer is computed on the whole batch and on the shares, from the values that the
cluster had. If both are so in every step, then both sides train alike, whatever rounding has made of it. Only one copy
of what these ops read has to exist in double precision, without states of optimizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.proof.arrays import chunks
from pstranspile.proof.compare import OF_CHANGE, OF_STATES, Snapshot, plain, together
from pstranspile.proof.doubles import in_doubles, values_in_doubles
from pstranspile.proof.given import Given
from pstranspile.proof.halves import Evaluation, Halves, halves_of, kept_of
from pstranspile.proof.report import BITWISE, DIFFERENT, ROUNDING, Verdict
from pstranspile.proof.training import ClusterValues, start_cluster
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.batch import Batch
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import SelectedRows


class Differing(NamedTuple):
    """The parameters (by their gradients), losses and states that shares do not come to, with the first such step; and
    why double precision could not be had, if so.
    """

    first: Mapping[str, int]
    refused: str = ""

    def settle(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Verdicts of single precision, with the differences that are rounding taken for that."""
        begin = min(self.first.values(), default=0)
        result: list[Verdict] = []
        for verdict in verdicts:
            own = self.first.get(verdict.name)
            if verdict.kind == "metric" or verdict.equality == BITWISE:
                result.append(verdict)
            elif own is not None:
                result.append(verdict._replace(equality=DIFFERENT, first=own))
            elif verdict.equality == DIFFERENT and begin:
                result.append(verdict._replace(first=max(verdict.first, begin)))
            else:
                result.append(verdict._replace(equality=ROUNDING, first=-1))
        return result


def differing_gradients(given: Given, start: Snapshot) -> Differing:
    """Trains the cluster once more, and compares before every step. `start` are the single machine's first values."""
    workload, trainers = given.workload, given.made.plan.trainers
    halves = {
        name: half._replace(program=in_doubles(half.program, trainers))
        for name, half in halves_of(given.made, workload).items()
    }
    cluster, first = start_cluster(given, watch=False), dict[str, int]()
    held, feeds = ClusterValues(given.made, cluster, start), workload.feeds(given.feeds)
    cluster.start()
    try:
        for step in workload.steps_of_run("gradients in double precision: step"):
            owner = workload.turns.program(step)
            fed = [trainer.feed(step) for trainer in cluster.trainers]
            one = _Step(given, halves[owner], owner, step, held)
            for name in one.differing(feeds.step(step), fed):
                first.setdefault(name, step + 1)
            cluster.run_to(step + 1)
    except DiagnosticError as problem:
        return Differing(first, problem.diagnostics[0].message)
    cluster.finish()
    return Differing(first)


class _Step:
    """The first half of a step, on the whole batch and on the shares."""

    def __init__(self, given: Given, half: Halves, owner: str, step: int, held: ClusterValues):
        self.given, self.half, self.step = given, half, step
        kept = {name: held.value(name) for name in sorted(kept_of(half, half.first))}
        self.values = values_in_doubles({name: value for name, value in kept.items() if value is not None})
        block, metrics = half.program.main_block, given.workload.metrics
        written = dict.fromkeys(name for index in half.first for name in block.ops[index].output_names)
        self.states = [n for n in written if n in block.vars and block.vars[n].persistable and n not in metrics]
        loss = given.workload.losses[owner]
        self.losses = {} if loss is None or loss in metrics else {loss: given.workload.label(owner, loss)}
        self.gradients = dict.fromkeys(half.sent.values())

    def differing(self, feed: Mapping[str, Any], shares: Sequence[Mapping[str, Any] | None]) -> list[str]:
        """What the shares do not come to, by the names of parameters, states and losses."""
        whole, _ = self._computed(feed, 0)
        sums, counted, parts = _Sums(), list[float](), dict[str, list[Any]]()
        for trainer, share in enumerate(shares):
            made, run = self._computed(share or {}, trainer)
            if run.idle:
                continue
            counted.append(run.weight)
            for name, value in made.items():
                if name in self.gradients:
                    sums.add(name, value)
                else:
                    parts.setdefault(name, []).append(value)
        means = {name: sums.mean(name, len(shares)) for name in self.gradients}
        floor = OF_STATES * max((_size(_data(whole.get(name))) for name in self.gradients), default=0.0)
        unlike = {name for name in self.gradients if not _alike_rows(whole.get(name), means[name], floor)}
        result = [parameter for parameter, gradient in self.half.sent.items() if gradient in unlike]
        for name, label in self.losses.items():
            mean, wanted = together(parts.get(name, []), counted, whole.get(name))
            if not _alike(plain(wanted), mean, OF_STATES * _size(mean)):
                result.append(label)
        for name in self.states:
            wanted = plain(whole.get(name))
            if not all(_alike(wanted, plain(part), OF_STATES * _size(wanted)) for part in parts.get(name, ())):
                result.append(name)
        return result

    def _computed(self, feed: Mapping[str, Any], stream: int) -> tuple[dict[str, Value], Evaluation]:
        """The gradients, losses and states that the first half makes of a feed."""
        names = [*self.gradients, *self.losses, *self.states]
        wide: Mapping[str, Any] = values_in_doubles(feed)
        if isinstance(feed, Batch):
            wide = Batch(wide, feed.parts, rows=feed.rows, weight=feed.weight)
        run = Evaluation(self.half.program, self.values, wide, seed=self.given.seed, stream=stream, step=self.step)
        if run.idle:
            return {}, run.without(self.half.first)
        run.go(self.half.first, keep=names)
        return {name: value for name in names if (value := run.take(name)) is not None}, run


class _Sums:
    """Gradients of shares, added up."""

    def __init__(self):
        self.whole: dict[str, Any] = {}
        self.rows: dict[str, list[SelectedRows]] = {}

    def add(self, name: str, value: Value) -> None:
        """Adds the gradient of one share."""
        if isinstance(value, SelectedRows):
            self.rows.setdefault(name, []).append(value)
        elif name in self.whole:
            self.whole[name] += plain(value)
        else:
            self.whole[name] = own_copy(plain(value))

    def mean(self, name: str, count: int) -> Value:
        """The mean over so many shares."""
        if name in self.rows:
            parts = self.rows[name]
            data = np.concatenate([part.value[: len(part.rows)] for part in parts]) / count
            return SelectedRows(np.concatenate([part.rows for part in parts]), data, parts[0].height)
        value = self.whole.get(name)
        return None if value is None else value / count


def _data(value: Value) -> Any:
    """A value as an array; of sparse rows the data only."""
    return value.value[: len(value.rows)] if isinstance(value, SelectedRows) else plain(value)


def _alike_rows(whole: Value, mean: Value, floor: float) -> bool:
    """Whether two gradients are equal; of sparse rows only those that either has are looked at."""
    if not isinstance(whole, SelectedRows) or not isinstance(mean, SelectedRows):
        return _alike(plain(whole), plain(mean), floor)
    rows = np.unique(np.concatenate([whole.rows, mean.rows]))
    return _alike(_of_rows(whole, rows), _of_rows(mean, rows), floor)


def _of_rows(value: SelectedRows, rows: Any) -> Any:
    result = np.zeros((len(rows), *value.value.shape[1:]), value.value.dtype)
    np.add.at(result, np.searchsorted(rows, value.rows), value.value[: len(value.rows)])
    return result


def _alike(whole: Any, other: Any, floor: float) -> bool:
    """Whether two arrays in double precision are equal up to rounding, and to `floor`."""
    if whole is None or other is None or whole.shape != other.shape:
        return whole is None and other is None
    if whole.dtype.kind != "f":
        return bool(np.array_equal(whole, other))
    allowed = OF_CHANGE * _size(whole) + floor
    return all(bool((np.abs(a - b) <= allowed).all()) for a, b in chunks(whole, other))


def _size(value: Any) -> float:
    """The largest absolute value of an array; 0 if there is none."""
    if value is None or value.dtype.kind != "f" or not value.size:
        return 0.0
    return max(abs(float(value.max())), abs(float(value.min())))
