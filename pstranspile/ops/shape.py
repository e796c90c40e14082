"""Other shapes of the same elements. XShape holds the shape of X after a leading 0, and no data."""

from __future__ import annotations

from pstranspile.ops.schema import INTS, declare, declare_gradient, ints

declare(
    "reshape",
    "X Shape? ShapeTensor*? -> Out",
    {"shape": ints()},
    doc="Out = X with dims `shape` (0: as in X, -1: the rest)",
)
declare(
    "reshape2",
    "X Shape? ShapeTensor*? -> Out XShape",
    {"shape": ints(), "use_quantizer": False},
    doc="as reshape, with the old shape in XShape",
)
declare_gradient("reshape2", "XShape Out@GRAD -> X@GRAD")
declare(
    "transpose",
    "X -> Out",
    {"axis": INTS, "use_mkldnn": False, "data_format": "AnyLayout", "use_quantizer": False},
    doc="Out = X with its dims in the order `axis`",
)
declare_gradient("transpose", "X Out Out@GRAD -> X@GRAD")
declare(
    "transpose2",
    "X -> Out XShape",
    {"axis": INTS, "use_mkldnn": False, "data_format": "AnyLayout", "use_quantizer": False},
    doc="as transpose, with the old shape in XShape",
)
declare_gradient("transpose2", "XShape Out@GRAD -> X@GRAD")
declare("squeeze", "X -> Out", {"axes": ints()}, doc="Out = X without the dims `axes` of size 1")
declare_gradient("squeeze", "X Out@GRAD -> X@GRAD")
declare("squeeze2", "X -> Out XShape", {"axes": ints()}, doc="as squeeze, with the old shape in XShape")
declare_gradient("squeeze2", "XShape Out@GRAD -> X@GRAD")
declare(
    "unsqueeze",
    "X AxesTensor? AxesTensorList*? -> Out",
    {"axes": ints()},
    doc="Out = X with dims of size 1 put in at `axes`",
)
declare_gradient("unsqueeze", "X Out@GRAD -> X@GRAD")
declare(
    "unsqueeze2",
    "X AxesTensor? AxesTensorList*? -> Out XShape",
    {"axes": ints()},
    doc="as unsqueeze, with the old shape in XShape",
)
declare_gradient("unsqueeze2", "XShape Out@GRAD -> X@GRAD")
declare(
    "flatten",
    "X -> Out",
    {"axis": 1},
    doc="Out = X as a matrix, its dims before `axis` made one and those from `axis` on",
)
declare_gradient("flatten", "X Out@GRAD -> X@GRAD")
declare("flatten2", "X -> Out XShape", {"axis": 1}, doc="as flatten, with the old shape in XShape")
declare_gradient("flatten2", "XShape Out@GRAD -> X@GRAD")
declare("shape", "Input -> Out", doc="Out = the dims of Input, i32")
