"""Images and volumes."""

from __future__ import annotations

from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import outputs_like, shape_rule

declare("row_conv", "X Filter -> Out", doc="Out = X convolved with Filter over the rows that follow")
declare_gradient("row_conv", "X Filter Out@GRAD -> X@GRAD Filter@GRAD")
shape_rule("row_conv")(outputs_like(Out="X"))
declare("conv_shift", "X Y -> Out", doc="Out = the circular convolution of the rows of X and Y")
declare_gradient("conv_shift", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "add_position_encoding",
    "X -> Out",
    {"alpha": 1.0, "beta": 1.0},
    doc="Out = alpha * X + beta * sines of the position",
)
declare_gradient("add_position_encoding", "Out@GRAD -> X@GRAD")
declare("fsp", "X Y -> Out", doc="Out = the products of all channels of X with all of Y")
declare_gradient("fsp", "X Y Out@GRAD -> X@GRAD Y@GRAD")
