"""Elements picked out, put elsewhere or sorted."""

from __future__ import annotations

from pstranspile.ops.schema import INTS, declare, declare_gradient, ints

declare("pad", "X -> Out", {"paddings": INTS, "pad_value": 0.0}, doc="Out = X with paddings of pad_value")
declare_gradient("pad", "Out@GRAD -> X@GRAD")
declare(
    "pad2d",
    "X Paddings? -> Out",
    {"paddings": INTS, "pad_value": 0.0, "mode": "constant", "data_format": "NCHW"},
    doc="Out = images X with their edges padded",
)
declare_gradient("pad2d", "X Paddings? Out@GRAD -> X@GRAD")
declare("pad_constant_like", "X Y -> Out", {"pad_value": 0.0}, doc="Out = Y padded to the dims of X")
declare_gradient("pad_constant_like", "Y Out@GRAD -> Y@GRAD")
declare(
    "crop",
    "X Y? Offsets? -> Out",
    {"offsets": ints(), "shape": ints()},
    doc="Out = X from `offsets` on, of the dims `shape` or those of Y",
)
declare_gradient("crop", "X Offsets? Out@GRAD -> X@GRAD")
declare(
    "crop_tensor",
    "X Shape? Offsets? ShapeTensor*? OffsetsTensor*? -> Out",
    {"offsets": ints(), "shape": ints()},
    doc="as crop, dims and offsets may come as tensors",
)
declare_gradient("crop_tensor", "X Offsets? OffsetsTensor*? Out@GRAD -> X@GRAD")
declare(
    "allclose",
    "Input Other -> Out",
    {"rtol": 1e-05, "atol": 1e-08, "equal_nan": False},
    doc="Out = whether all elements of Input and Other are nearly equal",
)
