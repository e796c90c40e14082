"""Click-through models: counts of shows and clicks, data normalisation, hashes, and filtering by tags."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.facts import Below
from pstranspile.ops.images.norm import require_vectors
from pstranspile.ops.schema import BOOL, INT, bounded, declare, declare_gradient, ints, long, words
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, dtype_attr, fits, one, one_or_none, shape_rule

declare(
    "cvm",
    "X CVM -> Y",
    {"use_cvm": True},
    doc="Y = X, its first two columns, shows and clicks, made logarithms (use_cvm) or left out",
)
declare_gradient("cvm", "X CVM Y@GRAD -> X@GRAD")


@shape_rule("cvm")
def _cvm(op: Op, types: Types) -> Types:
    x, counts = one(types, "X"), one_or_none(types, "CVM")
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
        "epsilon": bounded(0.0001, 0),
        "slot_dim": -1,
        "summary_decay_rate": 0.9999999,
        "enable_scale_and_shift": False,
        "data_layout": words("NCHW", "NHWC", "AnyLayout"),
        "sync_stats": False,
        "use_mkldnn": False,
    },
    doc="Y = X normalised by statistics that are trained with it",
)
declare_gradient(
    "data_norm",
    "scale_w? bias? X Means Scales Y@GRAD -> BatchSize BatchSum BatchSquareSum "
    "scale_w@GRAD? bias@GRAD? X@GRAD BatchSize@GRAD BatchSum@GRAD BatchSquareSum@GRAD",
    result_lod="none",
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
    {
        "num_hash": bounded(1, 1, 1 << 16),
        "mod_by": bounded(long(100000), 1),
        "@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": True,
    },
    constant=True,
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
    rows="own",
    row_order="by_values",
    doc="Out = the rows whose tags are in Filter_tag",
)
declare_gradient("filter_by_instag", "Ins LossWeight IndexMap Out@GRAD -> Ins@GRAD", result_lod="none")


@shape_rule("filter_by_instag")
def _filter_by_instag(_op: Op, types: Types) -> Types:
    x = one(types, "Ins")
    return {
        "Out": (TensorType(x.dtype, (-1, *x.shape[1:2])),),
        "LossWeight": (None,),  # f32[-1, 1]; Fluid's layer declares f64
        "IndexMap": (TensorType(DType.INT64, (-1, -1)),),  # Fluid declares one column less than the op makes
    }


# Search models: parameters selected by pairs of ranks, and embeddings of groups of words found by hashing.

declare(
    "rank_attention",
    "X RankOffset RankParam -> Out",
    {"MaxRank": 3},
    domains={"RankOffset": Below("X", 0)},
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
        "num_emb": bounded(0, 0),
        "space_len": 0,
        "pyramid_layer": bounded(2, 2),
        "rand_len": 0,
        "drop_out_percent": bounded(0.0, 0),
        "is_training": bounded(0, 0),
        "use_filter": True,
        "white_list_len": bounded(0, 0),
        "black_list_len": bounded(0, 0),
        "seed": 0,
        "lr": bounded(0.0, 0),
        "distribute_update_vars": "",
    },
    may_lack="WhiteList BlackList",
    rows="own",
    draws=True,
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


# Sampled classes: logits of a few classes, and nodes of a tree of items, level by level.

declare(
    "tdm_child",
    "X TreeInfo -> Child LeafMask",
    {"child_nums": INT, "dtype": DType.INT32.value},
    rows="own",
    domains={"X": Below("TreeInfo", 0)},
    doc="Child = the children of the nodes X of a tree, LeafMask = which of them are leaves",
)
declare(
    "tdm_sampler",
    "X Travel Layer -> Out Labels? Mask",
    {
        "output_positive": True,
        "neg_samples_num_list": ints(),
        "layer_offset_lod": ints(),
        "seed": 0,
        "dtype": DType.INT32.value,
    },
    domains={"X": Below("Travel", 0)},
    draws=True,
    doc="Out = of each level of a tree the node above the leaf X, and some others",
)


@shape_rule("tdm_child")
def _tdm_child(op: Op, types: Types) -> Types:
    x = one(types, "X")
    result = TensorType(dtype_attr(op), (*x.shape, int_attr(op, "child_nums")), x.lod_level)
    return {"Child": (result,), "LeafMask": (result,)}


@shape_rule("tdm_sampler")
def _tdm_sampler(op: Op, types: Types) -> Types:
    one(types, "X")
    counts = ints_attr(op, "neg_samples_num_list")
    result = (
        TensorType(dtype_attr(op), (-1, sum(counts) + len(counts) * bool(op.attrs.get("output_positive", True)))),
    )
    return {"Out": result, "Labels": result, "Mask": result}


declare(
    "sample_logits",
    "Logits Labels CustomizedSamples? CustomizedProbabilities? -> "
    "Samples~ Probabilities~ LogitsDim~ LabelsDim~ SampledLogits~ SampledLabels",
    {
        "use_customized_samples": False,
        "uniq": True,
        "remove_accidental_hits": True,
        "num_samples": INT,
        "seed": 0,
    },
    domains={"Labels": Below("Logits", -1), "CustomizedSamples": Below("Logits", -1)},
    draws=True,
    doc="SampledLogits = Logits at the labels and at sampled classes, less the logarithm of how likely those are",
)
declare_gradient("sample_logits", "LogitsDim LabelsDim Samples SampledLogits@GRAD -> Logits@GRAD", result_lod="none")


@shape_rule("sample_logits")
def _sample_logits(op: Op, types: Types) -> Types:
    logits, labels = one(types, "Logits"), one(types, "Labels")
    if len(logits.shape) != 2 or len(labels.shape) != 2:
        raise ShapeError(f"Logits is {describe(logits)}, Labels {describe(labels)}; both must have 2 dims", "Labels")
    if not fits(labels.shape[:1], logits.shape[:1]):
        disagree("Labels", labels, "Logits", logits)
    count = int_attr(op, "num_samples") + labels.shape[1] if labels.shape[1] >= 0 else -1
    dims = (labels.shape[0], count)
    # Fluid's layer declares Probabilities as f32 whatever the logits are, and LabelsDim without an element type
    likely = TensorType(logits.dtype, dims) if logits.dtype is DType.FP32 else None
    return {
        "Samples": (TensorType(labels.dtype, dims),),
        "Probabilities": (likely,),
        "LogitsDim": (TensorType(logits.dtype, (*logits.shape, 0)),),
        "SampledLogits": (TensorType(logits.dtype, dims),),
        "SampledLabels": (TensorType(labels.dtype, labels.shape),),
    }


@shape_rule("sample_logits_grad")
def _sample_logits_grad(_op: Op, types: Types) -> Types:
    dims = one(types, "LogitsDim")
    return {"Logits@GRAD": (dims._replace(shape=dims.shape[:-1]),)}
