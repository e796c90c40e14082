"""Fluid's `layers.detection`: objects found in images."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Any, NamedTuple

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.layers import loss as losses
from pstranspile.fluid.layers import nn, tensor
from pstranspile.fluid.layers.adapt import checked_all, live, to_core, wrap
from pstranspile.fluid.layers.detection_found import detection_map as detection_map
from pstranspile.fluid.layers.detection_found import detection_output as detection_output
from pstranspile.fluid.layers.detection_found import locality_aware_nms as locality_aware_nms
from pstranspile.fluid.layers.detection_found import matrix_nms as matrix_nms
from pstranspile.fluid.layers.detection_found import multiclass_nms as multiclass_nms
from pstranspile.fluid.layers.detection_found import retinanet_detection_output as retinanet_detection_output
from pstranspile.fluid.layers.detection_ops import (
    VARIANCES,
    bipartite_match,
    box_coder,
    iou_similarity,
    listed,
    made_by,
    numbers,
    prior_box,
    target_assign,
)
from pstranspile.fluid.layers.detection_ops import anchor_generator as anchor_generator
from pstranspile.fluid.layers.detection_ops import box_clip as box_clip
from pstranspile.fluid.layers.detection_ops import box_decoder_and_assign as box_decoder_and_assign
from pstranspile.fluid.layers.detection_ops import density_prior_box as density_prior_box
from pstranspile.fluid.layers.detection_ops import polygon_box_transform as polygon_box_transform
from pstranspile.fluid.layers.detection_ops import yolo_box as yolo_box
from pstranspile.fluid.layers.detection_ops import yolov3_loss as yolov3_loss
from pstranspile.fluid.layers.regions import roi_perspective_transform as roi_perspective_transform
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import basic
from pstranspile.ir.types import DType

# Layers of detection in two stages: which anchors and proposals train what, and on which level they are looked at.


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
    """Results of rpn_target_assign for all anchors, with classes; also how many have an object, plus 1."""
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


# The head and the loss of an SSD (arXiv 1512.02325).

_LAYERS: Any = vars(nn)


def _reshaped_as(value: Any, dims: Any) -> Any:
    """A value with its first dim as it is in a run: that of a vector of dims."""
    core = to_core(value)
    inputs = {"X": core, "Shape": to_core(dims).stopped()}
    outputs = {"Out": core.dtype, "XShape": core.dtype}
    made = basic.layer_outputs("reshape2", inputs, outputs, {"shape": [-1, 0]})
    return wrap(made[0].declared((-1, *core.shape[1:])))


def _stopped(value: Any) -> Any:
    value.stop_gradient = True
    return value


def _rows(value: Any) -> Any:
    """The last dim of a value, row by row."""
    return nn.flatten(value, axis=2)


class _Matched(NamedTuple):
    """The boxes that have an object, those without that count, the labels, the scores row by row, and their dims."""

    indices: Any
    negative: Any
    labels: Any
    rows: Any
    dims: Any


def _mined(
    confidence: Any, dims: Any, label: Any, matched: tuple[Any, Any], background: int, attrs: dict[str, Any]
) -> _Matched:
    """The matched boxes, and those boxes without an object that have the largest losses."""
    indices, alike = matched
    labels = _stopped(nn.reshape(label, [0] * (len(label.shape) - 1) + [-1, 1]))
    wanted, _ = target_assign(labels, indices, mismatch_value=background)
    rows = _rows(confidence)
    wanted = _stopped(_rows(tensor.cast(wanted, "int64")))
    sure = losses.softmax_with_cross_entropy(rows, wanted)
    first = _stopped(nn.slice(dims, [0], [0], [2]))
    sure = _stopped(_reshaped_as(sure, first))
    inputs = {"ClsLoss": sure, "MatchIndices": indices, "MatchDist": alike}
    slots = "NegIndices:int32 UpdatedMatchIndices:int32"
    negative, indices = made_by("mine_hard_examples", inputs, slots, attrs, key="ssd_loss")
    return _Matched(indices, negative, labels, rows, first)


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
    """For each image the loss [images, 1] of where boxes are and of what they show.

    Objects are `gt_box` [objects, 4] and `gt_label` [objects, 1], a sequence for each image. Raises ValueError for a
    `mining_type` that is not `max_negative`.
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
    of = _mined(confidence, dims, gt_label, matched, background_label, attrs)
    codes = box_coder(prior_box, prior_box_var, gt_box, "encode_center_size")
    places, counts = target_assign(codes, of.indices, mismatch_value=background_label)
    wanted, weight = target_assign(of.labels, of.indices, of.negative, background_label)
    wanted = _stopped(tensor.cast(_rows(wanted), "int64"))
    what = losses.softmax_with_cross_entropy(of.rows, wanted)
    what = what * _stopped(_rows(weight))
    predicted = _rows(location)
    where = nn.smooth_l1(predicted, _stopped(_rows(places)))
    counts = _stopped(_rows(counts))
    where = where * counts
    loss = _reshaped_as(conf_loss_weight * what + loc_loss_weight * where, of.dims)
    loss = _LAYERS["reduce_sum"](loss, dim=1, keep_dim=True)
    return loss / _LAYERS["reduce_sum"](counts) if normalize else loss


class _Priors(NamedTuple):
    """What the prior boxes of all layers share."""

    variance: Sequence[float]
    flip: bool
    clip: bool
    offset: float
    ordered: bool


def _sizes_of_ratios(count: int, base: int, least: int, most: int) -> tuple[list[float], list[float]]:
    """Sizes for each of the layers: a tenth and a fifth of the base for the first, then evenly between ratios in
    percent.
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

    They come from several feature maps, each with prior boxes of its own. Raises ValueError for settings that are not
    there for each of them.
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
    return _joined(made, num_classes)


def _head(
    x: Any, image: Any, classes: int, sizes: tuple[Any, Any, Any], steps: tuple[float, float], of: _Priors, conv: Any
) -> tuple[Any, Any, Any, Any]:
    """Codes and scores of one feature map, each image a row, and its prior boxes."""
    least, most, ratios = sizes
    most = most if most is None else listed(most)
    boxes, variances = prior_box(
        x, image, listed(least), most, listed(ratios), of.variance, of.flip, of.clip, steps, of.offset, None, of.ordered
    )
    size, stride, pad = conv
    rows: list[Any] = []
    for width in (4, classes):
        found = nn.conv2d(x, boxes.shape[2] * width, size, padding=pad, stride=stride)
        rows.append(nn.flatten(nn.transpose(found, [0, 2, 3, 1]), axis=1))
    return rows[0], rows[1], boxes, variances


def _joined(made: list[tuple[Any, Any, Any, Any]], classes: int) -> tuple[Any, Any, Any, Any]:
    """What all feature maps give together. As in Fluid a single one gives what it has."""
    if len(made) == 1:
        codes, scores, boxes, variances = made[0]
    else:
        priors = [(nn.flatten(boxes, axis=3), nn.flatten(variances, axis=3)) for _, _, boxes, variances in made]
        boxes, variances = (tensor.concat([pair[number] for pair in priors]) for number in (0, 1))
        codes = nn.reshape(tensor.concat([each[0] for each in made], axis=1), [0, -1, 4])
        scores = nn.reshape(tensor.concat([each[1] for each in made], axis=1), [0, -1, classes])
    boxes.stop_gradient = variances.stop_gradient = True
    return codes, scores, boxes, variances


__getattr__ = names_of_fluid(__name__, globals())
checked_all(globals())
