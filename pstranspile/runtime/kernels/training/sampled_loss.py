"""Kernels. Losses over a few of many classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr
from pstranspile.runtime.kernels.context import Surroundings
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel, wanted
from pstranspile.runtime.kernels.numeric import as_matrix, check_ids
from pstranspile.runtime.kernels.random.mersenne import mersenne_words
from pstranspile.runtime.kernels.random.row_numbers import Rows
from pstranspile.runtime.kernels.random.streams import words
from pstranspile.runtime.kernels.rows import add_rows
from pstranspile.runtime.values import Array, SelectedRows

# Kernels: what both losses share


def _scores(x: Array, weight: Array, bias: Array | None, classes: Array) -> Array:
    """For each row of x its products with the rows `classes` [rows, n] of the weight, plus their bias."""
    scores = np.matmul(weight[classes], x[:, :, None])[:, :, 0]
    return scores if bias is None else scores + bias.reshape(-1)[classes]


def _input_gradient(gradient: Array, weight: Array, classes: Array) -> Array:
    return np.matmul(gradient[:, None, :], weight[classes])[:, 0, :]


def _weight_gradient(
    gradient: Array, x: Array, classes: Array, used: Array | None, weight: Array, sparse: bool
) -> Array | SelectedRows:
    """The gradient of the weight: dense, or SelectedRows of the used rows (None: all) in ascending order."""
    value = gradient[:, :, None] * x[:, None, :]
    if used is None:
        classes, value = classes.reshape(-1), value.reshape(-1, x.shape[1])
    else:
        classes, value = classes[used], value[used]
    if not sparse:
        return _scattered(weight.shape, classes, value)
    rows, places = np.unique(classes, return_inverse=True)
    result = _scattered((len(rows), *weight.shape[1:]), places.reshape(-1), value)
    return SelectedRows(rows.astype("int64"), result, len(weight))


def _scattered(shape: tuple[int, ...], rows: Array, value: Array) -> Array:
    result = np.zeros(shape, value.dtype)
    add_rows(result, rows.reshape(-1), value)
    return result


# Kernels: nce


def _sampler(op: Op) -> int:
    sampler = int_attr(op, "sampler")
    if sampler not in (0, 1, 2):
        raise ValueError(f"sampler is {sampler}, not 0 (uniform), 1 (log uniform) or 2 (custom)")
    return sampler


_Expected: TypeAlias = Callable[["Array | None", Array, Any], Array]
"""From the listed probabilities, classes and a dtype to the expected count of each class among the samples."""


def _expected(op: Op) -> _Expected:
    """The function that gives expected counts of classes, rounded to float32 as in Fluid."""
    count, samples = int_attr(op, "num_total_classes"), np.float32(int_attr(op, "num_neg_samples"))

    def uniform(_custom: Array | None, classes: Array, dtype: Any) -> Array:
        return np.full(classes.shape, np.float32(1 / count) * samples, dtype)

    def log_uniform(_custom: Array | None, classes: Array, dtype: Any) -> Array:
        likely = np.log((classes + 2) / (classes + 1)) / float(np.float32(np.log(count)))
        return (likely.astype("float32") * samples).astype(dtype)

    def listed(custom: Array | None, classes: Array, dtype: Any) -> Array:
        if custom is None:
            raise ValueError("sampler 2 needs CustomDistProbs")
        return (custom.reshape(-1)[classes].astype("float32") * samples).astype(dtype)

    return (uniform, log_uniform, listed)[_sampler(op)]


def _draw(op: Op, count: int, bits: _Bits, alias: Array | None, probabilities: Array | None) -> Array:
    """`count` classes, drawn as Fluid's samplers do from the same random words."""
    classes, sampler = int_attr(op, "num_total_classes"), _sampler(op)
    if sampler == 0:
        return evenly(bits(64, count), 64, classes)
    if sampler == 1:
        powers = np.exp(bits(64, count) * 2.0**-64 * np.log(classes))
        return (powers.astype("int64") - 1) % max(classes - 1, 1)
    if alias is None or probabilities is None:
        raise ValueError("sampler 2 needs CustomDistAlias and CustomDistAliasProbs")
    # A. J. Walker's alias method: a uniform class or its alias, selected by a second number
    drawn = bits(32, 3 * count).reshape(-1, 3)
    chosen, fraction = evenly(drawn[:, 0], 32, classes), drawn[:, 1] * 2.0**-64 + drawn[:, 2] * 2.0**-32
    other = alias.reshape(-1)[chosen].astype("int64")
    return np.where((fraction > probabilities.reshape(-1)[chosen]) & (other >= 0), other, chosen)


def evenly(words: Array, width: int, classes: int) -> Array:
    """Uniform classes from random words of this many bits, like g++'s uniform_int_distribution."""
    return np.minimum(words // np.uint64((2**width - 1) // classes), np.uint64(classes - 1)).astype("int64")


_Bits: TypeAlias = Callable[[int, int], Array]
"""From a width in bits (32 or 64) and a count to that many random words, as uint64."""


def _random_bits(op: Op, rows: int, surroundings: Surroundings) -> _Bits:
    """The random words of the op's seed, which Fluid draws, or of the program's; equally many for each row."""
    seed, source = int_attr(op, "seed"), op.inputs["Input"][0]

    def seeded(width: int, count: int) -> Array:
        batch_rows = surroundings.rows(source, (rows, count // max(rows, 1))) or Rows.one(count)
        places = batch_rows.positions()
        most = int(places.max(initial=-1)) + 1
        if width == 64:
            return mersenne_words(seed, most)[places]
        return np.frombuffer(np.random.RandomState(seed).bytes(4 * most), "<u4").astype("uint64")[places]

    def fresh(width: int, count: int) -> Array:
        name = op.output("SampleLabels") or op.type
        key, offset = surroundings.stream(name, 0, source, (rows, count // max(rows, 1)))
        return words(key, offset, count) >> np.uint64(64 - width)

    return seeded if seed else fresh


@kernel("nce", "Cost SampleLogits SampleLabels", lod="none")
def _nce_values(op: Op) -> Run:
    negatives, count = ints_attr(op, "custom_neg_classes"), int_attr(op, "num_neg_samples")
    expected = _expected(op)

    def run(
        Input: Array,
        Label: Array,
        Weight: Array,
        Bias: Array | None,
        SampleWeight: Array | None,
        CustomDistProbs: Array | None,
        CustomDistAlias: Array | None,
        CustomDistAliasProbs: Array | None,
        surroundings: Surroundings,
    ) -> tuple[Array, Array, Array]:
        label, rows = as_matrix(Label), len(Input)
        if negatives:
            drawn = np.broadcast_to(np.array(negatives, "int64"), (rows, len(negatives)))
        else:
            drawn = _draw(op, rows * count, _random_bits(op, rows, surroundings), CustomDistAlias, CustomDistAliasProbs)
            drawn = drawn.reshape(rows, count)
        classes = np.concatenate([label, drawn], axis=1)
        check_ids(classes, len(Weight), "class")
        share = 1 / (1 + np.exp(-_scores(Input, Weight, Bias, classes)))
        noise = expected(CustomDistProbs, classes, share.dtype)
        true = label.shape[1]
        cost = -np.log(np.concatenate([share[:, :true], noise[:, true:]], axis=1) / (share + noise))
        if SampleWeight is not None:
            cost *= SampleWeight.reshape(-1, 1)[: len(cost)]
        return np.add.reduce(cost, axis=1, keepdims=True), share, classes.astype("int64")

    return run


@plain_kernel("nce_grad", "Input@GRAD Weight@GRAD Bias@GRAD", lod="none")
def _nce_grad(
    Input: Array,
    Label: Array,
    Weight: Array,
    Bias: Array | None,
    SampleWeight: Array | None,
    CustomDistProbs: Array | None,
    SampleLogits: Array,
    SampleLabels: Array,
    Cost_GRAD: Array,
    *,
    is_sparse: bool,
    wants_Input_GRAD: bool,
    wants_Bias_GRAD: bool,
    expected: _Expected = per_op(_expected),
) -> tuple[Array | None, Array | SelectedRows, Array | None]:
    share, classes, true = SampleLogits, SampleLabels, as_matrix(Label).shape[1]
    noise = expected(CustomDistProbs, classes, share.dtype)
    both = share + noise
    gradient = share * (1 - share) / both
    gradient[:, :true] = noise[:, :true] * (share[:, :true] - 1) / both[:, :true]
    gradient *= Cost_GRAD.reshape(-1, 1)
    if SampleWeight is not None:
        gradient *= SampleWeight.reshape(-1, 1)[: len(gradient)]
    bias_grad = None
    if wants_Bias_GRAD and Bias is not None:
        bias_grad = _scattered((Bias.size,), classes, gradient.reshape(-1)).reshape(Bias.shape)
    input_grad = _input_gradient(gradient, Weight, classes) if wants_Input_GRAD else None
    return input_grad, _weight_gradient(gradient, Input, classes, None, Weight, is_sparse), bias_grad


# Kernels: hierarchical_sigmoid


class _Paths(NamedTuple):
    """The path from the root to every row's class, [rows, steps]: at each step a row of W, and the bit to predict.

    Steps beyond the end of a path are not `used`.
    """

    nodes: Array
    bits: Array
    used: Array


def _paths(op: Op, label: Array, table: Array | None, code: Array | None) -> _Paths:
    """The given paths, or those of the complete binary tree whose leaves are numbered from num_classes on."""
    if table is not None:
        if code is None:
            raise ValueError("PathTable needs PathCode")
        ended = np.logical_or.accumulate(table < 0, axis=1)
        return _Paths(np.where(ended, 0, table), (code > 0) & ~ended, ~ended)
    classes = int_attr(op, "num_classes", 2)
    check_ids(label, classes, "the label")
    leaf = label.reshape(-1, 1).astype("int64") + classes
    step = np.arange((classes - 1).bit_length())
    used = leaf >> (step + 1) > 0
    return _Paths(np.where(used, (leaf >> (step + 1)) - 1, 0), (leaf >> step & 1).astype(bool) & used, used)


@plain_kernel("hierarchical_sigmoid", "Out PreOut", lod="Out")
def _hierarchical_sigmoid_values(
    X: Array, W: Array, Label: Array, PathTable: Array | None, PathCode: Array | None, Bias: Array | None, *, op: Op
) -> tuple[Array, Array]:
    paths = _paths(op, Label, PathTable, PathCode)
    scores = np.minimum(np.maximum(_scores(X, W, Bias, paths.nodes), -40), 40) * paths.used
    # Steps beyond the end count with a score of 0, as in Fluid: each adds log(2) to the loss
    losses = np.log1p(np.exp(scores))
    return np.add.reduce(losses - scores * paths.bits, axis=1, keepdims=True), losses


@kernel("hierarchical_sigmoid_grad", "X@GRAD W@GRAD Bias@GRAD", lod="each")
def _hierarchical_sigmoid_grad(op: Op) -> Run:
    sparse = flag(op, "is_sparse")
    wants_x, wants_bias = wanted(op, "X@GRAD"), wanted(op, "Bias@GRAD")

    def run(
        X: Array,
        W: Array,
        Label: Array,
        PathTable: Array | None,
        PathCode: Array | None,
        Bias: Array | None,
        PreOut: Array,
        Out_GRAD: Array,
    ) -> tuple[Array | None, Array | SelectedRows, Array | None]:
        nodes, bits, used = _paths(op, Label, PathTable, PathCode)
        gradient = (1 - np.exp(-PreOut) - bits) * used * Out_GRAD.reshape(-1, 1)
        bias_grad = None
        if wants_bias and Bias is not None:
            bias_grad = _scattered((Bias.size,), nodes[used], gradient[used]).reshape(Bias.shape)
        x_grad = _input_gradient(gradient, W, nodes) if wants_x else None
        return x_grad, _weight_gradient(gradient, X, nodes, used, W, sparse), bias_grad

    return run
