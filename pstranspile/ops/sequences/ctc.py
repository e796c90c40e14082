"""Connectionist temporal classification: the loss of label sequences without an alignment to frames."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, one, shape_rule


@shape_rule("warpctc")
def _warpctc_types(_op: Op, types: Types) -> Types:
    x = one(types, "Logits")
    padded = bool(types.get("LogitsLength"))
    if len(x.shape) < (3 if padded else 2):
        kind = "padded sequences must have 3" if padded else "ragged sequences must have 2"
        raise ShapeError(f"Logits is {describe(x)}, {kind} dims", "Logits")
    return {"Loss": (TensorType(x.dtype, (-1, 1)),)}


declare(
    "warpctc",
    "Logits Label LogitsLength? LabelLength? -> WarpCTCGrad~ Loss",
    {"blank": 0, "norm_by_times": False},
    doc="Loss = connectionist temporal classification",
)
declare_gradient("warpctc", "Logits LogitsLength? WarpCTCGrad Loss@GRAD -> Logits@GRAD")
