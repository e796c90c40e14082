"""Click-through models: counts of shows and clicks, data normalisation, hashes, and filtering by tags."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.images.norm_groups import require_vectors
from pstranspile.ops.schema import BOOL, declare, declare_gradient, long
from pstranspile.ops.shapes import ShapeError, Types, describe, given, one, shape_rule

declare(
    "cvm",
    "X CVM -> Y",
    {"use_cvm": True},
    doc="Y = X, its first two columns, shows and clicks, made logarithms (use_cvm) or left out",
)
declare_gradient("cvm", "X CVM Y@GRAD -> X@GRAD")


@shape_rule("cvm")
def _cvm(op: Op, types: Types) -> Types:
    x, counts = one(types, "X"), given(types, "CVM")
    if len(x.shape) != 2 or 0 <= x.shape[1] < 2:
        raise ShapeError(f"X is {describe(x)}, it must be rows that begin with shows and clicks", "X")
    if counts is not None and (len(counts.shape) != 2 or counts.shape[1] not in (2, -1)):
        raise ShapeError(f"CVM is {describe(counts)}, it must be rows of shows and clicks", "CVM")
    width = x.shape[1] if op.attrs.get("use_cvm") or x.shape[1] < 0 else x.shape[1] - 2
    return {"Y": (TensorType(x.dtype, (x.shape[0], width), x.lod_level),)}


declare(
    "data_norm",
    "scale_w? bias? X BatchSize BatchSum BatchSquareSum -> Y Means~ Scales~",
    {
        "epsilon": 0.0001,
        "slot_dim": -1,
        "summary_decay_rate": 0.9999999,
        "enable_scale_and_shift": False,
        "data_layout": "NCHW",
        "sync_stats": False,
        "use_mkldnn": False,
    },
    doc="Y = X normalised by statistics that are trained with it",
)
declare_gradient(
    "data_norm",
    "scale_w? bias? X Means Scales Y@GRAD -> BatchSize BatchSum BatchSquareSum "
    "scale_w@GRAD? bias@GRAD? X@GRAD BatchSize@GRAD BatchSum@GRAD BatchSquareSum@GRAD",
)


@shape_rule("data_norm")
def _data_norm(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    columns = x.shape[-1]
    require_vectors(types, ("BatchSize", "BatchSum", "BatchSquareSum", "scale_w", "bias"), columns, x)
    statistic = (TensorType(x.dtype, (columns,)),)
    return {"Y": (x,), "Means": statistic, "Scales": statistic}


@shape_rule("data_norm_grad")
def _data_norm_grad_types(op: Op, types: Types) -> Types:
    x = one(types, "X")
    statistic = (TensorType(x.dtype, (x.shape[-1],)),)
    return {slot: (x,) if slot == "X@GRAD" else statistic for slot in op.outputs}


declare(
    "hash",
    "X -> Out",
    {"num_hash": 1, "mod_by": long(100000), "@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": True},
    doc="Out = hashes of the rows of X, modulo mod_by",
)


@shape_rule("hash")
def _hash(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) != 2:
        raise ShapeError(f"X is {describe(x)}, it must have two dims", "X")
    return {"Out": (TensorType(x.dtype, (x.shape[0], int_attr(op, "num_hash", 1), 1), x.lod_level),)}


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
        "Out": (TensorType(x.dtype, (-1, *x.shape[1:2])),),
        "LossWeight": (None,),  # f32[-1, 1]; Fluid's layer declares f64
        "IndexMap": (TensorType(DType.INT64, (-1, -1)),),  # Fluid declares one column too few
    }
