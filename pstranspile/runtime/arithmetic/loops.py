"""Compiled loops: they do in one pass over float32 arrays what numpy does in several, with the same bits.

Each function gives True when it has done its work. It gives False if it has changed nothing and numpy must do it: the
package was installed without a C compiler, or an array is not C-contiguous float32. The comments of `_loops.h` state
the formulas.
"""

from __future__ import annotations

import importlib
from binascii import crc32
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pstranspile.runtime.values import Array

_loops: Any = None
with suppress(ImportError):
    _loops = importlib.import_module("pstranspile.runtime.arithmetic._loops")


def _is_current(checksum: str) -> bool:
    """Whether a module was made from the sources beside this file, which in a working copy may have changed since.

    Without sources nothing has changed.
    """
    sources = [Path(__file__).with_name(name) for name in ("_loops.h", "_loops.c")]
    if not all(source.exists() for source in sources):
        return True
    return f"{crc32(b''.join(source.read_bytes() for source in sources)):08x}" == checksum


COMPILED = _loops is not None and _is_current(_loops.SOURCE)
"""Whether there are compiled loops, made from the sources beside this file."""


class AdamFactors(NamedTuple):
    """How much of the old moments Adam keeps, how much of the gradient and its square it adds, and what it adds to the
    root of the second moment.
    """

    kept1: float
    new1: float
    kept2: float
    new2: float
    epsilon: float


def sgd(param: Array, gradient: Array, new: Array, rate: float) -> bool:
    """Sets `new`, which may be `param`, to the parameter after a step."""
    return COMPILED and _loops.sgd(param, gradient, new, rate)


def momentum(
    param: Array, gradient: Array, velocity: Array, new: Array, mu: float, rate: float, nesterov: bool
) -> bool:
    """Updates the velocity, and sets `new`, which may be `param`, to the parameter after a step."""
    return COMPILED and _loops.momentum(param, gradient, velocity, new, mu, rate, nesterov)


def adam(
    param: Array, gradient: Array, moment1: Array, moment2: Array, new: Array, factors: AdamFactors, rate: float
) -> bool:
    """Updates the moments, and sets `new`, which may be `param`, to the parameter after a step."""
    return COMPILED and _loops.adam(param, gradient, moment1, moment2, new, *factors, rate)


def adagrad(param: Array, gradient: Array, moment: Array, rate: float, epsilon: float) -> bool:
    """Updates the moment and the parameter."""
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
    """Sets `out`, which may be `x`, to every element minus the largest one along the last axis, at least `least`."""
    return COMPILED and _loops.below_largest(x, out, least)


def erf(x: Array, out: Array, table: Array, steps: int) -> bool:
    """Sets `out` to the error function of `x`, by series of three terms around points that are 1 / `steps` apart:
    `table[n, k]` (float64) is the coefficient of the power n around k / steps.
    """
    return COMPILED and _loops.erf(x, out, table, steps)


def lstm_cell(c: Array, i: Array, f: Array, s: Array, out: Array) -> bool:
    """Sets `out` to the cell of a long short-term memory: c * i + s * f."""
    return COMPILED and _loops.lstm_cell(c, i, f, s, out)


class LstmSlopes(NamedTuple):
    """The local derivatives of all steps of a long short-term memory, [rows, h]: of the hidden state by the input of
    the output gate, and by the cell; of the cell by the inputs of the candidate and of the other gates [3, rows, h],
    and by the cell before.
    """

    output: Array
    cell: Array
    inner: Array
    kept: Array


def lstm_back(grad: Array, state: Array, cell: Array, slopes: LstmSlopes, gates: Array, start: int, count: int) -> bool:
    """Goes back through a step, the rows from `start` on, `count` of them.

    Adds `state` to the gradient of the hidden states `grad` [rows, h], turns `cell` from the gradient of the step's
    cell that comes from later steps into that of the cell before, and sets the gradients of the gates' inputs in
    `gates` [4, rows, h].
    """
    return COMPILED and _loops.lstm_back(grad, state, cell, *slopes, gates, start, count)


def unfold(x: Array, windows: Array, geometry: Array) -> bool:
    """Sets `windows` [images, channels, rows, columns, down, right] to the windows of the images
    [images, channels, height, width], with zeros outside of these.

    `geometry` has fourteen int64: these eight dims (images, channels, height, width, rows, columns, down, right), then
    the steps between windows, the distances between elements of a window, and the padding before the first row and
    column, each along the height and along the width.
    """
    return COMPILED and _loops.unfold(x, windows, geometry)


def fold(x: Array, windows: Array, geometry: Array) -> bool:
    """Sets every element of the images to the sum of all its occurrences in the windows; see `unfold`."""
    return COMPILED and _loops.fold(x, windows, geometry)


def scale_channels(x: Array, scale: Array, bias: Array, out: Array) -> bool:
    """Sets `out` to x * scale + bias, with a scale and a bias for each channel, dim 1 of `x`."""
    return COMPILED and _loops.scale_channels(x, scale, bias, out)


def squares(x: Array, mean: Array, out: Array) -> bool:
    """Sets `out` to the squares of the distances from the mean of the channel, dim 1 of `x`."""
    return COMPILED and _loops.squares(x, mean, out)


def norm_products(x: Array, dy: Array, mean: Array, inverse: Array, out: Array) -> bool:
    """Sets `out` to (x - mean) * inverse * dy, with a mean and an inverse root of the variance for each channel."""
    return COMPILED and _loops.norm_products(x, dy, mean, inverse, out)


def norm_grad(
    x: Array, dy: Array, mean: Array, inverse: Array, bias_grad: Array, scale_grad: Array, factor: Array, out: Array
) -> bool:
    """Sets `out` to the gradient of a batch normalisation, from those of its bias and scale; `factor` is
    scale * inverse over the number of a channel's elements.
    """
    return COMPILED and _loops.norm_grad(x, dy, mean, inverse, bias_grad, scale_grad, factor, out)


def shares(x: Array, sums: Array) -> bool:
    """Divides every row of `x`, along the last axis, by its sum, and sets `sums` to these."""
    return COMPILED and _loops.shares(x, sums)


def softmax_grad(y: Array, dy: Array, out: Array) -> bool:
    """Sets `out` to the gradient of a softmax along the last axis, whose result was `y`."""
    return COMPILED and _loops.softmax_grad(y, dy, out)


def pick(x: Array, labels: Array, out: Array, ignored: int) -> bool:
    """Sets `out` to the element of every row of `x` at its label. False also where a label is no class or `ignored`."""
    return COMPILED and _loops.pick(x, labels, out, ignored)


def put(out: Array, labels: Array, value: Array, ignored: int) -> bool:
    """Sets every row of `out` to 0, and to an element of `value` at its label. False also where `pick` gives it."""
    return COMPILED and _loops.put(out, labels, value, ignored)


def add_rows(target: Array, rows: Array, value: Array) -> bool:
    """Adds `value[i]` to `target[rows[i]]` for each i in order. False also for a row that the target does not have."""
    return COMPILED and _loops.add_rows(target, rows, value)


def merge_rows(rows: Array, places: Array, value: Array, merged: Array, sums: Array) -> int:
    """Merges equal ones of ascending `rows`, and sums their values in order; `places` are those of the values.

    Sets the first elements of `merged` and `sums`, which are as long as `rows` and `value`. Gives their number, which
    is that of the different rows; if all differ, nothing is set. 0 if that is not done.
    """
    return _loops.merge_rows(rows, places, value, merged, sums) if COMPILED else 0
