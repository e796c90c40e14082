"""Kernels of linear-chain conditional random fields: the likelihood, its gradient, and the best path.

Transition holds a row of start weights, a row of end weights, and for each label a row of the weights of moving to the
other labels. Sequences are ragged, or padded to one length with their lengths in Length. All sequences advance
together, the longest first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pstranspile.runtime.kernels.kernel import plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids
from pstranspile.runtime.kernels.ragged import plain, runs_between, sequences
from pstranspile.runtime.kernels.recurrent_steps import Steps, steps_between
from pstranspile.runtime.values import Array, LoDTensor


class _Chains(NamedTuple):
    """The layout of the rows of sequences: consecutive, between offsets.

    `lod` is the LoD of ragged sequences. `inside` is the mask [sequences, longest] of padded sequences.
    """

    offsets: tuple[int, ...]
    lod: list[list[int]] | None
    inside: Array | None

    @property
    def steps(self) -> Steps:
        """The sequences cut into steps, longest first."""
        return steps_between(self.offsets)

    def rows(self, values: Array) -> Array:
        """The rows of the sequences, of values in the layout of the inputs."""
        return values if self.inside is None else values[self.inside]

    def back(self, rows: Array) -> Array:
        """The rows in the layout of the inputs."""
        if self.inside is None:
            return rows
        padded = np.zeros((*self.inside.shape, *rows.shape[1:]), rows.dtype)
        padded[self.inside] = rows
        return padded

    def with_lod(self, rows: Array) -> Any:
        """The rows in the layout of the inputs, with their LoD."""
        return self.back(rows) if self.lod is None else LoDTensor(rows, self.lod)

    def labels(self, label: Any, count: int) -> Array:
        """The labels of the rows. Raises ValueError for one that is not 0 to count - 1."""
        values = plain(label)
        if values.size != (self.offsets[-1] if self.inside is None else self.inside.size):
            raise ValueError(f"Label has {values.size} numbers, it must have one for each row of Emission")
        labels = self.rows(values.reshape(-1) if self.inside is None else values.reshape(self.inside.shape))
        check_ids(labels, count, "the label")
        return labels

    def sums(self, rows: Array) -> Array:
        """The sum over every sequence of one number for each row; 0 for empty sequences."""
        starts, lengths, full, _ = runs_between(self.offsets)
        if full:
            return np.add.reduceat(rows, starts)
        result = np.zeros(len(lengths), rows.dtype)
        if len(rows):
            result[lengths > 0] = np.add.reduceat(rows, starts[lengths > 0])
        return result


class _Places(NamedTuple):
    """Row numbers: first and last rows of non-empty sequences, rows with a predecessor; the sequence of each row."""

    first: Array
    last: Array
    later: Array
    sequence: Array


@lru_cache(64)
def _places(offsets: tuple[int, ...]) -> _Places:
    starts, lengths, _, _ = runs_between(offsets)
    first = starts[lengths > 0]
    later = np.ones(offsets[-1], bool)
    later[first] = False
    return _Places(first, first + lengths[lengths > 0] - 1, later.nonzero()[0], np.arange(len(lengths)).repeat(lengths))


def _chains(emission: Any, transition: Any, length: Any) -> tuple[Array, Array, _Chains]:
    """The rows of Emission, Transition, and where the sequences lie. Raises ValueError if the dims don't fit."""
    x, w = plain(emission), plain(transition)
    if length is None:
        x, lod = sequences(emission, "Emission")
        if len(lod) != 1:
            raise ValueError(f"Emission has {len(lod)} levels of LoD, it must have one")
        chains = _Chains(tuple(lod[0]), lod, None)
    else:
        lengths = plain(length).reshape(-1)
        if x.ndim != 3 or len(x) != len(lengths):
            raise ValueError(f"Emission has the dims {list(x.shape)}, it must have 3, the first {len(lengths)}")
        check_ids(lengths, x.shape[1] + 1, "the length")
        inside = np.arange(x.shape[1]) < lengths[:, None]
        chains = _Chains((0, *lengths.cumsum().tolist()), None, inside)
    if w.shape != (x.shape[-1] + 2, x.shape[-1]):
        raise ValueError(f"Transition has the dims {list(w.shape)}, it must have {[x.shape[-1] + 2, x.shape[-1]]}")
    return chains.rows(x), w, chains


def _label_scores(x: Array, w: Array, labels: Array, places: _Places) -> Array:
    """What each row adds to the weight of its sequence's label path."""
    result = x[np.arange(len(x)), labels]
    result[places.first] += w[0].take(labels.take(places.first))
    result[places.later] += w[2:][labels.take(places.later - 1), labels.take(places.later)]
    result[places.last] += w[1].take(labels.take(places.last))
    return result


_RANGE = 20.0
"""Weights of a row may grow or shrink by this many powers of e before they are normalised to sum to 1."""


class _Scale(NamedTuple):
    """The transition weights divided by `factor`, which balances growth and decay, and the number of steps after which
    weights must be normalised at the latest.
    """

    going_on: Array
    factor: float
    every: int


def _scale(w_exps: Array) -> _Scale:
    """The scale for rows whose largest weight is 1. A step multiplies the sum of weights by no less than the smallest
    transition weight, and by no more than the largest one for each label.
    """
    going_on = w_exps[2:]
    with np.errstate(divide="ignore"):
        least = min(float(np.log(going_on.min())), 0.0)
    most = float(np.log(going_on.max() * len(going_on)))
    if not np.isfinite(most - least):
        return _Scale(going_on, 1.0, 1)
    factor = float(np.exp((least + most) / 2))
    return _Scale(going_on / w_exps.dtype.type(factor), factor, max(1, int(2 * _RANGE / max(most - least, 1e-3))))


def _forward(x_exps: Array, w_exps: Array, steps: Steps) -> tuple[Array, Array]:
    """The normalised forward weights of every row, and numbers, mostly 0, that add up to the logarithm of each
    sequence's sum.
    """
    exps, scale = steps.batch(x_exps), _scale(w_exps)
    alpha, counts = np.empty_like(exps), np.ones(len(exps), bool)
    counts[steps.earlier] = False
    before, number = w_exps[0], 0
    for phase in steps.phases:
        count = phase.step
        into, before = np.empty((count, exps.shape[1]), exps.dtype), before[:count] if number else before
        for start in phase:
            rows = slice(start, start + count)
            if number:
                before = before.dot(scale.going_on, into)
            before = np.multiply(exps[rows], before, alpha[rows])
            number += 1
            if number % scale.every == 0:
                before = before / np.add.reduce(before, axis=1, keepdims=True)
                counts[rows] = True
    totals = np.add.reduce(alpha, axis=1, keepdims=True)
    alpha /= totals
    logs = np.log(totals[:, 0]) * counts
    logs[len(logs) - len(steps.earlier) :] += logs.dtype.type(np.log(scale.factor))
    return steps.back(alpha), steps.back(logs)


@plain_kernel("linear_chain_crf", "Alpha EmissionExps TransitionExps LogLikelihood", lod="own")
def _linear_chain_crf(Emission: Any, Transition: Any, Label: Any, Length: Any = None) -> tuple[Array, ...]:
    raw = plain(Emission)
    largest = np.maximum.reduce(raw, axis=-1, keepdims=True)
    exps, w_exps = np.exp(raw - largest), np.exp(plain(Transition))
    x, w, chains = _chains(Emission, Transition, Length)
    labels, places = chains.labels(Label, x.shape[-1]), _places(chains.offsets)
    alpha, logs = _forward(chains.rows(exps), w_exps, chains.steps)
    logs += chains.rows(largest)[:, 0]
    logs -= _label_scores(x, w, labels, places)
    logs[places.last] += np.log(np.dot(alpha.take(places.last, axis=0), w_exps[1]))
    return chains.back(alpha), exps, w_exps, chains.sums(logs).astype(x.dtype, copy=False)[:, None]


def _behind(x_exps: Array, w_exps: Array, steps: Steps) -> tuple[Array, Array]:
    """The backward weights of every row up to a factor for each row, and their products with the row's own weights."""
    exps, scale = steps.batch(x_exps), _scale(w_exps)
    beta, behind, backwards = np.empty_like(exps), np.empty_like(exps), scale.going_on.T.copy()
    after, number = behind[:0], 0
    for phase in reversed(steps.phases):
        for start in reversed(phase):
            rows = slice(start, start + phase.step)
            now = beta[rows]
            if len(after) < len(now):
                now[len(after) :] = w_exps[1]
                after.dot(backwards, now[: len(after)])
            else:
                after.dot(backwards, now)
            after = np.multiply(now, exps[rows], behind[rows])
            number += 1
            if number % scale.every == 0:
                after /= np.add.reduce(after, axis=1, keepdims=True)
    return steps.back(beta), steps.back(behind)


@plain_kernel("linear_chain_crf_grad", "Emission@GRAD Transition@GRAD", lod="own")
def _linear_chain_crf_grad(
    Emission: Any,
    Transition: Any,
    Label: Any,
    Alpha: Any,
    EmissionExps: Any,
    TransitionExps: Any,
    LogLikelihood_GRAD: Any,
    Length: Any = None,
) -> tuple[Any, Array]:
    x, w, chains = _chains(Emission, Transition, Length)
    labels, places = chains.labels(Label, x.shape[-1]), _places(chains.offsets)
    alpha, w_exps = chains.rows(plain(Alpha)), plain(TransitionExps)
    scale = plain(LogLikelihood_GRAD).reshape(-1).take(places.sequence)
    beta, behind = _behind(chains.rows(plain(EmissionExps)), w_exps, chains.steps)
    grad = alpha * beta
    grad /= np.add.reduce(grad, axis=1, keepdims=True)
    grad[np.arange(len(grad)), labels] -= 1
    grad *= scale[:, None]
    w_grad = np.empty(w.shape, w.dtype)
    w_grad[0] = np.add.reduce(grad.take(places.first, axis=0), axis=0)
    w_grad[1] = np.add.reduce(grad.take(places.last, axis=0), axis=0)
    w_grad[2:] = _pairs(alpha, behind, w_exps[2:], labels, scale, places.later)
    return chains.with_lod(grad), w_grad


def _pairs(alpha: Array, behind: Array, w_exps: Array, labels: Array, scale: Array, later: Array) -> Array:
    """The gradient of the transition weights."""
    before, after, factor = alpha.take(later - 1, axis=0), behind.take(later, axis=0), scale.take(later)
    total = np.add.reduce(np.dot(before, w_exps) * after, axis=1)
    before *= (factor / total)[:, None]
    result = np.dot(before.T, after)
    result *= w_exps
    np.subtract.at(result, (labels.take(later - 1), labels.take(later)), factor)
    return result


@plain_kernel("crf_decoding", "ViterbiPath", lod="own")
def _crf_decoding(Emission: Any, Transition: Any, Label: Any = None, Length: Any = None) -> Any:
    x, w, chains = _chains(Emission, Transition, Length)
    path = _best_path(x, w, chains.steps)
    if Label is not None:
        path = (chains.labels(Label, x.shape[-1]) == path).astype("int64")
    return chains.with_lod(path if chains.lod is None else path[:, None])


def _best_path(x: Array, w: Array, steps: Steps) -> Array:
    """The label path of the largest weight for every sequence, int64 [rows]."""
    scores, going_on = steps.batch(x), w[2:, None]  # becomes the weights of the best paths up to each row, by its label
    final, path = np.empty((len(steps.order), w.shape[1]), x.dtype), np.empty(len(x), np.int64)
    score: Array | None = None
    for phase in steps.phases:
        count = phase.step
        to = np.empty((w.shape[1], count, w.shape[1]), x.dtype)  # [from label, sequences, to label]
        score = None if score is None else score[:count]
        for start in phase:
            now = scores[start : start + count]
            if score is None:
                now += w[0]
            else:
                np.add(score.T[:, :, None], going_on, to)
                now += np.maximum.reduce(to, axis=0)
            score = now
        final[:count] = score
    label = (final + w[1]).argmax(axis=1)
    into, behind = w[2:].T.copy(), range(0)
    for phase in reversed(steps.phases):
        count = phase.step
        for start in reversed(phase):
            if behind:
                best = into.take(path[behind.start : behind.stop], axis=0)
                best += scores[start : start + len(behind)]
                best.argmax(axis=1, out=label[: len(behind)])
            path[start : start + count] = label[:count]
            behind = range(start, start + count)
    return steps.back(path)
