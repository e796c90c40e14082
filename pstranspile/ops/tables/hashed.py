"""Search models: parameters chosen by pairs of ranks, and embeddings of groups of words found by hashing."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, one, shape_rule

declare(
    "rank_attention",
    "X RankOffset RankParam -> Out",
    {"MaxRank": 3},
    doc="Out = the sum over pairs of ranks in RankOffset: a row of X times the block of RankParam for the two ranks",
)
declare_gradient("rank_attention", "X RankOffset RankParam Out@GRAD -> RankParam@GRAD")


@shape_rule("rank_attention")
def _rank_attention(op: Op, types: Types) -> Types:
    x, ranks, param = one(types, "X"), one(types, "RankOffset"), one(types, "RankParam")
    if len(ranks.shape) != 2 or ranks.shape[1] not in (-1, 2 * int_attr(op, "MaxRank", 3) + 1):
        raise ShapeError(f"RankOffset is {describe(ranks)}, it must have 2 * MaxRank + 1 columns", "RankOffset")
    return {"Out": (TensorType(x.dtype, (x.shape[0], param.shape[1]), x.lod_level),)}


declare(
    "pyramid_hash",
    "X W WhiteList BlackList -> Out DropPos X_Temp_Out~",
    {
        "num_emb": 0,
        "space_len": 0,
        "pyramid_layer": 2,
        "rand_len": 0,
        "drop_out_percent": 0.0,
        "is_training": 0,
        "use_filter": True,
        "white_list_len": 0,
        "black_list_len": 0,
        "seed": 0,
        "lr": 0.0,
        "distribute_update_vars": "",
    },
    may_lack="WhiteList BlackList",
    doc="Out = for each group of up to pyramid_layer words the parts of W that its hashes name",
)
declare_gradient("pyramid_hash", "X W DropPos X_Temp_Out Out@GRAD -> X@GRAD")


@shape_rule("pyramid_hash")
def _pyramid_hash(op: Op, types: Types) -> Types:
    x, w = one(types, "X"), one(types, "W")
    width, part, space = (int_attr(op, name) for name in ("num_emb", "rand_len", "space_len"))
    if len(x.shape) != 2:
        raise ShapeError(f"X is {describe(x)}, it must have two dims", "X")
    if w.shape != (space + part, 1):
        raise ShapeError(f"W is {describe(w)}, it must be [space_len + rand_len = {space + part}, 1]", "W")
    if part < 1 or width % part:
        raise ShapeError(f"num_emb is {width}, it must be a multiple of rand_len {part}", "W")
    for slot, attr in (("WhiteList", "white_list_len"), ("BlackList", "black_list_len")):
        length, given = int_attr(op, attr), types.get(slot)
        if length > 0 and given and given[0] is not None and given[0].shape != (length, 1):
            raise ShapeError(f"{slot} is {describe(given[0])}, it must be [{attr} = {length}, 1]", slot)
    made = TensorType(w.dtype, (-1, width), x.lod_level)
    return {"Out": (made,), "X_Temp_Out": (TensorType(DType.FP32, x.shape),)}
