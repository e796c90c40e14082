"""Ragged tensors as arrays of steps, longest sequence first, and the rows of a batch apart by a mask."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.layers.accepted import checked_all
from pstranspile.fluid.layers.adapt import live, one_op, to_core, wrap
from pstranspile.frontends.layers import basic
from pstranspile.ir.model import Var
from pstranspile.ir.types import DType, VarKind

_reordered = one_op("reorder_lod_tensor_by_rank", "x, rank_table", "X=x RankTable=rank_table")


def reorder_lod_tensor_by_rank(x: Any, rank_table: Any) -> Any:
    """The sequences of x, or its rows, in the order of a rank table. Raises TypeError for what is no rank table."""
    if to_core(rank_table).var.kind is not VarKind.LOD_RANK_TABLE:
        raise TypeError(f"reorder_lod_tensor_by_rank: {rank_table.name} is no rank table")
    return _reordered(x, rank_table)


def lod_rank_table(x: Any, level: int = 0) -> Any:
    """The sequences of x by length."""
    draft = live()
    draft.names.mint("lod_rank_table")
    table = draft.declare(Var(draft.names.mint("lod_rank_table"), VarKind.LOD_RANK_TABLE))
    draft.op("lod_rank_table", {"X": to_core(x)}, {"Out": table}, {"level": level})
    return wrap(table)


def max_sequence_len(rank_table: Any) -> Any:
    """The length of the longest sequence of a rank table, int64 [1]."""
    key = "max_seqence_len"  # Fluid's spelling
    return wrap(basic.layer("max_sequence_len", {"RankTable": to_core(rank_table)}, DType.INT64, key=key))


def lod_tensor_to_array(x: Any, table: Any) -> Any:
    """The steps of ragged x as an array: in each the rows of all sequences that still have one."""
    draft, value = live(), to_core(x)
    draft.names.mint("lod_tensor_to_array")
    name = draft.names.mint("lod_tensor_to_array")
    tensor = value.tensor._replace(lod_level=max(value.lod_level - 1, 0))
    array = draft.declare(Var(name, VarKind.LOD_TENSOR_ARRAY, tensor))
    draft.op("lod_tensor_to_array", {"X": value, "RankTable": to_core(table)}, {"Out": array})
    return wrap(array)


def array_to_lod_tensor(x: Any, table: Any) -> Any:
    """The ragged tensor whose steps an array holds."""
    value = to_core(x)
    inputs = {"X": value, "RankTable": to_core(table)}
    made = basic.layer("array_to_lod_tensor", inputs, value.dtype)
    tensor = made.tensor._replace(shape=value.shape, lod_level=value.lod_level + 1)
    return wrap(made.draft.declare(made.var._replace(tensor=tensor)))


def shrink_memory(x: Any, i: Any, table: Any) -> Any:
    """The rows of x whose sequences still have a step i."""
    value = to_core(x)
    inputs = {"X": value, "I": to_core(i), "RankTable": to_core(table)}
    return wrap(basic.layer("shrink_rnn_memory", inputs, value.dtype, key="shrink_memory"))


def split_lod_tensor(input: Any, mask: Any, level: int = 0) -> Any:
    """The rows (or sequences of a level) of a batch whose mask (bool [n, 1]) holds, and the others."""
    value = to_core(input)
    outputs = {"OutTrue": value.dtype, "OutFalse": value.dtype}
    made = basic.layer_outputs("split_lod_tensor", {"X": value, "Mask": to_core(mask)}, outputs, {"level": level})
    return tuple(wrap(made))


def merge_lod_tensor(in_true: Any, in_false: Any, x: Any, mask: Any, level: int = 0) -> Any:
    """What `split_lod_tensor` has split: rows of both in the order of x."""
    first = to_core(in_true)
    inputs = {"X": to_core(x), "Mask": to_core(mask), "InTrue": first, "InFalse": to_core(in_false)}
    return wrap(basic.layer("merge_lod_tensor", inputs, first.dtype, {"level": level}))


checked_all(globals())
