"""Tables held by Fluid's own servers (pslib)."""

from __future__ import annotations

from pstranspile.ops.schema import declare, declare_gradient, strings

_TABLE = {
    "EmbeddingDim": 11,
    "TableId": 0,
    "AccessorClass": "",
    "CtrLabelName": "",
    "PaddingId": 0,
    "ScaleSparseGrad": True,
    "InputNames": strings(),
    "is_distributed": True,
}

declare(
    "pull_sparse",
    "Ids* W* -> Out*",
    _TABLE,
    doc="Out = the rows of table TableId at Ids",
)
declare_gradient("pull_sparse", "Ids* W* Out@GRAD* -> Out@GRAD*", op_type="push_sparse")
declare(
    "pull_sparse_v2",
    "Ids* W* -> Out*",
    _TABLE,
    doc="as pull_sparse, Ids of any shape",
)
declare_gradient("pull_sparse_v2", "Ids* W* Out@GRAD* -> Out@GRAD*", op_type="push_sparse_v2")
declare(
    "push_dense",
    "Ids* ->",
    {"TableId": -1, "ScaleDataNorm": -1.0, "InputNames": strings()},
    doc="sends the gradients of dense parameters to table TableId",
)
