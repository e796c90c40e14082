"""Compiled loops, which compute in one pass over float32 arrays what numpy computes in several, with the same bits.

Each function returns True if it has done its work. It returns False if it has changed nothing and numpy must do the
work: the package was installed without a C compiler, or an array is not C-contiguous float32. The comments of
`_loops.h` state the formulas.
"""

from __future__ import annotations

import importlib
from binascii import crc32
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pstranspile.runtime.values import Array

_loops: Any = None
with suppress(ImportError):
    _loops = importlib.import_module("pstranspile.runtime.arithmetic._loops")


def _is_current(checksum: str) -> bool:
    """Whether the compiled module was built from the sources beside this file, which may have changed in a working
    copy.

    True without sources.
    """
    sources = [Path(__file__).with_name(name) for name in ("_loops.h", "_loops.c")]
    if not all(source.exists() for source in sources):
        return True
    return f"{crc32(b''.join(source.read_bytes() for source in sources)):08x}" == checksum


COMPILED = _loops is not None and _is_current(_loops.SOURCE)
"""Whether there are compiled loops, built from the sources beside this file."""


class AdamFactors(NamedTuple):
    """Factors of an Adam step: those of the old moments, those of the gradient and of its square, and the number that
    is added to the root of the second moment.
    """

    kept1: float
    new1: float
    kept2: float
    new2: float
    epsilon: float


def sgd(param: Array, gradient: Array, new: Array, rate: float) -> bool:
    """Computes a step of SGD: sets `new`, which may be `param`, to the updated parameter."""
    return COMPILED and _loops.sgd(param, gradient, new, rate)


def momentum(
    param: Array, gradient: Array, velocity: Array, new: Array, mu: float, rate: float, nesterov: bool
) -> bool:
    """Computes a step of momentum: updates the velocity, and sets `new`, which may be `param`, to the updated
    parameter.
    """
    return COMPILED and _loops.momentum(param, gradient, velocity, new, mu, rate, nesterov)


def adam(
    param: Array, gradient: Array, moment1: Array, moment2: Array, new: Array, factors: AdamFactors, rate: float
) -> bool:
    """Computes a step of Adam: updates the moments, and sets `new`, which may be `param`, to the updated parameter."""
    return COMPILED and _loops.adam(param, gradient, moment1, moment2, new, *factors, rate)


def adagrad(param: Array, gradient: Array, moment: Array, rate: float, epsilon: float) -> bool:
    """Computes a step of Adagrad: updates the moment and the parameter in place."""
    return COMPILED and _loops.adagrad(param, gradient, moment, rate, epsilon)


def tanh_grad(y: Array, dy: Array, out: Array) -> bool:
    """Sets `out` to the gradient of a tanh whose result was `y`."""
    return COMPILED and _loops.tanh_grad(y, dy, out)


def sigmoid_grad(y: Array, dy: Array, out: Array) -> bool:
    """Sets `out` to the gradient of a sigmoid whose result was `y`."""
    return COMPILED and _loops.sigmoid_grad(y, dy, out)


def relu_grad(y: Array, dy: Array, out: Array) -> bool:
    """Sets `out` to the gradient of a relu whose result was `y`."""
    return COMPILED and _loops.relu_grad(y, dy, out)


def below_largest(x: Array, out: Array, least: float) -> bool:
    """Sets `out`, which may be `x`, to every element minus the largest one along the last axis, but to no less than
    `least`.
    """
    return COMPILED and _loops.below_largest(x, out, least)


def negative_within(x: Array, out: Array, limit: float) -> bool:
    """Sets `out` to -`x`, but to no less than -`limit` and no more than `limit`; NaN stays."""
    return COMPILED and _loops.negative_within(x, out, limit)


def sum_all(x: Array, out: Array) -> bool:
    """Sets `out` [1] to the sum of all elements. Also returns False if it is 0."""
    return COMPILED and _loops.sum_all(x, out)


def erf(x: Array, out: Array, table: Array, steps: int) -> bool:
    """Sets `out` to the error function of `x`, by series of three terms around points that are 1 / `steps` apart:
    `table[n, k]` (float64) is the coefficient of the power n around k / steps.
    """
    return COMPILED and _loops.erf(x, out, table, steps)


def _take_from_numpy() -> bool:
    """Gives the loops numpy's functions; whether there are loops and they can call these functions."""
    return COMPILED and _loops.use_numpy(np.exp, np.log, np.tanh, np.matmul)


CALLS_NUMPY = _take_from_numpy()
"""Whether there are compiled loops, and they can call numpy's functions."""


def softmax(x: Array, out: Array, least: float) -> bool:
    """Sets `out`, which may be `x`, to the exponentials of what `below_largest` gives, divided by their sum along the
    last axis.
    """
    return CALLS_NUMPY and _loops.softmax(x, out, least)


def gru(
    x: Array, bias: Array | None, gates: Array, candidate: Array, first: Array, steps: tuple[Array, Array], origin: bool
) -> tuple[Array, Array, Array, Array] | None:
    """Runs the steps of a gated recurrent unit with the usual activations, from the first states [sequences, h].

    `steps` are where each step starts in the order of steps, and the row of `x` [rows, 3 h] at each place in it. The
    matrices are those of both gates [h, 2 h] and of the candidate [h, h]. Gives the gates and candidates [rows, 3 h],
    the reset states and the states [rows, h], all in the order of steps, and the states in the order of `x`; None if
    numpy must do the work.
    """
    if not CALLS_NUMPY or x.dtype != np.float32:
        return None
    rows, width = len(x), len(candidate)
    made = np.empty((rows, 3 * width), np.float32), *(np.empty((rows, width), np.float32) for _ in range(3))
    return made if _loops.gru(np.ascontiguousarray(x), bias, gates, candidate, first, *steps, origin, *made) else None


class GruGradients(NamedTuple):
    """Gradients of the first states, of the input in its order, of the weights as one tensor, and of the bias."""

    state: Array
    x: Array
    weight: Array
    bias: Array


def gru_back(
    values: tuple[Array, Array, Array],
    grad: Array,
    first: Array,
    weight: Array,
    transposed: tuple[Array, Array],
    steps: tuple[Array, Array],
    origin: bool,
) -> GruGradients | None:
    """Runs the steps of `gru` backwards, from its gates, reset states and states, the gradient of the states in the
    order of the input, the weights, and the transposed matrices of these. None if numpy must do the work.
    """
    gates, reset, hidden = values
    if not CALLS_NUMPY or gates.dtype != np.float32:
        return None
    made = GruGradients(
        np.zeros_like(first), np.empty_like(gates), np.empty_like(weight), np.empty(gates.shape[1:], gates.dtype)
    )
    between = np.empty_like(hidden), np.empty_like(gates)
    state, x, of_weight, bias = made
    grad = np.ascontiguousarray(grad)  # half of the gradient of both directions
    given = gates, hidden, grad, first, *transposed, *steps, origin
    return made if _loops.gru_back(*given, state, *between, x, reset, of_weight, bias) else None


class LstmResults(NamedTuple):
    """The results of a long short-term memory of width h: in the order of steps the inputs and gates [rows, 4 h], the
    activations of cells, the hidden states and the outputs, which are projections if there is one; in the order of the
    input the outputs and the cells.
    """

    gates: Array
    active: Array
    hidden: Array
    outputs: Array
    states: Array
    cells: Array


def lstm(
    x: Array,
    weights: tuple[Array, Array | None, Array, Array | None],
    first: tuple[Array, Array],
    steps: tuple[Array, Array],
    tanh_of_projection: bool,
) -> LstmResults | None:
    """Runs the steps of a long short-term memory with the usual activations, from the first states and cells.

    `weights` are the bias [4 h], the peepholes [3, h], the matrix [state, 4 h] and the projection [h, state]; `steps`
    are those of `gru`. None if numpy must do the work.
    """
    if not CALLS_NUMPY or x.dtype != np.float32:
        return None
    rows, width, state = len(x), first[1].shape[-1], first[0].shape[-1]
    gates, active, hidden = (np.empty((rows, size), np.float32) for size in (4 * width, width, width))
    outputs = hidden if weights[3] is None else np.empty((rows, state), np.float32)
    made = LstmResults(gates, active, hidden, outputs, np.empty((rows, state), np.float32), np.empty_like(active))
    x = np.ascontiguousarray(x)
    return made if _loops.lstm(x, *weights, *first, *steps, tanh_of_projection, *made) else None


class LstmGradients(NamedTuple):
    """Gradients of the first states and cells; in the order of steps the outputs and cells before each row, the
    gradients of projections before their activation, and those of the input; these in the order of the input as well.
    """

    state: Array
    cell: Array
    before: Array
    cells_before: Array
    projected: Array
    gates: Array
    x: Array


def lstm_back(
    values: tuple[Array, Array, Array, Array],
    grad: Array,
    weights: tuple[Array, Array | None],
    peepholes: Array | None,
    first: tuple[Array, Array],
    steps: tuple[Array, Array],
    tanh_of_projection: bool,
) -> LstmGradients | None:
    """Runs the steps of `lstm` backwards.

    `values` are its gates, cells, activations of cells, and outputs; cells, outputs and their gradient `grad` are in
    the order of the input. `weights` are the transposed matrix and projection. None if numpy must do the work.
    """
    gates, cells, _, outputs = values
    if not CALLS_NUMPY or gates.dtype != np.float32:
        return None
    states, of_cells, of_gates = (np.empty_like(value) for value in (outputs, cells, gates))
    gradients = LstmGradients(
        np.zeros_like(first[0]),
        np.zeros_like(first[1]),
        states,
        of_cells,
        np.empty_like(outputs),
        of_gates,
        np.empty_like(gates),
    )
    grad = np.ascontiguousarray(grad)  # half of the gradient of both directions
    done = _loops.lstm_back(*values, grad, *first, *weights, *steps, tanh_of_projection, peepholes, *gradients)
    return gradients if done else None


def lstm_bias_grad(gradients: LstmGradients, cells: Array, rows: Array, out: Array) -> bool:
    """Sets `out` [7 h] to the gradients of the bias of `lstm` and of its peepholes, from its cells and the row of the
    input (int64) at each place in the order of steps.
    """
    return COMPILED and _loops.lstm_bias_grad(gradients.gates, gradients.cells_before, cells, rows, out)


def lstm_unit(x: Array, before: Array, bias: float, cell: Array, hidden: Array) -> bool:
    """Sets `cell` and `hidden` [rows, h] to those of one step of a long short-term memory, from its inputs of i, f, o
    and g [rows, 4 h], the cells before, and a number added to f.
    """
    return CALLS_NUMPY and _loops.lstm_unit(x, before, bias, cell, hidden)


def lstm_unit_back(
    x: Array, before: Array, cell: Array, grads: tuple[Array, Array], bias: float, x_grad: Array, before_grad: Array
) -> bool:
    """Sets the gradients of the arguments of `lstm_unit` from those of the cells and the hidden states, `grads`."""
    return CALLS_NUMPY and _loops.lstm_unit_back(x, before, cell, *grads, bias, x_grad, before_grad)


def sum_runs(x: Array, starts: Array, out: Array, zero: float) -> bool:
    """Sets `out` to the sum of every run of rows, none of them empty, that begins at `starts` (int64), in the order in
    which numpy adds columns, from `zero` (0 or -0) on. Also returns False if a run has more than 129 rows.
    """
    return COMPILED and _loops.sum_runs(x, starts, out, zero)


def largest_of_runs(x: Array, offsets: Array, out: Array, places: Array) -> bool:
    """Sets `out` to the largest element of every column of each sequence of rows, none of them empty, and `places`
    (int32) to the first row that has it; NaN is the largest.

    `offsets` (int64) are the starts of the sequences, and the number of rows.
    """
    return COMPILED and _loops.largest_of_runs(x, offsets, out, places)


def unfold_runs(x: Array, offsets: Array, start: int, length: int, windows: Array) -> bool:
    """Sets `windows` [rows, length * width] to the rows of `x` around each row of a sequence, from `start` rows later
    on, with zeros outside of the sequence. No sequence is empty.
    """
    return COMPILED and _loops.unfold_runs(x, offsets, start, length, windows)


def fold_runs(x: Array, offsets: Array, start: int, length: int, windows: Array) -> bool:
    """Adds to every row of `x`, which is zeros, all its occurrences in the windows; the inverse layout of
    `unfold_runs`.
    """
    return COMPILED and _loops.fold_runs(x, offsets, start, length, windows)


class Chains(NamedTuple):
    """The layout of chains of labels: the label of each row (int64), the offsets of the sequences (int64), and the
    steps of `gru`.
    """

    labels: Array
    offsets: Array
    steps: tuple[Array, Array]


def chains_ahead(
    x: Array, w: Array, chains: Chains, exps: tuple[Array, Array], out: Array, logs: Array, lasts: Array
) -> bool:
    """Runs chains of labels forwards from the weights `x` [rows, labels] of each label, in logarithms, and those of
    first labels, last labels, and transitions from each label, the rows of `w`.

    Sets `exps` to the exponentials of `x` less the largest of each row, and of `w`; `out` to the forward weights of the
    rows, which sum to 1; `logs` [rows] to numbers whose sum over a sequence is the logarithm of the weight of all paths
    over that of its labels, but for the weights of last labels; and `lasts` to the last row of `out` of each sequence
    that has rows.
    """
    labels, offsets, steps = chains
    return CALLS_NUMPY and _loops.chains_ahead(x, w, labels, offsets, *steps, *exps, out, logs, lasts)


def chains_back(
    exps: tuple[Array, Array], chains: Chains, alpha: Array, run_grads: Array, x_grad: Array, w_grad: Array
) -> bool:
    """Sets the gradients of `x` and `w` of `chains_ahead` from what it made, and the gradient of the logarithm of each
    sequence.
    """
    labels, offsets, steps = chains
    return CALLS_NUMPY and _loops.chains_back(*exps, labels, offsets, *steps, alpha, run_grads, x_grad, w_grad)


def best_path(x: Array, ends: Array, into: Array, steps: tuple[Array, Array], sequences: int, path: Array) -> bool:
    """Sets `path` (int64) to the labels of the largest sum along each sequence, from the numbers `x` of each label, of
    first and last ones `ends`, and of transitions [to, from].
    """
    return COMPILED and _loops.best_path(x, ends, into, *steps, sequences, path)


def unfold(x: Array, windows: Array, geometry: Array) -> bool:
    """Sets `windows` [images, channels, rows, columns, down, right] to the windows of the images [images, channels,
    height, width], with zeros outside of the images.

    `geometry` has fourteen int64: these eight dims (images, channels, height, width, rows, columns, down, right), then
    the steps between windows, the distances between elements of a window, and the padding before the first row and
    column, each along the height and along the width.
    """
    return COMPILED and _loops.unfold(x, windows, geometry)


def fold(x: Array, windows: Array, geometry: Array) -> bool:
    """Sets every element of the images `x` to the sum of all its occurrences in the windows; the inverse layout of
    `unfold`.
    """
    return COMPILED and _loops.fold(x, windows, geometry)


def scale_channels(x: Array, scale: Array, bias: Array, out: Array) -> bool:
    """Sets `out` to x * scale + bias, with a scale and a bias for each channel, dim 1 of `x`."""
    return COMPILED and _loops.scale_channels(x, scale, bias, out)


def squares(x: Array, mean: Array, out: Array) -> bool:
    """Sets `out` to (x - mean) squared, with a mean for each channel, dim 1 of `x`."""
    return COMPILED and _loops.squares(x, mean, out)


def norm_products(x: Array, dy: Array, mean: Array, inverse: Array, out: Array) -> bool:
    """Sets `out` to (x - mean) * inverse * dy, with a mean and an inverse standard deviation for each channel, dim 1 of
    `x`.
    """
    return COMPILED and _loops.norm_products(x, dy, mean, inverse, out)


def norm_grad(
    x: Array, dy: Array, mean: Array, inverse: Array, bias_grad: Array, scale_grad: Array, factor: Array, out: Array
) -> bool:
    """Sets `out` to the gradient of a batch normalisation's input, from the gradients of its bias and scale; `factor`
    is scale * inverse divided by the number of elements of a channel.
    """
    return COMPILED and _loops.norm_grad(x, dy, mean, inverse, bias_grad, scale_grad, factor, out)


def sum_rows(x: Array, sums: Array) -> bool:
    """Sets `sums` to the sum of the rows of `x`, added in order; a row is as large as `sums`, and has several
    elements.
    """
    return COMPILED and _loops.sum_rows(x, sums)


def shares(x: Array, sums: Array) -> bool:
    """Divides every row of `x`, along the last axis, by its sum, and sets `sums` to the sums."""
    return COMPILED and _loops.shares(x, sums)


def softmax_grad(y: Array, dy: Array, out: Array) -> bool:
    """Sets `out` to the gradient of a softmax along the last axis, whose result was `y`."""
    return COMPILED and _loops.softmax_grad(y, dy, out)


def pick(x: Array, labels: Array, out: Array, ignored: int) -> bool:
    """Sets `out` to the element of every row of `x` at its label. Also returns False if a label is no class or is
    `ignored`.
    """
    return COMPILED and _loops.pick(x, labels, out, ignored)


def put(out: Array, labels: Array, value: Array, ignored: int) -> bool:
    """Sets every row of `out` to 0, except for an element of `value` at its label. Also returns False if a label is no
    class or is `ignored`.
    """
    return COMPILED and _loops.put(out, labels, value, ignored)


def cross_entropy(x: Array, labels: Array, match: Array, loss: Array, ignored: int, limit: float) -> bool:
    """Sets `match` as `pick` does, and `loss` to its negative logarithm as `negative_within` limits it."""
    return CALLS_NUMPY and _loops.cross_entropy(x, labels, match, loss, ignored, limit)


def cross_entropy_grad(out: Array, labels: Array, grad: Array, match: Array, ignored: int) -> bool:
    """Sets `out` as `put` does, with the values -`grad` / `match`."""
    return COMPILED and _loops.cross_entropy_grad(out, labels, grad, match, ignored)


def put_largest(out: Array, places: Array, value: Array) -> bool:
    """Sets `out` [rows, width] to 0, except for an element of `value` [n, width] in each column at its place, the row
    in `places` (int32). Also returns False for a row that there is not.
    """
    return COMPILED and _loops.put_largest(out, places, value)


def add_rows(target: Array, rows: Array, value: Array) -> bool:
    """Adds `value[i]` to `target[rows[i]]` for each i in order. Also returns False for a row that the target does not
    have.
    """
    return COMPILED and _loops.add_rows(target, rows, value)


def take_rows(table: Array, rows: Array, out: Array) -> bool:
    """Sets `out[i]` to `table[rows[i]]` for each i. Also returns False for a row that the table does not have."""
    return COMPILED and _loops.take_rows(table, rows, out)


def merge_rows(rows: Array, value: Array, merged: Array, sums: Array) -> int:
    """Sums the values [n, ...] of equal rows, int64 [n], in order.

    Sets the first elements of `merged` to the different rows in ascending order, and those of `sums` to the sums; both
    are as long as `rows`. Returns the number of different rows. If all rows differ, it sets nothing. Returns 0 if numpy
    must do the work.
    """
    return _loops.merge_rows(rows, value, merged, sums) if COMPILED else 0


def sum_tables(rows: tuple[Array, ...], values: tuple[Array, ...], merged: Array, sums: Array) -> int:
    """Sums several sparse gradients of a table, as their dense tables would be summed: the values of equal rows of one,
    in order from 0 on, and then these sums. `rows` and `values` are those of each of up to eight gradients.

    Sets the first elements of `merged` and `sums` as `merge_rows` does. Returns the number of different rows, or 0 if
    numpy must do the work.
    """
    return _loops.sum_tables(rows, values, merged, sums) if COMPILED else 0


class Reach(IntEnum):
    """Which rows of a table an update by a sparse gradient changes.

    A row that occurs several times in the gradient is updated once, by the sum of its values in order, but for `EACH`.
    """

    EACH = 0
    """Each occurrence of a row updates it, in order."""
    GIVEN = 1
    """The rows that the gradient has."""
    GIVEN_FROM_ZERO = 2
    """The rows that the gradient has, by sums that begin with 0, as those of a dense gradient do: -0 becomes 0."""
    ALL = 3
    """Every row, by sums that begin with 0."""
    ALL_APART = 4
    """Every row; those that the gradient lacks by a step without a gradient."""


_SGD, _MOMENTUM, _NESTEROV, _ADAGRAD, _ADAM, _RMSPROP, _FTRL = 0, 1, 2, 3, 4, 5, 9


class RowUpdate(NamedTuple):
    """An update of rows of tables [height, ...], the parameter first, by an optimizer with these numbers."""

    optimizer: int
    reach: Reach
    tables: tuple[Array, ...]
    scales: tuple[float, ...]


class RowGradient(NamedTuple):
    """A sparse gradient of a table, and which rows of the table it changes: `value[i]` belongs to row `rows[i]`.

    With `apply`, the rows are found otherwise: it makes the update, and returns whether it has.
    """

    rows: Array
    value: Array
    reach: Reach
    apply: Callable[[RowUpdate], bool] | None = None


def _update_rows(optimizer: int, gradient: RowGradient, tables: tuple[Array, ...], scales: tuple[float, ...]) -> bool:
    """Computes a step of an optimizer on rows of tables [height, ...], the parameter first, in place.

    Rows may lie apart in memory. Also returns False for a row that the tables do not have.
    """
    rows, value, reach, apply = gradient
    if apply is not None:
        return apply(RowUpdate(optimizer, reach, tables, scales))
    return COMPILED and _loops.update_rows(optimizer, reach, rows, value, *tables, *scales)


def sgd_rows(param: Array, gradient: RowGradient, rate: float) -> bool:
    """Computes a step of SGD on rows of a table: adds `gradient` * -`rate`."""
    return _update_rows(_SGD, gradient, (param,), (-rate,))


def momentum_rows(param: Array, gradient: RowGradient, velocity: Array, mu: float, rate: float, nesterov: bool) -> bool:
    """Computes a step of momentum on rows of a table: updates the velocity and the parameter in place."""
    return _update_rows(_NESTEROV if nesterov else _MOMENTUM, gradient, (param, velocity), (mu, rate))


def adagrad_rows(param: Array, gradient: RowGradient, moment: Array, rate: float, epsilon: float) -> bool:
    """Computes a step of Adagrad on rows that a gradient has: updates the moment and the parameter in place."""
    return _update_rows(_ADAGRAD, gradient, (param, moment), (rate, epsilon))


def adam_rows(
    param: Array,
    gradient: RowGradient,
    moments: tuple[Array, Array],
    factors: AdamFactors,
    rate: float,
    other_epsilon: float,
) -> bool:
    """Computes a step of Adam on rows of a table: updates the moments and the parameter in place.

    Where every row is updated, those that the gradient lacks have `other_epsilon` added to the root.
    """
    return _update_rows(_ADAM, gradient, (param, *moments), (*factors, rate, other_epsilon))


class RmspropFactors(NamedTuple):
    """Numbers of an RMSProp step: the factors of the old average and of the gradient, the number that is added to the
    spread, or to its root if `of_root`, the factor of the old moment, and the rate.
    """

    decay: float
    weight: float
    epsilon: float
    mu: float
    rate: float


def rmsprop_rows(
    param: Array, gradient: RowGradient, states: tuple[Array, ...], factors: RmspropFactors, of_root: bool
) -> bool:
    """Computes a step of RMSProp on rows of a table: updates the parameter and the `states` in place, which are the
    moment, the average of squares and, if that is taken off, the average of gradients.
    """
    return _update_rows(_RMSPROP + 2 * (len(states) == 3) + of_root, gradient, (param, *states), factors)


def ftrl_rows(
    param: Array, gradient: RowGradient, accumulators: tuple[Array, Array], l1: float, l2: float, rate: float
) -> bool:
    """Computes a step of Ftrl, with a power of -0.5 of the rate, on rows of a table: updates the squared and the linear
    accumulator, and the parameter, in place.
    """
    return _update_rows(_FTRL, gradient, (param, *accumulators), (l1, 2 * l2, rate))


def split_rows(rows: Array, value: Array, ends: Array, starts: Array, parts: Array, values: Array) -> bool:
    """Divides the rows of a sparse gradient among the sections of a table, whose ends are `ends` (after a 0).

    Sets `parts` and `values`, which are as long as `rows` and `value`, to the rows of one section after the other,
    numbered from its start, and `starts`, as long as `ends`, to the place at which each section begins, and their
    number. Rows of a section keep their order. Also returns False for a row that the table does not have.
    """
    return COMPILED and _loops.split_rows(rows, value, ends, starts, parts, values)


def philox(blocks: Array, second: int, third: Array | None, key: int, out: Array) -> bool:
    """Sets `out` [n, 4] to the words of the generator Philox4x64 for these blocks of the stream `key` (128 bits).

    All arrays are int64, with the bits of uint64. `second` and `third` [n] are the next words of the counter.
    """
    return COMPILED and _loops.philox(blocks, second, third, key, key >> 64, out)


def uniform_rows(ids: Array, width: int, first: int, key: int, limits: tuple[float, float, float], out: Array) -> bool:
    """Sets `out` [n * width] to numbers of the stream `key` (128 bits) for rows of `width`.

    The row of an id (int64 [n], with the bits of uint64) begins at the element `first` + id * `width`.
    `limits` are the low end, the range, and the largest number that may come of rounding. All rows must lie below
    2**64.
    """
    return COMPILED and _loops.uniform_rows(ids, width, first, key, key >> 64, *limits, out)


def draw_mask(low: Array, high: Array, bound: int, out: Array) -> bool:
    """Sets `out` (uint8 [n, width]) to 1 where the random word of an element is at least `bound`, else to 0.

    `low` and `high` (int32 [n], with the bits of uint32) are the two words of each row.
    """
    return COMPILED and _loops.draw_mask(low, high, bound, out)


def row_words(places: Array, key: int, out: Array) -> bool:
    """Sets `out` (int64 [rows, width], with the bits of uint64) to random words of the stream `key` (128 bits) for the
    elements of rows at these places (int64) of a batch.
    """
    return COMPILED and _loops.row_words(places, key, key >> 64, out)


def masked(x: Array, mask: Array, divisor: float, out: Array) -> bool:
    """Writes `x * mask / divisor`, element by element, to `out`, which may be `x`; `mask` is uint8.

    False if there are no compiled loops, or not for these arrays.
    """
    return COMPILED and _loops.masked(x, mask, divisor, out)


def copy_each(values: tuple[Array, ...], parts: tuple[Array, ...]) -> bool:
    """Copies each of the values to the part in its place, which has the same dims. Changes no part if one does not."""
    return COMPILED and _loops.copy_each(values, parts)


def find_ids(wanted: Array, ids: Array, entries: Array, out: Array) -> bool:
    """Sets `out` to the place of each wanted id in `ids`, -1 if it has none, by a hash table (int32) whose entries are
    0, or one more than a place.
    """
    return COMPILED and _loops.find_ids(wanted, ids, entries, out)


class Lookup(NamedTuple):
    """A lookup of rows by ids: sets `places` as `find_ids` does, and each row of `results` [n, width] whose id has a
    place to the first `width` elements of that row.
    """

    wanted_ids: Array
    ids: Array
    entries: Array
    places: Array
    rows: Array
    results: Array


def look_up_tables(lookups: list[Lookup], threads: int = 1) -> list[int]:
    """Looks up rows of several tables; where they are many, without the interpreter's lock and on so many threads,
    which share out the tables and ranges of ids. Returns how many ids of each lookup have no place, or -1 if numpy must
    do its work.
    """
    return [missing for missing, _ in _loops.look_up_tables(lookups, threads)] if COMPILED else [-1] * len(lookups)


class HeldUpdate(NamedTuple):
    """An update of the rows of a table that ids have: `value[i]` is the gradient of the id `wanted_ids[i]`. It sets
    `places` as `find_ids` does; each row that is found is updated, and gets `number` in `seen` (uint32).
    """

    update: RowUpdate
    wanted_ids: Array
    value: Array
    ids: Array
    entries: Array
    seen: Array
    number: int
    places: Array


def update_tables(updates: list[HeldUpdate], threads: int = 1) -> list[tuple[int, int]]:
    """Updates rows of several tables; where they are many, without the interpreter's lock and on so many threads, which
    share out the tables and ranges of rows. A row is updated by one thread, so that the bits are the same.

    Returns of each how many different ids have no row, -1 if nothing is changed and numpy must do the work; and how
    many different ids there are. An update that reaches rows which its gradient lacks is left to numpy.
    """
    if not COMPILED:
        return [(-1, 0)] * len(updates)
    items = [(o, r, *tables, *scales, *rest) for (o, r, tables, scales), *rest in updates]
    return _loops.update_tables(items, threads)


def enter_rows(wanted: Array, ids: Array, entries: Array, places: Array, seen: Array, update: int) -> int:
    """Sets `places` as `find_ids` does, and `seen` (uint32) to `update` at each place. Returns how many ids have no
    place, or -1 if numpy must do the work.
    """
    return _loops.enter_rows(wanted, ids, entries, places, seen, update) if COMPILED else -1


def missing_ids(wanted: Array, ids: Array, entries: Array, height: int | None, missing: Array) -> int:
    """Sets the first elements of `missing`, which is as long as `wanted`, to the different wanted ids that have no
    place in `ids`, in ascending order. Returns how many they are; -1 if numpy must do the work, or if an id is below 0
    or not below `height` (None: ids may be any).
    """
    return _loops.missing_ids(wanted, ids, entries, -1 if height is None else height, missing) if COMPILED else -1


def move_rows(file: int, places: Array, row: int, front: int, memory: Array, rows: Array, writes: bool) -> bool:
    """Reads rows by place from a file in which each takes `row` bytes, or writes them; only the first bytes of each
    where `rows` has fewer. Those at places below `front` are also in `memory`, from which or to which they are copied.

    `memory` and `rows` are uint8. The system is first told of all rows that it must read. Returns False if Python must
    do the work, also if the file can't be read or written.
    """
    return COMPILED and _loops.move_rows(file, places, row, front, memory, rows, writes)


def enter_ids(ids: Array, entries: Array, start: int, stop: int) -> bool:
    """Enters the ids at the places `start` to `stop`, which it does not have yet, into a hash table (int32)."""
    return COMPILED and _loops.enter_ids(ids, entries, start, stop)


def group_ids(ids: Array, ends: Array, distinct: Array, back: Array) -> int:
    """Sets the first elements of `distinct` to the different ids of each section, int64 of any sign, in ascending
    order and section after section, and `back` to the index of each id among them. Both are as long as `ids`.

    `ends`, int64 [sections + 1], are the boundaries of the sections in `ids`, beginning with 0; they become those in
    `distinct`. Returns the number of different ids, or 0 if numpy must do the work.
    """
    return _loops.group_ids(ids, ends, distinct, back) if COMPILED else 0


def pack_messages(messages: list[Any], machines: dict[str, int], kinds: dict[str, int], start: int, rows: type) -> Any:
    """The body of a frame with messages, which begins at the offset `start` of the frame; None if Python must make it.

    `machines` and `kinds` number the machines and the kinds of messages; `rows` is the class of rows of tables.
    """
    return _loops.pack_messages(messages, machines, kinds, start, np.ndarray, rows) if COMPILED else None


def unpack_messages(
    data: memoryview, start: int, machines: list[str], kinds: tuple[str, ...], most: int, made: tuple[Any, ...]
) -> Any:
    """The messages of a frame, whose body begins at the offset `start`; None if Python must read it, because it is not
    well-formed or has values that are seldom sent.

    `made` has what values are made of: the class of arrays, the element types by their numbers, the class of rows of
    tables, and that of messages. At most `most` messages are read.
    """
    return _loops.unpack_messages(data, start, machines, kinds, most, made) if COMPILED else None
