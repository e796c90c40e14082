"""The elements that have to be sent when the numbers of machines change: each machine keeps those that it has.

The elements of a variable are counted through the whole of it, wherever slices begin and end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.checkpoint.layout import Layout, Placed
from pstranspile.cluster.checkpoint.layout import Part as Held
from pstranspile.cluster.net.parts import Part
from pstranspile.runtime.kernels.context import Value


class Own(NamedTuple):
    """The elements `start` to `stop` (without it) of a new value are those from `first` on of the old value `name`."""

    start: int
    stop: int
    name: str
    first: int


class Kept(NamedTuple):
    """A new value with dims `shape`, and the parts of it that its machine has; in order, without overlap."""

    shape: tuple[int, ...]
    own: tuple[Own, ...]

    @property
    def lacking(self) -> Iterator[tuple[int, int]]:
        """The ranges of elements that the machine does not have."""
        at = 0
        for own in self.own:
            if at < own.start:
                yield at, own.start
            at = own.stop
        if at < prod(self.shape):
            yield at, prod(self.shape)


def kept(before: Layout, after: Layout) -> dict[str, dict[str, Kept]]:
    """The parts of its new values that each machine has, by name, if machines with the layout `before` change to
    `after`.

    Tables of sparse rows and variables without a fixed size are left out: they are sent whole.
    """
    result: dict[str, dict[str, Kept]] = {}
    for name, placed in after.variables.items():
        old = before.variables.get(name)
        if old is None or old.table or placed.table or (old.dtype, old.shape) != (placed.dtype, placed.shape):
            continue
        if min(placed.shape, default=0) < 0:
            continue
        had: dict[str, list[Held]] = {}
        for part in _exact(old):
            had.setdefault(part.machine, []).append(part)
        for part in _exact(placed):
            own = tuple(_own(part, sorted(had.get(part.machine, ()), key=lambda held: held.offset)))
            if own:
                result.setdefault(part.machine, {})[part.name] = Kept(part.shape, own)
    return result


def _exact(placed: Placed) -> Iterator[Held]:
    """Yields the holders whose values a checkpoint restores exactly; further copies on servers are made anew."""
    yield from placed.parts
    yield from (part for part in placed.others if part.machine.startswith("trainer"))


def _own(part: Held, had: Sequence[Held]) -> Iterator[Own]:
    at, end = part.offset, part.offset + prod(part.shape)
    for old in had:
        start, stop = max(at, old.offset), min(end, old.offset + prod(old.shape))
        if start < stop:
            yield Own(start - part.offset, stop - part.offset, old.name, start - old.offset)
            at = stop


def _array(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else None


def sent(part: Part, has: Mapping[str, Kept]) -> tuple[Part, dict[str, Kept]]:
    """The part to send to a machine that has some elements of it, and the values that the machine assembles itself: of
    these, only the missing elements are sent, one after another.
    """
    values = dict(part.values)
    result: dict[str, Kept] = {}
    for name, one in has.items():
        value = _array(values.get(name))
        if value is not None and value.shape == one.shape:
            flat = value.reshape(-1)
            values[name] = np.concatenate([flat[:0], *(flat[start:stop] for start, stop in one.lacking)])
            result[name] = one
    return part._replace(values=values), result


def together(part: Part, has: Mapping[str, Kept], left: Mapping[str, Value]) -> Part:
    """A machine's part, assembled from the elements that it was sent and the values left on its host.

    Raises LookupError if one of these values is missing.
    """
    values = dict(part.values)
    for name, one in has.items():
        come = values[name]
        flat = np.empty(prod(one.shape), come.dtype)
        for own in one.own:
            value = _array(left.get(own.name))
            if value is None or value.dtype != come.dtype:
                raise LookupError(own.name)
            flat[own.start : own.stop] = value.reshape(-1)[own.first : own.first + own.stop - own.start]
        at = 0
        for start, stop in one.lacking:
            flat[start:stop] = come[at : at + stop - start]
            at += stop - start
        values[name] = flat.reshape(one.shape)
    return part._replace(values=values)
