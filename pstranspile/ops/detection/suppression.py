"""Non-maximum suppression of detected boxes.

Scores are [images, classes, boxes] for boxes [images, boxes, 4] that all classes share. If each class has its own
boxes, scores are [boxes, classes] and boxes [boxes, classes, 4], with the rows of each image as a sequence. Results are
rows of label, score and box, with those of each image as a sequence.
"""

from __future__ import annotations

from pstranspile.ir.model import FrozenMap, Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.detection.boxes import require_image_info
from pstranspile.ops.detection.proposals import one_of
from pstranspile.ops.facts import Below
from pstranspile.ops.gradient import WantedGradients, from_declaration, gradient
from pstranspile.ops.schema import FLOAT, INT, declare, declare_gradient, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, one, one_or_none, several, shape_rule

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
    rows="own",
    doc="Out = the boxes of each class that overlap no likelier one too much; a single -1 if there are none",
)
declare(
    "multiclass_nms2",
    "BBoxes Scores -> Out Index~",
    _NMS,
    rows="own",
    doc="as multiclass_nms; no rows if there are none; Index = the row of each box",
)
declare(
    "locality_aware_nms",
    "BBoxes Scores -> Out",
    {**_NMS, "background_label": -1},
    rows="own",
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
    rows="own",
    doc="Out = boxes, with scores lowered by how much they overlap likelier ones (SOLOv2, arXiv 2003.10152)",
)
declare(
    "retinanet_detection_output",
    "BBoxes* Scores* Anchors* ImInfo -> Out",
    {"score_threshold": FLOAT, "nms_top_k": INT, "nms_threshold": FLOAT, "nms_eta": FLOAT, "keep_top_k": INT},
    rows="own",
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


# YOLOv3 (arXiv 1804.02767): the loss of a grid of predictions, and the predicted boxes.
#
# X has 5 + classes channels for each anchor of the mask: the middle, the logarithms of the sides, the confidence, and
# the classes.

declare(
    "yolov3_loss",
    "X GTBox GTLabel GTScore? -> Loss ObjectnessMask~ GTMatchMask~",
    {
        "class_num": INT,
        "anchors": ints(),
        "anchor_mask": ints(),
        "downsample_ratio": 32,
        "ignore_thresh": 0.7,
        "use_label_smooth": True,
        "scale_x_y": 1.0,
    },
    domains={"GTLabel": Below("class_num")},
    rows="own",
    doc="Loss = for each image how far X is from the objects GTBox (middle and sides as shares of the image), GTLabel",
)
declare_gradient(
    "yolov3_loss",
    "X GTBox GTLabel GTScore? Loss@GRAD ObjectnessMask GTMatchMask -> X@GRAD GTBox@GRAD? GTLabel@GRAD? GTScore@GRAD?",
)
declare(
    "yolo_box",
    "X ImgSize -> Boxes Scores",
    {
        "class_num": INT,
        "anchors": ints(),
        "downsample_ratio": 32,
        "conf_thresh": 0.01,
        "clip_bbox": True,
        "scale_x_y": 1.0,
    },
    rows="own",
    doc="Boxes = the box at each place of X for each anchor, in pixels; Scores = how likely each class is there",
)


@gradient("yolov3_loss")
def _loss_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    """The gradient of X; Fluid names the other slots and leaves them empty."""
    made = from_declaration("yolov3_loss_grad")(op, wanted)[0]
    empty = dict.fromkeys(("GTBox@GRAD", "GTLabel@GRAD", "GTScore@GRAD"), ())
    return (made._replace(outputs=FrozenMap({**made.outputs, **empty})),)


def anchors_of(op: Op) -> tuple[tuple[int, int], ...]:
    """Width and height of each anchor. Raises ShapeError unless the attribute `anchors` holds pairs of positive
    numbers.
    """
    tensor = ints_attr(op, "anchors")
    if not tensor or len(tensor) % 2 or min(tensor) < 1:
        raise ShapeError(f"anchors is {list(tensor)}, it must be widths and heights, all above 0", "X")
    return tuple(zip(tensor[::2], tensor[1::2], strict=True))


def _grid(op: Op, types: Types, count: int) -> TensorType:
    x, classes = one(types, "X"), int_attr(op, "class_num")
    if classes < 1:
        raise ShapeError(f"class_num is {classes}, it must be above 0", "X")
    if int_attr(op, "downsample_ratio") < 1:
        raise ShapeError(f"downsample_ratio is {int_attr(op, 'downsample_ratio')}, it must be above 0", "X")
    if len(x.shape) != 4 or x.shape[1] not in (-1, count * (5 + classes)):
        raise ShapeError(f"X is {describe(x)}, it must have {count} * (5 + {classes}) channels", "X")
    return x


def mask_of(op: Op) -> tuple[int, ...]:
    """The anchors of this grid. Raises ShapeError for an anchor that does not exist."""
    tensor, count = ints_attr(op, "anchor_mask"), len(anchors_of(op))
    if not tensor or min(tensor) < 0 or max(tensor) >= count:
        raise ShapeError(f"anchor_mask is {list(tensor)}, anchors are numbered from 0 to {count - 1}", "X")
    return tensor


@shape_rule("yolov3_loss")
def _yolov3_loss(op: Op, types: Types) -> Types:
    mask = mask_of(op)
    x = _grid(op, types, len(mask))
    boxes, labels, scores = one(types, "GTBox"), one(types, "GTLabel"), one_or_none(types, "GTScore")
    if len(boxes.shape) != 3 or boxes.shape[2] not in (4, -1):
        raise ShapeError(f"GTBox is {describe(boxes)}, it must have the dims [images, boxes, 4]", "GTBox")
    for slot, tensor in (("GTLabel", labels), ("GTScore", scores)):
        if tensor is not None and not fits(tensor.shape, boxes.shape[:2]):
            disagree(slot, tensor, "GTBox", boxes)
    if x.shape[2] != x.shape[3] and min(x.shape[2:]) > 0:
        raise ShapeError(f"X is {describe(x)}, its places must be a square", "X")
    return {
        "Loss": (TensorType(x.dtype, (x.shape[0],)),),
        # Fluid's layer declares ObjectnessMask as i32; the op gives the element type of X
        "ObjectnessMask": (None,),
        "GTMatchMask": (TensorType(DType.INT32, boxes.shape[:2]),),
    }


@shape_rule("yolo_box")
def _yolo_box(op: Op, types: Types) -> Types:
    count = len(anchors_of(op))
    x, size = _grid(op, types, count), one(types, "ImgSize")
    if len(size.shape) != 2 or size.shape[1] not in (2, -1) or not fits(size.shape[:1], x.shape[:1]):
        raise ShapeError(f"ImgSize is {describe(size)}, it must have height and width of each image", "ImgSize")
    places = x.shape[2] * x.shape[3] * count  # Fluid multiplies unknown dims as well
    return {
        "Boxes": (TensorType(x.dtype, (x.shape[0], places, 4)),),
        "Scores": (TensorType(x.dtype, (x.shape[0], places, int_attr(op, "class_num"))),),
    }


# Mean average precision of detections, accumulated over batches.

declare(
    "detection_map",
    "DetectRes Label HasState? PosCount? TruePos? FalsePos? -> AccumPosCount AccumTruePos AccumFalsePos MAP",
    {
        "class_num": INT,
        "background_label": 0,
        "overlap_threshold": 0.5,
        "evaluate_difficult": True,
        "ap_type": "integral",
    },
    may_lack="PosCount TruePos FalsePos",
    rows="own",
    doc="MAP = the mean over classes of the average precision of what is found, DetectRes, against Label",
)

AP_TYPES = ("integral", "11point")
"""The values that `ap_type` may have: the area under precision over recall, or the mean of the best precisions at
eleven recalls.
"""


@shape_rule("detection_map")
def _detection_map(op: Op, types: Types) -> Types:
    detections, label = one(types, "DetectRes"), one(types, "Label")
    if len(detections.shape) != 2 or detections.shape[1] not in (6, -1):
        raise ShapeError(f"DetectRes is {describe(detections)}, it must have label, score and box", "DetectRes")
    if len(label.shape) != 2 or label.shape[1] not in (5, 6, -1):
        raise ShapeError(f"Label is {describe(label)}, it must have label, box, and maybe how difficult it is", "Label")
    if int_attr(op, "class_num") < 1:
        raise ShapeError(f"class_num is {int_attr(op, 'class_num')}, it must be above 0", "Label")
    one_of(op, "ap_type", AP_TYPES, "DetectRes")
    # Fluid does not declare the dims of the accumulated state
    return {
        "MAP": (TensorType(DType.FP32, (1,)),),
        "AccumPosCount": (None,),
        "AccumTruePos": (None,),
        "AccumFalsePos": (None,),
    }
