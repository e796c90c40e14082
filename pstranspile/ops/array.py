"""Arrays of tensors."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ops.gradient import Wanted, gradient, like_forward, output_gradients
from pstranspile.ops.schema import declare
from pstranspile.ops.shapes import outputs_like, shape_rule

declare("lod_tensor_to_array", "X RankTable -> Out", doc="Out = an array of the steps of X, ordered by RankTable")
declare("array_to_lod_tensor", "X RankTable -> Out", doc="Out = the tensor that lod_tensor_to_array came from")
declare("write_to_array", "X I -> Out", doc="Out[I] = X")
declare("read_from_array", "X I X_W? -> Out", doc="Out = X[I]")


shape_rule("write_to_array", "read_from_array")(outputs_like(Out="X"))


@gradient("lod_tensor_to_array")
def _lod_tensor_to_array_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "RankTable": op.inputs["RankTable"]}
    return (like_forward(op, "array_to_lod_tensor", inputs, {"Out": wanted.kept(op, "X")}),)


@gradient("array_to_lod_tensor")
def _array_to_lod_tensor_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "RankTable": op.inputs["RankTable"]}
    return (like_forward(op, "lod_tensor_to_array", inputs, {"Out": wanted.kept(op, "X")}),)


@gradient("write_to_array")
def _write_to_array_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "I": op.inputs["I"], "X_W": op.inputs["X"]}
    return (like_forward(op, "read_from_array", inputs, {"Out": wanted.kept(op, "X")}),)


@gradient("read_from_array")
def _read_from_array_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "I": op.inputs["I"]}
    return (like_forward(op, "write_to_array", inputs, {"Out": wanted.kept(op, "X")}),)
