"""Kernels of linear chains of labels (conditional random fields): their likelihood, its gradient, the best path.

Transition holds, in this order, a row of weights for starting with each label, one for ending with it, and a row for
each label with the weights of going from it to the others. Sequences are ragged, or padded to one length with the
lengths in Length; both go forward together as padded ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.kernels.kernel import Run, kernel
from pstranspile.kernels.numeric import check_ids
from pstranspile.kernels.ragged import plain, row_counts, sequences
from pstranspile.values import Array, LoDTensor


class _Chains(NamedTuple):
    """Where the rows of sequences lie in a padded tensor: `inside` is bool [sequences, longest].

    `lod` is that of ragged sequences, None for padded ones.
    """

    inside: Array
    lod: list[list[int]] | None

    @property
    def lengths(self) -> Array:
        return self.inside.sum(axis=1)

    def padded(self, rows: Array) -> Array:
        """Values of the sequences as [sequences, longest, ...], zeros beyond their ends."""
        if self.lod is None:
            return np.where(self.inside.reshape(*self.inside.shape, *[1] * (rows.ndim - 2)), rows, 0)
        out = np.zeros((*self.inside.shape, *rows.shape[1:]), rows.dtype)
        out[self.inside] = rows
        return out

    def back(self, padded: Array) -> Array:
        """Padded values in the layout of the inputs."""
        return padded if self.lod is None else padded[self.inside]

    def with_lod(self, padded: Array) -> Any:
        """Padded values in the layout of the inputs, with their LoD."""
        return padded if self.lod is None else LoDTensor(self.back(padded), self.lod)

    def labels(self, label: Any, count: int) -> Array:
        """The labels as [sequences, longest]. Raises ValueError for one that is not 0 to count - 1."""
        held = plain(label)
        if held.size != (int(self.inside.sum()) if self.lod is not None else self.inside.size):
            raise ValueError(f"Label has {held.size} numbers, it must have one for each row of Emission")
        shaped = held.reshape(-1) if self.lod is not None else held.reshape(self.inside.shape)
        check_ids(shaped if self.lod is not None else shaped[self.inside], count, "the label")
        return self.padded(shaped)


def _chains(emission: Any, transition: Any, length: Any) -> tuple[Array, Array, _Chains]:
    """Emission padded, Transition, and where the sequences lie. Raises ValueError if the dims don't fit."""
    x, w = plain(emission), plain(transition)
    if length is None:
        x, lod = sequences(emission, "Emission")
        if len(lod) != 1:
            raise ValueError(f"Emission has {len(lod)} levels of LoD, it must have one")
        lengths = row_counts(lod[0])
        inside = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
        chains = _Chains(inside, lod)
    else:
        lengths = plain(length).reshape(-1)
        if x.ndim != 3 or len(x) != len(lengths):
            raise ValueError(f"Emission has the dims {list(x.shape)}, it must have 3, the first {len(lengths)}")
        check_ids(lengths, x.shape[1] + 1, "the length")
        chains = _Chains(np.arange(x.shape[1]) < lengths[:, None], None)
    if w.shape != (x.shape[-1] + 2, x.shape[-1]):
        raise ValueError(f"Transition has the dims {list(w.shape)}, it must have {[x.shape[-1] + 2, x.shape[-1]]}")
    return chains.padded(x), w, chains


def _at_ends(values: Array, lengths: Array) -> Array:
    """The last of every sequence along the second dim; the first of those that are empty."""
    return values[np.arange(len(values)), np.maximum(lengths - 1, 0)]


def _label_scores(x: Array, w: Array, labels: Array, chains: _Chains) -> Array:
    """The weight of every label path."""
    if not x.shape[1]:
        return np.zeros(len(x), x.dtype)
    emitted = np.take_along_axis(x, labels[:, :, None], axis=2)[:, :, 0]
    between = np.where(chains.inside[:, 1:], w[2:][labels[:, :-1], labels[:, 1:]], 0)
    ends = w[0][labels[:, 0]] + w[1][_at_ends(labels, chains.lengths)]
    return (emitted * chains.inside).sum(axis=1) + between.sum(axis=1) + ends


def _forward(x_exps: Array, w_exps: Array, inside: Array) -> tuple[Array, Array]:
    """The forward weights of each step, made to sum to 1, and the logarithms of the sums they had."""
    alpha = np.zeros_like(x_exps)
    logs = np.zeros(x_exps.shape[:2], x_exps.dtype)
    for step in range(x_exps.shape[1]):
        before = alpha[:, step - 1] @ w_exps[2:] if step else w_exps[0]
        found = x_exps[:, step] * before
        total = np.where(inside[:, step], found.sum(axis=1), 1)
        alpha[:, step] = np.where(inside[:, step, None], found / total[:, None], 0)
        logs[:, step] = np.log(total)
    return alpha, logs


@kernel("linear_chain_crf", "Alpha EmissionExps TransitionExps LogLikelihood", lod="own")
def _linear_chain_crf(_op: Op) -> Run:
    def run(Emission: Any, Transition: Any, Label: Any, Length: Any = None) -> tuple[Array, ...]:
        raw = plain(Emission)
        largest = raw.max(axis=-1, keepdims=True)
        exps, w_exps = np.exp(raw - largest), np.exp(plain(Transition))
        x, w, chains = _chains(Emission, Transition, Length)
        labels = chains.labels(Label, x.shape[-1])
        alpha, logs = _forward(chains.padded(exps), w_exps, chains.inside)
        total = (logs + chains.padded(largest)[:, :, 0]).sum(axis=1)
        if x.shape[1]:
            total = total + np.log((_at_ends(alpha, chains.lengths) @ w_exps[1]) + (chains.lengths == 0))
        found = np.where(chains.lengths > 0, total - _label_scores(x, w, labels, chains), 0)
        return chains.back(alpha), exps, w_exps, found.astype(x.dtype)[:, None]

    return run


def _behind(x_exps: Array, w_exps: Array, lengths: Array) -> Array:
    """The backward weights of each step, made to sum to 1; zeros beyond the ends."""
    beta = np.zeros_like(x_exps)
    for step in reversed(range(x_exps.shape[1])):
        found = np.broadcast_to(w_exps[1], beta[:, step].shape)
        if step + 1 < x_exps.shape[1]:
            going_on = (beta[:, step + 1] * x_exps[:, step + 1]) @ w_exps[2:].T
            found = np.where((lengths > step + 1)[:, None], going_on, found)
        beta[:, step] = np.where((lengths > step)[:, None], found / found.sum(axis=1, keepdims=True), 0)
    return beta


@kernel("linear_chain_crf_grad", "Emission@GRAD Transition@GRAD", lod="own")
def _linear_chain_crf_grad(_op: Op) -> Run:
    def run(
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
        labels, lengths = chains.labels(Label, x.shape[-1]), chains.lengths
        alpha, x_exps = chains.padded(plain(Alpha)), chains.padded(plain(EmissionExps))
        w_exps, scale = plain(TransitionExps), plain(LogLikelihood_GRAD).reshape(-1)
        beta = _behind(x_exps, w_exps, lengths)
        weights = alpha * beta
        sums = weights.sum(axis=2, keepdims=True)
        grad = weights / np.where(chains.inside[:, :, None], sums, 1)
        rows, steps = np.nonzero(chains.inside)
        grad[rows, steps, labels[rows, steps]] -= 1
        grad *= scale[:, None, None]
        w_grad = np.zeros_like(w)
        if x.shape[1]:
            w_grad[0] = grad[:, 0].sum(axis=0)
            w_grad[1] = _at_ends(grad, lengths).sum(axis=0)
            w_grad[2:] = _pairs(alpha, beta * x_exps, w_exps[2:], chains.inside, labels, scale)
        return chains.with_lod(grad), w_grad

    return run


def _pairs(alpha: Array, behind: Array, w_exps: Array, inside: Array, labels: Array, scale: Array) -> Array:
    """The gradient of the weights of going from label to label."""
    found = np.zeros_like(w_exps)
    for step in range(1, alpha.shape[1]):
        held = inside[:, step]
        before, after, factor = alpha[held, step - 1], behind[held, step], scale[held]
        total = ((before @ w_exps) * after).sum(axis=1)
        found += (before * (factor / total)[:, None]).T @ after * w_exps
        np.subtract.at(found, (labels[held, step - 1], labels[held, step]), factor)
    return found


@kernel("crf_decoding", "ViterbiPath", lod="own")
def _crf_decoding(_op: Op) -> Run:
    def run(Emission: Any, Transition: Any, Label: Any = None, Length: Any = None) -> Any:
        x, w, chains = _chains(Emission, Transition, Length)
        path = _best_path(x, w, chains.lengths)
        if Label is not None:
            path = ((chains.labels(Label, x.shape[-1]) == path) & chains.inside).astype("int64")
        return chains.with_lod(path if chains.lod is None else path[:, :, None])

    return run


def _best_path(x: Array, w: Array, lengths: Array) -> Array:
    """The label path of the largest weight for every sequence, int64 [sequences, longest], zeros beyond the ends."""
    count, longest, width = x.shape
    track = np.zeros((count, longest, width), np.int64)
    path = np.zeros((count, longest), np.int64)
    if not longest:
        return path
    score = w[0] + x[:, 0]
    last = score
    for step in range(1, longest):
        to = score[:, :, None] + w[2:]
        track[:, step] = to.argmax(axis=1)
        score = to.max(axis=1) + x[:, step]
        last = np.where((lengths > step)[:, None], score, last)
    label = (last + w[1]).argmax(axis=1)
    rows = np.arange(count)
    for step in reversed(range(longest)):
        held = lengths > step
        path[held, step] = label[held]
        label = np.where(held, track[rows, step, label], label)
    return path
