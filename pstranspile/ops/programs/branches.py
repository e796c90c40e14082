"""Selection of branches, for a whole tensor or row by row."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ops.gradient import Wanted, gradient, like_forward, output_gradients
from pstranspile.ops.schema import declare
from pstranspile.ops.shapes import Types, one, outputs_like, shape_rule

declare(
    "split_lod_tensor",
    "X Mask -> OutTrue OutFalse",
    {"level": 0},
    doc="OutTrue and OutFalse = the rows of X where Mask is true and false",
)
declare(
    "merge_lod_tensor",
    "X Mask InTrue InFalse -> Out",
    {"level": 0},
    may_lack="InTrue InFalse",
    doc="Out = the rows of InTrue and InFalse, put together as Mask says",
)
declare(
    "merge_lod_tensor_infer",
    "X Mask InTrue InFalse -> Out",
    {"level": 0},
    may_lack="InTrue InFalse",
    doc="as merge_lod_tensor, where nothing is trained",
)


@shape_rule("split_lod_tensor")
def _split_lod_tensor(_op: Op, types: Types) -> Types:
    part = one(types, "X")._replace(lod_level=0)  # Fluid declares all rows for each of the parts
    return {"OutTrue": (part,), "OutFalse": (part,)}


shape_rule("merge_lod_tensor", "merge_lod_tensor_infer")(outputs_like(Out="InTrue"))


@gradient("split_lod_tensor")
def _split_lod_tensor_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {
        "X": op.inputs["X"],
        "Mask": op.inputs["Mask"],
        "InTrue": output_gradients(op, "OutTrue"),
        "InFalse": output_gradients(op, "OutFalse"),
    }
    return (like_forward(op, "merge_lod_tensor", inputs, {"Out": wanted.kept(op, "X")}),)


@gradient("merge_lod_tensor")
def _merge_lod_tensor_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "Mask": op.inputs["Mask"]}
    gradients = {"OutTrue": wanted.kept(op, "InTrue"), "OutFalse": wanted.kept(op, "InFalse")}
    return (like_forward(op, "split_lod_tensor", inputs, gradients),)


declare("select_input", "X* Mask -> Out", doc="Out = X of the number Mask")
declare("select_output", "X Mask -> Out*", doc="Out of the number Mask = X")


@gradient("select_input")
def _select_input_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "Mask": op.inputs["Mask"]}
    return (like_forward(op, "select_output", inputs, {"Out": wanted.placed(op, "X")}),)


@gradient("select_output")
def _select_output_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "Mask": op.inputs["Mask"]}
    return (like_forward(op, "select_input", inputs, {"Out": wanted.kept(op, "X")}),)
