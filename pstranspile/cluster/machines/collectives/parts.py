"""What trainers give to a collective operation, what is made of it, and how a large value is cut into segments.

A segment is summed by one trainer, which adds what all have given in the order of the trainers. So a sum depends on no
schedule, and is the same wherever a value is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.model import Op, Var
from pstranspile.ir.types import VarKind
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.kernels.rows import concat_rows
from pstranspile.runtime.run.describe import describe
from pstranspile.runtime.values import NUMPY_TYPES, SelectedRows

LEAST_SEGMENT = 1 << 14
"""The least bytes of a segment. A value of fewer bytes for each trainer is not cut: one trainer sums the whole."""

Key: TypeAlias = "tuple[int, int]"
"""Which operation of a ring it is: a step, and how many operations of the ring came before in this step."""

NEVER: Key = (-(1 << 62), 0)
"""Before all operations."""


class Part(NamedTuple):
    """A trainer's part in an operation: what to do, and its value, or a segment of it.

    `root` is the trainer whose value a broadcast hands on. `averages`: whether a sum is one of gradients or of updates,
    which the program divides by the number of trainers. `form` describes the whole value.
    """

    kind: str
    root: int
    averages: bool
    form: str
    value: Value


class Piece(NamedTuple):
    """A part for the trainer that sums `segment`. `had`: the last sum of this segment that the sender has."""

    segment: int
    key: Key
    variable: str
    had: Key
    part: Part


class Total(NamedTuple):
    """What a segment was made of the parts of the trainers `of`. `floor`: the last sum that all of them have."""

    segment: int
    key: Key
    variable: str
    floor: Key
    of: tuple[int, ...]
    value: Value


class Statement(NamedTuple):
    """The state of a trainer, sent to the trainer that sums `segment` from now on: the last sum, and the sums that
    others may lack.
    """

    segment: int
    had: Key
    kept: tuple[Total, ...]


def cut(part: Part, key: Key, trainers: Sequence[int]) -> Iterator[tuple[int, Part]]:
    """A part in segments, each with the number of the trainer that sums it unless that is gone.

    What is small, or no array of numbers that are summed one by one, is one segment: the trainers take turns.
    """
    value, count = part.value, len(trainers)
    if part.kind in _WHOLE or value.__class__ is not np.ndarray or value.nbytes < LEAST_SEGMENT * count:
        yield trainers[key[1] % count], part
        return
    flat, ends = value.reshape(-1), [value.size * (place + 1) // count for place in range(count)]
    for trainer, begin, end in zip(trainers, [0, *ends], ends, strict=False):
        yield trainer, part._replace(value=flat[begin:end])


class Known(NamedTuple):
    """What the programs say about the operations of a ring on one variable: its declaration, and kinds with roots."""

    declared: Var | None
    kinds: frozenset[tuple[str, int]]

    def allows(self, segment: int, trainers: Sequence[int], value: Value, part: Part | None = None) -> bool:
        """Whether a segment of a value, or of a sum, may be one of this variable; where its dims are not known, any."""
        if part is not None and (part.kind, part.root) not in self.kinds:
            return False
        if value is None:
            return part is not None and part.kind == "c_broadcast"
        declared = self.declared
        array = value.value if isinstance(value, SelectedRows) else value
        if not isinstance(array, np.ndarray) or declared is None or declared.dtype is None:
            return isinstance(array, np.ndarray)
        if array.dtype.name != NUMPY_TYPES[declared.dtype]:
            return False
        if isinstance(value, SelectedRows) or declared.kind is not VarKind.LOD_TENSOR:
            return isinstance(value, SelectedRows) and len(array) == len(value.rows)
        if any(kind in _WHOLE for kind, _ in self.kinds) or min(declared.shape, default=0) < 0:
            return True
        if part is not None and part.form != describe(np.broadcast_to(array.dtype.type(0), declared.shape)):
            return False
        count, size = len(trainers), prod(declared.shape)
        if size * array.itemsize < LEAST_SEGMENT * count:
            return array.shape == declared.shape
        place = trainers.index(segment)
        return array.shape == (size * (place + 1) // count - size * place // count,)


def without_value(part: Part, trainer: int) -> Part:
    """What a trainer sends of its part: in a broadcast only the root has to give its value."""
    return part if part.kind != "c_broadcast" or part.root == trainer else part._replace(value=None)


def joined(part: Part, totals: Mapping[int, Total], trainer: int) -> Value:
    """What a trainer gets that has given this part; an array that nobody else has if it was cut."""
    first = next(iter(totals.values()))
    if part.kind == "c_reducescatter":
        return np.split(first.value, len(first.of))[first.of.index(trainer)]
    if len(totals) == 1:
        return first.value
    return np.concatenate([totals[segment].value for segment in sorted(totals)]).reshape(part.value.shape)


def combine(ring: str, parts: Mapping[int, Part], count: int, op: Op) -> Value:
    """What is made of the parts. `count`: how many trainers the ring had at first. Raises DiagnosticError, at the op.

    Sums that make an average stay averages over the trainers that have given a part.
    """
    first = next(iter(parts.values()))
    kinds = {part.kind for part in parts.values()}
    forms = {part.form for part in parts.values()}
    if len(kinds) > 1 or (
        len(forms) > 1 and (first.kind != "c_allgather" and not isinstance(first.value, SelectedRows))
    ):
        lines = [f"trainer {index}: {part.kind} of {part.form}" for index, part in parts.items()]
        message = f"the trainers of {ring} do not do the same"
        raise DiagnosticError([at_op("cluster-collective", message, op, notes=[Note(line) for line in lines])])
    values = [part.value for part in parts.values()]
    if first.kind == "c_broadcast":
        if first.root not in parts:
            message = f"trainer {first.root}, whose value all others are to get, takes no part in {ring}"
            raise DiagnosticError([at_op("cluster-collective", message, op)])
        return _shared(parts[first.root].value)
    rows = {_row(value) for value in values} if first.kind in ("c_allgather", "c_reducescatter") else {""}
    if len(rows) > 1 or None in rows:
        lines = [f"trainer {index}: {part.form}" for index, part in parts.items()]
        message = f"the values of {ring} have no rows that are alike"
        raise DiagnosticError([at_op("cluster-collective", message, op, notes=[Note(line) for line in lines])])
    total = np.concatenate(values) if first.kind == "c_allgather" else _REDUCE[first.kind](values)
    if first.kind == "average":
        total = _times(total, 1.0 / len(values))
    elif first.kind in ("c_allreduce_sum", "c_reducescatter") and len(values) < count and first.averages:
        total = _times(total, count / len(values))
    if first.kind == "c_reducescatter" and len(total) % len(values):
        message = f"{len(total)} rows cannot be divided among {len(values)} trainers"
        raise DiagnosticError([at_op("cluster-collective", message, op)])
    return _shared(total)


def _row(value: Value) -> str | None:
    """What a row is; None if there are no rows."""
    return f"{value.dtype} {value.shape[1:]}" if value.ndim else None


def _shared(value: Value) -> Value:
    """A value that several trainers get: an array can't be written to."""
    if value.__class__ is np.ndarray:
        value = value.view()
        value.flags.writeable = False
    return value


def _sum(values: Sequence[Value]) -> Value:
    if isinstance(values[0], SelectedRows):
        return concat_rows(values)
    if len(values) == 1:
        return values[0].copy()
    total = np.add(values[0], values[1], out=np.empty_like(values[0]))
    for value in values[2:]:
        total += value
    return total


def _times(value: Value, factor: float) -> Value:
    if isinstance(value, SelectedRows):
        return value._replace(value=value.value * value.value.dtype.type(factor))
    return value * value.dtype.type(factor)


_REDUCE: dict[str, Callable[[Sequence[Value]], Value]] = {
    "c_allreduce_sum": _sum,
    "c_reducescatter": _sum,
    "average": _sum,
    "c_allreduce_max": lambda values: np.maximum.reduce(values),
    "c_allreduce_min": lambda values: np.minimum.reduce(values),
    "c_allreduce_prod": lambda values: np.multiply.reduce(values),
}

_WHOLE = ("c_allgather", "c_reducescatter")
"""Kinds whose result has other dims than their parts: they are not cut."""
