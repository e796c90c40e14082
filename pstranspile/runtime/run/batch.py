"""What is fed in a step, and which rows of the whole batch it is."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.values import Array, LoDTensor


class Part(NamedTuple):
    """The rows of an input of the whole batch that a machine is fed; of a ragged input, the sequences.

    `places` are their numbers, `total` is how many there are. `starts` are the rows that sequences begin with in the
    whole batch, `sizes` how many rows they have.
    """

    places: Array
    total: int
    starts: Array | None = None
    sizes: Array | None = None


class Batch(dict[str, Any]):
    """The feeds of a step, by name. `parts` gives for an input the rows of the whole batch that it holds (default: all;
    None: unknown). `rows` is the number of rows that the loss is a mean of (None: unknown), `weight` the factor above 1
    by which they count.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        parts: Mapping[str, Part | None],
        *,
        rows: int | None = None,
        weight: float = 1.0,
    ):
        super().__init__(values)
        self.parts = parts
        self.rows = rows
        self.weight = weight


def rows_of(value: Value) -> int:
    """How many rows a fed value has; of a ragged one, how many sequences."""
    if value.__class__ is np.ndarray and value.ndim:  # as it mostly is
        return len(value)
    if isinstance(value, LoDTensor) and value.lod:
        return len(value.lod[0]) - 1
    data = value.data if isinstance(value, LoDTensor) else np.asarray(value)
    return data.shape[0] if data.ndim else 0


def sequence_starts(lod: Sequence[Sequence[int]]) -> Array:
    """The row that each sequence of level 0 begins with, and the one after the last."""
    starts = np.asarray(lod[0], "int64")
    for level in lod[1:]:
        starts = np.asarray(level, "int64")[starts]
    return starts


def part_of(feed: Mapping[str, Any], name: str) -> Part | None:
    """The rows of the whole batch that the value of an input has; all, unless the feed is a part of a batch."""
    if isinstance(feed, Batch) and name in feed.parts:
        return feed.parts[name]
    return _whole(feed[name])


def _whole(value: Value) -> Part:
    count = rows_of(value)
    if not isinstance(value, LoDTensor) or not value.lod:
        return Part(np.arange(count), count)
    starts = sequence_starts(value.lod)
    return Part(np.arange(count), count, starts[:-1], np.diff(starts))


def chosen(value: Value, order: Sequence[int] | Array, part: Part | None = None) -> tuple[Value, Part]:
    """The rows of an array (sequences of a LoDTensor) with these numbers, in this order, and which they are.

    `part` tells which rows of the whole batch the value has (default: all).
    """
    numbers = np.asarray(order, "int64")
    array = value.data if isinstance(value, LoDTensor) else np.asarray(value)
    if not isinstance(value, LoDTensor) or not value.lod:
        old = part or Part(np.arange(len(array)), len(array))
        return array[_as_slice(numbers)], old._replace(places=old.places[numbers])
    old = part or _whole(value)
    lod: list[list[int]] = []
    inner = numbers
    for level in value.lod:
        offsets = np.asarray(level, "int64")
        sizes = offsets[inner + 1] - offsets[inner]
        lod.append([0, *np.cumsum(sizes).tolist()])
        inner = np.repeat(offsets[inner], sizes) + _counts(sizes)
    assert old.starts is not None
    assert old.sizes is not None
    made = Part(old.places[numbers], old.total, old.starts[numbers], old.sizes[numbers])
    return LoDTensor(array[_as_slice(inner)], lod), made


def joined(shares: Sequence[Mapping[str, Any]], names: Container[str]) -> Batch:
    """Shares of one batch put together: the rows of the inputs `names` one after the other, of others the first."""
    values, parts = dict(shares[0]), dict[str, Part | None]()
    for name in values:
        if name in names:
            values[name] = _together([share[name] for share in shares])
            parts[name] = _parts_together([part_of(share, name) for share in shares])
    return Batch(values, parts)


def _together(values: Sequence[Value]) -> Value:
    if not isinstance(values[0], LoDTensor):
        return np.concatenate([np.asarray(value) for value in values])
    lod: list[list[int]] = []
    for levels in zip(*(value.lod for value in values), strict=True):
        offsets = [0]
        for level in levels:
            end = offsets[-1]
            offsets += [end + offset for offset in level[1:]]
        lod.append(offsets)
    return LoDTensor(np.concatenate([value.data for value in values]), lod)


def _parts_together(parts: Sequence[Part | None]) -> Part | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    starts = [part.starts for part in known if part.starts is not None]
    sizes = [part.sizes for part in known if part.sizes is not None]
    return Part(
        np.concatenate([part.places for part in known]),
        known[0].total,
        np.concatenate(starts) if len(starts) == len(known) else None,
        np.concatenate(sizes) if len(sizes) == len(known) else None,
    )


def _counts(sizes: Array) -> Array:
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _as_slice(numbers: Array) -> Any:
    """Numbers that rise one by one as a slice, which copies nothing."""
    if not len(numbers):
        return slice(0, 0)
    if int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1 and (np.diff(numbers) == 1).all():
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers
