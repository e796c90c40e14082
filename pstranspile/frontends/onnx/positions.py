"""Positions that ONNX may count from the end of a dim, as Fluid's ops count them: from its beginning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.read_tensors import fill
from pstranspile.frontends.onnx.reading import Reading
from pstranspile.frontends.onnx.sizes import is_code
from pstranspile.ir.types import DType


def counted(index: str, size: int, reading: Reading) -> str:
    """Positions along a dim of this size (a number, or the code of one), counted from its beginning.

    Known ones are counted now; for those that come at run time there are ops. Raises Refused for known ones outside.
    """
    return _counted(index, [size], reading, inside=True)


def counted_rows(index: str, sizes: Sequence[int], reading: Reading) -> str:
    """Rows of positions, the numbers of each along dims of these sizes, counted from their beginning."""
    return _counted(index, sizes, reading, inside=True)


def counted_classes(index: str, count: int, reading: Reading) -> str:
    """Numbers of classes, counted from the first; those that name none stay outside."""
    return _counted(index, [count], reading, inside=False)


def _counted(index: str, sizes: Sequence[int], reading: Reading, *, inside: bool) -> str:
    known = reading.known.get(reading.resolved(index))
    if known is None or reading.is_computed(index):
        return _by_ops(index, sizes, reading)
    if known.size == 0:
        return index
    if any(map(is_code, sizes)):
        return index if known.min() >= 0 else _by_ops(index, sizes, reading)
    ends = np.array(sizes)
    if inside and ((known >= ends) | (known < -ends)).any():
        raise Refused(f"its positions reach from {known.min()} to {known.max()} in dims of {list(sizes)} elements")
    if known.min() >= 0:
        return index
    reading.known[made := reading.temp(index)] = np.where(known < 0, known + ends, known)
    return made


def _by_ops(index: str, sizes: Sequence[int], reading: Reading) -> str:
    if reading.tensor(index).dtype not in (DType.INT32, DType.INT64):
        index = reading.as_type(index, DType.INT64)
    kind = reading.tensor(index).dtype
    zeros = reading.made("fill_zeros_like", index, X=index)
    below = reading.made("less_than", index, X=index, Y=zeros)
    moved = reading.made("elementwise_add", index, X=index, Y=_ends(index, sizes, kind, reading))
    made = reading.made("where", index, Condition=below, X=moved, Y=index)
    reading.draft.stop_gradient.update((zeros, below, moved, made))
    if reading.is_scalar(index):
        reading.scalars.add(made)
    return made


def _ends(index: str, sizes: Sequence[int], kind: DType, reading: Reading) -> str:
    """A variable with these sizes, along one dim."""
    if len(sizes) == 1 and not is_code(sizes[0]):
        fill(
            made := reading.temp(index), [1], np.array([sizes[0]], "int32" if kind is DType.INT32 else "int64"), reading
        )
        return made
    reading.known[made := reading.temp(index)] = np.array(sizes, "int64")
    return reading.as_type(made, kind)
