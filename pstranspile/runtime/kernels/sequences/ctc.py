"""Kernels of connectionist temporal classification: the loss of label sequences without an alignment to frames.

With blanks before, between and after its L labels, a sequence has 2 L + 1 states. A path visits them frame by frame: it
stays, moves to the next state, or skips a blank between two different labels. All sequences of a batch advance
together, padded to one length. Numbers are logarithms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pstranspile.runtime.kernels.kernel import plain_kernel
from pstranspile.runtime.kernels.numeric import as_matrix, check_ids
from pstranspile.runtime.kernels.ragged import plain, row_counts, sequences
from pstranspile.runtime.values import Array, LoDTensor


class _Frames(NamedTuple):
    """Frames as [longest, sequences, classes] and the number of frames of each sequence."""

    values: Array
    counts: Array

    @property
    def inside(self) -> Array:
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


def _moved(values: Array, by: int) -> Array:
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
            reached = np.logaddexp(np.logaddexp(last, _moved(last, 1)), np.where(skips, _moved(last, 2), -np.inf))
        else:
            reached = np.broadcast_to(np.where(numbers < 2, 0.0, -np.inf), states.shape)
        alpha[frame] = np.where(numbers < sizes[:, None], reached + emitted[frame], -np.inf)
    ends = (numbers >= sizes[:, None] - 2) & (numbers < sizes[:, None])
    for frame in reversed(range(len(emitted))):
        beta[frame] = np.where(ends & (counts == frame + 1)[:, None], 0.0, -np.inf)
        if frame + 1 < len(emitted):
            later = beta[frame + 1] + emitted[frame + 1]
            skipped = _moved(np.where(skips, later, -np.inf), -2)
            going_on = np.logaddexp(np.logaddexp(later, _moved(later, -1)), skipped)
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
    grad = np.where((frames.inside & possible)[:, :, None], grad, 0)
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
    return LoDTensor(result.swapaxes(0, 1)[frames.inside.T], Logits.lod)
