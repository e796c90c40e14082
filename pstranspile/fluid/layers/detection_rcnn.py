"""Layers of detection in two stages: which anchors and proposals train what, and on which level they are looked at."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.layers import nn
from pstranspile.fluid.layers.adapt import live, to_core, wrap
from pstranspile.fluid.layers.detection_ops import listed, made_by, numbers
from pstranspile.ir.types import DType


def rpn_target_assign(
    bbox_pred: Any,
    cls_logits: Any,
    anchor_box: Any,
    anchor_var: Any,
    gt_boxes: Any,
    is_crowd: Any,
    im_info: Any,
    rpn_batch_size_per_im: int = 256,
    rpn_straddle_thresh: float = 0.0,
    rpn_fg_fraction: float = 0.5,
    rpn_positive_overlap: float = 0.7,
    rpn_negative_overlap: float = 0.3,
    use_random: bool = True,
) -> Any:
    """Scores and codes of the anchors that train them, what they should be (labels [anchors, 1], codes [anchors, 4]),
    and whether each code counts.
    """
    attrs = {
        "rpn_batch_size_per_im": rpn_batch_size_per_im,
        "rpn_straddle_thresh": rpn_straddle_thresh,
        "rpn_positive_overlap": rpn_positive_overlap,
        "rpn_negative_overlap": rpn_negative_overlap,
        "rpn_fg_fraction": rpn_fg_fraction,
        "use_random": use_random,
    }
    inputs = {"Anchor": anchor_box, "GtBoxes": gt_boxes, "IsCrowd": is_crowd, "ImInfo": im_info}
    slots = "LocationIndex:int32 ScoreIndex:int32 TargetLabel:int32 TargetBBox BBoxInsideWeight"
    places, scored, label, codes, counts = made_by("rpn_target_assign", inputs, slots, attrs, stopped="*")
    found = _taken(bbox_pred, cls_logits, 1, places, scored)
    return (*found, label, codes, counts)


def _taken(boxes: Any, scores: Any, classes: int, places: Any, scored: Any) -> tuple[Any, Any]:
    """The scores and the codes of the anchors of all images in places."""
    rows, codes = nn.reshape(scores, [-1, classes]), nn.reshape(boxes, [-1, 4])
    taken = nn.gather(rows, scored)
    return taken, nn.gather(codes, places)


def retinanet_target_assign(
    bbox_pred: Any,
    cls_logits: Any,
    anchor_box: Any,
    anchor_var: Any,
    gt_boxes: Any,
    gt_labels: Any,
    is_crowd: Any,
    im_info: Any,
    num_classes: int = 1,
    positive_overlap: float = 0.5,
    negative_overlap: float = 0.4,
) -> Any:
    """As rpn_target_assign, of all anchors and with classes; also one more than how many have objects."""
    attrs = {"positive_overlap": positive_overlap, "negative_overlap": negative_overlap}
    inputs = {"Anchor": anchor_box, "GtBoxes": gt_boxes, "GtLabels": gt_labels, "IsCrowd": is_crowd, "ImInfo": im_info}
    slots = "LocationIndex:int32 ScoreIndex:int32 TargetLabel:int32 TargetBBox BBoxInsideWeight ForegroundNumber:int32"
    places, scored, *others = made_by("retinanet_target_assign", inputs, slots, attrs, stopped="*")
    return (*_taken(bbox_pred, cls_logits, num_classes, places, scored), *others)


def generate_proposals(
    scores: Any,
    bbox_deltas: Any,
    im_info: Any,
    anchors: Any,
    variances: Any,
    pre_nms_top_n: int = 6000,
    post_nms_top_n: int = 1000,
    nms_thresh: float = 0.5,
    min_size: float = 0.1,
    eta: float = 1.0,
    name: str | None = None,
    return_rois_num: bool = False,
) -> Any:
    """The likeliest boxes [boxes, 4], of those that overlap, and their scores; with `return_rois_num` also where those
    of each image end.
    """
    attrs = {
        "pre_nms_topN": pre_nms_top_n,
        "post_nms_topN": post_nms_top_n,
        "nms_thresh": nms_thresh,
        "min_size": min_size,
        "eta": eta,
    }
    inputs = {
        "Scores": scores,
        "BboxDeltas": bbox_deltas,
        "ImInfo": im_info,
        "Anchors": anchors,
        "Variances": variances,
    }
    slots = "RpnRois RpnRoiProbs RpnRoisLod:int32"
    made = made_by("generate_proposals", inputs, slots, attrs, name=name, stopped="*")
    return tuple(made if return_rois_num else made[:2])


def generate_proposal_labels(
    rpn_rois: Any,
    gt_classes: Any,
    is_crowd: Any,
    gt_boxes: Any,
    im_info: Any,
    batch_size_per_im: int = 256,
    fg_fraction: float = 0.25,
    fg_thresh: float = 0.25,
    bg_thresh_hi: float = 0.5,
    bg_thresh_lo: float = 0.0,
    bbox_reg_weights: Any = (0.1, 0.1, 0.2, 0.2),
    class_nums: int | None = None,
    use_random: bool = True,
    is_cls_agnostic: bool = False,
    is_cascade_rcnn: bool = False,
) -> Any:
    """The proposals that train the classes, their classes, what moves them to their objects, and its weights."""
    attrs = {
        "batch_size_per_im": batch_size_per_im,
        "fg_fraction": fg_fraction,
        "fg_thresh": fg_thresh,
        "bg_thresh_hi": bg_thresh_hi,
        "bg_thresh_lo": bg_thresh_lo,
        "bbox_reg_weights": numbers(bbox_reg_weights),
        "class_nums": class_nums,
        "use_random": use_random,
        "is_cls_agnostic": is_cls_agnostic,
        "is_cascade_rcnn": is_cascade_rcnn,
    }
    inputs = {
        "RpnRois": rpn_rois,
        "GtClasses": gt_classes,
        "IsCrowd": is_crowd,
        "GtBoxes": gt_boxes,
        "ImInfo": im_info,
    }
    slots = "Rois LabelsInt32:int32 BboxTargets BboxInsideWeights BboxOutsideWeights"
    return tuple(made_by("generate_proposal_labels", inputs, slots, attrs, stopped="*"))


def generate_mask_labels(
    im_info: Any,
    gt_classes: Any,
    is_crowd: Any,
    gt_segms: Any,
    rois: Any,
    labels_int32: Any,
    num_classes: int,
    resolution: int,
) -> Any:
    """The regions with an object, their places among those of their image, and the masks of their objects as pixels."""
    inputs = {
        "Rois": rois,
        "ImInfo": im_info,
        "GtClasses": gt_classes,
        "IsCrowd": is_crowd,
        "GtSegms": gt_segms,
        "LabelsInt32": labels_int32,
    }
    attrs = {"num_classes": num_classes, "resolution": resolution}
    slots = "MaskRois RoiHasMaskInt32:int32 MaskInt32:int32"
    return tuple(made_by("generate_mask_labels", inputs, slots, attrs, stopped="*"))


def distribute_fpn_proposals(
    fpn_rois: Any, min_level: int, max_level: int, refer_level: int, refer_scale: int, name: str | None = None
) -> Any:
    """The boxes of each level of a pyramid, larger ones higher up, and where each went."""
    rois, draft = to_core(fpn_rois), live()
    layer = name or draft.names.mint("distribute_fpn_proposals")
    parts = [draft.temporary(layer, rois.dtype) for _ in range(max_level - min_level + 1)]
    restore = draft.temporary(layer, DType.INT32)
    attrs = {
        "min_level": min_level,
        "max_level": max_level,
        "refer_level": refer_level,
        "refer_scale": refer_scale,
    }
    outputs = {"MultiFpnRois": parts, "RestoreIndex": restore}
    draft.op("distribute_fpn_proposals", {"FpnRois": rois}, outputs, attrs)
    return wrap(parts), wrap(restore)


def collect_fpn_proposals(
    multi_rois: Any, multi_scores: Any, min_level: int, max_level: int, post_nms_top_n: int, name: str | None = None
) -> Any:
    """The likeliest boxes of the levels of a pyramid, image by image. Raises TypeError unless levels are lists."""
    for what, value in {"multi_rois": multi_rois, "multi_scores": multi_scores}.items():
        if not several(value):
            raise TypeError(f"collect_fpn_proposals: {what} must be a list, not {type(value).__name__}")
    count = max_level - min_level + 1
    inputs = {"MultiLevelRois": listed(multi_rois)[:count], "MultiLevelScores": listed(multi_scores)[:count]}
    attrs = {"post_nms_topN": post_nms_top_n}
    return made_by("collect_fpn_proposals", inputs, "FpnRois", attrs, name=name, stopped="*")[0]
