"""Instances chosen by their tags."""

from __future__ import annotations

from typing import Any

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.lod import plain, sequences
from pstranspile.ops.numeric import flag
from pstranspile.ops.schema import BOOL, declare, declare_gradient, long
from pstranspile.ops.shapes import Types, int_attr, one, shape_rule
from pstranspile.ops.values import Array, LoDTensor

np = lazy_import("numpy")

declare(
    "filter_by_instag",
    "Ins Ins_tag Filter_tag -> Out LossWeight IndexMap",
    {"is_lod": BOOL, "out_val_if_empty": long(0)},
    doc="Out = the rows whose tags are in Filter_tag",
)
declare_gradient("filter_by_instag", "Ins LossWeight IndexMap Out@GRAD -> Ins@GRAD")


@shape_rule("filter_by_instag")
def _filter_by_instag(_op: Op, types: Types) -> Types:
    x = one(types, "Ins")
    return {
        "Out": (TensorType(x.dtype, (-1, *x.shape[1:])),),
        "LossWeight": (None,),  # f32[-1, 1]; Fluid's layer declares f64
        "IndexMap": (TensorType(DType.INT64, (-1, -1)),),  # Fluid declares one column too few
    }


def _ends(counts: Array) -> list[int]:
    return [0, *np.cumsum(counts).tolist()]


@kernel("filter_by_instag", "Out LossWeight IndexMap", lod="new")
def _filter_by_instag_values(op: Op) -> Run:
    ragged, filler = flag(op, "is_lod"), int_attr(op, "out_val_if_empty")

    def run(Ins: Any, Ins_tag: Any, Filter_tag: Any) -> tuple[LoDTensor, LoDTensor, LoDTensor]:
        rows, tags = plain(Ins), plain(Ins_tag).reshape(-1)
        bounds = np.asarray(sequences(Ins, "Ins")[1][0]) if ragged else np.arange(len(rows) + 1)
        tag_bounds = np.asarray(Ins_tag.lod[0]) if isinstance(Ins_tag, LoDTensor) else np.arange(len(tags) + 1)
        if len(tag_bounds) != len(bounds):
            raise ValueError(f"there are {len(bounds) - 1} instances in Ins, and tags of {len(tag_bounds) - 1}")
        hits = np.concatenate([[0], np.cumsum(np.isin(tags, plain(Filter_tag)))])
        chosen = np.flatnonzero(hits[tag_bounds[1:]] > hits[tag_bounds[:-1]])
        if not len(chosen):
            found = np.full((1, *rows.shape[1:]), filler, rows.dtype)
            return _with_steps(found, [0, 1]), _single(np.zeros((1, 1), "float32")), _single(np.array([[0, 1, 1]]))
        starts, counts = bounds[chosen], np.diff(bounds)[chosen]
        ends = _ends(counts)
        places = np.repeat(starts - ends[:-1], counts) + np.arange(ends[-1])
        index = np.stack([np.asarray(ends[:-1]), starts, counts], axis=1).astype("int64")
        return _with_steps(rows[places], ends), _single(np.ones((len(chosen), 1), "float32")), _single(index)

    return run


def _with_steps(value: Array, ends: list[int]) -> LoDTensor:
    return LoDTensor(value, [ends])


def _single(value: Array) -> LoDTensor:
    """A value whose sequences are single rows."""
    return _with_steps(value, list(range(len(value) + 1)))


@kernel("filter_by_instag_grad", "Ins@GRAD", lod="each")
def _filter_by_instag_grad(_op: Op) -> Run:
    def run(Ins: Array, LossWeight: Array, IndexMap: Array, Out_GRAD: Array) -> Array:
        found = np.zeros(Ins.shape, Out_GRAD.dtype)
        if LossWeight.any():  # all are 0 where no instance was chosen
            for begin, start, count in IndexMap.tolist():
                found[start : start + count] = Out_GRAD[begin : begin + count]
        return found

    return run
