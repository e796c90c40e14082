"""YOLOv3 (arXiv 1804.02767): the loss of a grid of predictions, and the predicted boxes.

X has 5 + classes channels for each anchor of the mask: the middle, the logarithms of the sides, the confidence, and the
classes.
"""

from __future__ import annotations

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.gradient import Wanted, from_declaration, gradient
from pstranspile.ops.schema import INT, declare, declare_gradient, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, given, one, shape_rule

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
    doc="Boxes = the box at each place of X for each anchor, in pixels; Scores = how likely each class is there",
)


@gradient("yolov3_loss")
def _loss_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    """The gradient of X; Fluid names the other slots and leaves them empty."""
    made = from_declaration("yolov3_loss_grad")(op, wanted)[0]
    empty = dict.fromkeys(("GTBox@GRAD", "GTLabel@GRAD", "GTScore@GRAD"), ())
    return (made._replace(outputs=FrozenMap({**made.outputs, **empty})),)


def anchors_of(op: Op) -> tuple[tuple[int, int], ...]:
    """Width and height of each anchor. Raises ShapeError unless they are positive numbers in pairs."""
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
    boxes, labels, scores = one(types, "GTBox"), one(types, "GTLabel"), given(types, "GTScore")
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
