"""Kernels. Selection of branches, for a whole tensor or row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.runtime.kernels.context import ExecutionContext, Value
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.values import Array, LoDTensor


def _chosen(mask: Any, count: int) -> int:
    data = plain(mask)
    if data.size != 1:
        raise ValueError("Mask must hold one number")
    number = int(data.item(0))
    if not 0 <= number < count:
        raise ValueError(f"Mask is {number}, there are {count} branches")
    return number


@kernel("select_input", lod="own")
def _select_input(op: Op) -> Run:
    names = op.inputs["X"]

    def run(Mask: Any, context: ExecutionContext) -> Value:
        name = names[_chosen(Mask, len(names))]  # other branches may not have run
        value = context.find(name)
        if value is None:
            raise ValueError(f"the branch that Mask chooses has given {name} no value")
        return LoDTensor(value.data.copy(), value.lod) if isinstance(value, LoDTensor) else value.copy()

    return run


@kernel("select_output", lod="own")
def _select_output(op: Op) -> Run:
    count = len(op.outputs["Out"])

    def run(X: Any, Mask: Any) -> list[Value | None]:
        outs: list[Value | None] = [None] * count
        outs[_chosen(Mask, count)] = LoDTensor(X.data.copy(), X.lod) if isinstance(X, LoDTensor) else X.copy()
        return outs

    return run


def _offsets(x: Any, level: int) -> list[int]:
    """The offsets of the pieces of x that go to one branch or the other: sequences, or rows if it has no LoD."""
    if not isinstance(x, LoDTensor):
        return list(range(len(x) + 1))
    if level != 0 or len(x.lod) != 1:
        raise ValueError(
            f"X has {len(x.lod)} LoD levels and level is {level}; only sequences of one level can be split"
        )
    return x.lod[0]


def _pieces(x: Any, level: int, mask: Any) -> tuple[list[int], list[bool]]:
    offsets, chosen = _offsets(x, level), plain(mask).reshape(-1).astype(bool).tolist()
    if len(chosen) != len(offsets) - 1:
        raise ValueError(f"Mask has {len(chosen)} elements, X has {len(offsets) - 1} pieces")
    return offsets, chosen


def _part(x: Any, offsets: list[int], kept: list[bool]) -> Value:
    """The selected pieces, joined."""
    data = plain(x)
    lengths = np.diff(offsets)
    out = data[np.repeat(np.asarray(kept, bool), lengths)]
    return LoDTensor(out, [[0, *np.cumsum(lengths[kept]).tolist()]]) if isinstance(x, LoDTensor) else out


@plain_kernel("split_lod_tensor", "OutTrue OutFalse", lod="own")
def _split(X: Any, Mask: Any, *, level: int) -> tuple[Value, Value]:
    offsets, chosen = _pieces(X, level, Mask)
    return _part(X, offsets, chosen), _part(X, offsets, [not taken for taken in chosen])


@plain_kernel("merge_lod_tensor merge_lod_tensor_infer", lod="own")
def _merge(X: Any, Mask: Any, InTrue: Any, InFalse: Any, *, level: int) -> Value:
    _, chosen = _pieces(X, level, Mask)
    sides = {True: InTrue, False: InFalse}
    starts = {side: [0] if value is None else _offsets(value, level) for side, value in sides.items()}
    taken = {True: 0, False: 0}
    rows: list[Array] = []
    for side in chosen:
        number, offsets = taken[side], starts[side]
        if number + 1 >= len(offsets):
            raise ValueError(f"{'InTrue' if side else 'InFalse'} has fewer pieces than Mask asks of it")
        rows.append(plain(sides[side])[offsets[number] : offsets[number + 1]])
        taken[side] = number + 1
    if InTrue is None and InFalse is None:
        raise ValueError("neither InTrue nor InFalse has a value")
    out = np.concatenate(rows) if rows else plain(InFalse if InTrue is None else InTrue).copy()
    if isinstance(InTrue, LoDTensor) or isinstance(InFalse, LoDTensor):
        return LoDTensor(out, [[0, *np.cumsum([len(piece) for piece in rows]).tolist()]])
    return out
