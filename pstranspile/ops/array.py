"""Arrays of tensors."""

from __future__ import annotations

from pstranspile.ops.schema import declare
from pstranspile.ops.shapes import outputs_like, shape_rule

declare("lod_tensor_to_array", "X RankTable -> Out", doc="Out = an array of the steps of X, ordered by RankTable")
declare("array_to_lod_tensor", "X RankTable -> Out", doc="Out = the tensor that lod_tensor_to_array came from")
declare("write_to_array", "X I -> Out", doc="Out[I] = X")
declare("read_from_array", "X I X_W? -> Out", doc="Out = X[I]")


shape_rule("write_to_array", "read_from_array")(outputs_like(Out="X"))
