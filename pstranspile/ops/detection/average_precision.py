"""Mean average precision of detections, accumulated over batches."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.detection.matching import one_of
from pstranspile.ops.schema import INT, declare
from pstranspile.ops.shapes import ShapeError, Types, describe, one, shape_rule

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
    doc="MAP = the mean over classes of the average precision of what is found, DetectRes, against Label",
)

AP_TYPES = ("integral", "11point")
"""What `ap_type` may be: the area under precision over recall, or the mean of the best at eleven recalls."""


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
