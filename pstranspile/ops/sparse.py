"""SelectedRows and ids cut up for servers and put together again."""

from __future__ import annotations

from pstranspile.ops.schema import declare, ints, longs

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
