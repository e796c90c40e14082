"""Whether what is computed on a whole batch is what its values on the shares of the batch come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pstranspile.proof.arrays import chunks
from pstranspile.proof.compare import plain
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.values import LoDTensor, SelectedRows

CLOSE = 1e-3
"""Relative difference below which rounding is taken for the reason."""


def fits(
    whole: Any,
    shares: Sequence[Any],
    weights: Sequence[float],
    *,
    state: bool = False,
    gradient: bool = False,
    floor: float = 0.0,
) -> bool:
    """Whether a value on the whole batch equals the combination of its values on the shares, but for less than `floor`.

    `gradient`: it is the gradient of a loss. A mean is one of gradients, which are weighted already, or of other
    values, with these `weights`. Integers are positions, masks and the like. They are not compared unless they are
    `state` that is kept.
    """
    if isinstance(whole, SelectedRows) and all(isinstance(share, SelectedRows) for share in shares):
        rows = np.unique(np.concatenate([value.rows for value in (whole, *shares)]))
        parts = [_of_rows(share, rows) for share in shares]
        return _close(_of_rows(whole, rows), sum(parts[1:], parts[0]) / len(parts), floor)
    value, parts = plain(whole), [plain(share) for share in shares]
    if value is None or any(part is None for part in parts) or not value.size:
        return True  # lists and shapes are judged by what is made of them
    if value.dtype.kind != "f" and not state:
        return True
    if all(part.shape == value.shape for part in parts):
        weighings: set[tuple[float, ...]] = {
            (1 / len(parts),) * len(parts),
            tuple(weight / sum(weights) for weight in weights),
        }
        return any(_mean_fits(value, parts, weights, floor) for weights in sorted(weighings)) or all(
            _close(value, part, floor) for part in parts
        )
    axis = _axis(value, parts)
    if axis is None:
        return False
    joined = np.concatenate(parts, axis)
    return _close(value, joined / len(parts) if gradient else joined, floor)


def _of_rows(value: SelectedRows, rows: Any) -> Any:
    """Sparse rows in place, of all rows only these."""
    result = np.zeros((len(rows), *value.value.shape[1:]), value.value.dtype)
    np.add.at(result, np.searchsorted(rows, value.rows), value.value[: len(value.rows)])
    return result


def _mean_fits(value: Any, parts: Sequence[Any], shares: Sequence[float], floor: float) -> bool:
    """Whether a value is the mean of others with these weights, which add up to 1."""
    means = (
        (one.astype("float64"), sum(part.astype("float64") * share for part, share in zip(others, shares, strict=True)))
        for one, *others in chunks(value, *parts)
    )
    return _alike(means, floor)


def _axis(value: Any, parts: Sequence[Any]) -> int | None:
    """The axis along which parts are one after the other in the whole; None if they are not."""
    if any(part.ndim != value.ndim for part in parts):
        return None
    for axis in range(value.ndim):
        rest = value.shape[:axis] + value.shape[axis + 1 :]
        if all(part.shape[:axis] + part.shape[axis + 1 :] == rest for part in parts):
            return axis if sum(part.shape[axis] for part in parts) == value.shape[axis] else None
    return None


def same_rows(whole: Any, shares: Sequence[Any], *, gradient: bool) -> bool:
    """Whether a value has the rows of the shares in another order: then just its layout is another."""
    value, parts = plain(whole), [plain(share) for share in shares]
    if value is None or any(part is None for part in parts) or _axis(value, parts) != 0:
        return False
    rows = [np.sort(array.reshape(len(array), -1).sum(1)) for array in (value, np.concatenate(parts))]
    return _close(rows[0], rows[1] / len(parts) if gradient else rows[1])


def forced_parts(whole: Any, shares: Sequence[Any], *, gradient: bool) -> list[Value] | None:
    """The dims of shares that fit a value on the whole; None if they are not known."""
    if isinstance(whole, SelectedRows):
        return [whole for _ in shares]
    value, parts = plain(whole), [plain(share) for share in shares]
    if value is None or any(part is None for part in parts):
        return None
    if all(part.shape == value.shape for part in parts):
        return [_like(share, value) for share in shares]
    axis = _axis(value, parts)
    if axis is None:
        return None
    ends = np.cumsum([part.shape[axis] for part in parts])[:-1]
    scaled = value * value.dtype.type(len(parts)) if gradient else value
    return [_like(share, part) for share, part in zip(shares, np.split(scaled, ends, axis), strict=True)]


def _like(share: Any, data: Any) -> Value:
    return LoDTensor(data, share.lod) if isinstance(share, LoDTensor) else data


def sum_of(value: Any) -> float:
    """The sum of the elements of a tensor, without their signs; 0 where there is none, or a NaN."""
    data = value.value if isinstance(value, SelectedRows) else plain(value)
    total = 0.0 if data is None else sum(float(np.abs(part).sum(dtype="float64")) for (part,) in chunks(data))
    return total if np.isfinite(total) else 0.0


def _close(a: Any, b: Any, floor: float = 0.0) -> bool:
    return a.shape == b.shape and _alike(((one.astype("float64"), other) for one, other in chunks(a, b)), floor)


def _alike(pairs: Iterable[tuple[Any, Any]], floor: float) -> bool:
    """Whether arrays, a part at a time, are the same up to `CLOSE` of the largest element, or to `floor`."""
    size = apart = 0.0
    for a, b in pairs:
        if not np.isfinite(a).all():
            if not np.array_equal(np.isfinite(a), np.isfinite(b)):
                return False
            a, b = (np.where(np.isfinite(array), array, 0) for array in (a, b))
        size = max(size, float(np.abs(a).max(initial=0.0)))
        apart = float(np.maximum(apart, np.abs(a - b).max(initial=0.0)))  # which NaN stays in
    return apart <= max(CLOSE * max(size, 1e-12), floor)
