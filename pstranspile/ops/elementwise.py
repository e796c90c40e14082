"""Elementwise arithmetic of two tensors, with Fluid's axis broadcasting."""

from __future__ import annotations

from pstranspile.ops.schema import declare, declare_gradient

_BINARY = {"axis": -1, "use_mkldnn": False, "x_data_format": "", "y_data_format": ""}

declare(
    "elementwise_add",
    "X Y -> Out",
    _BINARY,
    row_wise=True,
    doc="Out = X + Y; the dims of Y lie on those of X from `axis` on (-1: the last ones), the rest is broadcast",
)
declare_gradient("elementwise_add", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_sub", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X - Y")
declare_gradient("elementwise_sub", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_mul", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X * Y")
declare_gradient("elementwise_mul", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_div", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X / Y; integers truncate toward zero")
declare_gradient("elementwise_div", "X Y Out Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_max", "X Y -> Out", _BINARY, row_wise=True, doc="Out = the larger of X and Y")
declare_gradient("elementwise_max", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_min", "X Y -> Out", _BINARY, row_wise=True, doc="Out = the smaller of X and Y")
declare_gradient("elementwise_min", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_pow", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X to the power of Y")
declare_gradient("elementwise_pow", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "elementwise_mod",
    "X Y -> Out",
    _BINARY,
    row_wise=True,
    doc="Out = the remainder of X / Y; of integers with the sign of X, of floats with the sign of Y",
)
declare("elementwise_floordiv", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X / Y, truncated toward zero")
