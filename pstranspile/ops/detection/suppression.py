"""Non-maximum suppression of detected boxes.

Scores are [images, classes, boxes] for boxes [images, boxes, 4] that all classes share. If each class has its own
boxes, scores are [boxes, classes] and boxes [boxes, classes, 4], with the rows of each image as a sequence. Results are
rows of label, score and box, with those of each image as a sequence.
"""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.detection.boxes import require_image_info
from pstranspile.ops.schema import FLOAT, INT, declare
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, one, several, shape_rule

_NMS = {
    "background_label": 0,
    "score_threshold": FLOAT,
    "nms_top_k": INT,
    "nms_threshold": 0.3,
    "nms_eta": 1.0,
    "keep_top_k": INT,
    "normalized": True,
}

declare(
    "multiclass_nms",
    "BBoxes Scores -> Out",
    _NMS,
    doc="Out = the boxes of each class that overlap no likelier one too much; a single -1 if there are none",
)
declare(
    "multiclass_nms2",
    "BBoxes Scores -> Out Index~",
    _NMS,
    doc="as multiclass_nms; no rows if there are none; Index = the row of each box",
)
declare(
    "locality_aware_nms",
    "BBoxes Scores -> Out",
    {**_NMS, "background_label": -1},
    doc="as multiclass_nms, after neighbours that overlap have been merged, weighted by their scores",
)
declare(
    "matrix_nms",
    "BBoxes Scores -> Out Index",
    {
        "background_label": 0,
        "score_threshold": FLOAT,
        "post_threshold": 0.0,
        "nms_top_k": INT,
        "keep_top_k": INT,
        "normalized": True,
        "use_gaussian": False,
        "gaussian_sigma": 2.0,
    },
    doc="Out = boxes, with scores lowered by how much they overlap likelier ones (SOLOv2, arXiv 2003.10152)",
)
declare(
    "retinanet_detection_output",
    "BBoxes* Scores* Anchors* ImInfo -> Out",
    {"score_threshold": FLOAT, "nms_top_k": INT, "nms_threshold": FLOAT, "nms_eta": FLOAT, "keep_top_k": INT},
    doc="Out = the boxes of all levels that overlap no likelier one too much, decoded against Anchors",
)


def _boxes_and_scores(types: Types) -> tuple[TensorType, TensorType]:
    boxes, scores = one(types, "BBoxes"), one(types, "Scores")
    if len(scores.shape) not in (2, 3) or len(boxes.shape) != 3:
        raise ShapeError(f"BBoxes is {describe(boxes)}, Scores {describe(scores)}: scores have 2 or 3 dims", "Scores")
    if boxes.shape[2] not in (-1, 4, 8, 16, 24, 32):
        raise ShapeError(f"BBoxes is {describe(boxes)}, its last dim is 4 for boxes, 8 to 32 for polygons", "BBoxes")
    if len(scores.shape) == 3:
        alike = fits((boxes.shape[0], boxes.shape[1]), (scores.shape[0], scores.shape[2]))
    else:
        alike = fits(boxes.shape[:2], scores.shape)
    if not alike:
        disagree("BBoxes", boxes, "Scores", scores)
    return boxes, scores


def _detections(boxes: TensorType, scores: TensorType, lod_level: int = 1) -> TensorType:
    """The type of rows of label, score and box, as Fluid declares it. A run may give fewer rows."""
    width = boxes.shape[2] + 2 if boxes.shape[2] > 0 else -1
    return TensorType(boxes.dtype, (boxes.shape[1] if len(scores.shape) == 3 else -1, width), lod_level)


@shape_rule("multiclass_nms")
def _multiclass_nms(_op: Op, types: Types) -> Types:
    boxes, scores = _boxes_and_scores(types)
    return {"Out": (_detections(boxes, scores),)}


@shape_rule("multiclass_nms2", "matrix_nms")
def _with_index(_op: Op, types: Types) -> Types:
    boxes, scores = _boxes_and_scores(types)
    # Fluid's layers declare Index as i64; the op gives i32
    return {"Out": (_detections(boxes, scores),), "Index": (None,)}


@shape_rule("locality_aware_nms")
def _locality_aware_nms(_op: Op, types: Types) -> Types:
    boxes, scores = _boxes_and_scores(types)
    return {"Out": (_detections(boxes, scores, 0),)}


@shape_rule("retinanet_detection_output")
def _retinanet_detection_output(op: Op, types: Types) -> Types:
    boxes, scores, anchors = several(types, "BBoxes"), several(types, "Scores"), several(types, "Anchors")
    require_image_info(one(types, "ImInfo"))
    if not len(boxes) == len(scores) == len(anchors):
        raise ShapeError(f"{len(boxes)} levels of boxes, {len(scores)} of scores, {len(anchors)} of anchors", "BBoxes")
    for box, score, anchor in zip(boxes, scores, anchors, strict=True):
        if len(box.shape) != 3 or len(score.shape) != 3 or not fits(box.shape[:2], score.shape[:2]):
            disagree("BBoxes", box, "Scores", score)
        if len(anchor.shape) != 2 or not fits(anchor.shape, box.shape[1:]) or anchor.shape[1] not in (4, -1):
            disagree("Anchors", anchor, "BBoxes", box)
    return {"Out": (_detections(boxes[0], scores[0], 0),)}
