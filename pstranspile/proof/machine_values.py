"""What all machines of a cluster kept at one moment.

Most of it is whole variables, of which machines hold parts; each machine also has values of its own. Of a large table
that few steps have touched, only the rows that differ from those at the start are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.cluster.checkpoint.layout import Layout, Part, Placed
from pstranspile.cluster.checkpoint.state import misfit, part_of, whole_of
from pstranspile.ir.frozen import EMPTY
from pstranspile.proof.arrays import CHUNK, same_arrays, same_bits
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.scope import own_copy

Place: TypeAlias = "tuple[str, str]"
"""A variable of a machine: role name, name there."""

Origins: TypeAlias = "Mapping[Place, tuple[Placed, Part]]"
"""Which part of which variable of the job lies at a place."""

MOST_CHANGED = 1 / 8
"""The part of a table's rows that may differ, at most, so that only these are kept."""


class ChangedRows(NamedTuple):
    """An array as the rows in which it differs from another one, which is never changed."""

    base: Any
    rows: Any
    values: Any

    def whole(self) -> Any:
        """The array, in memory of its own."""
        result = self.base.copy()
        result[self.rows] = self.values
        return result


def changed_rows(value: Any, base: Any) -> ChangedRows | None:
    """The rows in which a large array differs from another one; None if it is small, or many do."""
    if value is base or not isinstance(value, np.ndarray) or not isinstance(base, np.ndarray):
        return None
    if value.size < CHUNK or value.ndim < 2 or value.shape != base.shape or value.dtype != base.dtype:
        return None
    result: list[Any] = []
    count, size = 0, max(CHUNK * len(value) // value.size, 1)
    for start in range(0, len(value), size):
        one, other = value[start : start + size], base[start : start + size]
        if not same_bits(one, other):
            bits = np.ascontiguousarray(one).view("uint8") != np.ascontiguousarray(other).view("uint8")
            result.append(start + np.flatnonzero(bits.reshape(len(one), -1).any(1)))
            count += len(result[-1])
            if count > MOST_CHANGED * len(value):
                return None
    rows = np.concatenate([*result, np.zeros(0, "int64")])
    return ChangedRows(base, rows, value[rows])


class MachineValues(MutableMapping[Place, Value]):
    """The values of all machines by place; what it gives must not be changed.

    `wholes` are variables of which machines hold parts, `own` what lies at single places otherwise: None where a
    machine has no value.
    """

    def __init__(self, origins: Origins, wholes: Mapping[str, Any] = EMPTY, own: Mapping[Place, Value] = EMPTY):
        self.origins = origins
        self.wholes = dict(wholes)
        self.own = dict(own)
        self._made: dict[str, Any] = {}
        """Arrays made of the changed rows of wholes."""

    def __getitem__(self, place: Place) -> Value:
        if place in self.own:
            value = self.own[place]
        else:
            placed, part = self.origins[place]
            whole = self.whole(placed.name)
            value = None if whole is None else part_of(placed, part, whole)
        if value is None:
            raise KeyError(place)
        return value

    def __setitem__(self, place: Place, value: Value) -> None:
        self.own[place] = value

    def __delitem__(self, place: Place) -> None:
        self.own[place] = None

    def __iter__(self) -> Iterator[Place]:
        for place, (placed, _) in self.origins.items():
            if (self.own[place] is not None) if place in self.own else placed.name in self.wholes:
                yield place

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def whole(self, name: str) -> Value:
        """A variable that machines hold parts of; None if there is none."""
        kept = self.wholes.get(name)
        if not isinstance(kept, ChangedRows):
            return kept
        if name not in self._made:
            self._made[name] = kept.whole()
        return self._made[name]

    def release(self, name: str) -> bool:
        """Drops the array that was made for a variable, so that its holder may change it; False if none was made."""
        return self._made.pop(name, None) is not None

    def following(self, placed: Placed, whole: Value) -> None:
        """Sets a whole variable, and so what all its holders have."""
        self.wholes[placed.name] = whole
        for part in placed.holders:
            self.own.pop((part.machine, part.name), None)

    def copy(self) -> MachineValues:
        """The same, to set values in."""
        return MachineValues(self.origins, self.wholes, self.own)


def values_kept(
    layout: Layout, origins: Origins, now: Mapping[Place, Value], like: list[MachineValues], start: Mapping[str, Any]
) -> MachineValues:
    """What machines have `now`. What is the same in one of the snapshots `like` is not copied; it is taken out there.

    Rows of large variables are kept that differ from those in `start`.
    """
    result = MachineValues(origins)
    for name, placed in layout.variables.items():
        wholes = [snapshot.wholes.pop(name, None) for snapshot in like]
        whole = None if placed.table else _whole(placed, now, wholes)
        if whole is not None:
            result.wholes[name] = changed_rows(whole, start.get(name)) or whole
        for part in placed.holders:
            place = part.machine, part.name
            known = [snapshot.own.pop(place, None) for snapshot in like]
            value = now.get(place)
            if value is None or (whole is not None and same_arrays(value, part_of(placed, part, whole))):
                if value is None and whole is not None:
                    result.own[place] = None
                continue
            result.own[place] = next((one for one in known if same_arrays(value, one)), None)
            if result.own[place] is None:
                result.own[place] = own_copy(value)
    return result


def _whole(placed: Placed, now: Mapping[Place, Value], wholes: list[Any]) -> Value:
    """A variable put together of its parts, one of `wholes` if it is the same; None if parts don't make one up."""
    held = {part: value for part in placed.parts if (value := now.get((part.machine, part.name))) is not None}
    if not held or any(part not in held or misfit(placed, part, held[part]) for part in placed.parts):
        return None
    for whole in wholes:
        if isinstance(whole, np.ndarray) and all(
            same_arrays(v, part_of(placed, part, whole)) for part, v in held.items()
        ):
            return whole
    return own_copy(whole_of(placed, held)) if len(held) == 1 else whole_of(placed, held)
