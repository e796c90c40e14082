"""Region proposals (Faster R-CNN, arXiv 1506.01497; FPN, arXiv 1612.03144): targets of anchors, proposed boxes, and
their levels of a pyramid.

A box is left, top, right, bottom, in pixels.
"""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, reals_attr, text
from pstranspile.ops.detection.boxes import require_boxes, require_image_info
from pstranspile.ops.schema import FLOAT, FLOATS, INT, bounded, declare
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, one, require_alike, several, shape_rule

declare(
    "rpn_target_assign",
    "Anchor GtBoxes IsCrowd ImInfo -> LocationIndex ScoreIndex TargetBBox TargetLabel BBoxInsideWeight",
    {
        "rpn_batch_size_per_im": bounded(256, 1),
        "rpn_straddle_thresh": FLOAT,
        "rpn_positive_overlap": 0.7,
        "rpn_negative_overlap": 0.3,
        "rpn_fg_fraction": 0.25,
        "use_random": True,
    },
    rows="own",
    draws=True,
    doc="LocationIndex, ScoreIndex = the anchors that train boxes and scores; TargetBBox, TargetLabel = their targets",
)
declare(
    "retinanet_target_assign",
    "Anchor GtBoxes GtLabels IsCrowd ImInfo -> "
    "LocationIndex ScoreIndex TargetBBox TargetLabel BBoxInsideWeight ForegroundNumber",
    {"positive_overlap": 0.5, "negative_overlap": 0.4},
    rows="own",
    doc="as rpn_target_assign, of all anchors and with classes; ForegroundNumber = one more than those of objects",
)
declare(
    "generate_proposals",
    "Scores BboxDeltas ImInfo Anchors Variances -> RpnRois RpnRoiProbs RpnRoisLod?",
    {"pre_nms_topN": INT, "post_nms_topN": INT, "nms_thresh": FLOAT, "min_size": FLOAT, "eta": FLOAT},
    rows="own",
    doc="RpnRois = the likeliest boxes, decoded, of those that overlap; RpnRoisLod = where each image ends",
)
declare(
    "generate_proposal_labels",
    "RpnRois GtClasses IsCrowd GtBoxes ImInfo -> Rois LabelsInt32 BboxTargets BboxInsideWeights BboxOutsideWeights",
    {
        "batch_size_per_im": bounded(INT, 0),
        "fg_fraction": FLOAT,
        "fg_thresh": FLOAT,
        "bg_thresh_hi": FLOAT,
        "bg_thresh_lo": FLOAT,
        "bbox_reg_weights": FLOATS,
        "class_nums": INT,
        "use_random": True,
        "is_cascade_rcnn": False,
        "is_cls_agnostic": False,
    },
    rows="own",
    draws=True,
    doc="Rois = the proposals that train the classes, LabelsInt32 = their classes, BboxTargets = their objects",
)
declare(
    "distribute_fpn_proposals",
    "FpnRois -> MultiFpnRois* RestoreIndex",
    {
        "min_level": bounded(INT, 1, below="max_level"),
        "max_level": INT,
        "refer_level": INT,
        "refer_scale": bounded(INT, 1),
    },
    rows="own",
    doc="MultiFpnRois = the boxes of each level, larger ones higher up; RestoreIndex = where each box of FpnRois went",
)
declare(
    "collect_fpn_proposals",
    "MultiLevelRois* MultiLevelScores* -> FpnRois",
    {"post_nms_topN": bounded(INT, 0)},
    rows="own",
    doc="FpnRois = the likeliest boxes of all levels, image by image",
)


def _index(rows: int = -1) -> tuple[TensorType]:
    return (TensorType(DType.INT32, (rows,)),)


def _anchors(types: Types) -> TensorType:
    """The type of the anchors. Raises ShapeError if anchors, objects and images don't fit together."""
    anchors = one(types, "Anchor")
    require_boxes(anchors, "Anchor")
    require_boxes(one(types, "GtBoxes"), "GtBoxes")
    require_image_info(one(types, "ImInfo"))
    return anchors


@shape_rule("rpn_target_assign", "retinanet_target_assign")
def _target_assign(op: Op, types: Types) -> Types:
    anchors = _anchors(types)
    rows = -1
    if op.type == "retinanet_target_assign":
        rows = one(types, "GtLabels").shape[0]  # their number at run time differs from the one that Fluid declares
    boxes, labels = (TensorType(anchors.dtype, (rows, 4)),), (TensorType(DType.INT32, (rows, 1)),)
    result: dict[str, tuple[TensorType | None, ...]] = {
        "LocationIndex": _index(rows),
        "ScoreIndex": _index(rows),
        "TargetBBox": boxes,
        "TargetLabel": labels,
        "BBoxInsideWeight": boxes,
    }
    return {**result, "ForegroundNumber": labels} if op.type == "retinanet_target_assign" else result


@shape_rule("generate_proposals")
def _generate_proposals(_op: Op, types: Types) -> Types:
    scores, deltas, anchors = one(types, "Scores"), one(types, "BboxDeltas"), one(types, "Anchors")
    require_image_info(one(types, "ImInfo"))
    if len(scores.shape) != 4 or len(deltas.shape) != 4 or not fits(scores.shape[2:], deltas.shape[2:]):
        disagree("Scores", scores, "BboxDeltas", deltas)
    if min(scores.shape[1], deltas.shape[1]) > 0 and deltas.shape[1] != 4 * scores.shape[1]:
        disagree("Scores", scores, "BboxDeltas", deltas)
    if anchors.shape[-1] not in (4, -1):
        raise ShapeError(f"Anchors is {describe(anchors)}, the last dim of boxes is 4", "Anchors")
    # Fluid's layer declares RpnRoisLod as i32; the op gives i64
    return {
        "RpnRois": (TensorType(anchors.dtype, (-1, 4)),),
        "RpnRoiProbs": (TensorType(scores.dtype, (-1, 1)),),
        "RpnRoisLod": (None,),
    }


@shape_rule("generate_proposal_labels")
def _generate_proposal_labels(op: Op, types: Types) -> Types:
    rois = one(types, "RpnRois")
    require_boxes(rois, "RpnRois")
    require_boxes(one(types, "GtBoxes"), "GtBoxes")
    require_image_info(one(types, "ImInfo"))
    if len(reals_attr(op, "bbox_reg_weights")) != 4:
        raise ShapeError("bbox_reg_weights must be four numbers", "RpnRois")
    classes = int_attr(op, "class_nums")
    if classes < 2:
        raise ShapeError(f"class_nums is {classes}, there must be a background and another class", "RpnRois")
    targets = (TensorType(rois.dtype, (-1, 4 * classes)),)
    return {
        "Rois": (TensorType(rois.dtype, (-1, 4)),),
        "LabelsInt32": (TensorType(DType.INT32, (-1, 1)),),
        "BboxTargets": targets,
        "BboxInsideWeights": targets,
        "BboxOutsideWeights": targets,
    }


@shape_rule("distribute_fpn_proposals")
def _distribute_fpn_proposals(op: Op, types: Types) -> Types:
    rois = one(types, "FpnRois")
    require_boxes(rois, "FpnRois")
    least, most = int_attr(op, "min_level"), int_attr(op, "max_level")
    if most < least:
        raise ShapeError(f"max_level is {most}, below min_level, {least}", "FpnRois")
    part = TensorType(rois.dtype, (-1, 4), rois.lod_level)
    count = len(op.outputs.get("MultiFpnRois", ()))
    return {
        "MultiFpnRois": (part,) * (count or most - least + 1),
        "RestoreIndex": (TensorType(DType.INT32, (-1, 1)),),
    }


@shape_rule("collect_fpn_proposals")
def _collect_fpn_proposals(op: Op, types: Types) -> Types:
    rois, scores = several(types, "MultiLevelRois"), several(types, "MultiLevelScores")
    if len(rois) != len(scores):
        raise ShapeError(f"{len(rois)} levels of boxes, {len(scores)} of scores", "MultiLevelRois")
    for level in rois:
        require_boxes(level, "MultiLevelRois")
    return {"FpnRois": (TensorType(rois[0].dtype, (int_attr(op, "post_nms_topN"), 4), rois[0].lod_level),)}


# Matching of boxes with objects, and the choice of boxes without objects that count in a loss.

declare(
    "bipartite_match",
    "DistMat -> ColToRowMatchIndices ColToRowMatchDist",
    {"match_type": "bipartite", "dist_threshold": 0.5},
    rows="own",
    doc="ColToRowMatchIndices = the row of DistMat that each column is matched with, the nearest pairs first; or -1",
)
declare(
    "target_assign",
    "X MatchIndices NegIndices? -> Out OutWeight",
    {"mismatch_value": 0},
    rows="own",
    doc="Out = the row of X that each box is matched with, or mismatch_value; OutWeight = whether the box counts",
)
declare(
    "mine_hard_examples",
    "ClsLoss LocLoss? MatchIndices MatchDist -> NegIndices UpdatedMatchIndices",
    {"neg_pos_ratio": 1.0, "neg_dist_threshold": 0.5, "sample_size": 0, "mining_type": "max_negative"},
    rows="own",
    doc="NegIndices = the boxes without object that have the largest losses",
)

MATCH_TYPES = ("bipartite", "per_prediction")
MINING_TYPES = ("max_negative", "hard_example")


def matrix(types: Types, slot: str) -> TensorType:
    """The type of an input with two dims. Raises ShapeError for another number."""
    x = one(types, slot)
    if len(x.shape) != 2:
        raise ShapeError(f"{slot} is {describe(x)}, it must have 2 dims", slot)
    return x


def one_of(op: Op, name: str, values: tuple[str, ...], slot: str) -> str:
    """A STRING attribute. Raises ShapeError if its value is not one of `values`."""
    tensor = text(op, name)
    if tensor not in values:
        raise ShapeError(f"{name} is {tensor!r}, it must be {' or '.join(map(repr, values))}", slot)
    return tensor


@shape_rule("bipartite_match")
def _bipartite_match(op: Op, types: Types) -> Types:
    dist = matrix(types, "DistMat")
    one_of(op, "match_type", MATCH_TYPES, "DistMat")
    dims = (-1, dist.shape[1])  # a row for each sequence of DistMat
    return {
        "ColToRowMatchIndices": (TensorType(DType.INT32, dims),),
        "ColToRowMatchDist": (TensorType(dist.dtype, dims),),
    }


@shape_rule("target_assign")
def _matched_targets(_op: Op, types: Types) -> Types:
    x, matched = one(types, "X"), matrix(types, "MatchIndices")
    if len(x.shape) != 3:
        raise ShapeError(f"X is {describe(x)}, it must have 3 dims", "X")
    out = TensorType(x.dtype, (*matched.shape, x.shape[2]))
    return {"Out": (out,), "OutWeight": (TensorType(DType.FP32, (*matched.shape, 1)),)}


@shape_rule("mine_hard_examples")
def _mine_hard_examples(op: Op, types: Types) -> Types:
    matrix(types, "ClsLoss")
    matched = matrix(types, "MatchIndices")
    one_of(op, "mining_type", MINING_TYPES, "ClsLoss")
    require_alike(types, "ClsLoss", "LocLoss")
    return {"NegIndices": (TensorType(DType.INT32, (-1, 1)),), "UpdatedMatchIndices": (matched,)}
