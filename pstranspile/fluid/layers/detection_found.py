"""Layers of detection that choose among the boxes that are found."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.layers import nn
from pstranspile.fluid.layers.adapt import to_core, wrap
from pstranspile.fluid.layers.detection_ops import box_coder, made_by
from pstranspile.ir.model import TensorType
from pstranspile.ir.types import DType


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
