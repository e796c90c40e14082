"""Fluid's `layers.detection`, and the layers of `layers.nn` that pool regions of feature maps to a fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, prod
from typing import Any, NamedTuple

from pstranspile.fluid.graph.values import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layers import loss as losses
from pstranspile.fluid.layers import nn, tensor
from pstranspile.fluid.layers.adapt import (
    as_list,
    every,
    lists,
    live,
    made_by,
    numbers,
    one_op,
    to_core,
    with_argument_checks,
    wrap,
)
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import basic
from pstranspile.ir.model import TensorType
from pstranspile.ir.types import DType

VARIANCES = (0.1, 0.1, 0.2, 0.2)
"""Default variances of boxes: the scales of the encoded x, y, width and height."""


def _pair(layer: str, name: str, value: Any) -> list[float]:
    """Two numbers as floats. Raises ValueError for another count."""
    if not several(value) or len(value) != 2:
        raise ValueError(f"{layer}: {name} must be two numbers, not {value!r}")
    return numbers(value)


iou_similarity = one_op("iou_similarity", "x, y, box_normalized=True, name=None", "X=x Y=y", attrs="box_normalized")
polygon_box_transform = one_op("polygon_box_transform", "input, name=None", "Input=input", "Output")
box_clip = one_op("box_clip", "input, im_info, name=None", "Input=input ImInfo=im_info", "Output")
box_decoder_and_assign = one_op(
    "box_decoder_and_assign",
    "prior_box, prior_box_var, target_box, box_score, box_clip, name=None",
    "PriorBox=prior_box PriorBoxVar=prior_box_var TargetBox=target_box BoxScore=box_score",
    "DecodeBox OutputAssignBox*",
    "box_clip",
)


@with_argument_checks
def box_coder(
    prior_box: Any,
    prior_box_var: Any,
    target_box: Any,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Any:
    """Encodes boxes as distances from prior boxes, relative to the lengths of their sides, or decodes such distances.

    `prior_box_var` scales the distances: four numbers, or a variable with four for each prior box. Raises TypeError for
    other values.
    """
    inputs, attrs = {"PriorBox": prior_box, "PriorBoxVar": None, "TargetBox": target_box}, dict[str, Any]()
    if isinstance(prior_box_var, Variable):
        inputs["PriorBoxVar"] = prior_box_var
    elif isinstance(prior_box_var, list):
        attrs["variance"] = numbers(prior_box_var)
    else:
        kind = type(prior_box_var).__name__
        raise TypeError(f"box_coder: prior_box_var must be a variable or a list of four numbers, not {kind}")
    attrs |= {"code_type": code_type, "box_normalized": box_normalized, "axis": axis}
    return made_by("box_coder", inputs, "OutputBox", attrs, name=name)[0]


bipartite_match = one_op(
    "bipartite_match",
    "dist_matrix, match_type=None, dist_threshold=None, name=None",
    "DistMat=dist_matrix",
    "ColToRowMatchIndices:int32 ColToRowMatchDist",
    "match_type dist_threshold",
    gives=every,
)


target_assign = one_op(
    "target_assign",
    "input, matched_indices, negative_indices=None, mismatch_value=None, name=None",
    "X=input MatchIndices=matched_indices NegIndices=negative_indices",
    "Out OutWeight:float32",
    "mismatch_value:number",
    gives=every,
)


anchor_generator = one_op(
    "anchor_generator",
    "input, anchor_sizes=None, aspect_ratios=None, variance=(0.1, 0.1, 0.2, 0.2), stride=None, offset=0.5, name=None",
    "Input=input",
    "Anchors Variances",
    "anchor_sizes:floats aspect_ratios:floats variances=variance:floats offset",
    stopped="*",
    more=lambda given: {"stride": _pair("anchor_generator", "stride", given["stride"])},
    gives=every,
)


def _steps(layer: str, given: dict[str, Any]) -> dict[str, Any]:
    across, down = _pair(layer, "steps", given["steps"])
    return {"step_w": across, "step_h": down}


def _priors(given: dict[str, Any]) -> dict[str, Any]:
    steps, largest = _steps("prior_box", given), given["max_sizes"]
    largest = [] if largest is None else numbers(largest)
    return {**steps, "max_sizes": largest} if largest and largest[0] > 0 else steps


prior_box = one_op(
    "prior_box",
    "input, image, min_sizes, max_sizes=None, aspect_ratios=(1.0,), variance=(0.1, 0.1, 0.2, 0.2), flip=False, "
    "clip=False, steps=(0.0, 0.0), offset=0.5, name=None, min_max_aspect_ratios_order=False",
    "Input=input Image=image",
    "Boxes Variances",
    "min_sizes:floats aspect_ratios:floats variances=variance:floats flip clip offset min_max_aspect_ratios_order",
    stopped="*",
    more=_priors,
    gives=every,
)


def _dense_priors(given: dict[str, Any]) -> dict[str, Any]:
    lists("density_prior_box", "densities", "fixed_sizes", "fixed_ratios")(given)
    if len(given["densities"]) != len(given["fixed_sizes"]):
        raise ValueError("density_prior_box: densities and fixed_sizes must be as many")
    return {**_steps("density_prior_box", given), "densities": [int(density) for density in given["densities"]]}


density_prior_box = one_op(
    "density_prior_box",
    "input, image, densities=None, fixed_sizes=None, fixed_ratios=None, variance=(0.1, 0.1, 0.2, 0.2), clip=False, "
    "steps=(0.0, 0.0), offset=0.5, flatten_to_2d=False, name=None",
    "Input=input Image=image",
    "Boxes Variances",
    "variances=variance:floats clip offset fixed_sizes:floats fixed_ratios:floats flatten_to_2d",
    stopped="*",
    more=_dense_priors,
    gives=every,
)


def _loss_of_grids(results: list[Any], given: dict[str, Any]) -> Any:
    to_core(results[1]).redeclare_dims((given["x"].shape[0], len(given["anchor_mask"]), *given["x"].shape[2:]))
    return results[0]


yolov3_loss = one_op(
    "yolov3_loss",
    "x, gt_box, gt_label, anchors, anchor_mask, class_num, ignore_thresh, downsample_ratio, gt_score=None, "
    "use_label_smooth=True, name=None, scale_x_y=1.0",
    "X=x GTBox=gt_box GTLabel=gt_label GTScore=gt_score",
    "Loss ObjectnessMask:int32 GTMatchMask:int32",
    "anchors:list anchor_mask:list class_num ignore_thresh downsample_ratio use_label_smooth scale_x_y",
    more=lists("yolov3_loss", "anchors", "anchor_mask"),
    gives=_loss_of_grids,
)
sigmoid_focal_loss = one_op(
    "sigmoid_focal_loss",
    "x, label, fg_num, gamma=2.0, alpha=0.25",
    "X=x Label=label FgNum=fg_num",
    attrs="gamma alpha",
)


yolo_box = one_op(
    "yolo_box",
    "x, img_size, anchors, class_num, conf_thresh, downsample_ratio, clip_bbox=True, name=None, scale_x_y=1.0",
    "X=x ImgSize=img_size",
    "Boxes Scores",
    "anchors:list class_num conf_thresh downsample_ratio clip_bbox scale_x_y",
    more=lists("yolo_box", "anchors"),
    gives=every,
)


_CHOICE = "nms_threshold=0.3, normalized=True, nms_eta=1.0"
CHOICE_OF_BOXES = "background_label score_threshold nms_top_k nms_threshold keep_top_k nms_eta normalized"
"""Attributes of ops that drop boxes which overlap boxes with higher scores."""


def with_index(results: list[Any], given: dict[str, Any]) -> Any:
    """The rows found, and with `return_index` also their indices, which are declared as int64 as in Fluid although they
    are int32.
    """
    found, index = results[0], to_core(results[1])
    index.draft.declare(index.var._replace(tensor=TensorType(DType.INT64, (found.shape[0], 1), 1)))
    return (found, results[1]) if given["return_index"] else found


multiclass_nms = one_op(
    "multiclass_nms",
    f"bboxes, scores, score_threshold, nms_top_k, keep_top_k, {_CHOICE}, background_label=0, name=None",
    "BBoxes=bboxes Scores=scores",
    attrs=CHOICE_OF_BOXES,
    stopped="*",
)


def _of_one_class(given: dict[str, Any]) -> dict[str, Any]:
    dims = given["scores"].shape
    if len(dims) != 3 or dims[1] != 1:
        raise ValueError(f"locality_aware_nms takes scores [images, 1, boxes], not {list(dims)}")
    return {}


locality_aware_nms = one_op(
    "locality_aware_nms",
    f"bboxes, scores, score_threshold, nms_top_k, keep_top_k, {_CHOICE}, background_label=-1, name=None",
    "BBoxes=bboxes Scores=scores",
    attrs=CHOICE_OF_BOXES,
    stopped="*",
    more=_of_one_class,
)


matrix_nms = one_op(
    "matrix_nms",
    "bboxes, scores, score_threshold, post_threshold, nms_top_k, keep_top_k, use_gaussian=False, gaussian_sigma=2.0, "
    "background_label=0, normalized=True, return_index=False, name=None",
    "BBoxes=bboxes Scores=scores",
    "Out Index:int64",
    "score_threshold post_threshold nms_top_k keep_top_k use_gaussian gaussian_sigma background_label normalized",
    stopped="Out",
    gives=with_index,
)


def detection_output(
    loc: Any,
    scores: Any,
    prior_box: Any,
    prior_box_var: Any,
    background_label: int = 0,
    nms_threshold: float = 0.3,
    nms_top_k: int = 400,
    keep_top_k: int = 200,
    score_threshold: float = 0.01,
    nms_eta: float = 1.0,
    return_index: bool = False,
) -> Any:
    """The objects that an SSD finds: boxes decoded against prior boxes, of each class those that do not overlap a box
    with a higher score too much. As in Fluid `nms_eta` is always 1.
    """
    boxes = box_coder(prior_box, prior_box_var, loc, "decode_center_size")
    shares: Any = nn.transpose(nn.softmax(scores), [0, 2, 1])
    shares.stop_gradient = True
    attrs = {
        "background_label": background_label,
        "score_threshold": score_threshold,
        "nms_top_k": nms_top_k,
        "nms_threshold": nms_threshold,
        "keep_top_k": keep_top_k,
        "nms_eta": 1.0,
        "normalized": True,
    }
    inputs, key = {"BBoxes": boxes, "Scores": shares}, "detection_output"
    if not return_index:
        return made_by("multiclass_nms", inputs, "Out", attrs, key=key, stopped="*")[0]
    made = made_by("multiclass_nms2", inputs, "Out Index:int64", attrs, key=key, stopped="*")
    return with_index(made, {"return_index": True})


retinanet_detection_output = one_op(
    "retinanet_detection_output",
    "bboxes, scores, anchors, im_info, score_threshold=0.05, nms_top_k=1000, keep_top_k=100, nms_threshold=0.3, "
    "nms_eta=1.0",
    "BBoxes=bboxes Scores=scores Anchors=anchors ImInfo=im_info",
    attrs="score_threshold nms_top_k nms_threshold keep_top_k nms_eta",
    stopped="*",
    more=lists("retinanet_detection_output", "bboxes", "scores", "anchors", of="a list"),
)


_STATES: tuple[str, ...] = ("AccumPosCount", "AccumTruePos", "AccumFalsePos")
"""The slots of the counts from which a mean average precision over several batches continues."""


def detection_map(
    detect_res: Any,
    label: Any,
    class_num: int,
    background_label: int = 0,
    overlap_threshold: float = 0.3,
    evaluate_difficult: bool = True,
    has_state: Any = None,
    input_states: Any = None,
    out_states: Any = None,
    ap_version: str = "integral",
) -> Any:
    """The mean average precision of the boxes found.

    With states (counts of objects, right and wrong boxes) it covers all batches since `has_state` was 0.
    """
    counts, right, wrong = input_states or (None, None, None)
    inputs = {"DetectRes": detect_res, "Label": label, "HasState": has_state}
    inputs |= {"PosCount": counts, "TruePos": right, "FalsePos": wrong}
    outputs = "MAP:float32 AccumPosCount:int32 AccumTruePos:float32 AccumFalsePos:float32"
    into: dict[str, Any] = dict(zip(_STATES, out_states or (), strict=False))
    attrs = {
        "overlap_threshold": overlap_threshold,
        "evaluate_difficult": evaluate_difficult,
        "ap_type": ap_version,
        "class_num": class_num,
        "background_label": background_label,
    }
    return made_by("detection_map", inputs, outputs, attrs, into=into)[0]


roi_align = one_op(
    "roi_align",
    "input, rois, pooled_height=1, pooled_width=1, spatial_scale=1.0, sampling_ratio=-1, name=None, rois_lod=None",
    "X=input ROIs=rois RoisLod=rois_lod",
    attrs="pooled_height pooled_width spatial_scale sampling_ratio",
)
psroi_pool = one_op(
    "psroi_pool",
    "input, rois, output_channels, spatial_scale, pooled_height, pooled_width, name=None",
    "X=input ROIs=rois",
    attrs="output_channels spatial_scale pooled_height pooled_width",
)
prroi_pool = one_op(
    "prroi_pool",
    "input, rois, spatial_scale=1.0, pooled_height=1, pooled_width=1, batch_roi_nums=None, name=None",
    "X=input ROIs=rois BatchRoINums=batch_roi_nums",
    attrs="spatial_scale pooled_height pooled_width",
)


def _regions(results: list[Any], _: dict[str, Any]) -> Any:
    to_core(results[1]).redeclare_dims(results[0].shape)
    return results[0]


roi_pool = one_op(
    "roi_pool",
    "input, rois, pooled_height=1, pooled_width=1, spatial_scale=1.0, rois_lod=None",
    "X=input ROIs=rois RoisLod=rois_lod",
    "Out Argmax:int32",
    "pooled_height pooled_width spatial_scale",
    gives=_regions,
)


def _parts(given: dict[str, Any]) -> dict[str, Any]:
    """The number of channels of the results, and the number of parts into which each region is divided."""
    channels, parts = given["input"].shape[1], [given["pooled_height"], given["pooled_width"]]
    if given["position_sensitive"]:
        if channels % prod(parts):
            counts = f"{parts[0]} * {parts[1]}"
            raise ValueError(f"deformable_roi_pooling: {channels} channels are not as many for each of {counts} parts")
        channels //= prod(parts)
    return {"output_dim": channels, "part_size": parts if given["part_size"] is None else as_list(given["part_size"])}


deformable_roi_pooling = one_op(
    "deformable_psroi_pooling",
    "input, rois, trans, no_trans=False, spatial_scale=1.0, group_size=(1, 1), pooled_height=1, pooled_width=1, "
    "part_size=None, sample_per_part=1, trans_std=0.1, position_sensitive=False, name=None",
    "Input=input ROIs=rois Trans=trans",
    "Output TopCount:int32",
    "no_trans spatial_scale group_size:list pooled_height pooled_width sample_per_part trans_std",
    called="deformable_roi_pooling",
    more=_parts,
)


roi_perspective_transform = one_op(
    "roi_perspective_transform",
    "input, rois, transformed_height, transformed_width, spatial_scale=1.0, name=None",
    "X=input ROIs=rois",
    "Out Mask:int32 TransformMatrix Out2InIdx:int32 Out2InWeights",
    "transformed_height transformed_width spatial_scale",
    gives=lambda made, _: tuple(made[:3]),
)


# Layers of detection in two stages: they choose the anchors and proposals to train on, and the level that each belongs
# to.


def _scores_and_codes(results: list[Any], given: dict[str, Any]) -> tuple[Any, ...]:
    """The scores and codes of the chosen anchors, and the target values of both."""
    places, scored, *others = results
    rows = nn.reshape(given["cls_logits"], [-1, given.get("num_classes", 1)])
    codes = nn.reshape(given["bbox_pred"], [-1, 4])
    return (nn.gather(rows, scored), nn.gather(codes, places), *others)


rpn_target_assign = one_op(
    "rpn_target_assign",
    "bbox_pred, cls_logits, anchor_box, anchor_var, gt_boxes, is_crowd, im_info, rpn_batch_size_per_im=256, "
    "rpn_straddle_thresh=0.0, rpn_fg_fraction=0.5, rpn_positive_overlap=0.7, rpn_negative_overlap=0.3, use_random=True",
    "Anchor=anchor_box GtBoxes=gt_boxes IsCrowd=is_crowd ImInfo=im_info",
    "LocationIndex:int32 ScoreIndex:int32 TargetLabel:int32 TargetBBox BBoxInsideWeight",
    "rpn_batch_size_per_im rpn_straddle_thresh rpn_positive_overlap rpn_negative_overlap rpn_fg_fraction use_random",
    stopped="*",
    gives=_scores_and_codes,
)


retinanet_target_assign = one_op(
    "retinanet_target_assign",
    "bbox_pred, cls_logits, anchor_box, anchor_var, gt_boxes, gt_labels, is_crowd, im_info, num_classes=1, "
    "positive_overlap=0.5, negative_overlap=0.4",
    "Anchor=anchor_box GtBoxes=gt_boxes GtLabels=gt_labels IsCrowd=is_crowd ImInfo=im_info",
    "LocationIndex:int32 ScoreIndex:int32 TargetLabel:int32 TargetBBox BBoxInsideWeight ForegroundNumber:int32",
    "positive_overlap negative_overlap",
    stopped="*",
    gives=_scores_and_codes,
)


generate_proposals = one_op(
    "generate_proposals",
    "scores, bbox_deltas, im_info, anchors, variances, pre_nms_top_n=6000, post_nms_top_n=1000, nms_thresh=0.5, "
    "min_size=0.1, eta=1.0, name=None, return_rois_num=False",
    "Scores=scores BboxDeltas=bbox_deltas ImInfo=im_info Anchors=anchors Variances=variances",
    "RpnRois RpnRoiProbs RpnRoisLod:int32",
    "pre_nms_topN=pre_nms_top_n post_nms_topN=post_nms_top_n nms_thresh min_size eta",
    stopped="*",
    gives=lambda made, given: tuple(made if given["return_rois_num"] else made[:2]),
)


generate_proposal_labels = one_op(
    "generate_proposal_labels",
    "rpn_rois, gt_classes, is_crowd, gt_boxes, im_info, batch_size_per_im=256, fg_fraction=0.25, fg_thresh=0.25, "
    "bg_thresh_hi=0.5, bg_thresh_lo=0.0, bbox_reg_weights=(0.1, 0.1, 0.2, 0.2), class_nums=None, use_random=True, "
    "is_cls_agnostic=False, is_cascade_rcnn=False",
    "RpnRois=rpn_rois GtClasses=gt_classes IsCrowd=is_crowd GtBoxes=gt_boxes ImInfo=im_info",
    "Rois LabelsInt32:int32 BboxTargets BboxInsideWeights BboxOutsideWeights",
    "batch_size_per_im fg_fraction fg_thresh bg_thresh_hi bg_thresh_lo bbox_reg_weights:floats class_nums use_random "
    "is_cls_agnostic is_cascade_rcnn",
    stopped="*",
    gives=every,
)


generate_mask_labels = one_op(
    "generate_mask_labels",
    "im_info, gt_classes, is_crowd, gt_segms, rois, labels_int32, num_classes, resolution",
    "Rois=rois ImInfo=im_info GtClasses=gt_classes IsCrowd=is_crowd GtSegms=gt_segms LabelsInt32=labels_int32",
    "MaskRois RoiHasMaskInt32:int32 MaskInt32:int32",
    "num_classes resolution",
    stopped="*",
    gives=every,
)


@with_argument_checks
def distribute_fpn_proposals(
    fpn_rois: Any, min_level: int, max_level: int, refer_level: int, refer_scale: int, name: str | None = None
) -> Any:
    """The boxes of each level of a pyramid, larger boxes at higher levels, and the indices that restore their order."""
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


@with_argument_checks
def collect_fpn_proposals(
    multi_rois: Any, multi_scores: Any, min_level: int, max_level: int, post_nms_top_n: int, name: str | None = None
) -> Any:
    """The boxes with the highest scores over all levels of a pyramid, image by image. Raises TypeError unless levels
    are lists.
    """
    for what, value in {"multi_rois": multi_rois, "multi_scores": multi_scores}.items():
        if not several(value):
            raise TypeError(f"collect_fpn_proposals: {what} must be a list, not {type(value).__name__}")
    count = max_level - min_level + 1
    inputs = {"MultiLevelRois": as_list(multi_rois)[:count], "MultiLevelScores": as_list(multi_scores)[:count]}
    attrs = {"post_nms_topN": post_nms_top_n}
    return made_by("collect_fpn_proposals", inputs, "FpnRois", attrs, name=name, stopped="*")[0]


# The head and the loss of an SSD (arXiv 1512.02325).


def _reshaped_as(value: Any, dims: Any) -> Any:
    """A value reshaped to the dims in a vector, which are known at run time only."""
    core = to_core(value)
    inputs = {"X": core, "Shape": to_core(dims).stopped()}
    outputs = {"Out": core.dtype, "XShape": core.dtype}
    made = basic.layer_outputs("reshape2", inputs, outputs, {"shape": [-1, 0]})
    return wrap(made[0].redeclare_dims((-1, *core.shape[1:])))


def _without_gradient(value: Any) -> Any:
    value.stop_gradient = True
    return value


def _rows(value: Any) -> Any:
    """A value as a matrix whose rows are the elements along its last dim."""
    return nn.flatten(value, axis=2)


class _MatchedBoxes(NamedTuple):
    """The matched boxes, the boxes without an object that count, the labels, the scores row by row, and their dims."""

    indices: Any
    negative: Any
    labels: Any
    rows: Any
    dims: Any


def _mine_hard_examples(
    confidence: Any, dims: Any, label: Any, matched: tuple[Any, Any], background: int, attrs: dict[str, Any]
) -> _MatchedBoxes:
    """The matched boxes, and the boxes without an object whose losses are largest."""
    indices, alike = matched
    labels = _without_gradient(nn.reshape(label, [0] * (len(label.shape) - 1) + [-1, 1]))
    wanted, _ = target_assign(labels, indices, mismatch_value=background)
    rows = _rows(confidence)
    wanted = _without_gradient(_rows(tensor.cast(wanted, "int64")))
    sure = losses.softmax_with_cross_entropy(rows, wanted)
    first = _without_gradient(nn.slice(dims, [0], [0], [2]))
    sure = _without_gradient(_reshaped_as(sure, first))
    inputs = {"ClsLoss": sure, "MatchIndices": indices, "MatchDist": alike}
    slots = "NegIndices:int32 UpdatedMatchIndices:int32"
    negative, indices = made_by("mine_hard_examples", inputs, slots, attrs, key="ssd_loss")
    return _MatchedBoxes(indices, negative, labels, rows, first)


def ssd_loss(
    location: Any,
    confidence: Any,
    gt_box: Any,
    gt_label: Any,
    prior_box: Any,
    prior_box_var: Any = None,
    background_label: int = 0,
    overlap_threshold: float = 0.5,
    neg_pos_ratio: float = 3.0,
    neg_overlap: float = 0.5,
    loc_loss_weight: float = 1.0,
    conf_loss_weight: float = 1.0,
    match_type: str = "per_prediction",
    mining_type: str = "max_negative",
    normalize: bool = True,
    sample_size: int | None = None,
) -> Any:
    """For each image the loss [images, 1] of the positions and the classes of boxes.

    Objects are `gt_box` [objects, 4] and `gt_label` [objects, 1], a sequence for each image. Raises ValueError for a
    `mining_type` other than `max_negative`.
    """
    if mining_type != "max_negative":
        raise ValueError(f"ssd_loss: mining_type must be 'max_negative', not {mining_type!r}")
    attrs = {
        "neg_pos_ratio": neg_pos_ratio,
        "neg_dist_threshold": neg_overlap,
        "mining_type": mining_type,
        "sample_size": sample_size or 0,
    }
    dims = nn.shape(confidence)
    matched = bipartite_match(iou_similarity(gt_box, prior_box), match_type, overlap_threshold)
    of = _mine_hard_examples(confidence, dims, gt_label, matched, background_label, attrs)
    codes = box_coder(prior_box, prior_box_var, gt_box, "encode_center_size")
    places, counts = target_assign(codes, of.indices, mismatch_value=background_label)
    wanted, weight = target_assign(of.labels, of.indices, of.negative, background_label)
    wanted = _without_gradient(tensor.cast(_rows(wanted), "int64"))
    what = losses.softmax_with_cross_entropy(of.rows, wanted)
    what = what * _without_gradient(_rows(weight))
    predicted = _rows(location)
    where = nn.smooth_l1(predicted, _without_gradient(_rows(places)))
    counts = _without_gradient(_rows(counts))
    where = where * counts
    loss = _reshaped_as(conf_loss_weight * what + loc_loss_weight * where, of.dims)
    loss = nn.reduce_sum(loss, dim=1, keep_dim=True)
    return loss / nn.reduce_sum(counts) if normalize else loss


class _Priors(NamedTuple):
    """The settings that the prior boxes of all feature maps share."""

    variance: Sequence[float]
    flip: bool
    clip: bool
    offset: float
    ordered: bool


def _sizes_of_ratios(count: int, base: int, least: int, most: int) -> tuple[list[float], list[float]]:
    """The smallest and largest sizes for each feature map: a tenth and a fifth of the base for the first, then evenly
    spaced between two ratios in percent.
    """
    step = floor((most - least) / (count - 2))
    ratios = range(least, most + 1, step)
    smallest = [base * 0.1, *(base * ratio / 100.0 for ratio in ratios)]
    return smallest, [base * 0.2, *(base * (ratio + step) / 100.0 for ratio in ratios)]


def _per_layer(name: str, value: Any, count: int) -> list[Any]:
    if not several(value) or len(value) != count:
        raise ValueError(f"multi_box_head: {name} must be a list with one entry for each of {count} inputs")
    return list(value)


def multi_box_head(
    inputs: Any,
    image: Any,
    base_size: int,
    num_classes: int,
    aspect_ratios: Any,
    min_ratio: int | None = None,
    max_ratio: int | None = None,
    min_sizes: Any = None,
    max_sizes: Any = None,
    steps: Any = None,
    step_w: Any = None,
    step_h: Any = None,
    offset: float = 0.5,
    variance: Sequence[float] = VARIANCES,
    flip: bool = True,
    clip: bool = False,
    kernel_size: Any = 1,
    pad: Any = 0,
    stride: Any = 1,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> Any:
    """Codes of boxes [images, boxes, 4], scores [images, boxes, classes], prior boxes and their variances [boxes, 4].

    They are computed from several feature maps, each with prior boxes of its own. Raises ValueError for lists of
    settings with another length than `inputs`.
    """
    if not several(inputs):
        raise ValueError("multi_box_head: inputs must be a list of variables")
    count = len(inputs)
    if min_sizes is None and max_sizes is None:
        if count <= 2 or min_ratio is None or max_ratio is None:
            raise ValueError(
                "multi_box_head: up to two inputs need min_sizes and max_sizes, others these or the ratios"
            )
        min_sizes, max_sizes = _sizes_of_ratios(count, base_size, min_ratio, max_ratio)
    smallest = _per_layer("min_sizes", min_sizes, count)
    largest = [None] * count if not max_sizes else _per_layer("max_sizes", max_sizes, count)
    ratios = _per_layer("aspect_ratios", aspect_ratios, count)
    apart = (steps or step_w, steps or step_h)
    across, down = (_per_layer("steps", held, count) if held else [0.0] * count for held in apart)
    settings = _Priors(variance, flip, clip, offset, min_max_aspect_ratios_order)
    sizes, distances = zip(smallest, largest, ratios, strict=True), zip(across, down, strict=True)
    made = [
        _head(x, image, num_classes, of, apart, settings, (kernel_size, stride, pad))
        for x, of, apart in zip(inputs, sizes, distances, strict=True)
    ]
    return _concat_maps(made, num_classes)


def _head(
    x: Any, image: Any, classes: int, sizes: tuple[Any, Any, Any], steps: tuple[float, float], of: _Priors, conv: Any
) -> tuple[Any, Any, Any, Any]:
    """The codes and scores of one feature map, one row for each image, its prior boxes and their variances."""
    least, most, ratios = sizes
    most = most if most is None else as_list(most)
    boxes, variances = prior_box(
        x,
        image,
        as_list(least),
        most,
        as_list(ratios),
        of.variance,
        of.flip,
        of.clip,
        steps,
        of.offset,
        None,
        of.ordered,
    )
    size, stride, pad = conv
    rows: list[Any] = []
    for width in (4, classes):
        found = nn.conv2d(x, boxes.shape[2] * width, size, padding=pad, stride=stride)
        rows.append(nn.flatten(nn.transpose(found, [0, 2, 3, 1]), axis=1))
    return rows[0], rows[1], boxes, variances


def _concat_maps(results_by_map: list[tuple[Any, Any, Any, Any]], classes: int) -> tuple[Any, Any, Any, Any]:
    """The results of all feature maps, concatenated. As in Fluid those of a single map keep their dims."""
    if len(results_by_map) == 1:
        codes, scores, boxes, variances = results_by_map[0]
    else:
        priors = [
            (nn.flatten(boxes, axis=3), nn.flatten(variances, axis=3)) for _, _, boxes, variances in results_by_map
        ]
        boxes, variances = (tensor.concat([pair[number] for pair in priors]) for number in (0, 1))
        codes = nn.reshape(tensor.concat([each[0] for each in results_by_map], axis=1), [0, -1, 4])
        scores = nn.reshape(tensor.concat([each[1] for each in results_by_map], axis=1), [0, -1, classes])
    boxes.stop_gradient = variances.stop_gradient = True
    return codes, scores, boxes, variances


__getattr__ = names_of_fluid(__name__, globals())
