"""What the recurrent units share: sequences cut into steps, longest first, and activations by name.

All sequences go forward together. A step holds one row of every sequence that is long enough, and as the sequences
are in the order of their length, longest first, the rows of the next step continue the first rows of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.kernels.ragged import row_counts, sequences
from pstranspile.values import Array, LoDTensor


class Activation(NamedTuple):
    """A function, which takes an array for its result, and its derivative in terms of the function's value."""

    apply: Callable[[Array, Array], Array]
    slope: Callable[[Array], Array]


@cache
def _numbers(kind: Any) -> tuple[Array, Array]:
    """Fluid's bound and 1 as arrays of an element type, which numpy takes faster than numbers."""
    return np.array(-13, kind), np.array(1, kind)


def _sigmoid(x: Array, out: Array) -> Array:
    least, one = _numbers(x.dtype)
    np.negative(x, out)
    np.maximum(out, least, out=out)
    np.exp(out, out)
    np.add(out, one, out)
    return np.divide(one, out, out)


def _same(x: Array, out: Array) -> Array:
    out[...] = x
    return out


def _tanh(x: Array, out: Array) -> Array:
    return np.tanh(x, out)


def _relu(x: Array, out: Array) -> Array:
    return np.maximum(x, 0, out=out)


def _flat_slope(y: Array) -> Array:
    return np.ones_like(y)


def _sigmoid_slope(y: Array) -> Array:
    result = _numbers(y.dtype)[1] - y
    result *= y
    return result


def _tanh_slope(y: Array) -> Array:
    result = y * y
    return np.subtract(_numbers(y.dtype)[1], result, result)


def _relu_slope(y: Array) -> Array:
    return (y > 0).astype(y.dtype)


ACTIVATIONS = {
    "identity": Activation(_same, _flat_slope),
    "sigmoid": Activation(_sigmoid, _sigmoid_slope),
    "tanh": Activation(_tanh, _tanh_slope),
    "relu": Activation(_relu, _relu_slope),
}
"""The activations of recurrent units by name."""


def activation(name: object) -> Activation:
    """The activation of this name ("" is the identity). Raises ValueError for others."""
    result = ACTIVATIONS.get(str(name) or "identity")
    if result is None:
        raise ValueError(f"the activation is {name!r}, it must be one of {', '.join(ACTIVATIONS)}")
    return result


@dataclass(frozen=True, eq=False)
class Steps:
    """Sequences cut into steps.

    `rows[i]` is the row that comes at position i of the batch order, `starts` where each step begins there (and the
    last ends), `order` the numbers of the sequences, longest first (and as they come where they are equally long), and
    `notes` all three as lists. `phases` are the same starts, those of steps that have equally many rows in one range,
    whose own step is that number. `earlier` says for every row after the first step where, in batch order, that of the
    step before lies. Values of the same LoD share their steps, so nothing of them may be changed.
    """

    rows: Array
    starts: list[int]
    phases: tuple[range, ...]
    order: Array
    earlier: Array
    notes: list[list[int]]

    def spans(self) -> Iterator[tuple[int, int]]:
        """Start and stop of each step in batch order, first to last."""
        return pairwise(self.starts)

    def parted(self, x: Array, parts: int) -> Array:
        """The rows [rows, parts * width] step by step, and within a step part by part: [parts * rows, width].

        So each part of a step lies in one piece of memory, and so do parts that stand one after the other.
        """
        return x.reshape(len(x) * parts, x.shape[1] // parts).take(_parted(self, parts), axis=0)

    def joined(self, parted: Array, parts: int) -> Array:
        """The rows in batch order, [rows, parts * width], of what `parted` gives."""
        return parted.take(_joined(self, parts), axis=0).reshape(len(self.rows), parts * parted.shape[1])

    def joined_back(self, parts: Array) -> Array:
        """Parts in batch order [parts, rows, width] as rows of the sequences, [rows, parts * width]."""
        count, rows, width = parts.shape
        result = np.empty((rows, count, width), parts.dtype)
        result[self.rows] = parts.swapaxes(0, 1)
        return result.reshape(rows, count * width)

    def batch(self, rows: Array) -> Array:
        """The rows in batch order."""
        return rows.take(self.rows, axis=0)

    def back(self, batch: Array) -> Array:
        """The rows in the order of the sequences again."""
        result = np.empty_like(batch)
        result[self.rows] = batch
        return result

    def initial(self, state: Array | None, width: int, dtype: Any) -> Array:
        """A row per sequence in the order of the batch; zeros [sequences, width] where there is no initial state."""
        return np.zeros((len(self.order), width), dtype) if state is None else state[self.order]

    def before(self, batch: Array, first: Array) -> Array:
        """For every row in batch order the row of the step before; `first` holds those of the first step."""
        after_first = len(batch) - len(self.earlier)
        result = np.empty_like(batch)
        result[:after_first] = first[:after_first]
        np.take(batch, self.earlier, axis=0, out=result[after_first:], mode="clip")
        return result

    def initial_back(self, grad: Array) -> Array:
        """The gradient of a row per sequence, in the order of the sequences again."""
        result = np.empty_like(grad)
        result[self.order] = grad
        return result

    def noted(self, batch: Array) -> LoDTensor:
        """Values in batch order with what Fluid notes in place of their LoD: where steps begin, rows and order."""
        return LoDTensor(batch, self.notes)


def steps_of(x: Any, slot: str, reverse: bool) -> tuple[Array, list[list[int]], Steps]:
    """The rows of a ragged value, its LoD, and its steps; with `reverse` the last row of a sequence comes first.

    Raises ValueError if it has no LoD, or more than one level.
    """
    data, lod = sequences(x, slot)
    if len(lod) != 1:
        raise ValueError(f"{slot} has {len(lod)} levels of LoD, a recurrent unit takes one")
    return data, lod, steps_between(tuple(lod[0]), reverse)


@lru_cache(32)
def _joined(steps: Steps, parts: int) -> Array:
    """Where the parts of each row in batch order stand among those of `Steps.parted`."""
    counts = np.diff(steps.starts)
    begins = np.repeat(np.asarray(steps.starts[:-1], np.int64), counts)
    first = np.arange(len(steps.rows)) + (parts - 1) * begins
    return (first[:, None] + np.arange(parts) * np.repeat(counts, counts)[:, None]).reshape(-1)


@lru_cache(32)
def _parted(steps: Steps, parts: int) -> Array:
    """For every row of `Steps.parted` the row and part of the sequences that stands there."""
    result = np.empty(parts * len(steps.rows), np.int64)
    result[_joined(steps, parts)] = (steps.rows[:, None] * parts + np.arange(parts)).reshape(-1)
    return result


@lru_cache(32)
def steps_between(offsets: tuple[int, ...], reverse: bool = False) -> Steps:
    """The steps of the sequences between offsets; with `reverse` the last row of a sequence comes first."""
    lengths = row_counts(offsets)
    order = np.argsort(-lengths, kind="stable")
    counts = len(lengths) - np.cumsum(np.bincount(lengths))[:-1] if len(lengths) else lengths
    starts = [0, *np.cumsum(counts).tolist()]
    step = np.arange(len(counts)).repeat(counts)
    place = np.arange(len(step)) - np.repeat(np.asarray(starts[:-1], np.int64), counts)
    first = (np.asarray(offsets[1:], np.int64) - 1 if reverse else np.asarray(offsets[:-1], np.int64))[order]
    return _steps(first[place] - step if reverse else first[place] + step, starts, order)


def _steps(rows: Array, starts: list[int], order: Array) -> Steps:
    counts = np.diff(starts)
    first = int(counts[0]) if len(counts) else 0  # sequences without rows are in no step
    before = np.arange(first, len(rows)) - np.repeat(counts[:-1], counts[1:])
    changes = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(counts)] if len(counts) else []
    phases = tuple(range(starts[a], starts[b], starts[a + 1] - starts[a]) for a, b in pairwise(changes))
    return Steps(rows, starts, phases, order, before, [starts, rows.tolist(), order.tolist()])


_STEPS = 400
"""So many elements of a matrix take as long to be moved as what a step saves if the matrices of gates are apart."""


def apart(weight: Array, parts: int, phases: Sequence[range]) -> list[Array]:
    """The matrices [state, width] that a matrix [state, parts * width] holds side by side, in memory of their own.

    Of a single sequence, or few steps, it is that matrix alone: then products with all of it cost less.
    """
    width = weight.shape[1] // parts
    if not phases or phases[0].step == 1 or sum(map(len, phases)) * _STEPS < width * width:
        return [weight]
    return list(weight.reshape(len(weight), parts, width).swapaxes(0, 1).copy())


def by_part(parted: Array, phase: range, parts: int) -> Array:
    """What `Steps.parted` gives for the steps of a phase, [steps, parts, rows of a step, width]."""
    rows = parted[parts * phase.start : parts * phase.stop]
    return rows.reshape(len(phase), parts, phase.step, parted.shape[1])


def one_step(count: int) -> tuple[range, ...]:
    """The phases of sequences that have one row each."""
    return (range(0, count, count),) if count else ()


def steps_noted(batch: Any, slot: str) -> Steps:
    """The steps that `Steps.noted` wrote beside values in batch order; a gradient takes those of its forward op.

    Raises ValueError if there are none.
    """
    data, lod = sequences(batch, slot)
    if len(lod) != 3 or len(lod[1]) != len(data):
        raise ValueError(f"{slot} does not say which rows come when: it is no result of a recurrent unit")
    return _noted(*map(tuple, lod))


@lru_cache(32)
def _noted(starts: tuple[int, ...], rows: tuple[int, ...], order: tuple[int, ...]) -> Steps:
    return _steps(np.asarray(rows, np.int64), list(starts), np.asarray(order, np.int64))


def require_rows(state: Array | None, count: int, width: int, slot: str) -> None:
    """Raises ValueError unless an initial state, if there is one, has a row of this width for every sequence."""
    if state is not None and state.shape != (count, width):
        raise ValueError(f"{slot} has the dims {list(state.shape)}, it must have {[count, width]}: a row per sequence")
