"""SelectedRows and ids split among servers and merged again."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.gradient import Wanted, gradient, like_forward, output_gradients
from pstranspile.ops.schema import declare, ints, longs
from pstranspile.ops.shapes import ShapeError, Types, describe, one, outputs_like, shape_rule

declare("merge_selected_rows", "X -> Out", doc="Out = X with rows of one index added up")
declare("get_tensor_from_selected_rows", "X -> Out", doc="Out = the value of X")
declare(
    "split_selected_rows",
    "X -> Out*",
    {"height_sections": longs()},
    doc="Out = the rows of X sorted into sections of the height",
)
declare("split_ids", "Ids* -> Out*", doc="Out = Ids (or rows) sorted by id modulo the number of outputs")
declare("merge_ids", "Ids* Rows* X* -> Out*", doc="Out = the rows X at the ids Rows, in the order of Ids")
declare("split_byref", "X -> Out*", {"sections": ints(), "num": 0}, doc="Out = X cut along dim 0, sharing its memory")
declare("ref_by_trainer_id", "X* TrainerId -> Out", doc="Out = X of the number TrainerId")


shape_rule("merge_selected_rows", "get_tensor_from_selected_rows")(outputs_like(Out="X"))


@shape_rule("ref_by_trainer_id")
def _ref_by_trainer_id(_op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X"),)}


@shape_rule("split_byref")
def _split_byref(op: Op, types: Types) -> Types:
    x, sections = one(types, "X"), ints_attr(op, "sections")
    if not sections:
        return {}
    if x.shape[0] >= 0 and sum(sections) != x.shape[0]:
        raise ShapeError(f"X is {describe(x)}, which cannot be cut into {list(sections)} rows", "X")
    return {"Out": tuple(TensorType(x.dtype, (rows, *x.shape[1:])) for rows in sections)}


@gradient("split_byref")
def _split_byref_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (like_forward(op, "concat", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}),)


@gradient("split_selected_rows")
def _split_selected_rows_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (like_forward(op, "sum", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}),)
