"""Fluid's `layers.detection`: objects found in images.

First what the layers share, and those that are one op each, over boxes; then those that choose among the boxes that
are found, those of `layers.nn` that bring regions of feature maps to one size, and those that propose and train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from numbers import Real
from typing import Any, NamedTuple

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import dtype_of
from pstranspile.fluid.layers import loss as losses
from pstranspile.fluid.layers import nn, tensor
from pstranspile.fluid.layers.adapt import check_kind, checked_all, live, named, one_op, renamed_all, to_core, wrap
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import basic
from pstranspile.ir.model import TensorType
from pstranspile.ir.types import DType

VARIANCES = (0.1, 0.1, 0.2, 0.2)
"""Default variances of boxes: the scales of the encoded x, y, width and height."""


def made_by(
    op_type: str,
    inputs: Mapping[str, Any],
    outputs: str,
    attrs: Mapping[str, Any] | None = None,
    *,
    key: str = "",
    name: str | None = None,
    stopped: str = "",
) -> list[Any]:
    """The variables that one op writes.

    `outputs` are slots, each with its element type if that is not the first input's (`"Out Index:int32"`). Those named
    in `stopped` get no gradient; `*` means all. Inputs that are None are left out. Raises TypeError for what is no
    variable.
    """
    for slot, value in inputs.items():
        check_kind(key or op_type, slot, value, ("Variable", "Variables", "NoneType"))
    values = {slot: to_core(value) for slot, value in inputs.items() if value is not None}
    if not values:
        raise TypeError(f"{key or op_type}: there is no input")
    first = next(iter(values.values()))
    kind: DType = first[0].dtype if several(first) else first.dtype
    slots = [slot.partition(":")[::2] for slot in outputs.split()]
    written: dict[str, Any] = {slot: dtype_of(dtype) if dtype else kind for slot, dtype in slots}
    with named(name):
        made = basic.layer_outputs(op_type, values, written, attrs, key=key)
    for (slot, _), value in zip(slots, made, strict=True):
        if stopped == "*" or slot in stopped.split():
            value.stopped()
    return wrap(made)


def listed(value: Any) -> list[Any]:
    """A list of what is one, or a single thing as a list."""
    return list(value) if several(value) else [value]


def numbers(value: Any) -> list[float]:
    """A number or several, as floats. Raises TypeError for others."""
    held = listed(value)
    if not all(isinstance(item, Real) for item in held):
        raise TypeError(f"a number, or a list of numbers, is needed in place of {value!r}")
    return [float(item) for item in held]


def _pair(layer: str, name: str, value: Any) -> list[float]:
    """Two numbers. Raises ValueError for another count."""
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
renamed_all({name: value for name, value in globals().items() if getattr(value, "__signature__", None) is not None})


def box_coder(
    prior_box: Any,
    prior_box_var: Any,
    target_box: Any,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Any:
    """Boxes as distances from prior boxes in shares of their sides, or the other way round.

    `prior_box_var` scales the distances: four numbers, or a variable with four for each prior box. Raises TypeError
    for what is neither.
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


def bipartite_match(dist_matrix: Any, match_type: Any = None, dist_threshold: Any = None, name: Any = None) -> Any:
    """For each column of likenesses the row that it is matched with, or -1, and how alike both are."""
    given = {"match_type": match_type, "dist_threshold": dist_threshold}
    attrs = {name: value for name, value in given.items() if value is not None}
    made = made_by(
        "bipartite_match",
        {"DistMat": dist_matrix},
        "ColToRowMatchIndices:int32 ColToRowMatchDist",
        attrs,
        name=name,
    )
    return tuple(made)


def target_assign(
    input: Any,
    matched_indices: Any,
    negative_indices: Any = None,
    mismatch_value: Any = None,
    name: str | None = None,
) -> Any:
    """The row of `input` that each box is matched with, or `mismatch_value`, and whether the box counts."""
    inputs = {"X": input, "MatchIndices": matched_indices, "NegIndices": negative_indices}
    attrs = {"mismatch_value": mismatch_value or 0}
    return tuple(made_by("target_assign", inputs, "Out OutWeight:float32", attrs, name=name))


def anchor_generator(
    input: Any,
    anchor_sizes: Any = None,
    aspect_ratios: Any = None,
    variance: Sequence[float] = VARIANCES,
    stride: Any = None,
    offset: float = 0.5,
    name: str | None = None,
) -> Any:
    """Boxes of several sizes and ratios at each place, in pixels, and their variances. Raises ValueError for a stride
    that is not two numbers.
    """
    attrs = {
        "anchor_sizes": numbers(anchor_sizes),
        "aspect_ratios": numbers(aspect_ratios),
        "variances": numbers(variance),
        "stride": _pair("anchor_generator", "stride", stride),
        "offset": offset,
    }
    made = made_by("anchor_generator", {"Input": input}, "Anchors Variances", attrs, name=name, stopped="*")
    return tuple(made)


def prior_box(
    input: Any,
    image: Any,
    min_sizes: Any,
    max_sizes: Any = None,
    aspect_ratios: Any = (1.0,),
    variance: Sequence[float] = VARIANCES,
    flip: bool = False,
    clip: bool = False,
    steps: Any = (0.0, 0.0),
    offset: float = 0.5,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> Any:
    """Boxes of several sizes and ratios at each place, as shares of the image, and their variances.

    Raises ValueError for steps that are not two numbers.
    """
    across, down = _pair("prior_box", "steps", steps)
    attrs = {
        "min_sizes": numbers(min_sizes),
        "aspect_ratios": numbers(aspect_ratios),
        "variances": numbers(variance),
        "flip": flip,
        "clip": clip,
        "step_w": across,
        "step_h": down,
        "offset": offset,
        "min_max_aspect_ratios_order": min_max_aspect_ratios_order,
    }
    largest = [] if max_sizes is None else numbers(max_sizes)
    if largest and largest[0] > 0:
        attrs["max_sizes"] = largest
    inputs = {"Input": input, "Image": image}
    return tuple(made_by("prior_box", inputs, "Boxes Variances", attrs, name=name, stopped="*"))


def density_prior_box(
    input: Any,
    image: Any,
    densities: Any = None,
    fixed_sizes: Any = None,
    fixed_ratios: Any = None,
    variance: Sequence[float] = VARIANCES,
    clip: bool = False,
    steps: Any = (0.0, 0.0),
    offset: float = 0.5,
    flatten_to_2d: bool = False,
    name: str | None = None,
) -> Any:
    """Boxes as by `prior_box`, with a grid of density x density boxes of each size around each place.

    Raises TypeError for densities, sizes or ratios that are no list, ValueError for lists that don't fit.
    """
    given = {"densities": densities, "fixed_sizes": fixed_sizes, "fixed_ratios": fixed_ratios}
    for what, value in given.items():
        if not several(value):
            raise TypeError(f"density_prior_box: {what} must be a list or a tuple, not {type(value).__name__}")
    if len(densities) != len(fixed_sizes):
        raise ValueError("density_prior_box: densities and fixed_sizes must be as many")
    across, down = _pair("density_prior_box", "steps", steps)
    attrs = {
        "variances": numbers(variance),
        "clip": clip,
        "step_w": across,
        "step_h": down,
        "offset": offset,
        "densities": [int(density) for density in densities],
        "fixed_sizes": numbers(fixed_sizes),
        "fixed_ratios": numbers(fixed_ratios),
        "flatten_to_2d": flatten_to_2d,
    }
    inputs = {"Input": input, "Image": image}
    return tuple(made_by("density_prior_box", inputs, "Boxes Variances", attrs, name=name, stopped="*"))


def yolov3_loss(
    x: Any,
    gt_box: Any,
    gt_label: Any,
    anchors: Any,
    anchor_mask: Any,
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    gt_score: Any = None,
    use_label_smooth: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> Any:
    """For each image how far a grid is from the objects in it (YOLOv3).

    Raises TypeError for anchors or a mask that are no list.
    """
    for what, value in {"anchors": anchors, "anchor_mask": anchor_mask}.items():
        if not several(value):
            raise TypeError(f"yolov3_loss: {what} must be a list or a tuple, not {type(value).__name__}")
    attrs = {
        "anchors": listed(anchors),
        "anchor_mask": listed(anchor_mask),
        "class_num": class_num,
        "ignore_thresh": ignore_thresh,
        "downsample_ratio": downsample_ratio,
        "use_label_smooth": use_label_smooth,
        "scale_x_y": scale_x_y,
    }
    inputs = {"X": x, "GTBox": gt_box, "GTLabel": gt_label, "GTScore": gt_score}
    made = made_by("yolov3_loss", inputs, "Loss ObjectnessMask:int32 GTMatchMask:int32", attrs, name=name)
    to_core(made[1]).declared((x.shape[0], len(anchor_mask), *x.shape[2:]))
    return made[0]


def yolo_box(
    x: Any,
    img_size: Any,
    anchors: Any,
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> Any:
    """The boxes that a grid has found, in pixels, and how likely each class is. Raises TypeError for anchors that
    are no list.
    """
    if not several(anchors):
        raise TypeError(f"yolo_box: anchors must be a list or a tuple, not {type(anchors).__name__}")
    attrs = {
        "anchors": listed(anchors),
        "class_num": class_num,
        "conf_thresh": conf_thresh,
        "downsample_ratio": downsample_ratio,
        "clip_bbox": clip_bbox,
        "scale_x_y": scale_x_y,
    }
    return tuple(made_by("yolo_box", {"X": x, "ImgSize": img_size}, "Boxes Scores", attrs, name=name))


def _settings(
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float,
    normalized: bool,
    nms_eta: float,
    background_label: int,
) -> dict[str, Any]:
    return {
        "background_label": background_label,
        "score_threshold": score_threshold,
        "nms_top_k": nms_top_k,
        "nms_threshold": nms_threshold,
        "keep_top_k": keep_top_k,
        "nms_eta": nms_eta,
        "normalized": normalized,
    }


def _index_of(index: Any, found: Any) -> Any:
    """An index of rows that are found, with as many rows. As in Fluid it is declared as int64, and holds int32."""
    core = to_core(index)
    core.draft.declare(core.var._replace(tensor=TensorType(DType.INT64, (found.shape[0], 1), 1)))
    return index


def multiclass_nms(
    bboxes: Any,
    scores: Any,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    name: str | None = None,
) -> Any:
    """Rows of label, score and box for the boxes of each class that overlap no likelier one too much."""
    attrs = _settings(score_threshold, nms_top_k, keep_top_k, nms_threshold, normalized, nms_eta, background_label)
    inputs = {"BBoxes": bboxes, "Scores": scores}
    return made_by("multiclass_nms", inputs, "Out", attrs, name=name, stopped="*")[0]


def multiclass_nms2(
    bboxes: Any,
    scores: Any,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """Non-maximum suppression as by `multiclass_nms`; with `return_index` also the index of each box."""
    attrs = _settings(score_threshold, nms_top_k, keep_top_k, nms_threshold, normalized, nms_eta, background_label)
    inputs = {"BBoxes": bboxes, "Scores": scores}
    out, index = made_by("multiclass_nms2", inputs, "Out Index:int64", attrs, name=name, stopped="*")
    _index_of(index, out)
    return (out, index) if return_index else out


def locality_aware_nms(
    bboxes: Any,
    scores: Any,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = -1,
    name: str | None = None,
) -> Any:
    """Non-maximum suppression as by `multiclass_nms`, after overlapping neighbours have been merged. Raises ValueError
    for scores of several classes.
    """
    if len(scores.shape) != 3 or scores.shape[1] != 1:
        raise ValueError(f"locality_aware_nms takes scores [images, 1, boxes], not {list(scores.shape)}")
    attrs = _settings(score_threshold, nms_top_k, keep_top_k, nms_threshold, normalized, nms_eta, background_label)
    inputs = {"BBoxes": bboxes, "Scores": scores}
    return made_by("locality_aware_nms", inputs, "Out", attrs, name=name, stopped="*")[0]


def matrix_nms(
    bboxes: Any,
    scores: Any,
    score_threshold: float,
    post_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    use_gaussian: bool = False,
    gaussian_sigma: float = 2.0,
    background_label: int = 0,
    normalized: bool = True,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """Rows of label, score and box, with scores lowered by how much boxes overlap likelier ones."""
    attrs = {
        "score_threshold": score_threshold,
        "post_threshold": post_threshold,
        "nms_top_k": nms_top_k,
        "keep_top_k": keep_top_k,
        "use_gaussian": use_gaussian,
        "gaussian_sigma": gaussian_sigma,
        "background_label": background_label,
        "normalized": normalized,
    }
    inputs = {"BBoxes": bboxes, "Scores": scores}
    out, index = made_by("matrix_nms", inputs, "Out Index:int64", attrs, name=name, stopped="Out")
    _index_of(index, out)
    return (out, index) if return_index else out


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
    """What an SSD has found: codes of boxes decoded against prior boxes, those of each class that overlap no likelier
    one too much. As in Fluid `nms_eta` is always 1.
    """
    boxes = box_coder(prior_box, prior_box_var, loc, "decode_center_size")
    shares: Any = nn.transpose(nn.softmax(scores), [0, 2, 1])
    shares.stop_gradient = True
    attrs = _settings(score_threshold, nms_top_k, keep_top_k, nms_threshold, True, 1.0, background_label)
    inputs, key = {"BBoxes": boxes, "Scores": shares}, "detection_output"
    if not return_index:
        return made_by("multiclass_nms", inputs, "Out", attrs, key=key, stopped="*")[0]
    out, index = made_by("multiclass_nms2", inputs, "Out Index:int64", attrs, key=key, stopped="*")
    return out, _index_of(index, out)


def retinanet_detection_output(
    bboxes: Any,
    scores: Any,
    anchors: Any,
    im_info: Any,
    score_threshold: float = 0.05,
    nms_top_k: int = 1000,
    keep_top_k: int = 100,
    nms_threshold: float = 0.3,
    nms_eta: float = 1.0,
) -> Any:
    """What a RetinaNet has found on all levels, decoded against anchors. Raises TypeError unless levels are lists."""
    for what, value in {"bboxes": bboxes, "scores": scores, "anchors": anchors}.items():
        if not several(value):
            raise TypeError(f"retinanet_detection_output: {what} must be a list, not {type(value).__name__}")
    attrs = {
        "score_threshold": score_threshold,
        "nms_top_k": nms_top_k,
        "nms_threshold": nms_threshold,
        "keep_top_k": keep_top_k,
        "nms_eta": nms_eta,
    }
    inputs = {"BBoxes": list(bboxes), "Scores": list(scores), "Anchors": list(anchors), "ImInfo": im_info}
    return made_by("retinanet_detection_output", inputs, "Out", attrs, stopped="*")[0]


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
    """The mean average precision of what is found.

    With states (counts of objects, right and wrong boxes) it is that of all batches since `has_state` was 0.
    """
    found, (counts, right, wrong) = to_core(detect_res), input_states or (None, None, None)
    draft = found.draft
    layer = draft.names.mint("detection_map")
    mean = draft.temporary(layer, DType.FP32)
    kinds = (DType.INT32, DType.FP32, DType.FP32)
    made = to_core(list(out_states)) if out_states else [draft.temporary(layer, kind) for kind in kinds]
    given = {"HasState": has_state, "PosCount": counts, "TruePos": right, "FalsePos": wrong}
    inputs = {"DetectRes": found, "Label": to_core(label)}
    inputs |= {slot: to_core(value) for slot, value in given.items() if value is not None}
    outputs = dict(zip(("AccumPosCount", "AccumTruePos", "AccumFalsePos"), made, strict=True))
    attrs = {
        "overlap_threshold": overlap_threshold,
        "evaluate_difficult": evaluate_difficult,
        "ap_type": ap_version,
        "class_num": class_num,
        "background_label": background_label,
    }
    draft.op("detection_map", inputs, {"MAP": mean, **outputs}, attrs)
    return wrap(mean)


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
renamed_all({name: value for name, value in globals().items() if getattr(value, "__signature__", None) is not None})


def roi_pool(
    input: Any,
    rois: Any,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    rois_lod: Any = None,
) -> Any:
    """The largest element of each part of a region: [regions, channels, height, width]."""
    attrs = {"pooled_height": pooled_height, "pooled_width": pooled_width, "spatial_scale": spatial_scale}
    inputs = {"X": input, "ROIs": rois, "RoisLod": rois_lod}
    out, places = made_by("roi_pool", inputs, "Out Argmax:int32", attrs)
    to_core(places).declared(out.shape)
    return out


def deformable_roi_pooling(
    input: Any,
    rois: Any,
    trans: Any,
    no_trans: bool = False,
    spatial_scale: float = 1.0,
    group_size: Any = (1, 1),
    pooled_height: int = 1,
    pooled_width: int = 1,
    part_size: Any = None,
    sample_per_part: int = 1,
    trans_std: float = 0.1,
    position_sensitive: bool = False,
    name: str | None = None,
) -> Any:
    """The mean of samples in each part of a region, moved by `trans`.

    With `position_sensitive` each part has channels of its own. Raises ValueError for channels that are not so many.
    """
    channels = input.shape[1]
    if position_sensitive:
        if channels % (pooled_height * pooled_width):
            raise ValueError(
                f"deformable_roi_pooling: {channels} channels are not as many for each of "
                f"{pooled_height} * {pooled_width} parts"
            )
        channels //= pooled_height * pooled_width
    attrs = {
        "no_trans": no_trans,
        "spatial_scale": spatial_scale,
        "output_dim": channels,
        "group_size": listed(group_size),
        "pooled_height": pooled_height,
        "pooled_width": pooled_width,
        "part_size": [pooled_height, pooled_width] if part_size is None else listed(part_size),
        "sample_per_part": sample_per_part,
        "trans_std": trans_std,
    }
    inputs = {"Input": input, "ROIs": rois, "Trans": trans}
    return made_by("deformable_psroi_pooling", inputs, "Output TopCount:int32", attrs, name=name)[0]


def roi_perspective_transform(
    input: Any,
    rois: Any,
    transformed_height: int,
    transformed_width: int,
    spatial_scale: float = 1.0,
    name: str | None = None,
) -> Any:
    """Quadrilaterals seen as rectangles [regions, channels, height, width], which places lie inside, and the matrices
    that take places of results to places of `input`: [regions, 9].
    """
    attrs = {
        "transformed_height": transformed_height,
        "transformed_width": transformed_width,
        "spatial_scale": spatial_scale,
    }
    slots = "Out Mask:int32 TransformMatrix Out2InIdx:int32 Out2InWeights"
    made = made_by("roi_perspective_transform", {"X": input, "ROIs": rois}, slots, attrs, name=name)
    return tuple(made[:3])


checked_all(globals())


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


checked_all(globals())


__getattr__ = names_of_fluid(__name__, globals())
