"""Kernels of linear chains of labels (conditional random fields): their likelihood, its gradient, the best path.

Transition holds, in this order, a row of weights for starting with each label, one for ending with it, and a row for
each label with the weights of going from it to the others. Sequences are ragged, or padded to one length with the
lengths in Length; both go forward together, the longest first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pstranspile.kernels.kernel import plain_kernel
from pstranspile.kernels.numeric import check_ids
from pstranspile.kernels.ragged import plain, runs_between, sequences
from pstranspile.kernels.recurrent_steps import Steps, steps_between
from pstranspile.values import Array, LoDTensor


class _Chains(NamedTuple):
    """Where the rows of sequences lie: one after the other, between offsets.

    `lod` is that of ragged sequences; of padded ones `inside` is bool [sequences, longest].
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
        held = plain(label)
        if held.size != (self.offsets[-1] if self.inside is None else self.inside.size):
            raise ValueError(f"Label has {held.size} numbers, it must have one for each row of Emission")
        labels = self.rows(held.reshape(-1) if self.inside is None else held.reshape(self.inside.shape))
        check_ids(labels, count, "the label")
        return labels

    def sums(self, rows: Array) -> Array:
        """The sum of a number for each row over every sequence, 0 of those that are empty."""
        starts, lengths, full, _ = runs_between(self.offsets)
        if full:
            return np.add.reduceat(rows, starts)
        result = np.zeros(len(lengths), rows.dtype)
        if len(rows):
            result[lengths > 0] = np.add.reduceat(rows, starts[lengths > 0])
        return result


class _Places(NamedTuple):
    """Numbers of rows: the first and the last ones of sequences that have rows, those that have one before them; and
    the sequence that each row is in.
    """

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


def _forward(x_exps: Array, w_exps: Array, steps: Steps) -> tuple[Array, Array]:
    """The forward weights of every row, made to sum to 1, and the logarithms of the sums they had."""
    exps, going_on = steps.batch(x_exps), w_exps[2:]
    alpha, totals = np.empty_like(exps), np.empty((len(exps), 1), exps.dtype)
    before: Array = w_exps[0]
    for start, stop in steps.spans():
        now = alpha[start:stop]
        if start:
            before = np.dot(before[: stop - start], going_on)
        np.multiply(exps[start:stop], before, out=now)
        now /= np.add.reduce(now, axis=1, keepdims=True, out=totals[start:stop])
        before = now
    return steps.back(alpha), steps.back(np.log(totals))[:, 0]


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
    """The backward weights of every row, made to sum to 1, and these times those of the row itself."""
    exps, backwards = steps.batch(x_exps), w_exps[2:].T
    beta, behind = np.empty_like(exps), np.empty_like(exps)
    after = behind[:0]
    for start, stop in reversed(list(steps.spans())):
        now, count = beta[start:stop], len(after)
        now[count:] = w_exps[1]
        if count:
            now[:count] = np.dot(after, backwards)
        now /= np.add.reduce(now, axis=1, keepdims=True)
        after = np.multiply(now, exps[start:stop], out=behind[start:stop])
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
    """The gradient of the weights of going from label to label."""
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
    emitted, into = steps.batch(x), w[2:].T
    track, path = np.empty(x.shape, np.int64), np.empty(len(x), np.int64)
    score = final = w[0] + emitted[: steps.starts[1]] if len(x) else emitted
    for start, stop in list(steps.spans())[1:]:
        to = score[: stop - start, None] + into  # [sequences, to label, from label]
        to.argmax(axis=2, out=track[start:stop])
        score = np.maximum.reduce(to, axis=2)
        score += emitted[start:stop]
        final[: stop - start] = score
    label = (final + w[1]).argmax(axis=1)
    for start, stop in reversed(list(steps.spans())):
        path[start:stop] = label[: stop - start]
        if start:
            label[: stop - start] = track[np.arange(start, stop), label[: stop - start]]
    return steps.back(path)
