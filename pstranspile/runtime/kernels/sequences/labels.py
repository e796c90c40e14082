"""Kernels. Sequences of labels: evaluation of chunks, edit distance, and decoding of frames."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr, text
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import (
    as_matrix,
    check_ids,
    numpy_dtype,
    plain,
    row_counts,
    runs_between,
    sequences,
    with_lod,
)
from pstranspile.runtime.kernels.sequences.recurrent import Steps, steps_between
from pstranspile.runtime.values import Array, LoDTensor


class _Scheme(NamedTuple):
    """The number of tags of a chunk type, and the tags that begin, continue, end or form a whole chunk (-1: none)."""

    tags: int
    begin: int = -1
    inside: int = -1
    end: int = -1
    single: int = -1


_SCHEMES = {
    "IOB": _Scheme(2, begin=0, inside=1),
    "IOE": _Scheme(2, inside=0, end=1),
    "IOBES": _Scheme(4, begin=0, inside=1, end=2, single=3),
    "plain": _Scheme(1),
}


def _flat(x: Any, length: Any, slot: str) -> tuple[Array, list[int]]:
    """(concatenated labels of a ragged value, or of a padded one with lengths; offsets of the sequences)."""
    if length is None:
        data, lod = sequences(x, slot)
        of_row = data[:1].size or 1
        return data.reshape(-1), lod[-1] if of_row == 1 else [offset * of_row for offset in lod[-1]]
    data, lengths = plain(x), plain(length).reshape(-1)
    if len(data) != len(lengths):
        raise ValueError(f"{slot} has {len(data)} sequences, there are {len(lengths)} lengths")
    padded = as_matrix(data)
    check_ids(lengths, padded.shape[1] + 1, f"the length of {slot}")
    return padded[np.arange(padded.shape[1]) < lengths[:, None]], [0, *lengths.cumsum().tolist()]


def _pieces(x: Any, length: Any, slot: str) -> list[Array]:
    """The sequences of a ragged value, or of a padded one with lengths, as flat arrays."""
    labels, offsets = _flat(x, length, slot)
    return [labels[start:stop] for start, stop in pairwise(offsets)]


class _Chunks(NamedTuple):
    """The positions where chunks begin and end, and their types."""

    begins: Array
    ends: Array
    kinds: Array


def _chunks(labels: Array, starts: Array, scheme: _Scheme, types: int, excluded: tuple[int, ...]) -> _Chunks:
    """The chunks in concatenated sequences of labels that start at the given positions."""
    kinds, tags = np.divmod(labels, scheme.tags)
    inside = kinds < types
    opens = (tags == scheme.begin) | (tags == scheme.single)
    closes = (tags == scheme.end) | (tags == scheme.single)
    parted = np.ones(len(labels) + 1, bool)  # whether a label is separated from the one before
    np.not_equal(kinds[1:], kinds[:-1], out=parted[1:-1])
    parted[1:-1] |= opens[1:]
    parted[1:-1] |= closes[:-1]
    parted[starts] = True
    begins, ends = (inside & parted[:-1]).nonzero()[0], (inside & parted[1:]).nonzero()[0]
    kinds = kinds.take(begins)
    if excluded:
        kept = ~np.isin(kinds, excluded)
        begins, ends, kinds = begins[kept], ends[kept], kinds[kept]
    return _Chunks(begins, ends, kinds)


def _in_both(a: _Chunks, b: _Chunks, size: int) -> int:
    """The number of chunks that two labellings of the same positions have in common. `size` is the
    number of positions.
    """
    ends, kinds = np.full((2, size), -1)
    ends[a.begins], kinds[a.begins] = a.ends, a.kinds
    return int(np.count_nonzero((ends.take(b.begins) == b.ends) & (kinds.take(b.begins) == b.kinds)))


@kernel("chunk_eval", "Precision Recall F1-Score NumInferChunks NumLabelChunks NumCorrectChunks", lod="own")
def _chunk_eval(op: Op) -> Run:
    types, excluded = int_attr(op, "num_chunk_types"), ints_attr(op, "excluded_chunk_types")
    name = text(op, "chunk_scheme")
    if name not in _SCHEMES:
        raise ValueError(f"chunk_scheme is {name!r}, it must be one of {', '.join(_SCHEMES)}")
    scheme = _SCHEMES[name]

    def run(Inference: Any, Label: Any, SeqLength: Any = None) -> tuple[Array, ...]:
        (guesses, offsets), (labels, others) = (
            _flat(Inference, SeqLength, "Inference"),
            _flat(Label, SeqLength, "Label"),
        )
        if offsets != others:
            raise ValueError("Inference and Label are not equally many sequences of the same lengths")
        for given in (guesses, labels):
            check_ids(given, types * scheme.tags + 1, "the label")
        starts = np.asarray(offsets)
        a, b = (_chunks(given, starts, scheme, types, excluded) for given in (guesses, labels))
        guessed, right, correct = len(a.begins), len(b.begins), _in_both(a, b, len(labels))
        precision, recall = correct / guessed if guessed else 0.0, correct / right if right else 0.0
        f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
        rates = (np.array([rate], np.float32) for rate in (precision, recall, f1))
        counts = (np.array([count], np.int64) for count in (guessed, right, correct))
        return (*rates, *counts)

    return run


def _distance(a: Array, b: Array) -> int:
    """The number of replacements, insertions and deletions that turn a into b."""
    places = np.arange(len(b) + 1)
    row = places
    for element in a:
        least = np.r_[row[0] + 1, np.minimum(row[1:] + 1, row[:-1] + (b != element))]
        row = np.minimum.accumulate(least - places) + places  # insertions
    return int(row[-1])


@plain_kernel("edit_distance", "SequenceNum Out", lod="own")
def _edit_distance(
    Hyps: Any, Refs: Any, HypsLength: Any = None, RefsLength: Any = None, *, normalized: bool
) -> tuple[Array, Array]:
    hyps, refs = _pieces(Hyps, HypsLength, "Hyps"), _pieces(Refs, RefsLength, "Refs")
    if len(hyps) != len(refs):
        raise ValueError(f"Hyps has {len(hyps)} sequences, Refs {len(refs)}")
    if normalized and not all(len(ref) for ref in refs):
        raise ValueError("a sequence of Refs is empty, so that no distance can be divided by its length")
    result = np.array([_distance(hyp, ref) for hyp, ref in zip(hyps, refs, strict=True)], np.float32)
    if normalized:
        result /= np.array([len(ref) for ref in refs], np.float32)
    return np.array([len(refs)], np.int64), result.reshape(-1, 1)


def _remaining_mask(labels: Array, firsts: Array, blank: int, merge: bool) -> Array:
    """A mask of the labels that remain: without blanks and, with `merge`, without repeats of the previous label."""
    kept = labels != blank
    if merge:
        kept &= firsts | np.r_[True, labels[1:] != labels[:-1]][: len(labels)]
    return kept


def _starts(counts: Array, size: int) -> Array:
    """A mask of `size` positions: the starts of sequences of these lengths."""
    mask = np.zeros(size + 1, bool)
    mask[np.r_[0, np.cumsum(counts)]] = True
    return mask[:size]


@plain_kernel("ctc_align", "Output OutputLength", lod="own")
def _ctc_align(
    Input: Any, InputLength: Any = None, *, blank: int, merge_repeated: bool, padding_value: int
) -> tuple[Any, Any]:
    if InputLength is None:
        x, lod = sequences(Input, "Input")
        labels = x.reshape(-1)
        kept = _remaining_mask(labels, _starts(row_counts(lod[-1]), len(labels)), blank, merge_repeated)
        ends = np.r_[0, np.cumsum(kept)][lod[-1]].tolist()
        rows = labels[kept].reshape(-1, 1)
        # Fluid has no tensors without rows: a row of -1 stands for an empty result
        return LoDTensor(rows if len(rows) else np.full((1, 1), -1, labels.dtype), [*lod[:-1], ends]), None
    pieces = _pieces(Input, InputLength, "Input")
    x = plain(Input)
    out = np.full(x.shape, padding_value, x.dtype)
    lengths = np.zeros((len(pieces), 1), plain(InputLength).dtype)
    for number, piece in enumerate(pieces):
        result = piece[_remaining_mask(piece, _starts(np.zeros(0, np.int64), len(piece)), blank, merge_repeated)]
        out[number, : len(result)] = result
        lengths[number] = len(result)
    return out, lengths


# Kernels of linear-chain conditional random fields: the likelihood, its gradient, and the best path.
#
# Transition holds a row of start weights, a row of end weights, and for each label a row of the weights of moving to
# the other labels. Sequences are ragged, or padded to one length with their lengths in Length. All sequences advance
# together, the longest first.


class _Places(NamedTuple):
    """The places of the rows of sequences: the offsets (int64), the sequences cut into steps, longest first, the
    numbers of the first and the last row of each non-empty sequence and of the rows with a predecessor, and the
    sequence of each row. Values with the same offsets share these, so they must not be changed.
    """

    offsets: Array
    steps: Steps
    first_rows: Array
    last_rows: Array
    later_rows: Array
    sequence: Array


@lru_cache(64)
def _places(offsets: tuple[int, ...]) -> _Places:
    starts, lengths, _, _, ends = runs_between(offsets)
    first = starts[lengths > 0]
    later = np.ones(offsets[-1], bool)
    later[first] = False
    return _Places(
        ends,
        steps_between(offsets),
        first,
        first + lengths[lengths > 0] - 1,
        later.nonzero()[0],
        np.arange(len(lengths)).repeat(lengths),
    )


class _Chains(NamedTuple):
    """The layout of the rows of sequences, which are consecutive.

    `lod` is the LoD of ragged sequences. `inside` is the mask [sequences, longest] of padded sequences.
    """

    places: _Places
    lod: list[list[int]] | None
    inside: Array | None

    def rows(self, values: Array) -> Array:
        """The rows of the sequences, from values in the layout of the inputs."""
        return values if self.inside is None else values[self.inside]

    def back(self, rows: Array) -> Array:
        """Values in the layout of the inputs, from the rows of the sequences; padding is 0."""
        if self.inside is None:
            return rows
        padded = np.zeros((*self.inside.shape, *rows.shape[1:]), rows.dtype)
        padded[self.inside] = rows
        return padded

    def with_lod(self, rows: Array) -> Any:
        """Values in the layout of the inputs, from the rows of the sequences; ragged ones with their LoD."""
        return self.back(rows) if self.lod is None else LoDTensor(rows, self.lod)

    def labels(self, label: Any) -> Array:
        """The label of each row."""
        values = plain(label)
        if values.size != (len(self.places.sequence) if self.inside is None else self.inside.size):
            raise ValueError(f"Label has {values.size} numbers, it must have one for each row of Emission")
        return self.rows(values.reshape(-1) if self.inside is None else values.reshape(self.inside.shape))

    def for_loops(self, labels: Array) -> loops.Chains:
        """The layout for the compiled loops."""
        return loops.Chains(labels, self.places.offsets, self.places.steps.places)

    def sums(self, rows: Array) -> Array:
        """The sum over every sequence of one number for each row; 0 for empty sequences."""
        offsets, first_rows = self.places.offsets, self.places.first_rows
        if len(first_rows) == len(offsets) - 1:
            return np.add.reduceat(rows, first_rows)
        result = np.zeros(len(offsets) - 1, rows.dtype)
        if len(rows):
            result[offsets[:-1] < offsets[1:]] = np.add.reduceat(rows, first_rows)
        return result


def _chains(emission: Any, transition: Any, length: Any) -> tuple[Array, Array, _Chains]:
    """(rows of Emission, Transition, layout of the sequences). Raises ValueError if the dims don't fit."""
    w = plain(transition)
    if length is None:
        x, lod = sequences(emission, "Emission")
        if len(lod) != 1:
            raise ValueError(f"Emission has {len(lod)} levels of LoD, it must have one")
        chains = _Chains(_places(tuple(lod[0])), lod, None)
    else:
        x, lengths = plain(emission), plain(length).reshape(-1)
        if x.ndim != 3 or len(x) != len(lengths):
            raise ValueError(f"Emission has the dims {list(x.shape)}, it must have 3, the first {len(lengths)}")
        check_ids(lengths, x.shape[1] + 1, "the length")
        inside = np.arange(x.shape[1]) < lengths[:, None]
        chains = _Chains(_places((0, *lengths.cumsum().tolist())), None, inside)
    if w.shape != (x.shape[-1] + 2, x.shape[-1]):
        raise ValueError(f"Transition has the dims {list(w.shape)}, it must have {[x.shape[-1] + 2, x.shape[-1]]}")
    return chains.rows(x), w, chains


def _label_scores(x: Array, w: Array, labels: Array, places: _Places) -> Array:
    """The contribution of each row to the score of its sequence's label path."""
    result = x[np.arange(len(x)), labels]
    result[places.first_rows] += w[0].take(labels.take(places.first_rows))
    result[places.later_rows] += w[2:][labels.take(places.later_rows - 1), labels.take(places.later_rows)]
    result[places.last_rows] += w[1].take(labels.take(places.last_rows))
    return result


_RANGE = 20.0
"""The weights of a row may grow or shrink by the factor exp(_RANGE) before they are normalised to sum to 1."""

_LEAST_SPREAD = 1e-3
"""A smaller difference between the logarithms of most growth and most decay in a step counts as this one."""


class _Scale(NamedTuple):
    """The transition weights divided by `factor`, which balances growth and decay of the sums of weights, and the most
    steps between two normalisations.
    """

    going_on: Array
    factor: float
    every: int


def _scale(w_exps: Array) -> _Scale:
    """The scale for rows whose largest weight is 1. A step multiplies the sum of weights by no less than the smallest
    transition weight, and by no more than the largest one for each label.
    """
    going_on = w_exps[2:]
    smallest = going_on.min()
    least = min(float(np.log(smallest)), 0.0) if smallest > 0 else -math.inf
    most = float(np.log(going_on.max() * len(going_on)))
    if not math.isfinite(most - least):
        return _Scale(going_on, 1.0, 1)
    factor = float(np.exp((least + most) / 2))
    return _Scale(
        going_on / w_exps.dtype.type(factor), factor, max(1, int(2 * _RANGE / max(most - least, _LEAST_SPREAD)))
    )


def _forward(x_exps: Array, w_exps: Array, steps: Steps) -> tuple[Array, Array]:
    """(normalised forward weights of every row, numbers for every row, mostly 0, whose sum over a sequence is the
    logarithm of its total weight).
    """
    scale, alpha = _scale(w_exps), np.empty(x_exps.shape, x_exps.dtype)
    exps, counts = steps.batch(x_exps), steps.last.copy()
    before, number = w_exps[0], 0
    for phase in steps.phases:
        count = phase.step
        into, before = np.empty((count, exps.shape[1]), exps.dtype), before[:count] if number else before
        for start in phase:
            rows = slice(start, start + count)
            if number:
                before = np.matmul(before, scale.going_on, into)
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
    x, w, chains = _chains(Emission, Transition, Length)
    labels, places = chains.labels(Label), chains.places
    made = np.empty_like(x), np.empty_like(w)
    alpha, logs, lasts = (
        np.empty_like(x),
        np.empty(len(x), x.dtype),
        np.empty((len(places.last_rows), len(w[0])), x.dtype),
    )
    if loops.chains_ahead(x, w, chains.for_loops(labels), made, alpha, logs, lasts):
        exps, w_exps = made[0] if chains.inside is None else _exps(plain(Emission))[0], made[1]
    else:
        check_ids(labels, x.shape[-1], "the label")
        (exps, largest), w_exps = _exps(plain(Emission)), np.exp(w)
        alpha, logs = _forward(chains.rows(exps), w_exps, places.steps)
        logs += chains.rows(largest)[:, 0]
        logs -= _label_scores(x, w, labels, places)
        lasts = alpha.take(places.last_rows, axis=0)
    logs[places.last_rows] += np.log(np.dot(lasts, w_exps[1]))
    return chains.back(alpha), exps, w_exps, chains.sums(logs).astype(x.dtype, copy=False)[:, None]


def _exps(x: Array) -> tuple[Array, Array]:
    """(the exponentials of x less the largest number of each row, these numbers [..., 1])."""
    largest = np.maximum.reduce(x, axis=-1, keepdims=True)
    return np.exp(x - largest), largest


def _behind(x_exps: Array, w_exps: Array, steps: Steps) -> tuple[Array, Array]:
    """(backward weights of every row up to a factor for each row, their products with the row's own weights)."""
    scale, (beta, behind) = _scale(w_exps), np.empty((2, *x_exps.shape), x_exps.dtype)
    backwards, exps, after, number = scale.going_on.T.copy(), steps.batch(x_exps), behind[:0], 0
    for phase in reversed(steps.phases):
        for start in reversed(phase):
            rows = slice(start, start + phase.step)
            now = beta[rows]
            if len(after) < len(now):
                now[len(after) :] = w_exps[1]
                np.matmul(after, backwards, now[: len(after)])
            else:
                np.matmul(after, backwards, now)
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
    labels, places = chains.labels(Label), chains.places
    exps, alpha = chains.rows(plain(EmissionExps)), chains.rows(plain(Alpha))
    w_exps, of_sequences = plain(TransitionExps), plain(LogLikelihood_GRAD).reshape(-1)
    grad, w_grad = np.empty_like(x), np.empty_like(w)
    if loops.chains_back((exps, w_exps), chains.for_loops(labels), alpha, of_sequences, grad, w_grad):
        return chains.with_lod(grad), w_grad
    check_ids(labels, x.shape[-1], "the label")
    scale = of_sequences.take(places.sequence)
    beta, behind = _behind(exps, w_exps, places.steps)
    grad = alpha * beta
    grad /= np.add.reduce(grad, axis=1, keepdims=True)
    grad[np.arange(len(grad)), labels] -= 1
    grad *= scale[:, None]
    w_grad[0] = np.add.reduce(grad.take(places.first_rows, axis=0), axis=0)
    w_grad[1] = np.add.reduce(grad.take(places.last_rows, axis=0), axis=0)
    w_grad[2:] = _pairs(alpha, behind, w_exps[2:], labels, scale, places.later_rows)
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
    path = _best_path(x, w, chains.places.steps)
    if Label is not None:
        labels = chains.labels(Label)
        check_ids(labels, x.shape[-1], "the label")
        path = (labels == path).astype("int64")
    return chains.with_lod(path if chains.lod is None else path[:, None])


def _best_path(x: Array, w: Array, steps: Steps) -> Array:
    """The label path of the largest weight for every sequence, int64 [rows]."""
    into, path = w[2:].T.copy(), np.empty(len(x), np.int64)
    if loops.best_path(x, w[:2], into, steps.places, len(steps.order), path):
        return path
    scores, going_on = steps.batch(x), w[2:, None]  # becomes, by label, the weights of the best paths up to each row
    final = np.empty((len(steps.order), w.shape[1]), x.dtype)
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
    behind = range(0)
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


# Kernels of connectionist temporal classification: the loss of label sequences without an alignment to frames.
#
# With blanks before, between and after its L labels, a sequence has 2 L + 1 states. A path visits them frame by frame:
# it stays, moves to the next state, or skips a blank between two different labels. All sequences of a batch advance
# together, padded to one length. Numbers are logarithms.


class _Frames(NamedTuple):
    """Frames as [longest, sequences, classes] and the number of frames of each sequence."""

    values: Array
    counts: Array

    @property
    def frame_mask(self) -> Array:
        """The mask [longest, sequences] of the frames that exist."""
        return np.arange(len(self.values))[:, None] < self.counts


def _frames(logits: Any, length: Any) -> _Frames:
    if length is not None:
        values, counts = plain(logits), plain(length).reshape(-1)
        if values.ndim != 3 or values.shape[1] != len(counts):
            raise ValueError(f"Logits has the dims {list(values.shape)}, it must have 3, the second {len(counts)}")
        check_ids(counts, len(values) + 1, "the length of Logits")
        return _Frames(values, counts)
    rows, lod = sequences(logits, "Logits")
    counts = row_counts(lod[-1])
    values = np.zeros((len(counts), int(counts.max(initial=0)), rows.shape[1]), rows.dtype)
    values[np.arange(values.shape[1]) < counts[:, None]] = rows
    return _Frames(values.swapaxes(0, 1), counts)


def _states(label: Any, length: Any, blank: int, classes: int) -> tuple[Array, Array]:
    """The class of every state, [sequences, most states], and the number of states of each sequence."""
    if length is None:
        labels, lod = sequences(label, "Label")
        counts, flat = row_counts(lod[-1]), labels.reshape(-1)
    else:
        counts, padded = plain(length).reshape(-1), plain(label)
        padded = as_matrix(padded)
        check_ids(counts, padded.shape[1] + 1, "the length of Label")
        flat = padded[np.arange(padded.shape[1]) < counts[:, None]]
    check_ids(flat, classes, "the label")
    labels = np.full((len(counts), int(counts.max(initial=0))), blank, np.int64)
    labels[np.arange(labels.shape[1]) < counts[:, None]] = flat
    states = np.full((len(counts), 2 * labels.shape[1] + 1), blank, np.int64)
    states[:, 1::2] = labels
    return states, 2 * counts + 1


def _shift_states(values: Array, by: int) -> Array:
    """Values shifted by some states (backwards if negative), filled with -inf."""
    out = np.full_like(values, -np.inf)
    if abs(by) < values.shape[1]:
        out[:, max(by, 0) : values.shape[1] + min(by, 0)] = values[:, max(-by, 0) : values.shape[1] - max(by, 0)]
    return out


def _paths(emitted: Array, states: Array, sizes: Array, counts: Array, blank: int) -> tuple[Array, Array]:
    """The log weights of all paths up to each frame and state, including it, and from there on, excluding it."""
    skips = np.zeros(states.shape, bool)
    skips[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    numbers = np.arange(states.shape[1])
    alpha, beta = np.full_like(emitted, -np.inf), np.full_like(emitted, -np.inf)
    for frame in range(len(emitted)):
        if frame:
            last = alpha[frame - 1]
            reached = np.logaddexp(
                np.logaddexp(last, _shift_states(last, 1)), np.where(skips, _shift_states(last, 2), -np.inf)
            )
        else:
            reached = np.broadcast_to(np.where(numbers < 2, 0.0, -np.inf), states.shape)
        alpha[frame] = np.where(numbers < sizes[:, None], reached + emitted[frame], -np.inf)
    ends = (numbers >= sizes[:, None] - 2) & (numbers < sizes[:, None])
    for frame in reversed(range(len(emitted))):
        beta[frame] = np.where(ends & (counts == frame + 1)[:, None], 0.0, -np.inf)
        if frame + 1 < len(emitted):
            later = beta[frame + 1] + emitted[frame + 1]
            skipped = _shift_states(np.where(skips, later, -np.inf), -2)
            going_on = np.logaddexp(np.logaddexp(later, _shift_states(later, -1)), skipped)
            beta[frame] = np.where((counts > frame + 1)[:, None], going_on, beta[frame])
    return alpha, beta


def _loss(frames: _Frames, states: Array, sizes: Array, blank: int) -> tuple[Array, Array]:
    """The loss of every sequence and its gradient; both are 0 if there are too few frames for the labels."""
    x = frames.values - frames.values.max(axis=2, keepdims=True)
    logs = x - np.log(np.exp(x).sum(axis=2, keepdims=True))
    emitted = np.take_along_axis(logs, np.broadcast_to(states, (len(x), *states.shape)), axis=2)
    alpha, beta = _paths(emitted, states, sizes, frames.counts, blank)
    both = alpha + beta
    total = np.logaddexp.reduce(both[0], axis=1) if len(both) else np.full(len(sizes), -np.inf, x.dtype)
    possible = np.isfinite(total)
    weights = np.exp(both - np.where(possible, total, 0)[:, None])
    grad = np.exp(logs)
    for state in range(states.shape[1]):
        np.subtract.at(grad, (slice(None), np.arange(len(states)), states[:, state]), weights[:, :, state])
    grad = np.where((frames.frame_mask & possible)[:, :, None], grad, 0)
    return np.where(possible, -total, 0), grad


@plain_kernel("warpctc", "WarpCTCGrad Loss", lod="own")
def _warpctc(
    Logits: Any, Label: Any, LogitsLength: Any = None, LabelLength: Any = None, *, blank: int
) -> tuple[Array, Array]:
    frames = _frames(Logits, LogitsLength)
    classes = frames.values.shape[2]
    if not 0 <= blank < classes:
        raise ValueError(f"blank is {blank}, it must be a class, 0 to {classes - 1}")
    states, sizes = _states(Label, LabelLength, blank, classes)
    if len(states) != len(frames.counts):
        raise ValueError(f"Logits has {len(frames.counts)} sequences, Label {len(states)}")
    loss, grad = _loss(frames, states, sizes, blank)
    return grad.astype(frames.values.dtype), loss.astype(frames.values.dtype)[:, None]


@plain_kernel("warpctc_grad", "Logits@GRAD", lod="own")
def _warpctc_grad(
    Logits: Any, WarpCTCGrad: Any, Loss_GRAD: Any, LogitsLength: Any = None, *, norm_by_times: bool
) -> Any:
    scale, grad = plain(Loss_GRAD).reshape(-1, 1), plain(WarpCTCGrad)
    frames = _frames(Logits, LogitsLength)
    if norm_by_times:
        scale = scale / np.maximum(frames.counts, 1).astype(scale.dtype)[:, None]
    result = grad * scale
    if LogitsLength is not None:
        return result
    return LoDTensor(result.swapaxes(0, 1)[frames.frame_mask.T], Logits.lod)


# Kernels. Ragged sequences padded, cut, reversed and enumerated.


def _offsets(lengths: list[int]) -> list[int]:
    """The offsets of sequences of these lengths."""
    return [0, *accumulate(lengths)]


@plain_kernel("sequence_enumerate", lod="own")
def _enumerate(X: Any, *, win_size: int, pad_value: int) -> LoDTensor:
    x, lod = sequences(X, "X")
    ends = np.repeat(np.asarray(lod[-1][1:], np.int64), row_counts(lod[-1]))[:, None]
    places = np.arange(len(x))[:, None] + np.arange(win_size)
    inside = places < ends
    return LoDTensor(np.where(inside, x.reshape(-1)[np.where(inside, places, 0)], pad_value).astype(x.dtype), lod)


@plain_kernel("sequence_erase", lod="own")
def _erase(X: Any, *, tokens: list[int] = per_op(lambda op: list(ints_attr(op, "tokens")))) -> LoDTensor:
    x, lod = sequences(X, "X")
    kept = ~np.isin(x.reshape(-1), tokens)
    counts = np.concatenate([[0], np.cumsum(kept)])
    return LoDTensor(x[kept], [*lod[:-1], counts[lod[-1]].tolist()])


@kernel("sequence_mask", "Y", lod="none")
def _mask(op: Op) -> Run:
    kind, given = numpy_dtype(int_attr(op, "out_dtype")), int_attr(op, "maxlen", -1)

    def run(X: Array, MaxLenTensor: Array | None = None) -> Array:
        longest = given if MaxLenTensor is None else int(MaxLenTensor.reshape(-1)[0])
        if longest < 0:
            longest = int(X.max()) if X.size else 0
        return (np.arange(longest) < X[..., None]).astype(kind)

    return run


class _Padding(NamedTuple):
    """The places of sequences' rows in a tensor with as many rows for every sequence, of dims `dims`, its rows counted
    through; None if the sequences fill it. Calls with the same lengths share this value.
    """

    dims: tuple[int, int]
    places: Array | None

    def extract_rows(self, padded: Array) -> Array:
        """The rows of the sequences, concatenated in new memory."""
        rows = self._flat(padded)
        return rows.copy() if self.places is None else rows.take(self.places, axis=0)

    def write_rows(self, padded: Array, rows: Array) -> None:
        """Writes the rows of the sequences to their positions."""
        self._flat(padded)[... if self.places is None else self.places] = rows

    def _flat(self, padded: Array) -> Array:
        if padded.shape[:2] != self.dims:
            raise ValueError(f"the padded tensor has the dims {list(padded.shape)}, not {self.dims[0]} sequences")
        return padded.reshape(prod(self.dims), *padded.shape[2:])


@lru_cache(64)
def _padding(lengths: tuple[int, ...], length: int) -> _Padding:
    longest = max(lengths, default=0)
    length = longest if length < 0 else length
    if length < longest:
        raise ValueError(f"a sequence has {longest} rows, more than the padded length {length}")
    dims = len(lengths), length
    if min(lengths, default=0) == length:
        return _Padding(dims, None)
    return _Padding(dims, np.flatnonzero(np.arange(length) < np.array(lengths)[:, None]))


@lru_cache(64)
def _padding_of(offsets: tuple[int, ...], length: int) -> _Padding:
    """The padding of sequences with these offsets."""
    return _padding(tuple(row_counts(offsets).tolist()), length)


@plain_kernel("sequence_pad", "Out Length", lod="own")
def _pad(X: Any, PadValue: Any, *, padded_length: int = -1) -> tuple[Array, Array]:
    x, lod = sequences(X, "X")
    lengths = row_counts(lod[-1])
    padding = _padding_of(tuple(lod[-1]), padded_length)
    value = plain(PadValue)
    out = np.empty((*padding.dims, *x.shape[1:]), x.dtype)
    out[...] = value.reshape(()) if value.size == 1 else value.reshape(x.shape[1:])
    padding.write_rows(out, x)
    return out, lengths.astype("int64")


@plain_kernel("sequence_pad_grad", "X@GRAD", lod="own")
def _pad_grad(X: Any, Out_GRAD: Any, *, padded_length: int = -1) -> LoDTensor:
    _, lod = sequences(X, "X")
    return LoDTensor(_padding_of(tuple(lod[-1]), padded_length).extract_rows(plain(Out_GRAD)), lod)


@plain_kernel("sequence_unpad", lod="new")
def _unpad(X: Any, Length: Any) -> LoDTensor:
    x, lengths = plain(X), plain(Length).reshape(-1).tolist()
    rows = _padding(tuple(lengths), x.shape[1]).extract_rows(x)
    return LoDTensor(rows if rows.ndim > 1 else rows[:, None], [_offsets(lengths)])


@plain_kernel("sequence_unpad_grad", "X@GRAD", lod="own")
def _unpad_grad(X: Any, Out_GRAD: Any) -> Any:
    x, (rows, lod) = plain(X), sequences(Out_GRAD, "Out@GRAD")
    grad = np.zeros_like(x)
    _padding_of(tuple(lod[-1]), x.shape[1]).write_rows(grad, rows.reshape(-1, *x.shape[2:]))
    return with_lod(X, grad)


@plain_kernel("sequence_reshape", lod="own")
def _reshape(X: Any, *, new_dim: int) -> LoDTensor:
    x, lod = sequences(X, "X")
    sizes = np.asarray(lod[-1]) * x.shape[1]
    if (sizes % new_dim).any():
        raise ValueError(f"a sequence of X can't be cut into rows of {new_dim} numbers")
    return LoDTensor(x.reshape(-1, new_dim).copy(), [*lod[:-1], (sizes // new_dim).tolist()])


@plain_kernel("sequence_reshape_grad", "X@GRAD", lod="own")
def _reshape_grad(X: Any, Out_GRAD: Any) -> Any:
    return with_lod(X, plain(Out_GRAD).reshape(plain(X).shape).copy())


@plain_kernel("sequence_reverse", "Y", lod="own")
def _reverse(X: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    return LoDTensor(x.take(_reversed_rows(tuple(lod[-1])), axis=0), lod)


@lru_cache(64)
def _reversed_rows(offsets: tuple[int, ...]) -> Array:
    """The row of the same sequence that stands in place of each row."""
    starts, lengths, _, _, ends = runs_between(offsets)
    return (starts + ends[1:] - 1).repeat(lengths) - np.arange(offsets[-1])


def _targets(ids: Any) -> tuple[Array, Array]:
    """For every id: (row, which is the number of its sequence; column, which is the id)."""
    columns, lod = sequences(ids, "Ids")
    return np.repeat(np.arange(len(lod[-1]) - 1), row_counts(lod[-1])), columns.reshape(-1)


@plain_kernel("sequence_scatter", lod="own")
def _scatter(X: Any, Ids: Any, Updates: Any) -> Any:
    out = plain(X).copy()
    rows, columns = _targets(Ids)
    if columns.size and (columns.min() < 0 or columns.max() >= out.shape[1]):
        raise ValueError(f"Ids must be columns of X, 0 to {out.shape[1] - 1}")
    np.add.at(out, (rows, columns), plain(Updates).reshape(-1))
    return with_lod(X, out)


@plain_kernel("sequence_scatter_grad", "X@GRAD Updates@GRAD", lod="own")
def _scatter_grad(Ids: Any, Updates: Any, Out_GRAD: Any) -> tuple[Any, Any]:
    grad = plain(Out_GRAD)
    return with_lod(Out_GRAD, grad.copy()), grad[_targets(Ids)].reshape(plain(Updates).shape)


def _parts(lod: list[list[int]], offset: Any, length: Any) -> tuple[Array, list[int]]:
    """(row numbers of a part of each sequence, offsets of the parts)."""
    starts, sizes = plain(offset).reshape(-1), plain(length).reshape(-1)
    if len(starts) != len(lod[-1]) - 1 or len(sizes) != len(starts):
        raise ValueError(f"X has {len(lod[-1]) - 1} sequences, Offset and Length must have as many numbers")
    if (starts < 0).any() or (sizes < 0).any() or (starts + sizes > row_counts(lod[-1])).any():
        raise ValueError("Offset and Length reach beyond a sequence of X")
    firsts = np.asarray(lod[-1][:-1], np.int64) + starts
    pieces = [np.arange(first, first + size) for first, size in zip(firsts, sizes, strict=True)]
    return np.concatenate(pieces) if pieces else np.arange(0), _offsets(sizes.tolist())


@plain_kernel("sequence_slice", lod="own")
def _slice(X: Any, Offset: Any, Length: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    rows, offsets = _parts(lod, Offset, Length)
    return LoDTensor(x[rows], [offsets])


@plain_kernel("sequence_slice_grad", "X@GRAD", lod="own")
def _slice_grad(X: Any, Offset: Any, Length: Any, Out_GRAD: Any) -> LoDTensor:
    x, lod = sequences(X, "X")
    grad = np.zeros_like(x)
    grad[_parts(lod, Offset, Length)[0]] = plain(Out_GRAD)
    return LoDTensor(grad, lod)
