"""Kernels of click-through models: counts of shows and clicks, data normalisation, hashes, and filtering by tags."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel, wanted
from pstranspile.runtime.kernels.ragged import plain, row_counts, sequences
from pstranspile.runtime.kernels.random.xxhash import row_hashes
from pstranspile.runtime.values import Array, LoDTensor


@kernel("cvm", "Y")
def _cvm_values(op: Op) -> Run:
    def with_counts(X: Array) -> Array:
        result = X.copy()
        logs = np.log(X[:, :2] + 1)
        result[:, 0] = logs[:, 0]
        result[:, 1] = logs[:, 1] - logs[:, 0]  # the logarithm of the share of clicks
        return result

    def without(X: Array) -> Array:
        return X[:, 2:].copy()

    return with_counts if flag(op, "use_cvm") else without


@kernel("cvm_grad", "X@GRAD", lod="own")
def _cvm_grad(op: Op) -> Run:
    skipped = 2 if flag(op, "use_cvm") else 0

    def run(X: Array | LoDTensor, CVM: Array | LoDTensor, Y_GRAD: Array | LoDTensor) -> Array | LoDTensor:
        """The first two columns get the counts of CVM in place of a gradient, for a table that adds them up."""
        counts, rows = plain(CVM), len(plain(X))
        if isinstance(X, LoDTensor):
            if len(X.lod[-1]) != len(counts) + 1:
                raise ValueError(f"CVM has {len(counts)} rows, X has {len(X.lod[-1]) - 1} sequences")
            counts = np.repeat(counts, row_counts(X.lod[-1]), axis=0)
        if len(counts) != rows:
            raise ValueError(f"CVM has {len(counts)} rows, X has {rows}")
        result = np.concatenate([counts, plain(Y_GRAD)[:, skipped:]], axis=1)
        return LoDTensor(result, X.lod) if isinstance(X, LoDTensor) else result

    return run


def _shown(op: Op, x: Array) -> Array | None:
    """The mask of the elements that count: those of slots whose first element, the number of shows, is not 0. None:
    all.
    """
    width = int_attr(op, "slot_dim", -1)
    if width <= 0:
        return None
    if x.shape[-1] % width:
        raise ValueError(f"the rows of X have {x.shape[-1]} elements, not slots of slot_dim {width}")
    return np.repeat(np.abs(x[:, ::width]) >= _NOTHING, width, axis=1)


_NOTHING = 1e-7
"""A smaller number of shows counts as none."""


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


@kernel("data_norm", "Y Means Scales", lod="Y")
def _data_norm_values(op: Op) -> Run:
    shifts = flag(op, "enable_scale_and_shift")

    def run(
        scale_w: Array | None, bias: Array | None, X: Array, BatchSize: Array, BatchSum: Array, BatchSquareSum: Array
    ) -> tuple[Array, Array, Array]:
        means, scales = BatchSum / BatchSize, np.sqrt(BatchSize / BatchSquareSum)
        y = (X - means) * scales
        if shifts:
            y = y * scale_w + bias
        shown = _shown(op, _rows(X))
        if shown is not None:
            y = np.where(shown.reshape(X.shape), y, 0).astype(X.dtype, copy=False)
        return y, means, scales

    return run


@kernel(
    "data_norm_grad",
    "scale_w@GRAD bias@GRAD X@GRAD BatchSize@GRAD BatchSum@GRAD BatchSquareSum@GRAD",
    lod="none",
)
def _data_norm_grad(op: Op) -> Run:
    """The "gradients" of the statistics are no derivatives but the batch's contributions, which an optimizer adds."""
    shifts, epsilon, wants_x = flag(op, "enable_scale_and_shift"), real(op, "epsilon"), wanted(op, "X@GRAD")

    def run(scale_w: Array | None, X: Array, Means: Array, Scales: Array, Y_GRAD: Array) -> tuple[Array | None, ...]:
        x, gradient = _rows(X), _rows(Y_GRAD)
        shown, away = _shown(op, x), x - Means
        total, squares = x, np.square(away)
        if shown is not None:
            total, squares, gradient = (np.where(shown, part, 0).astype(x.dtype) for part in (x, squares, gradient))
        of_sum, of_squares = np.add.reduce(total, axis=0), np.add.reduce(squares, axis=0)
        of_size = np.full(Means.shape, len(x), x.dtype)
        if shown is not None:  # Fluid counts a batch of slots as one
            counts = np.add.reduce(shown, axis=0).astype(x.dtype)
            of_size = (counts > 0).astype(x.dtype)
            of_sum, of_squares = (part / np.maximum(counts, 1) for part in (of_sum, of_squares))
            of_squares += counts * epsilon
        else:
            of_squares += len(x) * epsilon
        scale_grad = bias_grad = x_grad = None
        if shifts:
            scale_grad = np.add.reduce(gradient * (away * Scales), axis=0)
            bias_grad = np.add.reduce(gradient, axis=0)
        if wants_x:
            x_grad = ((gradient * scale_w if shifts else gradient) * Scales).reshape(X.shape)
        return scale_grad, bias_grad, x_grad, of_size, of_sum, of_squares

    return run


@kernel("hash")
def _hash_values(op: Op) -> Run:
    count, modulus = int_attr(op, "num_hash", 1), int_attr(op, "mod_by", 100000)
    if count < 1 or modulus < 1:
        raise ValueError(f"num_hash is {count} and mod_by {modulus}, both must be positive")

    def run(X: Array) -> Array:
        if X.ndim != 2:
            raise ValueError(f"X has dims {list(X.shape)}, it must have two")
        words = np.ascontiguousarray(X).astype(f"<i{X.itemsize}", copy=False).view("<u4")
        hashes = [row_hashes(words, seed) % np.uint64(modulus) for seed in range(count)]
        return np.stack(hashes, axis=1)[..., None].astype(X.dtype)

    return run


def _ends(counts: Array) -> list[int]:
    return [0, *np.cumsum(counts).tolist()]


@plain_kernel("filter_by_instag", "Out LossWeight IndexMap", lod="new")
def _filter_by_instag_values(
    Ins: Any, Ins_tag: Any, Filter_tag: Any, *, is_lod: bool, out_val_if_empty: int
) -> tuple[LoDTensor, LoDTensor, LoDTensor]:
    rows, tags = plain(Ins), plain(Ins_tag).reshape(-1)
    bounds = np.asarray(sequences(Ins, "Ins")[1][0]) if is_lod else np.arange(len(rows) + 1)
    tag_bounds = np.asarray(Ins_tag.lod[0]) if isinstance(Ins_tag, LoDTensor) else np.arange(len(tags) + 1)
    if len(tag_bounds) != len(bounds):
        raise ValueError(f"there are {len(bounds) - 1} instances in Ins, and tags of {len(tag_bounds) - 1}")
    hits = np.concatenate([[0], np.cumsum(np.isin(tags, plain(Filter_tag)))])
    chosen = np.flatnonzero(hits[tag_bounds[1:]] > hits[tag_bounds[:-1]])
    if not len(chosen):
        result = np.full((1, *rows.shape[1:]), out_val_if_empty, rows.dtype)
        return _with_steps(result, [0, 1]), _single(np.zeros((1, 1), "float32")), _single(np.array([[0, 1, 1]]))
    starts, counts = bounds[chosen], np.diff(bounds)[chosen]
    ends = _ends(counts)
    places = np.repeat(starts - ends[:-1], counts) + np.arange(ends[-1])
    index = np.stack([np.asarray(ends[:-1]), starts, counts], axis=1).astype("int64")
    return _with_steps(rows[places], ends), _single(np.ones((len(chosen), 1), "float32")), _single(index)


def _with_steps(value: Array, ends: list[int]) -> LoDTensor:
    return LoDTensor(value, [ends])


def _single(value: Array) -> LoDTensor:
    """A value whose sequences are single rows."""
    return _with_steps(value, list(range(len(value) + 1)))


@plain_kernel("filter_by_instag_grad", "Ins@GRAD", lod="each")
def _filter_by_instag_grad(Ins: Array, LossWeight: Array, IndexMap: Array, Out_GRAD: Array) -> Array:
    result = np.zeros(Ins.shape, Out_GRAD.dtype)
    if LossWeight.any():  # all are 0 if no instance was chosen
        for begin, start, count in IndexMap.tolist():
            result[start : start + count] = Out_GRAD[begin : begin + count]
    return result
